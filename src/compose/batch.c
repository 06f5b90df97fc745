/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  Batches: create_batch(), start_batch(), cancel_batch().
 *
 * A batch is a row of jobq_internal.batch, and the jobs that name the row.  The functions
 * here are called by users.  The scheduler reacts to the ends of jobs
 * (worker/scheduler/batches.c).
 *
 * src/compose/batch.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compose/inner.h"
#include "attempt/attempt.h"
#include "commit/commit.h"
#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_create_batch);
PG_FUNCTION_INFO_V1(jobq_start_batch);
PG_FUNCTION_INFO_V1(jobq_cancel_batch);

#define MAX_BATCH_NAME	200

const char *const callback_names[NCALLBACKS] = {"on_success", "on_failure", "on_finish"};

static bool
may_with(int privilege, Oid role)
{
	return privilege == MAY_ACT_FOR ? jobq_may_act_for(role)
		: jobq_may(privilege, role, 0);
}

/*
 * Read a batch, and lock its row.  privilege: required for the batch's role, or MAY_ACT_FOR.
 * ERROR if the batch does not exist or the user lacks the privilege.  The caller must be
 * connected to SPI.
 */
void
batch_read(int privilege, int64 id, BatchLock lock, BatchState *batch)
{
#define READ_BATCH \
	"SELECT role::oid, state, finished_at IS NOT NULL," \
	" state = 'x' OR state = 'f' AND NOT allow_failures OR dropped, dormant, has_steps," \
	" coalesce(parent, 0), coalesce(parent_job, 0)," \
	" state = 'r' AND coalesce(started_at = created_at, false)" \
	" FROM jobq_internal.batch WHERE id = $1"
	static const char *const queries[] = {
		[BATCH_NO_LOCK] = READ_BATCH,
		[BATCH_LOCK_END] = READ_BATCH " FOR SHARE",
		[BATCH_LOCK_ALL] = READ_BATCH " FOR NO KEY UPDATE",
	};
	static SPIPlanPtr plans[lengthof(queries)] = {NULL};
	static const Oid types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};
	HeapTuple	tuple = NULL;
	TupleDesc	desc = NULL;

	if (jobq_query_kept(&plans[lock], queries[lock], 1, types, values, NULL, SPI_OK_SELECT) > 0)
	{
		tuple = SPI_tuptable->vals[0];
		desc = SPI_tuptable->tupdesc;
	}
	if (tuple == NULL ||
		!may_with(privilege,
				  DatumGetObjectId(jobq_column(tuple, desc, 1, OIDOID, NULL))))
		jobq_no_such_batch(id);
	batch->role = DatumGetObjectId(jobq_column(tuple, desc, 1, OIDOID, NULL));
	batch->state = DatumGetChar(jobq_column(tuple, desc, 2, CHAROID, NULL));
	batch->over = DatumGetBool(jobq_column(tuple, desc, 3, BOOLOID, NULL));
	batch->ending = DatumGetBool(jobq_column(tuple, desc, 4, BOOLOID, NULL));
	batch->dormant = DatumGetBool(jobq_column(tuple, desc, 5, BOOLOID, NULL));
	batch->has_steps = DatumGetBool(jobq_column(tuple, desc, 6, BOOLOID, NULL));
	batch->parent = DatumGetInt64(jobq_column(tuple, desc, 7, INT8OID, NULL));
	batch->parent_job = DatumGetInt64(jobq_column(tuple, desc, 8, INT8OID, NULL));
	batch->expects = DatumGetBool(jobq_column(tuple, desc, 9, BOOLOID, NULL));
}

/*
 * Raise the ERROR for a missing batch, or a batch of another role.  The message is the same
 * in both cases.
 */
void
jobq_no_such_batch(int64 id)
{
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_NO_SUCH_JOB),
			 errmsg("batch " INT64_FORMAT " does not exist", id),
			 errhint("It may be another role's, or finished and removed by retention.")));
}

/*
 * Raise an ERROR, because the batch does not allow the operation in its present state.
 * state: completes the message "batch N ...".
 */
void
batch_wrong_state(int64 id, const char *state, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_WRONG_STATE),
			 errmsg("batch " INT64_FORMAT " %s", id, state),
			 errhint("%s", hint)));
}

/*
 * ERROR if the batch is a nested workflow that has not begun.  Jobs cannot be added to this
 * batch, and users cannot start it.  The scheduler starts the workflow when its step's
 * needs are completed, or start_batch() of the outer batch does.  Only steps are freed
 * then.
 */
void
batch_check_begun(int64 id, const BatchState *batch)
{
	if (batch->state == BATCH_PENDING && batch->parent != 0)
		batch_wrong_state(id, psprintf("waits for batch " INT64_FORMAT ", of which it is a part", batch->parent),
						  "It begins there. Until then, only steps can be added to it, with jobq.add_steps().");
}

/*
 * Check the description of a callback.  Returns the description to be stored.  ERROR if the
 * current user could not enqueue the described job.
 */
static Datum
check_callback(Datum json, const char *what)
{
	JobqSpec	spec;
	JobqJob		job;
	JobqUnique	unique;

	jobq_spec_parse(DatumGetJsonbP(json), what, NULL, false, &spec);
	jobq_spec_prepare(&spec, &job, &unique);
	return JsonbPGetDatum(jobq_spec_kept(DatumGetJsonbP(json), &spec, &job));
}

/*
 * Insert a batch owned by the current user, and return the batch's id.  Takes a weak lock on the
 * table of jobs.  ERROR if the user may not produce, the name has an invalid length, or a callback
 * is invalid.  Cannot be used in read-only or parallel mode.
 */
int64
batch_insert(const NewBatch *batch)
{
	JobqBatchRow row = {0};
	int64		id;

	jobq_require(JOBQ_MAY_PRODUCE_OPEN | JOBQ_MAY_PRODUCE);
	PreventCommandIfReadOnly("jobq.create_batch()");
	PreventCommandIfParallelMode("jobq.create_batch()");
	if (batch->name != (Datum) 0)
	{
		Size		length = VARSIZE_ANY_EXHDR(DatumGetPointer(batch->name));

		if (length < 1 || length > MAX_BATCH_NAME)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("name of %zu bytes must have 1 to %d bytes", length,
							MAX_BATCH_NAME)));
	}
	for (int i = 0; i < NCALLBACKS; i++)
	{
		row.nulls[BATCH_COLUMN_ON_SUCCESS - 1 + i] = batch->no_callbacks[i];
		if (!batch->no_callbacks[i])
			row.values[BATCH_COLUMN_ON_SUCCESS - 1 + i] = check_callback(batch->callbacks[i],
																		 callback_names[i]);
	}
	id = nextval_internal(jobq_relations()->batch_seq, false);
	BATCH_SET(&row, ID, Int64GetDatum(id));
	BATCH_SET(&row, CREATED_AT, TimestampTzGetDatum(jobq_now()));
	BATCH_SET(&row, STARTED_AT, BATCH_VALUE(&row, CREATED_AT));
	BATCH_ISNULL(&row, STARTED_AT) = !batch->started;
	BATCH_ISNULL(&row, FINISHED_AT) = true;
	BATCH_SET(&row, ROLE, ObjectIdGetDatum(GetUserId()));
	BATCH_SET(&row, STATE, CharGetDatum(batch->started ? BATCH_RUNNING : BATCH_PENDING));
	BATCH_SET(&row, ALLOW_FAILURES, BoolGetDatum(batch->allow_failures));
	BATCH_SET(&row, HAS_STEPS, BoolGetDatum(batch->has_steps));
	BATCH_SET(&row, NAME, batch->name);
	BATCH_ISNULL(&row, NAME) = batch->name == (Datum) 0;
	BATCH_ISNULL(&row, LAST_ERROR) = true;
	BATCH_SET(&row, PARENT, Int64GetDatum(batch->parent));
	BATCH_ISNULL(&row, PARENT) = batch->parent == 0;
	BATCH_SET(&row, PARENT_JOB, Int64GetDatum(batch->parent_job));
	BATCH_ISNULL(&row, PARENT_JOB) = batch->parent_job == 0;
	jobq_lock_jobs();
	jobq_batch_put(&row);
	if (batch->started)
		jobq_at_commit_batch(id, 0, false);
	return id;
}

/*
 * SQL function create_batch(name, on_success, on_failure, on_finish, allow_failures,
 * start).
 */
Datum
jobq_create_batch(PG_FUNCTION_ARGS)
{
	NewBatch	batch = {0};

	jobq_not_null(fcinfo, 4, "allow_failures");
	jobq_not_null(fcinfo, 5, "start");
	if (!PG_ARGISNULL(0))
		batch.name = PointerGetDatum(PG_GETARG_TEXT_PP(0));
	for (int i = 0; i < NCALLBACKS; i++)
	{
		batch.no_callbacks[i] = PG_ARGISNULL(1 + i);
		if (!batch.no_callbacks[i])
			batch.callbacks[i] = PG_GETARG_DATUM(1 + i);
	}
	batch.allow_failures = PG_GETARG_BOOL(4);
	batch.started = PG_GETARG_BOOL(5);
	PG_RETURN_INT64(batch_insert(&batch));
}

/*
 * Free all blocked jobs of the batch, except jobs that represent nested workflows.  Waits
 * for other transactions changing these jobs.
 */
static void
free_jobs(int64 batch_id)
{
	Relation	rel = jobq_open_jobs();
	Relation	index = jobq_open_index(rel, JOBQ_JOB_BATCH);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "jobq batch",
												  ALLOCSET_DEFAULT_SIZES);
	ScanKeyData key;
	SysScanDesc scan;
	Snapshot	snapshot;
	HeapTuple	tuple;

	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyInit(&key, JOB_BATCH_ID, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(batch_id));
	scan = systable_beginscan_ordered(rel, index, snapshot, 1, &key);
	while ((tuple = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(context);
		JobqJob		job;

		CHECK_FOR_INTERRUPTS();
		jobq_job_from_tuple(rel, tuple, &job);
		while (job_blocked(&job) && !jobq_job_is_workflow(&job))
		{
			TransactionId blocker;
			Snapshot	now;
			bool		found;

			if (jobq_job_delete_or_blocker(rel, &job, &blocker))
			{
				jobq_job_push_if_undone(&job);
				jobq_job_free(rel, &job);
				break;
			}

			/*
			 * Another session cancels the job or changes its priority.  The
			 * session may belong to another role that may add to the batch.
			 */
			if (TransactionIdIsValid(blocker))
				XactLockTableWait(blocker, rel, &job.ctid, XLTW_Delete);
			CommandCounterIncrement();
			now = RegisterSnapshot(GetLatestSnapshot());
			found = jobq_job_find(rel, job_id(&job), now, &job);
			UnregisterSnapshot(now);
			if (!found)
				break;
		}
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	systable_endscan_ordered(scan);
	UnregisterSnapshot(snapshot);
	MemoryContextDelete(context);
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

/*
 * Start the pending workflows within the batch.  The query must also see workflows added
 * since the transaction's snapshot, because no other code starts them.
 */
static void
start_nested(int64 batch_id)
{
	static const Oid types[] = {INT8OID, TIMESTAMPTZOID};
	Datum		values[] = {Int64GetDatum(batch_id), TimestampTzGetDatum(jobq_now())};
	uint64		n;

	SPI_connect();
	n = jobq_query_latest("UPDATE jobq_internal.batch" BATCH_STARTS("$2") "parent = $1 RETURNING id",
						  2, types, values, SPI_OK_UPDATE_RETURNING);
	for (uint64 i = 0; i < n; i++)
	{
		int64		id = DatumGetInt64(jobq_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, INT8OID, NULL));

		jobq_at_commit_batch(id, 0, false);
		jobq_batch_changed(id, "running", false);
	}
	SPI_finish();
}

/*
 * SQL function start_batch(batch_id).
 */
Datum
jobq_start_batch(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {INT8OID, TIMESTAMPTZOID};
	int64		id = PG_GETARG_INT64(0);
	Datum		values[] = {Int64GetDatum(id), TimestampTzGetDatum(jobq_now())};
	BatchState	batch;

	PreventCommandIfReadOnly("jobq.start_batch()");
	jobq_lock_jobs();
	SPI_connect();
	batch_read(MAY_ACT_FOR, id, BATCH_LOCK_ALL, &batch);
	if (batch.dormant)
		batch_wrong_state(id, "runs where it was replicated from",
						  "Start it there.");
	batch_check_begun(id, &batch);
	if (batch.state != BATCH_PENDING)
		batch_wrong_state(id, batch.state == BATCH_CANCELLED ? "was cancelled"
						  : "has been started already",
						  "A batch is started once.");
	jobq_query("UPDATE jobq_internal.batch" BATCH_STARTS("$2") "id = $1",
			   2, types, values, NULL, SPI_OK_UPDATE);
	SPI_finish();
	start_nested(id);
	free_jobs(id);
	jobq_at_commit_batch(id, 0, false);
	jobq_batch_changed(id, "running", false);
	PG_RETURN_VOID();
}

/*
 * Cancel the remaining jobs of a batch: set its state, and wake the scheduler at commit.
 * Returns false if the batch was over.  ERROR if the batch does not exist, the current user
 * may not operate on the batch, or the batch is dormant.  Locks the batch's row.  The
 * caller must not be connected to SPI.
 */
bool
jobq_batch_cancel_open(int64 id)
{
	static const Oid types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};
	BatchState	batch;

	jobq_lock_jobs();
	SPI_connect();
	batch_read(JOBQ_MAY_OPERATE, id, BATCH_LOCK_ALL, &batch);
	if (batch.dormant && !batch.over)
		batch_wrong_state(id, "runs where it was replicated from",
						  "Cancel it there.");
	if (!batch.over)
		jobq_query("UPDATE jobq_internal.batch" BATCH_CANCELS "id = $1",
				   1, types, values, NULL, SPI_OK_UPDATE);
	SPI_finish();
	if (!batch.over)
	{
		jobq_at_commit_batch(id, 0, false);
		jobq_batch_changed(id, "cancelling", false);
	}
	return !batch.over;
}

/*
 * SQL function cancel_batch(batch_id).  Returns false if the batch was over.
 */
Datum
jobq_cancel_batch(PG_FUNCTION_ARGS)
{
	bool		cancelled;

	PreventCommandIfReadOnly("jobq.cancel_batch()");
	cancelled = jobq_batch_cancel_open(PG_GETARG_INT64(0));
	if (cancelled)
		jobq_audit(fcinfo, -1);
	PG_RETURN_BOOL(cancelled);
}

/*
 * Reopen a batch after a dead letter of the batch became a job again.  Returns false if the
 * batch was cancelled or does not exist.  A cancelled batch stays cancelled.  Locks the
 * batch's row.  The caller must not be connected to SPI.
 */
bool
jobq_batch_reopen(int64 batch_id)
{
	static const Oid types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(batch_id)};
	bool		runs;

	SPI_connect();

	/* the scheduler does not see the job yet, and must not end the batch */
	runs = jobq_query("SELECT FROM jobq_internal.batch WHERE id = $1 AND state <> 'x' FOR NO KEY UPDATE",
					  1, types, values, NULL, SPI_OK_SELECT) > 0;
	if (jobq_query("UPDATE jobq_internal.batch SET state = 'r', finished_at = NULL,"
				   " dropped = dropped AND finished_at IS NULL, reopened = true WHERE id = $1 AND state IN ('f', 'c')",
				   1, types, values, NULL, SPI_OK_UPDATE) > 0)
		jobq_batch_changed(batch_id, "running", false);
	SPI_finish();
	jobq_at_commit_batch(batch_id, 0, false);
	return runs;
}

/*
 * After commit, notify listeners of the new state of the batch.  If the batch is over, also
 * wake the sessions that wait for the batch.  The list of waiting sessions contains a batch
 * as its negated id.
 */
void
jobq_batch_changed(int64 batch_id, const char *state, bool over)
{
	char		channel[NAMEDATALEN];
	char		payload[96];

	snprintf(channel, sizeof(channel), "jobq_batch_" INT64_FORMAT, batch_id);
	snprintf(payload, sizeof(payload), "{\"id\": " INT64_FORMAT ", \"state\": \"%s\"}",
			 batch_id, state);
	jobq_relay(channel, payload, false);
	if (over)
		jobq_at_commit_wake(-batch_id);
}

/*
 * ERROR if the batch does not exist, or the current user may not monitor the batch.  Takes
 * no row lock.  The caller must be connected to SPI.
 */
void
jobq_batch_check_visible(int64 id)
{
	BatchState	batch;

	batch_read(JOBQ_MAY_MONITOR, id, BATCH_NO_LOCK, &batch);
}

/*
 * Lock the dead letters of the batch and of all nested batches.  Call this function before
 * locking the batch's row.  A session that retries or deletes a dead letter locks the dead
 * letter first and then the batch's row, so the opposite order could deadlock.  Innermost
 * batches come first, as in such a session.  The caller must be connected to SPI.
 */
void
batch_lock_letters(int64 id)
{
	static const Oid types[] = {INT8OID};
	Datum		value = Int64GetDatum(id);

	(void) jobq_query("WITH RECURSIVE inside AS (SELECT 0 AS level, $1 AS id UNION ALL"
					  "  SELECT i.level + 1, b.id FROM inside i JOIN jobq_internal.batch b ON b.parent = i.id"
					  "  WHERE i.level < 100)"
					  " SELECT pg_catalog.count(*) FROM (SELECT FROM inside i"
					  "  JOIN jobq_internal.dead_letter f ON f.batch_id = i.id"
					  "  ORDER BY i.level DESC, f.id FOR UPDATE OF f) l",
					  1, types, &value, NULL, SPI_OK_SELECT);
}

/*
 * Lock the batch and its dead letters for a retry of all of these.  ERROR if the batch does
 * not exist, the current user may not operate on the batch, or the batch is dormant or
 * cancelled.  The caller must not be connected to SPI.
 */
void
jobq_batch_check_retry(int64 id)
{
	BatchState	batch;

	jobq_lock_jobs();
	SPI_connect();
	batch_read(JOBQ_MAY_OPERATE, id, BATCH_NO_LOCK, &batch);
	batch_lock_letters(id);
	batch_read(JOBQ_MAY_OPERATE, id, BATCH_LOCK_ALL, &batch);
	SPI_finish();
	if (batch.dormant)
		batch_wrong_state(id, "runs where it was replicated from",
						  "Run its jobs again there.");
	if (batch.state == BATCH_CANCELLED)
		batch_wrong_state(id, "was cancelled",
						  "Its dead letters can be retried by their ids, with jobq.retry() or jobq.retry_many().");
}
