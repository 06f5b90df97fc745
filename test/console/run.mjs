// The console in a browser, from login to logout.
//
// usage: node run.mjs URL FOLDER [AXE]
//
// FOLDER gets a picture of each view; AXE is the file axe.min.js.  Prints "ok NAME" or
// "not ok NAME" and why, which client_console.pl reads; that has made the jobs.  psql
// finds its server by the environment; JOBQ_WEB_PID is the server of the console.

import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Browser } from './browser.mjs';

const [url, folder, axe] = process.argv.slice(2);
const sql = (text) => execFileSync('psql', ['-XAtqc', text], { encoding: 'utf8' }).trim();

async function test(name, act) {
	try {
		await act();
		console.log(`ok ${name}`);
	} catch (error) {
		console.log(`not ok ${name}\n${error.message.replace(/^/gm, '# ')}`);
		// the next tests depend on this one
		await browser.close();
		process.exit(1);
	}
}

function is(got, expected) {
	if (got !== expected)
		throw new Error(`got ${JSON.stringify(got)}, expected ${JSON.stringify(expected)}`);
}

mkdirSync(folder, { recursive: true });
const browser = new Browser();
const page = await browser.page(url, 1280, 850);
const answer = async (button) => {
	await page.until('a question', '!!document.querySelector("dialog[open]")');
	await page.click(button);
	await page.until('it is answered', '!document.querySelector("dialog[open]")');
};
// The view of the address is open.
const isOpen = 'document.getElementById("main").dataset.view === location.hash && !document.querySelector(".loading")';
const go = async (to) => {
	await page.go(`#/${to}`);
	await page.until(`view ${to}`, `location.hash === ${JSON.stringify(`#/${to}`)} && ${isOpen}`);
};
// Type a filter, and choose this suggestion, or the first one.
const filter = async (text, choice) => {
	const wanted = choice ? `[...document.querySelectorAll('#find-list li')].find((e) => e.textContent === ${JSON.stringify(choice)})` : 'document.querySelector("#find-list li")';

	// the box may be another one by now, because the view is loaded
	await page.until(`a suggestion for ${text}`, `(() => {
		const box = document.getElementById('find');

		if (box && box.value !== ${JSON.stringify(text)}) {
			box.focus();
			box.value = ${JSON.stringify(text)};
			box.dispatchEvent(new Event('input', { bubbles: true }));
		}
		return !!${wanted};
	})()`);
	if (choice)
		await page.value(`${wanted}.click()`);
	else
		await page.key('Enter', 13);
};

await test('a wrong password is refused, and says so', async () => {
	await page.shows('Log in to jobq');
	await page.until('the focus is where to type', 'document.activeElement.name === "role"');
	await page.type('boss');
	await page.key('Tab', 9);
	await page.type('wrong');
	await page.key('Enter', 13);
	await page.until('an alert', '!!document.querySelector(".login [role=alert]")?.textContent');
	writeFileSync(join(folder, 'login.png'), await page.picture());
});
await test('log in by the keyboard', async () => {
	await page.until('the focus is at what was wrong', 'document.activeElement.name === "password"');
	await page.type('secret');
	await page.key('Enter', 13);
	await page.shows('Newest dead letters');
	await page.until('it is live', 'document.getElementById("live").textContent === "live"');
});
await test('the skip link leads to the content', async () => {
	await page.value('document.querySelector(".brand").focus()');
	await page.key('Tab', 9, 8);
	await page.until('it has the focus', 'document.activeElement.className === "skip"');
	await page.key('Enter', 13);
	await page.until('the content has the focus', 'document.activeElement.id === "main"');
	await go('overview');
});
await test('numbers change by themselves', async () => {
	await go('queues');
	await page.shows('outside');
	sql(`SELECT jobq.enqueue('x', queue => 'outside') FROM generate_series(1, 987)`);
	await page.shows('987');
	sql(`SELECT jobq.enqueue('x', queue => 'outside') FROM generate_series(1, 3000)`);
	await page.shows('3,987');
	await go('jobs?kind=sorry');
	await page.until('what is far back is found', 'document.querySelectorAll("tbody tr").length === 3');
	sql(`SELECT jobq.cancel_many(queue => 'outside', state => 'waiting')`);
});
await test('the overview tells the problems that were found', async () => {
	sql(`SELECT jobq.pause('mail')`);
	await go('queues');
	await go('overview');
	await page.until('the verdict', 'document.querySelector(".verdict")?.innerText.length > 10');
	const found = sql(`SELECT count(*) FROM jobq.doctor()`);

	is(await page.value('document.querySelectorAll(".verdict li").length > 0') , Number(found) > 0);
	sql(`SELECT jobq.resume('mail')`);
});
await test('charts show what was before the page was opened', async () => {
	const chart = (title) => `document.querySelector('svg[aria-label^="${title}: "]')?.getAttribute('aria-label') ?? ''`;
	const enqueued = Number(sql(`SELECT sum(enqueued) FROM jobq.stats_history(step => 'minute')`)).toLocaleString('en');

	await go('overview');
	await page.until('throughput', `${chart('Throughput')}.endsWith(" ${enqueued} enqueued")`);
	await page.until('waiting time', `/average \\d.*, longest \\d/.test(${chart('Waiting time')})`);
	await page.until('failures', `/\\d+ dead letters/.test(${chart('Failures')})`);
	await page.value(`document.querySelector('button[data-period=day]').focus()`);
	await page.key('Enter', 13);
	await page.until('the last day', `document.querySelector('button[data-period=day]').ariaPressed === "true" && document.querySelector('.chart tbody').rows.length === 24`);
	await page.until('throughput of the day', `${chart('Throughput')}.endsWith(" ${enqueued} enqueued")`);
	await page.until('the focus stays', `document.activeElement.dataset.period === "day"`);
});
await test('a job is followed live', async () => {
	const id = sql(`SELECT jobq.enqueue('steps', '{"of": "the job"}', options => '{"watch": true}')`);

	await go(`job/${id}`);
	await page.shows('running');
	sql(`INSERT INTO step VALUES (1)`);
	await page.shows('50 %');
	await page.shows('half way');
	sql(`INSERT INTO step VALUES (2)`);
	await page.shows('line 80.');
	sql(`INSERT INTO step VALUES (3)`);
	await page.shows('completed');
	await page.shows('"steps": 2');
	await page.shows('it was a long way');
	is(await page.value(`[...document.querySelectorAll('.log li')].map((e) => e.textContent.match(/line (\\d+)/)?.[1] ?? '-').join(' ')`),
		[...Array.from({ length: 160 }, (_, i) => i + 1), '-'].join(' '));
});
await test('a dead letter is edited and retried', async () => {
	const id = sql(`SET ROLE boss; SELECT jobq.enqueue('picky', '{"n": 12345678901234567890, "d": 1.50, "good": false}')`);

	await go('dead');
	await page.click(id);
	await page.shows('it is not good');
	await page.until('it says where', 'document.querySelector("pre[aria-label=\'Where it failed\']")?.textContent.startsWith("PL/pgSQL function picky(jsonb) line 3 at RAISE")');
	await page.click('Edit and retry');
	await page.until('the payload can be edited', 'document.activeElement.id === "payload"');
	await page.value('document.getElementById("payload").setSelectionRange(0, 1e6)');
	await page.type('{"n": 12345678901234567890, "d": 1.50, "good": ');
	await page.click('Save and retry');
	await page.shows('The payload is not valid JSON');
	await page.value('document.getElementById("payload").setSelectionRange(1e6, 1e6)');
	await page.type('true}');
	await page.click('Save and retry');
	await answer('Save and retry');
	await page.shows('completed');
	is(sql(`SELECT string_agg(state || ' ' || payload, ', ') FROM jobq.jobs WHERE kind = 'picky' AND payload ? 'd'`),
		'completed {"d": 1.50, "n": 12345678901234567890, "good": true}');
});
await test('selected dead letters are retried', async () => {
	const before = Number(sql(`SELECT count(*) FROM jobq.dead_letters WHERE kind = 'sorry'`));

	await go('dead?kind=sorry');
	await page.click('Select all on this page');
	sql(`CREATE OR REPLACE FUNCTION sorry(p jsonb) RETURNS void LANGUAGE sql AS ''`);
	await page.click(`Retry selected (${before})`);
	await answer('Retry');
	await page.shows('No dead letter matches these filters.');
	is(sql(`SELECT count(*) FROM jobq.dead_letters WHERE kind = 'sorry'`), '0');
});
await test('of 300 dead letters of 6 causes, the new cause is found, and exactly its jobs are retried', async () => {
	const letters = (more) => Number(sql(`SELECT count(*) FROM jobq.dead_letters WHERE queue = 'trouble' ${more ?? ''}`));
	const rows = (n) => page.until(`${n} rows`, `document.querySelectorAll("tbody tr").length === ${n}`);

	sql(`SELECT jobq.create_queue('trouble', mode => 'consumer')`);
	sql(`SELECT jobq.enqueue('call', jsonb_build_object('n', i), queue => 'trouble') FROM generate_series(1, 300) i`);
	while (letters() < 300)
		sql(`SELECT jobq.reject(r.id, r.token, format('%s: no answer for order %s <b>', (ARRAY['card declined', 'address unknown', 'limit reached', 'name taken', 'page missing', 'host unreachable'])
			[CASE WHEN (r.payload ->> 'n')::int % 15 = 0 THEN 6 ELSE 1 + (r.payload ->> 'n')::int % 5 END], r.id)) FROM jobq.reserve('{trouble}', max_jobs => 300, wait => '1 min') r`);
	sql(`UPDATE jobq_internal.dead_letter SET errors = jsonb_set(errors, '{0,at}', to_jsonb(now() - interval '3 h')) WHERE kind = 'call' AND error NOT LIKE 'host%'`);
	await go('failures');
	await filter('trouble', 'queue trouble');
	await page.until('the filter is in the address', 'location.hash === "#/failures?queue=trouble"');
	await rows(6);
	is(await page.value('[...document.querySelectorAll("tbody tr")].map((r) => /\\bnew\\b/.test(r.innerText)).join()'), 'true,false,false,false,false,false');
	is(await page.value('document.querySelector("tbody th").innerText.includes("host unreachable: no answer for order")'), true);
	writeFileSync(join(folder, 'failures-trouble.png'), await page.picture());
	// its dead letters, and no others
	await page.click('20 dead letters');
	await rows(20);
	await page.value('history.back()');
	await rows(6);
	await page.click('Retry dead letters');
	await page.until('it tells the number', 'document.querySelector("dialog[open]")?.textContent.includes("Retry 20 dead letters of queue \\"trouble\\" with this error?")');
	await answer('Retry all');
	await page.shows('20 jobs will run again.');
	is(sql(`SELECT count(*) || ' ' || bool_and(errors -> -1 ->> 'message' LIKE 'host unreachable%') FROM jobq.live_jobs WHERE queue = 'trouble'`), '20 true');
	is(letters(), 280);
	// and another cause is deleted
	const unknown = letters(`AND error LIKE 'address unknown%'`);

	await page.until('its number', `[...document.querySelectorAll("tbody tr")].some((r) => r.innerText.includes("address unknown"))`);
	await page.value('[...document.querySelectorAll("tbody tr")].find((r) => r.innerText.includes("address unknown")).querySelector("summary").click()');
	await page.value('[...document.querySelectorAll("tbody tr")].find((r) => r.innerText.includes("address unknown")).querySelector("button[data-action=delete-all]").click()');
	await answer('Delete all');
	await page.shows(`${unknown} dead letters deleted.`);
	await rows(5);
	is(letters(), 280 - unknown);
	is(letters(`AND error LIKE 'address unknown%'`), 0);
	sql(`SELECT jobq.delete_many(queue => 'trouble'), jobq.cancel_many(queue => 'trouble', state => 'waiting')`);
});
await test('an id beyond 2^53 is that of no other job', async () => {
	for (const id of ['9007199254740992', '9007199254740993']) {
		const made = sql(`SET ROLE boss; SELECT jobq.enqueue('picky', '{"which": "${id}"}', tags => '{exact}')`);

		sql(`SELECT jobq.wait(${made}, '5 min')`);
		sql(`UPDATE jobq_internal.dead_letter SET id = ${id} WHERE id = ${made}`);
	}
	await go('dead?kind=picky');
	await page.click('Select job 9007199254740993');
	await page.click('More actions for dead letters');
	await page.click('Delete selected (1)');
	await answer('Delete');
	await page.until('it is gone', `!document.body.innerText.includes('9007199254740993')`);
	is(sql(`SELECT id FROM jobq.dead_letters WHERE tags = '{exact}'`), '9007199254740992');
	await go('job/9007199254740992');
	await page.click('More actions for this job');
	await page.click('Delete');
	await answer('Delete');
	await page.until('the list', 'location.hash === "#/dead"');
	is(sql(`SELECT count(*) FROM jobq.dead_letters WHERE tags = '{exact}'`), '0');
});
await test('a question about many jobs has their number', async () => {
	const asks = (text) => page.until(`it asks: ${text}`, `document.querySelector("dialog[open]")?.textContent.includes(${JSON.stringify(text)})`);
	const leave = () => page.key('Escape', 27).then(() => page.until('it is over', '!document.querySelector("dialog[open]")'));
	const letters = sql(`SELECT count(*) FROM jobq.dead_letters`);

	await go('dead');
	await page.click('More actions for dead letters');
	await page.click('Retry all');
	await asks(`Retry ${letters} dead letter`);
	await leave();
	await go('dead?kind=evil');
	await page.click('More actions for dead letters');
	await page.click('Retry all');
	await asks('Retry 1 dead letter of kind "evil"?');
	await leave();
	sql(`SELECT jobq.enqueue('x', queue => 'outside') FROM generate_series(1, 1234)`);
	await go('queues');
	await page.shows('1,234');
	await page.click('More actions for queue outside');
	await page.click('Cancel the waiting jobs of queue outside');
	await asks('Number of waiting jobs: 1,234.');
	await answer('Cancel waiting jobs');
	await page.shows('1,234 jobs of queue "outside" cancelled.');
});
await test('the beginning of what is long is shown, and all of it when asked for', async () => {
	const id = sql(`SELECT jobq.enqueue('x', jsonb_build_object('rows', array_agg(md5(i::text)), 'z', 'the last'), queue => 'outside') FROM generate_series(1, 10000) i`);
	const length = 'document.querySelector(\'pre[aria-label="Payload"]\')?.textContent.length';

	await go(`job/${id}`);
	await page.until('the beginning', `${length} > 65000 && ${length} < 100000`);
	await page.click('Show all 360 kB');
	await page.shows('the last');
	await page.until('nothing more', '!document.querySelector("button[data-action=show-all]")');
	sql(`SELECT jobq.cancel_many(queue => 'outside', state => 'waiting')`);
});
await test('a payload of some megabytes is shown in parts, and is too long for a form', async () => {
	const id = sql(`SET ROLE boss; SELECT jobq.enqueue('x', jsonb_build_object('text', repeat('a\u{1F600}', 500000)), queue => 'outside')`);
	const payload = 'document.querySelector("pre[aria-label=Payload]")';

	await go(`job/${id}`);
	await page.click('button[data-action=show-all]');
	await page.until('all parts', `${payload}.querySelectorAll('.chunk').length > 50 && !document.querySelector('button[data-action=show-all]')`);
	is(await page.value(`JSON.parse(${payload}.textContent).text === 'a\u{1F600}'.repeat(500000)`), true);
	await page.click('More actions for this job');
	await page.click('Edit the payload');
	await page.shows('too much for a form');
	is(await page.value('document.querySelectorAll("textarea").length'), 0);
	// the message would cover buttons for some seconds
	await page.value('document.getElementById("toasts").replaceChildren()');
	await go(`enqueue?like=${id}`);
	await page.shows('too much for a form');
	sql(`SELECT jobq.cancel_many(queue => 'outside', state => 'waiting')`);
});
await test('a large payload is laid out once, and is a file on request', async () => {
	const rows = 10000;
	const id = sql(`TRUNCATE step; SELECT jobq.enqueue('steps', jsonb_build_object('rows', array_agg(md5(i::text))), options => '{"watch": true}') FROM generate_series(1, ${rows}) i`);

	await go(`job/${id}`);
	await page.until('the payload', 'document.querySelector("pre[aria-label=Payload]")');
	await page.value(`window.laid = 0; window.made = 0; window.kept = [String.prototype.match, document.createElement];
		String.prototype.match = function (...args) { laid += this.length > 60000 ? 1 : 0; return kept[0].apply(this, args); };
		document.createElement = function (name) { made += name === 'li' ? 1 : 0; return kept[1].call(document, name); }`);
	sql(`INSERT INTO step VALUES (2)`);
	await page.shows('line 80.');
	is(await page.value('laid'), 0);
	await page.value('made = 0');
	sql(`INSERT INTO step VALUES (3)`);
	await page.shows('it was a long way');
	// the new lines, and some lists
	const made = await page.value('String.prototype.match = kept[0]; document.createElement = kept[1]; made');

	is(made < 200 ? 'few' : `${made} made`, 'few');
	await page.value(`window.kept = URL.createObjectURL; URL.createObjectURL = (blob) => { window.saved = blob.text(); return 'about:blank'; };
		HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; }`);
	await page.click('Download');
	await page.until('the file', 'window.saved && window.savedAs');
	is(await page.value('saved.then((text) => savedAs + " " + JSON.parse(text).rows.length)'), `job-${id}-payload.json ${rows}`);
	await page.value('URL.createObjectURL = kept; delete HTMLAnchorElement.prototype.click');
});
await test('a page that does not follow the server says of when it is, and is loaded again', async () => {
	sql(`SELECT jobq.create_queue('night', open => true)`);
	for (const name of ['batch', 'jobs']) {
		const batch = sql(`SELECT jobq.pause('night'); SELECT jobq.create_batch('long')`);

		sql(`SELECT jobq.add_jobs(${batch}, 'picky', ARRAY['{"good": "true"}', '{"good": "true"}']::jsonb[], options => '{"queue": "night"}'); SELECT jobq.start_batch(${batch})`);
		// newer ones, so that the two are not on the first page
		sql(`SELECT jobq.create_batch('newer') FROM generate_series(1, 60)`);
		sql(`SELECT jobq.enqueue('x', queue => 'outside') FROM generate_series(1, 60)`);
		await go(name === 'batch' ? `batch/${batch}` : `jobs?batch_id=${batch}`);
		await page.until('the state', `[...document.querySelectorAll('h1 .state, tbody .state')].map((e) => e.textContent).join() === '${name === 'batch' ? 'running' : 'ready,ready'}'`);
		await page.until(`${name} is not live`, '/^as of \\d\\d:\\d\\d:\\d\\d$/.test(document.getElementById("live").textContent)');
		// a clock that is put back does not stop the page
		await page.value('window.kept = Date.now; Date.now = () => 0');
		sql(`SELECT jobq.resume('night')`);
		await page.until('the end', `[...document.querySelectorAll('h1 .state, tbody .state')].map((e) => e.textContent).join() === '${name === 'batch' ? 'completed' : 'completed,completed'}'`);
		await page.value('Date.now = kept');
		sql(`SELECT jobq.cancel_many(queue => 'outside', state => 'waiting')`);
	}
	await go('jobs');
	await page.until('the first page is live', 'document.getElementById("live").textContent === "live"');
});
await test('a long error is folded, and copied as a whole', async () => {
	const id = sql(`SELECT jobq.enqueue('lines', '{"more": 200}')`);

	sql(`SELECT jobq.wait(${id}, '5 min')`);
	await go(`job/${id}`);
	await page.until('the error', 'document.querySelector("pre[aria-label=Error]")?.textContent.includes("line 200")');
	is(await page.value('document.querySelector("pre[aria-label=Error]").clientHeight < 300'), true);
	is(await page.value('document.querySelector("main .banner").offsetHeight < innerHeight'), true);
	await page.value('Object.defineProperty(navigator, "clipboard", { configurable: true, value: { writeText: async (text) => { window.copied = text; } } })');
	await page.click('Copy the error');
	await page.shows('The error is copied.');
	is(await page.value('/^P0001\\nit broke\\n[^]*line 200\\nDETAIL: It has a detail[^]*\\nHINT: Try another.\\nCONTEXT: PL.pgSQL function/.test(copied)'), true);
	// without a secure connection, the browser has no such object
	await page.value('Object.defineProperty(navigator, "clipboard", { configurable: true, value: undefined }); document.addEventListener("copy", () => { window.copied = getSelection().toString() || document.activeElement.value; }); window.copied = ""');
	await page.click('Copy the error');
	await page.until('it is copied', 'window.copied.includes("line 200")');
	await page.value('delete navigator.clipboard');
	sql(`SELECT jobq.delete(${id})`);
});
await test('an error keeps its lines, and words stay whole', async () => {
	const id = sql(`SELECT jobq.enqueue('lines')`);

	sql(`SELECT jobq.wait(${id}, '5 min')`);
	await go(`job/${id}`);
	await page.until('the error', 'document.querySelector("main .banner")?.innerText.includes("it broke\\n  at the second line\\n  at the third")');
	await page.until('its detail and hint', '["It has a detail.", "Try another."].every((text) => document.querySelector("main .banner").innerText.includes(text))');
	await page.until('the lines in the table of attempts', '[...document.querySelectorAll("td")].some((e) => e.innerText.startsWith("it broke\\n  at the second line"))');
	is(await page.value(`(() => {
		const broken = [];
		const history = [...document.querySelectorAll('table')].find((e) => e.caption.textContent === 'History');
		const texts = document.createTreeWalker(history, NodeFilter.SHOW_TEXT);

		while (texts.nextNode())
			for (const { 0: word, index } of texts.currentNode.data.matchAll(/[\\w.:-]{2,20}/g)) {
				const range = document.createRange();

				range.setStart(texts.currentNode, index);
				range.setEnd(texts.currentNode, index + word.length);
				if (new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1)
					broken.push(word);
			}
		return broken.join();
	})()`), '');
	is(await page.value('/00:00:0/.test(document.querySelector("main").innerText)'), false);
});
await test('a queue with any name is paused', async () => {
	for (const name of ['.', '..', 'a/b']) {
		sql(`SELECT jobq.create_queue('${name}')`);
		await go('overview');
		await go('queues');
		await page.click(`Pause queue ${name}`);
		await answer('Pause');
		await page.until(`it is paused: ${name}`, `!!document.querySelector('button[aria-label="Resume queue ${name}"]')`);
		is(sql(`SELECT paused FROM jobq.queues WHERE name = '${name}'`), 't');
		sql(`SELECT jobq.drop_queue('${name}')`);
	}
});
await test('an axis has one unit, and its middle is its middle', async () => {
	for (const most of [0.004, 0.9, 50, 90, 100, 900, 5000, 7000, 40000, 100000, 300000]) {
		const labels = await page.value(`import('./charts.js').then(({ lines }) => [...lines('x', [{ at: '2026-01-01', v: ${most} }], [{ member: 'v', title: 't', name: 'busy' }], '')
			.querySelectorAll('text[text-anchor=end]')].map((e) => e.textContent).join())`);
		const [, middle, unit, top, same] = /^0,([\d.]+) (\w+),([\d.]+) (\w+)$/.exec(labels) ?? [];

		is(`${labels}: ${unit !== undefined && unit === same && 2 * middle === Number(top)}`, `${labels}: true`);
	}
});
await test('a queue is paused after a question, and resumed', async () => {
	await go('queues');
	await page.click('Pause queue mail');
	await page.until('a question', '!!document.querySelector("dialog[open]")');
	await page.key('Escape', 27);
	await page.until('it is over', '!document.querySelector("dialog[open]")');
	is(sql(`SELECT paused FROM jobq.queues WHERE name = 'mail'`), 'f');
	await page.click('Pause queue mail');
	await answer('Pause');
	await page.until('it is paused', '!!document.querySelector("button[aria-label=\'Resume queue mail\']")');
	is(sql(`SELECT paused FROM jobq.queues WHERE name = 'mail'`), 't');
	await page.click('Resume queue mail');
	await answer('Resume');
	await page.until('it is resumed', '!!document.querySelector("button[aria-label=\'Pause queue mail\']")');
	is(sql(`SELECT paused FROM jobq.queues WHERE name = 'mail'`), 'f');
});
await test('a job that runs is cancelled', async () => {
	const id = sql(`TRUNCATE step; SELECT jobq.enqueue('steps')`);

	await go(`job/${id}`);
	await page.shows('running');
	await page.click('More actions for this job');
	await page.click('Cancel the job');
	await answer('Cancel the job');
	await page.until('it is cancelled', 'document.querySelector("h1 .state")?.textContent === "cancelled"');
});
await test('a schedule is run now, and a job says why it does not run', async () => {
	await go('schedules');
	await page.click('Run schedule <img src=x onerror=harmed=1> now');
	await answer('Run now');
	await page.shows('is enqueued.');
	is(sql(`SELECT count(*) FROM jobq.jobs WHERE headers ->> 'schedule' LIKE '<img%'`), '1');
	await go(`job/${sql(`SELECT jobq.enqueue('x', queue => 'outside')`)}`);
	await page.shows('Why it does not run');
	await page.shows('no consumer waits for a job of queue "outside"');
	sql(`SELECT jobq.cancel_many(queue => 'outside', state => 'waiting')`);
});
await test('times that are no dates are text, and an error in a cell is its own', async () => {
	const format = 'Intl.DateTimeFormat.prototype, "format"';

	sql(`SET ROLE boss; SELECT jobq.schedule('ended', '30 4 * * *', 'picky'), jobq.schedule('far', '30 4 * * *', 'picky')`);
	// the scheduler leaves those alone that are paused
	sql(`UPDATE jobq_internal.schedule SET paused = true, next_tick = 'infinity' WHERE name = 'ended'`);
	sql(`UPDATE jobq_internal.schedule SET paused = true, next_tick = '12026-01-01 12:00+00' WHERE name = 'far'`);
	await go('schedules');
	await page.shows('infinity');
	await page.until('a year beyond 9999', '/in \\d+ days/.test(document.querySelector(\'tr[data-key="far"]\')?.textContent)');
	await page.shows('Europe/Madrid');
	await page.value(`window.kept = Object.getOwnPropertyDescriptor(${format}); Object.defineProperty(${format}, { configurable: true, get() { throw new Error('no format'); } })`);
	await go('queues');
	await go('schedules');
	await page.shows('cannot be shown');
	await page.shows('Europe/Madrid');
	await go(`job/${sql(`SELECT min(id) FROM jobq.dead_letters`)}`);
	await page.shows('cannot be shown');
	await page.until('the rest of the job', 'document.querySelector("dl.facts")?.textContent.includes("Kind")');
	await page.value(`Object.defineProperty(${format}, window.kept)`);
	sql(`SELECT jobq.unschedule('ended'), jobq.unschedule('far')`);
});
await test('each edge of a workflow is seen, and passes no other step', async () => {
	const flow = sql(`SELECT jobq.create_workflow('{"name": "lanes", "steps": [{"name": "a", "kind": "picky"}, {"name": "b", "kind": "picky", "needs": ["a"]},
		{"name": "c", "kind": "picky", "needs": ["b", "a"]}, {"name": "d", "kind": "picky", "needs": ["a"]}, {"name": "e", "kind": "picky", "needs": ["c", "a"]}]}')`);

	await go(`batch/${flow}`);
	await page.until('the graph', 'document.querySelectorAll(".graph a rect").length === 5');
	is(await page.value(`(() => {
		const boxes = [...document.querySelectorAll('.graph a')].map((a) => ({ name: a.querySelector('text').textContent, box: a.querySelector('rect').getBBox() }));
		const edges = [...document.querySelectorAll('.graph path.edge')];

		return edges.length + ' edges' + edges.map((edge) => Array.from({ length: 401 }, (_, i) => edge.getPointAtLength(edge.getTotalLength() * i / 400))
			.flatMap((p) => boxes.filter(({ box: b }) => p.x > b.x + 1 && p.x < b.x + b.width - 1 && p.y > b.y - 3 && p.y < b.y + b.height + 3)).map(({ name }) => ' behind ' + name)[0] ?? '').join('');
	})()`), '6 edges');
});
await test('jobs are found by one box, whose filters are in the address', async () => {
	const rows = (n) => page.until(`${n} rows`, `document.querySelectorAll("tbody tr").length === ${n}`);
	const address = (text) => page.until(`the address has ${text}`, `location.hash.includes(${JSON.stringify(text)}) && ${isOpen}`);

	await go('jobs');
	await page.key('/', 191);
	await page.until('the box has the focus', 'document.activeElement.id === "find"');
	await filter('unique key: k-1');
	await address('unique_key=k-1');
	await rows(1);
	// the focus stays, and the last filter goes with the key that deletes
	await page.until('the box has the focus again', 'document.activeElement.id === "find"');
	await page.key('Backspace', 8);
	await page.until('no filter', `location.hash === "#/jobs" && ${isOpen}`);
	// a suggested value of the list, chosen by the keys
	await go('jobs?queue=shared');
	await page.until('a job of the tenant', '[...document.querySelectorAll("tbody [data-label=Tenant]")].some((e) => e.textContent === "acme")');
	await page.value('document.getElementById("find").focus()');
	await page.type('acm');
	await page.until('a suggestion', '[...document.querySelectorAll("#find-list li")].some((e) => e.textContent === "tenant acme")');
	while (await page.value('document.querySelector("#find-list li[aria-selected=true]")?.textContent') !== 'tenant acme')
		await page.key('ArrowDown', 40);
	is(await page.value('document.getElementById(document.activeElement.getAttribute("aria-activedescendant")).textContent'), 'tenant acme');
	await page.key('Enter', 13);
	await address('tenant=acme');
	await page.until('both of the tenant are found', '[...document.querySelectorAll("tbody [data-label=Tenant]")].map((e) => e.textContent).join() === "acme,acme"');
	// a job by its id
	const id = await page.value('document.querySelector("tbody th a").textContent');

	await filter(id, `open job ${id}`);
	await page.until('the job by its id', `location.hash === "#/job/${id}"`);
	await page.shows(`Job ${id}`);
	await page.click('acme');
	await address('tenant=acme');
	// each filter finds its jobs alone
	sql(`SELECT jobq.enqueue('x', '{"order": {"n": 7, "of": "two"}}', queue => 'outside', tags => '{red,late}')`);
	for (const [text, choice, inAddress] of [['tag: late', 'tag late', 'tag=late'], ['{"order": {"n": 7}}', 'payload contains {"order": {"n": 7}}', 'payload=']]) {
		await go('jobs');
		await filter(text, choice);
		await address(inAddress);
		await rows(1);
	}
	await page.click('Remove the filter payload contains');
	await page.until('the filter is gone', `location.hash === "#/jobs" && ${isOpen}`);
	await go('jobs');
	await filter('error contains: it broke');
	await address('error=%25it+broke%25');
	await page.until('the job with this error', '[...document.querySelectorAll("tbody td[data-label=Error]")].map((e) => e.innerText.includes("it broke")).join() === "true"');
	await go('jobs');
	await filter('it broke', 'failure P0001 it broke');
	await address('fingerprint=');
	await rows(1);
	await page.until('the filter reads as the error', '[...document.querySelectorAll(".chip")].some((e) => e.textContent.includes("it broke"))');
	await go('jobs');
	await filter('since: an hour ago', 'since an hour ago');
	await address('from=20');
	await filter('since: yesterday at noon');
	await page.until('a text that is no time', 'document.querySelector("#find-list [aria-disabled]")?.textContent.startsWith("write a time")');
	sql(`SELECT jobq.cancel_many(queue => 'outside', state => 'waiting')`);
});
await test('jobs are in the order of each time', async () => {
	for (const [order, title, expression] of [['run_at', 'Scheduled for, earliest first', 'run_at, id'], ['-finished_at', 'Finished, newest first', 'finished_at DESC, id DESC']]) {
		await go('jobs?kind=picky');
		await page.value(`Object.assign(document.querySelector('select[data-order]'), { value: '${order}' }).dispatchEvent(new Event('change', { bubbles: true }))`);
		await page.until('the order is in the address', `location.hash.includes('order=${order}')`);
		await page.until(title, `document.querySelector('select[data-order] option[selected]')?.textContent === '${title}' && !document.querySelector('.loading')`);
		const time = order.replace('-', '');
		const expected = sql(`SELECT string_agg(id::text, ',') FROM (SELECT id FROM jobq.jobs WHERE kind = 'picky' AND ${time} IS NOT NULL ORDER BY ${expression} LIMIT 50) j`);

		await page.until('this order', `[...document.querySelectorAll('tbody th a')].map((e) => e.textContent).join() === '${expected}'`);
	}
	// the second page follows the first
	await go('jobs?kind=picky&order=run_at');
	await page.click('Older');
	await page.until('the rest', `[...document.querySelectorAll('tbody th a')].map((e) => e.textContent).join() === '${
		sql(`SELECT string_agg(id::text, ',') FROM (SELECT id FROM jobq.jobs WHERE kind = 'picky' AND run_at IS NOT NULL ORDER BY run_at, id OFFSET 50 LIMIT 50) j`)}'`);
});
await test('a list is exported as a file', async () => {
	await page.value(`window.kept = URL.createObjectURL; URL.createObjectURL = (blob) => { window.saved = blob.text(); return 'about:blank'; };
		HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; }`);
	// more than one page of the server
	sql(`SELECT jobq.enqueue('=1+1', queue => 'outside', tags => '{"a,\\"b\\n"}') FROM generate_series(1, 3100)`);
	for (const [format, count] of [['CSV', `(text.trim().split('\\r\\n').length - 1) + ' ' + text.includes(',"\\'=1+1",') + ' ' + text.startsWith('id,state,kind,')`],
		['JSON', `JSON.parse(text).length + ' ' + (JSON.parse(text)[0].kind === '=1+1') + ' ' + Array.isArray(JSON.parse(text)[0].tags)`]]) {
		await go('jobs?queue=outside&state=ready');
		await page.click('Actions for all jobs of this list');
		await page.click(`Export as ${format}`);
		await page.until('the file', `window.savedAs === 'jobs.${format.toLowerCase()}'`);
		await page.shows('3,100 jobs exported.');
		is(await page.value(`saved.then((text) => savedAs + ' ' + ${count})`), `jobs.${format.toLowerCase()} 3100 true true`);
	}
	await page.value('URL.createObjectURL = kept; delete HTMLAnchorElement.prototype.click');
	sql(`SELECT jobq.cancel_many(queue => 'outside', state => 'waiting')`);
});

const put = (name, value) => page.value(`(() => { const e = document.querySelector('[name="${name}"]'); e.value = ${JSON.stringify(value)}; e.dispatchEvent(new Event('change', { bubbles: true })); })()`);
const asked = async (text) => {
	await page.until('a question, or a message', '!!document.querySelector("dialog[open], .toast")');
	is(await page.value('document.querySelector(".toast")?.textContent ?? ""'), '');
	await page.until(`it asks: ${text}`, `document.querySelector("dialog[open]")?.innerText.includes(${JSON.stringify(text)})`);
};

await test('a job is enqueued from a form, with the last payload as an example', async () => {
	sql(`SELECT jobq.enqueue('parcel', '{"exact": 12345678901234567890, "good": "yes"}', queue => 'outside', max_attempts => 7, tags => '{fragile}')`);
	await go('jobs');
	await page.click('Enqueue a job');
	await page.until('the form', 'location.hash === "#/enqueue" && document.querySelector("form.job")');
	await put('kind', 'parcel');
	await page.until('the example', 'document.querySelector("textarea[name=payload]").value.includes("12345678901234567890")');
	await page.click('Enqueue');
	// the server says that workers need a handler
	await page.shows('no handler is registered for kind "parcel"');
	await put('queue', 'outside');
	await put('priority', '5');
	await put('tags', 'a, b');
	await put('payload', '{"exact": 12345678901234567890, ');
	await page.click('Enqueue');
	await page.shows('The payload is not valid JSON');
	await put('payload', '{"exact": 12345678901234567891}');
	await page.click('Enqueue');
	await page.until('the job', 'location.hash.startsWith("#/job/")');
	is(sql(`SELECT format('%s %s %s', payload, priority, tags) FROM jobq.jobs WHERE id = ${await page.value('location.hash.slice(6)')}`), '{"exact": 12345678901234567891} 5 {a,b}');
});
await test('a job is duplicated, run again, edited, and run at another time', async () => {
	const id = sql(`SET ROLE boss; SELECT jobq.enqueue('picky', '{"good": "no"}', delay => '1 h', tags => '{odd}', headers => '{"x": 1}')`);
	const job = (columns) => sql(`SELECT ${columns} FROM jobq.jobs WHERE id = ${id}`);
	const menu = async (item) => {
		await page.value('document.getElementById("toasts").replaceChildren()');
		await page.click('More actions for this job');
		await page.click(item);
	};

	await go(`job/${id}`);
	await menu('Change the priority');
	await asked('Priority of job');
	await put('priority', '9');
	await answer('Save');
	is(job('priority'), '9');
	await menu('Reschedule');
	await asked('Reschedule job');
	await put('run_at', '2040-01-31T12:00:00');
	await answer('Save');
	is(job(`run_at > '2040-01-30' AND run_at < '2040-02-02'`), 't');
	await menu('Edit the payload');
	await page.until('the payload can be edited', 'document.activeElement.id === "payload"');
	await page.value('document.getElementById("payload").value = \'{"good": "true"}\'');
	await page.click('Save');
	await answer('Save');
	is(job('payload'), '{"good": "true"}');
	await menu('Run now');
	await answer('Run now');
	await page.until('it has run', 'document.querySelector("h1 .state")?.textContent === "completed"');
	await menu('Run again');
	await answer('Run again');
	await page.until('the new job', `location.hash.startsWith("#/job/") && location.hash !== "#/job/${id}"`);
	is(sql(`SELECT kind || ' ' || payload FROM jobq.jobs WHERE id = ${await page.value('location.hash.slice(6)')}`), 'picky {"good": "true"}');
	await go(`job/${id}`);
	await menu('Duplicate');
	await page.until('the copy', 'document.querySelector("[name=kind]")?.value === "picky" && document.querySelector("[name=tags]").value === "odd" && document.querySelector("[name=headers]").value.includes("x")');
	await page.click('Enqueue');
	await page.until('the new job', `location.hash.startsWith("#/job/") && location.hash !== "#/job/${id}"`);
	is(sql(`SELECT kind || ' ' || payload || ' ' || tags::text || ' ' || headers FROM jobq.jobs WHERE id = ${await page.value('location.hash.slice(6)')}`), 'picky {"good": "true"} {odd} {"x": 1}');
});
await test('all jobs of a filter are changed, after their number is shown', async () => {
	const found = (where) => sql(`SELECT count(*) FROM jobq.live_jobs WHERE queue = 'outside' AND kind = 'pallet' ${where ?? ''}`);
	const choose = async (item) => {
		await page.until('jobs', 'document.querySelectorAll("tbody tr").length > 0');
		await page.value('document.getElementById("toasts").replaceChildren()');
		await page.click('Actions for all jobs of this list');
		await page.click(item);
		await page.until('a question, or a message', '!!document.querySelector("dialog[open], .toast")');
	};

	sql(`SET ROLE boss; SELECT jobq.enqueue('pallet', jsonb_build_object('n', n), queue => 'outside', delay => '1 h', tags => ARRAY['t' || n % 2]) FROM generate_series(1, 120) n`);
	await go('jobs?kind=pallet&tag=t1');
	await choose('Change the priority');
	await asked('Change the priority of 60 jobs?');
	await asked('All jobs with: kind pallet, tag t1.');
	writeFileSync(join(folder, 'many.png'), await page.picture());
	await page.key('Escape', 27);
	await page.until('it is over', '!document.querySelector("dialog[open]")');
	is(found('AND priority <> 0'), '0');
	await choose('Change the priority');
	await put('priority', '3');
	await answer('Change 60 jobs');
	await page.shows('60 jobs changed.');
	is(found('AND priority = 3'), '60');
	await choose('Run now');
	await answer('Run 60 jobs');
	await page.shows('60 jobs due now.');
	is(found(`AND state = 'ready'`), '60');
	await choose('Move to a queue');
	await asked('Move 60 jobs?');
	await put('queue', 'held');
	await answer('Move 60 jobs');
	await page.shows('60 jobs moved.');
	is(sql(`SELECT count(*) FROM jobq.live_jobs WHERE queue = 'held' AND kind = 'pallet'`), '60');
	await go('jobs?kind=pallet&payload=%7B%22n%22%3A2%7D');
	await choose('Cancel jobs');
	await asked('Cancel 1 job?');
	await answer('Cancel 1 job');
	await page.shows('1 job cancelled.');
	await go('jobs?kind=pallet&header=x%3D1');
	is(await page.value('document.querySelectorAll("main button[data-action^=many]").length'), 0);
	sql(`SELECT jobq.cancel_many(kind => 'pallet')`);
	// each call is in the audit log, with its conditions and its effect
	await go('audit');
	await filter('action: edit_many', 'action edit_many');
	await page.until('the calls', `[...document.querySelectorAll("tbody tr")].some((r) => /edit_many/.test(r.innerText) && /boss/.test(r.innerText) && /"priority": 3/.test(r.innerText) && /60/.test(r.innerText))`);
	is(await page.value('[...document.querySelectorAll("tbody th")].every((e) => e.innerText.endsWith("edit_many"))'), true);
});

await test('a schedule is created with a preview, changed, and deleted', async () => {
	const schedule = (columns) => sql(`SELECT ${columns} FROM jobq.schedules WHERE name = 'closing/day'`);

	await go('schedules');
	await page.click('Create a schedule');
	await page.until('the form', 'document.querySelector("form.schedule")');
	await page.value('document.querySelector("[name=cron]").focus()');
	await page.type('30 4 * *');
	await page.shows('it has 4 fields, not 5 or 6');
	await page.type(' mon-fri');
	await page.shows('At 04:30 on Monday to Friday');
	await page.until('five ticks', 'document.querySelectorAll(".preview li").length === 5');
	await put('name', 'closing/day');
	await put('timezone', 'Europe/Madrid');
	await put('kind', 'picky');
	await put('payload', '{"n": 12345678901234567890, ');
	await page.click('Save');
	await page.shows('The payload is not valid JSON');
	await put('payload', '{"n": 12345678901234567890, "good": "true"}');
	await put('overlap', 'skip');
	writeFileSync(join(folder, 'schedule-form.png'), await page.picture());
	await page.click('Save');
	await page.until('the schedule', 'location.hash === "#/schedule/closing%2Fday" && document.querySelectorAll(".ticks li").length === 10');
	is(schedule(`cron || ' ' || timezone || ' ' || kind || ' ' || payload || ' ' || overlap || ' ' || missed`), '30 4 * * mon-fri Europe/Madrid picky {"n": 12345678901234567890, "good": "true"} skip once');
	await page.click('Run schedule closing/day now');
	await answer('Run now');
	await page.until('its job, with the outcome', '[...document.querySelectorAll("tbody tr")].some((r) => /completed/.test(r.innerText))');
	writeFileSync(join(folder, 'schedule.png'), await page.picture());
	await page.click('Edit');
	await page.until('the form', 'document.querySelector("[name=cron]")?.value === "30 4 * * mon-fri" && document.querySelector("[name=overlap]").value === "skip"');
	await put('cron', '0 */6 * * *');
	await page.click('Save');
	await page.shows('Every 6 hours at :00');
	is(schedule(`cron || ' ' || overlap || ' ' || payload`), '0 */6 * * * skip {"n": 12345678901234567890, "good": "true"}');
	await page.click('More actions for this schedule');
	await page.click('Delete');
	await answer('Delete');
	await page.until('the list', 'location.hash === "#/schedules"');
	is(sql(`SELECT count(*) FROM jobq.schedules WHERE name = 'closing/day'`), '0');
});

await test('a queue has its rate, its times and its settings', async () => {
	await go('queues');
	await page.click('mail');
	await page.until('its page', 'location.hash === "#/queue/mail" && document.querySelector("h1")?.textContent.trim() === "mail"');
	await page.shows('running of 2');
	await page.until('its setting', '[...document.querySelectorAll("dl.facts dt")].some((e) => e.textContent === "max_running")');
	await page.value('document.getElementById("toasts").replaceChildren()');
	await page.click('Edit settings');
	await asked('Settings of queue "mail"');
	await put('max_running', '3');
	await put('rate', 'often');
	await page.click('Save');
	await page.until('the problem is in the question', 'document.getElementById("dialog-problem").textContent.includes("often")');
	await put('rate', '7 per second');
	await answer('Save');
	is(sql(`SELECT max_running || ' ' || rate FROM jobq.queues WHERE name = 'mail'`), '3 7 per second');
	await page.shows('running of 3');
	sql(`SELECT jobq.alter_queue('mail', max_running => 2, rate => 'none')`);
	// a queue that a first job created stays open
	sql(`SET ROLE anna; SELECT jobq.enqueue('picky', queue => 'first', delay => '1 h')`);
	await go('queue/first');
	await page.value('document.getElementById("toasts").replaceChildren()');
	await page.click('Edit settings');
	await asked('Settings of queue "first"');
	await put('max_length', '9');
	await answer('Save');
	is(sql(`SELECT open || ' ' || max_length FROM jobq.queues WHERE name = 'first'`), 'true 9');
	sql(`SELECT jobq.cancel_many(queue => 'first'); SELECT jobq.drop_queue('first')`);
	await go('queue/default');
	await page.until('the times of a kind', `[...document.querySelectorAll("tbody tr")].some((r) => r.cells[0].innerText.includes("picky") && /\\d m?s/.test(r.innerText))`);
	await page.until('its chart', `!!document.querySelector('svg[aria-label^="Throughput: "]')`);
	await page.click('Day');
	await page.until('the last day', `document.querySelector('.chart tbody').rows.length === 24`);
});
await test('a click is not lost when the page changes under the pointer', async () => {
	sql(`SET ROLE boss; SELECT jobq.create_queue('moved', mode => 'consumer')`);
	await go('queues');
	await page.shows('moved');
	const { x, y } = await page.value(`(() => {
		const menu = document.querySelector('[aria-label="More actions for queue moved"]');
		menu.scrollIntoView({ block: 'center' });
		const r = menu.getBoundingClientRect();
		return { x: r.x + r.width / 2, y: r.y + r.height / 2 };
	})()`);

	await page.send('Input.dispatchMouseEvent', { type: 'mousePressed', x, y, button: 'left', buttons: 1, clickCount: 1 });
	// rows come above
	sql(`SET ROLE boss; SELECT jobq.create_queue('above ' || n, mode => 'consumer') FROM generate_series(1, 3) n`);
	await page.until('the page has more to show', 'document.getElementById("main").dataset.late !== undefined');
	await page.send('Input.dispatchMouseEvent', { type: 'mouseReleased', x, y, button: 'left', clickCount: 1 });
	await page.until('the menu is open', 'document.querySelector("details.more[open] summary")?.getAttribute("aria-label") === "More actions for queue moved"');
	await page.shows('above 3');
	await page.key('Escape', 27);
	sql(`SET ROLE boss; SELECT jobq.drop_queue(q) FROM unnest('{moved,above 1,above 2,above 3}'::text[]) q`);
});
await test('rows show the last hour and the use of limits', async () => {
	await go('queues');
	await page.until('a chart in a row', `[...document.querySelectorAll('tbody tr')].some((row) => /^outside/.test(row.innerText) && /[\\d,]+ enqueued/.test(row.querySelector('.spark')?.getAttribute('aria-label')))`);
	await page.until('the use of a limit', `[...document.querySelectorAll('tbody tr')].some((row) => /^mail/.test(row.innerText) && row.querySelector('progress')?.getAttribute('aria-label') === 'mail: 0 of 2')`);
	await go('kinds');
	await page.until('a chart', `[...document.querySelectorAll('tbody tr')].some((row) => /^picky/.test(row.innerText) && row.querySelector('.spark .bad-fill'))`);
	await page.until('a kind of consumers', `[...document.querySelectorAll('tbody tr')].some((row) => /^parcel/.test(row.innerText) && /consumers/.test(row.innerText))`);
	await go('tenants');
	await page.until('tenants', `[...document.querySelectorAll('tbody th')].some((e) => e.innerText === 'acme')`);
	await go('usage?by=kind');
	await page.until('the share of a kind', `[...document.querySelectorAll('tbody tr')].some((row) => /^picky/.test(row.innerText) && / %/.test(row.innerText))`);
});
await test('a worker shows what it ran last', async () => {
	await go('workers');
	await page.until('a worker', `!!document.querySelector('tbody a[href^="#/worker/"]')`);
	const pid = sql('SELECT pid FROM jobq.workers WHERE cardinality(last_jobs) > 0 ORDER BY pid LIMIT 1');

	await go(`worker/${pid}`);
	await page.until('its jobs', `[...document.querySelectorAll('tbody th a')].map((a) => a.textContent).join() === ${JSON.stringify(sql(`SELECT string_agg(l.id::text, ',' ORDER BY l.n) FROM jobq.workers w, unnest(w.last_jobs) WITH ORDINALITY l (id, n) WHERE w.pid = ${pid} AND EXISTS (SELECT FROM jobq.jobs j WHERE j.id = l.id)`))}`);
});
await test('limiters and monitors are created, changed and deleted', async () => {
	await go('limits');
	await page.click('Create a limiter');
	await put('name', 'payments');
	await put('max_running', '5');
	await answer('Save');
	await page.until('the limiter', `[...document.querySelectorAll('tbody tr')].some((row) => /^payments/.test(row.innerText) && /0 of 5/.test(row.innerText))`);
	await page.click('Edit limiter payments');
	await put('max_running', '7');
	await answer('Save');
	await page.shows('0 of 7');
	await page.click('More actions for limiter payments');
	await page.click('Delete');
	await answer('Delete');
	await page.until('it is gone', '!document.querySelector("main").innerText.includes("payments")');
	await go('alerts');
	await page.click('Create a monitor');
	await put('name', 'too many wait');
	await put('condition', 'ready');
	await put('above', '1');
	await put('queue', 'outside');
	await answer('Save');
	await page.until('an alert', `[...document.querySelectorAll('tbody tr')].some((row) => /^too many wait/.test(row.innerText) && /ready jobs of queue outside/.test(row.innerText))`);
	is(sql(`SELECT format('%s %s %s', condition, above, queue) FROM jobq.monitors`), 'ready 1 outside');
	await page.click('More actions for monitor too many wait');
	await page.click('Delete');
	await answer('Delete');
	await page.until('it is gone', '!document.querySelector("main").innerText.includes("too many wait")');
});
await test('time goes from left to right', async () => {
	const flow = sql(`SELECT batch_id FROM jobq.jobs WHERE batch_id IS NOT NULL ORDER BY id LIMIT 1`);

	await go(`batch/${flow}`);
	await page.until('a bar for each step that has run', `document.querySelectorAll('.timeline rect').length === ${sql(`SELECT count(*) FROM jobq.jobs WHERE batch_id = ${flow} AND started_at IS NOT NULL`)}`);
	is(await page.value(`(() => {
		const left = Object.fromEntries([...document.querySelectorAll('.timeline a')].map((a) => [a.textContent.slice(0, 7), Number(a.nextElementSibling.getAttribute('x'))]));

		return left['freight'] > Object.values(left)[0];
	})()`), true);
	await go(`job/${sql(`SELECT id FROM jobq.dead_letters WHERE kind = 'evil' LIMIT 1`)}`);
	await page.until('two attempts, and the time before each', `[...document.querySelectorAll('.timeline rect')].map((e) => e.getAttribute('class')).join() === 'soft-fill,bad-fill,soft-fill,bad-fill'`);
});

const flow = sql(`SELECT batch_id FROM jobq.jobs WHERE batch_id IS NOT NULL ORDER BY id LIMIT 1`);
const bad = sql(`SELECT id FROM jobq.dead_letters WHERE kind = 'evil' LIMIT 1`);
const step = sql(`SELECT id FROM jobq.jobs WHERE batch_id = ${flow} ORDER BY id DESC LIMIT 1`);
// names and texts that are long, or written from right to left
const LONG = 'com.example.invoicing.statements.render_and_archive_the_document_for_every_customer';

sql(`CREATE FUNCTION long_lines(p jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION E'Traceback:\\n%', repeat(E'  File "/srv/app/handlers/module.py", line 7\\n', 200) || repeat('x', 3000); END $$`);
sql(`SELECT jobq.create_queue('reports.monthly.department-of-very-long-queue-names', max_running => 2, rate => '1000 per minute burst 50'),
	jobq.register('${LONG}', 'long_lines(jsonb)', max_attempts => 1, queue => 'reports.monthly.department-of-very-long-queue-names', max_running => 3)`);
const far = sql(`SET ROLE boss; SELECT jobq.enqueue('${LONG}', '{"\u05e2\u05d1\u05e8\u05d9\u05ea": "\u05e9\u05dc\u05d5\u05dd 123"}', tags => '{${'a long tag '.repeat(5)}}')`);

sql(`SELECT jobq.wait(${far}, '5 min')`);
await test('texts from right to left do not change places, and a long error does not fill the page', async () => {
	await page.size(1280, 850);
	await go(`job/${far}`);
	await page.until('the payload', 'document.querySelectorAll("pre[aria-label=Payload] bdi").length === 2');
	is(await page.value('(([name, value]) => name.getBoundingClientRect().right <= value.getBoundingClientRect().left)(document.querySelectorAll("pre[aria-label=Payload] bdi"))'), true);
	is(await page.value('Math.max(...[...document.querySelectorAll("main tr")].map((e) => e.offsetHeight)) < 300'), true);
});
const views = ['overview', `job/${far}`, 'queues', 'queue/mail', 'jobs', 'failures', 'dead', 'batches', `batch/${flow}`, 'schedules', 'schedule', `schedule/${encodeURIComponent('<img src=x onerror=harmed=1>')}`, 'workers', 'kinds', 'limits', 'tenants', 'usage', 'usage?by=kind', 'alerts', 'audit', 'enqueue?kind=picky', 'doctor', `job/${bad}`, `job/${step}`];
const names = new Map([['usage?by=kind', 'usage-kind'], ['queue/mail', 'queue'], [`schedule/${encodeURIComponent('<img src=x onerror=harmed=1>')}`, 'schedule'], ['schedule', 'schedule-new'], ['enqueue?kind=picky', 'enqueue'], [`batch/${flow}`, 'batch'], [`job/${bad}`, 'dead-letter'], [`job/${step}`, 'step'], [`job/${far}`, 'long']]);

for (const [width, scheme] of [1440, 1024, 390].flatMap((width) => [[width, 'light'], [width, 'dark']]))
	await test(`all views, ${width} wide, ${scheme}`, async () => {
		await page.size(width, 850);
		await page.colours(scheme);
		for (const view of views) {
			await go(view);
			await page.until('it is drawn', 'document.querySelector("main h1") && document.querySelectorAll("main *").length > 5');
			writeFileSync(join(folder, `${names.get(view) ?? view}-${width}-${scheme}.png`), await page.picture());
			// a browser of a phone makes the window as wide as the page
			is(`${view}: ${await page.value('document.documentElement.scrollWidth')}`, `${view}: ${width}`);
			is(`${view}: ${await page.value(`[...document.querySelectorAll('.acts button, .acts summary')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > ${width}).length`)} actions out of sight`, `${view}: 0 actions out of sight`);
			// only a menu has actions that destroy; words are those of the manual
			is(`${view}: ${await page.value('[...document.querySelectorAll("main button.danger")].filter((e) => e.checkVisibility()).map((e) => e.textContent).join()')}`, `${view}: `);
			is(`${view}: ${await page.value('/\\bmend|forget|it has said|\\blater\\b|may run from|look again|too late|tried again|at a time|what and when/i.exec(document.querySelector("main").innerText)?.[0]')}`, `${view}: undefined`);
			if (!axe)
				continue;
			if (!await page.value('typeof axe === "object"'))
				await page.value(readFileSync(axe, 'utf8'));
			const found = await page.value(`axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'], resultTypes: ['violations'] })
				.then((r) => r.violations.map((v) => v.id + ': ' + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + ' ' + n.failureSummary).join('; ')).join('\\n'))`);

			is(`${view}: ${found}`, `${view}: `);
		}
	});
await test('what jobs carry is text, and never markup', async () => {
	await page.size(1280, 850);
	const done = sql(`SELECT max(id) FROM jobq.jobs WHERE kind LIKE '<img%' AND state = 'completed'`);
	const held = sql(`SELECT id FROM jobq.live_jobs WHERE queue = 'held'`);

	for (const [view, text] of [...views.map((v) => [v, '']), [`job/${done}`, '"<img src=x onerror=harmed=1>": "<img'], [`job/${held}`, '40 % <img src=x'], ['workers', '<img src=x'],
		['jobs?tenant=%3Cscript%3Eharmed%3D1%3C%2Fscript%3E', '<script>harmed=1</script>'], [`job/${bad}`, '<script>harmed=1</script>']]) {
		await go(view);
		await page.until('it is drawn', 'document.querySelectorAll("main *").length > 5');
		await page.shows(text);
		is(await page.value('document.querySelectorAll("main img, main script, main iframe").length'), 0);
	}
	await go(`job/${bad}`);
	await page.shows('<img src=x onerror="window.harmed=1">');
	is(await page.value('window.harmed'), undefined);
});
await test('a view of nothing says so', async () => {
	await go('dead?queue=outside');
	await page.shows('No dead letter matches these filters.');
	await go('job/987654321');
	await page.until('an alert', '!!document.querySelector("main [role=alert]")');
	writeFileSync(join(folder, 'nothing.png'), await page.picture());
});
await test('a role is offered what it may do, and told what it may not see', async () => {
	const other = await browser.page(url, 1280, 850);
	const view = async (to, text) => {
		await other.go('#/overview');
		await other.until('the overview', 'document.title.startsWith("Overview")');
		await other.go(`#/${to}`);
		await other.shows(text);
	};
	const logIn = async (role) => {
		await other.until('the form', 'document.activeElement.name === "role"');
		await other.value('document.activeElement.value = ""');
		await other.type(role);
		await other.key('Tab', 9);
		await other.type(role);
		await other.key('Enter', 13);
		await other.shows('Newest dead letters');
	};

	await logIn('vera');
	for (const [to, text] of [['dead', 'evil'], ['failures', 'it broke'], [`job/${bad}`, 'may not see the payload'], ['schedules', 'Europe/Madrid'], ['queues', 'mail'], [`batch/${flow}`, 'goods']]) {
		await view(to, text);
		is(`${to}: ${await other.value('[...document.querySelectorAll("main button:not([data-action=copy-error]), main summary, main input[type=checkbox]")].map((e) => e.textContent).join()')}`, `${to}: `);
	}
	await view(`job/${bad}`, 'may not see the log');
	is(await other.value('document.querySelector("main").innerText.includes("No log lines")'), false);
	await view('doctor', 'Severity');
	await view('job/987654321', 'Job 987654321 does not exist. ');
	await other.go('#/overview');
	await other.click('Log out');
	await logIn('anna');
	await view('workers', 'No worker runs a job of this role. The privilege "monitor" also shows');
	await view('schedules', 'This role has no schedules');
	is(await other.value('document.getElementById("menu").textContent.includes("Health")'), false);
	await view('doctor', 'needs the privilege "monitor"');
	await view('job/987654321', 'belongs to another role');
	// her own job is hers
	await view(`job/${sql(`SET ROLE anna; SELECT jobq.enqueue('picky', delay => '1 h')`)}`, 'scheduled');
	await other.click('More actions for this job');
	await other.click('Cancel the job');
	await other.until('a question', '!!document.querySelector("dialog[open]")');
	await other.click('Cancel the job');
	await other.shows('cancelled');
	is(other.errors.join('\n'), '');
});
await test('a role that may not manage cannot pause', async () => {
	const other = await browser.page(url, 1280, 850);

	await other.shows('Log in to jobq');
	await other.until('the form', 'document.activeElement.name === "role"');
	await other.type('anna');
	await other.key('Tab', 9);
	await other.type('anna');
	await other.key('Enter', 13);
	await other.shows('Newest dead letters');
	await other.shows('No jobs were enqueued or completed in the last hour.');
	await other.go('#/queues');
	await other.until('the queue that is open to all', 'document.querySelector("tbody th")?.textContent === "default"');
	is(await other.value('document.querySelectorAll("main button").length'), 0);
	await other.go(`#/job/${bad}`);
	await other.until('it is not hers', '!!document.querySelector("main [role=alert]")');
	is(other.errors.join('\n'), '');
});
await test('log out', async () => {
	await go('overview');
	await page.click('Log out');
	await page.shows('Log in to jobq');
	is(await page.value('fetch("api/queues").then((r) => r.status)'), 401);
	await page.until('the form', 'document.activeElement.name === "role"');
	await page.type('boss');
	await page.key('Tab', 9);
	await page.type('secret');
	await page.key('Enter', 13);
	await page.shows('Newest dead letters');
});
await test('a lost connection is seen', async () => {
	await page.until('it is live', 'document.getElementById("live").textContent === "live"');
	process.kill(Number(process.env.JOBQ_WEB_PID), 'SIGKILL');
	await page.shows('connection lost, retrying');
	writeFileSync(join(folder, 'lost.png'), await page.picture());
});
await test('no errors in the page', async () => is(page.errors.join('\n'), ''));
await browser.close();
