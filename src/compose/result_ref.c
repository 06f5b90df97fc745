/*-------------------------------------------------------------------------
 *
 * result_ref.c
 *	  Results of earlier steps in the payload of a later one, and elements of an
 *	  array in those of the jobs that they have.
 *
 * {"$result": "step"}, anywhere in the payload, stands for the result of that
 * step; {"$result": "step", "path": ["a", "b"]} for a part of it.  In the payload of a
 * step with "map", {"$element": "value"}, likewise with a path, stands for the element,
 * and {"$element": "index"} for its place in the array.
 *
 * src/compose/result_ref.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/detoast.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"

#include "compose/compose.h"

#define PATH_KEY	"path"

/* A place in a payload that stands for a result, or for an element. */
typedef struct ResultRef
{
	char	   *name;			/* of the step; NULL: the element */
	bool		index;			/* the place of the element, not its value */
	ArrayType  *path;			/* or NULL */
} ResultRef;

/* While a payload is written with the results in it. */
typedef struct Writer
{
	JsonbParseState *state;
	const JobqRefs *refs;
	Size		size;			/* of the payload, and of what came in */
	Size		max_size;
} Writer;

static bool read_ref(JsonbContainer *object, const char *what, bool mapped,
					 ResultRef *ref);
static bool is_index(const JsonbValue *value, const char *what);
static ArrayType *read_path(JsonbContainer *array, const char *what);
static List *find_refs(JsonbContainer *container, const char *what,
					   bool mapped, List *names);
static void put_value(Writer *writer, JsonbIteratorToken token,
					  JsonbContainer *container);
static JsonbValue *put_container(Writer *writer, JsonbContainer *container);
static Jsonb *find_result(Writer *writer, const ResultRef *ref);
static void put_result(Writer *writer, JsonbIteratorToken token,
					   const ResultRef *ref);

/*
 * Is the object a reference?  An error if it is a wrong one; what names the
 * payload's owner in messages.  mapped: it may be one to an element.
 */
static bool
read_ref(JsonbContainer *object, const char *what, bool mapped, ResultRef *ref)
{
	bool		element = false;
	const char *main_key = RESULT_KEY;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;
	JsonbValue	unused;

	if (getKeyJsonValueFromContainer(object, RESULT_KEY, strlen(RESULT_KEY),
									 &unused) == NULL)
	{
		element = true;
		main_key = ELEMENT_KEY;
		if (!mapped ||
			getKeyJsonValueFromContainer(object, ELEMENT_KEY,
										 strlen(ELEMENT_KEY), &unused) == NULL)
			return false;
	}
	memset(ref, 0, sizeof(ResultRef));
	it = JsonbIteratorInit(object);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *key;

		if (token != WJB_KEY)
			continue;
		key = pnstrdup(value.val.string.val, value.val.string.len);
		(void) JsonbIteratorNext(&it, &value, true);
		if (strcmp(key, main_key) == 0 && element)
			ref->index = is_index(&value, what);
		else if (strcmp(key, main_key) == 0 && value.type == jbvString)
			ref->name = pnstrdup(value.val.string.val, value.val.string.len);
		else if (strcmp(key, PATH_KEY) == 0 && value.type == jbvBinary &&
				 JsonContainerIsArray(value.val.binary.data))
			ref->path = read_path(value.val.binary.data, what);
		else if (strcmp(key, main_key) == 0 || strcmp(key, PATH_KEY) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 strcmp(key, PATH_KEY) == 0
					 ? errmsg("\"path\" of a result in %s must be an array", what)
					 : errmsg("\"$result\" in %s must be the name of a step", what)));
		else
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unknown key \"%s\" beside \"%s\" in %s", key,
							main_key, what),
					 errhint("Write {\"%s\": \"%s\"} or {\"%s\": \"%s\", \"path\": [\"key\", ...]}.",
							 main_key, element ? "value" : "step",
							 main_key, element ? "value" : "step")));
	}
	return true;
}

/*
 * What {"$element": value} wants: the place of the element, or its value.
 */
static bool
is_index(const JsonbValue *value, const char *what)
{
	for (int i = 0; i < 2 && value->type == jbvString; i++)
		if (value->val.string.len == 5 &&
			memcmp(value->val.string.val, i == 0 ? "value" : "index", 5) == 0)
			return i == 1;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("\"$element\" in %s must be \"value\" or \"index\"", what)));
	return false;
}

/*
 * A path, as the operator #> takes it.
 */
static ArrayType *
read_path(JsonbContainer *array, const char *what)
{
	int			n = JsonContainerSize(array);
	Datum	   *texts = palloc(sizeof(Datum) * (n + 1));

	for (int i = 0; i < n; i++)
	{
		JsonbValue *value = getIthJsonbValueFromContainer(array, i);

		if (value->type == jbvString)
			texts[i] = PointerGetDatum(cstring_to_text_with_len(value->val.string.val,
																value->val.string.len));
		else if (value->type == jbvNumeric)
			texts[i] = CStringGetTextDatum(DatumGetCString(DirectFunctionCall1(numeric_out,
																			   NumericGetDatum(value->val.numeric))));
		else
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"path\" of a result in %s must have keys and numbers only",
							what)));
	}
	return construct_array(texts, n, TEXTOID, -1, false, TYPALIGN_INT);
}

/*
 * Is it a reference to a result, and nothing else?  An error if it is a wrong one.
 */
bool
jobq_is_result_ref(Jsonb *jsonb, const char *what)
{
	ResultRef	ref;

	return JB_ROOT_IS_OBJECT(jsonb) && read_ref(&jsonb->root, what, false, &ref);
}

static List *
find_refs(JsonbContainer *container, const char *what, bool mapped, List *names)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;
	ResultRef	ref;

	check_stack_depth();
	if (JsonContainerIsObject(container) &&
		read_ref(container, what, mapped, &ref))
		return ref.name == NULL ? names : lappend(names, ref.name);
	it = JsonbIteratorInit(container);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
		if ((token == WJB_VALUE || token == WJB_ELEM) &&
			value.type == jbvBinary)
			names = find_refs(value.val.binary.data, what, mapped, names);
	return names;
}

/*
 * The names of the steps whose results the payload takes; an error if it does
 * that in a wrong way.  mapped: it is that of a step with "map".
 */
List *
jobq_result_refs(Jsonb *payload, const char *what, bool mapped)
{
	return find_refs(&payload->root, what, mapped, NIL);
}

static void
put_value(Writer *writer, JsonbIteratorToken token, JsonbContainer *container)
{
	ResultRef	ref;

	if (JsonContainerIsObject(container) &&
		read_ref(container, "payload", writer->refs->element != NULL, &ref))
		put_result(writer, token, &ref);
	else
		(void) put_container(writer, container);
}

/*
 * Returns what was made if this is the outermost.  It ends as soon as that is too large:
 * there may be a great many references, each to much.
 */
static JsonbValue *
put_container(Writer *writer, JsonbContainer *container)
{
	JsonbIterator *it = JsonbIteratorInit(container);
	JsonbIteratorToken token;
	JsonbValue	value;
	JsonbValue *whole = NULL;

	check_stack_depth();
	while (writer->size <= writer->max_size &&
		   (token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		if ((token == WJB_VALUE || token == WJB_ELEM) &&
			value.type == jbvBinary)
			put_value(writer, token, value.val.binary.data);
		else
			whole = pushJsonbValue(&writer->state, token,
								   token < WJB_BEGIN_ARRAY ? &value : NULL);
	}
	return whole;
}

/*
 * What a reference stands for; NULL if there is no such thing.
 */
static Jsonb *
find_result(Writer *writer, const ResultRef *ref)
{
	const JobqRefs *refs = writer->refs;
	Jsonb	   *result = ref->name != NULL ? refs->result_of(refs->arg, ref->name)
		: !ref->index ? refs->element
		: DatumGetJsonbP(jobq_text_to_jsonb(psprintf("%d", refs->place)));

	if (result != NULL && ref->path != NULL)
	{
		LOCAL_FCINFO(fcinfo, 2);
		Datum		part;

		/* which returns null if there is no such part */
		InitFunctionCallInfoData(*fcinfo, NULL, 2, InvalidOid, NULL, NULL);
		fcinfo->args[0].value = JsonbPGetDatum(result);
		fcinfo->args[1].value = PointerGetDatum(ref->path);
		fcinfo->args[0].isnull = fcinfo->args[1].isnull = false;
		part = jsonb_extract_path(fcinfo);
		result = fcinfo->isnull ? NULL : DatumGetJsonbP(part);
	}
	if (result != NULL)
		writer->size += VARSIZE(result);
	return result;
}

/*
 * The result in the place of a reference; null if there is none.
 */
static void
put_result(Writer *writer, JsonbIteratorToken token, const ResultRef *ref)
{
	Jsonb	   *result = find_result(writer, ref);
	JsonbValue	value = {.type = jbvNull};

	if (result != NULL && writer->size <= writer->max_size)
	{
		value.type = jbvBinary;
		value.val.binary.data = &result->root;
		value.val.binary.len = VARSIZE(result) - VARHDRSZ;
	}
	(void) pushJsonbValue(&writer->state, token, &value);
}

/*
 * The payload with the results in it.  NULL if that has more than max_size
 * bytes; size says how many it has at least.
 */
Jsonb *
jobq_results_put(Jsonb *payload, const JobqRefs *refs, Size max_size,
				 Size *size)
{
	Writer		writer = {
		.refs = refs,
		.size = VARSIZE(payload),
		.max_size = max_size
	};
	ResultRef	ref;
	Jsonb	   *whole = NULL;

	/* not by way of text: there, a number of a few bytes may be a long one */
	if (JB_ROOT_IS_OBJECT(payload) &&
		read_ref(&payload->root, "payload", refs->element != NULL, &ref))
	{
		whole = find_result(&writer, &ref);
		if (whole == NULL)
			whole = DatumGetJsonbP(jobq_text_to_jsonb("null"));
	}
	else
	{
		JsonbValue *value = put_container(&writer, &payload->root);

		if (writer.size <= max_size)
			whole = JsonbValueToJsonb(value);
	}
	*size = writer.size;
	return writer.size > max_size ? NULL : whole;
}

/*
 * The job has another payload.  If it is a step that still waits for others, an error if
 * the scheduler could not put their results into that.
 */
void
jobq_step_check_payload(const JobqJob *job)
{
	static const Oid types[] = {INT8OID};
	Datum		value = Int64GetDatum(job_id(job));

	if (job_batch(job) == 0 || !job_blocked(job))
		return;
	SPI_connect();
	if (jobq_query_latest("SELECT elements IS NOT NULL OR element_of IS NOT NULL FROM jobq_internal.step WHERE job_id = $1",
						  1, types, &value, SPI_OK_SELECT) > 0)
		(void) jobq_result_refs(DatumGetJsonbP(JOB(job, JOB_PAYLOAD)), "payload",
								DatumGetBool(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, BOOLOID, NULL)));
	SPI_finish();
}
