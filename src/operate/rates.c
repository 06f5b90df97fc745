/*-------------------------------------------------------------------------
 *
 * rates.c
 *	  Rates of the last hour for many queues, kinds or tenants at once.
 *
 * The console shows a list of queues with a small chart for each.  A call of stat_series()
 * for each row would read all statistics for each row.  stat_rates() reads them once, and
 * adds up the entries with the same queue, kind or tenant.  Entries without an event in
 * the last hour are left out, so that the result grows with the activity, not with the number
 * of queues.
 *
 * src/operate/rates.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_stat_rates);

/* The property by which entries are added up. */
typedef enum RatesBy
{
	BY_QUEUE,
	BY_KIND,
	BY_TENANT,
} RatesBy;

static const char *const rates_words[] = {"queue", "kind", "tenant"};

/* The longest name: a tenant, a kind or a queue. */
#define RATES_NAME	JOBQ_STATS_TENANT

/* The sums of a name.  Element 0 of an array is the oldest minute. */
typedef struct RatesSum
{
	char		name[RATES_NAME];	/* hash key; for a queue, the id as text */
	int64		n[3][JOBQ_MINUTES]; /* enqueued, completed, failed attempts */
	JobqTimes	waited;
} RatesSum;

static const JobqPast rates_events[3] = {JOBQ_PAST_ENQUEUED, JOBQ_PAST_COMPLETED, JOBQ_PAST_FAILED};

static RatesBy
rates_by(const char *word)
{
	for (int i = 0; i < (int) lengthof(rates_words); i++)
		if (strcmp(word, rates_words[i]) == 0)
			return i;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid property of jobs \"%s\"", word),
			 errhint("It is queue, kind or tenant.")));
}

/*
 * True if an event was counted in the last hour.  The history must have been advanced to now.
 */
static bool
has_events(const JobqHistory *history)
{
	for (int i = 0; i < JOBQ_MINUTES; i++)
		for (int j = 0; j < 3; j++)
			if (history->minutes[i].n[rates_events[j]] != 0)
				return true;
	return false;
}

/*
 * Write the key of an entry.  False if the entry has no such property.
 */
static bool
rates_key(RatesBy by, const JobqStatName *name, char *key)
{
	memset(key, 0, RATES_NAME);
	if (by == BY_QUEUE)
		snprintf(key, RATES_NAME, "%d", name->queue_id);
	else if (name->other || (by == BY_TENANT && name->tenant_length == 0))
		return false;
	else
		strlcpy(key, by == BY_KIND ? name->kind : name->tenant, RATES_NAME);
	return by != BY_QUEUE || name->queue_id != 0;
}

static void
add_rates(RatesSum *sum, const JobqCounts *counts)
{
	int64		minute = counts->history.minute;

	for (int back = 0; back < JOBQ_MINUTES && minute >= back; back++)
		for (int j = 0; j < 3; j++)
			sum->n[j][JOBQ_MINUTES - 1 - back] +=
				counts->history.minutes[(minute - back) % JOBQ_MINUTES].n[rates_events[j]];
	jobq_history_waits(&counts->history, &sum->waited);
}

static Datum
array_of_minutes(const int64 *n)
{
	Datum		elements[JOBQ_MINUTES];

	for (int i = 0; i < JOBQ_MINUTES; i++)
		elements[i] = Int64GetDatum(n[i]);
	return PointerGetDatum(construct_array(elements, JOBQ_MINUTES, INT8OID, sizeof(int64),
										   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/*
 * stat_rates(by): for each queue, kind or tenant with events in the last hour, and visible to
 * the user, the numbers of each minute, the oldest first, and the 95th percentile of the
 * waiting times.
 */
Datum
jobq_stat_rates(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = jobq_materialize(fcinfo, 5);
	RatesBy		by = rates_by(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	JobqStatBase *base = jobq_stat_base();
	JobqCounts *counts = palloc(sizeof(JobqCounts));
	HASHCTL		control = {.keysize = RATES_NAME,.entrysize = sizeof(RatesSum),.hcxt = CurrentMemoryContext};
	TimestampTz now = jobq_now();
	HASH_SEQ_STATUS all;
	HTAB	   *sums;
	RatesSum   *sum;

	if (base == NULL)
		return (Datum) 0;
	sums = hash_create("jobq rates", 64, &control, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	for (uint32 place = 0; place < jobq_stats->nstats + (uint32) jobq_max_databases; place++)
	{
		JobqStatName name;
		char		key[RATES_NAME];
		bool		found;

		CHECK_FOR_INTERRUPTS();
		if (!jobq_stat_read_visible(base, place, now, &name, counts) ||
			!has_events(&counts->history) || !rates_key(by, &name, key))
			continue;
		sum = hash_search(sums, key, HASH_ENTER, &found);
		if (!found)
			memset((char *) sum + RATES_NAME, 0, sizeof(RatesSum) - RATES_NAME);
		add_rates(sum, counts);
	}
	hash_seq_init(&all, sums);
	while ((sum = hash_seq_search(&all)) != NULL)
	{
		Datum		values[5];
		bool		nulls[5] = {0};
		JobqQueue	buffer;
		const JobqQueue *queue = by == BY_QUEUE ? jobq_queue_by_id(atoi(sum->name), &buffer) : NULL;

		/* a dropped queue, or a queue whose creation was rolled back */
		if (by == BY_QUEUE && queue == NULL)
			continue;
		values[0] = CStringGetTextDatum(by == BY_QUEUE ? queue->name : sum->name);
		for (int j = 0; j < 3; j++)
			values[1 + j] = array_of_minutes(sum->n[j]);
		nulls[4] = jobq_times_count(&sum->waited) == 0;
		values[4] = Float8GetDatum(nulls[4] ? 0 : jobq_times_quantile(&sum->waited, 0.95) / 1000000.0);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
