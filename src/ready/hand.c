/*-------------------------------------------------------------------------
 *
 * hand.c
 *	  The hand of a worker: jobs that it has taken along from a long lane.
 *
 * Workers that delete rows on the same page wait for each other, and so do
 * workers that pop one job at a time.  So from a long lane a worker takes the
 * next jobs whose rows are on the same page.  They stay in shared memory, where
 * an idle worker finds them: no job waits behind another's long run.
 *
 * The worker itself takes from its hand without the lock of the database, as
 * long as nothing new has come that might be more urgent.
 *
 * Lock: JobqSlot.mutex; to fill the hand, JobqDatabase.lock as well.
 *
 * src/ready/hand.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/jobq.h"

#include "memory/shared.h"

static bool
take(JobqSlot *slot, JobqPush *popped)
{
	if (slot->hand_next >= slot->hand_count)
		return false;
	*popped = slot->hand[slot->hand_next++];
	return true;
}

/*
 * Take the next job from the worker's own hand, if that needs no thought.
 */
bool
jobq_hand_take(JobqDatabase *db, JobqSlot *slot, JobqPush *popped)
{
	bool		taken;

	if (slot->hand_next >= slot->hand_count || db->news != slot->hand_news)
		return false;
	SpinLockAcquire(&slot->mutex);
	taken = take(slot, popped);
	SpinLockRelease(&slot->mutex);
	return taken;
}

/*
 * The same when there is news: take it unless a lane of this rank and priority
 * comes before.  Wants db->lock.
 */
bool
jobq_hand_take_unless(JobqDatabase *db, JobqSlot *slot, bool lane, uint8 rank,
					  int32 priority, JobqPush *popped)
{
	bool		taken = false;

	SpinLockAcquire(&slot->mutex);
	if (!lane || slot->hand_rank < rank ||
		(slot->hand_rank == rank && slot->hand_priority <= priority))
	{
		taken = take(slot, popped);
		slot->hand_news = db->news;
	}
	SpinLockRelease(&slot->mutex);
	return taken;
}

/*
 * Put a job into the hand; its room was asked for by jobq_hand_room().
 */
void
jobq_hand_put(JobqDatabase *db, JobqSlot *slot, uint8 rank,
			  const JobqPush *job)
{
	SpinLockAcquire(&slot->mutex);
	slot->hand[slot->hand_count++] = *job;
	slot->hand_rank = rank;
	slot->hand_priority = job->priority;
	slot->hand_news = db->news;
	SpinLockRelease(&slot->mutex);
}

/*
 * How many jobs fit into the hand: none unless it is empty.
 */
int
jobq_hand_room(JobqSlot *slot)
{
	int			room = 0;

	SpinLockAcquire(&slot->mutex);
	if (slot->hand_next >= slot->hand_count)
	{
		slot->hand_next = slot->hand_count = 0;
		room = JOBQ_MAX_HAND;
	}
	SpinLockRelease(&slot->mutex);
	return room;
}

/*
 * Take from another worker of the same role and pool, which is busy.
 */
bool
jobq_hand_steal(const JobqSlot *mine, JobqPush *popped)
{
	bool		taken = false;

	for (int i = 0; i < jobq_shared->nslots && !taken; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot == mine || slot->hand_next >= slot->hand_count ||
			slot->state != JOBQ_SLOT_ATTACHED ||
			slot->database != mine->database || slot->role != mine->role ||
			slot->pool != mine->pool)
			continue;
		SpinLockAcquire(&slot->mutex);
		taken = take(slot, popped);
		SpinLockRelease(&slot->mutex);
	}
	return taken;
}

/*
 * The worker leaves: put its hand back.  Wants db->lock.
 */
void
jobq_hand_return(JobqDatabase *db, JobqSlot *slot, JobqWakeList *wake)
{
	for (;;)
	{
		JobqPush	push;
		bool		taken;

		SpinLockAcquire(&slot->mutex);
		taken = take(slot, &push);
		SpinLockRelease(&slot->mutex);
		if (!taken)
			break;
		jobq_ready_push(db, &push, push.key.run_at, wake);
	}
}

/*
 * Forget the hands of all workers of the database, as all is read anew.
 */
void
jobq_hand_forget(JobqDatabase *db)
{
	int			index = db - jobq_shared->databases;

	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot->database != index)
			continue;
		SpinLockAcquire(&slot->mutex);
		slot->hand_next = slot->hand_count = 0;
		SpinLockRelease(&slot->mutex);
	}
}
