/*-------------------------------------------------------------------------
 *
 * wait_batch.c
 *	  wait_batch(): wait for the end of a batch.
 *
 * The waiting session is in the list of sessions that wait for jobs (wait.c), under the
 * negative id of the batch.  The scheduler ends the batch and wakes the session.
 *
 * src/operate/wait_batch.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "commit/commit.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_wait_batch);

/*
 * Run a query about the batch with the latest snapshot, regardless of the transaction's
 * snapshot.  False if the query returns no row.
 */
static bool
ask(const char *query, int64 id)
{
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};
	JobqOwnerState state;
	int			result;

	/* also see changes of the current statement */
	CommandCounterIncrement();
	jobq_become_owner(&state);
	PushActiveSnapshot(GetLatestSnapshot());
	result = SPI_execute_with_args(query, 1, types, values, NULL, true, 1);
	if (result != SPI_OK_SELECT)
		elog(ERROR, "query returned %s: %s", SPI_result_code_string(result), query);
	PopActiveSnapshot();
	jobq_unbecome_owner(&state);
	return SPI_processed > 0;
}

/*
 * True if the batch has finished.  ERROR if the batch does not exist, or can only end after
 * the current transaction.
 */
static bool
is_over(int64 id)
{
	TransactionId xmin;
	bool		over = true;

	SPI_connect();
	jobq_batch_check_visible(id);

	/* a batch just removed by retention has finished */
	if (ask("SELECT finished_at IS NOT NULL, xmin FROM jobq_internal.batch WHERE id = $1", id))
	{
		over = DatumGetBool(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, BOOLOID, NULL));
		xmin = DatumGetTransactionId(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, XIDOID, NULL));
		if (!over && TransactionIdIsCurrentTransactionId(xmin))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("jobq.wait_batch() cannot wait for a batch of the same transaction"),
					 errhint("Its jobs start when the transaction commits.")));
	}
	SPI_finish();
	return over;
}

/*
 * Wait until the batch has finished, for at most timeout_ms milliseconds.
 */
static void
wait_until_over(int64 id, int64 timeout_ms)
{
	static uint32 wait_event = 0;
	int64		deadline = jobq_deadline(timeout_ms);
	Datum		from = jobq_waiters_from_here();

	jobq_require(JOBQ_MAY_ALL);
	jobq_require_preload("jobq.wait_batch()");
	PG_ENSURE_ERROR_CLEANUP(jobq_remove_waiters, from);
	{
		int			place = jobq_add_waiter(-id);

		if (jobq_my_database() == NULL)
			jobq_warn_if_not_served();
		for (;;)
		{
			jobq_waiter_look(place);
			if (is_over(id))
				break;
			if (jobq_ms_left(deadline) == 0)
				break;
			jobq_waiter_sleep(place, jobq_ms_left(deadline) + 1,
							  jobq_wait_event(wait_event, "JobqWaitBatch"));
		}
		jobq_drop_waiter(place);
	}
	PG_END_ENSURE_ERROR_CLEANUP(jobq_remove_waiters, from);
}

/*
 * Return the batch's status, of type jobq.batch_status.  The query reads committed data, so
 * retention may have removed the batch since the check.
 */
static Datum
status_datum(FunctionCallInfo fcinfo, int64 id)
{
	static const Oid types[] = {
		INT8OID, TEXTOID, TEXTOID, INT8OID, INT8OID, INT8OID, INT8OID,
		INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, FLOAT4OID,
		TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID
	};
	MemoryContext context = CurrentMemoryContext;
	MemoryContext old;
	HeapTuple	tuple;
	TupleDesc	desc;

	desc = jobq_row_type(fcinfo, lengthof(types));
	jobq_check_types(desc, types, lengthof(types));
	SPI_connect();
	jobq_batch_check_visible(id);
	if (!ask("SELECT id, name, state, total, ready, scheduled, blocked, running,"
			 " completed, dead, cancelled, expired, progress,"
			 " created_at, started_at, finished_at, last_error"
			 " FROM jobq_internal.batch_list WHERE id = $1", id))
		jobq_no_such_batch(id);
	jobq_check_types(SPI_tuptable->tupdesc, types, lengthof(types));
	old = MemoryContextSwitchTo(context);
	tuple = heap_copytuple(SPI_tuptable->vals[0]);
	MemoryContextSwitchTo(old);
	SPI_finish();
	jobq_flush_before_telling();
	return heap_copy_tuple_as_datum(tuple, desc);
}

/*
 * wait_batch(batch_id, timeout): the status of the batch, when it has finished or after the
 * timeout.  With a timeout of 0 there is no wait: the batch may be uncommitted, and the
 * database need not be served.  ERROR if the user may see no batch with this id.
 */
Datum
jobq_wait_batch(PG_FUNCTION_ARGS)
{
	int64		id = PG_GETARG_INT64(0);
	int64		timeout_ms = jobq_interval_ms(PG_GETARG_INTERVAL_P(1), "timeout", 0,
											  JOBQ_MAX_WAIT_MS);

	if (timeout_ms > 0)
		wait_until_over(id, timeout_ms);
	PG_RETURN_DATUM(status_datum(fcinfo, id));
}
