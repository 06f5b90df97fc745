/*-------------------------------------------------------------------------
 *
 * again.c
 *	  A job runs again after its end.
 *
 * Every way back from the archive or from the dead letters ends in jobq_job_again(): a retry
 * of dead letters, a rerun of steps, and the return of steps and workflows that were dropped
 * because of a failure.  The callers differ in how they make the job: a dead letter contains
 * the job, and a step has a definition.
 *
 * src/store/again.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "store/store.h"

/*
 * Insert the job, which has the id of a finished job.  In the same transaction, the caller
 * deletes the row of the archive or of the dead letters.  A blocked job stays blocked, and any
 * other job may run at once.  The job enters its group and its queue, regardless of
 * max_length.  by_user: count a retry.  rel: the open table of jobs.  ERROR if another job
 * holds the job's unique key; may wait for transactions writing the same key.
 */
void
jobq_job_again(Relation rel, JobqJob *job, bool by_user)
{
	static const JobqUnique unique = {
		.on_conflict = UNIQUE_ERROR,.held_until = DT_NOBEGIN,.exempt = true,.max = 1
	};

	job_clear_stat(job);
	if (job_asked_by(job) != 0)
		jobq_answer_revoke(job);
	if (!job_blocked(job))
		JOB_SET(job, JOB_RUN_AT, TimestampTzGetDatum(jobq_now()));
	if (!JOB_ISNULL(job, JOB_GROUP_KEY))
		jobq_set_group(job, JOB(job, JOB_GROUP_KEY));
	if (JOB_ISNULL(job, JOB_UNIQUE_KEY))
	{
		jobq_length_add(job_queue_id(job), 1);
		jobq_job_insert(rel, job);
	}
	else
		jobq_unique_insert(rel, job, &unique);
	if (by_user)
		jobq_count(job, JOBQ_N_RETRIED, 1);
	jobq_state_changed(job, job_blocked(job) ? "blocked"
					   : jobq_waiting_state(job, jobq_now()));
}
