/*-------------------------------------------------------------------------
 *
 * check.c
 *	  Checks of input from the server: columns, triggers, arguments.
 *
 * Users can attach jobq's functions to their own relations, and superusers can change jobq's
 * relations.  The library trusts only its own data.
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
 * Raise an error unless the rows of a table or type of jobq have natts columns.  Otherwise the
 * library would access memory beyond its arrays.
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

/* Like jobq_check_columns(), and each column must have the type in types. */
void
jobq_check_types(TupleDesc desc, const Oid *types, int natts)
{
	jobq_check_columns(desc, natts);
	for (int i = 0; i < natts; i++)
		check_type(desc, i, types[i]);
}

/*
 * Return column n (1 is the first) of a row of a query.  Raises an error unless the column has
 * this type, because the owner of the table may have changed the type.  If isnull is NULL, a
 * null value is an error as well.
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
 * Prepare a function that returns a set of rows with natts columns.  The caller adds the rows
 * to the returned set.  Raises an error if the number of columns differs.
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
 * Return the row type of a function's result, for heap_form_tuple().  Raises an error if the
 * number of columns differs.
 */
TupleDesc
jobq_row_type(FunctionCallInfo fcinfo, int natts)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	jobq_check_columns(desc, natts);
	return BlessTupleDesc(desc);
}

/*
 * Raise an error unless the function was fired by an AFTER trigger, and FOR EACH STATEMENT if
 * "statement".  The owner of any relation can create such a trigger, so functions with this
 * check read nothing of the relation.
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

/* Raise an error if the argument is null. */
void
jobq_not_null(FunctionCallInfo fcinfo, int arg, const char *name)
{
	if (PG_ARGISNULL(arg))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
}

/* Return the argument "percent".  Raises an error if it is null or not from 0 to 100. */
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
 * True if the jsonb, with this size in bytes, is nested deeper than JOBQ_MAX_DEPTH.  A
 * recursive reader of a deeper value may run out of stack.
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
 * Raise an error with this SQLSTATE if a jsonb is nested too deeply.  what: name of the value
 * in the message.
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
 * Parse a text as jsonb, in the current memory context.  Raises an error if the text is not
 * valid.
 */
Datum
jobq_text_to_jsonb(const char *text)
{
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(text));
}
