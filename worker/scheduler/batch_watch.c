/*-------------------------------------------------------------------------
 *
 * batch_watch.c
 *	  Publishes the witness jobs of evaluated batches in shared memory
 *	  (src/commit/batch_commit.c).
 *
 * An evaluation calls batch_watch_begin() before its first read, and batch_watch_end()
 * after its commit.  Ends of jobs in between may go unreported.  The scheduler must then
 * check the witness again after the publication.
 *
 * Locks: each function takes db->lock exclusively.
 *
 * worker/scheduler/batch_watch.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/workflow.h"

#include "commit/commit.h"

/*
 * Reset the watches for a new scheduler, which must evaluate all batches.
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
 * Begin to watch the batch, before the evaluation reads tables.  If each end counts so far, or if
 * the batch had no slot, each end of a job now requests another evaluation.  If a witness was
 * published, ends of jobs are not reported until batch_watch_end().  The evaluation may not see
 * such an end.  Returns true in this case.  Sets *whole if earlier ends may have gone unreported.
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
 * Publish the witness found by the evaluation.  Without a witness, each end of a job
 * requests an evaluation from now on.
 */
void
batch_watch_end(int64 id, BatchOutcome outcome, int64 witness)
{
	JobqBatchWatch *watch = jobq_batch_watch(my_db, id);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u64(&watch->batch_id) == (uint64) id)
	{
		pg_atomic_write_u64(&watch->witness,
							outcome == OUTCOME_WITNESS ? (uint64) witness
							: JOBQ_ANY_WITNESS);
		watch->named = workflow_is_kept(id);
		if (outcome == OUTCOME_OVER && !watch->look)
			pg_atomic_write_u64(&watch->batch_id, 0);
	}
	LWLockRelease(my_db->lock);
}
