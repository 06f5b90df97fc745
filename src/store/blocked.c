/*-------------------------------------------------------------------------
 *
 * blocked.c
 *	  Blocked jobs, which wait for other jobs and not for a time.
 *
 * The run_at of a blocked job is infinity.  The job is therefore at the end of its lane, where
 * no scan comes.  The time at which the job may run is stored in other columns until the job
 * is unblocked.  Then the row is written again, because the job gets another position in the
 * lane.
 *
 * src/store/blocked.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "store/store.h"

/*
 * Unblock a job in memory: set run_at from free_delay and free_run_at, and the expiry by its
 * queue.
 */
void
jobq_job_unblock(JobqJob *job)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	TimestampTz now = jobq_now();
	TimestampTz run_at = now;

	if (!JOB_ISNULL(job, JOB_FREE_DELAY))
		run_at += DatumGetInt64(JOB(job, JOB_FREE_DELAY)) * 1000;
	if (!JOB_ISNULL(job, JOB_FREE_RUN_AT))
		run_at = Max(run_at, DatumGetTimestampTz(JOB(job, JOB_FREE_RUN_AT)));
	job->nulls[JOB_FREE_DELAY - 1] = job->nulls[JOB_FREE_RUN_AT - 1] = true;
	JOB_SET(job, JOB_RUN_AT, TimestampTzGetDatum(run_at));
	if (JOB_ISNULL(job, JOB_EXPIRES_AT) && queue != NULL &&
		queue->expires_after_ms >= 0)
		JOB_SET(job, JOB_EXPIRES_AT,
				TimestampTzGetDatum(jobq_later(run_at,
											   queue->expires_after_ms)));
}

/*
 * Unblock a job with a row that the caller has deleted: insert the row again.  rel:
 * jobq_internal.job, locked for writing.
 */
void
jobq_job_free(Relation rel, JobqJob *job)
{
	jobq_job_unblock(job);
	jobq_job_insert(rel, job);
	jobq_state_changed(job, jobq_waiting_state(job, jobq_now()));
}
