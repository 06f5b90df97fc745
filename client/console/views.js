// The views.  Each view loads and draws its data, and handles live events.

import { ask, get, memberText, parse, path, pretty, session, withQuery } from './api.js';
import { about, at, button, count, date, facts, h, span, state, table, time } from './dom.js';
import { bars, elementsOf, graph, lines } from './charts.js';

const states = ['ready', 'running', 'scheduled', 'retryable', 'blocked', 'completed', 'dead', 'cancelled', 'expired'];
const jobLink = (id) => h('a', { href: `#/job/${id}` }, String(id));
const queueLink = (name) => h('a', { href: withQuery('#/jobs', { queue: name }) }, name);
const tenantLink = (tenant) => h('a', { href: withQuery('#/jobs', { tenant }) }, tenant);
const may = () => !session.read_only;
const bar = (percent, label) => h('progress', { max: 100, value: percent, 'aria-label': label }, `${Math.round(percent)} %`);

// A view of a complete list, updated live.
function list(title, topic, draw) {
	return {
		title: () => title,
		async load(c) {
			c.data = await get(`api/${topic}`);
			c.loaded = true;
		},
		stream: () => ({ path: withQuery('api/events', { topics: topic }), events: [topic] }),
		heard(c, name, value) {
			c.data = value;
			c.loaded = true;
			return false;
		},
		draw: (c) => [h('h1', {}, title), draw(c.data.items ?? [], c)],
	};
}

const PAGE = 50;

// A list in pages: after a change, the page is loaded again.  Each request reads a limited
// number of rows.  Until the page is full, the view asks for earlier rows.
function paged(title, topic, others) {
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
				c.data = { items: found, next: before };
				c.loaded = true;
				if (!c.searching || c.closed)
					return;
				c.draw();
			}
		},
		stream: () => ({ path: withQuery('api/events', { topics: topic }), events: [topic] }),
		heard: (c) => !c.query.before && !c.searching && !c.long,
		...others,
	};
}

const pages = (c, to) => h('p', { class: 'buttons' },
	c.searching ? [h('span', { class: 'faint', role: 'status' }, 'Looking further back …'), button('Stop', 'stop-search')] : null,
	c.query.before ? h('a', { class: 'button', href: withQuery(`#/${to}`, { ...c.query, before: '' }) }, 'Newest') : null,
	c.data.next && !c.searching ? h('a', { class: 'button', href: withQuery(`#/${to}`, { ...c.query, before: c.data.next }) }, 'Older') : null);

function field(c, name, title, attributes) {
	return h('label', { 'data-key': name }, h('span', {}, title), h('input', { name, value: c.query[name] ?? '', ...attributes }));
}

function select(c, name, title, values) {
	return h('label', { 'data-key': name }, h('span', {}, title), h('select', { name },
		h('option', { value: '' }, 'any'), values.map((value) => h('option', { value, selected: c.query[name] === value }, value))));
}

const local = (value) => {
	if (!value)
		return '';
	const known = date(value);

	return known === null ? '' : new Date(known - known.getTimezoneOffset() * 60000).toISOString().replace(/:\d\d\.\d+Z$/, '');
};

const jobColumns = [
	{ title: 'Job', row: true, cell: (j) => jobLink(j.id) },
	{ title: 'State', cell: (j) => state(j.state) },
	{ title: 'Kind', cell: (j) => j.kind },
	{ title: 'Queue', cell: (j) => j.queue ?? '' },
	{ title: 'Tenant', rare: true, cell: (j) => j.tenant ?? '' },
	{ title: 'Attempt', n: true, cell: (j) => j.attempt ? `${j.attempt}${j.max_attempts ? ` of ${j.max_attempts}` : ''}` : '' },
	{ title: 'Enqueued', cell: (j) => time(j.enqueued_at) },
	{ title: 'Ended', cell: (j) => j.finished_at ? time(j.finished_at) : j.progress !== null && j.progress !== undefined ? bar(j.progress, `Progress of job ${j.id}`) : '' },
	{ title: 'Error', cut: true, cell: (j) => j.error ?? '' },
];

function overview(c) {
	const o = c.data.overview ?? {};
	// failed attempts followed by another attempt: the rest became dead letters
	const points = (c.data.series?.points ?? []).map((p) => ({ ...p, again: p.failed === null ? null : Math.max(p.failed - p.dead, 0) }));
	const tile = (title, value, to, name) => h('li', { class: `tile ${name ?? ''}` }, h('a', { href: to }, h('b', {}, value), h('span', {}, title)));
	const period = c.period ?? 'hour';

	return [
		h('div', { class: 'head' }, h('h1', {}, 'Overview'), h('div', { class: 'buttons', role: 'group', 'aria-label': 'Time of the charts' },
			button('Hour', 'period', { period: 'hour' }, { 'aria-pressed': String(period === 'hour') }),
			button('Day', 'period', { period: 'day' }, { 'aria-pressed': String(period === 'day') }))),
		o.scheduler && o.scheduler !== 'running' ? h('div', { class: 'banner bad', role: 'alert' }, `No job starts: ${o.scheduler}.`) : null,
		o.paused > 0 ? h('div', { class: 'banner' }, o.paused === 1 ? 'A queue is paused. ' : `${o.paused} queues are paused. `, h('a', { href: '#/queues' }, 'Queues')) : null,
		h('ul', { class: 'tiles' },
			tile('ready', about(o.ready, o.exact), '#/jobs?state=ready'),
			tile('oldest waits for', span(o.waiting_seconds) || '–', '#/queues', o.waiting_seconds > 600 ? 'warn' : ''),
			tile('running', count(o.running), '#/jobs?state=running'),
			tile('later', about((o.scheduled ?? 0) + (o.blocked ?? 0), o.exact), '#/jobs?state=scheduled'),
			tile('dead letters', about(o.dead, o.exact), '#/dead', o.dead > 0 ? 'bad' : ''),
			tile('workers busy', `${o.busy_workers ?? 0} of ${o.workers ?? 0}`, '#/workers'),
			tile('consumers', count(o.consumers), '#/workers')),
		c.data.series?.partial ? h('p', { class: 'faint' }, 'There are so many jobs of yours that the charts show the newest only.') : null,
		points.length === 0 ? null : h('div', { class: 'cards charts' },
			bars('Throughput', points, [{ member: 'completed', title: 'completed', name: 'good' }, { member: 'enqueued', title: 'enqueued', name: 'busy', line: true }],
				`No job has come or gone in the last ${period}.`),
			lines('Waiting time', points, [
				{ member: 'waiting_mean', title: 'on average', name: 'busy' }, { member: 'waiting_max', title: 'longest', name: 'warn' }],
			`No job has started in the last ${period}.`),
			bars('Failures', points, [{ member: 'dead', title: 'dead letters', name: 'bad' }, { member: 'again', title: 'tried again', name: 'warn' },
				{ member: 'expired', title: 'too late', name: 'neutral', rare: true }],
			`Nothing has failed in the last ${period}.`),
			lines('Run time', points, [
				{ member: 'running_mean', title: 'on average', name: 'busy' }, { member: 'running_max', title: 'longest', name: 'warn' }],
			`No attempt has ended in the last ${period}.`)),
		h('div', { class: 'head' }, h('h2', {}, 'Newest dead letters'), h('a', { href: '#/dead' }, 'All')),
		table('Newest dead letters', deadColumns.filter((column) => !column.hidden), (c.data.dead ?? []).slice(0, 5), (j) => j.id, 'No job is dead. Good.'),
	];
}

const deadColumns = [
	{
		title: 'Select', hidden: true,
		cell: (j) => h('input', { type: 'checkbox', 'data-select': String(j.id), 'aria-label': `Select job ${j.id}` }),
	},
	{ title: 'Job', row: true, cell: (j) => jobLink(j.id) },
	{ title: 'Kind', cell: (j) => j.kind },
	{ title: 'Queue', cell: (j) => j.queue ?? '' },
	{ title: 'Tenant', rare: true, cell: (j) => j.tenant ?? '' },
	{ title: 'Failed', cell: (j) => time(j.failed_at) },
	{ title: 'Attempts', n: true, cell: (j) => String(j.attempt) },
	{ title: 'Error', cut: true, cell: (j) => j.error ?? j.sqlstate ?? '' },
];

function dead(c) {
	const n = c.selected.size;
	const items = c.data.items ?? [];

	for (const id of c.selected)
		if (!items.some((j) => String(j.id) === id))
			c.selected.delete(id);
	return [
		h('h1', {}, 'Dead letters'),
		h('form', { class: 'filters' }, field(c, 'queue', 'Queue'), field(c, 'kind', 'Kind'), field(c, 'tenant', 'Tenant')),
		may() && items.length > 0 ? h('p', { class: 'buttons bulk' },
			button(`Run again${n ? ` (${n})` : ''}`, 'retry-selected', {}, { disabled: n === 0 }),
			button(`Delete${n ? ` (${n})` : ''}`, 'delete-selected', {}, { disabled: n === 0, class: 'danger' }),
			button('Select all of the page', 'select-all'),
			button('Run all again', 'retry-all')) : null,
		table('Dead letters', may() ? deadColumns : deadColumns.filter((column) => !column.hidden), items, (j) => j.id,
			c.searching ? 'None yet.' : c.query.queue || c.query.kind || c.query.tenant ? 'No dead letter is like that.' : 'No job is dead. Good.'),
		pages(c, 'dead'),
	];
}

function jobs(c) {
	return [
		h('div', { class: 'head' }, h('h1', {}, 'Jobs'), h('form', { id: 'go', class: 'buttons' },
			h('label', { class: 'hidden-text', for: 'go-id' }, 'Job by its number'),
			h('input', { id: 'go-id', name: 'number', inputmode: 'numeric', placeholder: 'Job by its number', size: 16 }), h('button', {}, 'Go'))),
		h('form', { class: 'filters' }, select(c, 'state', 'State', states), field(c, 'queue', 'Queue'), field(c, 'kind', 'Kind'),
			field(c, 'tenant', 'Tenant'), field(c, 'role', 'Role'), session.hide_payload ? null : [field(c, 'key', 'Unique key'), field(c, 'group', 'Group'),
				field(c, 'header', 'Header', { placeholder: 'name=value' })],
			field(c, 'batch', 'Batch', { inputmode: 'numeric' }),
			field(c, 'from', 'Enqueued from', { type: 'datetime-local', value: local(c.query.from) }),
			field(c, 'until', 'until', { type: 'datetime-local', value: local(c.query.until) })),
		table('Jobs', jobColumns, c.data.items ?? [], (j) => j.id, c.searching ? 'None yet.' : Object.values(c.query).some(Boolean) ? 'No job is like that.' : 'There are no jobs yet.'),
		pages(c, 'jobs'),
	];
}

const MOST_SHOWN = 65536;

const showAll = (name, size) => h('p', {}, button(`Show all ${size}`, 'show-all', { name }));

// The beginning of a long text, because drawing takes time; the complete text on request.
function part(c, name, title, text, lay = (shown) => shown) {
	const whole = text.length <= MOST_SHOWN || c.whole?.has(name);

	return [h('pre', { tabindex: '0', 'aria-label': title }, lay(whole ? text : text.slice(0, MOST_SHOWN))),
		whole ? null : showAll(name, `${count(Math.round(text.length / 1000))} kB`)];
}

// The same for lines of a log, but with the last lines.
function logLines(c) {
	let from = c.log.length;

	for (let size = 0; from > 0 && (size < MOST_SHOWN || c.whole?.has('log')); )
		size += 100 + (c.log[--from].message?.length ?? 0);
	return [from === 0 ? null : showAll('log', `${count(c.log.length)} lines`),
		h('ol', { class: 'log', tabindex: '0', 'aria-label': 'Log' }, c.log.slice(from).map((line) => h('li', { class: line.level ?? 'faint', 'data-key': line.key }, line.level
			? [h('span', { class: 'faint' }, `${date(line.at)?.toLocaleTimeString() ?? line.at} `), `${line.level}: ${line.message ?? 'hidden here'}`] : `… ${line.message}`)))];
}

function job(c) {
	const j = c.data.job ?? {};
	const live = ['ready', 'scheduled', 'blocked', 'retryable', 'running'].includes(j.state);
	const json = (name, title) => {
		const text = c.data.text && memberText(c.data.text, name);

		return !text || text === 'null' ? null : h('section', { class: 'card' }, h('h2', {}, title), part(c, name, title, text, pretty));
	};
	const payload = c.data.text && memberText(c.data.text, 'payload');

	return [
		h('div', { class: 'head' }, h('h1', {}, `Job ${c.id} `, state(j.state)), may() ? h('p', { class: 'buttons' },
			j.state === 'dead' || j.state === 'retryable' ? button('Run again', 'retry', { id: c.id }, { class: 'main' }) : null,
			j.state === 'dead' && j.may_edit && !j.payload_hidden && !c.mending ? button('Mend the payload', 'begin-mend') : null,
			j.state === 'dead' ? button('Delete', 'delete', { id: c.id }, { class: 'danger' }) : null,
			live ? button('Cancel the job', 'cancel', { id: c.id }, { class: 'danger' }) : null) : null),
		j.error || j.sqlstate ? h('div', { class: j.state === 'dead' ? 'banner bad' : 'banner' }, h('b', {}, j.sqlstate ? `${j.sqlstate} ` : ''), j.error ?? 'The error is hidden here.') : null,
		j.progress !== null && j.progress !== undefined && j.state === 'running' ? h('section', { class: 'card' },
			h('h2', {}, `${Math.round(j.progress)} % `, j.message ?? ''), bar(j.progress, 'Progress')) : null,
		c.data.why?.length ? h('section', { class: 'card' }, h('h2', {}, j.state === 'running' ? 'What it waits for' : 'Why it does not run'),
			h('ul', {}, c.data.why.map((w) => h('li', {}, w.detail ?? w.reason, w.remedy ? h('div', { class: 'faint' }, w.remedy) : null)))) : null,
		h('div', { class: 'cards' },
			h('section', { class: 'card' }, h('h2', {}, 'What and when'), facts([
				['Kind', j.kind], ['Queue', j.queue && queueLink(j.queue)], ['Role', j.role], ['Priority', String(j.priority ?? '')],
				['Attempt', `${j.attempt ?? 0}${j.max_attempts ? ` of ${j.max_attempts}` : ''}`], ['Enqueued', j.enqueued_at && at(j.enqueued_at)], ['May run from', j.run_at && at(j.run_at)],
				['Started', j.started_at && at(j.started_at)], ['Ended', j.finished_at && at(j.finished_at)],
				['Ran for', j.started_at && j.finished_at && span((date(j.finished_at) - date(j.started_at)) / 1000)],
				['Worker', j.worker && String(j.worker)], ['Tenant', j.tenant && tenantLink(j.tenant)], ['Unique key', j.unique_key], ['Group', j.group_key],
				['Batch', j.batch_id && h('a', { href: `#/batch/${j.batch_id}` }, String(j.batch_id))], ['Step', j.step?.name],
			])),
			c.mending ? h('section', { class: 'card' }, h('h2', {}, h('label', { for: 'payload' }, 'Payload, to be mended')),
				h('textarea', { id: 'payload', spellcheck: 'false' }, pretty(payload ?? '{}')),
				h('p', { class: 'buttons' }, button('Mend and run', 'mend', { id: c.id }, { class: 'main' }), button('Leave it', 'end-mend')))
				: j.payload_hidden ? h('section', { class: 'card' }, h('h2', {}, 'Payload'), h('p', { class: 'empty' }, 'Payloads are hidden here.')) : json('payload', 'Payload'),
			json('result', 'Result'), json('headers', 'Headers')),
		h('section', { class: 'card' }, h('h2', {}, 'Log'), (c.log ?? []).length === 0
			? h('p', { class: 'empty' }, live ? 'It has said nothing yet.' : 'It has said nothing.')
			: logLines(c)),
		(j.errors ?? []).length === 0 ? null : [h('h2', {}, 'Attempts that failed'), table('Attempts that failed', [
			{ title: 'Attempt', row: true, cell: (e) => String(e.attempt ?? '') }, { title: 'At', cell: (e) => time(e.at) },
			{ title: 'SQLSTATE', cell: (e) => e.sqlstate ?? '' }, { title: 'Error', cell: (e) => e.message ?? '' },
		], j.errors, (e) => `${e.attempt} ${e.at}`, '')],
		c.data.past?.length ? [h('h2', {}, 'History'), table('History', [
			{ title: 'When', cell: (e) => h('time', { datetime: e.at }, at(e.at)) }, { title: 'Attempt', n: true, cell: (e) => e.attempt ? String(e.attempt) : '' },
			{ title: 'Event', row: true, cell: (e) => e.event }, { title: 'By', cell: (e) => e.by ?? '' }, { title: 'Took', cell: (e) => e.took ?? '' },
			{ title: 'Detail', cell: (e) => e.detail ?? '' },
		], c.data.past.map((e, n) => ({ ...e, n })), (e) => e.n, '')] : null,
		j.error_context ? h('section', { class: 'card' }, h('h2', {}, 'Where it failed'), part(c, 'error_context', 'Where it failed', j.error_context)) : null,
		c.data.batch?.steps ? [h('h2', {}, 'Its workflow'), graph(c.data.batch.steps)] : null,
	];
}

const MOST_LINES = 5000;

// Add lines to the job's log.  The server keeps only the last lines; the page keeps all lines
// received.
function told(c, lines) {
	c.log ??= [];
	c.keys ??= new Set();
	for (const line of lines) {
		const key = `${line.at} ${line.level} ${line.message}`;

		if (c.keys.has(key))
			continue;
		c.keys.add(key);
		let place = c.log.length;

		while (place > 0 && c.log[place - 1].at > line.at)
			place--;
		c.log.splice(place, 0, { ...line, key });
	}
	for (const line of c.log.splice(0, c.log.length - MOST_LINES))
		c.keys.delete(line.key);
}

// Items shown beside the job; on an error the job is shown without them.
const items = (to) => get(to).then((answer) => answer.items).catch(() => []);

const batchLink = (b) => h('a', { href: `#/batch/${b.id}` }, b.name || `batch ${b.id}`);

function batch(c) {
	const b = c.data;

	return [
		h('div', { class: 'head' }, h('h1', {}, b.name || `Batch ${c.id}`, ' ', state(b.state)), may() ? h('p', { class: 'buttons' },
			b.dead > 0 ? button('Run its dead letters again', 'retry-batch', { id: c.id }, { class: 'main' }) : null,
			b.finished_at ? null : button('Cancel the batch', 'cancel-batch', { id: c.id }, { class: 'danger' })) : null),
		b.last_error ? h('div', { class: 'banner bad' }, b.last_error) : null,
		h('section', { class: 'card' }, b.progress === null || b.progress === undefined ? null : bar(b.progress, 'Progress of the batch'), facts([
			['Jobs', count(b.total)], ['Completed', count(b.completed)], ['Dead', count(b.dead)], ['Cancelled', count(b.cancelled)],
			['Running', count(b.running)], ['Waiting', count((b.waiting ?? 0) + (b.blocked ?? 0))], ['Role', b.role], ['Created', b.created_at && at(b.created_at)],
			['Ended', b.finished_at && at(b.finished_at)], ['All of them', h('a', { href: withQuery('#/jobs', { batch: c.id }) }, 'Jobs of the batch')],
		])),
		b.steps?.length ? [graph(b.steps), table('Steps', [
			{ title: 'Step', row: true, cell: (s) => s.name }, { title: 'State', cell: (s) => state(s.state) }, { title: 'Job', cell: (s) => jobLink(s.job_id) },
			{ title: 'Elements', cell: elementsOf }, { title: 'Needs', cell: (s) => (s.needs ?? []).join(', ') }, { title: 'Error', cut: true, cell: (s) => s.error ?? '' },
		], b.steps, (s) => s.name, '')] : null,
	];
}

export const views = {
	overview: {
		title: () => 'Overview',
		async load(c) {
			const [data, series, letters] = await Promise.all([get('api/overview'), get(withQuery('api/series', { period: c.period ?? 'hour' })), get('api/dead?limit=5')]);

			c.data = { overview: data, series, dead: letters.items };
			c.loaded = true;
			c.seriesAt = Date.now();
		},
		stream: () => ({ path: 'api/events?topics=overview,dead', events: ['overview', 'dead'] }),
		heard(c, name, value) {
			c.data[name] = name === 'dead' ? value.items : value;
			return Date.now() - (c.seriesAt ?? 0) > 10000;
		},
		stale: (c) => Date.now() - (c.seriesAt ?? 0) > 30000,
		draw: overview,
	},
	queues: list('Queues', 'queues', (items) => table('Queues', [
		{ title: 'Queue', row: true, cell: (q) => queueLink(q.name) },
		{ title: 'State', cell: (q) => q.paused ? state('paused') : state('active') },
		{ title: 'For', cell: (q) => q.mode === 'consumer' ? 'consumers' : 'workers' },
		{ title: 'Ready', n: true, cell: (q) => about(q.ready, q.exact) },
		{ title: 'Oldest', n: true, cell: (q) => span(q.waiting_seconds) },
		{ title: 'Later', n: true, cell: (q) => about(q.scheduled + q.blocked, q.exact) },
		{ title: 'Running', n: true, cell: (q) => count(q.running) + (q.max_running ? ` of ${q.max_running}` : '') },
		{ title: 'Dead', n: true, cell: (q) => q.dead ? h('a', { href: withQuery('#/dead', { queue: q.name }) }, about(q.dead, q.exact)) : '0' },
		{ title: 'Rate', cell: (q) => q.rate ?? '' },
		{
			title: 'Actions', hidden: true,
			cell: (q) => !may() || !session.manage ? '' : h('span', { class: 'buttons' },
				button(q.paused ? 'Resume' : 'Pause', q.paused ? 'resume' : 'pause', { name: q.name }, { class: 'small', 'aria-label': `${q.paused ? 'Resume' : 'Pause'} queue ${q.name}` }),
				button('Cancel jobs', 'cancel-waiting', { name: q.name }, { class: 'small danger', 'aria-label': `Cancel the waiting jobs of queue ${q.name}` })),
		},
	], items, (q) => q.name, 'There is no queue yet: the first job makes it.')),
	kinds: list('Kinds', 'kinds', (items) => table('Kinds', [
		{ title: 'Kind', row: true, cell: (k) => h('a', { href: withQuery('#/jobs', { kind: k.kind }) }, k.kind) },
		{ title: 'Handler', cell: (k) => h('code', {}, k.handler) },
		{ title: 'Queue', cell: (k) => k.queue ?? '' }, { title: 'Attempts', n: true, cell: (k) => k.max_attempts ? String(k.max_attempts) : '' },
		{ title: 'Backoff', cell: (k) => k.backoff ?? '' }, { title: 'Timeout', cell: (k) => k.timeout ?? '' },
		{ title: 'At a time', n: true, cell: (k) => k.max_running ? String(k.max_running) : '' }, { title: 'Rate', cell: (k) => k.rate ?? '' },
	], items, (k) => k.kind, 'No kind has a handler yet: register a function with jobq.register().')),
	workers: list('Workers and consumers', 'workers', (items) => table('Workers and consumers', [
		{ title: 'Who', row: true, cell: (w) => [w.name ?? w.consumer ?? '', w.pid ? h('span', { class: 'faint' }, ` ${w.pid}`) : ''] },
		{ title: 'Type', cell: (w) => w.type }, { title: 'Role', cell: (w) => w.role }, { title: 'State', cell: (w) => state(w.state) },
		{ title: 'Job', cell: (w) => w.job_id ? jobLink(w.job_id) : w.type === 'consumer' ? `holds ${count(w.jobs_held)}` : '' },
		{ title: 'Kind', cell: (w) => w.kind ?? '' }, { title: 'For', n: true, cell: (w) => span(w.job_seconds) },
		{ title: 'Progress', cell: (w) => w.progress === null || w.progress === undefined ? '' : [bar(w.progress, `Progress of job ${w.job_id}`), w.message ?? ''] },
		{ title: 'Done', n: true, cell: (w) => count(w.jobs_done) }, { title: 'Failed', n: true, cell: (w) => count(w.jobs_failed) },
	], items, (w) => `${w.type} ${w.name} ${w.pid} ${w.client} ${w.role}`, 'No worker runs: one is started when a job waits for it.')),
	schedules: list('Schedules', 'schedules', (items) => table('Schedules', [
		{ title: 'Schedule', row: true, cell: (s) => s.name }, { title: 'State', cell: (s) => state(s.state) },
		{ title: 'When', cell: (s) => [h('code', {}, s.cron), ' ', h('span', { class: 'faint' }, s.timezone)] },
		{ title: 'Next', cell: (s) => h('span', { title: (s.next ?? []).map(at).join('\n') }, time(s.next_run)) },
		{ title: 'Last', cell: (s) => s.last_job_id ? [jobLink(s.last_job_id), ' ', state(s.last_state), ' ', time(s.last_run)] : '' },
		{ title: 'Kind', cell: (s) => s.kind }, { title: 'Error', cell: (s) => s.last_error ?? '' },
		{
			title: 'Actions', hidden: true,
			cell: (s) => !may() || s.state === 'dormant' ? '' : h('span', { class: 'buttons' },
				button(s.state === 'paused' ? 'Resume' : 'Pause', s.state === 'paused' ? 'resume-schedule' : 'pause-schedule',
					{ name: s.name }, { class: 'small', 'aria-label': `${s.state === 'paused' ? 'Resume' : 'Pause'} schedule ${s.name}` }),
				button('Run now', 'run-schedule', { name: s.name }, { class: 'small', 'aria-label': `Run schedule ${s.name} now` })),
		},
	], items, (s) => s.name, 'There is no schedule yet: jobq.schedule() makes one.')),
	doctor: {
		title: () => 'Health',
		async load(c) {
			c.data = await get('api/doctor');
			c.loaded = true;
		},
		draw: (c) => [h('div', { class: 'head' }, h('h1', {}, 'Health'), button('Look again', 'reload')), table('What is wrong, and what mends it', [
			{ title: 'Severity', cell: (d) => state(d.severity) }, { title: 'What', row: true, cell: (d) => d.what }, { title: 'What mends it', cell: (d) => h('code', {}, d.hint) },
		], (c.data.items ?? []).map((d, n) => ({ ...d, n })), (d) => d.n, 'All is well, as far as this role may see.')],
	},
	batches: paged('Batches', 'batches', {
		draw: (c) => [h('h1', {}, 'Batches'), table('Batches and workflows', [
			{ title: 'Batch', row: true, cell: batchLink }, { title: 'State', cell: (b) => state(b.state) },
			{ title: 'Progress', cell: (b) => b.progress === null || b.progress === undefined ? '' : bar(b.progress, `Progress of batch ${b.id}`) },
			{ title: 'Jobs', n: true, cell: (b) => count(b.total) }, { title: 'Completed', n: true, cell: (b) => count(b.completed) },
			{ title: 'Dead', n: true, cell: (b) => count(b.dead) }, { title: 'Created', cell: (b) => time(b.created_at) },
		], c.data.items ?? [], (b) => b.id, 'There is no batch yet.'), pages(c, 'batches')],
	}),
	batch: {
		title: (c) => `Batch ${c.id}`,
		async load(c) {
			c.data = await get(path('batches', c.id));
			c.loaded = true;
		},
		stream: () => ({ path: 'api/events?topics=batches', events: ['batches'] }),
		heard: () => true,
		draw: batch,
	},
	jobs: paged('Jobs', 'jobs', { draw: jobs }),
	dead: paged('Dead letters', 'dead', { draw: dead }),
	job: {
		title: (c) => `Job ${c.id}`,
		async load(c) {
			const text = await ask('GET', path('jobs', c.id));
			const value = parse(text);

			const [why, past] = await Promise.all([value.finished_at ? null : items(path('jobs', c.id, 'explain')), items(path('jobs', c.id, 'history'))]);

			told(c, value.log ?? []);
			c.data = { text, why, past, job: value, batch: value.step ? await get(path('batches', value.batch_id)).catch(() => null) : null };
			c.loaded = true;
		},
		stream: (c) => c.problem || c.data.job?.finished_at ? null : { path: path('jobs', c.id, 'events'), events: ['state', 'log', 'missing', 'end', 'gone'] },
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
			if (name === 'end')
				c.live?.close();
			return name !== 'log' && name !== 'missing';
		},
		draw: job,
	},
};
