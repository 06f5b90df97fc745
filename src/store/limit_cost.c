/*-------------------------------------------------------------------------
 *
 * limit_cost.c
 *	  Cost of a job at a limiter, computed by an optional function of the limiter.
 *
 * The function is called in the session that enqueues or edits the job, with the rights of the
 * current user, and with a description of the job.  The result is stored in the job's row.
 * Popping processes and the scheduler therefore run no code of users.  The function is looked
 * up by its signature for each use, so that changes of the function are noticed.
 *
 * The result is a number of tokens of the limiter's rate.  With 0, the job bypasses the
 * limiter and needs no permit.  A job without a result costs one token.  The result is used
 * only at limiters with a cost function.  A job has a single cost: if several of its limiters
 * have cost functions, the first function is called.  The limiters of the kind come first.
 *
 * src/store/limit_cost.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"

#include "store/store.h"

/*
 * Return the function with this signature.  ERROR if the function does not exist, is not
 * f(jsonb) returning integer, or is temporary, or if the current user may not call the
 * function.
 */
Oid
jobq_cost_function(const char *signature)
{
	Oid			proc = jobq_user_function(signature, 1, INT4OID, "cannot say what a job costs",
										  "Write a function with a parameter of type jsonb, which describes the job, that returns integer.");

	if (isAnyTempNamespace(get_func_namespace(proc)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("function %s(jsonb) is temporary", get_func_name(proc)),
				 errhint("It would be gone with this session, and other sessions do not see it.")));
	return proc;
}

/*
 * Return the signature of the function for the job's cost, or NULL: the function of the
 * limiter named by the kind, or else of the limiter named by the queue.  The result is valid
 * until the caches change.
 */
static const char *
cost_function_of(const JobqJob *job, const JobqQueue *queue)
{
	uint32		limiters[JOBQ_NLIMITS];
	const char *signature = NULL;

	jobq_limiters_of(jobq_job_kind(job), queue, limiters);
	for (int s = JOBQ_NAMED_BY_KIND; s < JOBQ_NLIMITS && signature == NULL; s++)
		signature = jobq_limiter_cost_function(limiters[s]);
	return signature;
}

/* Return whether a limiter of the job has a cost function. */
bool
jobq_limit_is_priced(const JobqJob *job)
{
	JobqQueue	buffer;

	return cost_function_of(job, jobq_queue_by_id(job_queue_id(job), &buffer)) != NULL;
}

/* Append a text column of the job, or null. */
static void
add_text(StringInfo buf, const char *name, const JobqJob *job, int att)
{
	appendStringInfo(buf, ", \"%s\": ", name);
	if (JOB_ISNULL(job, att))
		appendStringInfoString(buf, "null");
	else
		escape_json(buf, TextDatumGetCString(JOB(job, att)));
}

/* Return the description of the job for the function. */
static Datum
describe(const JobqJob *job, const JobqQueue *queue)
{
	JsonbParseState *state = NULL;
	StringInfoData buf;
	Datum		head;
	const char *tenant = jobq_job_tenant(job, queue);
	static const char *const names[] = {"payload", "headers"};
	static const int columns[] = {JOB_PAYLOAD, JOB_HEADERS};
	Datum		body;

	initStringInfo(&buf);
	appendStringInfoString(&buf, "{\"kind\": ");
	escape_json(&buf, jobq_job_kind(job));
	appendStringInfoString(&buf, ", \"queue\": ");
	escape_json(&buf, queue->name);
	appendStringInfoString(&buf, ", \"role\": ");
	escape_json(&buf, GetUserNameFromId(job_role(job), false));
	appendStringInfo(&buf, ", \"priority\": %d", job_priority(job));
	add_text(&buf, "group_key", job, JOB_GROUP_KEY);
	add_text(&buf, "unique_key", job, JOB_UNIQUE_KEY);
	appendStringInfoString(&buf, ", \"tenant\": ");
	if (tenant == NULL)
		appendStringInfoString(&buf, "null");
	else
		escape_json(&buf, tenant);
	appendStringInfoString(&buf, ", \"tags\": ");
	if (JOB_ISNULL(job, JOB_TAGS))
		appendStringInfoString(&buf, "[]");
	else
	{
		Datum	   *tags;
		int			ntags;

		deconstruct_array(DatumGetArrayTypeP(JOB(job, JOB_TAGS)), TEXTOID, -1, false,
						  TYPALIGN_INT, &tags, NULL, &ntags);
		for (int i = 0; i < ntags; i++)
		{
			appendStringInfoString(&buf, i == 0 ? "[" : ", ");
			escape_json(&buf, TextDatumGetCString(tags[i]));
		}
		appendStringInfoString(&buf, ntags == 0 ? "[]" : "]");
	}
	appendStringInfoChar(&buf, '}');
	head = jobq_text_to_jsonb(buf.data);

	/* payload and headers are jsonb already, and may be large */
	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < (int) lengthof(columns); i++)
	{
		JsonbValue	key = {.type = jbvString};
		JsonbValue	value = {.type = jbvNull};

		key.val.string.val = unconstify(char *, names[i]);
		key.val.string.len = strlen(names[i]);
		(void) pushJsonbValue(&state, WJB_KEY, &key);
		if (!JOB_ISNULL(job, columns[i]))
			JsonbToJsonbValue(DatumGetJsonbP(JOB(job, columns[i])), &value);
		(void) pushJsonbValue(&state, WJB_VALUE, &value);
	}
	body = JsonbPGetDatum(JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL)));
	return DirectFunctionCall2(jsonb_concat, head, body);
}

static void
cost_callback(void *arg)
{
	errcontext("asking %s what the job costs", (const char *) arg);
}

/*
 * Compute the cost, at its limiters, of a job about to be written.  Runs code of users: on
 * return, the contents of tables and caches may have changed.  ERROR if the result is out of
 * range, or if the function has dropped the job's queue.
 */
void
jobq_ask_limit_cost(JobqJob *job)
{
	LOCAL_FCINFO(fcinfo, 1);
	FmgrInfo	flinfo;
	ErrorContextCallback context;
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	const char *cached = queue == NULL ? NULL : cost_function_of(job, queue);
	char	   *signature;
	int32		cost;

	JOB_ISNULL(job, JOB_LIMIT_COST) = true;
	if (cached == NULL)
		return;
	signature = pstrdup(cached);
	context.callback = cost_callback;
	context.arg = signature;
	context.previous = error_context_stack;
	error_context_stack = &context;
	fmgr_info(jobq_cost_function(signature), &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = describe(job, queue);
	fcinfo->args[0].isnull = false;
	cost = DatumGetInt32(FunctionCallInvoke(fcinfo));
	if (!fcinfo->isnull)
	{
		if (cost < 0 || cost > JOBQ_MAX_LIMIT_COST)
			ereport(ERROR,
					(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
					 errmsg("%s returned %d, which is out of range", signature, cost),
					 errhint("A job costs 1 to %d tokens; return 0 for one that passes the limiter by, null for one token.",
							 JOBQ_MAX_LIMIT_COST)));
		JOB_SET(job, JOB_LIMIT_COST, Int32GetDatum(cost));
	}
	if (jobq_queue_by_id(job_queue_id(job), &buffer) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("%s has dropped the queue of the job", signature)));
	error_context_stack = context.previous;
}
