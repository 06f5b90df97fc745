/*-------------------------------------------------------------------------
 *
 *	  Finds and wakes the processes that are registered in shared memory.
 *
 * A PGPROC pointer in shared memory may become NULL at any time.  Read the pointer only once,
 * or under its lock.
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

/* The slot of this worker; NULL in any other process. */
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
 * NULL.  Returns whether a scheduler exists or may still be started.  True with *db NULL
 * means that the launcher has not checked the databases since its start or the last request.
 * Takes jobq_shared->lock in shared mode.
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
 * Wake the launcher, if it is running.  Takes no lock.
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
 * Wake the scheduler of the database, if it is running.  Takes no lock.
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

static JobqSlot *slot_of_job(JobqDatabase *db, int64 job_id, bool dead_too);

/*
 * Return the slot of the worker that runs this job, or NULL.  If no worker runs the job and
 * dead_too is set, return the slot of a worker that has died with the job and was not charged
 * yet.
 */
static JobqSlot *
slot_of_job(JobqDatabase *db, int64 job_id, bool dead_too)
{
	int			index = db - jobq_shared->databases;
	JobqSlot   *dead = NULL;

	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];
		bool		match;

		if (slot->database != index || (slot->state != JOBQ_SLOT_ATTACHED &&
										!(dead_too && slot->state == JOBQ_SLOT_DEAD)))
			continue;
		SpinLockAcquire(&slot->mutex);
		match = slot->job_id == job_id && !slot->over;
		SpinLockRelease(&slot->mutex);
		if (match && slot->state == JOBQ_SLOT_DEAD)
			dead = slot;
		else if (match)
			return slot;
	}
	return dead;
}

/*
 * Return the slot of the worker that runs this job in the database, or NULL.  The answer may
 * be outdated at once.  Takes the mutexes of slots.
 */
JobqSlot *
jobq_slot_of_job(JobqDatabase *db, int64 job_id)
{
	return slot_of_job(db, job_id, false);
}

/*
 * Like jobq_slot_of_job(), but also find the slot of a worker that has died with the job, if
 * the job was not charged yet.  Only the scheduler frees such a slot.  Takes the mutexes of
 * slots.
 */
JobqSlot *
jobq_slot_names_job(JobqDatabase *db, int64 job_id)
{
	return slot_of_job(db, job_id, true);
}

/*
 * Must another worker deal with this job, which has this number of charged attempts?  True if
 * that worker has died with the job, or if its attempt has failed, and this must be recorded
 * before the job runs again.  The job's row may be free nevertheless.  tried: another process
 * has deleted or locked the row, so a live worker may be about to record the failure, or to
 * die.
 *
 * If true, the popping process drops the entry.  The job is handed over again when the slot
 * no longer names the job.  Usually no slot is examined.  Takes the mutexes of slots.
 */
bool
jobq_slot_keeps_job(JobqDatabase *db, int64 job_id, int attempt, bool tried)
{
	int			index = db - jobq_shared->databases;
	bool		keeps = false;

	if (!tried && db->ndead == 0)
		return false;
	for (int i = 0; i < jobq_shared->nslots && !keeps; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot->database != index || slot->job_id != job_id ||
			(slot->state != JOBQ_SLOT_DEAD &&
			 !(tried && slot->state == JOBQ_SLOT_ATTACHED)))
			continue;
		SpinLockAcquire(&slot->mutex);
		keeps = slot->job_id == job_id && slot->attempt == attempt && !slot->over;
		slot->asked_for |= keeps;
		SpinLockRelease(&slot->mutex);
	}
	return keeps;
}

/*
 * Record that the transaction ending the current attempt of this worker has committed.  The
 * job is no longer shown as running, although the worker has not left the job yet.  A session
 * notified of the end may query the job at once.  Takes the mutex of the slot.
 */
void
jobq_slot_job_over(void)
{
	SpinLockAcquire(&jobq_my_slot->mutex);
	jobq_my_slot->over = true;
	SpinLockRelease(&jobq_my_slot->mutex);
}

/*
 * Change the state of a slot, and count the dead workers of its database.  The caller holds
 * jobq_shared->lock.
 */
void
jobq_slot_to(JobqSlot *slot, JobqSlotState state)
{
	JobqDatabase *db = &jobq_shared->databases[slot->database];
	JobqSlotState before = slot->state;

	AssertExclusive(jobq_shared->lock);
	Assert(state != JOBQ_SLOT_FREE || before == JOBQ_SLOT_STARTING ||
		   before == JOBQ_SLOT_DEAD);
	Assert(state != JOBQ_SLOT_STARTING || before == JOBQ_SLOT_FREE);
	Assert(state != JOBQ_SLOT_ATTACHED || before == JOBQ_SLOT_STARTING);
	Assert(state != JOBQ_SLOT_DEAD || before == JOBQ_SLOT_ATTACHED);
	slot->state = state;
	if (state == JOBQ_SLOT_DEAD)
		db->ndead++;
	else if (before == JOBQ_SLOT_DEAD)
	{
		Assert(db->ndead > 0);
		db->ndead--;
	}
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
