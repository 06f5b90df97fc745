/*-------------------------------------------------------------------------
 *
 * call.c
 *	  Calls a handler, and implements the functions by which a handler queries its job.
 *
 * src/attempt/call.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/regproc.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "attempt/attempt.h"
#include "commit/commit.h"

PG_FUNCTION_INFO_V1(jobq_perform);
PG_FUNCTION_INFO_V1(jobq_current_job);
PG_FUNCTION_INFO_V1(jobq_set_progress);
PG_FUNCTION_INFO_V1(jobq_should_stop);

/*
 * Set the array to the jobs, all of the same queue, as jobq.job_context.  version: of the
 * handler.
 */
static void
context_datums(const JobqJob *jobs, const int *attempts, int n, int64 version,
			   Datum *datums)
{
	enum
	{
		ID		   ,
					KIND,
					QUEUE,
					PAYLOAD,
					HEADERS,
					ATTEMPT,
					MAX_ATTEMPTS,
					ENQUEUED_AT,
					RUN_AT,
					BATCH_ID,
					TENANT,
					HANDLER_VERSION,
					NATTS
	};
	static const Oid types[NATTS] = {
		[ID] = INT8OID,[KIND] = TEXTOID,[QUEUE] = TEXTOID,
		[PAYLOAD] = JSONBOID,[HEADERS] = JSONBOID,[ATTEMPT] = INT4OID,
		[MAX_ATTEMPTS] = INT4OID,[ENQUEUED_AT] = TIMESTAMPTZOID,
		[RUN_AT] = TIMESTAMPTZOID,[BATCH_ID] = INT8OID,[TENANT] = TEXTOID,
		[HANDLER_VERSION] = TEXTOID
	};
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(&jobs[0]), &buffer);
	TupleDesc	desc;
	Datum		values[NATTS];
	bool		nulls[NATTS] = {0};

	desc = lookup_rowtype_tupdesc(jobq_relations()->context_type, -1);
	jobq_check_types(desc, types, NATTS);
	nulls[QUEUE] = queue == NULL;
	if (queue != NULL)
		values[QUEUE] = CStringGetTextDatum(queue->name);
	values[HANDLER_VERSION] = jobq_version_text(version, &nulls[HANDLER_VERSION]);
	for (int i = 0; i < n; i++)
	{
		const JobqJob *job = &jobs[i];

		Assert(job_queue_id(job) == job_queue_id(&jobs[0]));
		values[ID] = JOB(job, JOB_ID);
		nulls[ID] = job_id(job) == 0;
		values[KIND] = JOB(job, JOB_KIND);
		values[PAYLOAD] = JOB(job, JOB_PAYLOAD);
		values[HEADERS] = JOB(job, JOB_HEADERS);
		nulls[HEADERS] = JOB_ISNULL(job, JOB_HEADERS);
		values[ATTEMPT] = Int32GetDatum(attempts[i]);
		values[MAX_ATTEMPTS] = JOB(job, JOB_MAX_ATTEMPTS);
		values[ENQUEUED_AT] = JOB(job, JOB_ENQUEUED_AT);
		values[RUN_AT] = JOB(job, JOB_RUN_AT);
		values[BATCH_ID] = JOB(job, JOB_BATCH_ID);
		nulls[BATCH_ID] = JOB_ISNULL(job, JOB_BATCH_ID);
		values[TENANT] = JOB(job, JOB_TENANT);
		nulls[TENANT] = JOB_ISNULL(job, JOB_TENANT);
		datums[i] = HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
	}
	ReleaseTupleDesc(desc);
}

/* Return the job as a jobq.job_context. */
static Datum
context_datum(const JobqJob *job, int attempt, int64 version)
{
	Datum		result;

	context_datums(job, &attempt, 1, version, &result);
	return result;
}

/*
 * Set the results of n jobs from the array that a set handler has returned.  Raises an error
 * unless there is one element for each job.
 */
static void
read_results(const JobqFunction *function, const FunctionCallInfo fcinfo, Datum returned, int n,
			 Datum *results, bool *isnull)
{
	Datum	   *elems;
	bool	   *nulls;
	int			nelems = 0;

	if (!fcinfo->isnull)
		deconstruct_array(DatumGetArrayTypeP(returned), JSONBOID, -1, false,
						  TYPALIGN_INT, &elems, &nulls, &nelems);
	if (nelems != n)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_ELEMENT_ERROR),
				 errmsg("handler %s returned %d results for %d jobs",
						format_procedure(function->proc), nelems, n),
				 errhint("Return one result for each job, in the order of the jobs, or declare the function as RETURNS void.")));
	memcpy(results, elems, sizeof(Datum) * n);
	memcpy(isnull, nulls, sizeof(bool) * n);
}

/*
 * Call the set handler of a kind for n jobs, as the current user.  attempts: the numbers of
 * their attempts.  The caller has resolved the function and set jobq_current.  Errors of the
 * handler are raised.  Sets the result of each job; isnull marks jobs without a result.
 */
void
jobq_call_set(const JobqFunction *function, const JobqJob *jobs, const int *attempts, int n,
			  Datum *results, bool *isnull)
{
	LOCAL_FCINFO(fcinfo, 1);
	FmgrInfo   *flinfo;
	PgStat_FunctionCallUsage usage;
	Datum	   *elems = palloc(sizeof(Datum) * n);
	Datum		returned;

	context_datums(jobs, attempts, n, function->version, elems);
	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value =
		PointerGetDatum(construct_array(elems, n, jobq_relations()->context_type, -1, false,
										TYPALIGN_DOUBLE));
	fcinfo->args[0].isnull = false;

	jobq_current->set = true;
	fcinfo->flinfo = flinfo = jobq_function_begin(function);
	PG_TRY();
	{
		pgstat_init_function_usage(fcinfo, &usage);
		returned = FunctionCallInvoke(fcinfo);
		pgstat_end_function_usage(&usage, true);
	}
	PG_CATCH();
	{
		jobq_function_end(function, flinfo, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	jobq_function_end(function, flinfo, true);

	memset(isnull, true, sizeof(bool) * n);
	if (function->returns_jsonb)
		read_results(function, fcinfo, returned, n, results, isnull);
}

/*
 * Call the function or procedure of a kind as the current user.  The arguments are payload
 * and, if the function has a second parameter, the context of job.  The caller has resolved
 * the function and set jobq_current.  Errors of the handler are raised.
 *
 * atomic: as in a function call; a procedure may not COMMIT.  If false, the caller has made a
 * portal (see worker/runner/procedure.c) and has no active snapshot, and the current memory
 * context outlives the transaction.
 *
 * A set handler gets an array with this job only.
 *
 * Returns the result; *isnull is set if there is none.
 */
Datum
jobq_call_with(const JobqFunction *function, Datum payload, const JobqJob *job,
			   int attempt, bool atomic, bool *isnull)
{
	LOCAL_FCINFO(fcinfo, 2);
	FmgrInfo   *flinfo;
	CallContext *call = NULL;
	PgStat_FunctionCallUsage usage;
	Datum		result;

	if (function->statement)
	{
		*isnull = false;
		return jobq_run_statement(job);
	}
	if (function->set)
	{
		JobqJob		one = *job;

		JOB_SET(&one, JOB_PAYLOAD, payload);
		jobq_call_set(function, &one, &attempt, 1, &result, isnull);
		return result;
	}
	if (function->is_procedure)
	{
		call = makeNode(CallContext);
		call->atomic = atomic;
	}
	jobq_current->version = atomic ? function->version
		: jobq_version_begun(job_id(job), function->version);
	InitFunctionCallInfoData(*fcinfo, NULL, function->nargs, InvalidOid,
							 (Node *) call, NULL);
	if (function->nargs >= 1)
	{
		/* no toast pointer may outlive its snapshot */
		fcinfo->args[0].value = atomic ? payload
			: PointerGetDatum(PG_DETOAST_DATUM_COPY(payload));
		fcinfo->args[0].isnull = false;
	}
	if (function->nargs >= 2)
	{
		fcinfo->args[1].value = context_datum(job, attempt, jobq_current->version);
		fcinfo->args[1].isnull = false;
	}

	fcinfo->flinfo = flinfo = jobq_function_begin(function);
	PG_TRY();
	{
		pgstat_init_function_usage(fcinfo, &usage);
		result = FunctionCallInvoke(fcinfo);
		pgstat_end_function_usage(&usage, true);
	}
	PG_CATCH();
	{
		jobq_function_end(function, flinfo, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	jobq_function_end(function, flinfo, true);

	*isnull = fcinfo->isnull || !function->returns_jsonb;
	return result;
}

/* Like jobq_call_with(), with the job's own payload. */
Datum
jobq_call_handler(const JobqFunction *function, const JobqJob *job,
				  int attempt, bool atomic, bool *isnull)
{
	return jobq_call_with(function, JOB(job, JOB_PAYLOAD), job, attempt, atomic,
						  isnull);
}

/* Raise an error if no handler is registered for the kind. */
void
jobq_require_handler(const char *kind)
{
	JobqHandler handler;

	if (jobq_handler(kind, &handler) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_UNKNOWN_KIND),
				 errmsg("no handler is registered for kind \"%s\"", kind),
				 errhint("Register one with jobq.register(%s, 'function(jsonb)').",
						 quote_literal_cstr(kind))));
}

/*
 * Run the handler of a kind now, in this transaction, for a job without a row.  Errors are
 * raised to the caller.  Raises an error if the kind is unknown or is a plain statement.
 */
Datum
jobq_perform_kind(Datum kind_text, Datum payload, bool *isnull)
{
	char	   *kind = TextDatumGetCString(kind_text);
	JobqFunction function;
	JobqCurrent current = {0};
	JobqJob		job;
	Datum		result;

	jobq_require_handler(kind);
	jobq_handler_resolve(kind, &function);
	if (function.statement)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a plain statement has no handler that could be performed"),
				 errhint("Run the statement itself.")));

	memset(job.nulls, true, sizeof(job.nulls));
	job_clear_stat(&job);
	JOB_SET(&job, JOB_ID, Int64GetDatum(0));
	JOB_SET(&job, JOB_KIND, kind_text);
	JOB_SET(&job, JOB_PAYLOAD, payload);
	JOB_SET(&job, JOB_QUEUE_ID, Int32GetDatum(0));
	JOB_SET(&job, JOB_MAX_ATTEMPTS, Int32GetDatum(1));
	JOB_SET(&job, JOB_ENQUEUED_AT, TimestampTzGetDatum(jobq_now()));
	JOB_SET(&job, JOB_RUN_AT, JOB(&job, JOB_ENQUEUED_AT));

	current.job = &job;
	current.attempt = 1;
	current.outer = jobq_current;
	jobq_current = &current;
	PG_TRY();
	{
		result = jobq_call_handler(&function, &job, 1, true, isnull);
	}
	PG_FINALLY();
	{
		jobq_current = current.outer;
	}
	PG_END_TRY();
	return result;
}

/*
 * perform(kind, payload): run the handler now, in this transaction, and return its result.  No
 * row is written.  Errors are raised to the caller.
 */
Datum
jobq_perform(PG_FUNCTION_ARGS)
{
	bool		isnull;
	Datum		result;

	jobq_require(JOBQ_MAY_ALL);
	result = jobq_perform_kind(PG_GETARG_DATUM(0), PG_GETARG_DATUM(1), &isnull);
	if (isnull)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(result);
}

/*
 * Return the job that runs here.  If there is none, or if the handler may have several, raise
 * an error that names the SQL function.
 */
JobqCurrent *
jobq_require_current(const char *function)
{
	if (jobq_current == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("%s can only be called by a handler", function)));
	if (jobq_current->set)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be called by a handler of several jobs", function),
				 errhint("For one of its jobs, the handler calls nack(), reject(), release() or log() with the job's id and a null token, or cancel_current() with the job's id.")));
	return jobq_current;
}

/*
 * Return this job of the handler that runs here.  The job of perform() has the id 0.  Raises an
 * error if the job is another.
 */
JobqCurrent *
jobq_require_job(int64 id, const char *function)
{
	JobqCurrent *current = jobq_current;
	bool		set = current != NULL && current->set;

	if (current == NULL)
		(void) jobq_require_current(function);
	while (current != NULL && job_id(current->job) != id)
		current = set && current->outer != NULL && current->outer->set ? current->outer : NULL;
	if (current == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("%s was called for job " INT64_FORMAT ", which this handler does not run",
						function, id),
				 errhint("A handler can act only on the jobs in its argument.")));
	return current;
}

/*
 * Arguments of a function of consumers: the job's id, its token.  If a set handler runs here, and
 * the token is null, return the job, which must be of the handler.  Otherwise return NULL.
 */
JobqCurrent *
jobq_job_of_set(FunctionCallInfo fcinfo, const char *function)
{
	if (!PG_ARGISNULL(1) || jobq_current == NULL || !jobq_current->set)
		return NULL;
	return jobq_require_job(PG_ARGISNULL(0) ? 0 : PG_GETARG_INT64(0), function);
}

/* current_job(): return the job that this session is running. */
Datum
jobq_current_job(PG_FUNCTION_ARGS)
{
	JobqCurrent *current = jobq_require_current("jobq.current_job()");

	PG_RETURN_DATUM(context_datum(current->job, current->attempt, current->version));
}

/*
 * set_progress(percent, message): store the progress in the worker's slot, at once visible to
 * all sessions.  Does nothing if the job has no slot.  All jobs of a set handler have the same
 * progress.
 */
Datum
jobq_set_progress(PG_FUNCTION_ARGS)
{
	JobqCurrent *current = jobq_current != NULL && jobq_current->set ? jobq_current
		: jobq_require_current("jobq.set_progress()");
	float4		percent = jobq_percent_arg(fcinfo, 0);
	char	   *message = PG_ARGISNULL(1) ? pstrdup("") :
		text_to_cstring(PG_GETARG_TEXT_PP(1));
	JobqSlot   *slot = current->slot;

	if (slot == NULL)
		PG_RETURN_VOID();

	message[pg_mbcliplen(message, strlen(message), JOBQ_PROGRESS_LEN - 1)] = '\0';
	SpinLockAcquire(&slot->mutex);
	slot->run.progress = percent;
	strlcpy(slot->run.message, message, JOBQ_PROGRESS_LEN);
	SpinLockRelease(&slot->mutex);

	jobq_tell_running(current->job, current->attempt, percent, true);
	while (current->set && current->outer != NULL && current->outer->set)
	{
		current = current->outer;
		jobq_tell_running(current->job, current->attempt, percent, true);
	}
	PG_RETURN_VOID();
}

/*
 * should_stop(): true if the handler should end soon.  Reasons: the job was cancelled, the
 * worker is to leave, or nine tenths of the job's time limit are over.
 */
Datum
jobq_should_stop(PG_FUNCTION_ARGS)
{
	JobqSlot   *slot;
	TimestampTz now;

	if (jobq_current == NULL || !jobq_current->set)
		(void) jobq_require_current("jobq.should_stop()");
	slot = jobq_current->slot;
	if (slot == NULL)
		PG_RETURN_BOOL(false);
	now = jobq_now();
	PG_RETURN_BOOL(slot->retire || slot->yields ||
				   ShutdownRequestPending || ProcDiePending ||
				   slot->run.stop != JOBQ_STOP_NONE ||
				   (slot->run.deadline != DT_NOEND &&
					now > slot->run.deadline -
					(slot->run.deadline - slot->run.started_at) / 10));
}
