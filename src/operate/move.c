/*-------------------------------------------------------------------------
 *
 * move.c
 *	  Another place in the line for a job that waits: reschedule(),
 *	  set_priority().
 *
 * As everywhere, the row is deleted and inserted anew under the same id, and
 * handed over at commit.  The entry that the ready set may have of the old row
 * is dropped by whoever pops it.  A worker that begins with the job at the same
 * moment deletes the same row: one of the two is first.
 *
 * src/operate/move.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "attempt/attempt.h"
#include "commit/commit.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_reschedule);
PG_FUNCTION_INFO_V1(jobq_set_priority);

static void not_waiting(int64 id, const char *state);
static void move_expiry(JobqJob *job, TimestampTz run_at);
static void move_job(int64 id, int att, Datum value);

static void
not_waiting(int64 id, const char *state)
{
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_WRONG_STATE),
			 errmsg("job " INT64_FORMAT " %s", id, state),
			 errhint("Only a job that waits can get another time or priority.")));
}

/*
 * An expiry that came from the queue's expires_after is counted from run_at, so
 * it moves along; one of the job's own does not.
 */
static void
move_expiry(JobqJob *job, TimestampTz run_at)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);

	if (queue != NULL && queue->expires_after_ms >= 0 &&
		!JOB_ISNULL(job, JOB_EXPIRES_AT) &&
		DatumGetTimestampTz(JOB(job, JOB_EXPIRES_AT)) ==
		jobq_later(job_run_at(job), queue->expires_after_ms))
		JOB_SET(job, JOB_EXPIRES_AT,
				TimestampTzGetDatum(jobq_later(run_at,
											   queue->expires_after_ms)));
}

/*
 * Give the job another run_at or priority.
 */
static void
move_job(int64 id, int att, Datum value)
{
	Relation	rel;
	JobqJob		job;

	if (jobq_current_of(id) != NULL)
		not_waiting(id, "is running");
	rel = jobq_open_jobs();
	for (;;)
	{
		TransactionId blocker;

		CHECK_FOR_INTERRUPTS();
		if (!jobq_find_for(JOBQ_MAY_OPERATE, rel, id, true, &job))
		{
			jobq_check_finished(id);
			not_waiting(id, "has finished");
		}
		if (jobq_job_runs(&job))
			not_waiting(id, "is running");
		if (!JOB_ISNULL(&job, JOB_EXPIRES_AT) &&
			DatumGetTimestampTz(JOB(&job, JOB_EXPIRES_AT)) <= jobq_now())
			not_waiting(id, "has expired");
		if (att == JOB_RUN_AT && job_blocked(&job))
			not_waiting(id, "is blocked: it waits for other jobs, not for a time");
		if (jobq_job_delete_or_blocker(rel, &job, &blocker))
			break;

		/*
		 * Its worker is just about to begin or to end it, or another session
		 * works on it: look again when that transaction is over, unless a
		 * worker shows up first.
		 */
		if (jobq_job_runs(&job))
			not_waiting(id, "is running");
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job.ctid, XLTW_Delete);
	}
	jobq_job_push_if_undone(&job);

	/* a consumer that has got hold of it since will find the lease gone */
	jobq_lease_room(1);
	jobq_at_commit_lease(LEASE_END, id, 0, JOBQ_NONE, 0);

	if (att == JOB_RUN_AT)
		move_expiry(&job, DatumGetTimestampTz(value));
	JOB_SET(&job, att, value);
	jobq_job_insert(rel, &job);
	jobq_state_changed(&job, jobq_waiting_state(&job, jobq_now()));
	table_close(rel, NoLock);
}

/*
 * reschedule(id, run_at): have a job that waits run at another time.
 */
Datum
jobq_reschedule(PG_FUNCTION_ARGS)
{
	TimestampTz run_at = PG_GETARG_TIMESTAMPTZ(1);

	PreventCommandIfReadOnly("jobq.reschedule()");
	if (TIMESTAMP_NOT_FINITE(run_at))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("run_at must be finite")));
	move_job(PG_GETARG_INT64(0), JOB_RUN_AT, TimestampTzGetDatum(run_at));
	PG_RETURN_VOID();
}

/*
 * set_priority(id, priority): the same with another priority.
 */
Datum
jobq_set_priority(PG_FUNCTION_ARGS)
{
	PreventCommandIfReadOnly("jobq.set_priority()");
	move_job(PG_GETARG_INT64(0), JOB_PRIORITY,
			 Int32GetDatum(PG_GETARG_INT32(1)));
	PG_RETURN_VOID();
}
