/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  The begin and the end of a worker's attempt: in the slot, in the flight recorder, in
 *	  pg_stat_activity, and on the bill.
 *
 * worker/runner/claim.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/timeout.h"

#include "commit/commit.h"

/*
 * Show the job in pg_stat_activity.  If the previous job was of the same kind, without a rest
 * in between, only the id and the start time are written.
 */
void
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

/*
 * Record in shared memory and in the flight recorder which job this worker runs, and start the
 * timeout.  Acquires the slot's mutex.  timeout is in milliseconds; 0: none.  If n is not 0,
 * this is the first of n jobs that run together, and the caller has filled in the members of
 * the slot.
 */
void
claim(RunContext *context, const JobqJob *job, const char *kind,
	  TimestampTz now, int timeout, int n)
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
				 DatumGetInt16(JOB(job, JOB_CRASHES)), slot->members->jobs, n);
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
	slot->members->n = n;
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
 *
 * If several jobs ran together, the members of the slot remain as they were, except that the
 * slot does not name them.  The caller carries out the requests of cancel().
 */
bool
unclaim(RunContext *context)
{
	int			n;
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
	n = slot->members->n;
	slot->members->n = 0;
	owed = n == 0 && cancel_is_owed(context);
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
				n > 0 ? errmsg("%d jobs of kind \"%s\", of which the first is " INT64_FORMAT ", ran for %.3f ms",
							   n, run->kind, run->job, (now - run->started_at) / 1000.0) :
				(errmsg("job " INT64_FORMAT " of kind \"%s\" ran for %.3f ms%s%s",
						run->job, run->kind, (now - run->started_at) / 1000.0,
						TRACE_PART(jobq_current))));
	return owed;
}
