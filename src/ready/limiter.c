/*-------------------------------------------------------------------------
 *
 *	  Limiters: how many jobs of a queue or kind may run, and how often a job may start.
 *
 * The scheduler loads the limiters from the tables before it ranks the lanes.  A lane is not
 * served before it is ranked, so no job starts beyond a limit.
 *
 * src/ready/limiter.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"
#include "utils/timestamp.h"

#include "ready/inner.h"

/* Microseconds between loads of new limits, if there are too many limits. */
#define OVERFULL_PAUSE	USECS_PER_SEC

static uint16 *
limiter_bucket(JobqDatabase *db, int32 queue_id, uint32 kind)
{
	return &db->limits->bucket[murmurhash32((uint32) queue_id ^ kind) %
							   jobq_max_limiters];
}

/*
 * Forget all limiters.
 */
void
limiters_clear(JobqDatabase *db)
{
	JobqLimits *limits = db->limits;

	AssertExclusive(db->lock);
	memset(limits->limiters, 0, sizeof(JobqLimiter) * jobq_max_limiters);
	for (int i = 0; i < jobq_max_limiters; i++)
		limits->bucket[i] = JOBQ_NO_LIMITER;
	limits->nlimiters = 0;
	limits->free = JOBQ_NO_LIMITER;
	limits->overfull = false;
}

/*
 * Return the limiter of a queue, or of a kind; JOBQ_NO_LIMITER if there is none.
 */
uint16
jobq_limiter_find(JobqDatabase *db, int32 queue_id, uint32 kind)
{
	const JobqLimiter *limiters = db->limits->limiters;
	uint16		i = *limiter_bucket(db, queue_id, kind);

	AssertLocked(db->lock);
	while (i != JOBQ_NO_LIMITER &&
		   (limiters[i].queue_id != queue_id || limiters[i].kind != kind))
		i = limiters[i].next;
	return i;
}

/*
 * Remove repeated hashes from the array, which has an element for each JobqLimitSource.  The
 * last element stays: if a kind and its queue name the same limiter, the job needs the limiter
 * as one that the queue names, like the other jobs of the queue.
 */
void
jobq_limiters_unique(uint32 *limiters)
{
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
		for (int later = s + 1; later < JOBQ_NLIMITS; later++)
			if (limiters[later] == limiters[s])
				limiters[s] = 0;
}

/*
 * Set the array to the limiters of jobs with this queue and these needs: indexes, or
 * JOBQ_NO_LIMITER.
 */
void
jobq_limiters_find(JobqDatabase *db, int32 queue_id, const JobqNeed *needs,
				   uint16 *limiters)
{
	limiters[JOBQ_OF_QUEUE] = jobq_limiter_find(db, queue_id, 0);
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
		limiters[s] = needs[s].limiter == 0 ? JOBQ_NO_LIMITER
			: jobq_limiter_find(db, 0, needs[s].limiter);
}

/*
 * Add a copy of this limiter, which must not exist yet.  Returns its index, or
 * JOBQ_NO_LIMITER if there is no free slot.
 */
uint16
jobq_limiter_add(JobqDatabase *db, const JobqLimiter *limiter)
{
	JobqLimits *limits = db->limits;
	uint16	   *bucket = limiter_bucket(db, limiter->queue_id, limiter->kind);
	uint16		index = limits->free;

	AssertExclusive(db->lock);
	Assert(jobq_limiter_find(db, limiter->queue_id, limiter->kind) == JOBQ_NO_LIMITER);
	if (index != JOBQ_NO_LIMITER)
		limits->free = limits->limiters[index].next;
	else if (limits->nlimiters < jobq_max_limiters)
		index = limits->nlimiters++;
	else
		return JOBQ_NO_LIMITER;
	limits->limiters[index] = *limiter;
	limits->limiters[index].in_use = true;
	limits->limiters[index].next = *bucket;
	*bucket = index;
	return index;
}

/*
 * Forget a limiter.  No job may hold a permit of the limiter, and no lane may name the
 * limiter.  Otherwise the caller corrects permits and lanes before releasing the lock.
 */
void
jobq_limiter_drop(JobqDatabase *db, uint16 index)
{
	JobqLimits *limits = db->limits;
	JobqLimiter *limiter = &limits->limiters[index];
	uint16	   *link = limiter_bucket(db, limiter->queue_id, limiter->kind);

	AssertExclusive(db->lock);
	Assert(limiter->in_use);
	while (*link != index)
		link = &limits->limiters[*link].next;
	*link = limiter->next;
	memset(limiter, 0, sizeof(JobqLimiter));
	limiter->next = limits->free;
	limits->free = index;
}

/*
 * A job has limits without a limiter: request a load of the limits.  If there are more limits
 * than slots, requests within OVERFULL_PAUSE after a load are ignored.
 */
void
jobq_limits_missed(JobqDatabase *db)
{
	TimestampTz now = jobq_now();

	AssertExclusive(db->lock);
	if (!db->limits->overfull || now < db->limits->loaded_at ||
		now >= db->limits->loaded_at + OVERFULL_PAUSE)
		db->limits->stale = true;
}

/*
 * Does a job need a permit of the limiter to start?  A limiter that only determines turns has
 * no permits.
 */
bool
jobq_limiter_counts(const JobqLimiter *limiter)
{
	return limiter->max_running > 0 || limiter->rate.per_us > 0 ||
		limiter->throttle.failures > 0;
}

/*
 * May a job start now, according to this limiter?  If only time is missing, lower *due to the
 * time of the next check.  The answer of a keyed limiter depends on the key: see keyed_free().
 */
bool
limiter_free(JobqLimiter *limiter, TimestampTz now, TimestampTz *due)
{
	if (limiter->keyed)
		return true;
	if (limiter->max_running > 0 && limiter->running >= limiter->max_running)
		return false;
	return jobq_pace_free(limiter, &limiter->pace, now, due);
}

/*
 * Return how many jobs that need permits of all these limiters may start now.  A limiter may
 * be JOBQ_NO_LIMITER.  If the number changes with time, lower *due to that time.
 */
int
limiters_room(JobqDatabase *db, const uint16 *limiters, TimestampTz now, TimestampTz *due)
{
	int			room = PG_INT32_MAX;

	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		JobqLimiter *limiter;

		if (limiters[s] == JOBQ_NO_LIMITER)
			continue;
		limiter = &db->limits->limiters[limiters[s]];
		if (!limiter_free(limiter, now, due))
			return 0;
		if (limiter->keyed)
			continue;
		if (limiter->max_running > 0)
			room = Min(room, limiter->max_running - limiter->running);
		if (limiter->rate.per_us > 0)
			room = Min(room, Max((int) jobq_pace_tokens(limiter, &limiter->pace, now, due), 1));
	}
	return room;
}

/*
 * Does the first turn come before the other?  By priority of the first job, then by the time
 * of the role's last turn.
 */
bool
turn_before(int32 priority, uint64 served, int32 other_priority,
			uint64 other_served)
{
	if (priority != other_priority)
		return priority < other_priority;
	return served < other_served;
}

/*
 * Is the last free permit of the limiter reserved until a time in the future?  The caller has
 * read the clock before it acquired the lock, and the clock may have been put back.
 */
static bool
is_kept(const JobqLimiter *limiter, TimestampTz now)
{
	return limiter->kept_until > now && !limiter->keyed &&
		limiter->max_running - limiter->running == 1 &&
		limiter->kept_until <= now + 2 * KEEP_PATIENCE;
}

/*
 * Is the last free permit reserved for another role?
 */
bool
place_is_kept_for_others(const JobqLimiter *limiter, Oid role, TimestampTz now)
{
	return is_kept(limiter, now) && limiter->kept_role != role;
}

/*
 * If a permit is reserved, is it reserved for the takers of this heap?
 */
bool
place_is_kept_for(const JobqLimiter *limiter, const JobqHeap *heap)
{
	return limiter->kept_role == heap->role &&
		limiter->kept_queue == heap->queue_id;
}

/*
 * May the taker, a consumer, also take the job for which the permit is reserved?  In this
 * case the taker is not bound by the reservation.
 */
static bool
may_take_either(const JobqLimiter *limiter, const JobqTaker *taker)
{
	bool		queue = false;

	if (taker == NULL || taker->pool >= 0)
		return false;
	for (int i = 0; i < taker->nqueues && !queue; i++)
		queue = taker->queue_ids[i] == limiter->kept_queue;
	if (!queue || taker->any_role)
		return queue;
	for (int i = 0; i < taker->nroles; i++)
		if (taker->roles[i] == limiter->kept_role)
			return true;
	return false;
}

/*
 * Must the taker skip this heap, whose limiters have room, because a permit is reserved?  If
 * so, lower *due to the end of the reservation.  A taker of NULL means any taker.
 */
bool
place_is_kept(JobqDatabase *db, const JobqHeap *heap, const JobqTaker *taker,
			  TimestampTz now, TimestampTz *due)
{
	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		const JobqLimiter *limiter;

		if (heap->limiters[s] == JOBQ_NO_LIMITER)
			continue;
		limiter = &db->limits->limiters[heap->limiters[s]];
		if (is_kept(limiter, now) && !place_is_kept_for(limiter, heap) &&
			!may_take_either(limiter, taker) &&
			!turn_before(db->ready->lanes[heap->root].priority,
						 turn_of(db, heap, heap->limiters[s]),
						 limiter->kept_priority, limiter->kept_served))
		{
			*due = Min(*due, limiter->kept_until);
			return true;
		}
	}
	return false;
}

/*
 * A job of the role takes a permit.  queue_id: the queue of a consumer; 0: a worker.  A
 * reservation for this taker ends.  Any reservation ends if no permit is left.
 */
void
place_taken(JobqLimiter *limiter, Oid role, int32 queue_id)
{
	Assert(limiter->in_use && jobq_limiter_counts(limiter));
	limiter->running++;
	if ((limiter->kept_role == role && limiter->kept_queue == queue_id) ||
		limiter->running >= limiter->max_running)
		limiter->kept_until = 0;
	if (limiter->wants_worker == role)
		limiter->wants_worker = InvalidOid;
}

/*
 * Are all permits of the limiter held, and do its jobs not wait for permits?  False for a
 * keyed limiter, which counts per key: see keyed_settle().
 */
bool
limiter_turns_away(JobqDatabase *db, uint16 index)
{
	const JobqLimiter *limiter = index == JOBQ_NO_LIMITER ? NULL
		: &db->limits->limiters[index];

	AssertLocked(db->lock);
	return limiter != NULL && !limiter->keyed &&
		limiter->when_taken != JOBQ_WHEN_TAKEN_WAIT && limiter->max_running > 0 && limiter->running >= limiter->max_running;
}
