/*-------------------------------------------------------------------------
 *
 * rank.c
 *	  Computes which workers serve a lane, and in which order.  Runs for all lanes
 *	  after a change of queues or settings, and for a new lane alone.
 *
 * worker/scheduler/rank.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "storage/ipc.h"

#include "scheduler/duty.h"

/* Sorted. */
typedef struct Hashes
{
	uint32	   *hashes;
	int			n;
}			Hashes;

/* The properties of a lane from its queue. */
typedef struct QueueRank
{
	int32		queue_id;
	bool		missing;		/* the queue has no visible row */
	bool		paused;
	bool		consumer;
	Hashes		tenants;		/* paused on their own */
	Hashes		kinds;
	uint8		rank[JOBQ_MAX_POOLS];
} QueueRank;

static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);

/*
 * After a reload, processes each lane once, and each of their queues.  Otherwise, only
 * the lanes without a rank, and their queues.
 */
Duty		rank_duty = {
	.what = "say which workers serve a queue",
	.run = run,
	.next_due = next_due,
};

/*
 * Collect the queues with lanes; or without "all", the queues of the lanes that are to
 * be ranked, which may occur several times.
 */
static int
queues_of_lanes(int32 *queues, bool all)
{
	JobqLane   *unranked;
	int			n = 0;

	AssertLocked(my_db->lock);
	while ((unranked = jobq_lane_next_unranked(my_db)) != NULL)
		if (!all)
			queues[n++] = unranked->queue_id;
	if (!all)
		return n;

	for (int i = 0; i < jobq_max_lanes; i++)
	{
		const JobqLane *lane = &my_db->ready->lanes[i];

		/* exactly one lane of a queue is the first */
		if (lane->in_use && lane->party_prev == JOBQ_NONE)
			queues[n++] = lane->queue_id;
	}
	return n;
}

static int
compare_hashes(const void *a, const void *b)
{
	uint32		x = *(const uint32 *) a;
	uint32		y = *(const uint32 *) b;

	return x < y ? -1 : x > y;
}

static Hashes
hashes_of(List *names, uint32 (*hash) (const char *name), MemoryContext memory)
{
	Hashes		hashes = {MemoryContextAlloc(memory, sizeof(uint32) *
											 (list_length(names) + 1)), 0};
	ListCell   *lc;

	foreach(lc, names)
		hashes.hashes[hashes.n++] = hash(lfirst(lc));
	qsort(hashes.hashes, hashes.n, sizeof(uint32), compare_hashes);
	return hashes;
}

/*
 * True if the hash is in the set.  0 means no hash.
 */
static bool
hashes_have(const Hashes * hashes, uint32 hash)
{
	return hash != 0 && hashes->n > 0 &&
		bsearch(&hash, hashes->hashes, hashes->n, sizeof(uint32),
				compare_hashes) != NULL;
}

static void
hashes_free(Hashes * hashes)
{
	if (hashes->hashes != NULL)
		pfree(hashes->hashes);
}

/*
 * Compute the position of the queue in each pool: the position of its name, or else the
 * position of "*".  Must be called in a transaction.
 */
static void
rank_queue(QueueRank *rank, MemoryContext memory)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(rank->queue_id, &buffer);
	const JobqPoolSet *pools = jobq_pools();
	bool		named = false;

	memset(rank->rank, JOBQ_NOT_SERVED, sizeof(rank->rank));
	rank->missing = queue == NULL;
	if (rank->missing)
		return;
	rank->paused = queue->paused;
	rank->consumer = queue->mode == MODE_CONSUMER;
	if (queue->tenants_paused)
		rank->tenants = hashes_of(jobq_queue_paused_tenants(queue->id),
								  jobq_tenant_hash, memory);
	if (queue->kinds_paused)
		rank->kinds = hashes_of(jobq_queue_paused_kinds(queue->id),
								jobq_held_hash, memory);
	for (int p = 0; p < pools->npools && queue->mode == MODE_WORKER; p++)
		for (int q = 0; q < pools->pools[p].nqueues; q++)
			if (rank->rank[p] == JOBQ_NOT_SERVED &&
				strcmp(pools->pools[p].queues[q], queue->name) == 0)
			{
				rank->rank[p] = q;
				named = true;
			}
	for (int p = 0; p < pools->npools && !named && queue->mode == MODE_WORKER;
		 p++)
		for (int q = 0; q < pools->pools[p].nqueues; q++)
			if (rank->rank[p] == JOBQ_NOT_SERVED &&
				strcmp(pools->pools[p].queues[q], "*") == 0)
				rank->rank[p] = q;
}

/*
 * True if the jobs of this lane are paused on their own, by tenant or kind.
 */
static bool
is_paused_alone(const QueueRank *rank, const JobqLane *lane)
{
	return hashes_have(&rank->tenants, JOBQ_TENANT(lane)) ||
		hashes_have(&rank->kinds, lane->held);
}

/*
 * Update all lanes of the queue.  The lanes of a missing queue stay without a rank.  The
 * queue may come with a transaction that has not committed, whose jobs the scheduler has
 * noticed before: the hand-over of the jobs then requests a rank again.
 */
static void
rank_lanes(const QueueRank *rank)
{
	JobqParty  *queue = jobq_party_find(my_db, rank->queue_id, 0, 0);
	uint16		order = jobq_order_find(my_db, rank->rank);

	AssertExclusive(my_db->lock);
	for (uint32 i = queue == NULL ? JOBQ_NONE : queue->lanes; i != JOBQ_NONE;
		 i = my_db->ready->lanes[i].party_next)
	{
		JobqLane   *lane = &my_db->ready->lanes[i];
		bool		alone = !rank->paused && is_paused_alone(rank, lane);

		if (rank->missing)
		{
			lane->ranked = false;
			lane->order = JOBQ_NO_ORDER;
			jobq_lane_place(my_db, lane);
			continue;
		}
		jobq_lane_rank(my_db, lane, order, rank->consumer, rank->paused || alone,
					   alone, limits_lacked(lane));
	}
}

/*
 * Update the rank of each lane in each pool, and the pause of its queue.  All lanes are
 * updated under one lock; otherwise a worker could prefer a queue only because it was
 * updated first.  If only new lanes are to be ranked, no other queue is processed.
 */
static TimestampTz
run(TimestampTz now)
{
	MemoryContext memory = CurrentMemoryContext;
	int32	   *queues = palloc(sizeof(int32) * jobq_max_lanes);
	QueueRank  *ranks;
	JobqWakeList wake = {0};
	bool		limits_stale;
	bool		all;
	int			n;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	limits_stale = my_db->limits->stale;
	all = my_db->reload || limits_stale;
	my_db->reload = false;
	my_db->limits->stale = false;
	my_db->limits->loading |= limits_stale;
	n = queues_of_lanes(queues, all);
	LWLockRelease(my_db->lock);
	qsort(queues, n, sizeof(int32), jobq_compare_int32);
	n = qunique(queues, n, sizeof(int32), jobq_compare_int32);
	if (n == 0 && !all)
	{
		pfree(queues);
		return DT_NOEND;		/* ranked since the request */
	}
	ranks = palloc0(sizeof(QueueRank) * Max(n, 1));

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	jobq_lock_jobs();
	if (jobq_relations_if_installed() == NULL)
		proc_exit(0);
	if (limits_stale)
		limits_load();
	for (int i = 0; i < n; i++)
	{
		ranks[i].queue_id = queues[i];
		rank_queue(&ranks[i], memory);
	}
	CommitTransactionCommand();

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (all)
		jobq_orders_forget(my_db);
	for (int i = 0; i < n; i++)
		rank_lanes(&ranks[i]);
	if (all)
	{
		/* a queue no longer paused may have no lanes: look for them */
		my_db->ready->overflow |= my_db->ready->paused_forgotten;
		my_db->ready->paused_forgotten = false;
		jobq_consumers_wake(my_db);
	}

	/* idle workers may have work now */
	jobq_foreach_slot(slot, my_db, JOBQ_SLOTS_ATTACHED)
	{
		if (slot->idle)
		{
			PGPROC	   *proc = slot->proc;

			slot->idle = false;
			if (proc != NULL)
				SetLatch(&proc->procLatch);
		}
	}
	jobq_unlock(my_db, &wake);
	for (int i = 0; i < n; i++)
	{
		hashes_free(&ranks[i].tenants);
		hashes_free(&ranks[i].kinds);
	}
	pfree(ranks);
	pfree(queues);
	return DT_NOEND;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	return my_db->reload || my_db->ready->unranked != JOBQ_NONE ? now : DT_NOEND;
}
