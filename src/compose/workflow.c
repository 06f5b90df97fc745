/*-------------------------------------------------------------------------
 *
 * workflow.c
 *	  Defining workflows: workflow(), chain(), workflow_add().
 *
 * A workflow is a batch that has steps: jobs of which some are blocked until
 * those that they need are completed.  All of it is written by the transaction
 * that defines it.  The scheduler frees a step when its time has come
 * (worker/scheduler/workflows.c).
 *
 * Steps are added in the same way.  The workflow does not end before they are there, as
 * with jobs of any batch (batch.c); the scheduler hears of them at commit, and frees
 * those at once whose needs are over already.
 *
 * src/compose/workflow.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "commit/commit.h"
#include "compose/inner.h"
#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_workflow);
PG_FUNCTION_INFO_V1(jobq_chain);
PG_FUNCTION_INFO_V1(jobq_workflow_add);

/* The index by which names are unique. */
#define STEP_NAME_INDEX	"step_name"

#define NCALLBACKS		3

/* The callbacks, in the order of jobq_batch_insert(). */
static const char *const callback_names[NCALLBACKS] = {
	"on_success", "on_failure", "on_finish"
};

static int64 need_of(const Workflow *workflow, int place);
static void put_steps(Workflow *workflow, int64 batch_id);
static void put_rows(Workflow *workflow, int64 batch_id);
static Datum ids_of(const Workflow *workflow);
static void put_added(Workflow *workflow);

/*
 * The job of the step at that place.
 */
static int64
need_of(const Workflow *workflow, int place)
{
	return place < workflow->nsteps ? job_id(&workflow->steps[place].job)
		: workflow->known[place - workflow->nsteps].job_id;
}

/*
 * Enqueue the steps as jobs of the batch.
 */
static void
put_steps(Workflow *workflow, int64 batch_id)
{
	for (int i = 0; i < workflow->nsteps; i++)
	{
		NewStep    *step = &workflow->steps[i];
		JobqUnique	unique;

		jobq_spec_prepare(&step->spec, &step->job, &unique);
		step->definition = jobq_spec_kept(step->definition, &step->spec,
										  &step->job);
		JOB_SET(&step->job, JOB_BATCH_ID, Int64GetDatum(batch_id));
		if (step->nneeds > 0)
			jobq_job_block(&step->job, step->spec.options, step->spec.nulls);
		jobq_put_job(&step->job, &unique);
	}
	put_rows(workflow, batch_id);
}

/*
 * The rows of jobq.step.
 */
static void
put_rows(Workflow *workflow, int64 batch_id)
{
	HeapTuple  *tuples = palloc(sizeof(HeapTuple) * workflow->nsteps);
	Relation	rel;

	rel = jobq_open_table(JOBQ_STEP_TABLE, RowExclusiveLock);
	for (int i = 0; i < workflow->nsteps; i++)
	{
		NewStep    *step = &workflow->steps[i];
		Datum		values[STEP_NATTS];
		bool		nulls[STEP_NATTS] = {0};
		Datum	   *needs = palloc(sizeof(Datum) * (step->nneeds + 1));

		for (int j = 0; j < step->nneeds; j++)
			needs[j] = Int64GetDatum(need_of(workflow, step->needs[j]));
		values[STEP_JOB_ID - 1] = JOB(&step->job, JOB_ID);
		values[STEP_BATCH_ID - 1] = Int64GetDatum(batch_id);
		values[STEP_NAME - 1] = CStringGetTextDatum(step->name);
		values[STEP_NEEDS - 1] =
			PointerGetDatum(construct_array(needs, step->nneeds, INT8OID, 8,
											FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
		nulls[STEP_STATE - 1] = nulls[STEP_RESULT - 1] = true;
		nulls[STEP_ELEMENT - 1] = nulls[STEP_ELEMENT_OF - 1] = true;
		nulls[STEP_ELEMENTS - 1] = step->map == NULL;
		values[STEP_ELEMENTS - 1] = Int32GetDatum(JOBQ_UNKNOWN_ELEMENTS);
		values[STEP_OPTIONAL - 1] = BoolGetDatum(step->optional);
		values[STEP_CONDITIONAL - 1] = BoolGetDatum(step->conditional);
		values[STEP_DEFINITION - 1] = JsonbPGetDatum(step->definition);
		tuples[i] = heap_form_tuple(RelationGetDescr(rel), values, nulls);
		pfree(needs);
	}
	jobq_insert_tuples(rel, tuples, workflow->nsteps);
	table_close(rel, NoLock);
}

/*
 * workflow(definition) returns the id of the batch.
 */
Datum
jobq_workflow(PG_FUNCTION_ARGS)
{
	Workflow	workflow = {.chain = false};
	Datum		name = (Datum) 0;
	Datum		callbacks[NCALLBACKS] = {0};
	bool		nulls[NCALLBACKS];
	bool		allow_failures = false;
	Jsonb	   *definition;
	Jsonb	   *steps = NULL;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;
	int64		id;

	PreventCommandIfReadOnly("jobq.workflow()");
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("definition must not be null")));
	definition = PG_GETARG_JSONB_P(0);
	if (!JB_ROOT_IS_OBJECT(definition))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("definition must be an object"),
				 errhint("Write {\"steps\": [{\"name\": \"...\", \"kind\": \"...\", \"needs\": [\"...\"]}, ...]}.")));
	memset(nulls, true, sizeof(nulls));
	it = JsonbIteratorInit(&definition->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *key;
		int			callback = 0;

		if (token != WJB_KEY)
			continue;
		key = pnstrdup(value.val.string.val, value.val.string.len);
		(void) JsonbIteratorNext(&it, &value, true);
		while (callback < NCALLBACKS &&
			   strcmp(key, callback_names[callback]) != 0)
			callback++;
		if (strcmp(key, "steps") == 0)
			steps = JsonbValueToJsonb(&value);
		else if (strcmp(key, "name") != 0 &&
				 strcmp(key, "options") != 0 &&
				 strcmp(key, "allow_failures") != 0 &&
				 callback == NCALLBACKS)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unknown key \"%s\" in the definition of a workflow",
							key),
					 errhint("The keys are name, steps, options, on_success, on_failure, on_finish, allow_failures.")));
		else if (value.type == jbvNull)
			continue;
		else if (callback < NCALLBACKS)
		{
			callbacks[callback] = JsonbPGetDatum(JsonbValueToJsonb(&value));
			nulls[callback] = false;
		}
		else if (strcmp(key, "options") == 0)
			workflow_read_options(&workflow, JsonbValueToJsonb(&value));
		else if (strcmp(key, "name") == 0)
		{
			if (value.type != jbvString)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("\"name\" of a workflow must be a string")));
			name = PointerGetDatum(cstring_to_text_with_len(value.val.string.val,
															value.val.string.len));
		}
		else
		{
			if (value.type != jbvBool)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("\"allow_failures\" of a workflow must be true or false")));
			allow_failures = value.val.boolean;
		}
	}
	if (steps == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the definition of a workflow has no \"steps\"")));
	workflow_read_steps(&workflow, steps);
	id = jobq_batch_insert(name, callbacks, nulls, allow_failures, true, true);
	put_steps(&workflow, id);
	PG_RETURN_INT64(id);
}

/*
 * chain(steps, on_failure, on_success, on_finish, name, options) returns the ids of
 * the jobs.
 */
Datum
jobq_chain(PG_FUNCTION_ARGS)
{
	static const int args[NCALLBACKS] = {2, 1, 3};	/* as in callback_names */
	Workflow	workflow = {.chain = true};
	Datum		callbacks[NCALLBACKS];
	bool		nulls[NCALLBACKS];

	PreventCommandIfReadOnly("jobq.chain()");
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("steps must not be null")));
	for (int i = 0; i < NCALLBACKS; i++)
	{
		nulls[i] = PG_ARGISNULL(args[i]);
		callbacks[i] = nulls[i] ? (Datum) 0 : PG_GETARG_DATUM(args[i]);
	}
	if (!PG_ARGISNULL(5))
		workflow_read_options(&workflow, PG_GETARG_JSONB_P(5));
	workflow_read_steps(&workflow, PG_GETARG_JSONB_P(0));
	put_steps(&workflow,
			  jobq_batch_insert(PG_ARGISNULL(4) ? (Datum) 0
								: PointerGetDatum(PG_GETARG_TEXT_PP(4)),
								callbacks, nulls, false, true, true));
	PG_RETURN_DATUM(ids_of(&workflow));
}

/*
 * The ids of the steps' jobs.
 */
static Datum
ids_of(const Workflow *workflow)
{
	Datum	   *ids = palloc(sizeof(Datum) * workflow->nsteps);

	for (int i = 0; i < workflow->nsteps; i++)
		ids[i] = JOB(&workflow->steps[i].job, JOB_ID);
	return PointerGetDatum(construct_array(ids, workflow->nsteps, INT8OID, 8,
										   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/*
 * Enqueue steps that are added.  Another transaction may have added one of the same name,
 * or be about to: then this waits until it is over.
 */
static void
put_added(Workflow *workflow)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		put_steps(workflow, workflow->batch_id);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (edata->sqlerrcode != ERRCODE_UNIQUE_VIOLATION ||
			edata->constraint_name == NULL ||
			strcmp(edata->constraint_name, STEP_NAME_INDEX) != 0)
			PG_RE_THROW();
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("another transaction has added a step of the same name to workflow " INT64_FORMAT,
						workflow->batch_id),
				 edata->detail == NULL ? 0 : errdetail_internal("%s", edata->detail)));
	}
	PG_END_TRY();

	for (int i = 0; i < workflow->nsteps; i++)
		jobq_at_commit_step(workflow->batch_id, job_id(&workflow->steps[i].job));
}

/*
 * workflow_add(batch_id, steps, options) returns the ids of the jobs.
 */
Datum
jobq_workflow_add(PG_FUNCTION_ARGS)
{
	Workflow	workflow = {.chain = false};
	Batch		batch;

	PreventCommandIfReadOnly("jobq.workflow_add()");
	PreventCommandIfParallelMode("jobq.workflow_add()");
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", PG_ARGISNULL(0) ? "batch_id" : "steps")));
	workflow.batch_id = PG_GETARG_INT64(0);
	(void) batch_open_to_add(workflow.batch_id, &batch);
	if (!batch.has_steps)
		batch_wrong_state(workflow.batch_id, "has no steps",
						  "Only workflows and chains have. Use jobq.batch_add().");

	/* they are his also when they are made anew from their definitions */
	if (batch.role != GetUserId())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to add steps to workflow " INT64_FORMAT,
						workflow.batch_id),
				 errhint("Its steps are jobs of the role \"%s\". Use SET ROLE.",
						 GetUserNameFromId(batch.role, true))));
	if (!PG_ARGISNULL(2))
		workflow_read_options(&workflow, PG_GETARG_JSONB_P(2));
	workflow_read_steps(&workflow, PG_GETARG_JSONB_P(1));
	put_added(&workflow);
	PG_RETURN_DATUM(ids_of(&workflow));
}
