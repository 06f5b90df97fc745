/*-------------------------------------------------------------------------
 *
 *	  Tallies: the counters of a limiter's key: the number of running jobs, the bucket, the
 *	  failed attempts, and the timer of the next check.
 *
 * A tally occupies the slot of an entry, and is found by a hash.  A tally is kept while there
 * is a state to remember.  A key without a tally has no running job, a full bucket, and no
 * failed attempt.  A process that pops a job has just freed the job's entry, so there is always a slot for one
 * tally then.  A second one may need the entry of another job (permits_take()).
 *
 * Too many tallies would leave no entries for jobs.  Bucket and failures of a key without
 * running jobs are therefore forgotten if there are more than JOBQ_MAX_TALLIES.  A client must
 * not be able to exhaust the pool by inventing keys.
 *
 * src/ready/tally.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"
#include "utils/timestamp.h"

#include "ready/inner.h"

StaticAssertDecl(sizeof(JobqTally) == sizeof(JobqEntry), "a tally takes the place of an entry");
StaticAssertDecl(offsetof(JobqTally, lane) == offsetof(JobqEntry, lane),
				 "a tally can be told from an entry");

static void tallies_sweep(JobqDatabase *db, TimestampTz now);

/*
 * Return the limiter with this index if it is keyed, or NULL.
 */
const JobqLimiter *
keyed_policy(JobqDatabase *db, uint16 limiter)
{
	AssertLocked(db->lock);
	return limiter != JOBQ_NO_LIMITER && db->limits->limiters[limiter].keyed
		? &db->limits->limiters[limiter] : NULL;
}

/*
 * Return the limiter with this hash if it is keyed, or NULL.
 */
const JobqLimiter *
keyed_policy_of(JobqDatabase *db, uint32 limiter)
{
	return keyed_policy(db, jobq_limiter_find(db, 0, limiter));
}

static uint32 *
tally_bucket(JobqDatabase *db, uint32 limiter, uint32 key)
{
	return &db->ready->tally_bucket[hash_combine(limiter, key) %
									jobq_max_lanes];
}

/*
 * Return the tally of the key, or JOBQ_NONE.
 */
uint32
tally_find(JobqDatabase *db, uint32 limiter, uint32 key)
{
	AssertLocked(db->lock);
	for (uint32 i = *tally_bucket(db, limiter, key); i != JOBQ_NONE;
		 i = TALLY(db, i)->next)
		if (TALLY(db, i)->limiter == limiter && TALLY(db, i)->key == key)
			return i;
	return JOBQ_NONE;
}

/*
 * Return the tally of the key, created if necessary.  JOBQ_NONE if there is no free entry.
 */
uint32
tally_make(JobqDatabase *db, uint32 limiter, uint32 key, TimestampTz now)
{
	uint32	   *bucket = tally_bucket(db, limiter, key);
	uint32		index = tally_find(db, limiter, key);
	JobqTally  *tally;

	AssertExclusive(db->lock);
	if (index != JOBQ_NONE)
		return index;
	if (db->ready->ntallies >= JOBQ_MAX_TALLIES / 2)
		tallies_sweep(db, now);
	if (db->ready->nfree == 0)
		return JOBQ_NONE;
	index = place_take(db);
	tally = TALLY(db, index);
	memset(tally, 0, sizeof(JobqTally));
	tally->lane = JOBQ_NO_LANE;
	tally->limiter = limiter;
	tally->key = key;
	tally->timer = JOBQ_NONE;
	tally->next = *bucket;
	*bucket = index;
	db->ready->ntallies++;
	return index;
}

/*
 * Free the tally if there is no state to remember.
 */
void
tally_forget(JobqDatabase *db, uint32 index, TimestampTz now)
{
	JobqTally  *tally = TALLY(db, index);
	const JobqLimiter *policy;
	uint32	   *link;

	AssertExclusive(db->lock);
	Assert(tally->lane == JOBQ_NO_LANE && tally->running >= 0);
	if (tally->running > 0 || tally->timer != JOBQ_NONE)
		return;
	policy = keyed_policy_of(db, tally->limiter);
	if (policy != NULL && !pace_is_fresh(policy, &tally->pace, now) &&
		db->ready->ntallies <= JOBQ_MAX_TALLIES)
		return;
	link = tally_bucket(db, tally->limiter, tally->key);
	while (*link != index)
		link = &TALLY(db, *link)->next;
	*link = tally->next;
	Assert(db->ready->ntallies > 0);
	place_give(db, index);
	db->ready->ntallies--;
}

/*
 * Free some tallies without a state to remember.  Buckets become full with time.
 */
static void
tallies_sweep(JobqDatabase *db, TimestampTz now)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
	for (int i = 0; i < SAMPLE; i++)
	{
		ready->tally_hand = (ready->tally_hand + 1) % jobq_ready_entries;
		if (ready->entries[ready->tally_hand].lane == JOBQ_NO_LANE)
			tally_forget(db, ready->tally_hand, now);
	}
}

/*
 * Forget all tallies: no job is counted, and all buckets are full.
 */
void
jobq_tallies_clear(JobqDatabase *db)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
	for (uint32 i = 0; i < (uint32) jobq_ready_entries; i++)
		if (ready->entries[i].lane == JOBQ_NO_LANE)
			place_give(db, i);
	for (uint32 i = 0; i < (uint32) jobq_max_lanes; i++)
		ready->tally_bucket[i] = JOBQ_NONE;
	ready->ntallies = ready->timers.n = 0;
}

/*
 * May a job of the key start?  The tally may be NULL.  If only time is missing, lower *due
 * to the time of the next check.
 */
bool
tally_may_start(const JobqLimiter *policy, JobqTally *tally, TimestampTz now,
				TimestampTz *due)
{
	if (policy == NULL || tally == NULL)
		return true;
	if (policy->max_running > 0 &&
		tally->running >= policy->max_running)
		return false;
	return jobq_pace_free(policy, &tally->pace, now, due);
}

/*
 * Is every job of this key of the limiter prevented from starting now?  If only
 * time is missing, lower *due to the time of the next check.
 */
bool
tally_is_full(JobqDatabase *db, uint16 limiter, uint32 key, TimestampTz now,
			  TimestampTz *due)
{
	const JobqLimiter *policy = key == 0 ? NULL : keyed_policy(db, limiter);
	uint32		index = policy == NULL ? JOBQ_NONE
		: tally_find(db, policy->kind, key);

	return index != JOBQ_NONE && !tally_may_start(policy, TALLY(db, index), now, due);
}

/* ---------- timers ---------- */

/*
 * Set the time at which the key is checked; DT_NOEND: no time.
 */
void
tally_set_timer(JobqDatabase *db, uint32 index, TimestampTz due)
{
	AssertExclusive(db->lock);
	Assert(TALLY(db, index)->lane == JOBQ_NO_LANE);
	timer_set(&db->ready->timers, index, due);
	db->limits->due = Min(db->limits->due, due);
}

/*
 * Return a tally whose time has come, or JOBQ_NONE.  The caller settles the heaps of its
 * key.  If there is none, db->limits->due is lowered to the next time.
 */
uint32
tally_due(JobqDatabase *db, TimestampTz now)
{
	uint32		index = timer_take_due(&db->ready->timers, now);

	AssertExclusive(db->lock);
	if (index == JOBQ_NONE)
		db->limits->due = Min(db->limits->due, timers_next(&db->ready->timers));
	return index;
}

/*
 * The clock was put back: check all tallies that wait for a later time.
 */
void
jobq_tallies_put_back(JobqDatabase *db, TimestampTz now)
{
	AssertExclusive(db->lock);
	timers_put_back(&db->ready->timers, now);
}
