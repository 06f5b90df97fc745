/*-------------------------------------------------------------------------
 *
 *	  Allocates the frame of shared memory, and the areas of the rooms in the frame.
 *
 * src/memory/memory.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "memory/memory.h"

/* The areas of the rooms, as passed by the module. */
static const JobqArea *const *areas;
static int	nareas;

/*
 * Number of owners of this type.
 */
static int
owners(JobqAreaOwner owner)
{
	switch (owner)
	{
		case JOBQ_AREA_OF_SLOT:
			return jobq_max_workers;
		case JOBQ_AREA_OF_CLUSTER:
			return 1;
		case JOBQ_AREA_OF_DATABASE:
			return jobq_max_databases;
	}
	return 0;
}

/*
 * Size of all areas of one owner.
 */
static Size
areas_size(JobqAreaOwner owner)
{
	Size		size = 0;

	for (int i = 0; i < nareas; i++)
		if (areas[i]->owner == owner)
			size = add_size(size, MAXALIGN(areas[i]->size()));
	return size;
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
	for (JobqAreaOwner owner = JOBQ_AREA_OF_SLOT;
		 owner <= JOBQ_AREA_OF_DATABASE; owner++)
		size = add_size(size, mul_size(owners(owner), areas_size(owner)));
	return size;
}

/*
 * Set the areas of the rooms.  The array is not copied, and must remain valid.
 */
void
jobq_shmem_areas(const JobqArea *const *all_areas, int n)
{
	areas = all_areas;
	nareas = n;
}

/*
 * shmem_request_hook: request shared memory and locks.  The sizes depend only on settings,
 * which are final at this time.
 */
void
jobq_shmem_request(void)
{
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche("jobq", 1 + JOBQ_NEXTRA_LOCKS + jobq_max_databases);
}

/*
 * Return a lock of the cluster, for an area.
 */
LWLock *
jobq_extra_lock(JobqExtraLock which)
{
	return &GetNamedLWLockTranche("jobq")[1 + which].lock;
}

#ifdef USE_ASSERT_CHECKING
/*
 * Does this process hold a LWLock of jobq?  For AssertUnlocked().
 */
bool
jobq_holds_lock(void)
{
	return LWLockAnyHeldByMe(jobq_shared->lock,
							 1 + JOBQ_NEXTRA_LOCKS + jobq_max_databases,
							 sizeof(LWLockPadded));
}
#endif

static void
init_areas(JobqAreaOwner owner, void *of, char **at)
{
	for (int i = 0; i < nareas; i++)
	{
		if (areas[i]->owner != owner)
			continue;
		areas[i]->init(of, *at);
		*at += MAXALIGN(areas[i]->size());
	}
}

/*
 * shmem_startup_hook: create the segment or attach to it.  The segment is created again after
 * each crash.  Returns true if this call has created the segment.  Takes AddinShmemInitLock.
 */
bool
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
		jobq_clock_shift = &jobq_shared->clock_shift;
		jobq_shared->pokes = 1;
		jobq_shared->lock = &locks[0].lock;
		jobq_clock_init(&jobq_shared->clock);
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
			SpinLockInit(&slot->mutex);
			init_areas(JOBQ_AREA_OF_SLOT, slot, &at);
		}
		init_areas(JOBQ_AREA_OF_CLUSTER, jobq_shared, &at);
		for (int i = 0; i < jobq_max_databases; i++)
		{
			JobqDatabase *db = &jobq_shared->databases[i];

			memset(db, 0, sizeof(JobqDatabase));
			pg_atomic_init_u32(&db->calls, 0);
			db->lock = &locks[1 + JOBQ_NEXTRA_LOCKS + i].lock;
			db->unused_areas = at;
			at += areas_size(JOBQ_AREA_OF_DATABASE);
		}
	}
	jobq_clock_shift = &jobq_shared->clock_shift;
	LWLockRelease(AddinShmemInitLock);
	return !found;
}

/*
 * Initialize the areas of a database, unless the slot has had a database before.
 */
void
jobq_database_areas(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	if (db->unused_areas == NULL)
		return;
	init_areas(JOBQ_AREA_OF_DATABASE, db, &db->unused_areas);
	db->unused_areas = NULL;
}

/*
 * ERROR unless the server has loaded jobq at server start.  "what" begins the message.
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
 * Does jobq.databases name the current database?  True if the setting is not a valid list,
 * because the answer is then unknown.
 */
bool
jobq_names_database(void)
{
	char	   *names = pstrdup(jobq_databases);
	char	   *database = get_database_name(MyDatabaseId);
	List	   *list;
	ListCell   *lc;

	if (!SplitIdentifierString(names, ',', &list))
		return true;
	foreach(lc, list)
		if (strcmp(lfirst(lc), "*") == 0 || strcmp(lfirst(lc), database) == 0)
		return true;
	return false;
}

/*
 * Raise a WARNING if no worker will run the jobs of the current database.
 */
void
jobq_warn_if_not_served(void)
{
	if (jobq_shared == NULL)
	{
		ereport(WARNING,
				(errcode(ERRCODE_JOBQ_NOT_RUNNING),
				 errmsg("jobs do not run: jobq is not loaded at server start"),
				 errhint("Add \"jobq\" to \"%s\" and restart the server.",
						 "shared_preload_libraries")));
		return;
	}
	if (jobq_names_database())
		return;
	ereport(WARNING,
			(errcode(ERRCODE_JOBQ_NOT_RUNNING),
			 errmsg("jobs of database \"%s\" do not run",
					get_database_name(MyDatabaseId)),
			 errhint("Add it to \"%s\" and reload the configuration.",
					 "jobq.databases")));
}
