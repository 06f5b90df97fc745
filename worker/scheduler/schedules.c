/*-------------------------------------------------------------------------
 *
 * schedules.c
 *	  Enqueues the jobs of schedules: one job at each tick.
 *
 * The table jobq_internal.schedule holds the state.  The scheduler keeps a list in
 * memory with the time of the next check of each schedule.  It reads the list again
 * after a schedule has changed.  To run a tick, the scheduler locks the row, inserts the
 * job, and advances the row to the next tick.  All of this happens in one transaction,
 * which may be shared with ticks of other schedules (share.c).  A crash therefore never
 * loses or duplicates the job of a tick.
 *
 * A tick may wait for the schedule's last job (ticks.c).  The process that commits the
 * end of this job wakes the scheduler (src/commit/commit.c).  For this, the scheduler
 * publishes the job id in shared memory before it checks whether the job is live.  If
 * more jobs are waited for than can be published, all waiting schedules are also polled.
 *
 * After an error, or a lock timeout, only the affected schedule pauses.  Roles share the
 * time of the scheduler (share.c).
 *
 * Ticks without a job, and errors, are reported as events (schedule_events.c).
 *
 * worker/scheduler/schedules.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "scheduler/duty.h"
#include "scheduler/schedules.h"

/* Schedules that share one transaction. */
#define SHARED_CHECKS	50

/*
 * The pause between two polls of all waiting schedules, if not all of their jobs can be
 * published (microseconds).  With many waiting schedules, WAITED_SHARE for each
 * schedule.
 */
#define WAITED_PAUSE	USECS_PER_SEC
#define WAITED_SHARE	INT64CONST(1000)

/* Locked schedules delay the next poll by at most this many pauses. */
#define MAX_PAUSES		10

/* The pause before all schedules are read again, as a multiple of the read time. */
#define READ_SHARE		10

/* The pause after an error (microseconds). */
#define ERROR_PAUSE		(60 * USECS_PER_SEC)

/* A check of a schedule. */
typedef struct Check
{
	Schedule   *known;			/* the element of the list */
	Schedule	schedule;		/* its new content, if the check commits */
	TimestampTz now;
	bool		taken;			/* row locked by another session */
} Check;

/*
 * The list of the schedules that are neither paused nor dormant, in the context "memory".
 * read_all() replaces the whole list.  Afterwards, each check updates its own element only.
 */
static Schedule *schedules = NULL;
static int	nschedules = 0;
static MemoryContext memory = NULL; /* NULL: no reading yet */
static JobqSteady read_at = 0;	/* earliest time to read all again */
static TimestampTz started;		/* start of this scheduler: earlier ticks were
								 * missed */
static bool put_back = false;	/* the clock was put back since the last run:
								 * check all schedules */

/*
 * The xmin of the snapshot of the last reading.  The reading may have missed changes by this
 * transaction and by later ones.  The next reading makes rows with such an xmin due for a check.
 */
static TransactionId unread = FirstNormalTransactionId;

/* A reading has failed, and the list of schedules is lost: check all after the next. */
static bool lost = false;

/*
 * A poll checks all schedules that wait for a job.  Polls are needed only if a job could not
 * be published, because the end of this job wakes no process.  Two polls follow, because the
 * first may have begun too early.
 */
static int	polls = 0;			/* pending polls */
static TimestampTz poll_at = 0; /* the next poll */
static TimestampTz polled_at = 0;	/* the last poll */

static TimestampTz run_schedules(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static bool poll_is_due(TimestampTz now);
static void read_all(TimestampTz now);
static void publish_jobs(void);
static int	check_some(const RoleTask *tasks, int n, TimestampTz now);
static void finish_check(const Check *this, const ErrorData *edata);
static void note_error(Schedule *schedule, const ErrorData *edata);

/* Works for a time slice (share.c), plus at most MAX_TICKS jobs. */
Duty		schedules_duty = {
	.what = "enqueue the jobs of schedules",
	.run = run_schedules,
	.next_due = next_due,
	.pausable = true,
};

/*
 * The clock was put back.  The next run must check all schedules, because next runs in
 * memory may come from the clock that was ahead.
 */
void
schedules_put_back(void)
{
	put_back = true;
}

/*
 * Enqueue all due jobs.
 */
static TimestampTz
run_schedules(TimestampTz now)
{
	bool		changed;
	bool		freed;
	bool		polled;
	bool		waited = false;
	TimestampTz next = DT_NOEND;
	RoleTask   *tasks;
	int			n = 0;
	int			done = 0;

	bool		check_all = memory == NULL || put_back;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	changed = memory == NULL ||
		(my_db->schedules_changed && read_at <= jobq_steady());
	freed = my_db->schedule_freed;
	if (changed)
		my_db->schedules_changed = false;
	my_db->schedule_freed = false;
	LWLockRelease(my_db->lock);

	if (memory == NULL)
	{
		memory = AllocSetContextCreate(TopMemoryContext, "jobq schedules",
									   ALLOCSET_DEFAULT_SIZES);
		started = now;
	}
	started = Min(started, now);	/* the clock may have been put back */
	if (changed)
		read_all(now);
	put_back = false;
	polled = poll_is_due(now);

	tasks = MemoryContextAllocHuge(CurrentMemoryContext,
								   sizeof(RoleTask) * (nschedules + 1));
	for (int i = 0; i < nschedules; i++)
	{
		Schedule   *schedule = &schedules[i];

		/* the tick may come from a clock that was ahead */
		if (check_all)
			schedule->check_at = Min(schedule->check_at, now);

		/* a schedule not reached in an earlier round keeps its earlier time */
		if (schedule->waits_for != 0 &&
			(schedule->check_at != DT_NOEND || polled || (freed && schedule->published)))
			schedule->check_at = Min(schedule->check_at, now);

		if (schedule->check_at <= now)
			share_add(tasks, &n, schedule->role, schedule->locked,
					  schedule->check_at, i);
		else
			next = Min(next, schedule->check_at);
		waited |= schedule->waits_for != 0;
	}
	share_order(tasks, n);
	share_begin();
	while (done < n && !share_over())
		done += check_some(tasks + done, n - done, now);
	if (done < n)
		next = now;
	for (int i = 0; i < done; i++)
	{
		Schedule   *schedule = &schedules[tasks[i].item];

		waited |= schedule->waits_for != 0;
		next = Min(next, Max(share_may(schedule->role, schedule->locked, now),
							 schedule->check_at));
	}
	if (waited || my_db->told->nwaited > 0)
		publish_jobs();
	return polls > 0 ? Min(next, poll_at) : next;
}

/*
 * Decide whether to poll all waiting schedules now.  The pause begins when the previous
 * poll is complete, so polls never take most of the scheduler's time.  A poll is complete when
 * each waiting schedule was checked since polled_at.  A locked schedule delays this by at
 * most MAX_PAUSES.
 */
static bool
poll_is_due(TimestampTz now)
{
	int64		waiting = 0;
	bool		going_on = false;
	int64		pause;

	if (polls == 0)
		return false;
	polled_at = Min(polled_at, now);	/* the clock may have been put back */
	for (int i = 0; i < nschedules; i++)
		if (schedules[i].waits_for != 0)
		{
			waiting++;
			going_on |= schedules[i].check_at <= polled_at;
		}
	pause = Max(WAITED_PAUSE, waiting * WAITED_SHARE);
	poll_at = Min(poll_at, now + pause);
	if (going_on)
		poll_at = Min(now, polled_at + MAX_PAUSES * pause) + pause;
	if (poll_at > now)
		return false;
	polled_at = now;
	poll_at = now + pause;
	polls--;
	return true;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	if (my_db->schedule_freed)
		return now;
	return my_db->schedules_changed ? Min(plan, jobq_steady_due(read_at, now)) : plan;
}

static int
compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *) a, *(char *const *) b);
}

/*
 * Return the sorted names of the schedules still to be checked, and set *n.
 */
static char **
pending_names(TimestampTz now, int *n)
{
	char	  **names = MemoryContextAllocHuge(CurrentMemoryContext,
											   sizeof(char *) * (nschedules + 1));

	*n = 0;
	for (int i = 0; i < nschedules; i++)
		if (schedules[i].locked > 0 || schedules[i].failed || schedules[i].check_at <= now)
			names[(*n)++] = pstrdup(schedules[i].name);
	qsort(names, *n, sizeof(char *), compare_names);
	return names;
}

/*
 * Read the list of schedules.  A schedule that may have changed since the last reading
 * is due for a check, because its next run may have been computed from a clock that was
 * ahead.  A schedule due for a check before the reading stays due.
 */
static void
read_all(TimestampTz now)
{
	static const Oid types[] = {XIDOID};
	Datum		values[] = {TransactionIdGetDatum(unread)};
	int			npending;
	char	  **pending = pending_names(now, &npending);
	bool		all = lost;
	MemoryContext caller = CurrentMemoryContext;
	instr_time	begun;

	INSTR_TIME_SET_CURRENT(begun);
	lost = true;
	read_at = 0;
	MemoryContextReset(memory);
	schedules = NULL;
	nschedules = 0;

	process_begin_transaction();
	if (jobq_relations_if_installed() != NULL)
	{
		uint64		n;

		SPI_connect();
		n = jobq_query("SELECT name, ctid, coalesce(next_tick, '-infinity'), role::oid,"
					   " age(xmin) <= age($1)"
					   " FROM jobq_internal.schedule WHERE NOT paused AND NOT dormant",
					   1, types, values, NULL, SPI_OK_SELECT);
		schedules = MemoryContextAllocHuge(memory, sizeof(Schedule) * (n + 1));
		for (uint64 i = 0; i < n; i++)
		{
			TupleDesc	desc = SPI_tuptable->tupdesc;
			HeapTuple	tuple = SPI_tuptable->vals[i];
			Schedule   *schedule = &schedules[i];

			schedule->name =
				MemoryContextStrdup(memory, TextDatumGetCString(jobq_column(tuple, desc, 1, TEXTOID, NULL)));
			schedule->ctid =
				*(ItemPointer) DatumGetPointer(jobq_column(tuple, desc, 2, TIDOID, NULL));
			schedule->check_at =
				DatumGetTimestampTz(jobq_column(tuple, desc, 3, TIMESTAMPTZOID, NULL));
			if (all || DatumGetBool(jobq_column(tuple, desc, 5, BOOLOID, NULL)) ||
				bsearch(&schedule->name, pending, npending, sizeof(char *), compare_names) != NULL)
				schedule->check_at = Min(schedule->check_at, now);
			schedule->role =
				DatumGetObjectId(jobq_column(tuple, desc, 4, OIDOID, NULL));
			schedule->locked = 0;
			schedule->failed = false;
			schedule->waits_for = 0;
			schedule->published = false;
			schedule->displaced = false;
		}
		nschedules = (int) n;
		SPI_finish();
	}
	unread = GetActiveSnapshot()->xmin;
	lost = false;
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	read_at = jobq_steady() + READ_SHARE * jobq_elapsed(begun);
}

/*
 * Publish the jobs for which schedules wait.  If there are too many, publish some jobs
 * of each role.  Takes my_db->lock exclusively.
 */
static void
publish_jobs(void)
{
	int64		names[JOBQ_MAX_WAITED];
	int			n = 0;
	RoleTask   *tasks = MemoryContextAllocHuge(CurrentMemoryContext,
											   sizeof(RoleTask) * (nschedules + 1));
	int			ntasks = 0;

	for (int i = 0; i < nschedules; i++)
		if (schedules[i].waits_for != 0)
			share_add(tasks, &ntasks, schedules[i].role, 0, 0, i);
	if (ntasks > JOBQ_MAX_WAITED)
	{
		share_order(tasks, ntasks);
		polls = 2;
	}
	for (int i = 0; i < ntasks && n < JOBQ_MAX_WAITED; i++)
	{
		schedules[tasks[i].item].published = true;
		names[n++] = schedules[tasks[i].item].waits_for;
	}
	pfree(tasks);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	memcpy(my_db->told->waited, names, sizeof(int64) * n);
	my_db->told->nwaited = n;
	LWLockRelease(my_db->lock);
}

/*
 * Check a schedule: run its due ticks.  arg is a Check.  Changes only the copy of the schedule,
 * because the transaction may be rolled back; finish_check() takes over the copy.
 */
static void
check_schedule(void *arg)
{
	Check	   *this = (Check *) arg;
	Schedule   *schedule = &this->schedule;

	/*
	 * of an earlier run, which was rolled back; the list in shared memory was
	 * not
	 */
	bool		displaced = schedule->displaced;

	*schedule = *this->known;
	schedule->waits_for = 0;
	schedule->published = false;
	schedule->displaced = displaced;
	this->taken = false;
	if (jobq_relations_if_installed() == NULL)
		schedule->check_at = DT_NOEND;
	else if (!ticks_fire(schedule, this->now, started))
	{
		/* another session is changing the row */
		ItemPointerSetInvalid(&schedule->ctid);
		this->taken = true;
	}
}

/*
 * Check some of the due schedules.  Returns the number of schedules processed, at least
 * one.
 */
static int
check_some(const RoleTask *tasks, int n, TimestampTz now)
{
	Check		checks[SHARED_CHECKS];
	Part		parts[SHARED_CHECKS];

	n = Min(n, SHARED_CHECKS);
	for (int i = 0; i < n; i++)
	{
		Schedule   *schedule = &schedules[tasks[i].item];

		checks[i] = (Check)
		{
			.known = schedule,.now = now
		};
		parts[i] = (Part)
		{
			.role = schedule->role,.locked = schedule->locked,.arg = &checks[i]
		};
	}
	n = share_try_together(parts, n, check_schedule, now);
	for (int i = 0; i < n; i++)
	{
		/* also after an error */
		if (checks[i].schedule.displaced)
			polls = 2;
		if (parts[i].rests)
			continue;
		finish_check(&checks[i], parts[i].edata);
		if (parts[i].edata != NULL)
			FreeErrorData(parts[i].edata);
	}
	return n;
}

/*
 * Take over the result of a check.  edata is the error, or NULL.
 */
static void
finish_check(const Check *this, const ErrorData *edata)
{
	Schedule   *schedule = this->known;
	bool		taken = edata == NULL && this->taken;

	if (edata == NULL)
		*schedule = this->schedule;
	else
		schedule->waits_for = 0;
	schedule->failed = false;
	if (taken ||
		(edata != NULL && edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE))
	{
		schedule->check_at = this->now +
			jobq_pause_length(PAUSE_TASK_LOCKED, ++schedule->locked);
		return;
	}
	schedule->locked = 0;
	if (edata != NULL)
	{
		schedule->failed = true;
		schedule->check_at = this->now + ERROR_PAUSE;
		note_error(schedule, edata);
	}
}

/*
 * Store the error in the row.  A new error is also written to the log.
 */
static void
note_error(Schedule *schedule, const ErrorData *edata)
{
	ScheduleError error = {schedule->name, edata};
	ErrorRow	row = {"schedule", "name", TEXTOID, CStringGetTextDatum(schedule->name)};

	ItemPointerSetInvalid(&schedule->ctid);
	if (scheduler_note_error(&row, edata, schedule_failed, &error))
		ereport(WARNING,
				(errcode(edata->sqlerrcode),
				 errmsg("schedule \"%s\" cannot enqueue its job: %s",
						schedule->name, edata->message),
				 errhint("It is tried again every minute; the schedule can be changed with jobq.schedule().")));
}
