// The views of schedules: the list, a single schedule, and the form to create or change a schedule.

import { ask, get, memberText, parse, path, pretty, withQuery } from './api.js';
import { words } from './cron.js';
import { labelled } from './dialog.js';
import { apart, at, button, date, facts, h, span, state, table, time } from './dom.js';
import { strip } from './numbers.js';
import { code, empty, jobLink, list, menu, part } from './parts.js';
import { changes, mayPause, mayRun, nothing } from './rights.js';

const scheduleLink = (name) => h('a', { href: `#/schedule/${encodeURIComponent(name)}` }, name);
const when = (s) => [words(s.cron) ? `${words(s.cron)} ` : code(s.cron), ' ', h('span', { class: 'faint' }, s.timezone)];

const pauseButton = (s, attributes) => button(s.state === 'paused' ? 'Resume' : 'Pause', s.state === 'paused' ? 'resume-schedule' : 'pause-schedule', { name: s.name },
	{ 'aria-label': `${s.state === 'paused' ? 'Resume' : 'Pause'} schedule ${s.name}`, ...attributes });
const runButton = (s, attributes) => button('Run now', 'run-schedule', { name: s.name }, { 'aria-label': `Run schedule ${s.name} now`, ...attributes });

// The last jobs of all schedules, loaded by a single request.
const lastJobs = () => get('api/runs').then((answer) => new Map(answer.items.map((r) => [r.schedule, r.runs])));

export const schedules = list('Schedules', 'schedules', (items, c) => table('Schedules', [
	{ title: 'Schedule', row: true, cell: (s) => scheduleLink(s.name) }, { title: 'State', cell: (s) => state(s.state) },
	{ title: 'When', cell: (s) => h('span', { title: s.cron }, when(s)) },
	{ title: 'Next', cell: (s) => time(s.next_tick) },
	{ title: 'Last', cell: (s) => s.last_job_id ? [jobLink(s.last_job_id), ' ', state(s.last_state), ' ', time(s.last_tick)] : '' },
	{ title: 'Last jobs', rare: true, cell: (s) => strip(c.beside?.get(s.name)) },
	{ title: 'Kind', cell: (s) => s.kind }, { title: 'Error', rare: true, class: 'text', cell: (s) => s.last_error ?? '' },
	{
		title: 'Actions', hidden: true, rare: true, class: 'acts',
		cell: (s) => s.state === 'dormant' || !(mayPause(s) || mayRun(s)) ? '' : h('span', { class: 'buttons' },
			mayPause(s) ? pauseButton(s, { class: 'small' }) : null, mayRun(s) ? runButton(s, { class: 'small' }) : null),
	},
], items, (s) => s.name, empty(nothing('There are no schedules yet.', 'This role has no schedules.'), 'SELECT jobq.schedule(\'nightly report\', \'30 4 * * *\', \'report\');')),
{ beside: () => changes() ? h('a', { class: 'button', href: '#/schedule' }, 'Create a schedule') : null, numbers: lastJobs });

// Times are shown in the time zone of the browser.
const zone = () => h('span', { class: 'faint unit' }, ` times in ${Intl.DateTimeFormat().resolvedOptions().timeZone}`);

// --- the form -----------------------------------------------------------------------

// The next ticks of the expression in the form.
function preview(c) {
	const { problem, ticks, text } = c.preview ?? {};

	return h('div', { class: 'preview', role: 'status', 'data-key': 'preview' }, problem ? h('p', { class: 'bad-text' }, problem) : !ticks ? null
		: [h('p', {}, h('b', {}, text || 'Next ticks'), zone()), h('ol', {}, ticks.map((tick) => h('li', {}, at(tick))))]);
}

async function look(c) {
	const values = Object.fromEntries(new FormData(document.querySelector('form.schedule')));
	const asked = c.asked = {};

	if (!values.cron.trim())
		return;
	try {
		const { items } = await get(withQuery('api/ticks', { cron: values.cron, timezone: values.timezone, limit: 5 }));

		if (c.asked === asked)
			c.preview = { ticks: items, text: words(values.cron) };
	} catch (problem) {
		if (c.asked === asked)
			c.preview = { problem: [problem.message, problem.hint].filter(Boolean).join(' ') };
	}
	c.draw();
}

const input = (name, attributes) => h('input', { name, autocomplete: 'off', spellcheck: 'false', ...attributes });
const choice = (name, values, chosen) => h('select', { name }, values.map(([value, title]) => h('option', { value, selected: value === chosen }, title)));

function form(c) {
	const s = c.data.schedule ?? {};
	const members = c.data.members ?? {};

	return [h('h1', {}, c.id ? `Schedule ${c.id}` : 'Create a schedule'), h('form', { class: 'card schedule' },
		h('div', { class: 'fields' },
			c.id ? null : labelled('Name', input('name', { required: true })),
			labelled('Expression', input('cron', { required: true, value: s.cron ?? '', placeholder: '30 4 * * mon-fri' })),
			labelled('Time zone', [input('timezone', { value: s.timezone ?? 'UTC', list: 'zones' }), h('datalist', { id: 'zones' }, Intl.supportedValuesOf('timeZone').map((zone) => h('option', { value: zone })))]),
			labelled('Kind', [input('kind', { required: true, list: 'kinds', value: s.kind ?? '' }), h('datalist', { id: 'kinds' }, c.data.kinds.map((kind) => h('option', { value: kind })))]),
			labelled('After missed ticks', choice('missed', [['once', 'one job'], ['all', 'a job for each tick'], ['skip', 'no job']], s.missed ?? 'once')),
			labelled('While the last job runs', choice('overlap', [['allow', 'enqueue one more'], ['queue', 'run one more after it'], ['skip', 'skip the tick']], s.overlap ?? 'allow'))),
		preview(c),
		labelled('Payload', h('textarea', { name: 'payload', spellcheck: 'false' }, pretty(members.payload ?? '{}'))),
		labelled('Options of the job', h('textarea', { name: 'options', class: 'small', spellcheck: 'false', placeholder: '{"queue": "reports"}' }, s.options ? pretty(members.options) : '')),
		h('p', { class: 'buttons' }, button('Save', 'save-schedule', { name: c.id }, { class: 'main' }), h('a', { class: 'button', href: c.id ? `#/schedule/${encodeURIComponent(c.id)}` : '#/schedules' }, 'Back')))];
}

// The request to save the schedule of this form.
export function newSchedule(element) {
	const { name, payload, options, ...texts } = Object.fromEntries([...new FormData(element)].map(([key, value]) => [key, value.trim()]));

	for (const [text, title] of [[payload || '{}', 'The payload'], [options || '{}', 'The object of options']])
		try {
			JSON.parse(text);
		} catch (error) {
			throw new Error(`${title} is not valid JSON: ${error.message}`);
		}
	if (name === '')
		throw new Error('The name is missing.');
	return { name, body: `{"payload": ${payload || '{}'}, ${options ? `"options": ${options}, ` : ''}${JSON.stringify(texts).slice(1)}` };
}

// --- a schedule -----------------------------------------------------------------------

function runs(items) {
	const took = (run) => run.started_at && run.finished_at ? (date(run.finished_at) - date(run.started_at)) / 1000 : null;

	return [h('h2', {}, 'Last jobs'), table('Last jobs', [
		{ title: 'Job', row: true, cell: (run) => jobLink(run.id) }, { title: 'State', cell: (run) => state(run.state) }, { title: 'Enqueued', cell: (run) => time(run.enqueued_at) },
		{ title: 'Run time', n: true, cell: (run) => span(took(run)) }, { title: 'Error', cut: true, cell: (run) => run.error ?? '' },
	], items, (run) => run.id, 'No job of this schedule is stored.')];
}

function draw(c) {
	if (!c.id || c.query.edit)
		return form(c);
	const s = c.data.schedule;

	return [
		h('div', { class: 'head' }, h('h1', {}, s.name, ' ', state(s.state)), s.state === 'dormant' ? null : h('div', { class: 'buttons' },
			mayRun(s) && s.kind !== 'jobq.sql' ? h('a', { class: 'button', href: withQuery(`#/schedule/${encodeURIComponent(s.name)}`, { edit: 1 }) }, 'Edit') : null,
			mayPause(s) ? pauseButton(s) : null, mayRun(s) ? runButton(s) : null,
			mayRun(s) ? menu('More actions for this schedule', button('Delete', 'delete-schedule', { name: s.name }, { class: 'danger' })) : null)),
		s.last_error ? h('div', { class: 'banner bad error' }, s.last_error) : null,
		h('div', { class: 'cards' },
			h('section', { class: 'card' }, h('h2', {}, 'Details'), facts([
				['When', () => words(s.cron)], ['Expression', () => code(s.cron)], ['Time zone', s.timezone], ['Next', () => time(s.next_tick)], ['Last', () => time(s.last_tick)],
				['Kind', () => h('a', { href: withQuery('#/jobs', { kind: s.kind }) }, s.kind)], ['Role', s.role],
				['Missed ticks', () => ({ once: 'one job', all: 'a job for each tick', skip: 'no job' })[s.missed]],
				['While the last job runs', () => ({ allow: 'one more is enqueued', queue: 'one more runs after it', skip: 'the tick is skipped' })[s.overlap]],
			])),
			s.next_ticks ? h('section', { class: 'card' }, h('h2', {}, 'Next ticks', zone()), h('ol', { class: 'ticks' }, s.next_ticks.map((tick) => h('li', {}, apart(() => [at(tick), ' ', h('span', { class: 'faint' }, time(tick))]))))) : null,
			!s.payload ? null : h('section', { class: 'card' }, h('h2', {}, 'Payload'), part(c, 'payload', 'Payload', c.data.members.payload, pretty)),
			!s.options ? null : h('section', { class: 'card' }, h('h2', {}, 'Options of the job'), part(c, 'options', 'Options', c.data.members.options, pretty))),
		runs(s.runs ?? []),
	];
}

export const schedule = {
	title: (c) => c.id ? `Schedule ${c.id}` : 'Create a schedule',
	missing: (c) => `Schedule ${c.id} does not exist, or belongs to another role.`,
	async load(c) {
		const kinds = c.id && !c.query.edit ? [] : await get('api/kinds').then(({ items }) => items.map((k) => k.kind)).catch(() => []);
		const text = c.id ? await ask('GET', path('schedules', c.id)) : null;

		c.data = text === null ? { kinds } : { kinds, schedule: parse(text), members: { payload: memberText(text, 'payload'), options: memberText(text, 'options') } };
		c.loaded = true;
	},
	stale: (c) => c.id && !c.query.edit,
	draw,
	drawn(c) {
		const element = document.querySelector('form.schedule');

		if (!element || c.listens)
			return;
		c.listens = true;
		element.addEventListener('input', ({ target }) => {
			if (!['cron', 'timezone'].includes(target.name))
				return;
			clearTimeout(c.looks);
			c.looks = setTimeout(() => look(c), 200);
		});
		look(c);
	},
};
