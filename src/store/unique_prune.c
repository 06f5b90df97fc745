/*-------------------------------------------------------------------------
 *
 * unique_prune.c
 *	  Deletion of unique keys without a holder, by the scheduler.
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

#include "store/unique_keys.h"

/*
 * Delete the rows whose ctids are the result of a query.  Rows that were changed since stay.
 * Frees the result.
 */
void
jobq_keys_delete_found(Relation keys)
{
	for (uint64 i = 0; i < SPI_tuptable->numvals; i++)
	{
		TM_FailureData tmfd;
		ItemPointer ctid = (ItemPointer)
			DatumGetPointer(jobq_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, TIDOID, NULL));

		(void) jobq_heap_delete(keys, ctid, GetCurrentCommandId(true), false,
								&tmfd);
	}
	SPI_freetuptable(SPI_tuptable);
}

/*
 * Delete those of the rows from "from" up to "to" with keys that no job holds: the window has
 * ended, or the row was locked when its job finished.  "now" is a time from before a possible
 * jump of the clock.  Called by the scheduler, which is connected to SPI.
 */
void
jobq_unique_prune(ItemPointer from, ItemPointer to, TimestampTz now)
{
	static const Oid types[] = {TIDOID, TIDOID, TIMESTAMPTZOID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {PointerGetDatum(from), PointerGetDatum(to), TimestampTzGetDatum(now)};
	Relation	keys = jobq_open_table(JOBQ_UNIQUE_KEY_TABLE, RowExclusiveLock);

	/*
	 * Read the clock after the snapshot, because it may have been put back. A
	 * subquery with LIMIT uses the index, EXISTS may read the whole table.
	 */
	(void) jobq_query_kept(&plan, "SELECT u.ctid FROM jobq_internal.unique_key u"
						   " WHERE u.ctid >= $1 AND u.ctid < $2"
						   " AND (u.held_until IS NULL OR u.held_until <= least(jobq_internal.clock(), $3))"
						   " AND (u.until = 'w' OR"
						   " (SELECT true FROM jobq_internal.job j WHERE j.id = u.job_id LIMIT 1) IS NULL)",
						   3, types, values, NULL, SPI_OK_SELECT);
	jobq_keys_delete_found(keys);
	table_close(keys, NoLock);
}
