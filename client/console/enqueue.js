// The view that enqueues a job: a new job, or a copy of a job.

import { ask, get, memberText, parse, path, pretty } from './api.js';
import { labelled } from './dialog.js';
import { button, h, instant } from './dom.js';
import { empty, kB, MOST_EDITED } from './parts.js';
import { changes } from './rights.js';

const input = (name, attributes) => h('input', { name, autocomplete: 'off', spellcheck: 'false', ...attributes });

function draw(c) {
	if (!changes())
		return [h('h1', {}, 'Enqueue a job'), empty('This server only shows jobs.')];
	return [
		h('h1', {}, c.query.like ? `A copy of job ${c.query.like}` : 'Enqueue a job'),
		h('form', { class: 'card job' },
			h('div', { class: 'fields' },
				labelled('Kind', [input('kind', { required: true, list: 'kinds' }), h('datalist', { id: 'kinds' }, c.data.kinds.map((k) => h('option', { value: k })))]),
				labelled('Queue', [input('queue', { list: 'queues', placeholder: 'as for the kind' }), h('datalist', { id: 'queues' }, c.data.queues.map((q) => h('option', { value: q })))]),
				labelled('Scheduled for', input('run_at', { type: 'datetime-local', step: 1 })), labelled('Priority', input('priority', { type: 'number', step: 1, placeholder: '0' })),
				labelled('Attempts', input('max_attempts', { type: 'number', min: 0, placeholder: 'as for the kind' })), labelled('Unique key', input('unique_key')),
				labelled('Group', input('group_key')), labelled('Tags', input('tags', { placeholder: 'separated by commas' }))),
			labelled('Payload', h('textarea', { name: 'payload', spellcheck: 'false' }, '{}')),
			h('p', { class: 'faint', role: 'status' }, c.example ?? 'Choose a kind: the payload of its last job is the example.'),
			labelled('Headers', h('textarea', { name: 'headers', class: 'small', spellcheck: 'false' })),
			h('p', { class: 'buttons' }, button('Enqueue', 'enqueue', {}, { class: 'main' }), h('a', { class: 'button', href: '#/jobs' }, 'Back'))),
	];
}

function json(text, title) {
	try {
		JSON.parse(text);
		return text;
	} catch (error) {
		throw new Error(`${title} is not valid JSON: ${error.message}`);
	}
}

// The body of the request for the job in this form.  The payload is sent as typed: JavaScript cannot
// hold all numbers.
export function newJob(form) {
	const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value !== ''));
	const { kind, payload, headers, tags, run_at: time, priority, max_attempts: attempts, ...texts } = values;

	if (!kind)
		throw new Error('The kind is missing.');
	const members = {
		kind, ...texts, ...time && { run_at: instant(time) }, ...priority && { priority: Number(priority) }, ...attempts && { max_attempts: Number(attempts) },
		...tags && { tags: tags.split(',').map((tag) => tag.trim()).filter(Boolean) },
	};

	return `{"payload": ${json(payload ?? '{}', 'The payload')}, ${headers ? `"headers": ${json(headers, 'Headers')}, ` : ''}${JSON.stringify(members).slice(1)}`;
}

const set = (name, value) => Object.assign(document.querySelector(`form.job [name="${name}"]`), { value: value ?? '' });

// Put the payload of a job into the form.  Returns a text if the payload is too long.
function setPayload(text) {
	set('payload', text.length > MOST_EDITED ? '' : pretty(text));
	return text.length > MOST_EDITED ? `The payload of the job has ${kB(text)}, too much for a form.` : null;
}

// Put the payload of the last job of the kind into the form.
async function fill(c, kind) {
	const text = await ask('GET', path('kinds', kind)).catch(() => '{}');

	// another view may be open by now
	if (c.closed)
		return;
	const payload = memberText(memberText(text, 'last') ?? '{}', 'payload');
	const { last } = parse(text);

	c.example = `There is no job of the kind "${kind}" among the newest jobs: there is no example.`;
	if (last && payload && payload !== 'null')
		c.example = setPayload(payload) ?? `The payload is that of the last job, ${last.id}.`;
	c.draw();
}

async function copy(c) {
	const text = await ask('GET', path('jobs', c.query.like));

	if (c.closed)
		return;
	const job = parse(text);

	for (const name of ['kind', 'queue', 'priority', 'max_attempts', 'group_key'])
		set(name, job[name]);
	set('tags', (job.tags ?? []).join(', '));
	set('headers', job.headers ? pretty(memberText(text, 'headers')) : '');
	c.example = [setPayload(memberText(text, 'payload') ?? '{}'), job.unique_key && 'The unique key is not copied.'].filter(Boolean).join(' ') || ' ';
	c.draw();
}

export const enqueue = {
	title: () => 'Enqueue a job',
	async load(c) {
		const items = (to) => get(to).then((answer) => answer.items).catch(() => []);
		const [queues, kinds, failures] = await Promise.all([items('api/queues'), items('api/kinds'), items('api/failures')]);

		c.data = { queues: queues.map((q) => q.name), kinds: [...new Set([...kinds.map((k) => k.kind), ...failures.flatMap((f) => f.kinds)])].sort() };
		c.loaded = true;
	},
	draw,
	drawn(c) {
		if (c.filled || !document.querySelector('form.job'))
			return;
		c.filled = true;
		document.querySelector('form.job [name=kind]').addEventListener('change', (event) => fill(c, event.target.value));
		if (c.query.like)
			copy(c).catch((problem) => {
				c.example = problem.message;
				c.draw();
			});
		else if (c.query.kind) {
			set('kind', c.query.kind);
			fill(c, c.query.kind);
		}
	},
};
