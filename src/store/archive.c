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
 * Minimum duration of a run, in microseconds, for which the cost of the run is stored.  The
 * duration of a call for several jobs is divided by their number, like the cost.
 */
#define COST_KEPT	1000

StaticAssertDecl(STATE_CANCELLED == JOBQ_ENDING_CANCELLED,
				 "both rooms have the same letter");

/* The end of a job. */
typedef struct End
{
	JobqCause	cause;
	char		state;
	const char *reason;			/* NULL if completed */
	TimestampTz started_at;		/* DT_NOBEGIN: never */
	TimestampTz now;
	int			njobs;			/* ended together */
	bool		has_result;
	Datum		result;
}			End;

static bool cost_of(const JobqJob *job, const End * end, Datum *cost);

/* Return the state of a job that has ended for this cause. */
static char
state_after(JobqCause cause)
{
	return cause == CAUSE_COMPLETED ? STATE_COMPLETED
		: cause == CAUSE_EXPIRED ? STATE_EXPIRED : STATE_CANCELLED;
}

/* Return the reason for readers.  NULL: none, or the caller knows more than the cause. */
static const char *
reason_of(JobqCause cause)
{
	switch (cause)
	{
		case CAUSE_EXPIRED:
			return "not started before expires_at";
		case CAUSE_CANCELLED:
			return "cancelled";
		case CAUSE_STOPPED:
			return "cancelled while it ran";
		case CAUSE_QUEUE_FULL:
			return "dropped, as its queue was full";
		case CAUSE_CONDITION:
			return "skipped, as its condition does not hold";
		case CAUSE_BATCH_CANCELLED:
			return "its batch was cancelled";
		case CAUSE_WORKFLOW_CANCELLED:
			return "its workflow was cancelled";
		case CAUSE_BATCH_FAILED:
			return "its batch has failed";
		case CAUSE_NOT_NEEDED:
			return "its workflow is not needed any more";
		case CAUSE_COMPLETED:
		case CAUSE_HANDLER:
		case CAUSE_LIMITER:
		case CAUSE_NEED_LOST:
			break;
	}
	return NULL;
}

/*
 * Does the group of this job learn of the job's end from the permit, which the worker returns?
 * Other than a single job, a job of a call is not known to its group, unless the group waits for
 * the job.
 */
static bool
ends_by_permit(const JobqJob *job)
{
	if (jobq_current == NULL || jobq_current->slot == NULL)
		return false;
	if (jobq_slot_member(jobq_current->slot, job_id(job)) != NULL)
		return JOB_ISNULL(job, JOB_GROUP_HELD);
	return job_id(jobq_current->job) == job_id(job);
}

/*
 * A job is finished: note its end for the commit, and fill in its row for the archive.
 * Returns false if the queue does not keep the job.
 */
static bool
archive_row(const JobqJob *job, const End * end, Datum *values, bool *nulls)
{
	char		state = end->state;
	TimestampTz started_at = end->started_at;
	TimestampTz now = end->now;
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	char		keep = queue != NULL ? queue->keep : KEEP_ALL;

	memset(nulls, 0, sizeof(bool) * ARCHIVE_NATTS);
	jobq_length_remove(job_queue_id(job));

	if (job_group(job) != 0 && !ends_by_permit(job))
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
	values[ARCHIVE_CAUSE - 1] = CharGetDatum((char) end->cause);
	nulls[ARCHIVE_CAUSE - 1] = end->cause == CAUSE_COMPLETED;
	values[ARCHIVE_KIND - 1] = JOB(job, JOB_KIND);
	values[ARCHIVE_PAYLOAD - 1] = JOB(job, JOB_PAYLOAD);
	nulls[ARCHIVE_PAYLOAD - 1] = keep != KEEP_ALL;
	values[ARCHIVE_HEADERS - 1] = JOB(job, JOB_HEADERS);
	nulls[ARCHIVE_HEADERS - 1] = JOB_ISNULL(job, JOB_HEADERS);
	values[ARCHIVE_RESULT - 1] = end->result;
	nulls[ARCHIVE_RESULT - 1] = !end->has_result;
	nulls[ARCHIVE_REASON - 1] = end->reason == NULL;
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
	nulls[ARCHIVE_COST - 1] = !cost_of(job, end, &values[ARCHIVE_COST - 1]);
	if (end->reason != NULL)
		values[ARCHIVE_REASON - 1] = CStringGetTextDatum(end->reason);
	return true;
}

/*
 * Return in *cost what the job's run in this process has cost so far.  Returns false for a
 * short run with negligible cost, because there may be millions of these runs.
 */
static bool
cost_of(const JobqJob *job, const End * end, Datum *cost)
{
	StringInfoData buf;

	if (end->started_at == DT_NOBEGIN ||
		end->now - end->started_at < (int64) COST_KEPT * end->njobs)
		return false;
	initStringInfo(&buf);
	if (!jobq_append_cost(&buf, "", job))
		return false;
	*cost = jobq_text_to_jsonb(buf.data);
	return true;
}

static void
raise_end(const JobqJob *job, const End * end)
{
	jobq_event(end->state == STATE_COMPLETED ? JOBQ_EVENT_COMPLETED
			   : end->state == STATE_CANCELLED ? JOBQ_EVENT_CANCELLED
			   : JOBQ_EVENT_EXPIRED,
			   job, 0, end->reason);
}

/* Send the outcome to the job that waits for it, if any. */
static void
tell_asker(const JobqJob *job, const End * end)
{
	JobqError	error = {.sqlerrcode = ERRCODE_JOBQ_CANCELLED,.message = end->reason};

	if (likely(job_asked_by(job) == 0))
		return;
	if (end->state == STATE_COMPLETED)
		jobq_answer(job, end->has_result, end->result);
	else
		jobq_answer_failed(job, end->state == STATE_EXPIRED ? "expired" : "cancelled",
						   &error);
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
 * deletes the row of the job.  The cause determines the state.  started_at is DT_NOBEGIN if
 * the job never ran.  reason: the text for readers, or NULL for the usual text of the cause.
 * Also releases the job's unique key, tells the job that asked for it, and raises the event.
 */
void
jobq_archive(const JobqJob *job, JobqCause cause, TimestampTz started_at,
			 bool has_result, Datum result, const char *reason)
{
	End			end = {
		.cause = cause,.state = state_after(cause),.started_at = started_at,
		.reason = reason != NULL ? reason : reason_of(cause),.now = jobq_now(),.njobs = 1,
		.has_result = has_result,.result = result
	};
	Datum		values[ARCHIVE_NATTS];
	bool		nulls[ARCHIVE_NATTS];
	Relation	rel;

	Assert((end.reason == NULL) == (cause == CAUSE_COMPLETED));
	if (archive_row(job, &end, values, nulls))
	{
		rel = open_archive(end.now);
		(void) jobq_insert_row(rel, values, nulls);
		table_close(rel, NoLock);
	}
	tell_asker(job, &end);
	jobq_unique_finished(job, end.state == STATE_COMPLETED);
	raise_end(job, &end);
}

/* Like jobq_archive(), for a job that never ran and has no result. */
void
jobq_archive_unstarted(const JobqJob *job, JobqCause cause, const char *reason)
{
	jobq_archive(job, cause, DT_NOBEGIN, false, (Datum) 0, reason);
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
	End			end = {
		.cause = CAUSE_COMPLETED,.state = STATE_COMPLETED,.now = jobq_now(),
		.njobs = njobs
	};
	Relation	rel = open_archive(end.now);
	HeapTuple  *tuples = palloc(sizeof(HeapTuple) * njobs);
	int			ntuples = 0;

	for (int i = 0; i < njobs; i++)
	{
		Datum		values[ARCHIVE_NATTS];
		bool		nulls[ARCHIVE_NATTS];

		end.started_at = started_at[i];
		end.has_result = results != NULL && !has_none[i];
		end.result = end.has_result ? results[i] : (Datum) 0;
		if (archive_row(&jobs[i], &end, values, nulls))
			tuples[ntuples++] = heap_form_tuple(RelationGetDescr(rel), values,
												nulls);
	}
	jobq_insert_tuples(rel, tuples, ntuples);
	pfree(tuples);
	table_close(rel, NoLock);
	for (int i = 0; i < njobs; i++)
	{
		end.has_result = results != NULL && !has_none[i];
		end.result = end.has_result ? results[i] : (Datum) 0;
		tell_asker(&jobs[i], &end);
		jobq_unique_finished(&jobs[i], true);
		raise_end(&jobs[i], &end);
	}
}
