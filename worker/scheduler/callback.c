/*-------------------------------------------------------------------------
 *
 * callback.c
 *	  What a callback of a batch is told in its headers: which batch it is, what has
 *	  become of its jobs, and which of them failed first.
 *
 * worker/scheduler/callback.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/json.h"

static bool append_counts(StringInfo headers, int64 batch_id);
static void append_error(StringInfo headers, int64 batch_id);
static void append_member(StringInfo headers, const char *name,
						  HeapTuple row, TupleDesc desc, int column);

/*
 * The headers, as text of jsonb, in the current memory context.  name is that of the
 * batch, or NULL.  The caller is connected to SPI.
 */
char *
callback_headers(int64 batch_id, const char *name, const char *state)
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
	if (append_counts(&headers, batch_id))
		append_error(&headers, batch_id);
	appendStringInfoChar(&headers, '}');
	return headers.data;
}

/*
 * How many jobs have ended in which way.  Returns whether one has failed or expired.
 */
static bool
append_counts(StringInfo headers, int64 batch_id)
{
	static const Oid types[] = {INT8OID};
	static const char *const names[] = {
		"completed", "failed", "cancelled", "expired"
	};
	static SPIPlanPtr plan = NULL;
	Datum		value = Int64GetDatum(batch_id);
	bool		any = false;

	if (jobq_query_kept(&plan, "SELECT b.completed + n.completed,"
						" b.failed + (SELECT pg_catalog.count(*) FROM jobq.failed_job f WHERE f.batch_id = $1),"
						" b.cancelled + n.cancelled, b.expired + n.expired"
						" FROM jobq.batch b,"
						" (SELECT pg_catalog.count(*) FILTER (WHERE a.state = 'c') AS completed,"
						"  pg_catalog.count(*) FILTER (WHERE a.state = 'x') AS cancelled,"
						"  pg_catalog.count(*) FILTER (WHERE a.state = 'e') AS expired"
						"  FROM jobq.archive a WHERE a.batch_id = $1) n WHERE b.id = $1",
						1, types, &value, NULL, SPI_OK_SELECT) == 0)
		return false;
	appendStringInfoString(headers, ", \"batch_counts\": {");
	for (int i = 0; i < (int) lengthof(names); i++)
	{
		int64		n = DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, i + 1, INT8OID, NULL));

		appendStringInfo(headers, "%s\"%s\": " INT64_FORMAT, i > 0 ? ", " : "",
						 names[i], n);
		any |= n > 0 && (i == 1 || i == 3);
	}
	appendStringInfoChar(headers, '}');
	SPI_freetuptable(SPI_tuptable);
	return any;
}

/*
 * The first job that has failed or expired, as far as it is still there; one that may
 * fail, an optional step, only if there is no other.
 */
static void
append_error(StringInfo headers, int64 batch_id)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		value = Int64GetDatum(batch_id);
	HeapTuple	row;
	TupleDesc	desc;

	if (jobq_query_kept(&plan, "SELECT e.id, e.kind, e.sqlstate, e.error, e.error_context FROM"
						" (SELECT id, finished_at, kind, sqlstate, error, error_context"
						"  FROM jobq.failed_job WHERE batch_id = $1"
						"  UNION ALL SELECT id, finished_at, kind, NULL, 'the job has expired', NULL"
						"  FROM jobq.archive WHERE batch_id = $1 AND state = 'e') e"
						" LEFT JOIN jobq.step s ON s.job_id = e.id"
						" ORDER BY coalesce(s.optional, false), e.finished_at, e.id LIMIT 1",
						1, types, &value, NULL, SPI_OK_SELECT) == 0)
		return;
	row = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	appendStringInfo(headers, ", \"batch_error\": {\"job_id\": " INT64_FORMAT,
					 DatumGetInt64(jobq_column(row, desc, 1, INT8OID, NULL)));
	append_member(headers, "kind", row, desc, 2);
	append_member(headers, "sqlstate", row, desc, 3);
	append_member(headers, "error", row, desc, 4);
	append_member(headers, "context", row, desc, 5);
	appendStringInfoChar(headers, '}');
	SPI_freetuptable(SPI_tuptable);
}

/*
 * A text of the row; nothing if it is null.
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
