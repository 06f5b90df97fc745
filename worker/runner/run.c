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
 * (CLAIMED).  run_function() deletes the row (BEGUN), or finds the row taken (MISSED).  The
 * hand-over of the commit that ends the attempt sets ENDING (src/commit/commit.c).  unclaim()
 * sets RunContext.next: DONE, LIVE, MISSED, or POPPED before another try.
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

/* Immediate retries after a serialization failure or a deadlock. */
#define MAX_CONFLICTS	5

/* The end of a message that contains the job's trace: two strings. */
#define TRACE_PART(current) \
	(current)->trace[0] == '\0' ? "" : ", traceparent ", (current)->trace

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
static void report_job(const char *kind, int64 id);
static void context_callback(void *arg);
static void count_job(JobqSlot *slot, int64 id, uint64 *counter);
static void claim(RunContext *context, const JobqJob *job, const char *kind,
				  TimestampTz now, int timeout);
static bool unclaim(RunContext *context);

/*
 * Run the job of this entry, if the job still exists and may run.  Called outside of
 * transactions.  Errors of the handler are recorded with the job, not raised.
 */
void
run_job(RunContext *run, const JobqPush *entry)
{
	for (int i = 0; i <= MAX_CONFLICTS; i++)
		if (!run_once(run, entry, i == MAX_CONFLICTS))
			break;
}

/*
 * A single try.  True if the try lost a conflict (a serialization failure or a deadlock) and
 * must be repeated; never true if "last" is set.  Also true after the transaction that frees a
 * unique key at the start of the job.
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
	else
		verdict = jobq_gate(rel, &job, MODE_WORKER, entry, GetActiveSnapshot(),
							now, &first);
	if (verdict != JOBQ_MAY_RUN)
	{
		(void) jobq_turn_away(rel, verdict, &job, entry, &first, 0);
		jobq_run_to(&run->slot->run, JOBQ_RUN_TURNED_AWAY);
	}
	if (verdict != JOBQ_MAY_RUN || (!last && jobq_unique_started(&job)))
	{
		/*
		 * a unique key that the start frees is free before the handler begins
		 */
		table_close(rel, NoLock);
		PopActiveSnapshot();
		CommitTransactionCommand();
		MemoryContextSwitchTo(top);
		return verdict == JOBQ_MAY_RUN;
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
static void
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
	claim(run, job, kind, now, jobq_job_timeout(handler, job));
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
		jobq_row_is_taken(rel, job, run->slot->holding->permits.group);
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
	PopActiveSnapshot();
	if (synchronous_commit == SYNCHRONOUS_COMMIT_OFF)
		jobq_commit_quietly();
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
 * The attempt has ended with an error: abort its transaction.  Returns true if the error was a
 * conflict and another try is due at once.  Otherwise the attempt is recorded as failed, unless
 * the error was raised by run_suspend() to leave the procedure.
 */
static bool
after_error(RunContext *run, JobqJob *job, TimestampTz started_at, bool last)
{
	ErrorData  *edata;
	bool		suspended = jobq_current->suspended;
	bool		again;
	bool		blamed;

	HOLD_INTERRUPTS();
	disable_timeout(STATEMENT_TIMEOUT, false);
	allowance_end();
	QueryCancelPending = false;
	MemoryContextSwitchTo(run->memory);
	edata = CopyErrorData();
	again = !last && !suspended &&
		(edata->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE ||
		 edata->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED) &&
		!job_leased(job) && !was_cancelled(run->slot);
	blamed = !suspended && allowance_blame(edata);
	if (!again && !blamed && !suspended)
		EmitErrorReport();
	FlushErrorState();
	if (blamed)
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
		again = false;
		(void) getppid();
		QueryCancelPending = false;
	}
	RESUME_INTERRUPTS();

	/* the stop of the server has reached another process first */
	if (was_stopped(edata))
		proc_exit(0);

	MemoryContextSwitchTo(run->memory);
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

/*
 * Show the job in pg_stat_activity.  If the previous job was of the same kind, without a rest
 * in between, only the id and the start time are written.
 */
static void
report_job(const char *kind, int64 id)
{
	static const char prefix[] = "jobq: ";
	static const char between[] = ", job ";
	static char shown[JOBQ_MAX_KIND_NAME + sizeof(prefix) + sizeof(between) + MAXINT8LEN] = "";
	static size_t kind_end = 0;
	volatile PgBackendStatus *entry = MyBEEntry;
	char	   *number;
	int			length;

	if (debug_query_string == NULL ||
		strncmp(shown + strlen(prefix), kind, kind_end - strlen(prefix)) != 0 ||
		kind[kind_end - strlen(prefix)] != '\0')
	{
		kind_end = strlen(prefix) + strlen(kind);
		snprintf(shown, sizeof(shown), "%s%s%s" INT64_FORMAT, prefix, kind, between, id);
		debug_query_string = shown;
		pgstat_report_activity(STATE_RUNNING, shown);
		return;
	}
	number = shown + kind_end + strlen(between);
	length = pg_lltoa(id, number);
	if (!pgstat_track_activities || entry == NULL ||
		(number - shown) + length >= pgstat_track_activity_query_size)
		return;
	PGSTAT_BEGIN_WRITE_ACTIVITY(entry);
	entry->st_activity_start_timestamp = GetCurrentStatementStartTimestamp();
	memcpy(entry->st_activity_raw + (number - shown), number, length + 1);
	PGSTAT_END_WRITE_ACTIVITY(entry);
}

static void
context_callback(void *arg)
{
	JobqCurrent *current = arg;

	errcontext("running job " INT64_FORMAT " of kind \"%s\", attempt %d%s%s",
			   job_id(current->job), jobq_job_kind(current->job),
			   current->attempt, TRACE_PART(current));
}

/*
 * Record in shared memory and in the flight recorder which job this worker runs, and start the
 * timeout.  Acquires the slot's mutex.  timeout is in milliseconds; 0: none.
 */
static void
claim(RunContext *context, const JobqJob *job, const char *kind,
	  TimestampTz now, int timeout)
{
	uint32		tenant = JOB_ISNULL(job, JOB_TENANT) ? 0
		: jobq_tenant_hash(TextDatumGetCString(JOB(job, JOB_TENANT)));
	JobqSlot   *slot = context->slot;
	JobqRun    *run = &slot->run;
	TimestampTz deadline = timeout > 0 ? now + timeout * INT64CONST(1000)
		: DT_NOEND;
	uint32		stat = jobq_count_place(job);

	QueryCancelPending = false;
	flight_begin(job_id(job), job_attempt(job),
				 DatumGetInt16(JOB(job, JOB_CRASHES)));
	context->next = JOBQ_RUN_DONE;
	SpinLockAcquire(&slot->mutex);
	run->job = job_id(job);
	run->role = job_role(job);
	run->queue_id = job_queue_id(job);
	run->attempt = job_attempt(job);
	run->stat = stat;
	run->tenant = tenant;
	run->passes = !JOB_ISNULL(job, JOB_LIMIT_COST) &&
		DatumGetInt32(JOB(job, JOB_LIMIT_COST)) == 0;
	run->stop = JOBQ_STOP_NONE;
	run->token = 0;
	run->started_at = now;
	run->deadline = deadline;
	run->kill_at = DT_NOEND;
	run->progress = -1;
	run->message[0] = '\0';
	strlcpy(run->kind, kind, sizeof(run->kind));
	jobq_run_to(run, JOBQ_RUN_CLAIMED);
	SpinLockRelease(&slot->mutex);

	jobq_bill_begin(job_id(job), stat, now);
	if (timeout > 0)
	{
		enable_timeout_after(STATEMENT_TIMEOUT, timeout);
		pg_memory_barrier();	/* next_wake() in scheduler.c */
		if (deadline < my_db->wake_at)
			jobq_wake_scheduler(my_db);
	}
}

/*
 * The attempt is over.  From here on, cancel() does not find the job in the slot.  Returns
 * true if cancel() asked the worker to stop the job, and the job may run again.  Acquires the
 * slot's mutex.
 */
static bool
unclaim(RunContext *context)
{
	JobqSlot   *slot = context->slot;
	JobqRun    *run = &slot->run;
	TimestampTz now = jobq_log_min_duration >= 0 ? jobq_now() : 0;
	bool		stopped;
	bool		owed;

	if (run->deadline != DT_NOEND)
		disable_timeout(STATEMENT_TIMEOUT, false);
	allowance_end();
	if (slot->holding->lines.n > 0)
		jobq_lines_clear(&slot->holding->lines);
	jobq_injection_point("jobq-attempt-over");
	SpinLockAcquire(&slot->mutex);
	stopped = run->stop != JOBQ_STOP_NONE;
	owed = cancel_is_owed(context);
	jobq_run_to(run, context->next);
	SpinLockRelease(&slot->mutex);
	if (owed)
		context->ticket = jobq_owe_cancel(my_db, run->job);

	/* signals sent before arrive when a system call returns */
	if (stopped)
		(void) getppid();
	flight_end();
	QueryCancelPending = false;

	/* this may end the process, which is no longer charged to the job */
	if (jobq_log_min_duration >= 0 &&
		now - run->started_at >= jobq_log_min_duration * INT64CONST(1000))
		ereport(LOG,
				(errmsg("job " INT64_FORMAT " of kind \"%s\" ran for %.3f ms%s%s",
						run->job, run->kind, (now - run->started_at) / 1000.0,
						TRACE_PART(jobq_current))));
	return owed;
}
