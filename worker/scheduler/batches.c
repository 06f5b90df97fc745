/*-------------------------------------------------------------------------
 *
 * batches.c
 *	  Decides when to evaluate which batch.
 *
 * When jobs of a batch end, the consequences are computed by an evaluation of the batch
 * (batch_evaluate.c).  Evaluations run one after another, so two ends of jobs cannot race.
 * An evaluation is a transaction: its findings and the enqueued callbacks commit
 * together.  A crash therefore never loses or duplicates a callback.  Evaluations of
 * batches without steps and without dead letters share a transaction.
 *
 *	committing process		JobqTold.watches, .unwatched, .ends	(batch_commit.c)
 *		 |
 *	collect_requests()				sweep_batches(): all unfinished batches, after a
 *		 |							start and every jobq.poll_interval
 *		 +----------+---------------+
 *					|
 *			want_batch(): "wanted", a hash table in local memory
 *					|
 *			order_tasks(): "tasks", the batches that may be evaluated now; roles take
 *					|		time slices (share.c)
 *			evaluate_some(): the next batches, in one transaction (batch_try.c)
 *					|
 *			decide_next(): the batch stays wanted, or is forgotten
 *
 * worker/scheduler/batches.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/batch.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "lib/ilist.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "scheduler/duty.h"

/* Batches read by one round of a sweep. */
#define PAGE			100

/*
 * Batches of a role kept in memory while they cannot be evaluated.  A sweep after
 * FORGOTTEN_AFTER microseconds finds the rest.
 */
#define MAX_KEPT		500
#define FORGOTTEN_AFTER	(10 * USECS_PER_SEC)

/* Ends of jobs, and new steps, kept for an evaluation.  Beyond this, it reads all. */
#define MAX_NEWS		10000

/*
 * How long the order of the batches stays valid, in microseconds: ORDER_LASTS, or
 * ORDER_TIMES the time it took to compute the order, if longer.  If a batch of another
 * role arrives, a new order is computed sooner, after ORDER_REST times this time.  The
 * measured time is capped at ORDER_MOST, because the machine may have been busy.
 */
#define ORDER_LASTS		(20 * INT64CONST(1000))
#define ORDER_TIMES		20
#define ORDER_REST		4
#define ORDER_MOST		(USECS_PER_SEC / 4)

/* No batch is wanted. */
#define NEVER			PG_INT64_MAX

/* Evaluations that may share a transaction. */
#define SHARED_TRIES	50

/* The number of batches of a role that cannot be evaluated now. */
typedef struct Waiting
{
	Oid			role;			/* hash key */
	int			n;
} Waiting;

/*
 * The wanted batches, by id in a hash table, and in a list.  Full scans use the list,
 * because a hash table does not shrink.
 */
static HTAB *wanted = NULL;
static dlist_head all_wanted = DLIST_STATIC_INIT(all_wanted);
static JobqSteady wanted_at = NEVER;	/* the earliest time of a batch */

/* Ids of wanted batches without a role yet: see read_roles(). */
static int64 *unknown_role = NULL;
static int	nunknown = 0;
static int	max_unknown = 0;

/*
 * The wanted batches in their order, from next_task on.  With many batches, computing
 * the order in each time slice would take longer than the evaluations.
 */
static RoleTask *tasks = NULL;
static int	ntasks = 0;
static int	next_task = 0;
static JobqSteady order_until = 0;
static JobqSteady order_made = 0;
static int64 order_took = 0;	/* microseconds to compute the order */

static int64 swept_to = 0;
static JobqSteady sweep_at = 0;

static TimestampTz load_batches(TimestampTz now);
static TimestampTz run_batches(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static void collect_requests(TimestampTz now);
static bool try_read(void (*body) (void *arg), void *arg);
static void sweep_batches(TimestampTz now);
static void read_roles(void *arg);
static void order_tasks(TimestampTz now);
static int	evaluate_some(TimestampTz now);
static void decide_next(const BatchTry *this, TimestampTz now);

/* Works for a time slice (share.c), plus at most one evaluation. */
Duty		batches_duty = {
	.what = "evaluate batches",
	.load = load_batches,
	.run = run_batches,
	.next_due = next_due,
	.pausable = true,
};

/*
 * Initialize the memory of a new scheduler.
 */
static TimestampTz
load_batches(TimestampTz now)
{
	HASHCTL		info = {
		.keysize = sizeof(int64),
		.entrysize = sizeof(Wanted),
		.hcxt = TopMemoryContext
	};

	dlist_init(&all_wanted);
	wanted = hash_create("jobq batches", 256, &info,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	batch_watch_none();
	return now;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	return my_db->batches_look || my_db->batches_sweep ? now : plan;
}

/*
 * Evaluate the wanted batches, as far as time allows.
 */
static TimestampTz
run_batches(TimestampTz now)
{
	if ((my_db->batches_sweep || jobq_steady() >= sweep_at || swept_to > 0) &&
		ntasks - next_task < PAGE)
		sweep_batches(now);
	collect_requests(now);
	if (nunknown > 0)
		(void) try_read(read_roles, NULL);

	if (next_task == ntasks || jobq_steady() >= order_until)
		order_tasks(now);
	share_begin();
	while (next_task < ntasks)
	{
		if (share_over())
		{
			wanted_at = jobq_steady();
			break;
		}
		next_task += evaluate_some(now);
	}
	if (swept_to > 0 || my_db->batches_sweep || my_db->batches_look)
		return now;
	return jobq_steady_due(Min(wanted_at, sweep_at), now);
}

/*
 * Request an evaluation of the batch.  The caller adds the news.  role may be
 * InvalidOid if unknown; for "bound" see Wanted.
 */
static Wanted *
want_batch(int64 id, Oid role, int64 bound, TimestampTz now)
{
	bool		found;
	Wanted	   *batch = hash_search(wanted, &id, HASH_ENTER, &found);

	if (!found)
	{
		dlist_push_tail(&all_wanted, &batch->node);
		batch->role = InvalidOid;
		batch->alone = false;
		batch->pause = (JobqPause)
		{
			0
		};
		batch->bound = bound;
		batch->at = now;
		batch->news = (BatchNews)
		{
			0
		};
		batch->cancelled = (BatchCancelled)
		{
			0
		};
	}
	batch->cancelled.changed = true;
	if (OidIsValid(role))
		batch->role = role;
	if (!OidIsValid(batch->role))
	{
		unknown_role = jobq_grow(unknown_role, &max_unknown, nunknown + 1, sizeof(int64));
		unknown_role[nunknown++] = id;
	}
	batch->bound = Max(batch->bound, bound);
	wanted_at = Min(wanted_at, batch->pause.until);
	return batch;
}

/*
 * The batch is not wanted any more.  News that no evaluation has used is lost, so that a
 * kept workflow would be stale.
 */
static void
forget_batch(Wanted *batch)
{
	if (batch->news.whole || batch->news.ended.n > 0 || batch->news.added.n > 0)
		kept_forget(batch->id);
	if (batch->news.ended.ids != NULL)
		pfree(batch->news.ended.ids);
	if (batch->news.added.ids != NULL)
		pfree(batch->news.added.ids);
	dlist_delete(&batch->node);
	(void) hash_search(wanted, &batch->id, HASH_REMOVE, NULL);
}

/*
 * Note that a job of the batch has ended, or that a step was added.  "list" is the
 * matching list in the batch's news.  If the list is full, the next evaluation reads
 * the whole batch.
 */
static void
add_news(Wanted *batch, JobList *list, int64 job_id)
{
	if (list->n == MAX_NEWS)
		batch->news.whole = true;
	if (batch->news.whole)
		return;
	list->ids = jobq_grow(list->ids, &list->max, list->n + 1, sizeof(int64));
	list->ids[list->n++] = job_id;
}

/*
 * Take over the requests of committing processes.  Takes my_db->lock exclusively.
 */
static void
collect_requests(TimestampTz now)
{
	static JobqBatchEnd ends[JOBQ_MAX_ENDS];
	static struct
	{
		int64		id;
		int64		bound;
		bool		whole;
		bool		grows;
	}			requests[JOBQ_MAX_WATCHES + JOBQ_MAX_UNWATCHED];
	int			n = 0;
	int			nends;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < JOBQ_MAX_WATCHES && my_db->batches_look; i++)
	{
		JobqBatchWatch *watch = &my_db->told->watches[i];
		uint64		witness = pg_atomic_read_u64(&watch->witness);

		if (!watch->look)
			continue;
		requests[n].id = (int64) pg_atomic_read_u64(&watch->batch_id);
		requests[n].bound = witness == JOBQ_ANY_WITNESS || witness == 0
			? PG_INT64_MAX : (int64) witness;
		requests[n].whole = watch->whole;
		requests[n++].grows = watch->grows;
		watch->look = watch->whole = watch->grows = false;
	}
	while (my_db->told->nunwatched > 0)
	{
		requests[n].id = my_db->told->unwatched[--my_db->told->nunwatched];
		requests[n].bound = PG_INT64_MAX;
		requests[n].whole = true;
		requests[n++].grows = false;
	}
	nends = my_db->told->nends;
	memcpy(ends, my_db->told->ends, sizeof(JobqBatchEnd) * nends);
	my_db->told->nends = 0;
	my_db->batches_look = false;
	LWLockRelease(my_db->lock);
	for (int i = 0; i < n; i++)
	{
		BatchNews  *news = &want_batch(requests[i].id, InvalidOid, requests[i].bound, now)->news;

		news->whole |= requests[i].whole;
		news->grows |= requests[i].grows;
	}
	for (int i = 0; i < nends; i++)
	{
		Wanted	   *batch = want_batch(ends[i].batch_id, InvalidOid, PG_INT64_MAX, now);

		add_news(batch, ends[i].added ? &batch->news.added : &batch->news.ended,
				 ends[i].job_id);
	}
}

/*
 * Read the next page of unfinished batches.  arg is the current time.
 */
static void
read_page(void *arg)
{
	static const Oid types[] = {INT8OID};
	TimestampTz now = *(TimestampTz *) arg;
	Datum		values[] = {Int64GetDatum(swept_to)};
	uint64		n = 0;

	if (jobq_relations_if_installed() != NULL)
		n = jobq_query("SELECT id, role::oid FROM jobq_internal.batch WHERE finished_at IS NULL"
					   " AND id > $1 AND (state <> 'p' OR parent IS NOT NULL) AND NOT dormant"
					   " ORDER BY id LIMIT " CppAsString2(PAGE),
					   1, types, values, NULL, SPI_OK_SELECT);
	swept_to = 0;
	for (uint64 i = 0; i < n; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		int64		id = DatumGetInt64(jobq_column(row, desc, 1, INT8OID, NULL));

		want_batch(id, DatumGetObjectId(jobq_column(row, desc, 2, OIDOID, NULL)),
				   PG_INT64_MAX, now)->news.whole = true;
		if (i == PAGE - 1)
			swept_to = id;
	}
}

/*
 * Read tables in a transaction.  Returns false after a lock timeout.  Any other error is
 * rethrown.
 */
static bool
try_read(void (*body) (void *arg), void *arg)
{
	ErrorData  *edata = scheduler_try(body, arg);

	if (edata == NULL)
		return true;
	if (edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(edata);
	FreeErrorData(edata);
	return false;
}

/*
 * Request evaluations for the next page of unfinished batches.  A lock timeout
 * postpones the sweep by a second.
 */
static void
sweep_batches(TimestampTz now)
{
	/* cleared first: a request made meanwhile starts another sweep */
	if (swept_to == 0)
		my_db->batches_sweep = false;
	sweep_at = jobq_steady() + jobq_poll_interval * USECS_PER_SEC;
	if (try_read(read_page, &now))
		return;
	swept_to = 0;
	sweep_at = jobq_steady() + USECS_PER_SEC;
}

/*
 * Read the roles of batches known only by id.  A finished batch keeps no role.
 */
static void
read_roles(void *arg)
{
	Snapshot	snapshot;

	if (jobq_relations_if_installed() == NULL)
		return;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	for (int i = 0; i < nunknown; i++)
	{
		Wanted	   *batch = hash_search(wanted, &unknown_role[i], HASH_FIND, NULL);
		JobqBatchRow row;

		if (batch == NULL || OidIsValid(batch->role) ||
			!jobq_batch_fetch(batch->id, snapshot, &row))
			continue;
		batch->role = DatumGetObjectId(BATCH_VALUE(&row, ROLE));
		batch->alone = DatumGetBool(BATCH_VALUE(&row, HAS_STEPS));
		if (next_task < ntasks && tasks[next_task].role != batch->role)
			order_until = Min(order_until, order_made + order_took * ORDER_REST);
	}
	UnregisterSnapshot(snapshot);
	nunknown = 0;
}

/*
 * Compute the order of the batches that may be evaluated now.  If a role has more than
 * MAX_KEPT waiting batches, the excess is forgotten until the next sweep.
 */
static void
order_tasks(TimestampTz now)
{
	HASHCTL		info = {
		.keysize = sizeof(Oid),
		.entrysize = sizeof(Waiting),
		.hcxt = CurrentMemoryContext
	};
	HTAB	   *waiting;
	JobqSteady	began = jobq_steady();
	dlist_mutable_iter iter;

	ntasks = next_task = 0;
	if (wanted_at > began)
		return;
	waiting = hash_create("jobq waiting", 64, &info,
						  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	if (tasks != NULL)
		pfree(tasks);
	tasks = NULL;
	tasks = MemoryContextAllocHuge(TopMemoryContext, sizeof(RoleTask) *
								   (hash_get_num_entries(wanted) + 1));
	wanted_at = NEVER;
	dlist_foreach_modify(iter, &all_wanted)
	{
		Wanted	   *batch = dlist_container(Wanted, node, iter.cur);
		TimestampTz may = Max(share_may(batch->role, batch->pause.n, now),
							  jobq_pause_due(&batch->pause, now));
		bool		found;
		Waiting    *role;

		if (may <= now)
		{
			share_add(tasks, &ntasks, batch->role, batch->pause.n, batch->at,
					  batch->id);
			continue;
		}
		role = hash_search(waiting, &batch->role, HASH_ENTER, &found);
		role->n = found ? role->n + 1 : 1;
		if (role->n > MAX_KEPT)
		{
			forget_batch(batch);
			sweep_at = Min(sweep_at, jobq_steady() + FORGOTTEN_AFTER);
		}
		else
			wanted_at = Min(wanted_at, began + (may - now));
	}
	hash_destroy(waiting);
	share_order(tasks, ntasks);
	order_made = jobq_steady();
	order_took = Min(order_made - began, ORDER_MOST);
	order_until = order_made + Max(ORDER_LASTS, order_took * ORDER_TIMES);
}

/*
 * Evaluate some of the batches, from next_task on, and note when to evaluate them again.
 * Batches share a transaction until a batch needs a transaction of its own.  Returns the
 * number processed, at least one.
 */
static int
evaluate_some(TimestampTz now)
{
	int			n = ntasks - next_task;
	BatchTry	attempts[SHARED_TRIES];
	Part		parts[SHARED_TRIES];
	int			ndone = 0;

	while (ndone < Min(n, SHARED_TRIES))
	{
		Wanted	   *batch = hash_search(wanted, &tasks[next_task + ndone].item, HASH_FIND, NULL);

		if (batch == NULL)
			break;
		if (batch->alone && ndone > 0)
			break;
		attempts[ndone] = (BatchTry)
		{
			.batch = batch,.shared = !batch->alone
		};
		parts[ndone] = (Part)
		{
			.role = batch->role,.locked = batch->pause.n,.arg = &attempts[ndone]
		};
		ndone++;
		if (batch->alone)
			break;
	}
	if (ndone == 0)
		return 1;
	if (ndone > 1)
		ndone = share_try_together(parts, ndone, batch_try, now);
	else
	{
		attempts[0].shared = false;
		parts[0].rests = share_may(parts[0].role, parts[0].locked, now) > now;
		if (!parts[0].rests)
			parts[0].edata = share_try(parts[0].role, batch_try, &attempts[0]);
	}
	for (int i = 0; i < ndone; i++)
		if (!parts[i].rests)
			batch_tried(&attempts[i], parts[i].edata);
	jobq_injection_point("jobq-batch-looked");
	batch_check_live(attempts, parts, ndone);
	for (int i = 0; i < ndone; i++)
	{
		if (parts[i].rests)
			wanted_at = Min(wanted_at, jobq_steady() + share_may(parts[i].role, parts[i].locked, now) - now);
		else
			decide_next(&attempts[i], now);
		if (parts[i].edata != NULL)
			FreeErrorData(parts[i].edata);
	}
	return ndone;
}

/*
 * Decide when to evaluate the batch again: see BatchOutcome.  If ends of jobs may have gone
 * unreported, or if the published witness is no longer live, evaluate again now.
 */
static void
decide_next(const BatchTry *this, TimestampTz now)
{
	Wanted	   *batch = this->batch;

	if (this->outcome == OUTCOME_LATER)
	{
		jobq_pause_begin(&batch->pause, PAUSE_TASK_LOCKED);
		wanted_at = Min(wanted_at, batch->pause.until);
		return;
	}
	batch->pause.n = 0;
	batch->alone |= this->outcome == OUTCOME_ALONE;
	if (this->outcome == OUTCOME_AGAIN || this->outcome == OUTCOME_ALONE ||
		(this->outcome == OUTCOME_EACH_END && this->unseen) ||
		(this->outcome == OUTCOME_WITNESS && !this->live))
	{
		batch->at = now;
		wanted_at = jobq_steady();
		batch->bound = PG_INT64_MAX;
		batch->news.whole |= this->unseen;
	}
	else
		forget_batch(batch);
}
