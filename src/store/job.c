/*-------------------------------------------------------------------------
 *
 * job.c
 *	  Jobs as C structs: construction, reading from a row, properties.
 *
 * src/store/job.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "commands/sequence.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "store/store.h"


/* Return the id for a new job. */
int64
jobq_next_id(void)
{
	return nextval_internal(jobq_relations()->job_seq, false);
}

/* Draw an id for a job that has none yet. */
void
jobq_job_draw_id(JobqJob *job)
{
	if (job_id(job) == 0)
		JOB_SET(job, JOB_ID, Int64GetDatum(jobq_next_id()));
}

/*
 * Initialize a job with the default options.  The payload is not checked.  The job has no id
 * (0), because the job may only serve to check options: jobq_job_draw_id() precedes the
 * insertion.
 */
void
jobq_job_init(JobqJob *job, const char *kind, Datum payload, int32 queue_id,
			  Oid role)
{
	TimestampTz now = jobq_now();

	memset(job->values, 0, sizeof(job->values));
	memset(job->nulls, true, sizeof(job->nulls));
	job_clear_stat(job);
	JOB_SET(job, JOB_ID, Int64GetDatum(0));
	JOB_SET(job, JOB_RUN_AT, TimestampTzGetDatum(now));
	JOB_SET(job, JOB_ENQUEUED_AT, TimestampTzGetDatum(now));
	JOB_SET(job, JOB_QUEUE_ID, Int32GetDatum(queue_id));
	JOB_SET(job, JOB_PRIORITY, Int32GetDatum(0));
	JOB_SET(job, JOB_ROLE, ObjectIdGetDatum(role));
	JOB_SET(job, JOB_RUN_AS, ObjectIdGetDatum(role));
	JOB_SET(job, JOB_FLOW, Int32GetDatum(0));
	JOB_SET(job, JOB_ATTEMPT, Int32GetDatum(0));
	JOB_SET(job, JOB_MAX_ATTEMPTS, Int32GetDatum(jobq_default_max_attempts));
	JOB_SET(job, JOB_EXCEPTIONS, Int16GetDatum(0));
	JOB_SET(job, JOB_CRASHES, Int16GetDatum(0));
	JOB_SET(job, JOB_WATCH, BoolGetDatum(false));
	JOB_SET(job, JOB_DORMANT, BoolGetDatum(false));
	JOB_SET(job, JOB_KIND, CStringGetTextDatum(kind));
	JOB_SET(job, JOB_PAYLOAD, payload);
}

/*
 * Return whether the expiry of the job comes from expires_after of this queue, and not from an
 * option.  queue: the job's queue, or NULL.
 */
bool
jobq_job_expires_by(const JobqJob *job, const JobqQueue *queue)
{
	return queue != NULL && queue->expires_after_ms >= 0 &&
		!JOB_ISNULL(job, JOB_EXPIRES_AT) &&
		DatumGetTimestampTz(JOB(job, JOB_EXPIRES_AT)) ==
		jobq_later(job_run_at(job), queue->expires_after_ms);
}

/*
 * Change the time of the job.  An expiry by the queue moves along, because it is counted from
 * this time.
 */
void
jobq_job_set_run_at(JobqJob *job, TimestampTz run_at)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);

	if (jobq_job_expires_by(job, queue))
		JOB_SET(job, JOB_EXPIRES_AT,
				TimestampTzGetDatum(jobq_later(run_at, queue->expires_after_ms)));
	JOB_SET(job, JOB_RUN_AT, TimestampTzGetDatum(run_at));
}

/*
 * Read a job from a row of the table.  The values point into a copy in the current memory
 * context.
 */
void
jobq_job_from_tuple(Relation rel, HeapTuple tuple, JobqJob *job)
{
	HeapTuple	copy = heap_copytuple(tuple);

	heap_deform_tuple(copy, RelationGetDescr(rel), job->values, job->nulls);
	job->ctid = tuple->t_self;
	job->xmin = HeapTupleHeaderGetXmin(tuple->t_data);
	job->version = HeapTupleHeaderGetRawXmin(tuple->t_data);
	job->tried = TransactionIdIsValid(HeapTupleHeaderGetRawXmax(tuple->t_data));
	job_clear_stat(job);
}

/* Return the job's kind, in the current memory context. */
const char *
jobq_job_kind(const JobqJob *job)
{
	return TextDatumGetCString(JOB(job, JOB_KIND));
}

static bool
is_of_kind(const JobqJob *job, const char *name)
{
	text	   *kind = DatumGetTextPP(JOB(job, JOB_KIND));

	return VARSIZE_ANY_EXHDR(kind) == strlen(name) &&
		memcmp(VARDATA_ANY(kind), name, strlen(name)) == 0;
}

/* Return whether the job is a plain statement. */
bool
jobq_job_is_statement(const JobqJob *job)
{
	return is_of_kind(job, JOBQ_SQL_KIND);
}

/* Return whether the job represents a workflow in its batch. */
bool
jobq_job_is_workflow(const JobqJob *job)
{
	return job_blocked(job) && is_of_kind(job, JOBQ_WORKFLOW_KIND);
}

/*
 * Return the timeout of the job in milliseconds, or 0 for no limit.  handler: the handler of
 * its kind, or NULL.
 */
int
jobq_job_timeout(const JobqHandler *handler, const JobqJob *job)
{
	if (!JOB_ISNULL(job, JOB_TIMEOUT))
		return DatumGetInt32(JOB(job, JOB_TIMEOUT));
	if (handler != NULL && handler->timeout >= 0)
		return handler->timeout;
	return jobq_default_timeout;
}

/*
 * Count an attempt ended by an error of the handler or by the timeout, for max_exceptions.
 */
void
jobq_job_count_exception(JobqJob *job)
{
	int			exceptions = DatumGetInt16(JOB(job, JOB_EXCEPTIONS));

	JOB_SET(job, JOB_EXCEPTIONS, Int16GetDatum(Min(exceptions + 1, PG_INT16_MAX)));
}

/*
 * Check the size and depth of the payload, and set it.  The caller must have set headers and
 * context.  ERROR if the payload is too large or too deep.
 */
void
jobq_job_set_payload(JobqJob *job, Datum payload)
{
	bool		has_headers = !JOB_ISNULL(job, JOB_HEADERS);
	bool		has_context = !JOB_ISNULL(job, JOB_CONTEXT);
	Size		size = toast_raw_datum_size(payload);
	Size		headers = has_headers
		? toast_raw_datum_size(JOB(job, JOB_HEADERS)) : 0;
	Size		sum = size + headers + (has_context
										? toast_raw_datum_size(JOB(job, JOB_CONTEXT)) : 0);

	if (sum > (Size) jobq_max_payload * 1024)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 has_context
				 ? errmsg("payload, headers and context of %zu bytes are larger than the allowed %d kB",
						  sum, jobq_max_payload)
				 : has_headers
				 ? errmsg("payload and headers of %zu bytes are larger than the allowed %d kB",
						  sum, jobq_max_payload)
				 : errmsg("payload of %zu bytes is larger than the allowed %d kB",
						  sum, jobq_max_payload),
				 errhint("Store the data in a table and enqueue its key, or raise \"%s\".",
						 "jobq.max_payload")));
	jobq_check_depth(payload, size, "payload", ERRCODE_PROGRAM_LIMIT_EXCEEDED);
	if (has_headers)
		jobq_check_depth(JOB(job, JOB_HEADERS), headers, "headers",
						 ERRCODE_PROGRAM_LIMIT_EXCEEDED);
	JOB_SET(job, JOB_PAYLOAD, payload);
}
