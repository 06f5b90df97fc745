/*-------------------------------------------------------------------------
 *
 *	  Lists of lanes that a process has to check.
 *
 * A lane with something to check is put on the list.  The checking process removes lanes that
 * have nothing to check any more.  A lane may be given up meanwhile.
 *
 * The caller of every function here holds db->lock exclusively.  No function here can fail.
 *
 * src/ready/list.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "ready/inner.h"

/*
 * Put a lane with "more" or "next_due" on the list of lanes that the scheduler reads.
 */
void
jobq_lane_expect(JobqDatabase *db, JobqLane *lane)
{
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
