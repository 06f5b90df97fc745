/*-------------------------------------------------------------------------
 *
 * count.c
 *	  Starts the count of jobs and dead letters for the statistics if the
 *	  numbers are unknown: at the first start, after a crash, and after changes
 *	  of rows without a note.
 *
 * A separate process counts (counter.c).  The process starts some time after the
 * request, so that pending changes are included and frequent requests start few
 * processes.  If the server has no free background worker slot, the scheduler itself
 * counts, and does nothing else meanwhile.
 *
 * worker/scheduler/count.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "scheduler/duty.h"

/* Microseconds between a request and the start. */
#define DELAY		USECS_PER_SEC

/* A request during a count waits longer: for this multiple of the duration of the count. */
#define PAUSES		20

/* Microseconds between two checks of the process, if its end was not noticed. */
#define LOOK_PAUSE	USECS_PER_SEC

/* Microseconds before the next search for room for this database. */
#define ROOM_PAUSE	USECS_PER_MINUTE

static TimestampTz load(TimestampTz now);
static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);

/* Starts the counting process, and handles its end. */
Duty		count_duty = {
	.what = "count the jobs for the statistics",
	.load = load,
	.run = run,
	.next_due = next_due,
};

static JobqStatBase *base = NULL;

/* Requested; begins in the next run. */
static bool begins = false;

/* The counting process, or NULL; and when the last count began. */
static BackgroundWorkerHandle *counter = NULL;
static instr_time begun;

/*
 * Forget dropped databases.  DROP DATABASE normally does this, but the statistics file
 * may be older, after a crash or on a standby.  Must be called in a transaction.
 */
static void
forget_dropped(void)
{
	for (int i = 0; i < jobq_max_databases; i++)
	{
		Oid			dboid = jobq_stats->bases[i].dboid;

		if (OidIsValid(dboid) &&
			!SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(dboid)))
			jobq_stats_forget_database(dboid, InvalidOid);
	}
}

/*
 * Forget a database no longer served, to make room.  Returns false if there is none.
 * The set of served databases does not change under the lock.  Takes jobq_shared->lock
 * shared.
 */
static bool
forget_unserved(void)
{
	Oid			unserved = InvalidOid;

	LWLockAcquire(jobq_shared->lock, LW_SHARED);
	for (int i = 0; i < jobq_max_databases && !OidIsValid(unserved); i++)
	{
		Oid			dboid = jobq_stats->bases[i].dboid;

		if (OidIsValid(dboid) && jobq_find_database(dboid) == NULL)
			unserved = dboid;
	}
	if (OidIsValid(unserved))
		jobq_stats_forget_database(unserved, InvalidOid);
	LWLockRelease(jobq_shared->lock);
	return OidIsValid(unserved);
}

/*
 * Register this database in the statistics.  Without room, tries again after
 * ROOM_PAUSE.
 */
static TimestampTz
load(TimestampTz now)
{
	static bool warned = false;
	Oid			jobs;

	begins = false;
	process_begin_transaction();
	jobs = jobq_relations()->job;
	forget_dropped();
	PopActiveSnapshot();
	CommitTransactionCommand();

	jobq_stats_forget_database(MyDatabaseId, jobs);
	do
	{
		LWLockAcquire(jobq_stats->lock, LW_EXCLUSIVE);
		base = jobq_stats_base(MyDatabaseId, jobs, true, now);
		LWLockRelease(jobq_stats->lock);
	} while (base == NULL && forget_unserved());
	if (base == NULL)
	{
		if (!warned)
			ereport(LOG,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("jobq keeps statistics of no more than %d databases, and this is one more",
							jobq_max_databases),
					 errhint("Raise \"%s\" and restart the server.",
							 "jobq.max_databases")));
		warned = true;
		return now + ROOM_PAUSE;
	}

	/* the previous counter may have been interrupted */
	jobq_stats_count_end(base, base->count, NULL, now);
	return now;
}

/*
 * Handle the end of a count.  Returns the time of the next count.
 */
static TimestampTz
counted(TimestampTz now)
{
	/* unknown for another scheduler's count */
	int64		took = INSTR_TIME_IS_ZERO(begun) ? 0 : jobq_elapsed(begun);

	/* the count ended with an error, or was terminated */
	jobq_stats_count_end(base, base->count, NULL, now);
	begins = base->recount;
	return begins ? now + DELAY + took * PAUSES : DT_NOEND;
}

static TimestampTz
run(TimestampTz now)
{
	if (base == NULL)
		return load(now);
	if (counter != NULL)
	{
		if (!aside_over(&counter))
			return now + LOOK_PAUSE;
		return counted(jobq_now());
	}

	if (base->count != 0)
		return counted(now);
	if (!base->recount)
		return DT_NOEND;
	if (!begins)
	{
		begins = true;
		return jobq_now() + DELAY;
	}
	begins = false;
	now = jobq_now();
	INSTR_TIME_SET_CURRENT(begun);
	counter = counter_start();
	if (counter != NULL)
		return now + LOOK_PAUSE;

	process_begin_transaction();
	counter_count(base, now);
	PopActiveSnapshot();
	CommitTransactionCommand();
	return counted(jobq_now());
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	if (counter != NULL && aside_gone(counter))
		return now;
	if (plan != DT_NOEND)
		return plan;
	return base != NULL && (base->recount || base->count != 0) ? now : DT_NOEND;
}
