/*-------------------------------------------------------------------------
 *
 * process.c
 *	  The processes that shared memory knows: how they are found and woken.
 *
 * A PGPROC pointer in shared memory may vanish: it is read once, or under the lock
 * that guards it.
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

/* This worker's own; NULL: this process is none. */
JobqSlot   *jobq_my_slot = NULL;

/*
 * This process is a scheduler, or a worker whose handler does not run now: what it
 * writes about jobs is told by the relay, whatever their queues say.  A NOTIFY of its own
 * might fail, or wait, and with it what has become of the jobs.
 */
bool		jobq_tells_by_relay = false;

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

static JobqSlot *slot_of_job(JobqDatabase *db, int64 job_id, bool dead_too);

/*
 * The slot of the worker that runs this job in the database, or, if there is none and
 * "dead_too", that of one that has died at it and was not charged yet; or NULL.
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
 * The slot of the worker that runs this job in the database, or NULL.  The
 * answer may be outdated as soon as it is given.
 */
JobqSlot *
jobq_slot_of_job(JobqDatabase *db, int64 job_id)
{
	return slot_of_job(db, job_id, false);
}

/*
 * The same, or that of one that has died at the job and was not charged yet.  Only the
 * scheduler itself ends the second.
 */
JobqSlot *
jobq_slot_names_job(JobqDatabase *db, int64 job_id)
{
	return slot_of_job(db, job_id, true);
}

/*
 * Is this job, of which so many attempts are charged, another worker's to see to, though
 * nobody may have its row?  That worker has died at it, or its attempt has failed, and this
 * is to be recorded before the job runs again.  tried: somebody has deleted or locked the
 * row, so that it may be a worker that is about to record it, or to die.
 *
 * Whoever has popped the job drops it then: it is handed over again when the slot does not
 * name it any more.  As a rule no slot is looked at.
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
 * The transaction that ends the attempt at the job that this process runs has committed.
 * The job is not shown as running, although the process has not come to leave it:
 * whoever is told of the end may look at once.
 */
void
jobq_slot_job_over(void)
{
	SpinLockAcquire(&jobq_my_slot->mutex);
	jobq_my_slot->over = true;
	SpinLockRelease(&jobq_my_slot->mutex);
}

/*
 * A worker was asked to stop this job, which it does not run any more, and which may run
 * again: have that cancelled.  Returns the ticket with which to say that this is done, or
 * 0 if there is no room.  Cannot fail; takes db->lock.
 *
 * Who is in debt already gets another ticket: what was begun with the one before may
 * have ended in asking the worker that is in debt now.
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
 * What is owed by this ticket was done since it was given.  Nothing happens if it is not
 * owed any more, or by another ticket.  Takes db->lock.
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
