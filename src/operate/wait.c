/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Waiting for jobs: wait(), wait_many(), call().
 *
 * A waiting session is on a list in shared memory.  A committing process finds there which
 * sessions to wake, so no session polls.
 *
 * src/operate/wait.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "tcop/pquery.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "commit/commit.h"
#include "produce/produce.h"
#include "operate/inner.h"

/*
 * Maximum delay in microseconds between the end of a job and the report of its outcome: for a
 * job seen before, and for a job without any trace so far.
 */
#define LONG_GAP	(5 * USECS_PER_SEC)
#define SHORT_GAP	(USECS_PER_SEC / 20)

/* Number of jobs without trace for which a session registers in advance. */
#define MAX_AHEAD	100

PG_FUNCTION_INFO_V1(jobq_wait);
PG_FUNCTION_INFO_V1(jobq_wait_many);
PG_FUNCTION_INFO_V1(jobq_call);

static void set_ended(JobqStatus *status, int64 id, const char *state);

static void
check_waitable(const JobqStatus *status, const char *function)
{
	if (status->own)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s cannot wait for a job of the same transaction",
						function),
				 errhint("A job starts when the transaction that enqueued it commits.")));
}

/*
 * After a timeout: if the job has not started, raise a WARNING with the known reasons, if any.
 * True if a WARNING was raised.
 */
static bool
warn_if_stuck(int64 id, const JobqStatus *status)
{
	JobqQueue	buffer;
	const JobqQueue *queue;
	JobqDatabase *db;
	List	   *reasons = NIL;
	StringInfoData hint;
	ListCell   *lc;

	if (strcmp(status->state, "ready") != 0 || status->nulls[ST_QUEUE])
		return false;
	queue = jobq_queue_by_name(TextDatumGetCString(status->values[ST_QUEUE]),
							   false, &buffer);
	if (queue == NULL || queue->paused || queue->mode != MODE_WORKER)
		return false;
	if (jobq_start_paused)
		reasons = lappend(reasons, pstrdup("\"jobq.start_paused\" is on"));
	if (jobq_has_scheduler(&db) && db != NULL && db->copied)
		reasons = lappend(reasons,
						  pstrdup("the database is a copy of a database served elsewhere, and was not adopted"));
	if (!jobq_has_scheduler(&db) && !RecoveryInProgress())
		reasons = lappend(reasons,
						  pstrdup("no scheduler serves this database, see the server's log"));
	if (!jobq_pools_serve(queue->name))
		reasons = lappend(reasons,
						  psprintf("no pool of \"jobq.workers\" with workers serves queue \"%s\"",
								   queue->name));
	reasons = list_concat(reasons, jobq_pools_problems(NULL));
	if (reasons == NIL)
		return false;

	initStringInfo(&hint);
	foreach(lc, reasons)
		appendStringInfo(&hint, "%s%s", hint.len > 0 ? "; " : "",
						 (const char *) lfirst(lc));
	ereport(WARNING,
			(errcode(ERRCODE_JOBQ_NOT_RUNNING),
			 errmsg("job " INT64_FORMAT " has not begun", id),
			 errhint("Perhaps this is why: %s.", hint.data)));
	return true;
}

/*
 * The job is in no table, because the queue may keep no finished jobs.  If the outcome was
 * reported to this session and the user may see the job, fill in *status and return true.
 */
static bool
ended_without_trace(int place, int64 id, JobqStatus *status)
{
	Oid			role;
	char		outcome = jobq_waiter_outcome(place, &role);

	if (outcome == 0 || !jobq_may(JOBQ_MAY_MONITOR, role, 0))
		return false;
	set_ended(status, id, outcome == STATE_COMPLETED ? "completed"
			  : outcome == STATE_CANCELLED ? "cancelled" : "expired");
	return true;
}

/*
 * Fill in the status of a job that has ended without trace.  Known columns are kept.
 */
static void
set_ended(JobqStatus *status, int64 id, const char *state)
{
	if (status->state == NULL)
	{
		memset(status->nulls, true, sizeof(status->nulls));
		status->values[ST_ID] = Int64GetDatum(id);
		status->nulls[ST_ID] = false;
	}
	status->nulls[ST_PROGRESS] = status->nulls[ST_MESSAGE] = true;
	status->nulls[ST_ERROR] = status->nulls[ST_ATTEMPT] = true;
	status->nulls[ST_STARTED_AT] = true;
	status->finished = true;
	jobq_set_state(status, state);
}

/*
 * Wait for the end of one job, or for the deadline.
 *
 * A job's end becomes visible some microseconds before the outcome is reported.  Therefore a
 * missing job is searched for again.
 */
static void
wait_for_one(int place, int64 id, int64 deadline, int64 timeout_ms,
			 JobqStatus *status, const char *function, bool *warned)
{
	static uint32 wait_event = 0;
	int64		missing_until = 0;

	for (;;)
	{
		int64		now;
		int64		until = deadline;
		bool		there;

		jobq_waiter_look(place);
		there = jobq_look_up_if_there(id, status);
		if ((there && status->finished) ||
			(!there && ended_without_trace(place, id, status)))
			break;
		now = jobq_time_since_boot();
		if (there)
		{
			missing_until = 0;
			check_waitable(status, function);
			if (jobq_my_database() == NULL && !*warned)
			{
				jobq_warn_if_not_served();
				*warned = true;
			}
			if (now >= deadline)
			{
				if (!*warned && timeout_ms > 0)
					*warned = warn_if_stuck(id, status);
				break;
			}
		}
		else
		{
			if (missing_until == 0)
				missing_until = now +
					(status->state != NULL ? LONG_GAP : SHORT_GAP);
			if (now >= missing_until)
			{
				if (status->state == NULL || !jobq_waiter_prepared(place))
					jobq_no_such_job(id);

				/*
				 * a missing job of a prepared transaction was cancelled
				 * (outcome.c)
				 */
				set_ended(status, id, "cancelled");
				break;
			}
			until = missing_until;
		}
		jobq_waiter_sleep(place, jobq_ms_left(until) + 1,
						  jobq_wait_event(wait_event, "JobqWait"));
	}
}

/*
 * Register in advance for the first MAX_AHEAD jobs that leave no row, because these may end
 * before the session waits for them.
 */
static void
listen_ahead(const int64 *ids, int nids, int *places, JobqStatus *statuses)
{
	int			ahead = 0;

	for (int i = 1; i < nids; i++)
	{
		JobqQueue	buffer;
		const JobqQueue *queue = NULL;

		places[i] = -1;
		if (ahead == MAX_AHEAD)
			continue;
		places[i] = jobq_add_waiter(ids[i]);
		if (jobq_look_up_if_there(ids[i], &statuses[i]) &&
			!statuses[i].finished && !statuses[i].nulls[ST_QUEUE])
			queue = jobq_queue_by_name(TextDatumGetCString(statuses[i].values[ST_QUEUE]),
									   false, &buffer);
		if (queue != NULL && queue->keep == KEEP_NOTHING)
			ahead++;
		else
		{
			jobq_drop_waiter(places[i]);
			places[i] = -1;
		}
	}
}

/*
 * Wait until all jobs are finished or the timeout has passed, and fill in their statuses.  The
 * jobs are awaited in sequence.  first_place: index of this session's entry in the list for
 * the first job, or -1.  ERROR if a job does not exist, or belongs to the current transaction.
 */
static void
wait_for(const int64 *ids, int nids, int64 timeout_ms, int first_place,
		 JobqStatus *statuses, const char *function)
{
	int64		deadline = jobq_deadline(timeout_ms);
	bool		warned = false;
	int		   *places = palloc(sizeof(int) * (nids + 1));
	Datum		from = jobq_waiters_from_here();

	AssertUnlocked();
	jobq_require(JOBQ_MAY_ALL);
	jobq_require_preload(function);

	PG_ENSURE_ERROR_CLEANUP(jobq_remove_waiters, from);
	{
		places[0] = first_place;
		listen_ahead(ids, nids, places, statuses);
		for (int i = 0; i < nids; i++)
		{
			if (places[i] < 0)
				places[i] = jobq_add_waiter(ids[i]);
			wait_for_one(places[i], ids[i], deadline, timeout_ms, &statuses[i],
						 function, &warned);
			jobq_drop_waiter(places[i]);
		}
	}
	PG_END_ENSURE_ERROR_CLEANUP(jobq_remove_waiters, from);
	jobq_flush_before_telling();
}

/*
 * wait(id, timeout): the job's status, when it is finished or after the timeout.  ERROR as in
 * wait_for().
 */
Datum
jobq_wait(PG_FUNCTION_ARGS)
{
	int64		id = PG_GETARG_INT64(0);
	JobqStatus	status = {0};

	wait_for(&id, 1,
			 jobq_interval_ms(PG_GETARG_INTERVAL_P(1), "timeout", 0, JOBQ_MAX_WAIT_MS),
			 -1, &status, "jobq.wait()");
	PG_RETURN_DATUM(jobq_status_datum(fcinfo, &status));
}

/*
 * wait_many(ids, timeout): the statuses of several jobs, in the given order, when all are
 * finished or after the timeout.  ERROR as in wait_for().
 */
Datum
jobq_wait_many(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo;
	Datum	   *elems;
	bool	   *nulls;
	int			n;
	int64	   *ids;
	JobqStatus *statuses;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), INT8OID, 8, FLOAT8PASSBYVAL,
					  TYPALIGN_DOUBLE, &elems, &nulls, &n);
	rsinfo = jobq_materialize(fcinfo, ST_NATTS);
	jobq_check_status_type(rsinfo->setDesc);
	ids = palloc(sizeof(int64) * (n + 1));
	statuses = palloc0(sizeof(JobqStatus) * (n + 1));
	for (int i = 0; i < n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("id %d of %d must not be null", i + 1, n)));
		ids[i] = DatumGetInt64(elems[i]);
	}
	wait_for(ids, n,
			 jobq_interval_ms(PG_GETARG_INTERVAL_P(1), "timeout", 0, JOBQ_MAX_WAIT_MS),
			 -1, statuses, "jobq.wait_many()");
	for (int i = 0; i < n; i++)
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 statuses[i].values, statuses[i].nulls);
	return (Datum) 0;
}

/*
 * Raise the error for a job of call() that has not completed.
 */
static void
call_failed(int64 id, const JobqStatus *status, int64 timeout_ms)
{
	const char *error = status->nulls[ST_ERROR] ? NULL
		: TextDatumGetCString(status->values[ST_ERROR]);

	if (!status->finished)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_TIMEOUT),
				 errmsg("job " INT64_FORMAT " has not finished within " INT64_FORMAT " ms",
						id, timeout_ms),
				 error != NULL ? errdetail("Its last attempt failed: %s", error) : 0,
				 errhint("It is %s, and goes on; look for it with jobq.status(" INT64_FORMAT ").",
						 status->state, id)));
	ereport(ERROR,
			(errcode(strcmp(status->state, "dead") == 0
					 ? ERRCODE_JOBQ_FAILED : ERRCODE_JOBQ_CANCELLED),
			 errmsg("job " INT64_FORMAT " is %s", id, status->state),
			 error != NULL ? errdetail_internal("%s", error) : 0));
}

/*
 * CALL call(kind, payload, result, timeout, options): enqueue a job, commit, and wait for its
 * result.  No snapshot is held while waiting.  ERROR in a transaction block, if the job does
 * not complete, and after the timeout.  The result is null if another job holds the unique key
 * and on_conflict is "ignore".
 */
Datum
jobq_call(PG_FUNCTION_ARGS)
{
	CallContext *call = (CallContext *) fcinfo->context;
	char	   *kind = jobq_kind_from_arg(fcinfo, 0);
	Datum		options[NOPTIONS];
	bool		nulls[NOPTIONS];
	JobqStatus	status = {0};
	JobqJob		job;
	JobqUnique	unique;
	TupleDesc	desc;
	int64		timeout_ms;
	int64		id;
	Datum		from = jobq_waiters_from_here();
	int			place;

	jobq_not_null(fcinfo, 1, "payload");
	jobq_not_null(fcinfo, 3, "timeout");
	if (call == NULL || !IsA(call, CallContext) || call->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
				 errmsg("jobq.call() cannot be used within a transaction block or a function"),
				 errhint("A job starts when its transaction commits: use jobq.enqueue(), commit, and jobq.wait(); or run it now, with jobq.perform().")));
	desc = jobq_row_type(fcinfo, 1);
	timeout_ms = jobq_interval_ms(PG_GETARG_INTERVAL_P(3), "timeout", 0,
								  JOBQ_MAX_WAIT_MS);
	jobq_require_preload("jobq.call()");
	jobq_options_from_arg(fcinfo, 4, options, nulls);
	jobq_prepare_job(&job, &unique, kind, options, nulls);
	jobq_set_payload(&job, PG_GETARG_DATUM(1));
	jobq_put_job(&job, &unique);
	if (JOB_ISNULL(&job, JOB_ID))
	{
		Datum		none = (Datum) 0;
		bool		isnull = true;

		PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, &none, &isnull)));
	}
	id = job_id(&job);

	/* before the commit, so no outcome is missed */
	place = jobq_add_waiter(id);
	PG_ENSURE_ERROR_CLEANUP(jobq_remove_waiters, from);
	{
		SPI_connect_ext(SPI_OPT_NONATOMIC);
		SPI_commit();
		SPI_finish();
		wait_for(&id, 1, timeout_ms, place, &status, "jobq.call()");
	}
	PG_END_ENSURE_ERROR_CLEANUP(jobq_remove_waiters, from);
	EnsurePortalSnapshotExists();
	if (strcmp(status.state, "completed") != 0)
		call_failed(id, &status, timeout_ms);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc,
													  &status.values[ST_RESULT],
													  &status.nulls[ST_RESULT])));
}
