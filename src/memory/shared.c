/*-------------------------------------------------------------------------
 *
 * shared.c
 *	  Allocates and finds the shared memory described in shared.h.
 *
 * src/memory/shared.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/jobq.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "memory/shared.h"

JobqShared *jobq_shared = NULL;

static Size
database_size(void)
{
	Size		size;

	size = mul_size(jobq_max_lanes, sizeof(JobqLane));
	size = add_size(size, mul_size(jobq_ready_entries, sizeof(JobqEntry)));
	size = add_size(size, mul_size(JOBQ_RELAY_SIZE, sizeof(JobqRelayMessage)));
	size = add_size(size, mul_size(jobq_max_leases,
								   sizeof(JobqLease) + sizeof(uint32)));
	size = add_size(size, mul_size(JOBQ_MAX_BUNDLES, sizeof(JobqLeaseBundle)));
	size = add_size(size, mul_size(jobq_max_groups,
								   sizeof(JobqGroup) + sizeof(uint32)));
	size = add_size(size, mul_size(JOBQ_LEASE_GARBAGE,
								   sizeof(JobqLeaseRow)));
	size = add_size(size, mul_size(JOBQ_MAX_RESERVERS, sizeof(JobqReserver)));
	return MAXALIGN(size);
}

static Size
shared_size(void)
{
	Size		size;

	size = MAXALIGN(sizeof(JobqShared));
	size = add_size(size, MAXALIGN(mul_size(jobq_max_databases,
											sizeof(JobqDatabase))));
	size = add_size(size, MAXALIGN(mul_size(jobq_max_workers,
											sizeof(JobqSlot))));
	size = add_size(size, mul_size(jobq_max_databases, database_size()));
	return size;
}

/*
 * shmem_request_hook: sizes depend on settings only, which are final here.
 */
void
jobq_shmem_request(void)
{
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche("jobq", 2 + jobq_max_databases);
}

/*
 * shmem_startup_hook: the segment is made anew after each crash, too.
 */
void
jobq_shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	jobq_shared = ShmemInitStruct("jobq", shared_size(), &found);
	if (!found)
	{
		LWLockPadded *locks = GetNamedLWLockTranche("jobq");
		char	   *at = (char *) jobq_shared;

		memset(jobq_shared, 0, sizeof(JobqShared));
		jobq_shared->pokes = 1;
		jobq_shared->lock = &locks[0].lock;
		jobq_shared->waiter_lock = &locks[1].lock;
		pg_atomic_init_u32(&jobq_shared->nwaiters, 0);
		pg_atomic_init_u32(&jobq_shared->calls, 0);

		at += MAXALIGN(sizeof(JobqShared));
		jobq_shared->databases = (JobqDatabase *) at;
		jobq_shared->ndatabases = jobq_max_databases;
		at += MAXALIGN(jobq_max_databases * sizeof(JobqDatabase));
		jobq_shared->slots = (JobqSlot *) at;
		jobq_shared->nslots = jobq_max_workers;
		at += MAXALIGN(jobq_max_workers * sizeof(JobqSlot));

		for (int i = 0; i < jobq_max_workers; i++)
		{
			JobqSlot   *slot = &jobq_shared->slots[i];

			memset(slot, 0, sizeof(JobqSlot));
			slot->permits = JOBQ_NO_PERMITS;
			SpinLockInit(&slot->mutex);
		}
		for (int i = 0; i < jobq_max_databases; i++)
		{
			JobqDatabase *db = &jobq_shared->databases[i];
			char	   *area = at + i * database_size();

			memset(db, 0, sizeof(JobqDatabase));
			pg_atomic_init_u32(&db->calls, 0);
			for (int j = 0; j < JOBQ_MAX_WATCHES; j++)
			{
				pg_atomic_init_u64(&db->watches[j].batch_id, 0);
				pg_atomic_init_u64(&db->watches[j].witness, 0);
			}
			db->lock = &locks[2 + i].lock;
			db->lanes = (JobqLane *) area;
			area += jobq_max_lanes * sizeof(JobqLane);
			db->entries = (JobqEntry *) area;
			area += jobq_ready_entries * sizeof(JobqEntry);
			db->relay = (JobqRelayMessage *) area;
			area += JOBQ_RELAY_SIZE * sizeof(JobqRelayMessage);
			db->leases = (JobqLease *) area;
			area += jobq_max_leases * sizeof(JobqLease);
			db->bundles = (JobqLeaseBundle *) area;
			area += JOBQ_MAX_BUNDLES * sizeof(JobqLeaseBundle);
			db->groups = (JobqGroup *) area;
			area += jobq_max_groups * sizeof(JobqGroup);
			db->reservers = (JobqReserver *) area;
			area += JOBQ_MAX_RESERVERS * sizeof(JobqReserver);
			db->garbage = (JobqLeaseRow *) area;
			area += JOBQ_LEASE_GARBAGE * sizeof(JobqLeaseRow);
			db->lease_bucket = (uint32 *) area;
			area += jobq_max_leases * sizeof(uint32);
			db->group_bucket = (uint32 *) area;
			jobq_reservers_clear(db);
			jobq_limits_clear(db);
			jobq_ready_clear(db);
			jobq_leases_clear(db);
		}
	}
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Raise an error unless the server has loaded jobq at its start.
 */
void
jobq_require_preload(const char *what)
{
	if (jobq_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_NOT_RUNNING),
				 errmsg("%s needs jobq's background workers", what),
				 errhint("Add \"jobq\" to \"%s\" and restart the server.",
						 "shared_preload_libraries")));
}

/*
 * Tell the user if no worker will run the jobs of this database.
 */
void
jobq_warn_if_not_served(void)
{
	char	   *names;
	char	   *database;
	List	   *list;
	ListCell   *lc;

	if (jobq_shared == NULL)
	{
		ereport(WARNING,
				(errcode(ERRCODE_JOBQ_NOT_RUNNING),
				 errmsg("jobs do not run: jobq is not loaded at server start"),
				 errhint("Add \"jobq\" to \"%s\" and restart the server.",
						 "shared_preload_libraries")));
		return;
	}
	names = pstrdup(jobq_databases);
	database = get_database_name(MyDatabaseId);
	if (!SplitIdentifierString(names, ',', &list))
		return;
	foreach(lc, list)
		if (strcmp(lfirst(lc), "*") == 0 || strcmp(lfirst(lc), database) == 0)
		return;
	ereport(WARNING,
			(errcode(ERRCODE_JOBQ_NOT_RUNNING),
			 errmsg("jobs of database \"%s\" do not run", database),
			 errhint("Add it to \"%s\" and reload the configuration.",
					 "jobq.databases")));
}

/*
 * The state of a database that has or had a scheduler, or NULL.
 *
 * Takes no lock: a database keeps its place as long as there are sessions in it,
 * and gets it when all is ready.
 */
JobqDatabase *
jobq_find_database(Oid dboid)
{
	if (jobq_shared == NULL)
		return NULL;
	for (int i = 0; i < jobq_shared->ndatabases; i++)
		if (jobq_shared->databases[i].dboid == dboid)
			return &jobq_shared->databases[i];
	return NULL;
}

/*
 * The state of this session's database, or NULL.
 */
JobqDatabase *
jobq_my_database(void)
{
	static JobqDatabase *mine = NULL;

	if (mine == NULL || mine->dboid != MyDatabaseId)
		mine = jobq_find_database(MyDatabaseId);
	return mine;
}

/*
 * Have the launcher look at all databases again.
 */
void
jobq_poke_launcher(void)
{
	if (jobq_shared == NULL)
		return;
	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	jobq_shared->poke = true;
	jobq_shared->pokes++;
	jobq_shared->poked_at = jobq_now();
	LWLockRelease(jobq_shared->lock);
	jobq_wake_launcher();
}

/*
 * The state of this session's database if it has a scheduler, or may yet have
 * one: NULL together with true means that the launcher, which would make it,
 * has not looked since it was started or last poked.
 */
bool
jobq_has_scheduler(JobqDatabase **db)
{
	bool		looked;

	*db = jobq_my_database();
	if (*db != NULL && !(*db)->absent)
		return true;
	if (jobq_shared == NULL || RecoveryInProgress())
		return false;
	LWLockAcquire(jobq_shared->lock, LW_SHARED);
	looked = jobq_shared->pokes_seen == jobq_shared->pokes;
	LWLockRelease(jobq_shared->lock);
	*db = jobq_my_database();	/* perhaps just now */
	if (*db != NULL && (*db)->absent)
		*db = NULL;
	return *db != NULL || !looked;
}

/*
 * Wake the launcher, if there is one.
 */
void
jobq_wake_launcher(void)
{
	PGPROC	   *launcher;

	/* a barrier, too: what it is woken for is there before the call */
	pg_atomic_fetch_add_u32(&jobq_shared->calls, 1);
	launcher = jobq_shared->launcher;	/* may vanish: read once */
	if (launcher != NULL)
		SetLatch(&launcher->procLatch);
}

/*
 * Wake the database's scheduler, if it has one.
 */
void
jobq_wake_scheduler(JobqDatabase *db)
{
	PGPROC	   *scheduler;

	pg_atomic_fetch_add_u32(&db->calls, 1);
	scheduler = db->scheduler;	/* may vanish: read once */
	if (scheduler != NULL)
		SetLatch(&scheduler->procLatch);
}

/*
 * The worker in this slot is done with a quarantined job, if it had one: the
 * next may run, and who waits for it is woken by the scheduler.
 */
void
jobq_quarantine_over(JobqDatabase *db, int slot)
{
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (db->quarantine_slot == slot)
	{
		db->quarantine_slot = -1;
		db->reload = true;
	}
	LWLockRelease(db->lock);
	jobq_wake_scheduler(db);
}

/*
 * Wake the sessions that wait for this job, or for any if job_id is 0.  Cheap
 * if there are none.
 */
void
jobq_wake_waiters(Oid dboid, int64 job_id)
{
	if (pg_atomic_read_u32(&jobq_shared->nwaiters) == 0)
		return;
	LWLockAcquire(jobq_shared->waiter_lock, LW_SHARED);
	for (int i = 0; i < JOBQ_MAX_WAITERS; i++)
	{
		JobqWaiter *waiter = &jobq_shared->waiters[i];

		if (waiter->proc != NULL &&
			(job_id == 0 || waiter->job_id == job_id) &&
			waiter->dboid == dboid)
		{
			waiter->woken = true;
			SetLatch(&waiter->proc->procLatch);
		}
	}
	LWLockRelease(jobq_shared->waiter_lock);
}

/*
 * The slot of the worker that runs this job in the database, or NULL.  The
 * answer may be outdated as soon as it is given.
 */
JobqSlot *
jobq_slot_of_job(JobqDatabase *db, int64 job_id)
{
	int			index = db - jobq_shared->databases;

	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];
		bool		match;

		if (slot->state != JOBQ_SLOT_ATTACHED || slot->database != index)
			continue;
		SpinLockAcquire(&slot->mutex);
		match = slot->job_id == job_id;
		SpinLockRelease(&slot->mutex);
		if (match)
			return slot;
	}
	return NULL;
}
