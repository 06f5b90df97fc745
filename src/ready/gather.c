/*-------------------------------------------------------------------------
 *
 *	  Lanes that gather jobs for a call of a set handler: chunk_wait of a kind.
 *
 * A lane of such a kind that gets its first job is in no heap at first, so no worker finds the
 * lane.  The lane gets a position in its heap when the jobs suffice for a call, or when the first
 * job has waited for chunk_wait.  A lane that gathers has a timer (JobqReady.gathering), and the
 * scheduler serves the timer.
 *
 * A lane in a heap gathers again after a call has taken jobs from the lane, after the lane was
 * empty, or when the lane gets another position while the wait of its first job is not over.  The
 * wait of the jobs that a call has left begins at the time from which the first of them may run, so
 * the wait is never longer than chunk_wait.  The same holds for jobs that were read from the table,
 * and for jobs that return.
 *
 * src/ready/gather.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/*
 * Forget all timers, because all lanes are new.
 */
void
gathering_clear(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	db->ready->gathering.n = 0;
	for (int i = 0; i < jobq_max_lanes; i++)
		db->ready->lanes[i].timer = JOBQ_NONE;
}

/*
 * Return the policy of the lane's kind, if the kind has chunk_wait; otherwise NULL.
 */
static const JobqLimiter *
gather_policy(JobqDatabase *db, const JobqLane *lane)
{
	uint16		index = lane->limiters[JOBQ_OF_KIND];

	AssertLocked(db->lock);
	return index == JOBQ_NO_LIMITER || db->limits->limiters[index].chunk_wait == 0 ? NULL
		: &db->limits->limiters[index];
}

/*
 * Return how many jobs suffice for a call: chunk, or less if a limit of the lane never permits as
 * many, or 1 if a limiter lets the lane's jobs run alone (takes_more()).
 */
static uint32
enough_jobs(JobqDatabase *db, const JobqLane *lane)
{
	double		most = gather_policy(db, lane)->chunk;

	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		const JobqLimiter *limiter = lane->limiters[s] == JOBQ_NO_LIMITER ? NULL
			: &db->limits->limiters[lane->limiters[s]];

		if (limiter == NULL || (limiter->keyed && !key_is_limited(db, lane, s)))
			continue;
		if (limiter->when_taken != JOBQ_WHEN_TAKEN_WAIT)
			return 1;
		if (limiter->max_running > 0)
			most = Min(most, limiter->max_running);
		if (limiter->rate.per_us > 0)
			most = Min(most, limiter->rate.burst / Max(lane->needs[s].cost, 1));
	}
	return (uint32) Max(most, 1);
}

/*
 * The first job of an empty lane is about to come.  Its wait begins at this time.
 */
void
gather_from(JobqLane *lane, TimestampTz since)
{
	if (lane->count == 0)
		lane->since = since;
}

/*
 * Does the lane's kind have chunk_wait?
 */
bool
lane_may_gather(JobqDatabase *db, const JobqLane *lane)
{
	return gather_policy(db, lane) != NULL;
}

/*
 * Has the lane enough jobs for a call?
 */
bool
gather_suffices(JobqDatabase *db, const JobqLane *lane)
{
	return gather_policy(db, lane) == NULL || lane->count >= enough_jobs(db, lane);
}

/*
 * Begin or end the wait of the lane, as its jobs and its policy require.  served: the lane has jobs
 * that workers take.  Returns true if the lane waits.  The caller gives a lane that does not wait a
 * position in a heap.
 *
 * The caller of a pop or push has read the clock before it acquired the lock, so a wait may seem to
 * begin in the future.  If the clock was put back by more than the wait, the wait ends.
 */
bool
gather_settle(JobqDatabase *db, JobqLane *lane, bool served)
{
	JobqReady  *ready = db->ready;
	const JobqLimiter *policy = gather_policy(db, lane);
	TimestampTz until = DT_NOEND;
	bool		waited = lane_gathers(lane);

	AssertExclusive(db->lock);
	if (policy == NULL && !waited)
		return false;
	if (policy != NULL && served && !lane->quarantine && !gather_suffices(db, lane))
	{
		TimestampTz now = jobq_now();

		if (now > lane->since - policy->chunk_wait && now < lane->since + policy->chunk_wait)
			until = lane->since + policy->chunk_wait;
	}
	timer_set(&ready->gathering, JOBQ_LANE_INDEX(db, lane), until);
	if (until == DT_NOEND)
	{
		if (waited && lane->count > 0)
			ready->news++;		/* as if the first entry came now */
		return false;
	}
	db->limits->due = Min(db->limits->due, until);
	return true;
}

/*
 * The clock was put back: check all lanes that gather.
 */
void
jobq_gathering_put_back(JobqDatabase *db, TimestampTz now)
{
	AssertExclusive(db->lock);
	timers_put_back(&db->ready->gathering, now);
	db->limits->due = Min(db->limits->due, now);
}
