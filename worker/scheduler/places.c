/*-------------------------------------------------------------------------
 *
 * places.c
 *	  Shares the worker slots between databases if there are too few.
 *
 * A database without a free slot announces its need.  A free slot goes to the database
 * with the fewest workers; on a tie, to the longest waiting database.  To free slots,
 * workers leave: a spare worker; an idle worker; for a database without a worker, a worker whose time
 * slice is over; or a worker of a database with at least two more workers.
 *
 * worker/scheduler/places.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "scheduler/scheduler.h"

/* Idle time before a worker leaves for a database with workers (microseconds). */
#define LINGER				(USECS_PER_SEC / 10)

/* The time slice of a worker while another database has none (microseconds). */
#define DATABASE_TURN		(USECS_PER_SEC)

/* A free slot is reserved this long for a database in need (microseconds). */
#define WANTING_TIME		(6 * USECS_PER_SEC)

/*
 * True if the database has announced the need for a slot recently.  Caller holds
 * jobq_shared->lock; without the lock, the result is a hint.
 */
static bool
wants_place(const JobqDatabase *db)
{
	return OidIsValid(db->dboid) && db->wants_since != 0 &&
		jobq_steady() < db->wants_at + WANTING_TIME;
}

/*
 * Count the workers of each database.
 */
static void
count_workers(void)
{
	AssertExclusive(jobq_shared->lock);
	for (int i = 0; i < jobq_shared->ndatabases; i++)
		jobq_shared->databases[i].nworkers = 0;
	jobq_foreach_slot(slot, NULL, JOBQ_SLOTS_COMING)
		jobq_shared->databases[slot->database].nworkers += !slot->spare;
}

/*
 * Find a free slot for a worker of this database.  Returns -1 if there is none, or if
 * all are for other databases (*others is then true).  The caller holds
 * jobq_shared->lock.
 */
int
places_find(bool *others)
{
	JobqSteady	now = jobq_steady();
	JobqSteady	since = wants_place(my_db) ? my_db->wants_since : now;
	int			nfree = 0;
	int			before = 0;
	int			found = -1;

	AssertExclusive(jobq_shared->lock);
	count_workers();
	jobq_foreach_slot(slot, NULL, JOBQ_SLOTS_FREE)
	{
		if (nfree++ == 0)
			found = slot - jobq_shared->slots;
	}
	for (int i = 0; i < jobq_shared->ndatabases; i++)
	{
		const JobqDatabase *db = &jobq_shared->databases[i];

		if (db != my_db && wants_place(db) &&
			(db->nworkers < my_db->nworkers ||
			 (db->nworkers == my_db->nworkers && db->wants_since < since)))
			before++;
	}

	/* if the server itself lacks slots, assume one free slot at a time */
	if (jobq_shared->refused_at != 0 && now < jobq_shared->refused_at + WANTING_TIME)
		nfree = Min(nfree, 1);
	*others = before > 0 && before >= nfree;
	return *others ? -1 : found;
}

/*
 * True if this database may use a slot now.  Takes jobq_shared->lock exclusively.
 */
bool
places_any(void)
{
	bool		others;
	bool		any;

	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	any = places_find(&others) >= 0;
	LWLockRelease(jobq_shared->lock);
	return any;
}

/*
 * Withdraw the need for a slot of this database.  Takes jobq_shared->lock exclusively.
 */
void
places_enough(void)
{
	bool		lacked;

	if (my_db->wants_since == 0)
		return;
	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	lacked = my_db->wants_since != 0;
	my_db->wants_since = 0;
	LWLockRelease(jobq_shared->lock);
	if (lacked)
		places_free();
}

/*
 * A slot has become free: wake the schedulers of databases in need.
 */
void
places_free(void)
{
	for (int i = 0; i < jobq_shared->ndatabases; i++)
		if (i != my_db_index && wants_place(&jobq_shared->databases[i]))
			jobq_wake_scheduler(&jobq_shared->databases[i]);
}

/*
 * Rate how well a worker's slot can go to a database with "mine" workers: higher is
 * better, 0 means never.
 */
static int64
readiness(const JobqSlot *slot, int mine, TimestampTz now)
{
	int			theirs = jobq_shared->databases[slot->database].nworkers;

	if (slot->spare)
		return PG_INT64_MAX;
	/* the clock may have been put back */
	if (slot->idle && (mine == 0 || now < slot->idle_since ||
					   now >= slot->idle_since + LINGER))
		return PG_INT64_MAX - 1024 + Min(theirs, 1024);
	if (theirs < mine + 2 &&
		(mine > 0 || (now >= slot->turn_at &&
					  now < slot->turn_at + DATABASE_TURN)))
		return 0;
	return ((int64) theirs << 50) + Max(now - slot->turn_at, 1);
}

/*
 * The database needs a slot: make a worker of another database leave, unless enough
 * workers are leaving already.  A leaving worker with a long job is not counted.  Takes
 * jobq_shared->lock and the lock of the other database exclusively.
 */
void
places_make_way(int for_database)
{
	JobqDatabase *db = &jobq_shared->databases[for_database];
	JobqSlot   *victim = NULL;
	int64		best = 0;
	int			wanting = 0;
	int			leaving = 0;
	TimestampTz now = jobq_now();

	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	if (!wants_place(db))
		db->wants_since = jobq_steady();
	db->wants_at = jobq_steady();
	count_workers();
	for (int i = 0; i < jobq_shared->ndatabases; i++)
		if (wants_place(&jobq_shared->databases[i]))
			wanting++;
	jobq_foreach_slot(slot, NULL, JOBQ_SLOTS_WITH_RUN)
	{
		int64		ready;

		if (slot->state == JOBQ_SLOT_DEAD)
			leaving++;
		if (slot->state != JOBQ_SLOT_ATTACHED)
			continue;
		if (slot->retire)
		{
			/* a later begin means the clock was put back: not counted */
			if (!jobq_run_busy(&slot->run) ||
				(now >= slot->run.started_at &&
				 now < slot->run.started_at + DATABASE_TURN))
				leaving++;
			continue;
		}
		if (slot->database == for_database)
			continue;
		ready = readiness(slot, db->nworkers, now);
		if (ready > best)
		{
			victim = slot;
			best = ready;
		}
	}
	if (victim != NULL && leaving < wanting)
	{
		JobqDatabase *giver = &jobq_shared->databases[victim->database];
		PGPROC	   *proc = victim->proc;

		LWLockAcquire(giver->lock, LW_EXCLUSIVE);
		victim->retire = true;
		LWLockRelease(giver->lock);
		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
	LWLockRelease(jobq_shared->lock);
}
