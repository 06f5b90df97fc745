// Elements and their contents.  All data of a job becomes text, never markup.

export function h(name, attributes, ...children) {
	return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes, ...children) {
	return fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function fill(element, attributes, children) {
	for (const [name, value] of Object.entries(attributes ?? {}))
		if (value === true)
			element.setAttribute(name, '');
		else if (value !== null && value !== undefined && value !== false)
			element.setAttribute(name, value);
	for (const child of children.flat(Infinity))
		if (child !== null && child !== undefined && child !== false)
			element.append(child instanceof Node ? child : String(child));
	return element;
}

// Make "old" like "wanted", and keep equal elements, with their focus, selection, input and scroll
// position.  data-key identifies rows.  Elements with equal data-version have equal contents.
export function morph(old, wanted) {
	if (old.nodeType !== wanted.nodeType || old.nodeName !== wanted.nodeName
		|| old.dataset?.key !== wanted.dataset?.key) {
		old.replaceWith(wanted);
		return;
	}
	if (old.dataset?.version !== undefined && old.dataset.version === wanted.dataset.version)
		return;
	if (old.nodeType !== Node.ELEMENT_NODE) {
		if (old.data !== wanted.data)
			old.data = wanted.data;
		return;
	}
	for (const { name } of [...old.attributes])
		if (!wanted.hasAttribute(name) && !(name === 'open' && old.nodeName === 'DETAILS'))
			old.removeAttribute(name);
	for (const { name, value } of wanted.attributes)
		if (old.getAttribute(name) !== value)
			old.setAttribute(name, value);
	if (old.nodeName === 'TEXTAREA')
		return;
	const keyed = new Map([...old.children].filter((c) => c.dataset?.key !== undefined).map((c) => [c.dataset.key, c]));
	let at = old.firstChild;

	for (const child of [...wanted.childNodes]) {
		const mine = keyed.get(child.dataset?.key);

		if (mine && mine !== at)
			old.insertBefore(mine, at);
		const here = mine ?? at;

		if (!here || (!mine && here.dataset?.key !== undefined)) {
			old.insertBefore(child, here ?? null);
			continue;
		}
		at = here.nextSibling;
		morph(here, child);
	}
	while (at) {
		const next = at.nextSibling;

		at.remove();
		at = next;
	}
}

export function show(into, ...children) {
	const wanted = into.cloneNode(false);

	wanted.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
	morph(into, wanted);
}

// Milliseconds since a time of performance.now(), which does not depend on the clock of the machine.  Without
// such a time: infinity.
export const since = (begun) => performance.now() - (begun ?? -Infinity);

const number = new Intl.NumberFormat('en');
const moment = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });

export const count = (n) => n === null || n === undefined ? '' : number.format(n);
// A number that may be an estimate.
export const about = (n, exact) => exact === false ? `~${count(n)}` : count(n);

// A time from the server; null for "infinity", and for years that no Date can hold.
export function date(value) {
	const parsed = new Date(String(value).replace(/^(\d{5,6})-/, (all, year) => `+${year.padStart(6, '0')}-`));

	return Number.isNaN(parsed.getTime()) ? null : parsed;
}

const format = (how) => (value) => {
	const known = date(value);

	return known === null ? String(value) : how.format(known);
};

export const at = format(moment);
export const hour = format(clock);

// A time as the value of an input of type datetime-local, and back.
export function local(value) {
	const moment = value instanceof Date ? value : date(value);

	return moment === null ? '' : new Date(moment - moment.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

export const instant = (text) => new Date(text).toISOString();

export function span(seconds) {
	if (seconds === null || seconds === undefined)
		return '';
	if (seconds === 0)
		return '0 s';
	if (seconds < 0.9995)
		return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
	if (seconds < 9.95)
		return `${seconds.toFixed(1)} s`;
	if (seconds < 100)
		return `${Math.round(seconds)} s`;
	if (seconds < 100 * 60)
		return `${Math.round(seconds / 60)} min`;
	if (seconds < 100 * 3600)
		return `${Math.round(seconds / 3600)} h`;
	return `${Math.round(seconds / 86400)} days`;
}

// Seconds of an interval as the server writes it; null for other intervals.
export function seconds(interval) {
	const parts = /^(\d+):(\d\d):(\d\d(?:\.\d+)?)$/.exec(interval ?? '');

	return parts === null ? null : Number(parts[1]) * 3600 + Number(parts[2]) * 60 + Number(parts[3]);
}

// The distance of a time from now, with the full time as a tooltip.
export function time(value) {
	if (!value)
		return '';
	const known = date(value);

	if (known === null)
		return String(value);
	const seconds = (Date.now() - known) / 1000;
	const whole = Math.round(Math.abs(seconds));
	const far = whole < 10 ? `${whole} s` : span(whole);
	const text = whole === 0 ? 'now' : seconds > 0 ? `${far} ago` : `in ${far}`;

	return h('time', { datetime: value, title: at(value) }, text);
}

const kinds = {
	completed: 'good', active: 'good', dead: 'bad', failed: 'bad', failing: 'bad', exited: 'bad', retryable: 'warn',
	critical: 'bad', warning: 'warn', expired: 'warn', new: 'warn', paused: 'warn', leaving: 'warn', running: 'busy', starting: 'busy',
};

export const stateClass = (state) => kinds[state] ?? '';
export const state = (value, text = value) => value ? h('span', { class: `state ${stateClass(value)}` }, text) : '';

// The contents of a cell.  An error in a cell does not affect the rest of the view.
function content(column, row) {
	try {
		return column.cell(row);
	} catch (problem) {
		console.error(problem);
		return h('span', { class: 'faint', title: problem.message }, 'cannot be shown');
	}
}

// A part of a view.  An error in the part does not affect the rest of the view.
export const apart = (make) => content({ cell: make });

const MOST_CUT = 500;
const MOST_SHORT = 24;		// characters of a name that gets no wider column

const lengthOf = (cell) => (cell instanceof Node ? cell.textContent : String(cell)).length;

// A table.  A column has: title, cell(row); n: a number; row: the name of the row; rare: the column
// is shown only if a cell is not empty; cut: the text is cut; spare: left out on a medium screen; class: the
// style of the cell.
export function table(caption, all, rows, key, empty) {
	const columns = all.filter((c) => !c.rare || rows.some((row) => content(c, row) !== ''));

	if (rows.length === 0)
		return h('div', { class: 'frame' }, empty instanceof Node ? empty : h('p', { class: 'empty' }, empty));
	return h('div', { class: 'frame' }, h('table', {},
		h('caption', { class: 'hidden-text' }, caption),
		h('thead', {}, h('tr', {}, columns.map((c) => h('th', { scope: 'col', class: [c.n && 'n', c.spare && 'spare'].filter(Boolean).join(' ') || null },
			c.hidden ? h('span', { class: 'hidden-text' }, c.title) : c.title)))),
		h('tbody', {}, rows.map((row) => h('tr', { 'data-key': key(row) }, columns.map((c) => {
			const all = content(c, row);
			const cell = c.cut && typeof all === 'string' ? all.slice(0, MOST_CUT) : all;
			const empty = cell === '' || cell === null || cell === undefined;

			return h(c.row ? 'th' : 'td', {
				scope: c.row ? 'row' : null, class: [c.n ? 'n' : c.cut ? 'cut' : c.class, c.spare && 'spare', c.n && (cell === '0' || cell === 0) ? 'zero' : null,
					c.row && lengthOf(cell) > MOST_SHORT ? 'long' : null].filter(Boolean).join(' ') || null,
				title: c.cut && typeof cell === 'string' ? cell : null, 'data-label': empty || c.hidden ? null : c.title,
			}, Array.isArray(cell) ? h('div', {}, cell) : c.cut ? h('span', { class: 'cut' }, cell) : cell);
		}))))));
}

// Names and values.  A value may be a function; an error in the function affects only this value.
export function facts(pairs) {
	return h('dl', { class: 'facts' }, pairs.map(([name, value]) => [name, typeof value === 'function' ? content({ cell: value }) : value])
		.filter(([, value]) => value !== null && value !== undefined && value !== false && value !== '')
		.map(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]));
}

// A button for an action of app.js.
export function button(label, action, values, attributes) {
	const data = Object.fromEntries(Object.entries(values ?? {}).map(([k, v]) => [`data-${k}`, v]));

	return h('button', { type: 'button', 'data-action': action, ...data, ...attributes }, label);
}
