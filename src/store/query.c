/*-------------------------------------------------------------------------
 *
 * query.c
 *	  Queries on the tables of jobq on behalf of any caller.
 *
 * Users have no privileges on the tables.  Operations for each job use direct heap access
 * (row.c).  All other operations are queries that run as the owner of the extension, in a
 * security-restricted operation with a fixed search_path, as ri_triggers.c does for foreign
 * keys.
 *
 * The caller of the query functions is connected to SPI. The functions return the number of
 * rows, and raise an ERROR if the result is not the SPI code "expected".
 *
 * src/store/query.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "store/store.h"

/*
 * Become the role, which becomes the owner of a job, until jobq_unbecome_role() or the end of
 * the transaction or subtransaction.  The caller must not run code of the role meanwhile, such
 * as a function or an expression that the role can define.
 */
void
jobq_become_role(Oid role, JobqRoleState *before)
{
	GetUserIdAndSecContext(&before->userid, &before->sec_context);
	SetUserIdAndSecContext(role, before->sec_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
}

void
jobq_unbecome_role(const JobqRoleState *before)
{
	SetUserIdAndSecContext(before->userid, before->sec_context);
}

/*
 * Become the owner of the extension, until jobq_unbecome_owner() or the end of the transaction
 * or subtransaction.
 */
void
jobq_become_owner(JobqOwnerState *state)
{
	GetUserIdAndSecContext(&state->userid, &state->sec_context);
	SetUserIdAndSecContext(jobq_relations()->owner,
						   state->sec_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION |
						   SECURITY_NOFORCE_RLS);
	state->nestlevel = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);

	/*
	 * A trigger on a subscription's table may have called this code, but the
	 * rows do not come from the publisher.  They must not become dormant, and
	 * need notifications.
	 */
	if (SessionReplicationRole != SESSION_REPLICATION_ROLE_ORIGIN)
		(void) set_config_option("session_replication_role", "origin", PGC_SUSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

void
jobq_unbecome_owner(JobqOwnerState *state)
{
	AtEOXact_GUC(true, state->nestlevel);
	SetUserIdAndSecContext(state->userid, state->sec_context);
}

/* Run a query. */
uint64
jobq_query(const char *query, int nargs, const Oid *types,
		   const Datum *values, const char *nulls, int expected)
{
	JobqOwnerState state;
	int			result;

	jobq_become_owner(&state);
	result = SPI_execute_with_args(query, nargs, (Oid *) types,
								   (Datum *) values, nulls, false, 0);
	if (result != expected)
		elog(ERROR, "query returned %s: %s",
			 SPI_result_code_string(result), query);
	jobq_unbecome_owner(&state);
	return SPI_processed;
}

/*
 * Like jobq_query(), with a snapshot of the latest committed state, at any isolation level.
 * No value may be null.
 */
uint64
jobq_query_latest(const char *query, int nargs, const Oid *types,
				  const Datum *values, int expected)
{
	JobqOwnerState state;
	SPIPlanPtr	plan;
	Snapshot	snapshot;
	int			result;

	jobq_become_owner(&state);
	plan = SPI_prepare(query, nargs, (Oid *) types);
	if (plan == NULL)
		elog(ERROR, "could not prepare: %s", query);
	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	result = SPI_execute_snapshot(plan, (Datum *) values, NULL, snapshot,
								  InvalidSnapshot, false, true, 0);
	UnregisterSnapshot(snapshot);
	if (result != expected)
		elog(ERROR, "query returned %s: %s",
			 SPI_result_code_string(result), query);
	SPI_freeplan(plan);
	jobq_unbecome_owner(&state);
	return SPI_processed;
}

/*
 * Like jobq_query(), with a plan cached in *plan, for frequent queries with more time for
 * planning than for execution.  The plan may be made while the tables are small, and used when
 * they are large.  The plan therefore uses indexes.
 */
uint64
jobq_query_kept(SPIPlanPtr *plan, const char *query, int nargs,
				const Oid *types, const Datum *values, const char *nulls,
				int expected)
{
	JobqOwnerState state;
	int			result;

	jobq_become_owner(&state);
	(void) set_config_option("enable_seqscan", "off", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	if (*plan == NULL)
	{
		SPIPlanPtr	made = SPI_prepare_cursor(query, nargs, (Oid *) types,
											  CURSOR_OPT_GENERIC_PLAN);

		if (made == NULL || SPI_keepplan(made) != 0)
			elog(ERROR, "could not prepare: %s", query);
		*plan = made;
	}
	result = SPI_execute_plan(*plan, (Datum *) values, nulls, false, 0);
	if (result != expected)
		elog(ERROR, "query returned %s: %s",
			 SPI_result_code_string(result), query);
	jobq_unbecome_owner(&state);
	return SPI_processed;
}

/*
 * Return an array of the type bigint[], in the current memory context.
 */
Datum
jobq_int8_array(const Datum *values, int n)
{
	return PointerGetDatum(construct_array(unconstify(Datum *, values), n, INT8OID, 8,
										   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}
