/*-------------------------------------------------------------------------
 *
 * run.c
 *	  Runs a job with a function, in a single transaction.
 *
 * 1. Read the row of the entry and delete it.  The delete is both claim and acknowledgement in
 *    a single heap write.  If the row is gone or taken, drop the entry.
 * 2. Call the handler.
 * 3. Insert the job into the archive, and commit without waiting for the flush.
 *
 * If the handler fails, the abort restores the row, and a second transaction records the
 * attempt.  If the server crashes before the flush, the handler's effects and the completion
 * are lost together, and the job runs again.
 *
 * The states of the run (run.h): the worker pops the entry (POPPED, src/ready/pop.c), and calls
 * run_job().  The gate refuses the job (TURNED_AWAY), or claim() names the job in the slot
 * (CLAIMED).  run_function() deletes the row (BEGUN).  The hand-over of the commit that ends the
 * attempt sets ENDING (src/commit/commit.c).  unclaim() changes the run to RunContext.next.  A
 * table in inner.h shows where an attempt ends, and how.
 *
 * A cancel() that comes too late leaves a pending cancellation, "owed" in the code (cancel.c).
 *
 * worker/runner/run.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include <unistd.h>

#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timeout.h"

#include "commit/commit.h"

static bool run_once(RunContext *run, const JobqPush *entry, bool last);
static bool run_claimed(RunContext *run, Relation rel, JobqJob *job,
						TimestampTz now, bool last);
static void run_function(RunContext *run, Relation rel, JobqJob *job,
						 const JobqFunction *function, TimestampTz started_at);
static bool try_after_error(RunContext *run, JobqJob *job, TimestampTz started_at,
							bool last, bool *owed);
static bool after_error(RunContext *run, JobqJob *job, TimestampTz started_at,
						bool last);
static bool was_stopped(const ErrorData *edata);
static void context_callback(void *arg);

/*
 * Run the job of this entry, if the job still exists and may run.  Called outside of
 * transactions.  Errors of the handler are recorded with the job, not raised.
 *
 * If the handler of the job takes several jobs, and run->collects is set, the job may have
 * been collected with others instead (ncollected > 0).  It has not begun then.
 */
void
run_job(RunContext *run, const JobqPush *entry)
{
	run->entry = *entry;
	run->slot->run.asked_for = false;
	run->has_entry = true;
	for (int i = 0; i <= MAX_CONFLICTS; i++)
		if (!run_once(run, &run->entry, i == MAX_CONFLICTS))
			break;
	if (run->slot->run.asked_for)
	{
		JobqWakeList wake = {0};

		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		jobq_ready_push(my_db, &run->entry, run->entry.key.run_at, &wake);
		jobq_unlock(my_db, &wake);
	}
	run->has_entry = false;
}

/*
 * A single try.  True if the try lost a conflict (a serialization failure or a deadlock) and
 * must be repeated; never true if "last" is set.
 */
static bool
run_once(RunContext *run, const JobqPush *entry, bool last)
{
	MemoryContext top = CurrentMemoryContext;
	JobqJob		job;
	Relation	rel;
	TimestampTz now;
	JobqJob		first;
	JobqVerdict verdict;
	bool		again;
	int			nestlevel = 0;

	MemoryContextReset(run->memory);
	process_begin_transaction();
	MemoryContextSwitchTo(run->memory);

	/* until the handler begins, or to the end of the transaction */
	if (LockTimeout > 0)
		nestlevel = NewGUCNestLevel();
	process_wait_for_locks();
	rel = jobq_try_open_jobs();
	if (rel == NULL)
	{
		PopActiveSnapshot();
		CommitTransactionCommand();
		MemoryContextSwitchTo(top);

		/* the job may still exist: push its entry again */
		SpinLockAcquire(&run->slot->mutex);
		run->slot->run.asked_for = true;
		jobq_run_to(&run->slot->run, JOBQ_RUN_TURNED_AWAY);
		SpinLockRelease(&run->slot->mutex);
		run->slot->retire = true;
		return false;
	}

	now = jobq_statement_start();
	if (!jobq_job_fetch_entry(rel, entry, GetActiveSnapshot(), &job))
		verdict = JOBQ_GONE;
	else if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(run->slot->role)))
	{
		/* our role was dropped: the scheduler charges its jobs */
		jobq_job_push(&job);
		run->slot->retire = true;
		verdict = JOBQ_TAKEN;
	}
	else if (charge_pending(&job))
	{
		/* the scheduler charges the job first */
		jobq_row_is_taken(rel, &job, run->slot->holding->permits.group);
		verdict = JOBQ_TAKEN;
	}
	else
		verdict = jobq_gate(rel, &job, MODE_WORKER, entry, GetActiveSnapshot(),
							now, &first);
	if (verdict != JOBQ_MAY_RUN)
	{
		(void) jobq_turn_away(rel, verdict, &job, entry, &first, 0);
		jobq_run_to(&run->slot->run, JOBQ_RUN_TURNED_AWAY);
	}
	else if (run->collects && entry->flow != 0 && collect(entry, &job))
	{
		/*
		 * collect_return() is responsible for the entry from now on.  The
		 * other jobs were popped after the snapshot was taken, so all of them
		 * run in another transaction.
		 */
		run->has_entry = false;
		verdict = JOBQ_NOT_TOGETHER;
	}
	if (verdict != JOBQ_MAY_RUN || jobq_unique_started(&job))
	{
		/*
		 * A unique key that the start frees is free before the handler
		 * begins.  Then begin anew; the job has no such key any more.
		 */
		table_close(rel, NoLock);
		PopActiveSnapshot();
		CommitTransactionCommand();
		MemoryContextSwitchTo(top);
		return verdict == JOBQ_MAY_RUN && run_once(run, entry, last);
	}

	if (nestlevel > 0)
		AtEOXact_GUC(false, nestlevel);
	jobq_injection_point("jobq-job-may-run");
	again = run_claimed(run, rel, &job, now, last);
	MemoryContextSwitchTo(top);
	return again;
}

/*
 * Count a job that has ended here, for the views.  "counter" belongs to the slot.
 */
void
count_job(JobqSlot *slot, int64 id, uint64 *counter)
{
	slot->last_jobs[(slot->jobs_done + slot->jobs_failed) % JOBQ_LAST_JOBS] = id;
	(*counter)++;
}

/*
 * Run the job in the transaction that has read it, and record the outcome.  Returns the same
 * as run_once().
 */
static bool
run_claimed(RunContext *run, Relation rel, JobqJob *job, TimestampTz now,
			bool last)
{
	JobqCurrent current = {0};
	ErrorContextCallback context;
	const char *kind = jobq_job_kind(job);
	JobqHandler buffer;
	const JobqHandler *handler = jobq_handler(kind, &buffer);
	JobqQueue	queue;
	bool		leaves = (handler != NULL && handler->recycled) ||
		(jobq_queue_by_id(job_queue_id(job), &queue) != NULL &&
		 queue.recycle == RECYCLE_EACH);
	int64		id = job_id(job);
	volatile bool again = false;
	volatile bool procedure = false;
	volatile bool owed = false;

	report_job(kind, id);

	/* another crash must not undo earlier commits */
	if (DatumGetInt16(JOB(job, JOB_CRASHES)) > 0)
		(void) jobq_flush();
	claim(run, job, kind, now, jobq_job_timeout(handler, job), 0);
	jobq_injection_point("jobq-attempt-begins");
	allowance_begin(handler);

	current.job = job;
	current.attempt = job_attempt(job) + 1;
	current.slot = run->slot;
	current.memory = run->memory;
	jobq_current = &current;
	context.callback = context_callback;
	context.arg = &current;
	context.previous = error_context_stack;
	error_context_stack = &context;

	PG_TRY();
	{
		JobqFunction function;

		jobq_trace(job, current.trace);
		jobq_check_role(&current);
		jobq_handler_resolve(kind, &function);
		procedure = function.may_commit ||
			(function.statement && jobq_statement_commits(job));

		/*
		 * jobs enqueued by the handler are notified as their queue specifies
		 */
		jobq_tells_by_relay = false;
		if (procedure)
			run_procedure(run, rel, job, &function);
		else
			run_function(run, rel, job, &function, now);
		jobq_tells_by_relay = true;
		owed = unclaim(run);
		if (run->next != JOBQ_RUN_MISSED)
			count_job(run->slot, id, &run->slot->jobs_done);
	}
	PG_CATCH();
	{
		bool		is_owed;

		error_context_stack = context.previous;
		jobq_tells_by_relay = true;
		again = try_after_error(run, job, now, last, &is_owed);
		owed = is_owed;
	}
	PG_END_TRY();

	jobq_current = NULL;
	error_context_stack = context.previous;
	jobq_injection_point("jobq-attempt-left");
	clean_session(procedure);

	if (owed && cancel_given_back(run, id))
		again = false;
	if (leaves && !again)
		run->slot->retire = true;
	return again;
}

/*
 * Claim the job by deleting the row, call the handler, and commit.  Does nothing if another
 * transaction has taken the row.
 */
static void
run_function(RunContext *run, Relation rel, JobqJob *job,
			 const JobqFunction *function, TimestampTz started_at)
{
	Oid			role = GetUserId();
	int			nestlevel;
	JobqJob		finished;
	Datum		result;
	bool		isnull;

	if (!jobq_job_delete(rel, job))
	{
		jobq_row_is_taken(rel, job, run->entry.permits.group);
		run->next = JOBQ_RUN_MISSED;
		table_close(rel, NoLock);
		PopActiveSnapshot();
		CommitTransactionCommand();
		return;
	}
	jobq_run_to(&run->slot->run, JOBQ_RUN_BEGUN);
	jobq_tell_running(job, jobq_current->attempt, -1, true);
	nestlevel = NewGUCNestLevel();
	jobq_enter_context(job, GUC_ACTION_LOCAL);
	jobq_within(JOBQ_WITHIN_STARTED, role);
	result = jobq_call_handler(function, job, jobq_current->attempt, true,
							   &isnull);

	/* deferred triggers belong to the handler */
	jobq_fire_deferred();
	jobq_within(JOBQ_WITHIN_COMPLETED, role);
	allowance_check();
	AtEOXact_GUC(false, nestlevel);
	process_wait_for_locks();

	jobq_tells_by_relay = true;

	/* if the commit fails, "job" must match the restored row */
	finished = *job;
	if (jobq_attempt_returned(rel, &finished, jobq_current, started_at,
							  !isnull, result))
		run->next = JOBQ_RUN_LIVE;
	table_close(rel, NoLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * Handle an attempt that ended with an error; see after_error() and unclaim().  If this fails,
 * the worker exits.  jobq_current is then reset, because the abort at exit must not access it.
 */
static bool
try_after_error(RunContext *run, JobqJob *job, TimestampTz started_at, bool last,
				bool *owed)
{
	bool		again;

	PG_TRY();
	{
		again = after_error(run, job, started_at, last);
		*owed = unclaim(run);
	}
	PG_CATCH();
	{
		jobq_current = NULL;
		PG_RE_THROW();
	}
	PG_END_TRY();
	return again;
}

/*
 * The attempt has ended with an error: copy the error, and abort the transaction.  *again is
 * set if the error was a conflict and another try is due at once.  Otherwise the error is
 * logged, unless quiet, or unless it was raised by run_suspend() to leave the procedure.
 * Leaves run->memory as the current context.
 */
ErrorData *
abort_attempt(RunContext *run, bool last, bool quiet, bool *again)
{
	ErrorData  *edata;
	bool		suspended = jobq_current->suspended;
	bool		blamed;

	HOLD_INTERRUPTS();
	disable_timeout(STATEMENT_TIMEOUT, false);
	allowance_end();
	QueryCancelPending = false;
	MemoryContextSwitchTo(run->memory);
	edata = CopyErrorData();
	*again = !last && !suspended &&
		(edata->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE ||
		 edata->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED) &&
		!job_leased(jobq_current->job) && !was_cancelled(run->slot);
	blamed = !suspended && allowance_blame(edata);
	if (!*again && !blamed && !suspended && !quiet)
		EmitErrorReport();
	FlushErrorState();
	if (blamed && !quiet)
	{
		/* the log shows the reason, too */
		edata->elevel = LOG;
		ThrowErrorData(edata);
	}
	if (allowance_took_memory())
		run->slot->retire = true;
	AbortOutOfAnyTransaction();
	run_procedure_end();
	if (was_cancelled(run->slot))
	{
		/* a cancellation that came meanwhile must be recorded */
		*again = false;
		(void) getppid();
		QueryCancelPending = false;
	}
	RESUME_INTERRUPTS();

	/* the stop of the server has reached another process first */
	if (was_stopped(edata))
		proc_exit(0);

	MemoryContextSwitchTo(run->memory);
	return edata;
}

/*
 * The attempt has ended with an error: abort its transaction.  Returns true if the error was a
 * conflict and another try is due at once.  Otherwise the attempt is recorded as failed, unless
 * the error was raised by run_suspend() to leave the procedure.
 */
static bool
after_error(RunContext *run, JobqJob *job, TimestampTz started_at, bool last)
{
	bool		suspended = jobq_current->suspended;
	bool		again;
	ErrorData  *edata = abort_attempt(run, last, false, &again);

	if (suspended)
	{
		/* the end of the run has committed, whatever error followed */
		count_job(run->slot, job_id(job), &run->slot->jobs_done);
	}
	else if (again)
	{
		/* until the next try begins */
		run->next = JOBQ_RUN_POPPED;
	}
	else
	{
		/*
		 * settings committed by the procedure must not affect this
		 * transaction
		 */
		if (job_leased(job))
			clean_settings();
		record_failure(run, job, started_at, edata);
		count_job(run->slot, job_id(job), &run->slot->jobs_failed);
	}
	return again;
}

/*
 * True if the stop of the server caused the error, in a process that worked for the handler: a
 * process of a parallel query, or one to which the handler was connected.  This process then
 * exits like processes that have received the stop themselves.
 */
static bool
was_stopped(const ErrorData *edata)
{
	return (edata->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN ||
			edata->sqlerrcode == ERRCODE_CRASH_SHUTDOWN ||
			edata->sqlerrcode == ERRCODE_CANNOT_CONNECT_NOW) &&
		process_stopping();
}

static void
context_callback(void *arg)
{
	JobqCurrent *current = arg;

	errcontext("running job " INT64_FORMAT " of kind \"%s\", attempt %d%s%s",
			   job_id(current->job), jobq_job_kind(current->job),
			   current->attempt, TRACE_PART(current));
}
