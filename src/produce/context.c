/*-------------------------------------------------------------------------
 *
 * context.c
 *	  Context of a job: settings that the job carries to its handler.
 *
 * A queue lists the names of the settings, and so does a kind (carry).  The values are read in
 * the enqueuing session, with the rights of its user, or are given as the option "context".
 * The job therefore has the values of the moment of the enqueue, regardless of later changes
 * in the session.  attempt/context.c sets the values for the handler.
 *
 * Only listed names are accepted: the owners of the queue and of the kind decide which
 * settings may reach the handlers from outside.  A handler that runs as another role than the
 * enqueuer's accepts only custom settings (see attempt/context.c).
 *
 * Callbacks of batches, steps, and jobs of schedules are enqueued later on behalf of a role.
 * Their context is the context at the time of the request.  The job's description stores the
 * context (jobq_spec_kept(), schedule.c).
 *
 * src/produce/context.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "produce/produce.h"
#include "store/store.h"

static List *carried(const JobqJob *job, const JobqQueue *queue,
					 bool kind_carries);

/*
 * Return the context given as an option.  ERROR if the context is not an object, or
 * names a setting not carried by the queue.
 */
static Jsonb *
given_context(const List *carry, const JobqQueue *queue, Datum given)
{
	Jsonb	   *context = DatumGetJsonbP(given);
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	if (!JB_ROOT_IS_OBJECT(context))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("context must be an object"),
				 errhint("Write names of settings and their values, such as {\"search_path\": \"branch_7\"}.")));
	it = JsonbIteratorInit(&context->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *name;
		bool		carried = false;
		ListCell   *lc;

		if (token != WJB_KEY)
			continue;
		name = pnstrdup(value.val.string.val, value.val.string.len);
		(void) JsonbIteratorNext(&it, &value, true);
		foreach(lc, carry)
			carried |= strcmp(lfirst(lc), name) == 0;
		if (!carried)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("queue \"%s\" does not carry the setting \"%s\"",
							queue->name, name),
					 errhint("Whoever manages the queue can list it: jobq.alter_queue(..., carry => '{...}'); so can jobq.register() for the kind.")));
		if (value.type != jbvString && value.type != jbvNumeric &&
			value.type != jbvBool && value.type != jbvNull)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"%s\" of context must be a string, a number, true, false, or null",
							name),
					 errhint("Write a JSON object as a string, as SET has it.")));
	}
	return context;
}

/* Return the given value of a setting, or NULL if the value is null. */
static char *
given_value(Jsonb *given, const char *name)
{
	JsonbValue	value;

	(void) getKeyJsonValueFromContainer(&given->root, name, strlen(name),
										&value);
	switch (value.type)
	{
		case jbvString:
			return pnstrdup(value.val.string.val, value.val.string.len);
		case jbvNumeric:
			return DatumGetCString(DirectFunctionCall1(numeric_out,
													   NumericGetDatum(value.val.numeric)));
		case jbvBool:
			return pstrdup(value.val.boolean ? "on" : "off");
		default:
			return NULL;
	}
}

/*
 * Build an object from names and values.  The object of the last call is cached, because a
 * session mostly enqueues again with the same values.
 */
static Jsonb *
make_context(const List *names, const List *values)
{
	static MemoryContext memory = NULL;
	static char *kept_text = NULL;
	static int	kept_length = 0;
	static Jsonb *kept = NULL;

	StringInfoData text;
	JsonbParseState *state = NULL;
	Jsonb	   *context;
	ListCell   *name;
	ListCell   *value;
	MemoryContext old;

	initStringInfo(&text);
	forboth(name, names, value, values)
	{
		appendBinaryStringInfo(&text, lfirst(name), strlen(lfirst(name)) + 1);
		appendBinaryStringInfo(&text, lfirst(value), strlen(lfirst(value)) + 1);
	}
	if (kept != NULL && text.len == kept_length &&
		memcmp(text.data, kept_text, text.len) == 0)
	{
		context = palloc(VARSIZE(kept));
		memcpy(context, kept, VARSIZE(kept));
		return context;
	}

	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	forboth(name, names, value, values)
	{
		JsonbValue	string = {.type = jbvString};

		string.val.string.val = lfirst(name);
		string.val.string.len = strlen(lfirst(name));
		(void) pushJsonbValue(&state, WJB_KEY, &string);
		string.val.string.val = lfirst(value);
		string.val.string.len = strlen(lfirst(value));
		(void) pushJsonbValue(&state, WJB_VALUE, &string);
	}
	context = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));

	/* large contexts rarely repeat */
	if (text.len > 8192)
		return context;
	kept = NULL;
	if (memory == NULL)
		memory = AllocSetContextCreate(TopMemoryContext, "jobq carried settings",
									   ALLOCSET_SMALL_SIZES);
	MemoryContextReset(memory);
	old = MemoryContextSwitchTo(memory);
	kept_text = palloc(text.len + 1);
	memcpy(kept_text, text.data, text.len + 1);
	kept_length = text.len;

	kept = palloc(VARSIZE(context));
	MemoryContextSwitchTo(old);
	memcpy(kept, context, VARSIZE(context));
	return context;
}

/*
 * Return the settings that jobs of the queue and of the kind carry.  ERROR if the queue has
 * run_as and the kind carries a setting that is not custom.
 */
static List *
carried(const JobqJob *job, const JobqQueue *queue, bool kind_carries)
{
	List	   *carry = queue->carries ? jobq_queue_carry(queue->id) : NIL;
	ListCell   *lc;

	if (!kind_carries)
		return carry;
	foreach(lc, jobq_handler_carry(jobq_job_kind(job)))
	{
		char	   *name = lfirst(lc);

		if (OidIsValid(queue->run_as) && strchr(name, '.') == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("kind \"%s\" carries \"%s\", and queue \"%s\" has run_as",
							jobq_job_kind(job), name, queue->name),
					 errhint("Jobs of a queue with run_as take along settings of your own only, such as app.tenant.")));
		if (!jobq_carries(carry, name))
			carry = lappend(carry, name);
	}
	return carry;
}

/*
 * Set the context of a job of this queue.  kind_carries: the kind carries settings, too.  For
 * each carried setting, use the given value (an option of enqueue(), unless isnull), or
 * otherwise the value in this session.  A setting that does not exist, or was given as null,
 * is omitted.  ERROR if the given context is invalid.
 */
void
jobq_set_context(JobqJob *job, const JobqQueue *queue, bool kind_carries,
				 Datum given, bool isnull)
{
	List	   *carry;
	List	   *names = NIL;
	List	   *values = NIL;
	Jsonb	   *context = NULL;
	ListCell   *lc;

	if (!queue->carries && !kind_carries && isnull)
		return;
	carry = carried(job, queue, kind_carries);
	if (!isnull)
		context = given_context(carry, queue, given);
	foreach(lc, carry)
	{
		char	   *name = lfirst(lc);
		JsonbValue	unused;
		char	   *value;

		if (context != NULL &&
			getKeyJsonValueFromContainer(&context->root, name, strlen(name),
										 &unused) != NULL)
			value = given_value(context, name);
		else
			value = GetConfigOptionByName(name, NULL, true);
		if (value == NULL)
			continue;
		names = lappend(names, name);
		values = lappend(values, value);
	}
	if (names != NIL)
		JOB_SET(job, JOB_CONTEXT, JsonbPGetDatum(make_context(names, values)));
}

/*
 * Reduce the context of a job that moves from another queue to this one.  The job keeps the
 * settings that this queue carries, and those of the kind if kind_carries.
 */
void
jobq_thin_context(JobqJob *job, const JobqQueue *queue, bool kind_carries)
{
	List	   *carry = carried(job, queue, kind_carries);
	List	   *names = NIL;
	List	   *values = NIL;
	Jsonb	   *context;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	if (JOB_ISNULL(job, JOB_CONTEXT))
		return;
	context = DatumGetJsonbP(JOB(job, JOB_CONTEXT));
	it = JsonbIteratorInit(&context->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *name;

		if (token != WJB_KEY)
			continue;
		name = pnstrdup(value.val.string.val, value.val.string.len);
		(void) JsonbIteratorNext(&it, &value, true);
		if (!jobq_carries(carry, name))
			continue;
		names = lappend(names, name);
		values = lappend(values, given_value(context, name));
	}
	JOB_ISNULL(job, JOB_CONTEXT) = names == NIL;
	if (names != NIL)
		JOB_SET(job, JOB_CONTEXT, JsonbPGetDatum(make_context(names, values)));
}

/*
 * Return the description of a job, an object, with the job's context as the option "context".
 * If the job has no context, the option is removed.
 */
Jsonb *
jobq_keep_context(Jsonb *json, const JobqJob *job)
{
	if (JOB_ISNULL(job, JOB_CONTEXT))
		return DatumGetJsonbP(DirectFunctionCall2(jsonb_delete, JsonbPGetDatum(json),
												  CStringGetTextDatum("context")));
	return jobq_jsonb_set(json, "context", JOB(job, JOB_CONTEXT));
}
