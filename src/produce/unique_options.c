/*-------------------------------------------------------------------------
 *
 * unique_options.c
 *	  Unique keys: their options, keys from fields of the payload ("by"), and their
 *	  release.
 *
 * The key from fields is made when the payload is known.  The key is the text of an object
 * with only these fields: {"month": 5, "customer": "acme"}. A field missing in the payload is
 * null.  The key is otherwise an ordinary key, and visible to users.  A text that is too long
 * is replaced by its hash.
 *
 * src/produce/unique_options.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "common/sha2.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_release_key);

/* Maximum length of a key, in bytes. */
#define MAX_UNIQUE_KEY	500

/* Maximum number of fields in "by". */
#define MAX_FIELDS		16

/*
 * Maximum number of holders of a key, because each call may read all holders.
 */
#define MAX_UNIQUE_MAX	100

/* A queue without keys. */
#define NO_QUEUE		(-1)

static Datum unique_key(Datum option);

/* ERROR if a key of "uniqueness" other than "by" is given, but no unique key. */
static void
check_has_key(const bool *nulls)
{
	static const struct
	{
		int			option;
		const char *name;
	}			details[] = {
#define UNIQUENESS_OPTION(name, NAME, type, comment) {OPTION_##NAME, name},
#include "produce/options.h"
	};

	if (!nulls[OPTION_UNIQUE_KEY] || !nulls[OPTION_UNIQUE_BY])
		return;
	for (int i = 0; i < (int) lengthof(details); i++)
		if (!nulls[details[i].option])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"%s\" of uniqueness needs a unique_key", details[i].name),
					 errhint("Give unique_key, or \"by\" of uniqueness.")));
}

/* Return the key, checked. */
static Datum
unique_key(Datum option)
{
	Size		length = VARSIZE_ANY_EXHDR(DatumGetTextPP(option));

	if (length < 1 || length > MAX_UNIQUE_KEY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unique_key of %zu bytes must have 1 to %d bytes",
						length, MAX_UNIQUE_KEY),
				 errhint("Use a hash of what is longer, such as md5().")));
	return option;
}

/* Return the event that releases the key, as stored in the job. */
static char
released_by(Datum option)
{
	const char *value = TextDatumGetCString(option);

	if (strcmp(value, "start") != 0 && strcmp(value, "finish") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid \"until\" of uniqueness: \"%s\"", value),
				 errhint("It is finish or start.")));
	return value[0] == 's' ? UNIQUE_UNTIL_START : UNIQUE_UNTIL_FINISH;
}

static char
conflict_action(Datum option)
{
	static const struct
	{
		const char *name;
		char		action;
	}			actions[] = {
		{"skip", UNIQUE_SKIP}, {"ignore", UNIQUE_IGNORE}, {"replace", UNIQUE_REPLACE},
		{"merge", UNIQUE_MERGE}, {"reset", UNIQUE_RESET}, {"error", UNIQUE_ERROR},
	};
	const char *value = TextDatumGetCString(option);

	for (int i = 0; i < (int) lengthof(actions); i++)
		if (strcmp(value, actions[i].name) == 0)
			return actions[i].action;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid \"on_conflict\" of uniqueness: \"%s\"", value),
			 errhint("It is skip, ignore, replace, merge, reset or error.")));
}

/* Return the names of the fields that make the key, as a list of strings. */
static List *
field_names(Datum option)
{
	List	   *names = NIL;
	Datum	   *elems;
	bool	   *nulls;
	int			n;

	deconstruct_array(DatumGetArrayTypeP(option), TEXTOID, -1, false, TYPALIGN_INT,
					  &elems, &nulls, &n);
	if (n < 1 || n > MAX_FIELDS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"by\" of uniqueness has %d names", n),
				 errhint("Write 1 to %d names of fields of the payload, such as [\"customer\", \"month\"].",
						 MAX_FIELDS)));
	for (int i = 0; i < n; i++)
	{
		if (VARSIZE_ANY_EXHDR(DatumGetPointer(elems[i])) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("name %d in \"by\" of uniqueness is empty", i + 1)));
		names = lappend(names, TextDatumGetCString(elems[i]));
	}
	return names;
}

/*
 * Return how many jobs may hold the key.  Several holders cannot be combined with "replace",
 * because there would be no single job to replace.
 */
static int
most_holders(char on_conflict, Datum option)
{
	int			max = DatumGetInt32(option);

	if (max < 1 || max > MAX_UNIQUE_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid \"max\" of uniqueness: %d", max),
				 errhint("It is 1 to %d.", MAX_UNIQUE_MAX)));
	if (max > 1 && on_conflict != UNIQUE_SKIP && on_conflict != UNIQUE_IGNORE &&
		on_conflict != UNIQUE_ERROR)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"max\" of uniqueness cannot be %d with this on_conflict", max),
				 errhint("Several jobs can hold a key with skip, ignore or error.")));
	return max;
}

/*
 * Read the options about unique keys and uuid.  jobq_set_unique_by() sets the key made from
 * fields when the payload is known.  ERROR if an option is invalid.
 */
void
jobq_unique_options(JobqJob *job, JobqUnique *unique, const Datum *options,
					const bool *nulls)
{
	char		until = UNIQUE_UNTIL_FINISH;

	unique->by = NIL;
	unique->several = false;
	unique->merge = NULL;
	unique->max = 1;
	unique->uuid = nulls[OPTION_UUID] ? (Datum) 0 : options[OPTION_UUID];
	check_has_key(nulls);
	if (nulls[OPTION_UNIQUE_KEY] && nulls[OPTION_UNIQUE_BY])
		return;
	if (!nulls[OPTION_UNIQUE_KEY] && !nulls[OPTION_UNIQUE_BY])
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unique_key and \"by\" of uniqueness cannot be given together"),
				 errhint("Give one of them.")));

	/* jobq_set_unique_by() replaces the key "by" */
	JOB_SET(job, JOB_UNIQUE_KEY, !nulls[OPTION_UNIQUE_KEY]
			? unique_key(options[OPTION_UNIQUE_KEY]) : CStringGetTextDatum("by"));
	if (!nulls[OPTION_UNIQUE_BY])
		unique->by = field_names(options[OPTION_UNIQUE_BY]);
	if (!nulls[OPTION_UNIQUE_SCOPE])
		jobq_unique_set_scope(job, TextDatumGetCString(options[OPTION_UNIQUE_SCOPE]));
	unique->exempt = false;
	unique->held_until = DT_NOBEGIN;
	if (!nulls[OPTION_UNIQUE_FOR])
		unique->held_until = jobq_now() + 1000 *
			jobq_interval_ms(DatumGetIntervalP(options[OPTION_UNIQUE_FOR]), "\"for\" of uniqueness",
							 1, JOBQ_MAX_DELAY_MS);
	if (!nulls[OPTION_UNIQUE_UNTIL])
		until = released_by(options[OPTION_UNIQUE_UNTIL]);
	JOB_SET(job, JOB_UNIQUE_UNTIL, CharGetDatum(until));

	unique->on_conflict = nulls[OPTION_MERGE] ? UNIQUE_SKIP : UNIQUE_MERGE;
	if (!nulls[OPTION_ON_CONFLICT])
		unique->on_conflict = conflict_action(options[OPTION_ON_CONFLICT]);
	if (unique->on_conflict == UNIQUE_MERGE && jobq_job_is_statement(job))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("plain statements cannot be merged"),
				 errhint("Use on_conflict replace.")));
	if (!nulls[OPTION_UNIQUE_MAX])
		unique->max = most_holders(unique->on_conflict, options[OPTION_UNIQUE_MAX]);
	if (!nulls[OPTION_MERGE])
	{
		if (unique->on_conflict != UNIQUE_MERGE)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"merge\" of uniqueness needs on_conflict merge"),
					 errhint("Leave out on_conflict, or the function.")));
		unique->merge = TextDatumGetCString(options[OPTION_MERGE]);
		(void) jobq_merge_function(unique->merge);
	}
}

/*
 * ERROR if the option "merge" is given for a job that another session enqueues later, because
 * that session must not run code of the role.
 */
void
jobq_refuse_merge(const bool *nulls)
{
	if (!nulls[OPTION_MERGE])
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a job that is enqueued later cannot have \"merge\" of uniqueness"),
				 errhint("Use on_conflict without it, or have a job call jobq.enqueue().")));
}

/* Return the hash of a key that is too long: "sha256 " and 64 digits. */
static char *
hash_of(const char *key)
{
	bytea	   *hash = DatumGetByteaPP(DirectFunctionCall1(sha256_bytea,
														   CStringGetTextDatum(key)));
	char		digits[2 * PG_SHA256_DIGEST_LENGTH + 1] = "";

	(void) hex_encode(VARDATA_ANY(hash), VARSIZE_ANY_EXHDR(hash), digits);
	return psprintf("sha256 %s", digits);
}

/*
 * Set the job's unique key from these fields of its payload.  ERROR if the payload is not an
 * object.
 */
void
jobq_set_unique_by(JobqJob *job, const List *names)
{
	Jsonb	   *payload = DatumGetJsonbP(JOB(job, JOB_PAYLOAD));
	JsonbParseState *state = NULL;
	Jsonb	   *fields;
	char	   *key;
	ListCell   *lc;

	if (!JB_ROOT_IS_OBJECT(payload))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the payload must be an object to have the fields of \"by\""),
				 errhint("Give unique_key instead of \"by\".")));
	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	foreach(lc, names)
	{
		JsonbValue	name = {.type = jbvString};
		JsonbValue	null = {.type = jbvNull};
		JsonbValue	found;

		name.val.string.val = lfirst(lc);
		name.val.string.len = strlen(lfirst(lc));
		(void) pushJsonbValue(&state, WJB_KEY, &name);
		(void) pushJsonbValue(&state, WJB_VALUE,
							  getKeyJsonValueFromContainer(&payload->root, lfirst(lc),
														   strlen(lfirst(lc)), &found) != NULL
							  ? &found : &null);
	}
	fields = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
	key = JsonbToCString(NULL, &fields->root, VARSIZE(fields));
	if (strlen(key) > MAX_UNIQUE_KEY)
		key = hash_of(key);
	JOB_SET(job, JOB_UNIQUE_KEY, CStringGetTextDatum(key));
}

/*
 * Set the unique key of *job from arguments of a function, for the current role.  Returns false
 * if the key is null, or the kind of the scope kind.  ERROR if the arguments do not fit the scope.
 */
bool
jobq_unique_from_args(FunctionCallInfo fcinfo, const JobqKeyArgs *args, JobqJob *job)
{
	const char *scope = PG_ARGISNULL(args->scope) ? "kind"
		: text_to_cstring(PG_GETARG_TEXT_PP(args->scope));
	bool		of_queue = strcmp(scope, "queue") == 0;
	bool		of_kind = strcmp(scope, "kind") == 0;

	memset(job->nulls, true, sizeof(job->nulls));
	job_clear_stat(job);
	JOB_SET(job, JOB_QUEUE_ID, Int32GetDatum(0));
	jobq_unique_set_scope(job, scope);
	if (of_queue != !PG_ARGISNULL(args->queue))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 of_queue ? errmsg("scope \"queue\" needs a queue")
				 : errmsg("a queue needs scope \"queue\"")));
	if (!of_kind && !PG_ARGISNULL(args->kind))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a unique key of the %s has no kind", scope),
				 errhint("Leave kind out, or write NULL for it.")));
	if (PG_ARGISNULL(args->key) || (of_kind && PG_ARGISNULL(args->kind)))
		return false;
	if (of_queue)
	{
		char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(args->queue));
		JobqQueue	queue;

		/* a role that may not see the queue has no key there */
		if (jobq_queue_by_name(name, false, &queue) == NULL)
			queue.id = NO_QUEUE;
		JOB_SET(job, JOB_UNIQUE_QUEUE, Int32GetDatum(queue.id));
	}
	JOB_SET(job, JOB_ID, Int64GetDatum(0));
	JOB_SET(job, JOB_ROLE, ObjectIdGetDatum(GetUserId()));
	if (of_kind)
		JOB_SET(job, JOB_KIND, PG_GETARG_DATUM(args->kind));
	JOB_SET(job, JOB_UNIQUE_KEY, PG_GETARG_DATUM(args->key));
	return true;
}

/*
 * release_key(kind, unique_key, scope, queue): release a unique key of the current
 * role, whichever job holds the key.  The kind is used for the scope kind, and the queue for
 * the scope queue.  ERROR if the arguments do not fit the scope.
 */
Datum
jobq_release_key(PG_FUNCTION_ARGS)
{
	static const JobqKeyArgs args = {.kind = 0,.key = 1,.scope = 2,.queue = 3};
	JobqJob		job;

	PreventCommandIfReadOnly("jobq.release_key()");
	jobq_require(JOBQ_MAY_PRODUCE | JOBQ_MAY_PRODUCE_OPEN);
	if (jobq_unique_from_args(fcinfo, &args, &job))
		PG_RETURN_BOOL(jobq_unique_release(&job));
	PG_RETURN_NULL();
}
