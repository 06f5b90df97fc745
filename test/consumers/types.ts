// The types of the library for Node: this file compiles, and the marked lines do not.
import { Client, Pool } from 'pg';
import { Consumer, Decimal, FakeQueue, Job, Reject, Release, Retry, enqueue, enqueueMany, status, wait } from 'jobq';

async function produce(client: Client, pool: Pool): Promise<string> {
	const id = await enqueue(client, 'mail', { to: 'Ann', amount: new Decimal('1.50') }, { queue: 'mail', delay: 30, run_at: new Date() });
	const ids: (number | bigint | null)[] = await enqueueMany(pool, 'mail', [1, 2n], { uniqueness: { for: '1 day', on_conflict: 'skip' } });
	// @ts-expect-error there is no such option
	await enqueue(client, 'mail', {}, { prio: 1 });
	// @ts-expect-error there is no such effect
	await enqueue(client, 'mail', {}, { uniqueness: { on_conflict: 'explode' } });
	if (id === null) return `${ids.length}`;
	return (await wait(client, id, 10)).state + (await status(client, '00000000-0000-0000-0000-000000000001')).state;
}

const handlers = {
	async mail(job: Job<{ to?: string }>) {
		job.progress(50, 'half');
		job.log('line', 'warning');
		if (job.attempt === 1) await job.ack(new Client(), { sent: true });
		// @ts-expect-error there is no such level
		job.log('line', 'loud');
		if (!job.payload.to) throw new Reject('no recipient');
		if (job.attempt > 2) throw new Retry(10, 'again');
		if (job.signal.aborted) throw new Release(5);
		return { sent: true };
	},
};
const consumer = new Consumer({ database: 'app' }, ['mail'], handlers, { parallel: 4 });
// @ts-expect-error there is no such setting
new Consumer({}, ['mail'], handlers, { paralel: 4 });
consumer.run().then(() => produce);
consumer.stop(5);
const queue = new FakeQueue(handlers);
enqueue(queue, 'mail').then(() => queue.run()).then(() => queue.jobs[0].result);
