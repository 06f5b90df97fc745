/*-------------------------------------------------------------------------
 *
 * cancel.c
 *	  A worker that was asked by cancel() to stop its job.
 *
 * As a rule that ends the handler, and the failure is recorded as a cancellation.  But who
 * asks finds the job in the worker's slot up to the hand-over of the commit that ends the
 * attempt, when nothing can end it otherwise any more.  If that commit says that the job
 * runs again, the worker cancels it as whoever comes later does: in the table.
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
 * The worker was asked to stop this job, which it does not run any more, and which will
 * run again.  Its slot does not name the job: so from here on, whoever asks finds it in the
 * table himself, or at the worker that has begun it since.
 *
 * Does not wait for who has its row.  Returns whether the job is over.
 */
bool
cancel_given_back(RunContext *run, int64 id)
{
	Relation	rel;
	bool		over = false;

	process_begin_transaction();
	process_wait_for_locks();
	MemoryContextSwitchTo(run->memory);
	rel = jobq_try_open_jobs();
	if (rel != NULL)
	{
		over = !jobq_ask_to_stop(id) &&
			jobq_take_from_consumer(rel, id, "cancelled while it ran");

		/* another worker names the job before it takes the row */
		if (!over)
			(void) jobq_ask_to_stop(id);
		table_close(rel, NoLock);
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	if (over)
		run->slot->holding->live = false;
	return over;
}
