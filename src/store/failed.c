/*-------------------------------------------------------------------------
 *
 * failed.c
 *	  Dead letters: jobs that have failed for good.
 *
 * As in archive.c, all is part of the transaction that deletes the job's row.
 *
 * src/store/failed.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "store/store.h"

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
	FAILED_ERROR_CONTEXT,
	FAILED_ERRORS,
	FAILED_GROUP_KEY,
	FAILED_UNIQUE_UNTIL,
	FAILED_UNIQUE_KEY,
	FAILED_BATCH_ID,
	FAILED_LOG,
	FAILED_CONTEXT,
	FAILED_TENANT,
	FAILED_NATTS = FAILED_TENANT
};

/*
 * Put a job that has failed for good among the dead letters.  The caller deletes
 * its row.  started_at is DT_NOBEGIN if it never ran.
 */
void
jobq_dead_letter(const JobqJob *job, TimestampTz now, TimestampTz started_at,
				 const JobqError *error)
{
	Datum		values[FAILED_NATTS];
	bool		nulls[FAILED_NATTS] = {0};
	Relation	rel = jobq_open_table(JOBQ_FAILED_TABLE, RowExclusiveLock);
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
	COPY_FIELD(FAILED_CONTEXT, JOB_CONTEXT);
	COPY_FIELD(FAILED_TENANT, JOB_TENANT);
	values[FAILED_ERROR - 1] = CStringGetTextDatum(error->message);
	values[FAILED_SQLSTATE - 1] =
		CStringGetTextDatum(unpack_sql_state(error->sqlerrcode));
	nulls[FAILED_ERROR_CONTEXT - 1] = error->context == NULL;
	if (error->context != NULL)
		values[FAILED_ERROR_CONTEXT - 1] = CStringGetTextDatum(error->context);

	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	jobq_insert_tuple(rel, tuple);
	heap_freetuple(tuple);
	table_close(rel, NoLock);
	jobq_count(job, JOBQ_N_DEAD, 1);
}
