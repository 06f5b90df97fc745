// The view of a job.

import { ask, cut, get, parse, path, pretty, withQuery } from './api.js';
import { graph } from './charts.js';
import { apart, at, button, count, date, facts, h, seconds, span, state, table, time } from './dom.js';
import { bar, batchLink, known, menu, MOST_SHOWN, part, queueLink, showAll, tenantLink } from './parts.js';
import { changes, may, mayDelete, mayRetry } from './rights.js';
import { timelineOfJob } from './timeline.js';

const MOST_LINES = 5000;	// of the log
const MOST_EVENTS = 300;	// of the history, unless all are asked for
const MOST_OF_ERROR = 4000;	// characters of an error in a table
const unfinished = ['ready', 'scheduled', 'blocked', 'suspended', 'retryable', 'running'];

// --- the log ----------------------------------------------------------------

// Add lines to the job's log.  The server keeps only the last lines; the page keeps all lines
// received.
function told(c, lines) {
	c.log ??= [];
	c.keys ??= new Set();
	c.undrawn ??= [];
	for (const line of lines) {
		const key = `${line.at} ${line.level} ${line.message}`;

		if (c.keys.has(key))
			continue;
		c.keys.add(key);
		const added = { ...line, key };
		let place = c.log.length;

		while (place > 0 && c.log[place - 1].at > line.at)
			place--;
		c.log.splice(place, 0, added);
		c.undrawn.push(added);
	}
	for (const line of c.log.splice(0, c.log.length - MOST_LINES)) {
		c.keys.delete(line.key);
		line.element?.remove();
	}
}

// The first line that is shown: the last lines fit into the limit, unless all are asked for.
function firstLine(c) {
	let from = c.log.length;

	for (let size = 0; from > 0 && (size < MOST_SHOWN || c.whole?.has('log')); )
		size += 100 + (c.log[--from].message?.length ?? 0);
	return from;
}

function lineElement(line) {
	line.element = h('li', { class: line.level ?? 'faint' }, line.level
		? [h('span', { class: 'faint' }, `${date(line.at)?.toLocaleTimeString() ?? line.at} `), `${line.level}: ${line.message ?? 'hidden here'}`] : `… ${line.message}`);
	return line.element;
}

// The lines go into the list one by one, after the rest is drawn: drawing costs no more for a long
// log.  A reader at the end of the list stays at the end.
function drawLog(c, main) {
	const list = main.querySelector('ol.log');

	if (!list)
		return;
	const from = firstLine(c);
	const atEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 4;

	if (c.list !== list || c.listIsWhole !== c.whole?.has('log')) {
		list.replaceChildren(...c.log.slice(from).map(lineElement));
		Object.assign(c, { list, listIsWhole: c.whole?.has('log') });
	} else
		for (const line of c.undrawn) {
			const place = c.log.lastIndexOf(line);

			if (place >= from)
				list.insertBefore(lineElement(line), c.log[place + 1]?.element ?? null);
		}
	c.undrawn = [];
	for (let i = from - 1; i >= 0 && c.log[i].element; i--) {
		c.log[i].element.remove();
		c.log[i].element = null;
	}
	if (atEnd)
		list.scrollTop = list.scrollHeight;
}

// --- errors and history -------------------------------------------------------

// An error, with line breaks, detail and hint.
const wholeError = (error) => [error.message, error.detail && `DETAIL: ${error.detail}`, error.hint && `HINT: ${error.hint}`].filter(Boolean).join('\n');

function errorText(error) {
	const text = wholeError(error);

	return text.length > MOST_OF_ERROR ? `${text.slice(0, MOST_OF_ERROR)} …` : text;
}

// A text in a table.  A long text has a scroll bar.
const MOST_UNCLIPPED = 500;	// characters
const clipped = (title, text) => text.length <= MOST_UNCLIPPED ? text : h('div', { class: 'clip', tabindex: '0', role: 'group', 'aria-label': title }, text);

// The error of a job; the last attempt may have failed by another one.
const errorOf = (j) => j.errors?.at(-1)?.message === j.error ? j.errors.at(-1) : { message: j.error };

// The error for the clipboard.
export const copiedError = (j) => [j.sqlstate, wholeError(errorOf(j)), j.error_context && `CONTEXT: ${j.error_context}`].filter(Boolean).join('\n');

function errorBanner(c, j) {
	if (!j.error && !j.sqlstate)
		return null;
	const { detail, hint } = errorOf(j);
	const more = [['Detail', detail], ['Hint', hint]].filter(([, text]) => text);

	return h('div', { class: j.state === 'dead' ? 'banner bad error' : 'banner error' },
		j.error ? button('Copy', 'copy-error', {}, { class: 'small', 'aria-label': 'Copy the error' }) : null,
		j.sqlstate ? h('b', {}, `${j.sqlstate} `) : null, j.error ? part(c, 'error', 'Error', j.error) : 'The error is hidden here.',
		more.length > 0 ? facts(more.map(([name, text]) => [name, part(c, name, name, text)])) : null);
}

// The history without the lines of the log, which have a list of their own.
function history(c) {
	const lineKey = (when, level, message) => `${date(when)?.getTime()} ${level} ${message}`;
	const lines = new Set((c.log ?? []).map((line) => lineKey(line.at, line.level, line.message)));
	const events = (c.data.past ?? []).filter((e) => !lines.has(lineKey(e.at, e.event, e.detail))).map((e, n) => ({ ...e, n }));
	const shown = c.whole?.has('history') ? events : events.slice(-MOST_EVENTS);

	return events.length === 0 ? null : [h('h2', {}, 'History'),
		shown.length < events.length ? h('p', {}, showAll('history', `${count(events.length)} events`)) : null,
		table('History', [
			{ title: 'When', class: 'word', cell: (e) => h('time', { datetime: e.at }, at(e.at)) },
			{ title: 'Attempt', n: true, cell: (e) => e.attempt ? String(e.attempt) : '' },
			{ title: 'Event', row: true, class: 'word', cell: (e) => e.event }, { title: 'By', class: 'word', cell: (e) => e.by ?? '' },
			{ title: 'Took', n: true, cell: (e) => seconds(e.took) === null ? e.took ?? '' : span(seconds(e.took)) },
			{ title: 'Detail', class: 'text', cell: (e) => clipped('Detail', errorText({ message: e.detail })) },
		], shown, (e) => e.n, '')];
}

// --- the page -------------------------------------------------------------------

function json(c, name, title) {
	const text = c.data.members[name];

	return !text || text === 'null' ? null : h('section', { class: 'card' }, h('h2', {}, title), part(c, name, title, text, pretty));
}

// True if the role may see the state of the job, but not its contents.
const closed = (j) => j.payload === null && !j.payload_hidden && may('monitor') && !may('manage', j.queue);

function payload(c, j) {
	if (c.editing !== undefined)
		return h('section', { class: 'card' }, h('h2', {}, h('label', { for: 'payload' }, 'Edit the payload')),
			h('textarea', { id: 'payload', spellcheck: 'false' }, c.editing),
			h('p', { class: 'buttons' }, j.state === 'dead' ? button('Save and retry', 'edit', { id: c.id }, { class: 'main' }) : button('Save', 'save-payload', { id: c.id }, { class: 'main' }),
				button('Discard changes', 'end-edit')));
	if (j.payload_hidden)
		return h('section', { class: 'card' }, h('h2', {}, 'Payload'), h('p', { class: 'empty' }, 'Payloads are hidden here.'));
	if (closed(j))
		return h('section', { class: 'card' }, h('h2', {}, 'Payload'), h('p', { class: 'empty' }, 'This role may not see the payload, the result and the headers of this job.'));
	return json(c, 'payload', 'Payload');
}

function draw(c) {
	const j = c.data.job ?? {};
	const isLive = unfinished.includes(j.state);
	const own = mayRetry(j);
	const waits = ['ready', 'scheduled', 'retryable'].includes(j.state);
	const retry = (j.state === 'dead' || j.state === 'retryable') && own;

	return [
		h('div', { class: 'head' }, h('h1', {}, `Job ${c.id} `, state(j.state)), h('div', { class: 'buttons' },
			retry ? button('Retry', 'retry', { id: c.id }, { class: 'main' }) : null,
			retry && j.state === 'dead' && j.may_edit && !j.payload_hidden && c.editing === undefined ? button('Edit and retry', 'begin-edit') : null,
			menu('More actions for this job',
				own && waits && j.state !== 'ready' ? button('Run now', 'run-now', { id: c.id }) : null,
				own && waits ? [button('Change the priority', 'priority', { id: c.id }), button('Reschedule', 'reschedule', { id: c.id })] : null,
				own && (waits || j.state === 'blocked') && j.may_edit && !j.payload_hidden && c.editing === undefined ? button('Edit the payload', 'begin-edit') : null,
				own && j.finished_at && j.state !== 'dead' ? button('Run again', 'rerun', { id: c.id }) : null,
				changes() && j.payload !== null && !j.payload_hidden ? h('a', { class: 'button', href: withQuery('#/enqueue', { like: c.id }) }, 'Duplicate') : null,
				j.state === 'dead' && mayDelete(j) ? button('Delete', 'delete', { id: c.id }, { class: 'danger' }) : null,
				isLive && own ? button('Cancel the job', 'cancel', { id: c.id }, { class: 'danger' }) : null))),
		errorBanner(c, j),
		known(j.progress) && j.state === 'running' ? h('section', { class: 'card', 'data-key': 'progress' },
			h('h2', {}, `${Math.round(j.progress)} % `, j.message ?? ''), bar(j.progress, 'Progress')) : null,
		c.data.why?.length ? h('section', { class: 'card', 'data-key': 'why' }, h('h2', {}, j.state === 'running' ? 'Status' : 'Why it does not run'),
			h('ul', {}, c.data.why.map((w) => h('li', {}, w.detail ?? w.reason, w.remedy ? h('div', { class: 'faint' }, w.remedy) : null)))) : null,
		h('div', { class: 'cards', 'data-key': 'details' },
			h('section', { class: 'card' }, h('h2', {}, 'Details'), facts([
				['Kind', () => j.kind && h('a', { href: withQuery('#/jobs', { kind: j.kind }) }, j.kind)], ['Queue', () => j.queue && queueLink(j.queue)], ['Role', j.role], ['Priority', () => String(j.priority ?? '')],
				['Attempt', () => `${j.attempt ?? 0}${j.max_attempts ? ` of ${j.max_attempts}` : ''}`], ['Enqueued', () => j.enqueued_at && at(j.enqueued_at)],
				['Scheduled for', () => j.run_at && at(j.run_at)], ['Started', () => j.started_at && at(j.started_at)], ['Finished', () => j.finished_at && at(j.finished_at)],
				['Run time', () => j.started_at && j.finished_at && (span((date(j.finished_at) - date(j.started_at)) / 1000).replace(/^0 s$/, 'below 1 ms'))],
				['Worker', () => j.worker && (j.state === 'running' ? h('a', { href: `#/worker/${j.worker}` }, String(j.worker)) : String(j.worker))], ['Tenant', () => j.tenant && tenantLink(j.tenant)], ['Unique key', j.unique_key], ['Group', () => j.group_key && h('a', { href: withQuery('#/jobs', { group_key: j.group_key }) }, j.group_key)], ['Tags', () => j.tags?.length > 0 && j.tags.map((tag) => [h('a', { href: withQuery('#/jobs', { tag }) }, tag), ' '])],
				['Batch', () => j.batch_id && batchLink({ id: j.batch_id })], ['Step', () => j.step?.name],
			])),
			payload(c, j), json(c, 'result', 'Result'), json(c, 'headers', 'Headers')),
		h('section', { class: 'card', 'data-key': 'log' }, h('h2', {}, 'Log'), (c.log ?? []).length === 0
			? h('p', { class: 'empty' }, closed(j) ? 'This role may not see the log of this job.' : isLive ? 'No log lines yet.' : 'No log lines.')
			: [firstLine(c) === 0 ? null : h('p', {}, showAll('log', `${count(c.log.length)} lines`)),
				h('ol', { class: 'log', tabindex: '0', 'aria-label': 'Log', 'data-key': 'log', 'data-version': 'lines' })]),
		apart(() => timelineOfJob(j)),
		(j.errors ?? []).length === 0 ? null : [h('h2', {}, 'Failed attempts'), table('Failed attempts', [
			{ title: 'Attempt', row: true, cell: (e) => String(e.attempt ?? '') }, { title: 'When', cell: (e) => time(e.at) },
			{ title: 'SQLSTATE', class: 'word', cell: (e) => e.sqlstate ?? '' }, { title: 'Error', class: 'text', cell: (e) => clipped('Error', errorText(e)) },
		], j.errors, (e) => `${e.attempt} ${e.at}`, '')],
		history(c),
		j.error_context ? h('section', { class: 'card' }, h('h2', {}, 'Where it failed'), part(c, 'error_context', 'Where it failed', j.error_context)) : null,
		c.data.batch?.steps ? [h('h2', {}, 'Workflow ', batchLink(c.data.batch)), graph(c.data.batch.steps)] : null,
	];
}

// Items shown beside the job; on an error the job is shown without them.
const items = (to) => get(to).then((answer) => answer.items).catch(() => []);

async function beside(c, j) {
	const [why, past, batch] = await Promise.all([j.finished_at ? null : items(path('jobs', c.id, 'explain')), items(path('jobs', c.id, 'history')),
		j.step ? get(path('batches', j.batch_id)).catch(() => null) : null]);

	return { why, past, batch };
}

export const job = {
	title: (c) => `Job ${c.id}`,
	missing: (c) => may('monitor') ? `Job ${c.id} does not exist. Finished jobs are deleted some time after their end.`
		: `Job ${c.id} does not exist, or belongs to another role.`,
	async load(c) {
		const text = await ask('GET', path('jobs', c.id));
		// a large payload is not read, only shown
		const { texts, rest } = cut(text, ['payload', 'result', 'headers']);
		const value = { ...parse(rest), ...texts, payload: texts.payload === 'null' ? null : texts.payload };
		const more = await beside(c, value);

		told(c, value.log ?? []);
		c.data = {
			...more, job: value, size: text.length, members: texts,
		};
		c.loaded = true;
	},
	// load the parts that the stream does not have; a large job is not read again
	async renew(c) {
		if (c.data.size > MOST_SHOWN)
			Object.assign(c.data, await beside(c, c.data.job));
		else
			await job.load(c);
	},
	stale: (c) => c.loaded && (!c.data.job.finished_at || c.data.size <= MOST_SHOWN),
	stream: (c) => !c.loaded || c.data.job.finished_at ? null : { path: path('jobs', c.id, 'events'), events: ['state', 'log', 'missing', 'end', 'gone'] },
	heard(c, name, value) {
		const j = c.data.job;

		if (name === 'state' && j && value.state === j.state && value.attempt === j.attempt) {
			Object.assign(j, value);
			return false;
		}
		if (name === 'log')
			told(c, [value]);
		if (name === 'missing')
			told(c, [{ at: c.log?.at(-1)?.at, message: value.detail }]);
		return name !== 'log' && name !== 'missing';
	},
	draw,
	drawn: drawLog,
};
