/*-------------------------------------------------------------------------
 *
 * turn.c
 *	  Whose turn it is: the lane whose first job comes first for a taker.
 *
 * By rank of the queue for the taker; then by turn, if queues have weights; by
 * priority; by the tenants' turn, if the queue is fair; by age.
 *
 * Turns are those of start-time fair queueing: each job that a tenant (or a
 * weighted queue) starts moves its turn on by one over its weight, and the lowest
 * turn comes next.  Who comes newly begins where the others are.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/turn.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/* What has been found so far. */
typedef struct Choice
{
	JobqLane   *lane;
	uint8		rank;
} Choice;

static bool lane_before(JobqDatabase *db, const JobqLane *lane,
						const JobqLane *other);
static void consider(JobqDatabase *db, JobqHeap *heap, const JobqTaker *taker,
					 uint8 rank, TimestampTz now, Choice *choice);

/*
 * Does the lane come before the other, which is the first one of another heap and
 * has the same rank?
 */
static bool
lane_before(JobqDatabase *db, const JobqLane *lane, const JobqLane *other)
{
	const JobqParty *parties = db->ready->parties;

	if (db->limits->weighted && lane->party != other->party &&
		parties[lane->party].turn != parties[other->party].turn)
		return parties[lane->party].turn < parties[other->party].turn;
	if (lane->priority != other->priority)
		return lane->priority < other->priority;
	if (lane->party == other->party && lane->tenant != other->tenant &&
		lane->queue_limiter != JOBQ_NO_LIMITER &&
		db->limits->limiters[lane->queue_limiter].fair &&
		lane->turn != other->turn)
		return lane->turn < other->turn;
	return jobq_key_cmp(db->ready->entries[lane->head].key,
						db->ready->entries[other->head].key) < 0;
}

/*
 * Is the first lane of the heap better than what we have?
 */
static void
consider(JobqDatabase *db, JobqHeap *heap, const JobqTaker *taker, uint8 rank,
		 TimestampTz now, Choice *choice)
{
	JobqLane   *lane;

	if (rank == JOBQ_NOT_SERVED || (choice->lane != NULL && rank > choice->rank))
		return;
	lane = heap_first(db, heap);
	if (choice->lane != NULL && rank == choice->rank &&
		!lane_before(db, lane, choice->lane))
		return;
	if (heap_room_for(db, heap, taker, now, &db->limits->due) == 0)
		return;
	choice->lane = lane;
	choice->rank = rank;
}

static bool
may_take(const JobqTaker *taker, Oid role)
{
	if (taker->any_role)
		return true;
	for (int i = 0; i < taker->nroles; i++)
		if (taker->roles[i] == role)
			return true;
	return false;
}

/*
 * The lane whose first job comes first for this taker, or NULL.
 */
JobqLane *
lane_best(JobqDatabase *db, const JobqTaker *taker, TimestampTz now,
		  uint8 *best_rank)
{
	JobqReady  *ready = db->ready;
	Choice		choice = {NULL, JOBQ_NOT_SERVED};

	for (int r = 0; r < taker->nroles && taker->pool >= 0; r++)
	{
		JobqRole   *role = jobq_role_find(db, taker->roles[r]);

		for (uint32 i = role == NULL ? JOBQ_NONE : role->heaps; i != JOBQ_NONE;
			 i = ready->heaps[i].next)
			if (!ready->heaps[i].quarantine || ready->quarantine_slot < 0)
				consider(db, &ready->heaps[i], taker,
						 ready->orders[ready->heaps[i].order].rank[taker->pool],
						 now, &choice);
	}
	for (int q = 0; q < taker->nqueues && taker->pool < 0; q++)
	{
		JobqParty  *queue = jobq_party_find(db, taker->queue_ids[q], 0);

		for (uint32 i = queue == NULL ? JOBQ_NONE : queue->heaps; i != JOBQ_NONE;
			 i = ready->heaps[i].next)
			if (may_take(taker, ready->heaps[i].role))
				consider(db, &ready->heaps[i], taker, q, now, &choice);
		if (choice.lane != NULL)
			break;				/* queues are in order */
	}
	*best_rank = choice.rank;
	return choice.lane;
}

/*
 * A job of the lane was popped: move on the turns of its tenant and queue.
 */
void
lane_served_one(JobqDatabase *db, JobqLane *lane)
{
	JobqLimiter *limiter = lane->queue_limiter == JOBQ_NO_LIMITER ? NULL
		: &db->limits->limiters[lane->queue_limiter];
	JobqParty  *party;
	int			weight = 1;

	if (db->limits->weighted)
	{
		party = &db->ready->parties[lane->party];
		db->limits->queue_turn = Max(db->limits->queue_turn, party->turn);
		party->turn = db->limits->queue_turn +
			1.0 / (limiter == NULL ? 1 : Max(limiter->weight, 1));
	}
	if (limiter != NULL && limiter->fair && lane->tenant != 0)
	{
		for (int i = 0; i < limiter->nweights; i++)
			if (limiter->weights[i].tenant == lane->tenant)
				weight = limiter->weights[i].weight;
		party = &db->ready->parties[lane->tenant_party];
		limiter->tenant_turn = Max(limiter->tenant_turn, party->turn);
		party->turn = limiter->tenant_turn + 1.0 / weight;
	}
	lane_moved(db, lane);
}
