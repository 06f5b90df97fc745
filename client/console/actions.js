// The actions of the console.  An action asks before any change.

import { ask, get, parse, path, post, pretty } from './api.js';
import { copy, dialog, labelled, note, save, toast } from './dialog.js';
import { about, count, h, instant, local } from './dom.js';
import { conditions, describe, exported } from './find.js';
import { newJob } from './enqueue.js';
import { copiedError } from './job.js';
import { conditionNames } from './numbers.js';
import { kB, MOST_EDITED } from './parts.js';
import { mayRetry } from './rights.js';
import { newSchedule } from './schedule.js';

const jobsText = (n) => n === 1 ? '1 job' : `${count(n)} jobs`;
const lettersText = (n) => n === 1 ? '1 dead letter' : `${count(n)} dead letters`;
const AGAIN = 'The attempts are counted from the start.';
const FOR_EVER = 'This cannot be undone.';

// The number of jobs selected by a call.
const selected = (to, body) => post(to, { ...body, dry_run: true }).then((answer) => answer.count);

// The conditions on dead letters among these values, and a text about the selected dead letters.
const likeOf = ({ queue, kind, tenant, fingerprint }) => Object.fromEntries(Object.entries({ queue, kind, tenant, fingerprint }).filter(([, value]) => value));
const lettersLike = (n, { fingerprint, ...others }) => [lettersText(n), Object.entries(others).map(([name, value]) => `of ${name} "${value}"`).join(' and '),
	fingerprint ? 'with this error' : ''].filter(Boolean).join(' ');

const change = (id, values) => ask('PATCH', path('jobs', id), JSON.stringify(values));
const numberField = (value) => labelled('Priority', h('input', { name: 'priority', type: 'number', step: 1, required: true, value: String(value ?? 0) }), 'A job with a smaller number runs first.');
const timeField = (value) => labelled('Scheduled for', h('input', { name: 'run_at', type: 'datetime-local', step: 1, required: true, value: local(value ?? new Date()) }), 'In the time zone of this browser.');

// An action on all jobs of the list.  The question and the final message contain the number of jobs.
async function many(context, verb, to, body, done, { danger, changes, example }) {
	const like = conditions(context.query);
	const chosen = orAll(like);
	const n = await selected(to, changes ? { ...chosen, changes: example ?? changes({}) } : chosen);
	const filters = describe(context);

	if (n === 0) {
		toast('This concerns no job of the list.');
		return;
	}
	await confirmed(`${verb} ${jobsText(n)}?`, [h('p', {}, filters ? `All jobs with: ${filters}.` : 'All jobs: the list has no filter.'), body].flat(), `${verb.replace(/[: ].*/, '')} ${jobsText(n)}`, danger,
		(values) => post(to, changes ? { ...chosen, changes: changes(values) } : chosen), ({ count: m }) => `${jobsText(m)} ${done}.`);
}

// The server requires a condition even for all jobs.
const orAll = (like) => Object.keys(like).length > 0 ? like : { older_than: '0' };

const actions = {
	async pause({ name }) {
		await confirmed(`Pause queue "${name}"?`, 'No more jobs start until the queue is resumed. Running jobs continue.', 'Pause', false,
			() => post('api/queues/pause', { queue: name }), `Queue "${name}" is paused.`);
	},
	async resume({ name }) {
		await confirmed(`Resume queue "${name}"?`, 'Jobs of the queue start again.', 'Resume', false,
			() => post('api/queues/resume', { queue: name }), `Queue "${name}" is resumed.`);
	},
	async 'queue-settings'({ name }, { data }) {
		const q = data.queue;
		const text = (setting, title, help) => labelled(title, h('input', { name: setting, value: String(q[setting] ?? ''), autocomplete: 'off' }), help);

		await confirmed(`Settings of queue "${name}"`, [
			text('max_running', 'Running jobs at the same time', '0: no limit.'), text('rate', 'Rate', 'For example 100 per minute burst 20; none: no limit.'),
			text('throttle', 'Throttle', 'For example 10 failures in 5 minutes; none: never.'), text('weight', 'Weight', '0: strict order.'), text('max_length', 'Length', '0: no limit.'),
		], 'Save', false, (values) => {
			// send only changed settings
			const changed = Object.fromEntries(Object.entries(values).filter(([setting, value]) => value.trim() !== String(q[setting] ?? '') && value.trim() !== ''));

			// without "open", a queue created by its first job would be closed
			return ask('PUT', path('queues', name), JSON.stringify({ open: q.open, ...changed }));
		}, `The settings of queue "${name}" are saved.`);
	},
	async 'cancel-waiting'({ name }, { data }) {
		const q = data.items.find((queue) => queue.name === name) ?? {};

		await confirmed(`Cancel all waiting jobs of queue "${name}"?`,
			`Number of waiting jobs: ${about((q.ready ?? 0) + (q.scheduled ?? 0) + (q.blocked ?? 0), q.exact)}. Running jobs continue. ${FOR_EVER}`, 'Cancel waiting jobs', true,
			() => post('api/queues/cancel', { queue: name }), ({ count: n }) => `${jobsText(n)} of queue "${name}" cancelled.`);
	},
	async cancel({ id }) {
		await confirmed(`Cancel job ${id}?`, `A running job is asked to stop. ${FOR_EVER}`, 'Cancel the job', true,
			() => ask('DELETE', path('jobs', id)), `Job ${id} is cancelled, or is asked to stop.`);
	},
	async retry({ id }) {
		await confirmed(`Retry job ${id}?`, AGAIN, 'Retry', false, () => post(path('jobs', id, 'retry')), `Job ${id} will run again.`);
	},
	async delete({ id }) {
		await confirmed(`Delete job ${id}?`, `The dead letter is deleted. ${FOR_EVER}`, 'Delete', true,
			() => post('api/jobs/delete', { ids: [id] }), `Job ${id} is deleted.`, () => location.assign('#/dead'));
	},
	async 'retry-selected'(values, context) {
		const list = [...context.selected];

		await confirmed(`Retry ${jobsText(list.length)}?`, AGAIN, 'Retry', false,
			() => post('api/jobs/retry', { ids: list }), `${jobsText(list.length)} will run again.`, () => context.selected.clear());
	},
	async 'delete-selected'(values, context) {
		const list = [...context.selected];

		await confirmed(`Delete ${jobsText(list.length)}?`, `The dead letters are deleted. ${FOR_EVER}`, 'Delete', true,
			() => post('api/jobs/delete', { ids: list }), `${jobsText(list.length)} deleted.`, () => context.selected.clear());
	},
	async 'retry-all'(values, { query }) {
		const like = values.fingerprint ? likeOf(values) : conditions(query);
		const n = await selected('api/dead/retry', orAll(like));

		await confirmed(values.fingerprint || Object.keys(query).every((name) => name in likeOf(query)) ? `Retry ${lettersLike(n, likeOf(values.fingerprint ? values : query))}?`
			: `Retry ${lettersText(n)}?`, AGAIN, 'Retry all', false,
			() => post('api/dead/retry', orAll(like)), ({ count: n }) => `${jobsText(n)} will run again.`);
	},
	async 'delete-all'(values) {
		const like = likeOf(values);

		await confirmed(`Delete ${lettersLike(await selected('api/dead/delete', like), like)}?`, FOR_EVER, 'Delete all', true,
			() => post('api/dead/delete', like), ({ count: n }) => `${lettersText(n)} deleted.`);
	},
	async 'pause-schedule'({ name }) {
		await confirmed(`Pause schedule "${name}"?`, 'Ticks during the pause are skipped.', 'Pause', false,
			() => post('api/schedules/pause', { schedule: name }), `Schedule "${name}" is paused.`);
	},
	async 'resume-schedule'({ name }) {
		await confirmed(`Resume schedule "${name}"?`, 'The schedule continues with its next tick.', 'Resume', false,
			() => post('api/schedules/resume', { schedule: name }), `Schedule "${name}" is resumed.`);
	},
	async 'run-schedule'({ name }) {
		await confirmed(`Run schedule "${name}" now?`, 'One more job is enqueued. The times of the schedule do not change.', 'Run now', false,
			() => post('api/schedules/run', { schedule: name }), ({ id }) => `Job ${id} is enqueued.`);
	},
	async 'cancel-batch'({ id }, { data: b }) {
		await confirmed(`Cancel batch ${id}?`,
			`${count((b.ready ?? 0) + (b.scheduled ?? 0) + (b.blocked ?? 0) + (b.running ?? 0))} of ${jobsText(b.total)} are not finished. ${FOR_EVER}`, 'Cancel the batch', true,
			() => post(path('batches', id, 'cancel')), `Batch ${id} is cancelled.`);
	},
	async 'retry-batch'({ id }, { data: b }) {
		await confirmed(`Retry ${lettersText(b.dead)} of batch ${id}?`, AGAIN, 'Retry', false,
			() => post(path('batches', id, 'retry')), ({ count: n }) => `${jobsText(n)} will run again.`);
	},
	async edit({ id }, context) {
		const text = document.getElementById('payload').value;

		try {
			JSON.parse(text);
		} catch (error) {
			toast(`The payload is not valid JSON: ${error.message}`, true);
			document.getElementById('payload').focus();
			return;
		}
		// the text as typed, because JavaScript rounds some numbers
		await confirmed(`Retry job ${id} with this payload?`, AGAIN, 'Save and retry', false,
			() => ask('POST', path('jobs', id, 'retry'), `{"payload": ${text}}`), `Job ${id} will run again.`, () => {
				context.editing = undefined;
			});
	},
	async 'copy-error'(values, { data }) {
		await copy(copiedError(data.job));
		toast('The error is copied.');
	},
	'begin-edit'(values, context) {
		const payload = context.data.members.payload ?? '{}';

		if (payload.length > MOST_EDITED) {
			toast(`The payload has ${kB(payload)}, too much for a form. Download the payload, and run: jobq edit ${context.id} --payload=@FILE`, true);
			return;
		}
		context.editing = pretty(payload);
		context.draw();
		document.getElementById('payload').focus();
	},
	async 'save-payload'({ id }, context) {
		const text = document.getElementById('payload').value;

		JSON.parse(text);
		await confirmed(`Save the payload of job ${id}?`, 'The job runs with the new payload.', 'Save', false,
			() => ask('PATCH', path('jobs', id), `{"payload": ${text}}`), `The payload of job ${id} is saved.`, () => {
				context.editing = undefined;
			});
	},
	async rerun({ id }) {
		await confirmed(`Run job ${id} again?`, 'A new job with the same kind, payload and settings is enqueued.', 'Run again', false,
			() => post(path('jobs', id, 'rerun'), {}), (answer) => `Job ${answer.id} is enqueued.`, (answer) => location.assign(`#/job/${answer.id}`));
	},
	async 'run-now'({ id }) {
		await confirmed(`Run job ${id} now?`, 'The job does not wait for its time any longer. Limits and the order of the queue still apply.', 'Run now', false,
			() => change(id, { run_at: 'now' }), `Job ${id} is due now.`);
	},
	async priority({ id }, { data }) {
		await confirmed(`Priority of job ${id}`, numberField(data.job.priority), 'Save', false,
			({ priority }) => change(id, { priority: Number(priority) }), `The priority of job ${id} is changed.`);
	},
	async reschedule({ id }, { data }) {
		await confirmed(`Reschedule job ${id}`, timeField(data.job.run_at), 'Save', false, ({ run_at: time }) => change(id, { run_at: instant(time) }), `Job ${id} is rescheduled.`);
	},
	async 'many-cancel'(values, context) {
		await many(context, 'Cancel', 'api/jobs/cancel', `Running jobs are asked to stop. ${FOR_EVER}`, 'cancelled', { danger: true });
	},
	async 'many-retry'(values, context) {
		await many(context, 'Retry', 'api/jobs/retry', AGAIN, 'will run again', {});
	},
	async 'many-delete'(values, context) {
		await many(context, 'Delete', 'api/jobs/delete', `The dead letters are deleted. ${FOR_EVER}`, 'deleted', { danger: true });
	},
	async 'many-now'(values, context) {
		await many(context, 'Run now:', 'api/jobs/edit', 'The jobs do not wait for their times any longer. Limits and the order of the queue still apply.', 'due now',
			{ changes: () => ({ run_at: 'now' }) });
	},
	async 'many-priority'(values, context) {
		await many(context, 'Change the priority of', 'api/jobs/edit', numberField(0), 'changed', { changes: ({ priority }) => ({ priority: Number(priority) }), example: { priority: 0 } });
	},
	async 'many-reschedule'(values, context) {
		await many(context, 'Reschedule', 'api/jobs/edit', timeField(), 'rescheduled', { changes: ({ run_at: time }) => ({ run_at: instant(time) }), example: { run_at: 'now' } });
	},
	async 'many-move'(values, context) {
		const { items } = await get('api/queues');

		await many(context, 'Move', 'api/jobs/edit', labelled('To the queue', h('select', { name: 'queue' }, items.map((q) => h('option', {}, q.name)))), 'moved',
			// any change of the job's row needs the same privileges
			{ changes: ({ queue }) => ({ queue }), example: { max_attempts: 1 } });
	},
	async limiter({ name }, { data }) {
		const l = data.items.find((item) => item.type === 'limiter' && item.name === name) ?? {};
		const text = (setting, title, help) => labelled(title, h('input', { name: setting, value: String(l[setting] ?? ''), autocomplete: 'off' }), help);

		await confirmed(name ? `Limiter "${name}"` : 'Create a limiter', [
			name ? null : labelled('Name', h('input', { name: 'name', required: true, autocomplete: 'off' })),
			text('max_running', 'Running jobs at the same time', '0: no limit.'), text('rate', 'Rate', 'For example 100 per minute burst 20; none: no limit.'),
			text('throttle', 'Throttle', 'For example 10 failures in 5 minutes; none: never.'),
		].filter(Boolean), 'Save', false, ({ name: typed, ...values }) => ask('PUT', path('limiters', name ?? typed.trim()),
			JSON.stringify(Object.fromEntries(Object.entries(values).filter(([, value]) => value.trim() !== '')))), 'The limiter is saved.');
	},
	async 'delete-limiter'({ name }) {
		await confirmed(`Delete limiter "${name}"?`, 'A limiter that a queue or kind names cannot be deleted.', 'Delete', true,
			() => ask('DELETE', path('limiters', name)), `Limiter "${name}" is deleted.`);
	},
	async monitor({ name }, { data }) {
		const m = data.items.find((item) => item.name === name) ?? {};
		const text = (setting, title, help, attributes) => labelled(title, h('input', { name: setting, value: String(m[setting] ?? ''), autocomplete: 'off', ...attributes }), help);

		await confirmed(name ? `Monitor "${name}"` : 'Create a monitor', [
			name ? null : text('name', 'Name', undefined, { required: true }),
			labelled('Condition', h('select', { name: 'condition' }, conditionNames.map((condition) => h('option', { selected: condition === m.condition }, condition)))),
			text('above', 'Alert above', 'Times are in seconds.', { type: 'number', step: 'any', required: true }), text('until', 'Ends at', 'Empty: the same number.', { type: 'number', step: 'any' }),
			text('queue', 'Queue', 'Empty: all queues.'), text('kind', 'Kind', 'Empty: all kinds.'),
		].filter(Boolean), 'Save', false, ({ name: typed, condition, above, until, queue, kind }) => ask('PUT', path('monitors', name ?? typed.trim()),
			JSON.stringify({ condition, above: Number(above), ...(until !== '' && { until: Number(until) }), ...(queue && { queue }), ...(kind && { kind }) })), 'The monitor is saved.');
	},
	async 'delete-monitor'({ name }) {
		await confirmed(`Delete monitor "${name}"?`, 'An alert that goes on ends without a notification.', 'Delete', true,
			() => ask('DELETE', path('monitors', name)), `Monitor "${name}" is deleted.`);
	},
	async 'save-schedule'(values) {
		const { name, body } = newSchedule(document.querySelector('form.schedule'));
		const saved = values.name || name;

		await ask('PUT', path('schedules', saved), body);
		toast(`Schedule "${saved}" is saved.`);
		location.assign(`#/schedule/${encodeURIComponent(saved)}`);
	},
	async 'delete-schedule'({ name }) {
		await confirmed(`Delete schedule "${name}"?`, `Its jobs remain. ${FOR_EVER}`, 'Delete', true,
			() => ask('DELETE', path('schedules', name)), `Schedule "${name}" is deleted.`, () => location.assign('#/schedules'));
	},
	async enqueue() {
		const text = newJob(document.querySelector('form.job'));
		const { id } = parse(await ask('POST', 'api/jobs', text));

		toast(`Job ${id} is enqueued.`);
		location.assign(id === null ? '#/jobs' : `#/job/${id}`);
	},
	'end-edit'(values, context) {
		context.editing = undefined;
		context.draw();
	},
	period({ period }, context) {
		context.period = period;
		return context.load();
	},
	'select-all'(values, context) {
		const all = context.data.items.filter(mayRetry).map((job) => String(job.id));
		const every = all.every((id) => context.selected.has(id));

		context.selected = new Set(every ? [] : all);
		context.draw();
		for (const box of document.querySelectorAll('input[data-select]'))
			box.checked = !every;
	},
	'show-all'({ name }, context) {
		context.whole = (context.whole ?? new Set()).add(name);
		context.draw();
	},
	download({ name }, context) {
		const { text } = context.parts.get(name);
		const isJson = context.data.members?.[name] !== undefined;

		save(new Blob([text], { type: isJson ? 'application/json' : 'text/plain' }), `job-${context.id}-${name}.${isJson ? 'json' : 'txt'}`);
	},
	async export({ format }, context) {
		const { jobs, more, file } = await exported(context, format, (n) => note(`${count(n)} jobs are read …`));

		note('');
		save(file, `jobs.${format}`);
		toast(more ? `The first ${jobsText(jobs)} are exported. Filter the list to export the rest.` : `${jobsText(jobs)} exported.`);
	},
	'stop-search'(values, context) {
		context.stopped = true;
	},
	reload(values, context) {
		return context.load();
	},
};

// Run an action in a view.
let shown = null;

export function runAction(values, context) {
	shown = context;
	return actions[values.action]?.(values, context);
}

async function confirmed(title, body, yes, danger, act, done, then) {
	const result = await dialog(title, body, yes, { danger, act });

	if (result === undefined)
		return;
	toast(typeof done === 'function' ? done(result) : done);
	then?.(result);
	await shown.load();
}
