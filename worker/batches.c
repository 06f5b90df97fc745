/*-------------------------------------------------------------------------
 *
 * batches.c
 *	  The scheduler's part in batches: sees when one fails, and when it is
 *	  over, and enqueues what was asked for then.
 *
 * All that happens to a batch as its jobs end happens here, in one place and
 * one after the other, so that no two ends can race.  A look at a batch is a
 * transaction: what it finds, and the jobs that it enqueues for that, commit
 * together, so each callback is enqueued once, whatever crashes when.
 *
 * When to look, committers tell (src/batch_commit.c).  After a start, and every
 * jobq.poll_interval, all batches that are not over are looked at.
 *
 * worker/batches.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "batch.h"
#include "commit.h"
#include "enqueue.h"
#include "operate.h"

/* Batches that one round looks at, and jobs that one look cancels. */
#define MAX_LOOKS		100
#define MAX_CANCELLED	200

/* When to look again at a batch whose row is locked. */
#define LOCKED_PAUSE	USECS_PER_SEC

/* What a look has found. */
typedef enum Outcome
{
	LOOK_OVER,					/* nothing more to be done */
	LOOK_WITNESS,				/* a job is live */
	LOOK_EACH,					/* each job that ends matters */
	LOOK_AGAIN,					/* there is more to be done at once */
	LOOK_LATER,					/* somebody has locked it */
} Outcome;

/* A row of jobq.batch. */
typedef struct Batch
{
	int64		id;
	char		state;
	bool		allow_failures;
	bool		has_steps;
	bool		reopened;
	bool		expects;		/* it was started when it was created */
	Oid			role;
	char	   *name;			/* or NULL */
	char	   *error;			/* why a callback was dropped, or NULL */
	Jsonb	   *on_success;		/* or NULL, as are the next two */
	Jsonb	   *on_failure;
	Jsonb	   *on_finish;
} Batch;

/*
 * The batch that is being cancelled, up to which job that was done, and whether
 * one must be tried again.
 */
static int64 cancelled_batch = 0;
static int64 cancelled_to = 0;
static bool cancelled_not = false;

static int64 swept_to = 0;
static TimestampTz sweep_at = 0;

/* Batches whose rows were locked, and when to look at them again. */
static int64 late[MAX_LOOKS];
static int	nlate = 0;
static TimestampTz late_at = 0;

static bool sweep(TimestampTz now);
static void look(int64 id, int64 bound, TimestampTz now);
static bool is_live(int64 id, int64 witness);
static void ask_again(JobqBatchWatch *watch, int64 id);
static void ask_later(int64 id, TimestampTz now);
static Outcome look_at(Batch *batch, int64 bound, int64 *witness);
static bool read_batch(int64 id, bool lock, Batch *batch);
static bool has_failed(int64 id);
static bool has_cancelled(int64 id);
static bool has_begun(int64 id);
static bool find_witness(int64 id, int64 bound, int64 *witness);
static bool cancel_jobs(const Batch *batch, bool *taken);
static bool cancel_job(Relation rel, JobqJob *job, const Batch *batch);
static void enqueue_callback(Batch *batch, Jsonb *callback, const char *what,
							 const char *state);
static void set_state(const Batch *batch, char state, bool over);
static void note_error(int64 id, const ErrorData *edata);

/*
 * A new scheduler: nothing is known.
 */
void
batches_start(void)
{
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < JOBQ_MAX_WATCHES; i++)
	{
		pg_atomic_write_u64(&my_db->watches[i].batch_id, 0);
		my_db->watches[i].look = false;
	}
	my_db->batches_look = false;
	my_db->batches_sweep = true;
	LWLockRelease(my_db->lock);
}

/*
 * Look at the batches that want it.  Returns when to come again at the latest:
 * "now" if there is more to be done.
 */
TimestampTz
batches_run(TimestampTz now)
{
	int64		ids[MAX_LOOKS];
	int64		bounds[MAX_LOOKS];
	int			n = 0;
	bool		again = false;

	/* the clock may have been put back */
	sweep_at = Min(sweep_at, now + jobq_poll_interval * USECS_PER_SEC);
	if (my_db->batches_sweep || now >= sweep_at || swept_to > 0)
		again = sweep(now);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (my_db->batches_look)
	{
		my_db->batches_look = false;
		for (int i = 0; i < JOBQ_MAX_WATCHES; i++)
		{
			JobqBatchWatch *watch = &my_db->watches[i];
			uint64		witness = pg_atomic_read_u64(&watch->witness);

			if (!watch->look)
				continue;
			if (n == MAX_LOOKS)
			{
				my_db->batches_look = again = true;
				break;
			}
			watch->look = false;
			ids[n] = (int64) pg_atomic_read_u64(&watch->batch_id);
			bounds[n++] = witness == JOBQ_ANY_WITNESS || witness == 0
				? PG_INT64_MAX : (int64) witness;
		}
	}
	LWLockRelease(my_db->lock);
	for (int i = 0; i < n; i++)
		look(ids[i], bounds[i], now);

	late_at = Min(late_at, now + LOCKED_PAUSE);
	if (nlate > 0 && now >= late_at)
	{
		n = nlate;
		memcpy(ids, late, sizeof(int64) * n);
		nlate = 0;
		for (int i = 0; i < n; i++)
			look(ids[i], PG_INT64_MAX, now);
	}
	if (again || my_db->batches_look)
		return now;
	return nlate > 0 ? Min(late_at, sweep_at) : sweep_at;
}

/*
 * Look at some of all batches that are not over.  True if there are more.
 */
static bool
sweep(TimestampTz now)
{
	static const Oid types[] = {INT8OID};
	int64		ids[MAX_LOOKS];
	Datum		values[1];
	uint64		n = 0;
	MemoryContext caller = CurrentMemoryContext;

	/* one that is wanted meanwhile comes after this one */
	if (swept_to == 0)
		my_db->batches_sweep = false;
	sweep_at = now + jobq_poll_interval * USECS_PER_SEC;
	values[0] = Int64GetDatum(swept_to);
	run_begin_transaction();
	jobq_lock_jobs();
	if (jobq_relations_if_installed() != NULL)
	{
		SPI_connect();
		n = jobq_query("SELECT id FROM jobq.batch WHERE finished_at IS NULL"
					   " AND id > $1 AND state <> 'p' AND NOT dormant"
					   " ORDER BY id LIMIT " CppAsString2(MAX_LOOKS),
					   1, types, values, NULL, SPI_OK_SELECT);
		for (uint64 i = 0; i < n; i++)
		{
			bool		isnull;

			ids[i] = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i],
												 SPI_tuptable->tupdesc, 1,
												 &isnull));
		}
		SPI_finish();
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	for (uint64 i = 0; i < n; i++)
		look(ids[i], PG_INT64_MAX, now);
	swept_to = n == MAX_LOOKS ? ids[n - 1] : 0;
	return swept_to > 0 || my_db->batches_sweep;
}

/*
 * Look at a batch, and note when to look at it again.  bound: no job with a
 * higher id is likely to be live.
 */
static void
look(int64 id, int64 bound, TimestampTz now)
{
	MemoryContext caller = CurrentMemoryContext;
	JobqBatchWatch *watch = jobq_batch_watch(my_db, id);
	ErrorData  *volatile edata = NULL;
	volatile Outcome outcome = LOOK_EACH;
	int64		witness = 0;
	bool		unseen = false; /* ends meanwhile ask for nothing */

	/*
	 * Whoever ends a job from now on is seen, or ends what we shall name.  Of
	 * a batch of which each job matters, or of which we know nothing yet, all
	 * ask for another look.
	 */
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u64(&watch->batch_id) != (uint64) id && !watch->look)
	{
		pg_atomic_write_u64(&watch->witness, JOBQ_ANY_WITNESS);
		pg_atomic_write_u64(&watch->batch_id, (uint64) id);
	}
	if (pg_atomic_read_u64(&watch->batch_id) == (uint64) id &&
		pg_atomic_read_u64(&watch->witness) != JOBQ_ANY_WITNESS)
	{
		pg_atomic_write_u64(&watch->witness, 0);
		unseen = true;
	}
	LWLockRelease(my_db->lock);

	run_begin_transaction();
	jobq_lock_jobs();
	PG_TRY();
	{
		Batch		batch = {.id = id};

		if (jobq_relations_if_installed() == NULL)
			outcome = LOOK_OVER;
		else
		{
			SPI_connect();
			outcome = look_at(&batch, bound, &witness);
			SPI_finish();
		}
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		HOLD_INTERRUPTS();
		edata = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		RESUME_INTERRUPTS();
		outcome = edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ? LOOK_LATER
			: LOOK_EACH;
		cancelled_batch = 0;	/* what it has cancelled is not */
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	if (edata != NULL && outcome != LOOK_LATER)
		note_error(id, edata);
	if (edata != NULL)
		FreeErrorData(edata);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u64(&watch->batch_id) == (uint64) id)
	{
		pg_atomic_write_u64(&watch->witness,
							outcome == LOOK_WITNESS ? (uint64) witness
							: JOBQ_ANY_WITNESS);
		if (outcome == LOOK_OVER && !watch->look)
			pg_atomic_write_u64(&watch->batch_id, 0);
	}
	LWLockRelease(my_db->lock);
	if (outcome == LOOK_AGAIN || (outcome == LOOK_EACH && unseen) ||
		(outcome == LOOK_WITNESS && !is_live(id, witness)))
		ask_again(watch, id);
	else if (outcome == LOOK_LATER)
		ask_later(id, now);
}

/*
 * Is the witness that was named just now still live?
 */
static bool
is_live(int64 id, int64 witness)
{
	MemoryContext caller = CurrentMemoryContext;
	int64		found;
	bool		live;

	pg_memory_barrier();
	run_begin_transaction();
	live = jobq_relations_if_installed() == NULL ||
		(find_witness(id, witness, &found) && found == witness);
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return live;
}

/*
 * Have the next round look at the batch.
 */
static void
ask_again(JobqBatchWatch *watch, int64 id)
{
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u64(&watch->batch_id) == (uint64) id)
		watch->look = my_db->batches_look = true;
	else
		my_db->batches_sweep = true;
	LWLockRelease(my_db->lock);
}

/*
 * Look at the batch again in a while.
 */
static void
ask_later(int64 id, TimestampTz now)
{
	if (nlate == 0)
		late_at = now + LOCKED_PAUSE;
	for (int i = 0; i < nlate; i++)
		if (late[i] == id)
			return;
	if (nlate < MAX_LOOKS)
		late[nlate++] = id;
	else
		sweep_at = Min(sweep_at, late_at);
}

/*
 * Do what is to be done, in a transaction.
 */
static Outcome
look_at(Batch *batch, int64 bound, int64 *witness)
{
	bool		failing;
	bool		live;
	bool		ending;
	bool		later = false;

	if (!read_batch(batch->id, false, batch))
		return LOOK_OVER;
	failing = batch->state == BATCH_RUNNING && !batch->reopened &&
		has_failed(batch->id);
	ending = batch->state == BATCH_CANCELLED ||
		((batch->state == BATCH_FAILED || failing) && !batch->allow_failures);
	if (batch->has_steps && batch->state != BATCH_CANCELLED)
		later = !workflow_advance(batch->id, batch->role, ending);
	live = find_witness(batch->id, bound, witness);
	if (failing || !live)
	{
		/* nobody adds a job, or changes the state, until we have committed */
		if (!read_batch(batch->id, true, batch))
			return LOOK_LATER;
		failing = failing && batch->state == BATCH_RUNNING;
		live = find_witness(batch->id, PG_INT64_MAX, witness);
	}
	if (failing)
	{
		batch->state = BATCH_FAILED;
		enqueue_callback(batch, batch->on_failure, "on_failure", "failing");
		set_state(batch, BATCH_FAILED, false);
	}
	ending = batch->state == BATCH_CANCELLED ||
		(batch->state == BATCH_FAILED && !batch->allow_failures);
	if (live && ending && cancel_jobs(batch, &later))
		return LOOK_AGAIN;
	if (live && (ending || batch->has_steps) &&
		!find_witness(batch->id, PG_INT64_MAX, witness))
		return LOOK_AGAIN;
	if (live && later)
		return LOOK_LATER;
	if (live)
		return ending || batch->has_steps ? LOOK_EACH : LOOK_WITNESS;

	/* one that was started before it had a job does not end before it has */
	if (batch->state == BATCH_RUNNING && batch->expects && !has_begun(batch->id))
		return LOOK_EACH;
	if (batch->state == BATCH_RUNNING)
	{
		if (has_failed(batch->id))
		{
			batch->state = BATCH_FAILED;
			enqueue_callback(batch, batch->on_failure, "on_failure", "failed");
		}
		else if (batch->has_steps && has_cancelled(batch->id))
			batch->state = BATCH_CANCELLED;
		else
		{
			batch->state = BATCH_COMPLETED;
			enqueue_callback(batch, batch->on_success, "on_success",
							 "completed");
		}
	}
	enqueue_callback(batch, batch->on_finish, "on_finish",
					 batch->state == BATCH_COMPLETED ? "completed"
					 : batch->state == BATCH_FAILED ? "failed" : "cancelled");
	set_state(batch, batch->state, true);
	return LOOK_OVER;
}

/*
 * Read the batch, if it runs; lock: and nobody else has locked it.
 */
static bool
read_batch(int64 id, bool lock, Batch *batch)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plans[2] = {NULL, NULL};
	Datum		values[] = {Int64GetDatum(id)};
	HeapTuple	tuple;
	TupleDesc	desc;
	Jsonb	  **callbacks[] = {
		&batch->on_success, &batch->on_failure, &batch->on_finish
	};
	bool		isnull;

	if (jobq_query_kept(&plans[lock ? 1 : 0],
						psprintf("SELECT state, allow_failures, has_steps, reopened,"
								 " role::oid, name, on_success, on_failure, on_finish,"
								 " started_at = created_at"
								 " FROM jobq.batch WHERE id = $1 AND finished_at IS NULL"
								 " AND state <> 'p' AND NOT dormant%s",
								 lock ? " FOR NO KEY UPDATE SKIP LOCKED" : ""),
						1, types, values, NULL, SPI_OK_SELECT) == 0)
		return false;
	tuple = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	batch->state = DatumGetChar(SPI_getbinval(tuple, desc, 1, &isnull));
	batch->allow_failures = DatumGetBool(SPI_getbinval(tuple, desc, 2, &isnull));
	batch->has_steps = DatumGetBool(SPI_getbinval(tuple, desc, 3, &isnull));
	batch->reopened = DatumGetBool(SPI_getbinval(tuple, desc, 4, &isnull));
	batch->role = DatumGetObjectId(SPI_getbinval(tuple, desc, 5, &isnull));
	batch->name = SPI_getvalue(tuple, desc, 6);
	batch->expects = DatumGetBool(SPI_getbinval(tuple, desc, 10, &isnull));
	for (int i = 0; i < 3; i++)
	{
		Datum		value = SPI_getbinval(tuple, desc, 7 + i, &isnull);

		*callbacks[i] = isnull ? NULL : DatumGetJsonbPCopy(value);
	}
	return true;
}

/*
 * Has a job of the batch failed for good, or expired?
 */
static bool
has_failed(int64 id)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {Int64GetDatum(id)};

	return jobq_query_kept(&plan, "SELECT WHERE EXISTS (SELECT FROM jobq.failed_job WHERE batch_id = $1)"
						   " OR EXISTS (SELECT FROM jobq.archive WHERE batch_id = $1 AND state = 'e')"
						   " OR EXISTS (SELECT FROM jobq.batch WHERE id = $1 AND failed + expired > 0)",
						   1, types, values, NULL, SPI_OK_SELECT) > 0;
}

/*
 * Has a job of the batch ended?
 */
static bool
has_begun(int64 id)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {Int64GetDatum(id)};

	return jobq_query_kept(&plan, "SELECT WHERE EXISTS (SELECT FROM jobq.failed_job WHERE batch_id = $1)"
						   " OR EXISTS (SELECT FROM jobq.archive WHERE batch_id = $1)"
						   " OR EXISTS (SELECT FROM jobq.batch WHERE id = $1"
						   "  AND completed + failed + cancelled + expired > 0)",
						   1, types, values, NULL, SPI_OK_SELECT) > 0;
}

/*
 * Was a job of the batch cancelled?
 */
static bool
has_cancelled(int64 id)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {Int64GetDatum(id)};

	return jobq_query_kept(&plan, "SELECT WHERE EXISTS (SELECT FROM jobq.archive WHERE batch_id = $1 AND state = 'x')"
						   " OR EXISTS (SELECT FROM jobq.batch WHERE id = $1 AND cancelled > 0)",
						   1, types, values, NULL, SPI_OK_SELECT) > 0;
}

/*
 * Find a live job of the batch, the last one up to the bound if there is one;
 * so entries of dead rows are passed once.
 */
static bool
find_witness(int64 id, int64 bound, int64 *witness)
{
	const JobqRelations *rels = jobq_relations();
	Relation	rel = table_open(rels->job, AccessShareLock);
	Relation	index = index_open(rels->job_batch, AccessShareLock);
	Snapshot	snapshot;
	bool		found = false;

	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	for (;;)
	{
		ScanKeyData keys[2];
		SysScanDesc scan;
		HeapTuple	tuple;

		ScanKeyInit(&keys[0], JOB_BATCH_ID, BTEqualStrategyNumber, F_INT8EQ,
					Int64GetDatum(id));
		ScanKeyInit(&keys[1], JOB_ID, BTLessEqualStrategyNumber, F_INT8LE,
					Int64GetDatum(bound));
		scan = systable_beginscan_ordered(rel, index, snapshot, 2, keys);
		tuple = systable_getnext_ordered(scan, BackwardScanDirection);
		if (tuple != NULL)
		{
			bool		isnull;

			found = true;
			*witness = DatumGetInt64(heap_getattr(tuple, JOB_ID,
												  RelationGetDescr(rel),
												  &isnull));
		}
		systable_endscan_ordered(scan);
		if (found || bound == PG_INT64_MAX)
			break;
		bound = PG_INT64_MAX;
	}
	UnregisterSnapshot(snapshot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	return found;
}

/*
 * Cancel some of what is left of the batch.  True if there is more; *taken if
 * there are some that must be tried again later.
 *
 * What runs is asked to stop if the batch was cancelled.  After a failure it
 * may go on, but has no other attempt: then it waits, and is cancelled here.
 */
static bool
cancel_jobs(const Batch *batch, bool *taken)
{
	Relation	rel = jobq_open_jobs();
	Relation	index = index_open(jobq_relations()->job_batch, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	int			n = 0;

	if (cancelled_batch != batch->id)
	{
		cancelled_to = 0;
		cancelled_not = false;
	}
	cancelled_batch = batch->id;
	ScanKeyInit(&keys[0], JOB_BATCH_ID, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(batch->id));
	ScanKeyInit(&keys[1], JOB_ID, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(cancelled_to));
	scan = systable_beginscan_ordered(rel, index, snapshot, 2, keys);
	while (n < MAX_CANCELLED &&
		   (tuple = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
	{
		JobqJob		job;

		jobq_job_from_tuple(rel, tuple, &job);
		if (!cancel_job(rel, &job, batch))
			cancelled_not = true;
		cancelled_to = job_id(&job);
		n++;
	}
	systable_endscan_ordered(scan);
	UnregisterSnapshot(snapshot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	*taken |= cancelled_not;
	if (n < MAX_CANCELLED)
		cancelled_batch = 0;	/* from the beginning, next time */
	return n == MAX_CANCELLED;
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

	if (all ? jobq_ask_to_stop(job_id(job)) : jobq_job_runs(job))
		return true;
	if (!jobq_job_delete(rel, job))
		return false;
	jobq_job_push_if_undone(job);

	/* its consumer, if it has one, will find the lease gone */
	jobq_lease_room(1);
	jobq_at_commit_lease(LEASE_END, job_id(job), 0, JOBQ_NONE, 0);
	jobq_archive(job, STATE_CANCELLED, DT_NOBEGIN, false, (Datum) 0,
				 all ? "its batch was cancelled" : BATCH_FAILED_REASON);
	return true;
}

/*
 * Enqueue what is to be done now, if anything is.
 */
static void
enqueue_callback(Batch *batch, Jsonb *callback, const char *what,
				 const char *state)
{
	JobqSpec	spec;
	StringInfoData headers;

	if (callback == NULL)
		return;
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(batch->role)))
	{
		batch->error = psprintf("its role was dropped, so %s was not enqueued",
								what);
		ereport(WARNING,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("batch " INT64_FORMAT ": %s", batch->id, batch->error)));
		return;
	}

	/* somebody may have enqueued its unique key, or drop its queue */
	(void) set_config_option("lock_timeout", LOCK_PATIENCE, PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	initStringInfo(&headers);
	appendStringInfo(&headers, "{\"batch_id\": " INT64_FORMAT ", \"batch_state\": \"%s\"",
					 batch->id, state);
	if (batch->name != NULL)
	{
		appendStringInfoString(&headers, ", \"batch\": ");
		escape_json(&headers, batch->name);
	}
	appendStringInfoChar(&headers, '}');
	jobq_spec_parse(callback, what, NULL, &spec);
	(void) jobq_spec_enqueue(&spec, batch->role, headers.data);
}

static void
set_state(const Batch *batch, char state, bool over)
{
	static const Oid types[] = {INT8OID, CHAROID, TIMESTAMPTZOID, TEXTOID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {
		Int64GetDatum(batch->id), CharGetDatum(state),
		TimestampTzGetDatum(jobq_now()),
		batch->error == NULL ? (Datum) 0 : CStringGetTextDatum(batch->error)
	};
	char		nulls[] = "    ";

	if (!over)
		nulls[2] = 'n';
	if (batch->error == NULL)
		nulls[3] = 'n';
	jobq_query_kept(&plan, "UPDATE jobq.batch SET state = $2, finished_at = $3, last_error = $4"
					" WHERE id = $1", 4, types, values, nulls, SPI_OK_UPDATE);
}

/*
 * Note in the row why its callback could not be enqueued, and in the log if
 * that is news.
 */
static void
note_error(int64 id, const ErrorData *edata)
{
	static const Oid types[] = {INT8OID, TEXTOID};
	Datum		values[] = {
		Int64GetDatum(id), CStringGetTextDatum(edata->message)
	};
	MemoryContext caller = CurrentMemoryContext;
	bool		news = true;

	run_begin_transaction();
	jobq_lock_jobs();
	PG_TRY();
	{
		SPI_connect();
		news = jobq_query("UPDATE jobq.batch SET last_error = $2 WHERE id IN"
						  " (SELECT id FROM jobq.batch WHERE id = $1"
						  "  AND last_error IS DISTINCT FROM $2 FOR UPDATE SKIP LOCKED)",
						  2, types, values, NULL, SPI_OK_UPDATE) > 0;
		SPI_finish();
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		HOLD_INTERRUPTS();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	if (news)
		ereport(WARNING,
				(errcode(edata->sqlerrcode),
				 errmsg("batch " INT64_FORMAT " cannot go on: %s", id,
						edata->message),
				 errhint("It is tried again every \"%s\" seconds.",
						 "jobq.poll_interval")));
}
