/*-------------------------------------------------------------------------
 *
 * count.c
 *	  Counts the jobs of the database for the statistics, when nobody knows them: at
 *	  the first start, after a crash, and when rows have come or gone of which nothing
 *	  was noted.
 *
 * worker/scheduler/count.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "scheduler/duty.h"

/*
 * Between two countings there is a pause of so many times as long as one takes, and
 * of this at least.
 */
#define PAUSES		20
#define LEAST_PAUSE	USECS_PER_SEC

static TimestampTz load(TimestampTz now);
static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);

/* Reads all rows of jobq.job once, when the gauges are not known. */
Duty		count_duty = {
	.load = load,
	.run = run,
	.next_due = next_due,
};

static JobqStatBase *base = NULL;

/*
 * The jobs of this database are counted from now on.
 */
static TimestampTz
load(TimestampTz now)
{
	Oid			jobs;

	process_begin_transaction();
	jobs = jobq_relations()->job;
	PopActiveSnapshot();
	CommitTransactionCommand();

	jobq_stats_forget_database(MyDatabaseId, jobs);
	LWLockAcquire(jobq_stats->lock, LW_EXCLUSIVE);
	base = jobq_stats_base(MyDatabaseId, jobs, true, now);
	LWLockRelease(jobq_stats->lock);
	if (base == NULL)
		return DT_NOEND;

	/* the one before may have left in the midst of it */
	if (base->count != 0)
		jobq_stats_count_end(base, NULL, now);
	return now;
}

/*
 * Add a row to what was counted.
 */
static void
count_row(Relation rel, HeapTuple tuple, JobqCounted **counted, TimestampTz now)
{
	static const int columns[] = {
		JOB_RUN_AT, JOB_ENQUEUED_AT, JOB_QUEUE_ID, JOB_ROLE, JOB_DORMANT, JOB_KIND,
		JOB_ERRORS, JOB_BATCH_ID, JOB_TENANT
	};
	JobqJob		job;
	TimestampTz run_at;
	int64		away;
	uint32		place;

	for (int i = 0; i < (int) lengthof(columns); i++)
		JOB(&job, columns[i]) = heap_getattr(tuple, columns[i],
											 RelationGetDescr(rel),
											 &JOB_ISNULL(&job, columns[i]));
	if (DatumGetBool(JOB(&job, JOB_DORMANT)))
		return;
	place = jobq_count_place(&job);
	if (place == JOBQ_NONE)
		return;
	if (counted[place] == NULL)
	{
		counted[place] = palloc0(sizeof(JobqCounted));
		(void) jobq_calendar_turn(&counted[place]->scheduled, now);
	}
	counted[place]->gauges[JOBQ_LIVE]++;
	if (job_blocked(&job))
		counted[place]->gauges[JOBQ_BLOCKED]++;
	else if (jobq_count_when(&job, now, &run_at, &away))
		jobq_calendar_add(&counted[place]->scheduled, run_at, away, 1);
}

/*
 * Count all rows, while others go on.
 */
static void
count(TimestampTz now)
{
	JobqCounted **counted = palloc0(sizeof(JobqCounted *) *
									(jobq_max_stats + jobq_max_databases));
	Relation	rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	Snapshot	snapshot = jobq_stats_count_begin(base, now);
	TableScanDesc scan;
	HeapTuple	tuple;

	if (snapshot == NULL)
	{
		table_close(rel, AccessShareLock);
		return;
	}
	jobq_injection_point("jobq-count-begun");
	scan = jobq_table_beginscan(rel, snapshot);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		process_interrupts();
		count_row(rel, tuple, counted, now);
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	jobq_stats_count_end(base, counted, jobq_now());
}

static TimestampTz
run(TimestampTz now)
{
	TimestampTz begun = jobq_now();

	if (base == NULL)
		return DT_NOEND;

	/* nobody else counts: one that was begun has met an error */
	if (base->count != 0)
		jobq_stats_count_end(base, NULL, now);
	if (!base->recount)
		return DT_NOEND;
	process_begin_transaction();
	count(begun);
	PopActiveSnapshot();
	CommitTransactionCommand();
	if (base->recount)
		return jobq_now() + Max((jobq_now() - begun) * PAUSES, LEAST_PAUSE);
	return DT_NOEND;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	if (plan != DT_NOEND)
		return plan;
	return base != NULL && (base->recount || base->count != 0) ? now : DT_NOEND;
}
