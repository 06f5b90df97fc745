/*-------------------------------------------------------------------------
 *
 * block.c
 *	  A job that is enqueued blocked (src/store/blocked.c).
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
 * Have a job that jobq_prepare_job() has made from these options, and that is
 * not in the table yet, wait until it is freed.  A delay of its own, and what
 * its queue says about its expiry, begin then.
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
