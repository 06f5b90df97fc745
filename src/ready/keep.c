/*-------------------------------------------------------------------------
 *
 * keep.c
 *	  Whose turn it is where a limiter is full: roles take turns for its places.
 *
 * Who gives a permit back is about to pop its next job, and would have taken the place
 * before anybody else has woken.  So the place is kept for the heap whose role has waited
 * longest of those with the most urgent job, if there is a taker that waits: that one is
 * woken, and others pass the place by.  If it does not come within KEEP_PATIENCE,
 * because its process has come to its end, the place is anybody's, and its turn is over.
 *
 * Only one place of a limiter is kept at a time.  Where more are free, nobody has to
 * wait.
 *
 * A role whose turn it is and that has no worker wants one: the scheduler sees it in
 * jobq_heap_demand().  If none comes within WANT_PATIENCE, it is another's turn to want.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/keep.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/* So long, in microseconds, the same role is waited for to get a worker. */
#define WANT_PATIENCE	(5 * USECS_PER_SEC)

static bool comes_first(JobqDatabase *db, uint16 limiter, JobqHeap *heap,
						JobqHeap *other);
static bool is_eligible(JobqDatabase *db, JobqHeap *heap, TimestampTz now);
static JobqHeap *whose_turn(JobqDatabase *db, uint16 index, TimestampTz now,
							JobqWakeList *wake);

static bool
comes_first(JobqDatabase *db, uint16 limiter, JobqHeap *heap, JobqHeap *other)
{
	return turn_before(heap_first(db, heap)->priority,
					   turn_of(db, heap, limiter),
					   heap_first(db, other)->priority,
					   turn_of(db, other, limiter));
}

/*
 * Has the heap, which has the limiter, a job for its free place?
 */
static bool
is_eligible(JobqDatabase *db, JobqHeap *heap, TimestampTz now)
{
	return !(heap->quarantine && !heap->consumer &&
			 db->ready->quarantine_slot >= 0) &&
		heap_room(db, heap, now, &db->limits->due) > 0;
}

/*
 * The heap that has a taker and comes first, or NULL; notes which role wants a worker,
 * because it would come before.
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

	limiter->kept_until = 0;
	for (uint32 i = db->ready->limited[index]; i != JOBQ_NONE;
		 i = heap_next_at(db, i, index))
	{
		JobqHeap   *heap = &db->ready->heaps[i];

		if (!is_eligible(db, heap, now))
			continue;
		if ((missed && place_is_kept_for(limiter, heap)) ||
			(in_vain && heap->role == limiter->wants_worker &&
			 !heap->consumer && !heap_has_taker(db, heap)))
			turn_over(db, heap->role, index);	/* nobody has come */
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
 * A place of the limiter has become free.  If it is the only one, keep it for whose
 * turn it is, and wake that one; or else all that have jobs.  Consumers that have not
 * thought about the role of a heap before that one are told, too.
 */
void
place_freed(JobqDatabase *db, uint16 index, TimestampTz now, JobqWakeList *wake)
{
	JobqLimiter *limiter = &db->limits->limiters[index];
	JobqHeap   *next = limiter->max_running - limiter->running != 1 ? NULL
		: whose_turn(db, index, now, wake);

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
