/*-------------------------------------------------------------------------
 *
 * check.c
 *	  Is what the server hands us what we expect: columns, triggers, arguments?
 *
 * Users can attach our functions to relations of their own, and superusers can
 * change ours; so nothing is trusted that the library has not made itself.
 *
 * src/base/check.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "commands/trigger.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

#define NOT_OTHERS	"The tables, views and types of jobq cannot have other columns than its own."

static void check_type(TupleDesc desc, int i, Oid type);

static void
check_type(TupleDesc desc, int i, Oid type)
{
	Form_pg_attribute att = TupleDescAttr(desc, i);

	if (likely(att->atttypid == type))
		return;
	if (att->attisdropped)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column %d of %s was dropped", i + 1,
						format_type_be(desc->tdtypeid)),
				 errhint(NOT_OTHERS)));
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("column \"%s\" of %s has type %s instead of %s",
					NameStr(att->attname), format_type_be(desc->tdtypeid),
					format_type_be(att->atttypid), format_type_be(type)),
			 errhint(NOT_OTHERS)));
}

/*
 * An error if the rows of a table or type of ours do not have the columns that
 * the library knows, so that it would read or write past its own arrays.
 */
void
jobq_check_columns(TupleDesc desc, int natts)
{
	if (unlikely(desc->natts != natts))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s has %d columns instead of %d",
						format_type_be(desc->tdtypeid), desc->natts, natts),
				 errhint(NOT_OTHERS)));
}

/*
 * The same, and each column has the type at its place in the array.
 */
void
jobq_check_types(TupleDesc desc, const Oid *types, int natts)
{
	jobq_check_columns(desc, natts);
	for (int i = 0; i < natts; i++)
		check_type(desc, i, types[i]);
}

/*
 * Column n, from 1 on, of a row that a query has returned: an error if it does not
 * have this type, because the owner of the table has changed it.  isnull may be
 * NULL: then null is an error as well.
 */
Datum
jobq_column(HeapTuple tuple, TupleDesc desc, int n, Oid type, bool *isnull)
{
	bool		is;
	Datum		value;

	Assert(n >= 1 && n <= desc->natts);
	check_type(desc, n - 1, type);
	value = heap_getattr(tuple, n, desc, &is);
	if (isnull != NULL)
		*isnull = is;
	else if (unlikely(is))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("column \"%s\" of a row of jobq's is null",
						NameStr(TupleDescAttr(desc, n - 1)->attname)),
				 errhint("The rows of jobq's tables are not to be changed but by its functions.")));
	return value;
}

/*
 * The function returns a set of rows, which have so many columns; the caller
 * puts them into the set.
 */
ReturnSetInfo *
jobq_materialize(FunctionCallInfo fcinfo, int natts)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	jobq_check_columns(rsinfo->setDesc, natts);
	return rsinfo;
}

/*
 * An error if the function was not fired by an AFTER trigger, and one FOR EACH
 * STATEMENT if so wanted.  Which relation has that, its owner decides: the functions
 * that use this read nothing of it.
 */
void
jobq_check_after_trigger(FunctionCallInfo fcinfo, const char *function,
						 bool statement)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		(statement && !TRIGGER_FIRED_FOR_STATEMENT(trigdata->tg_event)) ||
		!TRIGGER_FIRED_AFTER(trigdata->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("%s must be fired AFTER%s", function,
						statement ? " ... FOR EACH STATEMENT" : "")));
}

/*
 * The argument "percent".
 */
float4
jobq_percent_arg(FunctionCallInfo fcinfo, int n)
{
	float4		percent;

	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("percent must not be null"),
				 errhint("It must be from 0 to 100.")));
	percent = PG_GETARG_FLOAT4(n);
	if (!(percent >= 0 && percent <= 100))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("progress %g is out of range", percent),
				 errhint("It must be from 0 to 100 percent.")));
	return percent;
}

/*
 * Is the jsonb, which has this size, nested deeper than JOBQ_MAX_DEPTH?  Whoever
 * reads one recursively may then run out of stack.
 */
bool
jobq_too_deep(Datum jsonb, Size size)
{
	Jsonb	   *value;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	unused;
	int			depth = 0;
	bool		too_deep = false;

	/* a level has a header and an entry in the level above */
	if (size <= JOBQ_MAX_DEPTH * (sizeof(uint32) + sizeof(JEntry)))
		return false;
	value = DatumGetJsonbP(jsonb);
	it = JsonbIteratorInit(&value->root);
	while (!too_deep &&
		   (token = JsonbIteratorNext(&it, &unused, false)) != WJB_DONE)
	{
		if (token == WJB_BEGIN_ARRAY || token == WJB_BEGIN_OBJECT)
			too_deep = ++depth > JOBQ_MAX_DEPTH;
		else if (token == WJB_END_ARRAY || token == WJB_END_OBJECT)
			depth--;
	}
	if ((Pointer) value != DatumGetPointer(jsonb))
		pfree(value);
	return too_deep;
}

/*
 * An error with this code if a jsonb that comes in is too deep; what names it.
 */
void
jobq_check_depth(Datum jsonb, Size size, const char *what, int sqlerrcode)
{
	if (jobq_too_deep(jsonb, size))
		ereport(ERROR,
				(errcode(sqlerrcode),
				 errmsg("the nesting of the %s is deeper than %d levels",
						what, JOBQ_MAX_DEPTH),
				 errhint("Write it with fewer objects and arrays within each other.")));
}

/*
 * Parse a text as jsonb, in the current memory context.
 */
Datum
jobq_text_to_jsonb(const char *text)
{
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(text));
}
