/*-------------------------------------------------------------------------
 *
 * batch_watch.c
 *	  What the scheduler writes into shared memory of the batches that it looks at:
 *	  which job is the witness (src/commit/batch_commit.c).
 *
 * A look begins with batch_watch_begin(), before it reads anything, and ends with
 * batch_watch_end(), after its commit.  Ends of jobs in between may ask for nothing:
 * then the witness must be looked for once more, now that it is named.
 *
 * Locks: each takes db->lock.
 *
 * worker/scheduler/batch_watch.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "commit/commit.h"

/*
 * A new scheduler: no batch is watched, and it must look at all.
 */
void
batch_watch_none(void)
{
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < JOBQ_MAX_WATCHES; i++)
	{
		pg_atomic_write_u64(&my_db->told->watches[i].batch_id, 0);
		my_db->told->watches[i].look = false;
		my_db->told->watches[i].named = false;
		my_db->told->watches[i].grows = false;
	}
	my_db->told->nunwatched = 0;
	my_db->told->nends = 0;
	my_db->batches_look = false;
	my_db->batches_sweep = true;
	LWLockRelease(my_db->lock);
}

/*
 * Whoever ends a job from now on is seen, or ends what we shall name.  Of a batch of
 * which each job matters, or of which we know nothing yet, all ask for another look.
 * Returns whether ends meanwhile ask for nothing; sets *whole if not all ends up to now
 * were told.
 */
bool
batch_watch_begin(int64 id, bool *whole)
{
	JobqBatchWatch *watch = jobq_batch_watch(my_db, id);
	bool		unseen = false;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u64(&watch->batch_id) != (uint64) id && !watch->look)
	{
		pg_atomic_write_u64(&watch->witness, JOBQ_ANY_WITNESS);
		pg_atomic_write_u64(&watch->batch_id, (uint64) id);
		watch->named = watch->whole = watch->grows = false;
		*whole = true;
	}
	if (pg_atomic_read_u64(&watch->batch_id) == (uint64) id &&
		pg_atomic_read_u64(&watch->witness) != JOBQ_ANY_WITNESS)
	{
		pg_atomic_write_u64(&watch->witness, 0);
		*whole = unseen = true;
	}
	LWLockRelease(my_db->lock);
	return unseen;
}

/*
 * Name the witness, if the look has found one; else each end matters from now on.
 */
void
batch_watch_end(int64 id, BatchLook outcome, int64 witness)
{
	JobqBatchWatch *watch = jobq_batch_watch(my_db, id);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u64(&watch->batch_id) == (uint64) id)
	{
		pg_atomic_write_u64(&watch->witness,
							outcome == LOOK_WITNESS ? (uint64) witness
							: JOBQ_ANY_WITNESS);
		watch->named = workflow_is_kept(id);
		if (outcome == LOOK_OVER && !watch->look)
			pg_atomic_write_u64(&watch->batch_id, 0);
	}
	LWLockRelease(my_db->lock);
}
