/*-------------------------------------------------------------------------
 *
 * spec.c
 *	  Jobs written in jsonb.
 *
 * Callbacks of batches and steps of workflows are whole jobs: {"kind": ..., "payload": ..., and
 * the options}.
 *
 * Unless stated otherwise, the results are allocated in the current memory context.
 *
 * src/produce/spec.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

#include "produce/produce.h"
#include "store/store.h"

/* Maximum number of keys of a description beside the options. */
#define MAX_OTHER_KEYS	8

/*
 * Read the description of a job.  what: name of the description in messages.  others: a list
 * ending with NULL, or NULL, of keys that the caller reads.  kept: the description was made by
 * jobq_spec_kept().  ERROR if the description is invalid, or if the job is a plain statement.
 */
void
jobq_spec_parse(Jsonb *json, const char *what, const char *const *others,
				bool kept, JobqSpec *spec)
{
	const char *keys[MAX_OTHER_KEYS + 4];
	int			nkeys = 0;
	JsonbValue	value;

	memset(spec, 0, sizeof(JobqSpec));
	if (!JB_ROOT_IS_OBJECT(json))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be an object", what),
				 errhint("Write {\"kind\": \"...\", \"payload\": {...}}.")));

	for (; others != NULL && others[nkeys] != NULL; nkeys++)
	{
		Assert(nkeys < MAX_OTHER_KEYS);
		keys[nkeys] = others[nkeys];
	}
	keys[nkeys++] = "kind";
	keys[nkeys++] = "payload";
	if (kept)
		keys[nkeys++] = JOBQ_KEPT_COST;
	keys[nkeys] = NULL;
	jobq_options_from_jsonb(json, what, keys, spec->options, spec->nulls);
	spec->limit_cost = kept ? jobq_kept_limit_cost(json) : -1;

	if (getKeyJsonValueFromContainer(&json->root, "kind", 4, &value) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s has no \"kind\"", what)));
	if (value.type != jbvString)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"kind\" of %s must be a string", what)));
	spec->kind = pnstrdup(value.val.string.val, value.val.string.len);
	if (jobq_is_statement(spec->kind))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be a plain statement", what),
				 errhint("Register a function that runs it.")));
	if (getKeyJsonValueFromContainer(&json->root, "payload", 7, &value) != NULL)
		spec->payload = JsonbPGetDatum(JsonbValueToJsonb(&value));
	else
		spec->payload = jobq_text_to_jsonb("{}");
}

/*
 * Return the description of a prepared job for storage: with absolute times, the job's
 * context, its trace, and its cost at the limiter.
 */
Jsonb *
jobq_spec_kept(Jsonb *json, const JobqSpec *spec, const JobqJob *job)
{
	json = jobq_options_keep_times(json, spec->options, spec->nulls);

	/* the pointers differ if the trace was added to the headers */
	if (!JOB_ISNULL(job, JOB_HEADERS) &&
		JOB(job, JOB_HEADERS) != spec->options[OPTION_HEADERS])
		json = jobq_jsonb_set(json, "headers", JOB(job, JOB_HEADERS));
	return jobq_keep_limit_cost(jobq_keep_context(json, job), job);
}

/*
 * Return the object with the job's cost at its limiter, if the cost was computed.  A session
 * that later enqueues the job on behalf of a role must not run code of users.
 */
Jsonb *
jobq_keep_limit_cost(Jsonb *json, const JobqJob *job)
{
	if (JOB_ISNULL(job, JOB_LIMIT_COST))
		return json;
	return jobq_jsonb_set(json, JOBQ_KEPT_COST,
						  jobq_text_to_jsonb(psprintf("%d", DatumGetInt32(JOB(job, JOB_LIMIT_COST)))));
}

/* Return the cost stored by jobq_keep_limit_cost(), or -1 if there is none. */
int32
jobq_kept_limit_cost(Jsonb *json)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(&json->root, JOBQ_KEPT_COST, strlen(JOBQ_KEPT_COST),
									 &value) == NULL ||
		value.type != jbvNumeric)
		return -1;
	return DatumGetInt32(DirectFunctionCall1(numeric_int4,
											 NumericGetDatum(value.val.numeric)));
}

/*
 * Make the job, but do not write it.  Computes the job's cost at its limiter.  ERROR if the
 * current user may not enqueue the job.
 */
void
jobq_spec_prepare(const JobqSpec *spec, JobqJob *job, JobqUnique *unique)
{
	jobq_refuse_merge(spec->nulls);
	jobq_prepare_job(job, unique, spec->kind, spec->options, spec->nulls);
	jobq_set_payload(job, spec->payload);
	jobq_ask_limit_cost(job);
	unique->ask_cost = false;
}

/* Like jobq_spec_prepare(), for a description returned by jobq_spec_kept(). */
void
jobq_spec_prepare_kept(const JobqSpec *spec, JobqJob *job, JobqUnique *unique)
{
	jobq_prepare_kept_job(job, unique, spec->kind, spec->options, spec->nulls);
	jobq_set_payload(job, spec->payload);
	if (spec->limit_cost >= 0)
		JOB_SET(job, JOB_LIMIT_COST, Int32GetDatum(spec->limit_cost));
}

/*
 * Enqueue the job of a stored description on behalf of the role.  headers: a JSON object to
 * add to the job's headers, or NULL. Returns the job's id.  ERROR as for jobq_put_job().
 */
int64
jobq_spec_enqueue(const JobqSpec *spec, Oid role, const char *headers)
{
	JobqJob		job;
	JobqUnique	unique;
	JobqRoleState caller;

	jobq_become_role(role, &caller);
	jobq_spec_prepare_kept(spec, &job, &unique);
	if (headers != NULL)
	{
		Datum		added = jobq_text_to_jsonb(headers);

		JOB_SET(&job, JOB_HEADERS, JOB_ISNULL(&job, JOB_HEADERS) ? added
				: DirectFunctionCall2(jsonb_concat, JOB(&job, JOB_HEADERS), added));
	}
	jobq_put_job(&job, &unique);
	jobq_unbecome_role(&caller);
	return job_id(&job);
}
