/*-------------------------------------------------------------------------
 *
 * spec.c
 *	  Options and jobs written in jsonb.
 *
 * add_jobs(), call() and schedule() accept options as an object.  Callbacks of batches and
 * steps of workflows are whole jobs: {"kind": ..., "payload": ..., and the options}.
 *
 * Unless stated otherwise, the results are allocated in the current memory context.
 *
 * src/produce/spec.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/rel.h"

#include "produce/produce.h"
#include "store/store.h"

/* SQL type of an option's value. */
typedef enum OptionType
{
	TYPE_text,
	TYPE_int,
	TYPE_boolean,
	TYPE_timestamptz,
	TYPE_interval,
	TYPE_jsonb,
	TYPE_uuid,
	TYPE__text,
} OptionType;

static const struct
{
	const char *name;
	OptionType	type;
}			option_types[NOPTIONS] = {
#define JOB_OPTION(name, NAME, type, comment) \
	[OPTION_##NAME] = {#name, TYPE_##type},
#include "produce/options.h"
#undef JOB_OPTION
};

/* Maximum number of keys of a description beside the options. */
#define MAX_OTHER_KEYS	8

/* Current key and object, for messages. */
typedef struct Place
{
	const char *what;
	const char *key;
} Place;

static void place_callback(void *arg);
static void wrong_type(const char *what, const char *key, const char *wanted);
static Datum texts_of(JsonbValue *value);
static Datum option_value(const char *what, const char *key, OptionType type,
						  JsonbValue *value);
static Jsonb *with_option(Jsonb *json, int option, Datum value);
static void unknown_key(const char *what, const char *key,
						const char *const *others);

static void
place_callback(void *arg)
{
	Place	   *place = arg;

	errcontext("\"%s\" of %s", place->key, place->what);
}

static void
wrong_type(const char *what, const char *key, const char *wanted)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("\"%s\" of %s must be %s", key, what, wanted)));
}

/*
 * Convert an array of strings to text[].  Returns 0 if the value is not such an array.
 */
static Datum
texts_of(JsonbValue *value)
{
	ArrayBuildState *texts;
	JsonbIterator *it;
	JsonbValue	element;

	if (value->type != jbvBinary)
		return (Datum) 0;
	it = JsonbIteratorInit(value->val.binary.data);
	if (JsonbIteratorNext(&it, &element, true) != WJB_BEGIN_ARRAY)
		return (Datum) 0;
	texts = initArrayResult(TEXTOID, CurrentMemoryContext, false);
	while (JsonbIteratorNext(&it, &element, true) == WJB_ELEM)
	{
		if (element.type != jbvString)
			return (Datum) 0;
		accumArrayResult(texts,
						 PointerGetDatum(cstring_to_text_with_len(element.val.string.val,
																  element.val.string.len)),
						 false, TEXTOID, CurrentMemoryContext);
	}
	return makeArrayResult(texts, CurrentMemoryContext);
}

static Datum
option_value(const char *what, const char *key, OptionType type,
			 JsonbValue *value)
{
	char	   *text = NULL;
	Place		place = {what, key};
	ErrorContextCallback context;
	Datum		result = (Datum) 0;

	if (value->type == jbvString)
		text = pnstrdup(value->val.string.val, value->val.string.len);

	context.callback = place_callback;
	context.arg = &place;
	context.previous = error_context_stack;
	error_context_stack = &context;
	switch (type)
	{
		case TYPE_text:
			if (text == NULL)
				wrong_type(what, key, "a string");
			result = CStringGetTextDatum(text);
			break;
		case TYPE_int:
			if (value->type != jbvNumeric)
				wrong_type(what, key, "a number");
			result = DirectFunctionCall1(numeric_int4,
										 NumericGetDatum(value->val.numeric));
			break;
		case TYPE_boolean:
			if (value->type != jbvBool)
				wrong_type(what, key, "true or false");
			result = BoolGetDatum(value->val.boolean);
			break;
		case TYPE_timestamptz:
			if (text == NULL)
				wrong_type(what, key, "a string with a time");
			result = DirectFunctionCall3(timestamptz_in, CStringGetDatum(text),
										 ObjectIdGetDatum(InvalidOid),
										 Int32GetDatum(-1));
			break;
		case TYPE_interval:
			if (text == NULL)
				wrong_type(what, key, "a string with an interval");
			result = DirectFunctionCall3(interval_in, CStringGetDatum(text),
										 ObjectIdGetDatum(InvalidOid),
										 Int32GetDatum(-1));
			break;
		case TYPE_jsonb:
			result = JsonbPGetDatum(JsonbValueToJsonb(value));
			break;
		case TYPE_uuid:
			if (text == NULL)
				wrong_type(what, key, "a string with a uuid");
			result = DirectFunctionCall1(uuid_in, CStringGetDatum(text));
			break;
		case TYPE__text:
			result = texts_of(value);
			if (result == (Datum) 0)
				wrong_type(what, key, "an array of strings");
			break;
	}
	error_context_stack = context.previous;
	return result;
}

static void
unknown_key(const char *what, const char *key, const char *const *others)
{
	StringInfoData allowed;

	initStringInfo(&allowed);
	for (; others != NULL && *others != NULL; others++)
		appendStringInfo(&allowed, "%s, ", *others);
	for (int i = 0; i < NOPTIONS; i++)
		appendStringInfo(&allowed, "%s%s", i > 0 ? ", " : "",
						 option_types[i].name);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unknown key \"%s\" in %s", key, what),
			 errhint("The keys are %s.", allowed.data)));
}

/*
 * Read the options of a job from an object.  what: name of the object in messages.  others: a
 * list ending with NULL, or NULL, of keys that the caller reads.  A key with the value null
 * counts as missing.  ERROR if a key is unknown, or if a value has the wrong type.
 */
void
jobq_options_from_jsonb(Jsonb *json, const char *what,
						const char *const *others, Datum *options, bool *nulls)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	memset(options, 0, sizeof(Datum) * NOPTIONS);
	memset(nulls, true, sizeof(bool) * NOPTIONS);
	Assert(JB_ROOT_IS_OBJECT(json));

	it = JsonbIteratorInit(&json->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *key;
		int			option = 0;
		bool		known = false;

		if (token != WJB_KEY)
			continue;
		key = pnstrdup(value.val.string.val, value.val.string.len);
		(void) JsonbIteratorNext(&it, &value, true);
		for (int i = 0; others != NULL && others[i] != NULL && !known; i++)
			known = strcmp(key, others[i]) == 0;
		if (known)
			continue;
		while (option < NOPTIONS && strcmp(key, option_types[option].name) != 0)
			option++;
		if (option == NOPTIONS)
			unknown_key(what, key, others);
		if (value.type == jbvNull)
			continue;
		options[option] = option_value(what, key, option_types[option].type,
									   &value);
		nulls[option] = false;
	}
}

/*
 * Like jobq_options_from_jsonb(), for the argument "options" of a function.  arg: the number
 * of the argument.  The argument may be null.
 */
void
jobq_options_from_arg(FunctionCallInfo fcinfo, int arg, Datum *options,
					  bool *nulls)
{
	if (PG_ARGISNULL(arg))
	{
		memset(nulls, true, sizeof(bool) * NOPTIONS);
		return;
	}
	jobq_options_check(PG_GETARG_JSONB_P(arg));
	jobq_options_from_jsonb(PG_GETARG_JSONB_P(arg), "options", NULL, options,
							nulls);
}

/* ERROR if an argument "options" is not an object. */
void
jobq_options_check(Jsonb *json)
{
	if (!JB_ROOT_IS_OBJECT(json))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("options must be an object"),
				 errhint("Write the options of jobq.enqueue() by their names, such as '{\"queue\": \"low\", \"delay\": \"5 min\"}'.")));
}

/*
 * Return the interval under this key of an object, or NULL if there is none.  ERROR if the
 * value is not an interval.
 */
Interval *
jobq_interval_from_jsonb(Jsonb *json, const char *what, const char *key)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(&json->root, key, strlen(key),
									 &value) == NULL ||
		value.type == jbvNull)
		return NULL;
	return DatumGetIntervalP(option_value(what, key, TYPE_interval, &value));
}

/*
 * Read the description of a job.  what: name of the description in messages.  others: a list
 * ending with NULL, or NULL, of keys that the caller reads.  kept: the description was made by
 * jobq_spec_kept().  ERROR if the description is invalid, or if the job is a plain statement.
 */
void
jobq_spec_parse(Jsonb *json, const char *what, const char *const *others,
				bool kept, JobqSpec *spec)
{
	const char *keys[MAX_OTHER_KEYS + 4];
	int			nkeys = 0;
	JsonbValue	value;

	memset(spec, 0, sizeof(JobqSpec));
	if (!JB_ROOT_IS_OBJECT(json))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be an object", what),
				 errhint("Write {\"kind\": \"...\", \"payload\": {...}}.")));

	for (; others != NULL && others[nkeys] != NULL; nkeys++)
	{
		Assert(nkeys < MAX_OTHER_KEYS);
		keys[nkeys] = others[nkeys];
	}
	keys[nkeys++] = "kind";
	keys[nkeys++] = "payload";
	if (kept)
		keys[nkeys++] = JOBQ_KEPT_COST;
	keys[nkeys] = NULL;
	jobq_options_from_jsonb(json, what, keys, spec->options, spec->nulls);
	spec->limit_cost = kept ? jobq_kept_limit_cost(json) : -1;

	if (getKeyJsonValueFromContainer(&json->root, "kind", 4, &value) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s has no \"kind\"", what)));
	if (value.type != jbvString)
		wrong_type(what, "kind", "a string");
	spec->kind = pnstrdup(value.val.string.val, value.val.string.len);
	if (jobq_is_statement(spec->kind))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be a plain statement", what),
				 errhint("Register a function that runs it.")));
	if (getKeyJsonValueFromContainer(&json->root, "payload", 7, &value) != NULL)
		spec->payload = JsonbPGetDatum(JsonbValueToJsonb(&value));
	else
		spec->payload = jobq_text_to_jsonb("{}");
}

/* Return the description with this value (jsonb) for the option. */
static Jsonb *
with_option(Jsonb *json, int option, Datum value)
{
	Datum		key = CStringGetTextDatum(option_types[option].name);
	ArrayType  *path = construct_array(&key, 1, TEXTOID, -1, false, TYPALIGN_INT);

	return DatumGetJsonbP(DirectFunctionCall4(jsonb_set, JsonbPGetDatum(json),
											  PointerGetDatum(path), value,
											  BoolGetDatum(true)));
}

/*
 * Return the description with absolute times, so that another session can read the description
 * later.  The times then do not depend on settings of this session or on the date.
 */
Jsonb *
jobq_spec_keep_times(Jsonb *json, const JobqSpec *spec)
{
	for (int i = 0; i < NOPTIONS; i++)
	{
		char		time[MAXDATELEN + 1];

		if (spec->nulls[i] || option_types[i].type != TYPE_timestamptz)
			continue;
		(void) JsonEncodeDateTime(time, spec->options[i], TIMESTAMPTZOID, NULL);
		json = with_option(json, i, jobq_text_to_jsonb(psprintf("\"%s\"", time)));
	}
	return json;
}

/*
 * Return the description of a prepared job for storage: with absolute times, the job's
 * context, its trace, and its cost at the limiter.
 */
Jsonb *
jobq_spec_kept(Jsonb *json, const JobqSpec *spec, const JobqJob *job)
{
	json = jobq_spec_keep_times(json, spec);

	/* the pointers differ if the trace was added to the headers */
	if (!JOB_ISNULL(job, JOB_HEADERS) &&
		JOB(job, JOB_HEADERS) != spec->options[OPTION_HEADERS])
		json = with_option(json, OPTION_HEADERS, JOB(job, JOB_HEADERS));
	return jobq_keep_limit_cost(jobq_keep_context(json, job), job);
}

/*
 * Return the object with the job's cost at its limiter, if the cost was computed.  A session
 * that later enqueues the job on behalf of a role must not run code of users.
 */
Jsonb *
jobq_keep_limit_cost(Jsonb *json, const JobqJob *job)
{
	Datum		key = CStringGetTextDatum(JOBQ_KEPT_COST);
	ArrayType  *path;
	Datum		cost;

	if (JOB_ISNULL(job, JOB_LIMIT_COST))
		return json;
	path = construct_array(&key, 1, TEXTOID, -1, false, TYPALIGN_INT);
	cost = jobq_text_to_jsonb(psprintf("%d", DatumGetInt32(JOB(job, JOB_LIMIT_COST))));
	return DatumGetJsonbP(DirectFunctionCall4(jsonb_set, JsonbPGetDatum(json),
											  PointerGetDatum(path), cost,
											  BoolGetDatum(true)));
}

/* Return the cost stored by jobq_keep_limit_cost(), or -1 if there is none. */
int32
jobq_kept_limit_cost(Jsonb *json)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(&json->root, JOBQ_KEPT_COST, strlen(JOBQ_KEPT_COST),
									 &value) == NULL ||
		value.type != jbvNumeric)
		return -1;
	return DatumGetInt32(DirectFunctionCall1(numeric_int4,
											 NumericGetDatum(value.val.numeric)));
}

/*
 * Make the job, but do not write it.  Computes the job's cost at its limiter.  ERROR if the
 * current user may not enqueue the job.
 */
void
jobq_spec_prepare(const JobqSpec *spec, JobqJob *job, JobqUnique *unique)
{
	jobq_refuse_merge(spec->nulls);
	jobq_prepare_job(job, unique, spec->kind, spec->options, spec->nulls);
	jobq_set_payload(job, spec->payload);
	jobq_ask_limit_cost(job);
	unique->ask_cost = false;
}

/* Like jobq_spec_prepare(), for a description returned by jobq_spec_kept(). */
void
jobq_spec_prepare_kept(const JobqSpec *spec, JobqJob *job, JobqUnique *unique)
{
	jobq_prepare_kept_job(job, unique, spec->kind, spec->options, spec->nulls);
	jobq_set_payload(job, spec->payload);
	if (spec->limit_cost >= 0)
		JOB_SET(job, JOB_LIMIT_COST, Int32GetDatum(spec->limit_cost));
}

/*
 * Enqueue the job of a stored description on behalf of the role.  headers: a JSON object to
 * add to the job's headers, or NULL. Returns the job's id.  ERROR as for jobq_put_job().
 */
int64
jobq_spec_enqueue(const JobqSpec *spec, Oid role, const char *headers)
{
	JobqJob		job;
	JobqUnique	unique;
	Oid			userid;
	int			sec_context;

	/* no code of the role runs; the switch only sets the owner of the job */
	GetUserIdAndSecContext(&userid, &sec_context);
	SetUserIdAndSecContext(role, sec_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
	jobq_spec_prepare_kept(spec, &job, &unique);
	if (headers != NULL)
	{
		Datum		added = jobq_text_to_jsonb(headers);

		JOB_SET(&job, JOB_HEADERS, JOB_ISNULL(&job, JOB_HEADERS) ? added
				: DirectFunctionCall2(jsonb_concat, JOB(&job, JOB_HEADERS), added));
	}
	jobq_put_job(&job, &unique);
	SetUserIdAndSecContext(userid, sec_context);
	return job_id(&job);
}
