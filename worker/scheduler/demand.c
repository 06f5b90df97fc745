/*-------------------------------------------------------------------------
 *
 * demand.c
 *	  Which roles want workers, which workers there are, and whose turn it is.
 *
 * All is read under the lock in one go; what is made of it needs none.
 *
 * A role that has jobs, but no worker in a pool, comes before those that have
 * one.  Among several such roles turns go round, in the order of their OIDs.  If
 * the jobs of some are more urgent, by the place of their queue in the pool and
 * by priority, then every other place is given by urgency.  So urgent jobs come
 * soon, and yet all roles come to their turn: after two rounds at most.
 *
 * worker/scheduler/demand.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

/* What a lane wants. */
typedef struct LaneDemand
{
	Oid			role;
	int32		priority;
	uint32		waiting;
	uint8		rank[JOBQ_MAX_POOLS];
} LaneDemand;

/* Where the turns of a pool stand: the last roles that got a place. */
typedef struct PoolTurns
{
	Oid			round;			/* by its turn */
	Oid			urgent;			/* because its jobs were urgent */
	Oid			further;		/* having others already */
	bool		in_turn;		/* the next place goes by turn */
} PoolTurns;

static PoolTurns turns[JOBQ_MAX_POOLS];

static int	read_lanes(LaneDemand *lanes, TimestampTz now);
static int	read_workers(WorkerView *workers, TimestampTz now);
static void add_roles(PoolDemand *pool, int index, const LaneDemand *lanes,
					  int nlanes);
static void add_workers(Demand *demand);
static int	compare_lanes(const void *a, const void *b);
static int	compare_workers(const void *a, const void *b);

/*
 * What all pools want, in the current memory context.
 */
Demand *
demand_read(const JobqPoolSet *pools, TimestampTz now)
{
	Demand	   *demand = palloc0(sizeof(Demand));
	LaneDemand *lanes = palloc(sizeof(LaneDemand) * jobq_max_lanes);
	int			nlanes;

	demand->npools = pools->npools;
	demand->workers = palloc(sizeof(WorkerView) * jobq_shared->nslots);
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	nlanes = read_lanes(lanes, now);
	demand->nworkers = read_workers(demand->workers, now);
	LWLockRelease(my_db->lock);

	qsort(lanes, nlanes, sizeof(LaneDemand), compare_lanes);
	for (int i = 0; i < demand->npools; i++)
	{
		demand->pools[i].size = pools->pools[i].workers;
		add_roles(&demand->pools[i], i, lanes, nlanes);
	}
	qsort(demand->workers, demand->nworkers, sizeof(WorkerView), compare_workers);
	add_workers(demand);
	pfree(lanes);
	return demand;
}

/*
 * The heaps of lanes with jobs that workers may start.  Wants db->lock.
 *
 * Of what is in quarantine, one may run at a time.
 */
static int
read_lanes(LaneDemand *lanes, TimestampTz now)
{
	JobqReady  *ready = my_db->ready;
	int			n = 0;

	for (uint32 r = ready->roles_head; r != JOBQ_NONE; r = ready->roles[r].next)
		for (uint32 i = ready->roles[r].heaps; i != JOBQ_NONE; i = ready->heaps[i].next)
		{
			JobqHeap   *heap = &ready->heaps[i];
			uint32		most = heap->quarantine ? 1 : jobq_shared->nslots;

			if (heap->quarantine && ready->quarantine_slot >= 0)
				continue;
			lanes[n].role = heap->role;
			lanes[n].waiting = jobq_heap_demand(my_db, heap, most, now,
												&lanes[n].priority);
			if (lanes[n].waiting == 0)
				continue;
			memcpy(lanes[n++].rank, ready->orders[heap->order].rank,
				   sizeof(lanes->rank));
		}
	return n;
}

/*
 * The workers of this database.  Wants db->lock.
 */
static int
read_workers(WorkerView *workers, TimestampTz now)
{
	int			n = 0;

	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		const JobqSlot *slot = &jobq_shared->slots[i];
		WorkerView *worker = &workers[n];

		if (slot->database != my_db_index ||
			(slot->state != JOBQ_SLOT_STARTING &&
			 slot->state != JOBQ_SLOT_ATTACHED))
			continue;
		memset(worker, 0, sizeof(WorkerView));
		worker->slot = i;
		worker->generation = slot->generation;
		worker->role = slot->role;
		worker->pool = slot->pool;
		/* it has not looked for its first job yet */
		worker->coming = slot->state == JOBQ_SLOT_STARTING || slot->idle_since == 0;
		worker->idle = slot->state == JOBQ_SLOT_ATTACHED && slot->idle;
		worker->leaves = slot->retire;
		worker->comes_back = slot->comes_back;
		/* the clock may have been put back */
		worker->started_at = Min(slot->started_at, now);
		worker->idle_since = Min(slot->idle_since, now);
		worker->yields_since = slot->yields ? Min(slot->yields_since, now) : 0;
		worker->in_job = slot->job_id != 0;
		worker->urgency = PG_INT64_MAX;
		n++;
	}
	return n;
}

/*
 * The roles that have jobs for the pool.
 */
static void
add_roles(PoolDemand *pool, int index, const LaneDemand *lanes, int nlanes)
{
	RoleDemand *role = NULL;

	pool->roles = palloc(sizeof(RoleDemand) * Max(nlanes, 1));
	for (int i = 0; i < nlanes; i++)
	{
		uint8		rank = lanes[i].rank[index];

		if (rank == JOBQ_NOT_SERVED)
			continue;
		if (role == NULL || role->role != lanes[i].role)
		{
			role = &pool->roles[pool->nroles++];
			memset(role, 0, sizeof(RoleDemand));
			role->role = lanes[i].role;
			role->urgency = PG_INT64_MAX;
		}
		role->waiting += lanes[i].waiting;
		role->urgency = Min(role->urgency,
							((int64) rank << 33) + lanes[i].priority);
	}
}

/*
 * The workers that pools and roles have.
 */
static void
add_workers(Demand *demand)
{
	WorkerView *first = demand->workers;
	int			peers = 0;

	for (int i = 0; i < demand->nworkers; i++)
	{
		WorkerView *worker = &demand->workers[i];
		PoolDemand *pool;
		RoleDemand *role;

		if (compare_workers(first, worker) != 0)
		{
			first = worker;
			peers = 0;
		}
		if (worker->pool >= demand->npools)
			continue;
		pool = &demand->pools[worker->pool];
		pool->workers++;
		if (worker->leaves)
		{
			if (!worker->in_job)
				pool->leaving++;
			continue;
		}
		peers++;
		for (WorkerView *peer = first; peer <= worker; peer++)
			peer->peers = peers;
		role = demand_role(pool, worker->role);
		if (role == NULL)
			continue;
		worker->urgency = role->urgency;
		role->workers++;
		if (worker->idle || worker->coming)
			role->ready++;
	}
}

static int
compare_lanes(const void *a, const void *b)
{
	Oid			role_a = ((const LaneDemand *) a)->role;
	Oid			role_b = ((const LaneDemand *) b)->role;

	return role_a < role_b ? -1 : role_a > role_b;
}

/* Those of the same role and pool are neighbours. */
static int
compare_workers(const void *a, const void *b)
{
	const WorkerView *one = a;
	const WorkerView *two = b;

	if (one->pool != two->pool)
		return one->pool - two->pool;
	return one->role < two->role ? -1 : one->role > two->role;
}

/*
 * What the role wants of the pool, or NULL.
 */
RoleDemand *
demand_role(const PoolDemand *pool, Oid role)
{
	int			low = 0;
	int			high = pool->nroles;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (pool->roles[middle].role < role)
			low = middle + 1;
		else
			high = middle;
	}
	return low < pool->nroles && pool->roles[low].role == role
		? &pool->roles[low] : NULL;
}

/*
 * How many roles have jobs for the pool, but no worker.
 */
int
demand_without_worker(const PoolDemand *pool)
{
	int			n = 0;

	for (int i = 0; i < pool->nroles; i++)
		if (pool->roles[i].waiting > 0 && pool->roles[i].workers == 0)
			n++;
	return n;
}

/*
 * How far the role is from being next, when "last" had its turn.
 */
static uint32
distance(Oid role, Oid last)
{
	return role - last - 1;
}

/*
 * The role that is to have the next worker of the pool, or NULL if none wants
 * one.
 */
RoleDemand *
demand_next(PoolDemand *pool, int index)
{
	PoolTurns  *turn = &turns[index];
	RoleDemand *in_turn = NULL;
	RoleDemand *urgent = NULL;
	RoleDemand *further = NULL;

	for (int i = 0; i < pool->nroles; i++)
	{
		RoleDemand *role = &pool->roles[i];

		if (role->waiting <= (uint32) role->ready)
			continue;
		if (role->workers > 0)
		{
			if (further == NULL || role->urgency < further->urgency ||
				(role->urgency == further->urgency &&
				 (role->workers < further->workers ||
				  (role->workers == further->workers &&
				   distance(role->role, turn->further) <
				   distance(further->role, turn->further)))))
				further = role;
			continue;
		}
		if (in_turn == NULL || distance(role->role, turn->round) <
			distance(in_turn->role, turn->round))
			in_turn = role;
		if (urgent == NULL || role->urgency < urgent->urgency ||
			(role->urgency == urgent->urgency &&
			 distance(role->role, turn->urgent) <
			 distance(urgent->role, turn->urgent)))
			urgent = role;
	}
	if (in_turn == NULL)
	{
		turn->in_turn = false;
		return further;
	}
	pool->by_turn = turn->in_turn || in_turn->urgency <= urgent->urgency;
	return pool->by_turn ? in_turn : urgent;
}

/*
 * The role that came next has got a worker.
 */
void
demand_met(PoolDemand *pool, int index, RoleDemand *role)
{
	PoolTurns  *turn = &turns[index];

	if (role->workers > 0)
		turn->further = role->role;
	else if (pool->by_turn)
		turn->round = role->role;
	else
		turn->urgent = role->role;
	turn->in_turn = role->workers == 0 && !pool->by_turn;
	pool->workers++;
	role->workers++;
	role->ready++;
}
