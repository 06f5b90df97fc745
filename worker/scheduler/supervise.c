/*-------------------------------------------------------------------------
 *
 * supervise.c
 *	  The scheduler's care for its workers: takes back the slots of those that
 *	  have left, charges the jobs of those that died, and ends handlers that
 *	  overstay.
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

/* Leases of rows that could not be ended, and are tried again. */
#define MAX_LEFT			64

/* The pause, in microseconds, between two tries to charge a culprit at the start. */
#define LOAD_PAUSE			10000

/* An attempt that nobody else can charge any more: a worker's, or that of a culprit. */
typedef struct Charge
{
	const LostAttempt *lost;	/* or NULL */
	const JobqError *error;
	const JobqCulprit *culprit;
	LostCharge	charged;
} Charge;

/* What is known of a job whose worker has died, when it is charged. */
typedef struct LostJob
{
	bool		live;			/* it will run again */
	bool		unused;			/* it had not begun, and another has its row */
	bool		no_entry;		/* perhaps nobody else hands it over */
} LostJob;

/* A job that is to be handed over. */
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
static void take_copy(JobqSlot *slot, JobqSlot *copy);
static bool charge_worker(JobqSlot *slot, const JobqSlot *copy, TimestampTz now,
						  LostJob *job);
static void charge(void *arg);
static void see_to_uncharged(const LostAttempt *lost, Relation rel);
static void hand_over(int64 id, TimestampTz now);
static void find_ready(void *arg);
static void end_lease(void *arg);
static void end_left(TimestampTz now, TimestampTz *wake);
static TimestampTz end_overstayers(TimestampTz now);

/*
 * Looks at each slot, charges the jobs of workers that have died, and starts the
 * workers that are wanted: no more than "jobq.max_workers" of each.  Of roles
 * that cannot work it charges some jobs of each in a round.  Cancels what workers owe.
 *
 * Workers that come and go, or have nothing to do, only set our latch.
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
	reap(now, &wake, false);
	owed_cancel(now, &wake);
	wake = Min(wake, end_overstayers(now));
	wake = Min(wake, spawn_workers(now));
	return wake;
}

/*
 * A worker that begins a job with a timeout wakes us only if its end is before we
 * mean to wake (claim() in worker/runner/run.c).  One that has begun after we have
 * looked at its slot is seen here.
 */
static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot->state != JOBQ_SLOT_ATTACHED || slot->database != my_db_index)
			continue;
		SpinLockAcquire(&slot->mutex);
		if (slot->job_id != 0 && slot->deadline != DT_NOEND)
			plan = Min(plan, slot->deadline +
					   jobq_cancel_grace * INT64CONST(1000));
		SpinLockRelease(&slot->mutex);
	}
	return plan;
}

/*
 * Take back the slots of workers that have left, or that never came; or, if "uncharged",
 * only those of workers that have died at a job.
 *
 * As long as such a slot names the job, nobody begins that (jobq_slot_keeps_job()), and
 * whoever comes upon its entry drops it.  So what lives on, and is not written anew, is
 * handed over when the slot does not name it any more.
 */
static void
reap(TimestampTz now, TimestampTz *wake, bool uncharged)
{
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];
		JobqSlot	copy;
		LostJob		job = {0};
		TimestampTz at;

		if (slot->state == JOBQ_SLOT_FREE || slot->database != my_db_index ||
			(uncharged && (slot->state != JOBQ_SLOT_DEAD || slot->job_id == 0 || slot->over)))
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
					slot->state = JOBQ_SLOT_FREE;
					spawn_again(now, false);
				}
				else
					*wake = Min(*wake, slot->started_at + PROCESS_ATTACH_TIMEOUT + 1);
			}
			LWLockRelease(jobq_shared->lock);
		}
		if (slot->state != JOBQ_SLOT_DEAD)
			continue;

		copy = *slot;
		/* if the server is being stopped, this is nobody's fault */
		CHECK_FOR_INTERRUPTS();
		if (copy.job_id != 0 && copy.stop_job != copy.job_id &&
			process_stopping())
			continue;
		at = copy.job_id != 0 ? later_at(copy.job_id, now) : now;
		if (at > now)
		{
			*wake = Min(*wake, at);
			continue;
		}
		jobq_injection_point("jobq-worker-dead");
		jobq_quarantine_over(my_db, i);
		job.live = copy.holding->live;

		if (copy.job_id != 0 && !copy.over)
		{
			take_copy(slot, &copy);
			if (!charge_worker(slot, &copy, now, &job))
			{
				*wake = Min(*wake, later_at(copy.job_id, now));
				continue;
			}
		}
		process_slot_gone(my_db, slot, job.live, job.unused, now);
		LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
		slot->generation++;
		slot->state = JOBQ_SLOT_FREE;
		my_db->ndead--;
		LWLockRelease(jobq_shared->lock);
		if (job.no_entry)
			hand_over(copy.job_id, now);
		places_free();

		if (copy.connect_failed || copy.gave_back)
			role_left_early(copy.role, !copy.connect_failed, now, wake);
		else
			spawn_again(now, true);
	}
}

/*
 * What is in the slot of a worker that has died, whose job is charged by that: whoever
 * cancels the job from now on does not ask the slot, where nobody would look again.
 */
static void
take_copy(JobqSlot *slot, JobqSlot *copy)
{
	SpinLockAcquire(&slot->mutex);
	slot->charging = true;
	*copy = *slot;
	SpinLockRelease(&slot->mutex);
}

/*
 * Charge the job of the worker in this slot, of which there is a copy, for it cannot do so
 * any more; unless that was done before.  False if something was locked, so that it must
 * be tried again: also if it is the job's row, which the worker has had.
 *
 * Any other error ends the scheduler: while it cannot be written that the job was tried, it
 * must not be tried again and again.
 */
static bool
charge_worker(JobqSlot *slot, const JobqSlot *copy, TimestampTz now, LostJob *job)
{
	JobqTrier	trier = {copy->pid, NULL, copy->progress, copy->message};
	JobqError	error = {.sqlerrcode = ERRCODE_JOBQ_WORKER_LOST,
		.message = "the worker was terminated while it ran the job",
		.trier = &trier
	};
	LostAttempt lost = {.job_id = copy->job_id,.attempt = copy->attempt,
		.started_at = copy->job_started_at,
		.stop = copy->stop_job == copy->job_id ? copy->stop : JOBQ_STOP_NONE,
		.lease = copy->lease,.slot = slot
	};
	Charge		this = {.lost = &lost,.error = &error,.charged = LOST_GONE};
	ErrorData  *edata;
	bool		asked_for;

	if (copy->stop == JOBQ_STOP_TIMEOUT && copy->stop_job == copy->job_id)
	{
		error.sqlerrcode = ERRCODE_JOBQ_TIMEOUT;
		error.message = "the job ran longer than its timeout, and did not react to a query cancel";
	}
	edata = scheduler_try(charge, &this);
	if (edata != NULL && edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(edata);
	if (edata != NULL)
	{
		(void) later_failed(copy->job_id, edata, now);
		SpinLockAcquire(&slot->mutex);
		slot->charging = false;
		SpinLockRelease(&slot->mutex);
		return false;
	}
	later_done(copy->job_id);

	/* from here on, whoever comes upon the job's entry does not drop it */
	SpinLockAcquire(&slot->mutex);
	asked_for = slot->asked_for;
	slot->job_id = 0;
	SpinLockRelease(&slot->mutex);
	job->live = this.charged == LOST_LIVE || this.charged == LOST_BEFORE;
	job->unused = this.charged == LOST_TAKEN;
	job->no_entry = this.charged == LOST_BEFORE || (this.charged == LOST_TAKEN && asked_for);
	return true;
}

/*
 * Charge an attempt, in a transaction of its own.  If its job was to be cancelled, and
 * somebody else has its row, that is owed.
 */
static void
charge(void *arg)
{
	Charge	   *this = arg;
	Relation	rel;

	if (jobq_relations_if_installed() == NULL)
		return;
	rel = jobq_open_jobs();
	this->charged = this->lost != NULL
		? charge_lost_attempt(rel, this->lost, this->error)
		: charge_culprit(rel, this->culprit);
	if (this->lost != NULL && this->charged == LOST_TAKEN)
		see_to_uncharged(this->lost, rel);
	table_close(rel, NoLock);

	/* the job runs again when somebody has moved it */
	if (this->charged == LOST_TAKEN && this->lost != NULL &&
		this->lost->stop == JOBQ_STOP_CANCEL &&
		jobq_owe_cancel(my_db, this->lost->job_id) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("another session has its row")));
}

/*
 * Another session has the row of the job of a worker that has died.  If the worker never
 * had it, there is nothing to charge, but the job's group waits for what becomes of it.  If
 * the worker has had the row, the session can only have locked it since, or have looked
 * before the worker began: the attempt is charged when that is over.
 */
static void
see_to_uncharged(const LostAttempt *lost, Relation rel)
{
	JobqJob		job;

	if (lost->slot->begun)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("another session has its row")));
	if (jobq_job_find(rel, lost->job_id, GetActiveSnapshot(), &job))
		jobq_row_is_taken(rel, &job, lost->slot->holding->permits.group);
}

/*
 * The job may have no entry: who came upon the last one has dropped it, as a dead slot named
 * the job.  Its row is read now, when none does: somebody may have moved it since it was
 * charged.  If that fails, the sweep finds it.
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
 * A leased row that nobody runs: the server stopped while its procedure ran,
 * and that was not the job's doing.  It gets its attempt back and runs again; but a
 * statement outside of its job's transaction that may be tried only once is not to be
 * done twice, and nobody knows whether it was done.
 *
 * If that cannot be done, it is tried again (end_left()); or, if there are many, when the
 * row is met again.
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

	/* a worker names a job before it leases the row that the snapshot sees */
	if (!jobq_slot_names_job(my_db, id) &&
		jobq_job_find(rel, id, GetActiveSnapshot(), &job) &&
		job_leased(&job) && jobq_job_delete(rel, &job))
	{
		if (job_only_once(&job) && jobq_job_is_statement(&job))
		{
			JobqError	error = {.sqlerrcode = ERRCODE_JOBQ_WORKER_LOST,
				.message = "the server, or its work in this database, ended while the statement ran"
			};

			/* it had begun, nobody knows when */
			jobq_count(&job, JOBQ_N_STARTED, 1);
			(void) jobq_job_failed(rel, &job, DT_NOBEGIN, &error, false, true, 0);
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
 * Try again those whose time has come; *wake is lowered to that of the next.
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
 * Charge the jobs that were running in server processes that crashed.  Nothing is done
 * before, so this waits for locks; and another error ends the scheduler, as they must not
 * run before.
 *
 * Then charge those whose workers have died when there was another scheduler, which may
 * have ended because it could not.  Nobody begins them before, so what is locked can wait.
 */
static TimestampTz
load(TimestampTz now)
{
	TimestampTz wake = DT_NOEND;
	JobqCulprit culprit;

	for (int next = 0; flight_culprit(MyDatabaseId, &next, &culprit);)
	{
		Charge		this = {.culprit = &culprit,.charged = LOST_GONE};
		ErrorData  *edata;

		while ((edata = scheduler_try(charge, &this)) != NULL)
		{
			if (edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
				ReThrowError(edata);
			FreeErrorData(edata);
			process_interrupts();
			if (my_db->stop)
				proc_exit(0);
			pg_usleep(LOAD_PAUSE);
		}

		/* this process commits synchronously: the charge is durable */
		if (this.charged != LOST_TAKEN)
			flight_clear_culprit(&culprit);
	}
	reap(jobq_now(), &wake, true);
	return now;
}

/*
 * SIGTERM for workers whose handler has not reacted to a query cancel.
 */
static TimestampTz
end_overstayers(TimestampTz now)
{
	TimestampTz wake = DT_NOEND;

	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];
		bool		kill_it = false;
		int64		id = 0;

		if (slot->state != JOBQ_SLOT_ATTACHED || slot->database != my_db_index)
			continue;
		LWLockAcquire(jobq_shared->lock, LW_SHARED);
		SpinLockAcquire(&slot->mutex);
		if (slot->state == JOBQ_SLOT_ATTACHED && slot->job_id != 0 && !slot->over)
		{
			TimestampTz at = slot->kill_at;

			if (slot->deadline != DT_NOEND)
				at = Min(at, slot->deadline +
						 jobq_cancel_grace * INT64CONST(1000));
			if (at <= now)
			{
				if (slot->stop_job != slot->job_id)
				{
					slot->stop = JOBQ_STOP_TIMEOUT;
					slot->stop_job = slot->job_id;
				}
				slot->deadline = DT_NOEND;
				slot->kill_at = now + jobq_cancel_grace * INT64CONST(1000);
				at = slot->kill_at;
				id = slot->job_id;
				kill_it = true;

				/* it may be at another job when the mutex is released */
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
