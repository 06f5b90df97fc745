/*-------------------------------------------------------------------------
 *
 * map.c
 *	  Workflow steps with "map": one job for each element of an array from an
 *	  earlier step, and then an array of the results.
 *
 * The job of the step never runs.  The job stays blocked while the jobs of the elements
 * run, and is then completed with the results.  A mapped step can therefore be awaited,
 * cancelled and used like any step.
 *
 * The jobs of the elements are copies of the step's job, each with a payload and a row
 * in jobq_internal.step.  A piece of the jobs is written together with the rows in one
 * transaction.  The next evaluation continues after the existing elements, also after a
 * crash.  The row of the step's job is written again with each piece, so no session can
 * cancel it meanwhile.
 *
 * worker/scheduler/map.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/workflow.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "produce/produce.h"
#include "store/store.h"

/* Elements written in one evaluation, at most; fewer if the time slice ends. */
#define PIECE			500

/* Results read by one query. */
#define RESULTS_PIECE	1000

static StepDone fan_out(StepContext *context, JobqStep *step);
static bool put_elements(StepContext *context, JobqStep *step, const JobqJob *job,
						 Jsonb *array, int n, JobqError *error);
static void put_rows(StepContext *context, const JobqStep *step, const int64 *ids,
					 int n);
static StepDone fan_in(StepContext *context, JobqStep *step);
static Jsonb *collect(const StepContext *context, const JobqStep *step,
					  JobqError *error);

/*
 * Do the next piece of work for a step whose needs are completed.
 */
StepDone
map_step(StepContext *context, JobqStep *step)
{
	if (step->nelements == JOBQ_UNKNOWN_ELEMENTS ||
		step->nwritten < step->nelements)
		return fan_out(context, step);
	return jobq_step_elements_done(step) ? fan_in(context, step)
		: STEP_DONE_SO_FAR;
}

/*
 * True if the step referred to by "map" is completed.
 */
static bool
has_run(StepContext *context, Jsonb *map)
{
	List	   *names = jobq_result_refs(map, "map", false);

	return names != NIL && step_completed(context, linitial(names)) != 0;
}

/*
 * Get the array.  Empty if the step with the array is over but not completed.  Returns
 * NULL on an error, and sets *error.
 */
static Jsonb *
read_array(StepContext *context, const JobqStep *step, JobqError *error)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	JobqRefs	refs = {.result_of = step_result_of,.arg = context};
	Datum		value = Int64GetDatum(step->job_id);
	Jsonb	   *map = NULL;
	Jsonb	   *array = NULL;
	bool		isnull = true;
	Size		size;

	memset(error, 0, sizeof(JobqError));
	if (jobq_query_kept(&plan, "SELECT definition -> 'map' FROM jobq_internal.step WHERE job_id = $1",
						1, types, &value, NULL, SPI_OK_SELECT) > 0)
		value = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, JSONBOID, &isnull);
	if (!isnull)
		map = DatumGetJsonbPCopy(value);
	SPI_freetuptable(SPI_tuptable);
	if (map != NULL && !has_run(context, map))
		return DatumGetJsonbP(jobq_text_to_jsonb("[]"));
	if (map != NULL)
		array = jobq_results_put(map, &refs, MaxAllocSize, &size);

	if (array == NULL || !JB_ROOT_IS_ARRAY(array) || JB_ROOT_IS_SCALAR(array))
	{
		error->sqlerrcode = ERRCODE_INVALID_PARAMETER_VALUE;
		error->message = psprintf("\"map\" of step \"%s\" needs an array, and got %s",
								  step->name,
								  array == NULL ? "nothing" : JB_ROOT_IS_SCALAR(array)
								  ? psprintf("the %s %s", JsonbTypeName(getIthJsonbValueFromContainer(&array->root, 0)),
											 jobq_cut_text(JsonbToCString(NULL, &array->root, VARSIZE(array)), 100))
								  : "an object");
		error->hint = "\"map\" refers to the result of an earlier step, or to a part of the result. Return an array there.";
		return NULL;
	}
	if (JB_ROOT_COUNT(array) > JOBQ_MAX_STEPS)
	{
		error->sqlerrcode = ERRCODE_PROGRAM_LIMIT_EXCEEDED;
		error->message = psprintf("the array of %u elements for \"map\" of step \"%s\" has more than the allowed %d",
								  (unsigned) JB_ROOT_COUNT(array), step->name, JOBQ_MAX_STEPS);
		error->hint = "Return an array of slices, and have each job do a slice.";
		return NULL;
	}
	return array;
}

/*
 * Like read_array().  The array of the step used last is kept until the end of the evaluation,
 * because a rerun frees many elements of the same step.
 */
static Jsonb *
get_array(StepContext *context, const JobqStep *step, JobqError *error)
{
	MemoryContext old;

	if (context->array_of == step)
		return context->array;
	MemoryContextReset(context->array_memory);
	old = MemoryContextSwitchTo(context->array_memory);
	context->array = read_array(context, step, error);
	context->array_of = context->array != NULL ? step : NULL;
	MemoryContextSwitchTo(old);
	return context->array;
}

/*
 * Create jobs for the next elements of the array.
 */
static StepDone
fan_out(StepContext *context, JobqStep *step)
{
	static const Oid types[] = {INT8OID, INT4OID};
	static SPIPlanPtr plan = NULL;
	JobqJob		job;
	JobqError	error;
	Jsonb	   *array;
	int			n;

	if (!step_take_row(context, step, &job))
		return STEP_DONE_NOTHING;
	array = get_array(context, step, &error);
	if (array == NULL)
	{
		step_fail(context, step, &job, &error);
		return STEP_DONE_ALL;
	}
	n = (int) JB_ROOT_COUNT(array);
	if (step->nelements != n)
	{
		Datum		values[] = {Int64GetDatum(step->job_id), Int32GetDatum(n)};

		jobq_query_kept(&plan, "UPDATE jobq_internal.step SET elements = $2 WHERE job_id = $1",
						2, types, values, NULL, SPI_OK_UPDATE);
		step->nelements = n;
	}
	if (!put_elements(context, step, &job, array, Min(n - step->nwritten, PIECE),
					  &error))
	{
		step_fail(context, step, &job, &error);
		return STEP_DONE_ALL;
	}
	jobq_job_insert(context->rel, &job);
	return step->nwritten < n || n == 0 ? STEP_DONE_SOME : STEP_DONE_SO_FAR;
}

/*
 * Write up to n more element jobs and their rows in jobq_internal.step: at least one,
 * and more as time allows.  Returns false if a payload is invalid, and sets *error; the
 * elements before are written.
 */
static bool
put_elements(StepContext *context, JobqStep *step, const JobqJob *job, Jsonb *array,
			 int n, JobqError *error)
{
	Jsonb	   *template = DatumGetJsonbP(JOB(job, JOB_PAYLOAD));
	int64	   *ids = palloc(sizeof(int64) * Max(n, 1));
	int			done = 0;
	int64		passed = share_passed();
	bool		good = true;
	MemoryContext one = AllocSetContextCreate(CurrentMemoryContext,
											  "jobq element",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(one);

	for (; done < n && (done == 0 || !share_over_from(passed)); done++)
	{
		int			place = step->nwritten + done;
		JobqJob		element = *job;
		Jsonb	   *payload;

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(one);
		payload =
			JsonbValueToJsonb(getIthJsonbValueFromContainer(&array->root, place));
		payload = step_payload(context, template, payload, place, error);
		if (payload == NULL)
		{
			error->message = MemoryContextStrdup(old, error->message);
			good = false;
			break;
		}
		ids[done] = jobq_next_id();
		JOB_SET(&element, JOB_ID, Int64GetDatum(ids[done]));
		JOB_SET(&element, JOB_ENQUEUED_AT, TimestampTzGetDatum(jobq_now()));
		JOB_SET(&element, JOB_PAYLOAD, JsonbPGetDatum(payload));
		jobq_length_add(job_queue_id(&element), 1);
		jobq_count(&element, JOBQ_N_ENQUEUED, 1);
		jobq_job_free(context->rel, &element);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(one);
	put_rows(context, step, ids, done);
	jobq_steps_grow(context->workflow, step, ids, done);
	pfree(ids);
	return good;
}

/*
 * Insert the rows of jobq_internal.step for the next n elements.
 */
static void
put_rows(StepContext *context, const JobqStep *step, const int64 *ids, int n)
{
	Relation	rel = jobq_open_table(JOBQ_STEP_TABLE, RowExclusiveLock);
	HeapTuple  *tuples = palloc(sizeof(HeapTuple) * Max(n, 1));
	Datum		none = PointerGetDatum(construct_empty_array(INT8OID));

	for (int i = 0; i < n; i++)
	{
		Datum		values[STEP_NATTS] = {0};
		bool		nulls[STEP_NATTS];

		memset(nulls, true, sizeof(nulls));
#define SET_STEP(column, value) \
	(values[(column) - 1] = (value), nulls[(column) - 1] = false)
		SET_STEP(STEP_JOB_ID, Int64GetDatum(ids[i]));
		SET_STEP(STEP_BATCH_ID, Int64GetDatum(context->batch_id));
		SET_STEP(STEP_NAME, CStringGetTextDatum(psprintf("%s[%d]", step->name,
														 step->nwritten + i)));
		SET_STEP(STEP_NEEDS, none);
		SET_STEP(STEP_ELEMENT_OF, Int64GetDatum(step->job_id));
		SET_STEP(STEP_ELEMENT, Int32GetDatum(step->nwritten + i));
		SET_STEP(STEP_OPTIONAL, BoolGetDatum(step->optional));
		SET_STEP(STEP_CONDITIONAL, BoolGetDatum(false));
		tuples[i] = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	}
	jobq_insert_tuples(rel, tuples, n);
	table_close(rel, NoLock);
}

/*
 * Build the payload of an element whose job is created again.  Returns NULL on an
 * error, and sets *error.
 */
Jsonb *
map_payload(StepContext *context, const JobqStep *element, Jsonb *template,
			JobqError *error)
{
	const JobqStep *step = element->mapper;
	Jsonb	   *array = get_array(context, step, error);

	if (array == NULL)
		return NULL;
	if (element->place >= (int) JB_ROOT_COUNT(array))
	{
		error->sqlerrcode = ERRCODE_INVALID_PARAMETER_VALUE;
		error->message = psprintf("the array for \"map\" of step \"%s\" has no element %d any more",
								  step->name, element->place);
		return NULL;
	}
	return step_payload(context, template,
						JsonbValueToJsonb(getIthJsonbValueFromContainer(&array->root, element->place)),
						element->place, error);
}

/*
 * Complete the step with the array of results, after all elements are over.
 */
static StepDone
fan_in(StepContext *context, JobqStep *step)
{
	JobqJob		job;
	JobqError	error;
	Jsonb	   *results;

	if (!step_take_row(context, step, &job))
		return STEP_DONE_NOTHING;
	results = collect(context, step, &error);
	if (results == NULL)
	{
		step_fail(context, step, &job, &error);
		return STEP_DONE_ALL;
	}
	jobq_archive(&job, CAUSE_COMPLETED, DT_NOBEGIN, true,
				 JsonbPGetDatum(results), NULL);
	step->state = STATE_COMPLETED;
	return STEP_DONE_ALL;
}

/*
 * Build the array of results, with null for an element without a result.  Returns NULL
 * on an error, and sets *error.
 */
static Jsonb *
collect(const StepContext *context, const JobqStep *step, JobqError *error)
{
	static const Oid types[] = {INT8ARRAYOID};
	static SPIPlanPtr plan = NULL;
	Size		max_size = step_max_size();
	Size		size = VARHDRSZ;
	Jsonb	  **results = palloc0(sizeof(Jsonb *) * Max(step->nwritten, 1));
	Datum	   *ids = palloc(sizeof(Datum) * RESULTS_PIECE);
	JsonbParseState *state = NULL;
	Jsonb	   *array;
	const char *what;

	for (int from = 0; from < step->nwritten && size <= max_size;)
	{
		int			n = Min(step->nwritten - from, RESULTS_PIECE);
		Datum		value;
		uint64		nrows;

		for (int i = 0; i < n; i++)
			ids[i] = Int64GetDatum(step->elements[from + i]->job_id);
		value = jobq_int8_array(ids, n);
		nrows = jobq_query_kept(&plan, "SELECT id, result FROM jobq_internal.archive WHERE id = ANY ($1)"
								" AND result IS NOT NULL"
								" UNION ALL SELECT job_id, result FROM jobq_internal.step WHERE job_id = ANY ($1)"
								" AND state IS NOT NULL AND result IS NOT NULL",
								1, types, &value, NULL, SPI_OK_SELECT);
		for (uint64 i = 0; i < nrows && size <= max_size; i++)
		{
			HeapTuple	row = SPI_tuptable->vals[i];
			int64		id = DatumGetInt64(jobq_column(row, SPI_tuptable->tupdesc, 1, INT8OID, NULL));
			JobqStep   *element = jobq_step_of_job(context->workflow, id);

			/* a subscriber's copy in jobq_internal.step is identical */
			if (element == NULL || element->mapper != step ||
				results[element->place] != NULL)
				continue;
			value = jobq_column(row, SPI_tuptable->tupdesc, 2, JSONBOID, NULL);
			size += toast_raw_datum_size(value);
			if (size <= max_size)
				results[element->place] = DatumGetJsonbPCopy(value);
		}
		SPI_freetuptable(SPI_tuptable);
		from += n;
	}
	what = psprintf("results of the elements of step \"%s\"", step->name);
	if (size > max_size)
	{
		(void) step_results_fit(NULL, what, error);
		return NULL;
	}

	pushJsonbValue(&state, WJB_BEGIN_ARRAY, NULL);
	for (int i = 0; i < step->nwritten; i++)
	{
		JsonbValue	value = {.type = jbvNull};

		if (results[i] != NULL)
		{
			value.type = jbvBinary;
			value.val.binary.data = &results[i]->root;
			value.val.binary.len = VARSIZE(results[i]) - VARHDRSZ;
		}
		pushJsonbValue(&state, WJB_ELEM, &value);
	}
	array = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_ARRAY, NULL));
	return step_results_fit(array, what, error) ? array : NULL;
}
