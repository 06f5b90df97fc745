/*-------------------------------------------------------------------------
 *
 * finish.c
 *	  How an attempt ends: the archive, another attempt, or the dead letters.
 *
 * All of this is part of the caller's transaction, which also deletes the
 * job's row; so a job is always in exactly one of the three tables.
 *
 * src/attempt/finish.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/jobq.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "attempt/call.h"
#include "commit/commit.h"
#include "store/length.h"
#include "store/row.h"

/* Attribute numbers of jobq.archive. */
enum
{
	ARCHIVE_FINISHED_AT = 1,
	ARCHIVE_ID,
	ARCHIVE_ENQUEUED_AT,
	ARCHIVE_STARTED_AT,
	ARCHIVE_RUN_AT,
	ARCHIVE_QUEUE_ID,
	ARCHIVE_PRIORITY,
	ARCHIVE_ROLE,
	ARCHIVE_ATTEMPT,
	ARCHIVE_MAX_ATTEMPTS,
	ARCHIVE_STATE,
	ARCHIVE_KIND,
	ARCHIVE_PAYLOAD,
	ARCHIVE_HEADERS,
	ARCHIVE_RESULT,
	ARCHIVE_REASON,
	ARCHIVE_GROUP_KEY,
	ARCHIVE_BATCH_ID,
	ARCHIVE_LOG,
	ARCHIVE_NATTS = ARCHIVE_LOG
};

/* Attribute numbers of jobq.failed_job. */
enum
{
	FAILED_FINISHED_AT = 1,
	FAILED_ID,
	FAILED_ENQUEUED_AT,
	FAILED_STARTED_AT,
	FAILED_RUN_AT,
	FAILED_QUEUE_ID,
	FAILED_PRIORITY,
	FAILED_ROLE,
	FAILED_ATTEMPT,
	FAILED_MAX_ATTEMPTS,
	FAILED_EXCEPTIONS,
	FAILED_CRASHES,
	FAILED_WATCH,
	FAILED_KIND,
	FAILED_PAYLOAD,
	FAILED_TIMEOUT,
	FAILED_HEADERS,
	FAILED_BACKOFF,
	FAILED_ERROR,
	FAILED_SQLSTATE,
	FAILED_CONTEXT,
	FAILED_ERRORS,
	FAILED_GROUP_KEY,
	FAILED_UNIQUE_UNTIL,
	FAILED_UNIQUE_KEY,
	FAILED_BATCH_ID,
	FAILED_LOG,
	FAILED_NATTS = FAILED_LOG
};

/* Errors that are kept of a job, and bytes of each of their texts. */
#define MAX_ERRORS		25
#define MAX_ERROR_TEXT	4000

static bool archive_row(const JobqJob *job, char state, TimestampTz started_at,
						TimestampTz now, bool has_result, Datum result,
						const char *reason, Datum *values, bool *nulls);
static Relation open_archive(TimestampTz now);
static void append_text(StringInfo buf, const char *text);
static Datum append_error(const JobqJob *job, int attempt, TimestampTz at,
						  const JobqError *error);
static void dead_letter(JobqJob *job, TimestampTz now, TimestampTz started_at,
						const JobqError *error);
static void enqueue_on_failure(const JobqJob *job, const JobqError *error);

/*
 * Parse a text as jsonb, in the current memory context.
 */
Datum
jobq_text_to_jsonb(const char *text)
{
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(text));
}

/*
 * Tell who waits for the job, or watches it, that it is in another state;
 * after this transaction has committed.
 */
void
jobq_tell(const JobqJob *job, const char *state)
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

/*
 * A job is finished: tell so at commit, and fill in its row for the archive.
 * False if its queue does not want it kept.
 */
static bool
archive_row(const JobqJob *job, char state, TimestampTz started_at,
			TimestampTz now, bool has_result, Datum result, const char *reason,
			Datum *values, bool *nulls)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	char		keep = queue != NULL ? queue->keep : KEEP_ALL;

	memset(nulls, 0, sizeof(bool) * ARCHIVE_NATTS);
	jobq_length_remove(job_queue_id(job));

	/* the group of a worker's own job knows by its permit */
	if (job_group(job) != 0 &&
		(jobq_current == NULL || jobq_current->slot == NULL ||
		 job_id(jobq_current->job) != job_id(job)))
		jobq_at_commit_group_end(job_group(job), job_id(job));
	if (job_batch(job) != 0)
		jobq_at_commit_batch(job_batch(job), job_id(job),
							 state == STATE_EXPIRED);
	jobq_tell(job, state == STATE_COMPLETED ? "completed"
			  : state == STATE_CANCELLED ? "cancelled" : "expired");

	/* the rest of its batch depends on what has become of it */
	if (keep == KEEP_NOTHING && job_batch(job) == 0)
		return false;

	values[ARCHIVE_FINISHED_AT - 1] = TimestampTzGetDatum(now);
	values[ARCHIVE_ID - 1] = JOB(job, JOB_ID);
	values[ARCHIVE_ENQUEUED_AT - 1] = JOB(job, JOB_ENQUEUED_AT);
	values[ARCHIVE_STARTED_AT - 1] = TimestampTzGetDatum(started_at);
	nulls[ARCHIVE_STARTED_AT - 1] = started_at == DT_NOBEGIN;
	values[ARCHIVE_RUN_AT - 1] = JOB(job, JOB_RUN_AT);
	values[ARCHIVE_QUEUE_ID - 1] = JOB(job, JOB_QUEUE_ID);
	values[ARCHIVE_PRIORITY - 1] = JOB(job, JOB_PRIORITY);
	values[ARCHIVE_ROLE - 1] = JOB(job, JOB_ROLE);
	values[ARCHIVE_ATTEMPT - 1] = JOB(job, JOB_ATTEMPT);
	values[ARCHIVE_MAX_ATTEMPTS - 1] = JOB(job, JOB_MAX_ATTEMPTS);
	values[ARCHIVE_STATE - 1] = CharGetDatum(state);
	values[ARCHIVE_KIND - 1] = JOB(job, JOB_KIND);
	values[ARCHIVE_PAYLOAD - 1] = JOB(job, JOB_PAYLOAD);
	nulls[ARCHIVE_PAYLOAD - 1] = keep != KEEP_ALL;
	values[ARCHIVE_HEADERS - 1] = JOB(job, JOB_HEADERS);
	nulls[ARCHIVE_HEADERS - 1] = JOB_ISNULL(job, JOB_HEADERS);
	values[ARCHIVE_RESULT - 1] = result;
	nulls[ARCHIVE_RESULT - 1] = !has_result;
	nulls[ARCHIVE_REASON - 1] = reason == NULL;
	values[ARCHIVE_GROUP_KEY - 1] = JOB(job, JOB_GROUP_KEY);
	nulls[ARCHIVE_GROUP_KEY - 1] = JOB_ISNULL(job, JOB_GROUP_KEY);
	values[ARCHIVE_BATCH_ID - 1] = JOB(job, JOB_BATCH_ID);
	nulls[ARCHIVE_BATCH_ID - 1] = JOB_ISNULL(job, JOB_BATCH_ID);
	values[ARCHIVE_LOG - 1] = JOB(job, JOB_LOG);
	nulls[ARCHIVE_LOG - 1] = JOB_ISNULL(job, JOB_LOG);
	if (reason != NULL)
		values[ARCHIVE_REASON - 1] = CStringGetTextDatum(reason);
	return true;
}

/*
 * Open the partition of the archive for jobs that finish now.
 */
static Relation
open_archive(TimestampTz now)
{
	/* while we wait for the lock, the day may get its partition */
	for (;;)
	{
		Oid			relid = jobq_archive_partition(now);
		Relation	rel = table_open(relid, RowExclusiveLock);

		if (relid == jobq_archive_partition(now))
		{
			jobq_check_columns(RelationGetDescr(rel), ARCHIVE_NATTS);
			return rel;
		}
		table_close(rel, RowExclusiveLock);
	}
}

/*
 * Put a finished job into the archive, as its queue wants it kept.  The
 * caller deletes its row.
 *
 * started_at is DT_NOBEGIN if the job never ran.
 */
void
jobq_archive(const JobqJob *job, char state, TimestampTz started_at,
			 bool has_result, Datum result, const char *reason)
{
	TimestampTz now = jobq_now();
	Datum		values[ARCHIVE_NATTS];
	bool		nulls[ARCHIVE_NATTS];
	Relation	rel;
	HeapTuple	tuple;

	if (archive_row(job, state, started_at, now, has_result, result, reason,
					values, nulls))
	{
		rel = open_archive(now);
		tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
		jobq_insert_tuple(rel, tuple);
		heap_freetuple(tuple);
		table_close(rel, NoLock);
	}
	jobq_unique_finished(job, state == STATE_COMPLETED);
}

/*
 * The same for many that are completed without a result: a page of the archive
 * is logged once.
 */
void
jobq_archive_many(const JobqJob *jobs, const TimestampTz *started_at, int njobs)
{
	TimestampTz now = jobq_now();
	Relation	rel = open_archive(now);
	HeapTuple  *tuples = palloc(sizeof(HeapTuple) * njobs);
	int			ntuples = 0;

	for (int i = 0; i < njobs; i++)
	{
		Datum		values[ARCHIVE_NATTS];
		bool		nulls[ARCHIVE_NATTS];

		if (archive_row(&jobs[i], STATE_COMPLETED, started_at[i], now, false,
						(Datum) 0, NULL, values, nulls))
			tuples[ntuples++] = heap_form_tuple(RelationGetDescr(rel), values,
												nulls);
	}
	jobq_insert_tuples(rel, tuples, ntuples);
	pfree(tuples);
	table_close(rel, NoLock);
	for (int i = 0; i < njobs; i++)
		jobq_unique_finished(&jobs[i], true);
}

static void
append_text(StringInfo buf, const char *text)
{
	char	   *copy = pstrdup(text);

	copy[pg_mbcliplen(copy, strlen(copy), MAX_ERROR_TEXT)] = '\0';
	escape_json(buf, copy);
}

/*
 * The job's list of errors with this one added.  Of many, the first and the
 * last are kept; the numbers of the attempts show the gap.
 */
static Datum
append_error(const JobqJob *job, int attempt, TimestampTz at,
			 const JobqError *error)
{
	StringInfoData buf;
	char		time[MAXDATELEN + 1];
	Datum		entry;
	Datum		errors;

	initStringInfo(&buf);
	appendStringInfo(&buf, "[{\"attempt\": %d, \"at\": ", attempt);
	(void) JsonEncodeDateTime(time, TimestampTzGetDatum(at), TIMESTAMPTZOID, NULL);
	escape_json(&buf, time);
	appendStringInfo(&buf, ", \"sqlstate\": \"%s\", \"message\": ",
					 unpack_sql_state(error->sqlerrcode));
	append_text(&buf, error->message);
	if (error->detail != NULL)
	{
		appendStringInfoString(&buf, ", \"detail\": ");
		append_text(&buf, error->detail);
	}
	if (error->hint != NULL)
	{
		appendStringInfoString(&buf, ", \"hint\": ");
		append_text(&buf, error->hint);
	}
	if (error->context != NULL)
	{
		appendStringInfoString(&buf, ", \"context\": ");
		append_text(&buf, error->context);
	}
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
 * Record a failed attempt: give the job another, or make it a dead letter.
 *
 * charge: count it as an attempt (not if a lease has done so already).
 * final: no other attempt, whatever is left.  delay_ms: wait so long for the
 * next one, or as the backoff says if negative.  The caller has set crashes
 * and exceptions in the job.  Does nothing if somebody else took the row.
 *
 * Returns whether the job will run again.
 */
bool
jobq_job_attempt_failed(Relation rel, JobqJob *job, TimestampTz started_at,
						const JobqError *error, bool charge, bool final,
						int64 delay_ms)
{
	return jobq_job_delete(rel, job) &&
		jobq_job_failed(rel, job, started_at, error, charge, final, delay_ms);
}

/*
 * The same for a job whose row the caller has deleted.
 */
bool
jobq_job_failed(Relation rel, JobqJob *job, TimestampTz started_at,
				const JobqError *error, bool charge, bool final,
				int64 delay_ms)
{
	JobqHandler buffer;
	const JobqHandler *handler = jobq_handler(jobq_job_kind(job), &buffer);
	TimestampTz now = jobq_now();
	TimestampTz run_at;
	int			attempt = job_attempt(job) + (charge ? 1 : 0);

	JOB_SET(job, JOB_ATTEMPT, Int32GetDatum(attempt));
	JOB_SET(job, JOB_ERRORS, append_error(job, attempt, now, error));
	job->nulls[JOB_LEASE_TOKEN - 1] = job->nulls[JOB_LEASE_UNTIL - 1] = true;
	jobq_at_commit_failed(job_queue_id(job), jobq_kind_hash(jobq_job_kind(job)),
						  job_group(job));

	if (delay_ms < 0)
	{
		const char *policy;
		JobqBackoff backoff;

		if (!JOB_ISNULL(job, JOB_BACKOFF))
			policy = TextDatumGetCString(JOB(job, JOB_BACKOFF));
		else
			policy = jobq_handler_backoff(jobq_job_kind(job));
		if (policy == NULL)
			policy = JOBQ_DEFAULT_BACKOFF;
		jobq_backoff_parse(policy, &backoff);
		delay_ms = jobq_backoff_delay(&backoff, attempt,
									  pg_prng_double(&pg_global_prng_state));
	}
	run_at = now + delay_ms * 1000;

	if (!JOB_ISNULL(job, JOB_RETRY_UNTIL))
		final = final ||
			run_at > DatumGetTimestampTz(JOB(job, JOB_RETRY_UNTIL));
	else
		final = final || attempt >= job_max_attempts(job);
	if (handler != NULL && handler->max_exceptions >= 0 &&
		DatumGetInt16(JOB(job, JOB_EXCEPTIONS)) >= handler->max_exceptions)
		final = true;
	if (DatumGetInt16(JOB(job, JOB_CRASHES)) >= jobq_max_crashes)
		final = true;

	if (final)
	{
		if (job_group(job) != 0)
			jobq_at_commit_group_end(job_group(job), job_id(job));
		jobq_length_remove(job_queue_id(job));
		dead_letter(job, now, started_at, error);
		if (job_batch(job) != 0)
			jobq_at_commit_batch(job_batch(job), job_id(job), true);
		if (handler != NULL && handler->has_on_failure)
			enqueue_on_failure(job, error);
		jobq_tell(job, "failed");
		jobq_unique_finished(job, false);
	}
	else
	{
		JOB_SET(job, JOB_RUN_AT, TimestampTzGetDatum(run_at));
		jobq_job_insert_again(rel, job);
		jobq_tell(job, "retryable");
		(void) jobq_unique_started(job);
	}
	return !final;
}

static void
dead_letter(JobqJob *job, TimestampTz now, TimestampTz started_at,
			const JobqError *error)
{
	Datum		values[FAILED_NATTS];
	bool		nulls[FAILED_NATTS] = {0};
	Relation	rel = table_open(jobq_relations()->failed, RowExclusiveLock);
	HeapTuple	tuple;

#define COPY_FIELD(to, from) \
	(values[(to) - 1] = JOB(job, from), nulls[(to) - 1] = JOB_ISNULL(job, from))
	values[FAILED_FINISHED_AT - 1] = TimestampTzGetDatum(now);
	COPY_FIELD(FAILED_ID, JOB_ID);
	COPY_FIELD(FAILED_ENQUEUED_AT, JOB_ENQUEUED_AT);
	values[FAILED_STARTED_AT - 1] = TimestampTzGetDatum(started_at);
	nulls[FAILED_STARTED_AT - 1] = started_at == DT_NOBEGIN;
	COPY_FIELD(FAILED_RUN_AT, JOB_RUN_AT);
	COPY_FIELD(FAILED_QUEUE_ID, JOB_QUEUE_ID);
	COPY_FIELD(FAILED_PRIORITY, JOB_PRIORITY);
	COPY_FIELD(FAILED_ROLE, JOB_ROLE);
	COPY_FIELD(FAILED_ATTEMPT, JOB_ATTEMPT);
	COPY_FIELD(FAILED_MAX_ATTEMPTS, JOB_MAX_ATTEMPTS);
	COPY_FIELD(FAILED_EXCEPTIONS, JOB_EXCEPTIONS);
	COPY_FIELD(FAILED_CRASHES, JOB_CRASHES);
	COPY_FIELD(FAILED_WATCH, JOB_WATCH);
	COPY_FIELD(FAILED_KIND, JOB_KIND);
	COPY_FIELD(FAILED_PAYLOAD, JOB_PAYLOAD);
	COPY_FIELD(FAILED_TIMEOUT, JOB_TIMEOUT);
	COPY_FIELD(FAILED_HEADERS, JOB_HEADERS);
	COPY_FIELD(FAILED_BACKOFF, JOB_BACKOFF);
	COPY_FIELD(FAILED_ERRORS, JOB_ERRORS);
	COPY_FIELD(FAILED_GROUP_KEY, JOB_GROUP_KEY);
	COPY_FIELD(FAILED_UNIQUE_UNTIL, JOB_UNIQUE_UNTIL);
	COPY_FIELD(FAILED_UNIQUE_KEY, JOB_UNIQUE_KEY);
	COPY_FIELD(FAILED_BATCH_ID, JOB_BATCH_ID);
	COPY_FIELD(FAILED_LOG, JOB_LOG);
	values[FAILED_ERROR - 1] = CStringGetTextDatum(error->message);
	values[FAILED_SQLSTATE - 1] =
		CStringGetTextDatum(unpack_sql_state(error->sqlerrcode));
	nulls[FAILED_CONTEXT - 1] = error->context == NULL;
	if (error->context != NULL)
		values[FAILED_CONTEXT - 1] = CStringGetTextDatum(error->context);

	jobq_check_columns(RelationGetDescr(rel), FAILED_NATTS);
	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	jobq_insert_tuple(rel, tuple);
	heap_freetuple(tuple);
	table_close(rel, RowExclusiveLock);
}

/*
 * The kind's on_failure handler runs as a job of its own, with the dead
 * letter's payload, and its id and error in the headers.
 */
static void
enqueue_on_failure(const JobqJob *job, const JobqError *error)
{
	JobqQueue	queue_buffer;
	const JobqQueue *queue;
	int32		queue_id;
	StringInfoData buf;
	JobqJob		successor;
	Relation	rel;

	jobq_pin_queues();
	queue = jobq_queue_by_id(job_queue_id(job), &queue_buffer);
	initStringInfo(&buf);
	appendStringInfo(&buf, "{\"failed_job\": " INT64_FORMAT ", \"sqlstate\": \"%s\", \"error\": ",
					 job_id(job), unpack_sql_state(error->sqlerrcode));
	append_text(&buf, error->message);
	appendStringInfoChar(&buf, '}');

	/* a consumer would not run it */
	if (queue == NULL || queue->mode != MODE_WORKER)
	{
		JobqHandler handler_buffer;
		const JobqHandler *handler = jobq_handler(jobq_job_kind(job),
												  &handler_buffer);

		queue = handler != NULL && handler->queue[0] != '\0'
			? jobq_queue_by_name(handler->queue, true, &queue_buffer) : NULL;
		if (queue == NULL || queue->mode != MODE_WORKER)
			queue = jobq_queue_by_name("default", true, &queue_buffer);
	}
	queue_id = queue->id;

	jobq_job_init(&successor,
				  psprintf(ON_FAILURE_PREFIX "%s", jobq_job_kind(job)),
				  JOB(job, JOB_PAYLOAD), queue_id, job_role(job));
	JOB_SET(&successor, JOB_HEADERS, jobq_text_to_jsonb(buf.data));
	rel = jobq_open_jobs();
	jobq_length_add(queue_id);
	jobq_job_insert(rel, &successor);
	table_close(rel, NoLock);
}
