// graphile-worker's side of the benchmarks.
//
// usage: graphile-worker.mjs create
//        graphile-worker.mjs work '{"concurrentJobs": 1, ...}'

import { Logger, run, runMigrations } from 'graphile-worker';
import { count, handle, talk } from './worker.mjs';

const logger = new Logger(() => (level, message) => {
	if (level === 'error' || level === 'warning')
		console.error(message);
});
const query = (helpers) => (text, values) => helpers.withPgClient((client) =>
	client.query({ name: text, text, values }));
const task = (kind) => (payload, helpers) => handle(kind, payload, query(helpers));
const taskList = { noop: () => count(1) };
for (const kind of ['stamp', 'writes', 'sleep', 'compute'])
	taskList[kind] = task(kind);

if (process.argv[2] === 'create')
	await runMigrations({ logger });
else
	talk(() => run({
		preset: { worker: { logger, ...JSON.parse(process.argv[3]) } },
		taskList,
		noHandleSignals: true,
	}));
