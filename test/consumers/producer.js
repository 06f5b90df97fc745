// Runs the steps of test/t/produce_libraries.pl with the library for Node, and prints a line for
// each.
const { Client } = require('pg');
const { enqueue, enqueueMany, status, wait } = require('../../libraries/node/jobq');

// like the library, print the digits of numbers
const json = value => JSON.stringify(value, (key, inner) => typeof inner === 'bigint' || inner?.text ? `#${inner}#` : inner)
	.replace(/"#|#"/g, '');
const shown = ({ state, attempt, result }) => `${state} ${attempt} ${json(result)}`;

// In SQL, without the library, no parameter needs a cast.
const UNTYPED = `SELECT jobq.enqueue($1, $2, queue => $3, priority => $4, delay => $5, max_attempts => $6, tags => $7, uniqueness => $8,
	unique_key => $9, headers => $10, options => $11)`;

async function call(client, step, ...values) {
	switch (step) {
		case 'enqueue': return enqueue(client, values[0], JSON.parse(values[1]), JSON.parse(values[2]));
		case 'many':
			return (await enqueueMany(client, values[0], JSON.parse(values[1]), JSON.parse(values[2]))).join(' ');
		case 'native': return enqueue(client, values[0], undefined, {
			queue: 'mail', run_at: new Date('2040-01-02T03:04:05Z'), timeout: 120, tags: ['a', 'b'], unique_key: 'native', uniqueness: { for: 90 },
			options: { uuid: values[1] },
		});
		case 'untyped':
			await client.query(UNTYPED, values);
			return 'done';
		case 'status': return shown(await status(client, values[0]));
		case 'wait': return shown(await wait(client, values[0], Number(values[1])));
	}
}

(async () => {
	const client = new Client({});
	await client.connect();
	await client.query('BEGIN');
	for (const step of process.argv.slice(2)) {
		if (step === 'commit' || step === 'rollback') {
			await client.query(step);
			await client.query('BEGIN');
			continue;
		}
		try {
			console.log(await call(client, ...step.split('\t')));
		} catch (error) {
			if (!error.code) throw error;
			console.log(`error ${error.code}`);
			await client.query('ROLLBACK');
			await client.query('BEGIN');
		}
	}
	await client.query('COMMIT');
	await client.end();
})();
