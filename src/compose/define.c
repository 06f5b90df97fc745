/*-------------------------------------------------------------------------
 *
 * define.c
 *	  Parsing of the steps of a workflow, with checks that the workflow can end.
 *
 * Step names must be unique.  No step may wait for itself.  A step may use only the results
 * of earlier steps.
 *
 * The steps may also be added to an existing workflow.  Added steps may need existing
 * steps.  An existing step never needs an added step.
 *
 * src/compose/define.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/hsearch.h"

#include "compose/inner.h"
#include "produce/produce.h"

typedef struct NameEntry
{
	char		name[JOBQ_MAX_STEP_NAME + 1];	/* hash key */
	int			place;
} NameEntry;

static void refuse_unique(const JobqSpec *spec, const char *what);
static void read_name(Workflow *workflow, NewStep *step, int number);
static void read_map(NewStep *step);
static void read_condition(NewStep *step);
static void add_name(Workflow *workflow, int place);
static void read_needs(Workflow *workflow, int place);
static void check_cycles(Workflow *workflow);
static bool waits(const Workflow *workflow, int place);
static void report_cycle(Workflow *workflow);
static void check_results(Workflow *workflow, NewStep *step);
static bool step_needs(Workflow *workflow, NewStep *step, int place);

/*
 * Parse the options that all steps of the workflow share.  ERROR if the options are invalid
 * or contain a uuid or a unique key.
 */
void
workflow_read_options(Workflow *workflow, Jsonb *options)
{
	const char *what = workflow->chain ? "the options of a chain" : "the options of a workflow";
	JobqSpec	spec;

	if (!JB_ROOT_IS_OBJECT(options))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be an object", what),
				 errhint("Write the options of jobq.enqueue() by their names, such as {\"queue\": \"low\", \"priority\": 5}.")));
	jobq_options_from_jsonb(options, what, NULL, spec.options, spec.nulls);
	refuse_unique(&spec, what);
	workflow->options = options;
}

static void
refuse_unique(const JobqSpec *spec, const char *what)
{
	if (spec->nulls[OPTION_UNIQUE_KEY] && spec->nulls[OPTION_UNIQUENESS] &&
		spec->nulls[OPTION_UUID])
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s cannot have the option \"%s\"", what,
					!spec->nulls[OPTION_UNIQUE_KEY] ? "unique_key"
					: !spec->nulls[OPTION_UNIQUENESS] ? "uniqueness" : "uuid"),
			 errhint("Each step is a job of its own, because other steps may wait for the step.")));
}

/*
 * Merge the shared options into the definition of a step, and return the result.  Options
 * of the step take precedence.  If the step has delay or run_at, both shared times are
 * replaced.
 */
Jsonb *
workflow_with_options(Jsonb *common, Jsonb *definition)
{
	static const char *const times[] = {"delay", "run_at"};
	Datum		options = JsonbPGetDatum(common);
	JsonbValue	value;

	for (int i = 0; i < 2; i++)
		if (member_of(definition, times[i], &value))
			options = DirectFunctionCall2(jsonb_delete, options,
										  CStringGetTextDatum(times[1 - i]));
	return DatumGetJsonbP(DirectFunctionCall2(jsonb_concat, options,
											  JsonbPGetDatum(definition)));
}

/*
 * Parse and check an array of steps, without the steps of nested workflows.  ERROR if the
 * definition is invalid, or a step of the same name exists already.  Takes no locks on the
 * existing steps.
 */
void
workflow_read_steps(Workflow *workflow, Jsonb *array)
{
	HASHCTL		info = {
		.keysize = JOBQ_MAX_STEP_NAME + 1,
		.entrysize = sizeof(NameEntry),
		.hcxt = CurrentMemoryContext
	};
	int			n;

	if (!JB_ROOT_IS_ARRAY(array) || JB_ROOT_IS_SCALAR(array))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 workflow->chain ? errmsg("a chain must be an array of steps") : errmsg("steps must be an array"),
				 workflow->chain
				 ? errhint("Write [{\"kind\": \"...\", \"payload\": {...}}, ...].")
				 : errhint("Write [{\"name\": \"...\", \"kind\": \"...\", \"needs\": [\"...\"]}, ...].")));
	n = JB_ROOT_COUNT(array);
	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 workflow->batch_id != 0
				 ? errmsg("there must be a step to be added")
				 : errmsg("a %s must have steps",
						  workflow->chain ? "chain" : "workflow")));
	if (n > JOBQ_MAX_STEPS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a %s of %d steps has more than the allowed %d",
						workflow->chain ? "chain" : "workflow", n,
						JOBQ_MAX_STEPS),
				 errhint("A step can add jobs to the batch with jobq.add_jobs().")));
	if (workflow->batch_id != 0)
		known_check_room(workflow->batch_id, n);

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
		if (workflow->options != NULL)
			step->definition = workflow_with_options(workflow->options, step->definition);
		nest_find(step);
		if (step->nested != NULL)
			nest_parse(step->definition, step->what, !workflow->chain, &step->spec);
		else
			jobq_step_parse(step->definition, step->what, !workflow->chain,
							false, &step->spec);
		read_map(step);
		read_condition(step);
		refuse_unique(&step->spec, step->what);
	}
	for (int i = 0; i < n; i++)
	{
		NewStep    *step = &workflow->steps[i];

		read_needs(workflow, i);
		if (step->conditional && step->nneeds == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s has \"when\", but needs no other step", step->what),
					 errhint("A condition is about the results of the steps that it needs.")));
	}
	if (!workflow->chain)
		check_cycles(workflow);
	for (int i = 0; i < n; i++)
		check_results(workflow, &workflow->steps[i]);
}

/*
 * Parse the definition of a step.  what: name of the step, for messages.  named: the step
 * has a name and needs, and is not part of a chain.  kept: the definition was stored
 * earlier, and is parsed again.  A step with "map" but without a payload gets the default
 * payload: the element itself.  ERROR if the definition is invalid.
 */
void
jobq_step_parse(Jsonb *definition, const char *what, bool named, bool kept,
				JobqSpec *spec)
{
	JsonbValue	value;

	jobq_spec_parse(definition, what, named ? step_keys : step_keys + STEP_KEYS_NAMED, kept, spec);
	if (member_of(definition, "map", &value) &&
		getKeyJsonValueFromContainer(&definition->root, "payload", 7, &value) == NULL)
		spec->payload = jobq_text_to_jsonb("{\"" ELEMENT_KEY "\": \"value\"}");
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
	if (step->name[0] == '\0' || strlen(step->name) > JOBQ_MAX_STEP_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("step name \"%s\" must have 1 to %d bytes", step->name,
						JOBQ_MAX_STEP_NAME)));
}

/*
 * Parse "map": the reference to the array whose elements get jobs.
 */
static void
read_map(NewStep *step)
{
	JsonbValue	value;

	if (!member_of(step->definition, "map", &value))
		return;
	step->map = JsonbValueToJsonb(&value);
	if (!jobq_is_result_ref(step->map, step->what))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"map\" of %s must be the result of a step", step->what),
				 errhint("Write {\"$result\": \"step\"} or {\"$result\": \"step\", \"path\": [\"key\", ...]}.")));
}

/*
 * Parse "when", the condition of the step, and "optional".
 */
static void
read_condition(NewStep *step)
{
	JsonbValue	value;

	if (member_of(step->definition, "optional", &value))
	{
		if (value.type != jbvBool)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"optional\" of %s must be true or false", step->what)));
		step->optional = value.val.boolean;
	}
	if (member_of(step->definition, "when", &value))
	{
		if (value.type != jbvString)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"when\" of %s must be a string with a condition", step->what)));
		jobq_condition_check(pnstrdup(value.val.string.val, value.val.string.len),
							 step->what);
		step->conditional = true;
	}
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
	if (workflow->batch_id != 0 && known_job(workflow->batch_id, entry->name) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("workflow " INT64_FORMAT " has a step \"%s\" already",
						workflow->batch_id, entry->name),
				 errhint("The view jobq.steps shows those that it has.")));
}

/*
 * Find a step by name.  Returns the index of the step, or -1.  Existing steps of the
 * workflow have indexes from nsteps on.
 */
static int
find_name(Workflow *workflow, const char *name)
{
	NameEntry  *entry;
	int			place;

	/* the hash table would truncate a longer name */
	if (strlen(name) > JOBQ_MAX_STEP_NAME)
		return -1;
	entry = hash_search(workflow->names, name, HASH_FIND, NULL);
	if (entry != NULL)
		return entry->place;
	place = workflow->batch_id == 0 ? -1 : known_place(workflow, name);
	if (place >= 0)
	{
		entry = hash_search(workflow->names, name, HASH_ENTER, NULL);
		entry->place = place;
	}
	return place;
}

/*
 * Return the mark of the step with this index.  Valid until the next existing step becomes known.
 */
static int *
mark_of(Workflow *workflow, int place)
{
	return place < workflow->nsteps ? &workflow->steps[place].mark
		: &workflow->known[place - workflow->nsteps].mark;
}

/*
 * Find the needs of the step.  A need that is named twice counts once.
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
	if (!member_of(step->definition, "needs", &value))
		return;
	if (value.type != jbvBinary ||
		!JsonContainerIsArray(value.val.binary.data))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"needs\" of %s must be an array of names", step->what)));
	array = value.val.binary.data;
	workflow->nsearches++;
	step->needs = palloc(sizeof(int) * (JsonContainerSize(array) + 1));
	for (int i = 0; i < (int) JsonContainerSize(array); i++)
	{
		JsonbValue *elem = getIthJsonbValueFromContainer(array, i);
		char	   *name;
		int			need;
		int		   *mark;

		CHECK_FOR_INTERRUPTS();
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
		mark = mark_of(workflow, need);
		if (*mark != workflow->nsearches)
			step->needs[step->nneeds++] = need;
		*mark = workflow->nsearches;
	}
}

/*
 * ERROR if steps need each other in a cycle, so that none of these could start.  Sorts the
 * steps topologically.
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

	/* users of step i: users[first[i]] to users[first[i + 1] - 1] */
	for (int i = 0; i < n; i++)
	{
		NewStep    *step = &workflow->steps[i];

		for (int j = 0; j < step->nneeds; j++)
			if (step->needs[j] < n)
			{
				first[step->needs[j]]++;
				step->waits++;
			}
		nedges += step->waits;
		if (step->waits == 0)
			ready[nready++] = i;
	}
	users = palloc(sizeof(int) * (nedges + 1));
	for (int i = 1; i <= n; i++)
		first[i] += first[i - 1];
	for (int i = 0; i < n; i++)
		for (int j = 0; j < workflow->steps[i].nneeds; j++)
			if (workflow->steps[i].needs[j] < n)
				users[--first[workflow->steps[i].needs[j]]] = i;

	for (int done = 0; done < nready; done++)
		for (int j = first[ready[done]]; j < first[ready[done] + 1]; j++)
			if (--workflow->steps[users[j]].waits == 0)
				ready[nready++] = users[j];
	if (nready < n)
		report_cycle(workflow);
}

/*
 * Return true if the index belongs to a new, unsorted step.
 */
static bool
waits(const Workflow *workflow, int place)
{
	return place < workflow->nsteps && workflow->steps[place].waits > 0;
}

/*
 * Report a cycle.  Each of the remaining steps needs another remaining step.  The search
 * follows these needs until it meets a step again.
 */
static void
report_cycle(Workflow *workflow)
{
	StringInfoData names;
	int			at = 0;
	int			begin;

	while (!waits(workflow, at))
		at++;
	workflow->nsearches++;
	while (workflow->steps[at].mark != workflow->nsearches)
	{
		NewStep    *step = &workflow->steps[at];
		int			need = 0;

		step->mark = workflow->nsearches;
		while (!waits(workflow, step->needs[need]))
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
		while (!waits(workflow, step->needs[need]))
			need++;
		at = step->needs[need];
	} while (at != begin);
	appendStringInfo(&names, "\"%s\"", workflow->steps[begin].name);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("steps need each other in a circle: %s", names.data)));
}

/*
 * Check the results used by the step.  A result must belong to a step that this step needs,
 * directly or indirectly.  If this workflow has no step of that name, the outer workflow is
 * searched: the result must then belong to a step that the nested workflow's own step
 * needs.
 */
static void
check_results(Workflow *workflow, NewStep *step)
{
	List	   *names;
	ListCell   *lc;

	if (step->nested != NULL)
		return;
	names = jobq_result_refs(DatumGetJsonbP(step->spec.payload), step->what,
							 step->map != NULL);
	if (step->map != NULL)
		names = list_concat(names,
							jobq_result_refs(step->map, step->what, false));
	foreach(lc, names)
	{
		char	   *name = lfirst(lc);
		Workflow   *of = workflow;
		NewStep    *user = step;
		int			place;

		CHECK_FOR_INTERRUPTS();
		while ((place = find_name(of, name)) < 0 && of->outer != NULL)
		{
			user = &of->outer->steps[of->place];
			of = of->outer;
		}
		if (place < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s takes the result of \"%s\", which is no step of the %s",
							step->what, name,
							workflow->chain ? "chain" : "workflow"),
					 workflow->chain
					 ? errhint("The steps of a chain are named \"1\", \"2\" and so on.")
					 : 0));
		if (!step_needs(of, user, place))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s takes the result of \"%s\", but does not come after it",
							user->what, name),
					 of->chain ? 0
					 : errhint("Add \"%s\" to its \"needs\".", name)));
	}
}

/*
 * Return true if the step needs the step with index place, directly or indirectly.  The
 * needs must have no cycles.  Paths that lead to existing steps continue in the table.
 */
static bool
step_needs(Workflow *workflow, NewStep *step, int place)
{
	int			nsteps = workflow->nsteps;
	int			n = 0;
	int			nknown = 0;
	Datum	   *known = palloc(sizeof(Datum) * (workflow->nknown + 1));
	bool		found = false;

	workflow->nsearches++;
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < step->nneeds && !found; i++)
		{
			int			need = step->needs[i];
			int		   *mark = mark_of(workflow, need);

			found = need == place;
			if (*mark == workflow->nsearches)
				continue;
			*mark = workflow->nsearches;
			if (need < nsteps)
				workflow->stack[n++] = need;
			else
				known[nknown++] = Int64GetDatum(workflow->known[need - nsteps].job_id);
		}
		if (found || n == 0)
			break;
		step = &workflow->steps[workflow->stack[--n]];
	}
	if (!found && place >= nsteps)
		found = known_comes_after(known, nknown, workflow->known[place - nsteps].job_id);
	pfree(known);
	return found;
}
