/*-------------------------------------------------------------------------
 *
 * query.c
 *	  Queries on jobq's tables on behalf of whoever called.
 *
 * Users have no privileges on the tables.  What is done once per job uses
 * direct heap access (row.c); everything else is a query run as the owner of
 * the extension, in a security-restricted operation with a pinned
 * search_path, as ri_triggers.c does for foreign keys.
 *
 * src/store/query.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "store/store.h"

/*
 * Become the owner of the extension, until jobq_unbecome_owner() or the end of
 * the (sub)transaction.
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
	 * What we write is not what a publisher has written, even if a trigger of
	 * a subscription's table has called us: it must not become dormant, and
	 * is to be told of.
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

/*
 * Run a query that is expected to return the SPI code "expected"; the caller
 * is connected to SPI.  Returns the number of rows.
 */
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
 * The same, but it sees what has committed by now, whatever the isolation level of the
 * transaction is.  None of the values is null.
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
 * The same with a plan that is kept for the next time, for what is done often
 * and takes longer to plan than to run.  It may be made while the tables are
 * small, and still be there when they are large: so it uses indexes.
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
