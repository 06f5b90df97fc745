/*-------------------------------------------------------------------------
 *
 * spec.c
 *	  Jobs that are described in jsonb: {"kind": ..., "payload": ..., and the
 *	  options of enqueue() by their names}.
 *
 * Callbacks of batches and steps of workflows are written so.
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

#include "produce/enqueue.h"
#include "store/store.h"

/* What an option's value is. */
typedef enum OptionType
{
	TEXT_OPTION,
	INT_OPTION,
	BOOL_OPTION,
	TIME_OPTION,
	INTERVAL_OPTION,
	JSON_OPTION,
} OptionType;

static const struct
{
	const char *name;
	OptionType	type;
}			option_types[NOPTIONS] = {
	[OPTION_QUEUE] = {"queue", TEXT_OPTION},
	[OPTION_PRIORITY] = {"priority", INT_OPTION},
	[OPTION_RUN_AT] = {"run_at", TIME_OPTION},
	[OPTION_DELAY] = {"delay", INTERVAL_OPTION},
	[OPTION_MAX_ATTEMPTS] = {"max_attempts", INT_OPTION},
	[OPTION_RETRY_UNTIL] = {"retry_until", TIME_OPTION},
	[OPTION_BACKOFF] = {"backoff", TEXT_OPTION},
	[OPTION_TIMEOUT] = {"timeout", INTERVAL_OPTION},
	[OPTION_EXPIRES_AT] = {"expires_at", TIME_OPTION},
	[OPTION_UNIQUE_KEY] = {"unique_key", TEXT_OPTION},
	[OPTION_UNIQUE_FOR] = {"unique_for", INTERVAL_OPTION},
	[OPTION_UNIQUE_UNTIL] = {"unique_until", TEXT_OPTION},
	[OPTION_ON_CONFLICT] = {"on_conflict", TEXT_OPTION},
	[OPTION_GROUP_KEY] = {"group_key", TEXT_OPTION},
	[OPTION_HEADERS] = {"headers", JSON_OPTION},
	[OPTION_WATCH] = {"watch", BOOL_OPTION},
};

/* Where in what we are, for messages. */
typedef struct Place
{
	const char *what;
	const char *key;
} Place;

static void place_callback(void *arg);
static void wrong_type(const char *what, const char *key, const char *wanted);
static Datum option_value(const char *what, const char *key, OptionType type,
						  JsonbValue *value);
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
		case TEXT_OPTION:
			if (text == NULL)
				wrong_type(what, key, "a string");
			result = CStringGetTextDatum(text);
			break;
		case INT_OPTION:
			if (value->type != jbvNumeric)
				wrong_type(what, key, "a number");
			result = DirectFunctionCall1(numeric_int4,
										 NumericGetDatum(value->val.numeric));
			break;
		case BOOL_OPTION:
			if (value->type != jbvBool)
				wrong_type(what, key, "true or false");
			result = BoolGetDatum(value->val.boolean);
			break;
		case TIME_OPTION:
			if (text == NULL)
				wrong_type(what, key, "a string with a time");
			result = DirectFunctionCall3(timestamptz_in, CStringGetDatum(text),
										 ObjectIdGetDatum(InvalidOid),
										 Int32GetDatum(-1));
			break;
		case INTERVAL_OPTION:
			if (text == NULL)
				wrong_type(what, key, "a string with an interval");
			result = DirectFunctionCall3(interval_in, CStringGetDatum(text),
										 ObjectIdGetDatum(InvalidOid),
										 Int32GetDatum(-1));
			break;
		case JSON_OPTION:
			result = JsonbPGetDatum(JsonbValueToJsonb(value));
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
	appendStringInfoString(&allowed, "kind, payload");
	for (int i = 0; i < NOPTIONS; i++)
		appendStringInfo(&allowed, ", %s", option_types[i].name);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unknown key \"%s\" in %s", key, what),
			 errhint("The keys are %s.", allowed.data)));
}

/*
 * Read the description of a job; an error if it is none.  what names it in
 * messages; keys in others (a list that ends with NULL, or NULL) are the
 * caller's.  The values point into the current memory context.
 */
void
jobq_spec_parse(Jsonb *json, const char *what, const char *const *others,
				JobqSpec *spec)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	memset(spec, 0, sizeof(JobqSpec));
	memset(spec->nulls, true, sizeof(spec->nulls));
	if (!JB_ROOT_IS_OBJECT(json))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be an object", what),
				 errhint("Write {\"kind\": \"...\", \"payload\": {...}}.")));

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
		if (strcmp(key, "kind") == 0)
		{
			if (value.type != jbvString)
				wrong_type(what, key, "a string");
			spec->kind = pnstrdup(value.val.string.val, value.val.string.len);
			continue;
		}
		if (strcmp(key, "payload") == 0)
		{
			spec->payload = JsonbPGetDatum(JsonbValueToJsonb(&value));
			continue;
		}
		while (option < NOPTIONS && strcmp(key, option_types[option].name) != 0)
			option++;
		if (option == NOPTIONS)
			unknown_key(what, key, others);
		if (value.type == jbvNull)
			continue;
		spec->options[option] = option_value(what, key,
											 option_types[option].type, &value);
		spec->nulls[option] = false;
	}
	if (spec->kind == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s has no \"kind\"", what)));
	if (spec->payload == (Datum) 0)
		spec->payload = jobq_text_to_jsonb("{}");
}

/*
 * The description, to be read again by another session: its times do not depend
 * on settings of this one, or on what day it is.
 */
Jsonb *
jobq_spec_kept(Jsonb *json, const JobqSpec *spec)
{
	for (int i = 0; i < NOPTIONS; i++)
	{
		char		time[MAXDATELEN + 1];
		Datum		key = CStringGetTextDatum(option_types[i].name);
		ArrayType  *path = construct_array(&key, 1, TEXTOID, -1, false,
										   TYPALIGN_INT);

		if (spec->nulls[i] || option_types[i].type != TIME_OPTION)
			continue;
		(void) JsonEncodeDateTime(time, spec->options[i], TIMESTAMPTZOID, NULL);
		json = DatumGetJsonbP(DirectFunctionCall4(jsonb_set, JsonbPGetDatum(json),
												  PointerGetDatum(path),
												  jobq_text_to_jsonb(psprintf("\"%s\"", time)),
												  BoolGetDatum(false)));
	}
	return json;
}

/*
 * Make the job, but do not write it.  An error if this user could not enqueue
 * it.
 */
void
jobq_spec_prepare(const JobqSpec *spec, JobqJob *job, JobqUnique *unique)
{
	jobq_prepare_job(job, unique, spec->kind, spec->options, spec->nulls);
	jobq_set_payload(job, spec->payload);
}

/*
 * Enqueue the job on behalf of the role, with these headers added to its own;
 * returns its id.
 */
int64
jobq_spec_enqueue(const JobqSpec *spec, Oid role, const char *headers)
{
	JobqJob		job;
	JobqUnique	unique;
	Oid			userid;
	int			sec_context;

	/* no code of the role's runs: this is about whose job it is */
	GetUserIdAndSecContext(&userid, &sec_context);
	SetUserIdAndSecContext(role, sec_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
	jobq_spec_prepare(spec, &job, &unique);
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
