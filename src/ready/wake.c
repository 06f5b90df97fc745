/*-------------------------------------------------------------------------
 *
 * wake.c
 *	  Who is woken for a job in a lane: consumers, an idle worker, the scheduler.
 *
 * Nobody is woken here: the wake list is carried out by whoever releases the lock
 * (jobq_unlock()).
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/wake.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/*
 * Is the role among the first ones that the session has thought about?
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
 * Who came last of those that may take from the lane, or NULL.  A session that
 * has just done something wakes more quickly than one that has slept for long.
 */
JobqReserver *
reserver_for(JobqDatabase *db, const JobqLane *lane)
{
	for (uint32 i = db->offers->head; i != JOBQ_NONE;
		 i = db->offers->reservers[i].next)
		if (reserver_takes(&db->offers->reservers[i], lane->queue_id) &&
			reserver_knows(&db->offers->reservers[i], lane->role,
						   db->offers->reservers[i].nallowed))
			return &db->offers->reservers[i];
	return NULL;
}

/*
 * Does a worker that is idle, or a consumer that waits, take jobs from the heap?
 */
bool
heap_has_taker(JobqDatabase *db, JobqHeap *heap)
{
	JobqLane   *lane = &db->ready->lanes[heap->root];

	if (heap->consumer)
		return somebody_waits(db, heap->queue_id) && reserver_for(db, lane) != NULL;
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		const JobqSlot *slot = &jobq_shared->slots[i];

		if (slot->state == JOBQ_SLOT_ATTACHED && slot->idle &&
			!slot->retire && !slot->yields &&
			slot->database == db - jobq_shared->databases &&
			slot->role == heap->role &&
			JOBQ_LANE_RANK(db, lane, slot->pool) != JOBQ_NOT_SERVED)
			return true;
	}
	return false;
}

/*
 * See that a job in the lane is taken: mark the lane for consumers that wait, or
 * choose an idle worker, or else the scheduler if it may be able to start one.  Returns
 * whether a worker was chosen.
 */
bool
jobq_lane_wake(JobqDatabase *db, JobqLane *lane, TimestampTz now,
			   JobqWakeList *wake)
{
	int			index = db - jobq_shared->databases;
	bool		served = false;
	bool		leaving = false;

	if (!lane->ranked)
	{
		db->reload = true;
		wake->scheduler = true;
		return false;
	}
	if (jobq_lane_is_closed(db, lane))
		return false;
	if (!jobq_lane_free(db, lane, now))
		return false;			/* whoever gives a permit back will see to it,
								 * or the time */

	if (lane->consumer)
	{
		lane_offer(db, lane);
		return false;
	}
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot->state == JOBQ_SLOT_FREE || slot->state == JOBQ_SLOT_DEAD ||
			slot->database != index || slot->role != lane->role ||
			JOBQ_LANE_RANK(db, lane, slot->pool) == JOBQ_NOT_SERVED)
			continue;
		served = true;
		leaving |= slot->idle && slot->yields;
		if (slot->state == JOBQ_SLOT_ATTACHED && slot->idle &&
			!slot->retire && !slot->yields)
		{
			PGPROC	   *proc = slot->proc;	/* may vanish: read once */

			if (proc == NULL)
				continue;
			slot->idle = false;
			slot->holding->woken = JOBQ_LANE_INDEX(db, lane) + 1;
			if (wake->n < JOBQ_MAX_WAKE)
				wake->proc[wake->n++] = proc;
			else
				SetLatch(&proc->procLatch); /* the list is full */
			return true;
		}
	}
	/* the scheduler may start one, or let one stay that was to leave */
	if (!served || leaving || db->can_spawn)
		wake->scheduler = true;
	return false;
}

/*
 * The same for so many jobs of a heap at most, as far as there are room and workers that
 * have nothing to do.
 */
void
heap_wake(JobqDatabase *db, JobqHeap *heap, int n, TimestampTz now,
		  JobqWakeList *wake)
{
	JobqLane   *lane = &db->ready->lanes[heap->root];

	n = Min(n, heap_room(db, heap, now, &db->limits->due));
	n = Min(n, jobq_shared->nslots);
	for (n = heap_jobs(db, heap, n); n > 0; n--)
		if (!jobq_lane_wake(db, lane, now, wake))
			break;
}

/*
 * A worker of the role leaves, who may have been woken for a job and not have
 * looked yet: wake another.
 */
void
jobq_role_wake(JobqDatabase *db, Oid oid, TimestampTz now, JobqWakeList *wake)
{
	JobqRole   *role = jobq_role_find(db, oid);

	for (uint32 i = role == NULL ? JOBQ_NONE : role->heaps; i != JOBQ_NONE;
		 i = db->ready->heaps[i].next)
		heap_wake(db, &db->ready->heaps[i], 1, now, wake);
}

/*
 * The relay has something to say: see that the scheduler wakes in time.
 */
void
jobq_relay_mark(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	TimestampTz due = now + jobq_notify_interval * INT64CONST(1000);

	if (db->relay_pending && db->relay_due <= due)
		return;
	db->relay_pending = true;
	db->relay_due = due;
	if (db->relay_due < db->wake_at)
		wake->scheduler = true;
}
