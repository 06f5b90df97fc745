/*-------------------------------------------------------------------------
 *
 *	  Lists of lanes: lanes with entries, and lanes that a process has to check.
 *
 * A lane with something to check is put on a list.  The checking process removes lanes that
 * have nothing to check any more.  A lane may be given up meanwhile.
 *
 * src/ready/list.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "ready/inner.h"

/*
 * Link a lane that has got its first entry, and give it a position in a heap.
 */
void
lane_activate(JobqDatabase *db, JobqLane *lane)
{
	AssertExclusive(db->lock);
	Assert(lane->in_use && lane->count > 0);
	db->ready->news++;
	lane->active_prev = JOBQ_NONE;
	lane->active_next = db->ready->active_head;
	if (db->ready->active_head != JOBQ_NONE)
		db->ready->lanes[db->ready->active_head].active_prev = JOBQ_LANE_INDEX(db, lane);
	db->ready->active_head = JOBQ_LANE_INDEX(db, lane);
	jobq_lane_place(db, lane);
}

/*
 * Unlink a lane that has lost its last entry.
 */
void
lane_deactivate(JobqDatabase *db, JobqLane *lane)
{
	AssertExclusive(db->lock);
	Assert(lane->count == 0);
	Assert(lane->active_prev != JOBQ_NONE ||
		   db->ready->active_head == JOBQ_LANE_INDEX(db, lane));
	if (lane->active_prev != JOBQ_NONE)
		db->ready->lanes[lane->active_prev].active_next = lane->active_next;
	else
		db->ready->active_head = lane->active_next;
	if (lane->active_next != JOBQ_NONE)
		db->ready->lanes[lane->active_next].active_prev = lane->active_prev;
	jobq_lane_place(db, lane);
}

/*
 * Put a lane with "more" or "next_due" on the list of lanes that the scheduler reads.
 */
void
jobq_lane_expect(JobqDatabase *db, JobqLane *lane)
{
	AssertExclusive(db->lock);
	if (lane->expected)
		return;
	lane->expected = true;
	lane->expected_next = db->ready->expected;
	db->ready->expected = JOBQ_LANE_INDEX(db, lane);
}

/*
 * Get the next lane that the scheduler must check, and remove lanes with nothing to check.
 * from: &JobqReady.expected, or the previous result.  *lane gets the lane.  Returns NULL if
 * there is no further lane.
 */
uint32 *
jobq_lane_next_expected(JobqDatabase *db, uint32 *from, JobqLane **lane)
{
	AssertExclusive(db->lock);
	while (*from != JOBQ_NONE)
	{
		JobqLane   *next = &db->ready->lanes[*from];

		if (next->in_use && (next->more || next->next_due != DT_NOEND))
		{
			*lane = next;
			return &next->expected_next;
		}
		next->expected = false;
		*from = next->expected_next;
	}
	return NULL;
}

/*
 * Record that jobs of the lane were skipped, at least from this key on.
 */
void
lane_pass(JobqDatabase *db, JobqLane *lane, JobqKey key)
{
	AssertExclusive(db->lock);
	if (lane->skipping && jobq_key_cmp(key, lane->skipped) >= 0)
		return;
	lane->skipping = true;
	lane->skipped = key;
	if (lane->passed)
		return;
	lane->passed = true;
	lane->passed_next = db->ready->passed;
	db->ready->passed = JOBQ_LANE_INDEX(db, lane);
}

/*
 * Like jobq_lane_next_expected(), for lanes with skipped jobs.
 */
uint32 *
jobq_lane_next_passed(JobqDatabase *db, uint32 *from, JobqLane **lane)
{
	AssertExclusive(db->lock);
	while (*from != JOBQ_NONE)
	{
		JobqLane   *next = &db->ready->lanes[*from];

		if (next->in_use && next->skipping)
		{
			*lane = next;
			return &next->passed_next;
		}
		next->passed = false;
		*from = next->passed_next;
	}
	return NULL;
}

/*
 * Request a notification of the queue's channel.
 */
void
jobq_lane_note(JobqDatabase *db, JobqLane *lane)
{
	AssertExclusive(db->lock);
	lane->notify = true;
	if (lane->noted)
		return;
	lane->noted = true;
	lane->noted_next = db->ready->noted;
	db->ready->noted = JOBQ_LANE_INDEX(db, lane);
}

/*
 * Remove the next lane with a requested notification, and return it.  NULL if there is none.
 */
JobqLane *
jobq_lane_next_noted(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	while (db->ready->noted != JOBQ_NONE)
	{
		JobqLane   *lane = &db->ready->lanes[db->ready->noted];

		db->ready->noted = lane->noted_next;
		lane->noted = false;
		if (lane->in_use && lane->notify)
		{
			lane->notify = false;
			return lane;
		}
	}
	return NULL;
}

/*
 * Request a rank for the lane, unless the lane is ranked.  The cost does not depend on the
 * number of lanes, unlike JobqDatabase.reload.
 */
void
jobq_lane_ask_rank(JobqDatabase *db, JobqLane *lane)
{
	AssertExclusive(db->lock);
	if (lane->ranked || lane->unranked)
		return;
	lane->unranked = true;
	lane->unranked_next = db->ready->unranked;
	db->ready->unranked = JOBQ_LANE_INDEX(db, lane);
}

/*
 * Remove the next lane with a requested rank, and return it.  NULL if there is none.
 */
JobqLane *
jobq_lane_next_unranked(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	while (db->ready->unranked != JOBQ_NONE)
	{
		JobqLane   *lane = &db->ready->lanes[db->ready->unranked];

		db->ready->unranked = lane->unranked_next;
		lane->unranked = false;
		if (lane->in_use && !lane->ranked)
			return lane;
	}
	return NULL;
}
