/*-------------------------------------------------------------------------
 *
 * yield.c
 *	  Decides which workers leave when all slots are in use and roles need more.
 *
 * For a role without a worker, in this order: an idle worker; a worker of a role with
 * several workers; the oldest worker whose time slice is over.  A busy worker leaves
 * after its current job.
 *
 * For a role with a worker that needs more: a worker idle for some time; or a worker of
 * a role with at least two more workers and no more urgent jobs.  A role with short but
 * frequent work keeps its only worker.
 *
 * Each change costs the start of a process.  If roles come and go, a worker of a role
 * that returns soon therefore stays for a moment, even if idle.
 *
 * The decisions are marks in the slots of workers, and all are made again in each round.
 * A worker asked to leave may therefore stay after all.  JobqDatabase.wanted limits how many
 * of the marked workers leave: each of them lowers the number, whichever is ready first.
 *
 * worker/scheduler/yield.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "storage/proc.h"

/*
 * The time slice of a role's worker while more roles wait (microseconds).  Shortened,
 * down to SHORT_TURN, to serve all roles within ALL_TURNS.
 */
#define ROLE_TURN			(USECS_PER_SEC)
#define SHORT_TURN			(USECS_PER_SEC / 10)
#define ALL_TURNS			(10 * USECS_PER_SEC)

/* The same for an idle worker of a role that returns. */
#define STAY				(USECS_PER_SEC / 10)
#define ALL_STAYS			(USECS_PER_SEC)

/* Idle time after which a worker makes room for a role with workers (microseconds). */
#define LINGER				(USECS_PER_SEC / 10)

/* The slots to decide about: of one pool, or all. */
typedef struct Places
{
	Demand	   *demand;
	int			pool;			/* or -1 */
	TimestampTz now;
	TimestampTz wake;
} Places;

static void yield_to_roles(Places *places, int wanted, int64 turn, int64 stay);
static void yield_to_more(Places *places, PoolDemand *pool, int index);
static void tell(const Demand *demand, TimestampTz now);

/*
 * Compute a time between "least" and "most", to serve all roles within "all"
 * microseconds.
 */
static int64
shared_time(int64 most, int64 least, int64 all, int places, int roles)
{
	return Max(least, Min(most, all * Max(places, 1) / Max(roles, 1)));
}

/*
 * Choose the workers that leave for roles in need.  "shared" means the database has
 * fewer slots than its pools may use, so the pools share the slots.  Returns the latest
 * time of the next decision.  Takes my_db->lock exclusively.
 */
TimestampTz
yield_places(Demand *demand, bool shared, TimestampTz now)
{
	Places		places = {.demand = demand,.now = now,.wake = DT_NOEND};
	int			wanted[JOBQ_MAX_POOLS] = {0};
	int			all_without = 0;
	int			all_leaving = 0;
	int			most = 0;

	for (int i = 0; i < demand->npools; i++)
	{
		PoolDemand *pool = &demand->pools[i];

		if (pool->size == 0)
			continue;
		wanted[i] = demand_without_worker(pool);
		all_without += wanted[i];
		all_leaving += pool->leaving;
		if (!shared)
			most = Max(most, wanted[i] / Max(pool->workers, 1));
	}
	if (shared)
		most = all_without / Max(demand->nworkers, 1);

	for (int i = 0; i < demand->npools; i++)
	{
		PoolDemand *pool = &demand->pools[i];
		int			without = shared ? all_without : wanted[i];
		int			nplaces = shared ? demand->nworkers : pool->workers;
		int64		turn = shared_time(ROLE_TURN, SHORT_TURN, ALL_TURNS, nplaces, without);

		wanted[i] = Max(without - (shared ? all_leaving : pool->leaving), 0);
		if (without == 0 || (shared && i > 0))
			continue;
		places.pool = shared ? -1 : i;
		yield_to_roles(&places, wanted[i], turn,
					   shared_time(STAY, 0, ALL_STAYS, nplaces, without));
		places.wake = Min(places.wake, now + turn);
	}
	for (int i = 0; i < demand->npools; i++)
	{
		PoolDemand *pool = &demand->pools[i];

		places.pool = shared ? -1 : i;
		if ((shared ? all_without : demand_without_worker(pool)) == 0 &&
			(shared || pool->workers >= pool->size))
			yield_to_more(&places, pool, i);
	}

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->places_shared = shared;
	my_db->stay = shared_time(STAY, 0, ALL_STAYS, 1, most);
	memcpy(my_db->wanted, wanted, sizeof(wanted));
	tell(demand, now);
	LWLockRelease(my_db->lock);
	return places.wake;
}

static bool
concerned(const Places *places, const WorkerView *worker)
{
	return !worker->leaves && !worker->yields &&
		(places->pool < 0 || worker->pool == places->pool);
}

/*
 * Choose the worker to leave, and subtract the worker from its role.
 */
static void
choose(const Places *places, WorkerView *chosen)
{
	chosen->yields = true;
	for (int i = 0; i < places->demand->nworkers; i++)
	{
		WorkerView *worker = &places->demand->workers[i];

		if (worker->role == chosen->role && worker->pool == chosen->pool)
			worker->peers--;
	}
}

/*
 * Rate how well a worker can be replaced by a worker for a role without one: higher is
 * better, 0 means never.  Lowers places->wake to the time when this changes.
 */
static int64
readiness(Places *places, const WorkerView *worker, int64 turn, int64 stay)
{
	int64		age = places->now - worker->turn_at;

	if (worker->idle)
	{
		if (worker->peers > 1)
			return PG_INT64_MAX;
		if (!worker->comes_back || age >= stay)
			return PG_INT64_MAX - 1;
		places->wake = Min(places->wake, worker->turn_at + stay);
		return 0;
	}
	if (worker->coming)
		return 0;
	if (worker->peers > 1)
		return PG_INT64_MAX / 2 + worker->peers;
	if (age >= turn)
		return Max(age, 1);
	places->wake = Min(places->wake, worker->turn_at + turn);
	return 0;
}

/*
 * Choose workers to leave for "wanted" roles without a worker.  A worker asked to leave
 * longer ago than a time slice runs a long job, and is not counted.
 */
static void
yield_to_roles(Places *places, int wanted, int64 turn, int64 stay)
{
	while (wanted > 0)
	{
		WorkerView *best = NULL;
		int64		best_readiness = 0;

		for (int i = 0; i < places->demand->nworkers; i++)
		{
			WorkerView *worker = &places->demand->workers[i];
			int64		ready;

			if (!concerned(places, worker))
				continue;
			ready = readiness(places, worker, turn, stay);
			if (ready > best_readiness ||
				(ready > 0 && ready == best_readiness &&
				 worker->idle_since < best->idle_since))
			{
				best = worker;
				best_readiness = ready;
			}
		}
		if (best == NULL)
			break;
		choose(places, best);
		if (best->yields_since == 0 || places->now - best->yields_since < turn)
			wanted--;
	}
}

/*
 * Each role with jobs for the pool has a worker.  For roles that need more, choose idle
 * workers, or workers of roles with more workers.
 */
static void
yield_to_more(Places *places, PoolDemand *pool, int index)
{
	RoleDemand *claimant = demand_next(places->demand, index);
	WorkerView *rich = NULL;
	int64		wanted = -pool->leaving;

	if (claimant == NULL)
		return;
	for (int i = 0; i < pool->nroles; i++)
		if (pool->roles[i].waiting > (uint32) pool->roles[i].ready)
			wanted += pool->roles[i].waiting - pool->roles[i].ready;

	for (int i = 0; i < places->demand->nworkers && wanted > 0; i++)
	{
		WorkerView *worker = &places->demand->workers[i];
		TimestampTz may_leave = worker->turn_at + ROLE_TURN;

		if (!concerned(places, worker) || worker->coming ||
			(worker->role == claimant->role && worker->pool == index))
			continue;
		if (worker->idle)
		{
			may_leave = worker->idle_since + (worker->peers > 1 ? 0 : LINGER);
			if (may_leave > places->now)
			{
				places->wake = Min(places->wake, may_leave);
				continue;
			}
			choose(places, worker);
			worker->yields_anyway = true;
			wanted--;
			continue;
		}
		places->wake = Min(places->wake, places->now + LINGER);
		if (worker->peers >= claimant->workers + 2 &&
			worker->urgency >= claimant->urgency && may_leave <= places->now &&
			(rich == NULL || worker->peers > rich->peers))
			rich = worker;
	}
	if (rich != NULL && wanted > 0)
	{
		choose(places, rich);
		rich->yields_anyway = true;
	}
}

/*
 * Publish the decisions in the slots, and wake the workers.
 */
static void
tell(const Demand *demand, TimestampTz now)
{
	AssertExclusive(my_db->lock);
	for (int i = 0; i < demand->nworkers; i++)
	{
		const WorkerView *worker = &demand->workers[i];
		JobqSlot   *slot = &jobq_shared->slots[worker->slot];
		PGPROC	   *proc = slot->proc;
		bool		yielded = slot->yields;

		if (slot->generation != worker->generation ||
			slot->state != JOBQ_SLOT_ATTACHED || slot->spare)
			continue;

		/* an idle worker may have got a job meanwhile */
		slot->yields = worker->yields && (!worker->idle || slot->idle);
		slot->yields_anyway = slot->yields && worker->yields_anyway;
		slot->yields_since = worker->yields_since == 0 ? now
			: worker->yields_since;

		/* a worker may stay after all, but missed jobs while asked to leave */
		if (slot->idle && (slot->yields || yielded) && proc != NULL)
		{
			slot->idle = slot->yields;
			SetLatch(&proc->procLatch);
		}
	}
}
