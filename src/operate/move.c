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

static const char *why_not(const JobqJob *job, int att);
static void move_one(int64 id, int att, Datum value);

/*
 * An error for a job that does not wait.
 */
void
jobq_not_waiting(int64 id, const char *state)
{
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_WRONG_STATE),
			 errmsg("job " INT64_FORMAT " %s", id, state),
			 errhint("Only a job that waits can be moved or edited, and a dead letter edited.")));
}

/*
 * Why the job cannot get another value of this column; NULL if it can.
 */
static const char *
why_not(const JobqJob *job, int att)
{
	if (DatumGetBool(JOB(job, JOB_DORMANT)))
		return "was brought by logical replication, and runs on the publisher";
	if (jobq_job_runs(job))
		return "is running";
	if (!JOB_ISNULL(job, JOB_EXPIRES_AT) &&
		DatumGetTimestampTz(JOB(job, JOB_EXPIRES_AT)) <= jobq_now())
		return "has expired";
	if (att == JOB_RUN_AT && job_blocked(job))
		return "is blocked: it waits for other jobs, not for a time";
	return NULL;
}

/*
 * Delete the row of a live job that waits, to be written anew with another value of
 * this column.  False if that cannot be: *state says why, or is NULL if there is no
 * live job with which the user may do what the privilege says.
 */
bool
jobq_take_to_change(Relation rel, int64 id, int privilege, int att,
					JobqChosen * chosen, JobqJob *job, const char **state)
{
	for (*state = jobq_current_of(id) != NULL ? "is running" : NULL;
		 *state == NULL;)
	{
		TransactionId blocker;

		CHECK_FOR_INTERRUPTS();
		if (!jobq_find_chosen(privilege, rel, id, chosen, job))
			return false;
		*state = why_not(job, att);
		if (*state == NULL)
		{
			if (jobq_job_delete_or_blocker(rel, job, &blocker))
				break;

			/*
			 * Its worker is just about to begin or to end it, or another
			 * session works on it: look again when that transaction is over,
			 * unless a worker shows up first.
			 */
			if (jobq_job_runs(job))
				*state = "is running";
			else if (TransactionIdIsValid(blocker))
				XactLockTableWait(blocker, rel, &job->ctid, XLTW_Delete);
		}
	}
	if (*state != NULL)
		return false;
	jobq_job_push_if_undone(job);

	/* a consumer that has got hold of it since will find the lease gone */
	jobq_end_lease(job, chosen == NULL);
	return true;
}

/*
 * Give the job another run_at or priority.  If it does not wait, or is none of this
 * user's, that is an error if it is named alone, or else false.
 */
bool
jobq_move_job(Relation rel, int64 id, int att, Datum value, JobqChosen * chosen)
{
	const char *state;
	JobqJob		job;

	if (!jobq_take_to_change(rel, id, JOBQ_MAY_OPERATE, att, chosen, &job,
							 &state))
	{
		if (chosen == NULL && state == NULL)
			jobq_check_finished(id);
		if (chosen == NULL)
			jobq_not_waiting(id, state != NULL ? state : "has finished");
		return false;
	}
	jobq_at_commit_group_moved(job_group(&job), id);
	if (att == JOB_RUN_AT)
		jobq_job_set_run_at(&job, DatumGetTimestampTz(value));
	else
		JOB_SET(&job, att, value);
	jobq_job_insert(rel, &job);
	jobq_state_changed(&job, jobq_waiting_state(&job, jobq_now()));
	return true;
}

static void
move_one(int64 id, int att, Datum value)
{
	Relation	rel = jobq_open_jobs();

	(void) jobq_move_job(rel, id, att, value, NULL);
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
	move_one(PG_GETARG_INT64(0), JOB_RUN_AT, TimestampTzGetDatum(run_at));
	PG_RETURN_VOID();
}

/*
 * set_priority(id, priority): the same with another priority.
 */
Datum
jobq_set_priority(PG_FUNCTION_ARGS)
{
	PreventCommandIfReadOnly("jobq.set_priority()");
	move_one(PG_GETARG_INT64(0), JOB_PRIORITY,
			 Int32GetDatum(PG_GETARG_INT32(1)));
	PG_RETURN_VOID();
}
