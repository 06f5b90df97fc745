/*-------------------------------------------------------------------------
 *
 *	  Chooses the processes to wake for a job in a lane: consumers, an idle worker, the
 *	  scheduler.
 *
 * Most wake-ups are only added to the wake list.  jobq_unlock() carries out the list when the
 * caller releases the lock.
 *
 * src/ready/wake.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/*
 * Is the role among the first nroles roles of the session?
 */
bool
reserver_knows(const JobqReserver *reserver, Oid role, int nroles)
{
	if (reserver->any_role)
		return true;
	for (int i = 0; i < nroles; i++)
		if (reserver->roles[i] == role)
			return true;
	return false;
}

/*
 * Does the session wait for jobs of this queue?
 */
bool
reserver_takes(const JobqReserver *reserver, int32 queue_id)
{
	for (int i = 0; i < reserver->nqueues; i++)
		if (reserver->queue_ids[i] == queue_id)
			return true;
	return false;
}

/*
 * Return the newest waiting session that may take jobs from the lane, or NULL.  A recently
 * active session wakes faster than a long sleeper.
 */
JobqReserver *
reserver_for(JobqDatabase *db, const JobqLane *lane)
{
	AssertExclusive(db->lock);
	for (uint32 i = db->offers->head; i != JOBQ_NONE;
		 i = db->offers->reservers[i].next)
		if (reserver_takes(&db->offers->reservers[i], lane->queue_id) &&
			reserver_knows(&db->offers->reservers[i], lane->role,
						   db->offers->reservers[i].nallowed))
			return &db->offers->reservers[i];
	return NULL;
}

/*
 * Does an idle worker or a waiting consumer take jobs from the heap?
 */
bool
heap_has_taker(JobqDatabase *db, JobqHeap *heap)
{
	JobqLane   *lane = &db->ready->lanes[heap->root];

	AssertExclusive(db->lock);
	if (heap->consumer)
		return somebody_waits(db, heap->queue_id) && reserver_for(db, lane) != NULL;
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_ATTACHED)
	{
		if (slot->idle && !slot->retire && !slot->yields &&
			slot->role == heap->role &&
			JOBQ_LANE_RANK(db, lane, slot->pool) != JOBQ_NOT_SERVED)
			return true;
	}
	return false;
}

/*
 * Return a place of the pool to a spare worker, and begin its time slice.  The caller holds
 * the lock of the database exclusively, and wakes the worker.
 */
void
jobq_spare_recall(JobqSlot *slot, TimestampTz now)
{
	slot->spare = slot->comes_back = false;
	slot->yields = slot->yields_anyway = false;
	slot->turn_at = now;
	slot->idle_since = 0;
}

/*
 * Recall a spare worker in place of the worker of its pool that has been idle for the longest
 * time.  The idle worker becomes a spare, without noticing.  Returns false if no worker is
 * idle, except workers that stay for a moment.
 */
static bool
spare_replaces_idle(JobqDatabase *db, JobqSlot *spare, TimestampTz now)
{
	JobqSlot   *idle = NULL;

	AssertExclusive(db->lock);
	for (int i = 0; i < jobq_shared->nslots && db->keeps_spares; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot->state == JOBQ_SLOT_ATTACHED && slot->idle &&
			!slot->retire && !slot->yields &&
			slot->database == spare->database && slot->pool == spare->pool &&
			(!slot->comes_back || now < slot->turn_at || now >= slot->turn_at + db->stay) &&
			(idle == NULL || slot->idle_since < idle->idle_since))
			idle = slot;
	}
	if (idle == NULL)
		return false;
	idle->idle = false;
	idle->spare = true;
	jobq_spare_recall(spare, now);
	return true;
}

/*
 * Add the worker to the wake list, for a job in the lane.  False if the worker is gone.
 */
static bool
wake_worker(JobqDatabase *db, JobqSlot *slot, JobqLane *lane, JobqWakeList *wake)
{
	PGPROC	   *proc = slot->proc;	/* may become NULL: read once */

	if (proc == NULL)
		return false;
	slot->idle = false;
	slot->holding->woken = JOBQ_LANE_INDEX(db, lane) + 1;
	if (wake->n < JOBQ_MAX_WAKE)
		wake->proc[wake->n++] = proc;
	else
		SetLatch(&proc->procLatch); /* the list is full */
	return true;
}

/*
 * Wake a taker for a job in the lane: mark the lane for waiting consumers, or choose an idle
 * worker, or a spare worker if the role has no other, or else wake the scheduler if it may be
 * able to start a worker.  Returns whether a worker was chosen.
 */
bool
jobq_lane_wake(JobqDatabase *db, JobqLane *lane, TimestampTz now,
			   JobqWakeList *wake)
{
	JobqSlot   *spare = NULL;
	bool		served = false;
	bool		leaving = false;

	AssertExclusive(db->lock);
	if (!lane->ranked)
	{
		jobq_lane_ask_rank(db, lane);
		wake->scheduler = true;
		return false;
	}
	if (jobq_lane_is_closed(db, lane))
		return false;
	if (!jobq_lane_free(db, lane, now))
		return false;			/* the return of a permit wakes a taker, or
								 * the time does */

	if (lane->consumer)
	{
		lane_offer(db, lane);
		return false;
	}
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_COMING)
	{
		if (slot->role != lane->role ||
			JOBQ_LANE_RANK(db, lane, slot->pool) == JOBQ_NOT_SERVED)
			continue;
		if (slot->spare)
		{
			if (!slot->retire)
				spare = slot;
			continue;
		}
		served = true;
		leaving |= slot->idle && slot->yields;
		if (slot->state == JOBQ_SLOT_ATTACHED && slot->idle &&
			!slot->retire && !slot->yields &&
			wake_worker(db, slot, lane, wake))
			return true;
	}
	if (!served && spare != NULL && !db->places_shared &&
		spare_replaces_idle(db, spare, now) && wake_worker(db, spare, lane, wake))
		return true;
	/* the scheduler may start a worker, or keep a leaving worker */
	if (!served || leaving || db->can_spawn)
		wake->scheduler = true;
	return false;
}

/*
 * Call jobq_lane_wake() for up to n jobs of a heap, limited by the room and by the number of
 * idle workers.
 */
void
heap_wake(JobqDatabase *db, JobqHeap *heap, int n, TimestampTz now,
		  JobqWakeList *wake)
{
	JobqLane   *lane = &db->ready->lanes[heap->root];

	AssertExclusive(db->lock);
	n = Min(n, heap_room(db, heap, now, &db->limits->due));
	n = Min(n, jobq_shared->nslots);
	for (n = heap_jobs(db, heap, n); n > 0; n--)
		if (!jobq_lane_wake(db, lane, now, wake))
			break;
}

/*
 * Place the lanes whose wait is over, and wake a worker for each.  The number per call is limited:
 * db->limits->due tells if there are more.
 */
void
gathering_wake_due(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	JobqTimers *timers = &db->ready->gathering;

	AssertExclusive(db->lock);
	for (int i = 0; i < SAMPLE; i++)
	{
		uint32		index = timer_take_due(timers, now);

		if (index == JOBQ_NONE)
			break;
		jobq_lane_place(db, &db->ready->lanes[index]);
		(void) jobq_lane_wake(db, &db->ready->lanes[index], now, wake);
	}
	db->limits->due = Min(db->limits->due, timers_next(timers));
}

/*
 * A worker that was woken for the lane of this job runs the job alone.  Wake another worker for the
 * further jobs of the lane, because a lane that gathers has woken a single worker.
 */
void
jobq_gathered_wake(JobqDatabase *db, const JobqPush *job, JobqWakeList *wake)
{
	JobqLane   *lane = jobq_lane_find(db, job->queue_id, job->priority, job->role, job->flow,
									  job->quarantine, false);

	AssertExclusive(db->lock);
	if (lane != NULL && lane->count > 0 && lane_may_gather(db, lane))
		(void) jobq_lane_wake(db, lane, jobq_now(), wake);
}

/*
 * A worker of the role leaves.  The worker may have been woken for a job without having
 * popped yet, so wake another worker.
 */
void
jobq_role_wake(JobqDatabase *db, Oid oid, TimestampTz now, JobqWakeList *wake)
{
	JobqRole   *role = jobq_role_find(db, oid);

	AssertExclusive(db->lock);
	for (uint32 i = role == NULL ? JOBQ_NONE : role->heaps; i != JOBQ_NONE;
		 i = db->ready->heaps[i].next)
		heap_wake(db, &db->ready->heaps[i], 1, now, wake);
}

/*
 * The relay has a notification to send: wake the scheduler in time.
 */
void
jobq_relay_mark(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	TimestampTz due = now + jobq_notify_interval * INT64CONST(1000);

	AssertExclusive(db->lock);
	if (db->relay_pending && db->relay_due <= due)
		return;
	db->relay_pending = true;
	db->relay_due = due;
	if (db->relay_due < db->wake_at)
		wake->scheduler = true;
}
