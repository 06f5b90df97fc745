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
 * Where turns go by processor time (fair_cost), a job moves its tenant's turn on by
 * what jobs of the tenant take on average, as nobody knows what this one will.  When
 * its worker comes for the next job, that is known: what was too little moves the
 * turn on by the rest; what was too much is a credit, which makes the next jobs
 * cheaper, as a turn never goes back (heap.c).  So a tenant pays in the end for what
 * its jobs have used, neither more nor less, whatever they were expected to.  Nobody
 * measures what consumers do: their jobs cost the average, which is the same for all
 * tenants unless workers have measured some before.  All of this is in memory only;
 * after a start all tenants begin at the same.
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
 * A job costs that many microseconds at least, and as many as long as none was
 * measured.
 */
#define LEAST_COST		10.0
#define UNKNOWN_COST	1000.0

/* The average is that of about so many jobs; and what one counts for at most. */
#define AVERAGE_JOBS	8
#define MOST_AVERAGES	4

/*
 * A credit is not for more than so many jobs like the one that has cost less: it
 * is for those that were under way, and no fortune to outrun others with later.
 */
#define CREDIT_JOBS		32

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
		db->limits->limiters[lane->queue_limiter].fair)
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
 * The share of the tenant: how many turns it has where others have one.
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
 * What a job of the tenant is likely to cost.
 */
static double
likely_cost(const JobqLimiter *limiter, const JobqParty *party)
{
	if (party->cost > 0)
		return party->cost;
	return limiter->tenant_cost > 0 ? limiter->tenant_cost : UNKNOWN_COST;
}

/*
 * A job of the lane was popped: move on the turns of its tenant and queue.  Returns
 * for how much of processor time its tenant was charged, or 0 if its turns are not
 * by that.
 */
double
lane_served_one(JobqDatabase *db, JobqLane *lane)
{
	JobqLimiter *limiter = lane->queue_limiter == JOBQ_NO_LIMITER ? NULL
		: &db->limits->limiters[lane->queue_limiter];
	JobqParty  *party;
	double		charged = 0;

	if (db->limits->weighted)
	{
		party = &db->ready->parties[lane->party];
		db->limits->queue_turn = Max(db->limits->queue_turn, party->turn);
		party->turn = db->limits->queue_turn +
			1.0 / (limiter == NULL ? 1 : Max(limiter->weight, 1));
	}
	if (limiter != NULL && limiter->fair && lane->tenant != 0)
	{
		double		step = 1;

		party = &db->ready->parties[lane->tenant_party];
		if (limiter->fair_cpu)
		{
			double		repaid;

			charged = likely_cost(limiter, party);
			repaid = Min(party->credit, charged - LEAST_COST);
			party->credit -= repaid;
			step = charged - repaid;
		}
		limiter->tenant_turn = Max(limiter->tenant_turn, party->turn);
		party->turn = limiter->tenant_turn + step / weight_of(limiter, lane->tenant);
	}
	lane_moved(db, lane);
	return charged;
}

/*
 * A job has cost so much.  One that has cost far more than others counts as one that
 * has cost a few times as much: the next need not be like it.
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
 * The run of a job that was popped is over and has used so many microseconds of
 * processor time: its tenant has paid too little for it, or too much.  "ran": it is
 * one by which others can be judged.  Does nothing if its queue has no such turns any
 * more, or its tenant no lane.
 *
 * A lane that has moved on in its turn is found to be so when it comes to the top of
 * its heap, so this costs the same however many lanes there are.
 */
void
jobq_turn_settle(JobqDatabase *db, const JobqPush *job, double used, bool ran)
{
	uint16		index = jobq_limiter_find(db, job->queue_id, 0);
	JobqLimiter *limiter = index == JOBQ_NO_LIMITER ? NULL
		: &db->limits->limiters[index];
	JobqParty  *party = jobq_party_find(db, job->queue_id, job->tenant);
	double		missing;

	if (limiter == NULL || !limiter->fair_cpu || party == NULL ||
		job->tenant == 0 || job->charged <= 0)
		return;
	used = Max(used, LEAST_COST);
	missing = used - job->charged;
	if (missing > 0)
	{
		double		repaid = Min(party->credit, missing);

		party->credit -= repaid;
		party->turn += (missing - repaid) / weight_of(limiter, job->tenant);
	}
	else if (party->credit < CREDIT_JOBS * job->charged)
		party->credit = Min(party->credit - missing, CREDIT_JOBS * job->charged);
	if (!ran)
		return;
	note_cost(&party->cost, used);
	note_cost(&limiter->tenant_cost, used);
}

/*
 * Turns go by another measure from now on: all tenants of the limiter's queue begin
 * at the same.  Looks at all lanes; the caller has them placed anew.
 */
void
jobq_turns_begin(JobqDatabase *db, uint16 limiter)
{
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &db->ready->lanes[i];
		JobqParty  *party = &db->ready->parties[lane->tenant_party];

		if (!lane->in_use || lane->tenant_party == lane->party ||
			lane->queue_id != db->limits->limiters[limiter].queue_id)
			continue;
		party->turn = db->limits->limiters[limiter].tenant_turn;
		party->cost = party->credit = 0;
	}
	db->limits->limiters[limiter].tenant_cost = 0;
}
