/*-------------------------------------------------------------------------
 *
 * progress.c
 *	  The progress of durable procedures, for other rooms.
 *
 * The rows of steps and signals stay when a job moves between the tables: the history of a
 * finished job shows the steps, and a retried dead letter continues after them.
 *
 * src/store/progress.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/store.h"
#include "store/unique_keys.h"

/*
 * Return whether the job has a step, a wait or a saved value; with a token, whether the run with
 * this lease has written one.
 */
static bool
has_step(int64 id, const int64 *token)
{
	Relation	steps = jobq_open_table(JOBQ_PROCEDURE_STEP_TABLE, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&key, PSTEP_JOB_ID, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	scan = systable_beginscan(steps, jobq_index(steps, JOBQ_PROCEDURE_STEP_PKEY), true,
							  SnapshotSelf, 1, &key);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;

		found = token == NULL ||
			DatumGetInt64(heap_getattr(tuple, PSTEP_TOKEN, RelationGetDescr(steps),
									   &isnull)) == *token;
	}
	systable_endscan(scan);
	table_close(steps, AccessShareLock);
	return found;
}

/* Return whether a procedure has done a part of the job, which the next run skips. */
bool
jobq_has_progress(int64 id)
{
	return has_step(id, NULL);
}

/*
 * Return whether the run with the job's lease has committed a step, a wait or a saved value.
 */
bool
jobq_made_progress(const JobqJob *job)
{
	int64		token = DatumGetInt64(JOB(job, JOB_LEASE_TOKEN));

	return has_step(job_id(job), &token);
}

/*
 * Return the version of the handler with which the procedure of the job has begun: as noted in its
 * steps, or the given version if the job has no steps.
 */
int64
jobq_version_begun(int64 id, int64 version)
{
	Relation	steps = jobq_open_table(JOBQ_PROCEDURE_STEP_TABLE, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		isnull;

	ScanKeyInit(&key, PSTEP_JOB_ID, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	scan = systable_beginscan(steps, jobq_index(steps, JOBQ_PROCEDURE_STEP_PKEY), true,
							  SnapshotSelf, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		version = DatumGetInt64(heap_getattr(tuple, PSTEP_VERSION, RelationGetDescr(steps),
											 &isnull));
	systable_endscan(scan);
	table_close(steps, AccessShareLock);
	return version;
}

/* Delete the rows of the job.  column: contains the job's id. */
static void
forget(JobqTable table, JobqIndex index, AttrNumber column, int64 id)
{
	Relation	rel = jobq_open_table(table, RowExclusiveLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, column, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	scan = systable_beginscan(rel, jobq_index(rel, index), true, SnapshotSelf, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		TM_FailureData tmfd;

		(void) jobq_heap_delete(rel, &tuple->t_self, GetCurrentCommandId(true), true, &tmfd);
	}
	systable_endscan(scan);
	table_close(rel, NoLock);
}

/*
 * Delete the steps and signals of a job, because another job runs under the same id.  The caller
 * has deleted or locked the row of the job, which therefore does not run.
 */
void
jobq_progress_forget(int64 id)
{
	forget(JOBQ_PROCEDURE_STEP_TABLE, JOBQ_PROCEDURE_STEP_PKEY, PSTEP_JOB_ID, id);
	forget(JOBQ_SIGNAL_TABLE, JOBQ_SIGNAL_PKEY, SIGNAL_JOB_ID, id);
}

/* Condition: no table contains the job of row "s".  Subqueries use the indexes, joins may not. */
#define JOB_IS_GONE \
	" AND (SELECT true FROM jobq_internal.job j WHERE j.id = s.job_id LIMIT 1) IS NULL" \
	" AND (SELECT true FROM jobq_internal.dead_letter f WHERE f.id = s.job_id LIMIT 1) IS NULL" \
	" AND (SELECT true FROM jobq_internal.archive a WHERE a.id = s.job_id LIMIT 1) IS NULL"

static void
prune(JobqTable table, SPIPlanPtr *plan, const char *query, ItemPointer from, ItemPointer to)
{
	static const Oid types[] = {TIDOID, TIDOID};
	Datum		values[] = {PointerGetDatum(from), PointerGetDatum(to)};
	Relation	rel = jobq_open_table(table, RowExclusiveLock);

	(void) jobq_query_kept(plan, query, 2, types, values, NULL, SPI_OK_SELECT);
	jobq_keys_delete_found(rel);
	table_close(rel, NoLock);
}

/*
 * Delete the steps of missing jobs, in the rows from "from" up to "to".  Called by the
 * scheduler, which is connected to SPI.
 */
void
jobq_progress_prune(ItemPointer from, ItemPointer to)
{
	static SPIPlanPtr plan = NULL;

	prune(JOBQ_PROCEDURE_STEP_TABLE, &plan,
		  "SELECT s.ctid FROM jobq_internal.procedure_step s WHERE s.ctid >= $1 AND s.ctid < $2" JOB_IS_GONE,
		  from, to);
}

/* Like jobq_progress_prune(), for signals. */
void
jobq_signals_prune(ItemPointer from, ItemPointer to)
{
	static SPIPlanPtr plan = NULL;

	prune(JOBQ_SIGNAL_TABLE, &plan,
		  "SELECT s.ctid FROM jobq_internal.signal s WHERE s.ctid >= $1 AND s.ctid < $2" JOB_IS_GONE,
		  from, to);
}
