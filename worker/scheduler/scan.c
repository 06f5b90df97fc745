/*-------------------------------------------------------------------------
 *
 * scan.c
 *	  Fills the ready set: reads the due jobs of lanes.
 *
 * A lane is read from its cursor on, so index entries of deleted rows before the cursor
 * cost nothing, even if vacuum cannot remove them yet.  A row that commits behind the
 * cursor is handed over by the committing process (src/commit/commit.c).  A plain MVCC
 * snapshot is therefore enough.
 *
 * worker/scheduler/scan.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "scheduler/duty.h"

/* Jobs read at a time if few entries are free. */
#define READ_AT_ONCE	256

/* The pause before lanes without an entry are tried again (microseconds). */
#define STARVED_PAUSE	(USECS_PER_SEC / 4)

static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);

/*
 * Reads up to a quarter of "jobq.ready_entries" jobs of each lane.  Skips any number of
 * leased or dormant jobs, because they are not behind the cursor.
 *
 * Runs in each round, because a process that pops a job wakes the scheduler when few
 * jobs are left in a lane.
 */
Duty		scan_duty = {
	.what = "read the jobs that are due",
	.run = run,
	.next_due = next_due,
	.each_round = true,
};

static uint32
lane_target(void)
{
	return jobq_ready_entries / 4;
}

/*
 * True if this lane must be scanned now.  Uses the same threshold as the processes that
 * wake the scheduler after a pop.
 */
static bool
wanted(const JobqLane *lane, TimestampTz now)
{
	if (!lane->in_use || lane->quarantine || lane->paused)
		return false;
	return (lane->more && lane->count <= lane_target() / 2) ||
		lane->next_due <= now;
}

/*
 * True if there are no free entries for the jobs of the lane.  A lane with newly due
 * jobs is read nevertheless, to notify listening sessions.
 */
static bool
no_room(const JobqLane *lane, TimestampTz now)
{
	AssertExclusive(my_db->lock);
	return lane->more && lane->next_due > now &&
		!jobq_lane_gets_entry(my_db, lane);
}

/*
 * True if the lane has startable jobs, but none in memory because entries are short.
 */
static bool
is_starved(const JobqLane *lane)
{
	AssertExclusive(my_db->lock);
	return lane->in_use && lane->more && lane->count == 0 &&
		!lane->quarantine && !jobq_lane_is_closed(my_db, lane);
}

/*
 * Read up to "limit" due rows of the lane, from its cursor on, with the active
 * snapshot.  All lanes share one index scan, because starting a scan costs more than
 * reading a short lane.  scanned->rows must have room.
 */
static void
scan_lane(ReadyIndex *scan, IndexScanDesc desc, const JobqLane *lane, TimestampTz now,
		  int limit, JobqScanned *scanned)
{
	IndexPosition after = {lane->queue_id, lane->priority, lane->role,
		lane->flow, lane->cursor
	};
	JobqPush   *rows = scanned->rows;
	int			n = 0;

	scanned->cursor = lane->cursor;
	scanned->more = false;
	scanned->next_due = DT_NOEND;

	ScanKeyInit(&scan->keys[0], READY_QUEUE_ID, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(lane->queue_id));
	ScanKeyInit(&scan->keys[1], READY_PRIORITY, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(lane->priority));
	ScanKeyInit(&scan->keys[2], READY_ROLE, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(lane->role));
	ScanKeyInit(&scan->keys[3], READY_FLOW, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(lane->flow));
	index_key_after(&scan->keys[4], scan->members, READY_RUN_AT, READY_ID, &after);

	desc->xs_snapshot = GetActiveSnapshot();
	index_rescan(desc, scan->keys, 5, NULL, 0);
	while (index_getnext_slot(desc, ForwardScanDirection, scan->slot))
	{
		bool		dormant;
		bool		leased;

		CHECK_FOR_INTERRUPTS();
		if (!index_read_row(scan->slot, n > 0 ? &rows[0] : NULL, &rows[n], &dormant, &leased))
		{
			if (leased && !dormant)
				index_note_leased(rows[n].key.id);
			continue;
		}
		if (rows[n].key.run_at > now)
		{
			scanned->next_due = rows[n].key.run_at;
			break;
		}
		scanned->cursor = rows[n].key;
		if (++n == limit)
		{
			scanned->more = true;
			break;
		}
	}
	ExecClearTuple(scan->slot);
	index_rescan(desc, NULL, 5, NULL, 0);	/* releases the pins */
	scanned->nrows = n;
}

static int
compare_lanes(const void *a, const void *b)
{
	const JobqLane *x = &my_db->ready->lanes[*(const int *) a];
	const JobqLane *y = &my_db->ready->lanes[*(const int *) b];

	if (x->priority != y->priority)
		return x->priority < y->priority ? -1 : 1;
	return *(const int *) a - *(const int *) b;
}

/*
 * Collect the lanes to be scanned now.  Urgent lanes come first, because workers start
 * with the first published jobs.
 */
static int
wanted_lanes(TimestampTz now, int *lanes)
{
	int			n = 0;

	JobqLane   *lane;
	uint32	   *from = &my_db->ready->expected;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	while ((from = jobq_lane_next_expected(my_db, from, &lane)) != NULL)
		if (wanted(lane, now))
			lanes[n++] = JOBQ_LANE_INDEX(my_db, lane);
	LWLockRelease(my_db->lock);
	qsort(lanes, n, sizeof(int), compare_lanes);
	return n;
}

/*
 * Scan all lanes in need.  Returns "now" if more work is left, and a later time if
 * lanes have found no entry.
 */
static TimestampTz
run(TimestampTz now)
{
	int			limit = lane_target();
	int		   *lanes = palloc(sizeof(int) * jobq_max_lanes);
	int			nlanes = wanted_lanes(now, lanes);
	bool		again = false;
	bool		starved = false;
	JobqScanned scanned;
	ReadyIndex	scan;
	IndexScanDesc desc;

	if (nlanes == 0)
		return DT_NOEND;
	scanned.rows = palloc(sizeof(JobqPush) * limit);
	index_begin(&scan);
	desc = jobq_index_beginscan(scan.rel, scan.index, GetActiveSnapshot(), 5);
	for (int i = 0; i < nlanes; i++)
	{
		JobqLane   *lane = &my_db->ready->lanes[lanes[i]];
		JobqWakeList wake;
		JobqLane	copy;
		int			most;

		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		if (!wanted(lane, now))
		{
			LWLockRelease(my_db->lock);
			continue;
		}
		if (no_room(lane, now))
		{
			my_db->ready->starved |= !jobq_lane_is_closed(my_db, lane);
			starved |= is_starved(lane);
			LWLockRelease(my_db->lock);
			continue;
		}
		lane->scanning = true;
		my_db->ready->nlate = 0;
		lane->next_due = DT_NOEND;
		copy = *lane;
		most = Min(limit - (int) copy.count, Max((int) my_db->ready->nfree, READ_AT_ONCE));
		LWLockRelease(my_db->lock);

		/* commits before the lane was marked must be visible */
		PopActiveSnapshot();
		PushActiveSnapshot(GetLatestSnapshot());
		scan_lane(&scan, desc, &copy, now, Max(most, 16), &scanned);
		jobq_injection_point("jobq-lane-read");

		/* publish lane by lane, because all processes need the lock */
		memset(&wake, 0, sizeof(wake));
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		jobq_ready_publish(my_db, lane, &scanned, &wake);
		if (wanted(lane, now) && !my_db->ready->starved)
			again = true;
		starved |= is_starved(lane);
		jobq_unlock(my_db, &wake);
	}
	index_endscan(desc);
	index_end(&scan);
	pfree(scanned.rows);
	index_end_lost();
	return again ? now : starved ? now + STARVED_PAUSE : DT_NOEND;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	TimestampTz due = plan;
	JobqLane   *lane;
	uint32	   *from = &my_db->ready->expected;

	AssertExclusive(my_db->lock);
	while ((from = jobq_lane_next_expected(my_db, from, &lane)) != NULL)
		if (!lane->paused)
			due = Min(due, lane->next_due);
	return due;
}
