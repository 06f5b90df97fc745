/*-------------------------------------------------------------------------
 *
 * cancel.c
 *	  Cancellation of a worker's job by cancel().
 *
 * Usually the cancellation ends the handler, and the failure is recorded as a cancellation.
 * But the caller of cancel() finds the job in the worker's slot until the hand-over of the
 * commit that ends the attempt.  By then the attempt cannot be ended differently.  Or another
 * session may hold the job's row when the worker is about to start the job or to record the
 * cancellation.  If the job may run again in these cases, its cancellation is pending
 * (JobqOwed in memory.h).  The pending cancellation is recorded as soon as the slot no longer
 * names the job.  The worker then cancels the job in the table, like any later caller.  The
 * scheduler performs the pending cancellations that the worker cannot perform at once
 * (worker/scheduler/owed.c).
 *
 * worker/runner/cancel.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include "access/table.h"
#include "access/xact.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "operate/operate.h"

/* True if cancel() asked the worker to stop its current or last job. */
bool
was_cancelled(const JobqSlot *slot)
{
	return slot->run.stop == JOBQ_STOP_CANCEL;
}

/*
 * True if cancel() asked the worker to stop its job, and the job may run again.  The worker is
 * about to leave the job.  The job does not run again if the end of the attempt has committed,
 * unless the commit left the job live.
 */
bool
cancel_is_owed(const RunContext *run)
{
	return was_cancelled(run->slot) &&
		(run->slot->run.state != JOBQ_RUN_ENDING || run->next != JOBQ_RUN_DONE);
}

/*
 * Have the scheduler cancel the job, because this worker cannot.  Logs a message if too many
 * cancellations are pending.
 */
static void
cancel_later(int64 id)
{
	if (jobq_owe_cancel(my_db, id) == 0)
		ereport(LOG,
				(errmsg("job " INT64_FORMAT " was to be cancelled, and may run again", id),
				 errdetail("Its worker could not cancel it, and %d other jobs wait for that.",
						   JOBQ_MAX_OWED),
				 errhint("Cancel it again.")));
}

/*
 * The worker exits, and its job may run again.  Have the scheduler carry out the requests of
 * cancel().
 */
void
cancel_left(const JobqSlot *slot)
{
	if (slot->members->n == 0)
		cancel_later(slot->run.job);
	for (int i = 0; i < slot->members->n; i++)
		if (slot->members->jobs[i].stop)
			cancel_later(slot->members->jobs[i].job);
}

/*
 * Cancel a job that this worker no longer runs, although the job may run again.  The worker's
 * slot does not name the job, so every later caller of cancel() finds the job in the table, or
 * at its new worker.
 *
 * Does not wait for a lock on the row, but leaves this case to the scheduler.  Runs a
 * transaction of its own.  Returns true if the job is over.
 */
bool
cancel_given_back(RunContext *run, int64 id)
{
	Relation	rel;
	bool		over = false;
	bool		paid = true;

	process_begin_transaction();
	jobq_injection_point("jobq-cancel-given-back");
	process_wait_for_locks();
	MemoryContextSwitchTo(run->memory);
	rel = jobq_try_open_jobs();
	if (rel != NULL)
	{
		paid = jobq_cancel_owed(rel, id, &over);
		table_close(rel, NoLock);
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	if (over && run->slot->run.state == JOBQ_RUN_LIVE)
		jobq_run_to(&run->slot->run, JOBQ_RUN_DONE);
	else if (over && run->slot->run.state == JOBQ_RUN_POPPED)
		jobq_run_to(&run->slot->run, JOBQ_RUN_MISSED);
	if (paid)
		jobq_cancel_paid(my_db, run->ticket);
	else if (run->ticket == 0)
		cancel_later(id);
	if (!paid)
		jobq_wake_scheduler(my_db);
	return over;
}
