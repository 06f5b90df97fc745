#!/usr/bin/env node
// Takes jobs of a queue.  usage: example.js QUEUE; PGHOST ... give the
// database.
const { Consumer, Reject, Release } = require('./jobq');
const { setTimeout: sleep } = require('timers/promises');

async function makeThumbnail(job) {
	if (!job.payload.image) throw new Reject('no image');
	if (new Date().getHours() === job.payload.not_at) throw new Release(600);
	await sleep(job.payload.ms || 0, null, { signal: job.signal });		// ends if somebody else may have the job
	return { file: `${job.payload.image}.png` };
}

new Consumer({}, [process.argv[2]], makeThumbnail, { parallel: 4 }).run();
