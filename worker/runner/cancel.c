/*-------------------------------------------------------------------------
 *
 * cancel.c
 *	  A worker that was asked by cancel() to stop its job.
 *
 * As a rule that ends the handler, and the failure is recorded as a cancellation.  But who
 * asks finds the job in the worker's slot up to the hand-over of the commit that ends the
 * attempt, when nothing can end it otherwise any more.  And another session may have the
 * job's row, when the worker is to begin with it or to record that it was cancelled.  If
 * the job may run again then, its cancel is owed (JobqOwed in memory.h): that is noted
 * as soon as the slot does not name the job.  The worker cancels it as whoever comes later
 * does: in the table.  What it cannot do at once, or does not come to do, the scheduler does
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

/*
 * Was the worker asked to stop this job by cancel()?
 */
bool
was_cancelled(const JobqSlot *slot, int64 id)
{
	return slot->stop == JOBQ_STOP_CANCEL && slot->stop_job == id;
}

/*
 * The worker is about to leave its job.  Was it asked to stop it, and may the job run again?
 * It is over only if that has committed, and not that it runs again.
 */
bool
cancel_is_owed(const JobqSlot *slot)
{
	return was_cancelled(slot, slot->job_id) &&
		(!slot->over || slot->holding->live || slot->holding->unused);
}

/*
 * Have the scheduler cancel the job, as this worker cannot.
 */
void
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
 * The worker was asked to stop this job, which it does not run any more, and which may
 * run again.  Its slot does not name the job: so from here on, whoever asks finds it in the
 * table himself, or at the worker that has begun it since.
 *
 * Does not wait for who has its row, but leaves that to the scheduler.  Returns whether the
 * job is over.
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
	if (over)
		run->slot->holding->live = false;
	if (paid)
		jobq_cancel_paid(my_db, run->ticket);
	else if (run->ticket == 0)
		cancel_later(id);
	if (!paid)
		jobq_wake_scheduler(my_db);
	return over;
}
