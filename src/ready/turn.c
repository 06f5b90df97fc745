/*-------------------------------------------------------------------------
 *
 *	  Finds the lane whose first job comes first for a taker.
 *
 * The order is: rank of the queue for the taker; turn, if queues have weights; priority; the
 * tenants' turn, if the queue is fair; age.
 *
 * Turns follow start-time fair queueing.  Each started job of a tenant (or a weighted queue)
 * advances its turn by 1 / weight.  The lowest turn comes next.  A new tenant begins at the
 * turn of the others.
 *
 * If turns depend on processor time (fair => 'cpu'), a job advances its tenant's turn by the
 * average cost of the tenant's jobs, because the cost is unknown in advance.  The cost is
 * known when the worker comes for its next job.  Missing cost then advances the turn further.
 * Excess cost becomes a credit, which makes the next jobs cheaper, because a turn never
 * decreases (heap.c).  In the end, a tenant pays exactly the cost of its jobs, whatever was
 * expected.
 *
 * The cost of consumers is not measured.  Their jobs cost the average, which is the same for
 * all tenants unless workers have measured some jobs before.  All turns are in memory only,
 * so all tenants begin equal after a start.
 *
 * src/ready/turn.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/*
 * Minimum cost of a job, and the assumed cost before any measurement, in microseconds.
 */
#define LEAST_COST		10.0
#define UNKNOWN_COST	1000.0

/* Weight of the average, in jobs; and the maximum cost of a job, in averages. */
#define AVERAGE_JOBS	8
#define MOST_AVERAGES	4

/*
 * Maximum credit, in jobs like the cheaper job.  The credit covers jobs that were running at
 * the same time.  A larger credit would let the tenant overtake others later.
 */
#define CREDIT_JOBS		32

/* The best lane so far. */
typedef struct Choice
{
	JobqLane   *lane;
	uint8		rank;
} Choice;

/*
 * Does the lane come before the other lane, which is the first of another heap with the same
 * rank?
 */
static bool
lane_before(JobqDatabase *db, const JobqLane *lane, const JobqLane *other)
{
	const JobqParty *parties = db->ready->parties;

	AssertExclusive(db->lock);
	if (db->limits->weighted && lane->party != other->party &&
		parties[lane->party].turn != parties[other->party].turn)
		return parties[lane->party].turn < parties[other->party].turn;
	if (lane->priority != other->priority)
		return lane->priority < other->priority;
	if (lane->party == other->party && JOBQ_TENANT(lane) != JOBQ_TENANT(other) &&
		lane->limiters[JOBQ_OF_QUEUE] != JOBQ_NO_LIMITER &&
		db->limits->limiters[lane->limiters[JOBQ_OF_QUEUE]].fair)
	{
		double		turn = db->ready->nodes[JOBQ_LANE_INDEX(db, lane)].turn;
		double		other_turn = db->ready->nodes[JOBQ_LANE_INDEX(db, other)].turn;

		if (turn != other_turn)
			return turn < other_turn;
	}
	return jobq_key_cmp(db->ready->entries[lane->head].key,
						db->ready->entries[other->head].key) < 0;
}

/*
 * Replace the choice if the first lane of the heap is better.
 */
static void
consider(JobqDatabase *db, JobqHeap *heap, const JobqTaker *taker, uint8 rank,
		 TimestampTz now, Choice *choice)
{
	JobqLane   *lane;

	AssertExclusive(db->lock);
	if (rank == JOBQ_NOT_SERVED || (choice->lane != NULL && rank > choice->rank))
		return;
	lane = heap_first(db, heap);
	if (choice->lane != NULL && rank == choice->rank &&
		!lane_before(db, lane, choice->lane))
		return;
	if (!taker->unlimited &&
		heap_room_for(db, heap, taker, now, &db->limits->due) == 0)
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
 * Return the lane whose first job comes first for this taker, or NULL.  *best_rank gets its
 * rank.  The lane may have to wait for its tenant or key: see keyed_recall().
 */
JobqLane *
lane_best(JobqDatabase *db, const JobqTaker *taker, TimestampTz now,
		  uint8 *best_rank)
{
	JobqReady  *ready = db->ready;
	Choice		choice = {NULL, JOBQ_NOT_SERVED};

	AssertExclusive(db->lock);
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
		JobqParty  *queue = jobq_party_find(db, taker->queue_ids[q], 0, 0);

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
 * Return the weight of the tenant: the number of turns for each turn of a tenant with weight
 * 1.
 */
static int
weight_of(const JobqLimiter *limiter, uint32 tenant)
{
	for (int i = 0; i < limiter->nweights; i++)
		if (limiter->weighted[i] == tenant)
			return limiter->weights[i];
	return 1;
}

/*
 * Return the expected cost of a job of the tenant, in microseconds.
 */
static double
likely_cost(const JobqLimiter *limiter, const JobqParty *party)
{
	if (party->cost > 0)
		return party->cost;
	return limiter->tenant_cost > 0 ? limiter->tenant_cost : UNKNOWN_COST;
}

/*
 * A job of the lane was popped: advance the turns of its tenant and queue.  Returns the
 * microseconds of processor time charged to the tenant, or 0 if turns do not depend on
 * processor time.
 */
double
lane_served_one(JobqDatabase *db, JobqLane *lane)
{
	JobqLimiter *limiter = lane->limiters[JOBQ_OF_QUEUE] == JOBQ_NO_LIMITER ? NULL
		: &db->limits->limiters[lane->limiters[JOBQ_OF_QUEUE]];
	JobqParty  *party;
	double		charged = 0;

	AssertExclusive(db->lock);
	if (db->limits->weighted)
	{
		party = &db->ready->parties[lane->party];
		db->limits->queue_turn = Max(db->limits->queue_turn, party->turn);
		party->turn = db->limits->queue_turn +
			1.0 / (limiter == NULL ? 1 : Max(limiter->weight, 1));
	}
	if (limiter != NULL && limiter->fair && JOBQ_TENANT(lane) != 0)
	{
		double		step = 1;

		party = &db->ready->parties[lane->keys[JOBQ_OF_QUEUE]];
		if (limiter->fair_cpu)
		{
			double		repaid;

			charged = likely_cost(limiter, party);
			repaid = Min(party->credit, charged - LEAST_COST);
			party->credit -= repaid;
			step = charged - repaid;
		}
		limiter->tenant_turn = Max(limiter->tenant_turn, party->turn);
		party->turn = limiter->tenant_turn + step / weight_of(limiter, JOBQ_TENANT(lane));
	}
	lane_moved(db, lane);
	return charged;
}

/*
 * Include the cost of a job in the average.  The cost is limited to a few averages, because
 * the next job need not be as expensive.
 */
static void
note_cost(float *average, double used)
{
	if (*average <= 0)
		*average = used;
	else
		*average += (Min(used, *average * MOST_AVERAGES) - *average) / AVERAGE_JOBS;
}

/*
 * The run of a popped job is over, and has used this number of microseconds of processor
 * time: settle the difference to the charge.  ran: the run counts for the averages.  Does
 * nothing if turns of the queue no longer depend on processor time, or if the tenant has no
 * lane.
 *
 * A lane with a changed turn is detected when the lane comes to the top of its heap.  The
 * work here therefore does not depend on the number of lanes.
 */
void
jobq_turn_settle(JobqDatabase *db, const JobqPush *job, double used, bool ran)
{
	uint16		index = jobq_limiter_find(db, job->queue_id, 0);
	JobqLimiter *limiter = index == JOBQ_NO_LIMITER ? NULL
		: &db->limits->limiters[index];
	JobqParty  *party = jobq_party_find(db, job->queue_id, 0, JOBQ_TENANT(job));
	double		missing;

	AssertExclusive(db->lock);
	if (limiter == NULL || !limiter->fair_cpu || party == NULL ||
		JOBQ_TENANT(job) == 0 || job->charged <= 0)
		return;
	used = Max(used, LEAST_COST);
	missing = used - job->charged;
	if (missing > 0)
	{
		double		repaid = Min(party->credit, missing);

		party->credit -= repaid;
		party->turn += (missing - repaid) / weight_of(limiter, JOBQ_TENANT(job));
	}
	else if (party->credit < CREDIT_JOBS * job->charged)
		party->credit = Min(party->credit - missing, CREDIT_JOBS * job->charged);
	if (!ran)
		return;
	note_cost(&party->cost, used);
	note_cost(&limiter->tenant_cost, used);
}

/*
 * Turns have another unit from now on: all tenants of the limiter's queue begin at the same
 * turn.  Examines all lanes.  The caller places the lanes again.
 */
void
jobq_turns_begin(JobqDatabase *db, uint16 limiter)
{
	AssertExclusive(db->lock);
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &db->ready->lanes[i];
		JobqParty  *party = &db->ready->parties[lane->keys[JOBQ_OF_QUEUE]];

		if (!lane->in_use || lane->keys[JOBQ_OF_QUEUE] == lane->party ||
			lane->queue_id != db->limits->limiters[limiter].queue_id)
			continue;
		party->turn = db->limits->limiters[limiter].tenant_turn;
		party->cost = party->credit = 0;
	}
	db->limits->limiters[limiter].tenant_cost = 0;
}
