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

/*
 * The place of the lane in the order of this taker, or JOBQ_NOT_SERVED.
 */
static uint8
lane_rank(const JobqLane *lane, const JobqTaker *taker)
{
	uint8		rank = JOBQ_NOT_SERVED;

	if (!lane->ranked || lane->paused)
		return JOBQ_NOT_SERVED;
	if (taker->pool >= 0)
		rank = lane->rank[taker->pool];
	else if (lane->consumer)
		for (int i = 0; i < taker->nqueues && rank == JOBQ_NOT_SERVED; i++)
			if (taker->queue_ids[i] == lane->queue_id)
				rank = i;
	if (rank == JOBQ_NOT_SERVED || taker->any_role)
		return rank;
	for (int i = 0; i < taker->nroles; i++)
		if (taker->roles[i] == lane->role)
			return rank;
	return JOBQ_NOT_SERVED;
}

/*
 * A lane without a tenant is from before the queue was fair.  It comes first:
 * its jobs are written anew, so that those of all tenants are seen.
 */
static double
tenant_turn(const JobqLane *lane, double now)
{
	return lane->tenant == 0 ? -1 : Max(lane->turn, now);
}

static double
queue_turn(JobqDatabase *db, const JobqLane *lane)
{
	return Max(lane->queue_turn, db->limits->queue_turn);
}

/*
 * Does the lane come before the other in the order of a taker, for whom they
 * have these ranks?
 */
static bool
lane_before(JobqDatabase *db, const JobqLane *lane, uint8 rank,
			const JobqLane *other, uint8 other_rank)
{
	if (rank != other_rank)
		return rank < other_rank;
	if (db->limits->weighted && lane->queue_id != other->queue_id)
	{
		double		turn = queue_turn(db, lane);
		double		other_turn = queue_turn(db, other);

		if (turn != other_turn)
			return turn < other_turn;
	}
	if (lane->priority != other->priority)
		return lane->priority < other->priority;
	if (lane->queue_id == other->queue_id && lane->tenant != other->tenant &&
		lane->queue_limiter != JOBQ_NO_LIMITER &&
		db->limits->limiters[lane->queue_limiter].fair)
	{
		double		now = db->limits->limiters[lane->queue_limiter].tenant_turn;
		double		turn = tenant_turn(lane, now);
		double		other_turn = tenant_turn(other, now);

		if (turn != other_turn)
			return turn < other_turn;
	}
	return jobq_key_cmp(db->ready->entries[lane->head].key,
						db->ready->entries[other->head].key) <= 0;
}

/*
 * The lane whose first job comes first for this taker, or NULL.
 */
JobqLane *
lane_best(JobqDatabase *db, const JobqTaker *taker, TimestampTz now,
		  uint8 *best_rank)
{
	JobqLane   *best = NULL;

	for (uint32 i = db->ready->active_head; i != JOBQ_NONE;
		 i = db->ready->lanes[i].active_next)
	{
		JobqLane   *lane = &db->ready->lanes[i];
		uint8		rank = lane_rank(lane, taker);

		if (rank == JOBQ_NOT_SERVED ||
			(lane->quarantine && taker->pool >= 0 && db->ready->quarantine_slot >= 0))
			continue;
		if (best != NULL && !lane_before(db, lane, rank, best, *best_rank))
			continue;
		if (!jobq_lane_free(db, lane, now))
			continue;
		best = lane;
		*best_rank = rank;
	}
	return best;
}

/*
 * A job of the lane was popped: move on the turns of its tenant and queue.
 */
void
lane_served_one(JobqDatabase *db, JobqLane *lane)
{
	JobqLimiter *limiter = lane->queue_limiter == JOBQ_NO_LIMITER ? NULL
		: &db->limits->limiters[lane->queue_limiter];
	int			weight = 1;

	if (db->limits->weighted)
	{
		db->limits->queue_turn = Max(db->limits->queue_turn, lane->queue_turn);
		lane->queue_turn = db->limits->queue_turn +
			1.0 / (limiter == NULL ? 1 : Max(limiter->weight, 1));
		for (uint32 i = db->ready->active_head; i != JOBQ_NONE;
			 i = db->ready->lanes[i].active_next)
			if (db->ready->lanes[i].queue_id == lane->queue_id)
				db->ready->lanes[i].queue_turn = lane->queue_turn;
	}
	if (limiter == NULL || !limiter->fair || lane->tenant == 0)
		return;
	for (int i = 0; i < limiter->nweights; i++)
		if (limiter->weights[i].tenant == lane->tenant)
			weight = limiter->weights[i].weight;
	limiter->tenant_turn = Max(limiter->tenant_turn, lane->turn);
	lane->turn = limiter->tenant_turn + 1.0 / weight;
	for (uint32 i = db->ready->active_head; i != JOBQ_NONE;
		 i = db->ready->lanes[i].active_next)
		if (db->ready->lanes[i].queue_id == lane->queue_id &&
			db->ready->lanes[i].tenant == lane->tenant)
			db->ready->lanes[i].turn = lane->turn;
}
