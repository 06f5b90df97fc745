/*-------------------------------------------------------------------------
 *
 * blocked.c
 *	  Blocked jobs: they wait for other jobs, not for a time.
 *
 * Such a job's run_at is infinity, so that it stands at the end of its lane and
 * no scan comes to it.  When it may run is kept beside that until it is free;
 * then its row is written anew, as for each other place in the line.
 *
 * src/store/blocked.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "store/store.h"

/*
 * A blocked job is free: set the time at which it may run.
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
 * The same for one whose row the caller has deleted: insert it anew.
 */
void
jobq_job_free(Relation rel, JobqJob *job)
{
	jobq_job_unblock(job);
	jobq_job_insert(rel, job);
	jobq_state_changed(job, jobq_waiting_state(job, jobq_now()));
}
