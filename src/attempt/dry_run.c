/*-------------------------------------------------------------------------
 *
 * dry_run.c
 *	  dry_run(): show the effects of a handler without keeping them.
 *
 * The handler runs in a subtransaction that is rolled back.  Before the rollback, the written
 * rows are computed from the server's counters of the transaction, before and after the call.
 * Some effects survive the rollback: values drawn from sequences, advisory locks of the
 * session, and effects outside the database.
 *
 * src/attempt/dry_run.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/instrument.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "attempt/attempt.h"

PG_FUNCTION_INFO_V1(jobq_dry_run);

enum
{
	RESULT, WRITTEN, TOOK, WAL_BYTES, ERROR_, SQLSTATE_, CONTEXT_, NATTS
};

/*
 * Return the number of rows that this transaction has inserted, updated and deleted so far, by
 * table, minus the counts in "before".
 */
static Datum
rows_written(Datum before)
{
	Oid			types[] = {JSONBOID};
	Datum		values[] = {before};
	MemoryContext context = CurrentMemoryContext;
	MemoryContext old;
	Datum		rows;

	SPI_connect();
	if (jobq_query("SELECT coalesce(jsonb_object_agg(t.name, jsonb_strip_nulls("
				   "jsonb_build_object('inserted', nullif(t.i, 0), 'updated', nullif(t.u, 0), 'deleted', nullif(t.d, 0)))), '{}')"
				   " FROM (SELECT format('%I.%I', s.schemaname, s.relname) AS name,"
				   " s.n_tup_ins - coalesce((b.row ->> 'inserted')::int8, 0) AS i,"
				   " s.n_tup_upd - coalesce((b.row ->> 'updated')::int8, 0) AS u,"
				   " s.n_tup_del - coalesce((b.row ->> 'deleted')::int8, 0) AS d"
				   " FROM pg_stat_xact_user_tables s"
				   " CROSS JOIN LATERAL (SELECT $1 -> format('%I.%I', s.schemaname, s.relname) AS row) b) t"
				   " WHERE t.i <> 0 OR t.u <> 0 OR t.d <> 0",
				   1, types, values, NULL, SPI_OK_SELECT) != 1)
		elog(ERROR, "the counters of this transaction could not be read");
	old = MemoryContextSwitchTo(context);
	rows = PointerGetDatum(PG_DETOAST_DATUM_COPY(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, JSONBOID, NULL)));
	MemoryContextSwitchTo(old);
	SPI_finish();
	return rows;
}

/* Run the handler and its deferred triggers, and fill in the columns of the result. */
static void
run(Datum kind, Datum payload, Datum *values, bool *nulls)
{
	Datum		before = rows_written(jobq_text_to_jsonb("{}"));
	uint64		wal = pgWalUsage.wal_bytes;
	instr_time	start;
	Interval   *interval = palloc0(sizeof(Interval));

	INSTR_TIME_SET_CURRENT(start);
	values[RESULT] = jobq_perform_kind(kind, payload, &nulls[RESULT]);
	jobq_fire_deferred();
	interval->time = jobq_elapsed(start);
	values[TOOK] = IntervalPGetDatum(interval);
	values[WAL_BYTES] = Int64GetDatum((int64) (pgWalUsage.wal_bytes - wal));
	values[WRITTEN] = rows_written(before);
	nulls[TOOK] = nulls[WAL_BYTES] = nulls[WRITTEN] = false;

	/* the result may point into a row that the rollback removes */
	if (!nulls[RESULT])
		values[RESULT] = PointerGetDatum(PG_DETOAST_DATUM_COPY(values[RESULT]));
}

/*
 * dry_run(kind, payload)
 */
Datum
jobq_dry_run(PG_FUNCTION_ARGS)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	Datum		values[NATTS];
	bool		nulls[NATTS];
	TupleDesc	desc;

	jobq_require(JOBQ_MAY_ALL);
	jobq_require_handler(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	desc = jobq_row_type(fcinfo, NATTS);
	memset(nulls, true, sizeof(nulls));

	jobq_fire_before(false);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		run(PG_GETARG_DATUM(0), PG_GETARG_DATUM(1), values, nulls);
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;

		/* the call itself was cancelled */
		if (edata->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(edata);
		memset(nulls, true, sizeof(nulls));
		values[ERROR_] = CStringGetTextDatum(edata->message);
		values[SQLSTATE_] = CStringGetTextDatum(unpack_sql_state(edata->sqlerrcode));
		nulls[ERROR_] = nulls[SQLSTATE_] = false;
		nulls[CONTEXT_] = edata->context == NULL;
		if (edata->context != NULL)
			values[CONTEXT_] = CStringGetTextDatum(edata->context);
	}
	PG_END_TRY();
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}
