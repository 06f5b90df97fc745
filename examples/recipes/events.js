// Server-sent events of a job, as a handler for http.createServer: /events?job=7&until=1790000000&signature=...
const { createHmac, timingSafeEqual } = require('node:crypto');
const { Pool } = require('pg');
const { wait } = require('../../libraries/node/jobq');
const pool = new Pool();

module.exports = async (request, response) => {
	const query = new URL(request.url, 'http://localhost').searchParams;
	const [job, until] = [query.get('job'), query.get('until')];
	const expected = createHmac('sha256', process.env.SECRET).update(`${job} ${until}`).digest();
	const signature = Buffer.from(query.get('signature') ?? '', 'hex');
	if (signature.length !== expected.length || !timingSafeEqual(signature, expected) || until < Date.now() / 1000)
		return response.writeHead(403).end();
	response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store', 'X-Accel-Buffering': 'no' });
	for (let seconds = 0, last, status; !status?.finished_at && !response.destroyed; seconds = 1) {
		status = await wait(pool, job, seconds);
		const event = JSON.stringify({ state: status.state, progress: status.progress ?? 0, message: status.message });
		response.write(event === last ? ': still there\n\n' : `data: ${event}\n\n`);
		last = event;
	}
	response.end();
};
