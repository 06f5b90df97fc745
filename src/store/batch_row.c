/*-------------------------------------------------------------------------
 *
 * batch_row.c
 *	  Rows of jobq_internal.batch by direct heap access.
 *
 * The evaluation of a small batch (worker/scheduler/batch_evaluate.c) costs about as much as its
 * jobs cost the workers.  Reads and writes of an evaluation therefore bypass the executor, as
 * those of job rows do (row.c).
 *
 * src/store/batch_row.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/store.h"

/*
 * Read the batch's row as visible to the snapshot.  Returns false if there is none.  Values
 * point into the current memory context.
 */
bool
jobq_batch_fetch(int64 id, Snapshot snapshot, JobqBatchRow *row)
{
	Relation	rel = jobq_open_table(JOBQ_BATCH_TABLE, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found;

	ScanKeyInit(&key, BATCH_COLUMN_ID, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(id));
	scan = systable_beginscan(rel, jobq_index(rel, JOBQ_BATCH_PKEY), true, snapshot,
							  1, &key);
	tuple = systable_getnext(scan);
	found = HeapTupleIsValid(tuple);
	if (found)
	{
		tuple = heap_copytuple(tuple);
		heap_deform_tuple(tuple, RelationGetDescr(rel), row->values, row->nulls);
		row->ctid = tuple->t_self;
		row->version = HeapTupleHeaderGetRawXmin(tuple->t_data);
	}
	systable_endscan(scan);
	table_close(rel, NoLock);
	return found;
}

/*
 * Lock a row read before, like FOR NO KEY UPDATE SKIP LOCKED. Does not wait.
 */
JobqRowLock
jobq_batch_lock(const JobqBatchRow *row)
{
	Relation	rel = jobq_open_table(JOBQ_BATCH_TABLE, RowExclusiveLock);
	TM_Result	result = jobq_lock_row(rel, &row->ctid, LockWaitSkip);

	table_close(rel, NoLock);
	return result == TM_Ok ? JOBQ_ROW_LOCKED
		: result == TM_WouldBlock ? JOBQ_ROW_BUSY : JOBQ_ROW_CHANGED;
}

/*
 * Update the locked row.  Only columns without a key may differ.  Increments the command
 * counter.
 */
void
jobq_batch_write(JobqBatchRow *row)
{
	Relation	rel = jobq_open_table(JOBQ_BATCH_TABLE, RowExclusiveLock);

	jobq_update_row(rel, &row->ctid,
					heap_form_tuple(RelationGetDescr(rel), row->values, row->nulls));
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/* Insert a batch.  Increments the command counter. */
void
jobq_batch_put(JobqBatchRow *row)
{
	Relation	rel = jobq_open_table(JOBQ_BATCH_TABLE, RowExclusiveLock);

	(void) jobq_insert_row(rel, row->values, row->nulls);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}
