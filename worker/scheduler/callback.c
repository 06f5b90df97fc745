/*-------------------------------------------------------------------------
 *
 * callback.c
 *	  Describes a batch in the headers of callbacks and in events: the batch,
 *	  the outcome of its jobs, and the first failed job.
 *
 * worker/scheduler/callback.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/workflow.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/json.h"

/* A finished batch. */
typedef struct Ended
{
	int64		id;
	const char *name;			/* or NULL */
	const JobqBatchCounts *counts;
} Ended;

static bool append_counts(StringInfo buf, const JobqBatchCounts *counts);
static void append_error(StringInfo headers, const char *job_key, bool context);
static void append_member(StringInfo headers, const char *name,
						  HeapTuple row, TupleDesc desc, int column);

/*
 * Build the headers as jsonb text, in the current memory context.  name is the batch's
 * name, or NULL.  Caller is connected to SPI.
 */
char *
callback_headers(int64 batch_id, const char *name, const char *state,
				 const JobqBatchCounts *counts)
{
	StringInfoData headers;

	initStringInfo(&headers);
	appendStringInfo(&headers, "{\"batch_id\": " INT64_FORMAT ", \"batch_state\": \"%s\"",
					 batch_id, state);
	if (name != NULL)
	{
		appendStringInfoString(&headers, ", \"batch\": ");
		escape_json(&headers, name);
	}
	appendStringInfoString(&headers, ", \"batch_counts\": ");
	if (append_counts(&headers, counts) && nest_find_error(batch_id))
	{
		appendStringInfoString(&headers, ", \"batch_error\": ");
		append_error(&headers, "job_id", true);
	}
	appendStringInfoChar(&headers, '}');
	return headers.data;
}

/*
 * Describe a finished batch in an event, without data of its jobs.
 */
static void
describe(StringInfo buf, void *arg)
{
	const Ended *batch = (const Ended *) arg;

	appendStringInfo(buf, ", \"batch\": " INT64_FORMAT, batch->id);
	if (batch->name != NULL)
	{
		appendStringInfoString(buf, ", \"name\": ");
		escape_json(buf, batch->name);
	}
	appendStringInfoString(buf, ", \"counts\": ");
	if (append_counts(buf, batch->counts) && nest_find_error(batch->id))
	{
		appendStringInfoString(buf, ", \"first_error\": ");
		append_error(buf, "job", false);
	}
}

/*
 * Report the end of a batch as an event.  name may be NULL.  Caller is connected to
 * SPI.
 */
void
callback_event(int64 batch_id, const char *name, Oid role, char state,
			   const JobqBatchCounts *counts)
{
	Ended		batch = {batch_id, name, counts};

	jobq_event_of(state == BATCH_COMPLETED ? JOBQ_EVENT_BATCH_COMPLETED
				  : state == BATCH_FAILED ? JOBQ_EVENT_BATCH_FAILED
				  : JOBQ_EVENT_BATCH_CANCELLED,
				  role, NULL, NULL, describe, &batch);
}

/*
 * Append the number of jobs for each outcome.  Returns true if a job is dead or
 * expired.
 */
static bool
append_counts(StringInfo buf, const JobqBatchCounts *counts)
{
	appendStringInfo(buf, "{\"completed\": " INT64_FORMAT ", \"dead\": " INT64_FORMAT
					 ", \"cancelled\": " INT64_FORMAT ", \"expired\": " INT64_FORMAT "}",
					 counts->completed, counts->dead, counts->cancelled,
					 counts->expired);
	return counts->dead > 0 || counts->expired > 0;
}

/*
 * Append the error from nest_find_error(), with or without its context.
 */
static void
append_error(StringInfo headers, const char *job_key, bool context)
{
	HeapTuple	row = SPI_tuptable->vals[0];
	TupleDesc	desc = SPI_tuptable->tupdesc;

	appendStringInfo(headers, "{\"%s\": " INT64_FORMAT, job_key,
					 DatumGetInt64(jobq_column(row, desc, ERROR_JOB, INT8OID, NULL)));
	append_member(headers, "kind", row, desc, ERROR_KIND);
	append_member(headers, "sqlstate", row, desc, ERROR_SQLSTATE);
	append_member(headers, "error", row, desc, ERROR_TEXT);
	if (context)
		append_member(headers, "context", row, desc, ERROR_CONTEXT);
	appendStringInfoChar(headers, '}');
	SPI_freetuptable(SPI_tuptable);
}

/*
 * Append a text column of the row; nothing if null.
 */
static void
append_member(StringInfo headers, const char *name, HeapTuple row,
			  TupleDesc desc, int column)
{
	bool		isnull;
	Datum		value = jobq_column(row, desc, column, TEXTOID, &isnull);

	if (isnull)
		return;
	appendStringInfo(headers, ", \"%s\": ", name);
	jobq_append_text(headers, TextDatumGetCString(value));
}
