/*-------------------------------------------------------------------------
 *
 * past.c
 *	  What has started and failed before a start of the server, as the tables tell.
 *
 * Limits, groups and tenants remember by it how empty their buckets would be, and
 * which of them would rest.  What the archive does not have was rolled back with its
 * effects.
 *
 * worker/scheduler/past.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"

/* How long ago a job has started, at most, that may have left tokens owing. */
#define OWED_LONGEST	USECS_PER_DAY

/*
 * What is counted of the jobs that have started: their number.  But where jobs take
 * several tokens, those that are missing in the bucket now, which may be more than it
 * holds.
 *
 * That is at most what the jobs have taken from which the bucket need not have recovered.
 * And it is at most what was missing before one of them, which is one token less than the
 * bucket holds as that one could start, and what was taken since then, less what has come
 * since then: for whichever of them that is most.
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
 * Ask for the jobs of the limiter's queue, or for those that it limits now beside
 * their queues: how many have started since one
 * time, and failed since another; DT_NOEND to ask for none.  "by" is the column by
 * which they are counted, or NULL for all together; of so many names at most, those
 * first that have had most.  Returns how many rows there are for past_row().  Wants
 * SPI to be connected.
 */
uint64
past_read(const JobqLimiter *limiter, const char *by, TimestampTz started_since,
		  TimestampTz failed_since, int most)
{
	static const Oid types[] = {INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID,
	TIMESTAMPTZOID};
	Datum		values[5];
	const char *name = by == NULL ? "NULL::text" : by;
	const char *of = limiter->queue_id != 0 ? "queue_id"
		: "jobq_internal.limiter_of(kind, queue_id)";
	const JobqRate *rate = limiter->keyed ? &limiter->tenant_rate : &limiter->rate;
	bool		priced = limiter->priced && rate->per_us > 0;
	const char *each = "SELECT * FROM (SELECT * FROM (SELECT *";
	const char *taken;
	const char *cost = "1";

	if (priced)
	{
		started_since = Min(started_since,
							jobq_now() - (int64) Min((rate->burst + JOBQ_MAX_LIMIT_COST) / rate->per_us,
													 OWED_LONGEST));
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
							   " SELECT %s AS name, (e ->> 'at')::timestamptz AS at, true AS failed, %s AS cost"
							   " FROM jobq.job j, jsonb_array_elements(j.errors) e"
							   " WHERE %s = $1 AND j.errors IS NOT NULL"
							   " UNION ALL SELECT %s, (e ->> 'at')::timestamptz, true, %s"
							   " FROM jobq.failed_job f, jsonb_array_elements(f.errors) e"
							   " WHERE %s = $1 AND f.finished_at > least($2, $3)"
							   " UNION ALL SELECT %s, a.started_at, false, %s FROM jobq.archive a"
							   " WHERE %s = $1 AND a.finished_at > $2 AND a.started_at > $2"
							   " UNION ALL SELECT %s, l.since, false, %s"
							   " FROM (SELECT since, unnest(job_ids) AS job_id FROM jobq.lease) l JOIN jobq.job j ON j.id = l.job_id"
							   " WHERE %s = $1 AND l.since > $2) t"
							   " WHERE at > least($2, $3)) t) t) t"
							   " GROUP BY name ORDER BY 2 DESC, 3 DESC LIMIT $4",
							   taken, each, name, cost, of, name, cost, of, name, cost, of,
							   name, cost, of),
					  5, types, values, NULL, SPI_OK_SELECT);
}

/*
 * One of these rows.  What it has is there until the next query.
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
			.started = DatumGetFloat8(jobq_column(row, desc, 2, FLOAT8OID, NULL)),
			.failures = DatumGetInt32(jobq_column(row, desc, 3, INT4OID, NULL)),
			.failed_at = no_failure ? 0 : DatumGetTimestampTz(failed_at)
	};
}

/*
 * Since when a bucket that was full then would have been full again: what was taken
 * before is made up for.
 */
TimestampTz
past_bucket_since(const JobqRate *rate, TimestampTz now)
{
	return now - (int64) (rate->burst / rate->per_us);
}
