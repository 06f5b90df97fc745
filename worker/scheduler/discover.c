/*-------------------------------------------------------------------------
 *
 * discover.c
 *	  Finds the lanes that have jobs: skips through the ready index from lane to
 *	  lane.
 *
 * A lane whose first job is not due needs no place: its time is noted.  Where
 * the places do not suffice, the next time goes on behind the last one.
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

/* Retry of lanes that found no place. */
#define OVERFLOW_PAUSE	(USECS_PER_SEC / 4)

static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static void discover(bool reset);
static uint32 prepare_lanes(bool reset);
static bool next_lane(ReadyIndex *scan, IndexScanDesc desc,
					  IndexPosition *at);

/*
 * Reads one entry of the index for each lane; there is no other way to know
 * them.  It stops where a lane finds no place.
 */
Duty		discover_duty = {
	.run = run,
	.next_due = next_due,
};

static TimestampTz
run(TimestampTz now)
{
	discover(my_db->rescan || now >= my_db->ready->forgotten_due);
	return now + OVERFLOW_PAUSE;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	TimestampTz due = my_db->ready->forgotten_due;

	if (my_db->rescan)
		return now;
	return my_db->ready->overflow ? Min(due, plan) : due;
}

/*
 * Find the lanes that have index entries and are not there yet.  With "reset",
 * all lanes are read from their beginning, too.
 */
static void
discover(bool reset)
{
	static IndexPosition resume;
	static bool resumed = false;
	IndexPosition at = {.queue_id = PG_INT32_MIN,.priority = PG_INT32_MIN,
	.flow = PG_INT32_MIN};
	TimestampTz now = jobq_now();
	uint32		evictions = prepare_lanes(reset);
	bool		from_start;
	ReadyIndex	scan;
	IndexScanDesc desc;

	if (reset)
		resumed = false;
	if (resumed)
		at = resume;
	from_start = !resumed;
	resumed = false;

	index_begin(&scan);
	desc = jobq_index_beginscan(scan.rel, scan.index, GetActiveSnapshot(), 1);
	desc->xs_want_itup = true;
	while (!resumed)
	{
		IndexPosition previous = at;
		JobqLane   *lane;

		CHECK_FOR_INTERRUPTS();
		if (!next_lane(&scan, desc, &at))
			break;
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		lane = jobq_lane_find(my_db, at.queue_id, at.priority, at.role, at.flow,
							  false, at.key.run_at <= now);
		if (lane != NULL)
			my_db->reload |= !lane->ranked;
		else if (at.key.run_at > now)
			my_db->ready->forgotten_due = Min(my_db->ready->forgotten_due, at.key.run_at);
		else
		{
			resume = previous;
			resumed = true;
		}
		LWLockRelease(my_db->lock);
	}
	index_endscan(desc);
	index_end(&scan);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);

	/*
	 * A lane that we had found may have given way to another; and who handed
	 * over meanwhile may have found no place for a lane that we had passed.
	 */
	my_db->ready->overflow |= resumed || !from_start ||
		my_db->ready->evictions != evictions;
	my_db->ready->complete = !my_db->ready->overflow;
	LWLockRelease(my_db->lock);
}

/*
 * Before the index is read: lanes that have skipped jobs are to be read on, and
 * with "reset" all of them from their beginning.  Returns how many lanes have
 * given way so far.
 */
static uint32
prepare_lanes(bool reset)
{
	JobqWakeList wake = {0};	/* it is us who would be woken */
	uint32		evictions;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->ready->overflow = false;
	my_db->ready->complete = false;	/* so a lane that is made is read */
	evictions = my_db->ready->evictions;
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &my_db->ready->lanes[i];

		if (!lane->in_use || !lane->skipping)
			continue;
		lane->skipping = false;
		jobq_lane_look(my_db, lane, lane->skipped, &wake);
	}
	if (reset)
	{
		my_db->rescan = false;
		my_db->ready->forgotten_due = DT_NOEND;
		for (int i = 0; i < jobq_max_lanes; i++)
		{
			JobqLane   *lane = &my_db->ready->lanes[i];

			if (lane->in_use && !lane->quarantine)
			{
				lane->cursor.run_at = PG_INT64_MIN;
				lane->cursor.id = PG_INT64_MIN;
				lane->more = true;
			}
		}
	}
	LWLockRelease(my_db->lock);
	return evictions;
}

/*
 * Step to the next lane that has an entry, and to its first one.  The values
 * come from the index itself.
 */
static bool
next_lane(ReadyIndex *scan, IndexScanDesc desc, IndexPosition *at)
{
	index_key_after(&scan->keys[0], scan->members, READY_QUEUE_ID, READY_FLOW, at);
	index_rescan(desc, scan->keys, 1, NULL, 0);
	if (index_getnext_tid(desc, ForwardScanDirection) == NULL)
		return false;
	index_position(desc, at);
	return true;
}
