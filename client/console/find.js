// The search box: filters as chips, suggestions while typing, and the order of the list.  Each filter
// is an argument of the address, with the name of the server's argument.

import { Verbatim, ask, get, withQuery } from './api.js';
import { at, button, date, h, since } from './dom.js';
import { hidden } from './parts.js';

const HOUR = 3600;
const spans = [['15 minutes ago', HOUR / 4], ['an hour ago', HOUR], ['a day ago', 24 * HOUR], ['a week ago', 7 * 24 * HOUR]];
const states = ['ready', 'running', 'scheduled', 'suspended', 'retryable', 'blocked', 'completed', 'dead', 'cancelled', 'expired'];

// The filters.  "values" suggests values from the data of the box; "read" turns a typed text into the
// value, or null; "text" is the text of a chip; "any": a text without a name may mean this filter;
// "secret": not for sessions with hidden payloads.
const filters = {
	state: { values: () => states, read: (text) => states.find((s) => s === text) ?? null, wrong: 'no such state' },
	queue: { values: (data) => data.queues },
	kind: { values: (data) => data.kinds },
	tenant: { values: (data, items) => items.map((j) => j.tenant), any: true },
	tag: { secret: true, values: (data, items) => items.flatMap((j) => j.tags ?? []), any: true },
	error: {
		title: 'error contains', secret: true, any: true, read: (text) => /(?<!\\)[%_]/.test(text) ? text : `%${text}%`, text: (value) => value.replace(/^%([^%_]*)%$/, '$1'),
	},
	unique_key: { title: 'unique key', secret: true, any: true },
	payload: {
		title: 'payload contains', secret: true, wrong: 'write JSON, such as {"order": 17}',
		read(text) {
			try {
				JSON.parse(text);
				return text;
			} catch {
				return null;
			}
		},
	},
	fingerprint: {
		title: 'failure', secret: true, values: (data) => data.failures.map((f) => f.fingerprint),
		label: (value, data) => data.failures.find((f) => f.fingerprint === value)?.label ?? value,
		read: (text) => /^-?\d+$/.test(text) ? text : null, wrong: 'write the number of a failure',
	},
	from: { title: 'since', time: true },
	until: { title: 'before', time: true },
	batch_id: { title: 'batch', read: (text) => /^\d+$/.test(text) ? text : null, wrong: 'write the number of a batch' },
	role: {},
	action: { values: (data, items) => items.map((entry) => entry.action) },
	group_key: { title: 'group', secret: true },
	header: { secret: true, read: (text) => /^[^=]+=/.test(text) ? text : null, wrong: 'write NAME=VALUE' },
};

for (const filter of Object.values(filters).filter((f) => f.time))
	Object.assign(filter, {
		values: () => spans.map(([name]) => name), wrong: 'write a time, such as 2030-01-31 14:00',
		read(text) {
			const [, seconds] = spans.find(([name]) => name === text) ?? [];

			return (seconds === undefined ? date(text) : new Date(Date.now() - seconds * 1000))?.toISOString() ?? null;
		},
		text: at,
	});

const titleOf = (name) => filters[name].title ?? name;
const chipText = (name, value, data) => filters[name].label?.(value, data) ?? filters[name].text?.(value) ?? value;
const offered = (names) => names.filter((name) => !filters[name].secret || !hidden());
const unique = (values) => [...new Set((values ?? []).filter(Boolean).map(String))];

// --- suggestions --------------------------------------------------------------

// The names that the box suggests.  A role that may not see a list gets no suggestions.
const FRESH = 10000;		// time in ms for which the names are kept
let loaded = { at: null, data: null };
const none = { queues: [], kinds: [], failures: [] };

function load() {
	const items = (to) => get(to).then((answer) => answer.items).catch(() => []);

	if (since(loaded.at) < FRESH)
		return loaded.data;
	loaded = { at: performance.now(), data: Promise.all([items('api/queues'), items('api/kinds'), items('api/failures')]).then(([queues, kinds, failures]) => ({
		queues: queues.map((q) => q.name),
		kinds: unique([...kinds.map((k) => k.kind), ...failures.flatMap((f) => f.kinds)]).sort(),
		failures: failures.map((f) => ({ fingerprint: String(f.fingerprint), label: [f.sqlstate, f.message].filter(Boolean).join(' ').split('\n')[0].slice(0, 80) })),
	})) };
	return loaded.data;
}

const MOST_SUGGESTED = 8;

function valuesLike(name, text, box, items) {
	const filter = filters[name];
	const like = text.toLowerCase();
	const label = (value) => filter.label?.(value, box.data) ?? value;

	return unique(filter.values?.(box.data, items)).filter((value) => `${value} ${label(value)}`.toLowerCase().includes(like))
		.sort((a, b) => label(b).toLowerCase().startsWith(like) - label(a).toLowerCase().startsWith(like))
		.slice(0, MOST_SUGGESTED).map((value) => ({ name, value: filter.time ? filter.read(value) : value, title: titleOf(name), label: label(value) }));
}

// Suggestions for the text: { name, value } for a filter, { name } to go on with its values, { go } for
// a page, { wrong } for a text that is not a value.
function suggest(c, names) {
	const { box } = c;
	const items = c.data.items ?? [];
	const [, name, rest] = /^\s*(\w[\w ]*?)\s*:\s*(.*)$/.exec(box.text) ?? [];
	const chosen = names.find((n) => n === name || titleOf(n) === name);
	const text = (chosen ? rest : box.text).trim();

	if (chosen) {
		const value = text === '' ? null : filters[chosen].read ? filters[chosen].read(text) : text;
		const found = valuesLike(chosen, text, box, items).filter((option) => option.value !== text && option.label !== text);

		return [...value !== null ? [{ name: chosen, value, title: titleOf(chosen), label: spans.some(([span]) => span === text) ? text : chipText(chosen, value, box.data) }] : [], ...found,
			...text !== '' && value === null && found.length === 0 ? [{ wrong: filters[chosen].wrong }] : []];
	}
	if (text === '')
		return names.filter((n) => !c.query[n]).map((n) => ({ name: n, title: titleOf(n), label: '' }));
	return [
		...names.includes('payload') && /^[{[]/.test(text) ? [{ name: 'payload', value: text, title: titleOf('payload'), label: text }] : [],
		.../^\d+$/.test(text) ? [{ go: `#/job/${text}`, title: 'open job', label: text }] : [],
		...names.flatMap((n) => valuesLike(n, text, box, items)).slice(0, MOST_SUGGESTED),
		...names.filter((n) => titleOf(n).startsWith(text.toLowerCase())).map((n) => ({ name: n, title: titleOf(n), label: '' })),
		...names.filter((n) => filters[n].any).map((n) => ({ name: n, value: filters[n].read?.(text) ?? text, title: titleOf(n), label: text })),
	].filter((option) => option.name !== 'payload' || filters.payload.read(option.value ?? '{}') !== null);
}

// --- the box --------------------------------------------------------------------

const to = (c, changes) => withQuery(`#/${c.name}`, { ...c.query, before: '', ...changes });

// The box and the chips of these filters.
export function find(c, wanted, ...others) {
	const names = offered(wanted);
	const box = c.box ??= { text: '', open: false, at: -1, data: none };
	const options = box.open ? suggest(c, names) : [];

	box.names = names;
	box.options = options;
	box.at = Math.min(box.at, options.length - 1);
	if (names.some((name) => c.query[name] && filters[name].label))
		know(c);
	return h('div', { class: 'find', 'data-key': 'find' },
		h('div', { class: 'box' },
			names.filter((name) => c.query[name]).map((name) => h('span', { class: 'chip', 'data-key': `chip ${name}` },
				h('button', { type: 'button', 'data-find': 'edit', 'data-name': name, title: 'Change this filter' },
					h('span', { class: 'faint' }, `${titleOf(name)} `), chipText(name, c.query[name], box.data)),
				h('a', { href: to(c, { [name]: '' }), 'aria-label': `Remove the filter ${titleOf(name)}`, title: 'Remove' }, '×'))),
			h('input', {
				id: 'find', role: 'combobox', autocomplete: 'off', spellcheck: 'false', autocapitalize: 'none', 'aria-label': 'Filter', placeholder: filteredBy(c, names) ? '' : names.includes('batch_id') ? 'Filter, or a job id' : 'Filter',
				'aria-expanded': String(options.length > 0), 'aria-controls': 'find-list', 'aria-autocomplete': 'list', 'aria-activedescendant': box.at >= 0 ? `find-${box.at}` : null,
			}),
			filteredBy(c, names) ? h('a', { class: 'clear', href: `#/${c.name}` }, 'Clear') : null,
			h('ul', { id: 'find-list', role: 'listbox', 'aria-label': 'Suggestions', hidden: options.length === 0 }, options.map((option, i) => h('li', {
				id: `find-${i}`, role: 'option', 'aria-selected': String(i === box.at), 'aria-disabled': option.wrong ? 'true' : null, 'data-find': 'choose', 'data-at': String(i),
			}, option.wrong ? h('span', { class: 'faint' }, option.wrong) : [h('span', { class: 'faint' }, `${option.title} `), option.label])))),
		others);
}

const filteredBy = (c, names) => names.some((name) => c.query[name]);

async function know(c) {
	if (c.box.data !== none)
		return;
	c.box.data = await load();
	c.draw();
}

function type(c, text, open) {
	const input = document.getElementById('find');

	if (input && input.value !== text)
		input.value = text;
	Object.assign(c.box, { text, open, at: -1 });
	c.draw();
	know(c);
}

function choose(c, option) {
	if (!option || option.wrong)
		return;
	if (option.name && option.value === undefined) {
		type(c, `${option.title}: `, true);
		return;
	}
	type(c, '', false);
	location.assign(option.go ?? to(c, { [option.name]: option.value }));
}

// Handle an event in the box of this view; true if it is one.
export function findEvent(c, event) {
	const { target } = event;
	const { box } = c;

	if (!box)
		return false;
	if (event.type === 'click' && target.closest('[data-find]')) {
		const { find, at: place, name } = target.closest('[data-find]').dataset;

		document.getElementById('find').focus();
		if (find === 'choose')
			choose(c, box.options[Number(place)]);
		else
			type(c, `${titleOf(name)}: ${filters[name].time ? c.query[name] : chipText(name, c.query[name], none)}`, true);
		return true;
	}
	if (event.type === 'click' && box.open !== (target.id === 'find')) {
		type(c, box.text, target.id === 'find');
		return target.id === 'find';
	}
	if (target.id !== 'find')
		return false;
	if (event.type === 'input') {
		type(c, target.value, true);
		return true;
	}
	if (event.type !== 'keydown')
		return false;
	if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
		event.preventDefault();
		if (!box.open)
			type(c, box.text, true);
		const n = box.options.length;

		if (n > 0)
			box.at = event.key === 'ArrowDown' ? (box.at + 1) % n : (box.at <= 0 ? n : box.at) - 1;
		c.draw();
		document.getElementById(`find-${box.at}`)?.scrollIntoView({ block: 'nearest' });
	} else if (event.key === 'Enter') {
		event.preventDefault();
		choose(c, box.options[Math.max(box.at, 0)]);
	} else if (event.key === 'Escape')
		type(c, box.open ? box.text : '', false);
	else if (event.key === 'Backspace' && target.value === '') {
		const last = box.names.findLast((name) => c.query[name]);

		if (last)
			location.assign(to(c, { [last]: '' }));
	} else if (event.key === 'Tab')
		type(c, box.text, false);
	return true;
}

// --- many jobs --------------------------------------------------------------------

const sameName = ['state', 'queue', 'kind', 'tenant', 'error', 'fingerprint', 'from', 'until', 'unique_key', 'group_key', 'batch_id'];

// The filters of a list as conditions for an action on all its jobs; null if there is no such condition.
export function conditions(query) {
	const like = {};

	for (const [name, value] of Object.entries(query).filter(([n, v]) => v && n !== 'before' && n !== 'order'))
		if (sameName.includes(name))
			like[name] = value;
		else if (name === 'tag')
			like.tags = [value];
		else if (name === 'payload')
			like.payload = new Verbatim(value);
		else
			return null;
	// these actions know only the time at which a job was enqueued, or failed
	return (like.from || like.until) && query.order ? null : like;
}

// The filters of the list, as a text.
export const describe = (c) => Object.keys(filters).filter((name) => c.query[name]).map((name) => `${titleOf(name)} ${chipText(name, c.query[name], c.box?.data ?? none)}`).join(', ');

// --- order and export -----------------------------------------------------------

const orders = [
	['', 'Enqueued, newest first'], ['enqueued_at', 'Enqueued, oldest first'], ['run_at', 'Scheduled for, earliest first'], ['-run_at', 'Scheduled for, latest first'],
	['-started_at', 'Started, newest first'], ['started_at', 'Started, oldest first'], ['-finished_at', 'Finished, newest first'], ['finished_at', 'Finished, oldest first'],
];

// The time by which a list is ordered.
export const orderedBy = (c) => (c.query.order ?? '').replace(/^-/, '') || 'enqueued_at';

export const order = (c) => h('label', { class: 'order' }, h('span', {}, 'Order '), h('select', { 'data-order': '', 'data-key': 'order' },
	orders.map(([value, title]) => h('option', { value, selected: (c.query.order ?? '') === value }, title))));

export const orderChosen = (c, value) => location.assign(to(c, { order: value }));

const MOST_EXPORTED = 100000;

// The jobs of the list in a file, page by page.  Returns the number of jobs, and whether there are more.
export async function exported(c, format, progress) {
	const pages = [];
	let jobs = 0;
	let { before } = { before: '' };

	do {
		let next = '';
		const text = await ask('GET', withQuery('api/jobs/export', { ...c.query, format, before }), undefined, (answer) => {
			next = answer.headers.get('Jobq-Next');
		});

		jobs += format === 'json' ? JSON.parse(text).length : lines(text) - (before ? 0 : 1);
		pages.push(text);
		before = next;
		progress(jobs);
	} while (before && jobs < MOST_EXPORTED && !c.closed);
	const whole = format === 'csv' ? pages : ['[', pages.map((text) => text.slice(1, -1)).filter(Boolean).join(',\n'), ']\n'];

	return { jobs, more: Boolean(before), file: new Blob(whole, { type: format === 'csv' ? 'text/csv' : 'application/json' }) };
}

// The number of records: line breaks within a value do not count.
const lines = (csv) => (csv.match(/"(?:[^"]|"")*"|\r\n/g) ?? []).filter((token) => token === '\r\n').length;

export const exportButtons = () => [button('Export as CSV', 'export', { format: 'csv' }), button('Export as JSON', 'export', { format: 'json' })];
