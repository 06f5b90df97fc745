/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  A worker: connected as a single role to a single database, it pops and runs jobs of
 *	  this role, one after the other.
 *
 * A worker never changes its role.  A handler that tries to escape from the role (RESET ROLE,
 * a deferred trigger, a cursor WITH HOLD) gains nothing.  A worker exits when the scheduler
 * requests it, and at a maximum age or size, because the caches for plans and functions never
 * shrink.
 *
 * worker/runner/worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include <signal.h>
#include <unistd.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timeout.h"

PGDLLEXPORT void jobq_worker_main(Datum main_arg);

/*
 * Size of the memory for a job that stays allocated, in bytes.  Enough for the rows of most calls
 * of a set handler.  A page that no job has used needs no memory.
 */
#define JOB_MEMORY		(1024 * 1024)

/* Jobs between two checks of memory, age and statistics. */
#define HOUSEKEEPING	256

/*
 * If the busy workers use all processors, more workers only slow each other down.  A worker
 * checks this every LOOK_JOBS jobs: the worker multiplies its share of a processor by the
 * number of busy workers.  If the product is at least FULL of the processors, the worker
 * rests, and the scheduler starts no further worker for the role (full_at).
 *
 * A resting worker checks whether it is needed, at first after 2 milliseconds, and later less
 * often.  The worker cannot see whether the remaining jobs have begun to wait for something.
 * It therefore returns at the end of its rest, which is twice as long as the previous rest if
 * the processors were full all the time.
 */
#define FULL			0.8
#define LOOK_JOBS		32

/* A worker with a longer job is not busy, in microseconds. */
#define LONG_JOB		2000

/* Milliseconds between two reports of a worker's statistics. */
#define BETWEEN_REPORTS	20L

static JobqSlot *my_slot = NULL;

static RunContext run = {0};

/* Processor time of this process when the entry was popped, in microseconds, if needed. */
static int64 taken_at = 0;

static void begin(const WorkerStart *start);
static void attach(const WorkerStart *start);
static bool pop(const JobqTaker *taker, JobqPush *entry, bool *leave);
static bool make_room(TimestampTz now, JobqWakeList *wake);
static void become_spare(TimestampTz now, JobqWakeList *wake);
static bool turn_measured(int64 *processor_time);
static void turn_over(int64 processor_time);
static void run_entry(const JobqPush *entry);
static void rest_if_crowded(void);
static bool sleep_until_called(void);
static void worker_exit(int code, Datum arg);
static void cancel_handler(SIGNAL_ARGS);
static void apply_settings(void);
static int	busy_workers(void);
static void rest(long most);
static bool time_to_leave(void);

/* Have a worker started.  False if no process slot is free. */
bool
worker_register(const WorkerStart *start)
{
	char		name[BGW_MAXLEN];
	ProcessToStart process = {
		.type = "jobq worker",.name = name,.function = "jobq_worker_main",
		.extra = start,.extra_size = sizeof(WorkerStart)
	};

	StaticAssertStmt(sizeof(WorkerStart) <= BGW_EXTRALEN,
					 "WorkerStart fits into bgw_extra");
	snprintf(name, sizeof(name), "jobq worker %d", start->slot);
	return process_register(&process, NULL);
}

void
jobq_worker_main(Datum main_arg)
{
	WorkerStart start;
	JobqTaker	taker = {0};
	uint64		jobs = 0;
	bool		active = false;
	bool		slept = true;
	bool		check = false;	/* check age and memory after this job */

	memcpy(&start, MyBgworkerEntry->bgw_extra, sizeof(WorkerStart));
	begin(&start);
	run.slot = my_slot;
	run.memory = AllocSetContextCreate(TopMemoryContext, "jobq job", JOB_MEMORY,
									   ALLOCSET_DEFAULT_INITSIZE, ALLOCSET_DEFAULT_MAXSIZE);
	taker.pool = my_slot->pool;
	taker.slot = start.slot;
	taker.nroles = 1;
	taker.roles = &start.role;

	for (;;)
	{
		JobqPush	entry;
		bool		popped;
		bool		leave;

		process_interrupts();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			apply_settings();
		}

		leave = my_db->stop || (check && time_to_leave()) || my_slot->retire;
		jobq_injection_point("jobq-worker-pops");
		popped = !leave && pop(&taker, &entry, &leave);
		if (leave)
			break;
		if (popped)
		{
			active = true;
			jobq_injection_point("jobq-worker-popped");
			run_entry(&entry);
			jobs++;
			if (jobs % LOOK_JOBS == 0)
				rest_if_crowded();
			if (jobs % HOUSEKEEPING == 0)
				pgstat_report_stat(false);

			/*
			 * after a long sleep, too: an old worker runs a single job and
			 * exits
			 */
			check = jobs % HOUSEKEEPING == 0 || slept;
			slept = false;
			continue;
		}

		check = false;
		if (active)
		{
			jobq_bill_rest();
			debug_query_string = NULL;
			pgstat_report_activity(STATE_IDLE, NULL);
			active = false;
		}
		slept = sleep_until_called();
	}
	proc_exit(0);
}

/* Attach to the slot, connect, and prepare to run jobs. */
static void
begin(const WorkerStart *start)
{
	jobq_injection_point("jobq-worker-begin");
	my_slot = jobq_my_slot = &jobq_shared->slots[start->slot];
	process_serve(my_slot->database);
	attach(start);
	pqsignal(SIGINT, cancel_handler);
	pqsignal(SIGQUIT, flight_bystander);
	process_start();
	BackgroundWorkerInitializeConnectionByOid(start->dboid, start->role,
											  JOBQ_CONNECT_FLAGS);
	process_pin_settings(true);
	apply_settings();
	process_load_libraries();
	jobq_tells_by_relay = true;
	flight_open(false);
	flight_attach(false);
	my_slot->connect_failed = false;
}

/*
 * Pop the next job, from the prefetched jobs or from the ready set; a spare worker pops
 * nothing.  If there is none, the slot is idle from now on, and a process with a job for this worker sets its latch.  If another
 * role needs this worker's place, the worker becomes a spare, or *leave is set.  Takes db->lock
 * exclusively.
 */
static bool
pop(const JobqTaker *taker, JobqPush *entry, bool *leave)
{
	JobqWakeList wake = {0};
	TimestampTz now;
	int64		processor_time;
	bool		measured;
	bool		spare;
	bool		popped;

	if (!my_slot->yields && run.entry.charged <= 0 &&
		!jobq_holding_any(my_slot->holding) &&
		jobq_prefetch_take(my_db, my_slot, entry))
		return true;
	now = jobq_now();
	measured = turn_measured(&processor_time);
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (measured)
		turn_over(processor_time);
	/* jobs enqueued after restart_workers() need a new process */
	spare = my_slot->spare;
	popped = !my_slot->retire && !spare &&
		!(my_slot->yields && make_room(now, &wake)) &&
		jobq_ready_pop(my_db, taker, now, entry, &wake);
	if (!popped && !my_slot->retire && !spare &&
		(!my_slot->comes_back || now < my_slot->turn_at ||
		 now >= my_slot->turn_at + my_db->stay))
		(void) make_room(now, &wake);
	if (!spare)
	{
		my_slot->idle = !popped && !my_slot->retire && !my_slot->spare;
		wake.scheduler |= my_slot->idle_since == 0 && my_db->delays_starts;
		my_slot->idle_since = now;
	}
	*leave = !popped && my_slot->retire;
	jobq_unlock(my_db, &wake);
	if (popped && entry->charged > 0)
		taken_at = measured ? processor_time : jobq_processor_time();
	return popped;
}

/*
 * True if the tenant of the last job was charged with the expected cost of the job.
 * *processor_time is then the processor time of this process so far, in microseconds.
 */
static bool
turn_measured(int64 *processor_time)
{
	if (run.entry.charged <= 0)
		return false;
	*processor_time = jobq_processor_time();
	return true;
}

/*
 * Correct the charge by the actual cost of the job.
 */
static void
turn_over(int64 processor_time)
{
	AssertExclusive(my_db->lock);
	jobq_turn_settle(my_db, &run.entry, processor_time - taken_at,
					 !jobq_run_unused(&my_slot->run));
	run.entry.charged = 0;
}

/*
 * True if this worker must leave its pool because another role needs its place.  The worker
 * becomes a spare, or must exit.  Not more workers leave than wanted.
 */
static bool
make_room(TimestampTz now, JobqWakeList *wake)
{
	int			pool = my_slot->pool;

	AssertExclusive(my_db->lock);
	if (!my_slot->yields_anyway)
	{
		if (my_db->wanted[pool] <= 0)
			return false;
		for (int i = 0; i < JOBQ_MAX_POOLS; i++)
			if (i == pool || my_db->places_shared)
				my_db->wanted[i]--;
	}
	if (my_db->keeps_spares)
		become_spare(now, wake);
	else
		my_slot->retire = true;
	return true;
}

/*
 * Leave the pool, but keep the process.  This worker may have been woken for a job without
 * having seen the job: wake another worker, as at the exit.
 */
static void
become_spare(TimestampTz now, JobqWakeList *wake)
{
	AssertExclusive(my_db->lock);
	my_slot->spare = true;
	my_slot->yields = my_slot->yields_anyway = false;
	jobq_prefetch_return(my_db, my_slot, wake);
	jobq_slot_release(my_db, my_slot, now, wake);
	jobq_role_wake(my_db, my_slot->role, now, wake);
	wake->scheduler = true;
}

static void
run_entry(const JobqPush *entry)
{
	run.collects = true;
	run_job(&run, entry);
	if (ncollected > 0)
		run_collected(&run);
	if (entry->quarantine)
		jobq_quarantine_over(my_db, my_slot - jobq_shared->slots);
}

/* LOOK_JOBS more jobs are done: rest if the busy workers use all processors. */
static void
rest_if_crowded(void)
{
	static instr_time looked_at;
	static int64 looked_cpu = -1;
	static int	rests = 0;		/* in a row */
	int64		cpu = jobq_processor_time();
	int64		us = jobq_elapsed(looked_at);

	if (looked_cpu >= 0 && us > 0)
	{
		double		share = (double) (cpu - looked_cpu) / us;
		int			busy = busy_workers();

		bool		full = busy * share >= FULL * process_processors();

		if (full)
			my_slot->full_at = jobq_now();
		if (full && busy > process_processors())
		{
			rest(jobq_pause_length(PAUSE_WORKER_REST, ++rests) / 1000);
			cpu = jobq_processor_time();
		}
		else
			rests = 0;
	}
	looked_cpu = cpu;
	INSTR_TIME_SET_CURRENT(looked_at);
}

/*
 * Sleep until the latch is set.  Report statistics before the sleep, but not for each of
 * several single jobs.  False if the latch was set within BETWEEN_REPORTS.
 */
static bool
sleep_until_called(void)
{
	static uint32 wait_event = 0;
	static JobqSteady reported_at = 0;
	bool		slept = true;

	if (jobq_steady() < reported_at + BETWEEN_REPORTS * 1000 &&
		(WaitLatch(MyLatch,
				   WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
				   BETWEEN_REPORTS,
				   jobq_wait_event(wait_event, "JobqWorker")) & WL_LATCH_SET))
		slept = false;
	else
	{
		pgstat_report_stat(true);
		reported_at = jobq_steady();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1,
						 jobq_wait_event(wait_event, "JobqWorker"));
	}
	ResetLatch(MyLatch);
	return slept;
}

/*
 * Attach to the slot that was reserved for this process.  Exits if the slot was given up.
 */
static void
attach(const WorkerStart *start)
{
	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	if (my_slot->generation != start->generation ||
		my_slot->state != JOBQ_SLOT_STARTING)
	{
		LWLockRelease(jobq_shared->lock);
		proc_exit(0);			/* too late: the slot was given up */
	}
	my_slot->proc = MyProc;
	my_slot->pid = MyProcPid;
	my_slot->started_at = my_slot->turn_at = jobq_now();
	my_slot->idle = false;
	my_slot->connect_failed = true;
	jobq_slot_to(my_slot, JOBQ_SLOT_ATTACHED);
	LWLockRelease(jobq_shared->lock);

	/*
	 * Not before_shmem_exit: the slot must not be freed before the open
	 * transaction is aborted.  Otherwise the job's row would still seem to be
	 * taken.
	 */
	on_shmem_exit(worker_exit, (Datum) 0);
}

static void
worker_exit(int code, Datum arg)
{
	JobqRun    *last = &my_slot->run;
	JobqWakeList wake = {0};
	int64		processor_time;
	bool		in_job = jobq_run_open(last);
	bool		leaves = jobq_run_busy(last);
	bool		gives_back = run.has_entry && (last->state == JOBQ_RUN_POPPED ||
											   last->state == JOBQ_RUN_TURNED_AWAY);

	flight_end();
	jobq_bill_rest();
	if (in_job && last->stop == JOBQ_STOP_NONE && process_stopping())
		ereport(LOG,
				(errmsg("job " INT64_FORMAT " of kind \"%s\" is interrupted because the server is being stopped",
						last->job, last->kind),
				 last->token != 0 && jobq_is_statement(last->kind)
				 ? errdetail("It runs again after the next start, and this attempt does not count, unless it may be tried only once.")
				 : errdetail("It runs again after the next start; this attempt does not count.")));
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (turn_measured(&processor_time))
		turn_over(processor_time);

	/*
	 * This worker may have been woken for a job without having seen the job:
	 * wake another worker.  From now on this worker is not chosen, even as a
	 * spare.
	 */
	my_slot->retire = true;
	if (!my_slot->idle)
		jobq_role_wake(my_db, my_slot->role, jobq_now(), &wake);
	my_slot->idle = false;

	jobq_prefetch_return(my_db, my_slot, &wake);
	collect_return(&wake);
	if (gives_back || (run.has_entry && !in_job && last->asked_for))
		jobq_ready_push(my_db, &run.entry, run.entry.key.run_at, &wake);

	/*
	 * A job that was stopped for DDL on the database is not charged.  The
	 * next scheduler finds its row unchanged.
	 */
	if (my_db->stop && in_job)
	{
		run.next = JOBQ_RUN_LIVE;
		in_job = false;
	}

	/* the scheduler decides about an unfinished job */
	if (!in_job)
	{
		if (leaves)
		{
			SpinLockAcquire(&my_slot->mutex);
			jobq_run_to(last, run.next);
			SpinLockRelease(&my_slot->mutex);
		}
		jobq_slot_release(my_db, my_slot, jobq_now(), &wake);
	}
	jobq_unlock(my_db, &wake);

	/* cancel() no longer finds the job here, and the job may run again */
	if (!in_job && leaves && was_cancelled(my_slot))
		cancel_left(my_slot);
	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	my_slot->gave_back = gives_back;
	SpinLockAcquire(&my_slot->mutex);
	jobq_run_to(last, in_job ? JOBQ_RUN_DEAD : JOBQ_RUN_NONE);
	SpinLockRelease(&my_slot->mutex);
	jobq_slot_to(my_slot, JOBQ_SLOT_DEAD);
	my_slot->proc = NULL;
	LWLockRelease(jobq_shared->lock);

	/*
	 * the scheduler frees the slot, or the launcher if there is no scheduler
	 */
	jobq_wake_scheduler(my_db);
	if (my_db->scheduler == NULL)
		jobq_poke_launcher();
}

/*
 * SIGINT: cancel the handler.  A process that stops a job sends the signal while the slot
 * names the job; see unclaim() in claim.c.
 */
static void
cancel_handler(SIGNAL_ARGS)
{
	if (!jobq_run_busy(&my_slot->run))
		return;
	jobq_cancel_statement();
}

static void
apply_settings(void)
{
	SetConfigOption("synchronous_commit",
					jobq_synchronous_commit ? "on" : "off",
					PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * Return the number of busy workers; 0 if no other busy worker can run the jobs of this
 * worker.  A worker with a long-running job does not count as busy, because the job probably
 * waits for something.  Nor does a worker with a job that began in the future, because the
 * clock was put back.
 */
static int
busy_workers(void)
{
	TimestampTz now = jobq_now();
	int			busy = 0;
	int			peers = 0;

	jobq_foreach_slot(slot, NULL, JOBQ_SLOTS_ATTACHED)
	{
		if (slot->idle || slot->resting || slot->spare ||
			(jobq_run_busy(&slot->run) &&
			 (now < slot->run.started_at ||
			  now >= slot->run.started_at + LONG_JOB)))
			continue;
		busy++;
		if (slot != my_slot && slot->database == my_db_index &&
			slot->role == my_slot->role && slot->pool == my_slot->pool)
			peers++;
	}
	return peers > 0 ? busy : 0;
}

/*
 * Rest while there are enough other busy workers, including a worker of the same role and
 * pool, for at most this number of milliseconds.  Another worker may get a long job at any
 * time, so check repeatedly.  Prefetched jobs and the permits of the last job are returned
 * first.
 */
static void
rest(long most)
{
	static uint32 wait_event = 0;
	long		rested = 0;
	int			checks = 0;
	JobqWakeList wake = {0};
	int64		processor_time;
	bool		measured = turn_measured(&processor_time);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (measured)
		turn_over(processor_time);
	jobq_prefetch_return(my_db, my_slot, &wake);
	jobq_slot_release(my_db, my_slot, jobq_now(), &wake);
	jobq_unlock(my_db, &wake);

	jobq_bill_rest();
	my_slot->resting = true;
	do
	{
		long		pause = jobq_pause_length(PAUSE_WORKER_REST_CHECK, ++checks) / 1000;

		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 pause, jobq_wait_event(wait_event, "JobqWorkerRest"));
		ResetLatch(MyLatch);
		process_interrupts();
		my_slot->resting = false;
		rested += pause;
		if (my_slot->retire || my_slot->yields || my_db->stop || rested >= most ||
			busy_workers() <= process_processors())
			break;
		my_slot->resting = true;
	} while (true);
}

/* True if this process must be replaced because of its age or memory. */
static bool
time_to_leave(void)
{
	if (jobq_worker_max_age > 0 &&
		jobq_now() > my_slot->started_at + jobq_worker_max_age * USECS_PER_SEC)
		return true;
	return jobq_worker_max_memory > 0 &&
		MemoryContextMemAllocated(TopMemoryContext, true) / 1024 >
		(Size) jobq_worker_max_memory;
}
