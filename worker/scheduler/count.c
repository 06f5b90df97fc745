/*-------------------------------------------------------------------------
 *
 * count.c
 *	  Has the jobs and dead letters of the database counted for the statistics, when
 *	  nobody knows them: at the first start, after a crash, and when rows have come or
 *	  gone of which nothing was noted.
 *
 * A process counts (counter.c), which is started some time after that is asked for: what
 * has come after the start, or with those rows, is under way then, and those who ask all
 * the time have few processes started.  If the server has no place for a process, the
 * scheduler counts, and does nothing else meanwhile.
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

/* It begins so many microseconds after it is asked for. */
#define DELAY		USECS_PER_SEC

/* One that is asked for while another counts waits for so many times as long as that took, too. */
#define PAUSES		20

/* Microseconds between two looks at who counts, should its end have woken nobody. */
#define LOOK_PAUSE	USECS_PER_SEC

/* Without room for this database's jobs it is looked for again after so many microseconds. */
#define ROOM_PAUSE	USECS_PER_MINUTE

static TimestampTz load(TimestampTz now);
static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);

/* Starts the process that counts, and sees what becomes of it. */
Duty		count_duty = {
	.what = "count the jobs for the statistics",
	.load = load,
	.run = run,
	.next_due = next_due,
};

static JobqStatBase *base = NULL;

/* It has been asked for, and begins at its next turn. */
static bool begins = false;

/* Who counts, or NULL; and since when. */
static BackgroundWorkerHandle *counter = NULL;
static TimestampTz counts_since;

/*
 * Forget the databases that are gone.  DROP DATABASE has that done; but the file of the
 * statistics may be older than it, as after a crash, or where a standby has replayed it.
 * In a transaction.
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
 * Forget a database that is not served any more, so that another has its room; false if
 * there is none.  Which are served does not change under the lock.
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
 * The jobs of this database are counted from now on.
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

	/* the one before may have left in the midst of it */
	jobq_stats_count_end(base, base->count, NULL, now);
	return now;
}

/*
 * Has who counted ended?
 */
static bool
counter_gone(void)
{
	pid_t		pid;

	return GetBackgroundWorkerPid(counter, &pid) == BGWH_STOPPED;
}

/*
 * Nobody counts any more.  Returns when it is to be done again.
 */
static TimestampTz
counted(TimestampTz now)
{
	TimestampTz took = Max(now - counts_since, 0);

	/* one that was begun has met an error, or was terminated */
	jobq_stats_count_end(base, base->count, NULL, now);
	begins = base->recount;
	return begins ? now + DELAY + took * PAUSES : DT_NOEND;
}

static TimestampTz
run(TimestampTz now)
{
	MemoryContext round;

	if (base == NULL)
		return load(now);
	if (counter != NULL)
	{
		if (!counter_gone())
			return now + LOOK_PAUSE;
		pfree(counter);
		counter = NULL;
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
	counts_since = jobq_now();
	round = MemoryContextSwitchTo(TopMemoryContext);
	counter = counter_start();
	MemoryContextSwitchTo(round);
	if (counter != NULL)
		return counts_since + LOOK_PAUSE;

	process_begin_transaction();
	counter_count(base, counts_since);
	PopActiveSnapshot();
	CommitTransactionCommand();
	return counted(jobq_now());
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	if (counter != NULL && counter_gone())
		return now;
	if (plan != DT_NOEND)
		return plan;
	return base != NULL && (base->recount || base->count != 0) ? now : DT_NOEND;
}
