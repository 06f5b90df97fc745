// The views.  Each view loads and draws its data, and handles live events.

import { get, path, session, withQuery } from './api.js';
import { about, apart, at, button, count, facts, h, seconds, since, span, state, table, time } from './dom.js';
import { bars, elementsOf, graph, lines } from './charts.js';
import { conditions, exportButtons, find, order, orderedBy } from './find.js';
import { enqueue } from './enqueue.js';
import { job } from './job.js';
import { alerts, limits, rateColumns, rates, rateText, running, tenants, usage } from './numbers.js';
import { schedule, schedules } from './schedule.js';
import { timelineOfSteps } from './timeline.js';
import { bar, batchLink, code, empty, filtered, jobLink, known, list, menu, paged, pages, queueLink, showAll } from './parts.js';
import { changes, may, mayDelete, mayDeleteAll, mayOperate, mayRetry, mayRetryAll, nothing, owns } from './rights.js';

const jobFilters = ['state', 'queue', 'kind', 'tenant', 'tag', 'error', 'unique_key', 'payload', 'fingerprint', 'from', 'until', 'batch_id', 'role', 'group_key', 'header'];
const deadFilters = ['queue', 'kind', 'tenant', 'tag', 'error', 'payload', 'fingerprint', 'from', 'until'];
const MOST_STEPS = 300;		// in the table of a workflow, unless all are asked for

const jobColumns = [
	{ title: 'Job', row: true, cell: (j) => jobLink(j.id) },
	{ title: 'State', cell: (j) => state(j.state) },
	{ title: 'Kind', cell: (j) => j.kind },
	{ title: 'Queue', cell: (j) => j.queue ?? '' },
	{ title: 'Tenant', rare: true, cell: (j) => j.tenant ?? '' },
	{ title: 'Attempt', n: true, cell: (j) => j.attempt ? `${j.attempt}${j.max_attempts ? ` of ${j.max_attempts}` : ''}` : '' },
	{ title: 'Enqueued', cell: (j) => time(j.enqueued_at) },
	{ title: 'Finished', cell: (j) => j.finished_at ? time(j.finished_at) : known(j.progress) ? bar(j.progress, `Progress of job ${j.id}`) : '' },
	{ title: 'Error', cut: true, cell: (j) => j.error ?? '' },
];

// The columns of jobs, with the time by which the list is ordered.
function columnsFor(c) {
	const time_ = { run_at: 'Scheduled for', started_at: 'Started' }[orderedBy(c)];

	return time_ ? jobColumns.toSpliced(7, 0, { title: time_, cell: (j) => time(j[orderedBy(c)]) }) : jobColumns;
}

const tile = (title, value, to, name, meter) => h('li', { class: `tile ${name ?? ''} ${value === '0' || value === '–' ? 'zero' : ''}` }, h('a', { href: to }, h('b', {}, value), h('span', {}, title), meter ?? null));

const periods = (period) => h('div', { class: 'buttons', role: 'group', 'aria-label': 'Period of the charts' },
	button('Hour', 'period', { period: 'hour' }, { 'aria-pressed': String(period === 'hour') }),
	button('Day', 'period', { period: 'day' }, { 'aria-pressed': String(period === 'day') }));

// The charts of a series of api/series.
function charts(all, period) {
	const jobsPer = `jobs per ${period === 'hour' ? 'minute' : 'hour'}`;
	// failed attempts followed by a retry; the rest became dead letters
	// the longest time is in whole milliseconds
	const longest = (p, name) => p[`${name}_max`] === null ? null : Math.max(p[`${name}_max`], p[`${name}_mean`] ?? 0);
	const points = all.map((p) => ({ ...p, wait_max: longest(p, 'wait'), run_max: longest(p, 'run'), again: p.failed === null ? null : Math.max(p.failed - p.dead, 0) }));

	return points.length === 0 ? null : h('div', { class: 'cards charts' },
		bars('Throughput', jobsPer, points, [{ member: 'completed', title: 'completed', name: 'good' }, { member: 'enqueued', title: 'enqueued', name: 'busy', line: true }],
			`No jobs were enqueued or completed in the last ${period}.`),
		lines('Waiting time', points, [
			{ member: 'wait_mean', title: 'average', name: 'busy' }, { member: 'wait_max', title: 'longest', name: 'warn' }],
		`No jobs started in the last ${period}.`),
		bars('Failures', jobsPer, points, [{ member: 'dead', title: 'dead letters', name: 'bad' }, { member: 'again', title: 'retried', name: 'warn' },
			{ member: 'expired', title: 'expired', name: 'neutral', rare: true }],
		`No attempts failed in the last ${period}.`),
		lines('Run time', points, [
			{ member: 'run_mean', title: 'average', name: 'busy' }, { member: 'run_max', title: 'longest', name: 'warn' }],
		`No attempts ended in the last ${period}.`));
}

// The problems found by doctor().  They are drawn after the rest of the page.
const MOST_PROBLEMS = 3;

function verdict(c) {
	const problems = c.problems;

	if (!problems)
		return null;
	if (problems.length === 0)
		return h('p', { class: 'verdict' }, state('active', 'well'), ' No problems found.');
	return h('ul', { class: 'verdict' }, problems.slice(0, MOST_PROBLEMS).map((d) => h('li', {}, state(d.severity), ' ', h('a', { href: '#/doctor' }, d.detail))),
		problems.length > MOST_PROBLEMS ? h('li', {}, h('a', { href: '#/doctor' }, `${count(problems.length - MOST_PROBLEMS)} more`)) : null);
}

async function findProblems(c) {
	if (!may('monitor') || since(c.problemsAt) < 30000)
		return;
	c.problemsAt = performance.now();
	const { items } = await get('api/doctor').catch(() => ({ items: null }));

	c.problems = items ?? c.problems;
	c.draw();
}

function overview(c) {
	const o = c.data.overview ?? {};
	const points = c.data.series?.points ?? [];
	const period = c.period ?? 'hour';

	return [
		h('div', { class: 'head' }, h('h1', {}, 'Overview'), periods(period)),
		verdict(c),
		o.scheduler && o.scheduler !== 'running' ? h('div', { class: 'banner bad', role: 'alert' }, `No job starts: ${o.scheduler}.`) : null,
		// for other roles, the problems above say so
		o.paused > 0 && !may('monitor') ? h('div', { class: 'banner' }, o.paused === 1 ? 'A queue is paused. ' : `${o.paused} queues are paused. `, h('a', { href: '#/queues' }, 'Queues')) : null,
		h('ul', { class: 'tiles' },
			tile('ready', about(o.ready, o.exact), '#/jobs?state=ready'),
			tile('oldest ready job', span(o.waiting_seconds) || '–', '#/queues', o.waiting_seconds > 600 ? 'warn' : ''),
			tile('running', count(o.running), '#/jobs?state=running'),
			tile('scheduled', about(o.scheduled, o.exact), '#/jobs?state=scheduled'),
			o.blocked > 0 ? tile('blocked', about(o.blocked, o.exact), '#/jobs?state=blocked') : null,
			tile('dead letters', about(o.dead_letters, o.exact), '#/dead', o.dead_letters > 0 ? 'bad' : ''),
			may('monitor') ? [tile('workers busy', `${o.busy_workers ?? 0} of ${o.workers ?? 0}`, '#/workers'), tile('consumers', count(o.consumers), '#/workers')] : null),
		may('monitor') ? null : h('p', { class: 'faint' }, 'Only jobs of this role are counted. The privilege "monitor" shows the jobs of all roles, and the workers.'),
		c.data.series?.partial ? h('p', { class: 'faint' }, 'The charts show only your most recently finished jobs.') : null,
		charts(points, period),
		h('div', { class: 'head' }, h('h2', {}, 'Newest dead letters'), h('span', { class: 'links' }, h('a', { href: '#/failures' }, 'By cause'), h('a', { href: '#/dead' }, 'All dead letters'))),
		table('Newest dead letters', deadColumns, (c.data.dead ?? []).slice(0, 5), (j) => j.id, noLetters()),
	];
}

const noLetters = () => empty(nothing('There are no dead letters. A job becomes one when its last attempt fails.', 'This role has no dead letters.'));

const deadColumns = [
	{ title: 'Job', row: true, cell: (j) => jobLink(j.id) },
	{ title: 'Kind', cell: (j) => j.kind },
	{ title: 'Queue', cell: (j) => j.queue ?? '' },
	{ title: 'Tenant', rare: true, cell: (j) => j.tenant ?? '' },
	{ title: 'Failed', cell: (j) => time(j.finished_at) },
	{ title: 'Attempts', n: true, cell: (j) => String(j.attempt) },
	{ title: 'Error', cut: true, cell: (j) => j.error ?? j.sqlstate ?? '' },
];
const selectColumn = {
	title: 'Select', hidden: true,
	cell: (j) => mayRetry(j) ? h('input', { type: 'checkbox', 'data-select': String(j.id), 'aria-label': `Select job ${j.id}` }) : '',
};

function dead(c) {
	const items = c.data.items ?? [];
	const own = items.filter(mayRetry);

	for (const id of c.selected)
		if (!own.some((j) => String(j.id) === id))
			c.selected.delete(id);
	const n = c.selected.size;
	const chosen = own.filter((j) => c.selected.has(String(j.id)));
	const suffix = n ? ` (${n})` : '';

	return [
		h('div', { class: 'head' }, h('h1', {}, 'Dead letters'), h('a', { href: '#/failures' }, 'By cause')),
		find(c, deadFilters),
		own.length > 0 ? h('div', { class: 'buttons bulk' },
			button(`Retry selected${suffix}`, 'retry-selected', {}, { disabled: n === 0 }),
			button('Select all on this page', 'select-all'),
			menu('More actions for dead letters',
				// for a role with "monitor" only, the number would be wrong
				may('operate') || !may('monitor') ? button('Retry all', 'retry-all') : null,
				own.some(mayDelete) ? button(`Delete selected${suffix}`, 'delete-selected', {}, { disabled: n === 0 || !chosen.every(mayDelete), class: 'danger' }) : null)) : null,
		table('Dead letters', own.length > 0 ? [selectColumn, ...deadColumns] : deadColumns, items, (j) => j.id,
			c.searching ? 'No match so far.' : filtered(c) ? 'No dead letter matches these filters.' : noLetters()),
		pages(c, 'dead'),
	];
}

const MOST_OF_MESSAGE = 500;	// characters
const lettersOf = ({ fingerprint, queue }) => ({ fingerprint, ...(queue && { queue }) });

function failures(c) {
	return [
		h('h1', {}, 'Failures'),
		find(c, ['queue', 'kind']),
		table('Failures', [
			{ title: 'Error', row: true, class: 'message', cell: (f) => [f.sqlstate ? h('span', { class: 'faint' }, `${f.sqlstate} `) : null, (f.message ?? '').slice(0, MOST_OF_MESSAGE)] },
			{ title: 'First', class: 'word', cell: (f) => [time(f.first_seen), f.new ? [' ', state('new')] : null] },
			{ title: 'Last', class: 'word', cell: (f) => time(f.last_seen) },
			{ title: 'Queue', cell: (f) => f.queue ?? '' },
			{ title: 'Kinds', cell: (f) => f.kinds.join(', ') },
			{ title: 'Failed', n: true, cell: (f) => count(f.failed) },
			{ title: 'Last hour', n: true, cell: (f) => count(f.failed_last_hour) },
			{ title: 'Dead', n: true, cell: (f) => f.dead_letters && known(f.fingerprint) ? h('a', { href: withQuery('#/dead', lettersOf(f)), 'aria-label': `${count(f.dead_letters)} dead letters` }, count(f.dead_letters)) : count(f.dead_letters) },
			{ title: 'Last job', cell: (f) => jobLink(f.job_id) },
			{
				title: 'Actions', hidden: true, rare: true, class: 'acts',
				cell: (f) => f.dead_letters === 0 || !known(f.fingerprint) || !mayRetryAll(f) ? '' : h('span', { class: 'buttons' },
					button('Retry', 'retry-all', lettersOf(f), { class: 'small', 'aria-label': 'Retry dead letters' }), menu(`Actions for the failure ${f.fingerprint}`, mayDeleteAll(f) ? button('Delete dead letters', 'delete-all', lettersOf(f), { class: 'danger' }) : null)),
			},
		], c.data.items ?? [], (f) => `${f.fingerprint} ${f.queue} ${f.job_id}`, filtered(c) ? 'No failure matches these filters.'
			: empty(nothing('No attempt has failed.', 'No attempt of this role has failed.'))),
		c.data.partial ? h('p', { class: 'faint' }, 'There are many failed attempts, and only the newest were read: the numbers are lower limits, and a cause can be older than shown.') : null,
	];
}

const live = ['ready', 'scheduled', 'suspended', 'retryable', 'blocked', 'running'];

// Actions on all jobs of the list.
function manyButtons(c) {
	const { state: of } = c.query;

	if (!changes() || conditions(c.query) === null)
		return null;
	// independent of the jobs shown, because an item must not move away from the pointer
	return [
		!of || ['scheduled', 'retryable'].includes(of) ? [button('Run now', 'many-now')] : null,
		!of || (live.includes(of) && of !== 'running' && of !== 'blocked') ? [button('Change the priority', 'many-priority'), button('Reschedule', 'many-reschedule')] : null,
		!of || (live.includes(of) && of !== 'running') ? button('Move to a queue', 'many-move') : null,
		!of || of === 'dead' ? button('Retry dead letters', 'many-retry') : null,
		!of || of === 'dead' ? button('Delete dead letters', 'many-delete', {}, { class: 'danger' }) : null,
		!of || live.includes(of) ? button('Cancel jobs', 'many-cancel', {}, { class: 'danger' }) : null,
	];
}

function jobs(c) {
	return [
		h('div', { class: 'head' }, h('h1', {}, 'Jobs'), h('div', { class: 'buttons' }, changes() ? h('a', { class: 'button', href: '#/enqueue' }, 'Enqueue a job') : null,
			menu('Actions for all jobs of this list', manyButtons(c), exportButtons()))),
		find(c, jobFilters, order(c)),
		table('Jobs', columnsFor(c), c.data.items ?? [], (j) => j.id, c.searching ? 'No match so far.' : filtered(c) ? 'No job matches these filters.'
			: empty(nothing('There are no jobs yet.', 'This role has no jobs.'), 'SELECT jobq.enqueue(\'mail.send\', \'{"to": "anna@example.com"}\');')),
		pages(c, 'jobs'),
	];
}

// Queues in trouble come first: paused queues, and queues whose oldest ready job has waited for a minute.
// Other queues are ordered by name, because rows should keep their positions.
const MOST_ROWS = 200;
const trouble = (q) => (q.paused ? 1e9 : 0) + (q.waiting_seconds >= 60 ? q.waiting_seconds : 0);

function queues(items, c) {
	const sorted = [...items].sort((a, b) => trouble(b) - trouble(a));
	const all = items.length <= MOST_ROWS || c.whole?.has('queues');
	const rate = (q) => c.beside?.get(q.name);

	return [table('Queues', [
		{ title: 'Queue', row: true, cell: (q) => queueLink(q.name) },
		{ title: 'State', cell: (q) => q.paused ? state('paused') : state('active') },
		{ title: 'Served by', spare: true, cell: (q) => q.mode === 'consumer' ? 'consumers' : 'workers' },
		{ title: 'Ready', n: true, cell: (q) => about(q.ready, q.exact) },
		{ title: 'Oldest', n: true, cell: (q) => span(q.waiting_seconds) },
		{ title: 'Scheduled', n: true, cell: (q) => about(q.scheduled, q.exact) },
		{ title: 'Blocked', n: true, rare: true, cell: (q) => q.blocked ? about(q.blocked, q.exact) : '' },
		{ title: 'Running', n: true, cell: (q) => running(q.running, q.max_running, q.name) },
		{ title: 'Dead', n: true, cell: (q) => q.dead_letters ? h('a', { href: withQuery('#/dead', { queue: q.name }) }, about(q.dead_letters, q.exact)) : '0' },
		...rateColumns(rate),
		{ title: 'Limit', rare: true, cell: (q) => rateText(q.rate) },
		{
			title: 'Actions', hidden: true, rare: true, class: 'acts',
			cell: (q) => !mayOperate(q.name) ? '' : h('span', { class: 'buttons' },
				button(q.paused ? 'Resume' : 'Pause', q.paused ? 'resume' : 'pause', { name: q.name }, { class: 'small', 'aria-label': `${q.paused ? 'Resume' : 'Pause'} queue ${q.name}` }),
				menu(`More actions for queue ${q.name}`,
					button('Cancel waiting jobs', 'cancel-waiting', { name: q.name }, { class: 'danger', 'aria-label': `Cancel the waiting jobs of queue ${q.name}` }))),
		},
	], all ? sorted : sorted.slice(0, MOST_ROWS), (q) => q.name, empty(nothing('There are no queues yet. The first job of a queue creates it.', 'This role may not see any queue.'), 'SELECT jobq.create_queue(\'mail\', max_running => 4);')),
	all ? null : h('p', {}, showAll('queues', `${count(items.length)} queues`))];
}

// Kinds with a handler, and kinds of consumers with jobs in the last hour.
function kinds(items, c) {
	const rate = (k) => c.beside?.rates.get(k.kind);
	const known_ = new Set(items.map((k) => k.kind));
	const others = [...c.beside?.rates.keys() ?? []].filter((kind) => !known_.has(kind)).map((kind) => ({ kind }));

	return table('Kinds', [
		{ title: 'Kind', row: true, cell: (k) => h('a', { href: withQuery('#/jobs', { kind: k.kind }) }, k.kind) },
		{ title: 'Handler', cell: (k) => k.handler ? code(k.handler) : h('span', { class: 'faint' }, 'consumers') },
		...rateColumns(rate),
		{ title: 'Running', n: true, rare: true, cell: (k) => k.max_running ? running(c.beside?.limits.get(k.kind)?.running, k.max_running, k.kind) : '' },
		{ title: 'Queue', rare: true, cell: (k) => k.queue ? queueLink(k.queue) : '' }, { title: 'Attempts', n: true, rare: true, cell: (k) => k.max_attempts ? String(k.max_attempts) : '' },
		{ title: 'Backoff', rare: true, class: 'word', cell: (k) => k.backoff ?? '' }, { title: 'Timeout', n: true, rare: true, cell: (k) => span(seconds(k.timeout)) || (k.timeout ?? '') },
		{ title: 'Rate', rare: true, class: 'word', cell: (k) => rateText(k.rate) },
	], [...items, ...others], (k) => k.kind, empty((session.privileges ?? []).length > 0 ? 'No kind has a handler yet.' : 'This role may not see kinds: it has no privilege.', 'SELECT jobq.register(\'mail.send\', \'send_mail(jsonb)\');'));
}

// Settings of a queue that differ from the defaults of a new queue.
const plain = { mode: 'worker', lease: 'durable', notify: 'relay', keep: 'all', open: false, group_max_running: 1, group_on_failure: 'wait', group_scope: 'queue', fair: 'off', on_full: 'error', recycle: 'never' };
const numbers = ['name', 'paused', 'paused_kinds', 'paused_tenants', 'ready', 'scheduled', 'blocked', 'running', 'dead_letters', 'oldest_ready', 'exact', 'waiting_seconds', 'stats'];
const settingText = (value) => typeof value === 'object' ? JSON.stringify(value) : String(value);

function queue(c) {
	const q = c.data.queue;
	const period = c.period ?? 'hour';
	const settings = Object.entries(q).filter(([name, value]) => !numbers.includes(name) && known(value) && value !== plain[name]);
	const perMinute = (n) => !known(n) ? '' : n < 0.05 ? '0' : n.toFixed(n < 10 ? 1 : 0);

	return [
		h('div', { class: 'head' }, h('h1', {}, q.name, ' ', q.paused ? state('paused') : null), h('div', { class: 'buttons' }, periods(period),
			mayOperate(q.name) ? button(q.paused ? 'Resume' : 'Pause', q.paused ? 'resume' : 'pause', { name: q.name }, { 'aria-label': `${q.paused ? 'Resume' : 'Pause'} queue ${q.name}` }) : null)),
		h('ul', { class: 'tiles' },
			tile('ready', about(q.ready, q.exact), withQuery('#/jobs', { queue: q.name, state: 'ready' })),
			tile('oldest ready job', span(q.waiting_seconds) || '–', withQuery('#/jobs', { queue: q.name, state: 'ready', order: 'run_at' }), q.waiting_seconds > 600 ? 'warn' : ''),
			tile(q.max_running ? `running of ${q.max_running}` : 'running', count(q.running), withQuery('#/jobs', { queue: q.name, state: 'running' }), q.max_running && q.running >= q.max_running ? 'warn' : '',
				q.max_running ? bar(Math.min(100, 100 * q.running / q.max_running), `${q.running} of ${q.max_running} jobs run`) : null),
			tile('scheduled', about(q.scheduled, q.exact), withQuery('#/jobs', { queue: q.name, state: 'scheduled', order: 'run_at' })),
			tile('dead letters', about(q.dead_letters, q.exact), withQuery('#/dead', { queue: q.name }), q.dead_letters > 0 ? 'bad' : '')),
		charts(c.data.series?.points ?? [], period),
		h('h2', {}, 'By kind', h('span', { class: 'faint unit' }, ' times since the counters began')), table('By kind', [
			{ title: 'Kind', row: true, cell: (s) => s.kind }, { title: 'Tenant', rare: true, cell: (s) => s.tenant ?? '' },
			{ title: 'In per minute', n: true, cell: (s) => perMinute(s.enqueued_per_minute) }, { title: 'Out per minute', n: true, cell: (s) => perMinute(s.completed_per_minute) },
			{ title: 'Failed per minute', n: true, cell: (s) => perMinute(s.failed_per_minute) },
			{ title: 'Wait p50', n: true, cell: (s) => span(s.wait_p50) }, { title: 'Wait p95', n: true, cell: (s) => span(s.wait_p95) },
			{ title: 'Run p50', n: true, cell: (s) => span(s.run_p50) }, { title: 'Run p95', n: true, cell: (s) => span(s.run_p95) },
		], q.stats ?? [], (s) => `${s.kind} ${s.tenant}`, 'No attempt has been counted yet, or this role may not see the statistics.'),
		h('section', { class: 'card' }, h('div', { class: 'head' }, h('h2', {}, 'Settings'), changes() && may('manage', q.name) ? button('Edit settings', 'queue-settings', { name: q.name }) : null),
			settings.length === 0 ? h('p', {}, 'All settings have their defaults.') : facts(settings.map(([name, value]) => [name, settingText(value)]))),
	];
}

function worker(c) {
	const w = c.data;
	const ended = (w.completed ?? 0) + (w.failed ?? 0);

	return [
		h('h1', {}, `Worker ${w.pid} `, state(w.state)),
		h('section', { class: 'card' }, h('div', { class: 'columns' }, facts([
			['Pool', w.pool], ['Role', w.role], ['Started', () => w.started_at && time(w.started_at)], ['Completed', () => count(w.completed)],
			['Failed', () => `${count(w.failed)}${ended > 0 && w.failed > 0 ? ` (${(100 * w.failed / ended).toFixed(1)} %)` : ''}`],
		]), facts([
			['Running job', () => w.job_id && jobLink(w.job_id)], ['Kind', w.kind], ['Attempt', () => w.job_id && String(w.attempt)], ['Running for', () => w.job_id && span(w.job_seconds)],
			['Progress', () => known(w.progress) ? [bar(w.progress, `Progress of job ${w.job_id}`), w.message ?? ''] : null],
		]))),
		h('h2', {}, 'Last jobs'),
		table('Last jobs', [
			{ title: 'Job', row: true, cell: (j) => jobLink(j.id) }, { title: 'State', cell: (j) => state(j.state) }, { title: 'Kind', cell: (j) => j.kind },
			{ title: 'Queue', cell: (j) => j.queue ? queueLink(j.queue) : '' }, { title: 'Attempt', n: true, cell: (j) => String(j.attempt) },
			{ title: 'Started', cell: (j) => time(j.started_at) }, { title: 'Took', n: true, cell: (j) => span(j.seconds) }, { title: 'Error', cut: true, cell: (j) => j.error ?? '' },
		], w.jobs ?? [], (j) => j.n, 'No job has ended here yet, or its queue keeps no finished jobs.')];
}

function batch(c) {
	const b = c.data;
	const steps = b.steps ?? [];
	const own = changes() && (owns(b.role) || may('operate'));

	return [
		h('div', { class: 'head' }, h('h1', {}, b.name || `Batch ${c.id}`, ' ', state(b.state)), own ? h('div', { class: 'buttons' },
			b.dead > 0 ? button('Retry dead letters', 'retry-batch', { id: c.id }, { class: 'main' }) : null,
			b.finished_at ? null : menu('More actions for this batch', button('Cancel the batch', 'cancel-batch', { id: c.id }, { class: 'danger' }))) : null),
		b.last_error ? h('div', { class: 'banner bad error' }, b.last_error) : null,
		h('section', { class: 'card' }, known(b.progress) ? bar(b.progress, 'Progress of the batch') : null, h('div', { class: 'columns' }, facts([
			['Jobs', () => h('a', { href: withQuery('#/jobs', { batch_id: c.id }) }, count(b.total))], ['Completed', () => count(b.completed)], ['Dead', () => count(b.dead)],
			['Cancelled', () => count(b.cancelled)], ['Running', () => count(b.running)], ['Waiting', () => count((b.ready ?? 0) + (b.scheduled ?? 0) + (b.blocked ?? 0))],
		]), facts([
			['Batch', c.id], ['Role', b.role], ['Created', () => b.created_at && at(b.created_at)], ['Started', () => b.started_at && at(b.started_at)],
			['Finished', () => b.finished_at && at(b.finished_at)],
		]))),
		steps.length === 0 ? null : [h('h2', {}, 'Workflow'), graph(steps), apart(() => timelineOfSteps(steps)),
			steps.length > MOST_STEPS && !c.whole?.has('steps') ? h('p', {}, showAll('steps', `${count(steps.length)} steps`)) : null,
			table('Steps', [
				{ title: 'Step', row: true, cell: (s) => s.name }, { title: 'State', cell: (s) => state(s.state) }, { title: 'Job', cell: (s) => jobLink(s.job_id) },
				{ title: 'Elements', rare: true, cell: elementsOf }, { title: 'Needs', cell: (s) => (s.needs ?? []).join(', ') }, { title: 'Error', cut: true, rare: true, cell: (s) => s.error ?? '' },
			], c.whole?.has('steps') ? steps : steps.slice(0, MOST_STEPS), (s) => s.name, '')],
	];
}

export const views = {
	overview: {
		title: () => 'Overview',
		async load(c) {
			const [data, series, letters] = await Promise.all([get('api/overview'), get(withQuery('api/series', { period: c.period ?? 'hour' })), get('api/dead?limit=5')]);

			c.data = { overview: data, series, dead: letters.items };
			c.loaded = true;
			c.seriesAt = performance.now();
			findProblems(c);
		},
		stream: () => ({ path: 'api/events?topics=overview,dead', events: ['overview', 'dead'] }),
		heard(c, name, value) {
			c.data[name] = name === 'dead' ? value.items : value;
			return since(c.seriesAt) > 10000;
		},
		stale: (c) => since(c.seriesAt) > 30000,
		draw: overview,
	},
	queues: list('Queues', 'queues', queues, { numbers: () => rates('queue') }),
	queue: {
		title: (c) => `Queue ${c.id}`,
		missing: (c) => `Queue ${c.id} does not exist, or this role may not see it.`,
		async load(c) {
			const [data, series] = await Promise.all([get(path('queues', c.id)), get(withQuery('api/series', { period: c.period ?? 'hour', queue: c.id }))]);

			c.data = { queue: data, series };
			c.loaded = true;
		},
		stale: () => true,
		draw: queue,
	},
	kinds: list('Kinds', 'kinds', kinds, { numbers: () => Promise.all([rates('kind'), get('api/limits')]).then(([numbers, { items }]) => ({
		rates: numbers, limits: new Map(items.filter((l) => l.type === 'kind').map((l) => [l.name, l])),
	})) }),
	limits,
	tenants,
	usage,
	alerts,
	workers: list('Workers and consumers', 'workers', (items) => [
		may('monitor') || items.length === 0 ? null : h('p', { class: 'faint' }, 'Only workers and consumers of this role are shown. The privilege "monitor" shows all.'),
		table('Workers and consumers', [
			{ title: 'Name', row: true, cell: (w) => [w.name ?? w.consumer ?? '', w.pid ? [' ', h('a', { href: `#/worker/${w.pid}` }, String(w.pid))] : ''].flat() },
			{ title: 'Type', cell: (w) => w.type }, { title: 'Role', cell: (w) => w.role }, { title: 'State', cell: (w) => state(w.state) },
			{ title: 'Job', cell: (w) => w.job_id ? jobLink(w.job_id) : w.type === 'consumer' ? `holds ${count(w.running)}` : '' },
			{ title: 'Kind', cell: (w) => w.kind ?? '' }, { title: 'Running for', n: true, cell: (w) => span(w.job_seconds) },
			{ title: 'Progress', rare: true, cell: (w) => known(w.progress) ? [bar(w.progress, `Progress of job ${w.job_id}`), w.message ?? ''] : '' },
			{ title: 'Done', n: true, cell: (w) => count(w.completed) }, { title: 'Failed', n: true, cell: (w) => count(w.failed) },
		], items, (w) => `${w.type} ${w.name} ${w.pid} ${w.client} ${w.role}`,
		empty(nothing('No worker is running. jobq starts one when a job is ready.', 'No worker runs a job of this role.')))]),
	worker: {
		title: (c) => `Worker ${c.id}`,
		missing: (c) => `Worker ${c.id} has ended, or this role may not see it.`,
		async load(c) {
			c.data = await get(path('workers', c.id));
			c.loaded = true;
		},
		stale: () => true,
		draw: worker,
	},
	schedules,
	schedule,
	doctor: {
		title: () => 'Health',
		async load(c) {
			if (may('monitor'))
				c.data = await get('api/doctor');
			c.loaded = true;
		},
		draw: (c) => [h('div', { class: 'head' }, h('h1', {}, 'Health'), may('monitor') ? button('Refresh', 'reload') : null), table('Problems', [
			{ title: 'Severity', cell: (d) => state(d.severity) }, { title: 'Problem', row: true, class: 'message', cell: (d) => d.detail }, { title: 'Fix', class: 'text', cell: (d) => code(d.remedy) },
		], (c.data.items ?? []).map((d, n) => ({ ...d, n })), (d) => d.n, may('monitor') ? 'No problems found.' : 'This page needs the privilege "monitor".')],
	},
	batches: paged('Batches', 'batches', {
		draw: (c) => [h('h1', {}, 'Batches'), table('Batches and workflows', [
			{ title: 'Batch', row: true, cell: batchLink }, { title: 'State', cell: (b) => state(b.state) },
			{ title: 'Progress', cell: (b) => known(b.progress) ? bar(b.progress, `Progress of batch ${b.id}`) : '' },
			{ title: 'Jobs', n: true, cell: (b) => count(b.total) }, { title: 'Completed', n: true, cell: (b) => count(b.completed) },
			{ title: 'Dead', n: true, cell: (b) => count(b.dead) }, { title: 'Created', cell: (b) => time(b.created_at) },
		], c.data.items ?? [], (b) => b.id, empty(nothing('There are no batches yet.', 'This role has no batches.'),
			'SELECT jobq.create_workflow(\'{"steps": [{"name": "load", "kind": "load"}, {"name": "report", "kind": "report", "needs": ["load"]}]}\');')), pages(c, 'batches')],
	}),
	batch: {
		title: (c) => `Batch ${c.id}`,
		missing: (c) => may('monitor') ? `Batch ${c.id} does not exist.` : `Batch ${c.id} does not exist, or belongs to another role.`,
		async load(c) {
			c.data = await get(path('batches', c.id));
			c.loaded = true;
		},
		stale: () => true,
		draw: batch,
	},
	jobs: paged('Jobs', 'jobs', { draw: jobs }),
	dead: paged('Dead letters', 'dead', { draw: dead }),
	failures: {
		title: () => 'Failures',
		async load(c) {
			c.data = await get(withQuery('api/failures', c.query));
			c.loaded = true;
		},
		stale: () => true,
		draw: failures,
	},
	enqueue,
	audit: paged('Audit', 'audit', {
		draw: (c) => [h('h1', {}, 'Audit'), find(c, ['role', 'action', 'from', 'until']), table('Audit', [
			{ title: 'When', class: 'word', cell: (e) => time(e.at) }, { title: 'Action', row: true, class: 'word', cell: (e) => e.action },
			{ title: 'Role', cell: (e) => e.role === e.login ? e.role : [e.role, h('span', { class: 'faint' }, ` (${e.login})`)] },
			{ title: 'Arguments', class: 'text', cell: (e) => h('span', { class: 'list' }, Object.entries(e.arguments ?? {}).map(([name, value]) => h('span', {}, h('span', { class: 'faint' }, `${name} `), value))) },
			{ title: 'Jobs', n: true, cell: (e) => known(e.jobs) ? count(e.jobs) : '' }, { title: 'Application', rare: true, cell: (e) => e.application },
		], c.data.items ?? [], (e) => e.id, filtered(c) ? 'No entry matches these filters.' : empty(nothing('No operator has changed anything yet.', 'This role has changed nothing.'))), pages(c, 'audit')],
		stream: () => null,
		stale: () => true,
	}),
	job,
};
