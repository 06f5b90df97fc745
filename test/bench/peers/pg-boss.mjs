// pg-boss's side of the benchmarks.  A queue per kind.
//
// usage: pg-boss.mjs create
//        pg-boss.mjs work '{"max": 10}' '{"batchSize": 1, ...}' KIND...
//        pg-boss.mjs fill			reads lines "KIND COUNT", answers "filled"
//        pg-boss.mjs load KIND COUNT		sends so many a second
//        pg-boss.mjs send KIND COUNT PAUSE_MS	tells when each was sent, as latency.c

import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { PgBoss } from 'pg-boss';
import { count, handle, talk } from './worker.mjs';

const [mode, ...args] = process.argv.slice(2);
const kinds = ['noop', 'stamp', 'writes', 'sleep', 'compute'];
const still = { supervise: false, schedule: false };
const data = (i) => ({ i, pad: 'x'.repeat(80) });

async function boss(options) {
	const it = new PgBoss({ host: process.env.PGHOST, ...options });
	it.on('error', (error) => console.error(error));
	await it.start();
	return it;
}

if (mode === 'create') {
	const it = await boss(still);
	for (const kind of kinds)
		await it.createQueue(kind, { notify: true });
	await it.stop({ graceful: false });
	process.exit(0);
} else if (mode === 'work')
	talk(async () => {
		const it = await boss(JSON.parse(args[0]));
		const query = (text, values) => it.getDb().executeSql(text, values);
		for (const kind of args.slice(2))
			await it.work(kind, JSON.parse(args[1]), kind === 'noop' ?
				async (jobs) => count(jobs.length) :
				(jobs) => Promise.all(jobs.map((job) => handle(kind, job.data, query))));
	});
else if (mode === 'fill') {
	const it = await boss(still);
	createInterface({ input: process.stdin }).on('line', async (line) => {
		const [kind, jobs] = line.split(' ');
		for (let i = 0; i < jobs; i += 10000)
			await it.insert(kind, Array.from({ length: Math.min(jobs - i, 10000) },
				(_, k) => ({ data: data(i + k) })));
		console.log('filled');
	}).on('close', () => process.exit(0));
} else if (mode === 'load') {
	const [kind, rate] = [args[0], Number(args[1])];
	const it = await boss(still);
	process.stdin.on('end', () => process.exit(0)).resume();
	console.log('sending');
	for (let sent = 0, begun = performance.now();;) {
		const due = (performance.now() - begun) * rate / 1000;
		for (; sent < due; sent++)
			it.send(kind, data(sent));
		await sleep(1);
	}
} else if (mode === 'send') {
	const [kind, jobs, pause] = [args[0], Number(args[1]), Number(args[2])];
	const it = await boss(still);
	const sent = [];
	for (let i = 0; i < jobs; i++) {
		await sleep(pause);
		await it.send(kind, { i });
		sent.push(`s ${i} ${Math.round((performance.timeOrigin + performance.now()) * 1000)}`);
	}
	console.log(sent.join('\n'));
	process.exit(0);
}
