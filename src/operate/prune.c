/*-------------------------------------------------------------------------
 *
 * prune.c
 *	  prune(): delete old finished jobs and dead letters before their retention ends, and
 *	  cancel old batches.  Otherwise a batch without an end is never deleted.
 *
 * src/operate/prune.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/timestamp.h"

#include "compose/compose.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_prune);

/* Condition: the current user, $1, may delete the row.  $2: the user may delete all rows. */
#define IS_MINE		"($2 OR pg_catalog.pg_has_role($1, role::oid, 'USAGE'))"

/*
 * Run a query made by DELETE_AND_COUNT(), and return the number of deleted rows.  The caller
 * must be connected to SPI.
 */
int64
jobq_delete_and_count(const char *query, int nargs, const Oid *types,
					  const Datum *values)
{
	(void) jobq_query(query, nargs, types, values, NULL, SPI_OK_SELECT);
	return DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, INT8OID, NULL));
}

/*
 * Cancel unfinished batches created before $3, except batches locked by another transaction.
 * Returns the number of batches.  The caller must be connected to SPI.
 */
static int64
cancel_batches(const Oid *types, const Datum *values)
{
	uint64		n = jobq_query("SELECT id FROM jobq_internal.batch WHERE finished_at IS NULL AND created_at < $3"
							   " AND state <> 'x' AND NOT dormant AND " IS_MINE
							   " ORDER BY id FOR NO KEY UPDATE SKIP LOCKED",
							   3, types, values, NULL, SPI_OK_SELECT);
	SPITupleTable *found = SPI_tuptable;

	for (uint64 i = 0; i < n; i++)
		(void) jobq_batch_cancel_open(DatumGetInt64(jobq_column(found->vals[i], found->tupdesc, 1, INT8OID, NULL)));
	return (int64) n;
}

/*
 * prune(older_than, dead_older_than, batches_older_than): delete finished jobs and dead
 * letters older than the given intervals, and cancel unfinished batches older than the third.
 * A null interval skips this part.  Returns the total number.  ERROR without the privilege
 * manage for all queues.  Locks the archive and its partitions in RowExclusiveLock.
 */
Datum
jobq_prune(PG_FUNCTION_ARGS)
{
	static const char *const what[] = {"older_than", "dead_older_than", "batches_older_than"};
	static const char *const queries[] = {
		DELETE_AND_COUNT("DELETE FROM jobq_internal.archive WHERE " IS_MINE
						 " AND finished_at < $3" RETURNING_FINISHED),
		/* same lock order as other operations on dead letters */
		DELETE_AND_COUNT("DELETE FROM jobq_internal.dead_letter WHERE id IN (SELECT id FROM jobq_internal.dead_letter"
						 " WHERE " IS_MINE " AND finished_at < $3 ORDER BY id FOR UPDATE)"
						 RETURNING_LETTERS)
	};
	static const Oid types[] = {OIDOID, BOOLOID, TIMESTAMPTZOID};
	TimestampTz now = jobq_now();
	Datum		values[3];
	int64		n = 0;

	jobq_require_all(JOBQ_MAY_MANAGE, "prune finished jobs");
	values[0] = ObjectIdGetDatum(GetUserId());
	values[1] = BoolGetDatum((jobq_privileges(0) & JOBQ_MAY_MANAGE) != 0);

	/* before the snapshot, so that no partition is created in between */
	LockRelationOid(jobq_relations()->archive, RowExclusiveLock);
	(void) find_all_inheritors(jobq_relations()->archive, RowExclusiveLock,
							   NULL);
	SPI_connect();
	for (int i = 0; i < 3; i++)
	{
		int64		ms;

		if (PG_ARGISNULL(i))
			continue;
		ms = jobq_interval_ms(PG_GETARG_INTERVAL_P(i), what[i], 0, JOBQ_MAX_DELAY_MS);
		values[2] = TimestampTzGetDatum(now - ms * 1000);
		n += i < 2 ? jobq_delete_and_count(queries[i], 3, types, values)
			: cancel_batches(types, values);
	}
	SPI_finish();
	jobq_audit(fcinfo, n);
	PG_RETURN_INT64(n);
}
