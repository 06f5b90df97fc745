/*-------------------------------------------------------------------------
 *
 * batch_cancel.c
 *	  Cancels the rest of a batch that has failed or was cancelled.
 *
 * worker/scheduler/batch_cancel.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/batch.h"

#include "access/genam.h"
#include "access/table.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "operate/operate.h"

/* Jobs cancelled by one evaluation, at most. */
#define MAX_CANCELLED	200

/*
 * Cancel the job without waiting for a lock.  Returns false if a transaction with an
 * unknown outcome has locked the row: a worker about to begin the job, or a session.
 */
static bool
cancel_job(Relation rel, JobqJob *job, const Batch *batch)
{
	bool		all = batch->state == BATCH_CANCELLED;
	NestCancel	nested = jobq_job_is_workflow(job) ? nest_cancel(job, all) : NEST_NONE;

	if (nested != NEST_NONE)
		return nested == NEST_CANCELLED;
	if (all ? jobq_ask_to_stop(job_id(job)) : jobq_job_runs(job))
		return true;
	if (!jobq_job_delete(rel, job))
		return false;
	jobq_job_push_if_undone(job);

	/* the consumer, if any, finds the lease gone */
	jobq_lease_room(1);
	jobq_at_commit_lease(LEASE_END, job_id(job), 0, JOBQ_NONE, 0);
	jobq_log_keep_told(my_db, NULL, job);
	jobq_archive_unstarted(job, all ? CAUSE_BATCH_CANCELLED
						   : batch->dropped ? CAUSE_NOT_NEEDED : CAUSE_BATCH_FAILED,
						   NULL);
	jobq_cancel_asked(rel, job);
	return true;
}

/*
 * Cancel some of the remaining jobs of the batch, as far as time allows.  Continues
 * where the last evaluation stopped.  Returns true if more jobs are left.  Sets *later
 * if some jobs must be tried again later.  Caller has locked the batch, so no job of
 * the batch is retried meanwhile.
 *
 * If the batch was cancelled, running jobs are asked to stop.  After a failure, a
 * running job may finish, but gets no further attempt: it then waits, and is cancelled
 * here.
 */
bool
batch_cancel_rest(const Batch *batch, BatchCancelled *cancelled, bool *later)
{
	Relation	rel = jobq_open_jobs();
	Relation	index = jobq_open_index(rel, JOBQ_JOB_BATCH);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	int64		passed = share_passed();
	int			n = 0;
	bool		full = false;

	if (cancelled->to == 0)
		memset(cancelled, 0, sizeof(BatchCancelled));
	ScanKeyInit(&keys[0], JOB_BATCH_ID, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(batch->id));
	ScanKeyInit(&keys[1], JOB_ID, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(cancelled->to));
	scan = systable_beginscan_ordered(rel, index, snapshot, 2, keys);
	while (!full &&
		   (tuple = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
	{
		JobqJob		job;

		jobq_job_from_tuple(rel, tuple, &job);
		if (!cancel_job(rel, &job, batch))
			cancelled->again = true;
		cancelled->to = job_id(&job);
		full = ++n == MAX_CANCELLED || share_over_from(passed);
	}
	systable_endscan_ordered(scan);
	UnregisterSnapshot(snapshot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	*later |= cancelled->again;
	if (!full)
		cancelled->to = 0;		/* start again at the first job next time */
	return full || cancelled->changed;
}
