/*-------------------------------------------------------------------------
 *
 * unique_waiting.c
 *	  Changes of a waiting job that holds the unique key of a job to be enqueued.
 *
 * With on_conflict "replace", the new job replaces the waiting job, under the same id.  With
 * "merge" and "reset", the waiting job remains, except for its payload or its time.  In each
 * case, its row is deleted and inserted again by the caller, which has locked the key.  A
 * worker that begins the job at the same moment deletes the same row: either the worker or
 * this caller is first.
 *
 * A function that merges payloads is code of the user, and may do anything: enqueue with the
 * same key, edit the job, or release the key.  The function is therefore called before any row
 * is deleted.  Afterwards everything is checked again, and the result counts only if the same
 * row still exists.  The scheduler, which enqueues callbacks, calls no function: a job merged
 * with a callback keeps its cost.
 *
 * src/store/unique_waiting.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/store.h"

static void merge(const JobqJob *job, JobqJob *waiting, const JobqMerged *merged);

/*
 * Reserve a position for a new job in its queue.  ERROR if the queue is full, unless
 * unique->exempt.
 */
void
jobq_unique_place(const JobqJob *job, const JobqUnique *unique)
{
	if (unique->exempt)
		jobq_length_add(job_queue_id(job), 1);
	else
		jobq_length_reserve(job, 1);
}

/*
 * Return whether the waiting job must not be merged with this one.  The job of another role
 * must not get a payload written by this role.  An expired job will not run.  A procedure that
 * has done a part of the job has read the payload, and would skip the merged one.
 */
static bool
is_other(const JobqJob *waiting, const JobqJob *job, const JobqUnique *unique)
{
	if (unique->on_conflict != UNIQUE_MERGE)
		return false;
	return job_role(waiting) != job_role(job) ||
		jobq_has_progress(job_id(waiting)) ||
		(!JOB_ISNULL(waiting, JOB_EXPIRES_AT) &&
		 DatumGetTimestampTz(JOB(waiting, JOB_EXPIRES_AT)) <= jobq_now());
}

/*
 * ERROR if the payloads of these jobs cannot be merged, because their kinds differ.  The kind
 * defines the meaning of a payload, for example a statement.
 */
static void
check_kinds(const JobqJob *waiting, const JobqJob *job)
{
	if (strcmp(jobq_job_kind(waiting), jobq_job_kind(job)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a job of kind \"%s\" cannot be merged with job " INT64_FORMAT " of kind \"%s\"",
						jobq_job_kind(job), job_id(waiting), jobq_job_kind(waiting)),
				 errhint("Use another on_conflict, or another key.")));
}

/* Return whether the function was called for exactly this row. */
static bool
has_merged(JobqMerged *merged, JobqJob *waiting)
{
	return merged->done && merged->version == waiting->version &&
		ItemPointerEquals(&merged->ctid, &waiting->ctid);
}

/*
 * Return the merged payload without a function: all fields of two objects, where the new job's
 * value wins, or all elements of two arrays.
 */
static Datum
union_of(const JobqJob *waiting, const JobqJob *job)
{
	Jsonb	   *old = DatumGetJsonbP(JOB(waiting, JOB_PAYLOAD));
	Jsonb	   *new = DatumGetJsonbP(JOB(job, JOB_PAYLOAD));

	if (JB_ROOT_IS_SCALAR(old) || JB_ROOT_IS_SCALAR(new) ||
		JB_ROOT_IS_OBJECT(old) != JB_ROOT_IS_OBJECT(new))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the payload cannot be merged with that of job " INT64_FORMAT,
						job_id(waiting)),
				 errhint("Two objects can be merged, or two arrays; or all by a function of yours, which merge names.")));
	return DirectFunctionCall2(jsonb_concat, JsonbPGetDatum(old),
							   JsonbPGetDatum(new));
}

/*
 * Call the function that merges payloads, if any, and the function for the cost of the merged
 * job.  Both are called again if another session changes the job meanwhile.  ERROR if the
 * functions themselves change the job, because this would never end.
 */
static void
call_merge(const JobqUnique *unique, const JobqJob *waiting, const JobqJob *job,
		   JobqMerged *merged)
{
	JobqJob		both = *waiting;

	if (merged->done && TransactionIdIsCurrentTransactionId(waiting->xmin))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("%s has changed job " INT64_FORMAT ", with which it merges another",
						unique->merge != NULL ? unique->merge : "the function of its limiter",
						job_id(waiting))));
	merged->payload = unique->merge == NULL ? union_of(waiting, job)
		: jobq_merge_payloads(unique->merge, waiting, job);
	JOB_SET(&both, JOB_PAYLOAD, merged->payload);
	jobq_ask_limit_cost(&both);
	merged->cost = JOB(&both, JOB_LIMIT_COST);
	merged->no_cost = JOB_ISNULL(&both, JOB_LIMIT_COST);
	merged->ctid = waiting->ctid;
	merged->version = waiting->version;
	merged->done = true;
}

/*
 * Delete the row of a waiting job, so that it can be written again, unless the job no longer
 * waits or is about to start.
 */
static JobqTaken
take_waiting(Relation rel, int64 id, const JobqJob *job,
			 const JobqUnique *unique, JobqMerged *merged, JobqJob *waiting)
{
	for (;;)
	{
		bool		found = jobq_job_find_now(rel, id, waiting);
		TransactionId blocker;

		if (!found || DatumGetBool(JOB(waiting, JOB_DORMANT)) ||
			(jobq_job_runs(waiting) && !jobq_lease_is_ended(id)) ||
			is_other(waiting, job, unique))
			return JOBQ_NOT_TAKEN;
		if (unique->on_conflict == UNIQUE_MERGE)
			check_kinds(waiting, job);
		if (unique->on_conflict == UNIQUE_MERGE &&
			(unique->merge != NULL ||
			 (unique->ask_cost && jobq_limit_is_priced(waiting))) &&
			!has_merged(merged, waiting))
		{
			call_merge(unique, waiting, job, merged);
			return JOBQ_LOOK_AGAIN;
		}
		if (jobq_job_delete_or_blocker(rel, waiting, &blocker))
			break;

		/* a worker claims the job, or a session changes it: wait and check */
		CHECK_FOR_INTERRUPTS();
		if (jobq_job_runs(waiting))
			return JOBQ_NOT_TAKEN;
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &waiting->ctid, XLTW_Delete);
	}
	jobq_job_push_if_undone(waiting);

	/* the group no longer waits, because the new job starts afresh */
	if (unique->on_conflict == UNIQUE_REPLACE && job_group(waiting) != 0)
		jobq_at_commit_group_end(job_group(waiting), id);

	/* a consumer with a concurrent reservation will find the lease lost */
	jobq_lease_room(1);
	jobq_at_commit_lease(LEASE_END, id, 0, JOBQ_NONE, 0);
	return JOBQ_TAKEN_OVER;
}

/* Block or unblock the job, like the replaced waiting job. */
static void
block_like(JobqJob *job, const JobqJob *waiting)
{
	if (job_blocked(job) && !job_blocked(waiting))
		jobq_job_unblock(job);
	else if (job_blocked(waiting) && !job_blocked(job))
	{
		JobqQueue	buffer;

		/* an expiry by the queue is counted from the time of unblocking */
		if (jobq_job_expires_by(job, jobq_queue_by_id(job_queue_id(job), &buffer)))
			JOB_ISNULL(job, JOB_EXPIRES_AT) = true;
		JOB_SET(job, JOB_FREE_RUN_AT, JOB(job, JOB_RUN_AT));
		JOB_SET(job, JOB_RUN_AT, TimestampTzGetDatum(DT_NOEND));
	}
}

/*
 * Prepare the job to replace the waiting job, under the same id.  The new job begins with the
 * first step of its procedure.
 */
static void
replace(JobqJob *job, const JobqJob *waiting, const JobqUnique *unique)
{
	if (job_queue_id(waiting) != job_queue_id(job))
	{
		jobq_length_remove(job_queue_id(waiting));
		jobq_unique_place(job, unique);
	}
	jobq_progress_forget(job_id(waiting));
	JOB_SET(job, JOB_ID, JOB(waiting, JOB_ID));
	JOB_SET(job, JOB_ENQUEUED_AT, JOB(waiting, JOB_ENQUEUED_AT));
	if (job_watch(waiting))
		JOB_SET(job, JOB_WATCH, BoolGetDatum(true));
	if (!JOB_ISNULL(waiting, JOB_BATCH_ID))
	{
		JOB_SET(job, JOB_BATCH_ID, JOB(waiting, JOB_BATCH_ID));
		block_like(job, waiting);
	}
}

/*
 * Set the merged payload of the waiting job.  This amounts to enqueuing the job in its queue,
 * for which the user needs the privilege.
 */
static void
merge(const JobqJob *job, JobqJob *waiting, const JobqMerged *merged)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(waiting), &buffer);

	if (queue != NULL)
		jobq_require_produce(queue);
	jobq_job_set_payload(waiting, merged->done ? merged->payload
						 : union_of(waiting, job));
	if (merged->done)
	{
		JOB(waiting, JOB_LIMIT_COST) = merged->cost;
		JOB_ISNULL(waiting, JOB_LIMIT_COST) = merged->no_cost;
	}
}

/* Give the waiting job the time of this one. */
static void
reset(JobqJob *job, JobqJob *waiting)
{
	static const int times[] = {
		JOB_RUN_AT, JOB_FREE_RUN_AT, JOB_FREE_DELAY, JOB_EXPIRES_AT
	};

	jobq_at_commit_group_moved(job_group(waiting), job_id(waiting));
	block_like(job, waiting);
	for (int i = 0; i < (int) lengthof(times); i++)
	{
		JOB(waiting, times[i]) = JOB(job, times[i]);
		JOB_ISNULL(waiting, times[i]) = JOB_ISNULL(job, times[i]);
	}
}

/*
 * Apply on_conflict to the waiting job with this id.  The caller has locked the key.  On
 * success, the job's row is deleted, and *job is the job to insert instead, under the same id.
 * *merged must be zero at the first call, and is passed on to repeated calls.  Returns
 * JOBQ_LOOK_AGAIN if the caller must check everything again.  May wait for a lock on the job's
 * row.
 */
JobqTaken
jobq_unique_take(Relation rel, int64 id, JobqJob *job, const JobqUnique *unique,
				 JobqMerged *merged)
{
	JobqJob		waiting;
	JobqTaken	taken = take_waiting(rel, id, job, unique, merged, &waiting);

	if (taken != JOBQ_TAKEN_OVER)
		return taken;
	if (unique->on_conflict == UNIQUE_REPLACE)
	{
		replace(job, &waiting, unique);
		return taken;
	}
	if (unique->on_conflict == UNIQUE_MERGE)
		merge(job, &waiting, merged);
	else
		reset(job, &waiting);
	if (job_watch(job))
		JOB_SET(&waiting, JOB_WATCH, BoolGetDatum(true));
	*job = waiting;
	return taken;
}
