/*-------------------------------------------------------------------------
 *
 * batch_read.c
 *	  What the tables say about a batch: its row, its live jobs, and how its jobs have ended.
 *
 * worker/scheduler/batch_read.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/batch.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

/* Attempts to read and lock a row under concurrent changes. */
#define MAX_TRIES		3

/*
 * Ends of jobs are searched for only since the creation of the batch, because the
 * archive grows with each day of retention.  The search starts earlier by this much
 * (microseconds), because the clock may have been put back.
 */
#define CLOCK_SLACK		USECS_PER_DAY

/* By how much the clock was put back in total since the start of the scheduler. */
static int64 put_back = 0;

/*
 * The clock was put back by "by" microseconds.
 */
void
batch_clock_put_back(int64 by)
{
	put_back += by;
}

/*
 * True if the batch of this row may be evaluated: the batch is neither finished nor dormant, and
 * was started or is part of another batch.
 */
static bool
is_unfinished(const JobqBatchRow *row)
{
	return BATCH_ISNULL(row, FINISHED_AT) && !DatumGetBool(BATCH_VALUE(row, DORMANT)) &&
		(DatumGetChar(BATCH_VALUE(row, STATE)) != BATCH_PENDING || !BATCH_ISNULL(row, PARENT));
}

/*
 * Read the unfinished batch.  With "lock", also lock the row; the row must then have
 * been read before without a lock.  Returns false if the batch is finished, dormant or
 * gone, or its row is locked by another session.
 */
bool
batch_read_row(int64 id, bool lock, Batch *batch)
{
	JobqBatchRow *row = &batch->row;
	JobqRowLock locked = JOBQ_ROW_LOCKED;

	for (int tries = 1; tries <= MAX_TRIES; tries++)
	{
		if (!lock || tries > 1)
		{
			Snapshot	snapshot;
			bool		found;

			CommandCounterIncrement();
			snapshot = RegisterSnapshot(GetLatestSnapshot());
			found = jobq_batch_fetch(id, snapshot, row);
			UnregisterSnapshot(snapshot);
			if (!found)
				return false;
		}
		if (!is_unfinished(row))
			return false;
		locked = lock ? jobq_batch_lock(row) : JOBQ_ROW_LOCKED;
		if (locked != JOBQ_ROW_CHANGED)
			break;
	}
	if (locked != JOBQ_ROW_LOCKED)
		return false;
	batch->state = DatumGetChar(BATCH_VALUE(row, STATE));
	batch->allow_failures = DatumGetBool(BATCH_VALUE(row, ALLOW_FAILURES));
	batch->has_steps = DatumGetBool(BATCH_VALUE(row, HAS_STEPS));
	batch->reopened = DatumGetBool(BATCH_VALUE(row, REOPENED));
	batch->role = DatumGetObjectId(BATCH_VALUE(row, ROLE));
	batch->name = BATCH_ISNULL(row, NAME) ? NULL
		: TextDatumGetCString(BATCH_VALUE(row, NAME));
	batch->expects = !BATCH_ISNULL(row, STARTED_AT) &&
		DatumGetTimestampTz(BATCH_VALUE(row, STARTED_AT)) ==
		DatumGetTimestampTz(BATCH_VALUE(row, CREATED_AT));
	batch->dropped = DatumGetBool(BATCH_VALUE(row, DROPPED));
	batch->parent_job = BATCH_ISNULL(row, PARENT_JOB) ? 0
		: DatumGetInt64(BATCH_VALUE(row, PARENT_JOB));
	batch->version = row->version;
	return true;
}

/*
 * True if the batch runs, and nested workflows may have been dropped from it before.
 * This needs a reopened batch, a batch that runs again as part of another batch, or a
 * failed attempt to enqueue on_failure.
 */
bool
batch_may_have_dropped(const Batch *batch)
{
	return batch->state == BATCH_RUNNING && !batch->dropped &&
		(batch->reopened || (batch->has_steps && batch->parent_job != 0) ||
		 !BATCH_ISNULL(&batch->row, LAST_ERROR));
}

/*
 * Return a time before the first end of a job of the batch.  DT_NOBEGIN if the time of creation
 * is no guide: after the clock was put back far, or for a batch from a publisher, because the
 * publisher has a different clock.
 */
static TimestampTz
ends_since(const Batch *batch)
{
	const JobqBatchRow *row = &batch->row;
	TimestampTz created_at = DatumGetTimestampTz(BATCH_VALUE(row, CREATED_AT));

	if (put_back > CLOCK_SLACK / 2 || created_at > jobq_now() ||
		DatumGetBool(BATCH_VALUE(row, ADOPTED)))
		return DT_NOBEGIN;
	return created_at - CLOCK_SLACK;
}

/*
 * True if a job of the batch is dead or expired, and is not an optional step.
 *
 * A job without a row in the tables of jobs is counted in the row of the batch.  If this job was an
 * optional step, its state is in jobq_internal.step.  The batch has therefore failed if more jobs
 * are counted as dead or expired than there are such optional steps.  batch_has_cancelled()
 * compares in the same way.
 */
static bool
step_is_lost(int64 id)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {Int64GetDatum(id)};

	return jobq_query_kept(&plan, "SELECT WHERE EXISTS (SELECT FROM jobq_internal.dead_letter f WHERE batch_id = $1"
						   "  AND NOT EXISTS (SELECT FROM jobq_internal.step s WHERE s.job_id = f.id AND s.optional))"
						   " OR EXISTS (SELECT FROM jobq_internal.archive a WHERE batch_id = $1 AND state = 'e'"
						   "  AND NOT EXISTS (SELECT FROM jobq_internal.step s WHERE s.job_id = a.id AND s.optional))"
						   " OR EXISTS (SELECT FROM jobq_internal.batch WHERE id = $1 AND dead + expired > 0"
						   "  AND dead + expired > (SELECT pg_catalog.count(*) FROM jobq_internal.step s"
						   "   WHERE s.batch_id = $1 AND s.optional AND s.state IN ('f', 'e')"
						   "   AND NOT EXISTS (SELECT FROM jobq_internal.archive a WHERE a.id = s.job_id)))",
						   1, types, values, NULL, SPI_OK_SELECT) > 0;
}

/*
 * True if a job of the batch is dead or expired, apart from optional steps.
 */
bool
batch_has_failed(const Batch *batch)
{
	Snapshot	snapshot;
	JobqBatchRow now;
	bool		found;

	if (batch->has_steps)
		return step_is_lost(batch->id);
	if (batch->counted)
		return batch->counts.dead > 0 || batch->counts.expired > 0;

	/* jobs already deleted from these tables are counted in the row */
	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	found = jobq_batch_fetch(batch->id, snapshot, &now) &&
		(DatumGetInt64(BATCH_VALUE(&now, DEAD)) > 0 ||
		 DatumGetInt64(BATCH_VALUE(&now, EXPIRED)) > 0 ||
		 jobq_batch_has_failures(batch->id, ends_since(batch), snapshot));
	UnregisterSnapshot(snapshot);
	return found;
}

/*
 * Count the ended jobs of the batch by outcome.  Caller has locked the row, so the
 * counts in the row do not change.
 */
void
batch_count_ends(Batch *batch)
{
	const JobqBatchRow *row = &batch->row;
	Snapshot	snapshot;

	batch->counts = (JobqBatchCounts)
	{
		.completed = DatumGetInt64(BATCH_VALUE(row, COMPLETED)),
			.dead = DatumGetInt64(BATCH_VALUE(row, DEAD)),
			.cancelled = DatumGetInt64(BATCH_VALUE(row, CANCELLED)),
			.expired = DatumGetInt64(BATCH_VALUE(row, EXPIRED))
	};
	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	jobq_batch_count(batch->id, ends_since(batch), snapshot, &batch->counts);
	batch->counted = true;
	UnregisterSnapshot(snapshot);
}

/*
 * True if a job of the batch has ended.  For a batch from a publisher this is assumed,
 * because all jobs may have ended on the publisher.
 */
bool
batch_has_begun(const Batch *batch)
{
	const JobqBatchCounts *counts = &batch->counts;

	return DatumGetBool(BATCH_VALUE(&batch->row, ADOPTED)) ||
		counts->completed + counts->dead + counts->cancelled + counts->expired > 0;
}

/*
 * True if a job of the batch was cancelled, and is neither an optional step nor
 * skipped.
 */
bool
batch_has_cancelled(int64 id)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {Int64GetDatum(id)};

	return jobq_query_kept(&plan, "SELECT WHERE EXISTS (SELECT FROM jobq_internal.archive a WHERE batch_id = $1 AND state = 'x'"
						   "  AND NOT EXISTS (SELECT FROM jobq_internal.step s WHERE s.job_id = a.id AND (s.optional OR s.state = 's')))"
						   " OR EXISTS (SELECT FROM jobq_internal.batch WHERE id = $1 AND cancelled > 0"
						   "  AND cancelled > (SELECT pg_catalog.count(*) FROM jobq_internal.step s"
						   "   WHERE s.batch_id = $1 AND (s.state = 's' OR s.optional AND s.state IN ('x', 'd'))"
						   "   AND NOT EXISTS (SELECT FROM jobq_internal.archive a WHERE a.id = s.job_id)))",
						   1, types, values, NULL, SPI_OK_SELECT) > 0;
}

/*
 * Find a live job of the batch: preferably the last job up to "bound".  With this
 * order, index entries of dead rows are passed only once.  Returns false if no job is
 * live.
 */
bool
batch_witness(int64 id, int64 bound, int64 *witness)
{
	Snapshot	snapshot;
	bool		found;

	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	found = jobq_batch_find_live(id, bound, snapshot, witness) ||
		(bound < PG_INT64_MAX &&
		 jobq_batch_find_live(id, PG_INT64_MAX, snapshot, witness));
	UnregisterSnapshot(snapshot);
	return found;
}
