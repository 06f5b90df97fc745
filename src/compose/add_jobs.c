/*-------------------------------------------------------------------------
 *
 * add_jobs.c
 *	  add_jobs(), and the lock under which jobs are added to a batch.
 *
 * A transaction that adds a job takes a weak lock on the batch's row, so that the batch
 * cannot end before the transaction commits.  A job of the batch can add jobs without the
 * lock, because the batch cannot end while the job is live.
 *
 * src/compose/add_jobs.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/snapmgr.h"

#include "compose/inner.h"
#include "attempt/attempt.h"
#include "commit/commit.h"
#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_add_jobs);

/*
 * Return true if this process runs a job of the batch, and the job's row keeps the batch
 * from ending.  A leased job does not count: a procedure may have ended the transaction
 * that holds the job's row.
 */
static bool
runs_inside(int64 id)
{
	return jobq_current != NULL && job_batch(jobq_current->job) == id &&
		jobq_current->slot != NULL && !job_leased(jobq_current->job);
}

/*
 * Read a batch to which the current user may add jobs.  lock: as for batch_read().  ERROR
 * if the batch does not exist, is over, is being cancelled or is dormant.  Also locks the
 * table of jobs, weakly.
 */
static void
read_to_add(int64 id, BatchLock lock, BatchState *batch)
{
	jobq_lock_jobs();
	SPI_connect();
	batch_read(MAY_ACT_FOR, id, lock, batch);
	SPI_finish();
	if (batch->over)
		batch_wrong_state(id, "is over", "Create another.");
	if (batch->ending)
		batch_wrong_state(id, "is being cancelled", "Create another.");
	if (batch->dormant)
		batch_wrong_state(id, "runs where it was replicated from",
						  "Add to it there.");
}

/*
 * Read a batch to which the current user may add jobs, and keep the batch from ending
 * before the transaction commits.  Takes a share lock on the batch's row, unless this
 * process runs a job of the batch.  Returns true if it does.  ERROR if the batch does not
 * exist or accepts no jobs.  The caller must not be connected to SPI.
 */
bool
batch_open_to_add(int64 id, BatchState *batch)
{
	bool		inside = runs_inside(id);

	read_to_add(id, inside ? BATCH_NO_LOCK : BATCH_LOCK_END, batch);
	return inside;
}

/*
 * Lock the row of a batch that was started at its creation, after jobs have been added to the
 * batch.  If all of these jobs were duplicates, the batch still has no job.  Then change
 * started_at, so that the batch no longer waits for its first job (BATCH_COLUMN_STARTED_AT).
 *
 * The row is locked only here, because the two row locks conflict.  If two sessions held
 * the weaker lock, neither could get the stronger lock.
 */
static void
lock_after_adding(int64 id)
{
	static const Oid types[] = {INT8OID, TIMESTAMPTZOID};
	Datum		values[] = {Int64GetDatum(id), TimestampTzGetDatum(jobq_now())};
	Snapshot	snapshot;
	bool		has_job;
	int64		job_id;
	BatchState	batch;

	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	has_job = jobq_batch_find_live(id, PG_INT64_MAX, snapshot, &job_id);
	UnregisterSnapshot(snapshot);
	read_to_add(id, has_job ? BATCH_LOCK_END : BATCH_LOCK_ALL, &batch);
	if (has_job || !batch.expects)
		return;
	SPI_connect();
	jobq_query("UPDATE jobq_internal.batch SET started_at = $2 WHERE id = $1", 2, types, values,
			   NULL, SPI_OK_UPDATE);
	SPI_finish();
}

/*
 * SQL function add_jobs(batch_id, kind, payloads, options).  Returns the ids of the jobs,
 * in the order of the payloads.
 */
Datum
jobq_add_jobs(PG_FUNCTION_ARGS)
{
	char	   *kind = jobq_kind_from_arg(fcinfo, 1);
	Datum		options[NOPTIONS];
	bool		nulls[NOPTIONS];
	bool		inside;
	bool		locks_later = false;
	ArrayType  *payloads;
	int64		id;
	BatchState	batch;
	JobqJob		job;
	JobqUnique	unique;

	jobq_not_null(fcinfo, 0, "batch_id");
	jobq_not_null(fcinfo, 2, "payloads");
	id = PG_GETARG_INT64(0);
	payloads = PG_GETARG_ARRAYTYPE_P(2);
	jobq_options_from_arg(fcinfo, 3, options, nulls);
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	if (!runs_inside(id) &&
		(ArrayGetNItems(ARR_NDIM(payloads), ARR_DIMS(payloads)) == 0 ||
		 !nulls[OPTION_UNIQUE_KEY] || !nulls[OPTION_UNIQUE_BY] || !nulls[OPTION_UUID]))
	{
		read_to_add(id, BATCH_NO_LOCK, &batch);
		locks_later = batch.expects;
	}
	inside = !locks_later && batch_open_to_add(id, &batch);
	batch_check_begun(id, &batch);
	jobq_prepare_job(&job, &unique, kind, options, nulls);
	JOB_SET(&job, JOB_BATCH_ID, Int64GetDatum(id));
	if (batch.state == BATCH_PENDING)
		jobq_job_block(&job, options, nulls);
	else if (!inside)
		jobq_at_commit_batch(id, 0, false);
	jobq_put_jobs(fcinfo, &job, &unique, payloads);
	if (locks_later)
		lock_after_adding(id);
	return (Datum) 0;
}
