/*-------------------------------------------------------------------------
 *
 * deferred.c
 *	  Deferred constraints and triggers of a handler, which fire before its attempt is
 *	  recorded.
 *
 * The server fires all pending triggers of a transaction, and cannot fire only some.  A caller
 * that runs handlers in a foreign transaction therefore fires the pending triggers first,
 * outside of the attempt.  An error of these triggers is an error of the transaction.
 *
 * src/attempt/deferred.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"

#include "attempt/attempt.h"

/*
 * Fire all pending triggers.  Afterwards nothing is deferred in this transaction, until SET
 * CONSTRAINTS or jobq_defer_again().  Errors of triggers are raised.
 */
void
jobq_fire_deferred(void)
{
	ConstraintsSetStmt all = {.type = T_ConstraintsSetStmt};

	AfterTriggerSetState(&all);
}

/*
 * Restore the declared mode of each constraint: deferred or immediate.  Nothing may be
 * pending.  A constraint in a schema without USAGE for the current user is deferred if
 * possible, because the user could not name it.
 */
void
jobq_defer_again(void)
{
	static const Oid types[] = {OIDOID};
	Datum		values[] = {ObjectIdGetDatum(GetUserId())};
	ConstraintsSetStmt all = {.type = T_ConstraintsSetStmt,.deferred = true};
	ConstraintsSetStmt immediate = {.type = T_ConstraintsSetStmt};
	MemoryContext context = CurrentMemoryContext;
	int			n;

	SPI_connect();
	n = jobq_query_latest("SELECT n.nspname::text, c.conname::text FROM pg_catalog.pg_constraint c"
						  " JOIN pg_catalog.pg_namespace n ON n.oid = c.connamespace"
						  " WHERE c.condeferrable AND NOT pg_catalog.pg_is_other_temp_schema(n.oid) AND pg_catalog.has_schema_privilege($1, n.oid, 'USAGE')"
						  " GROUP BY n.nspname, c.conname HAVING NOT bool_or(c.condeferred)",
						  1, types, values, SPI_OK_SELECT);
	for (int i = 0; i < n; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		MemoryContext old = MemoryContextSwitchTo(context);

		immediate.constraints = lappend(immediate.constraints,
										makeRangeVar(SPI_getvalue(row, desc, 1),
													 SPI_getvalue(row, desc, 2), -1));
		MemoryContextSwitchTo(old);
	}
	SPI_finish();
	AfterTriggerSetState(&all);
	if (immediate.constraints != NIL)
		AfterTriggerSetState(&immediate);
}

/*
 * Prepare the current transaction for the call of a handler.  Pending triggers of the
 * transaction fire now, and constraints get their declared mode.  A transaction that has
 * written nothing has no pending triggers.  If the caller also commits after each job
 * (commits), the modes are unchanged, too.
 */
void
jobq_fire_before(bool commits)
{
	bool		written = TransactionIdIsValid(GetTopTransactionIdIfAny());

	if (written)
		jobq_fire_deferred();
	if (written || !commits)
		jobq_defer_again();
}
