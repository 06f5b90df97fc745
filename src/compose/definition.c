/*-------------------------------------------------------------------------
 *
 * definition.c
 *	  Parsing of the definition of a workflow, including nested workflows.
 *
 * Steps are read level by level.  When the steps of a workflow are known (define.c), its
 * nested workflows are read, because their steps may use results of the outer steps.
 *
 * src/compose/definition.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "compose/inner.h"

static void read_member(Workflow *workflow, const char *key, JsonbValue *value);
static void read_nested(Workflow *workflow, int place);

/*
 * Parse and check the steps of a workflow, including nested workflows.  ERROR if a
 * definition is invalid.
 */
void
workflow_read(Workflow *workflow, Jsonb *steps)
{
	workflow_read_steps(workflow, steps);
	for (int i = 0; i < workflow->nsteps; i++)
		if (workflow->steps[i].nested != NULL)
			read_nested(workflow, i);
}

/*
 * Parse a whole definition, {"steps": [...]} or {"chain": [...]}, with the name, the
 * callbacks and so on.  Each step of a chain needs the previous step.  The steps of a chain
 * are named "1", "2", ... ERROR if the definition is invalid.
 */
void
workflow_read_definition(Workflow *workflow, Jsonb *definition)
{
	Jsonb	   *common = workflow->options;
	Jsonb	   *steps = NULL;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	if (!JB_ROOT_IS_OBJECT(definition))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("definition must be an object"),
				 errhint("Write {\"steps\": [{\"name\": \"...\", \"kind\": \"...\", \"needs\": [\"...\"]}, ...]}, or {\"chain\": [{\"kind\": \"...\"}, ...]}.")));
	memset(workflow->batch.no_callbacks, true, sizeof(workflow->batch.no_callbacks));
	it = JsonbIteratorInit(&definition->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *key;

		if (token != WJB_KEY)
			continue;
		key = pnstrdup(value.val.string.val, value.val.string.len);
		(void) JsonbIteratorNext(&it, &value, true);
		if (strcmp(key, "steps") == 0 || strcmp(key, "chain") == 0)
		{
			if (value.type == jbvNull)
				continue;
			if (steps != NULL)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("the definition of a workflow has both \"steps\" and \"chain\"")));
			steps = JsonbValueToJsonb(&value);
			workflow->chain |= strcmp(key, "chain") == 0;
		}
		else
			read_member(workflow, key, &value);
	}
	if (steps == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the definition of a workflow has neither \"steps\" nor \"chain\"")));
	if (common != NULL && workflow->options != common)
		workflow->options = workflow_with_options(common, workflow->options);
	workflow_read(workflow, steps);
}

/*
 * Parse a key of the definition other than "steps" and "chain".
 */
static void
read_member(Workflow *workflow, const char *key, JsonbValue *value)
{
	int			callback = 0;

	while (callback < NCALLBACKS && strcmp(key, callback_names[callback]) != 0)
		callback++;
	if (strcmp(key, "name") != 0 && strcmp(key, "options") != 0 &&
		strcmp(key, "allow_failures") != 0 && callback == NCALLBACKS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown key \"%s\" in the definition of a workflow",
						key),
				 errhint("The keys are name, steps, chain, options, on_success, on_failure, on_finish, allow_failures.")));
	if (value->type == jbvNull)
		return;
	if (callback < NCALLBACKS)
	{
		workflow->batch.callbacks[callback] = JsonbPGetDatum(JsonbValueToJsonb(value));
		workflow->batch.no_callbacks[callback] = false;
	}
	else if (strcmp(key, "options") == 0)
		workflow_read_options(workflow, JsonbValueToJsonb(value));
	else if (strcmp(key, "name") == 0)
	{
		if (value->type != jbvString)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"name\" of a workflow must be a string")));
		workflow->batch.name = PointerGetDatum(cstring_to_text_with_len(value->val.string.val,
																		value->val.string.len));
	}
	else
	{
		if (value->type != jbvBool)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"allow_failures\" of a workflow must be true or false")));
		workflow->batch.allow_failures = value->val.boolean;
	}
}

static void
nested_context(void *arg)
{
	errcontext("workflow of %s", (const char *) arg);
}

/*
 * Parse the nested workflow of the step with index place.  The options of the step apply to
 * all steps of the nested workflow.
 */
static void
read_nested(Workflow *workflow, int place)
{
	NewStep    *step = &workflow->steps[place];
	Datum		options = JsonbPGetDatum(step->definition);
	ErrorContextCallback context = {
		.callback = nested_context,
		.arg = step->what,
		.previous = error_context_stack
	};

	if (workflow->level >= MAX_LEVELS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%s is a workflow on level %d, deeper than the allowed %d", step->what,
						workflow->level + 1, MAX_LEVELS)));
	error_context_stack = &context;
	step->inner = palloc0(sizeof(Workflow));
	step->inner->chain = step->nested_chain;
	step->inner->outer = workflow;
	step->inner->place = place;
	step->inner->level = workflow->level + 1;
	if (!workflow->chain)
		step->inner->batch.name = CStringGetTextDatum(step->name);
	for (int i = 0; step_keys[i] != NULL; i++)
		options = DirectFunctionCall2(jsonb_delete, options, CStringGetTextDatum(step_keys[i]));
	step->inner->options = DatumGetJsonbP(options);
	if (JB_ROOT_IS_OBJECT(step->nested))
		workflow_read_definition(step->inner, step->nested);
	else
	{
		memset(step->inner->batch.no_callbacks, true, sizeof(step->inner->batch.no_callbacks));
		workflow_read(step->inner, step->nested);
	}
	error_context_stack = context.previous;
}
