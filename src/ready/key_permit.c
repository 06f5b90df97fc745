/*-------------------------------------------------------------------------
 *
 *	  Permits of a limiter's keys: how many jobs of each key run, and the tokens and failures
 *	  of the key.
 *
 * src/ready/key_permit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/*
 * A job of this key of the limiter starts, and takes "cost" tokens.  Returns the
 * key's tally, or JOBQ_NONE if there are no limits, or if there is no free entry.
 */
uint32
keyed_take(JobqDatabase *db, uint16 limiter, uint32 key, int cost,
		   TimestampTz now)
{
	const JobqLimiter *policy = key == 0 ? NULL : keyed_policy(db, limiter);
	uint32		index;

	AssertExclusive(db->lock);
	if (policy == NULL)
		return JOBQ_NONE;
	index = tally_make(db, policy->kind, key, now);
	if (index == JOBQ_NONE)
		return JOBQ_NONE;
	TALLY(db, index)->running++;
	jobq_pace_spend(policy, &TALLY(db, index)->pace, cost, now);
	keyed_settle_all(db, policy->kind, key, now);
	return index;
}

/*
 * A job of the key is over.  tokens: the number to return, if the job did not run at all;
 * otherwise 0.  The caller settles the key's heaps.
 */
void
keyed_give(JobqDatabase *db, uint32 index, int tokens, TimestampTz now)
{
	JobqTally  *tally = TALLY(db, index);
	const JobqLimiter *policy;

	AssertExclusive(db->lock);
	Assert(tally->lane == JOBQ_NO_LANE && tally->running > 0);
	tally->running--;
	if (tokens == 0)
		return;
	policy = keyed_policy_of(db, tally->limiter);
	if (policy != NULL)
		jobq_pace_spend(policy, &tally->pace, -tokens, now);
}

/*
 * May a job of this key of the limiter start now?
 */
bool
keyed_free(JobqDatabase *db, uint16 limiter, uint32 key, TimestampTz now)
{
	const JobqLimiter *policy = key == 0 ? NULL : keyed_policy(db, limiter);
	TimestampTz due = DT_NOEND;
	uint32		index;

	AssertExclusive(db->lock);
	if (policy == NULL)
		return true;
	index = tally_find(db, policy->kind, key);
	return index == JOBQ_NONE ? db->ready->nfree > 0
		: tally_may_start(policy, TALLY(db, index), now, &due);
}

/*
 * Count a job of the key that runs without having asked for a permit.  Returns the tally,
 * or JOBQ_NONE if the key has no limits or there is no free entry.
 */
uint32
keyed_count(JobqDatabase *db, uint32 limiter, uint32 key, TimestampTz now)
{
	uint32		index = JOBQ_NONE;

	AssertExclusive(db->lock);
	if (key != 0 && keyed_policy_of(db, limiter) != NULL)
		index = tally_make(db, limiter, key, now);
	if (index != JOBQ_NONE)
	{
		TALLY(db, index)->running++;
		keyed_settle_all(db, limiter, key, now);
	}
	return index;
}

/*
 * Count failed attempts of jobs of this key for the limiter's throttle.  Without a free entry
 * for the tally, the attempts do not count.
 */
void
keyed_failed(JobqDatabase *db, uint16 limiter, uint32 key, int failures, TimestampTz now)
{
	const JobqLimiter *policy = keyed_policy(db, limiter);
	uint32		index = tally_make(db, policy->kind, key, now);

	AssertExclusive(db->lock);
	if (index == JOBQ_NONE)
		return;
	jobq_pace_failed(policy, &TALLY(db, index)->pace, failures, now);
	keyed_settle_all(db, policy->kind, key, now);
}

/*
 * Restore the state of the limiter with this index, or of its key, after a start of the server.
 */
void
jobq_limiter_restore(JobqDatabase *db, uint16 limiter, uint32 key, const JobqSpent *spent,
					 TimestampTz now)
{
	JobqLimiter *policy = &db->limits->limiters[limiter];
	uint32		index;

	AssertExclusive(db->lock);
	if (!policy->keyed)
	{
		pace_restore(policy, &policy->pace, spent, now);
		return;
	}
	index = tally_make(db, policy->kind, key, now);
	if (index == JOBQ_NONE)
		return;
	pace_restore(policy, &TALLY(db, index)->pace, spent, now);
	keyed_settle_all(db, policy->kind, key, now);
}

/*
 * Get the counters of a key.  Returns false if the limiter is not keyed.
 */
bool
jobq_keyed_state(JobqDatabase *db, uint32 limiter, uint32 key,
				 TimestampTz now, JobqKeyedState *state)
{
	const JobqLimiter *policy = keyed_policy_of(db, limiter);
	uint32		index = tally_find(db, limiter, key);
	JobqPace	fresh = {0};
	JobqPace   *pace = index == JOBQ_NONE ? &fresh : &TALLY(db, index)->pace;

	AssertExclusive(db->lock);
	memset(state, 0, sizeof(JobqKeyedState));
	state->due = DT_NOEND;
	if (policy == NULL)
		return false;
	state->max_running = policy->max_running;
	state->running = index == JOBQ_NONE ? 0 : TALLY(db, index)->running;
	state->paced = policy->rate.per_us > 0;
	if (state->paced)
		state->tokens = jobq_pace_tokens(policy, pace, now, &state->due);
	state->throttled = policy->throttle.failures > 0;
	state->failures = jobq_pace_failures(policy, pace, now, &state->rest_until);
	return true;
}
