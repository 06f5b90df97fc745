/*-------------------------------------------------------------------------
 *
 *	  Prefetched jobs: jobs that a worker has popped in advance from a long heap.
 *
 * Workers wait for each other if they delete rows on the same page, or pop single jobs.  From
 * a long heap, which is a single lane or many, a worker therefore pops the next jobs with
 * rows on the same page.  The jobs stay in shared memory, where an idle worker finds them.
 * No job waits for the end of another, long job.
 *
 * The worker takes its own prefetched jobs without the lock of the database, as long as no
 * news has come that might be more urgent.
 *
 * Locks: each function takes JobqSlot.mutex.
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
 * Take the next prefetched job of the worker, unless there is news.  Returns false if none
 * was taken.  Needs no db->lock; takes the mutex of the slot.
 */
bool
jobq_prefetch_take(JobqDatabase *db, JobqSlot *slot, JobqPush *popped)
{
	bool		taken;

	if (slot->holding->next >= slot->holding->count || db->ready->news != slot->holding->news)
		return false;
	SpinLockAcquire(&slot->mutex);
	taken = take(slot, popped);
	if (taken)
		jobq_run_to(&slot->run, JOBQ_RUN_POPPED);
	SpinLockRelease(&slot->mutex);
	return taken;
}

/*
 * Take the next prefetched job of the worker even after news, unless a lane of this rank and
 * priority comes first.  lane: there is such a lane.  Returns false if none was taken.
 */
bool
prefetch_take_unless(JobqDatabase *db, JobqSlot *slot, bool lane, uint8 rank,
					 int32 priority, JobqPush *popped)
{
	bool		taken = false;

	AssertExclusive(db->lock);
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
 * Take the next prefetched job of the worker if it is of the same lane as another job.
 * Returns false if none was taken.
 */
bool
prefetch_take_like(JobqSlot *slot, const JobqPush *like, JobqPush *popped)
{
	const JobqPush *next = &slot->holding->prefetched[slot->holding->next];
	bool		taken = false;

	SpinLockAcquire(&slot->mutex);
	if (slot->holding->next < slot->holding->count &&
		next->queue_id == like->queue_id && next->priority == like->priority &&
		next->role == like->role && next->flow == like->flow)
		taken = take(slot, popped);
	SpinLockRelease(&slot->mutex);
	return taken;
}

/*
 * Add a prefetched job.  prefetch_room() must have reported room.
 */
void
prefetch_put(JobqDatabase *db, JobqSlot *slot, uint8 rank,
			 const JobqPush *job)
{
	AssertExclusive(db->lock);
	Assert(slot->holding->count < JOBQ_MAX_PREFETCH);
	SpinLockAcquire(&slot->mutex);
	slot->holding->prefetched[slot->holding->count++] = *job;
	slot->holding->rank = rank;
	slot->holding->priority = job->priority;
	slot->holding->news = db->ready->news;
	SpinLockRelease(&slot->mutex);
}

/*
 * Return how many jobs can be prefetched: 0 while prefetched jobs remain.
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
 * Take a prefetched job of a busy worker of the same role and pool.  Returns false if there
 * is none.
 */
bool
prefetch_steal(const JobqSlot *mine, JobqPush *popped)
{
	bool		taken = false;

	jobq_foreach_slot(slot, &jobq_shared->databases[mine->database], JOBQ_SLOTS_ATTACHED)
	{
		if (taken)
			break;
		if (slot == mine || slot->holding->next >= slot->holding->count ||
			slot->role != mine->role || slot->pool != mine->pool)
			continue;
		SpinLockAcquire(&slot->mutex);
		taken = take(slot, popped);
		SpinLockRelease(&slot->mutex);
	}
	return taken;
}

/*
 * Take a prefetched job that the worker will not run, because it is about to leave.  Returns
 * false if there is none.
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
 * Forget the prefetched jobs of all workers of the database, because all lanes are read
 * again.
 */
void
prefetch_forget(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_ALL)
	{
		SpinLockAcquire(&slot->mutex);
		slot->holding->next = slot->holding->count = 0;
		SpinLockRelease(&slot->mutex);
	}
}
