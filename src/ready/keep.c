/*-------------------------------------------------------------------------
 *
 *	  Round robin of roles at a full limiter.
 *
 * A worker that returns a permit is about to pop its next job, and would take the permit
 * again before any other process wakes.  The permit is therefore reserved for a heap with a
 * waiting taker.  Among these heaps, the most urgent first job decides, then the time since
 * the role's last turn.  The taker is woken, and other processes skip the permit.  If the
 * taker does not come within KEEP_PATIENCE, because its process has ended, any process may
 * take the permit, and the role's turn is over.
 *
 * Only one permit of a limiter is reserved at a time.  If more permits are free, no process
 * has to wait.
 *
 * If the next role has no worker, the role requests a worker: the scheduler sees the request
 * in jobq_heap_demand().  If no worker comes within WANT_PATIENCE, the next role may request
 * a worker.
 *
 * src/ready/keep.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/* Microseconds of waiting for a worker of the same role. */
#define WANT_PATIENCE	(5 * USECS_PER_SEC)

static bool
comes_first(JobqDatabase *db, uint16 limiter, JobqHeap *heap, JobqHeap *other)
{
	AssertExclusive(db->lock);
	return turn_before(heap_first(db, heap)->priority,
					   turn_of(db, heap, limiter),
					   heap_first(db, other)->priority,
					   turn_of(db, other, limiter));
}

/*
 * Does this heap of the limiter have a job for the free permit?
 */
static bool
is_eligible(JobqDatabase *db, JobqHeap *heap, TimestampTz now)
{
	AssertExclusive(db->lock);
	return !(heap->quarantine && !heap->consumer &&
			 db->ready->quarantine_slot >= 0) &&
		heap_room(db, heap, now, &db->limits->due) > 0;
}

/*
 * Move stale lanes that are first in a heap of the limiter to where they wait, so that no
 * permit is reserved for them (keyed.c).  A move may free the heap.
 */
static void
recall_stale(JobqDatabase *db, uint16 index, TimestampTz now)
{
	uint32		i = db->ready->limited[index];
	uint32		instead;

	for (int n = 0; i != JOBQ_NONE && n < SAMPLE;)
	{
		if (keyed_recall(db, heap_first(db, &db->ready->heaps[i]), now, &instead))
		{
			i = db->ready->limited[index];
			n++;
		}
		else
			i = heap_next_at(db, i, index);
	}
}

/*
 * Return the first heap with a waiting taker, or NULL.  Also record the role of an earlier
 * heap without a waiting worker, as the role that needs a worker.
 */
static JobqHeap *
whose_turn(JobqDatabase *db, uint16 index, TimestampTz now, JobqWakeList *wake)
{
	JobqLimiter *limiter = &db->limits->limiters[index];
	JobqHeap   *first = NULL;
	JobqHeap   *next = NULL;
	Oid			wants;
	bool		missed = limiter->kept_until != 0 && limiter->kept_until <= now;
	bool		in_vain = limiter->wants_worker != InvalidOid &&
		limiter->wants_since + WANT_PATIENCE <= now;

	AssertExclusive(db->lock);
	limiter->kept_until = 0;
	recall_stale(db, index, now);
	for (uint32 i = db->ready->limited[index]; i != JOBQ_NONE;
		 i = heap_next_at(db, i, index))
	{
		JobqHeap   *heap = &db->ready->heaps[i];

		if (!is_eligible(db, heap, now))
			continue;
		if ((missed && place_is_kept_for(limiter, heap)) ||
			(in_vain && heap->role == limiter->wants_worker &&
			 !heap->consumer && !heap_has_taker(db, heap)))
			turn_over(db, heap->role, index);	/* the taker or worker did not
												 * come */
		if (first == NULL || comes_first(db, index, heap, first))
			first = heap;
		if ((next == NULL || comes_first(db, index, heap, next)) &&
			heap_has_taker(db, heap))
			next = heap;
	}
	wants = first == NULL || first == next || first->consumer ? InvalidOid
		: first->role;
	if (wants != limiter->wants_worker)
	{
		limiter->wants_worker = wants;
		limiter->wants_since = now;
		wake->scheduler |= wants != InvalidOid;
	}
	return next;
}

/*
 * A permit of the limiter has become free.  If no other is free, reserve the permit for the
 * next heap, and wake its taker.  Otherwise wake takers for all heaps with jobs.  Heaps of
 * consumers are always examined, because a consumer may not have checked the role of an
 * earlier heap yet.
 */
void
place_freed(JobqDatabase *db, uint16 index, TimestampTz now, JobqWakeList *wake)
{
	JobqLimiter *limiter = &db->limits->limiters[index];
	JobqHeap   *next = limiter->keyed || limiter->max_running - limiter->running != 1 ? NULL
		: whose_turn(db, index, now, wake);

	AssertExclusive(db->lock);
	if (next != NULL)
	{
		limiter->kept_until = now + KEEP_PATIENCE;
		limiter->kept_role = next->role;
		limiter->kept_queue = next->queue_id;
		limiter->kept_priority = heap_first(db, next)->priority;
		limiter->kept_served = turn_of(db, next, index);
		db->limits->due = Min(db->limits->due, limiter->kept_until);
	}
	for (uint32 i = db->ready->limited[index]; i != JOBQ_NONE;
		 i = heap_next_at(db, i, index))
	{
		JobqHeap   *heap = &db->ready->heaps[i];

		if (next == NULL || heap == next || heap->consumer)
			heap_wake(db, heap, 1, now, wake);
	}
}
