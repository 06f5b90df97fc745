/*-------------------------------------------------------------------------
 *
 * spares.c
 *	  Keeps the processes of workers that have left their pools.
 *
 * A worker that makes room for another role becomes a spare: it runs no job, and keeps
 * its process.  When its role comes to its turn again, the spare returns into the pool
 * instead of a new process.  With an idle worker in the pool, the process that hands over
 * the job makes the exchange itself (jobq_lane_wake() in src/ready/wake.c).
 *
 * Spares use only free slots.  A spare exits before a worker of any database lacks a slot,
 * and after SPARE_TIME without work.  The slots of the server for parallel queries remain
 * free: without further slots in max_worker_processes, there are no spares.
 *
 * worker/scheduler/spares.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "miscadmin.h"

/* A spare exits after so long without work (microseconds). */
#define SPARE_TIME			(10 * USECS_PER_SEC)

/* The server has refused a process not longer ago than this (microseconds). */
#define REFUSED_TIME		(60 * USECS_PER_SEC)

/*
 * Other processes of the server: the launchers of jobq and of logical replication, the
 * counter, and an errand.
 */
#define OTHER_PROCESSES		4

/* Other processes of each served database: the scheduler, and a process that checks monitors. */
#define DATABASE_PROCESSES	2

static void dismiss_oldest(Demand *demand);

/*
 * The number of workers and spares that may exist in this database, so that no other
 * process lacks a slot; may be negative.  Takes jobq_shared->lock in shared mode.
 */
static int
most_workers(void)
{
	int			most = max_worker_processes - max_parallel_workers - OTHER_PROCESSES;
	int			others = 0;

	LWLockAcquire(jobq_shared->lock, LW_SHARED);
	if (jobq_shared->refused_at != 0 && jobq_steady() < jobq_shared->refused_at + REFUSED_TIME)
		most = 0;
	for (int i = 0; i < jobq_shared->ndatabases; i++)
		if (OidIsValid(jobq_shared->databases[i].dboid))
			most -= DATABASE_PROCESSES;
	for (int i = 0; i < jobq_shared->nslots; i++)
		if (jobq_shared->slots[i].state != JOBQ_SLOT_FREE &&
			jobq_shared->slots[i].database != my_db_index)
			others++;
	LWLockRelease(jobq_shared->lock);
	return Min(most, jobq_shared->nslots) - others;
}

/*
 * Begin a round: decide whether workers become spares, and dismiss old spares.  Returns
 * the time when the next spare is old.  Takes my_db->lock exclusively.
 */
TimestampTz
spares_begin(Demand *demand, TimestampTz now)
{
	int			places = 0;
	TimestampTz oldest = DT_NOEND;

	demand->most = most_workers();
	for (int i = 0; i < demand->npools; i++)
		places += demand->pools[i].size;
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->keeps_spares = demand->most > places;
	LWLockRelease(my_db->lock);

	while (demand->nspares > 0 &&
		   (!my_db->keeps_spares || demand->nworkers + demand->nspares > demand->most))
		dismiss_oldest(demand);
	for (;;)
	{
		oldest = DT_NOEND;
		for (int i = 0; i < demand->nspares; i++)
			oldest = Min(oldest, demand->spares[i].since);
		if (demand->nspares == 0 || oldest + SPARE_TIME > now)
			break;
		dismiss_oldest(demand);
	}
	return demand->nspares == 0 ? DT_NOEND : oldest + SPARE_TIME;
}

/*
 * Make the spare exit that has been without work for the longest time.
 */
static void
dismiss_oldest(Demand *demand)
{
	SpareView  *oldest = &demand->spares[0];
	JobqSlot   *slot;

	for (int i = 1; i < demand->nspares; i++)
		if (demand->spares[i].since < oldest->since)
			oldest = &demand->spares[i];
	slot = &jobq_shared->slots[oldest->slot];
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (slot->generation == oldest->generation && slot->spare)
	{
		PGPROC	   *proc = slot->proc;

		slot->retire = true;
		demand->spares_leaving++;
		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
	LWLockRelease(my_db->lock);
	*oldest = demand->spares[--demand->nspares];
}

/*
 * Return a spare of the role into the pool, in which a place is free.  False if there is
 * none.  Takes my_db->lock exclusively.
 */
bool
spares_recall(Demand *demand, int pool, Oid role, TimestampTz now)
{
	bool		recalled = false;

	for (int i = 0; i < demand->nspares && !recalled; i++)
	{
		SpareView  *spare = &demand->spares[i];
		JobqSlot   *slot = &jobq_shared->slots[spare->slot];

		if (spare->role != role || spare->pool != pool)
			continue;
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		if (slot->generation == spare->generation && slot->spare && !slot->retire &&
			slot->state == JOBQ_SLOT_ATTACHED)
		{
			PGPROC	   *proc = slot->proc;

			jobq_spare_recall(slot, now);
			recalled = proc != NULL;
			if (recalled)
				SetLatch(&proc->procLatch);
		}
		LWLockRelease(my_db->lock);
		if (recalled)
			demand->nworkers_started++;
		*spare = demand->spares[--demand->nspares];
		i--;
	}
	return recalled;
}

/*
 * A new worker is needed.  True if a spare must exit before, and is about to.
 */
bool
spares_make_way(Demand *demand)
{
	if (demand->nworkers + demand->nworkers_started + demand->nspares +
		demand->spares_leaving < demand->most)
		return false;
	if (demand->spares_leaving == 0 && demand->nspares > 0)
		dismiss_oldest(demand);
	if (demand->spares_leaving == 0)
		return false;
	demand->spares_leaving--;
	demand->nworkers_started++;
	return true;
}
