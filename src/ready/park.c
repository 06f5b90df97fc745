/*-------------------------------------------------------------------------
 *
 *	  The waiting jobs of a group: parked in order, or spilled and read again from the
 *	  table.
 *
 * src/ready/park.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/*
 * Compare two positions in a group: by priority, then by age.  Returns a value below, equal
 * to or above 0.
 */
int
group_compare(int32 priority_a, JobqKey a, int32 priority_b, JobqKey b)
{
	if (priority_a != priority_b)
		return priority_a < priority_b ? -1 : 1;
	return jobq_key_cmp(a, b);
}

/*
 * Return the priority of an entry, from its lane.
 */
int32
group_entry_priority(JobqDatabase *db, uint32 index)
{
	AssertExclusive(db->lock);
	return db->ready->lanes[db->ready->entries[index].lane].priority;
}

/*
 * Is no other job of the group known to come before this job?
 */
bool
group_is_next(JobqDatabase *db, const JobqGroup *group, int64 id, int32 priority,
			  JobqKey key)
{
	JobqKey		called = {group->called_run_at, group->called};
	JobqKey		cursor = {group->cursor_run_at, group->cursor_id};

	AssertExclusive(db->lock);
	if (group->owner == id)
		return true;
	if (group->called != 0 &&
		group_compare(group->called_priority, called, priority, key) < 0)
		return false;
	if (group->head != JOBQ_NONE &&
		group_compare(group_entry_priority(db, group->head),
					  db->ready->entries[group->head].key, priority, key) < 0)
		return false;
	return !group->spilled ||
		group_compare(priority, key, group->cursor_priority, cursor) <= 0;
}

/*
 * There is no room for this job.  The job and all later jobs must be read from the table.
 *
 * The cursor never rises here.  The running job and the owner may be parked above the cursor,
 * and may be the last parked entry.  Other dropped jobs are in between.
 */
void
group_spill(JobqGroup *group, int32 priority, JobqKey key)
{
	JobqKey		cursor = {group->cursor_run_at, group->cursor_id};

	if (!group->spilled ||
		group_compare(priority, key, group->cursor_priority, cursor) <= 0)
	{
		group->cursor_priority = priority;
		group->cursor_run_at = key.run_at;
		group->cursor_id = key.id - 1;
	}
	group->spilled = group->dropped = true;
}

/*
 * Unlink a parked entry from its group.  link: where the list refers to the entry.  Returns
 * the index of the entry.
 */
uint32
group_unlink(JobqDatabase *db, JobqGroup *group, uint32 *link)
{
	uint32		index = *link;
	JobqEntry  *entry = &db->ready->entries[index];
	JobqLane   *lane = &db->ready->lanes[entry->lane];

	AssertExclusive(db->lock);
	Assert(entry->group == group->id && group->nparked > 0 && lane->parked > 0);
	*link = entry->next;
	group->nparked--;
	lane->parked--;
	return index;
}

/*
 * Drop an entry after which no entry is parked.
 */
static void
spill(JobqDatabase *db, JobqGroup *group, uint32 index)
{
	AssertExclusive(db->lock);
	group_spill(group, group_entry_priority(db, index), db->ready->entries[index].key);
	entry_free(db, index);
}

/*
 * Park an unlinked entry.  The entry is dropped if too many are parked, or if it is parked
 * already.  A job that has moved to another lane has two entries.  The outdated entry cannot
 * be identified here, so both are called in sequence.
 *
 * At least one entry is always parked, because the group would stop otherwise.  The running
 * job, which may return before it has left, and the owner are always parked.
 */
void
group_park(JobqDatabase *db, JobqGroup *group, uint32 index)
{
	JobqEntry  *entry = &db->ready->entries[index];
	int32		priority = group_entry_priority(db, index);
	uint32	   *link = &group->head;
	JobqKey		cursor = {group->cursor_run_at, group->cursor_id};
	bool		forced = entry->key.id == group->current ||
		entry->key.id == group->owner;
	bool		full = group->nparked >= JOBQ_MAX_PARKED ||
		(group->nparked > 0 && db->ready->nfree < (uint32) jobq_ready_entries / 4);

	AssertExclusive(db->lock);
	while (*link != JOBQ_NONE)
	{
		int			cmp = group_compare(group_entry_priority(db, *link),
										db->ready->entries[*link].key, priority,
										entry->key);

		if (cmp > 0)
			break;
		if (cmp == 0 && db->ready->entries[*link].lane == entry->lane)
		{
			db->ready->entries[*link].ctid = entry->ctid;
			entry_free(db, index);
			return;
		}
		link = &db->ready->entries[*link].next;
	}

	if (!forced && group->spilled &&
		group_compare(priority, entry->key, group->cursor_priority,
					  cursor) > 0)
	{
		group->dropped = true;	/* entries above the cursor are read again */
		entry_free(db, index);
		return;
	}
	if (!forced && full && *link == JOBQ_NONE)
	{
		spill(db, group, index);
		return;
	}
	entry->next = *link;
	*link = index;
	group->nparked++;
	db->ready->lanes[entry->lane].parked++;

	/* drop the last entry, so that no parked entry is above the cursor */
	if (!forced && full)
	{
		while (db->ready->entries[*link].next != JOBQ_NONE)
			link = &db->ready->entries[*link].next;
		index = *link;
		if (db->ready->entries[index].key.id == group->owner ||
			db->ready->entries[index].key.id == group->current)
			return;
		(void) group_unlink(db, group, link);
		spill(db, group, index);
	}
}

/*
 * Move a parked job back to its lane, from where the job is popped.
 *
 * Returns false if there is no room in the lane.  The job is then read again, but the group
 * does not wait for the job, because its row may no longer exist.
 */
bool
group_call(JobqDatabase *db, JobqGroup *group, uint32 *link, TimestampTz now,
		   JobqWakeList *wake)
{
	uint32		index = group_unlink(db, group, link);
	JobqEntry  *entry = &db->ready->entries[index];
	JobqLane   *lane = &db->ready->lanes[entry->lane];
	JobqPush	push = {0};

	push.key = entry->key;
	push.ctid = entry->ctid;
	push.group = entry->group;
	entry_free(db, index);
	gather_from(lane, push.key.run_at);
	switch (entry_insert(db, lane, &push))
	{
		case INSERTED:
			(void) jobq_lane_wake(db, lane, now, wake);
			break;
		case DUPLICATE:
			break;
		case TOO_FAR:
		case NO_ENTRY:
			if (lane->quarantine)
				lane_skip(db, lane, push.key);
			else
				jobq_lane_look(db, lane, push.key, wake);
			wake->scheduler = true;
			return false;
	}
	group->called = push.key.id;
	group->called_priority = lane->priority;
	group->called_run_at = push.key.run_at;
	return true;
}

/*
 * There is no slot for the group of this entry.  Drop the entry, and read its lane again from
 * here when there is room.  The lane meanwhile continues with jobs of other groups, and with
 * jobs for which other jobs wait.
 */
void
group_skip(JobqDatabase *db, JobqLane *lane, uint32 index, TimestampTz now)
{
	JobqKey		key = db->ready->entries[index].key;

	AssertExclusive(db->lock);
	entry_free(db, index);
	lane_skip(db, lane, key);
	if (!db->groups->full)
		groups_want_room(db, now);
}

/*
 * Request a read of the lanes whose jobs found no slot for their groups, if a good part of
 * the slots for the lane's role is free.
 */
void
groups_make_room(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	uint32	   *from = &db->ready->passed;
	JobqLane   *lane;

	AssertExclusive(db->lock);
	jobq_groups_forget(db, now);
	db->groups->full = false;
	while ((from = jobq_lane_next_passed(db, from, &lane)) != NULL)
	{
		if (share_is_ample(db->shares, lane->role, JOBQ_OF_GROUPS))
		{
			lane->skipping = false;
			jobq_lane_look(db, lane, lane->skipped, wake);
		}
		else
			groups_want_room(db, now);
	}
}
