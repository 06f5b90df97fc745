/*-------------------------------------------------------------------------
 *
 * deferred.c
 *	  Constraints and triggers that are deferred to the end of a transaction: those of a
 *	  handler are its own, and fire before its attempt is recorded.
 *
 * The server fires all that the transaction has pending, and knows no way to fire a part
 * of it.  So who calls handlers in a transaction that is not theirs has its own fire
 * before, outside of the attempt: an error of those is the transaction's.
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
 * Fire what is pending.  From here on nothing is deferred in this transaction, unless it
 * says so, or jobq_defer_again() is called.
 */
void
jobq_fire_deferred(void)
{
	ConstraintsSetStmt all = {.type = T_ConstraintsSetStmt};

	AfterTriggerSetState(&all);
}

/*
 * Nothing is pending: have each constraint deferred, or not, as it was declared.  One in a
 * schema that the user must not use is deferred if it can be, as he could not name it.
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
 * A handler is about to be called in a transaction that is not its own: what that has
 * pending fires now, and constraints are deferred as they were declared.  Who has written
 * nothing has nothing pending, and, if he "commits" after each job, has set nothing.
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
