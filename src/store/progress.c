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
 * Return whether the run with the job's lease has committed a step, a wait or a saved value.
 */
bool
jobq_made_progress(const JobqJob *job)
{
	Relation	steps = jobq_open_table(JOBQ_PROCEDURE_STEP_TABLE, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&key, PSTEP_JOB_ID, BTEqualStrategyNumber, F_INT8EQ,
				JOB(job, JOB_ID));
	scan = systable_beginscan(steps, jobq_index(steps, JOBQ_PROCEDURE_STEP_PKEY), true,
							  SnapshotSelf, 1, &key);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;

		found = DatumGetInt64(heap_getattr(tuple, PSTEP_TOKEN, RelationGetDescr(steps),
										   &isnull)) ==
			DatumGetInt64(JOB(job, JOB_LEASE_TOKEN));
	}
	systable_endscan(scan);
	table_close(steps, AccessShareLock);
	return found;
}

/*
 * Delete the steps and signals of jobs that run anew under the same ids.  ids is an array.  The
 * caller is connected to SPI.
 */
void
jobq_progress_forget(Datum ids)
{
	static const Oid types[] = {INT8ARRAYOID};

	(void) jobq_query("DELETE FROM jobq_internal.procedure_step WHERE job_id = ANY ($1)",
					  1, types, &ids, NULL, SPI_OK_DELETE);
	(void) jobq_query("DELETE FROM jobq_internal.signal WHERE job_id = ANY ($1)",
					  1, types, &ids, NULL, SPI_OK_DELETE);
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
