/*-------------------------------------------------------------------------
 *
 * step.c
 *	  What a look at a workflow does with a single step: takes its row, gives it the
 *	  results of others, or has it fail.
 *
 * worker/scheduler/step.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "produce/produce.h"
#include "store/store.h"

/* The result of a step, which several others may take. */
typedef struct StepResult
{
	int64		job_id;			/* hash key */
	Jsonb	   *result;			/* or NULL */
} StepResult;

/* A step of an outer workflow, to which many references of a payload may be. */
typedef struct OuterStep
{
	char		name[JOBQ_MAX_STEP_NAME + 1];	/* hash key */
	int64		job_id;			/* 0: there is none, or it is not completed */
}			OuterStep;

static int64 outer_completed(int64 batch_id, const char *name);

/*
 * Delete the row of a blocked step, if that needs no waiting.
 */
bool
step_take_row(StepLook *look, const JobqStep *step, JobqJob *job)
{
	for (;;)
	{
		Snapshot	snapshot;
		TransactionId blocker;
		bool		found;

		CommandCounterIncrement();
		snapshot = RegisterSnapshot(GetLatestSnapshot());
		found = jobq_job_find(look->rel, step->job_id, snapshot, job);
		UnregisterSnapshot(snapshot);

		/* its end, if that is it, has us called again */
		if (!found || !job_blocked(job))
			return false;
		if (jobq_job_delete_or_blocker(look->rel, job, &blocker))
			return true;

		/* somebody cancels it, or gives it another priority */
		if (TransactionIdIsValid(blocker))
		{
			look->found->locked = true;
			return false;
		}
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * A step fails before it could begin.  A retry will try this again, as it is still
 * blocked then.  The caller has taken its row.
 */
void
step_fail(StepLook *look, JobqStep *step, JobqJob *job,
		  const JobqError *error)
{
	(void) jobq_job_failed(look->rel, job, DT_NOBEGIN, error, false, true, 0);
	step->state = STEP_DEAD;
}

/*
 * The payload with the results that the step takes, and the element that it is for, or
 * NULL; or NULL if that cannot be: then *error says why.
 */
Jsonb *
step_payload(StepLook *look, Jsonb *payload, Jsonb *element, int place,
			 JobqError *error)
{
	Size		max_size = Min((Size) jobq_max_payload * 1024, MAX_OF_RESULTS);
	JobqRefs	refs = {
		.result_of = step_result_of,
		.arg = look,
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
 * The job of the step of that name if it is completed, else 0.  If the workflow has no
 * such step, and is one of another itself, it is one of that.
 */
int64
step_completed(StepLook *look, const char *name)
{
	JobqStep   *step = jobq_step_named(look->workflow, name);
	HASHCTL		info = {
		.keysize = JOBQ_MAX_STEP_NAME + 1,
		.entrysize = sizeof(OuterStep),
		.hcxt = MemoryContextGetParent(look->memory)
	};
	OuterStep  *outer;
	bool		found;

	if (step != NULL)
		return step->state == STATE_COMPLETED ? step->job_id : 0;
	if (strlen(name) > JOBQ_MAX_STEP_NAME)
		return 0;
	if (look->outer == NULL)
		look->outer = hash_create("jobq steps of outer workflows", 16, &info,
								  HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	outer = hash_search(look->outer, name, HASH_ENTER, &found);
	if (!found)
		outer->job_id = outer_completed(look->batch_id, name);
	return outer->job_id;
}

/*
 * The job of the step of that name of a workflow of which the batch is a step, directly or
 * not, the nearest one; 0 if that is not completed, or there is none.
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
 * The result of a completed step, or NULL if it has none.
 */
Jsonb *
step_result_of(void *arg, const char *name)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	StepLook   *look = arg;
	int64		job_id = step_completed(look, name);
	HASHCTL		info = {
		.keysize = sizeof(int64),
		.entrysize = sizeof(StepResult),
		.hcxt = MemoryContextGetParent(look->memory)
	};
	StepResult *result;
	bool		found;
	Datum		value;
	bool		isnull;

	if (job_id == 0)
		return NULL;
	if (look->results == NULL)
		look->results = hash_create("jobq results of steps", 16, &info,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	result = hash_search(look->results, &job_id, HASH_ENTER, &found);
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
