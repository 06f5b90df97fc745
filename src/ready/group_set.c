/*-------------------------------------------------------------------------
 *
 *	  Groups of the jobs that a worker runs together, in a call of a set handler.
 *
 * Jobs of a group run in the same call, in their order in the array.  The call holds a single
 * permit of each of its groups, from the first job of the group on (JobqHolding.groups).  The
 * permit is returned with the rest of the permits of the call, or before, if a job of the group will
 * run again, or did not run.
 *
 * A job joins the call of its predecessor only if the group runs a single job at a time, waits for
 * no job, and has no job in between.
 *
 * src/ready/group_set.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/*
 * Does this group run its jobs singly?  Otherwise, they run alone.
 */
bool
group_set_takes(JobqDatabase *db, const JobqLane *lane, int64 group)
{
	uint16		limiter = lane->limiters[JOBQ_OF_QUEUE];

	AssertExclusive(db->lock);
	return jobq_group_shared(group) || limiter == JOBQ_NO_LIMITER ||
		db->limits->limiters[limiter].group_max_running == 1;
}

/*
 * The permit of this group, which the worker in the slot has taken, belongs to its call.
 */
void
group_set_hold(JobqDatabase *db, JobqSlot *slot, uint32 place)
{
	JobqGroup  *group = &db->groups->groups[place];
	uint32		next = slot->holding->groups;

	AssertExclusive(db->lock);
	Assert(group->slot == 0 && group->running > 0);
	group->slot = SLOT_NUMBER(slot);
	group->held_next = next;
	group->held_prev = JOBQ_NONE;
	if (next != JOBQ_NONE)
		db->groups->groups[next].held_prev = place;
	slot->holding->groups = place;
}

/* The call no longer has the permit of the group. */
static void
forget(JobqDatabase *db, JobqSlot *slot, JobqGroup *group)
{
	JobqGroup  *groups = db->groups->groups;

	AssertExclusive(db->lock);
	Assert(group->slot == SLOT_NUMBER(slot));
	if (group->held_prev != JOBQ_NONE)
		groups[group->held_prev].held_next = group->held_next;
	else
		slot->holding->groups = group->held_next;
	if (group->held_next != JOBQ_NONE)
		groups[group->held_next].held_prev = group->held_prev;
	group->slot = 0;
}

/*
 * May the job of this entry join the call of the worker, which has the permit of the job's
 * group?
 */
static bool
may_join(JobqDatabase *db, JobqGroup *group, const JobqSlot *slot, const JobqLane *lane,
		 uint32 index, TimestampTz now)
{
	const JobqEntry *entry = &db->ready->entries[index];

	AssertExclusive(db->lock);
	group_set_policy(db, group, lane->limiters[JOBQ_OF_QUEUE]);
	return group->slot == SLOT_NUMBER(slot) && group->owner == 0 &&
		group->others == JOBQ_OTHERS_NONE &&
		group_policy(db, group)->group_max_running == 1 &&
		group_is_next(db, group, entry->key.id, lane->priority, entry->key);
}

/*
 * Admit or park a job with a group that was popped to run in the call of this worker.  The entry
 * has been unlinked from its lane.  If the job is admitted, *place gets the index of the group.
 */
JobqEntrance
group_set_enter(JobqDatabase *db, JobqSlot *slot, JobqLane *lane, uint32 index, TimestampTz now,
				uint32 *place, JobqWakeList *wake)
{
	JobqEntry  *entry = &db->ready->entries[index];
	JobqGroup  *group = jobq_group_find(db, entry->group);

	AssertExclusive(db->lock);
	if (group == NULL || group->slot == 0)
	{
		if (group_enter(db, lane, index, now, place, wake) == JOBQ_PARKED)
			return JOBQ_PARKED;
		group_set_hold(db, slot, *place);
		return JOBQ_ENTERED;
	}
	if (group->called == entry->key.id)
		group->called = 0;
	if (!may_join(db, group, slot, lane, index, now))
	{
		group_park(db, group, index);
		group_advance(db, group, now, wake);
		return JOBQ_PARKED;
	}
	*place = group - db->groups->groups;
	return JOBQ_ENTERED;
}

/*
 * Unlink the first parked job of a group of the call, if the job is of this lane, comes before the
 * jobs in the lane, and may join.  Returns the index of its entry, or JOBQ_NONE.
 */
uint32
group_set_next(JobqDatabase *db, JobqSlot *slot, JobqLane *lane, uint32 place, TimestampTz now,
			   JobqWakeList *wake)
{
	JobqGroup  *group = &db->groups->groups[place];
	uint32		index = group->head;

	AssertExclusive(db->lock);
	if (index == JOBQ_NONE || db->ready->entries[index].lane != JOBQ_LANE_INDEX(db, lane) ||
		(lane->count > 0 && jobq_key_cmp(db->ready->entries[lane->head].key,
										 db->ready->entries[index].key) < 0) ||
		!may_join(db, group, slot, lane, index, now))
		return JOBQ_NONE;
	(void) group_unlink(db, group, &group->head);
	if (group->spilled)
		group_advance(db, group, now, wake);
	return index;
}

/*
 * The call gives up the permit of a group.  A job of the group has committed and will run again: see
 * jobq_group_held().  Does nothing if the call does not have the permit any more.
 */
void
jobq_set_leave(JobqDatabase *db, JobqSlot *slot, uint32 place, TimestampTz now,
			   JobqWakeList *wake)
{
	JobqGroup  *group = &db->groups->groups[place];

	AssertExclusive(db->lock);
	if (group->slot != SLOT_NUMBER(slot))
		return;
	forget(db, slot, group);
	group_leave(db, place, 0, false, true, now, wake);
}

/*
 * A job of the call runs alone: the slot has the permit of its group as for any single job.
 */
void
jobq_set_alone(JobqDatabase *db, JobqSlot *slot, uint32 place, int64 id)
{
	AssertExclusive(db->lock);
	Assert(slot->holding->permits.group == JOBQ_NONE);
	forget(db, slot, &db->groups->groups[place]);
	group_is_run_by(&db->groups->groups[place], id);
	slot->holding->permits.group = place;
	slot->holding->permits_job = id;
}

/*
 * The job of jobq_set_alone() is over: return its permit of the group.
 */
void
jobq_set_alone_over(JobqDatabase *db, JobqSlot *slot, int64 id, TimestampTz now,
					JobqWakeList *wake)
{
	uint32		place = slot->holding->permits.group;

	AssertExclusive(db->lock);
	Assert(!jobq_run_busy(&slot->run));
	slot->holding->permits.group = JOBQ_NONE;
	if (place != JOBQ_NONE)
		group_leave(db, place, id, slot->run.state == JOBQ_RUN_LIVE,
					jobq_run_unused(&slot->run), now, wake);
}

/*
 * Return the permits of all groups of the call.  Jobs for which a group waits have reported
 * their end at commit.  The worker may exit before it has checked whether a job still exists for
 * which a group waits.  The scheduler does so then.
 */
void
jobq_set_leave_all(JobqDatabase *db, JobqSlot *slot, TimestampTz now, JobqWakeList *wake)
{
	uint32		place;

	AssertExclusive(db->lock);
	while ((place = slot->holding->groups) != JOBQ_NONE)
	{
		if (db->groups->groups[place].owner != 0)
			db->groups->owners = wake->scheduler = true;
		jobq_set_leave(db, slot, place, now, wake);
	}
}
