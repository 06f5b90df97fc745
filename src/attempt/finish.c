/*-------------------------------------------------------------------------
 *
 * finish.c
 *	  How an attempt ends: archive, another attempt, or dead letter.
 *
 * All of this is part of the caller's transaction, which also deletes the job's row.  A job is
 * therefore always in exactly one of the three tables.
 *
 * src/attempt/finish.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "attempt/attempt.h"

/* Number of errors stored with a job. */
#define MAX_ERRORS		25

/*
 * Number of crashes of its server process after which a job is a dead letter.  A first crash
 * can have another cause, such as the OOM killer.  Each further crash of the server ends all
 * sessions.
 */
#define MAX_CRASHES		2

/* Maximum length of the texts of a dead letter's error, in bytes. */
#define MAX_LETTER_TEXT	(64 * 1024)

static void enqueue_on_failure(const JobqJob *job, const JobqError *error);

/*
 * Return the job's list of errors with error appended.  A long list keeps the first and the
 * last errors; the numbers of the attempts show the gap.  started_at is DT_NOBEGIN if the
 * attempt never began.  fingerprint: of the error.
 */
static Datum
append_error(const JobqJob *job, int attempt, TimestampTz started_at,
			 TimestampTz at, const JobqError *error, int64 fingerprint)
{
	StringInfoData buf;
	Datum		entry;
	Datum		errors;

	initStringInfo(&buf);
	appendStringInfo(&buf, "[{\"attempt\": %d", attempt);
	jobq_append_time(&buf, "at", at);
	if (started_at != DT_NOBEGIN)
		jobq_append_time(&buf, "started_at", started_at);
	if (error->trier != NULL)
	{
		if (error->trier->pid != 0)
			appendStringInfo(&buf, ", \"worker\": %d", error->trier->pid);
		if (error->trier->consumer != NULL)
		{
			appendStringInfoString(&buf, ", \"consumer\": ");
			jobq_append_text(&buf, error->trier->consumer);
		}
		if (error->trier->progress >= 0)
		{
			appendStringInfo(&buf, ", \"progress\": %g, \"progress_message\": ",
							 error->trier->progress);
			jobq_append_text(&buf, error->trier->message);
		}
	}
	appendStringInfo(&buf, ", \"fingerprint\": " INT64_FORMAT ", \"sqlstate\": \"%s\", \"message\": ",
					 fingerprint, unpack_sql_state(error->sqlerrcode));
	jobq_append_text(&buf, error->message);
	if (error->detail != NULL)
	{
		appendStringInfoString(&buf, ", \"detail\": ");
		jobq_append_text(&buf, error->detail);
	}
	if (error->hint != NULL)
	{
		appendStringInfoString(&buf, ", \"hint\": ");
		jobq_append_text(&buf, error->hint);
	}
	if (error->context != NULL)
	{
		appendStringInfoString(&buf, ", \"context\": ");
		jobq_append_text(&buf, error->context);
	}
	if (started_at != DT_NOBEGIN)
		(void) jobq_append_cost(&buf, ", \"cost\": ", job);
	appendStringInfoString(&buf, "}]");
	entry = jobq_text_to_jsonb(buf.data);
	if (JOB_ISNULL(job, JOB_ERRORS))
		return entry;
	errors = JOB(job, JOB_ERRORS);
	if (DatumGetInt32(DirectFunctionCall1(jsonb_array_length, errors)) >= MAX_ERRORS)
		errors = DirectFunctionCall2(jsonb_delete_idx, errors,
									 Int32GetDatum(1));
	return DirectFunctionCall2(jsonb_concat, errors, entry);
}

/*
 * True if an error with this code excludes another attempt, however many attempts remain.
 */
bool
jobq_attempt_final(const JobqCurrent *current, int sqlerrcode)
{
	return current->barred ||
		(sqlerrcode == ERRCODE_JOBQ_FAILED && current->rejected);
}

/*
 * Record a failed attempt: schedule another attempt, or make the job a dead letter.  Deletes
 * the job's row first.  Does nothing if another transaction has taken the row.  The caller has
 * set crashes and exceptions in the job.  Returns true if the job will run again.
 */
bool
jobq_job_attempt_failed(Relation rel, JobqJob *job, const JobqFailure *failure)
{
	return jobq_job_delete(rel, job) && jobq_job_failed(rel, job, failure);
}

/*
 * Make a job a dead letter that could not begin an attempt.  The caller has deleted the job's
 * row.
 */
void
jobq_job_dies(Relation rel, JobqJob *job, const JobqError *error)
{
	JobqFailure failure = {.started_at = DT_NOBEGIN,.error = error,.final = true};

	(void) jobq_job_failed(rel, job, &failure);
}

/*
 * Register the failure for the job's limiters, which count it after the commit.
 */
static void
note_failure(const JobqJob *job)
{
	JobqPush	failed = {.queue_id = job_queue_id(job)};

	jobq_job_needs(job, failed.needs);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		failed.needs[s].cost = 0;	/* does not matter */
	jobq_at_commit_failed(&failed);
}

/*
 * Record a crash of a job that began after its predecessor in the group had completed, where
 * the crash has undone the completion.  The predecessor runs again first.
 *
 * The job is charged, but does not hold the group, and keeps the position in the group.  The
 * job does not become a dead letter now, and gets another attempt in its turn.  By then the
 * completion of its predecessors is durable, because a job that crashed a process begins with
 * a flush.  This case therefore happens once.
 *
 * Returns true if the job will run again, and false if another transaction has taken the row.
 */
bool
jobq_job_put_back(Relation rel, JobqJob *job, TimestampTz started_at,
				  const JobqError *error)
{
	TimestampTz now = jobq_now();

	if (!jobq_job_delete(rel, job))
		return false;
	jobq_count_attempt(job, JOBQ_N_FAILED, started_at, now);
	jobq_count(job, JOBQ_N_RETRIED, 1);
	JOB_SET(job, JOB_ATTEMPT, Int32GetDatum(job_attempt(job) + 1));
	JOB_SET(job, JOB_ERRORS,
			append_error(job, job_attempt(job), started_at, now, error,
						 jobq_fingerprint(error)));
	note_failure(job);
	jobq_job_insert(rel, job);
	jobq_state_changed(job, jobq_waiting_state(job, now));
	jobq_event(JOBQ_EVENT_FAILED, job, error->sqlerrcode, error->message);
	jobq_event(JOBQ_EVENT_RETRY, job, error->sqlerrcode, error->message);
	return true;
}

/*
 * Like jobq_job_attempt_failed(), for a job with a row that the caller has deleted.  A lease has
 * charged the attempt of a procedure; the charge is returned if the procedure made progress.
 */
bool
jobq_job_failed(Relation rel, JobqJob *job, const JobqFailure *failure)
{
	TimestampTz started_at = failure->started_at;
	const JobqError *error = failure->error;
	bool		final = failure->final;
	int64		delay_ms = failure->delay_ms;
	JobqHandler buffer;
	const JobqHandler *handler = jobq_handler(jobq_job_kind(job), &buffer);
	TimestampTz now = jobq_now();
	TimestampTz run_at;
	JobqError	letter_error;
	int64		fingerprint = jobq_fingerprint(error);
	int			attempt = job_attempt(job) + (failure->charge ? 1 : 0);

	jobq_count_attempt(job, JOBQ_N_FAILED, started_at, now);
	JOB_SET(job, JOB_ERRORS, append_error(job, attempt, started_at, now, error, fingerprint));
	if (!failure->charge && job_leased(job) && jobq_made_progress(job))
		attempt--;
	JOB_SET(job, JOB_ATTEMPT, Int32GetDatum(attempt));
	job->nulls[JOB_LEASE_TOKEN - 1] = job->nulls[JOB_LEASE_UNTIL - 1] = true;
	job->nulls[JOB_WAITS_FOR - 1] = true;
	note_failure(job);

	if (delay_ms < 0)
	{
		const char *policy;
		JobqBackoff backoff;

		if (!JOB_ISNULL(job, JOB_BACKOFF))
			policy = TextDatumGetCString(JOB(job, JOB_BACKOFF));
		else
			policy = jobq_handler_backoff(jobq_job_kind(job));
		if (policy == NULL)
			policy = jobq_default_backoff;
		jobq_backoff_parse(policy, &backoff);
		delay_ms = jobq_backoff_delay(&backoff, attempt,
									  pg_prng_double(&pg_global_prng_state));
	}
	run_at = now + delay_ms * 1000;

	if (!JOB_ISNULL(job, JOB_RETRY_UNTIL))
		final = final ||
			run_at > DatumGetTimestampTz(JOB(job, JOB_RETRY_UNTIL));
	else
		final = final || job_last_attempt(job, attempt);
	if (handler != NULL && handler->max_exceptions >= 0 &&
		DatumGetInt16(JOB(job, JOB_EXCEPTIONS)) >= handler->max_exceptions)
		final = true;
	if (DatumGetInt16(JOB(job, JOB_CRASHES)) >= MAX_CRASHES)
		final = true;
	if (!final && !jobq_handler_retries(jobq_job_kind(job), error->sqlerrcode))
		final = true;

	if (final)
	{
		if (job_group(job) != 0)
			jobq_at_commit_group_end(job_group(job), job_id(job));
		jobq_length_remove(job_queue_id(job));
		letter_error = *error;
		letter_error.message = jobq_cut_text(error->message, MAX_LETTER_TEXT);
		if (error->context != NULL)
			letter_error.context = jobq_cut_text(error->context, MAX_LETTER_TEXT);
		jobq_dead_letter(job, now, started_at, &letter_error, fingerprint);
		if (job_batch(job) != 0)
			jobq_at_commit_batch(job_batch(job), job_id(job), true);
		if (handler != NULL && handler->has_on_failure)
			enqueue_on_failure(job, error);
		jobq_state_changed(job, "dead");
		jobq_unique_finished(job, false);
	}
	else
	{
		jobq_job_set_run_at(job, run_at);
		jobq_job_insert_again(rel, job);
		jobq_count(job, JOBQ_N_RETRIED, 1);
		jobq_state_changed(job, "retryable");
		(void) jobq_unique_started(job);
	}
	jobq_event(JOBQ_EVENT_FAILED, job, error->sqlerrcode, error->message);
	jobq_event(final ? JOBQ_EVENT_DEAD : JOBQ_EVENT_RETRY, job, error->sqlerrcode,
			   error->message);
	return !final;
}

/*
 * Enqueue a job for the kind's on_failure handler.  The payload is copied from the dead
 * letter.  The headers contain the id of the dead letter, the error, and the context of the
 * error.
 */
static void
enqueue_on_failure(const JobqJob *job, const JobqError *error)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_follow_up_queue(job_queue_id(job),
												  jobq_job_kind(job), &buffer);
	StringInfoData headers;

	initStringInfo(&headers);
	appendStringInfo(&headers, "{\"dead_letter\": " INT64_FORMAT ", \"sqlstate\": \"%s\", \"error\": ",
					 job_id(job), unpack_sql_state(error->sqlerrcode));
	jobq_append_text(&headers, error->message);
	if (error->context != NULL)
	{
		appendStringInfoString(&headers, ", \"error_context\": ");
		jobq_append_text(&headers, error->context);
	}
	appendStringInfoChar(&headers, '}');
	jobq_follow_up(psprintf(ON_FAILURE_PREFIX "%s", jobq_job_kind(job)), queue->id,
				   job_role(job), JOB(job, JOB_PAYLOAD), headers.data, job);
}

/*
 * Raise an error if the value is too large, or nested too deeply for programs that read it.
 * what: the noun for the message.
 *
 * The SQLSTATE is deliberately not that of a server limit.  A commit can fail with a server
 * limit, for example when NOTIFY finds no room.  Otherwise, a consumer would blame the
 * result for this error, and report a completed job as failed.
 */
void
jobq_check_value(const char *what, Datum value)
{
	Size		size = toast_raw_datum_size(value);

	if (size > (Size) jobq_max_payload * 1024)
		ereport(ERROR,
				(errcode(ERRCODE_STRING_DATA_RIGHT_TRUNCATION),
				 errmsg("%s of %zu bytes is larger than the allowed %d kB",
						what, size, jobq_max_payload),
				 errhint("Store the data in a table and return its key, or raise \"%s\".",
						 "jobq.max_payload")));
	jobq_check_depth(value, size, what, ERRCODE_STRING_DATA_RIGHT_TRUNCATION);
}

/* Like jobq_check_value(), for the result of a job or step. */
void
jobq_check_result(Datum result)
{
	jobq_check_value("result", result);
}

/*
 * The handler has asked for another attempt.  True if the job has no attempt, or no time, left
 * for it.  The job's row already has the new run_at and attempt number.
 */
static bool
released_for_good(const JobqJob *job, JobqOutcome outcome)
{
	if (JOB_ISNULL(job, JOB_RETRY_UNTIL))
		return job_last_attempt(job, job_attempt(job));
	return outcome == OUTCOME_RELEASE &&
		job_run_at(job) > DatumGetTimestampTz(JOB(job, JOB_RETRY_UNTIL));
}

/*
 * A set handler has reported that the attempt of this job has failed.  Returns true if the job
 * will run again.
 */
static bool
nacked(Relation rel, JobqJob *job, const JobqCurrent *current, TimestampTz started_at)
{
	bool		rejected = current->outcome == OUTCOME_REJECT;
	JobqTrier	trier = {MyProcPid, NULL, -1, ""};
	JobqError	error = {
		.sqlerrcode = rejected ? ERRCODE_JOBQ_FAILED : ERRCODE_JOBQ_NACK,
		.message = current->reason,.trier = &trier
	};
	JobqFailure failure = {
		.started_at = started_at,.error = &error,.charge = true,.final = rejected,
		.delay_ms = current->delay_ms
	};

	jobq_job_count_exception(job);
	job->nulls[JOB_TOGETHER - 1] = true;	/* the worker is alive */
	return jobq_job_failed(rel, job, &failure);
}

/*
 * The handler has returned: write the requested outcome in the handler's transaction.  The
 * caller has deleted the job's row.  Returns true if the job will run again.
 * Raises an error if the result is too large.
 */
bool
jobq_attempt_returned(Relation rel, JobqJob *job, const JobqCurrent *current,
					  TimestampTz started_at, bool has_result, Datum result)
{
	bool		live = false;
	JobqJob		began;

	if (has_result)
		jobq_check_result(result);
	jobq_log_keep(current, job);
	switch (current->outcome)
	{
		case OUTCOME_COMPLETE:
			JOB_SET(job, JOB_ATTEMPT, Int32GetDatum(current->attempt));
			jobq_archive(job, CAUSE_COMPLETED, started_at, has_result, result,
						 NULL);
			break;

		case OUTCOME_DISCARD:
			JOB_SET(job, JOB_ATTEMPT, Int32GetDatum(current->attempt));
			jobq_archive(job, CAUSE_HANDLER, started_at, has_result, result,
						 current->reason);
			jobq_cancel_asked(rel, job);
			break;

		case OUTCOME_SNOOZE:
		case OUTCOME_RELEASE:
		case OUTCOME_SUSPEND:
			began = *job;
			JOB_SET(job, JOB_ATTEMPT,
					Int32GetDatum(current->outcome == OUTCOME_RELEASE
								  ? current->attempt : current->attempt - 1));
			jobq_job_set_run_at(job, current->outcome == OUTCOME_SUSPEND ? current->until
								: jobq_now() + current->delay_ms * 1000);
			job->nulls[JOB_WAITS_FOR - 1] = true;
			if (current->outcome == OUTCOME_SUSPEND)
			{
				JOB_SET(job, JOB_WAITS_FOR, CStringGetTextDatum(current->waits_for));

				/* the job has begun in time */
				job->nulls[JOB_EXPIRES_AT - 1] = true;
			}
			job->nulls[JOB_LEASE_TOKEN - 1] = true;
			job->nulls[JOB_LEASE_UNTIL - 1] = true;
			jobq_job_insert_again(rel, job);
			live = true;
			if (released_for_good(job, current->outcome))
			{
				JobqError	error = {.sqlerrcode = ERRCODE_JOBQ_FAILED,
					.message = JOB_ISNULL(job, JOB_RETRY_UNTIL)
					? "the job was released on its last attempt"
					: "the job was released until after its last time to try"
				};

				JobqFailure failure = {
					.started_at = started_at,.error = &error,.final = true
				};

				CommandCounterIncrement();
				(void) jobq_job_attempt_failed(rel, job, &failure);
				live = false;
			}
			else
			{
				jobq_count_attempt(&began, JOBQ_N_STARTED, started_at, jobq_now());
				jobq_state_changed(job, jobq_waiting_state(job, jobq_now()));
			}
			break;

		case OUTCOME_NACK:
		case OUTCOME_REJECT:
			live = nacked(rel, job, current, started_at);
			break;
	}
	return live;
}
