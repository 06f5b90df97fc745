/*-------------------------------------------------------------------------
 *
 *	  Finds and wakes the processes that are registered in shared memory.
 *
 * A PGPROC pointer in shared memory may become NULL at any time.  Read the pointer only once,
 * or under the lock.
 *
 * src/memory/process.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "memory/memory.h"

/* The frame of shared memory; NULL without shared_preload_libraries. */
JobqShared *jobq_shared = NULL;

/* The slot of this worker; NULL in a process without a slot. */
JobqSlot   *jobq_my_slot = NULL;

/*
 * True in a scheduler, and in a worker whose handler is not running.  The relay then sends
 * the notifications about jobs, whatever the settings of their queues.  A NOTIFY of this
 * process could fail or wait, and so would the outcome of the jobs.
 */
bool		jobq_tells_by_relay = false;

/*
 * Return the state of a database that has or had a scheduler, or NULL.
 *
 * Takes no lock.  A database keeps its slot as long as the database has sessions, and gets
 * the slot only when the slot is initialized.
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
 * Return the state of this session's database, or NULL.  Takes no lock.
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
 * Ask the launcher to check all databases again.  Takes jobq_shared->lock exclusively.
 */
void
jobq_poke_launcher(void)
{
	if (jobq_shared == NULL)
		return;
	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	jobq_shared->poke = true;
	jobq_shared->pokes++;
	LWLockRelease(jobq_shared->lock);
	jobq_wake_launcher();
}

/*
 * Set *db to the state of this session's database if the database has a scheduler, or to
 * NULL.  Returns whether a scheduler exists or may still be started.  True with *db NULL:
 * the launcher has not checked the databases since the start or the last request.  Takes
 * jobq_shared->lock in shared mode.
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
	*db = jobq_my_database();	/* perhaps assigned just now */
	if (*db != NULL && (*db)->absent)
		*db = NULL;
	return *db != NULL || !looked;
}

/*
 * Wake a running launcher.  Takes no lock.
 */
void
jobq_wake_launcher(void)
{
	PGPROC	   *launcher;

	/* also a barrier: the reason for the wake-up is visible before */
	pg_atomic_fetch_add_u32(&jobq_shared->calls, 1);
	launcher = jobq_shared->launcher;	/* may become NULL: read once */
	if (launcher != NULL)
		SetLatch(&launcher->procLatch);
}

/*
 * Wake a running scheduler of the database.  Takes no lock.
 */
void
jobq_wake_scheduler(JobqDatabase *db)
{
	PGPROC	   *scheduler;

	pg_atomic_fetch_add_u32(&db->calls, 1);
	scheduler = db->scheduler;	/* may become NULL: read once */
	if (scheduler != NULL)
		SetLatch(&scheduler->procLatch);
}

/*
 * Record a pending cancellation of a job that may run again, because its worker could no
 * longer stop the job.  Returns a ticket for jobq_cancel_paid(), or 0 if there is no room.
 * Cannot fail; takes db->lock exclusively.
 *
 * A job that already has a pending cancellation gets a new ticket.  An attempt to carry out
 * the earlier request may have ended in the request to the current worker.
 */
uint64
jobq_owe_cancel(JobqDatabase *db, int64 job_id)
{
	uint64		ticket = 0;
	int			i = 0;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	while (i < db->nowed && db->owed[i].job_id != job_id)
		i++;
	if (i < JOBQ_MAX_OWED)
	{
		ticket = ++db->tickets;
		db->owed[i].job_id = job_id;
		db->owed[i].ticket = ticket;
		db->nowed = Max(db->nowed, i + 1);
	}
	LWLockRelease(db->lock);
	return ticket;
}

/*
 * Remove the pending cancellation with this ticket, because it was carried out.  Does nothing
 * if no pending cancellation has this ticket any more.  Takes db->lock exclusively.
 */
void
jobq_cancel_paid(JobqDatabase *db, uint64 ticket)
{
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < db->nowed; i++)
		if (db->owed[i].ticket == ticket)
		{
			db->owed[i] = db->owed[--db->nowed];
			break;
		}
	LWLockRelease(db->lock);
}
