// A consumer of jobq in Node, as small as the others.
//
// usage: jobq.mjs work '{"connections": 4, "batch": 100}'

import pg from 'pg';
import { count, handle, talk } from './worker.mjs';

const { connections, batch } = JSON.parse(process.argv[3]);

async function consume(client) {
	const query = (text, values) => client.query({ name: text, text, values });
	for (;;) {
		const { rows } = await query("SELECT id, token, kind, payload FROM " +
			"jobq.reserve('{outside}', $1, wait => '10s')", [batch]);
		if (rows.length === 0)
			continue;
		if (rows.every((job) => job.kind === 'noop'))
			count(rows.length);
		else
			await Promise.all(rows.map((job) => handle(job.kind, job.payload, query)));
		await query('SELECT jobq.ack_many($1::bigint[], $2::bigint[])',
			[rows.map((job) => job.id), rows.map((job) => job.token)]);
	}
}

talk(async () => {
	const clients = Array.from({ length: connections }, () => new pg.Client());
	await Promise.all(clients.map((client) => client.connect()));
	for (const client of clients)
		consume(client).catch((error) => {
			console.error(error);
			process.exit(1);
		});
});
