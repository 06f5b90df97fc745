/*-------------------------------------------------------------------------
 *
 * state.c
 *	  The states of a job, and the one place where a change of state is told.
 *
 * src/store/state.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "store/store.h"

/*
 * The state of a live job that nobody has begun.
 */
const char *
jobq_waiting_state(const JobqJob *job, TimestampTz now)
{
	if (!JOB_ISNULL(job, JOB_EXPIRES_AT) &&
		DatumGetTimestampTz(JOB(job, JOB_EXPIRES_AT)) <= now)
		return "expired";
	if (job_blocked(job))
		return "blocked";
	if (job_run_at(job) <= now)
		return "ready";
	return JOB_ISNULL(job, JOB_ERRORS) ? "scheduled" : "retryable";
}

/*
 * Tell who waits for the job, or watches it, that it is in another state;
 * after this transaction has committed.
 */
void
jobq_state_changed(const JobqJob *job, const char *state)
{
	jobq_at_commit_wake(job_id(job));
	if (job_watch(job))
	{
		char		channel[NAMEDATALEN];
		char		payload[128];

		snprintf(channel, sizeof(channel), "jobq_job_" INT64_FORMAT,
				 job_id(job));
		snprintf(payload, sizeof(payload),
				 "{\"id\": " INT64_FORMAT ", \"state\": \"%s\", \"attempt\": %d}",
				 job_id(job), state, job_attempt(job));
		jobq_relay(channel, payload, false);
	}
}
