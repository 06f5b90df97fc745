/*-------------------------------------------------------------------------
 *
 * held.c
 *	  Arguments of the consumer functions: ids, tokens and results of leased jobs.
 *
 * src/consume/held.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/jsonb.h"

#include "attempt/attempt.h"
#include "commit/commit.h"
#include "consume/consume.h"

/* A job with its token and argument position. */
typedef struct HeldJob
{
	int64		id;
	int64		token;
	int			number;
} HeldJob;

static void
check_call(FunctionCallInfo fcinfo, const char *function, const char *needed)
{
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s needs %s", function, needed)));
}

/*
 * Read a job's id and token from the first two arguments of function "function".  ERROR if an
 * argument is null, in a read-only transaction, and in a parallel worker.  Reserves room for
 * two pending lease changes.
 */
void
jobq_get_held(FunctionCallInfo fcinfo, Held *held, const char *function)
{
	check_call(fcinfo, function, "the job's id and token");
	held->n = 1;
	held->ids = palloc(sizeof(int64));
	held->tokens = palloc(sizeof(int64));
	held->ids[0] = PG_GETARG_INT64(0);
	held->tokens[0] = PG_GETARG_INT64(1);
	jobq_lease_room(2);
}

/*
 * Read the arrays of ids and tokens from the first two arguments of function "function".
 * ERROR if an array is null or has a null, or if their lengths differ.  Reserves room for n +
 * 1 pending lease changes.
 */
void
jobq_get_held_many(FunctionCallInfo fcinfo, Held *held, const char *function)
{
	int64	  **out[] = {&held->ids, &held->tokens};
	int			n[2];

	check_call(fcinfo, function, "the jobs' ids and tokens");
	for (int arg = 0; arg < 2; arg++)
	{
		Datum	   *elems;
		bool	   *nulls;

		deconstruct_array(PG_GETARG_ARRAYTYPE_P(arg), INT8OID, 8, FLOAT8PASSBYVAL,
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
 * Read the result of one job from argument number arg; n is 0 if it is null.  ERROR if the
 * result is not valid (jobq_check_result()).
 */
void
jobq_get_result(FunctionCallInfo fcinfo, int arg, JobqResults *results)
{
	memset(results, 0, sizeof(JobqResults));
	if (PG_ARGISNULL(arg))
		return;
	results->n = 1;
	results->values = palloc(sizeof(Datum));
	results->values[0] = PG_GETARG_DATUM(arg);
	results->nulls = palloc0(sizeof(bool));
	jobq_check_result(results->values[0]);
}

/*
 * Read the results of several jobs from argument number arg, an array of jsonb; n is 0 if it
 * is null.  ERROR unless there is one element for each job of *held.
 */
void
jobq_get_results(FunctionCallInfo fcinfo, int arg, const Held *held,
				 JobqResults *results)
{
	Jsonb	   *json;

	memset(results, 0, sizeof(JobqResults));
	if (PG_ARGISNULL(arg))
		return;
	json = PG_GETARG_JSONB_P(arg);
	if (!JB_ROOT_IS_ARRAY(json) || JB_ROOT_IS_SCALAR(json))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the results of several jobs must be an array"),
				 errhint("Give a JSON array with a result for each job, or null for none.")));
	results->n = (int) JB_ROOT_COUNT(json);
	if (results->n != held->n)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("%d results were given for %d jobs", results->n, held->n),
				 errhint("Give each job its result, in the same order, or null for none.")));
	results->values = palloc(sizeof(Datum) * (results->n + 1));
	results->nulls = palloc(sizeof(bool) * (results->n + 1));
	for (int i = 0; i < results->n; i++)
	{
		JsonbValue *value = getIthJsonbValueFromContainer(&json->root, i);

		results->nulls[i] = value->type == jbvNull;
		results->values[i] = results->nulls[i] ? (Datum) 0
			: JsonbPGetDatum(JsonbValueToJsonb(value));
		if (!results->nulls[i])
			jobq_check_result(results->values[i]);
	}
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

static int
compare_tokens(const void *a, const void *b)
{
	const HeldJob *job = a;
	const HeldJob *other = b;

	if (job->token != other->token)
		return job->token < other->token ? -1 : 1;
	return job->id == other->id ? 0 : job->id < other->id ? -1 : 1;
}

/* Return a sorted copy of the jobs. */
static HeldJob *
sorted(const Held *held, int (*compare) (const void *, const void *))
{
	HeldJob    *jobs = palloc(sizeof(HeldJob) * (held->n + 1));

	for (int i = 0; i < held->n; i++)
		jobs[i] = (HeldJob)
	{
		held->ids[i], held->tokens[i], i
	};
	qsort(jobs, held->n, sizeof(HeldJob), compare);
	return jobs;
}

/*
 * Sort the jobs by token and id, and remove jobs that are named twice.
 */
void
jobq_distinct_held(Held *held)
{
	HeldJob    *jobs = sorted(held, compare_tokens);
	int			n = 0;

	for (int i = 0; i < held->n; i++)
	{
		if (i > 0 && compare_tokens(&jobs[i - 1], &jobs[i]) == 0)
			continue;
		held->ids[n] = jobs[i].id;
		held->tokens[n++] = jobs[i].token;
	}
	held->n = n;
	pfree(jobs);
}

/*
 * Sort the jobs, and their results if any, by id.
 *
 * Every statement locks the rows of several jobs in this order, so two statements with common
 * jobs cannot deadlock.
 */
void
jobq_sort_held(Held *held, JobqResults *results)
{
	HeldJob    *jobs = sorted(held, compare_held);
	JobqResults given = {0};

	if (results->n > 0)
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

/*
 * Return the third argument, an interval.  ERROR if the argument is null; name: for the message.
 */
Interval *
jobq_interval_arg(FunctionCallInfo fcinfo, const char *name)
{
	jobq_not_null(fcinfo, 2, name);
	return PG_GETARG_INTERVAL_P(2);
}
