/*-------------------------------------------------------------------------
 *
 * block.c
 *	  Turns a new job into a blocked job.  src/store/blocked.c frees blocked jobs.
 *
 * src/compose/block.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compose/compose.h"

/*
 * Turn a new job into a blocked job.  jobq_prepare_job() must have made the job from the
 * same options, and the job must not be in the table yet.  The options delay and run_at
 * apply when the job is freed: a delay begins then, and so does the queue's expiry.  ERROR
 * if the delay is out of range.  Takes no locks.
 */
void
jobq_job_block(JobqJob *job, const Datum *options, const bool *nulls)
{
	if (!nulls[OPTION_DELAY])
		JOB_SET(job, JOB_FREE_DELAY,
				Int64GetDatum(jobq_interval_ms(DatumGetIntervalP(options[OPTION_DELAY]),
											   "delay", 0, JOBQ_MAX_DELAY_MS)));
	if (!nulls[OPTION_RUN_AT])
		JOB_SET(job, JOB_FREE_RUN_AT, options[OPTION_RUN_AT]);
	if (nulls[OPTION_EXPIRES_AT])
		job->nulls[JOB_EXPIRES_AT - 1] = true;
	JOB_SET(job, JOB_RUN_AT, TimestampTzGetDatum(DT_NOEND));
}
