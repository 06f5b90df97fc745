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
const go = async (to) => {
	await page.go(`#/${to}`);
	await page.until(`view ${to}`, `location.hash === ${JSON.stringify(`#/${to}`)} && document.title !== "" && !document.querySelector(".loading")`);
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
	await page.value('document.querySelector("form.filters input[name=queue]").focus()');
	await page.type('trouble');
	await page.key('Enter', 13);
	await page.until('the filter is in the address', 'location.hash === "#/failures?queue=trouble&kind=" || location.hash === "#/failures?queue=trouble"');
	await rows(6);
	is(await page.value('[...document.querySelectorAll("tbody tr")].map((r) => /\\bnew\\b/.test(r.innerText)).join()'), 'true,false,false,false,false,false');
	is(await page.value('document.querySelector("tbody th").innerText.includes("host unreachable: no answer for order")'), true);
	writeFileSync(join(folder, 'failures-trouble.png'), await page.picture());
	// its dead letters, and no others
	await page.click('20 dead letters');
	await rows(20);
	await page.value('history.back()');
	await rows(6);
	await page.value('document.querySelector("tbody tr summary").click()');
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
		sql(`SELECT jobq.resume('night')`);
		await page.until('the end', `[...document.querySelectorAll('h1 .state, tbody .state')].map((e) => e.textContent).join() === '${name === 'batch' ? 'completed' : 'completed,completed'}'`);
		sql(`SELECT jobq.cancel_many(queue => 'outside', state => 'waiting')`);
	}
	await go('jobs');
	await page.until('the first page is live', 'document.getElementById("live").textContent === "live"');
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
await test('jobs are searched', async () => {
	await go('jobs');
	await page.key('/', 191);
	await page.until('the search', 'document.activeElement.id === "go-id"');
	await page.value('document.querySelector("input[name=unique_key]").focus()');
	await page.type('k-1');
	await page.key('Enter', 13);
	await page.until('the search is in the address', 'location.hash.includes("key=k-1")');
	await page.until('one is found', 'document.querySelectorAll("tbody tr").length === 1');
	await go('jobs');
	await page.value('document.querySelector("input[name=tenant]").focus()');
	await page.type('acme');
	await page.key('Enter', 13);
	await page.until('the tenant is in the address', 'location.hash.includes("tenant=acme")');
	await page.until('both of the tenant are found', '[...document.querySelectorAll("tbody [data-label=Tenant]")].map((e) => e.textContent).join() === "acme,acme"');
	const id = await page.value('document.querySelector("tbody th a").textContent');

	await page.value('document.getElementById("go-id").focus()');
	await page.type(id);
	await page.key('Enter', 13);
	await page.until('the job by its number', `location.hash === "#/job/${id}"`);
	await page.shows(`Job ${id}`);
	await page.click('acme');
	await page.until('its tenant leads to the others', 'location.hash.includes("tenant=acme")');
});

const flow = sql(`SELECT batch_id FROM jobq.jobs WHERE batch_id IS NOT NULL ORDER BY id LIMIT 1`);
const bad = sql(`SELECT id FROM jobq.dead_letters WHERE kind = 'evil' LIMIT 1`);
const step = sql(`SELECT id FROM jobq.jobs WHERE batch_id = ${flow} ORDER BY id DESC LIMIT 1`);
const views = ['overview', 'queues', 'jobs', 'failures', 'dead', 'batches', `batch/${flow}`, 'schedules', 'workers', 'kinds', 'doctor', `job/${bad}`, `job/${step}`];
const names = new Map([[`batch/${flow}`, 'batch'], [`job/${bad}`, 'dead-letter'], [`job/${step}`, 'step']]);

for (const [width, scheme] of [[1280, 'light'], [390, 'dark']])
	await test(`all views, ${width} wide, ${scheme}`, async () => {
		await page.size(width, 850);
		await page.colours(scheme);
		for (const view of views) {
			await go(view);
			await page.until('it is drawn', 'document.querySelector("main h1") && document.querySelectorAll("main *").length > 5');
			writeFileSync(join(folder, `${names.get(view) ?? view}-${width}-${scheme}.png`), await page.picture());
			is(`${view}: ${await page.value('document.documentElement.scrollWidth <= innerWidth')}`, `${view}: true`);
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
		is(`${to}: ${await other.value('[...document.querySelectorAll("main button, main summary, main input[type=checkbox]")].map((e) => e.textContent).join()')}`, `${to}: `);
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
