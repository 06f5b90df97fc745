/*-------------------------------------------------------------------------
 *
 * explain_answer.c
 *	  explain(): the rows of the result, including rows computed in SQL.
 *
 * src/operate/explain_answer.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "operate/explain.h"
#include "operate/inner.h"

/*
 * Add one reason to the result.  detail is a sentence about this job.  remedy, a command or an
 * advice, may be NULL.
 */
void
explain_add(Explain *e, const char *reason, const char *detail, const char *remedy)
{
	Datum		values[NATTS];
	bool		nulls[NATTS] = {0};

	values[REASON] = CStringGetTextDatum(reason);
	values[DETAIL] = CStringGetTextDatum(detail);
	nulls[REMEDY] = remedy == NULL;
	if (remedy != NULL)
		values[REMEDY] = CStringGetTextDatum(remedy);
	tuplestore_putvalues(e->rsinfo->setResult, e->rsinfo->setDesc, values, nulls);
	e->n++;
}

/*
 * Format a time as the session does, truncated to the second.  The result is palloc'd.
 */
char *
explain_time(TimestampTz at)
{
	return DatumGetCString(DirectFunctionCall1(timestamptz_out,
											   TimestampTzGetDatum(at - at % USECS_PER_SEC)));
}

/*
 * Add the rows that a SQL function of the schema jobq_internal returns for the job.  more:
 * text of further arguments, beginning with a comma, or "".
 */
void
explain_ask_tables(Explain *e, const char *function, const char *more)
{
	static const Oid types[] = {INT8OID, OIDOID, BOOLOID};
	static const Oid columns[NATTS] = {TEXTOID, TEXTOID, TEXTOID};
	Datum		args[] = {
		Int64GetDatum(e->id), ObjectIdGetDatum(GetUserId()),
		BoolGetDatum(e->sees_all)
	};
	char	   *query = psprintf("SELECT reason, detail, remedy FROM jobq_internal.%s($1, $2, $3%s)",
								 function, more);
	uint64		n;

	SPI_connect();
	n = jobq_query(query, 3, types, args, NULL, SPI_OK_SELECT);
	jobq_check_types(SPI_tuptable->tupdesc, columns, NATTS);
	for (uint64 i = 0; i < n; i++)
	{
		Datum		values[NATTS];
		bool		nulls[NATTS];

		heap_deform_tuple(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, values,
						  nulls);
		tuplestore_putvalues(e->rsinfo->setResult, e->rsinfo->setDesc, values,
							 nulls);
	}
	e->n += (int) n;
	SPI_finish();
	pfree(query);
}
