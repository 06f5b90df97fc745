/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The launcher: a single process per cluster, which keeps a scheduler alive for each
 *	  served database.
 *
 * The launcher is connected to no database, and reads shared catalogs only.  The launcher
 * starts a scheduler for each database in jobq.databases.  A scheduler that finds no
 * extension marks the database's slot and exits.  The scheduler is started again when
 * CREATE EXTENSION wakes (pokes) the launcher.  Until then another database may get the
 * slot, if there are more databases than slots.  As a safety check, the launcher also
 * checks every jobq.poll_interval whether a scheduler is missing.
 *
 * The postmaster restarts only the launcher.  The launcher exits with 1 and never with 0,
 * because the postmaster does not restart a process that exits with 0.  Schedulers and workers
 * are dynamic, and are supervised through shared memory.  A scheduler survives the exit of the
 * launcher.
 *
 * worker/launcher/launcher.c
 *
 *-------------------------------------------------------------------------
 */
#include "launcher/inner.h"

#include "access/xact.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "launcher/launcher.h"
#include "scheduler/scheduler.h"
#include "stats/stats.h"

PGDLLEXPORT void jobq_launcher_main(Datum main_arg);

/* Microseconds until another check, if no slot or no process is free. */
#define NONE_FREE		USECS_PER_SEC

/* Number of starts after which a scheduler counts as failing. */
#define SLOW_STARTS		4

/*
 * Databases that lost their slots because the extension was missing.  They can get a slot
 * again after the next poke.
 */
static List *without = NIL;

static void launcher_exit(int code, Datum arg);
static void read_flight_recorder(void);
static long look_at_databases(void);
static long save_stats(void);
static long start_schedulers(const List *dboids);
static long leave_database(int index);
static JobqDatabase *take_place(Oid dboid, long *pause);
static bool all_settled(void);
static bool start_scheduler(JobqDatabase *db);

/* Register the launcher with the postmaster.  Called once, in the postmaster. */
void
jobq_register_launcher(void)
{
	BackgroundWorker worker = {0};

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_library_name, "jobq", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "jobq_launcher_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "jobq launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "jobq launcher", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

void
jobq_launcher_main(Datum main_arg)
{
	static uint32 wait_event = 0;

	process_start();
	BackgroundWorkerInitializeConnectionByOid(InvalidOid, InvalidOid, 0);
	process_pin_settings(false);

	before_shmem_exit(launcher_exit, (Datum) 0);
	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	jobq_shared->launcher = MyProc;
	LWLockRelease(jobq_shared->lock);

	flight_open(true);
	if (!jobq_shared->flight_read)
		read_flight_recorder();

	for (;;)
	{
		uint32		seen = pg_atomic_read_u32(&jobq_shared->calls);
		uint64		pokes;
		long		pause;
		bool		poked;

		LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
		pokes = jobq_shared->pokes;
		poked = jobq_shared->poke;
		if (poked)
		{
			jobq_shared->poke = false;
			for (int i = 0; i < jobq_shared->ndatabases; i++)
			{
				JobqDatabase *db = &jobq_shared->databases[i];

				/* a missing extension was not a failure */
				if (db->absent)
					db->failures = 0;
				db->absent = false;
				db->retry_at = 0;
			}
		}
		LWLockRelease(jobq_shared->lock);
		if (poked)
		{
			list_free(without);
			without = NIL;
		}

		pause = look_at_databases();
		pause = Min(pause, save_stats());
		LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
		jobq_shared->pokes_seen = pokes;
		LWLockRelease(jobq_shared->lock);
		(void) process_sleep(&jobq_shared->calls, seen, pause,
							 jobq_wait_event(wait_event, "JobqLauncher"));
	}
}

static void
launcher_exit(int code, Datum arg)
{
	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	jobq_shared->launcher = NULL;
	LWLockRelease(jobq_shared->lock);
}

/*
 * Find the culprits of the last crash, which schedulers and sessions charge.  Culprits of
 * databases that are gone are removed.
 */
static void
read_flight_recorder(void)
{
	JobqCulprit culprit;

	flight_judge();
	StartTransactionCommand();
	for (int next = 0; flight_culprit(InvalidOid, &next, &culprit);)
		if (!SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(culprit.dboid)))
			flight_clear_culprit(&culprit);
	CommitTransactionCommand();
	jobq_shared->flight_read = true;
}

static long
milliseconds(int64 us)
{
	return us <= 0 ? 0 : (us + 999) / 1000;
}

/*
 * Save the statistics once a minute, if they have changed.  Returns the time until the next
 * call, in milliseconds.
 */
static long
save_stats(void)
{
	static JobqSteady last = 0;
	bool		first = last == 0;

	if (jobq_once_in(&last, USECS_PER_MINUTE) && !first)
		jobq_stats_save();
	return milliseconds(last + USECS_PER_MINUTE - jobq_steady());
}

/*
 * Start missing schedulers, have superfluous schedulers exit, and report probable mistakes.
 * Returns the time to sleep, in milliseconds.
 */
static long
look_at_databases(void)
{
	static MemoryContext context = NULL;
	List	   *dboids;
	List	   *problems = NIL;
	MemoryContext old;
	long		pause = jobq_poll_interval * 1000L;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "jobq launcher",
										ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	dboids = served_databases(&problems);
	report_problems(problems);

	/* first, because freed slots may be needed */
	for (int i = 0; i < jobq_shared->ndatabases; i++)
		if (OidIsValid(jobq_shared->databases[i].dboid) &&
			!list_member_oid(dboids, jobq_shared->databases[i].dboid))
			pause = Min(pause, leave_database(i));
	pause = Min(pause, start_schedulers(dboids));
	MemoryContextSwitchTo(old);
	MemoryContextReset(context);
	return pause;
}

/*
 * Start missing schedulers that may start now.  Returns the time until the next check, in
 * milliseconds.
 */
static long
start_schedulers(const List *dboids)
{
	static bool warned = false;
	JobqSteady	now = jobq_steady();
	long		pause = jobq_poll_interval * 1000L;
	ListCell   *lc;

	foreach(lc, dboids)
	{
		JobqDatabase *db = jobq_find_database(lfirst_oid(lc));
		JobqSteady	at;

		if (db == NULL && list_member_oid(without, lfirst_oid(lc)))
			continue;
		if (db == NULL)
			db = take_place(lfirst_oid(lc), &pause);
		if (db == NULL)
		{
			if (!all_settled())
			{
				pause = Min(pause, milliseconds(NONE_FREE));
				continue;
			}
			if (!warned)
				ereport(LOG,
						(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						 errmsg("jobq serves no more than %d databases",
								jobq_max_databases),
						 errhint("Raise \"%s\" and restart the server.",
								 "jobq.max_databases")));
			warned = true;
			continue;			/* other databases have slots */
		}
		if (db->scheduler != NULL || db->absent)
			continue;

		at = db->stop ? Max(db->retry_at, db->stop_until) : db->retry_at;
		if (at <= now)
		{
			db->stop = false;
			if (!start_scheduler(db))
				at = now + NONE_FREE;
			else
				/* counts if the scheduler exits before it works */
				at = now + jobq_pause_length(PAUSE_SCHEDULER_FAILED, ++db->failures);
			db->retry_at = at;
		}
		pause = Min(pause, milliseconds(at - now));
	}
	return pause;
}

/*
 * Assign a slot to the database, or return NULL.  If no slot is free, take the slot of a
 * database without the extension.  *pause is lowered to the time until a slot may be free, in
 * milliseconds.
 */
static JobqDatabase *
take_place(Oid dboid, long *pause)
{
	JobqDatabase *db = database_entry(dboid);

	for (int i = 0; i < jobq_shared->ndatabases && db == NULL; i++)
	{
		JobqDatabase *other = &jobq_shared->databases[i];
		Oid			other_dboid = other->dboid;
		MemoryContext old;

		if (!other->absent || other->scheduler != NULL || !OidIsValid(other_dboid))
			continue;
		*pause = Min(*pause, leave_database(i));
		if (OidIsValid(other->dboid))
			continue;			/* workers are still there */
		old = MemoryContextSwitchTo(TopMemoryContext);
		without = lappend_oid(without, other_dboid);
		MemoryContextSwitchTo(old);
		db = database_entry(dboid);
	}
	return db;
}

/*
 * True if for all databases with slots it is known whether the extension exists.  The
 * answer is unknown while a scheduler was started at most SLOW_STARTS times and has not
 * completed a round, because a busy machine may start processes slowly.
 */
static bool
all_settled(void)
{
	for (int i = 0; i < jobq_shared->ndatabases; i++)
	{
		const JobqDatabase *db = &jobq_shared->databases[i];

		if (db->absent ||
			(db->failures == 0 && db->scheduler == NULL) ||
			(db->failures > 0 && db->failures <= SLOW_STARTS))
			return false;
	}
	return true;
}

/*
 * The database is gone or no longer served: have all processes exit, and free the slot
 * afterwards.  Returns the time until the next check, in milliseconds.  Takes JobqShared.lock
 * exclusively.
 */
static long
leave_database(int index)
{
	JobqDatabase *db = &jobq_shared->databases[index];
	long		pause = jobq_poll_interval * 1000L;
	TimestampTz now = jobq_now();
	bool		used = false;

	db->stop = true;
	db->stop_until = 0;
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_ALL)
	{
		PGPROC	   *proc = slot->proc;

		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
	jobq_wake_scheduler(db);
	used = jobq_reservers_dismiss(db);
	if (db->scheduler != NULL)
		return pause;

	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_USED)
	{
		if (slot->state == JOBQ_SLOT_DEAD)
		{
			process_slot_gone(db, slot, true, false, now);
			jobq_slot_to(slot, JOBQ_SLOT_FREE);
		}
		else if (slot->state == JOBQ_SLOT_STARTING &&
				 now > slot->started_at + PROCESS_ATTACH_TIMEOUT)
		{
			/* the worker never attached, and must not attach later */
			slot->generation++;
			jobq_slot_to(slot, JOBQ_SLOT_FREE);
		}
		else
			used = true;
		if (slot->state == JOBQ_SLOT_STARTING)
		{
			/* the clock may have been put back */
			slot->started_at = Min(slot->started_at, now);
			pause = Min(pause, 1 +
						TimestampDifferenceMilliseconds(now, slot->started_at +
														PROCESS_ATTACH_TIMEOUT));
		}
	}
	if (!used)
	{
		jobq_stats_unknown(db->dboid);
		db->dboid = InvalidOid;
		db->stop = db->absent = false;
		db->retry_at = 0;
		db->failures = 0;
	}
	LWLockRelease(jobq_shared->lock);
	return pause;
}

/*
 * Start a scheduler.  If no process slot is free, log this once a minute, ask other databases
 * for slots, and return false.
 */
static bool
start_scheduler(JobqDatabase *db)
{
	static JobqSteady warned_at = 0;

	if (scheduler_register(db - jobq_shared->databases))
		return true;
	places_make_way(db - jobq_shared->databases);
	if (jobq_once_in(&warned_at, USECS_PER_MINUTE))
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start the jobq scheduler of database %u: out of background worker slots",
						db->dboid),
				 errhint("Raise \"%s\" and restart the server.",
						 "max_worker_processes")));
	return false;
}
