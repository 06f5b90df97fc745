/*-------------------------------------------------------------------------
 *
 * condition.c
 *	  Conditions of steps: jsonpath predicates about the results of the step's needs.
 *
 * src/compose/condition.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonpath.h"

#include "compose/compose.h"

static void
condition_context(void *arg)
{
	errcontext("\"when\" of %s", (const char *) arg);
}

/*
 * Return true if the path is a predicate: the result is true, false or unknown.
 */
static bool
is_predicate(JsonPath *path)
{
	JsonPathItem item;

	jspInit(&item, path);
	if (jspHasNext(&item))
		return false;
	switch (item.type)
	{
		case jpiAnd:
		case jpiOr:
		case jpiNot:
		case jpiIsUnknown:
		case jpiEqual:
		case jpiNotEqual:
		case jpiLess:
		case jpiGreater:
		case jpiLessOrEqual:
		case jpiGreaterOrEqual:
		case jpiExists:
		case jpiStartsWith:
		case jpiLikeRegex:
			return true;
		default:
			return false;
	}
}

/*
 * ERROR if the text is not a valid condition, that is a jsonpath predicate.  what: name of
 * the step, for messages.  Used when steps are defined.  Takes no locks.
 */
void
jobq_condition_check(const char *condition, const char *what)
{
	ErrorContextCallback context = {
		.callback = condition_context,
		.arg = unconstify(char *, what),
		.previous = error_context_stack
	};
	Datum		path;

	error_context_stack = &context;
	path = DirectFunctionCall1(jsonpath_in, CStringGetDatum(condition));
	error_context_stack = context.previous;
	if (!is_predicate(DatumGetJsonPathP(path)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"when\" of %s must be a condition, and not \"%s\"", what,
						condition),
				 errhint("Write a predicate of jsonpath, such as \"$.step.total > 100\" or \"exists($.step.name)\".")));
}

/*
 * Return true if the condition holds for the given object.  An unknown result counts as
 * false.  The evaluation runs a user's expression: it may take long or raise an ERROR, and
 * the caller must limit both.  Takes no locks.
 */
bool
jobq_condition_holds(const char *condition, Jsonb *of)
{
	LOCAL_FCINFO(fcinfo, 4);
	Datum		holds;

	InitFunctionCallInfoData(*fcinfo, NULL, 4, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = JsonbPGetDatum(of);
	fcinfo->args[1].value = DirectFunctionCall1(jsonpath_in, CStringGetDatum(condition));
	fcinfo->args[2].value = jobq_text_to_jsonb("{}");
	fcinfo->args[3].value = BoolGetDatum(true); /* missing values are unknown */
	for (int i = 0; i < 4; i++)
		fcinfo->args[i].isnull = false;
	holds = jsonb_path_match(fcinfo);
	return !fcinfo->isnull && DatumGetBool(holds);
}
