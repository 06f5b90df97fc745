// The console: the session, the view, and the actions.

import { ask, get, Live, onLoggedOut, parse, path, post, pretty, session, withQuery } from './api.js';
import { about, count, date, h, show } from './dom.js';
import { may, mayRetry } from './rights.js';
import { views } from './views.js';

const $ = (id) => document.getElementById(id);
const menu = [
	['overview', 'Overview'], ['queues', 'Queues'], ['jobs', 'Jobs'], ['failures', 'Failures'], ['dead', 'Dead letters'], ['batches', 'Batches'],
	['schedules', 'Schedules'], ['workers', 'Workers'], ['kinds', 'Kinds'], ['doctor', 'Health'],
];
let current = null;				// the view that is shown
let resolve = null;				// of the dialog

// --- the page ------------------------------------------------------------

function route() {
	const [to, query] = location.hash.replace(/^#\/?/, '').split('?');
	const [name, ...rest] = to.split('/').map(decodeURIComponent);

	// a job without an id is none
	const lists = { job: 'jobs', batch: 'batches' };

	return { name: !views[name] ? 'overview' : lists[name] && !rest.join('') ? lists[name] : name, id: rest.join('/'), query: Object.fromEntries(new URLSearchParams(query ?? '')) };
}

function drawMenu() {
	const { name } = route();
	const at = name === 'job' ? 'jobs' : name === 'batch' ? 'batches' : name;

	show($('menu'), menu.filter(([to]) => to !== 'doctor' || may('monitor')).map(([to, title]) => h('a', { href: `#/${to}`, 'aria-current': at === to ? 'page' : null }, title)));
	$('menu').querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
}

// The indicator: a page that follows the server is live.  Any other page shows the time of its data.
function connection(context, how) {
	if (current !== context)
		return;
	if (how !== undefined)
		context.how = how;
	const [text, name] = context.problem?.status === 0 || context.how === 'lost' ? ['connection lost, retrying', 'live lost']
		: !context.loadedAt ? context.problem ? ['', ''] : ['connecting', 'live']
			: context.live && !context.problem ? context.how === 'on' ? ['live', 'live on'] : ['connecting', 'live']
				: [`as of ${new Date(context.loadedAt).toTimeString().slice(0, 8)}`, 'live still'];

	if ($('live').textContent !== text)
		$('live').textContent = text;
	$('live').className = name;
	// a time that changes every few seconds is not read aloud
	$('live').setAttribute('aria-live', name === 'live still' ? 'off' : 'polite');
}

const EVERY = 5000;		// between two drawings, and two loads of a page that is not live
const REST = 10;		// pause after a slow load, as a multiple of its duration

// A view has: title, load(context), draw(context), and may have: stream(context), what to follow
// if the page can be followed at the moment; heard(context, topic, data), which returns whether to
// load again; stale(context), whether to load after some time; renew(context) instead of load then;
// drawn(context, element), called after drawing; missing(context), the text if there is no such thing.
async function open() {
	const at = route();

	close();
	drawMenu();
	const view = views[at.name];
	const context = { ...at, view, data: {}, selected: new Set(), draw: () => draw(context), load: () => load(context) };

	current = context;
	document.title = `${view.title(context)} · jobq`;
	show($('main'), h('p', { class: 'loading', role: 'status' }, 'Loading …'));
	connection(context, '');
	await load(context);
	if (current === context)
		context.timer = setInterval(() => tick(context), EVERY);
}

// Draw again, because the distances of times from now change.  Load pages that are not live, unless
// the tab is hidden.
function tick(context) {
	if (document.hidden)
		return;
	if (!context.loading && context.view.stale?.(context) &&
		Date.now() - (context.loadedAt ?? 0) >= Math.max(EVERY * 0.9, REST * (context.took ?? 0)))
		load(context, context.view.renew);
	else
		draw(context);
}

// Follow the server if the page can be followed now.
function follow(context) {
	const stream = current === context ? context.view.stream?.(context) : null;

	if (!stream) {
		context.live?.close();
		context.live = null;
	} else
		context.live ??= new Live(stream.path, [...stream.events, 'problem'], (name, data) => heard(context, name, data), (how) => connection(context, how));
	connection(context);
}

function close() {
	current?.live?.close();
	if (current)
		current.closed = true;
	clearInterval(current?.timer);
	clearTimeout(current?.again);
	clearTimeout(current?.soon);
	current = null;
}

async function load(context, how = context.view.load) {
	const begun = Date.now();

	context.loading = true;
	try {
		await how(context);
		context.problem = null;
		context.loadedAt = begun;
		context.took = Date.now() - begun;
	} catch (problem) {
		context.problem = problem;
	} finally {
		context.loading = false;
	}
	draw(context);
	follow(context);
}

function heard(context, name, data) {
	if (current !== context)
		return;
	const value = parse(data);

	if (name === 'problem') {
		context.problem = Object.assign(new Error(value.detail ?? value.title), { hint: value.hint });
		soon(context);
		connection(context);
		return;
	}
	if (name === 'end' || name === 'gone') {
		context.live?.close();
		context.live = null;
	}
	if (!context.view.heard(context, name, value)) {
		context.problem = null;
		context.loadedAt = Date.now();
		connection(context);
		soon(context);
		return;
	}
	// once for all that comes within a moment
	context.again ??= setTimeout(() => {
		context.again = null;
		load(context);
	}, 300);
}

// Draw once for all events that come within a moment.
function soon(context) {
	context.soon ??= setTimeout(() => {
		context.soon = null;
		draw(context);
	}, 50);
}

function draw(context) {
	if (current !== context)
		return;
	const missing = context.problem?.status === 404 && context.view.missing?.(context);
	const problem = context.problem ? [
		context.loaded ? null : h('h1', {}, context.view.title(context)),
		h('div', { class: 'banner bad', role: 'alert' }, h('b', {}, missing || context.problem.message), !missing && context.problem.hint ? [' ', context.problem.hint] : null),
	] : null;

	let drawn = null;

	try {
		drawn = context.problem && !context.loaded ? null : context.view.draw(context);
	} catch (error) {
		console.error(error);
		drawn = h('div', { class: 'banner bad', role: 'alert' }, h('b', {}, 'This view cannot be shown'), ` ${error.message}`);
	}
	show($('main'), problem, drawn);
	context.view.drawn?.(context, $('main'));
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

// --- actions -----------------------------------------------------------------

const jobsText = (n) => n === 1 ? '1 job' : `${count(n)} jobs`;
const lettersText = (n) => n === '1' ? '1 dead letter' : `${n} dead letters`;
const AGAIN = 'The attempts are counted from the start.';
const FOR_EVER = 'This cannot be undone.';

// The number of dead letters that match, as a text.  The count has a limit.
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

// The conditions on dead letters among these values, and what they select, as a text.
const likeOf = ({ queue, kind, tenant, fingerprint }) => Object.fromEntries(Object.entries({ queue, kind, tenant, fingerprint }).filter(([, value]) => value));
const lettersLike = async (like) => {
	const { fingerprint, ...others } = like;
	const which = Object.entries(others).map(([name, value]) => `of ${name} "${value}"`).join(' and ');

	return [lettersText(await countLetters(like)), which, fingerprint ? 'with this error' : ''].filter(Boolean).join(' ');
};

// The server requires a condition, also for all.
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
		const like = likeOf(values.fingerprint ? values : query);

		await confirmed(`Retry ${await lettersLike(like)}?`, AGAIN, 'Retry all', false,
			() => post('api/dead/retry', orAll(like)), ({ count: n }) => `${jobsText(n)} will run again.`);
	},
	async 'delete-all'(values) {
		const like = likeOf(values);

		await confirmed(`Delete ${await lettersLike(like)}?`, FOR_EVER, 'Delete all', true,
			() => post('api/dead/delete', like), ({ count: n }) => `${lettersText(count(n))} deleted.`);
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
		await confirmed(`Retry ${lettersText(count(b.dead))} of batch ${id}?`, AGAIN, 'Retry', false,
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
		// the text as typed: JavaScript cannot hold all numbers
		await confirmed(`Retry job ${id} with this payload?`, AGAIN, 'Save and retry', false,
			() => ask('POST', path('jobs', id, 'retry'), `{"payload": ${text}}`), `Job ${id} will run again.`, () => {
				context.editing = undefined;
			});
	},
	'begin-edit'(values, context) {
		context.editing = pretty(context.data.members.payload ?? '{}');
		context.draw();
		document.getElementById('payload').focus();
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
		const link = h('a', {
			href: URL.createObjectURL(new Blob([text], { type: isJson ? 'application/json' : 'text/plain' })),
			download: `job-${context.id}-${name}.${isJson ? 'json' : 'txt'}`,
		});

		link.click();
		setTimeout(() => URL.revokeObjectURL(link.href), 60000);
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
	// a menu closes after a choice, and when something else is clicked
	for (const open of document.querySelectorAll('details.more[open]'))
		if (!open.contains(event.target) || event.target.closest('button'))
			open.open = false;
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
	const open = document.querySelector('details.more[open]');

	if (event.key === 'Escape' && open) {
		open.open = false;
		open.querySelector('summary').focus();
	}
	if (event.key === '/' && !event.target.closest('input, textarea, select')) {
		const field = document.querySelector('#go-id, form.filters input');

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

// --- the session ------------------------------------------------------

function logInForm(message) {
	close();
	$('bar').hidden = $('menu').hidden = true;
	session.role = null;
	document.title = 'Log in · jobq';
	show($('main'), h('form', { class: 'card login', id: 'login' },
		h('h1', {}, 'Log in to jobq'),
		message ? h('p', { class: 'bad-text', role: 'alert' }, message) : null,
		h('label', { 'data-key': 'role' }, 'Database role', h('input', { name: 'role', autocomplete: 'username', required: true, autocapitalize: 'none', spellcheck: 'false' })),
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
			show($('main'), h('div', { class: 'banner bad', role: 'alert' }, problem.message, ' Retrying.'));
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
		// the session is over on this page in any case
	}
	logInForm();
});

const themes = ['', 'light', 'dark'];

function theme(name) {
	if (name)
		document.documentElement.dataset.theme = name;
	else
		delete document.documentElement.dataset.theme;
	$('theme').textContent = { '': 'Theme: system', light: 'Theme: light', dark: 'Theme: dark' }[name];
	$('theme').setAttribute('aria-label', `Theme: ${name || 'system'}`);
	try {
		localStorage.setItem('theme', name);
	} catch {
		// the choice is not kept
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
document.addEventListener('visibilitychange', () => current && tick(current));
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
