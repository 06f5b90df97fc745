/*-------------------------------------------------------------------------
 *
 * scheduler.c
 *	  The scheduler: one per served database.  Decides which job may run next,
 *	  looks after the workers, sends what the relay has collected.
 *
 * It sleeps until its latch is set or something is due, and runs a query only
 * then; in an idle database that is the safety check every jobq.poll_interval.
 *
 * An error ends the process; the launcher starts a new one after a pause that
 * grows while it keeps failing.  A new scheduler reads everything anew.
 *
 * worker/scheduler/scheduler.c
 *
 *-------------------------------------------------------------------------
 */
#include "process/worker.h"


#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"

PGDLLEXPORT void jobq_scheduler_main(Datum main_arg);

/* Retry of lanes that found no place. */
#define OVERFLOW_PAUSE	(USECS_PER_SEC / 4)

/* Rows of finished reservations are collected this often. */
#define GARBAGE_PAUSE	USECS_PER_SEC

/* No partitions are made so long after CREATE EXTENSION. */
#define RESTORE_TIME	(5 * USECS_PER_SEC)

#define RETENTION_PAUSE	(INT64CONST(3600) * USECS_PER_SEC)

JobqDatabase *my_db = NULL;
int			my_db_index;

static void scheduler_exit(int code, Datum arg);
static void check_extension(void);
static bool anything_to_scan(TimestampTz now);
static TimestampTz next_wake(TimestampTz wake);

void
jobq_scheduler_main(Datum main_arg)
{
	static uint32 wait_event = 0;
	TimestampTz next_sweep;
	TimestampTz next_retention = 0;
	TimestampTz next_overflow = 0;
	TimestampTz next_garbage = 0;
	TimestampTz next_schedule = 0;
	TimestampTz next_batches = 0;
	TimestampTz last = 0;
	MemoryContext context;

	my_db_index = DatumGetInt32(main_arg);
	my_db = &jobq_shared->databases[my_db_index];

	process_start();
	BackgroundWorkerInitializeConnectionByOid(my_db->dboid, InvalidOid, 0);
	process_pin_settings(false);
	flight_open(false);
	jobq_injection_point("jobq-scheduler-start");

	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	if (my_db->scheduler != NULL || my_db->dboid != MyDatabaseId)
	{
		LWLockRelease(jobq_shared->lock);
		proc_exit(0);
	}
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_ready_clear(my_db);
	my_db->reload = true;
	my_db->limits->stale = true;
	my_db->rescan = true;
	my_db->wake_at = 0;
	my_db->can_spawn = true;
	my_db->told->nwaited = 0;
	my_db->scheduler = MyProc;
	my_db->scheduler_pid = MyProcPid;
	LWLockRelease(my_db->lock);
	LWLockRelease(jobq_shared->lock);
	before_shmem_exit(scheduler_exit, (Datum) 0);

	context = AllocSetContextCreate(TopMemoryContext, "jobq scheduler",
									ALLOCSET_DEFAULT_SIZES);
	next_sweep = jobq_now() + jobq_poll_interval * USECS_PER_SEC;
	pgstat_report_activity(STATE_IDLE, NULL);
	check_extension();
	supervise_charge_culprits();
	limits_start();
	leases_load();
	batches_start();

	/*
	 * The day's partition is wanted before the first job is finished.  But if
	 * the extension was created just now, that may be a restore, which brings
	 * partitions of its own.
	 */
	if (jobq_now() < jobq_shared->poked_at + RESTORE_TIME)
		next_retention = jobq_now() + RESTORE_TIME;
	else if (!jobq_start_paused)
	{
		retention_run();
		next_retention = jobq_now() + RETENTION_PAUSE;
	}

	for (;;)
	{
		TimestampTz now = jobq_now();
		TimestampTz wake;
		uint32		seen = pg_atomic_read_u32(&my_db->calls);
		bool		again = false;

		pg_memory_barrier();

		MemoryContextSwitchTo(context);
		MemoryContextReset(context);

		/* the clock was put back: what we planned is too far away */
		if (now < last)
		{
			next_sweep = next_retention = next_overflow = now;
			next_schedule = next_batches = now;
			my_db->relay_due = now;
			my_db->rescan = true;
		}
		last = now;

		if (my_db->stop)
			proc_exit(0);
		if (my_db->created)
			check_extension();
		if (my_db->rescan || now >= my_db->ready->forgotten_due)
		{
			scan_everything(true);
			next_overflow = now + OVERFLOW_PAUSE;
		}
		else if (my_db->ready->overflow && now >= next_overflow)
		{
			scan_everything(false);
			next_overflow = now + OVERFLOW_PAUSE;
		}
		if (my_db->reload)
			rank_lanes();
		if (anything_to_scan(now))
			again = scan_lanes(now);
		if (!jobq_start_paused &&
			(now >= next_schedule || my_db->schedules_changed ||
			 my_db->schedule_freed))
		{
			next_schedule = schedules_run(now);
			again |= next_schedule <= now;
		}
		if (!jobq_start_paused &&
			(now >= next_batches || my_db->batches_look ||
			 my_db->batches_sweep))
		{
			next_batches = batches_run(now);
			again |= next_batches <= now;
		}
		wake = supervise(now);
		limits_tick(now);
		leases_expire(now);
		if (my_db->leases->ngarbage > JOBQ_LEASE_GARBAGE / 2 ||
			(my_db->leases->ngarbage > 0 && now >= next_garbage))
		{
			leases_collect();
			next_garbage = now + GARBAGE_PAUSE;
		}

		if (my_db->relay_pending && my_db->relay_due <= now)
			relay_send();
		if (now >= next_sweep)
		{
			check_extension();
			scan_sweep();
			my_db->reload = my_db->limits->stale = true;
			my_db->schedule_freed = true;
			next_sweep = now + jobq_poll_interval * USECS_PER_SEC;
		}
		if (now >= next_retention && !jobq_start_paused)
		{
			retention_run();
			next_retention = now + RETENTION_PAUSE;
		}
		my_db->failures = 0;

		wake = Min(wake, next_sweep);
		if (!jobq_start_paused)
			wake = Min(wake, Min(next_retention,
								 Min(next_schedule, next_batches)));
		if (my_db->leases->ngarbage > 0)
			wake = Min(wake, next_garbage);
		if (my_db->ready->overflow)
			wake = Min(wake, next_overflow);
		wake = next_wake(wake);
		if (again)
		{
			CHECK_FOR_INTERRUPTS();
			continue;
		}
		pgstat_report_stat(false);
		{
			long		ms = TimestampDifferenceMilliseconds(jobq_now(), wake);

			if (process_sleep(&my_db->calls, seen, ms,
							  jobq_wait_event(wait_event, "JobqScheduler")))
				my_db->reload = my_db->limits->stale = my_db->rescan = true;
		}
	}
}

static void
scheduler_exit(int code, Datum arg)
{
	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->scheduler = NULL;
	my_db->scheduler_pid = 0;
	LWLockRelease(my_db->lock);
	LWLockRelease(jobq_shared->lock);
	jobq_wake_launcher();
}

/*
 * Leave if the extension is not there, or not of this library's version, or
 * not the one that this process has begun with.
 */
static void
check_extension(void)
{
	static Oid	served = InvalidOid;	/* its table of jobs */
	const JobqRelations *rels;
	Oid			job;
	uint64		pokes = jobq_shared->pokes;

	my_db->created = false;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	rels = jobq_relations_if_installed();
	job = rels == NULL ? InvalidOid : rels->job;
	CommitTransactionCommand();
	if (!OidIsValid(served))
		served = job;
	if (OidIsValid(job) && job == served)
		return;

	if (!OidIsValid(job))
	{
		/* CREATE EXTENSION pokes when it has committed: then look again */
		LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
		my_db->absent = pokes == jobq_shared->pokes;
		LWLockRelease(jobq_shared->lock);
	}
	spawn_dismiss();
	proc_exit(0);
}

/*
 * Is there a lane to be scanned?  A lane that is paused is left alone.
 */
static bool
anything_to_scan(TimestampTz now)
{
	bool		found = false;

	LWLockAcquire(my_db->lock, LW_SHARED);
	for (int i = 0; i < jobq_max_lanes && !found; i++)
	{
		JobqLane   *lane = &my_db->ready->lanes[i];

		found = scan_wanted(lane, now);
	}
	LWLockRelease(my_db->lock);
	return found;
}

/*
 * When to wake at the latest, and note it for those who hand over.
 */
static TimestampTz
next_wake(TimestampTz wake)
{
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &my_db->ready->lanes[i];

		if (lane->in_use && !lane->paused && lane->next_due < wake)
			wake = lane->next_due;
	}
	wake = Min(wake, my_db->ready->forgotten_due);
	wake = Min(wake, my_db->leases->next_expiry);
	wake = Min(wake, my_db->limits->due);
	wake = Min(wake, my_db->groups->due);
	if (my_db->relay_pending && my_db->relay_due < wake)
		wake = my_db->relay_due;
	if (my_db->rescan || my_db->reload || my_db->groups->refill)
		wake = 0;				/* long ago */
	my_db->wake_at = wake;
	LWLockRelease(my_db->lock);
	return wake;
}
