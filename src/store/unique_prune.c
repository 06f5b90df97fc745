/*-------------------------------------------------------------------------
 *
 * unique_prune.c
 *	  Unique keys that nobody holds any more: the scheduler deletes their rows.
 *
 * src/store/unique_prune.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/rel.h"

#include "store/store.h"

/*
 * Delete the keys of these rows that nobody holds any more: those whose window is
 * over, and those that were taken when their job finished.  The caller is
 * connected to SPI.  In the scheduler.
 */
void
jobq_unique_prune(ItemPointer from, ItemPointer to)
{
	static const Oid types[] = {TIDOID, TIDOID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {PointerGetDatum(from), PointerGetDatum(to)};
	Relation	keys = jobq_open_table(JOBQ_UNIQUE_KEY_TABLE, RowExclusiveLock);
	uint64		n;

	/* by the clock as it is after the snapshot: it may have been put back */
	n = jobq_query_kept(&plan, "SELECT u.ctid FROM jobq_internal.unique_key u"
						" WHERE u.ctid >= $1 AND u.ctid < $2"
						" AND (u.held_until IS NULL OR u.held_until <= jobq.clock())"
						" AND (u.until = 'w' OR NOT EXISTS"
						" (SELECT FROM jobq_internal.job j WHERE j.id = u.job_id))",
						2, types, values, NULL, SPI_OK_SELECT);

	/* not by a query: one that was taken over since is let alone */
	for (uint64 i = 0; i < n; i++)
	{
		TM_FailureData tmfd;
		ItemPointer ctid = (ItemPointer)
			DatumGetPointer(jobq_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, TIDOID, NULL));

		(void) jobq_heap_delete(keys, ctid, GetCurrentCommandId(true), false,
								&tmfd);
	}
	SPI_freetuptable(SPI_tuptable);
	table_close(keys, NoLock);
}
