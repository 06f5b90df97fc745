/*-------------------------------------------------------------------------
 *
 * wait_queue.c
 *	  wait_queue(): wait until a queue is drained.
 *
 * The session waits for one job at a time, the last in the queue, in the same list as
 * wait().  When the job has ended, the session checks the queue again.  Thus the session
 * neither polls nor wakes for each job.
 *
 * src/operate/wait_queue.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "executor/execdesc.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "optimizer/optimizer.h"
#include "storage/ipc.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "commit/commit.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_wait_queue);

/*
 * Find the last job of the queue that is running or may run now.
 */
static bool
last_job(int32 queue_id, JobqJob *job)
{
	Relation	rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	Relation	index = jobq_open_index(rel, JOBQ_JOB_READY);
	TimestampTz now = jobq_now();
	ScanKeyData keys[2];
	SysScanDesc scan;
	Snapshot	snapshot;
	HeapTuple	tuple;
	bool		found = false;

	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyInit(&keys[0], JOB_QUEUE_ID, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	ScanKeyInit(&keys[1], JOB_RUN_AT, BTLessEqualStrategyNumber,
				F_TIMESTAMPTZ_LE, TimestampTzGetDatum(now));
	scan = systable_beginscan_ordered(rel, index, snapshot, 2, keys);
	while (!found &&
		   (tuple = systable_getnext_ordered(scan, BackwardScanDirection)) != NULL)
	{
		/* skip jobs that will not run here, or have expired */
		CHECK_FOR_INTERRUPTS();
		jobq_job_from_tuple(rel, tuple, job);
		found = !DatumGetBool(JOB(job, JOB_DORMANT)) &&
			(JOB_ISNULL(job, JOB_EXPIRES_AT) ||
			 DatumGetTimestampTz(JOB(job, JOB_EXPIRES_AT)) > now ||
			 jobq_job_runs(job));
	}
	systable_endscan_ordered(scan);
	UnregisterSnapshot(snapshot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	return found;
}

/*
 * True if the query is SELECT jobq.wait_queue(...)  and nothing else.  Then the statement's
 * snapshot is no longer used, and need not hold back VACUUM.
 */
static bool
snapshot_is_unused(FunctionCallInfo fcinfo)
{
	PlannedStmt *stmt;
	Plan	   *plan;
	FuncExpr   *call;

	if (IsolationUsesXactSnapshot() || GetCurrentTransactionNestLevel() != 1 ||
		ActivePortal == NULL || ActivePortal->name[0] != '\0' ||
		ActivePortal->strategy != PORTAL_ONE_SELECT ||
		ActivePortal->queryDesc == NULL)
		return false;
	stmt = ActivePortal->queryDesc->plannedstmt;
	plan = stmt->planTree;
	if (stmt->commandType != CMD_SELECT || stmt->subplans != NIL ||
		!IsA(plan, Result) || plan->lefttree != NULL ||
		((Result *) plan)->resconstantqual != NULL ||
		list_length(plan->targetlist) != 1)
		return false;
	call = (FuncExpr *) linitial_node(TargetEntry, plan->targetlist)->expr;
	if (!IsA(call, FuncExpr) || call->funcid != fcinfo->flinfo->fn_oid ||
		contain_mutable_functions((Node *) call->args))
		return false;

	/* an open cursor may have a snapshot, too */
	InvalidateCatalogSnapshot();
	return ThereAreNoPriorRegisteredSnapshots();
}

static bool
wait_until_drained(FunctionCallInfo fcinfo, int32 queue_id, int64 timeout_ms)
{
	static uint32 wait_event = 0;
	int64		deadline = jobq_deadline(timeout_ms);
	JobqJob		job;

	while (last_job(queue_id, &job))
	{
		int			place;
		JobqJob		again;

		if (TransactionIdIsCurrentTransactionId(job.xmin))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("jobq.wait_queue() cannot wait for a job of the same transaction"),
					 errhint("A job starts when the transaction that enqueued it commits.")));

		/* the job may have ended before this session registered */
		place = jobq_add_waiter(job_id(&job));
		jobq_waiter_look(place);
		if (last_job(queue_id, &again) && job_id(&again) == job_id(&job))
		{
			long		left = jobq_ms_left(deadline);

			if (left <= 0)
			{
				jobq_drop_waiter(place);
				return false;
			}
			if (snapshot_is_unused(fcinfo))
				MyProc->xmin = InvalidTransactionId;
			jobq_waiter_sleep(place, left,
							  jobq_wait_event(wait_event, "JobqWaitQueue"));
		}
		jobq_drop_waiter(place);
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

/*
 * wait_queue(queue, timeout): wait until the queue has no job that is running or may run now.
 * False after the timeout.  ERROR if the queue does not exist, or if a job belongs to the
 * current transaction.
 */
Datum
jobq_wait_queue(PG_FUNCTION_ARGS)
{
	int32		queue_id = jobq_existing_queue(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	int64		timeout_ms = jobq_interval_ms(PG_GETARG_INTERVAL_P(1),
											  "timeout", 0, JOBQ_MAX_WAIT_MS);
	Datum		from = jobq_waiters_from_here();
	volatile bool drained = false;

	jobq_require_preload("jobq.wait_queue()");
	PG_ENSURE_ERROR_CLEANUP(jobq_remove_waiters, from);
	{
		drained = wait_until_drained(fcinfo, queue_id, timeout_ms);
	}
	PG_END_ENSURE_ERROR_CLEANUP(jobq_remove_waiters, from);
	if (drained)
		jobq_flush_before_telling();
	PG_RETURN_BOOL(drained);
}
