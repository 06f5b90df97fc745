/*-------------------------------------------------------------------------
 *
 * held.c
 *	  The jobs and tokens that a consumer names: one, or many.
 *
 * src/consume/held.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"

#include "attempt/attempt.h"
#include "commit/commit.h"
#include "consume/consume.h"

/* A job and its token, and the place at which the caller has named it. */
typedef struct HeldJob
{
	int64		id;
	int64		token;
	int			number;
} HeldJob;

static void check_call(FunctionCallInfo fcinfo, const char *function);
static void held_one(int64 id, int64 token, Held *held);
static void held_many(ArrayType *ids, ArrayType *tokens, Held *held,
					  const char *function);
static int	compare_held(const void *a, const void *b);
static Datum from_text(FunctionCallInfo fcinfo, int arg, bool many);
static void results_of_json(Jsonb *json, JobqResults *results);

static void
check_call(FunctionCallInfo fcinfo, const char *function)
{
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s needs the job's id and token", function)));
}

static void
held_one(int64 id, int64 token, Held *held)
{
	held->n = 1;
	held->ids = palloc(sizeof(int64));
	held->tokens = palloc(sizeof(int64));
	held->ids[0] = id;
	held->tokens[0] = token;
	jobq_lease_room(2);
}

static void
held_many(ArrayType *ids, ArrayType *tokens, Held *held, const char *function)
{
	ArrayType  *arrays[] = {ids, tokens};
	int64	  **out[] = {&held->ids, &held->tokens};
	int			n[2];

	for (int arg = 0; arg < 2; arg++)
	{
		Datum	   *elems;
		bool	   *nulls;

		deconstruct_array(arrays[arg], INT8OID, 8, FLOAT8PASSBYVAL,
						  TYPALIGN_DOUBLE, &elems, &nulls, &n[arg]);
		*out[arg] = palloc(sizeof(int64) * (n[arg] + 1));
		for (int i = 0; i < n[arg]; i++)
		{
			if (nulls[i])
				ereport(ERROR,
						(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						 errmsg("%s %d of %d must not be null",
								arg == 0 ? "id" : "token", i + 1, n[arg])));
			(*out[arg])[i] = DatumGetInt64(elems[i]);
		}
	}
	if (n[0] != n[1])
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("%s got %d ids and %d tokens", function, n[0], n[1]),
				 errhint("Give each id its token, in the same order.")));
	held->n = n[0];
	jobq_lease_room(held->n + 1);
}

/*
 * An argument that was given as text: a number, or an array of numbers.
 */
static Datum
from_text(FunctionCallInfo fcinfo, int arg, bool many)
{
	char	   *value = text_to_cstring(PG_GETARG_TEXT_PP(arg));

	return many ? OidInputFunctionCall(F_ARRAY_IN, value, INT8OID, -1)
		: DirectFunctionCall1(int8in, CStringGetDatum(value));
}

/*
 * The jobs and tokens that are the first two arguments.  Their type tells
 * whether it is one job or many: bigint, bigint[], or text that is either of
 * these.  The latter is what literals and parameters without a type become.
 */
void
jobq_get_held(FunctionCallInfo fcinfo, Held *held, const char *function)
{
	Oid			type = get_fn_expr_argtype(fcinfo->flinfo, 0);

	check_call(fcinfo, function);
	if (!OidIsValid(type))
	{
		Oid		   *types;
		int			ntypes;

		(void) get_func_signature(fcinfo->flinfo->fn_oid, &types, &ntypes);
		type = types[0];
	}
	held->many = type == INT8ARRAYOID;
	if (type == INT8OID)
		held_one(PG_GETARG_INT64(0), PG_GETARG_INT64(1), held);
	else if (type == INT8ARRAYOID)
		held_many(PG_GETARG_ARRAYTYPE_P(0), PG_GETARG_ARRAYTYPE_P(1), held,
				  function);
	else
	{
		char	   *value = text_to_cstring(PG_GETARG_TEXT_PP(0));
		bool		many = value[strspn(value, " \t\n")] == '{';
		Datum		ids = from_text(fcinfo, 0, many);
		Datum		tokens = from_text(fcinfo, 1, many);

		held->many = many;
		if (many)
			held_many(DatumGetArrayTypeP(ids), DatumGetArrayTypeP(tokens), held,
					  function);
		else
			held_one(DatumGetInt64(ids), DatumGetInt64(tokens), held);
	}
}

/*
 * The elements of a JSON array; null is none.
 */
static void
results_of_json(Jsonb *json, JobqResults *results)
{
	int			n = JB_ROOT_IS_ARRAY(json) && !JB_ROOT_IS_SCALAR(json)
		? (int) JB_ROOT_COUNT(json) : -1;

	if (n < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the results of several jobs must be an array"),
				 errhint("Give a JSON array with a result for each job, or null for none.")));
	results->n = n;
	results->values = palloc(sizeof(Datum) * (n + 1));
	results->nulls = palloc(sizeof(bool) * (n + 1));
	for (int i = 0; i < n; i++)
	{
		JsonbValue *value = getIthJsonbValueFromContainer(&json->root, i);

		results->nulls[i] = value->type == jbvNull;
		results->values[i] = results->nulls[i] ? (Datum) 0
			: JsonbPGetDatum(JsonbValueToJsonb(value));
	}
}

/*
 * The results that are this argument, which may be null: that of one job, or an array
 * with one for each of many.  It is jsonb either way, as the server could not choose
 * between functions for literals without a type otherwise.
 */
void
jobq_get_results(FunctionCallInfo fcinfo, int arg, const Held *held,
				 JobqResults *results)
{
	memset(results, 0, sizeof(JobqResults));
	if (PG_ARGISNULL(arg))
		return;
	if (!held->many)
	{
		results->n = 1;
		results->values = palloc(sizeof(Datum));
		results->values[0] = PG_GETARG_DATUM(arg);
		results->nulls = palloc0(sizeof(bool));
	}
	else
		results_of_json(PG_GETARG_JSONB_P(arg), results);
	if (results->n != held->n)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("%d results were given for %d jobs", results->n, held->n),
				 errhint("Give each job its result, in the same order, or null for none.")));
	for (int i = 0; i < results->n; i++)
		if (!results->nulls[i])
			jobq_check_result(results->values[i]);
}

static int
compare_held(const void *a, const void *b)
{
	const HeldJob *job = a;
	const HeldJob *other = b;

	if (job->id != other->id)
		return job->id < other->id ? -1 : 1;
	return job->number - other->number;
}

/*
 * Sort the jobs by id, with their results if results is not NULL.  All that takes the
 * rows of several jobs in one statement takes them in this order: two statements that
 * have jobs in common must not wait for each other.
 */
void
jobq_sort_held(Held *held, JobqResults *results)
{
	HeldJob    *jobs = palloc(sizeof(HeldJob) * (held->n + 1));
	JobqResults given = {0};

	for (int i = 0; i < held->n; i++)
		jobs[i] = (HeldJob)
	{
		held->ids[i], held->tokens[i], i
	};
	qsort(jobs, held->n, sizeof(HeldJob), compare_held);
	if (results != NULL && results->n > 0)
	{
		given = *results;
		results->values = palloc(sizeof(Datum) * held->n);
		results->nulls = palloc(sizeof(bool) * held->n);
	}
	for (int i = 0; i < held->n; i++)
	{
		held->ids[i] = jobs[i].id;
		held->tokens[i] = jobs[i].token;
		if (given.n == 0)
			continue;
		results->values[i] = given.values[jobs[i].number];
		results->nulls[i] = given.nulls[jobs[i].number];
	}
	pfree(jobs);
}
