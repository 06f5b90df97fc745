/*-------------------------------------------------------------------------
 *
 * demand.c
 *	  Collects the demand for workers: the roles with jobs, and the workers.
 *	  Decides which role gets the next worker.
 *
 * All state is read under the lock at once.  The evaluation needs no lock.
 *
 * A role with jobs but without a worker in the pool comes before roles with a worker.
 * Among several roles without a worker, round robin applies, in the order of their
 * OIDs.  If some roles have more urgent jobs, by the position of the queue in the pool
 * and by priority, then every second slot is assigned by urgency.  Urgent jobs start
 * soon, and each role still gets a worker after at most two rounds.
 *
 * A start competes with the workers for the processors.  A role with a worker therefore gets
 * further workers a few at a time, and none while its workers use all processors.  Workers
 * whose jobs wait for something do not, so their role soon has all workers.
 *
 * worker/scheduler/demand.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

/* Workers of a role that start at the same time, for each processor. */
#define STARTS_AT_ONCE		2

/*
 * If the workers of a role used all processors, the role gets no further worker for this time
 * (microseconds).  A worker looks every 32 jobs.
 */
#define FULL_TIME			(USECS_PER_SEC / 10)

/* The demand of a lane. */
typedef struct LaneDemand
{
	Oid			role;
	int32		priority;
	uint32		waiting;
	uint8		rank[JOBQ_MAX_POOLS];
} LaneDemand;

/* The state of the round robin of a pool: the last role served of each kind. */
typedef struct PoolTurns
{
	Oid			round;			/* by round robin */
	Oid			urgent;			/* because of urgent jobs */
	Oid			further;		/* having a worker already */
	bool		in_turn;		/* next slot goes by round robin */
} PoolTurns;

static PoolTurns turns[JOBQ_MAX_POOLS];

static int	read_lanes(LaneDemand *lanes, TimestampTz now);
static void read_workers(Demand *demand, TimestampTz now);
static void add_roles(PoolDemand *pool, int index, const LaneDemand *lanes,
					  int nlanes);
static void add_workers(Demand *demand);
static RoleDemand *find_role(const PoolDemand *pool, Oid role);
static int	compare_lanes(const void *a, const void *b);
static int	compare_workers(const void *a, const void *b);

/*
 * Read the demand of all pools.  Allocates in the current memory context.  Takes
 * my_db->lock exclusively.
 */
Demand *
demand_read(const JobqPoolSet *pools, TimestampTz now)
{
	Demand	   *demand = palloc0(sizeof(Demand));
	LaneDemand *lanes = palloc(sizeof(LaneDemand) * jobq_max_lanes);
	int			nlanes;

	demand->now = now;
	demand->npools = pools->npools;
	demand->workers = palloc(sizeof(WorkerView) * jobq_shared->nslots);
	demand->spares = palloc(sizeof(SpareView) * jobq_shared->nslots);
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	nlanes = read_lanes(lanes, now);
	read_workers(demand, now);
	LWLockRelease(my_db->lock);

	qsort(lanes, nlanes, sizeof(LaneDemand), compare_lanes);
	for (int i = 0; i < demand->npools; i++)
	{
		demand->pools[i].size = pools->pools[i].workers;
		demand->pools[i].full_until = DT_NOEND;
		add_roles(&demand->pools[i], i, lanes, nlanes);
	}
	qsort(demand->workers, demand->nworkers, sizeof(WorkerView), compare_workers);
	add_workers(demand);
	pfree(lanes);
	return demand;
}

/*
 * Read the heaps of lanes with jobs ready for workers.
 *
 * In quarantine, only one job may run at a time.
 */
static int
read_lanes(LaneDemand *lanes, TimestampTz now)
{
	JobqReady  *ready = my_db->ready;
	int			n = 0;

	AssertExclusive(my_db->lock);
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
 * Read the workers of this database, and the spare workers.
 */
static void
read_workers(Demand *demand, TimestampTz now)
{
	AssertExclusive(my_db->lock);
	jobq_foreach_slot(slot, my_db, JOBQ_SLOTS_COMING)
	{
		WorkerView *worker = &demand->workers[demand->nworkers];

		/* the clock may have been put back */
		slot->idle_since = Min(slot->idle_since, now);
		slot->turn_at = Min(slot->turn_at, now);
		if (slot->spare)
		{
			if (slot->retire)
				demand->spares_leaving++;
			else
				demand->spares[demand->nspares++] = (SpareView)
			{
				slot - jobq_shared->slots, slot->generation, slot->role, slot->pool,
					slot->idle_since
			};
			continue;
		}
		memset(worker, 0, sizeof(WorkerView));
		worker->slot = slot - jobq_shared->slots;
		worker->generation = slot->generation;
		worker->role = slot->role;
		worker->pool = slot->pool;
		/* has not looked for a job yet */
		worker->coming = slot->state == JOBQ_SLOT_STARTING || slot->idle_since == 0;
		worker->idle = slot->state == JOBQ_SLOT_ATTACHED && slot->idle;
		worker->leaves = slot->retire;
		worker->comes_back = slot->comes_back;
		/* the clock may have been put back */
		worker->turn_at = Min(slot->turn_at, now);
		worker->full_at = slot->full_at < now + FULL_TIME ? Min(slot->full_at, now) : 0;
		worker->idle_since = Min(slot->idle_since, now);
		worker->yields_since = slot->yields ? Min(slot->yields_since, now) : 0;
		worker->in_job = jobq_run_busy(&slot->run);
		worker->urgency = PG_INT64_MAX;
		demand->nworkers++;
	}
}

/*
 * Collect the roles with jobs for the pool.
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
 * Count the workers of pools and roles.
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
		role = find_role(pool, worker->role);
		if (role == NULL)
			continue;
		worker->urgency = role->urgency;
		role->workers++;
		if (worker->idle || worker->coming)
			role->ready++;
		role->coming += worker->coming;
		role->full_at = Max(role->full_at, worker->full_at);
	}
}

static int
compare_lanes(const void *a, const void *b)
{
	Oid			role_a = ((const LaneDemand *) a)->role;
	Oid			role_b = ((const LaneDemand *) b)->role;

	return role_a < role_b ? -1 : role_a > role_b;
}

/* Workers of the same role and pool become adjacent. */
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
 * Find the demand of the role in the pool, or NULL.
 */
static RoleDemand *
find_role(const PoolDemand *pool, Oid role)
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
 * Count the roles with jobs for the pool, but without a worker.
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
 * The distance of the role from "last" in the round robin; 0 is next.
 */
static uint32
distance(Oid role, Oid last)
{
	return role - last - 1;
}

/*
 * True if a role with a worker gets no further one now: its workers use all processors, or
 * enough of them are starting.  Notes in the pool when to look again.
 */
static bool
has_enough(PoolDemand *pool, const RoleDemand *role, TimestampTz now)
{
	if (role->workers >= process_processors() && role->full_at + FULL_TIME > now)
	{
		pool->full_until = Min(pool->full_until, role->full_at + FULL_TIME);
		return true;
	}
	if (role->coming < STARTS_AT_ONCE * process_processors())
		return false;
	pool->delayed = true;
	return true;
}

/*
 * Choose the role for the next worker of the pool, or NULL if no role needs a worker now.
 */
RoleDemand *
demand_next(Demand *demand, int index)
{
	PoolDemand *pool = &demand->pools[index];
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
			if (has_enough(pool, role, demand->now))
				continue;
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
 * Note that the role from demand_next() has got a worker.
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
	role->coming++;
}
