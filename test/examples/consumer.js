#!/usr/bin/env node
// A consumer in Node.  usage: consumer.js QUEUE; PGHOST ... say where.
const { Pool } = require('pg');
const queue = process.argv[2], lease = Number(process.env.LEASE || 30);
const db = new Pool({ max: 2 });
const say = (job, call, ...more) => db.query(`SELECT jobq.${call}`, [job.id, job.token, ...more]);

async function work(kind, payload) {
	await new Promise(done => setTimeout(done, payload.ms || 0));
	if (!payload.image) throw new Error('no image');
	return { file: `${payload.image}.png` };
}

async function handle(job) {
	const [call, text] = await work(job.kind, job.payload)
		.then(result => ['ack', JSON.stringify(result)], e => ['nack', e.message]);
	return say(job, `${call}($1::bigint, $2::bigint, $3)`, text);
}

async function main() {
	let stop = false;
	for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => { stop = true; });
	while (!stop) {
		const { rows } = await db.query("SELECT * FROM jobq.reserve(ARRAY[$1], 5, $2, '5s', 'consumer.js')", [queue, `${lease} s`]);
		const held = new Set(rows);
		const heartbeat = setInterval(() => held.forEach(job =>
			say(job, 'extend($1::bigint, $2::bigint, $3)', `${lease} s`).catch(() => {})), lease * 500);
		for (const job of rows) {
			// not begun when told to stop: back to the queue; an error is JQ011: the lease is over
			await (stop ? say(job, 'release($1::bigint, $2::bigint)') : handle(job)).catch(e => console.error(e.message));
			held.delete(job);
		}
		clearInterval(heartbeat);
	}
	await db.end();
}
main();
