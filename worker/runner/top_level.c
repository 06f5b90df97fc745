/*-------------------------------------------------------------------------
 *
 * top_level.c
 *	  Runs a statement as if a client had sent it.
 *
 * worker/runner/top_level.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include "access/xact.h"
#include "nodes/parsenodes.h"
#include "parser/analyze.h"
#include "tcop/dest.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

/*
 * Run the statement in the way of exec_simple_query().  No transaction may be open before; a
 * transaction is open afterwards.  Returns the number of rows written or found.  The statement
 * and the current memory context must outlive transactions.  Errors are raised.
 */
uint64
run_top_level(const JobqStatement *statement)
{
	MemoryContext memory = CurrentMemoryContext;
	Portal		top;
	List	   *trees;
	QueryCompletion qc;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	MemoryContextSwitchTo(memory);
	if (analyze_requires_snapshot(statement->raw))
		PushActiveSnapshot(GetTransactionSnapshot());
	trees = pg_analyze_and_rewrite_fixedparams(statement->raw, statement->sql,
											   NULL, 0, NULL);
	trees = pg_plan_queries(trees, statement->sql, CURSOR_OPT_PARALLEL_OK, NULL);
	if (ActiveSnapshotSet())
		PopActiveSnapshot();

	top = CreatePortal("jobq statement", true, true);
	top->visible = false;
	PortalDefineQuery(top, NULL, statement->sql,
					  CreateCommandTag(statement->raw->stmt), trees, NULL);
	PortalStart(top, NULL, 0, InvalidSnapshot);
	InitializeQueryCompletion(&qc);
	(void) jobq_portal_run(top, None_Receiver, &qc);
	PortalDrop(top, false);
	MemoryContextSwitchTo(memory);
	return qc.nprocessed;
}
