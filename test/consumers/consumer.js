// The consumer of test/perl/JobqLibrary.pm, with the library for Node.
//
// Its handler does what the payload says; it notes in files with which token it has
// begun which job.
const fs = require('fs');
const { setTimeout: sleep } = require('timers/promises');
const { Client } = require('pg');
const { Consumer, Reject, Release, Retry } = require('../../libraries/node/jobq');

const { FOLDER: folder, QUEUES, PARALLEL, NAME, WAIT, LISTEN, LEASE, DEFAULTS, KINDS, STOP } = process.env;
const note = (what, job) => fs.appendFileSync(`${folder}/${what}`, `${job.id} ${job.token}\n`);
const givenBack = new Set();

async function settle(job, client) {
	await client.query('BEGIN');
	await client.query('INSERT INTO done VALUES ($1)', [job.id]);
	if (job.attempt === 1) {
		await job.ack(client);
		throw new Error('undone');
	}
	job.log('before');
	await job.ack(client, { own: true });
	note('settles', job);
	while (!fs.existsSync(`${folder}/go`)) await sleep(20);
	await client.query('COMMIT');
	job.log('after');
	return 'ignored';
}

async function handle(job) {
	const what = job.payload.do;

	note('began', job);
	if (what === 'settle') {
		const client = new Client();
		await client.connect();
		return settle(job, client).finally(() => client.end());
	}
	if (what === 'fail') throw new Error('no image\0');
	if (what === 'odd') throw Object.create(null);
	if (what === 'reject') throw new Reject('this is no image');
	if (what === 'retry' && job.attempt === 1) throw new Retry(0.1, 'once more');
	if (what === 'later' && !givenBack.has(job.id)) {
		givenBack.add(job.id);
		throw new Release(1e-7);
	}
	if (what === 'kill') process.reallyExit(9);
	if (what === 'work') await sleep(2);
	if (what === 'tell') {
		job.log('first line');
		job.log('second \u2028 line\0', 'warning');
		job.progress(40, 'soon');
		job.log(JSON.stringify(job.context));
	}
	while ((what === 'hold' || what === 'tell') && !fs.existsSync(`${folder}/go`)) {
		await sleep(20);
		if (job.signal.aborted) {
			note('lost', job);
			break;
		}
	}
	while (what === 'hang' && !fs.existsSync(`${folder}/go`)) await sleep(20);
	if (what === 'echo') return job.payload.value;
	return what === 'bad result' ? '\0' : { token: job.token, more: 'x'.repeat(what === 'long result' ? 2000 : 1) };
}

const handler = KINDS ? Object.fromEntries(KINDS.split(',').map(kind => [kind, handle])) : handle;
new Consumer({}, QUEUES.split(','), handler, {
	pause: 0.5, stopTimeout: STOP ? Number(STOP) : undefined,
	parallel: Number(PARALLEL), ahead: DEFAULTS ? undefined : 3, lease: Number(LEASE || 60), heartbeat: 1, wait: Number(WAIT || 5), name: NAME,
	listen: LISTEN ? Object.fromEntries(LISTEN.split(' ').map(item => item.split('=').map(part => part === 'dbname' ? 'database' : part))) : null,
}).run().then(() => STOP && process.exit());		// a handler may hang
