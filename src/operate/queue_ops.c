/*-------------------------------------------------------------------------
 *
 * queue_ops.c
 *	  Operations on many jobs at once: clear(), retry_all(),
 *	  delete_all_failed(), prune().
 *
 * They touch only jobs that the user may manage.
 *
 * src/operate/queue_ops.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compose/compose.h"
#include "commit/commit.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_clear);
PG_FUNCTION_INFO_V1(jobq_retry_all);
PG_FUNCTION_INFO_V1(jobq_batch_retry_failed);
PG_FUNCTION_INFO_V1(jobq_delete_all_failed);
PG_FUNCTION_INFO_V1(jobq_prune);

/* Dead letters that are read at a time. */
#define LETTERS		1000

/* May this user do it with the row?  $1 is the user, $2 says that he may with all. */
#define IS_MINE		"($2 OR pg_catalog.pg_has_role($1, role::oid, 'USAGE'))"

/*
 * Can a dead letter "f" with a unique key have it?  Of those with the same, in
 * the queue $3 if that is given, only the last.
 */
#define KEY_IS_FREE \
	" NOT EXISTS (SELECT FROM jobq.failed_job g WHERE g.unique_key = f.unique_key" \
	" AND g.kind = f.kind AND g.role = f.role AND g.id > f.id" \
	" AND ($3 IS NULL OR g.queue_id = $3))" \
	" AND NOT EXISTS (SELECT FROM jobq.unique_key u WHERE u.key = f.unique_key" \
	" AND u.kind = f.kind AND u.role = f.role AND u.job_id <> f.id" \
	" AND (u.held_until > jobq.clock() OR u.until <> 'w'" \
	" AND EXISTS (SELECT FROM jobq.job j WHERE j.id = u.job_id)))"

/* Is a dead letter "f" not a step that would wait for a batch without end? */
#define CAN_BEGIN \
	" (f.run_at < 'infinity' OR EXISTS (SELECT FROM jobq.batch b" \
	" WHERE b.id = f.batch_id AND b.state <> 'x'))"

static bool clear_job(Relation rel, int64 id, bool consumer);
static bool is_of_tenant(Relation rel, HeapTuple tuple, text *tenant);

/*
 * The first two arguments of IS_MINE: whether he may with all is said by this
 * privilege, for the queue or for all.
 */
static void
set_mine(Datum *values, int privilege, int32 queue_id)
{
	values[0] = ObjectIdGetDatum(GetUserId());
	values[1] = BoolGetDatum((jobq_privileges(queue_id) & privilege) != 0);
}

/*
 * Run a query that is made by DELETE_AND_COUNT(); how many it has deleted.  The
 * caller is connected to SPI.
 */
int64
jobq_delete_and_count(const char *query, int nargs, const Oid *types,
					  const Datum *values, const char *nulls)
{
	(void) jobq_query(query, nargs, types, values, nulls, SPI_OK_SELECT);
	return DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, INT8OID, NULL));
}

/*
 * Cancel the job if it waits, and this user may.
 */
static bool
clear_job(Relation rel, int64 id, bool consumer)
{
	for (;;)
	{
		TransactionId blocker;
		JobqJob		job;

		CHECK_FOR_INTERRUPTS();
		if (!jobq_find_for(JOBQ_MAY_OPERATE, rel, id, false, &job) ||
			jobq_job_runs(&job))
			return false;
		if (jobq_job_delete_or_blocker(rel, &job, &blocker))
		{
			jobq_job_push_if_undone(&job);
			if (consumer)
			{
				jobq_lease_room(1);
				jobq_at_commit_lease(LEASE_END, id, 0, JOBQ_NONE, 0);
			}
			jobq_archive(&job, STATE_CANCELLED, DT_NOBEGIN, false, (Datum) 0,
						 "cleared");
			return true;
		}
		if (jobq_job_runs(&job))
			return false;
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job.ctid, XLTW_Delete);
	}
}

static bool
is_of_tenant(Relation rel, HeapTuple tuple, text *tenant)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, JOB_TENANT, RelationGetDescr(rel),
									 &isnull);

	return !isnull &&
		strcmp(TextDatumGetCString(value), text_to_cstring(tenant)) == 0;
}

/*
 * clear(queue, tenant, running): cancel all jobs of the queue that wait, or those
 * of the tenant; those that run, too, or else they go on.  A handler that clears
 * its own queue goes on in any case.
 */
Datum
jobq_clear(PG_FUNCTION_ARGS)
{
	int32		queue_id;
	JobqQueue	queue;
	bool		consumer;
	text	   *tenant = PG_ARGISNULL(1) ? NULL : PG_GETARG_TEXT_PP(1);
	bool		running = !PG_ARGISNULL(2) && PG_GETARG_BOOL(2);
	int64		cleared = 0;
	int64		nids = 0;
	int64		size = 1024;
	int64	   *ids = palloc(sizeof(int64) * size);
	Relation	rel;
	ScanKeyData key;
	SysScanDesc scan;
	Snapshot	snapshot;
	HeapTuple	tuple;
	MemoryContext context;
	MemoryContext old;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	queue_id = jobq_existing_queue(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	jobq_require(JOBQ_MAY_ALL);
	PreventCommandIfReadOnly("jobq.clear()");
	consumer = jobq_queue_by_id(queue_id, &queue) != NULL &&
		queue.mode == MODE_CONSUMER;
	rel = jobq_open_jobs();
	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyInit(&key, JOB_QUEUE_ID, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	scan = systable_beginscan(rel, jobq_index(rel, JOBQ_JOB_READY), true,
							  snapshot, 1, &key);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		if (tenant != NULL && !is_of_tenant(rel, tuple, tenant))
			continue;
		if (nids == size)
		{
			size *= 2;
			ids = repalloc_huge(ids, sizeof(int64) * size);
		}
		ids[nids++] = DatumGetInt64(heap_getattr(tuple, JOB_ID,
												 RelationGetDescr(rel),
												 &isnull));
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);

	context = AllocSetContextCreate(CurrentMemoryContext, "jobq clear",
									ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	for (int64 i = 0; i < nids; i++)
	{
		if (clear_job(rel, ids[i], consumer) ||
			(running && jobq_current_of(ids[i]) == NULL &&
			 jobq_cancel_job(rel, ids[i], false)))
			cleared++;
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	pfree(ids);
	table_close(rel, NoLock);
	PG_RETURN_INT64(cleared);
}

/*
 * Run dead letters again: all that this user may, or those of the queue, of the
 * kind, of the tenant, of the batch; 0 or NULL stand for any.  Returns how many
 * there were.
 */
int64
jobq_retry_letters(int32 queue_id, text *kind, text *tenant, int64 batch_id)
{
	static const Oid types[] = {
		OIDOID, BOOLOID, INT4OID, TEXTOID, INT8OID, INT8OID, TEXTOID
	};
	static const Oid array_types[] = {INT8ARRAYOID};
	char		nulls[] = "       ";
	Datum		values[7];
	int64		last = PG_INT64_MIN;
	int64		revived = 0;
	int64		reopened = 0;
	uint64		n;
	Relation	rel;
	MemoryContext context;

	jobq_pin_queues();
	set_mine(values, JOBQ_MAY_OPERATE, queue_id);
	values[2] = Int32GetDatum(queue_id);
	values[3] = PointerGetDatum(kind);
	values[5] = Int64GetDatum(batch_id);
	values[6] = PointerGetDatum(tenant);
	if (queue_id == 0)
		nulls[2] = 'n';
	if (kind == NULL)
		nulls[3] = 'n';
	if (batch_id == 0)
		nulls[5] = 'n';
	if (tenant == NULL)
		nulls[6] = 'n';

	rel = jobq_open_jobs();
	SPI_connect();
	context = AllocSetContextCreate(CurrentMemoryContext, "jobq retry_all",
									ALLOCSET_DEFAULT_SIZES);
	do
	{
		MemoryContext old = MemoryContextSwitchTo(context);
		Datum	   *ids;
		Datum		array;

		CHECK_FOR_INTERRUPTS();
		values[4] = Int64GetDatum(last);
		n = jobq_query("SELECT id FROM jobq.failed_job f WHERE " IS_MINE
					   " AND ($3 IS NULL OR queue_id = $3)"
					   " AND ($4 IS NULL OR kind = $4)"
					   " AND (unique_key IS NULL OR " KEY_IS_FREE ")"
					   " AND ($6 IS NULL OR batch_id = $6)"
					   " AND ($7 IS NULL OR tenant = $7)"
					   " AND " CAN_BEGIN
					   " AND id > $5 ORDER BY id LIMIT " CppAsString2(LETTERS),
					   7, types, values, nulls, SPI_OK_SELECT);
		ids = MemoryContextAlloc(context, sizeof(Datum) * (n + 1));
		for (uint64 i = 0; i < n; i++)
		{
			last = DatumGetInt64(jobq_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, INT8OID, NULL));
			ids[i] = Int64GetDatum(last);
		}
		SPI_freetuptable(SPI_tuptable);

		/* one that somebody else retries or forgets is not returned */
		array = PointerGetDatum(construct_array(ids, n, INT8OID, 8,
												FLOAT8PASSBYVAL,
												TYPALIGN_DOUBLE));
		if (n > 0 &&
			jobq_query("DELETE FROM jobq.failed_job WHERE id = ANY ($1)"
					   RETURNING_JOB, 1, array_types, &array, NULL,
					   SPI_OK_DELETE_RETURNING) > 0)
		{
			SPITupleTable *letters = SPI_tuptable;

			for (uint64 i = 0; i < letters->numvals; i++)
				if (jobq_revive(rel, letters->vals[i], letters->tupdesc,
								&reopened))
					revived++;
			SPI_freetuptable(letters);
		}
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	} while (n == LETTERS);
	SPI_finish();
	table_close(rel, NoLock);
	return revived;
}

/*
 * retry_all(queue, kind, tenant): run all dead letters again, or those of the
 * queue, of the kind, of the tenant.
 */
Datum
jobq_retry_all(PG_FUNCTION_ARGS)
{
	int32		queue_id = 0;

	jobq_require(JOBQ_MAY_ALL);
	PreventCommandIfReadOnly("jobq.retry_all()");
	if (!PG_ARGISNULL(0))
		queue_id = jobq_existing_queue(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_INT64(jobq_retry_letters(queue_id,
									   PG_ARGISNULL(1) ? NULL : PG_GETARG_TEXT_PP(1),
									   PG_ARGISNULL(2) ? NULL : PG_GETARG_TEXT_PP(2),
									   0));
}

/*
 * delete_all_failed(queue, tenant): delete all dead letters, or those of the
 * queue, of the tenant.
 */
Datum
jobq_delete_all_failed(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {OIDOID, BOOLOID, INT4OID, TEXTOID};
	char		nulls[] = "    ";
	Datum		values[4];
	int32		queue_id = 0;
	int64		n;

	jobq_require(JOBQ_MAY_ALL);
	if (PG_ARGISNULL(0))
		nulls[2] = 'n';
	else
		queue_id = jobq_existing_queue(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	set_mine(values, JOBQ_MAY_MANAGE, queue_id);
	values[2] = Int32GetDatum(queue_id);
	if (PG_ARGISNULL(1))
		nulls[3] = 'n';
	else
		values[3] = PG_GETARG_DATUM(1);
	SPI_connect();
	n = jobq_delete_and_count(DELETE_AND_COUNT("DELETE FROM jobq.failed_job WHERE " IS_MINE
											   " AND ($3 IS NULL OR queue_id = $3)"
											   " AND ($4 IS NULL OR tenant = $4)"
											   RETURNING_LETTERS),
							  4, types, values, nulls);
	SPI_finish();
	PG_RETURN_INT64(n);
}

/*
 * prune(older_than, failed_older_than): delete finished jobs, and dead letters,
 * that are so old; null leaves them.
 */
Datum
jobq_prune(PG_FUNCTION_ARGS)
{
	static const char *const what[] = {"older_than", "failed_older_than"};
	static const char *const queries[] = {
		DELETE_AND_COUNT("DELETE FROM jobq.archive WHERE " IS_MINE
						 " AND finished_at < $3" RETURNING_FINISHED),
		DELETE_AND_COUNT("DELETE FROM jobq.failed_job WHERE " IS_MINE
						 " AND finished_at < $3" RETURNING_LETTERS)
	};
	static const Oid types[] = {OIDOID, BOOLOID, TIMESTAMPTZOID};
	TimestampTz now = jobq_now();
	Datum		values[3];
	int64		n = 0;

	jobq_require_all(JOBQ_MAY_MANAGE, "prune finished jobs");
	set_mine(values, JOBQ_MAY_MANAGE, 0);

	/* before the snapshot, so that no day gets its partition meanwhile */
	LockRelationOid(jobq_relations()->archive, RowExclusiveLock);
	(void) find_all_inheritors(jobq_relations()->archive, RowExclusiveLock,
							   NULL);
	SPI_connect();
	for (int i = 0; i < 2; i++)
	{
		int64		ms;

		if (PG_ARGISNULL(i))
			continue;
		ms = jobq_interval_ms(PG_GETARG_INTERVAL_P(i), what[i], 0, JOBQ_MAX_DELAY_MS);
		values[2] = TimestampTzGetDatum(now - ms * 1000);
		n += jobq_delete_and_count(queries[i], 3, types, values, NULL);
	}
	SPI_finish();
	PG_RETURN_INT64(n);
}

/*
 * batch_retry_failed(batch_id): how many jobs run again.
 */
Datum
jobq_batch_retry_failed(PG_FUNCTION_ARGS)
{
	int64		id = PG_GETARG_INT64(0);

	PreventCommandIfReadOnly("jobq.batch_retry_failed()");
	jobq_batch_check_retry(id);
	PG_RETURN_INT64(jobq_retry_letters(0, NULL, NULL, id));
}
