/*-------------------------------------------------------------------------
 *
 * spawn.c
 *	  Starts missing workers of the pools.
 *
 * The demand of roles is computed in demand.c.  The choice of leaving workers is in
 * yield.c.  Workers that have left are kept by spares.c.  Databases share the slots by the
 * rules of places.c.
 *
 * A slot is reserved before its worker is registered.  The slot has a generation number,
 * so that a slow worker process cannot use a slot assigned again meanwhile.  If slots
 * run out, the scheduler reports this and retries after a pause.
 *
 * A start costs about 3 ms of processor time: half in the kernel, for the process and the
 * first touch of each page, and half for the connection and the caches.  To keep a worker
 * therefore saves more than another role would gain from an idle worker.
 *
 * worker/scheduler/spawn.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "miscadmin.h"

#include "runner/runner.h"
#include "scheduler/scheduler.h"

/* A role returns if its last start was within this time (microseconds). */
#define COMES_BACK			(USECS_PER_SEC)
#define MAX_STARTS			256

/* A start of a worker. */
typedef struct Start
{
	Oid			role;
	int			pool;
	TimestampTz at;
} Start;

static Start starts[MAX_STARTS];

/* Completes "the scheduler cannot ..." if slots are short. */
#define START_WORKERS	"start more workers"
static uint32 nstarts = 0;

static JobqPause spawn_pause = {0}; /* after a failed start */

/* If pools share the slots, the first pool rotates. */
static int	first_pool = 0;

static void retire_pools(int npools);
static TimestampTz leave_out(PoolDemand *pool, TimestampTz now);
static void retire_surplus(const PoolDemand *pool, int index);
static void charge_unserved(const PoolDemand *pool, TimestampTz now,
							TimestampTz *wake);
static bool spawn_pools(Demand *demand, TimestampTz now, TimestampTz *wake);
static bool spawn_for_pool(Demand *demand, int index, TimestampTz now,
						   TimestampTz *wake);
static bool could_spawn(Demand *demand, bool shared);
static bool spawn(int pool, Oid role, TimestampTz now);

/*
 * One round: start missing workers, and let workers leave for roles without one.
 * Returns the latest time of the next round.  Takes my_db->lock exclusively.
 */
TimestampTz
spawn_workers(TimestampTz now)
{
	const JobqPoolSet *pools = jobq_pools();
	TimestampTz wake = DT_NOEND;
	Demand	   *demand;
	bool		shared;
	bool		can_spawn;
	bool		delays = false;

	/*
	 * a process that hands over a job from now on must wake the scheduler,
	 * because its lane may already have been read; so must a worker that has
	 * started
	 */
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->can_spawn = my_db->delays_starts = true;
	LWLockRelease(my_db->lock);

	retire_pools(pools->npools);
	if (scheduler_paused())
	{
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		my_db->can_spawn = my_db->delays_starts = false;
		my_db->keeps_spares = false;
		memset(my_db->wanted, 0, sizeof(my_db->wanted));
		LWLockRelease(my_db->lock);
		return wake;
	}
	demand = demand_read(pools, now);
	wake = spares_begin(demand, now);
	for (int i = 0; i < demand->npools; i++)
	{
		wake = Min(wake, leave_out(&demand->pools[i], now));
		retire_surplus(&demand->pools[i], i);
		charge_unserved(&demand->pools[i], now, &wake);
	}
	shared = !spawn_pools(demand, now, &wake);
	if (!shared)
	{
		places_enough();
		trouble_over(START_WORKERS);
	}
	wake = Min(wake, yield_places(demand, shared, now));
	can_spawn = could_spawn(demand, shared);
	for (int i = 0; i < demand->npools; i++)
	{
		wake = Min(wake, demand->pools[i].full_until);
		delays |= demand->pools[i].delayed;
	}

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->can_spawn = can_spawn;
	my_db->delays_starts = delays;
	LWLockRelease(my_db->lock);
	return wake;
}

/*
 * Set the time of the next start after a worker has ended: at once, or, if the worker
 * never started, after a growing pause.
 */
void
spawn_again(bool came)
{
	if (came)
		memset(&spawn_pause, 0, sizeof(spawn_pause));
	else
		jobq_pause_begin(&spawn_pause, PAUSE_NO_SLOT);
}

/*
 * Make the workers leave whose pool is no longer in the setting.  Takes my_db->lock
 * exclusively.
 */
static void
retire_pools(int npools)
{
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_foreach_slot(slot, my_db, JOBQ_SLOTS_ATTACHED)
	{
		if (slot->pool >= npools && !slot->retire)
		{
			PGPROC	   *proc = slot->proc;

			slot->retire = true;
			if (proc != NULL)
				SetLatch(&proc->procLatch);
		}
	}
	LWLockRelease(my_db->lock);
}

/*
 * Make all workers of the database leave, because the extension was dropped.
 */
void
spawn_dismiss(void)
{
	retire_pools(0);
}

/*
 * Remove the demand of roles whose workers recently failed to connect.  Returns the
 * earliest end of their pauses.
 */
static TimestampTz
leave_out(PoolDemand *pool, TimestampTz now)
{
	TimestampTz wake = DT_NOEND;

	for (int i = 0; i < pool->nroles; i++)
	{
		TimestampTz at = role_retry_at(pool->roles[i].role, now);

		if (at <= now)
			continue;
		pool->roles[i].waiting = 0;
		wake = Min(wake, at);
	}
	return wake;
}

/*
 * Fail jobs in a pool without workers.  No worker would ever try the role here.  If
 * jobs of the role were recently failed in another pool, the role is checked again, and
 * its jobs in this pool fail as well.
 */
static void
charge_unserved(const PoolDemand *pool, TimestampTz now, TimestampTz *wake)
{
	if (pool->size > 0)
		return;
	for (int i = 0; i < pool->nroles; i++)
	{
		const RoleDemand *role = &pool->roles[i];
		JobqError	error;

		if (role->waiting == 0 || !role_charged_lately(role->role) ||
			role_can_work(role->role, &error))
			continue;
		role_charge(role->role, &error, now, wake);
	}
}

/*
 * The size of the pool was reduced: make surplus workers leave.  Takes my_db->lock
 * exclusively.
 */
static void
retire_surplus(const PoolDemand *pool, int index)
{
	int			surplus = pool->workers - pool->size;

	if (surplus <= 0)
		return;
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_foreach_slot(slot, my_db, JOBQ_SLOTS_ATTACHED)
	{
		PGPROC	   *proc = slot->proc;

		if (slot->pool != index || slot->spare || surplus-- <= 0)
			continue;
		slot->retire = true;
		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
	LWLockRelease(my_db->lock);
}

/*
 * Start the missing workers of all pools.  Returns false if slots have run out.
 */
static bool
spawn_pools(Demand *demand, TimestampTz now, TimestampTz *wake)
{
	int			first = first_pool;

	/* each start changes first_pool, so keep the first value */
	for (int i = 0; i < demand->npools; i++)
		if (!spawn_for_pool(demand, (first + i) % demand->npools, now, wake))
			return false;
	first_pool = 0;
	return true;
}

/*
 * Start the missing workers of the pool.  Returns false if slots have run out.
 */
static bool
spawn_for_pool(Demand *demand, int index, TimestampTz now, TimestampTz *wake)
{
	PoolDemand *pool = &demand->pools[index];
	RoleDemand *role;

	while (pool->workers < pool->size &&
		   (role = demand_next(demand, index)) != NULL)
	{
		JobqError	error;

		if (spares_recall(demand, index, role->role, now))
		{
			demand_met(pool, index, role);
			continue;
		}
		if (spares_make_way(demand))
		{
			/* the next round starts the worker in the place of the spare */
			role->waiting = 0;
			pool->workers++;
			continue;
		}

		/* a slot may become free before the pause is over */
		if (jobq_pause_due(&spawn_pause, now) > now && !places_any())
		{
			*wake = Min(*wake, jobq_pause_due(&spawn_pause, now));
			return false;
		}
		if (role->ready == 0 && !role_can_work(role->role, &error))
		{
			role_charge(role->role, &error, now, wake);
			role->waiting = 0;
			continue;
		}
		if (!spawn(index, role->role, now))
		{
			*wake = Min(*wake, jobq_pause_due(&spawn_pause, now));
			return false;
		}
		demand_met(pool, index, role);
		demand->nworkers_started++;
		first_pool = (index + 1) % demand->npools;
	}
	return true;
}

/*
 * True if a new job for a role with only busy workers could lead to a further worker.
 * False for pools with unmet demand, because the time of the next round is already set.
 */
static bool
could_spawn(Demand *demand, bool shared)
{
	for (int i = 0; i < demand->npools; i++)
	{
		PoolDemand *pool = &demand->pools[i];
		const WorkerView *first = NULL;

		if (pool->size == 0 || pool->full_until != DT_NOEND)
			continue;
		if (!shared && pool->workers < pool->size)
			return true;
		if (demand_next(demand, i) != NULL)
			continue;
		for (int j = 0; j < demand->nworkers; j++)
		{
			const WorkerView *worker = &demand->workers[j];

			if (worker->pool != i && !shared)
				continue;
			if (first == NULL)
				first = worker;
			if (worker->role != first->role || worker->pool != first->pool)
				return true;
		}
	}
	return false;
}

/*
 * True if a worker was started for the role within the time COMES_BACK.
 */
static bool
comes_back(Oid role, int pool, TimestampTz now)
{
	for (int i = 0; i < MAX_STARTS; i++)
		if (starts[i].role == role && starts[i].pool == pool &&
			now >= starts[i].at && now < starts[i].at + COMES_BACK)
			return true;
	return false;
}

/*
 * Start a worker.  Returns false if no slot is free, in jobq or in the server.
 */
static bool
spawn(int pool, Oid role, TimestampTz now)
{
	WorkerStart start = {.slot = -1};
	JobqSlot   *slot = NULL;
	const char *setting = "jobq.max_workers";
	bool		others;

	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	start.slot = places_find(&others);
	if (start.slot >= 0)
		slot = &jobq_shared->slots[start.slot];
	if (slot != NULL)
	{
		slot->generation++;
		slot->database = my_db_index;
		slot->role = role;
		slot->pool = pool;
		slot->proc = NULL;
		slot->pid = 0;
		slot->started_at = slot->turn_at = now;
		slot->idle = slot->spare = false;
		slot->resting = false;
		slot->full_at = 0;
		slot->retire = false;
		slot->yields = slot->yields_anyway = false;
		slot->idle_since = 0;
		slot->comes_back = comes_back(role, pool, now);
		slot->holding->next = slot->holding->count = 0;
		slot->connect_failed = slot->gave_back = false;
		slot->jobs_done = slot->jobs_failed = 0;
		memset(slot->last_jobs, 0, sizeof(slot->last_jobs));
		jobq_slot_to(slot, JOBQ_SLOT_STARTING);
		start.generation = slot->generation;
	}
	LWLockRelease(jobq_shared->lock);

	if (slot != NULL)
	{
		setting = "max_worker_processes";
		start.dboid = MyDatabaseId;
		start.role = role;
		if (worker_register(&start))
		{
			starts[nstarts++ % MAX_STARTS] = (Start)
			{
				role, pool, now
			};
			my_db->wants_since = 0;
			return true;
		}
		LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
		jobq_slot_to(slot, JOBQ_SLOT_FREE);
		jobq_shared->refused_at = jobq_steady();
		LWLockRelease(jobq_shared->lock);
	}

	places_make_way(my_db_index);
	jobq_pause_begin(&spawn_pause, PAUSE_NO_SLOT);
	if (others)
		return false;
	if (trouble_note(START_WORKERS, psprintf("no slot is free: raise \"%s\" and restart the server", setting),
					 jobq_pause_longest(PAUSE_NO_SLOT)))
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start a jobq worker: no slot is free"),
				 errhint("Raise \"%s\" and restart the server.", setting)));
	return false;
}
