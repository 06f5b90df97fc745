/*-------------------------------------------------------------------------
 *
 * supervise.c
 *	  Supervises the workers: frees the slots of ended workers, charges the jobs
 *	  of crashed workers, and terminates handlers that exceed their timeout.
 *
 * worker/scheduler/supervise.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include <signal.h>

#include "access/table.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "runner/runner.h"
#include "scheduler/duty.h"

/* Leased rows whose lease could not be ended, for a retry. */
#define MAX_LEFT			64

/* An attempt for the scheduler to charge: of a lost worker, or of a culprit. */
typedef struct Charge
{
	const LostAttempt *lost;	/* or NULL */
	const JobqError *error;
	const JobqCulprit *culprit;
	const JobqMembers *together;	/* of a lost worker; or NULL */
	LostCharge	charged;
} Charge;

/* The outcome for the job of a crashed worker. */
typedef struct LostJob
{
	bool		live;			/* will run again */
	bool		unused;			/* had not begun; row locked by a session */
	bool		no_entry;		/* may be missing in the ready set */
	JobqMembers *together;		/* the jobs that ran together; or NULL */
} LostJob;

/* A job to be put into the ready set. */
typedef struct HandOver
{
	int64		id;
	bool		found;
	JobqPush	push;
} HandOver;

static int64 left[MAX_LEFT];
static int	nleft = 0;

static TimestampTz load(TimestampTz now);
static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static void reap(TimestampTz now, TimestampTz *wake, bool uncharged);
static void begin_charge(JobqSlot *slot, JobqRun *copy, JobqMembers **together);
static bool charge_worker(JobqSlot *slot, const JobqRun *run, TimestampTz now,
						  LostJob *job);
static void charge(void *arg);
static void charge_all(const Charge *this, Relation rel);
static void see_to_uncharged(const LostAttempt *lost, Relation rel);
pg_noreturn static void row_is_locked(void);
static void charge_culprits(TimestampTz now, TimestampTz *wake);
static void hand_over(int64 id, TimestampTz now);
static void find_ready(void *arg);
static void end_lease(void *arg);
static void end_left(TimestampTz now, TimestampTz *wake);
static TimestampTz end_overstayers(TimestampTz now);

/*
 * Checks each slot, charges the jobs of crashed workers, and starts workers; each is
 * bounded by "jobq.max_workers".  Fails some jobs of each role that cannot work.
 * Carries out pending cancellations.
 *
 * Runs in each round, because workers that start, end or become idle only set the
 * scheduler's latch.
 */
Duty		supervise_duty = {
	.what = "look after the workers",
	.load = load,
	.run = run,
	.next_due = next_due,
	.each_round = true,
};

static TimestampTz
run(TimestampTz now)
{
	TimestampTz wake = DT_NOEND;

	end_left(now, &wake);
	charge_culprits(now, &wake);
	reap(now, &wake, false);
	owed_cancel(now, &wake);
	wake = Min(wake, end_overstayers(now));
	wake = Min(wake, spawn_workers(now));
	return wake;
}

/*
 * A worker that begins a job with a timeout wakes the scheduler only if the timeout
 * ends before the planned wake time (claim() in worker/runner/claim.c).  A job begun
 * after the last check of its slot is seen here.
 */
static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	jobq_foreach_slot(slot, my_db, JOBQ_SLOTS_ATTACHED)
	{
		SpinLockAcquire(&slot->mutex);
		if (jobq_run_busy(&slot->run) && slot->run.deadline != DT_NOEND)
			plan = Min(plan, slot->run.deadline +
					   jobq_cancel_grace * INT64CONST(1000));
		SpinLockRelease(&slot->mutex);
	}
	return plan;
}

/*
 * Free the slots of workers that have ended or never started.  If "uncharged", free
 * only slots of workers that crashed during a job.  Lowers *wake to the time of the
 * next retry.
 *
 * While a slot names the job, no worker begins the job (jobq_slot_keeps_job()), and a
 * process that meets the job's entry drops the entry.  A job that survives without a
 * new row version is therefore put into the ready set after the charge.  The slot still
 * has the permit of the job's group, so no later job of the group comes first.
 */
static void
reap(TimestampTz now, TimestampTz *wake, bool uncharged)
{
	jobq_foreach_slot(slot, my_db, JOBQ_SLOTS_USED)
	{
		JobqRun		run;
		LostJob		job = {0};
		TimestampTz at;
		bool		lost;
		Oid			role;
		bool		connected;
		bool		early;

		if (uncharged && (slot->state != JOBQ_SLOT_DEAD || !jobq_run_lost(&slot->run)))
			continue;

		if (slot->state == JOBQ_SLOT_STARTING)
		{
			LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
			if (slot->state == JOBQ_SLOT_STARTING)
			{
				slot->started_at = Min(slot->started_at, now);
				if (now > slot->started_at + PROCESS_ATTACH_TIMEOUT)
				{
					slot->generation++;
					jobq_slot_to(slot, JOBQ_SLOT_FREE);
					spawn_again(false);
				}
				else
					*wake = Min(*wake, slot->started_at + PROCESS_ATTACH_TIMEOUT + 1);
			}
			LWLockRelease(jobq_shared->lock);
		}
		if (slot->state != JOBQ_SLOT_DEAD)
			continue;

		jobq_run_read(slot, &run);
		lost = jobq_run_lost(&run);
		/* a server shutdown is no fault of the job */
		CHECK_FOR_INTERRUPTS();
		if (lost && run.stop == JOBQ_STOP_NONE && process_stopping())
			continue;
		at = lost ? later_at(run.job, now) : now;
		if (at > now)
		{
			*wake = Min(*wake, at);
			continue;
		}
		jobq_injection_point("jobq-worker-dead");
		jobq_quarantine_over(my_db, slot - jobq_shared->slots);
		if (lost)
		{
			begin_charge(slot, &run, &job.together);
			if (!charge_worker(slot, &run, now, &job))
			{
				*wake = Min(*wake, later_at(run.job, now));
				continue;
			}
		}
		if (job.together != NULL)
		{
			for (int i = 0; i < job.together->n; i++)
				hand_over(job.together->jobs[i].job, now);
			pfree(job.together);
		}
		else if (job.no_entry)
			hand_over(run.job, now);
		process_slot_gone(my_db, slot, job.live, job.unused, now);
		role = slot->role;
		connected = !slot->connect_failed;
		early = !connected || slot->gave_back;
		LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
		slot->generation++;
		jobq_slot_to(slot, JOBQ_SLOT_FREE);
		LWLockRelease(jobq_shared->lock);
		places_free();

		if (early)
			role_left_early(role, connected, now, wake);
		else
			spawn_again(true);
	}
}

/*
 * Begin to charge the run of a crashed worker, and copy the run.  From now on, a request to
 * cancel the job does not use the slot, because no worker would see the request.  The
 * previous scheduler may have ended while charging the run.  *together: a copy of the
 * jobs that ran together, or NULL.
 */
static void
begin_charge(JobqSlot *slot, JobqRun *copy, JobqMembers **together)
{
	/*
	 * nobody changes the members of a dead slot, except for requests of
	 * cancel()
	 */
	*together = slot->members->n > 0 ? palloc(sizeof(JobqMembers)) : NULL;
	SpinLockAcquire(&slot->mutex);
	if (*together != NULL)
		memcpy(*together, slot->members, sizeof(JobqMembers));
	if (slot->run.state == JOBQ_RUN_DEAD)
		jobq_run_to(&slot->run, JOBQ_RUN_CHARGING);
	*copy = slot->run;
	SpinLockRelease(&slot->mutex);
}

/*
 * Charge the job of the crashed worker in this slot, unless already charged.  Returns
 * false after a lock timeout, for a later retry.  This includes a lock on the job's
 * row, if the worker had claimed the row.
 *
 * Any other error ends the scheduler.  Without a record of the failed attempt, the job
 * would run again and again.
 */
static bool
charge_worker(JobqSlot *slot, const JobqRun *run, TimestampTz now, LostJob *job)
{
	JobqTrier	trier = {slot->pid, NULL, run->progress, run->message};
	JobqError	error = {.sqlerrcode = ERRCODE_JOBQ_WORKER_LOST,
		.message = "the worker was terminated while it ran the job",
		.trier = &trier
	};
	LostAttempt lost = {.job_id = run->job,.attempt = run->attempt,
		.started_at = run->started_at,.stop = run->stop,
		.lease = run->token,.slot = slot
	};
	Charge		this = {
		.lost = &lost,.error = &error,.together = job->together,.charged = LOST_GONE
	};
	ErrorData  *edata;
	bool		asked_for;

	if (run->stop == JOBQ_STOP_TIMEOUT)
	{
		error.sqlerrcode = ERRCODE_JOBQ_TIMEOUT;
		error.message = "the job ran longer than its timeout, and did not react to a query cancel";
	}
	edata = scheduler_try(charge, &this);
	if (edata != NULL && edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(edata);
	if (edata != NULL)
	{
		(void) later_failed(run->job, edata, now);
		SpinLockAcquire(&slot->mutex);
		jobq_run_to(&slot->run, JOBQ_RUN_DEAD);
		SpinLockRelease(&slot->mutex);
		return false;
	}
	later_done(run->job);

	/* from here on, the entry of the job is no longer dropped */
	SpinLockAcquire(&slot->mutex);
	asked_for = slot->run.asked_for;
	jobq_run_to(&slot->run, JOBQ_RUN_CHARGED);
	SpinLockRelease(&slot->mutex);
	job->live = this.charged == LOST_LIVE || this.charged == LOST_BEFORE;
	job->unused = this.charged == LOST_TAKEN;
	job->no_entry = this.charged == LOST_BEFORE || (this.charged == LOST_TAKEN && asked_for);
	return true;
}

/*
 * Charge an attempt, in a transaction of its own.  If the job was to be cancelled, but
 * another session has the row, records a pending cancellation.  arg is a Charge.
 */
static void
charge(void *arg)
{
	Charge	   *this = arg;
	Relation	rel;

	if (jobq_relations_if_installed() == NULL)
		return;
	rel = jobq_open_jobs();
	if (this->together != NULL)
	{
		charge_all(this, rel);
		table_close(rel, NoLock);
		return;
	}
	this->charged = this->lost != NULL
		? charge_lost_attempt(rel, this->lost, this->error)
		: charge_culprit(rel, this->culprit);
	if (this->charged == LOST_TAKEN && this->culprit != NULL)
		row_is_locked();
	if (this->charged == LOST_TAKEN)
		see_to_uncharged(this->lost, rel);
	table_close(rel, NoLock);

	/* otherwise the job would run again after the session is done */
	if (this->charged == LOST_TAKEN && this->lost->stop == JOBQ_STOP_CANCEL &&
		jobq_owe_cancel(my_db, this->lost->job_id) == 0)
		row_is_locked();
}

/*
 * The attempt cannot be charged before another session has released the job's row.
 */
static void
row_is_locked(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("another session has its row")));
}

/*
 * The lost worker ran several jobs together: see charge_together().
 */
static void
charge_all(const Charge *this, Relation rel)
{
	int64	   *locked = palloc(sizeof(int64) * this->together->n);
	int			n = charge_together(rel, this->together, this->lost, locked);

	for (int i = 0; i < n; i++)
		if (jobq_owe_cancel(my_db, locked[i]) == 0)
			row_is_locked();
}

/*
 * Another session has locked the row of the crashed worker's job.  If the worker never
 * claimed the row, there is nothing to charge, but the job's group must wait for the
 * session.  If the worker had claimed the row, the session has locked it since, or had
 * read it before.  Then the attempt is charged after the session is done.
 */
static void
see_to_uncharged(const LostAttempt *lost, Relation rel)
{
	JobqJob		job;

	if (lost->slot->run.died_in == JOBQ_RUN_BEGUN)
		row_is_locked();
	if (jobq_job_find(rel, lost->job_id, GetActiveSnapshot(), &job))
		jobq_row_is_taken(rel, &job, lost->slot->holding->permits.group);
}

/*
 * Put the job into the ready set, because its last entry may have been dropped while a
 * dead slot named the job.  The row is read now, because another session may have
 * changed it since the charge.  After an error, the sweep finds the job.
 */
static void
hand_over(int64 id, TimestampTz now)
{
	HandOver	this = {.id = id};
	JobqWakeList wake = {0};

	if (scheduler_try(find_ready, &this) != NULL || !this.found)
		return;
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_ready_push(my_db, &this.push, now, &wake);
	jobq_unlock(my_db, &wake);
}

static void
find_ready(void *arg)
{
	HandOver   *this = arg;
	Relation	rel;
	JobqJob		job;

	if (jobq_relations_if_installed() == NULL)
		return;
	rel = jobq_open_jobs();
	this->found = jobq_job_find(rel, this->id, GetActiveSnapshot(), &job) &&
		!job_leased(&job) && !job_blocked(&job) && !DatumGetBool(JOB(&job, JOB_DORMANT));
	if (this->found)
		jobq_push_of_job(&this->push, &job, NULL);
	table_close(rel, NoLock);
}

/*
 * End the lease of a row that no worker runs: the server stopped while the procedure
 * ran, through no fault of the job.  The attempt is not counted, and the job runs
 * again.  Exception: a statement outside the job's transaction that may run only once
 * becomes a dead letter, because its effect is unknown.
 *
 * After an error, end_left() tries again; if its list is full, the next scan does.
 */
void
supervise_lost_lease(int64 id)
{
	TimestampTz now = jobq_now();
	ErrorData  *edata;

	if (later_at(id, now) > now)
		return;
	edata = scheduler_try(end_lease, &id);
	if (edata == NULL)
	{
		later_done(id);
		return;
	}
	(void) later_failed(id, edata, now);
	for (int i = 0; i < nleft; i++)
		if (left[i] == id)
			return;
	if (nleft < MAX_LEFT)
		left[nleft++] = id;
}

static void
end_lease(void *arg)
{
	int64		id = *(int64 *) arg;
	Relation	rel;
	JobqJob		job;

	if (jobq_relations_if_installed() == NULL)
		return;
	rel = jobq_open_jobs();

	/* a worker names its job in the slot before the lease becomes visible */
	if (!jobq_slot_names_job(my_db, id) &&
		jobq_job_find(rel, id, GetActiveSnapshot(), &job) &&
		job_leased(&job) && jobq_job_delete(rel, &job))
	{
		if (job_only_once(&job) && jobq_job_is_statement(&job))
		{
			JobqError	error = {.sqlerrcode = ERRCODE_JOBQ_WORKER_LOST,
				.message = "the server, or its work in this database, ended while the statement ran"
			};

			/* the start time is unknown */
			jobq_count(&job, JOBQ_N_STARTED, 1);
			jobq_job_dies(rel, &job, &error);
		}
		else
		{
			JOB_SET(&job, JOB_ATTEMPT, Int32GetDatum(job_attempt(&job) - 1));
			jobq_job_set_run_at(&job, jobq_now());
			job.nulls[JOB_LEASE_TOKEN - 1] = job.nulls[JOB_LEASE_UNTIL - 1] = true;
			jobq_job_insert_again(rel, &job);
		}
	}
	table_close(rel, NoLock);
}

/*
 * Retry the due leases in the list.  *wake is lowered to the time of the next retry.
 */
static void
end_left(TimestampTz now, TimestampTz *wake)
{
	int			n = nleft;

	nleft = 0;
	for (int i = 0; i < n; i++)
	{
		int64		id = left[i];

		if (later_at(id, now) > now)
			left[nleft++] = id;
		else
			supervise_lost_lease(id);
	}
	for (int i = 0; i < nleft; i++)
		*wake = Min(*wake, later_at(left[i], now));
}

/*
 * Charge the jobs that ran in crashed server processes.  The last transaction for a culprit
 * charges nothing.  The previous one is durable then, because this process commits synchronously,
 * and the flight recorder forgets the culprit.  Lowers *wake to the time of the next attempt after
 * a lock timeout.  No process begins the job meanwhile (charge_pending() in the runner).  Any other
 * error ends the scheduler, because the job must not run uncharged.
 */
static void
charge_culprits(TimestampTz now, TimestampTz *wake)
{
	JobqCulprit culprit;

	for (int next = 0; flight_culprit(MyDatabaseId, &next, &culprit);)
	{
		Charge		this = {.culprit = &culprit};
		TimestampTz at = later_at(culprit.job_id, now);
		ErrorData  *edata = NULL;

		if (at <= now)
		{
			do
			{
				this.charged = LOST_GONE;
				edata = scheduler_try(charge, &this);
			} while (edata == NULL &&
					 (this.charged == LOST_LIVE || this.charged == LOST_ENDED));
			if (edata == NULL)
			{
				later_done(culprit.job_id);
				flight_clear_culprit(&culprit);
				continue;
			}
			if (edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
				ReThrowError(edata);
			at = later_failed(culprit.job_id, edata, now);
		}
		*wake = Min(*wake, at);
	}
}

/*
 * Charge the jobs that ran in crashed server processes, and the jobs of workers that crashed under
 * the previous scheduler.  None of these jobs can begin before, so a locked row or table is left
 * for run().
 */
static TimestampTz
load(TimestampTz now)
{
	TimestampTz wake = DT_NOEND;

	charge_culprits(jobq_now(), &wake);
	reap(jobq_now(), &wake, true);
	return now;
}

/*
 * Send SIGTERM to workers whose handler has not reacted to a query cancel.  Returns the
 * time of the next check.
 */
static TimestampTz
end_overstayers(TimestampTz now)
{
	TimestampTz wake = DT_NOEND;

	jobq_foreach_slot(slot, my_db, JOBQ_SLOTS_ATTACHED)
	{
		JobqRun    *run = &slot->run;
		bool		kill_it = false;
		int64		id = 0;

		LWLockAcquire(jobq_shared->lock, LW_SHARED);
		SpinLockAcquire(&slot->mutex);
		if (slot->state == JOBQ_SLOT_ATTACHED && jobq_run_open(run))
		{
			TimestampTz at = run->kill_at;

			if (run->deadline != DT_NOEND)
				at = Min(at, run->deadline +
						 jobq_cancel_grace * INT64CONST(1000));
			if (at <= now)
			{
				run->stop = Max(run->stop, JOBQ_STOP_TIMEOUT);
				run->deadline = DT_NOEND;
				run->kill_at = now + jobq_cancel_grace * INT64CONST(1000);
				at = run->kill_at;
				id = run->job;
				kill_it = true;

				/*
				 * under the mutex, because the worker may change to another
				 * job
				 */
				(void) kill(slot->pid, SIGTERM);
			}
			wake = Min(wake, at);
		}
		SpinLockRelease(&slot->mutex);
		LWLockRelease(jobq_shared->lock);
		if (kill_it)
			ereport(LOG,
					(errmsg("terminating the jobq worker with PID %d: job " INT64_FORMAT " did not react to a query cancel",
							slot->pid, id)));
	}
	return wake;
}
