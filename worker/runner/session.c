/*-------------------------------------------------------------------------
 *
 * session.c
 *	  A worker in the session of a client, for tests and scripts: CALL jobq.work() for a
 *	  single job.
 *
 * The job is found by a query.  jobq.work() therefore works without background workers, and
 * also beside them: the session that deletes the row first has the job.  The session acquires
 * the same permits as workers and consumers (claim.c).  The turns of tenants and of weighted
 * queues do not apply.
 *
 * Handlers run in a subtransaction and cannot COMMIT, not even procedures.  If the session has
 * acquired the role by SET ROLE or SET SESSION AUTHORIZATION, handlers cannot switch back
 * either.  The job belongs to the role, and must not get the privileges of the session's user.
 * A crash of the session is charged to the job, as for a worker (charge.c).
 *
 * worker/runner/session.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

PG_FUNCTION_INFO_V1(jobq_run_next);

/* Limit of the first query for candidates; doubled for each further query. */
#define CANDIDATES	64

/*
 * The jobs of a group in a single queue, as a text.  The preceding job may be in another
 * queue.
 */
#define GROUP_OF_QUEUE \
	"pg_catalog.concat(j.queue_id, ' ', j.group_id)"

/* Jobs to skip, because they must wait or are taken. */
typedef struct Waiting
{
	ArrayBuildState *queues;
	ArrayBuildState *kinds;
	ArrayBuildState *flows;		/* keys of limiters */
	ArrayBuildState *groups;	/* in queues */
	ArrayBuildState *taken;		/* jobs */
} Waiting;

static Datum
array_of(ArrayBuildState *state, Oid type)
{
	return state == NULL ? PointerGetDatum(construct_empty_array(type))
		: makeArrayResult(state, CurrentMemoryContext);
}

/*
 * Find the ids of the first jobs that run as this role.  Jobs known to wait are skipped.
 * Statements that run outside of a transaction or in another database are skipped, too,
 * because only a worker process runs them.  Returns the number of ids, at most limit.
 */
static int
find_candidates(Datum queues, bool any_queue, Waiting *waiting, int64 *ids,
				int limit)
{
	static const Oid types[] = {OIDOID, TEXTARRAYOID, TIMESTAMPTZOID,
	INT4ARRAYOID, TEXTARRAYOID, TEXTARRAYOID, INT8ARRAYOID, INT4OID, INT4ARRAYOID};
	Datum		values[] = {ObjectIdGetDatum(GetUserId()), queues,
		TimestampTzGetDatum(jobq_now()), array_of(waiting->queues, INT4OID),
		array_of(waiting->kinds, TEXTOID), array_of(waiting->groups, TEXTOID),
		array_of(waiting->taken, INT8OID), Int32GetDatum(limit),
	array_of(waiting->flows, INT4OID)};
	char		nulls[] = {' ', any_queue ? 'n' : ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', '\0'};
	int			n;

	SPI_connect();
	n = jobq_query("SELECT j.id FROM jobq_internal.job j JOIN jobq_internal.queue q ON q.id = j.queue_id"
				   " WHERE coalesce(q.run_as, j.role) = $1 AND ($2 IS NULL OR q.name = ANY ($2))"
				   " AND j.run_at <= $3 AND coalesce(j.expires_at > $3, true)"
				   " AND j.lease_token IS NULL AND NOT j.dormant"
				   " AND NOT q.paused AND q.mode = 'worker'"
				   " AND NOT CASE j.kind WHEN '" JOBQ_SQL_KIND "'"
				   "  THEN j.payload @> '{\"transaction\": false}'"
				   "   OR coalesce(j.payload ->> 'database' <> pg_catalog.current_database(), false) ELSE false END"
				   " AND NOT coalesce(j.tenant = ANY (q.paused_tenants), false)"
				   " AND NOT coalesce(j.kind = ANY (q.paused_kinds), false)"
				   " AND j.queue_id <> ALL ($4) AND (j.kind <> ALL ($5)"
				   "  OR j.limit_cost = 0)"
				   " AND ($6 IS NULL OR j.group_id IS NULL"
				   "  OR j.group_held IS NOT NULL"
				   "   AND coalesce(jobq_internal.group_waits_until(j.group_held, q.group_on_failure) > $3, true)"
				   "  OR " GROUP_OF_QUEUE " <> ALL ($6))"
				   " AND j.id <> ALL ($7) AND j.flow <> ALL ($9)"
				   " ORDER BY pg_catalog.array_position($2, q.name::pg_catalog.text),"
				   " j.priority, j.run_at, j.id LIMIT $8",
				   9, types, values, nulls, SPI_OK_SELECT);
	for (int i = 0; i < n; i++)
	{
		ids[i] = DatumGetInt64(jobq_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, INT8OID, NULL));
	}
	SPI_finish();
	return n;
}

/*
 * Add a value to a list of jobs to skip.  The array is built repeatedly from this state, so
 * building must not free it.
 */
static void
pass_by(ArrayBuildState **state, Datum value, Oid type)
{
	if (*state == NULL)
		*state = initArrayResult(type, CurrentMemoryContext, false);
	*state = accumArrayResult(*state, value, false, type, CurrentMemoryContext);
}

/* The job's queue and group, in the format of GROUP_OF_QUEUE. */
static Datum
group_of_queue(const JobqJob *job)
{
	return CStringGetTextDatum(psprintf("%d " INT64_FORMAT, job_queue_id(job),
										job_group(job)));
}

/* Does the job bypass limiters with a cost function? */
static bool
passes(const JobqJob *job)
{
	return !JOB_ISNULL(job, JOB_LIMIT_COST) && DatumGetInt32(JOB(job, JOB_LIMIT_COST)) == 0;
}

/*
 * Record the reason why this job waits, so that similar jobs are skipped, too.  The job for
 * which its group waits is not similar.  limited: the limiter without a permit, as for
 * jobq_permits_ask().  Returns false if the job may run.
 */
static bool
must_wait(JobqVerdict verdict, int limited, const JobqJob *job, Waiting *waiting)
{
	switch (verdict)
	{
		case JOBQ_MAY_RUN:
			return false;
		case JOBQ_LIMITED:
			if (limited == JOBQ_OF_QUEUE)
			{
				pass_by(&waiting->queues, JOB(job, JOB_QUEUE_ID), INT4OID);
				break;
			}

			/* a job that bypasses some limiters may stand for no other */
			if (limited < JOBQ_NAMED_BY_QUEUE && !passes(job))
			{
				pass_by(&waiting->kinds, JOB(job, JOB_KIND), TEXTOID);
				break;
			}
			/* FALLTHROUGH */
		case JOBQ_KEY_LIMITED:
			if (job_flow(job) != 0)
				pass_by(&waiting->flows, JOB(job, JOB_FLOW), INT4OID);
			else
				pass_by(&waiting->taken, JOB(job, JOB_ID), INT8OID);
			break;
		case JOBQ_GROUP_BUSY:
			pass_by(&waiting->groups, group_of_queue(job), TEXTOID);
			if (!JOB_ISNULL(job, JOB_GROUP_HELD))
				pass_by(&waiting->taken, JOB(job, JOB_ID), INT8OID);
			break;
		default:
			pass_by(&waiting->taken, JOB(job, JOB_ID), INT8OID);
			break;
	}
	return true;
}

/*
 * Claim the first job that runs as this role, may start and is not taken.  Delete its row in a
 * subtransaction, which is left open.  False if there is no such job.  *token is the result of
 * jobq_claim().
 */
static bool
claim_next(Relation rel, Datum queues, bool any_queue, JobqJob *job,
		   int64 *token)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	Waiting		waiting = {0};
	int			limit = CANDIDATES / 2;
	int64	   *ids = NULL;
	int			n;

	do
	{
		if (ids != NULL)
			pfree(ids);
		limit = Min(limit, PG_INT32_MAX / 2) * 2;
		ids = palloc_extended(sizeof(int64) * limit, MCXT_ALLOC_HUGE);
		n = find_candidates(queues, any_queue, &waiting, ids, limit);
		for (int i = 0; i < n; i++)
		{
			JobqVerdict verdict;
			int			limited = 0;

			CHECK_FOR_INTERRUPTS();
			if (!jobq_job_find(rel, ids[i], GetActiveSnapshot(), job))
			{
				pass_by(&waiting.taken, Int64GetDatum(ids[i]), INT8OID);
				continue;
			}
			/* the queue may have changed since the row was written */
			jobq_set_flow(job);
			jobq_set_group_right(job);
			if (job_run_as(job) != GetUserId() || charge_pending(job))
			{
				pass_by(&waiting.taken, Int64GetDatum(ids[i]), INT8OID);
				continue;
			}
			verdict = jobq_claim(rel, job, token, &limited);
			if (must_wait(verdict, limited, job, &waiting))
				continue;

			/*
			 * If the handler fails, the deletion is undone without a
			 * hand-over, because the failure is recorded next.  If the whole
			 * transaction is undone, the job is handed over.
			 */
			jobq_job_push_if_undone(job);
			BeginInternalSubTransaction(NULL);
			MemoryContextSwitchTo(context);
			if (jobq_job_delete(rel, job))
			{
				(void) jobq_unique_started(job);
				jobq_tell_running(job, job_attempt(job) + 1, -1, true);
				return true;
			}
			ReleaseCurrentSubTransaction();
			MemoryContextSwitchTo(context);
			CurrentResourceOwner = owner;
			jobq_claim_undo(job, *token);
			pass_by(&waiting.taken, Int64GetDatum(ids[i]), INT8OID);
		}
	} while (n == limit);
	return false;
}

/*
 * The job is over.  In the flight recorder, restore the outer job, with a handler that called
 * jobq.work(), if there is one.
 */
static void
flight_back(bool nested, const JobqCulprit *outer)
{
	if (nested)
		flight_begin(outer->job_id, outer->attempt, outer->crashes, NULL, 0);
	else
		flight_end();
}

/*
 * Call the handler and fire its deferred triggers.  The code cannot switch back to the
 * session's user if the session has acquired the role.
 */
static Datum
call_confined(const JobqFunction *function, const JobqJob *job, int attempt,
			  bool *isnull)
{
	Oid			userid;
	int			sec_context;
	Datum		result;

	GetUserIdAndSecContext(&userid, &sec_context);
	if (userid != GetAuthenticatedUserId())
		SetUserIdAndSecContext(userid,
							   sec_context | SECURITY_LOCAL_USERID_CHANGE);
	jobq_within(JOBQ_WITHIN_STARTED, userid);
	result = jobq_call_handler(function, job, attempt, true, isnull);

	/* as in a worker: deferred triggers and settings belong to the handler */
	jobq_fire_deferred();
	jobq_within(JOBQ_WITHIN_COMPLETED, userid);
	SetUserIdAndSecContext(userid, sec_context);
	return result;
}

/*
 * Run the job claimed by claim_next(), in the subtransaction begun there, and record the
 * outcome.  owner and current->memory belong to the caller.  outer is the outer job in the
 * flight recorder, if "nested".
 */
static void
run_in_session(Relation rel, JobqJob *job, int64 token, JobqCurrent *current,
			   ResourceOwner owner, bool nested, const JobqCulprit *outer,
			   TimestampTz started_at)
{
	PG_TRY();
	{
		JobqFunction function;
		JobqJob		finished;
		Datum		result;
		bool		isnull;
		bool		live;
		int			nestlevel = NewGUCNestLevel();

		jobq_trace(job, current->trace);
		jobq_check_role(current);
		jobq_handler_resolve(jobq_job_kind(job), &function);
		jobq_current = current;
		jobq_enter_context(job, GUC_ACTION_LOCAL);
		result = call_confined(&function, job, current->attempt, &isnull);
		AtEOXact_GUC(false, nestlevel);
		jobq_current = current->outer;
		flight_back(nested, outer);

		/* the session's lock_timeout applies to the handler only */
		nestlevel = NewGUCNestLevel();
		process_wait_for_locks();

		/* if this fails, "job" must match the restored row */
		finished = *job;
		live = jobq_attempt_returned(rel, &finished, current, started_at, !isnull, result);
		AtEOXact_GUC(false, nestlevel);
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(current->memory);
		CurrentResourceOwner = owner;
		jobq_claim_end(job, token, live);
	}
	PG_CATCH();
	{
		ErrorData  *edata;
		JobqError	error = {0};
		JobqTrier	trier = {MyProcPid, NULL, -1, ""};
		JobqFailure failure = {
			.started_at = started_at,.error = &error,.charge = true,.delay_ms = -1
		};
		bool		live;
		int			nestlevel;

		jobq_current = current->outer;
		flight_back(nested, outer);
		MemoryContextSwitchTo(current->memory);
		edata = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(current->memory);
		CurrentResourceOwner = owner;

		/* the session's user has cancelled the call, not the job */
		if (edata->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(edata);

		jobq_injection_point("jobq-session-failed");
		nestlevel = NewGUCNestLevel();
		process_wait_for_locks();
		error.sqlerrcode = edata->sqlerrcode;
		error.message = edata->message;
		error.detail = edata->detail;
		error.hint = edata->hint;
		error.context = edata->context;
		error.trier = &trier;
		error.raised = edata;
		jobq_log_keep(current, job);
		jobq_job_count_exception(job);
		failure.final = jobq_attempt_final(current, edata->sqlerrcode);
		live = jobq_job_attempt_failed(rel, job, &failure);
		AtEOXact_GUC(false, nestlevel);
		jobq_claim_end(job, token, live);
	}
	PG_END_TRY();
}

/*
 * ERROR if one of the queues does not exist: a misspelled name would wait for jobs forever.
 * No privilege for the queue is needed, because a role may always run its own jobs.
 */
static void
require_queues(ArrayType *queues)
{
	Datum	   *names;
	bool	   *nulls;
	int			n;

	deconstruct_array(queues, TEXTOID, -1, false, TYPALIGN_INT, &names, &nulls, &n);
	for (int i = 0; i < n; i++)
		jobq_require_known_queue(nulls[i] ? "" : TextDatumGetCString(names[i]));
}

/*
 * run_next(queues): run a single ready job of these queues in strict order, or of any queue,
 * and return its id.  Returns null if there is none.  Returns 0 if jobs were charged with a
 * crash; the caller commits this first.  ERROR if a queue does not exist.
 */
Datum
jobq_run_next(PG_FUNCTION_ARGS)
{
	ResourceOwner owner = CurrentResourceOwner;
	TimestampTz started_at = jobq_now();
	JobqCurrent current = {.memory = CurrentMemoryContext};
	JobqCulprit outer;
	JobqBillRun outer_run;
	bool		nested;
	Relation	rel;
	JobqJob		job;
	int64		token;
	bool		commits = SPI_inside_nonatomic_context();
	JobqDatabase *db;

	jobq_require(JOBQ_MAY_ALL);
	PreventCommandIfReadOnly("jobq.work()");
	PreventCommandIfParallelMode("jobq.work()");

	/*
	 * jobq.run_due() is for tests, also in a copy.  A server for a single
	 * user has no scheduler that finds out.
	 */
	if (commits && IsUnderPostmaster && (db = jobq_loaded_database()) != NULL)
		jobq_refuse_copy(db, "jobq.work()");
	if (!PG_ARGISNULL(0))
		require_queues(PG_GETARG_ARRAYTYPE_P(0));
	rel = jobq_open_jobs();
	if (charge_crashed(rel))
	{
		table_close(rel, NoLock);
		PG_RETURN_INT64(0);
	}
	jobq_fire_before(commits);
	if (!claim_next(rel, PG_ARGISNULL(0) ? (Datum) 0 : PG_GETARG_DATUM(0),
					PG_ARGISNULL(0), &job, &token))
	{
		table_close(rel, NoLock);
		PG_RETURN_NULL();
	}
	current.job = &job;
	current.attempt = job_attempt(&job) + 1;
	current.outer = jobq_current;
	nested = flight_running(&outer);
	flight_begin(job_id(&job), job_attempt(&job),
				 DatumGetInt16(JOB(&job, JOB_CRASHES)), NULL, 0);
	jobq_bill_enter(job_id(&job), jobq_count_place(&job), jobq_now(), &outer_run);

	PG_TRY();
	{
		run_in_session(rel, &job, token, &current, owner, nested, &outer, started_at);
	}
	PG_FINALLY();
	{
		jobq_bill_leave(&outer_run);
	}
	PG_END_TRY();

	table_close(rel, NoLock);
	/* jobq.work() commits now, which has the same effect */
	if (!commits)
		jobq_defer_again();
	PG_RETURN_INT64(job_id(&job));
}
