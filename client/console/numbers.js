// Numbers of the last hour in the rows of lists, and the views of limits, tenants, usage and alerts.

import { get, withQuery } from './api.js';
import { button, count, h, span, state, svg, table, time } from './dom.js';
import { bar, empty, known, menu, queueLink, tenantLink } from './parts.js';
import { changes, may, nothing } from './rights.js';

const MINUTES = 60;

const byName = (answer) => new Map(answer.items.map((item) => [item.name, item]));

// The rates of all names, loaded by a single request.
export const rates = (by) => get(withQuery('api/rates', { by })).then(byName);

const sum = (numbers) => numbers.reduce((all, n) => all + Number(n), 0);

// The number for each minute, of the last five full minutes.
const perMinute = (numbers) => {
	const n = sum(numbers.slice(MINUTES - 6, MINUTES - 1)) / 5;

	return n === 0 ? '0' : n < 10 ? n.toFixed(1) : count(Math.round(n));
};

const round = (n) => Math.round(n * 10) / 10;

const WIDTH = 120;
const HEIGHT = 22;

// Completed jobs as bars, failed attempts on top, and enqueued jobs as a line.
export function sparkline(rate) {
	if (!rate)
		return '';
	const completed = rate.completed.map(Number);
	const failed = rate.failed.map(Number);
	const enqueued = rate.enqueued.map(Number);
	const most = Math.max(1, ...enqueued, ...completed.map((n, i) => n + failed[i]));
	const step = WIDTH / MINUTES;
	const tall = (n) => n === 0 ? 0 : Math.max(1, n / most * (HEIGHT - 2));
	// all bars of a colour are a single element, because a page has many rows
	const fill = (name, bars) => bars === '' ? null : svg('path', { class: `${name}-fill`, d: bars });
	const rect = (i, y, height) => `M${round(i * step)} ${round(HEIGHT - y)}h${step * 0.8}v${round(-height)}h${-step * 0.8}z`;
	const text = `Last hour: ${count(sum(enqueued))} enqueued, ${count(sum(completed))} completed, ${count(sum(failed))} failed`;

	return svg('svg', { class: 'spark', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: 'img', 'aria-label': text },
		svg('title', {}, text),
		fill('good', completed.map((n, i) => n ? rect(i, 0, tall(n)) : '').join('')), fill('bad', failed.map((n, i) => n ? rect(i, tall(completed[i]), tall(n)) : '').join('')),
		svg('path', { class: 'busy-line', d: enqueued.map((n, i) => `${i === 0 ? 'M' : 'L'}${round((i + 0.4) * step)} ${round(HEIGHT - 1 - tall(n))}`).join('') }));
}

// The columns of the last hour.  The parameter "of" finds the rate of a row.
export const rateColumns = (of) => [
	{ title: 'Last hour', rare: true, cell: (row) => sparkline(of(row)) },
	{ title: 'In/min', n: true, rare: true, cell: (row) => of(row) ? perMinute(of(row).enqueued) : '' },
	{ title: 'Out/min', n: true, rare: true, cell: (row) => of(row) ? perMinute(of(row).completed) : '' },
	{ title: 'Wait p95', n: true, rare: true, cell: (row) => span(of(row)?.wait_p95) },
];

// A rate in few words, for example "100/min".
export const rateText = (rate) => (rate ?? '').replace(/ per (second|minute|hour|day)/, (all, unit) => `/${{ second: 's', minute: 'min', hour: 'h', day: 'day' }[unit]}`);

// Running jobs, with a meter if there is a limit.
export function running(n, most, name) {
	if (!most)
		return known(n) ? count(n) : '';
	return h('span', { class: 'use' }, h('span', {}, `${count(n ?? 0)} of ${count(most)}`), bar(Math.min(100, 100 * (n ?? 0) / most), `${name}: ${n ?? 0} of ${most}`));
}

// The last jobs of a schedule: a bar for each, as high as the job took long, the newest on the right.
export function strip(runs) {
	if (!runs?.length)
		return '';
	const shown = runs.slice(0, 30).reverse();
	const longest = Math.max(...shown.map((r) => r.seconds ?? 0), 0.001);
	const names = { completed: 'good', dead: 'bad', expired: 'warn', cancelled: 'neutral' };
	const bad = shown.filter((r) => r.state === 'dead').length;
	const text = `Last ${shown.length} jobs: ${bad} dead, the longest took ${span(longest)}`;

	return svg('svg', { class: 'spark', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: 'img', 'aria-label': text }, svg('title', {}, text),
		shown.map((r, i) => {
			const height = 4 + (HEIGHT - 4) * (r.seconds ?? 0) / longest;

			return svg('rect', { class: `${names[r.state] ?? 'busy'}-fill`, x: WIDTH - (shown.length - i) * 4, y: HEIGHT - height, width: 3, height });
		}));
}

// --- limits ---------------------------------------------------------------------

const nameOf = (l) => l.type === 'queue' ? queueLink(l.name) : l.type === 'kind' ? h('a', { href: withQuery('#/jobs', { kind: l.name }) }, l.name) : l.name;

const limitsTable = (c) => table('Limits', [
	{ title: 'Limit', row: true, cell: nameOf }, { title: 'Of', cell: (l) => l.type },
	{ title: 'State', cell: (l) => l.rest_until && new Date(l.rest_until) > Date.now() ? [state('paused', 'rests'), ' until ', time(l.rest_until)]
		: l.max_running && l.running >= l.max_running ? state('warning', 'full') : state('active', 'free') },
	{ title: 'Running', n: true, cell: (l) => running(l.running, l.max_running, `${l.type} ${l.name}`) },
	{ title: 'Rate', cell: (l) => l.rate ?? '' },
	{ title: 'May start now', n: true, rare: true, cell: (l) => l.rate && known(l.tokens) ? count(Math.floor(l.tokens)) : '' },
	{ title: 'Throttle', rare: true, cell: (l) => l.throttle ?? '' }, { title: 'Failed', n: true, rare: true, cell: (l) => l.throttle ? count(l.failed ?? 0) : '' },
	{ title: 'For each', rare: true, cell: (l) => l.by ?? '' }, { title: 'Cost', rare: true, cell: (l) => l.cost ?? '' },
	{
		title: 'Actions', hidden: true, rare: true, class: 'acts',
		cell: (l) => l.type !== 'limiter' || !changes() || !may('manage') ? '' : h('span', { class: 'buttons' },
			button('Edit', 'limiter', { name: l.name }, { class: 'small', 'aria-label': `Edit limiter ${l.name}` }),
			menu(`More actions for limiter ${l.name}`, button('Delete', 'delete-limiter', { name: l.name }, { class: 'danger' }))),
	},
], c.data.items ?? [], (l) => `${l.type} ${l.name}`, empty('No queue or kind has a limit, and there are no limiters. A limiter is a limit that queues and kinds share.',
	'SELECT jobq.create_limiter(\'payments\', max_running => 5, rate => \'100 per minute\');'));

const reloaded = (title, load, draw) => ({
	title: () => title,
	async load(c) {
		c.data = await load(c);
		c.loaded = true;
	},
	stale: () => true,
	draw,
});

export const limits = reloaded('Limits', () => get('api/limits'), (c) => [
	h('div', { class: 'head' }, h('h1', {}, 'Limits'), changes() && may('manage') ? button('Create a limiter', 'limiter') : null), limitsTable(c)]);

// --- tenants and usage --------------------------------------------------------------

const noStatistics = () => empty(may('monitor') ? 'No job has been counted yet.' : 'The statistics need the privilege "monitor".');

export const tenants = reloaded('Tenants', async () => {
	const [usage, numbers] = await Promise.all([get(withQuery('api/usage', { by: 'tenant' })), rates('tenant')]);

	return { items: usage.items.filter((u) => u.name !== null && u.name !== '(other)'), rates: numbers };
}, (c) => [h('h1', {}, 'Tenants'), table('Tenants', [
	{ title: 'Tenant', row: true, cell: (t) => tenantLink(t.name) },
	{ title: 'Ready', n: true, cell: (t) => count(t.ready) }, { title: 'Running', n: true, cell: (t) => count(t.running) },
	{ title: 'Scheduled', n: true, cell: (t) => count(t.scheduled) },
	{ title: 'Dead', n: true, cell: (t) => t.dead_letters > 0 ? h('a', { href: withQuery('#/dead', { tenant: t.name }) }, count(t.dead_letters)) : '0' },
	...rateColumns((t) => c.data.rates.get(t.name)),
	{ title: 'Completed', n: true, cell: (t) => count(t.completed) }, { title: 'Failed', n: true, cell: (t) => count(t.failed) },
], c.data.items ?? [], (t) => t.name, empty(may('monitor') ? 'No job has a tenant yet. A queue names the property of its jobs that is the tenant.' : 'The statistics need the privilege "monitor".',
	'SELECT jobq.create_queue(\'mail\', tenant => \'header customer\', fair => \'jobs\');'))]);

const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];

function bytes(n) {
	const power = n > 0 ? Math.min(Math.floor(Math.log10(n) / 3), units.length - 1) : 0;
	const value = n / 1000 ** power;

	return `${value < 10 && power > 0 ? value.toFixed(1) : Math.round(value)} ${units[power]}`;
}

const share = (n, all) => all > 0 ? `${(100 * n / all).toFixed(1)} %` : '';
const choices = [['tenant', 'Tenants'], ['kind', 'Kinds'], ['queue', 'Queues']];

function bill(c) {
	const by = c.query.by ?? 'tenant';
	const items = c.data.items ?? [];
	const total = (member) => sum(items.map((u) => u[member] ?? 0));
	const cpu = total('cpu_seconds');
	const since = items.map((u) => u.since).filter(Boolean).sort()[0];
	const link = (u) => !u.name ? `no ${by}` : u.name === '(other)' ? u.name : by === 'queue' ? queueLink(u.name) : by === 'tenant' ? tenantLink(u.name) : h('a', { href: withQuery('#/jobs', { kind: u.name }) }, u.name);

	return [
		h('div', { class: 'head' }, h('h1', {}, 'Usage'), h('div', { class: 'buttons', role: 'group', 'aria-label': 'Rows' },
			choices.map(([value, title]) => h('a', { class: 'button', href: withQuery('#/usage', { by: value }), 'aria-current': value === by ? 'true' : null }, title)))),
		since ? h('p', { class: 'faint' }, 'Resources of runs in workers, since ', time(since), '. A consumer works outside the server, and uses none of these.') : null,
		table('Usage', [
			{ title: by[0].toUpperCase() + by.slice(1), row: true, cell: link },
			{ title: 'Runs', n: true, cell: (u) => count(u.runs) }, { title: 'Run time', n: true, cell: (u) => span(u.run_seconds) },
			{ title: 'Processor', n: true, cell: (u) => span(u.cpu_seconds) }, { title: 'Share', n: true, cell: (u) => share(u.cpu_seconds, cpu) },
			{ title: 'WAL', n: true, cell: (u) => bytes(u.wal_bytes ?? 0) }, { title: 'Share', n: true, cell: (u) => share(u.wal_bytes, total('wal_bytes')) },
			{ title: 'Blocks', n: true, cell: (u) => count(u.buffers) }, { title: 'Read', n: true, cell: (u) => count(u.buffers_read) },
			{ title: 'Temporary', n: true, cell: (u) => bytes(u.temp_bytes ?? 0) },
		], items, (u) => u.name ?? '', noStatistics())];
}

export const usage = reloaded('Usage', (c) => get(withQuery('api/usage', { by: c.query.by })), bill);

// --- alerts -------------------------------------------------------------------------

// The conditions: the measured value in words, and how a value is shown.
const conditions = {
	ready: ['ready jobs', count], oldest: ['wait of the oldest ready job', span], failing: ['failed part of the attempts of 5 minutes', (n) => `${Math.round(n * 100)} %`],
	silent: ['time without a completed job', span], slow: ['run time, as a multiple of the usual', (n) => `${n.toFixed(1)} ×`], dead: ['dead letters', count],
	new: ['causes of failures that are new in the last hour', count], late: ['time since a missed tick', span], unattended: ['time that a job waits in a queue without workers', span],
	xmin: ['time for which a job keeps old rows from being removed', span],
};

export const conditionNames = Object.keys(conditions);
const valueOf = (m, n) => known(n) ? conditions[m.condition]?.[1](n) ?? count(n) : 'unknown';

export const alerts = reloaded('Alerts', () => may('monitor') ? get('api/monitors') : { items: [] }, (c) => [
	h('div', { class: 'head' }, h('h1', {}, 'Alerts'), changes() && may('manage') ? button('Create a monitor', 'monitor') : null),
	table('Monitors', [
		{ title: 'Monitor', row: true, cell: (m) => m.name }, { title: 'State', cell: (m) => m.since ? state('critical', 'alert') : state('active', 'quiet') },
		{ title: 'Since', cell: (m) => m.since ? time(m.since) : m.ended_at ? ['ended ', time(m.ended_at)] : '' },
		{ title: 'Watches', class: 'text', cell: (m) => [conditions[m.condition]?.[0] ?? m.condition, m.queue ? [' of queue ', queueLink(m.queue)] : '', m.kind ? ` of kind ${m.kind}` : ''].flat() },
		{ title: 'Value', n: true, cell: (m) => valueOf(m, m.value) }, { title: 'Alert above', n: true, cell: (m) => valueOf(m, m.above) },
		{ title: 'Ends at', n: true, cell: (m) => valueOf(m, m.until ?? m.above) },
		{
			title: 'Actions', hidden: true, rare: true, class: 'acts',
			cell: (m) => !changes() || !may('manage') ? '' : h('span', { class: 'buttons' },
				button('Edit', 'monitor', { name: m.name }, { class: 'small', 'aria-label': `Edit monitor ${m.name}` }),
				menu(`More actions for monitor ${m.name}`, button('Delete', 'delete-monitor', { name: m.name }, { class: 'danger' }))),
		},
	], c.data.items ?? [], (m) => m.name, empty(nothing('There are no monitors yet. A monitor sends a notification when a condition begins, and when it ends.', 'This role may not see monitors.'),
		'SELECT jobq.create_monitor(\'mail is late\', \'oldest\', above => 600, queue => \'mail\');'))]);
