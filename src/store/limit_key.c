/*-------------------------------------------------------------------------
 *
 * limit_key.c
 *	  Keys by which limiters distinguish jobs, such as a host in the payload.
 *
 * A limiter defines, when it is created, where a job has its key.  The definition cannot be
 * changed.  The key is read each time the job's row is written, and when the job enters the
 * ready set.  This must neither fail nor take long.  A path therefore consists only of keys of
 * objects.  A job without a string, number or boolean at the end of the path has no key.
 *
 * The definitions are cached here, together with the cost functions of limiters
 * (limit_cost.c).
 *
 * src/store/limit_key.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/rel.h"

#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_limit_key_sql);
PG_FUNCTION_INFO_V1(jobq_limit_cost_sql);

#define MAX_STEPS	8			/* of a path */

typedef enum KeyBy
{
	BY_PAYLOAD,
	BY_HEADER,
	BY_TAG,
	BY_TENANT,
	BY_ROLE,
	BY_GROUP
} KeyBy;

/* Definition of the key of a limiter's jobs. */
typedef struct KeyPlace
{
	KeyBy		by;
	int			nsteps;
	int			begin[MAX_STEPS];	/* in names, each terminated */
	char		names[JOBQ_MAX_LIMIT_BY + 1];
} KeyPlace;

/* A limiter with a key or with a cost function. */
typedef struct KeyedLimiter
{
	uint32		limiter;		/* its hash */
	bool		keyed;
	bool		priced;
	KeyPlace	place;
	char		cost[JOBQ_MAX_COST_FUNCTION + 1];	/* signature */
} KeyedLimiter;

static KeyedLimiter *limiters = NULL;
static int	nlimiters = 0;
static int	max_limiters = 0;
static bool valid = false;		/* the list matches the table */
static Oid	limiter_relation = InvalidOid;	/* source of the cache */

/* count of invalidations and aborts */
static uint64 changes = 0;

static void
forget_limiters(void)
{
	changes++;
	valid = false;
}

static void
relation_changed(Oid relid)
{
	if (relid == InvalidOid || relid == limiter_relation)
		forget_limiters();
}

static const JobqCache cache = {
	.changed = relation_changed,
	.forget = forget_limiters,
};

/* Register the cache for invalidation.  Called once per process. */
void
jobq_limit_keys_install(void)
{
	jobq_cache_join(&cache);
}

/*
 * Parse a path: "$", and for each step a dot and a name of letters, digits, "_", "-" and
 * non-ASCII characters.
 */
static bool
parse_path(const char *path, KeyPlace *place)
{
	int			length = 0;

	if (*path++ != '$')
		return false;
	while (*path == '.' && place->nsteps < MAX_STEPS)
	{
		int			begin = length;

		for (path++; isalnum((unsigned char) *path) || *path == '_' || *path == '-' ||
			 IS_HIGHBIT_SET(*path); path++)
			place->names[length++] = *path;
		if (length == begin)
			return false;
		place->begin[place->nsteps++] = begin;
		place->names[length++] = '\0';
	}
	return *path == '\0' && place->nsteps > 0;
}

/*
 * Parse the definition of a key: payload PATH, header NAME, tag PREFIX, tenant, role, or group.
 * Returns false if it is malformed.
 */
static bool
parse_place(const char *by, KeyPlace *place)
{
	static const char *const words[] = {
		[BY_TENANT] = "tenant",[BY_ROLE] = "role",[BY_GROUP] = "group"
	};

	memset(place, 0, sizeof(KeyPlace));
	if (strlen(by) > JOBQ_MAX_LIMIT_BY)
		return false;
	for (KeyBy word = BY_TENANT; word <= BY_GROUP; word++)
		if (strcmp(by, words[word]) == 0)
		{
			place->by = word;
			return true;
		}
	if (strncmp(by, "header ", 7) == 0 || strncmp(by, "tag ", 4) == 0)
	{
		place->by = by[0] == 'h' ? BY_HEADER : BY_TAG;
		place->nsteps = 1;
		strlcpy(place->names, strchr(by, ' ') + 1, sizeof(place->names));
		return place->names[0] != '\0' && place->names[0] != ' ';
	}
	place->by = BY_PAYLOAD;
	return strncmp(by, "payload ", 8) == 0 && parse_path(by + 8, place);
}

/* ERROR if this is not a valid definition of a key. */
void
jobq_check_limit_by(const char *by)
{
	KeyPlace	place;

	if (!parse_place(by, &place))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid key of a limiter: \"%s\"", by),
				 errhint("It is payload and a path of up to %d names such as \"payload $.server.host\", header and a name, tag and a prefix, tenant, role, or group, of up to %d bytes.",
						 MAX_STEPS, JOBQ_MAX_LIMIT_BY)));
}

/* Read all limiters with a key or a cost function, unless they are cached. */
static void
load(void)
{
	uint64		before = changes;
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (valid)
		return;
	nlimiters = 0;
	rel = jobq_open_table(JOBQ_LIMITER_TABLE, AccessShareLock);
	limiter_relation = RelationGetRelid(rel);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		bool		no_key;
		bool		no_cost;
		bool		null;
		Datum		by = heap_getattr(tuple, LIMITER_BY, RelationGetDescr(rel), &no_key);
		Datum		cost = heap_getattr(tuple, LIMITER_COST, RelationGetDescr(rel),
										&no_cost);
		Datum		name;
		KeyedLimiter *limiter;

		if (no_key && no_cost)
			continue;
		name = heap_getattr(tuple, LIMITER_NAME, RelationGetDescr(rel), &null);
		limiters = jobq_grow(limiters, &max_limiters, nlimiters + 1,
							 sizeof(KeyedLimiter));
		limiter = &limiters[nlimiters++];
		limiter->limiter = jobq_limiter_hash(TextDatumGetCString(name));
		limiter->keyed = !no_key;
		limiter->priced = !no_cost;
		strlcpy(limiter->cost, no_cost ? "" : TextDatumGetCString(cost),
				sizeof(limiter->cost));

		/* restored invalid definition: no job has a key */
		if (!no_key && !parse_place(TextDatumGetCString(by), &limiter->place))
		{
			limiter->place.by = BY_PAYLOAD;
			limiter->place.nsteps = 0;
		}
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	if (changes != before)
		return;
	valid = true;
	jobq_cache_filled();
}

/*
 * Return the cached limiter with this hash, or NULL if it has neither key nor cost function.
 */
static const KeyedLimiter *
find_limiter(uint32 limiter)
{
	if (limiter == 0)
		return NULL;
	load();
	for (int i = 0; i < nlimiters; i++)
		if (limiters[i].limiter == limiter)
			return &limiters[i];
	return NULL;
}

/*
 * Return in *place where jobs have their key for this limiter.  Returns false if the limiter
 * has no key.
 */
static bool
find_place(uint32 limiter, KeyPlace *place)
{
	const KeyedLimiter *found = find_limiter(limiter);

	if (found == NULL || !found->keyed)
		return false;
	*place = found->place;
	return true;
}

/*
 * Return the signature of the cost function of the limiter with this hash, or NULL. The result
 * is valid until the caches change.
 */
const char *
jobq_limiter_cost_function(uint32 limiter)
{
	const KeyedLimiter *found = find_limiter(limiter);

	return found != NULL && found->priced ? found->cost : NULL;
}

/*
 * Return the string, number or boolean at the path in an object, as text, or NULL.
 */
static char *
text_at(Jsonb *json, const KeyPlace *place)
{
	JsonbContainer *container = &json->root;
	JsonbValue	value;

	for (int i = 0; i < place->nsteps; i++)
	{
		const char *name = place->names + place->begin[i];

		if (!JsonContainerIsObject(container) ||
			getKeyJsonValueFromContainer(container, name, strlen(name),
										 &value) == NULL)
			return NULL;
		if (i + 1 == place->nsteps)
			break;
		if (value.type != jbvBinary)
			return NULL;
		container = value.val.binary.data;
	}
	if (place->nsteps == 0)
		return NULL;
	if (value.type == jbvString)
		return pnstrdup(value.val.string.val, value.val.string.len);
	if (value.type == jbvNumeric)
		return DatumGetCString(DirectFunctionCall1(numeric_out,
												   NumericGetDatum(value.val.numeric)));
	if (value.type == jbvBool)
		return pstrdup(value.val.boolean ? "true" : "false");
	return NULL;
}

/* Where the key of a job may be.  A Datum of 0, an OID of 0 or NULL: missing. */
typedef struct KeySource
{
	Datum		payload;
	Datum		headers;
	Oid			role;
	const char *tenant;
	Datum		group_key;
	Datum		tags;
} KeySource;

/*
 * Return the rest of the first tag that begins with the prefix and a colon, or NULL.
 */
static char *
text_of_tag(ArrayType *tags, const char *prefix)
{
	Size		length = strlen(prefix);
	Datum	   *elems;
	bool	   *nulls;
	int			n;

	deconstruct_array(tags, TEXTOID, -1, false, TYPALIGN_INT, &elems, &nulls, &n);
	for (int i = 0; i < n; i++)
	{
		char	   *tag = nulls[i] ? NULL : TextDatumGetCString(elems[i]);

		if (tag != NULL && strncmp(tag, prefix, length) == 0 && tag[length] == ':')
			return tag + length + 1;
	}
	return NULL;
}

/* Return the key, in the current memory context, or NULL if there is none. */
static char *
key_at(const KeyPlace *place, const KeySource *source)
{
	char	   *key = NULL;

	switch (place->by)
	{
		case BY_PAYLOAD:
			if (source->payload != (Datum) 0)
				key = text_at(DatumGetJsonbP(source->payload), place);
			break;
		case BY_HEADER:
			if (source->headers != (Datum) 0)
				key = text_at(DatumGetJsonbP(source->headers), place);
			break;
		case BY_TAG:
			if (source->tags != (Datum) 0)
				key = text_of_tag(DatumGetArrayTypeP(source->tags), place->names);
			break;
		case BY_TENANT:
			key = source->tenant == NULL ? NULL : pstrdup(source->tenant);
			break;
		case BY_ROLE:
			key = OidIsValid(source->role) ? GetUserNameFromId(source->role, true) : NULL;
			break;
		case BY_GROUP:
			key = source->group_key == (Datum) 0 ? NULL
				: TextDatumGetCString(source->group_key);
			break;
	}
	if (key != NULL)
		key[pg_mbcliplen(key, strlen(key), JOBQ_MAX_TENANT)] = '\0';
	return key;
}

/* Return the value of a column of the job; 0: null. */
static Datum
column_of(const JobqJob *job, int att)
{
	return JOB_ISNULL(job, att) ? (Datum) 0 : JOB(job, att);
}

/*
 * Return the hash of the job's key for this limiter.  Returns 0 only if the limiter has no
 * key.  Jobs without a key share one hash.  tenant may be NULL.
 */
uint32
jobq_limit_key(const JobqJob *job, uint32 limiter, const char *tenant)
{
	KeyPlace	place;
	KeySource	source = {
		.payload = column_of(job, JOB_PAYLOAD),
		.headers = column_of(job, JOB_HEADERS),
		.role = job_role(job),
		.tenant = tenant,
		.group_key = column_of(job, JOB_GROUP_KEY),
		.tags = column_of(job, JOB_TAGS)
	};

	if (!find_place(limiter, &place))
		return 0;
	return jobq_tenant_hash(key_at(&place, &source));
}

/*
 * limit_key(limiter, payload, headers, role, tenant, group_key, tags): the key for the limiter
 * with this hash, for queries.
 */
Datum
jobq_limit_key_sql(PG_FUNCTION_ARGS)
{
#define ARG(n) (PG_ARGISNULL(n) ? (Datum) 0 : PG_GETARG_DATUM(n))
	KeyPlace	place;
	KeySource	source = {
		.payload = ARG(1),
		.headers = ARG(2),
		.role = PG_ARGISNULL(3) ? InvalidOid : PG_GETARG_OID(3),
		.tenant = PG_ARGISNULL(4) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(4)),
		.group_key = ARG(5),
		.tags = ARG(6)
	};
	char	   *key;
#undef ARG

	if (PG_ARGISNULL(0) || !jobq_may_use() ||
		!find_place((uint32) PG_GETARG_INT32(0), &place))
		PG_RETURN_NULL();
	key = key_at(&place, &source);
	if (key == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(key));
}

/* Return the stored cost of a job as this limiter counts it. */
static int32
cost_in_row(uint32 limiter, Datum cost, bool isnull)
{
	if (isnull || jobq_limiter_cost_function(limiter) == NULL)
		return 1;

	/* a restored value may be out of range */
	return Min(Max(DatumGetInt32(cost), 0), JOBQ_MAX_LIMIT_COST);
}

/*
 * Return the cost of the job at this limiter, in tokens.  With 0, the job bypasses the
 * limiter.
 */
int32
jobq_limit_cost(const JobqJob *job, uint32 limiter)
{
	return cost_in_row(limiter, JOB(job, JOB_LIMIT_COST),
					   JOB_ISNULL(job, JOB_LIMIT_COST));
}

/*
 * limit_cost(limiter, cost): the cost in tokens for a stored value, for queries.
 */
Datum
jobq_limit_cost_sql(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(0) || !jobq_may_use())
		PG_RETURN_NULL();
	PG_RETURN_INT32(cost_in_row((uint32) PG_GETARG_INT32(0),
								PG_ARGISNULL(1) ? (Datum) 0 : PG_GETARG_DATUM(1),
								PG_ARGISNULL(1)));
}
