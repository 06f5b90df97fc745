/*-------------------------------------------------------------------------
 *
 * result_ref.c
 *	  Results of earlier steps in the payload of a later one.
 *
 * {"$result": "step"}, anywhere in the payload, stands for the result of that
 * step; {"$result": "step", "path": ["a", "b"]} for a part of it.
 *
 * src/compose/result_ref.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/detoast.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"

#include "compose/compose.h"

#define RESULT_KEY	"$result"
#define PATH_KEY	"path"

/* A place in a payload that stands for a result. */
typedef struct ResultRef
{
	char	   *name;
	ArrayType  *path;			/* or NULL */
} ResultRef;

/* While a payload is written with the results in it. */
typedef struct Writer
{
	JsonbParseState *state;
	JobqResultOf result_of;
	void	   *arg;
	Size		size;			/* of the payload, and of what came in */
	Size		max_size;
} Writer;

static bool read_ref(JsonbContainer *object, const char *what, ResultRef *ref);
static ArrayType *read_path(JsonbContainer *array, const char *what);
static List *find_refs(JsonbContainer *container, const char *what,
					   List *names);
static void put_value(Writer *writer, JsonbIteratorToken token,
					  JsonbContainer *container);
static JsonbValue *put_container(Writer *writer, JsonbContainer *container);
static Jsonb *find_result(Writer *writer, const ResultRef *ref);
static void put_result(Writer *writer, JsonbIteratorToken token,
					   const ResultRef *ref);

/*
 * Is the object a reference?  An error if it is a wrong one; what names the
 * payload's owner in messages.
 */
static bool
read_ref(JsonbContainer *object, const char *what, ResultRef *ref)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;
	JsonbValue	unused;

	if (getKeyJsonValueFromContainer(object, RESULT_KEY, strlen(RESULT_KEY),
									 &unused) == NULL)
		return false;
	ref->path = NULL;
	it = JsonbIteratorInit(object);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *key;

		if (token != WJB_KEY)
			continue;
		key = pnstrdup(value.val.string.val, value.val.string.len);
		(void) JsonbIteratorNext(&it, &value, true);
		if (strcmp(key, RESULT_KEY) == 0 && value.type == jbvString)
			ref->name = pnstrdup(value.val.string.val, value.val.string.len);
		else if (strcmp(key, PATH_KEY) == 0 && value.type == jbvBinary &&
				 JsonContainerIsArray(value.val.binary.data))
			ref->path = read_path(value.val.binary.data, what);
		else if (strcmp(key, RESULT_KEY) == 0 || strcmp(key, PATH_KEY) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 strcmp(key, PATH_KEY) == 0
					 ? errmsg("\"path\" of a result in %s must be an array", what)
					 : errmsg("\"$result\" in %s must be the name of a step", what)));
		else
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unknown key \"%s\" beside \"$result\" in %s", key,
							what),
					 errhint("Write {\"$result\": \"step\"} or {\"$result\": \"step\", \"path\": [\"key\", ...]}.")));
	}
	return true;
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

static List *
find_refs(JsonbContainer *container, const char *what, List *names)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;
	ResultRef	ref;

	check_stack_depth();
	if (JsonContainerIsObject(container) && read_ref(container, what, &ref))
		return lappend(names, ref.name);
	it = JsonbIteratorInit(container);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
		if ((token == WJB_VALUE || token == WJB_ELEM) &&
			value.type == jbvBinary)
			names = find_refs(value.val.binary.data, what, names);
	return names;
}

/*
 * The names of the steps whose results the payload takes; an error if it does
 * that in a wrong way.
 */
List *
jobq_result_refs(Jsonb *payload, const char *what)
{
	return find_refs(&payload->root, what, NIL);
}

static void
put_value(Writer *writer, JsonbIteratorToken token, JsonbContainer *container)
{
	ResultRef	ref;

	if (JsonContainerIsObject(container) && read_ref(container, "payload", &ref))
		put_result(writer, token, &ref);
	else
		(void) put_container(writer, container);
}

/*
 * Returns what was made if this is the outermost.
 */
static JsonbValue *
put_container(Writer *writer, JsonbContainer *container)
{
	JsonbIterator *it = JsonbIteratorInit(container);
	JsonbIteratorToken token;
	JsonbValue	value;
	JsonbValue *whole = NULL;

	check_stack_depth();
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
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
	Jsonb	   *result = writer->result_of(writer->arg, ref->name);

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
 * bytes; size says how many.
 */
Jsonb *
jobq_results_put(Jsonb *payload, JobqResultOf result_of, void *arg,
				 Size max_size, Size *size)
{
	Writer		writer = {
		.result_of = result_of,
		.arg = arg,
		.size = VARSIZE(payload),
		.max_size = max_size
	};
	ResultRef	ref;
	Jsonb	   *whole;

	/* not by way of text: there, a number of a few bytes may be a long one */
	if (JB_ROOT_IS_OBJECT(payload) && read_ref(&payload->root, "payload", &ref))
	{
		whole = find_result(&writer, &ref);
		if (whole == NULL)
			whole = DatumGetJsonbP(jobq_text_to_jsonb("null"));
	}
	else
		whole = JsonbValueToJsonb(put_container(&writer, &payload->root));
	*size = writer.size;
	return writer.size > max_size ? NULL : whole;
}
