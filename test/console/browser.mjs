// A headless Chromium, driven by its DevTools protocol over a pipe.

import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const program = [process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser'].find((file) => file && existsSync(file));

export class Browser {
	constructor() {
		this.folder = mkdtempSync(join(tmpdir(), 'jobq-browser-'));
		this.process = spawn(program, [
			'--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run', '--disable-extensions',
			'--disable-background-networking', '--disable-component-update', '--disable-sync', '--hide-scrollbars', '--mute-audio',
			'--force-color-profile=srgb', `--user-data-dir=${this.folder}`, '--remote-debugging-pipe', 'about:blank',
		], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'], env: { ...process.env, HOME: this.folder } });
		this.number = 0;
		this.waiting = new Map();
		this.handlers = new Map();
		let rest = '';

		this.process.stdio[4].setEncoding('utf8').on('data', (data) => {
			const messages = (rest + data).split('\0');

			rest = messages.pop();
			for (const message of messages)
				this.take(JSON.parse(message));
		});
		this.process.on('exit', () => {
			for (const { reject } of this.waiting.values())
				reject(new Error('the browser has ended'));
			this.waiting.clear();
		});
	}

	take(message) {
		const waiting = this.waiting.get(message.id);

		if (waiting) {
			this.waiting.delete(message.id);
			if (message.error)
				waiting.reject(new Error(`${waiting.method}: ${message.error.message}`));
			else
				waiting.resolve(message.result);
		}
		this.handlers.get(`${message.sessionId ?? ''} ${message.method}`)?.(message.params);
	}

	send(method, params, sessionId, seconds = 300) {
		const id = ++this.number;

		this.process.stdio[3].write(`${JSON.stringify({ id, method, params: params ?? {}, sessionId })}\0`);
		return new Promise((resolve, reject) => {
			const timer = setTimeout(() => {
				this.waiting.delete(id);
				reject(new NoAnswer(`${method}: the browser does not answer`));
			}, seconds * 1000);
			const end = (settle) => (what) => {
				clearTimeout(timer);
				settle(what);
			};

			this.waiting.set(id, { resolve: end(resolve), reject: end(reject), method });
		});
	}

	// A page with cookies of its own.
	async page(url, width, height) {
		const { browserContextId } = await this.send('Target.createBrowserContext');
		const page = new Page(this, browserContextId);

		await page.open(url, width, height);
		return page;
	}

	async close() {
		const ended = new Promise((done) => this.process.once('exit', done));

		this.send('Browser.close').catch(() => {});
		const timer = setTimeout(() => this.process.kill('SIGKILL'), 5000);

		await ended;
		clearTimeout(timer);
		rmSync(this.folder, { recursive: true, force: true, maxRetries: 5 });
	}
}

class NoAnswer extends Error {}

class Page {
	constructor(browser, context) {
		Object.assign(this, { browser, context, errors: [] });
	}

	send(method, params, seconds) {
		return this.browser.send(method, params, this.session, seconds);
	}

	on(method, handler) {
		this.browser.handlers.set(`${this.session} ${method}`, handler);
	}

	async open(url, width, height) {
		const { targetId } = await this.browser.send('Target.createTarget', { url: 'about:blank', browserContextId: this.context });
		const { sessionId } = await this.browser.send('Target.attachToTarget', { targetId, flatten: true });

		Object.assign(this, { target: targetId, session: sessionId });
		this.on('Runtime.exceptionThrown', ({ exceptionDetails: e }) => this.errors.push(e.exception?.description ?? e.text));
		this.on('Log.entryAdded', ({ entry }) => {
			// what the server has answered is seen on the page
			if (entry.level === 'error' && entry.source !== 'network')
				this.errors.push(entry.text);
		});
		for (const domain of ['Page', 'Runtime', 'Log', 'Network'])
			await this.send(`${domain}.enable`);
		await this.size(width, height);
		if (this.scheme)
			await this.colours(this.scheme);
		await this.send('Page.navigate', { url });
	}

	// Chromium may draw nothing more in a tab; what it shows is shown in another.
	async renew() {
		const old = this.target;
		const url = await this.value('location.href');

		await this.open(url, this.width, this.height);
		await this.browser.send('Target.closeTarget', { targetId: old });
		await this.until('it is there again', 'document.body.innerText.length > 20 && !document.querySelector(".loading")');
	}

	size(width, height) {
		Object.assign(this, { width, height });
		return this.send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: width < 500 });
	}

	colours(scheme) {
		this.scheme = scheme;
		return this.send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }] });
	}

	// The value of an expression there; a promise is waited for.
	async value(expression) {
		const { result, exceptionDetails } = await this.send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });

		if (exceptionDetails)
			throw new Error(`${expression}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
		return result.value;
	}

	// Wait until an expression is true.
	async until(what, expression, seconds = 120) {
		const end = Date.now() + seconds * 1000;

		for (;;) {
			// the page may be about to change
			if (await this.value(expression).catch(() => false))
				return;
			if (Date.now() > end)
				throw new Error(`it never came: ${what}\n${await this.value('location.href + "\\n" + document.body.innerText').catch(() => '')}`);
			await new Promise((done) => setTimeout(done, 50));
		}
	}

	shows(text, seconds) {
		return this.until(`"${text}"`, `document.body.innerText.includes(${JSON.stringify(text)})`, seconds);
	}

	// The middle of what can be clicked and has this text, or fits this selector.
	find(what) {
		return `(() => {
			const text = ${JSON.stringify(what)};
			const all = [...document.querySelectorAll('button, a, summary, input, select, textarea')].filter((e) => e.checkVisibility() && !e.disabled
				&& !(document.querySelector('dialog[open]') && !e.closest('dialog')));
			return all.find((e) => e.textContent.trim() === text || e.getAttribute('aria-label') === text)
				?? all.find((e) => { try { return e.matches(text); } catch { return false; } });
		})()`;
	}

	// Click an element.  An element that moved away before the press is tried again; the button is then released
	// elsewhere, so that nothing else is clicked.
	async click(what) {
		for (let tries = 1;; tries++) {
			await this.until(`something to click: ${what}`, `!!${this.find(what)}`);
			const { x, y } = await this.value(`(() => {
				const e = ${this.find(what)};
				e.scrollIntoView({ block: 'center' });
				window.hit = null;
				document.addEventListener('pointerdown', (event) => { window.hit = e.contains(event.target); }, { once: true, capture: true });
				const r = e.getBoundingClientRect();
				return { x: r.x + r.width / 2, y: r.y + r.height / 2 };
			})()`);
			const mouse = (type, at) => this.send('Input.dispatchMouseEvent', { type, ...at, button: 'left', clickCount: 1 });

			await mouse('mousePressed', { x, y });
			const missed = tries < 10 && await this.value('window.hit') === false;

			await mouse('mouseReleased', missed ? { x: 0, y: 0 } : { x, y });
			if (!missed)
				return;
		}
	}

	async type(text) {
		await this.send('Input.insertText', { text });
	}

	async key(key, code, modifiers = 0) {
		for (const type of ['keyDown', 'keyUp'])
			await this.send('Input.dispatchKeyEvent', { type, key, code: key, windowsVirtualKeyCode: code, modifiers, ...(key === 'Enter' && type === 'keyDown' ? { text: '\r' } : {}) });
	}

	async go(hash) {
		await this.value(`location.hash = ${JSON.stringify(hash)}`);
	}

	async picture() {
		for (let seconds = 20;; seconds *= 2) {
			const { cssContentSize: { width, height } } = await this.send('Page.getLayoutMetrics');

			try {
				const { data } = await this.send('Page.captureScreenshot', { format: 'png', captureBeyondViewport: true, clip: { x: 0, y: 0, width, height: Math.min(height, 3000), scale: 1 } }, seconds);

				return Buffer.from(data, 'base64');
			} catch (error) {
				if (!(error instanceof NoAnswer) || seconds > 60)
					throw error;
				await this.renew();
			}
		}
	}
}
