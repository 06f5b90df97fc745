/*-------------------------------------------------------------------------
 *
 * counter.c
 *	  Counts the jobs and dead letters of the database for the statistics.
 *
 * The table is read at once with one snapshot, in about 0.2 s for a million jobs.  A
 * separate process does this while the scheduler continues.  count.c decides when to
 * count.
 *
 * If the process exits early (aside.c), the next scheduler discards the incomplete count.
 *
 * worker/scheduler/counter.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/xact.h"
#include "storage/ipc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

typedef void (*CountRow) (Relation rel, HeapTuple tuple, JobqCounted **counted,
						  TimestampTz now);

PGDLLEXPORT void jobq_counter_main(Datum main_arg);

/*
 * Find or allocate the counts for this statistics slot, which may be JOBQ_NONE.
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
 * Add a job to the counts.
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
 * Add a dead letter to the counts.
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
		aside_leave_if_unwanted();
		count_it(rel, tuple, counted, now);
	}
	table_endscan(scan);
}

/*
 * Count all rows, under concurrent changes.  Must be called in a transaction.
 */
void
counter_count(JobqStatBase *base, TimestampTz now)
{
	JobqCounted **counted = palloc0(sizeof(JobqCounted *) *
									(jobq_max_stats + jobq_max_databases));
	Relation	jobs = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	Relation	letters = jobq_open_table(JOBQ_DEAD_LETTER_TABLE, AccessShareLock);
	uint32		number;
	Snapshot	snapshot = jobq_stats_count_begin(base, now, &number);

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
	jobq_stats_count_end(base, number, counted, jobq_now());
}

/*
 * Start a process to count the jobs of this database.  Returns its handle, or NULL if the
 * server has no free background worker slot.
 */
BackgroundWorkerHandle *
counter_start(void)
{
	return aside_start("jobq counter", "jobq_counter_main");
}

/*
 * Count, unless already done.  Does nothing without the extension, or if the jobs are
 * not counted at all.
 */
static void
count_if_wanted(void)
{
	const JobqRelations *relations = jobq_relations_if_installed();
	JobqStatBase *base = NULL;

	if (relations != NULL)
	{
		LWLockAcquire(jobq_stats->lock, LW_SHARED);
		base = jobq_stats_base(MyDatabaseId, relations->job, false, 0);
		LWLockRelease(jobq_stats->lock);
	}
	if (base != NULL && base->recount)
		counter_count(base, jobq_now());
}

/*
 * Main function of the counting process.  A lock timeout is no error: the count is
 * tried again.
 */
void
jobq_counter_main(Datum main_arg)
{
	aside_begin(main_arg, "jobq: counting the jobs");
	PG_TRY();
	{
		process_begin_transaction();
		count_if_wanted();
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		proc_exit(0);
	}
	PG_END_TRY();
	proc_exit(0);
}
