/*-------------------------------------------------------------------------
 *
 * yield.c
 *	  Which workers leave, when all places are taken and roles want some.
 *
 * For a role without a worker, in this order: a worker that is idle; one of a
 * role that has several; one whose turn is over, the oldest first.  Who is busy
 * leaves after his current job.
 *
 * For a role that has one, and wants more: a worker that has been idle for some
 * time, or one of a role that has at least two more, and whose jobs are not more
 * urgent.  A role that has little to do at a time, but often, keeps its only
 * worker.
 *
 * Starts of processes are what this costs.  So where roles come and go, one that
 * comes back soon after it has left stays for a moment, even if it is idle.
 *
 * All is decided anew in each round: who has been told to leave, and is not to
 * any more, stays.
 *
 * worker/scheduler/yield.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "storage/proc.h"

/*
 * How long a role has its worker while others wait: a turn; but not longer than
 * that all come to their turn in ALL_TURNS, and not shorter than SHORT_TURN.
 */
#define ROLE_TURN			(USECS_PER_SEC)
#define SHORT_TURN			(USECS_PER_SEC / 10)
#define ALL_TURNS			(10 * USECS_PER_SEC)

/* The same for how long an idle worker stays of a role that comes back. */
#define STAY				(USECS_PER_SEC / 10)
#define ALL_STAYS			(USECS_PER_SEC)

/* A role that has workers takes those of others that have been idle so long. */
#define LINGER				(USECS_PER_SEC / 10)

/* The places about which is decided: those of one pool, or all. */
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
 * So much time for each, if there are so many for so many places.
 */
static int64
shared_time(int64 most, int64 least, int64 all, int places, int roles)
{
	return Max(least, Min(most, all * Max(places, 1) / Max(roles, 1)));
}

/*
 * Have those leave whose places others shall have.  If "shared", the database has
 * less places than its pools might use, so that all pools share what there is.
 * Returns when to decide again at the latest.
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
 * The worker is to leave: its role has one less.
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
 * How willingly a worker's place is given to a role that has none: the most is
 * the best, 0 is not at all.  Says when it will be.
 */
static int64
readiness(Places *places, const WorkerView *worker, int64 turn, int64 stay)
{
	int64		age = places->now - worker->started_at;

	if (worker->idle)
	{
		if (worker->peers > 1)
			return PG_INT64_MAX;
		if (!worker->comes_back || age >= stay)
			return PG_INT64_MAX - 1;
		places->wake = Min(places->wake, worker->started_at + stay);
		return 0;
	}
	if (worker->coming)
		return 0;
	if (worker->peers > 1)
		return PG_INT64_MAX / 2 + worker->peers;
	if (age >= turn)
		return Max(age, 1);
	places->wake = Min(places->wake, worker->started_at + turn);
	return 0;
}

/*
 * So many roles want a worker that have none.  Who has been told to leave for
 * longer than a turn is at a long job, and is not counted upon.
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
 * All roles that have jobs for the pool have a worker: those that want more get
 * the places of others that do not need them, or have more.
 */
static void
yield_to_more(Places *places, PoolDemand *pool, int index)
{
	RoleDemand *claimant = demand_next(pool, index);
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
		TimestampTz may_leave = worker->started_at + ROLE_TURN;

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
 * Tell the workers.  Wants db->lock.
 */
static void
tell(const Demand *demand, TimestampTz now)
{
	for (int i = 0; i < demand->nworkers; i++)
	{
		const WorkerView *worker = &demand->workers[i];
		JobqSlot   *slot = &jobq_shared->slots[worker->slot];
		PGPROC	   *proc = slot->proc;
		bool		yielded = slot->yields;

		if (slot->generation != worker->generation ||
			slot->state != JOBQ_SLOT_ATTACHED)
			continue;

		/* an idle one may have got a job meanwhile */
		slot->yields = worker->yields && (!worker->idle || slot->idle);
		slot->yields_anyway = slot->yields && worker->yields_anyway;
		slot->yields_since = worker->yields_since == 0 ? now
			: worker->yields_since;

		/* one that may stay after all was passed by when jobs came */
		if (slot->idle && (slot->yields || yielded) && proc != NULL)
		{
			slot->idle = slot->yields;
			SetLatch(&proc->procLatch);
		}
	}
}
