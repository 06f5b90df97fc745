/*-------------------------------------------------------------------------
 *
 * past.c
 *	  Reconstructs starts and failures of jobs before a server start, from the
 *	  tables.
 *
 * Limits, groups and tenants use this to restore their token buckets and throttles.  A
 * job missing in the archive was rolled back together with its effects.
 *
 * There may be hundreds of limiters and millions of jobs.  The tables are therefore read
 * once for all limiters (past_begin()), and the relevant rows are kept.  Each limiter
 * then queries the kept rows (past_read()).
 *
 * worker/scheduler/past.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tstoreReceiver.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/memutils.h"
#include "utils/queryenvironment.h"
#include "utils/tuplestore.h"

/* The age of the oldest start that may still leave a debt of tokens. */
#define OWED_LONGEST	USECS_PER_DAY

/* The columns of the kept rows. */
typedef struct PastColumn
{
	const char *name;
	Oid			type;
} PastColumn;

static const PastColumn columns[] = {
	{"queue_id", INT4OID}, {"limiters", INT4ARRAYOID}, {"role", OIDOID}, {"tenant", TEXTOID},
	{"group_key", TEXTOID}, {"payload", JSONBOID}, {"headers", JSONBOID},
	{"tags", TEXTARRAYOID}, {"limit_cost", INT4OID}, {"at", TIMESTAMPTZOID}, {"failed", BOOLOID}
};

/* Valid from past_begin() to past_end(), or to the end of the transaction. */
static EphemeralNamedRelation kept = NULL;

/*
 * The limiters of queues, or the remaining limiters, and the start of the relevant time
 * for each.  "of" has the ids of queues as int4, or the hashes of the remaining limiters.
 */
typedef struct Wanted
{
	Datum	   *of;
	Datum	   *since;
	int			n;
} Wanted;

/*
 * Build the SQL expression for the tokens used by jobs, for the query in past_read().  There, $2
 * is the start of the relevant time, and $5 is now.  Without costs, this is the number of
 * starts.  With costs ("each" is set), this is the number of tokens missing
 * in the bucket now, possibly more than the size of the bucket.
 *
 * The result is the smaller of two upper bounds.  First, the sum of the costs of all
 * starts from which the bucket may not have recovered.  Second, a bound for each start,
 * of which the maximum counts.  At the start, at most the bucket size less one token
 * was missing, because the job could start.  Add the tokens used since then, and
 * subtract the tokens refilled since then.
 *
 * *each begins three nested queries, which past_read() closes.  They compute for each start:
 *
 *	came		the tokens refilled since the start
 *	counts		the bucket may not have recovered from the start
 *	missing		the second bound
 */
static const char *
tokens_taken(const JobqRate *rate, const char **each)
{
	if (each == NULL)
		return "count(*) FILTER (WHERE at > $2)::float8";
	*each = psprintf("SELECT *, %.17g - 1 - came"
					 " + sum(cost) FILTER (WHERE counts) OVER (PARTITION BY name ORDER BY at DESC ROWS UNBOUNDED PRECEDING) AS missing"
					 " FROM (SELECT *, at > $2 AND came < %.17g + cost AS counts"
					 " FROM (SELECT *, extract(epoch FROM $5 - at)::float8 * %.17g AS came",
					 rate->burst, rate->burst, rate->per_us * USECS_PER_SEC);
	return "coalesce(least(sum(cost) FILTER (WHERE counts), max(missing) FILTER (WHERE counts)), 0)::float8";
}

/*
 * The start of the relevant time for a rate with costs.  Earlier jobs may have left a
 * debt of tokens.
 */
static TimestampTz
priced_since(const JobqRate *rate, TimestampTz since, TimestampTz now)
{
	return Min(since, now - (int64) Min((rate->burst + JOBQ_MAX_LIMIT_COST) / rate->per_us,
										OWED_LONGEST));
}

/*
 * The start of the relevant time for the limiter; DT_NOEND if there is none.
 */
static TimestampTz
earliest(const JobqLimiter *limiter, TimestampTz now)
{
	const JobqRate *rate = &limiter->rate;
	TimestampTz since = DT_NOEND;

	if (rate->per_us > 0)
	{
		since = past_bucket_since(rate, now);
		if (limiter->priced)
			since = priced_since(rate, since, now);
	}
	if (limiter->throttle.failures > 0)
		since = Min(since, now - limiter->throttle.window);
	return since;
}

/*
 * Create an empty set with room for this many limiters.
 */
static Wanted
wanted_none(int room)
{
	return (Wanted)
	{
		.of = palloc(sizeof(Datum) * (room + 1)),
			.since = palloc(sizeof(Datum) * (room + 1))
	};
}

static void
bind_value(ParamListInfo params, int number, Oid type, Datum value)
{
	params->params[number - 1] = (ParamExternData)
	{
		.value = value,.pflags = PARAM_FLAG_CONST,.ptype = type
	};
}

static void
bind_wanted(ParamListInfo params, int number, const Wanted *wanted)
{
	bind_value(params, number, INT4ARRAYOID,
			   PointerGetDatum(construct_array(wanted->of, wanted->n, INT4OID, sizeof(int32),
											   true, TYPALIGN_INT)));
	bind_value(params, number + 1, TIMESTAMPTZARRAYOID,
			   PointerGetDatum(construct_array(wanted->since, wanted->n, TIMESTAMPTZOID,
											   sizeof(TimestampTz), FLOAT8PASSBYVAL,
											   TYPALIGN_DOUBLE)));
}

/*
 * Read the tables, and keep the rows relevant to these limiters until past_end().  SPI
 * must be connected.
 */
void
past_begin(const JobqLimiter *limiters, int n)
{
	TimestampTz now = jobq_now();
	TimestampTz first = DT_NOEND;
	bool		keyed = false;
	Wanted		queues = wanted_none(n);
	Wanted		others = wanted_none(n);
	ParamListInfo params = makeParamList(7);
	SPIExecuteOptions options = {.params = params,.read_only = false};
	Tuplestorestate *store;
	TupleDesc	desc;
	JobqOwnerState state;
	MemoryContext old;
	StringInfoData query;
	int			result;

	kept = NULL;
	for (int i = 0; i < n; i++)
	{
		TimestampTz since = earliest(&limiters[i], now);
		Wanted	   *wanted = limiters[i].queue_id != 0 ? &queues : &others;

		if (since == DT_NOEND)
			continue;
		first = Min(first, since);
		keyed |= limiters[i].keyed;
		wanted->of[wanted->n] = Int32GetDatum(limiters[i].queue_id != 0 ? limiters[i].queue_id
											  : (int32) limiters[i].kind);
		wanted->since[wanted->n++] = TimestampTzGetDatum(since);
	}
	if (first == DT_NOEND)
		return;
	bind_wanted(params, 1, &queues);
	bind_wanted(params, 3, &others);
	bind_value(params, 5, TIMESTAMPTZOID, TimestampTzGetDatum(first));
	bind_value(params, 6, BOOLOID, BoolGetDatum(keyed));
	bind_value(params, 7, BOOLOID, BoolGetDatum(others.n > 0));

	old = MemoryContextSwitchTo(TopTransactionContext);
	desc = CreateTemplateTupleDesc(lengthof(columns));
	for (int i = 0; i < (int) lengthof(columns); i++)
		TupleDescInitEntry(desc, i + 1, columns[i].name, columns[i].type, -1, 0);
	TupleDescFinalize(desc);
	store = tuplestore_begin_heap(true, false, work_mem);
	options.dest = CreateTuplestoreDestReceiver();
	SetTuplestoreDestReceiverParams(options.dest, store, TopTransactionContext, false, NULL,
									NULL);
	kept = palloc0(sizeof(EphemeralNamedRelationData));
	kept->md.name = pstrdup("jobq_past");
	MemoryContextSwitchTo(old);

	jobq_become_owner(&state);
	initStringInfo(&query);
	appendStringInfoString(&query, "SELECT t.queue_id, t.limiters, t.role, t.tenant, t.group_key,"
						   " CASE WHEN $6 THEN t.payload END, CASE WHEN $6 THEN t.headers END, t.tags,"
						   " t.limit_cost, t.at, t.failed FROM ("
						   " SELECT queue_id, CASE WHEN $7 THEN jobq_internal.limiters_of(kind, queue_id) END AS limiters,"
						   "  role::oid, tenant, group_key, payload, headers, tags, limit_cost, (e ->> 'at')::timestamptz AS at, true AS failed"
						   "  FROM jobq_internal.job j, jsonb_array_elements(j.errors) e WHERE j.errors IS NOT NULL"
						   " UNION ALL SELECT queue_id, CASE WHEN $7 THEN jobq_internal.limiters_of(kind, queue_id) END,"
						   "  role::oid, tenant, group_key, payload, headers, tags, limit_cost, (e ->> 'at')::timestamptz, true"
						   "  FROM jobq_internal.dead_letter f, jsonb_array_elements(f.errors) e WHERE f.finished_at > $5"
						   " UNION ALL SELECT queue_id, CASE WHEN $7 THEN jobq_internal.limiters_of(kind, queue_id) END,"
						   "  role::oid, tenant, group_key, payload, headers, tags, limit_cost, started_at, false"
						   "  FROM jobq_internal.archive WHERE finished_at > $5 AND started_at > $5"
						   " UNION ALL SELECT queue_id, CASE WHEN $7 THEN jobq_internal.limiters_of(kind, queue_id) END,"
						   "  role::oid, tenant, group_key, payload, headers, tags, limit_cost, since, false"
						   "  FROM (SELECT since, unnest(job_ids) AS job_id FROM jobq_internal.lease) l JOIN jobq_internal.job j ON j.id = l.job_id) t"
						   " LEFT JOIN unnest($1, $2) l0 (id, since) ON l0.id = t.queue_id");
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
		appendStringInfo(&query, " LEFT JOIN unnest($3, $4) l%d (id, since) ON l%d.id = t.limiters[%d]",
						 s, s, s);
	appendStringInfoString(&query, " WHERE t.at > least(l0.since");
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
		appendStringInfo(&query, ", l%d.since", s);
	appendStringInfoChar(&query, ')');
	result = SPI_execute_extended(query.data, &options);
	if (result != SPI_OK_SELECT)
		elog(ERROR, "could not read the past of limits: %s", SPI_result_code_string(result));
	jobq_unbecome_owner(&state);

	kept->md.tupdesc = desc;
	kept->md.enrtype = ENR_NAMED_TUPLESTORE;
	kept->md.enrtuples = tuplestore_tuple_count(store);
	kept->reldata = store;
}

/*
 * Free the kept rows.
 */
void
past_end(void)
{
	if (kept != NULL)
		tuplestore_end(kept->reldata);
	kept = NULL;
}

/*
 * Query the kept rows for the jobs of the limiter: of its queue, or the jobs limited in
 * addition to their queues.  Counts the starts since one time and the failures since
 * another; DT_NOEND means none.  "by" is an SQL expression to group by, or NULL for a
 * total.  Finds at most "most" groups, the most active first.  Returns the number of
 * rows for past_row().  SPI must be connected.
 */
uint64
past_read(const JobqLimiter *limiter, const char *by, TimestampTz started_since,
		  TimestampTz failed_since, int most)
{
	static const Oid types[] = {INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID,
	TIMESTAMPTZOID};
	Datum		values[5];
	const JobqRate *rate = &limiter->rate;
	bool		priced = limiter->priced && rate->per_us > 0;

	/* as many levels as in tokens_taken() */
	const char *each = "SELECT * FROM (SELECT * FROM (SELECT *";
	const char *taken;
	const char *cost = "1";
	int			result;

	if (kept == NULL)
		return 0;
	result = SPI_register_relation(kept);
	if (result != SPI_OK_REL_REGISTER && result != SPI_ERROR_REL_DUPLICATE)
		elog(ERROR, "could not use the past of limits: %s", SPI_result_code_string(result));
	if (priced)
	{
		started_since = priced_since(rate, started_since, jobq_now());
		cost = psprintf("jobq_internal.limit_cost(%d, limit_cost)", (int32) limiter->kind);
	}
	taken = tokens_taken(rate, priced ? &each : NULL);

	values[0] = Int32GetDatum(limiter->queue_id != 0 ? limiter->queue_id
							  : (int32) limiter->kind);
	values[1] = TimestampTzGetDatum(started_since);
	values[2] = TimestampTzGetDatum(failed_since);
	values[3] = Int32GetDatum(most);
	values[4] = TimestampTzGetDatum(jobq_now());
	return jobq_query(psprintf("SELECT name, %s,"
							   " count(*) FILTER (WHERE failed AND at > $3)::int,"
							   " min(at) FILTER (WHERE failed AND at > $3) FROM (%s FROM ("
							   " SELECT %s AS name, at, failed, %s AS cost FROM %s"
							   " WHERE %s AND at > CASE WHEN failed THEN least($2, $3) ELSE $2 END) t) t) t) t"
							   " GROUP BY name ORDER BY 2 DESC, 3 DESC LIMIT $4",
							   taken, each, by == NULL ? "NULL::text" : by, cost, kept->md.name,
							   limiter->queue_id != 0 ? "queue_id = $1" : "$1 = ANY (limiters)"),
					  5, types, values, NULL, SPI_OK_SELECT);
}

/*
 * Get a row of the result.  Valid until the next query.
 */
Past
past_row(uint64 i)
{
	HeapTuple	row = SPI_tuptable->vals[i];
	TupleDesc	desc = SPI_tuptable->tupdesc;
	bool		no_name;
	bool		no_failure;
	Datum		name = jobq_column(row, desc, 1, TEXTOID, &no_name);
	Datum		failed_at = jobq_column(row, desc, 4, TIMESTAMPTZOID, &no_failure);

	return (Past)
	{
		.name = no_name ? NULL : DatumGetTextPP(name),
			.spent =
		{
			.tokens = DatumGetFloat8(jobq_column(row, desc, 2, FLOAT8OID, NULL)),
				.failures = DatumGetInt32(jobq_column(row, desc, 3, INT4OID, NULL)),
				.failed_at = no_failure ? 0 : DatumGetTimestampTz(failed_at)
		}
	};
}

/*
 * Return a time early enough that the bucket has recovered from all earlier starts.
 */
TimestampTz
past_bucket_since(const JobqRate *rate, TimestampTz now)
{
	return now - (int64) (rate->burst / rate->per_us);
}
