// Unit tests of handlers with the queue for unit tests of the library for Node; they need no
// database.
const assert = require('assert');
const { Decimal, FakeQueue, Reject, Release, Retry, enqueue, enqueueMany, status, wait } = require('../../libraries/node/jobq');

const queue = new FakeQueue({
	async mail(job) {
		if (job.payload.to === 'nobody') throw new Reject('no such recipient');
		if (job.payload.to === 'away') throw new Release(600);
		if (job.payload.to === 'busy' && job.attempt === 1) throw new Retry(5, 'busy');
		job.progress(50, 'half');
		job.log('sent', 'warning');
		await enqueue(queue, 'note', { of: job.id });
		return { amount: job.payload.amount, trace: job.headers.trace };
	},
	note() {
		throw new RangeError('no note');
	},
});
const shown = ({ state, attempt, error, delay }) => `${state} ${attempt} ${error} ${delay}`;

(async () => {
	const amount = new Decimal('12345678901234567890.0123');
	const ids = [await enqueue(queue, 'mail', { to: 'Ann', amount }, { headers: { trace: 'x' }, queue: 'out' }),
		...await enqueueMany(queue, 'mail', ['nobody', 'away', 'busy'].map(to => ({ to })), { headers: { trace: 'y' }, delay: '1 min' }),
		await enqueue(queue, 'other')];
	assert.deepEqual(ids, [1, 2, 3, 4, 5]);
	assert.deepEqual(queue.jobs.map(job => job.state), ['ready', 'scheduled', 'scheduled', 'scheduled', 'ready']);
	assert.deepEqual([queue.jobs[1].options.delay, queue.jobs[0].queue, queue.jobs[4].payload], ['1 min', 'out', {}]);
	await queue.run();
	assert.equal(shown(await status(queue, 1)), 'completed 1 null null');
	assert.deepEqual(queue.jobs[0].result, { amount, trace: 'x' });
	assert.deepEqual([queue.jobs[0].progress, queue.jobs[0].message, queue.jobs[0].log], [50, 'half', [['warning', 'sent']]]);
	assert.deepEqual(queue.jobs.slice(1, 6).map(shown), ['dead 1 no such recipient null', 'scheduled 0 null 600', 'scheduled 1 busy 5',
		'scheduled 0 null 10', 'ready 0 null null']);
	for (let i = 0; i < 3; i++) await queue.run();
	assert.equal(shown(await wait(queue, 4)), 'completed 2 null null');
	assert.equal(shown(queue.jobs[5]), 'dead 3 RangeError: no note null');
	await assert.rejects(enqueue(queue, 'mail', { to: { toJSON() { throw new Error('no JSON'); } } }), /no JSON/);
	const uuid = '6F1C2A9E-1b3d-4c5e-8f70-1234567890ab';
	const byUuid = await enqueue(queue, 'mail', { to: 'Bo' }, { options: { uuid } });
	assert.equal(await status(queue, uuid.toLowerCase()), queue.jobs[byUuid - 1]);
	assert.equal(await status(queue, String(byUuid)), queue.jobs[byUuid - 1]);
	for (const unknown of [0, 99, '00000000-0000-4000-8000-000000000000', 'undefined'])
		await assert.rejects(status(queue, unknown), { message: `job ${unknown} does not exist` });
	const own = new FakeQueue(async job => {
		await job.ack(own, { own: true });
		return 'ignored';
	});
	await enqueue(own, 'settle');
	await own.run();
	assert.deepEqual([own.jobs[0].state, own.jobs[0].attempt, own.jobs[0].result], ['completed', 1, { own: true }]);
	console.log('all hold');
})();
