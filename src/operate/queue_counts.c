/*-------------------------------------------------------------------------
 *
 * queue_counts.c
 *	  Number of jobs of a queue, for the view queues.
 *
 * A queue with few jobs is counted in the table, with the snapshot of the statement.  For a
 * queue with more than COUNT_LIMIT jobs, the numbers come from the statistics.  The
 * same holds for all queues once the statement has read LIMITS times COUNT_LIMIT
 * entries.  The jobs of a paused queue may not be in memory.  The first jobs of such a
 * queue are then read for oldest_ready.  Dead letters are counted if all queues together
 * have no more than COUNT_LIMIT.
 *
 * A user without the privilege monitor for a queue sees only some of its jobs.  The
 * statistics do not distinguish them, so the jobs are counted in the table.  This is also
 * the case without statistics, as on a standby.
 *
 * src/operate/queue_counts.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "operate/inner.h"
#include "ready/ready.h"

PG_FUNCTION_INFO_V1(jobq_queue_counts);

/* Number of jobs of a queue that are counted in the table at most. */
#define COUNT_LIMIT	INT64CONST(1000)

/* Entries read by a statement at most, in multiples of COUNT_LIMIT. */
#define LIMITS		10

/* Beyond, entries read of a queue without jobs in memory. */
#define FIRST_JOBS	10

/* Known numbers of a queue, without reading its rows. */
typedef struct QueueSums
{
	int32		queue_id;		/* hash key */
	int64		gauges[JOBQ_NGAUGES];
	int64		scheduled;
	int64		running;
	TimestampTz oldest;			/* earliest run_at at the head of a lane */
	int64		letters;		/* dead letters counted, if visible to the
								 * user */
}			QueueSums;

/* State of one statement. */
typedef struct Counting
{
	HTAB	   *queues;			/* of QueueSums */
	bool		kept;			/* the statistics exist and were read */
	bool		exact;
	int64		read;			/* index entries read */
	bool		letters_many;	/* there are more than counted */
	bool		letters_counted;	/* all were counted */
}			Counting;

/* Numbers of one queue. */
typedef struct Found
{
	int64		ready;
	int64		scheduled;
	int64		blocked;
	int64		running;
	TimestampTz oldest;
} Found;

static int
compare_ids(const void *a, const void *b)
{
	int64		x = DatumGetInt64(*(const Datum *) a);
	int64		y = DatumGetInt64(*(const Datum *) b);

	return x < y ? -1 : x > y;
}

static QueueSums *
sums_of(Counting * counting, int32 queue_id)
{
	bool		found;
	QueueSums  *sums = hash_search(counting->queues, &queue_id, HASH_ENTER, &found);

	if (!found)
	{
		memset(sums, 0, sizeof(QueueSums));
		sums->queue_id = queue_id;
		sums->oldest = DT_NOEND;
	}
	return sums;
}

/*
 * Find the earliest run_at at the heads of each queue's lanes, for jobs in memory.  Takes
 * db->lock in shared mode.
 */
static void
read_lanes(Counting * counting)
{
	typedef struct Head
	{
		int32		queue_id;
		TimestampTz run_at;
	}			Head;
	JobqDatabase *db = jobq_my_database();
	Head	   *heads;
	int			n = 0;

	if (db == NULL)
		return;
	heads = palloc(sizeof(Head) * jobq_max_lanes);
	LWLockAcquire(db->lock, LW_SHARED);
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		const JobqLane *lane = &db->ready->lanes[i];

		if (!lane->in_use || lane->count == 0)
			continue;
		heads[n].queue_id = lane->queue_id;
		heads[n++].run_at = db->ready->entries[lane->head].key.run_at;
	}
	LWLockRelease(db->lock);
	for (int i = 0; i < n; i++)
	{
		QueueSums  *sums = sums_of(counting, heads[i].queue_id);

		sums->oldest = Min(sums->oldest, heads[i].run_at);
	}
	pfree(heads);
}

/*
 * Sum the statistics by queue.  If jobs are counted under no queue, no sum is exact.
 */
static void
read_stats(Counting * counting)
{
	const JobqStatBase *base = jobq_stat_base();
	TimestampTz now = jobq_now();
	JobqCounts *counts;
	JobqRunning *running;
	uint32		all;

	if (base == NULL)
		return;
	counting->kept = true;
	all = jobq_stats->nstats + (uint32) jobq_max_databases;
	running = jobq_stat_running(all);
	counts = palloc(sizeof(JobqCounts));
	for (uint32 place = 0; place < all; place++)
	{
		JobqStatName name;
		QueueSums  *sums;

		if (!jobq_stats_read(place, &name, counts) ||
			name.dboid != MyDatabaseId || name.jobs != base->jobs)
			continue;
		(void) jobq_calendar_turn(&counts->scheduled, now);
		sums = sums_of(counting, name.queue_id);
		for (int i = 0; i < JOBQ_NGAUGES; i++)
			sums->gauges[i] += counts->gauges[i];
		sums->scheduled += jobq_calendar_count(&counts->scheduled);
		sums->running += running[place].workers + running[place].consumers;
	}
	counting->exact = jobq_stats_exact(base) &&
		sums_of(counting, 0)->gauges[JOBQ_LIVE] == 0 &&
		sums_of(counting, 0)->gauges[JOBQ_LETTERS] == 0;
	pfree(counts);
	pfree(running);
	read_lanes(counting);
}

/*
 * Return the state of the current statement, created by the first call.
 */
static Counting *
this_counting(FunctionCallInfo fcinfo)
{
	MemoryContext context = fcinfo->flinfo->fn_mcxt;
	Counting   *counting = fcinfo->flinfo->fn_extra;
	HASHCTL		ctl = {0};

	if (counting != NULL)
		return counting;
	counting = MemoryContextAllocZero(context, sizeof(Counting));
	ctl.keysize = sizeof(int32);
	ctl.entrysize = sizeof(QueueSums);
	ctl.hcxt = context;
	counting->queues = hash_create("jobq queues", 64, &ctl,
								   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	read_stats(counting);
	fcinfo->flinfo->fn_extra = counting;
	return counting;
}

/*
 * Count one job visible to the user.
 */
static void
count_job(Found *found, int64 id, TimestampTz run_at, const Datum *running,
		  int nrunning, TimestampTz now)
{
	Datum		key = Int64GetDatum(id);

	if (nrunning > 0 &&
		bsearch(&key, running, nrunning, sizeof(Datum), compare_ids) != NULL)
		found->running++;
	else if (run_at == DT_NOEND)
		found->blocked++;
	else if (run_at > now)
		found->scheduled++;
	else
	{
		found->ready++;
		found->oldest = Min(found->oldest, run_at);
	}
}

/*
 * Count the queue's jobs visible to the user, by an index scan of job_ready over at most
 * "most" entries.  Adds the number of read entries to *read.  False if there were more.
 */
static bool
count_jobs(int32 queue_id, Datum *running, int nrunning, int64 most, int64 *read,
		   Found *found)
{
	Relation	rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	Relation	index = index_open(jobq_index(rel, JOBQ_JOB_READY), AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TimestampTz now = jobq_now();
	Oid			last_role = InvalidOid;
	bool		may_see = false;
	bool		whole = true;
	ScanKeyData key;
	IndexScanDesc scan;
	int64		n = 0;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	scan = jobq_index_beginscan(rel, index, GetActiveSnapshot(), 1);
	index_rescan(scan, &key, 1, NULL, 0);
	while (index_getnext_tid(scan, ForwardScanDirection) != NULL)
	{
		bool		isnull;
		Oid			role;

		CHECK_FOR_INTERRUPTS();
		if (n++ >= most)
		{
			whole = false;
			break;
		}
		if (!index_fetch_heap(scan, slot))
			continue;
		role = DatumGetObjectId(slot_getattr(slot, JOB_ROLE, &isnull));
		if (role != last_role)
		{
			may_see = jobq_may(JOBQ_MAY_MONITOR, role, queue_id);
			last_role = role;
		}
		if (may_see)
			count_job(found, DatumGetInt64(slot_getattr(slot, JOB_ID, &isnull)),
					  DatumGetTimestampTz(slot_getattr(slot, JOB_RUN_AT, &isnull)),
					  running, nrunning, now);
	}
	*read += n;
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return whole;
}

/*
 * Return how many entries of the queue to read at most, for a user who may see all its jobs.
 */
static int64
entries_of(Counting * counting, int32 queue_id)
{
	if (counting->read < COUNT_LIMIT * LIMITS)
		return COUNT_LIMIT;
	return sums_of(counting, queue_id)->oldest == DT_NOEND ? FIRST_JOBS : 0;
}

/*
 * Take the numbers from the statistics.  found->oldest may already have a candidate from a
 * count that was given up.  The earlier of this and the oldest head of a lane is kept.
 */
static void
find_in_stats(const QueueSums * sums, Found *found)
{
	int64		rest = Max(sums->gauges[JOBQ_LIVE] - sums->gauges[JOBQ_BLOCKED] -
						   sums->running, 0);

	found->blocked = Max(sums->gauges[JOBQ_BLOCKED], 0);
	found->running = sums->running;
	found->scheduled = Min(Max(sums->scheduled, 0), rest);
	found->ready = rest - found->scheduled;
	found->oldest = Min(found->oldest, sums->oldest);
}

/*
 * Count the dead letters of all queues that the user may see, reading at most "most" rows.
 */
static void
count_letters(Counting * counting, int64 most)
{
	Relation	rel = jobq_open_table(JOBQ_DEAD_LETTER_TABLE, AccessShareLock);
	TableScanDesc scan = jobq_table_beginscan(rel, GetActiveSnapshot());
	HASH_SEQ_STATUS status;
	QueueSums  *sums;
	HeapTuple	tuple;
	int64		n = 0;

	hash_seq_init(&status, counting->queues);
	while ((sums = hash_seq_search(&status)) != NULL)
		sums->letters = 0;
	counting->letters_many = false;
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		JobqLetterName name;

		CHECK_FOR_INTERRUPTS();
		if (n++ >= most)
		{
			counting->letters_many = true;
			break;
		}
		jobq_letter_name(rel, tuple, &name);
		if (jobq_may(JOBQ_MAY_MONITOR, name.role, name.queue_id))
			sums_of(counting, name.queue_id)->letters++;
	}
	counting->letters_counted = !counting->letters_many;
	table_endscan(scan);
	table_close(rel, AccessShareLock);
}

/*
 * queue_counts(queue_id, running): number of live jobs of the queue by state, and of dead
 * letters, as far as the user may see them.  "running" has the ids of all running jobs.
 * "exact" is false if the numbers come from statistics that are still being counted.
 */
Datum
jobq_queue_counts(PG_FUNCTION_ARGS)
{
	enum
	{
		READY, SCHEDULED, BLOCKED, RUNNING, DEAD, OLDEST_READY, EXACT, NATTS
	};
	int32		queue_id = PG_GETARG_INT32(0);
	Counting   *counting = this_counting(fcinfo);
	bool		told = counting->kept && (jobq_privileges(queue_id) & JOBQ_MAY_MONITOR) != 0;
	int64		most = told ? entries_of(counting, queue_id) : PG_INT64_MAX;
	bool		exact = true;
	Found		found = {0};
	int64		letters;
	Datum	   *running;
	int			nrunning;
	TupleDesc	result_desc;
	Datum		values[NATTS];
	bool		nulls[NATTS] = {0};

	result_desc = jobq_row_type(fcinfo, NATTS);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), INT8OID, 8, FLOAT8PASSBYVAL,
					  TYPALIGN_DOUBLE, &running, NULL, &nrunning);
	qsort(running, nrunning, sizeof(Datum), compare_ids);

	found.oldest = DT_NOEND;
	if (!count_jobs(queue_id, running, nrunning, most, &counting->read, &found))
	{
		find_in_stats(sums_of(counting, queue_id), &found);
		exact = counting->exact;
	}
	if (!counting->letters_counted && (!counting->letters_many || !told))
		count_letters(counting, told ? COUNT_LIMIT : PG_INT64_MAX);
	letters = sums_of(counting, queue_id)->letters;
	if (!counting->letters_counted)
	{
		letters = Max(sums_of(counting, queue_id)->gauges[JOBQ_LETTERS], 0);
		exact = exact && counting->exact;
	}

	values[READY] = Int64GetDatum(found.ready);
	values[SCHEDULED] = Int64GetDatum(found.scheduled);
	values[BLOCKED] = Int64GetDatum(found.blocked);
	values[RUNNING] = Int64GetDatum(found.running);
	values[DEAD] = Int64GetDatum(letters);
	values[OLDEST_READY] = TimestampTzGetDatum(found.oldest);
	nulls[OLDEST_READY] = found.ready == 0 || found.oldest == DT_NOEND;
	values[EXACT] = BoolGetDatum(exact);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(result_desc,
													  values, nulls)));
}
