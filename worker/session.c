/*-------------------------------------------------------------------------
 *
 * session.c
 *	  A worker in the session of a client, for tests and scripts: what
 *	  CALL jobq.work() does for one job.
 *
 * It finds its job by a query, so it works without the background workers,
 * too, and beside them: whoever deletes the row first has the job.  Handlers
 * run in a subtransaction and so cannot COMMIT, not even procedures.
 *
 * worker/session.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

PG_FUNCTION_INFO_V1(jobq_run_next);

/* Candidates that one query looks at. */
#define CANDIDATES	"16"

static bool claim_next(Relation rel, Datum queues, bool any_queue,
					   JobqJob *job);

/*
 * Delete the first job of this role that nobody else has.
 */
static bool
claim_next(Relation rel, Datum queues, bool any_queue, JobqJob *job)
{
	static const Oid types[] = {OIDOID, TEXTARRAYOID, TIMESTAMPTZOID};
	Datum		values[] = {ObjectIdGetDatum(GetUserId()), queues,
	TimestampTzGetDatum(jobq_now())};
	char		nulls[] = {' ', any_queue ? 'n' : ' ', ' ', '\0'};
	int64		ids[16];
	uint64		n;
	bool		claimed = false;

	SPI_connect();
	n = jobq_query("SELECT j.id FROM jobq.job j JOIN jobq.queue q ON q.id = j.queue_id"
				   " WHERE j.role = $1 AND ($2 IS NULL OR q.name = ANY ($2))"
				   " AND j.run_at <= $3 AND coalesce(j.expires_at > $3, true)"
				   " AND j.lease_token IS NULL AND NOT j.dormant"
				   " AND NOT q.paused AND q.mode = 'w'"
				   " ORDER BY pg_catalog.array_position($2, q.name::pg_catalog.text),"
				   " j.priority, j.run_at, j.id LIMIT " CANDIDATES,
				   3, types, values, nulls, SPI_OK_SELECT);
	for (uint64 i = 0; i < n; i++)
	{
		bool		isnull;

		ids[i] = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i],
											 SPI_tuptable->tupdesc, 1,
											 &isnull));
	}
	SPI_finish();
	for (uint64 i = 0; i < n && !claimed; i++)
		claimed = jobq_job_find(rel, ids[i], GetActiveSnapshot(), job) &&
			jobq_job_delete(rel, job);
	if (claimed)
		(void) jobq_unique_started(job);
	return claimed;
}

/*
 * run_next(queues): run one job that is ready, of these queues in strict
 * order or of any, and return its id; null if there is none.
 */
Datum
jobq_run_next(PG_FUNCTION_ARGS)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	TimestampTz started_at = jobq_now();
	JobqCurrent current = {0};
	JobqHandler *handler;
	Relation	rel;
	JobqJob		job;

	rel = jobq_open_jobs();

	/* the deletion is undone with the subtransaction if the handler fails */
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	if (!claim_next(rel, PG_ARGISNULL(0) ? (Datum) 0 : PG_GETARG_DATUM(0),
					PG_ARGISNULL(0), &job))
	{
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		table_close(rel, NoLock);
		PG_RETURN_NULL();
	}
	jobq_job_push_if_undone(&job);
	current.job = &job;
	current.attempt = job_attempt(&job) + 1;
	current.outer = jobq_current;
	handler = jobq_handler(jobq_job_kind(&job));

	PG_TRY();
	{
		Datum		result;
		bool		isnull;
		RunContext	run = {0};

		if (handler == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_JOBQ_NO_HANDLER),
					 errmsg("no handler is registered for kind \"%s\"",
							jobq_job_kind(&job))));
		jobq_handler_resolve(handler);
		jobq_current = &current;
		result = jobq_call_handler(handler, &job, current.attempt, true,
								   &isnull);
		jobq_current = current.outer;
		run_finish(&run, jobq_open_jobs(), &job, &current, started_at, !isnull,
				   result);
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		ErrorData  *edata;
		JobqError	error = {0};

		jobq_current = current.outer;
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();

		/* the session's user has cancelled the call, not the job */
		if (edata->sqlerrcode == ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;

		jobq_job_push_if_undone(&job);
		error.sqlerrcode = edata->sqlerrcode;
		error.message = edata->message;
		error.detail = edata->detail;
		error.hint = edata->hint;
		error.context = edata->context;
		JOB_SET(&job, JOB_EXCEPTIONS,
				Int16GetDatum(DatumGetInt16(JOB(&job, JOB_EXCEPTIONS)) + 1));
		jobq_job_attempt_failed(rel, &job, started_at, &error, true,
								edata->sqlerrcode == ERRCODE_JOBQ_FAILED &&
								current.outcome == OUTCOME_FAIL, -1);
	}
	PG_END_TRY();

	table_close(rel, NoLock);
	PG_RETURN_INT64(job_id(&job));
}
