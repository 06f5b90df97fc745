/*-------------------------------------------------------------------------
 *
 * note.c
 *	  Notes in a row of one of jobq's tables why what it asks for could not be
 *	  done.
 *
 * worker/scheduler/note.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

/*
 * Something that a row of one of our tables asks for could not be done: note in
 * its last_error why, in a transaction of its own, unless it is locked.  True if
 * that is news, or could not be found out.
 */
bool
scheduler_note_error(const char *table, const char *column, Oid type, Datum key,
					 const ErrorData *edata)
{
	Oid			types[] = {type, TEXTOID};
	Datum		values[] = {key, CStringGetTextDatum(edata->message)};
	MemoryContext caller = CurrentMemoryContext;
	volatile bool news = true;

	process_begin_transaction();
	jobq_lock_jobs();
	PG_TRY();
	{
		SPI_connect();
		news = jobq_query(psprintf("UPDATE jobq.%s SET last_error = $2 WHERE %s IN"
								   " (SELECT %s FROM jobq.%s WHERE %s = $1"
								   "  AND last_error IS DISTINCT FROM $2 FOR UPDATE SKIP LOCKED)",
								   table, column, column, table, column),
						  2, types, values, NULL, SPI_OK_UPDATE) > 0;
		SPI_finish();
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		HOLD_INTERRUPTS();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	return news;
}
