/*-------------------------------------------------------------------------
 *
 *	  Pop: remove the first job for a taker, together with its permits.
 *
 * A popped job is a hint until its row is read: see push.c.
 *
 * src/ready/pop.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/* A heap with more entries has enough jobs for all workers, and allows prefetching. */
#ifndef LONG_HEAP
#define LONG_HEAP	512
#endif

/* Maximum number of jobs parked between two further jobs of a call. */
#define MAX_PARKS	64

/* Maximum number of stale lanes moved by a pop. */
#define MAX_RECALLS	(4 * SAMPLE)

static bool no_predecessor(JobqDatabase *db, JobqLane *lane,
						   const JobqPush *popped, TimestampTz now);
static void wake_next(JobqDatabase *db, JobqHeap *heap, TimestampTz now,
					  JobqWakeList *wake);
static void wake_instead(JobqDatabase *db, JobqLane *lane, TimestampTz now,
						 JobqWakeList *wake);
static void prefetch_more(JobqDatabase *db, JobqHeap *heap, uint8 rank,
						  JobqSlot *slot, const JobqPush *popped,
						  JobqWakeList *wake);

/*
 * Like lane_best(), but a stale lane is moved to where it waits.  *woken, the lane for which
 * the taker was woken, becomes the lane that is lent instead.  If very many lanes are stale,
 * returns NULL, and the scheduler wakes a taker to go on.
 */
static JobqLane *
first_lane(JobqDatabase *db, const JobqTaker *taker, TimestampTz now, uint8 *best_rank,
		   uint32 *woken)
{
	for (int i = 0; i < MAX_RECALLS; i++)
	{
		JobqLane   *lane = lane_best(db, taker, now, best_rank);
		uint32		instead;

		if (lane == NULL || !keyed_recall(db, lane, now, &instead))
			return lane;
		if (*woken == JOBQ_LANE_INDEX(db, lane) + 1)
			*woken = instead == JOBQ_NONE ? 0 : instead + 1;
	}
	db->limits->due = Min(db->limits->due, now);
	return NULL;
}

/*
 * As jobq_ready_pop().  mine: the slot of the worker, or NULL.
 */
static bool
pop_first(JobqDatabase *db, const JobqTaker *taker, JobqSlot *mine, TimestampTz now,
		  JobqPush *popped, JobqWakeList *wake)
{
	uint32		low = jobq_ready_entries / 8;
	uint32		woken = mine != NULL ? mine->holding->woken : 0;
	JobqLane   *best;
	uint8		best_rank = JOBQ_NOT_SERVED;
	JobqHeap   *heap;
	uint32		index;
	uint32		group;

	AssertExclusive(db->lock);
	if (mine != NULL)
		mine->holding->woken = 0;
	if (mine != NULL && jobq_holding_any(mine->holding))
		jobq_slot_release(db, mine, now, wake);

	keyed_wake_due(db, now, wake);

again:
	best = first_lane(db, taker, now, &best_rank, &woken);

	/* prefetched jobs come first, unless a lane is more urgent */
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
		popped->first = true;	/* the group waits for this job */
	popped->unlimited = taker->unlimited;
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
 * Pop the first job for this taker, together with its permits.  Returns false if there is no
 * job.  First return the permits of the worker's previous job to the pool.
 */
bool
jobq_ready_pop(JobqDatabase *db, const JobqTaker *taker, TimestampTz now,
			   JobqPush *popped, JobqWakeList *wake)
{
	JobqSlot   *mine = taker->slot >= 0 ? &jobq_shared->slots[taker->slot]
		: NULL;
	bool		found = pop_first(db, taker, mine, now, popped, wake);

	if (mine != NULL && found)
		jobq_run_to(&mine->run, JOBQ_RUN_POPPED);
	return found;
}

/*
 * Does this limiter release single jobs as time passes?
 */
static bool
is_paced(JobqDatabase *db, uint16 index)
{
	const JobqLimiter *limiter = index == JOBQ_NO_LIMITER ? NULL
		: &db->limits->limiters[index];

	AssertExclusive(db->lock);
	return limiter != NULL && limiter->rate.per_us > 0;
}

/*
 * A job of the heap was popped with a permit.  If time releases the next job, the scheduler
 * must know the time.  If time has released the next job already, wake a taker now.  A taker
 * woken for one token may come when there are two, and no other process would wake a second
 * taker.
 */
static void
wake_next(JobqDatabase *db, JobqHeap *heap, TimestampTz now, JobqWakeList *wake)
{
	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (is_paced(db, heap->limiters[s]))
		{
			heap_wake(db, heap, 1, now, wake);
			return;
		}
	(void) heap_room(db, heap, now, &db->limits->due);
}

/*
 * A worker was woken for this lane, and has popped another job that comes first.  Wake
 * another worker: a worker of another pool may serve only this lane.
 */
static void
wake_instead(JobqDatabase *db, JobqLane *lane, TimestampTz now,
			 JobqWakeList *wake)
{
	AssertExclusive(db->lock);
	if (lane->in_use && lane->heap != JOBQ_NONE)
		(void) jobq_lane_wake(db, lane, now, wake);
}

/*
 * Is it certain, without reading the table, that no job of the same group comes before this
 * popped job?  According to the group, the job is next.  It is certain if all jobs of the
 * queue are in this lane, and the invariant beside JobqLane leaves only the list for an
 * earlier job.  A lane whose jobs do not wait for permits proves nothing, because the
 * scheduler takes jobs out and hands some of them over again (taken.c).
 */
static bool
no_predecessor(JobqDatabase *db, JobqLane *lane, const JobqPush *popped, TimestampTz now)
{
	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (lane->limiters[s] != JOBQ_NO_LIMITER &&
			db->limits->limiters[lane->limiters[s]].when_taken != JOBQ_WHEN_TAKEN_WAIT)
			return false;
	return db->ready->complete && !db->rescan && now < db->ready->forgotten_due &&
		now < lane->next_due &&
		!lane->quarantine && !lane->skipping && !lane->scanning && !lane->doubtful &&
		jobq_key_cmp(popped->key, lane->cursor) <= 0 && lane_is_only(db, lane) &&
		!handover_is_due(db, popped->group);
}

/*
 * Prefetch the next jobs of a long heap.  Their rows must be on the same page, their priority
 * must be the same, and they must need no permit (see prefetch.c).  The caller does not
 * prefetch where turns depend on the cost of jobs, because the cost is settled after each
 * job.
 */
static void
prefetch_more(JobqDatabase *db, JobqHeap *heap, uint8 rank, JobqSlot *slot,
			  const JobqPush *popped, JobqWakeList *wake)
{
	BlockNumber block = ItemPointerGetBlockNumber(&popped->ctid);
	int			room = heap->nentries > LONG_HEAP ? prefetch_room(slot) : 0;

	AssertExclusive(db->lock);
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
 * May the worker in this slot take a permit of the lane's key at the limiter of this source for a
 * further job?  A lane that is not lent comes after another lane of the key.
 */
static bool
takes_key(JobqDatabase *db, const JobqSlot *slot, const JobqLane *lane, int source,
		  TimestampTz now)
{
	const JobqNeed *need = &lane->needs[source];

	AssertExclusive(db->lock);
	if (!key_is_limited(db, lane, source))
		return true;
	if (lane->own != JOBQ_NONE && db->ready->heaps[lane->own].lent != JOBQ_LANE_INDEX(db, lane))
		return false;
	if (slot->holding->nmore > 0 &&
		slot->holding->more.tallies[source] != tally_find(db, need->limiter, need->key))
		return false;
	return keyed_free(db, lane->limiters[source], need->key, now);
}

/*
 * May the worker in this slot take permits for a further job of the lane?  All further jobs have
 * the same permits of limiters and keys, and none of a limiter whose jobs do not wait.
 */
static bool
takes_more(JobqDatabase *db, const JobqSlot *slot, const JobqLane *lane, TimestampTz now)
{
	const JobqPermits *held = &slot->holding->more;

	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		const JobqLimiter *limiter;
		uint16		index = lane->limiters[s];

		if (slot->holding->nmore > 0 && held->limiters[s] != JOBQ_NO_LIMITER &&
			(held->limiters[s] != index || held->costs[s] != Max(lane->needs[s].cost, 1)))
			return false;
		/* limits may have changed since the last of these jobs was popped */
		if (slot->holding->nmore > 0 &&
			(held->tallies[s] != JOBQ_NONE) != key_is_limited(db, lane, s))
			return false;
		if (index == JOBQ_NO_LIMITER)
			continue;
		limiter = &db->limits->limiters[index];
		if (limiter->when_taken != JOBQ_WHEN_TAKEN_WAIT ||
			(limiter->keyed && !takes_key(db, slot, lane, s, now)) ||
			(lane->heap == JOBQ_NONE && place_is_kept_for_others(limiter, lane->role, now)) ||
			(slot->holding->nmore > 0 && jobq_limiter_counts(limiter) &&
			 held->limiters[s] == JOBQ_NO_LIMITER))
			return false;
	}

	/* the lane may have parked jobs only, or gather jobs for the next call */
	if (lane->heap == JOBQ_NONE)
		return (lane->count == 0 || lane_gathers(lane)) &&
			limiters_room(db, lane->limiters, now, &db->limits->due) > 0;
	return heap_room(db, &db->ready->heaps[lane->heap], now, &db->limits->due) > 0;
}

/*
 * Unlink the next entry for a worker that runs jobs of the lane together: the parked job that
 * follows in the group of the last job, or the first job of the lane.  Jobs that have to wait for
 * their groups are parked.  *place: on entry, the group of the last job; then of this job.
 * Returns the index of the entry, or JOBQ_NONE.
 */
static uint32
next_of_set(JobqDatabase *db, JobqSlot *slot, JobqLane *lane, TimestampTz now, uint32 *place,
			JobqWakeList *wake)
{
	uint32		index = *place == JOBQ_NONE ? JOBQ_NONE
		: group_set_next(db, slot, lane, *place, now, wake);

	AssertExclusive(db->lock);
	for (int i = 0; index == JOBQ_NONE && i < MAX_PARKS; i++)
	{
		int64		group;

		if (lane->count == 0 || (lane->heap == JOBQ_NONE && !lane_gathers(lane)))
			break;
		group = db->ready->entries[lane->head].group;
		if (group != 0 && !group_set_takes(db, lane, group))
			break;
		index = entry_leave_first(db, lane, wake);
		*place = JOBQ_NONE;
		if (group != 0 &&
			group_set_enter(db, slot, lane, index, now, place, wake) == JOBQ_PARKED)
			index = JOBQ_NONE;
	}
	return index;
}

/*
 * Pop up to "room" further jobs of the lane of a job that this worker has popped, to run them
 * together, as many as the limiters of the lane permit.  last: the job that was popped last.  The
 * permits of these jobs are held in the slot; those of groups belong to the call.  Returns the
 * number of jobs.
 */
int
jobq_ready_pop_more(JobqDatabase *db, JobqSlot *slot, const JobqPush *last,
					JobqPush *more, int room, JobqWakeList *wake)
{
	JobqHolding *holding = slot->holding;
	TimestampTz now = jobq_now();
	uint32		place = last->permits.group;
	uint32		first = holding->permits.group; /* if this is the first call */
	JobqLane   *lane;
	int			n = 0;

	AssertExclusive(db->lock);
	if (first != JOBQ_NONE && db->groups->groups[first].slot != 0)
		return 0;
	if (first != JOBQ_NONE)
		group_set_hold(db, slot, first);
	holding->permits.group = JOBQ_NONE;
	while (n < room && prefetch_take_like(slot, last, &more[n]))
		n++;
	lane = jobq_lane_find(db, last->queue_id, last->priority, last->role,
						  last->flow, false, false);
	while (n < room && lane != NULL && takes_more(db, slot, lane, now))
	{
		uint32		index = next_of_set(db, slot, lane, now, &place, wake);
		JobqPush   *popped = &more[n];

		if (index == JOBQ_NONE)
			break;
		entry_take(db, index, popped);
		if (jobq_key_cmp(popped->key, n == 0 ? last->key : more[n - 1].key) == 0)
		{
			/* the ready set had a second entry for the job */
			(void) lane_served_one(db, lane);
			continue;
		}
		popped->permits = permits_take(db, lane, JOBQ_NONE, now);
		(void) lane_served_one(db, lane);
		turns_over(db, lane->role, &popped->permits);
		if (jobq_permits_any(&popped->permits))
		{
			holding->more = popped->permits;
			holding->nmore++;
		}
		popped->permits.group = place;
		if (popped->group != 0)
			popped->first = !jobq_group_shared(popped->group) &&
				no_predecessor(db, lane, popped, now);
		n++;
	}
	if (lane != NULL && lane->count > 0 && lane_may_gather(db, lane))
	{
		/* the further jobs of the lane wait for the next call */
		lane->since = db->ready->entries[lane->head].key.run_at;
		jobq_lane_place(db, lane);
	}
	if (n == 0 && first != JOBQ_NONE)
		jobq_set_alone(db, slot, first, holding->permits_job);
	if (db->ready->starved && db->ready->nfree >= (uint32) jobq_ready_entries / 8)
	{
		db->ready->starved = false;
		wake->scheduler = true;
	}
	return n;
}

/*
 * The worker in this slot has finished a quarantined job, or never had a quarantined job.
 * The next quarantined job may run, and the scheduler wakes its taker.  Takes db->lock
 * exclusively.
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
