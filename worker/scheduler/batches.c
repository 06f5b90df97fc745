/*-------------------------------------------------------------------------
 *
 * batches.c
 *	  The scheduler's part in batches: when to look at which.
 *
 * All that happens to a batch as its jobs end happens in a look (batch_look.c),
 * one after the other, so that no two ends can race.  A look at a batch is a
 * transaction: what it finds, and the jobs that it enqueues for that, commit
 * together, so each callback is enqueued once, whatever crashes when.
 *
 * When to look, committers tell (src/commit/batch_commit.c).  After a start, and every
 * jobq.poll_interval, all batches that are not over are looked at.
 *
 * worker/scheduler/batches.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "scheduler/duty.h"

/* Batches that one round looks at. */
#define MAX_LOOKS		100

/* When to look again at a batch whose row is locked. */
#define LOCKED_PAUSE	USECS_PER_SEC

/* One look at a batch. */
typedef struct Look
{
	int64		id;
	int64		bound;
	BatchLook	outcome;
	int64		witness;
} Look;

static int64 swept_to = 0;
static TimestampTz sweep_at = 0;

/* Batches whose rows were locked, and when to look at them again. */
static int64 late[MAX_LOOKS];
static int	nlate = 0;
static TimestampTz late_at = 0;

static TimestampTz load(TimestampTz now);
static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static bool sweep(TimestampTz now);
static void look(int64 id, int64 bound, TimestampTz now);
static bool is_live(int64 id, int64 witness);
static void ask_again(JobqBatchWatch *watch, int64 id);
static void ask_later(int64 id, TimestampTz now);
static void note_error(int64 id, const ErrorData *edata);

/*
 * Looks at MAX_LOOKS batches of each sort: of those that asked for it, of all,
 * and of those that were locked.  A look waits for a lock no longer than
 * LOCK_PATIENCE, but goes through all steps of a workflow.
 */
Duty		batches_duty = {
	.load = load,
	.run = run,
	.next_due = next_due,
	.pausable = true,
};

/*
 * A new scheduler: nothing is known.
 */
static TimestampTz
load(TimestampTz now)
{
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < JOBQ_MAX_WATCHES; i++)
	{
		pg_atomic_write_u64(&my_db->told->watches[i].batch_id, 0);
		my_db->told->watches[i].look = false;
	}
	my_db->batches_look = false;
	my_db->batches_sweep = true;
	LWLockRelease(my_db->lock);
	return now;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	return my_db->batches_look || my_db->batches_sweep ? now : plan;
}

/*
 * Look at the batches that want it.
 */
static TimestampTz
run(TimestampTz now)
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
			JobqBatchWatch *watch = &my_db->told->watches[i];
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
	process_begin_transaction();
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

static void
look_into(void *arg)
{
	Look	   *this = (Look *) arg;

	this->outcome = jobq_relations_if_installed() == NULL ? LOOK_OVER
		: batch_look(this->id, this->bound, &this->witness);
}

/*
 * Look at a batch, and note when to look at it again.  bound: no job with a
 * higher id is likely to be live.
 */
static void
look(int64 id, int64 bound, TimestampTz now)
{
	JobqBatchWatch *watch = jobq_batch_watch(my_db, id);
	Look		this = {.id = id,.bound = bound};
	BatchLook	outcome;
	ErrorData  *edata;
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

	edata = scheduler_try(look_into, &this);
	outcome = this.outcome;
	if (edata != NULL)
	{
		outcome = edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ? LOOK_LATER
			: LOOK_EACH;
		batch_look_failed();
	}
	if (edata != NULL && outcome != LOOK_LATER)
		note_error(id, edata);
	if (edata != NULL)
		FreeErrorData(edata);
	jobq_injection_point("jobq-batch-looked");

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u64(&watch->batch_id) == (uint64) id)
	{
		pg_atomic_write_u64(&watch->witness,
							outcome == LOOK_WITNESS ? (uint64) this.witness
							: JOBQ_ANY_WITNESS);
		if (outcome == LOOK_OVER && !watch->look)
			pg_atomic_write_u64(&watch->batch_id, 0);
	}
	LWLockRelease(my_db->lock);
	if (outcome == LOOK_AGAIN || (outcome == LOOK_EACH && unseen) ||
		(outcome == LOOK_WITNESS && !is_live(id, this.witness)))
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
	process_begin_transaction();
	live = jobq_relations_if_installed() == NULL ||
		(batch_witness(id, witness, &found) && found == witness);
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
 * Note in the row why its callback could not be enqueued, and in the log if
 * that is news.
 */
static void
note_error(int64 id, const ErrorData *edata)
{
	if (scheduler_note_error("batch", "id", INT8OID, Int64GetDatum(id), edata))
		ereport(WARNING,
				(errcode(edata->sqlerrcode),
				 errmsg("batch " INT64_FORMAT " cannot go on: %s", id,
						edata->message),
				 errhint("It is tried again every \"%s\" seconds.",
						 "jobq.poll_interval")));
}
