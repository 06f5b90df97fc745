/*-------------------------------------------------------------------------
 *
 * workflow.c
 *	  Defining workflows: workflow(), chain().
 *
 * A workflow is a batch that has steps: jobs of which some are blocked until
 * those that they need are completed.  All of it is written by the transaction
 * that defines it.  The scheduler frees a step when its time has come
 * (worker/scheduler/workflows.c).
 *
 * src/compose/workflow.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/rel.h"

#include "compose/compose.h"
#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_workflow);
PG_FUNCTION_INFO_V1(jobq_chain);

#define MAX_STEP_NAME	127
#define NCALLBACKS		3

/* A step in the making. */
typedef struct NewStep
{
	char	   *name;
	char	   *what;			/* the same for messages */
	Jsonb	   *definition;
	Jsonb	   *needs_json;		/* or NULL */
	int		   *needs;			/* places in the array of steps */
	int			nneeds;
	int			waits;			/* needs that have not been put in order yet */
	int			mark;			/* the search that has met it last */
	JobqSpec	spec;
	JobqJob		job;
} NewStep;

typedef struct Workflow
{
	bool		chain;
	int			nsteps;
	NewStep    *steps;
	HTAB	   *names;
	int			nsearches;
	int		   *stack;			/* room for the places of all steps */
} Workflow;

typedef struct NameEntry
{
	char		name[MAX_STEP_NAME + 1];	/* hash key */
	int			place;
} NameEntry;

/* The callbacks, in the order of jobq_batch_insert(). */
static const char *const callback_names[NCALLBACKS] = {
	"on_success", "on_failure", "on_finish"
};

static void read_steps(Workflow *workflow, Jsonb *array);
static void read_name(Workflow *workflow, NewStep *step, int number);
static void add_name(Workflow *workflow, int place);
static int	find_name(const Workflow *workflow, const char *name);
static void read_needs(Workflow *workflow, int place);
static void check_cycles(Workflow *workflow);
static void report_cycle(Workflow *workflow);
static void check_results(Workflow *workflow, NewStep *step);
static bool step_needs(Workflow *workflow, NewStep *step, int place);
static void put_steps(Workflow *workflow, int64 batch_id);

/*
 * Read and check the steps.
 */
static void
read_steps(Workflow *workflow, Jsonb *array)
{
	static const char *const more_keys[] = {"name", "needs", NULL};
	HASHCTL		info = {
		.keysize = MAX_STEP_NAME + 1,
		.entrysize = sizeof(NameEntry),
		.hcxt = CurrentMemoryContext
	};
	int			n;

	if (!JB_ROOT_IS_ARRAY(array) || JB_ROOT_IS_SCALAR(array))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("steps must be an array"),
				 workflow->chain
				 ? errhint("Write [{\"kind\": \"...\", \"payload\": {...}}, ...].")
				 : errhint("Write [{\"name\": \"...\", \"kind\": \"...\", \"needs\": [\"...\"]}, ...].")));
	n = JB_ROOT_COUNT(array);
	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a %s must have steps",
						workflow->chain ? "chain" : "workflow")));
	if (n > JOBQ_MAX_STEPS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a %s of %d steps has more than the allowed %d",
						workflow->chain ? "chain" : "workflow", n,
						JOBQ_MAX_STEPS),
				 errhint("A step can add jobs to the batch with jobq.batch_add().")));

	workflow->nsteps = n;
	workflow->steps = palloc0(sizeof(NewStep) * n);
	workflow->stack = palloc(sizeof(int) * n);
	workflow->names = hash_create("jobq step names", n, &info,
								  HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	for (int i = 0; i < n; i++)
	{
		NewStep    *step = &workflow->steps[i];

		step->definition =
			JsonbValueToJsonb(getIthJsonbValueFromContainer(&array->root, i));
		if (!JB_ROOT_IS_OBJECT(step->definition))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("step %d must be an object", i + 1),
					 errhint("Write {\"kind\": \"...\", \"payload\": {...}}.")));
		if (workflow->chain)
			step->name = psprintf("%d", i + 1);
		else
			read_name(workflow, step, i + 1);
		step->what = psprintf("step \"%s\"", step->name);
		add_name(workflow, i);
		jobq_spec_parse(step->definition, step->what,
						workflow->chain ? NULL : more_keys, &step->spec);
		if (!step->spec.nulls[OPTION_UNIQUE_KEY] ||
			!step->spec.nulls[OPTION_UNIQUE_BY])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s must not have a %s", step->what,
							step->spec.nulls[OPTION_UNIQUE_BY] ? "unique_key" : "unique_by"),
					 errhint("Each step is a job of its own, which others wait for.")));
	}
	for (int i = 0; i < n; i++)
		read_needs(workflow, i);
	if (!workflow->chain)
		check_cycles(workflow);
	for (int i = 0; i < n; i++)
		check_results(workflow, &workflow->steps[i]);
}

static void
read_name(Workflow *workflow, NewStep *step, int number)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(&step->definition->root, "name", 4,
									 &value) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("step %d has no \"name\"", number)));
	if (value.type != jbvString)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"name\" of step %d must be a string", number)));
	step->name = pnstrdup(value.val.string.val, value.val.string.len);
	if (step->name[0] == '\0' || strlen(step->name) > MAX_STEP_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("step name \"%s\" must have 1 to %d bytes", step->name,
						MAX_STEP_NAME)));
}

static void
add_name(Workflow *workflow, int place)
{
	bool		found;
	NameEntry  *entry = hash_search(workflow->names,
									workflow->steps[place].name, HASH_ENTER,
									&found);

	if (found)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("steps %d and %d are both named \"%s\"",
						entry->place + 1, place + 1, entry->name)));
	entry->place = place;
}

/*
 * The place of the step, or -1.
 */
static int
find_name(const Workflow *workflow, const char *name)
{
	NameEntry  *entry;

	/* a longer one would be cut off */
	if (strlen(name) > MAX_STEP_NAME)
		return -1;
	entry = hash_search(workflow->names, name, HASH_FIND, NULL);
	return entry == NULL ? -1 : entry->place;
}

/*
 * Which steps this one needs.
 */
static void
read_needs(Workflow *workflow, int place)
{
	NewStep    *step = &workflow->steps[place];
	JsonbValue	value;
	JsonbContainer *array;

	if (workflow->chain)
	{
		step->nneeds = place > 0 ? 1 : 0;
		step->needs = palloc(sizeof(int));
		step->needs[0] = place - 1;
		return;
	}
	if (getKeyJsonValueFromContainer(&step->definition->root, "needs", 5,
									 &value) == NULL || value.type == jbvNull)
		return;
	if (value.type != jbvBinary ||
		!JsonContainerIsArray(value.val.binary.data))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"needs\" of %s must be an array of names", step->what)));
	array = value.val.binary.data;
	step->needs = palloc(sizeof(int) * (JsonContainerSize(array) + 1));
	for (int i = 0; i < (int) JsonContainerSize(array); i++)
	{
		JsonbValue *elem = getIthJsonbValueFromContainer(array, i);
		char	   *name;
		int			need;
		bool		again = false;

		if (elem->type != jbvString)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"needs\" of %s must be an array of names",
							step->what)));
		name = pnstrdup(elem->val.string.val, elem->val.string.len);
		need = find_name(workflow, name);
		if (need < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s needs \"%s\", which is no step of the workflow",
							step->what, name)));
		for (int j = 0; j < step->nneeds && !again; j++)
			again = step->needs[j] == need;
		if (!again)
			step->needs[step->nneeds++] = need;
	}
}

/*
 * An error if steps need each other in a circle, so that none could begin.
 */
static void
check_cycles(Workflow *workflow)
{
	int			n = workflow->nsteps;
	int			nedges = 0;
	int			nready = 0;
	int		   *ready = palloc(sizeof(int) * n);
	int		   *first = palloc0(sizeof(int) * (n + 1));
	int		   *users;

	/* who needs a step: users[first[step]] to users[first[step + 1] - 1] */
	for (int i = 0; i < n; i++)
	{
		NewStep    *step = &workflow->steps[i];

		step->waits = step->nneeds;
		nedges += step->nneeds;
		for (int j = 0; j < step->nneeds; j++)
			first[step->needs[j]]++;
		if (step->nneeds == 0)
			ready[nready++] = i;
	}
	users = palloc(sizeof(int) * (nedges + 1));
	for (int i = 1; i <= n; i++)
		first[i] += first[i - 1];
	for (int i = 0; i < n; i++)
		for (int j = 0; j < workflow->steps[i].nneeds; j++)
			users[--first[workflow->steps[i].needs[j]]] = i;

	for (int done = 0; done < nready; done++)
		for (int j = first[ready[done]]; j < first[ready[done] + 1]; j++)
			if (--workflow->steps[users[j]].waits == 0)
				ready[nready++] = users[j];
	if (nready < n)
		report_cycle(workflow);
}

/*
 * Of the steps that are left, each needs another: go from need to need until
 * one comes again.
 */
static void
report_cycle(Workflow *workflow)
{
	StringInfoData names;
	int			at = 0;
	int			begin;

	while (workflow->steps[at].waits == 0)
		at++;
	workflow->nsearches++;
	while (workflow->steps[at].mark != workflow->nsearches)
	{
		NewStep    *step = &workflow->steps[at];
		int			need = 0;

		step->mark = workflow->nsearches;
		while (workflow->steps[step->needs[need]].waits == 0)
			need++;
		at = step->needs[need];
	}
	initStringInfo(&names);
	begin = at;
	do
	{
		NewStep    *step = &workflow->steps[at];
		int			need = 0;

		appendStringInfo(&names, "\"%s\" needs ", step->name);
		while (workflow->steps[step->needs[need]].waits == 0)
			need++;
		at = step->needs[need];
	} while (at != begin);
	appendStringInfo(&names, "\"%s\"", workflow->steps[begin].name);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("steps need each other in a circle: %s", names.data)));
}

/*
 * Results that the step takes must be those of steps that it needs, or that
 * those need.
 */
static void
check_results(Workflow *workflow, NewStep *step)
{
	List	   *names = jobq_result_refs(DatumGetJsonbP(step->spec.payload),
										 step->what);
	ListCell   *lc;

	foreach(lc, names)
	{
		char	   *name = lfirst(lc);
		int			place = find_name(workflow, name);

		CHECK_FOR_INTERRUPTS();
		if (place < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s takes the result of \"%s\", which is no step of the %s",
							step->what, name,
							workflow->chain ? "chain" : "workflow"),
					 workflow->chain
					 ? errhint("The steps of a chain are named \"1\", \"2\" and so on.")
					 : 0));
		if (!step_needs(workflow, step, place))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s takes the result of \"%s\", but does not come after it",
							step->what, name),
					 workflow->chain ? 0
					 : errhint("Add \"%s\" to its \"needs\".", name)));
	}
}

/*
 * Does the step need the one at that place, directly or not?  There are no
 * circles.
 */
static bool
step_needs(Workflow *workflow, NewStep *step, int place)
{
	int			n = 0;
	bool		found = false;

	workflow->nsearches++;
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < step->nneeds && !found; i++)
		{
			NewStep    *need = &workflow->steps[step->needs[i]];

			found = step->needs[i] == place;
			if (need->mark != workflow->nsearches)
			{
				need->mark = workflow->nsearches;
				workflow->stack[n++] = step->needs[i];
			}
		}
		if (found || n == 0)
			break;
		step = &workflow->steps[workflow->stack[--n]];
	}
	return found;
}

/*
 * Enqueue the steps as jobs of the batch.
 */
static void
put_steps(Workflow *workflow, int64 batch_id)
{
	Relation	rel;
	HeapTuple  *tuples = palloc(sizeof(HeapTuple) * workflow->nsteps);

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

	rel = jobq_open_table(JOBQ_STEP_TABLE, RowExclusiveLock);
	for (int i = 0; i < workflow->nsteps; i++)
	{
		NewStep    *step = &workflow->steps[i];
		Datum		values[STEP_NATTS];
		bool		nulls[STEP_NATTS] = {0};
		Datum	   *needs = palloc(sizeof(Datum) * (step->nneeds + 1));

		for (int j = 0; j < step->nneeds; j++)
			needs[j] = JOB(&workflow->steps[step->needs[j]].job, JOB_ID);
		values[STEP_JOB_ID - 1] = JOB(&step->job, JOB_ID);
		values[STEP_BATCH_ID - 1] = Int64GetDatum(batch_id);
		values[STEP_NAME - 1] = CStringGetTextDatum(step->name);
		values[STEP_NEEDS - 1] =
			PointerGetDatum(construct_array(needs, step->nneeds, INT8OID, 8,
											FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
		nulls[STEP_STATE - 1] = nulls[STEP_RESULT - 1] = true;
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
				 strcmp(key, "allow_failures") != 0 &&
				 callback == NCALLBACKS)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unknown key \"%s\" in the definition of a workflow",
							key),
					 errhint("The keys are name, steps, on_success, on_failure, on_finish, allow_failures.")));
		else if (value.type == jbvNull)
			continue;
		else if (callback < NCALLBACKS)
		{
			callbacks[callback] = JsonbPGetDatum(JsonbValueToJsonb(&value));
			nulls[callback] = false;
		}
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
	read_steps(&workflow, steps);
	id = jobq_batch_insert(name, callbacks, nulls, allow_failures, true, true);
	put_steps(&workflow, id);
	PG_RETURN_INT64(id);
}

/*
 * chain(steps, on_failure, on_success, on_finish, name) returns the ids of the
 * jobs.
 */
Datum
jobq_chain(PG_FUNCTION_ARGS)
{
	static const int args[NCALLBACKS] = {2, 1, 3};	/* as in callback_names */
	Workflow	workflow = {.chain = true};
	Datum		callbacks[NCALLBACKS];
	bool		nulls[NCALLBACKS];
	Datum	   *ids;

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
	read_steps(&workflow, PG_GETARG_JSONB_P(0));
	put_steps(&workflow,
			  jobq_batch_insert(PG_ARGISNULL(4) ? (Datum) 0
								: PointerGetDatum(PG_GETARG_TEXT_PP(4)),
								callbacks, nulls, false, true, true));
	ids = palloc(sizeof(Datum) * workflow.nsteps);
	for (int i = 0; i < workflow.nsteps; i++)
		ids[i] = JOB(&workflow.steps[i].job, JOB_ID);
	PG_RETURN_ARRAYTYPE_P(construct_array(ids, workflow.nsteps, INT8OID, 8,
										  FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}
