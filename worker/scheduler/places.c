/*-------------------------------------------------------------------------
 *
 * places.c
 *	  How the databases share the places for workers, where they are too few for
 *	  all.
 *
 * A database that lacks a place says so.  A place that becomes free is for the
 * one with the fewest workers, and among these for the one that has waited
 * longest.  So that places become free, workers leave: one that is idle; for a
 * database that has none, one whose turn is over; and one of a database that has
 * at least two more.
 *
 * worker/scheduler/places.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "scheduler/scheduler.h"

/* One that has workers takes those of others that have been idle so long. */
#define LINGER				(USECS_PER_SEC / 10)

/* How long a database keeps its place in another that lacks one. */
#define DATABASE_TURN		(USECS_PER_SEC)

/* A place is kept so long for a database that lacks one. */
#define WANTING_TIME		(6 * USECS_PER_SEC)

static bool wants_place(const JobqDatabase *db, TimestampTz now);
static void count_workers(void);

/*
 * Does the database lack a place, as far as it has said?  Wants
 * jobq_shared->lock.
 */
static bool
wants_place(const JobqDatabase *db, TimestampTz now)
{
	return OidIsValid(db->dboid) && db->wants_since != 0 &&
		now >= db->wants_at && now < db->wants_at + WANTING_TIME;
}

/*
 * Count the workers of each database.  Wants jobq_shared->lock.
 */
static void
count_workers(void)
{
	for (int i = 0; i < jobq_shared->ndatabases; i++)
		jobq_shared->databases[i].nworkers = 0;
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		const JobqSlot *slot = &jobq_shared->slots[i];

		if (slot->state == JOBQ_SLOT_STARTING ||
			slot->state == JOBQ_SLOT_ATTACHED)
			jobq_shared->databases[slot->database].nworkers++;
	}
}

/*
 * A free slot for a worker of this database, or -1 if there is none, or if it is
 * for another database (*others).  Wants jobq_shared->lock exclusively.
 */
int
places_find(TimestampTz now, bool *others)
{
	TimestampTz since = wants_place(my_db, now) ? my_db->wants_since : now;
	int			nfree = 0;
	int			before = 0;
	int			found = -1;

	count_workers();
	for (int i = 0; i < jobq_shared->nslots; i++)
		if (jobq_shared->slots[i].state == JOBQ_SLOT_FREE)
		{
			nfree++;
			found = found < 0 ? i : found;
		}
	for (int i = 0; i < jobq_shared->ndatabases; i++)
	{
		const JobqDatabase *db = &jobq_shared->databases[i];

		if (db != my_db && wants_place(db, now) &&
			(db->nworkers < my_db->nworkers ||
			 (db->nworkers == my_db->nworkers && db->wants_since < since)))
			before++;
	}

	/* where it is the server that lacks places, there is one at a time */
	if (now >= jobq_shared->refused_at &&
		now < jobq_shared->refused_at + WANTING_TIME)
		nfree = Min(nfree, 1);
	*others = before > 0 && before >= nfree;
	return *others ? -1 : found;
}

/*
 * Is there a place for this database?
 */
bool
places_any(TimestampTz now)
{
	bool		others;
	bool		any;

	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	any = places_find(now, &others) >= 0;
	LWLockRelease(jobq_shared->lock);
	return any;
}

/*
 * This database lacks no place.
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
 * A slot has become free: tell those who lack one.
 */
void
places_free(void)
{
	TimestampTz now = jobq_now();

	for (int i = 0; i < jobq_shared->ndatabases; i++)
		if (i != my_db_index &&
			wants_place(&jobq_shared->databases[i], now))
			jobq_wake_scheduler(&jobq_shared->databases[i]);
}

/*
 * How willingly a worker's place is given to a database that has "mine": the
 * most is the best, 0 is not at all.
 */
static int64
readiness(const JobqSlot *slot, int mine, TimestampTz now)
{
	int			theirs = jobq_shared->databases[slot->database].nworkers;

	/* the clock may have been put back */
	if (slot->idle && (mine == 0 || now < slot->idle_since ||
					   now >= slot->idle_since + LINGER))
		return PG_INT64_MAX - 1024 + Min(theirs, 1024);
	if (theirs < mine + 2 &&
		(mine > 0 || (now >= slot->started_at &&
					  now < slot->started_at + DATABASE_TURN)))
		return 0;
	return ((int64) theirs << 50) + Max(now - slot->started_at, 1);
}

/*
 * The database lacks a place for a process: have a worker of another leave,
 * unless enough are on their way out.  One that is at a long job is not counted
 * upon.
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
	if (!wants_place(db, now))
		db->wants_since = now;
	db->wants_at = now;
	count_workers();
	for (int i = 0; i < jobq_shared->ndatabases; i++)
		if (wants_place(&jobq_shared->databases[i], now))
			wanting++;
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];
		int64		ready;

		if (slot->state == JOBQ_SLOT_DEAD)
			leaving++;
		if (slot->state != JOBQ_SLOT_ATTACHED)
			continue;
		if (slot->retire)
		{
			/* one that has begun later than now: the clock was put back */
			if (slot->job_id == 0 ||
				(now >= slot->job_started_at &&
				 now < slot->job_started_at + DATABASE_TURN))
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
