#!/usr/bin/env node
// Makes thumbnails.  usage: example.js QUEUE; PGHOST ... give the database.
const { Consumer, Reject } = require('./jobq');

async function make(job) {
	if (!job.payload.image) throw new Reject('no image');
	job.signal.throwIfAborted();		// throws an error if another consumer may have the job
	return { file: `${job.payload.image}.png` };
}

const handlers = { 'thumbnail.make': make };
new Consumer({}, [process.argv[2]], handlers, { parallel: 4, stopTimeout: 20 }).run().then(() => process.exit());
