// What the workers in Node share: how they talk with the benchmark.
//
// A worker says "ready" when its modules are loaded, begins at "go", and tells
// from then on how many jobs it has handled:
//	going TIME		connected, about to ask for jobs
//	first TIME		when the first job began
//	n COUNT TIME		so many have ended
// At "stamps" it tells what jobs of the kind "stamp" have noted, as latency.c
// does, and then "end".  Times are microseconds of CLOCK_REALTIME.  It ends
// when its input does.

import { createInterface } from 'node:readline';

const now = () => Math.round((performance.timeOrigin + performance.now()) * 1000);
const say = (line) => process.stdout.write(line + '\n');
let stamps = [];
let done = 0, told = 0, first = 0;

// So much CPU time, however many processes share the processors.
const used = () => {
	const { user, system } = process.cpuUsage();
	return (user + system) / 1000;
};
const spin = (ms) => {
	for (const end = used() + ms; used() < end;);
};

// What a job does; query(text, values) asks the database.
export async function handle(kind, payload, query) {
	if (first === 0) {
		first = now();
		say(`first ${first}`);
	}
	if (kind === 'stamp')
		stamps.push(`r ${payload.i} ${now()}`);
	else if (kind === 'writes')
		await query('SELECT bench.three_writes($1)', [payload.i]);
	else if (kind === 'sleep')
		await new Promise((resolve) => setTimeout(resolve, 5));
	else if (kind === 'compute')
		spin(2);
	done++;
}

// The same without a promise, for jobs that need none.
export function count(jobs) {
	if (first === 0) {
		first = now();
		say(`first ${first}`);
	}
	done += jobs;
}

export function talk(go) {
	createInterface({ input: process.stdin }).on('line', (line) => {
		if (line === 'go')
			go().then(() => say(`going ${now()}`), (error) => {
				console.error(error);
				process.exit(1);
			});
		else if (line === 'stamps') {
			say([...stamps, 'end'].join('\n'));
			stamps = [];
		}
	}).on('close', () => process.exit(0));
	setInterval(() => {
		if (done !== told)
			say(`n ${told = done} ${now()}`);
	}, 20);
	say('ready');
}
