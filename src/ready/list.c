/*-------------------------------------------------------------------------
 *
 * list.c
 *	  Lists of lanes that somebody is to look at.
 *
 * A lane that gets something to look at goes on the list.  Whoever looks takes
 * those off that have nothing any more; a lane may be given up meanwhile.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/list.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "ready/inner.h"

/*
 * The lane has "more", or "next_due": the scheduler shall look at it.
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
 * Walk through the lanes that the scheduler is to look at, and forget those that
 * have nothing any more.  "from" is where to begin: &JobqReady.expected, or what
 * was returned before; *lane is the next one.  NULL: that was all.
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
 * Jobs of the lane are passed over, from this one on at least.
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
 * Walk through the lanes of which jobs are passed over, as
 * jobq_lane_next_expected() does.
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
 * The queue's channel is to be notified.
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
 * Take the next one of those; NULL if there is none.
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
