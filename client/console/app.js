// The console: who is logged in, which view is shown, what is done.

import { ask, get, Live, onLoggedOut, parse, path, post, session, withQuery } from './api.js';
import { about, count, date, h, show } from './dom.js';
import { views } from './views.js';

const $ = (id) => document.getElementById(id);
const menu = [
	['overview', 'Overview'], ['queues', 'Queues'], ['jobs', 'Jobs'], ['dead', 'Dead letters'], ['batches', 'Batches'],
	['schedules', 'Schedules'], ['workers', 'Workers'], ['kinds', 'Kinds'], ['doctor', 'Health'],
];
let current = null;				// the view that is shown
let resolve = null;				// of the dialog

// --- the page ------------------------------------------------------------

function route() {
	const [to, query] = location.hash.replace(/^#\/?/, '').split('?');
	const [name, ...rest] = to.split('/').map(decodeURIComponent);

	return { name: views[name] ? name : 'overview', id: rest.join('/'), query: Object.fromEntries(new URLSearchParams(query ?? '')) };
}

function drawMenu() {
	const { name } = route();
	const at = name === 'job' ? 'jobs' : name === 'batch' ? 'batches' : name;

	show($('menu'), menu.map(([to, title]) => h('a', { href: `#/${to}`, 'aria-current': at === to ? 'page' : null }, title)));
	$('menu').querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
}

function connection(how) {
	const [text, name] = how === 'still' ? ['', ''] : how === 'on' ? ['live', 'live on'] : how === 'lost' ? ['connection lost, trying again', 'live lost'] : ['connecting', 'live'];

	if ($('live').textContent !== text)
		$('live').textContent = text;
	$('live').className = name;
}

// A view has: title, topics, load(context) which gets what it shows, draw(context),
// heard(context, topic, data), which says whether to load again, and stale(context), which
// says so when some time has gone by.
async function open() {
	const at = route();

	close();
	drawMenu();
	const view = views[at.name];
	const context = { ...at, view, data: {}, selected: new Set(), draw: () => draw(context), load: () => load(context) };

	current = context;
	document.title = `${view.title(context)} · jobq`;
	show($('main'), h('p', { class: 'loading', role: 'status' }, 'Loading …'));
	connection('');
	await load(context);
	if (current !== context)
		return;
	const stream = view.stream?.(context);

	if (stream)
		context.live = new Live(stream.path, [...stream.events, 'problem'], (name, data) => heard(context, name, data), (how) => {
			if (current === context)
				connection(how);
		});
	else
		connection('still');
	// times go on, and so do charts though nothing happens
	context.timer = setInterval(() => context.view.stale?.(context) ? load(context) : draw(context), 5000);
}

function close() {
	current?.live?.close();
	if (current)
		current.closed = true;
	clearInterval(current?.timer);
	clearTimeout(current?.again);
	current = null;
}

async function load(context) {
	try {
		await context.view.load(context);
		context.problem = null;
	} catch (problem) {
		context.problem = problem;
	}
	draw(context);
}

function heard(context, name, data) {
	if (current !== context)
		return;
	const value = parse(data);

	if (name === 'problem') {
		context.problem = Object.assign(new Error(value.detail ?? value.title), { hint: value.hint });
		draw(context);
		return;
	}
	if (!context.view.heard(context, name, value)) {
		context.problem = null;
		draw(context);
		return;
	}
	// once for all that comes within a moment
	context.again ??= setTimeout(() => {
		context.again = null;
		load(context);
	}, 300);
}

function draw(context) {
	if (current !== context)
		return;
	const problem = context.problem
		? h('div', { class: 'banner bad', role: 'alert' }, h('b', {}, context.problem.message), context.problem.hint ? [' ', context.problem.hint] : null)
		: null;

	let drawn = null;

	try {
		drawn = context.problem && !context.loaded ? null : context.view.draw(context);
	} catch (error) {
		console.error(error);
		drawn = h('div', { class: 'banner bad', role: 'alert' }, h('b', {}, 'This view cannot be shown'), ` ${error.message}`);
	}
	show($('main'), problem, drawn);
}

// --- messages and questions ----------------------------------------------

function toast(text, bad) {
	const box = h('div', { class: bad ? 'toast bad' : 'toast', role: bad ? 'alert' : null }, text);

	$('toasts').append(box);
	setTimeout(() => box.remove(), bad ? 12000 : 5000);
}

export function confirm(title, body, yes, danger) {
	$('dialog-title').textContent = title;
	show($('dialog-body'), h('p', {}, body));
	$('dialog-yes').textContent = yes;
	$('dialog-yes').className = danger ? 'main danger' : 'main';
	$('dialog').returnValue = 'no';
	$('dialog').showModal();
	return new Promise((done) => {
		resolve = done;
	});
}

// --- what is done ----------------------------------------------------------

const ids = (n) => n === 1 ? '1 job' : `${n} jobs`;
const letters = (n) => n === '1' ? '1 dead letter' : `${n} dead letters`;

// How many dead letters are like that, as a text; there is an end to counting.
async function countLetters(like) {
	const most = 1000;
	let n = 0;
	let before;

	do {
		const page = await get(withQuery('api/dead', { ...like, before, limit: 200 }));

		n += page.items.length;
		before = page.next;
	} while (before !== null && n < most);
	return before === null ? count(n) : `${count(most)} or more`;
}
const actions = {
	async pause({ name }) {
		await confirmed(`Pause queue "${name}"?`, 'No more of its jobs start until it is resumed. Those that run go on.', 'Pause', false,
			() => post(path('queues', name, 'pause')), `Queue "${name}" is paused.`);
	},
	async resume({ name }) {
		await confirmed(`Resume queue "${name}"?`, 'Its jobs start again.', 'Resume', false,
			() => post(path('queues', name, 'resume')), `Queue "${name}" is resumed.`);
	},
	async 'cancel-waiting'({ name }, { data }) {
		const q = data.items.find((queue) => queue.name === name) ?? {};

		await confirmed(`Cancel all jobs of queue "${name}" that wait?`,
			`They are ${about((q.ready ?? 0) + (q.scheduled ?? 0) + (q.blocked ?? 0), q.exact)}. Those that run go on. This cannot be undone.`, 'Cancel them', true,
			() => post(path('queues', name, 'cancel')), ({ count: n }) => `${ids(n)} of queue "${name}" cancelled.`);
	},
	async cancel({ id }) {
		await confirmed(`Cancel job ${id}?`, 'If it runs, its worker is asked to stop. This cannot be undone.', 'Cancel the job', true,
			() => ask('DELETE', path('jobs', id)), `Job ${id} is cancelled, or is asked to stop.`);
	},
	async retry({ id }) {
		await confirmed(`Run job ${id} again?`, 'It has all its attempts again.', 'Run again', false,
			() => post(path('jobs', id, 'retry')), `Job ${id} runs again.`, open);
	},
	async delete({ id }) {
		await confirmed(`Delete job ${id}?`, 'The dead letter is deleted. This cannot be undone.', 'Delete', true,
			() => post('api/jobs/delete', { ids: [id] }), `Job ${id} is deleted.`, () => location.assign('#/dead'));
	},
	async 'retry-selected'(values, context) {
		const list = [...context.selected];

		await confirmed(`Run ${ids(list.length)} again?`, 'Each has all its attempts again.', 'Run again', false,
			() => post('api/jobs/retry', { ids: list }), `${ids(list.length)} run again.`, () => context.selected.clear());
	},
	async 'delete-selected'(values, context) {
		const list = [...context.selected];

		await confirmed(`Delete ${ids(list.length)}?`, 'The dead letters are deleted. This cannot be undone.', 'Delete', true,
			() => post('api/jobs/delete', { ids: list }), `${ids(list.length)} deleted.`, () => context.selected.clear());
	},
	async 'retry-all'(values, { query: { queue, kind, tenant } }) {
		const like = { ...(queue && { queue }), ...(kind && { kind }), ...(tenant && { tenant }) };
		const which = Object.entries(like).map(([name, value]) => ` of ${name} "${value}"`).join(' and');

		// to mean all takes a condition, too
		await confirmed(`Run ${letters(await countLetters(like))}${which} again?`, 'Each has all its attempts again.', 'Run all again', false,
			() => post('api/dead/retry', which ? like : { older_than: '0' }), ({ count: n }) => `${ids(n)} run again.`);
	},
	async 'pause-schedule'({ name }) {
		await confirmed(`Pause schedule "${name}"?`, 'Ticks of the pause are not made up for.', 'Pause', false,
			() => post(path('schedules', name, 'pause')), `Schedule "${name}" is paused.`);
	},
	async 'resume-schedule'({ name }) {
		await confirmed(`Resume schedule "${name}"?`, 'It goes on with its next tick.', 'Resume', false,
			() => post(path('schedules', name, 'resume')), `Schedule "${name}" is resumed.`);
	},
	async 'run-schedule'({ name }) {
		await confirmed(`Run schedule "${name}" now?`, 'One job more; its ticks stay as they are.', 'Run now', false,
			() => post(path('schedules', name, 'run')), ({ id }) => `Job ${id} is enqueued.`);
	},
	async 'cancel-batch'({ id }, { data: b }) {
		await confirmed(`Cancel what is left of batch ${id}?`,
			`${count((b.waiting ?? 0) + (b.blocked ?? 0) + (b.running ?? 0))} of its ${ids(count(b.total))} have not ended. This cannot be undone.`, 'Cancel the batch', true,
			() => post(path('batches', id, 'cancel')), `Batch ${id} is cancelled.`);
	},
	async 'retry-batch'({ id }, { data: b }) {
		await confirmed(`Run ${letters(count(b.dead))} of batch ${id} again?`, 'Each has all its attempts again.', 'Run again', false,
			() => post(path('batches', id, 'retry')), ({ count: n }) => `${ids(n)} run again.`);
	},
	async mend({ id }) {
		const text = document.getElementById('payload').value;

		try {
			JSON.parse(text);
		} catch (error) {
			toast(`The payload is not valid JSON: ${error.message}`, true);
			document.getElementById('payload').focus();
			return;
		}
		// as it was typed: JavaScript cannot hold all numbers; then it is followed anew
		await confirmed(`Run job ${id} again with this payload?`, 'It has all its attempts again.', 'Mend and run', false,
			() => ask('POST', path('jobs', id, 'retry'), `{"payload": ${text}}`), `Job ${id} runs again.`, open);
	},
	'begin-mend'(values, context) {
		context.mending = true;
		context.draw();
		document.getElementById('payload').focus();
	},
	'end-mend'(values, context) {
		context.mending = false;
		context.draw();
	},
	period({ period }, context) {
		context.period = period;
		return context.load();
	},
	'select-all'(values, context) {
		const all = context.data.items.map((job) => String(job.id));
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
	'stop-search'(values, context) {
		context.stopped = true;
	},
	reload(values, context) {
		return context.load();
	},
};

async function confirmed(title, body, yes, danger, act, done, then) {
	const context = current;

	if (!await confirm(title, body, yes, danger))
		return;
	try {
		const result = await act();

		toast(typeof done === 'function' ? done(result) : done);
		then?.();
		await context?.load();
	} catch (problem) {
		toast([problem.message, problem.hint].filter(Boolean).join(' '), true);
	}
}

document.addEventListener('click', (event) => {
	if (event.target.closest('.skip')) {
		// the address names the view
		event.preventDefault();
		$('main').focus();
	}
	const element = event.target.closest('[data-action]');

	if (element && current)
		actions[element.dataset.action]?.(element.dataset, current);
});
document.addEventListener('change', (event) => {
	const { target } = event;

	if (!current)
		return;
	if (target.dataset.select) {
		current.selected[target.checked ? 'add' : 'delete'](target.dataset.select);
		current.draw();
	}
	const filters = target.closest('form.filters');

	if (filters) {
		const values = Object.fromEntries(new FormData(filters));

		for (const name of ['from', 'until'])
			if (values[name])
				values[name] = date(values[name])?.toISOString() ?? values[name];
		location.assign(withQuery(`#/${current.name}`, values));
	}
});
document.addEventListener('submit', (event) => {
	if (event.target.id === 'dialog-form')
		return;
	event.preventDefault();
	if (event.target.id === 'login')
		logIn(event.target);
	const number = new FormData(event.target).get('number')?.trim();

	if (event.target.id === 'go' && number)
		location.assign(`#/job/${encodeURIComponent(number)}`);
});
document.addEventListener('keydown', (event) => {
	if (event.key === '/' && !event.target.closest('input, textarea, select')) {
		const field = document.querySelector('form.filters input');

		if (field) {
			event.preventDefault();
			field.focus();
		}
	}
});
$('dialog').addEventListener('close', () => {
	resolve?.($('dialog').returnValue === 'yes');
	resolve = null;
});

// --- who is logged in ------------------------------------------------------

function logInForm(message) {
	close();
	$('bar').hidden = $('menu').hidden = true;
	session.role = null;
	document.title = 'Log in · jobq';
	show($('main'), h('form', { class: 'card login', id: 'login' },
		h('h1', {}, 'Log in to jobq'),
		message ? h('p', { class: 'bad-text', role: 'alert' }, message) : null,
		h('label', { 'data-key': 'role' }, 'Role of the database', h('input', { name: 'role', autocomplete: 'username', required: true, autocapitalize: 'none', spellcheck: 'false' })),
		h('label', { 'data-key': 'password' }, 'Password', h('input', { name: 'password', type: 'password', autocomplete: 'current-password' })),
		h('p', { class: 'buttons' }, h('button', { class: 'main' }, 'Log in'))));
	const [role, password] = $('main').querySelectorAll('input');

	password.value = '';
	(role.value ? password : role).focus();
}

async function logIn(form) {
	const submit = form.querySelector('button');

	submit.disabled = true;
	try {
		await post('api/session', Object.fromEntries(new FormData(form)));
		start();
	} catch (problem) {
		logInForm([problem.message, problem.hint].filter(Boolean).join(' '));
	}
}

async function start() {
	try {
		Object.assign(session, await get('api/session'));
	} catch (problem) {
		if (problem.status === 401)
			logInForm();
		else {
			show($('main'), h('div', { class: 'banner bad', role: 'alert' }, problem.message, ' It is tried again.'));
			setTimeout(start, 3000);
		}
		return;
	}
	$('bar').hidden = $('menu').hidden = false;
	$('where').textContent = [`${session.role}@${session.database ?? ''}`, session.read_only ? 'read only' : ''].filter(Boolean).join(' · ');
	open();
}

$('logout').addEventListener('click', async () => {
	try {
		await ask('DELETE', 'api/session');
	} catch {
		// it is over in any case
	}
	logInForm();
});

const themes = ['', 'light', 'dark'];

function theme(name) {
	if (name)
		document.documentElement.dataset.theme = name;
	else
		delete document.documentElement.dataset.theme;
	$('theme').textContent = { '': 'Auto', light: 'Light', dark: 'Dark' }[name];
	$('theme').setAttribute('aria-label', `Colours: ${name || 'as the system'}`);
	try {
		localStorage.setItem('theme', name);
	} catch {
		// it is not kept, then
	}
}
$('theme').addEventListener('click', () => {
	const at = themes.indexOf(document.documentElement.dataset.theme ?? '');

	theme(themes[(at + 1) % themes.length]);
});
let kept = '';

try {
	kept = localStorage.getItem('theme') ?? '';
} catch {
	// nothing is kept
}
theme(themes.includes(kept) ? kept : '');

onLoggedOut(() => {
	if (session.role)
		logInForm('The session has ended.');
});
window.addEventListener('hashchange', () => {
	if (session.role) {
		open();
		$('main').focus({ preventScroll: true });
		window.scrollTo(0, 0);
	}
});
window.addEventListener('error', (event) => toast(event.message, true));
window.addEventListener('unhandledrejection', (event) => toast(event.reason?.message ?? String(event.reason), true));
start();
