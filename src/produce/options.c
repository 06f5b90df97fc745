/*-------------------------------------------------------------------------
 *
 * options.c
 *	  Options of a job, from the arguments of a function or from jsonb.
 *
 * add_jobs(), call() and schedule() accept options as an object.  enqueue() has arguments, of
 * which two are objects.  options.h has the list of the options.
 *
 * Unless stated otherwise, the results are allocated in the current memory context.
 *
 * src/produce/options.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"

#include "produce/produce.h"

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
	bool		of_uniqueness;	/* a key of the option "uniqueness" */
}			option_types[NOPTIONS] = {
#define JOB_OPTION(name, NAME, type, comment) \
	[OPTION_##NAME] = {#name, TYPE_##type, false},
#define UNIQUENESS_OPTION(name, NAME, type, comment) \
	[OPTION_##NAME] = {name, TYPE_##type, true},
#define OTHER_OPTION(name, NAME, type, comment) \
	[OPTION_##NAME] = {#name, TYPE_##type, false},
#include "produce/options.h"
};

/* Current key and object, for messages. */
typedef struct Place
{
	const char *what;
	const char *key;
} Place;

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

/*
 * Return true if the option is a key of an object with options; of_uniqueness: if the option is
 * a key of the object "uniqueness".
 */
static bool
is_key(int option, bool of_uniqueness)
{
	return option_types[option].of_uniqueness == of_uniqueness &&
		option != OPTION_OPTIONS;
}

static void
unknown_key(const char *what, const char *key, const char *const *others,
			bool of_uniqueness)
{
	StringInfoData allowed;

	initStringInfo(&allowed);
	for (; others != NULL && *others != NULL; others++)
		appendStringInfo(&allowed, "%s, ", *others);
	for (int i = 0; i < NOPTIONS; i++)
		if (is_key(i, of_uniqueness))
			appendStringInfo(&allowed, "%s, ", option_types[i].name);
	allowed.len -= 2;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unknown key \"%s\" in %s", key, what),
			 errhint("The keys are %.*s.", allowed.len, allowed.data)));
}

/*
 * Read the keys of an object into the options.  of_uniqueness: the object is the value of the
 * option "uniqueness".  ERROR if an option was read before.
 */
static void
read_keys(Jsonb *json, const char *what, const char *const *others,
		  bool of_uniqueness, Datum *options, bool *nulls)
{
	JsonbIterator *it = JsonbIteratorInit(&json->root);
	JsonbIteratorToken token;
	JsonbValue	value;

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
		while (option < NOPTIONS && (!is_key(option, of_uniqueness) ||
									 strcmp(key, option_types[option].name) != 0))
			option++;
		if (option == NOPTIONS)
			unknown_key(what, key, others, of_uniqueness);
		if (value.type == jbvNull)
			continue;
		if (!nulls[option])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"%s\" is given twice", key),
					 errhint("Give it as an argument or in %s.", what)));
		options[option] = option_value(what, key, option_types[option].type,
									   &value);
		nulls[option] = false;
	}
}

/*
 * Read the keys of the option "uniqueness", if given.  what: name of the option in messages.
 * ERROR if the option is not an object.
 */
static void
read_uniqueness(const char *what, Datum *options, bool *nulls)
{
	Jsonb	   *uniqueness;

	if (nulls[OPTION_UNIQUENESS])
		return;
	uniqueness = DatumGetJsonbP(options[OPTION_UNIQUENESS]);
	if (!JB_ROOT_IS_OBJECT(uniqueness))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be an object", what),
				 errhint("Write, for example, '{\"scope\": \"queue\", \"on_conflict\": \"replace\"}'.")));
	read_keys(uniqueness, what, NULL, true, options, nulls);
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
	Assert(JB_ROOT_IS_OBJECT(json));
	memset(options, 0, sizeof(Datum) * NOPTIONS);
	memset(nulls, true, sizeof(bool) * NOPTIONS);
	read_keys(json, what, others, false, options, nulls);
	if (!nulls[OPTION_UNIQUENESS])
		read_uniqueness(psprintf("uniqueness of %s", what), options, nulls);
}

/*
 * Read the keys of the options "uniqueness" and "options".  The caller has set the first
 * NOPTION_ARGS options, and this function sets the others.  ERROR if a key is unknown or given
 * twice, or if a value has the wrong type.
 */
void
jobq_options_expand(Datum *options, bool *nulls)
{
	memset(options + NOPTION_ARGS, 0, sizeof(Datum) * (NOPTIONS - NOPTION_ARGS));
	memset(nulls + NOPTION_ARGS, true, sizeof(bool) * (NOPTIONS - NOPTION_ARGS));
	if (!nulls[OPTION_OPTIONS])
	{
		Jsonb	   *further = DatumGetJsonbP(options[OPTION_OPTIONS]);

		jobq_options_check(further);
		read_keys(further, "options", NULL, false, options, nulls);
	}
	read_uniqueness("uniqueness", options, nulls);
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
 * Read the options from the arguments of a function, beginning with argument number "first".
 * ERROR if a key of the arguments "uniqueness" or "options" is unknown or wrong.
 */
void
jobq_options_from_args(FunctionCallInfo fcinfo, int first, Datum *options,
					   bool *nulls)
{
	for (int i = 0; i < NOPTION_ARGS; i++)
	{
		nulls[i] = PG_ARGISNULL(first + i);
		options[i] = nulls[i] ? (Datum) 0 : PG_GETARG_DATUM(first + i);
	}
	jobq_options_expand(options, nulls);
}

/* Return the object with this value (jsonb) for the key. */
Jsonb *
jobq_jsonb_set(Jsonb *json, const char *key, Datum value)
{
	Datum		name = CStringGetTextDatum(key);
	ArrayType  *path = construct_array(&name, 1, TEXTOID, -1, false, TYPALIGN_INT);

	return DatumGetJsonbP(DirectFunctionCall4(jsonb_set, JsonbPGetDatum(json),
											  PointerGetDatum(path), value,
											  BoolGetDatum(true)));
}

/*
 * Return the object, which has the options, with absolute times, so that another session can
 * read the object later.  The times then do not depend on settings of this session or on the
 * date.
 */
Jsonb *
jobq_options_keep_times(Jsonb *json, const Datum *options, const bool *nulls)
{
	for (int i = 0; i < NOPTIONS; i++)
	{
		char		time[MAXDATELEN + 1];

		if (nulls[i] || option_types[i].type != TYPE_timestamptz)
			continue;
		(void) JsonEncodeDateTime(time, options[i], TIMESTAMPTZOID, NULL);
		json = jobq_jsonb_set(json, option_types[i].name,
							  jobq_text_to_jsonb(psprintf("\"%s\"", time)));
	}
	return json;
}
