/*-------------------------------------------------------------------------
 *
 * limits.c
 *	  The scheduler's part in limits and groups: it loads the limiters, reads
 *	  the jobs of groups that were too many to be parked, and knows after a
 *	  start what was under way before.
 *
 * worker/limits.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "common/hashfn.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit.h"

/* Groups that are read at a time, and rows of them that are passed over. */
#define MAX_REFILLS	64
#define MAX_PASSED	100000

static int	read_limiters(JobqLimiter * limiters, bool *weighted);
static void rate_and_throttle(JobqLimiter * limiter, HeapTuple row,
							  TupleDesc desc, int rate, int throttle);
static void read_weights(JobqLimiter * limiter, Datum weights);
static void remember_past(JobqLimiter * limiter, TimestampTz now);
static void restore_groups(void);
static void refill_group(int64 id, int32 priority, TimestampTz run_at,
						 int64 job_id, TimestampTz now);

static Datum
column(HeapTuple row, TupleDesc desc, int n, bool *isnull)
{
	return SPI_getbinval(row, desc, n, isnull);
}

static int
int_column(HeapTuple row, TupleDesc desc, int n)
{
	bool		isnull;
	Datum		value = column(row, desc, n, &isnull);

	return isnull ? 0 : DatumGetInt32(value);
}

static void
rate_and_throttle(JobqLimiter * limiter, HeapTuple row, TupleDesc desc,
				  int rate, int throttle)
{
	bool		isnull;
	Datum		value = column(row, desc, rate, &isnull);

	if (!isnull)
		jobq_rate_parse(TextDatumGetCString(value), &limiter->rate);
	value = column(row, desc, throttle, &isnull);
	if (!isnull)
		jobq_throttle_parse(TextDatumGetCString(value), &limiter->throttle);
}

static void
read_weights(JobqLimiter * limiter, Datum weights)
{
	JsonbIterator *it = JsonbIteratorInit(&DatumGetJsonbP(weights)->root);
	JsonbValue	value;
	JsonbIteratorToken token;

	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		uint32		hash;

		if (token != WJB_KEY)
			continue;
		hash = hash_bytes((const unsigned char *) value.val.string.val,
						  value.val.string.len);
		(void) JsonbIteratorNext(&it, &value, true);
		if (limiter->nweights < JOBQ_MAX_WEIGHTS && value.type == jbvNumeric)
		{
			limiter->weights[limiter->nweights].tenant = hash == 0 ? 1 : hash;
			limiter->weights[limiter->nweights++].weight =
				DatumGetInt32(DirectFunctionCall1(numeric_int4,
												  NumericGetDatum(value.val.numeric)));
		}
	}
}

/*
 * The policies of queues and kinds that have any, as the tables have them.
 */
static int
read_limiters(JobqLimiter * limiters, bool *weighted)
{
	int			n = 0;
	uint64		nrows;

	nrows = jobq_query("SELECT id, coalesce(max_running, 0), group_max_running,"
					   " coalesce(weight, 0), rate, throttle, fair_by IS NOT NULL,"
					   " group_on_failure = 'w', fair_weights"
					   " FROM jobq.queue WHERE max_running IS NOT NULL OR rate IS NOT NULL"
					   " OR throttle IS NOT NULL OR fair_by IS NOT NULL"
					   " OR group_max_running <> 1 OR group_on_failure <> 'w'"
					   " OR EXISTS (SELECT FROM jobq.queue WHERE weight IS NOT NULL)",
					   0, NULL, NULL, NULL, SPI_OK_SELECT);
	*weighted = false;
	for (uint64 i = 0; i < nrows; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		JobqLimiter *limiter = &limiters[n];
		bool		isnull;
		Datum		weights;

		if (n == JOBQ_MAX_LIMITERS)
			break;
		n++;
		limiter->in_use = true;
		limiter->queue_id = int_column(row, desc, 1);
		limiter->max_running = int_column(row, desc, 2);
		limiter->group_max_running = int_column(row, desc, 3);
		limiter->weight = int_column(row, desc, 4);
		*weighted |= limiter->weight > 0;
		rate_and_throttle(limiter, row, desc, 5, 6);
		limiter->fair = DatumGetBool(column(row, desc, 7, &isnull));
		limiter->group_wait = DatumGetBool(column(row, desc, 8, &isnull));
		weights = column(row, desc, 9, &isnull);
		if (!isnull)
			read_weights(limiter, weights);
	}

	nrows = jobq_query("SELECT kind, coalesce(max_running, 0), rate, throttle"
					   " FROM jobq.handler WHERE max_running IS NOT NULL"
					   " OR rate IS NOT NULL OR throttle IS NOT NULL",
					   0, NULL, NULL, NULL, SPI_OK_SELECT);
	for (uint64 i = 0; i < nrows; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		JobqLimiter *limiter = &limiters[n];
		bool		isnull;

		if (n == JOBQ_MAX_LIMITERS)
		{
			ereport(WARNING,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("more than %d queues and kinds have limits",
							JOBQ_MAX_LIMITERS),
					 errdetail("Jobs of the others do not run.")));
			break;
		}
		n++;
		limiter->in_use = true;
		limiter->kind =
			jobq_kind_hash(TextDatumGetCString(column(row, desc, 1, &isnull)));
		limiter->max_running = int_column(row, desc, 2);
		limiter->group_max_running = 1;
		limiter->group_wait = true;
		rate_and_throttle(limiter, row, desc, 3, 4);
	}
	return n;
}

/*
 * Take over the limits as the tables have them now.  What is counted goes on.
 *
 * Needs a transaction.
 */
void
limits_load(void)
{
	JobqLimiter *limiters = palloc0(sizeof(JobqLimiter) * JOBQ_MAX_LIMITERS);
	bool		first = !my_db->limits_loaded;
	TimestampTz now = jobq_now();
	JobqWakeList wake = {0};
	bool		weighted;
	int			n;

	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	n = read_limiters(limiters, &weighted);
	for (int i = 0; i < n; i++)
	{
		limiters[i].pace.tokens = limiters[i].rate.burst;
		limiters[i].pace.tokens_at = now;
		if (first)
			remember_past(&limiters[i], now);
	}
	SPI_finish();
	PopActiveSnapshot();

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < my_db->nlimiters; i++)
	{
		JobqLimiter *limiter = &my_db->limiters[i];
		bool		found = false;

		if (!limiter->in_use)
			continue;
		for (int j = 0; j < n && !found; j++)
		{
			JobqLimiter *now_is = &limiters[j];

			found = now_is->in_use && now_is->queue_id == limiter->queue_id &&
				now_is->kind == limiter->kind;
			if (!found)
				continue;
			now_is->in_use = false; /* taken over */
			limiter->fair = now_is->fair;
			limiter->group_wait = now_is->group_wait;
			limiter->max_running = now_is->max_running;
			limiter->group_max_running = now_is->group_max_running;
			limiter->weight = now_is->weight;
			if (limiter->rate.per_us <= 0)
				limiter->pace.tokens = now_is->rate.burst;
			limiter->rate = now_is->rate;
			limiter->throttle = now_is->throttle;
			if (limiter->throttle.failures == 0)
				limiter->pace.rest_until = 0;
			limiter->nweights = now_is->nweights;
			memcpy(limiter->weights, now_is->weights, sizeof(limiter->weights));
		}
		if (found)
			continue;

		/* no limit any more; its place is free when nobody counts on it */
		{
			JobqLimiter none = {.in_use = limiter->running > 0,
				.queue_id = limiter->queue_id,.kind = limiter->kind,
				.running = limiter->running,.group_max_running = 1,
			.group_wait = true};

			*limiter = none;
		}
		if (!limiter->in_use)
			for (int g = 0; g < jobq_max_groups; g++)
				if (my_db->groups[g].limiter == i)
					my_db->groups[g].limiter = JOBQ_NO_LIMITER;
	}
	for (int j = 0; j < n; j++)
	{
		int			i;

		if (!limiters[j].in_use)
			continue;
		for (i = 0; i < my_db->nlimiters && my_db->limiters[i].in_use; i++)
			;
		if (i == JOBQ_MAX_LIMITERS)
			continue;
		my_db->limiters[i] = limiters[j];
		my_db->nlimiters = Max(my_db->nlimiters, i + 1);

		/* what workers have taken along has no permits */
		for (int s = 0; s < jobq_shared->nslots; s++)
			if (jobq_shared->slots[s].database == my_db_index)
				jobq_hand_return(my_db, &jobq_shared->slots[s], &wake);
	}
	my_db->weighted = weighted;
	my_db->limits_loaded = true;
	my_db->limits_due = now;
	LWLockRelease(my_db->lock);
	jobq_wake(my_db, &wake);
	pfree(limiters);
}

/*
 * After a start of the server: what the limiter would remember, had there been
 * none.  What the archive does not have was rolled back with its effects.
 */
static void
remember_past(JobqLimiter * limiter, TimestampTz now)
{
	static const Oid types[] = {INT4OID, TIMESTAMPTZOID, INT4OID};
	Datum		values[3];
	char		nulls[] = {limiter->queue_id != 0 ? ' ' : 'n', ' ',
	' ', '\0'};
	bool		isnull;

	values[0] = Int32GetDatum(limiter->queue_id);
	values[2] = Int32GetDatum((int32) limiter->kind);
	if (limiter->rate.per_us > 0 && !limiter->rate.by_group)
	{
		values[1] = TimestampTzGetDatum(now - (int64) (limiter->rate.burst /
													   limiter->rate.per_us));
		jobq_query("SELECT sum(n) FROM ("
				   " SELECT count(*) AS n FROM jobq.job j,"
				   " jsonb_array_elements(j.errors) e WHERE j.errors IS NOT NULL"
				   " AND (e ->> 'at')::timestamptz > $2 AND CASE WHEN $1 IS NULL"
				   " THEN jobq.kind_hash(j.kind) = $3 ELSE j.queue_id = $1 END"
				   " UNION ALL SELECT count(*) FROM jobq.archive a WHERE a.started_at > $2"
				   " AND a.finished_at > $2 AND CASE WHEN $1 IS NULL"
				   " THEN jobq.kind_hash(a.kind) = $3 ELSE a.queue_id = $1 END"
				   " UNION ALL SELECT count(*) FROM jobq.failed_job f,"
				   " jsonb_array_elements(f.errors) e WHERE f.finished_at > $2"
				   " AND (e ->> 'at')::timestamptz > $2 AND CASE WHEN $1 IS NULL"
				   " THEN jobq.kind_hash(f.kind) = $3 ELSE f.queue_id = $1 END"
				   " UNION ALL SELECT count(*) FROM jobq.lease l, unnest(l.job_ids) i"
				   " JOIN jobq.job j ON j.id = i WHERE l.since > $2 AND CASE WHEN $1 IS NULL"
				   " THEN jobq.kind_hash(j.kind) = $3 ELSE j.queue_id = $1 END) t",
				   3, types, values, nulls, SPI_OK_SELECT);
		limiter->pace.tokens -=
			DatumGetFloat8(DirectFunctionCall1(numeric_float8,
											   column(SPI_tuptable->vals[0],
													  SPI_tuptable->tupdesc, 1,
													  &isnull)));
		limiter->pace.tokens = Max(limiter->pace.tokens, 0);
	}
	if (limiter->throttle.failures > 0 && !limiter->throttle.by_group)
	{
		values[1] = TimestampTzGetDatum(now - limiter->throttle.window);
		jobq_query("SELECT count(*)::int, min(at) FROM ("
				   " SELECT (e ->> 'at')::timestamptz AS at FROM jobq.failed_job f,"
				   " jsonb_array_elements(f.errors) e WHERE f.finished_at > $2"
				   " AND CASE WHEN $1 IS NULL"
				   " THEN jobq.kind_hash(f.kind) = $3 ELSE f.queue_id = $1 END"
				   " UNION ALL SELECT (e ->> 'at')::timestamptz FROM jobq.job j,"
				   " jsonb_array_elements(j.errors) e WHERE j.errors IS NOT NULL"
				   " AND CASE WHEN $1 IS NULL"
				   " THEN jobq.kind_hash(j.kind) = $3 ELSE j.queue_id = $1 END) t"
				   " WHERE at > $2",
				   3, types, values, nulls, SPI_OK_SELECT);
		if (int_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1) > 0)
		{
			limiter->pace.failures = int_column(SPI_tuptable->vals[0],
												SPI_tuptable->tupdesc, 1);
			limiter->pace.window_start =
				DatumGetTimestampTz(column(SPI_tuptable->vals[0],
										   SPI_tuptable->tupdesc, 2, &isnull));
			if (limiter->pace.failures >= limiter->throttle.failures)
				limiter->pace.rest_until = limiter->pace.window_start +
					limiter->throttle.window;
		}
	}
}

/*
 * Before anything is read: limits and groups as they were.
 */
void
limits_start(void)
{
	Oid			job;

	run_begin_transaction();
	job = jobq_relations()->job;
	if (my_db->limits_of != job)
	{
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		jobq_limits_clear(my_db);
		my_db->limits_of = job;
		LWLockRelease(my_db->lock);
	}
	if (!my_db->limits_loaded)
	{
		limits_load();
		restore_groups();
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * Groups that wait for a job which has begun before.
 */
static void
restore_groups(void)
{
	TimestampTz now = jobq_now();
	uint64		n;

	SPI_connect();
	n = jobq_query("SELECT group_id, id, queue_id FROM jobq.job"
				   " WHERE group_id IS NOT NULL AND group_held AND NOT dormant"
				   " ORDER BY id DESC",
				   0, NULL, NULL, NULL, SPI_OK_SELECT);
	for (uint64 i = 0; i < n; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		isnull;
		int64		id = DatumGetInt64(column(row, desc, 1, &isnull));
		JobqGroup  *group;
		uint16		limiter;

		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		limiter = jobq_limiter_find(my_db, int_column(row, desc, 3), 0);
		if (limiter == JOBQ_NO_LIMITER ||
			(my_db->limiters[limiter].group_wait &&
			 my_db->limiters[limiter].group_max_running == 1))
		{
			group = jobq_group_make(my_db, id, limiter, now);
			if (group != NULL && group->running == 0)
				group->owner = DatumGetInt64(column(row, desc, 2, &isnull));
		}
		LWLockRelease(my_db->lock);
	}
	SPI_finish();
}

/*
 * The permits of a lease that was found after a start.  Wants db->lock.
 */
JobqPermits
limits_of_lease(const JobqPush *push)
{
	JobqLane	lane = {0};
	uint32		place = JOBQ_NONE;

	lane.queue_limiter = jobq_limiter_find(my_db, push->queue_id, 0);
	lane.kind_limiter = push->kind == 0 ? JOBQ_NO_LIMITER
		: jobq_limiter_find(my_db, 0, push->kind);
	if (push->group != 0)
	{
		JobqGroup  *group = jobq_group_make(my_db, push->group,
											lane.queue_limiter, jobq_now());

		if (group != NULL)
		{
			if (group->owner == push->key.id)
				group->owner = 0;
			group->current = push->key.id;
			group->running++;
			place = group - my_db->groups;
		}
	}
	return jobq_permits_take(my_db, &lane, place);
}

/*
 * What time has set free; and the groups that want to be read.
 */
void
limits_tick(TimestampTz now)
{
	JobqWakeList wake = {0};
	JobqGroup	wanted[MAX_REFILLS];
	int			n = 0;

	if (my_db->limits_due > now && my_db->groups_due > now &&
		!my_db->group_refill)
		return;
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (my_db->limits_due <= now)
		jobq_limits_wake(my_db, now, &wake);
	if (my_db->groups_due <= now)
		jobq_groups_wake(my_db, now, &wake);
	if (my_db->group_refill)
	{
		my_db->group_refill = false;
		for (int i = 0; i < jobq_max_groups; i++)
		{
			JobqGroup  *group = &my_db->groups[i];

			if (group->id == 0 || !group->refill)
				continue;
			if (n == MAX_REFILLS)
			{
				my_db->group_refill = true;
				break;
			}
			group->dropped = false;
			wanted[n++] = *group;
		}
	}
	LWLockRelease(my_db->lock);
	jobq_wake(my_db, &wake);
	for (int i = 0; i < n; i++)
		refill_group(wanted[i].id, wanted[i].cursor_priority,
					 wanted[i].cursor_run_at, wanted[i].cursor_id, now);
}

/*
 * Read the due jobs of a group that come after this place.
 */
static void
refill_group(int64 id, int32 priority, TimestampTz run_at, int64 job_id,
			 TimestampTz now)
{
	JobqPush	rows[JOBQ_MAX_PARKED];
	JobqWakeList wake = {0};
	JobqGroup  *group;
	int			nrows = 0;
	int			passed = 0;
	bool		all = true;
	Relation	rel;
	Relation	index;
	TupleTableSlot *slot;
	IndexScanDesc scan;
	ScanKeyData keys[2];
	ScanKeyData members[3];

	run_begin_transaction();
	rel = jobq_open_jobs();
	index = index_open(jobq_relations()->job_group, AccessShareLock);
	slot = table_slot_create(rel, NULL);
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	ScanKeyEntryInitialize(&members[0], SK_ROW_MEMBER, 2,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_BTINT4CMP, Int32GetDatum(priority));
	ScanKeyEntryInitialize(&members[1], SK_ROW_MEMBER, 3,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_TIMESTAMPTZ_CMP, TimestampTzGetDatum(run_at));
	ScanKeyEntryInitialize(&members[2], SK_ROW_MEMBER | SK_ROW_END, 4,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_BTINT8CMP, Int64GetDatum(job_id));
	MemSet(&keys[1], 0, sizeof(ScanKeyData));
	keys[1].sk_flags = SK_ROW_HEADER;
	keys[1].sk_attno = 2;
	keys[1].sk_strategy = BTGreaterStrategyNumber;
	keys[1].sk_argument = PointerGetDatum(members);

	scan = jobq_index_beginscan(rel, index, GetActiveSnapshot(), 2);
	index_rescan(scan, keys, 2, NULL, 0);
	while (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		bool		dormant;
		bool		leased;

		CHECK_FOR_INTERRUPTS();
		if (nrows == JOBQ_MAX_PARKED || passed == MAX_PASSED)
		{
			all = false;
			break;
		}
		if (scan_read_row(slot, &rows[nrows], &dormant, &leased) &&
			rows[nrows].key.run_at <= now)
			nrows++;
		else
			passed++;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(rel, NoLock);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	group = jobq_group_find(my_db, id);
	if (group != NULL)
		jobq_group_refilled(my_db, group, rows, nrows, all, now, &wake);
	LWLockRelease(my_db->lock);
	PopActiveSnapshot();
	CommitTransactionCommand();
	jobq_wake(my_db, &wake);
}

/*
 * The safety net: a group shall not wait for a job that is not there.
 */
void
limits_sweep(void)
{
	int64	   *owners;
	int64	   *groups;
	int			n = 0;

	if (my_db->ngroups == 0)
		return;
	owners = palloc(sizeof(int64) * jobq_max_groups);
	groups = palloc(sizeof(int64) * jobq_max_groups);
	LWLockAcquire(my_db->lock, LW_SHARED);
	for (int i = 0; i < jobq_max_groups; i++)
		if (my_db->groups[i].id != 0 && my_db->groups[i].owner != 0)
		{
			groups[n] = my_db->groups[i].id;
			owners[n++] = my_db->groups[i].owner;
		}
	LWLockRelease(my_db->lock);
	if (n > 0)
	{
		Relation	rel;

		run_begin_transaction();
		rel = jobq_open_jobs();
		for (int i = 0; i < n; i++)
		{
			JobqJob		job;

			if (!jobq_job_find(rel, owners[i], GetActiveSnapshot(), &job))
				jobq_at_commit_group_end(groups[i], owners[i]);
		}
		table_close(rel, NoLock);
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	pfree(owners);
	pfree(groups);
}
