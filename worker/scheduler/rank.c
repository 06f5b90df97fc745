/*-------------------------------------------------------------------------
 *
 * rank.c
 *	  Which workers serve a lane, and in what order; when queues or settings
 *	  have changed, or there is a new lane.
 *
 * worker/scheduler/rank.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"

#include "scheduler/duty.h"

/* What a lane has from its queue. */
typedef struct QueueRank
{
	int32		queue_id;
	bool		exists;
	bool		paused;
	bool		consumer;
	uint8		rank[JOBQ_MAX_POOLS];
}			QueueRank;

static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static int	queues_of_lanes(QueueRank * ranks);
static void rank_queue(QueueRank * rank);
static void rank_lane(JobqLane *lane, const QueueRank * rank);

/* Looks at each lane once, and at each of their queues. */
Duty		rank_duty = {
	.run = run,
	.next_due = next_due,
};

/*
 * The queues that have lanes.  Wants db->lock.
 */
static int
queues_of_lanes(QueueRank * ranks)
{
	int			n = 0;

	for (int i = 0; i < jobq_max_lanes; i++)
	{
		bool		known = !my_db->ready->lanes[i].in_use;

		for (int j = 0; j < n && !known; j++)
			known = ranks[j].queue_id == my_db->ready->lanes[i].queue_id;
		if (!known)
			ranks[n++].queue_id = my_db->ready->lanes[i].queue_id;
	}
	return n;
}

/*
 * The place of the queue in the order of each pool: where it is named, or else
 * the place of "*".
 */
static void
rank_queue(QueueRank * rank)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(rank->queue_id, &buffer);
	const JobqPoolSet *pools = jobq_pools();
	bool		named = false;

	memset(rank->rank, JOBQ_NOT_SERVED, sizeof(rank->rank));
	rank->exists = queue != NULL;
	if (queue == NULL)
		return;
	rank->paused = queue->paused;
	rank->consumer = queue->mode == MODE_CONSUMER;
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

static void
rank_lane(JobqLane *lane, const QueueRank * rank)
{
	memcpy(lane->rank, rank->rank, sizeof(lane->rank));
	if (((lane->paused && !rank->paused) || lane->consumer != rank->consumer) &&
		!lane->quarantine)
	{
		/* what was popped in between goes back; read it again all the same */
		lane->cursor.run_at = PG_INT64_MIN;
		lane->cursor.id = PG_INT64_MIN;
		lane->more = true;
	}
	lane->paused = rank->paused;
	lane->consumer = rank->consumer;
	lane->queue_limiter = jobq_limiter_find(my_db, lane->queue_id, 0);
	lane->kind_limiter = lane->kind == 0 ? JOBQ_NO_LIMITER
		: jobq_limiter_find(my_db, 0, lane->kind);
	lane->ranked = true;
}

/*
 * Give each lane its rank in each pool, and whether its queue is paused.  All
 * of them at once, or a worker could prefer a queue for no other reason than
 * that it was ranked first.
 */
static TimestampTz
run(TimestampTz now)
{
	QueueRank  *ranks = palloc0(sizeof(QueueRank) * jobq_max_lanes);
	JobqWakeList wake = {0};
	bool		limits_stale;
	int			n;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->reload = false;
	limits_stale = my_db->limits->stale;
	my_db->limits->stale = false;
	my_db->limits->loading |= limits_stale;
	n = queues_of_lanes(ranks);
	LWLockRelease(my_db->lock);

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	jobq_lock_jobs();
	if (jobq_relations_if_installed() == NULL)
		proc_exit(0);
	if (limits_stale)
		limits_load();
	for (int i = 0; i < n; i++)
		rank_queue(&ranks[i]);
	CommitTransactionCommand();

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < jobq_max_lanes; i++)
		for (int j = 0; j < n && my_db->ready->lanes[i].in_use; j++)
			if (ranks[j].queue_id == my_db->ready->lanes[i].queue_id)
			{
				if (ranks[j].exists)
					rank_lane(&my_db->ready->lanes[i], &ranks[j]);
				break;
			}

	/* a queue that goes on may have none: look for its lanes */
	my_db->ready->overflow |= my_db->ready->paused_forgotten;
	my_db->ready->paused_forgotten = false;

	/* idle workers and waiting consumers may find that they have work now */
	for (uint32 i = my_db->ready->active_head; i != JOBQ_NONE;
		 i = my_db->ready->lanes[i].active_next)
		if (my_db->ready->lanes[i].consumer)
			jobq_lane_wake(my_db, &my_db->ready->lanes[i], jobq_now(), &wake);
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot->state == JOBQ_SLOT_ATTACHED &&
			slot->database == my_db_index && slot->idle)
		{
			PGPROC	   *proc = slot->proc;

			slot->idle = false;
			if (proc != NULL)
				SetLatch(&proc->procLatch);
		}
	}
	jobq_unlock(my_db, &wake);
	pfree(ranks);
	return DT_NOEND;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	return my_db->reload ? now : DT_NOEND;
}
