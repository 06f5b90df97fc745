/*-------------------------------------------------------------------------
 *
 * prefetch.c
 *	  Prefetched jobs: those that a worker has taken along from a long heap.
 *
 * Workers that delete rows on the same page wait for each other, and so do
 * workers that pop one job at a time.  So from a long heap, which is one lane or
 * many, a worker takes the next jobs whose rows are on the same page.  They stay in shared memory, where
 * an idle worker finds them: no job waits behind another's long run.
 *
 * The worker itself takes them without the lock of the database, as
 * long as nothing new has come that might be more urgent.
 *
 * Lock: JobqSlot.mutex; to put jobs in, JobqDatabase.lock as well.
 *
 * src/ready/prefetch.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "ready/inner.h"

static bool
take(JobqSlot *slot, JobqPush *popped)
{
	if (slot->holding->next >= slot->holding->count)
		return false;
	*popped = slot->holding->prefetched[slot->holding->next++];
	return true;
}

/*
 * Take the next job from the worker's own, if that needs no thought.
 */
bool
jobq_prefetch_take(JobqDatabase *db, JobqSlot *slot, JobqPush *popped)
{
	bool		taken;

	if (slot->holding->next >= slot->holding->count || db->ready->news != slot->holding->news)
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
prefetch_take_unless(JobqDatabase *db, JobqSlot *slot, bool lane, uint8 rank,
					 int32 priority, JobqPush *popped)
{
	bool		taken = false;

	SpinLockAcquire(&slot->mutex);
	if (!lane || slot->holding->rank < rank ||
		(slot->holding->rank == rank && slot->holding->priority <= priority))
	{
		taken = take(slot, popped);
		slot->holding->news = db->ready->news;
	}
	SpinLockRelease(&slot->mutex);
	return taken;
}

/*
 * Take a job along; its room was asked for by prefetch_room().
 */
void
prefetch_put(JobqDatabase *db, JobqSlot *slot, uint8 rank,
			 const JobqPush *job)
{
	SpinLockAcquire(&slot->mutex);
	slot->holding->prefetched[slot->holding->count++] = *job;
	slot->holding->rank = rank;
	slot->holding->priority = job->priority;
	slot->holding->news = db->ready->news;
	SpinLockRelease(&slot->mutex);
}

/*
 * How many jobs can be taken along: none unless all that were are gone.
 */
int
prefetch_room(JobqSlot *slot)
{
	int			room = 0;

	SpinLockAcquire(&slot->mutex);
	if (slot->holding->next >= slot->holding->count)
	{
		slot->holding->next = slot->holding->count = 0;
		room = JOBQ_MAX_PREFETCH;
	}
	SpinLockRelease(&slot->mutex);
	return room;
}

/*
 * Take from another worker of the same role and pool, which is busy.
 */
bool
prefetch_steal(const JobqSlot *mine, JobqPush *popped)
{
	bool		taken = false;

	for (int i = 0; i < jobq_shared->nslots && !taken; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot == mine || slot->holding->next >= slot->holding->count ||
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
 * Take one that the worker, which is about to leave, does not run any more.
 */
bool
prefetch_drop(JobqSlot *slot, JobqPush *popped)
{
	bool		taken;

	SpinLockAcquire(&slot->mutex);
	taken = take(slot, popped);
	SpinLockRelease(&slot->mutex);
	return taken;
}

/*
 * Forget what all workers of the database have taken along, as all is read anew.
 */
void
prefetch_forget(JobqDatabase *db)
{
	int			index = db - jobq_shared->databases;

	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot->database != index)
			continue;
		SpinLockAcquire(&slot->mutex);
		slot->holding->next = slot->holding->count = 0;
		SpinLockRelease(&slot->mutex);
	}
}
