/*-------------------------------------------------------------------------
 *
 * batch_look.c
 *	  A look at a batch: sees if it fails, and if it is over, and enqueues what
 *	  was asked for then.  Its end is an event, too.
 *
 * It is a transaction of the scheduler; when to look is in batches.c.
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

/* How often a row that somebody changes meanwhile is read. */
#define MAX_TRIES		3

/* Jobs that one look cancels, at most. */
#define MAX_CANCELLED	200

/*
 * Ends of jobs are looked for only since the batch was made, or there would be more to
 * read with each day that is kept; and for so much longer, as the clock may have been put
 * back by as much.
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
	bool		expects;		/* it was started when it was created */
	bool		dropped;		/* what it is part of goes on without it */
	int64		parent_job;		/* that stands for it where it is part, or 0 */
	Oid			role;
	TransactionId version;		/* the row's xmin */
	char	   *name;			/* or NULL */
	char	   *error;			/* why a callback was dropped, or NULL */
	bool		counted;
	JobqBatchCounts counts;		/* of its jobs; or nothing yet */
	JobqBatchRow row;
} Batch;

/* A callback that is to be enqueued now. */
typedef struct Callback
{
	Batch	   *batch;
	int			column;
	const char *what;
	const char *state;
}			Callback;

/* By how much the clock was put back, in all since the scheduler began. */
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
 * The look was rolled back: what it has cancelled is not.
 */
void
batch_look_failed(int64 id, BatchCancelled *cancelled)
{
	memset(cancelled, 0, sizeof(BatchCancelled));
	kept_forget(id);
}

/*
 * The clock was put back by so much.
 */
void
batch_look_put_back(int64 by)
{
	put_back += by;
}

/*
 * Do what is to be done, in the caller's transaction.  *witness is a live job, if
 * there is one; see batch_witness() for bound.  shared: the transaction is for looks at
 * other batches, too, and so only for what is soon done.
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
		/* only a look that comes alone next has this news */
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
	 * the witness has ended, and so may have all: then one look at the jobs
	 * will do
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
		/* nobody adds a job, or changes the state, until we have committed */
		if (!locked)
		{
			if (!read_batch(batch->id, true, batch))
				return LOOK_LATER;
			locked = true;
			live = batch_witness(batch->id, PG_INT64_MAX, witness);
		}

		/*
		 * a step may have been retried, and completed, since the steps were
		 * read: what was cancelled for its failure goes on.  It may fail at
		 * once, so failures and counts are read after that.
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
		 * a job may have become a dead letter since, and what needed it is
		 * cancelled already; or a dead letter was retried
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

		/* a dead letter may have been retried: then no job is cancelled */
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

	/* one that was started before it had a job does not end before it has */
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
	/* what was only dropped goes on if its batch is retried */
	if (taken)
		nest_end(batch->id, batch->state, batch->dropped && !was_cancelled, &parent_job);
	callback_event(batch->id, batch->name, batch->role, batch->state, &batch->counts);
	return LOOK_OVER;
}

/*
 * Lock and read the batch whose id is set.  False if the look ends here, with this outcome.
 */
static bool
may_begin(bool shared, Batch *batch, BatchLook *outcome)
{
	*outcome = LOOK_LATER;

	/* a step that has ended stays so until the look has committed */
	if (!jobq_workflow_try_lock(batch->id))
		return false;
	*outcome = LOOK_OVER;
	if (!read_batch(batch->id, false, batch))
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
 * Read the batch, if it runs; lock: and nobody else has locked it.  Then it was read
 * before, without a lock.
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
 * Does the batch run, and may workflows that were added to it have been dropped before?
 * Then it was opened again, or begins again as a part of another; or it failed while its
 * on_failure could not be enqueued.
 */
static bool
may_have_dropped(const Batch *batch)
{
	return batch->state == BATCH_RUNNING && !batch->dropped &&
		(batch->reopened || (batch->has_steps && batch->parent_job != 0) ||
		 !BATCH_ISNULL(&batch->row, LAST_ERROR));
}

/*
 * No job of the batch has ended before this.  Where it comes from a publisher, that has
 * another clock.
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
 * Is a job of the batch dead or expired that is not an optional step?
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

	/* what is not in these tables any more is counted in the row */
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
 * What has become of its jobs; the row is locked, so that nobody adds to its counts.
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
 * Has a job of the batch ended?  Where it comes from a publisher, all may have ended
 * there.
 */
static bool
has_begun(const Batch *batch)
{
	const JobqBatchCounts *counts = &batch->counts;

	return DatumGetBool(BATCH_VALUE(&batch->row, ADOPTED)) ||
		counts->completed + counts->dead + counts->cancelled + counts->expired > 0;
}

/*
 * Was a job of the batch cancelled, that is neither an optional step nor one that was
 * skipped?
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
 * Find a live job of the batch, the last one up to the bound if there is one;
 * so entries of dead rows are passed once.
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
 * Cancel some of what is left of the batch, as far as there is time, from where the last
 * look has come to.  True if there is more; *taken if there are some that must be tried
 * again later.  The caller has locked the batch: no job of it is retried meanwhile.
 *
 * What runs is asked to stop if the batch was cancelled.  After a failure it
 * may go on, but has no other attempt: then it waits, and is cancelled here.
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
		cancelled->to = 0;		/* from the beginning, next time */
	return full || cancelled->changed;
}

/*
 * Cancel the job, if that needs no waiting.  False if a transaction has taken its
 * row, and nobody knows what will become of it: a worker that begins just now,
 * or a session.
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

	/* its consumer, if it has one, will find the lease gone */
	jobq_lease_room(1);
	jobq_at_commit_lease(LEASE_END, job_id(job), 0, JOBQ_NONE, 0);
	jobq_log_keep_told(my_db, NULL, job);
	jobq_archive(job, STATE_CANCELLED, DT_NOBEGIN, false, (Datum) 0,
				 all ? "its batch was cancelled"
				 : batch->dropped ? BATCH_DROPPED_REASON : BATCH_FAILED_REASON);
	return true;
}

/*
 * Enqueue what is to be done now, if anything is; column is that of the callback.
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
 * Enqueue on_failure of a batch of which jobs are left.  If that cannot be now, these are
 * cancelled none the less, and it is still owed: then false, the batch's state is not
 * "failed" yet, and each look tries it again, the one at its end as well.
 */
static bool
tell_failing(Batch *batch)
{
	Callback	callback = {batch, BATCH_COLUMN_ON_FAILURE, "on_failure", "failing"};
	ErrorData  *edata = scheduler_try_part(enqueue_part, &callback);

	if (edata == NULL)
		return true;

	/* a lock is not waited for by each look: the role rests */
	if (edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(edata);
	note_owed(batch, edata->message);
	FreeErrorData(edata);
	return false;
}

/*
 * Note why on_failure could not be enqueued, if that is news.
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
