/*-------------------------------------------------------------------------
 *
 * pop.c
 *	  Pop: take the job that comes first, with its permits.
 *
 * What is popped is a hint until its row is read: see push.c.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/pop.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/* A heap from which workers take several at a time; plenty is left for all. */
#ifndef LONG_HEAP
#define LONG_HEAP	512
#endif

static bool no_predecessor(JobqDatabase *db, JobqLane *lane,
						   const JobqPush *popped, TimestampTz now);
static bool is_paced(JobqDatabase *db, uint16 index);
static void wake_next(JobqDatabase *db, JobqHeap *heap, TimestampTz now,
					  JobqWakeList *wake);
static void wake_instead(JobqDatabase *db, JobqLane *lane, TimestampTz now,
						 JobqWakeList *wake);
static void prefetch_more(JobqDatabase *db, JobqHeap *heap, uint8 rank,
						  JobqSlot *slot, const JobqPush *popped,
						  JobqWakeList *wake);

/*
 * Pop the job that comes first for this taker, together with its permits.  A
 * worker gets its last job's permits back into the pool first.
 */
bool
jobq_ready_pop(JobqDatabase *db, const JobqTaker *taker, TimestampTz now,
			   JobqPush *popped, JobqWakeList *wake)
{
	JobqSlot   *mine = taker->slot >= 0 ? &jobq_shared->slots[taker->slot]
		: NULL;
	uint32		low = jobq_ready_entries / 8;
	uint32		woken = mine != NULL ? mine->holding->woken : 0;
	JobqLane   *best;
	uint8		best_rank = JOBQ_NOT_SERVED;
	JobqHeap   *heap;
	uint32		index;
	uint32		group;

	if (mine != NULL)
		mine->holding->woken = 0;
	if (mine != NULL && jobq_permits_any(&mine->holding->permits))
		jobq_slot_release(db, mine, mine->holding->live, mine->holding->unused, now, wake);

	tenants_wake(db, now, wake);

again:
	best = lane_best(db, taker, now, &best_rank);

	/* what is in the hand comes first, unless something is more urgent */
	if (mine != NULL &&
		prefetch_take_unless(db, mine, best != NULL, best_rank,
							 best != NULL ? best->priority : 0, popped))
		return true;
	if (best == NULL)
		return mine != NULL && prefetch_steal(mine, popped);

	heap = &db->ready->heaps[best->heap];
	group = JOBQ_NONE;
	index = entry_leave_first(db, best, wake);
	if (db->ready->starved && db->ready->nfree >= low)
	{
		db->ready->starved = false;
		wake->scheduler = true;
	}
	if (db->ready->entries[index].group != 0 &&
		group_enter(db, best, index, now, &group, wake) == JOBQ_PARKED)
		goto again;
	entry_take(db, index, popped);
	if (popped->group != 0)
		popped->first = !jobq_group_shared(popped->group) &&
			no_predecessor(db, best, popped, now);
	if (group != JOBQ_NONE && db->groups->groups[group].owner == popped->key.id)
		popped->first = true;	/* for which the group waits */
	if (taker->unlimited)
		popped->permits.group = group;
	else
		popped->permits = permits_take(db, best, group, now);
	popped->charged = lane_served_one(db, best);
	turns_over(db, popped->role, &popped->permits);

	if (jobq_permits_any(&popped->permits) && heap->root != JOBQ_NONE)
		wake_next(db, heap, now, wake);
	if (mine != NULL)
	{
		mine->holding->permits = popped->permits;
		mine->holding->permits_job = popped->key.id;
		mine->holding->live = false;
		mine->holding->unused = true;	/* until it begins */
		mine->holding->turned_away = false;
	}
	if (best->quarantine && taker->pool >= 0)
		db->ready->quarantine_slot = taker->slot;
	else if (mine != NULL && !jobq_permits_any(&popped->permits) &&
			 popped->charged == 0 && !db->limits->weighted)
		prefetch_more(db, heap, best_rank, mine, popped, wake);
	if (woken != 0 && &db->ready->lanes[woken - 1] != best)
		wake_instead(db, &db->ready->lanes[woken - 1], now, wake);
	return true;
}

/*
 * Does time set jobs free one by one, by this limiter?
 */
static bool
is_paced(JobqDatabase *db, uint16 index)
{
	const JobqLimiter *limiter = index == JOBQ_NO_LIMITER ? NULL
		: &db->limits->limiters[index];

	return limiter != NULL && (limiter->rate.per_us > 0 || limiter->tenant_rate.per_us > 0);
}

/*
 * A job of the heap was popped, which needed a permit.  If time sets the next one free,
 * the scheduler must know; if it has done so already, nobody else will tell: whoever was
 * woken for one token may come when there are two.
 */
static void
wake_next(JobqDatabase *db, JobqHeap *heap, TimestampTz now, JobqWakeList *wake)
{
	if (is_paced(db, heap->queue_limiter) || is_paced(db, heap->kind_limiter))
		heap_wake(db, heap, 1, now, wake);
	else
		(void) heap_room(db, heap, now, &db->limits->due);
}

/*
 * A worker was woken for this lane, and has found another job that comes first for it:
 * one of another pool may be idle that has only this lane to serve.
 */
static void
wake_instead(JobqDatabase *db, JobqLane *lane, TimestampTz now,
			 JobqWakeList *wake)
{
	if (lane->in_use && lane->heap != JOBQ_NONE)
		(void) jobq_lane_wake(db, lane, now, wake);
}

/*
 * Is it certain, without a look at the table, that no job of the same group comes before
 * this one, which was popped and whose turn it is as far as its group knows?  It is if all
 * jobs of the queue stand in this lane, and the invariant beside JobqLane leaves no
 * place but the list for a job before this one.  The scheduler takes jobs out of a lane
 * whose jobs do not wait for a place, and hands back some of them (taken.c).
 */
static bool
no_predecessor(JobqDatabase *db, JobqLane *lane, const JobqPush *popped, TimestampTz now)
{
	if (lane->kind_limiter != JOBQ_NO_LIMITER &&
		db->limits->limiters[lane->kind_limiter].when_taken != JOBQ_WHEN_TAKEN_WAIT)
		return false;
	return db->ready->complete && !db->rescan && now < db->ready->forgotten_due &&
		now < lane->next_due &&
		!lane->quarantine && !lane->skipping && !lane->scanning &&
		jobq_key_cmp(popped->key, lane->cursor) <= 0 && lane_is_only(db, lane) &&
		!handover_is_due(db, popped->group);
}

/*
 * From a long heap, take along the jobs that come next, as long as their rows are
 * on the same page, they are as urgent, and need no permit either (see
 * prefetch.c).  Not where turns go by what jobs cost: that is told after each.
 */
static void
prefetch_more(JobqDatabase *db, JobqHeap *heap, uint8 rank, JobqSlot *slot,
			  const JobqPush *popped, JobqWakeList *wake)
{
	BlockNumber block = ItemPointerGetBlockNumber(&popped->ctid);
	int			room = heap->nentries > LONG_HEAP ? prefetch_room(slot) : 0;

	while (room-- > 0 && heap->nentries > LONG_HEAP)
	{
		JobqLane   *lane = heap_first(db, heap);
		JobqEntry  *entry = &db->ready->entries[lane->head];
		JobqPush	job;

		if (lane->role != popped->role ||
			lane->priority != popped->priority || entry->group != 0 ||
			ItemPointerGetBlockNumber(&entry->ctid) != block)
			break;
		entry_take(db, entry_leave_first(db, lane, wake), &job);
		prefetch_put(db, slot, rank, &job);
		(void) lane_served_one(db, lane);
	}
}

/*
 * The worker in this slot is done with a quarantined job, if it had one: the
 * next may run, and who waits for it is woken by the scheduler.
 */
void
jobq_quarantine_over(JobqDatabase *db, int slot)
{
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (db->ready->quarantine_slot == slot)
	{
		db->ready->quarantine_slot = -1;
		db->reload = true;
	}
	LWLockRelease(db->lock);
	jobq_wake_scheduler(db);
}
