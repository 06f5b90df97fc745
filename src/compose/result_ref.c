/*-------------------------------------------------------------------------
 *
 * result_ref.c
 *	  References in payloads: to results of earlier steps, and to elements of an array.
 *
 * {"$result": "step"}, anywhere in the payload, represents the result of that step.
 * {"$result": "step", "path": ["a", "b"]} represents a part of the result.  In the payload
 * of a step with "map", {"$element": "value"} represents the element, and may have a path,
 * too.  {"$element": "index"} represents the index of the element in the array.
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

/* A reference to a result or an element. */
typedef struct ResultRef
{
	char	   *name;			/* of the step; NULL: an element */
	bool		index;			/* index of the element, not value */
	ArrayType  *path;			/* or NULL */
} ResultRef;

/* State while a payload is written with its references replaced. */
typedef struct Writer
{
	JsonbParseState *state;
	const JobqRefs *refs;
	Size		size;			/* of payload and inserted values */
	Size		max_size;
} Writer;

static bool is_index(const JsonbValue *value, const char *what);
static ArrayType *read_path(JsonbContainer *array, const char *what);
static JsonbValue *put_container(Writer *writer, JsonbContainer *container);
static void put_result(Writer *writer, JsonbIteratorToken token,
					   const ResultRef *ref);

/*
 * Parse a reference.  Returns false if the object is no reference.  what: description of
 * the payload, for messages.  mapped: references to elements are allowed.  ERROR if the
 * reference is malformed.
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
 * Return true if {"$element": value} refers to the index of the element, and false for the
 * value of the element.  ERROR for any other text.
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
 * Return a path as the operator #> expects it.
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
 * Return true if the value is a reference to a result and nothing else.  what: description
 * of the value, for messages.  ERROR if the reference is malformed.  Takes no locks.
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
 * Return the names of the steps whose results the payload uses, as a list of strings.
 * Names may occur twice.  what: description of the payload, for messages.  mapped: the
 * payload belongs to a step with "map".  ERROR if a reference is malformed.  Takes no
 * locks.
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
 * Copy a container with its references replaced.  Returns the new value of the outermost
 * container.  The copy ends as soon as the size exceeds the limit, because many references
 * may each insert a large value.
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
 * Return the value that a reference represents, or NULL if there is no such value.
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

		/* jsonb_extract_path() returns null if there is no such part */
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
 * Write the value in place of a reference, or null if there is no value.
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
 * Return a copy of the payload with all references replaced.  Returns NULL if the copy
 * would exceed max_size bytes.  *size: receives the size in bytes, or a lower bound if NULL
 * is returned.  A reference without a value becomes null.  ERROR if a reference is
 * malformed.  Takes no locks, apart from those of refs->result_of.
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

	/*
	 * not converted through text, where a number of a few bytes may be long
	 */
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
 * Check the new payload of a job.  If the job is a blocked step, ERROR if the scheduler
 * could not replace the references in the payload.  Other jobs are not checked.  Takes no
 * row locks.  The caller must not be connected to SPI.
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
