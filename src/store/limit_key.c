/*-------------------------------------------------------------------------
 *
 * limit_key.c
 *	  The keys of jobs by which limiters tell them apart, such as a host in the
 *	  payload.
 *
 * A limiter says where a job has its key when it is created, and that does not
 * change.  The key is read each time the job's row is written, and when it goes into
 * the ready set.  So that this can neither fail nor take long, a path leads from key
 * to key of objects, and to nothing else.  A job that has no text, number or truth
 * value there has no key.
 *
 * What is known of such limiters is kept here, and so is which function a limiter asks
 * what its jobs cost: limit_cost.c.
 *
 * src/store/limit_key.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
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
	BY_TENANT,
	BY_ROLE
} KeyBy;

/* Where jobs have their key. */
typedef struct KeyPlace
{
	KeyBy		by;
	int			nsteps;
	int			begin[MAX_STEPS];	/* in names, each with its end behind it */
	char		names[JOBQ_MAX_LIMIT_BY + 1];
} KeyPlace;

/* A limiter by a key, or one that asks what its jobs cost. */
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
static bool valid = false;		/* they are as in the table */
static Oid	limiter_relation = InvalidOid;	/* that they were read from */

/* how often a message, or an abort, may have outdated what is kept here */
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

/*
 * Join the caches; once per process.
 */
void
jobq_limit_keys_install(void)
{
	jobq_cache_join(&cache);
}

/*
 * Read a path: "$", and for each step a point and a name of letters, digits, "_", "-"
 * and what is not ASCII.
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
 * Read what a limiter says: payload PATH, header NAME, tenant, or role.  False if it
 * is none of these.
 */
static bool
parse_place(const char *by, KeyPlace *place)
{
	memset(place, 0, sizeof(KeyPlace));
	if (strlen(by) > JOBQ_MAX_LIMIT_BY)
		return false;
	place->by = strcmp(by, "tenant") == 0 ? BY_TENANT : BY_ROLE;
	if (place->by == BY_TENANT || strcmp(by, "role") == 0)
		return true;
	if (strncmp(by, "header ", 7) == 0)
	{
		place->by = BY_HEADER;
		place->nsteps = 1;
		strlcpy(place->names, by + 7, sizeof(place->names));
		return place->names[0] != '\0' && place->names[0] != ' ';
	}
	place->by = BY_PAYLOAD;
	return strncmp(by, "payload ", 8) == 0 && parse_path(by + 8, place);
}

/*
 * An error if this cannot be where jobs have their key.
 */
void
jobq_check_limit_by(const char *by)
{
	KeyPlace	place;

	if (!parse_place(by, &place))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid key of a limiter: \"%s\"", by),
				 errhint("It is payload and a path of up to %d names such as \"payload $.server.host\", header and a name, tenant, or role, of up to %d bytes.",
						 MAX_STEPS, JOBQ_MAX_LIMIT_BY)));
}

/*
 * Read all limiters by a key, or with a function, if they are not known.
 */
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

		/*
		 * what nobody could have said is restored from elsewhere: no job has
		 * one
		 */
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
 * What is known of the limiter with this hash; NULL if it has neither key nor function.
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
 * Where jobs have their key for this limiter; false if it is not by one.
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
 * The signature of the function that says what jobs cost at the limiter with this hash;
 * NULL if there is none.  It is there until the caches change.
 */
const char *
jobq_limiter_cost_function(uint32 limiter)
{
	const KeyedLimiter *found = find_limiter(limiter);

	return found != NULL && found->priced ? found->cost : NULL;
}

/*
 * Does the limiter with this hash tell jobs apart by a key?
 */
bool
jobq_limiter_is_keyed(uint32 limiter)
{
	KeyPlace	place;

	return find_place(limiter, &place);
}

/*
 * The text, number or truth value where the place leads in an object; or NULL.
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

/*
 * The key, in the current memory context; NULL if there is none.  What is NULL, or 0, is
 * not there.
 */
static char *
key_at(const KeyPlace *place, Datum payload, Datum headers, Oid role,
	   const char *tenant)
{
	char	   *key = NULL;
	Datum		json = place->by == BY_PAYLOAD ? payload : headers;

	if (place->by == BY_ROLE)
		key = OidIsValid(role) ? GetUserNameFromId(role, true) : NULL;
	else if (place->by == BY_TENANT)
		key = tenant == NULL ? NULL : pstrdup(tenant);
	else if (json != (Datum) 0)
		key = text_at(DatumGetJsonbP(json), place);
	if (key != NULL)
		key[pg_mbcliplen(key, strlen(key), JOBQ_MAX_TENANT)] = '\0';
	return key;
}

/*
 * The hash of the job's key for this limiter; 0 if that is not by one, and never else.
 * Jobs without a key have one in common.
 */
uint32
jobq_limit_key(const JobqJob *job, uint32 limiter, const char *tenant)
{
	KeyPlace	place;

	if (!find_place(limiter, &place))
		return 0;
	return jobq_tenant_hash(key_at(&place, JOB_ISNULL(job, JOB_PAYLOAD) ? (Datum) 0
								   : JOB(job, JOB_PAYLOAD),
								   JOB_ISNULL(job, JOB_HEADERS) ? (Datum) 0
								   : JOB(job, JOB_HEADERS),
								   job_role(job), tenant));
}

/*
 * limit_key(limiter, payload, headers, role, tenant): the key for the limiter with this
 * hash, for queries.
 */
Datum
jobq_limit_key_sql(PG_FUNCTION_ARGS)
{
	KeyPlace	place;
	char	   *key;

	if (PG_ARGISNULL(0) || !jobq_may_use() ||
		!find_place((uint32) PG_GETARG_INT32(0), &place))
		PG_RETURN_NULL();
	key = key_at(&place, PG_ARGISNULL(1) ? (Datum) 0 : PG_GETARG_DATUM(1),
				 PG_ARGISNULL(2) ? (Datum) 0 : PG_GETARG_DATUM(2),
				 PG_ARGISNULL(3) ? InvalidOid : PG_GETARG_OID(3),
				 PG_ARGISNULL(4) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(4)));
	if (key == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(key));
}

/*
 * What is stored with a job, as this limiter understands it.
 */
static int32
cost_in_row(uint32 limiter, Datum cost, bool isnull)
{
	if (isnull || jobq_limiter_cost_function(limiter) == NULL)
		return 1;

	/* what nobody could have said is restored from elsewhere */
	return Min(Max(DatumGetInt32(cost), 0), JOBQ_MAX_LIMIT_COST);
}

/*
 * How many tokens the job costs at this limiter; 0: it passes it by.
 */
int32
jobq_limit_cost(const JobqJob *job, uint32 limiter)
{
	return cost_in_row(limiter, JOB(job, JOB_LIMIT_COST),
					   JOB_ISNULL(job, JOB_LIMIT_COST));
}

/*
 * limit_cost(limiter, cost): the same, for queries, of a job with this in its row.
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
