/*-------------------------------------------------------------------------
 *
 * policies.c
 *	  Reads the limits of queues, of kinds, and of named limiters, and the kinds
 *	  and queues that use named limiters.
 *
 * worker/scheduler/policies.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

static int	read_named(JobqLimiter **limiters, int n,
					   uint32 (*hash) (const char *name), const char *query);

static int
int_column(HeapTuple row, TupleDesc desc, int n)
{
	bool		isnull;
	Datum		value = jobq_column(row, desc, n, INT4OID, &isnull);

	return isnull ? 0 : DatumGetInt32(value);
}

static void
rate_of(JobqRate *rate, HeapTuple row, TupleDesc desc, int n)
{
	bool		isnull;
	Datum		value = jobq_column(row, desc, n, TEXTOID, &isnull);

	if (!isnull)
		jobq_rate_parse(TextDatumGetCString(value), rate);
}

static void
rate_and_throttle(JobqLimiter *limiter, HeapTuple row, TupleDesc desc,
				  int rate, int throttle)
{
	bool		isnull;
	Datum		value = jobq_column(row, desc, throttle, TEXTOID, &isnull);

	rate_of(&limiter->rate, row, desc, rate);
	if (!isnull)
		jobq_throttle_parse(TextDatumGetCString(value), &limiter->throttle);
}

static void
read_weights(JobqLimiter *limiter, Datum weights)
{
	JsonbIterator *it = JsonbIteratorInit(&DatumGetJsonbP(weights)->root);
	JsonbValue	value;
	JsonbIteratorToken token;

	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		uint32		hash;
		int			weight;

		if (token != WJB_KEY)
			continue;
		hash = hash_bytes((const unsigned char *) value.val.string.val,
						  value.val.string.len);
		(void) JsonbIteratorNext(&it, &value, true);
		if (limiter->nweights < JOBQ_MAX_WEIGHTS && value.type == jbvNumeric)
		{
			limiter->weighted[limiter->nweights] = hash == 0 ? 1 : hash;
			weight = DatumGetInt32(DirectFunctionCall1(numeric_int4,
													   NumericGetDatum(value.val.numeric)));
			limiter->weights[limiter->nweights++] = Max(1, Min(weight, PG_UINT16_MAX));
		}
	}
}

/*
 * True if jobs must wait while there is no slot for this limiter.  Jobs of a queue need
 * not wait if the policy only affects their order or groups.
 */
bool
policies_wait(const JobqLimiter *limiter)
{
	return limiter->queue_id == 0 || jobq_limiter_counts(limiter);
}

/*
 * Read the policies of queues, kinds and named limiters, always in the same order.
 * There may be more than jobq_check_limited() allows, after a restore, by replication,
 * or after a reduction of the setting.  Sets *limiters and *weighted, and returns the
 * number of policies.  SPI must be connected.
 */
int
policies_read(JobqLimiter **limiters, bool *weighted)
{
	int			n = 0;
	uint64		nrows;

	nrows = jobq_query("SELECT id, coalesce(max_running, 0), group_max_running,"
					   " coalesce(weight, 0), rate, throttle, fair <> 'off',"
					   " group_on_failure, fair_weights, fair = 'cpu'"
					   " FROM jobq_internal.queue WHERE " JOBQ_LIMITED_QUEUE " ORDER BY id",
					   0, NULL, NULL, NULL, SPI_OK_SELECT);
	*weighted = false;
	*limiters = SPI_palloc(sizeof(JobqLimiter) * (nrows + 1));
	for (uint64 i = 0; i < nrows; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		JobqLimiter *limiter = &(*limiters)[n++];
		bool		isnull;
		Datum		weights;

		memset(limiter, 0, sizeof(JobqLimiter));
		limiter->in_use = true;
		limiter->queue_id = int_column(row, desc, 1);
		limiter->max_running = int_column(row, desc, 2);
		limiter->group_max_running = int_column(row, desc, 3);
		limiter->weight = int_column(row, desc, 4);
		*weighted |= limiter->weight > 0;
		rate_and_throttle(limiter, row, desc, 5, 6);
		limiter->fair = DatumGetBool(jobq_column(row, desc, 7, BOOLOID, NULL));
		limiter->group_wait =
			jobq_group_wait_parse(TextDatumGetCString(jobq_column(row, desc, 8, TEXTOID, NULL)),
								  &limiter->group_patience);
		weights = jobq_column(row, desc, 9, JSONBOID, &isnull);
		if (!isnull)
			read_weights(limiter, weights);
		limiter->fair_cpu = DatumGetBool(jobq_column(row, desc, 10, BOOLOID, NULL));
	}

	n = read_named(limiters, n, jobq_kind_hash,
				   "SELECT kind, coalesce(max_running, 0), rate, throttle, false, false, NULL::text, chunk, chunk_wait_ms"
				   " FROM jobq_internal.handler WHERE " JOBQ_LIMITED_KIND " ORDER BY kind");
	return read_named(limiters, n, jobq_limiter_hash,
					  "SELECT name, coalesce(max_running, 0), rate, throttle, by IS NOT NULL, cost IS NOT NULL, when_taken, NULL::int, NULL::int"
					  " FROM jobq_internal.limiter ORDER BY name");
}

/*
 * Append the limiters returned by the query, of kinds or with names, after the first
 * n.  Returns the new number.  The limits of a limiter with a key apply to each key.
 */
static int
read_named(JobqLimiter **limiters, int n, uint32 (*hash) (const char *name),
		   const char *query)
{
	uint64		nrows = jobq_query(query, 0, NULL, NULL, NULL, SPI_OK_SELECT);

	*limiters = SPI_repalloc(*limiters, sizeof(JobqLimiter) * (n + nrows + 1));
	for (uint64 i = 0; i < nrows; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		JobqLimiter *limiter = &(*limiters)[n++];
		bool		isnull;
		Datum		when_taken;

		memset(limiter, 0, sizeof(JobqLimiter));
		limiter->in_use = true;
		limiter->kind = hash(TextDatumGetCString(jobq_column(row, desc, 1, TEXTOID, NULL)));
		limiter->max_running = int_column(row, desc, 2);
		limiter->group_max_running = 1;
		limiter->group_wait = true;
		rate_and_throttle(limiter, row, desc, 3, 4);
		limiter->keyed = DatumGetBool(jobq_column(row, desc, 5, BOOLOID, NULL));
		limiter->priced = DatumGetBool(jobq_column(row, desc, 6, BOOLOID, NULL));
		when_taken = jobq_column(row, desc, 7, TEXTOID, &isnull);
		if (!isnull)
			limiter->when_taken = jobq_when_taken_parse(TextDatumGetCString(when_taken),
														&limiter->release_after);
		limiter->chunk = int_column(row, desc, 8);
		limiter->chunk_wait = int_column(row, desc, 9) * INT64CONST(1000);
	}
	return n;
}

/*
 * Compare two members for sorting.
 */
int
policies_compare(const void *a, const void *b)
{
	const Member *x = a;
	const Member *y = b;

	if (x->queue_id != y->queue_id)
		return x->queue_id < y->queue_id ? -1 : 1;
	return x->kind < y->kind ? -1 : x->kind > y->kind;
}

/*
 * Read the kinds and queues that name limiters.  SPI must be connected.
 */
Members
policies_members(void)
{
	uint64		n = jobq_query("SELECT id, NULL, limiters FROM jobq_internal.queue WHERE limiters IS NOT NULL"
							   " UNION ALL SELECT 0, kind, limiters FROM jobq_internal.handler WHERE limiters IS NOT NULL",
							   0, NULL, NULL, NULL, SPI_OK_SELECT);
	Members		found = {.members = SPI_palloc(sizeof(Member) * Max(n, 1)),.n = n};

	for (uint64 i = 0; i < n; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		Member	   *member = &found.members[i];
		bool		isnull;
		Datum		kind = jobq_column(row, desc, 2, TEXTOID, &isnull);

		member->queue_id = int_column(row, desc, 1);
		member->kind = isnull ? 0 : jobq_kind_hash(TextDatumGetCString(kind));
		jobq_limiter_hashes(jobq_column(row, desc, 3, TEXTARRAYOID, NULL), member->limiters);
	}
	qsort(found.members, n, sizeof(Member), policies_compare);
	return found;
}

/*
 * Read the names of limiters that are used but do not exist, which is possible after logical
 * replication.  SPI must be connected.
 */
Missing
policies_missing(void)
{
	uint64		n = jobq_query("SELECT DISTINCT n.name FROM"
							   " (SELECT limiters FROM jobq_internal.queue UNION ALL SELECT limiters FROM jobq_internal.handler) u,"
							   " unnest(u.limiters[:" CppAsString2(JOBQ_MAX_NAMED) "]) n (name)"
							   " WHERE n.name IS NOT NULL AND NOT EXISTS (SELECT FROM jobq_internal.limiter l WHERE l.name = n.name)"
							   " ORDER BY n.name",
							   0, NULL, NULL, NULL, SPI_OK_SELECT);
	Missing		missing = {.hashes = SPI_palloc(sizeof(uint32) * Max(n, 1)),.n = n};

	for (uint64 i = 0; i < n; i++)
	{
		char	   *name =
			TextDatumGetCString(jobq_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc,
											1, TEXTOID, NULL));

		missing.hashes[i] = jobq_limiter_hash(name);
		if (i == 0)
			strlcpy(missing.first, name, sizeof(missing.first));
	}
	return missing;
}

/*
 * Warn about missing limiters, at most once an hour.
 */
void
policies_tell_missing(const Missing *missing)
{
	static JobqSteady told_at = 0;

	if (missing->n == 0 || !jobq_once_in(&told_at, USECS_PER_HOUR))
		return;
	ereport(WARNING,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("limiter \"%s\" does not exist", missing->first),
			 errdetail("Queues and kinds name %d limiters that do not exist; their jobs do not run.",
					   missing->n),
			 errhint("Have logical replication bring jobq_internal.limiter, too; or make it with jobq.create_limiter().")));
}

/*
 * Set the JOBQ_MAX_NAMED elements to the hashes of the limiters that the kind or the queue
 * names.  Leaves them unchanged if there is no limiter.
 */
static void
get_named(const Members *members, int32 queue_id, uint32 kind, uint32 *limiters)
{
	Member		wanted = {.queue_id = queue_id,.kind = kind};
	const Member *found = bsearch(&wanted, members->members, members->n, sizeof(Member),
								  policies_compare);

	if (found != NULL)
		memcpy(limiters, found->limiters, sizeof(found->limiters));
}

/*
 * Set the array to the limiters for jobs of this kind in this queue, as jobq_limiters_of()
 * does with names.  "kind" is 0 if unknown.  The caller holds db->lock.
 */
void
policies_limiters(const Members *members, int32 queue_id, uint32 kind, uint16 *limiters)
{
	uint32		hashes[JOBQ_NLIMITS] = {0};
	JobqNeed	needs[JOBQ_NLIMITS] = {0};

	if (kind != 0)
	{
		hashes[JOBQ_OF_KIND] = kind;
		get_named(members, 0, kind, &hashes[JOBQ_NAMED_BY_KIND]);
	}
	get_named(members, queue_id, 0, &hashes[JOBQ_NAMED_BY_QUEUE]);
	jobq_limiters_unique(hashes);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		needs[s].limiter = hashes[s];
	jobq_limiters_find(my_db, queue_id, needs, limiters);
}
