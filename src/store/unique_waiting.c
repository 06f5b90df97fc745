/*-------------------------------------------------------------------------
 *
 * unique_waiting.c
 *	  What becomes of a job that waits and has the unique key of one that is being
 *	  enqueued.
 *
 * With on_conflict "replace" the new one is written in its place, under its id.
 * With "merge" and "reset" it stays what it is, but for the payload, or the time.
 * Either way its row is deleted, and inserted anew: by the caller, who has locked
 * the key.  A worker that begins with the job at the same moment deletes the same
 * row: one of the two is first.
 *
 * A function that merges payloads is code of the user's, which may do anything: enqueue
 * with the same key, edit the job, give the key back.  So it is called before anything
 * is deleted, for the row as it is then; after that all is looked at anew, and what
 * the function has made counts if that row is still there.  The scheduler, which
 * enqueues callbacks, calls none: a job that these are merged with costs what it did.
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

static bool is_other(const JobqJob *waiting, const JobqJob *job,
					 const JobqUnique *unique);
static void check_kinds(const JobqJob *waiting, const JobqJob *job);
static JobqTaken take_waiting(Relation rel, int64 id, const JobqJob *job,
							  const JobqUnique *unique, JobqMerged *merged,
							  JobqJob *waiting);
static bool has_merged(JobqMerged *merged, JobqJob *waiting);
static void call_merge(const JobqUnique *unique, const JobqJob *waiting,
					   const JobqJob *job, JobqMerged *merged);
static void block_like(JobqJob *job, const JobqJob *waiting);
static void replace(JobqJob *job, const JobqJob *waiting,
					const JobqUnique *unique);
static Datum union_of(const JobqJob *waiting, const JobqJob *job);
static void merge(const JobqJob *job, JobqJob *waiting, const JobqMerged *merged);
static void reset(JobqJob *job, JobqJob *waiting);

/*
 * The job is a new one of its queue.  An error if that is full.
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
 * Is the waiting job none that can be merged with this one?  Another role's must
 * not get a payload that this role has written; what has expired will not run.
 */
static bool
is_other(const JobqJob *waiting, const JobqJob *job, const JobqUnique *unique)
{
	if (unique->on_conflict != UNIQUE_MERGE)
		return false;
	return job_role(waiting) != job_role(job) ||
		(!JOB_ISNULL(waiting, JOB_EXPIRES_AT) &&
		 DatumGetTimestampTz(JOB(waiting, JOB_EXPIRES_AT)) <= jobq_now());
}

/*
 * An error if the payloads of these jobs cannot be merged.  A payload is what its
 * kind makes of it: a statement, for one.
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

/*
 * Was the function called for this very row?
 */
static bool
has_merged(JobqMerged *merged, JobqJob *waiting)
{
	return merged->done && merged->version == waiting->version &&
		ItemPointerEquals(&merged->ctid, &waiting->ctid);
}

/*
 * The payload of both: all fields of two objects, where the later one has them too
 * as that has them; all elements of two arrays.
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
 * Call the function that merges payloads, if there is one, and that which says what the
 * job costs then.  They are called again if the job was changed meanwhile, but not if
 * they do that: there would be no end.
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
 * Delete the row of a job that waits, so that it can be written again; unless it
 * does not wait any more, or is about to start.
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

		/* a worker takes it, or a session changes it: see what becomes */
		CHECK_FOR_INTERRUPTS();
		if (jobq_job_runs(waiting))
			return JOBQ_NOT_TAKEN;
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &waiting->ctid, XLTW_Delete);
	}
	jobq_job_push_if_undone(waiting);

	/* its group does not wait any more for a job that begins anew */
	if (unique->on_conflict == UNIQUE_REPLACE && job_group(waiting) != 0)
		jobq_at_commit_group_end(job_group(waiting), id);

	/* a consumer that got it in this moment will find its lease gone */
	jobq_lease_room(1);
	jobq_at_commit_lease(LEASE_END, id, 0, JOBQ_NONE, 0);
	return JOBQ_TAKEN_OVER;
}

/*
 * The job waits for its batch if the waiting one does, in whose place it comes.
 */
static void
block_like(JobqJob *job, const JobqJob *waiting)
{
	if (job_blocked(job) && !job_blocked(waiting))
		jobq_job_unblock(job);
	else if (job_blocked(waiting) && !job_blocked(job))
	{
		JobqQueue	buffer;

		/* an expiry by its queue is counted from when it is free */
		if (jobq_job_expires_by(job, jobq_queue_by_id(job_queue_id(job), &buffer)))
			JOB_ISNULL(job, JOB_EXPIRES_AT) = true;
		JOB_SET(job, JOB_FREE_RUN_AT, JOB(job, JOB_RUN_AT));
		JOB_SET(job, JOB_RUN_AT, TimestampTzGetDatum(DT_NOEND));
	}
}

/*
 * The job is to be written in place of the one that waits, under its id.
 */
static void
replace(JobqJob *job, const JobqJob *waiting, const JobqUnique *unique)
{
	if (job_queue_id(waiting) != job_queue_id(job))
	{
		jobq_length_remove(job_queue_id(waiting));
		jobq_unique_place(job, unique);
	}
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
 * The job that waits has the payload of both.  That is as if the role enqueued it
 * where it waits: it must be allowed to.
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

/*
 * The job that waits has the time of this one.
 */
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
 * Do with the waiting job of this id what on_conflict says: its row is deleted, and
 * *job is what is to be inserted instead, under the same id.  The key is locked.
 * *merged is zero at the first call, and then what this has made of it.
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
