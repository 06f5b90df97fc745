/*-------------------------------------------------------------------------
 *
 * count.c
 *	  Counts the jobs and dead letters of the database for the statistics, when nobody
 *	  knows them: at the first start, after a crash, and when rows have come or gone of
 *	  which nothing was noted.
 *
 * It reads the table in one go, with one snapshot, and the scheduler does nothing else
 * meanwhile: about 0.2 s for each million of jobs.  So it begins some time after it is
 * asked for, when what has come after the start, or with those rows, is under way.
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

/* It begins so many microseconds after it is asked for. */
#define DELAY		USECS_PER_SEC

/* One that is asked for while another counts waits for so many times as long as that took, too. */
#define PAUSES		20

typedef void (*CountRow) (Relation rel, HeapTuple tuple, JobqCounted **counted,
						  TimestampTz now);

static TimestampTz load(TimestampTz now);
static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);

/* Reads all jobs and dead letters once, when the gauges are not known. */
Duty		count_duty = {
	.load = load,
	.run = run,
	.next_due = next_due,
};

static JobqStatBase *base = NULL;

/* It has been asked for, and begins at its next turn. */
static bool begins = false;

/*
 * The jobs of this database are counted from now on.
 */
static TimestampTz
load(TimestampTz now)
{
	Oid			jobs;

	begins = false;
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
 * What was counted for this place, which may be JOBQ_NONE.
 */
static JobqCounted *
counted_at(JobqCounted **counted, uint32 place, TimestampTz now)
{
	if (place == JOBQ_NONE)
		return NULL;
	if (counted[place] == NULL)
	{
		counted[place] = palloc0(sizeof(JobqCounted));
		(void) jobq_calendar_turn(&counted[place]->scheduled, now);
	}
	return counted[place];
}

/*
 * Add a job to what was counted.
 */
static void
count_job(Relation rel, HeapTuple tuple, JobqCounted **counted, TimestampTz now)
{
	static const int columns[] = {
		JOB_RUN_AT, JOB_ENQUEUED_AT, JOB_QUEUE_ID, JOB_ROLE, JOB_DORMANT, JOB_KIND,
		JOB_ERRORS, JOB_BATCH_ID, JOB_TENANT
	};
	JobqJob		job;
	TimestampTz run_at;
	int64		away;
	JobqCounted *to;

	for (int i = 0; i < (int) lengthof(columns); i++)
		JOB(&job, columns[i]) = heap_getattr(tuple, columns[i],
											 RelationGetDescr(rel),
											 &JOB_ISNULL(&job, columns[i]));
	if (DatumGetBool(JOB(&job, JOB_DORMANT)))
		return;
	to = counted_at(counted, jobq_count_place(&job), now);
	if (to == NULL)
		return;
	to->gauges[JOBQ_LIVE]++;
	if (job_blocked(&job))
		to->gauges[JOBQ_BLOCKED]++;
	else if (jobq_count_when(&job, now, &run_at, &away))
		jobq_calendar_add(&to->scheduled, run_at, away, 1);
}

/*
 * Add a dead letter.
 */
static void
count_letter(Relation rel, HeapTuple tuple, JobqCounted **counted, TimestampTz now)
{
	JobqLetterName name;
	JobqCounted *to;

	jobq_letter_name(rel, tuple, &name);
	to = counted_at(counted, jobq_letter_place(&name), now);
	if (to != NULL)
		to->gauges[JOBQ_LETTERS]++;
}

static void
count_rows(Relation rel, Snapshot snapshot, CountRow count_it, JobqCounted **counted,
		   TimestampTz now)
{
	TableScanDesc scan = jobq_table_beginscan(rel, snapshot);
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		process_interrupts();
		count_it(rel, tuple, counted, now);
	}
	table_endscan(scan);
}

/*
 * Count all rows, while others go on.
 */
static void
count(TimestampTz now)
{
	JobqCounted **counted = palloc0(sizeof(JobqCounted *) *
									(jobq_max_stats + jobq_max_databases));
	Relation	jobs = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	Relation	letters = jobq_open_table(JOBQ_FAILED_TABLE, AccessShareLock);
	Snapshot	snapshot = jobq_stats_count_begin(base, now);

	if (snapshot != NULL)
	{
		jobq_injection_point("jobq-count-begun");
		count_rows(jobs, snapshot, count_job, counted, now);
		count_rows(letters, snapshot, count_letter, counted, now);
		UnregisterSnapshot(snapshot);
	}
	table_close(letters, AccessShareLock);
	table_close(jobs, AccessShareLock);
	if (snapshot == NULL)
		return;
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
	if (!begins)
	{
		begins = true;
		return begun + DELAY;
	}
	begins = false;
	process_begin_transaction();
	count(begun);
	PopActiveSnapshot();
	CommitTransactionCommand();
	return base->recount ? jobq_now() + (jobq_now() - begun) * PAUSES : DT_NOEND;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	if (plan != DT_NOEND)
		return plan;
	return base != NULL && (base->recount || base->count != 0) ? now : DT_NOEND;
}
