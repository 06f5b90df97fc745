/*-------------------------------------------------------------------------
 *
 * scheduler.c
 *	  The scheduler process, one per served database.  Runs the duties in
 *	  rounds.
 *
 * The scheduler sleeps until its latch is set or a duty is due.  Only a due duty runs
 * queries.  In an idle database only the safety check runs, every jobq.poll_interval.
 *
 * An error ends the process.  The launcher then starts a new scheduler after a pause,
 * which grows with repeated failures.  A new scheduler reads all of its state again.  A
 * lock timeout does not end the process: run_duty() runs the duty again later.
 *
 * worker/scheduler/scheduler.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/workflow.h"

#include "access/xact.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "scheduler/duty.h"
#include "scheduler/scheduler.h"

PGDLLEXPORT void jobq_scheduler_main(Datum main_arg);

/* In the order of loading, and of running in a round. */
static Duty *const duties[] = {
	&extension_duty,
	&identity_duty,
	&discover_duty,
	&rank_duty,
	&scan_duty,
	&clock_duty,
	&schedules_duty,
	&batches_duty,
	&supervise_duty,
	&limits_duty,
	&taken_duty,
	&expire_duty,
	&forget_duty,
	&collect_duty,
	&relay_duty,
	&sweep_duty,
	&retention_duty,
	&count_duty,
	&monitors_duty,
};

#define NDUTIES		((int) lengthof(duties))

/* Roles named in the log message at a start. */
#define MAX_NAMED	5

static void begin(void);
static void forget_ready(void);
static void scheduler_exit(int code, Datum arg);
static void load(void);
static void note_end(const Duty *duty, const ErrorData *edata);
static void run_duty(Duty *duty, TimestampTz now);
static void read_anew(void);
static void follow_clock(TimestampTz now, TimestampTz last, int64 offset);
static void clock_put_back(TimestampTz now, int64 by);
static TimestampTz next_due(const Duty *duty, TimestampTz now);
static TimestampTz next_wake(TimestampTz now);
static void announce(void);

/*
 * Start a scheduler for the database with this slot in shared memory.  Returns false if
 * the server has no free background worker slot.
 */
bool
scheduler_register(int database)
{
	Oid			dboid = jobq_shared->databases[database].dboid;
	char		name[BGW_MAXLEN];
	ProcessToStart process = {
		.type = "jobq scheduler",.name = name,.function = "jobq_scheduler_main",
		.arg = Int32GetDatum(database),.extra = &dboid,.extra_size = sizeof(dboid)
	};

	snprintf(name, sizeof(name), "jobq scheduler for database %u", dboid);
	return process_register(&process, NULL);
}

void
jobq_scheduler_main(Datum main_arg)
{
	static uint32 wait_event = 0;
	TimestampTz last = 0;
	bool		announced = false;
	MemoryContext context;

	process_serve(DatumGetInt32(main_arg));
	begin();
	context = AllocSetContextCreate(TopMemoryContext, "jobq scheduler",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	load();

	for (;;)
	{
		uint32		seen = pg_atomic_read_u32(&my_db->calls);
		int64		offset;
		TimestampTz now;
		long		pause;

		pg_memory_barrier();

		/* "now" is a time of the clock with this offset, which is checked */
		do
		{
			offset = jobq_clock_look();
			jobq_injection_point("jobq-round-begins");
			now = jobq_now();
		} while (jobq_clock_look() != offset);
		follow_clock(now, last, offset);
		last = now;
		process_interrupts();
		if (my_db->stop)
			proc_exit(0);

		for (int i = 0; i < NDUTIES; i++)
		{
			MemoryContextSwitchTo(context);
			MemoryContextReset(context);
			if ((duties[i]->each_round && jobq_pause_due(&duties[i]->pause, now) <= now) ||
				next_due(duties[i], now) <= now)
				run_duty(duties[i], now);
		}
		my_db->failures = 0;
		if (!announced)
			announce();
		announced = true;

		/* the system's clock may have been put back since the round began */
		pause = TimestampDifferenceMilliseconds(jobq_now(), next_wake(now));
		pause = Min(pause, jobq_poll_interval * 1000L);
		pgstat_report_stat(false);
		if (process_sleep(&my_db->calls, seen, pause,
						  jobq_wait_event(wait_event, "JobqScheduler")))
			my_db->reload = my_db->limits->stale = my_db->rescan = true;
	}
}

/*
 * Connect to the database and become its scheduler.  Exits if the database already has
 * a scheduler.  Also exits if the database was dropped after the registration and its
 * slot now belongs to another database.
 */
static void
begin(void)
{
	Oid			dboid;

	memcpy(&dboid, MyBgworkerEntry->bgw_extra, sizeof(dboid));
	process_start();
	jobq_injection_point("jobq-scheduler-begin");
	if (my_db->dboid != dboid)
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid, 0);
	process_pin_settings(false);
	jobq_tells_by_relay = true;
	flight_open(false);
	jobq_injection_point("jobq-scheduler-start");

	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	if (my_db->scheduler != NULL || my_db->dboid != MyDatabaseId)
	{
		LWLockRelease(jobq_shared->lock);
		proc_exit(0);
	}
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	forget_ready();
	my_db->reload = true;
	my_db->limits->stale = true;
	my_db->rescan = true;

	/*
	 * The previous scheduler may have cleared these flags and ended before it
	 * did the work.
	 */
	my_db->leases->next_expiry = 0;
	my_db->leases->unsure = true;
	my_db->groups->owners = my_db->groups->unnoted = my_db->groups->owners_first = true;
	my_db->wake_at = 0;
	my_db->can_spawn = true;
	my_db->told->nwaited = 0;
	my_db->scheduler = MyProc;
	my_db->scheduler_pid = MyProcPid;
	LWLockRelease(my_db->lock);
	LWLockRelease(jobq_shared->lock);
	before_shmem_exit(scheduler_exit, (Datum) 0);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * Clear the ready set of the previous scheduler, because it is outdated.  A worker may
 * still run a job of the quarantine, so keep the slot of a worker in quarantine.
 */
static void
forget_ready(void)
{
	int			quarantined = my_db->ready->quarantine_slot;

	AssertExclusive(jobq_shared->lock);
	AssertExclusive(my_db->lock);
	jobq_ready_clear(my_db);
	if (quarantined >= 0 &&
		jobq_shared->slots[quarantined].database == my_db_index &&
		(jobq_shared->slots[quarantined].state == JOBQ_SLOT_ATTACHED ||
		 jobq_shared->slots[quarantined].state == JOBQ_SLOT_DEAD))
		my_db->ready->quarantine_slot = quarantined;
}

static void
scheduler_exit(int code, Datum arg)
{
	monitors_leave();
	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->scheduler = NULL;
	my_db->scheduler_pid = 0;
	LWLockRelease(my_db->lock);
	LWLockRelease(jobq_shared->lock);
	jobq_wake_launcher();
}

/*
 * Load the state of all duties.  No duty has run yet, so locks are awaited without a
 * timeout here.  Sets lock_timeout for the time afterwards.
 */
static void
load(void)
{
	MemoryContext caller = CurrentMemoryContext;
	Duty	   *volatile duty = NULL;

	PG_TRY();
	{
		for (int i = 0; i < NDUTIES; i++)
		{
			duty = duties[i];
			Assert(duty->what != NULL && duty->run != NULL);
			if (duty->load != NULL)
				duty->plan = duty->load(jobq_now());
		}
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		note_end(duty, CopyErrorData());
		PG_RE_THROW();
	}
	PG_END_TRY();
	SetConfigOption("lock_timeout", DUTY_LOCK_TIMEOUT, PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * Note an error in this duty that ends the process.  The next scheduler runs the duty
 * again.  Releases all LWLocks.
 */
static void
note_end(const Duty *duty, const ErrorData *edata)
{
	LWLockReleaseAll();
	(void) trouble_note(duty->what, edata->message,
						jobq_pause_longest(PAUSE_SCHEDULER_FAILED));
}

/*
 * Run a duty.  After a lock timeout, run the duty again after a pause.  Any other error
 * ends the process.
 */
static void
run_duty(Duty *duty, TimestampTz now)
{
	MemoryContext caller = CurrentMemoryContext;
	int64		longest = jobq_pause_longest(PAUSE_DUTY_LOCKED);
	ErrorData  *edata;

	PG_TRY();
	{
		duty->plan = duty->run(now);
		duty->pause.n = 0;
		trouble_over(duty->what);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		edata = CopyErrorData();
		if (edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		{
			note_end(duty, edata);
			PG_RE_THROW();
		}
		HOLD_INTERRUPTS();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(caller);
		RESUME_INTERRUPTS();
		jobq_pause_begin(&duty->pause, PAUSE_DUTY_LOCKED);
		if (jobq_pause_length(PAUSE_DUTY_LOCKED, duty->pause.n) == longest &&
			trouble_note(duty->what, edata->message, longest))
			ereport(LOG,
					(errmsg("the jobq scheduler cannot go on with a part of its work: %s",
							edata->message),
					 errdetail("It cannot %s.", duty->what),
					 errhint("Somebody has locked a table of jobq's or of the catalog; it tries again every %d seconds.",
							 (int) (longest / USECS_PER_SEC))));
		FreeErrorData(edata);
		read_anew();
	}
	PG_END_TRY();
}

/*
 * Request again all work that a failed duty may have accepted from shared memory and
 * not done.  Takes my_db->lock exclusively.
 */
static void
read_anew(void)
{
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_scan_failed(my_db);
	my_db->reload = my_db->limits->stale = true;
	my_db->schedules_changed = my_db->batches_sweep = true;
	my_db->groups->refill = my_db->groups->owners_first = true;
	my_db->leases->next_expiry = 0;
	my_db->leases->unsure = true;
	LWLockRelease(my_db->lock);
}

/*
 * Check whether the clock has stepped since the last round.  At a start, compare with
 * the last round of the previous scheduler.  "offset" is in microseconds.
 */
static void
follow_clock(TimestampTz now, TimestampTz last, int64 offset)
{
	static bool distrusted = false;
	int64		ahead = jobq_clock_ahead();
	int64		back = 0;

	if (my_db->clock_seen != 0)
		back = my_db->clock_seen - offset;
	my_db->clock_seen = offset;
	if (back > JOBQ_CLOCK_SLACK)
	{
		ereport(LOG,
				(errmsg("the clock was put back by %s",
						jobq_duration_text(back / USECS_PER_SEC * 1000)),
				 errdetail("What jobq had computed from the time before is computed anew.")));
		clock_begin(back);
	}
	else if (ahead > 0 && !distrusted)
		ereport(LOG,
				(errmsg("the clock has jumped forward by %s",
						jobq_duration_text(ahead / USECS_PER_SEC * 1000)),
				 errdetail("Nothing is deleted for its age, and schedules with missed => 'all' do not catch up, before it has lasted for an hour."),
				 errhint("If the clock is right, SELECT jobq.test_clock('0').")));
	if (back > 0 || now < last)
		clock_put_back(now, Max(back, last - now));
	else if (distrusted && ahead == 0)
		for (int i = 0; i < NDUTIES; i++)
			duties[i]->plan = Min(duties[i]->plan, now);
	distrusted = ahead > 0;
}

/*
 * The clock was put back by "by" microseconds.  Make all duties due now, and recompute
 * the times kept in shared memory.  Takes my_db->lock exclusively.
 */
static void
clock_put_back(TimestampTz now, int64 by)
{
	for (int i = 0; i < NDUTIES; i++)
		duties[i]->plan = now;
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_tallies_put_back(my_db, now);
	jobq_gathering_put_back(my_db, now);
	jobq_leases_put_back(my_db, now);
	jobq_groups_look(my_db, now);
	LWLockRelease(my_db->lock);
	my_db->relay_due = now;
	my_db->limits->due = now;
	my_db->groups->owners = true;
	my_db->rescan = true;
	batch_clock_put_back(by);
	schedules_put_back();
	jobq_stats_put_back(my_db->dboid, now);
}

/*
 * When the duty is due.
 */
static TimestampTz
next_due(const Duty *duty, TimestampTz now)
{
	if (duty->pausable && scheduler_paused())
		return DT_NOEND;
	if (duty->pause.n > 0)
		return jobq_pause_due(&duty->pause, now);
	return duty->next_due != NULL ? duty->next_due(duty->plan, now)
		: duty->plan;
}

/*
 * Return the latest time to wake, and publish it in my_db->wake_at for the processes
 * that hand over jobs.  Takes my_db->lock exclusively.
 */
static TimestampTz
next_wake(TimestampTz now)
{
	TimestampTz wake = DT_NOEND;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);

	/*
	 * a process that starts work without the lock sees this, or is seen below
	 */
	my_db->wake_at = DT_NOEND;
	pg_memory_barrier();
	for (int i = 0; i < NDUTIES; i++)
		wake = Min(wake, next_due(duties[i], now));
	my_db->wake_at = wake;
	LWLockRelease(my_db->lock);
	return wake;
}

/*
 * After the first round, log the served database, the pools, and the roles with due
 * jobs.
 */
static void
announce(void)
{
	Oid			roles[MAX_NAMED];
	int			nroles = 0;
	bool		more = false;
	StringInfoData names;

	LWLockAcquire(my_db->lock, LW_SHARED);
	for (uint32 i = my_db->ready->active_head; i != JOBQ_NONE;
		 i = my_db->ready->lanes[i].active_next)
	{
		bool		known = false;

		for (int r = 0; r < nroles && !known; r++)
			known = roles[r] == my_db->ready->lanes[i].role;
		if (!known && nroles < MAX_NAMED)
			roles[nroles++] = my_db->ready->lanes[i].role;
		else if (!known)
			more = true;
	}
	LWLockRelease(my_db->lock);

	process_begin_transaction();
	initStringInfo(&names);
	for (int r = 0; r < nroles; r++)
	{
		char	   *name = GetUserNameFromId(roles[r], true);

		appendStringInfo(&names, "%s%s", r > 0 ? ", " : "",
						 name != NULL ? name : "(dropped)");
	}
	ereport(LOG,
			(errmsg("jobq serves database \"%s\": pools \"%s\" with %d workers%s; roles with due jobs: %s%s",
					get_database_name(MyDatabaseId), jobq_workers,
					jobq_pools_workers(),
					jobq_start_paused ? ", none of which starts while \"jobq.start_paused\" is on" : "",
					nroles > 0 ? names.data : "none", more ? ", and more" : "")));
	PopActiveSnapshot();
	CommitTransactionCommand();
}
