/*-------------------------------------------------------------------------
 *
 * throttles.c
 *	  Failed attempts of jobs with named limiters, and the rests of limiters and keys.
 *
 * test/model/throttles.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

/* The start of the window.  It is stored in milliseconds. */
static TimestampTz
window_start(const Failed *failed)
{
	return (failed->since + 999) / 1000 * 1000;
}

/*
 * Return the end of the rest, or 0 if jobs may start.  A window that is over does not begin again
 * when the clock is put back.
 */
static TimestampTz
rest_until(int n, uint32 key)
{
	const JobqThrottle *throttle = &world.named[n].throttle;
	Failed	   *failed = &world.failed[n][key];
	TimestampTz end = window_start(failed) + throttle->window;

	if (world.now >= end || window_start(failed) > world.now + USECS_PER_MINUTE)
		failed->n = 0;
	return throttle->failures > 0 && failed->n >= throttle->failures ? end : 0;
}

static void
note_failures(int n, uint32 key, int failures)
{
	Failed	   *failed = &world.failed[n][key];

	(void) rest_until(n, key);
	if (failed->n == 0)
		failed->since = world.now;
	failed->n += failures;
}

/*
 * Some attempts of jobs with the same needs fail.
 */
void
op_fails(uint32 a, uint32 b, uint32 c)
{
	Queue	   *queue = &world.queues[a % NQUEUES];
	JobqPush	job = {.queue_id = queue->id,.role = 10};
	int			failures = 1 + c % 3;

	job.group = b % 2 == 0 ? 0 : queue->id * 100 + 1 + (b >> 2) % 3;
	for (int n = 0; n < NNAMED; n++)
	{
		JobqNeed   *need = &job.needs[SOURCE(n)];

		if ((a >> (8 + n)) % 2 == 0)
			continue;
		need->limiter = NAME(n);
		need->cost = 1;
		if (world.named[n].keyed)
			need->key = 1 + (b >> (8 + 4 * n)) % NKEYS;
		trace("  %d attempts of key %u of limiter %d fail\n", failures, need->key, n);
	}
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_limits_failed(db, &job, failures, world.now);
	for (int n = 0; n < NNAMED; n++)
	{
		const JobqNeed *need = &job.needs[SOURCE(n)];

		if (need->limiter == 0 || world.named[n].throttle.failures == 0)
			continue;

		/* without a free entry, nothing is counted */
		if (need->key == 0 || tally_find(db, need->limiter, need->key) != JOBQ_NONE)
			note_failures(n, need->key, failures);
	}
	LWLockRelease(db->lock);
}

/*
 * The job was popped: none of its limiters rests.
 */
void
check_rest_of(const JobqPush *job)
{
	for (int n = 0; n < NNAMED; n++)
	{
		const JobqNeed *need = &job->needs[SOURCE(n)];

		if (need->limiter == 0 || job->permits.limiters[SOURCE(n)] == JOBQ_NO_LIMITER ||
			world.forgets || (need->key != 0 && job->permits.tallies[SOURCE(n)] == JOBQ_NONE))
			continue;
		if (rest_until(n, need->key) != 0)
			model_fail("job %d starts, and key %u of limiter %d rests", (int) job->key.id,
					   need->key, n);
	}
}

/*
 * All limiters and keys rest as long as they have to, and no longer.
 */
void
check_throttles(void)
{
	world.forgets |= db->ready->ntallies >= JOBQ_MAX_TALLIES;
	for (int n = 0; n < NNAMED; n++)
	{
		uint16		index = jobq_limiter_find(db, 0, NAME(n));

		if (world.named[n].throttle.failures == 0 || index == JOBQ_NO_LIMITER)
			continue;
		for (uint32 key = 0; key <= NKEYS; key++)
		{
			JobqKeyedState state;
			TimestampTz until;

			if ((key != 0) != world.named[n].keyed)
				continue;
			if (key == 0)
				(void) jobq_pace_failures(&world.named[n], &db->limits->limiters[index].pace,
										  world.now, &until);
			else if (!world.forgets && jobq_keyed_state(db, NAME(n), key, world.now, &state))
				until = state.rest_until;
			else
				continue;
			if (until != rest_until(n, key))
				model_fail("key %u of limiter %d rests until %+.6f, not %+.6f", key, n,
						   (until - world.now) / 1e6, (rest_until(n, key) - world.now) / 1e6);
		}
	}
}
