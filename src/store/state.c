/*-------------------------------------------------------------------------
 *
 * state.c
 *	  The states of a job, and notification of changes of state.
 *
 * src/store/state.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_live_state);

/* Return the state of a live job before a start. */
static const char *
waiting_state(TimestampTz run_at, TimestampTz expires_at, bool retried,
			  bool suspended, TimestampTz now)
{
	if (expires_at <= now)
		return "expired";
	if (run_at == DT_NOEND)
		return "blocked";
	if (run_at <= now)
		return "ready";
	if (suspended)
		return "suspended";
	return retried ? "retryable" : "scheduled";
}

/* Return the state of a live job without a running attempt. */
const char *
jobq_waiting_state(const JobqJob *job, TimestampTz now)
{
	return waiting_state(job_run_at(job), JOB_ISNULL(job, JOB_EXPIRES_AT) ? DT_NOEND
						 : DatumGetTimestampTz(JOB(job, JOB_EXPIRES_AT)),
						 !JOB_ISNULL(job, JOB_ERRORS),
						 !JOB_ISNULL(job, JOB_WAITS_FOR), now);
}

/*
 * live_state(running, run_at, expires_at, retried, suspended): the state of a live job, for views.
 */
Datum
jobq_live_state(PG_FUNCTION_ARGS)
{
	if (!PG_ARGISNULL(0) && PG_GETARG_BOOL(0))
		PG_RETURN_TEXT_P(cstring_to_text("running"));
	if (PG_ARGISNULL(1))
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(waiting_state(PG_GETARG_TIMESTAMPTZ(1),
												   PG_ARGISNULL(2) ? DT_NOEND
												   : PG_GETARG_TIMESTAMPTZ(2),
												   !PG_ARGISNULL(3) && PG_GETARG_BOOL(3),
												   !PG_ARGISNULL(4) && PG_GETARG_BOOL(4),
												   jobq_now())));
}

/*
 * Notify the channel of a watched job.  progress: percent, or -1.  now: notify at once, and
 * not after the commit of this transaction.  Such a message is dropped if the relay is half
 * full.  The payload contains no data of the job, because every user may listen.
 */
static void
tell_watchers(const JobqJob *job, const char *state, int attempt,
			  float4 progress, bool now)
{
	char		channel[NAMEDATALEN];
	char		payload[192];
	char		percent[48] = "";

	if (!job_watch(job))
		return;
	if (progress >= 0)
		snprintf(percent, sizeof(percent), ", \"progress\": %g", progress);
	snprintf(channel, sizeof(channel), "jobq_job_" INT64_FORMAT, job_id(job));
	snprintf(payload, sizeof(payload),
			 "{\"id\": " INT64_FORMAT ", \"state\": \"%s\", \"attempt\": %d%s}",
			 job_id(job), state, attempt, percent);
	if (now)
		jobq_relay_now(channel, payload);
	else
		jobq_relay(channel, payload, false);
}

/*
 * After the commit of this transaction, wake the sessions waiting for the job, and notify its
 * channel if it is watched.  state: the job's new state.
 */
void
jobq_state_changed(const JobqJob *job, const char *state)
{
	jobq_at_commit_wake(job_id(job));
	tell_watchers(job, state, job_attempt(job), -1, false);
}

/*
 * Report the running attempt on the channel of a watched job.  progress: percent, or negative
 * if unknown.  now: notify at once, because the transaction stays open.  Otherwise, the
 * notification is sent after the commit.
 */
void
jobq_tell_running(const JobqJob *job, int attempt, float4 progress, bool now)
{
	tell_watchers(job, "running", attempt, progress, now);
}
