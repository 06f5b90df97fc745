/*-------------------------------------------------------------------------
 *
 * archive.c
 *	  Archive of completed, cancelled and expired jobs.
 *
 * All changes are part of the caller's transaction, which also deletes the job's row.  A job
 * is therefore always in exactly one of jobq_internal.job, jobq_internal.archive and
 * jobq_internal.dead_letter.
 *
 * src/store/archive.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "commit/commit.h"
#include "store/store.h"

/*
 * Minimum duration of a run, in microseconds, for which the cost of the run is stored.
 */
#define COST_KEPT	1000

/* Attribute numbers of jobq_internal.archive. */
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
	ARCHIVE_CONTEXT,
	ARCHIVE_ERRORS,
	ARCHIVE_TENANT,
	ARCHIVE_TAGS,
	ARCHIVE_COST,
	ARCHIVE_LIMIT_COST,
	ARCHIVE_NATTS = ARCHIVE_LIMIT_COST
};

StaticAssertDecl(STATE_CANCELLED == JOBQ_ENDING_CANCELLED,
				 "both rooms have the same letter");

static bool archive_row(const JobqJob *job, char state, TimestampTz started_at,
						TimestampTz now, bool has_result, Datum result,
						const char *reason, Datum *values, bool *nulls);
static bool cost_of(const JobqJob *job, TimestampTz started_at, TimestampTz now,
					Datum *cost);
static void raise_end(const JobqJob *job, char state, const char *reason);
static Relation open_archive(TimestampTz now);

/*
 * A job is finished: note its end for the commit, and fill in its row for the archive.
 * Returns false if the queue does not keep the job.
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

	/* the group of a worker's current job learns of the end by the permit */
	if (job_group(job) != 0 &&
		(jobq_current == NULL || jobq_current->slot == NULL ||
		 job_id(jobq_current->job) != job_id(job)))
		jobq_at_commit_group_end(job_group(job), job_id(job));
	if (job_batch(job) != 0)
		jobq_at_commit_batch(job_batch(job), job_id(job),
							 state == STATE_EXPIRED);
	jobq_count_attempt(job, state == STATE_COMPLETED ? JOBQ_N_COMPLETED
					   : state == STATE_CANCELLED ? JOBQ_N_CANCELLED : JOBQ_N_EXPIRED,
					   started_at, now);
	jobq_state_changed(job, state == STATE_COMPLETED ? "completed"
					   : state == STATE_CANCELLED ? "cancelled" : "expired");

	/* the rest of its batch depends on the outcome */
	if (keep == KEEP_NOTHING && job_batch(job) == 0)
	{
		jobq_at_commit_outcome(job_id(job), job_role(job), state);
		return false;
	}

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
	values[ARCHIVE_CONTEXT - 1] = JOB(job, JOB_CONTEXT);
	nulls[ARCHIVE_CONTEXT - 1] = JOB_ISNULL(job, JOB_CONTEXT) ||
		keep != KEEP_ALL;
	values[ARCHIVE_ERRORS - 1] = JOB(job, JOB_ERRORS);
	nulls[ARCHIVE_ERRORS - 1] = JOB_ISNULL(job, JOB_ERRORS);
	values[ARCHIVE_TENANT - 1] = JOB(job, JOB_TENANT);
	nulls[ARCHIVE_TENANT - 1] = JOB_ISNULL(job, JOB_TENANT);
	values[ARCHIVE_TAGS - 1] = JOB(job, JOB_TAGS);
	nulls[ARCHIVE_TAGS - 1] = JOB_ISNULL(job, JOB_TAGS);
	values[ARCHIVE_LIMIT_COST - 1] = JOB(job, JOB_LIMIT_COST);
	nulls[ARCHIVE_LIMIT_COST - 1] = JOB_ISNULL(job, JOB_LIMIT_COST);
	nulls[ARCHIVE_COST - 1] = !cost_of(job, started_at, now, &values[ARCHIVE_COST - 1]);
	if (reason != NULL)
		values[ARCHIVE_REASON - 1] = CStringGetTextDatum(reason);
	return true;
}

/*
 * Return in *cost what the job's run in this process has cost so far.  Returns false for a
 * short run with negligible cost, because there may be millions of these runs.
 */
static bool
cost_of(const JobqJob *job, TimestampTz started_at, TimestampTz now, Datum *cost)
{
	StringInfoData buf;

	if (started_at == DT_NOBEGIN || now < started_at + COST_KEPT)
		return false;
	initStringInfo(&buf);
	if (!jobq_append_cost(&buf, "", job))
		return false;
	*cost = jobq_text_to_jsonb(buf.data);
	return true;
}

static void
raise_end(const JobqJob *job, char state, const char *reason)
{
	jobq_event(state == STATE_COMPLETED ? JOBQ_EVENT_COMPLETED
			   : state == STATE_CANCELLED ? JOBQ_EVENT_CANCELLED : JOBQ_EVENT_EXPIRED,
			   job, 0, reason);
}

/* Open the partition of the archive for a job finishing now. */
static Relation
open_archive(TimestampTz now)
{
	/*
	 * the partition of the day may be created while this session waits for
	 * the lock
	 */
	for (;;)
	{
		Oid			relid = jobq_archive_partition(now);
		Relation	rel = table_open(relid, RowExclusiveLock);

		if (relid == jobq_archive_partition(now))
		{
			jobq_check_table(rel, JOBQ_ARCHIVE_TABLE);
			return rel;
		}
		table_close(rel, RowExclusiveLock);
	}
}

/*
 * Insert a finished job into the archive, as far as its queue keeps finished jobs.  The caller
 * deletes the row of the job.  started_at is DT_NOBEGIN if the job never ran.  reason may be
 * NULL. Also releases the job's unique key and raises the event.
 */
void
jobq_archive(const JobqJob *job, char state, TimestampTz started_at,
			 bool has_result, Datum result, const char *reason)
{
	TimestampTz now = jobq_now();
	Datum		values[ARCHIVE_NATTS];
	bool		nulls[ARCHIVE_NATTS];
	Relation	rel;

	if (archive_row(job, state, started_at, now, has_result, result, reason,
					values, nulls))
	{
		rel = open_archive(now);
		(void) jobq_insert_row(rel, values, nulls);
		table_close(rel, NoLock);
	}
	jobq_unique_finished(job, state == STATE_COMPLETED);
	raise_end(job, state, reason);
}

/*
 * Like jobq_archive(), for several completed jobs.  A page of the archive is logged once.
 * results is NULL if no job has a result.  Otherwise, has_none marks the jobs without a
 * result.
 */
void
jobq_archive_many(const JobqJob *jobs, const TimestampTz *started_at, int njobs,
				  const Datum *results, const bool *has_none)
{
	TimestampTz now = jobq_now();
	Relation	rel = open_archive(now);
	HeapTuple  *tuples = palloc(sizeof(HeapTuple) * njobs);
	int			ntuples = 0;

	for (int i = 0; i < njobs; i++)
	{
		Datum		values[ARCHIVE_NATTS];
		bool		nulls[ARCHIVE_NATTS];
		bool		has_result = results != NULL && !has_none[i];

		if (archive_row(&jobs[i], STATE_COMPLETED, started_at[i], now, has_result,
						has_result ? results[i] : (Datum) 0, NULL, values, nulls))
			tuples[ntuples++] = heap_form_tuple(RelationGetDescr(rel), values,
												nulls);
	}
	jobq_insert_tuples(rel, tuples, ntuples);
	pfree(tuples);
	table_close(rel, NoLock);
	for (int i = 0; i < njobs; i++)
	{
		jobq_unique_finished(&jobs[i], true);
		raise_end(&jobs[i], STATE_COMPLETED, NULL);
	}
}
