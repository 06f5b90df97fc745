// Parts that several views share: links, lists that follow the server, and long texts.

import { get, session, withQuery } from './api.js';
import { button, count, h, since } from './dom.js';

export const jobLink = (id) => h('a', { href: `#/job/${id}` }, String(id));
export const queueLink = (name) => h('a', { href: `#/queue/${encodeURIComponent(name)}` }, name);
export const tenantLink = (tenant) => h('a', { href: withQuery('#/jobs', { tenant }) }, tenant);
export const batchLink = (b) => h('a', { href: `#/batch/${b.id}` }, b.name || `batch ${b.id}`);
export const bar = (percent, label) => h('progress', { max: 100, value: percent, 'aria-label': label }, `${Math.round(percent)} %`);
export const known = (value) => value !== null && value !== undefined;
export const code = (text) => h('code', {}, text);

// A menu for destructive and rare actions.
export function menu(label, ...items) {
	const shown = items.flat().filter(Boolean);

	return shown.length === 0 ? null : h('details', { class: 'more' },
		h('summary', { 'aria-label': label, title: label }, '⋯'), h('div', {}, shown));
}

// The contents of an empty page: a text, and the call that creates the first row.
export const empty = (text, call) => h('div', { class: 'empty' }, h('p', {}, text), call ? h('pre', {}, call) : null);

// A view of a complete list, which the server sends after each change.  beside(c) stands beside the
// title.  numbers() loads further numbers for the rows, into c.beside.
export function list(title, topic, draw, { beside = () => null, numbers = null } = {}) {
	return {
		title: () => title,
		async load(c) {
			const [data] = await Promise.all([get(`api/${topic}`), numbers && staleBesides(c) ? besides(c, numbers) : null]);

			c.data = data;
			c.loaded = true;
		},
		stale: (c) => numbers !== null && staleBesides(c),
		renew: (c) => besides(c, numbers),
		stream: () => ({ path: withQuery('api/events', { topics: topic }), events: [topic] }),
		heard(c, name, value) {
			c.data = value;
			c.loaded = true;
			return false;
		},
		draw: (c) => [h('div', { class: 'head' }, h('h1', {}, title), beside(c)), draw(c.data.items ?? [], c)],
	};
}

const FRESH = 30000;		// time in ms for which the numbers beside a list are kept
const staleBesides = (c) => since(c.besidesAt) > FRESH;

// If the numbers cannot be loaded, the list is shown without them.
async function besides(c, numbers) {
	c.besidesAt = performance.now();
	c.beside = await numbers().catch(() => c.beside);
}

const PAGE = 50;
export const filtered = (c) => Object.values(c.query).some(Boolean);

// A list in pages.  Each request reads a limited number of rows; until the page is full, the view
// asks for earlier rows.  The server sends changes of the first page without filters.  Any other
// page is loaded again every few seconds, unless it took a search.
export function paged(title, topic, others) {
	return {
		title: () => title,
		async load(c) {
			const turn = c.turn = {};
			const found = [];
			let { before } = c.query;

			for (let asked = 1; ; asked++) {
				const page = await get(withQuery(`api/${topic}`, { ...c.query, before, limit: PAGE - found.length }));

				if (c.turn !== turn)
					return;
				found.push(...page.items);
				before = page.next;
				c.long = asked > 1;
				c.searching = before !== null && found.length < PAGE && !c.stopped;
				c.data = { items: found, next: before, partial: page.partial };
				c.loaded = true;
				if (!c.searching || c.closed)
					return;
				c.draw();
			}
		},
		stream: (c) => filtered(c) ? null : { path: withQuery('api/events', { topics: topic }), events: [topic] },
		heard: (c) => !c.searching,
		stale: (c) => filtered(c) && !c.searching && !c.long,
		...others,
	};
}

export const pages = (c, to) => [c.data.partial ? h('p', { class: 'faint' }, 'There are too many jobs to sort: only the newest were sorted. Waiting jobs of a state can be sorted by the time for which they are scheduled.') : null,
	h('p', { class: 'buttons' },
	c.searching ? [h('span', { class: 'faint', role: 'status' }, 'Searching older rows …'), button('Stop', 'stop-search')] : null,
	c.long && !c.searching ? button('Refresh', 'reload') : null,
	c.query.before ? h('a', { class: 'button', href: withQuery(`#/${to}`, { ...c.query, before: '' }) }, 'Newest') : null,
	c.data.next && !c.searching ? h('a', { class: 'button', href: withQuery(`#/${to}`, { ...c.query, before: c.data.next }) }, 'Older') : null)];

export const MOST_SHOWN = 65536;
export const MOST_EDITED = 1000000;		// the default of --max-body; a longer text also stops the browser
export const kB = (text) => `${count(Math.round(text.length / 1000))} kB`;
export const showAll = (name, size) => button(`Show all ${size}`, 'show-all', { name });

// Parts of a text, of whole lines where the lines are short.  The browser lays out only the parts that are
// on the screen, because the layout of some megabytes takes a minute.
const CHUNK = 16384;

function chunks(text) {
	const found = [];

	for (let from = 0, to; from < text.length; from = to) {
		const line = text.slice(from + CHUNK, from + 2 * CHUNK).indexOf('\n');

		to = Math.min(from + CHUNK + line + 1, text.length);
		// a character of two units stays whole
		if (to < text.length && /[\uDC00-\uDFFF]/.test(text[to]))
			to++;
		found.push(text.slice(from, to));
	}
	return found;
}

// A part of JSON.  Each string of a right-to-left script is isolated: otherwise names and values change places
// on the screen.
const rightToLeft = /"(?:[^"\\]|\\.)*[\u0590-\u08FF\uFB1D-\uFDFF\uFE70-\uFEFC](?:[^"\\]|\\.)*"/g;

function isolated(text) {
	const found = [];
	let at = 0;

	for (const { 0: string, index } of text.matchAll(rightToLeft)) {
		found.push(text.slice(at, index), h('bdi', {}, string));
		at = index + string.length;
	}
	return [...found, text.slice(at)];
}

// The beginning of a long text, because drawing takes time.  The complete text comes on request,
// or as a file.  A text is laid out once, and its element is left alone until the text changes.
export function part(c, name, title, text, lay = (shown) => shown) {
	const whole = text.length <= MOST_SHOWN || c.whole?.has(name);
	const kept = (c.parts ??= new Map()).get(name);
	let made = kept;

	if (kept?.text !== text || kept.whole !== whole) {
		made = { text, whole, version: (kept?.version ?? 0) + 1, laid: chunks(lay(whole ? text : text.slice(0, MOST_SHOWN))) };
		c.parts.set(name, made);
	}
	return [h('pre', { tabindex: '0', 'aria-label': title, 'data-key': name, 'data-version': String(made.version) }, made.laid.length > 1 ? made.laid.map((chunk) => h('span', { class: 'chunk' }, isolated(chunk))) : isolated(made.laid.join(''))),
		text.length <= MOST_SHOWN ? null : h('p', { class: 'buttons' },
			whole ? null : showAll(name, kB(text)), button('Download', 'download', { name }))];
}

export const hidden = () => session.hide_payload;
