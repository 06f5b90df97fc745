/*-------------------------------------------------------------------------
 *
 * leases_rows.c
 *	  Removes rows of jobq_internal.lease that are no longer needed.
 *
 * With the last lease of a bundle, the row of the bundle becomes garbage (leases.h in
 * src/ready).  The list of such rows has a fixed length.  If the list overflows, a scan of the
 * table finds the rows without a bundle.
 *
 * worker/scheduler/leases_rows.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "consume/consume.h"
#include "scheduler/duty.h"

/* The pause between two removals of unneeded rows (microseconds). */
#define GARBAGE_PAUSE	USECS_PER_SEC

static TimestampTz collect_rows(TimestampTz now);
static TimestampTz next_collect_rows(TimestampTz plan, TimestampTz now);
static void delete_unknown(Relation rel);
static int64 *known_rows(int *n);
static void delete_row(Relation rel, const JobqLeaseRow *row);

/*
 * Deletes up to JOBQ_LEASE_GARBAGE rows.  If the list of rows has overflowed, deletes
 * all unneeded rows: at most the number of reservations since the last run.
 */
Duty		collect_duty = {
	.what = "remove rows of leases",
	.run = collect_rows,
	.next_due = next_collect_rows,
};

/*
 * Delete unneeded rows of jobq_internal.lease.
 */
static TimestampTz
collect_rows(TimestampTz now)
{
	static bool forgotten = false;	/* the last run was not completed */
	uint32		n;
	JobqLeaseRow *garbage = palloc(sizeof(JobqLeaseRow) * JOBQ_LEASE_GARBAGE);
	bool		all;
	Relation	rel;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	n = Min(my_db->leases->ngarbage, JOBQ_LEASE_GARBAGE);
	all = forgotten || my_db->leases->ngarbage > JOBQ_LEASE_GARBAGE;
	memcpy(garbage, my_db->leases->garbage, sizeof(JobqLeaseRow) * n);
	my_db->leases->ngarbage = 0;
	LWLockRelease(my_db->lock);
	if (n == 0 && !forgotten)
		return now + GARBAGE_PAUSE;

	forgotten = true;
	process_begin_transaction();
	rel = jobq_open_table(JOBQ_LEASE_TABLE, RowExclusiveLock);
	for (uint32 i = 0; i < n; i++)
		delete_row(rel, &garbage[i]);
	if (all)
		delete_unknown(rel);
	table_close(rel, NoLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
	forgotten = false;
	return now + GARBAGE_PAUSE;
}

/*
 * Delete the rows without a bundle.  The snapshot is older than the list of bundles, so
 * each visible row in use has its bundle in the list.
 */
static void
delete_unknown(Relation rel)
{
	int			n;
	int64	   *known = known_rows(&n);
	TableScanDesc scan = jobq_table_beginscan(rel, GetActiveSnapshot());
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		JobqLeaseRow row = {.ctid = tuple->t_self};
		bool		isnull;

		row.id = DatumGetInt64(heap_getattr(tuple, LEASE_COLUMN_ID,
											RelationGetDescr(rel), &isnull));
		if (bsearch(&row.id, known, n, sizeof(int64), jobq_compare_int64) == NULL)
			delete_row(rel, &row);
	}
	table_endscan(scan);
	pfree(known);
}

/*
 * Return the sorted row ids of all bundles, and set *n.  Takes my_db->lock shared.
 */
static int64 *
known_rows(int *n)
{
	int64	   *ids = palloc(sizeof(int64) * JOBQ_MAX_BUNDLES);

	*n = 0;
	LWLockAcquire(my_db->lock, LW_SHARED);
	for (int i = 0; i < JOBQ_MAX_BUNDLES; i++)
	{
		JobqLeaseBundle *bundle = &my_db->leases->bundles[i];

		if (bundle->outstanding > 0 && ItemPointerIsValid(&bundle->row.ctid))
			ids[(*n)++] = bundle->row.id;
	}
	LWLockRelease(my_db->lock);
	qsort(ids, *n, sizeof(int64), jobq_compare_int64);
	return ids;
}

/*
 * Few rows are removed after a pause, to collect more rows; many rows at once.
 */
static TimestampTz
next_collect_rows(TimestampTz plan, TimestampTz now)
{
	if (my_db->leases->ngarbage > JOBQ_LEASE_GARBAGE / 2)
		return now;
	return my_db->leases->ngarbage > 0 ? plan : DT_NOEND;
}

/*
 * Delete the row if it still exists.  If the row is not at its old ctid, because VACUUM
 * FULL has moved it, find the row by id.
 */
static void
delete_row(Relation rel, const JobqLeaseRow *row)
{
	HeapTupleData tuple;
	Buffer		buffer;
	TM_FailureData tmfd;
	bool		found = false;

	tuple.t_self = row->ctid;
	if (ItemPointerGetBlockNumber(&row->ctid) < RelationGetNumberOfBlocks(rel) &&
		heap_fetch(rel, GetActiveSnapshot(), &tuple, &buffer, false))
	{
		bool		isnull;

		found = DatumGetInt64(heap_getattr(&tuple, LEASE_COLUMN_ID,
										   RelationGetDescr(rel),
										   &isnull)) == row->id;
		ReleaseBuffer(buffer);
	}
	if (!found)
	{
		ScanKeyData key;
		SysScanDesc scan;
		HeapTuple	moved;

		ScanKeyInit(&key, LEASE_COLUMN_ID, BTEqualStrategyNumber, F_INT8EQ,
					Int64GetDatum(row->id));
		scan = systable_beginscan(rel, jobq_index(rel, JOBQ_LEASE_PKEY), true,
								  GetActiveSnapshot(), 1, &key);
		moved = systable_getnext(scan);
		found = HeapTupleIsValid(moved);
		if (found)
			tuple.t_self = moved->t_self;
		systable_endscan(scan);
	}
	if (found)
		(void) jobq_heap_delete(rel, &tuple.t_self, GetCurrentCommandId(true),
								false, &tmfd);
}
