// Requests to the server, and its streams of events.

export const session = { role: null, privileges: [], roles: [] };

export class Problem extends Error {
	constructor(problem, status) {
		super(problem.detail ?? problem.title ?? `status ${status}`);
		this.hint = problem.hint;
		this.status = status;
		this.sqlstate = problem.sqlstate;
	}
}

// The tokens of JSON; the text may end within a string.  A string of any length takes no
// stack.
const string = String.raw`"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?$)`;
const numbers = new RegExp(`${string}|-?\\d[\\d.eE+-]*`, 'g');
const tokens = new RegExp(`${string}|[{}[\\],:]|[^\\s{}[\\],:"]+`, 'g');

const digits = (text) => text.replace(/e.*$/i, '').replace(/[-.]/g, '').replace(/^0+|0+$/g, '');

// True if a number of JavaScript has all digits of the text.
const fits = (text) => /^-?\d+$/.test(text) ? Number.isSafeInteger(Number(text)) : digits(String(Number(text))) === digits(text);

// The value of JSON from the server.  Numbers that JavaScript would round, such as ids beyond 2^53, become
// texts with all digits.  The server accepts these texts as numbers.
export function parse(json) {
	return JSON.parse(/[\d.]{16}/.test(json)
		? json.replace(numbers, (token) => token[0] === '"' || fits(token) ? token : `"${token}"`)
		: json);
}

// JSON for the server with all its digits.
export class Verbatim {
	constructor(json) {
		this.json = json;
	}
}

// The JSON of a value, in which a Verbatim is unchanged.
export function write(value) {
	const texts = [];

	return JSON.stringify(value, (key, inner) => inner instanceof Verbatim ? `\0${texts.push(inner.json) - 1}` : inner)
		.replace(/"\\u0000(\d+)"/g, (all, n) => texts[n] ?? all);
}

let loggedOut = () => {};

export function onLoggedOut(f) {
	loggedOut = f;
}

// The text of the answer; answered(answer) can read its headers.  A problem, or no answer, raises an
// error.
export async function ask(method, path, body, answered) {
	const headers = {};

	if (method !== 'GET' && session.csrf)
		headers['X-CSRF-Token'] = session.csrf;
	if (body !== undefined)
		headers['Content-Type'] = 'application/json';
	let answer;

	try {
		answer = await fetch(path, { method, headers, body, credentials: 'same-origin', cache: 'no-store' });
	} catch {
		throw new Problem({ title: 'The server of the console does not answer.' }, 0);
	}
	const text = await answer.text();

	if (answer.ok) {
		answered?.(answer);
		return text;
	}
	let problem = {};

	try {
		problem = parse(text);
	} catch {
		// an answer of something between us and the server
	}
	if (answer.status === 401 && path !== 'api/session')
		loggedOut();
	throw new Problem(problem, answer.status);
}

export const get = async (path) => parse(await ask('GET', path));
export const post = async (path, value) => {
	const text = await ask('POST', path, value === undefined ? undefined : write(value));

	return text === '' ? null : parse(text);
};

export const path = (...parts) => ['api', ...parts.map(encodeURIComponent)].join('/');

export function withQuery(to, values) {
	const query = new URLSearchParams(Object.entries(values).filter(([, v]) => v !== '' && v !== null && v !== undefined));

	return query.size > 0 ? `${to}?${query}` : to;
}

const wholeString = new RegExp(String.raw`"[^"\\]*(?:\\.[^"\\]*)*"`, 'y');

// The texts of these members of a JSON object, as sent by the server: numbers that JavaScript cannot hold keep
// their digits.  "rest" is the object without these members, which may be large.
export function cut(json, names) {
	const texts = {};
	const rest = [];
	let at = json.indexOf('{') + 1;
	const space = () => {
		while (/\s/.test(json[at] ?? ''))
			at++;
	};
	const string = () => {
		const from = at;

		wholeString.lastIndex = at;
		at = wholeString.test(json) ? wholeString.lastIndex : json.length;
		return json.slice(from, at);
	};
	const value = () => {
		const from = at;
		let depth = 0;

		while (at < json.length) {
			const c = json[at];

			if (c === '"') {
				string();
				continue;
			}
			if (depth === 0 && (c === ',' || c === '}'))
				break;
			depth += c === '{' || c === '[' ? 1 : c === '}' || c === ']' ? -1 : 0;
			at++;
		}
		return json.slice(from, at).trim();
	};

	while (at > 0 && at < json.length) {
		space();
		if (json[at] !== '"')
			break;
		const from = at;
		const member = JSON.parse(string());

		space();
		at++;
		space();
		const text = value();

		if (names.includes(member))
			texts[member] = text;
		else
			rest.push(json.slice(from, at));
		at++;
	}
	return { texts, rest: `{${rest.join(',')}}` };
}

export const memberText = (json, name) => cut(json, [name]).texts[name] ?? null;

// JSON with line breaks.  Only space between values changes.  The time is linear: the loop looks
// back no further than to the last token.
export function pretty(json) {
	const parts = [];
	let last = '';
	let depth = 0;
	const line = () => `\n${'  '.repeat(depth)}`;

	for (const token of json.match(tokens) ?? []) {
		const opened = last === '{' || last === '[';

		if (token === '}' || token === ']') {
			depth--;
			parts.push(opened ? token : line() + token);
		} else {
			parts.push(opened || (last === ',' && token !== ',') ? line() : '', token === ':' ? ': ' : token);
			depth += token === '{' || token === '[' ? 1 : 0;
		}
		last = token;
	}
	return parts.join('');
}

// Follow a stream of Server-Sent Events until close().  The browser reconnects after most faults;
// open() reconnects after the other faults.
export class Live {
	constructor(to, names, heard, changed) {
		Object.assign(this, { to, names, heard, changed });
		this.open();
	}

	open() {
		this.source = new EventSource(this.to);
		this.source.onopen = () => this.changed('on');
		this.source.onerror = async () => {
			this.changed('lost');
			if (this.source.readyState !== EventSource.CLOSED)
				return;
			this.timer = setTimeout(async () => {
				try {
					await get('api/session');
				} catch (problem) {
					if (problem.status === 401) {
						loggedOut();
						return;
					}
				}
				if (!this.closed)
					this.open();
			}, 2000);
		};
		for (const name of this.names)
			this.source.addEventListener(name, (event) => {
				this.changed('on');
				this.heard(name, event.data);
			});
	}

	close() {
		this.closed = true;
		clearTimeout(this.timer);
		this.source.close();
	}
}
