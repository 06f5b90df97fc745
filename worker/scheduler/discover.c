/*-------------------------------------------------------------------------
 *
 * discover.c
 *	  Finds the lanes with jobs: skips through the ready index from lane to
 *	  lane.
 *
 * A lane whose first job is not due needs no slot.  The due time is noted, and discovery
 * runs again at that time.  Lanes in shared memory know when their next job is due, and
 * are not read here.  If slots are short, less urgent lanes give up their slots
 * (lane.c), and discovery is repeated, because slots may have become free.
 *
 * worker/scheduler/discover.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/genam.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"

#include "scheduler/duty.h"

/* The pause before lanes without a slot are tried again (microseconds). */
#define OVERFLOW_PAUSE	(USECS_PER_SEC / 4)

/*
 * The pause before discovery runs again for lanes whose first job has become due: a
 * multiple of the last duration, but at most one second.
 */
#define FORGOTTEN_SHARE	4
#define FORGOTTEN_PAUSE	USECS_PER_SEC

/* Lanes examined in one run after the first lane without a slot. */
#define MORE_LANES		4096

/* Index entries of a lane read one by one before a new index search. */
#define STEPS			16

static TimestampTz forgotten_at = 0;	/* earliest next time */

static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static TimestampTz forgotten_due(void);
static void discover(bool reset, bool forgotten);
static uint32 prepare_lanes(bool reset, bool forgotten);
static void tell_crowded(void);
static bool next_lane(ReadyIndex *scan, IndexScanDesc desc, bool begun,
					  IndexPosition *at);

/*
 * Reads a few index entries for each lane, without a bound on the number of lanes.
 * After the first lane without a slot, a run examines MORE_LANES more lanes.  The next
 * run continues there.
 */
Duty		discover_duty = {
	.what = "find the queues that have jobs",
	.run = run,
	.next_due = next_due,
};

static TimestampTz
run(TimestampTz now)
{
	bool		reset;
	bool		forgotten;
	bool		owners_first;
	instr_time	start;

	/* new jobs may have come together with the jobs their groups wait for */
	do
	{
		LWLockAcquire(my_db->lock, LW_SHARED);
		reset = my_db->rescan;
		owners_first = reset && my_db->groups->owners_first;
		LWLockRelease(my_db->lock);
		if (owners_first)
			groups_read_owners();
	} while (owners_first);
	if (reset)
		jobq_injection_point("jobq-lanes-reset");
	forgotten = reset || forgotten_due() <= now;
	INSTR_TIME_SET_CURRENT(start);
	discover(reset, forgotten);
	if (forgotten)
		forgotten_at = jobq_now() + Min(FORGOTTEN_SHARE * jobq_elapsed(start),
										FORGOTTEN_PAUSE);
	if (my_db->ready->crowded)
		tell_crowded();
	return now + OVERFLOW_PAUSE;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	TimestampTz due = forgotten_due();

	if (my_db->rescan)
		return now;
	return my_db->ready->overflow ? Min(due, plan) : due;
}

/*
 * When the first job of a lane without a slot is due.
 */
static TimestampTz
forgotten_due(void)
{
	return Max(my_db->ready->forgotten_due, forgotten_at);
}

/*
 * Log that lanes find no slot, or take the slots of other lanes.
 */
static void
tell_crowded(void)
{
	static JobqSteady told_at = 0;

	my_db->ready->crowded = false;
	if (!jobq_once_in(&told_at, USECS_PER_HOUR))
		return;
	ereport(LOG,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("more combinations of queue, priority and role have jobs than fit into shared memory"),
			 errdetail("Each role has its share; less urgent jobs are looked after more slowly."),
			 errhint("Raise \"%s\", which is %d, and restart the server; or use fewer priorities.",
					 "jobq.ready_entries", jobq_ready_entries)));
}

/*
 * Find lanes with index entries but without a slot.  forgotten: search all lanes, from
 * the first.  reset: also read all lanes again from their beginning.
 */
static void
discover(bool reset, bool forgotten)
{
	static IndexPosition resume;
	static bool resumed = false;
	IndexPosition at = {.queue_id = PG_INT32_MIN,.priority = PG_INT32_MIN,
	.flow = PG_INT32_MIN};
	TimestampTz now = jobq_now();
	uint32		evictions = prepare_lanes(reset, forgotten);
	bool		from_start;
	bool		begun = false;
	int			left = -1;		/* lanes left to examine, or -1: no limit */
	ReadyIndex	scan;
	IndexScanDesc desc;

	if (forgotten)
		resumed = false;
	if (resumed)
		at = resume;
	from_start = !resumed;
	resumed = false;

	index_begin(&scan);
	desc = jobq_index_beginscan(scan.rel, scan.index, GetActiveSnapshot(), 1);
	desc->xs_want_itup = true;
	for (;;)
	{
		JobqLane   *lane;

		CHECK_FOR_INTERRUPTS();
		if (left == 0)
		{
			resume = at;
			resumed = true;
			break;
		}
		if (!next_lane(&scan, desc, begun, &at))
			break;
		begun = true;
		left -= left > 0;
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		lane = jobq_lane_find(my_db, at.queue_id, at.priority, at.role, at.flow,
							  false, at.key.run_at <= now);
		if (lane != NULL)
			jobq_lane_ask_rank(my_db, lane);
		else if (at.key.run_at > now)
			my_db->ready->forgotten_due = Min(my_db->ready->forgotten_due, at.key.run_at);
		else if (left < 0)
			left = MORE_LANES;
		LWLockRelease(my_db->lock);
	}
	index_endscan(desc);
	index_end(&scan);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);

	/*
	 * A lane found above may have been evicted.  Also, a process that handed
	 * over a job meanwhile may have found no slot for a lane passed above.
	 */
	my_db->ready->overflow |= left >= 0 || !from_start ||
		my_db->ready->evictions != evictions;
	my_db->ready->complete = !my_db->ready->overflow;
	LWLockRelease(my_db->lock);
}

/*
 * Prepare the lanes before the index is read.  Lanes with skipped jobs are read
 * further.  forgotten: lanes made while jobs of theirs may have been forgotten are read
 * from the beginning.  reset: all lanes are.  Returns the number of evictions so far.
 * Takes my_db->lock exclusively.
 */
static uint32
prepare_lanes(bool reset, bool forgotten)
{
	JobqWakeList wake = {0};	/* unused: would wake the scheduler */
	uint32		evictions;
	uint32	   *from = &my_db->ready->passed;
	JobqLane   *lane;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->ready->overflow = false;
	my_db->ready->complete = false; /* so a new lane is read */
	evictions = my_db->ready->evictions;
	while ((from = jobq_lane_next_passed(my_db, from, &lane)) != NULL)
	{
		lane->skipping = false;
		jobq_lane_look(my_db, lane, lane->skipped, &wake);
	}
	if (forgotten)
	{
		my_db->ready->forgotten_due = DT_NOEND;
		for (int i = 0; i < jobq_max_lanes; i++)
		{
			lane = &my_db->ready->lanes[i];
			if (lane->in_use && !lane->quarantine && (reset || lane->unread))
				jobq_lane_reset(my_db, lane);
		}
	}
	if (reset)
		my_db->rescan = false;
	LWLockRelease(my_db->lock);
	return evictions;
}

/*
 * Step to the first entry of the next lane.  Returns false at the end of the index.
 * The values come from the index, not from the table.
 *
 * The scan has already read the rest of the current page.  With short lanes, the next
 * lane is usually on the same page, and stepping avoids a search from the root for each
 * lane.
 */
static bool
next_lane(ReadyIndex *scan, IndexScanDesc desc, bool begun, IndexPosition *at)
{
	IndexPosition last = *at;

	for (int i = 0; begun && i < STEPS; i++)
	{
		if (index_getnext_tid(desc, ForwardScanDirection) == NULL)
			return false;
		index_position(desc, at);
		if (at->queue_id != last.queue_id || at->priority != last.priority ||
			at->role != last.role || at->flow != last.flow)
			return true;
	}
	index_key_after(&scan->keys[0], scan->members, READY_QUEUE_ID, READY_FLOW, at);
	index_rescan(desc, scan->keys, 1, NULL, 0);
	if (index_getnext_tid(desc, ForwardScanDirection) == NULL)
		return false;
	index_position(desc, at);
	return true;
}
