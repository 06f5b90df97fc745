/*-------------------------------------------------------------------------
 *
 * failure.c
 *	  Records a failed attempt of a worker's job.
 *
 * worker/runner/failure.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"

/*
 * Record a failed attempt, with its transaction aborted, in another transaction.  The attempt
 * is charged, unless a lease has charged it already.  Nothing is recorded if another session has
 * taken the job's row meanwhile.
 */
void
record_failure(RunContext *run, JobqJob *job, TimestampTz started_at,
			   ErrorData *edata)
{
	JobqSlot   *slot = run->slot;
	bool		cancelled = was_cancelled(slot);
	JobqTrier	trier = {MyProcPid, NULL, slot->run.progress, slot->run.message};
	JobqError	error = {edata->sqlerrcode, edata->message, edata->detail,
		edata->hint, edata->context, &trier,
		edata->sqlerrcode == ERRCODE_JOBQ_OVER_LIMIT ? NULL : edata
	};
	JobqFailure failure = {
		.started_at = started_at,.error = &error,
		.final = jobq_attempt_final(jobq_current, edata->sqlerrcode),.delay_ms = -1
	};
	ItemPointerData ctid = job->ctid;
	JobqKey		key = {job_run_at(job), job_id(job)};
	Relation	rel;

	run->next = JOBQ_RUN_DONE;
	process_begin_transaction();
	jobq_injection_point("jobq-attempt-failed");
	process_wait_for_locks();
	MemoryContextSwitchTo(run->memory);
	rel = jobq_try_open_jobs();
	if (rel != NULL &&
		jobq_job_fetch(rel, &ctid, key, GetActiveSnapshot(), job))
	{
		jobq_log_keep(jobq_current, job);
		job->nulls[JOB_TOGETHER - 1] = true;	/* the worker is alive */
		if (!jobq_job_delete(rel, job))
		{
			/* if the other session is rolled back, the job comes again */
			jobq_row_is_taken(rel, job, slot->holding->permits.group);
			run->next = JOBQ_RUN_LIVE;
		}
		else if (cancelled)
		{
			JOB_SET(job, JOB_ATTEMPT, Int32GetDatum(jobq_current->attempt));
			jobq_archive(job, CAUSE_STOPPED, started_at, false, (Datum) 0,
						 NULL);
			jobq_cancel_asked(rel, job);
		}
		else
		{
			if (edata->sqlerrcode == ERRCODE_QUERY_CANCELED &&
				slot->run.deadline != DT_NOEND && jobq_now() >= slot->run.deadline)
			{
				JobqHandler buffer;
				const JobqHandler *handler = jobq_handler(jobq_job_kind(job),
														  &buffer);

				error.sqlerrcode = ERRCODE_JOBQ_TIMEOUT;
				error.raised = NULL;
				error.message = psprintf("the job ran longer than its timeout of %d ms",
										 jobq_job_timeout(handler, job));
				if (handler != NULL && handler->fail_on_timeout)
					failure.final = true;
			}
			jobq_job_count_exception(job);
			failure.charge = !job_leased(job);
			if (jobq_job_failed(rel, job, &failure))
				run->next = JOBQ_RUN_LIVE;
		}
	}
	if (rel != NULL)
		table_close(rel, NoLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(run->memory);
}
