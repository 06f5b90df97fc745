/*-------------------------------------------------------------------------
 *
 * step.c
 *	  Operations on a single step in an evaluation of a workflow: claim the row,
 *	  insert results of earlier steps, fail the step.
 *
 * worker/scheduler/step.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/workflow.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "produce/produce.h"
#include "store/store.h"

/* The result of a step, shared by several users. */
typedef struct StepResult
{
	int64		job_id;			/* hash key */
	Jsonb	   *result;			/* or NULL */
} StepResult;

/* A step of an outer workflow, cached for repeated references. */
typedef struct OuterStep
{
	char		name[JOBQ_MAX_STEP_NAME + 1];	/* hash key */
	int64		job_id;			/* 0: missing, or not completed */
}			OuterStep;

static int64 outer_completed(int64 batch_id, const char *name);

/*
 * Delete the row of a blocked step without waiting for a lock.  Returns false if the
 * row is gone, is no longer blocked, or is locked; the last case sets
 * context->found->later.
 */
bool
step_take_row(StepContext *context, const JobqStep *step, JobqJob *job)
{
	for (;;)
	{
		Snapshot	snapshot;
		TransactionId blocker;
		bool		found;

		CommandCounterIncrement();
		snapshot = RegisterSnapshot(GetLatestSnapshot());
		found = jobq_job_find(context->rel, step->job_id, snapshot, job);
		UnregisterSnapshot(snapshot);

		/* the end of the job leads to another evaluation */
		if (!found || !job_blocked(job))
			return false;
		if (jobq_job_delete_or_blocker(context->rel, job, &blocker))
			return true;

		/* a session is cancelling the job or changing its priority */
		if (TransactionIdIsValid(blocker))
		{
			context->found->later = true;
			return false;
		}
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Fail a step before it begins.  After a retry, the step is blocked and is tried
 * again.  Caller has claimed the row.
 */
void
step_fail(StepContext *context, JobqStep *step, JobqJob *job,
		  const JobqError *error)
{
	jobq_job_dies(context->rel, job, error);
	step->state = STEP_DEAD;
}

/* Largest payload or result made from the results of steps, in bytes. */
Size
step_max_size(void)
{
	return Min((Size) jobq_max_payload * 1024, MAX_OF_RESULTS);
}

/*
 * Check an object or array of results; NULL if it would be larger than step_max_size().  what:
 * the results, for messages.  Returns false for results that are too large or too deep, and sets
 * *error.
 */
bool
step_results_fit(Jsonb *results, const char *what, JobqError *error)
{
	if (results != NULL && !jobq_too_deep(JsonbPGetDatum(results), VARSIZE(results)))
		return true;
	memset(error, 0, sizeof(JobqError));
	error->sqlerrcode = ERRCODE_PROGRAM_LIMIT_EXCEEDED;
	if (results == NULL)
	{
		error->message = psprintf("%s are together larger than the allowed %zu kB", what,
								  step_max_size() / 1024);
		error->hint = "Store the data in a table and return its key, or raise \"jobq.max_payload\".";
	}
	else
		error->message = psprintf("the nesting of the %s is deeper than %d levels", what,
								  JOBQ_MAX_DEPTH);
	return false;
}

/*
 * Build the payload of a step with the results of earlier steps, and with the element,
 * or NULL.  Returns NULL on an error, and sets *error.
 */
Jsonb *
step_payload(StepContext *context, Jsonb *payload, Jsonb *element, int place,
			 JobqError *error)
{
	Size		max_size = step_max_size();
	JobqRefs	refs = {
		.result_of = step_result_of,
		.arg = context,
		.element = element,
		.place = place
	};
	Size		size;

	payload = jobq_results_put(payload, &refs, max_size, &size);
	if (payload != NULL && !jobq_too_deep(JsonbPGetDatum(payload), VARSIZE(payload)))
		return payload;
	memset(error, 0, sizeof(JobqError));
	error->sqlerrcode = ERRCODE_PROGRAM_LIMIT_EXCEEDED;
	if (payload == NULL)
	{
		error->message = psprintf("payload of at least %zu bytes, with the results of other steps, is larger than the allowed %zu kB",
								  size, max_size / 1024);
		error->hint = "Store the data in a table and return its key, or raise \"jobq.max_payload\".";
	}
	else
		error->message = psprintf("the nesting of the payload, with the results of other steps, is deeper than %d levels",
								  JOBQ_MAX_DEPTH);
	return NULL;
}

/*
 * Return the job of the named step if completed, else 0.  If a nested workflow has no
 * step of this name, the outer workflow is searched.
 */
int64
step_completed(StepContext *context, const char *name)
{
	JobqStep   *step = jobq_step_named(context->workflow, name);
	HASHCTL		info = {
		.keysize = JOBQ_MAX_STEP_NAME + 1,
		.entrysize = sizeof(OuterStep),
		.hcxt = MemoryContextGetParent(context->memory)
	};
	OuterStep  *outer;
	bool		found;

	if (step != NULL)
		return step->state == STATE_COMPLETED ? step->job_id : 0;
	if (strlen(name) > JOBQ_MAX_STEP_NAME)
		return 0;
	if (context->outer == NULL)
		context->outer = hash_create("jobq steps of outer workflows", 16, &info,
									 HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	outer = hash_search(context->outer, name, HASH_ENTER, &found);
	if (!found)
		outer->job_id = outer_completed(context->batch_id, name);
	return outer->job_id;
}

/*
 * Find the named step in the workflows around the batch, from the nearest outward.
 * Returns the job of the step; 0 if the step is missing or not completed.
 */
static int64
outer_completed(int64 batch_id, const char *name)
{
	static const Oid types[] = {INT8OID, TEXTOID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {Int64GetDatum(batch_id), CStringGetTextDatum(name)};
	int64		job_id = 0;

	if (jobq_query_kept(&plan, "WITH RECURSIVE above AS"
						" (SELECT 0 AS level, $1 AS id UNION ALL"
						"  SELECT a.level + 1, b.parent FROM above a JOIN jobq_internal.batch b ON b.id = a.id"
						"  JOIN jobq_internal.step s ON s.job_id = b.parent_job WHERE a.level < 100)"
						" SELECT s.job_id, coalesce(coalesce((SELECT r.state FROM jobq_internal.archive r WHERE r.id = s.job_id),"
						"  s.state) = 'c', false)"
						" FROM above a JOIN jobq_internal.step s ON s.batch_id = a.id AND s.name = $2 AND s.element_of IS NULL"
						" WHERE a.level > 0 ORDER BY a.level LIMIT 1",
						2, types, values, NULL, SPI_OK_SELECT) > 0 &&
		DatumGetBool(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, BOOLOID, NULL)))
		job_id = DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, INT8OID, NULL));
	SPI_freetuptable(SPI_tuptable);
	return job_id;
}

/*
 * Return the result of a completed step, or NULL if it has none.
 */
Jsonb *
step_result_of(void *arg, const char *name)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	StepContext *context = arg;
	int64		job_id = step_completed(context, name);
	HASHCTL		info = {
		.keysize = sizeof(int64),
		.entrysize = sizeof(StepResult),
		.hcxt = MemoryContextGetParent(context->memory)
	};
	StepResult *result;
	bool		found;
	Datum		value;
	bool		isnull;

	if (job_id == 0)
		return NULL;
	if (context->results == NULL)
		context->results = hash_create("jobq results of steps", 16, &info,
									   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	result = hash_search(context->results, &job_id, HASH_ENTER, &found);
	if (found)
		return result->result;
	result->result = NULL;
	value = Int64GetDatum(job_id);
	if (jobq_query_kept(&plan, "SELECT result FROM jobq_internal.archive WHERE id = $1"
						" UNION ALL SELECT result FROM jobq_internal.step WHERE job_id = $1 AND state IS NOT NULL",
						1, types, &value, NULL, SPI_OK_SELECT) > 0)
	{
		value = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, JSONBOID, &isnull);
		if (!isnull)
		{
			MemoryContext old = MemoryContextSwitchTo(info.hcxt);

			result->result = DatumGetJsonbPCopy(value);
			MemoryContextSwitchTo(old);
		}
	}
	SPI_freetuptable(SPI_tuptable);
	return result->result;
}
