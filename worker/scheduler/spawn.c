/*-------------------------------------------------------------------------
 *
 * spawn.c
 *	  Which workers a database has: starts those that its pools lack, and has
 *	  others leave where a role or another database needs the place.
 *
 * A slot is reserved before its worker is registered and has a generation, so
 * that a process that was slow to start cannot take another's place.  Running
 * out of slots is a state to report and to back off from.
 *
 * worker/scheduler/spawn.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "miscadmin.h"

#include "runner/runner.h"
#include "scheduler/scheduler.h"

/* A busy worker makes room for another role or database after this time. */
#define ROLE_TURN			(USECS_PER_SEC)

/* A place is kept so long for a database that lacks a process. */
#define WANTING_TIME		(6 * USECS_PER_SEC)

/* Pause after workers could not be started. */
#define FIRST_PAUSE			(USECS_PER_SEC / 10)
#define LAST_PAUSE			(5 * USECS_PER_SEC)

/* Roles with waiting jobs that are looked at in one round. */
#define MAX_ROLES			64

typedef struct RoleDemand
{
	Oid			role;
	uint32		waiting;
	int			workers;		/* that stay */
	int			ready;			/* of these, idle or starting */
} RoleDemand;

static Oid	waiting_role = InvalidOid;
static TimestampTz spawn_at = 0;
static TimestampTz spawn_pause = FIRST_PAUSE;

static void retire_pools(int npools);
static bool spawn_for_pool(int pool, int size, TimestampTz now,
						   TimestampTz *wake);
static bool spawn(int pool, Oid role, TimestampTz now);
static void make_room(int pool, Oid role, TimestampTz now, bool urgent);

/*
 * One round: start the workers that are wanted.  Returns when the next is due
 * at the latest.
 */
TimestampTz
spawn_workers(TimestampTz now)
{
	const JobqPoolSet *pools = jobq_pools();
	TimestampTz wake = DT_NOEND;
	bool		can_spawn = false;

	/* the clock was put back */
	if (spawn_at > now + LAST_PAUSE)
		spawn_at = now;

	/* a place may have become free for us */
	if (spawn_at > now && jobq_shared->wanting == my_db_index &&
		jobq_shared->wanting_at != 0)
		for (int i = 0; i < jobq_shared->nslots; i++)
			if (jobq_shared->slots[i].state == JOBQ_SLOT_FREE)
				spawn_at = now;

	/* who hands over while we look shall tell us: we may have passed his lane */
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->can_spawn = true;
	LWLockRelease(my_db->lock);

	waiting_role = InvalidOid;
	retire_pools(pools->npools);
	if (!jobq_start_paused)
	{
		if (now < spawn_at)
			wake = spawn_at;
		else
			for (int pool = 0; pool < pools->npools; pool++)
				if (spawn_for_pool(pool, pools->pools[pool].workers, now, &wake))
					can_spawn = true;
	}
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->can_spawn = can_spawn && now >= spawn_at;
	my_db->waiting_role = waiting_role;
	LWLockRelease(my_db->lock);
	return wake;
}

/*
 * A worker has come and gone, or never came: go on at once, or after a pause
 * that grows.
 */
void
spawn_again(TimestampTz now, bool came)
{
	if (came)
		spawn_pause = FIRST_PAUSE;
	else
	{
		spawn_at = now + spawn_pause;
		spawn_pause = Min(spawn_pause * 2, LAST_PAUSE);
	}
}

/*
 * Workers of pools that are no more in the setting shall leave.
 */
static void
retire_pools(int npools)
{
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot->state == JOBQ_SLOT_ATTACHED && slot->pool >= npools &&
			slot->database == my_db_index && !slot->retire)
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
 * The extension is gone: all workers of the database shall leave.
 */
void
spawn_dismiss(void)
{
	retire_pools(0);
}

/*
 * Start the workers that the pool lacks.  True if it has room for more.
 */
static bool
spawn_for_pool(int pool, int size, TimestampTz now, TimestampTz *wake)
{
	RoleDemand	roles[MAX_ROLES];
	int			nroles = 0;
	int			workers = 0;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (uint32 i = my_db->ready->active_head; i != JOBQ_NONE;
		 i = my_db->ready->lanes[i].active_next)
	{
		JobqLane   *lane = &my_db->ready->lanes[i];
		int			r;

		if (!lane->ranked || lane->paused || lane->rank[pool] == JOBQ_NOT_SERVED)
			continue;
		for (r = 0; r < nroles; r++)
			if (roles[r].role == lane->role)
				break;
		if (r == nroles)
		{
			if (nroles == MAX_ROLES)
				continue;
			memset(&roles[nroles], 0, sizeof(RoleDemand));
			roles[nroles++].role = lane->role;
		}
		roles[r].waiting += Min(lane->count,
								(uint32) jobq_lane_room(my_db, lane, now,
														&my_db->limits->due));
	}
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot->database != my_db_index || slot->pool != pool ||
			(slot->state != JOBQ_SLOT_STARTING &&
			 slot->state != JOBQ_SLOT_ATTACHED))
			continue;
		workers++;
		if (workers > size && slot->state == JOBQ_SLOT_ATTACHED)
		{
			PGPROC	   *proc = slot->proc;

			slot->retire = true;	/* the setting was lowered */
			if (proc != NULL)
				SetLatch(&proc->procLatch);
		}
		for (int r = 0; r < nroles; r++)
		{
			if (roles[r].role != slot->role || slot->retire)
				continue;
			roles[r].workers++;
			if (slot->idle || slot->state == JOBQ_SLOT_STARTING)
				roles[r].ready++;
		}
	}
	LWLockRelease(my_db->lock);

	for (bool progress = true; progress;)
	{
		progress = false;
		for (int r = 0; r < nroles; r++)
		{
			RoleDemand *demand = &roles[r];
			JobqError	error;

			if (demand->waiting <= (uint32) demand->ready)
				continue;
			if (role_retry_at(demand->role, now) > now)
			{
				*wake = Min(*wake, role_retry_at(demand->role, now));
				continue;
			}
			if (workers >= size)
			{
				if (size > 0)
				{
					waiting_role = demand->role;
					make_room(pool, demand->role, now, demand->workers == 0);
					if (demand->workers == 0)
						*wake = Min(*wake, now + ROLE_TURN);
				}
				continue;
			}
			if (demand->ready == 0 && !role_can_work(demand->role, &error))
			{
				role_charge(demand->role, &error);
				demand->waiting = 0;
				*wake = now;
				continue;
			}
			if (!spawn(pool, demand->role, now))
			{
				*wake = Min(*wake, spawn_at);
				return false;
			}
			workers++;
			demand->workers++;
			demand->ready++;
			progress = true;
		}
	}
	return workers < size;
}

/*
 * Start a worker.  False if no slot is free, in jobq or in the server.
 */
static bool
spawn(int pool, Oid role, TimestampTz now)
{
	static TimestampTz warned_at = 0;
	WorkerStart start = {.slot = -1};
	JobqSlot   *slot = NULL;
	const char *setting = "jobq.max_workers";
	bool		yield = false;

	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	if (jobq_shared->wanting != my_db_index &&
		now >= jobq_shared->wanting_at &&
		now < jobq_shared->wanting_at + WANTING_TIME)
	{
		for (int i = 0; i < jobq_shared->nslots; i++)
			if (jobq_shared->slots[i].state == JOBQ_SLOT_ATTACHED &&
				jobq_shared->slots[i].database == my_db_index)
				yield = true;
	}
	for (int i = 0; i < jobq_shared->nslots && slot == NULL && !yield; i++)
	{
		if (jobq_shared->slots[i].state == JOBQ_SLOT_FREE)
		{
			slot = &jobq_shared->slots[i];
			start.slot = i;
		}
	}
	if (slot != NULL)
	{
		slot->generation++;
		slot->database = my_db_index;
		slot->role = role;
		slot->pool = pool;
		slot->proc = NULL;
		slot->pid = 0;
		slot->started_at = now;
		slot->idle = false;
		slot->resting = false;
		slot->retire = false;
		slot->holding->next = slot->holding->count = 0;
		slot->connect_failed = false;
		slot->job_id = 0;
		slot->stop = JOBQ_STOP_NONE;
		slot->stop_job = 0;
		slot->jobs_done = slot->jobs_failed = 0;
		slot->state = JOBQ_SLOT_STARTING;
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
			if (jobq_shared->wanting == my_db_index)
				jobq_shared->wanting_at = 0;
			return true;
		}
		LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
		slot->state = JOBQ_SLOT_FREE;
		LWLockRelease(jobq_shared->lock);
	}

	if (yield)
	{
		spawn_at = now + FIRST_PAUSE;
		return false;
	}
	spawn_make_way(my_db_index);
	spawn_at = now + spawn_pause;
	spawn_pause = Min(spawn_pause * 2, LAST_PAUSE);
	if (now > warned_at + 60 * USECS_PER_SEC)
	{
		warned_at = now;
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start a jobq worker: no slot is free"),
				 errhint("Raise \"%s\" and restart the server.", setting)));
	}
	return false;
}

/*
 * All slots are taken, and a database lacks a process: have a worker of another
 * database leave, an idle one if there is, or else one of those that have the
 * most, after its turn.  One at a time; and its place is not for a database
 * that has others.
 */
void
spawn_make_way(int for_database)
{
	JobqSlot   *victim = NULL;
	int			victim_peers = 0;
	TimestampTz now = jobq_now();
	JobqDatabase *db;

	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];
		int			peers = 0;

		if (slot->state != JOBQ_SLOT_ATTACHED ||
			slot->database == for_database)
			continue;
		if (slot->retire)
		{
			victim = NULL;
			break;				/* somebody is leaving already */
		}
		for (int j = 0; j < jobq_shared->nslots; j++)
			if (jobq_shared->slots[j].state == JOBQ_SLOT_ATTACHED &&
				jobq_shared->slots[j].database == slot->database)
				peers++;
		if (slot->idle)
			peers += jobq_shared->nslots;
		else if (now < slot->started_at + ROLE_TURN)
			continue;
		if (peers > victim_peers)
		{
			victim = slot;
			victim_peers = peers;
		}
	}
	jobq_shared->wanting = for_database;
	jobq_shared->wanting_at = now;
	if (victim != NULL)
	{
		PGPROC	   *proc = victim->proc;

		db = &jobq_shared->databases[victim->database];
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		victim->retire = true;
		LWLockRelease(db->lock);
		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
	LWLockRelease(jobq_shared->lock);
}

/*
 * A role lacks workers in a pool that is full: have one of another role leave
 * that is idle; or, if this role has none at all (urgent), one of the role with
 * the most, after its turn.  One at a time.
 */
static void
make_room(int pool, Oid role, TimestampTz now, bool urgent)
{
	JobqSlot   *victim = NULL;
	int			victim_peers = 0;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];
		int			peers = 0;

		if (slot->database != my_db_index || slot->pool != pool ||
			(slot->state != JOBQ_SLOT_ATTACHED &&
			 slot->state != JOBQ_SLOT_STARTING))
			continue;
		if (slot->retire)
		{
			victim = NULL;
			break;				/* somebody is leaving already */
		}
		if (slot->state != JOBQ_SLOT_ATTACHED || slot->role == role)
			continue;
		if (slot->idle)
		{
			victim = slot;
			victim_peers = PG_INT32_MAX;
			continue;
		}
		if (!urgent || now < slot->started_at + ROLE_TURN)
			continue;
		for (int j = 0; j < jobq_shared->nslots; j++)
			if (jobq_shared->slots[j].state == JOBQ_SLOT_ATTACHED &&
				jobq_shared->slots[j].database == my_db_index &&
				jobq_shared->slots[j].pool == pool &&
				jobq_shared->slots[j].role == slot->role)
				peers++;
		if (peers > victim_peers)
		{
			victim = slot;
			victim_peers = peers;
		}
	}
	if (victim != NULL)
	{
		PGPROC	   *proc = victim->proc;

		victim->retire = true;
		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
	LWLockRelease(my_db->lock);
}
