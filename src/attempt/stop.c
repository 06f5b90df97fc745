/*-------------------------------------------------------------------------
 *
 * stop.c
 *	  Takes a job away from the worker or consumer that has the job.  Also cancels the jobs for
 *	  which a cancelled procedure waits.
 *
 * A cancelled job cancels the jobs that its procedure has asked for, in the same transaction.
 * The transaction never waits for a row of these jobs: the end of such a job waits for the row of
 * the cancelled job, and both would be a deadlock.  A job whose row another session has is
 * therefore left to the gate, which refuses each further attempt (JOBQ_UNWANTED).
 *
 * src/attempt/stop.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <signal.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "attempt/attempt.h"
#include "commit/commit.h"

/*
 * Ask the job's worker to stop: a query cancel (SIGINT) now, and SIGTERM by the scheduler
 * jobq.cancel_grace milliseconds later.  If the worker has died while running the job, the
 * scheduler is asked to cancel the job when recording the failed attempt.  True if the request
 * was made.  False if no worker runs the job.  With a dead worker, false also if the failure
 * is already being recorded, or if there is no scheduler.
 *
 * Takes jobq_shared->lock in shared mode and the mutex of the slot.
 */
bool
jobq_ask_to_stop(int64 id)
{
	JobqDatabase *db = jobq_my_database();
	JobqSlot   *slot = db != NULL ? jobq_slot_names_job(db, id) : NULL;
	JobqRun    *run;
	bool		asked = false;

	AssertUnlocked();
	if (slot == NULL)
		return false;
	run = &slot->run;

	/* the lock keeps the process in the slot until the signal is sent */
	LWLockAcquire(jobq_shared->lock, LW_SHARED);
	if (slot->state == JOBQ_SLOT_ATTACHED)
	{
		SpinLockAcquire(&slot->mutex);
		if (jobq_slot_runs(slot, id))
		{
			if (jobq_slot_member(slot, id) != NULL)
				jobq_slot_member(slot, id)->stop = true;

			/* the grace period starts at the first request */
			if (run->stop != JOBQ_STOP_CANCEL)
				run->kill_at = jobq_now() +
					jobq_cancel_grace * INT64CONST(1000);
			run->stop = JOBQ_STOP_CANCEL;
			asked = true;

			/* once the mutex is released, the worker may run another job */
			(void) kill(slot->pid, SIGINT);
		}
		SpinLockRelease(&slot->mutex);
	}
	else if (slot->state == JOBQ_SLOT_DEAD && db->scheduler != NULL && !db->stop)
	{
		SpinLockAcquire(&slot->mutex);
		asked = jobq_slot_runs(slot, id) && run->state == JOBQ_RUN_DEAD;
		if (asked && jobq_slot_member(slot, id) != NULL)
			jobq_slot_member(slot, id)->stop = true;
		else if (asked)
			run->stop = JOBQ_STOP_CANCEL;
		SpinLockRelease(&slot->mutex);
	}
	LWLockRelease(jobq_shared->lock);
	if (asked)
		jobq_wake_scheduler(db);
	return asked;
}

/*
 * End the lease of a job with a deleted or rewritten row, if any, when this transaction
 * commits.  Without "always", a job in a queue of workers is skipped unless a consumer or
 * worker holds the job.  An old lease may remain from the time before the queue changed to
 * workers.  always: also end a lease granted before the commit.
 */
void
jobq_end_lease(const JobqJob *job, bool always)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);

	if (!always && queue != NULL && queue->mode != MODE_CONSUMER &&
		!jobq_job_runs(job))
		return;
	jobq_lease_room(1);
	jobq_at_commit_lease(LEASE_END, job_id(job), 0, JOBQ_NONE, 0);
}

/*
 * Cancel a job held by a consumer, or a waiting job.  Does not wait: false if another
 * transaction holds the row, or if the job no longer exists.  cause and reason as in
 * jobq_archive().  The caller must have set an active snapshot.
 */
bool
jobq_take_from_consumer(Relation rel, int64 id, JobqCause cause,
						const char *reason)
{
	JobqJob		job;

	if (!jobq_job_find(rel, id, GetActiveSnapshot(), &job) ||
		!jobq_job_delete(rel, &job))
		return false;
	jobq_job_push_if_undone(&job);
	jobq_end_lease(&job, true);
	jobq_log_keep_told(jobq_my_database(), NULL, &job);
	jobq_archive_unstarted(&job, cause, reason);
	jobq_cancel_asked(rel, &job);
	return true;
}

/*
 * A cancelled job: cancel the jobs that its procedure has asked for, and whose outcome the
 * procedure has not received.  Does not wait for other sessions.  The caller has deleted the
 * row of the cancelled job.
 */
void
jobq_cancel_asked(Relation rel, const JobqJob *job)
{
	int64	   *ids;
	int			n;

	/* the answers find the cancelled job gone */
	CommandCounterIncrement();
	check_stack_depth();
	n = jobq_asked_jobs(job_id(job), &ids);
	if (n == 0)
		return;
	PushActiveSnapshot(GetLatestSnapshot());
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();

		/* a worker names the job before it deletes the row */
		if (!jobq_ask_to_stop(ids[i]) &&
			!jobq_take_from_consumer(rel, ids[i], CAUSE_CANCELLED,
									 JOBQ_ASKER_CANCELLED))
			(void) jobq_ask_to_stop(ids[i]);
	}
	PopActiveSnapshot();
	pfree(ids);
}
