/*-------------------------------------------------------------------------
 *
 * unique_options.c
 *	  Unique keys: their options, keys from fields of the payload (unique_by), and their
 *	  release.
 *
 * The key of unique_by is made when the payload is known.  The key is the text of an object
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
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_release_key);

/* Maximum length of a key, in bytes. */
#define MAX_UNIQUE_KEY	500

/* Maximum number of fields in unique_by. */
#define MAX_FIELDS		16

/*
 * Maximum number of holders of a key, because each call may read all holders.
 */
#define MAX_UNIQUE_MAX	100

static void unique_options(JobqJob *job, JobqUnique *unique,
						   const Datum *options, const bool *nulls);
static List *field_names(Datum option);
static void check_has_key(const bool *nulls, int option, const char *name);
static int	most_holders(const JobqUnique *unique, Datum option);
static char *hash_of(const char *key);

/*
 * Read unique_key, unique_for, unique_until and on_conflict, in this order, from the options.
 */
static void
unique_options(JobqJob *job, JobqUnique *unique, const Datum *options,
			   const bool *nulls)
{
	static const char *const names[] =
	{"unique_key", "unique_for", "unique_until", "on_conflict"};
	enum
	{
		KEY, FOR, UNTIL, CONFLICT, N
	};
	char		until = UNIQUE_UNTIL_FINISH;
	Size		length;

	if (nulls[KEY])
	{
		for (int i = FOR; i < N; i++)
			if (!nulls[i])
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("%s needs a unique_key", names[i])));
		return;
	}
	length = VARSIZE_ANY_EXHDR(DatumGetTextPP(options[KEY]));
	if (length < 1 || length > MAX_UNIQUE_KEY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unique_key of %zu bytes must have 1 to %d bytes",
						length, MAX_UNIQUE_KEY),
				 errhint("Use a hash of what is longer, such as md5().")));

	unique->exempt = false;
	unique->held_until = DT_NOBEGIN;
	if (!nulls[FOR])
		unique->held_until = jobq_now() + 1000 *
			jobq_interval_ms(DatumGetIntervalP(options[FOR]), names[FOR], 1,
							 JOBQ_MAX_DELAY_MS);
	if (!nulls[UNTIL])
	{
		const char *value = TextDatumGetCString(options[UNTIL]);

		if (strcmp(value, "start") == 0)
			until = UNIQUE_UNTIL_START;
		else if (strcmp(value, "finish") != 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid unique_until \"%s\"", value),
					 errhint("It is finish or start.")));
	}
	unique->on_conflict = UNIQUE_SKIP;
	if (!nulls[CONFLICT])
	{
		const char *value = TextDatumGetCString(options[CONFLICT]);

		if (strcmp(value, "replace") == 0)
			unique->on_conflict = UNIQUE_REPLACE;
		else if (strcmp(value, "merge") == 0)
			unique->on_conflict = UNIQUE_MERGE;
		else if (strcmp(value, "reset") == 0)
			unique->on_conflict = UNIQUE_RESET;
		else if (strcmp(value, "error") == 0)
			unique->on_conflict = UNIQUE_ERROR;
		else if (strcmp(value, "ignore") == 0)
			unique->on_conflict = UNIQUE_IGNORE;
		else if (strcmp(value, "skip") != 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid on_conflict \"%s\"", value),
					 errhint("It is skip, ignore, replace, merge, reset or error.")));
	}
	if (unique->on_conflict == UNIQUE_MERGE && jobq_job_is_statement(job))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("plain statements cannot be merged"),
				 errhint("Use on_conflict => 'replace'.")));
	JOB_SET(job, JOB_UNIQUE_KEY, options[KEY]);
	JOB_SET(job, JOB_UNIQUE_UNTIL, CharGetDatum(until));
}

/*
 * Return the names of the fields.  The option is an array in text form, or a list of names
 * separated by commas.
 */
static List *
field_names(Datum option)
{
	char	   *value = TextDatumGetCString(option);
	List	   *names = NIL;
	Datum	   *elems;
	bool	   *nulls;
	int			n;

	if (value[strspn(value, " \t\n")] != '{')
		value = psprintf("{%s}", value);
	deconstruct_array(DatumGetArrayTypeP(OidInputFunctionCall(F_ARRAY_IN, value, TEXTOID, -1)),
					  TEXTOID, -1, false, TYPALIGN_INT, &elems, &nulls, &n);
	for (int i = 0; i < n; i++)
		if (!nulls[i] && VARSIZE_ANY_EXHDR(DatumGetPointer(elems[i])) > 0)
			names = lappend(names, TextDatumGetCString(elems[i]));
	if (n < 1 || n > MAX_FIELDS || list_length(names) != n)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid unique_by \"%s\"", TextDatumGetCString(option)),
				 errhint("Write 1 to %d names of fields of the payload, such as {customer,month}.",
						 MAX_FIELDS)));
	return names;
}

/* ERROR if this option is given without a key. */
static void
check_has_key(const bool *nulls, int option, const char *name)
{
	if (!nulls[option] && nulls[OPTION_UNIQUE_KEY] && nulls[OPTION_UNIQUE_BY])
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s needs a unique_key", name)));
}

/*
 * Return how many jobs may hold the key, by unique_max.  Several holders cannot be combined
 * with "replace", because there would be no single job to replace.
 */
static int
most_holders(const JobqUnique *unique, Datum option)
{
	int			max = DatumGetInt32(option);

	if (max < 1 || max > MAX_UNIQUE_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unique_max %d is out of range", max),
				 errhint("It is 1 to %d.", MAX_UNIQUE_MAX)));
	if (max > 1 && unique->on_conflict != UNIQUE_SKIP &&
		unique->on_conflict != UNIQUE_IGNORE && unique->on_conflict != UNIQUE_ERROR)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unique_max %d needs on_conflict skip, ignore or error", max),
				 errhint("With the others, one job holds the key.")));
	return max;
}

/*
 * Read the options about unique keys and uuid.  jobq_set_unique_by() sets the key of unique_by
 * when the payload is known.  ERROR if an option is invalid.
 */
void
jobq_unique_options(JobqJob *job, JobqUnique *unique, const Datum *options,
					const bool *nulls)
{
	Datum		values[4];
	bool		isnull[4];

	StaticAssertStmt(OPTION_ON_CONFLICT == OPTION_UNIQUE_KEY + 3,
					 "the options about unique keys must stand together");
	memcpy(values, options + OPTION_UNIQUE_KEY, sizeof(values));
	memcpy(isnull, nulls + OPTION_UNIQUE_KEY, sizeof(isnull));
	unique->by = NIL;
	unique->several = false;
	unique->merge = NULL;
	unique->uuid = nulls[OPTION_UUID] ? (Datum) 0 : options[OPTION_UUID];
	check_has_key(nulls, OPTION_UNIQUE_SCOPE, "unique_scope");
	check_has_key(nulls, OPTION_UNIQUE_MAX, "unique_max");
	check_has_key(nulls, OPTION_MERGE, "merge");
	if (!nulls[OPTION_UNIQUE_SCOPE])
		jobq_unique_set_scope(job, TextDatumGetCString(options[OPTION_UNIQUE_SCOPE]));
	if (!nulls[OPTION_MERGE] && nulls[OPTION_ON_CONFLICT])
	{
		values[3] = CStringGetTextDatum("merge");
		isnull[3] = false;
	}
	if (!nulls[OPTION_UNIQUE_BY])
	{
		if (!nulls[OPTION_UNIQUE_KEY])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unique_key and unique_by cannot be given together"),
					 errhint("Give one of them.")));
		values[0] = CStringGetTextDatum("unique_by");
		isnull[0] = false;
	}
	unique_options(job, unique, values, isnull);
	unique->max = nulls[OPTION_UNIQUE_MAX] ? 1
		: most_holders(unique, options[OPTION_UNIQUE_MAX]);
	if (!nulls[OPTION_UNIQUE_BY])
		unique->by = field_names(options[OPTION_UNIQUE_BY]);
	if (!nulls[OPTION_MERGE])
	{
		if (unique->on_conflict != UNIQUE_MERGE)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("a function to merge needs on_conflict => 'merge'")));
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
				 errmsg("a job that is enqueued later cannot have the option \"merge\""),
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
				 errmsg("the payload must be an object to have the fields of unique_by")));
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
 * release_key(kind, unique_key, unique_scope, queue): release a unique key of the current
 * role, whichever job holds the key.  The kind is used for the scope kind, and the queue for
 * the scope queue.  ERROR if the arguments do not fit the scope.
 */
Datum
jobq_release_key(PG_FUNCTION_ARGS)
{
	enum
	{
		KIND, KEY, SCOPE, QUEUE
	};
	const char *scope = PG_ARGISNULL(SCOPE) ? "kind"
		: text_to_cstring(PG_GETARG_TEXT_PP(SCOPE));
	bool		of_queue = strcmp(scope, "queue") == 0;
	bool		of_kind = strcmp(scope, "kind") == 0;
	JobqJob		job;

	PreventCommandIfReadOnly("jobq.release_key()");
	jobq_require(JOBQ_MAY_PRODUCE | JOBQ_MAY_PRODUCE_OPEN);
	memset(job.nulls, true, sizeof(job.nulls));
	job_clear_stat(&job);
	JOB_SET(&job, JOB_QUEUE_ID, Int32GetDatum(0));
	jobq_unique_set_scope(&job, scope);
	if (of_queue != !PG_ARGISNULL(QUEUE))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 of_queue ? errmsg("unique_scope \"queue\" needs a queue")
				 : errmsg("a queue needs unique_scope \"queue\"")));
	if (!of_kind && !PG_ARGISNULL(KIND))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a unique key of the %s has no kind", scope),
				 errhint("Leave kind out, or write NULL for it.")));
	if (PG_ARGISNULL(KEY) || (of_kind && PG_ARGISNULL(KIND)))
		PG_RETURN_NULL();
	if (of_queue)
	{
		char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(QUEUE));
		JobqQueue	queue;

		/* a role that may not see the queue has no key there */
		if (jobq_queue_by_name(name, false, &queue) == NULL)
			PG_RETURN_BOOL(false);
		JOB_SET(&job, JOB_UNIQUE_QUEUE, Int32GetDatum(queue.id));
	}
	JOB_SET(&job, JOB_ID, Int64GetDatum(0));
	JOB_SET(&job, JOB_ROLE, ObjectIdGetDatum(GetUserId()));
	if (of_kind)
		JOB_SET(&job, JOB_KIND, PG_GETARG_DATUM(KIND));
	JOB_SET(&job, JOB_UNIQUE_KEY, PG_GETARG_DATUM(KEY));
	PG_RETURN_BOOL(jobq_unique_release(&job));
}
