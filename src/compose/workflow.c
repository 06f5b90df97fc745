/*-------------------------------------------------------------------------
 *
 * workflow.c
 *	  Definition of workflows: create_workflow(), add_steps().
 *
 * A workflow is a batch with steps.  A step is a job, blocked until its needs are
 * completed.  The defining transaction writes all rows.  The scheduler frees the steps
 * (worker/scheduler/workflows.c).
 *
 * add_steps() works the same way.  The workflow cannot end before the added steps exist, as
 * with jobs added to any batch (add_jobs.c).  The scheduler is notified at commit, and at
 * once frees the added steps whose needs are over.
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

PG_FUNCTION_INFO_V1(jobq_create_workflow);
PG_FUNCTION_INFO_V1(jobq_add_steps);

/* The index that makes step names unique. */
#define STEP_NAME_INDEX	"step_name"

static void put_rows(Workflow *workflow, int64 batch_id);
static int64 put_inner(Workflow *workflow, int64 batch_id, JobqJob *job, bool pending);

/*
 * Return the job id of the step with this index.
 */
static int64
need_of(const Workflow *workflow, int place)
{
	return place < workflow->nsteps ? job_id(&workflow->steps[place].job)
		: workflow->known[place - workflow->nsteps].job_id;
}

/*
 * Make the jobs of the steps, including nested workflows.  The job that represents a nested
 * workflow is made after the jobs of its steps.  Nothing is written to the tables yet.
 */
static void
prepare_steps(Workflow *workflow)
{
	for (int i = 0; i < workflow->nsteps; i++)
	{
		NewStep    *step = &workflow->steps[i];

		CHECK_FOR_INTERRUPTS();
		if (step->inner == NULL)
		{
			jobq_spec_prepare(&step->spec, &step->job, &step->unique);
			step->definition = jobq_spec_kept(step->definition, &step->spec,
											  &step->job);
			continue;
		}
		prepare_steps(step->inner);
		nest_prepare(&step->job, &step->inner->steps[0].job, &step->spec);
		step->definition = nest_kept(step->definition, &step->spec, &step->job);
	}
}

/*
 * Enqueue the steps as jobs of the batch.  pending: the batch has not begun, so all steps
 * are blocked.
 */
static void
put_steps(Workflow *workflow, int64 batch_id, bool pending)
{
	for (int i = 0; i < workflow->nsteps; i++)
	{
		NewStep    *step = &workflow->steps[i];

		JOB_SET(&step->job, JOB_BATCH_ID, Int64GetDatum(batch_id));
		if (step->inner != NULL)
			step->inner_id = put_inner(step->inner, batch_id, &step->job, true);
		else if (step->nneeds > 0 || pending)
			jobq_job_block(&step->job, step->spec.options, step->spec.nulls);
		jobq_put_job(&step->job, &step->unique);
	}
	put_rows(workflow, batch_id);
}

/*
 * Enqueue a nested workflow.  job: the job that will represent the workflow in the outer
 * batch.  Returns the id of the new batch.
 */
static int64
put_inner(Workflow *workflow, int64 batch_id, JobqJob *job, bool pending)
{
	int64		id;

	jobq_job_draw_id(job);
	workflow->batch.has_steps = true;
	workflow->batch.started = !pending;
	workflow->batch.parent = batch_id;
	workflow->batch.parent_job = job_id(job);
	id = batch_insert(&workflow->batch);
	nest_set_inner(job, id);
	put_steps(workflow, id, pending);
	return id;
}

/*
 * Enqueue a workflow.  If the argument with index batch_arg is not null, the workflow
 * becomes a part of this batch.  Returns the id of the new batch.
 */
static int64
put_workflow(Workflow *workflow, FunctionCallInfo fcinfo, int batch_arg)
{
	BatchState	batch;
	int64		parent;
	int64		id;
	bool		inside;
	bool		pending;
	JobqJob		job;
	JobqSpec	spec;
	JobqUnique	unique = {0};

	if (PG_ARGISNULL(batch_arg))
	{
		workflow->batch.has_steps = workflow->batch.started = true;
		id = batch_insert(&workflow->batch);
		prepare_steps(workflow);
		put_steps(workflow, id, false);
		return id;
	}

	parent = PG_GETARG_INT64(batch_arg);
	inside = batch_open_to_add(parent, &batch);
	batch_check_begun(parent, &batch);
	pending = batch.state == BATCH_PENDING;
	prepare_steps(workflow);
	memset(spec.nulls, true, sizeof(spec.nulls));
	nest_prepare(&job, &workflow->steps[0].job, &spec);
	JOB_SET(&job, JOB_BATCH_ID, Int64GetDatum(parent));
	id = put_inner(workflow, parent, &job, pending);
	jobq_put_job(&job, &unique);
	if (!pending && !inside)
		jobq_at_commit_batch(parent, 0, false);
	return id;
}

/*
 * Return the nesting level of a workflow within the batch in argument batch_arg, or 1 if
 * the argument is null.  ERROR if the level exceeds MAX_LEVELS.
 */
static int
level_in(FunctionCallInfo fcinfo, int batch_arg)
{
	int			level = 1;

	if (!PG_ARGISNULL(batch_arg))
		level += nest_level(PG_GETARG_INT64(batch_arg));
	if (level > MAX_LEVELS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a workflow in batch " INT64_FORMAT " would be on level %d, deeper than the allowed %d",
						PG_GETARG_INT64(batch_arg), level, MAX_LEVELS)));
	return level;
}

/*
 * Insert the rows of jobq_internal.step.
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
			jobq_int8_array(needs, step->nneeds);
		nulls[STEP_STATE - 1] = nulls[STEP_RESULT - 1] = true;
		nulls[STEP_ELEMENT - 1] = nulls[STEP_ELEMENT_OF - 1] = true;
		nulls[STEP_ELEMENTS - 1] = step->map == NULL;
		values[STEP_ELEMENTS - 1] = Int32GetDatum(JOBQ_UNKNOWN_ELEMENTS);
		values[STEP_OPTIONAL - 1] = BoolGetDatum(step->optional);
		values[STEP_CONDITIONAL - 1] = BoolGetDatum(step->conditional);
		values[STEP_WORKFLOW_ID - 1] = Int64GetDatum(step->inner_id);
		nulls[STEP_WORKFLOW_ID - 1] = step->inner == NULL;
		values[STEP_DEFINITION - 1] = JsonbPGetDatum(step->definition);
		tuples[i] = heap_form_tuple(RelationGetDescr(rel), values, nulls);
		pfree(needs);
	}
	jobq_insert_tuples(rel, tuples, workflow->nsteps);
	table_close(rel, NoLock);
}

/*
 * SQL function create_workflow(definition, batch).  Returns the id of the batch.
 */
Datum
jobq_create_workflow(PG_FUNCTION_ARGS)
{
	Workflow	workflow = {.chain = false};

	PreventCommandIfReadOnly("jobq.create_workflow()");
	jobq_not_null(fcinfo, 0, "definition");
	workflow.level = level_in(fcinfo, 1);
	workflow_read_definition(&workflow, PG_GETARG_JSONB_P(0));
	PG_RETURN_INT64(put_workflow(&workflow, fcinfo, 1));
}

/*
 * Return the ids of the steps' jobs as an array.
 */
static Datum
ids_of(const Workflow *workflow)
{
	Datum	   *ids = palloc(sizeof(Datum) * workflow->nsteps);

	for (int i = 0; i < workflow->nsteps; i++)
		ids[i] = JOB(&workflow->steps[i].job, JOB_ID);
	return jobq_int8_array(ids, workflow->nsteps);
}

/*
 * Enqueue added steps.  If another open transaction has added a step of the same name, the
 * insertion waits for its end.  ERROR if the other transaction commits.
 */
static void
put_added(Workflow *workflow, bool pending)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		put_steps(workflow, workflow->batch_id, pending);
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
 * SQL function add_steps(batch_id, steps, options).  Returns the ids of the jobs.
 */
Datum
jobq_add_steps(PG_FUNCTION_ARGS)
{
	Workflow	workflow = {.chain = false};
	BatchState	batch;

	PreventCommandIfReadOnly("jobq.add_steps()");
	PreventCommandIfParallelMode("jobq.add_steps()");
	jobq_not_null(fcinfo, 0, "batch_id");
	jobq_not_null(fcinfo, 1, "steps");
	workflow.batch_id = PG_GETARG_INT64(0);
	(void) batch_open_to_add(workflow.batch_id, &batch);
	if (!batch.has_steps)
		batch_wrong_state(workflow.batch_id, "has no steps",
						  "Only workflows and chains have. Use jobq.add_jobs().");

	/* the steps also belong to this role when they are made anew */
	if (batch.role != GetUserId())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to add steps to workflow " INT64_FORMAT,
						workflow.batch_id),
				 errhint("Its steps are jobs of the role \"%s\". Use SET ROLE.",
						 GetUserNameFromId(batch.role, true))));
	if (!PG_ARGISNULL(2))
		workflow_read_options(&workflow, PG_GETARG_JSONB_P(2));
	workflow.level = nest_level(workflow.batch_id);
	workflow_read(&workflow, PG_GETARG_JSONB_P(1));
	prepare_steps(&workflow);
	put_added(&workflow, batch.state == BATCH_PENDING);
	PG_RETURN_DATUM(ids_of(&workflow));
}
