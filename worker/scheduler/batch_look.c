/*-------------------------------------------------------------------------
 *
 * batch_look.c
 *	  Evaluates a batch: decides whether it fails and whether it is over, and
 *	  enqueues the callbacks.  The end of a batch is also reported as an event.
 *
 * An evaluation is a transaction of the scheduler.  When to evaluate is decided in
 * batches.c.
 *
 * worker/scheduler/batch_look.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "commit/commit.h"
#include "produce/produce.h"
#include "operate/operate.h"

/* Attempts to read and lock a row under concurrent changes. */
#define MAX_TRIES		3

/* Jobs cancelled by one evaluation, at most. */
#define MAX_CANCELLED	200

/*
 * Ends of jobs are searched for only since the creation of the batch, because the
 * archive grows with each day of retention.  The search starts earlier by this much
 * (microseconds), because the clock may have been put back.
 */
#define CLOCK_SLACK		USECS_PER_DAY

/* A row of jobq_internal.batch. */
typedef struct Batch
{
	int64		id;
	char		state;
	bool		allow_failures;
	bool		has_steps;
	bool		reopened;
	bool		expects;		/* was started at its creation */
	bool		dropped;		/* the outer workflow goes on without */
	int64		parent_job;		/* its job in the outer workflow, or 0 */
	Oid			role;
	TransactionId version;		/* the row's xmin */
	char	   *name;			/* or NULL */
	char	   *error;			/* why a callback was not enqueued, or NULL */
	bool		counted;
	JobqBatchCounts counts;		/* of the jobs; valid if counted */
	JobqBatchRow row;
} Batch;

/* A callback to be enqueued now. */
typedef struct Callback
{
	Batch	   *batch;
	int			column;
	const char *what;
	const char *state;
}			Callback;

/* The sum of all steps back of the clock since the start of the scheduler. */
static int64 put_back = 0;

static bool may_begin(bool shared, Batch *batch, BatchLook *outcome);
static bool read_batch(int64 id, bool lock, Batch *batch);
static bool may_have_dropped(const Batch *batch);
static TimestampTz ends_since(const Batch *batch);
static bool has_failed(const Batch *batch);
static bool step_is_lost(int64 id);
static void count_jobs(Batch *batch);
static bool has_cancelled(int64 id);
static bool has_begun(const Batch *batch);
static bool cancel_jobs(const Batch *batch, BatchCancelled *cancelled, bool *taken);
static bool cancel_job(Relation rel, JobqJob *job, const Batch *batch);
static void enqueue_callback(Batch *batch, int column, const char *what,
							 const char *state);
static void enqueue_part(void *arg);
static bool tell_failing(Batch *batch);
static void note_owed(Batch *batch, const char *error);
static void set_state(Batch *batch, char state, bool over);

/*
 * Forget the progress of an evaluation that was rolled back.
 */
void
batch_look_failed(int64 id, BatchCancelled *cancelled)
{
	memset(cancelled, 0, sizeof(BatchCancelled));
	kept_forget(id);
}

/*
 * The clock was put back by "by" microseconds.
 */
void
batch_look_put_back(int64 by)
{
	put_back += by;
}

/*
 * Evaluate the batch in the caller's transaction.  Sets *witness to a live job, if
 * there is one; for "bound" see batch_witness().  "shared" means the transaction also
 * serves other batches.  In a shared transaction, only short work is done; otherwise
 * the result is LOOK_ALONE.
 */
BatchLook
batch_look(int64 id, const BatchNews *news, int64 bound, bool shared,
		   BatchCancelled *cancelled, int64 *witness)
{
	Batch		this = {.id = id};
	Batch	   *batch = &this;
	WorkflowLook steps = {0};
	bool		failing = false;
	bool		live;
	bool		ending;
	bool		later;
	bool		grows = workflow_grows(id, news);
	BatchLook	outcome;
	JobqJob		parent_job;
	bool		taken = false;
	bool		locked = false;
	bool		was_cancelled;

	if (!may_begin(shared, batch, &outcome))
	{
		/* the news is lost, unless the evaluation is repeated alone */
		if (outcome != LOOK_ALONE)
			kept_forget(id);
		return outcome;
	}
	if (batch->has_steps &&
		(batch->state != BATCH_RUNNING || batch->dropped ||
		 !workflow_go_on(batch->id, batch->role, batch->version, news, &steps)))
	{
		failing = batch->state == BATCH_RUNNING && !batch->reopened &&
			has_failed(batch);
		ending = batch->state == BATCH_CANCELLED || batch->dropped ||
			((batch->state == BATCH_FAILED || failing) && !batch->allow_failures);
		if (batch->state != BATCH_CANCELLED)
			workflow_advance(batch->id, batch->role, batch->version, ending,
							 grows && batch->state == BATCH_RUNNING, &steps);
	}
	if (may_have_dropped(batch) && nest_has_dropped(id) &&
		(batch->reopened || !has_failed(batch)))
		nest_go_on(id, &steps);
	jobq_injection_point("jobq-batch-reads");
	later = steps.locked;

	/*
	 * The witness has ended, so all jobs may have ended.  Lock the row now,
	 * so that one search for live jobs is enough.
	 */
	if (bound < PG_INT64_MAX && batch->state == BATCH_RUNNING && !batch->has_steps)
		locked = read_batch(batch->id, true, batch);
	if (shared && (batch->has_steps || batch->state != BATCH_RUNNING))
		return LOOK_ALONE;
	live = batch_witness(batch->id, bound, witness);

	/* a batch that ends without a live job counts its dead letters below */
	if (!batch->has_steps && live && batch->state == BATCH_RUNNING && !batch->reopened)
		failing = has_failed(batch);
	if (shared && failing)
		return LOOK_ALONE;
	if (failing || !live)
	{
		/*
		 * from now to the commit, no session adds a job or changes the state
		 */
		if (!locked)
		{
			if (!read_batch(batch->id, true, batch))
				return LOOK_LATER;
			locked = true;
			live = batch_witness(batch->id, PG_INT64_MAX, witness);
		}

		/*
		 * A step may have been retried and completed since the steps were
		 * read.  Then the steps cancelled because of its failure go on.  The
		 * step may fail again at once, so failures and counts are read
		 * afterwards.
		 */
		if (!live && batch->has_steps && batch->state == BATCH_RUNNING &&
			!batch->dropped && has_cancelled(batch->id) &&
			(batch->reopened || !has_failed(batch)))
		{
			workflow_advance(batch->id, batch->role, batch->version, false, false, &steps);
			later |= steps.locked;
			live = batch_witness(batch->id, PG_INT64_MAX, witness);
		}
		if (!live)
			count_jobs(batch);

		/*
		 * Since the first check, a job may have become a dead letter, with
		 * its dependent steps cancelled.  Or a dead letter was retried.
		 */
		failing = batch->state == BATCH_RUNNING && !batch->reopened &&
			has_failed(batch);
		if (shared && (failing || batch->has_steps || batch->state != BATCH_RUNNING))
			return LOOK_ALONE;
	}
	if (failing)
	{
		if (!batch->counted)
			count_jobs(batch);
		if (!live || batch->allow_failures)
			enqueue_callback(batch, BATCH_COLUMN_ON_FAILURE, "on_failure", "failing");
		if (!live || batch->allow_failures || tell_failing(batch))
		{
			batch->state = BATCH_FAILED;
			set_state(batch, BATCH_FAILED, false);
		}
	}
	ending = batch->state == BATCH_CANCELLED || batch->dropped ||
		((batch->state == BATCH_FAILED || failing) && !batch->allow_failures);
	if (live && steps.more)
		return LOOK_AGAIN;
	if (live && ending && !locked)
	{
		char		state = batch->state;
		bool		dropped = batch->dropped;

		/* if a dead letter was retried meanwhile, no job is cancelled */
		if (!read_batch(batch->id, true, batch))
			return LOOK_LATER;
		if (batch->state != state || batch->dropped != dropped)
			return LOOK_AGAIN;
	}
	if (live && ending && cancel_jobs(batch, cancelled, &later))
		return LOOK_AGAIN;
	if (live && (ending || steps.blocked) &&
		!batch_witness(batch->id, PG_INT64_MAX, witness))
		return LOOK_AGAIN;
	if (later)
		return LOOK_LATER;
	if (live)
		return ending || steps.blocked || workflow_is_kept(id) ? LOOK_EACH : LOOK_WITNESS;
	kept_forget(id);

	/* a batch started at its creation does not end before a job has ended */
	if (batch->state == BATCH_RUNNING && batch->expects && !has_begun(batch))
		return LOOK_EACH;
	if (batch->parent_job != 0 && !nest_take(batch->parent_job, &parent_job, &taken))
		return LOOK_LATER;
	was_cancelled = batch->state == BATCH_CANCELLED;
	if (batch->state == BATCH_PENDING)
		batch->state = BATCH_CANCELLED;
	if (batch->state == BATCH_RUNNING)
	{
		if (batch->reopened && has_failed(batch))
		{
			batch->state = BATCH_FAILED;
			enqueue_callback(batch, BATCH_COLUMN_ON_FAILURE, "on_failure", "failed");
		}
		else if (batch->has_steps && has_cancelled(batch->id))
			batch->state = BATCH_CANCELLED;
		else
		{
			batch->state = BATCH_COMPLETED;
			enqueue_callback(batch, BATCH_COLUMN_ON_SUCCESS, "on_success",
							 "completed");
		}
	}
	enqueue_callback(batch, BATCH_COLUMN_ON_FINISH, "on_finish",
					 batch->state == BATCH_COMPLETED ? "completed"
					 : batch->state == BATCH_FAILED ? "failed" : "cancelled");
	set_state(batch, batch->state, true);
	/* a dropped batch goes on if the outer batch is retried */
	if (taken)
		nest_end(batch->id, batch->state, batch->dropped && !was_cancelled, &parent_job);
	callback_event(batch->id, batch->name, batch->role, batch->state, &batch->counts);
	return LOOK_OVER;
}

/*
 * Lock the workflow, and read the batch with the id batch->id.  Returns false if the
 * evaluation ends here, with this outcome.
 */
static bool
may_begin(bool shared, Batch *batch, BatchLook *outcome)
{
	*outcome = LOOK_LATER;

	/* no ended step changes until the evaluation has committed */
	if (!jobq_workflow_try_lock(batch->id))
		return false;
	*outcome = LOOK_OVER;
	if (!read_batch(batch->id, false, batch))
		return false;
	*outcome = LOOK_EACH;
	if (jobq_batch_is_held(batch->id))
		return false;
	*outcome = LOOK_ALONE;
	if (shared && (batch->has_steps || batch->state != BATCH_RUNNING || batch->reopened))
		return false;
	*outcome = LOOK_LATER;
	if (batch->parent_job != 0 && !batch->dropped &&
		(!batch->reopened || batch->state == BATCH_PENDING) &&
		!nest_drop_if_lost(batch->id, batch->parent_job, &batch->dropped))
		return false;
	if (batch->dropped && !read_batch(batch->id, false, batch))
		return false;
	*outcome = LOOK_OVER;
	return batch->state != BATCH_PENDING || batch->dropped;
}

/*
 * Read the unfinished batch.  With "lock", also lock the row; the row must then have
 * been read before without a lock.  Returns false if the batch is finished, dormant or
 * gone, or its row is locked by another session.
 */
static bool
read_batch(int64 id, bool lock, Batch *batch)
{
	JobqBatchRow *row = &batch->row;
	Snapshot	snapshot;
	bool		found = lock;
	bool		again;

	for (int tries = 1;; tries++)
	{
		JobqRowLock locked = JOBQ_ROW_LOCKED;

		if (!lock || tries > 1)
		{
			CommandCounterIncrement();
			snapshot = RegisterSnapshot(GetLatestSnapshot());
			found = jobq_batch_fetch(id, snapshot, row) &&
				BATCH_ISNULL(row, FINISHED_AT) && !DatumGetBool(BATCH_VALUE(row, DORMANT)) &&
				(DatumGetChar(BATCH_VALUE(row, STATE)) != BATCH_PENDING ||
				 !BATCH_ISNULL(row, PARENT));
			UnregisterSnapshot(snapshot);
		}
		if (found && lock)
			locked = jobq_batch_lock(row);
		again = locked == JOBQ_ROW_CHANGED && tries < MAX_TRIES;
		found &= locked == JOBQ_ROW_LOCKED;
		if (!again)
			break;
	}
	if (!found)
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
static bool
may_have_dropped(const Batch *batch)
{
	return batch->state == BATCH_RUNNING && !batch->dropped &&
		(batch->reopened || (batch->has_steps && batch->parent_job != 0) ||
		 !BATCH_ISNULL(&batch->row, LAST_ERROR));
}

/*
 * Return a time before the first end of a job of the batch.  DT_NOBEGIN if the clock is
 * no guide: after large steps back, or for a batch from a publisher, because the
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
 */
static bool
has_failed(const Batch *batch)
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
 * Count the ended jobs of the batch by outcome.  Caller has locked the row, so the
 * counts in the row do not change.
 */
static void
count_jobs(Batch *batch)
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
static bool
has_begun(const Batch *batch)
{
	const JobqBatchCounts *counts = &batch->counts;

	return DatumGetBool(BATCH_VALUE(&batch->row, ADOPTED)) ||
		counts->completed + counts->dead + counts->cancelled + counts->expired > 0;
}

/*
 * True if a job of the batch was cancelled, and is neither an optional step nor
 * skipped.
 */
static bool
has_cancelled(int64 id)
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

/*
 * Cancel some of the remaining jobs of the batch, as far as time allows.  Continues
 * where the last evaluation stopped.  Returns true if more jobs are left.  Sets *taken
 * if some jobs must be tried again later.  Caller has locked the batch, so no job of
 * the batch is retried meanwhile.
 *
 * If the batch was cancelled, running jobs are asked to stop.  After a failure, a
 * running job may finish, but gets no further attempt: it then waits, and is cancelled
 * here.
 */
static bool
cancel_jobs(const Batch *batch, BatchCancelled *cancelled, bool *taken)
{
	Relation	rel = jobq_open_jobs();
	Relation	index = jobq_open_index(rel, JOBQ_JOB_BATCH);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	int64		passed = share_passed();
	int			n = 0;
	bool		full = false;

	if (cancelled->to == 0)
		memset(cancelled, 0, sizeof(BatchCancelled));
	ScanKeyInit(&keys[0], JOB_BATCH_ID, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(batch->id));
	ScanKeyInit(&keys[1], JOB_ID, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(cancelled->to));
	scan = systable_beginscan_ordered(rel, index, snapshot, 2, keys);
	while (!full &&
		   (tuple = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
	{
		JobqJob		job;

		jobq_job_from_tuple(rel, tuple, &job);
		if (!cancel_job(rel, &job, batch))
			cancelled->again = true;
		cancelled->to = job_id(&job);
		full = ++n == MAX_CANCELLED || share_over_from(passed);
	}
	systable_endscan_ordered(scan);
	UnregisterSnapshot(snapshot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	*taken |= cancelled->again;
	if (!full)
		cancelled->to = 0;		/* start again at the first job next time */
	return full || cancelled->changed;
}

/*
 * Cancel the job without waiting for a lock.  Returns false if a transaction with an
 * unknown outcome has locked the row: a worker about to begin the job, or a session.
 */
static bool
cancel_job(Relation rel, JobqJob *job, const Batch *batch)
{
	bool		all = batch->state == BATCH_CANCELLED;
	NestCancel	nested = jobq_job_is_workflow(job) ? nest_cancel(job, all) : NEST_NONE;

	if (nested != NEST_NONE)
		return nested == NEST_CANCELLED;
	if (all ? jobq_ask_to_stop(job_id(job)) : jobq_job_runs(job))
		return true;
	if (!jobq_job_delete(rel, job))
		return false;
	jobq_job_push_if_undone(job);

	/* the consumer, if any, finds the lease gone */
	jobq_lease_room(1);
	jobq_at_commit_lease(LEASE_END, job_id(job), 0, JOBQ_NONE, 0);
	jobq_log_keep_told(my_db, NULL, job);
	jobq_archive_unstarted(job, all ? CAUSE_BATCH_CANCELLED
						   : batch->dropped ? CAUSE_NOT_NEEDED : CAUSE_BATCH_FAILED,
						   NULL);
	return true;
}

/*
 * Enqueue the callback of this column of the batch, if there is one.  If the batch's
 * role was dropped, only logs a warning and notes the error in the batch.
 */
static void
enqueue_callback(Batch *batch, int column, const char *what, const char *state)
{
	JobqSpec	spec;

	if (batch->row.nulls[column - 1])
		return;
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(batch->role)))
	{
		batch->error = MemoryContextStrdup(TopTransactionContext,
										   psprintf("its role was dropped, so %s was not enqueued",
													what));
		ereport(WARNING,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("batch " INT64_FORMAT ": %s", batch->id, batch->error)));
		return;
	}

	jobq_spec_parse(DatumGetJsonbP(batch->row.values[column - 1]), what, NULL, true, &spec);
	(void) jobq_spec_enqueue(&spec, batch->role,
							 callback_headers(batch->id, batch->name, state, &batch->counts));
}

static void
enqueue_part(void *arg)
{
	Callback   *this = (Callback *) arg;

	enqueue_callback(this->batch, this->column, this->what, this->state);
}

/*
 * Enqueue on_failure for a batch with remaining jobs.  Returns false on an error.  The
 * remaining jobs are then cancelled nevertheless.  The state does not become "failed"
 * yet, and each further evaluation tries again, including the last.  A lock timeout is
 * rethrown.
 */
static bool
tell_failing(Batch *batch)
{
	Callback	callback = {batch, BATCH_COLUMN_ON_FAILURE, "on_failure", "failing"};
	ErrorData  *edata = scheduler_try_part(enqueue_part, &callback);

	if (edata == NULL)
		return true;

	/* do not wait for the lock in each evaluation: the role must pause */
	if (edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(edata);
	note_owed(batch, edata->message);
	FreeErrorData(edata);
	return false;
}

/*
 * Note the error of on_failure in the row and in the log, if it is new.
 */
static void
note_owed(Batch *batch, const char *error)
{
	JobqBatchRow *row = &batch->row;

	if (!BATCH_ISNULL(row, LAST_ERROR) &&
		strcmp(TextDatumGetCString(BATCH_VALUE(row, LAST_ERROR)), error) == 0)
		return;
	BATCH_SET(row, LAST_ERROR, CStringGetTextDatum(error));
	jobq_batch_write(row);
	ereport(WARNING,
			(errmsg("on_failure of batch " INT64_FORMAT " cannot be enqueued: %s", batch->id, error),
			 errhint("It is tried again every \"%s\" seconds. What is left of the batch is cancelled meanwhile.",
					 "jobq.poll_interval")));
}

static void
set_state(Batch *batch, char state, bool over)
{
	JobqBatchRow *row = &batch->row;

	Assert(BATCH_ENDS(DatumGetChar(BATCH_VALUE(row, STATE)), state));
	BATCH_SET(row, STATE, CharGetDatum(state));
	if (over)
		BATCH_SET(row, FINISHED_AT, TimestampTzGetDatum(jobq_now()));
	BATCH_ISNULL(row, LAST_ERROR) = batch->error == NULL;
	if (batch->error != NULL)
		BATCH_SET(row, LAST_ERROR, CStringGetTextDatum(batch->error));
	jobq_batch_write(row);
	jobq_batch_changed(batch->id, state == BATCH_COMPLETED ? "completed"
					   : state == BATCH_FAILED ? (over ? "failed" : "failing")
					   : over ? "cancelled" : "cancelling", over);
}
