// The console: the session, the view, and the actions.

import { runAction } from './actions.js';
import { ask, get, Live, onLoggedOut, parse, post, session } from './api.js';
import { problemText, toast } from './dialog.js';
import { h, show, since } from './dom.js';
import { findEvent, orderChosen } from './find.js';
import { may } from './rights.js';
import { views } from './views.js';

const $ = (id) => document.getElementById(id);
// The menu, in groups: jobs, their places, and the operation.
const menu = [
	[['overview', 'Overview']],
	[['jobs', 'Jobs'], ['failures', 'Failures'], ['dead', 'Dead letters'], ['batches', 'Batches']],
	[['queues', 'Queues'], ['kinds', 'Kinds'], ['schedules', 'Schedules'], ['workers', 'Workers'], ['limits', 'Limits'], ['tenants', 'Tenants']],
	[['usage', 'Usage'], ['alerts', 'Alerts'], ['audit', 'Audit'], ['doctor', 'Health']],
];
const needsMonitor = ['tenants', 'usage', 'alerts', 'audit', 'doctor'];
let current = null;				// the view that is shown

// --- the page ------------------------------------------------------------

function route() {
	const [to, query] = location.hash.replace(/^#\/?/, '').split('?');
	const [name, ...rest] = to.split('/').map(decodeURIComponent);

	// a job without an id is none
	const lists = { job: 'jobs', batch: 'batches', queue: 'queues', worker: 'workers' };

	return { name: !views[name] ? 'overview' : lists[name] && !rest.join('') ? lists[name] : name, id: rest.join('/'), query: Object.fromEntries(new URLSearchParams(query ?? '')) };
}

function drawMenu() {
	const { name } = route();
	const at = { job: 'jobs', enqueue: 'jobs', batch: 'batches', queue: 'queues', schedule: 'schedules', worker: 'workers' }[name] ?? name;

	show($('menu'), menu.map((group) => h('span', {}, group.filter(([to]) => !needsMonitor.includes(to) || may('monitor'))
		.map(([to, title]) => h('a', { href: `#/${to}`, 'aria-current': at === to ? 'page' : null }, title)))));
	$('menu').querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
}

// The indicator: "live" on a page with a stream of changes, otherwise the time of the page's data.
function connection(context, how) {
	if (current !== context)
		return;
	if (how !== undefined)
		context.how = how;
	const [text, name] = context.problem?.status === 0 || context.how === 'lost' ? ['connection lost, retrying', 'live lost']
		: !context.loadedAt ? context.problem ? ['', ''] : ['connecting', 'live']
			: context.live && !context.problem ? context.how === 'on' ? ['live', 'live on'] : ['connecting', 'live']
				: [`as of ${context.loadedAt.toTimeString().slice(0, 8)}`, 'live still'];

	if ($('live').textContent !== text)
		$('live').textContent = text;
	$('live').className = name;
	// screen readers skip a time, which changes every few seconds
	$('live').setAttribute('aria-live', name === 'live still' ? 'off' : 'polite');
}

const EVERY = 5000;		// between two drawings, and two loads of a page without a stream
const REST = 10;		// pause after a slow load, as a multiple of its duration

// A view has title, load(context) and draw(context).  Optional members: stream(context) returns the topics
// to follow, or null; heard(context, topic, data) returns true to load again; stale(context) returns true to load
// after some time; renew(context) replaces load in this case; drawn(context, element) is called after drawing;
// missing(context) returns the text for an object that does not exist.
async function open() {
	const at = route();

	close();
	drawMenu();
	const view = views[at.name];
	const context = { ...at, view, data: {}, selected: new Set(), draw: () => draw(context), load: () => load(context) };

	current = context;
	// the address of the view, which follows the address of the page
	$('main').dataset.view = location.hash;
	document.title = [view.title(context), several() ? databases.current : '', 'jobq'].filter(Boolean).join(' · ');
	show($('main'), h('p', { class: 'loading', role: 'status' }, 'Loading …'));
	connection(context, '');
	await load(context);
	if (current === context)
		context.timer = setInterval(() => tick(context), EVERY);
}

// Draw again, because the distances of times from now change.  Load pages without a stream, unless
// the tab is hidden.
function tick(context) {
	if (document.hidden)
		return;
	if (!context.loading && context.view.stale?.(context) &&
		since(context.loadedSince) >= Math.max(EVERY * 0.9, REST * (context.took ?? 0)))
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
	const begun = performance.now();
	const at = new Date();

	context.loading = true;
	try {
		await how(context);
		context.problem = null;
		context.loadedAt = at;
		context.loadedSince = begun;
		context.took = since(begun);
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
		context.loadedAt = new Date();
		context.loadedSince = performance.now();
		connection(context);
		soon(context);
		return;
	}
	// once for all events of a moment
	context.again ??= setTimeout(() => {
		context.again = null;
		load(context);
	}, 300);
}

// Draw once for all events of a moment.
function soon(context) {
	context.soon ??= setTimeout(() => {
		context.soon = null;
		draw(context);
	}, 50);
}

// The browser reports a click only if press and release hit the same element.  The page therefore does not
// change while a button of the pointer is pressed.
let pressed = false;

function release() {
	// after the click
	setTimeout(() => {
		pressed = false;
		if ($('main').dataset.late !== undefined && current)
			draw(current);
	});
}

document.addEventListener('pointerdown', () => {
	pressed = true;
}, true);
for (const name of ['pointerup', 'pointercancel', 'blur'])
	// elements lose the focus, too
	window.addEventListener(name, (event) => (name !== 'blur' || event.target === window) && release(), true);
// the action of a click draws at once
window.addEventListener('click', () => {
	pressed = false;
}, true);
document.addEventListener('pointermove', (event) => pressed && event.buttons === 0 && release(), true);

function draw(context) {
	if (current !== context)
		return;
	if (pressed) {
		$('main').dataset.late = '';
		return;
	}
	delete $('main').dataset.late;
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

// --- events --------------------------------------------------------------------

// Run an action.  An error is shown as a message.
async function act(values) {
	try {
		await runAction(values, current);
	} catch (problem) {
		toast(problemText(problem), true);
	}
}

document.addEventListener('click', (event) => {
	// a menu closes after a choice, and after a click elsewhere
	for (const open of document.querySelectorAll('details.more[open]'))
		if (!open.contains(event.target) || event.target.closest('button'))
			open.open = false;
	if (event.target.closest('.skip')) {
		// the address names the view
		event.preventDefault();
		$('main').focus();
	}
	if (current && findEvent(current, event))
		return;
	const element = event.target.closest('[data-action]');

	if (element && current)
		act(element.dataset);
});
document.addEventListener('change', (event) => {
	const { target } = event;

	if (!current)
		return;
	if (target.dataset.select) {
		current.selected[target.checked ? 'add' : 'delete'](target.dataset.select);
		current.draw();
	}
	if (target.dataset.order !== undefined)
		orderChosen(current, target.value);
});
document.addEventListener('input', (event) => current && findEvent(current, event));
document.addEventListener('submit', (event) => {
	if (event.target.id === 'dialog-form')
		return;
	event.preventDefault();
	if (event.target.id === 'login')
		logIn(event.target);
});
document.addEventListener('keydown', (event) => {
	if (current && findEvent(current, event))
		return;
	const open = document.querySelector('details.more[open]');

	if (event.key === 'Escape' && open) {
		open.open = false;
		open.querySelector('summary').focus();
	}
	if (event.key === '/' && !event.target.closest('input, textarea, select')) {
		const field = document.getElementById('find');

		if (field) {
			event.preventDefault();
			field.focus();
		}
	}
});
// --- the database ------------------------------------------------------

// The databases of the server.  The path of the page names the database that is shown.
let databases = { root: '', current: '', items: [] };

const several = () => databases.items.length > 1;

// The choice of a database opens the same list there; a job or a batch is another one there.
function drawDatabases(select) {
	// not show(): an option that is moved changes the choice
	select.replaceChildren(...databases.items.map((d) => h('option', { value: d.path }, d.connected ? d.name : `${d.name} (not connected)`)));
	select.value = databases.items.find((d) => d.name === databases.current)?.path ?? '';
	select.onchange = () => location.assign(`${databases.root}${select.value}#/${menu.flat().some(([to]) => to === route().name) ? route().name : 'overview'}`);
}

async function loadDatabases() {
	try {
		databases = await get('api/databases');
	} catch {
		// the session says whether the server answers
	}
	$('databases').hidden = !several();
	drawDatabases($('databases'));
}

// --- the session ------------------------------------------------------

function logInForm(message) {
	const choice = several() ? h('select', { name: 'database' }) : null;

	close();
	$('bar').hidden = $('menu').hidden = true;
	session.role = null;
	document.title = 'Log in · jobq';
	show($('main'), h('form', { class: 'card login', id: 'login' },
		h('h1', {}, 'Log in to jobq'),
		message ? h('p', { class: 'bad-text', role: 'alert' }, message) : null,
		choice ? h('label', { 'data-key': 'database' }, 'Database', choice) : null,
		h('label', { 'data-key': 'role' }, 'Database role', h('input', { name: 'role', autocomplete: 'username', required: true, autocapitalize: 'none', spellcheck: 'false' })),
		h('label', { 'data-key': 'password' }, 'Password', h('input', { name: 'password', type: 'password', autocomplete: 'current-password' })),
		h('p', { class: 'buttons' }, h('button', { class: 'main' }, 'Log in'))));
	const [role, password] = $('main').querySelectorAll('input');

	if (choice)
		drawDatabases(choice);
	password.value = '';
	(role.value ? password : role).focus();
}

async function logIn(form) {
	const submit = form.querySelector('button');

	submit.disabled = true;
	try {
		const { role, password } = Object.fromEntries(new FormData(form));

		await post('api/session', { role, password });
		start();
	} catch (problem) {
		logInForm(problemText(problem));
	}
}

async function start() {
	await loadDatabases();
	try {
		Object.assign(session, await get('api/session'));
	} catch (problem) {
		if (problem.status === 401)
			logInForm();
		else {
			$('bar').hidden = !several();
			show($('main'), h('div', { class: 'banner bad', role: 'alert' }, problem.message, ' Retrying.'));
			setTimeout(start, 3000);
		}
		return;
	}
	$('bar').hidden = $('menu').hidden = false;
	$('where').textContent = [several() ? session.role : `${session.role}@${session.database ?? ''}`, session.read_only ? 'read only' : ''].filter(Boolean).join(' · ');
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
		const finding = document.activeElement?.id === 'find';

		open().then(() => finding && $('find')?.focus());
		$('main').focus({ preventScroll: true });
		window.scrollTo(0, 0);
	}
});
window.addEventListener('error', (event) => toast(event.message, true));
window.addEventListener('unhandledrejection', (event) => toast(event.reason?.message ?? String(event.reason), true));
start();
