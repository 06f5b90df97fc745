/*-------------------------------------------------------------------------
 *
 *	  Groups: jobs with the same group_key run one at a time, in order.
 *
 * A job popped while the group is busy is parked (park.c).  When the group is free, its first
 * parked job goes back to its lane, from where the job is popped again.
 *
 * src/ready/group.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/* Read more jobs if at most this number is parked. */
#ifndef FEW_PARKED
#define FEW_PARKED	16
#endif

/*
 * The lanes and entries were forgotten.  Forget parked jobs as well, because they are read
 * again.
 */
void
groups_unpark(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	for (int i = 0; i < jobq_max_groups; i++)
	{
		JobqGroup  *group = &db->groups->groups[i];

		if (group->id == 0)
			continue;
		group->head = JOBQ_NONE;
		group->nparked = 0;
		group->called = 0;
		group->spilled = group->refill = false;
		group_set_timer(db, group, DT_NOEND);
		group_forget_if_idle(db, group);
	}
	db->groups->full = false;
	db->groups->refill = false;
	db->groups->due = DT_NOEND;
}

/*
 * May this job of the group start now, if no other job comes before?
 */
static bool
may_start(JobqDatabase *db, const JobqGroup *group, int64 id)
{
	JobqLimiter *policy = group_policy(db, group);

	AssertExclusive(db->lock);
	if (group->owner != 0 ? group->owner != id : group->others != JOBQ_OTHERS_NONE)
		return false;
	return policy->group_max_running <= 0 ||
		group->running < policy->group_max_running;
}

/*
 * If the group is free, call its owner, or without an owner its first parked job.
 */
void
group_advance(JobqDatabase *db, JobqGroup *group, TimestampTz now,
			  JobqWakeList *wake)
{
	TimestampTz due = DT_NOEND;
	uint32	   *link;
	bool		unread = false; /* spilled jobs may come before the first */

	AssertExclusive(db->lock);
	group_set_timer(db, group, DT_NOEND);

	/* the policy of the queue may have changed */
	if (group->head != JOBQ_NONE)
		group_set_policy(db, group,
						 db->ready->lanes[db->ready->entries[group->head].lane].limiters[JOBQ_OF_QUEUE]);
	group_lose_patience(db, group, now);
	if (group->owner == 0 && group->others != JOBQ_OTHERS_NONE)
	{
		db->groups->owners = true;
		wake->scheduler = true;
	}
	do
	{
		link = &group->head;
		if (group->owner != 0)
			while (*link != JOBQ_NONE &&
				   db->ready->entries[*link].key.id != group->owner)
				link = &db->ready->entries[*link].next;
	} while (*link != JOBQ_NONE &&
			 group_is_next(db, group, db->ready->entries[*link].key.id,
						   group_entry_priority(db, *link),
						   db->ready->entries[*link].key) &&
			 may_start(db, group, db->ready->entries[*link].key.id) &&
			 !group_call(db, group, link, now, wake));

	/* combine timeouts within a short time */
	if (group->owner != 0 && group->head != JOBQ_NONE)
		due = Min(due, Max(jobq_group_waits_until(db, group), now + ROOM_PAUSE));
	if (due < timer_due(&db->groups->timers, group - db->groups->groups))
		group_set_timer(db, group, due);
	if (group->spilled && group->head != JOBQ_NONE)
	{
		JobqKey		cursor = {group->cursor_run_at, group->cursor_id};

		unread = group_compare(group_entry_priority(db, group->head),
							   db->ready->entries[group->head].key,
							   group->cursor_priority, cursor) > 0;
	}
	if (group->spilled && !group->refill &&
		(group->nparked <= FEW_PARKED || unread))
	{
		group->refill = true;
		db->groups->refill = true;
		wake->scheduler = true;
	}
	group_forget_if_idle(db, group);
}

static uint32
take_in(JobqDatabase *db, JobqGroup *group, int64 id, int32 queue_id)
{
	AssertExclusive(db->lock);
	jobq_group_take(group, id, queue_id);
	return group - db->groups->groups;
}

/*
 * Return the group of a job that is about to start, created if necessary.  NULL if there is
 * no room, or if the role has used up its share.
 */
static JobqGroup *
group_for(JobqDatabase *db, int64 id, uint16 limiter, Oid role,
		  TimestampTz now)
{
	JobqGroup  *group = jobq_group_find(db, id);

	AssertExclusive(db->lock);
	if (group != NULL || !jobq_share_left(db->shares, role, JOBQ_OF_GROUPS))
		return group;
	return jobq_group_make(db, id, limiter, role, now);
}

/*
 * Admit or park a popped job with a group.  The entry has been unlinked from its lane.  If
 * the job is admitted, *place gets the index of the group.
 */
JobqEntrance
group_enter(JobqDatabase *db, JobqLane *lane, uint32 index,
			TimestampTz now, uint32 *place, JobqWakeList *wake)
{
	JobqEntry  *entry = &db->ready->entries[index];
	JobqGroup  *group = group_for(db, entry->group, lane->limiters[JOBQ_OF_QUEUE],
								  lane->role, now);

	AssertExclusive(db->lock);
	if (group == NULL)
	{
		group_skip(db, lane, index, now);
		return JOBQ_PARKED;
	}
	group_set_policy(db, group, lane->limiters[JOBQ_OF_QUEUE]);
	group_lose_patience(db, group, now);
	if (group->called == entry->key.id)
		group->called = 0;
	if (!group_is_next(db, group, entry->key.id, lane->priority, entry->key) ||
		!may_start(db, group, entry->key.id))
	{
		group_park(db, group, index);
		group_advance(db, group, now, wake);
		return JOBQ_PARKED;
	}
	*place = take_in(db, group, entry->key.id, lane->queue_id);
	if (group->nparked > 0 || group->spilled)
		group_advance(db, group, now, wake);
	return JOBQ_ENTERED;
}

/*
 * Admit a job with a group that was found in the table, if the job may start.  *place gets
 * the index of the group.  An entry of the job remains in its lane, and is dropped in the
 * end.
 */
bool
group_admit(JobqDatabase *db, const JobqPush *job, uint16 limiter,
			TimestampTz now, uint32 *place)
{
	JobqGroup  *group = group_for(db, job->group, limiter, job->role, now);

	AssertExclusive(db->lock);
	if (group == NULL)
		return false;
	group_set_policy(db, group, limiter);
	group_lose_patience(db, group, now);
	if (!group_is_next(db, group, job->key.id, job->priority, job->key) ||
		!may_start(db, group, job->key.id))
	{
		group_forget_if_idle(db, group);
		return false;
	}
	if (group->called == job->key.id)
		group->called = 0;
	*place = take_in(db, group, job->key.id, job->queue_id);
	return true;
}

/*
 * An admitted job must wait for this job, which was found in the table.  Returns true if the
 * lane of this job skips jobs for lack of slots, and this job may be skipped.  The caller
 * then hands the job over again.  Otherwise the slot of the group would be held until there
 * is a slot for the skipped job.
 */
bool
jobq_group_call(JobqDatabase *db, uint32 place, const JobqPush *job)
{
	JobqGroup  *group = &db->groups->groups[place];
	JobqKey		called = {group->called_run_at, group->called};
	JobqLane   *lane;

	AssertExclusive(db->lock);

	/* a parked job will be called, unless its entry is outdated */
	for (uint32 i = group->head; i != JOBQ_NONE; i = db->ready->entries[i].next)
		if (group_compare(group_entry_priority(db, i), db->ready->entries[i].key,
						  job->priority, job->key) == 0)
			return false;
	if (group->called == 0 ||
		group_compare(job->priority, job->key, group->called_priority, called) < 0)
	{
		group->called = job->key.id;
		group->called_priority = job->priority;
		group->called_run_at = job->key.run_at;
	}
	lane = jobq_lane_find(db, job->queue_id, job->priority, job->role, job->flow,
						  false, false);
	return lane != NULL && lane->skipping &&
		jobq_key_cmp(job->key, lane->skipped) >= 0 &&
		jobq_lease_find(db, job->key.id) == NULL;
}

/*
 * An admitted job has lost its row to another transaction, which may not commit.  The other
 * jobs of the group wait for the outcome.  The wait can end before, for example by a job with
 * an earlier position.  The lane is therefore marked: its jobs in groups look for predecessors
 * in the table from now on.
 */
void
jobq_group_taken(JobqDatabase *db, uint32 place, const JobqPush *job)
{
	JobqGroup  *group = &db->groups->groups[place];
	JobqLane   *lane = jobq_lane_find(db, job->queue_id, job->priority, job->role,
									  job->flow, job->quarantine, false);

	AssertExclusive(db->lock);
	if (lane != NULL)
		lane->doubtful = true;
	else
	{
		db->ready->overflow = true;
		db->ready->complete = false;	/* as if the lane were evicted now */
	}
	if (group->owner != job->key.id && group_policy(db, group)->group_max_running == 1)
		(void) jobq_group_call(db, place, job);
}

/*
 * Park a popped job, because it comes after the job for which its group now waits.  Returns
 * false if the job cannot be parked.  The caller then hands the job over again.
 *
 * The job evicts no entry of another job.  A push into its lane could evict even the entry of
 * the job for which the group waits.  That job would find a slot as soon as this job is
 * popped, and the cycle would begin again.
 */
bool
jobq_group_wait(JobqDatabase *db, const JobqPush *job, TimestampTz now,
				JobqWakeList *wake)
{
	JobqGroup  *group = jobq_group_find(db, job->group);
	JobqLane   *lane = jobq_lane_find(db, job->queue_id, job->priority, job->role,
									  job->flow, job->quarantine, false);

	AssertExclusive(db->lock);
	if (group == NULL || lane == NULL || group->owner == job->key.id)
		return false;
	if (db->ready->nfree == 0)
		group_spill(group, job->priority, job->key);
	else
	{
		uint32		index = entry_alloc(db, lane);
		JobqEntry  *entry = &db->ready->entries[index];

		entry->key = job->key;
		entry->ctid = job->ctid;
		entry->group = job->group;
		group_park(db, group, index);
	}
	group_advance(db, group, now, wake);
	return true;
}

/*
 * Drop the parked entries of a job.  There are two if the job has moved to another lane.
 * again: the job may be parked at its new position already, and is read again.
 */
static void
unpark(JobqDatabase *db, JobqGroup *group, int64 job_id, bool again)
{
	uint32	   *link = &group->head;

	AssertExclusive(db->lock);
	while (*link != JOBQ_NONE)
	{
		JobqEntry  *entry = &db->ready->entries[*link];

		if (entry->key.id != job_id)
		{
			link = &entry->next;
			continue;
		}
		if (again)
			group_spill(group, group_entry_priority(db, *link), entry->key);
		entry_free(db, group_unlink(db, group, link));
	}
}

/*
 * A job that has begun has committed, and will run again.  If a process has the permit of the
 * group for this job, the job becomes the owner when the permit is returned.  A job of a call
 * shares the permit of the call, and becomes the owner now.  slot: the slot of this process, or
 * NULL.
 *
 * A job without a permit was charged late, because another session had its row.  The job may have
 * ended since its commit, so the scheduler reads the owners.  No job of the group starts before.
 */
void
jobq_group_held(JobqDatabase *db, const JobqGroupHold *hold, const JobqSlot *slot,
				TimestampTz now, JobqWakeList *wake)
{
	uint16		limiter = jobq_limiter_find(db, hold->queue_id, 0);
	JobqGroup  *group = group_for(db, hold->group, limiter, hold->role, now);

	AssertExclusive(db->lock);
	if (group == NULL)
	{
		db->groups->owners = wake->scheduler = true;
		return;
	}
	group_set_policy(db, group, limiter);
	if (group->called == hold->job)
		group->called = 0;		/* the job was locked, and is elsewhere now */
	if (group->current == hold->job)
		group->current_since = hold->since;
	if (group->owner == hold->job)
		group->owner_since = hold->since;
	if (group->running > 0 && group->slot == 0 && group->current == hold->job)
		return;
	if (group->owner != hold->job && group_has_owners(db, group))
	{
		if (group->owner == 0 && slot != NULL && group->slot == SLOT_NUMBER(slot))
			jobq_group_wait_for(group, hold->job, hold->queue_id, hold->since);
		else
			group->others = JOBQ_OTHERS_KNOWN;
	}
	group_advance(db, group, now, wake);
}

/*
 * The job's transaction is over.  If the job will run again ("live"), its group waits for the
 * job, unless the queue has another policy, or the wait has timed out.  unused: the job did
 * not run.  Another process may then have charged an earlier attempt of the job meanwhile
 * (jobq_group_held()).
 */
void
group_leave(JobqDatabase *db, uint32 place, int64 id, bool live,
			bool unused, TimestampTz now, JobqWakeList *wake)
{
	JobqGroup  *group = &db->groups->groups[place];

	AssertExclusive(db->lock);
	Assert(group->id != 0 && group->running > 0);
	group->running--;

	/*
	 * An owner remains the owner until it has run: the popped entry may be
	 * outdated, without a row.  An owner that regained its turn while this
	 * job ran remains, too.  And another session may have removed the job,
	 * which was to run again, before this call.
	 */
	if ((live || (unused && group->current_since != 0)) && group->current == id &&
		group_has_owners(db, group))
	{
		if (group->owner == 0 || group->owner == id)
			jobq_group_wait_for(group, id, group->current_queue,
								group->current_since == 0 ? now : group->current_since);
		else
			group->others = JOBQ_OTHERS_KNOWN;
	}
	else if (!live && !unused && group->owner == id)
		group->owner = 0;
	group_advance(db, group, now, wake);
}

/*
 * The group no longer waits for this job, because the job is finished or does not exist.
 */
void
jobq_group_end(JobqDatabase *db, int64 id, int64 job_id, TimestampTz now,
			   JobqWakeList *wake)
{
	JobqGroup  *group = jobq_group_find(db, id);

	AssertExclusive(db->lock);
	if (group == NULL)
		return;
	unpark(db, group, job_id, false);
	if (group->owner == job_id)
		group->owner = 0;
	if (group->called == job_id)
		group->called = 0;
	if (group->current == job_id)
		group->current = group->current_since = 0;
	group_advance(db, group, now, wake);
}

/*
 * A waiting job has another position in its group, or another time.  The group no longer
 * waits for the job at its old position.  The job may not be due any more, or other jobs may
 * come before it now.  An owner is not affected, because the group waits for its owner at any
 * time.
 *
 * If a job is moved twice, the calls may come in the wrong order.
 */
void
jobq_group_moved(JobqDatabase *db, int64 id, int64 job_id, TimestampTz now,
				 JobqWakeList *wake)
{
	JobqGroup  *group = jobq_group_find(db, id);

	AssertExclusive(db->lock);
	if (group == NULL || group->owner == job_id)
		return;
	unpark(db, group, job_id, true);
	if (group->called == job_id)
		group->called = 0;
	group_advance(db, group, now, wake);
}

/*
 * Advance groups whose time has come.
 */
void
jobq_groups_wake(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	uint32		most = db->groups->timers.n;
	bool		look = db->groups->look;
	JobqGroup  *group;

	AssertExclusive(db->lock);
	db->groups->due = DT_NOEND;
	db->groups->look = false;
	for (int i = 0; i < jobq_max_groups && look && db->groups->ngroups > 0; i++)
		if (db->groups->groups[i].id != 0)
			group_advance(db, &db->groups->groups[i], now, wake);
	while (most-- > 0 && (group = group_due(db, now)) != NULL)
		group_advance(db, group, now, wake);
	groups_expect(db);
	if (db->groups->full && (look || now >= db->groups->room_due))
		groups_make_room(db, now, wake);
	else if (db->groups->full)
		db->groups->due = Min(db->groups->due, db->groups->room_due);
}

/*
 * The scheduler has read the group's due jobs above its cursor.
 */
void
jobq_group_refilled(JobqDatabase *db, JobqGroup *group, const JobqRefill *refill,
					TimestampTz now, JobqWakeList *wake)
{
	const JobqPush *last = refill->last;
	bool		dropped = group->dropped;
	int32		priority = group->cursor_priority;
	JobqKey		cursor = {group->cursor_run_at, group->cursor_id};
	int			before = group->nparked;
	bool		all = last == NULL;
	bool		stuck = false;
	JobqKey		read;

	AssertExclusive(db->lock);
	group->spilled = false;
	for (int i = 0; i < refill->nrows && !group->spilled; i++)
	{
		const JobqPush *row = &refill->rows[i];
		JobqLane   *lane = jobq_lane_find(db, row->queue_id, row->priority,
										  row->role, row->flow, row->quarantine,
										  true);
		uint32		index;
		JobqEntry  *entry;

		if (db->leases->nleases > 0 && jobq_lease_find(db, row->key.id) != NULL)
			continue;
		if (lane == NULL ||
			(db->ready->nfree == 0 && (group->nparked > 0 || !entry_evict(db, NULL, false))))
		{
			stuck = true;
			break;
		}
		lane_set_flow(db, lane, row);
		jobq_lane_ask_rank(db, lane);
		index = entry_alloc(db, lane);
		entry = &db->ready->entries[index];
		entry->key = row->key;
		entry->ctid = row->ctid;
		entry->group = row->group;
		group_park(db, group, index);

		/* the dropped entry may come after rows not reached any more */
		{
			JobqKey		spilled = {group->cursor_run_at, group->cursor_id};

			if (!group->spilled ||
				group_compare(group->cursor_priority, spilled,
							  row->priority, row->key) > 0)
			{
				group->cursor_priority = row->priority;
				group->cursor_run_at = row->key.run_at;
				group->cursor_id = row->key.id;
			}
		}
	}
	if (!group->spilled && !stuck && last != NULL)
	{
		group->cursor_priority = last->priority;
		group->cursor_run_at = last->key.run_at;
		group->cursor_id = last->key.id;
	}
	if (dropped)
	{
		/* the dropped job may come before the rows that were read */
		group->cursor_priority = priority;
		group->cursor_run_at = cursor.run_at;
		group->cursor_id = cursor.id;
	}
	group->spilled |= !all || dropped || stuck;
	read.run_at = group->cursor_run_at;
	read.id = group->cursor_id;
	if (group->spilled && !dropped && group->nparked <= before &&
		group_compare(group->cursor_priority, read, priority, cursor) <= 0)
	{
		/* there was no room: do not read again at once */
		group->refill = true;	/* keeps group_advance() from requesting a
								 * read */
		group_advance(db, group, now, wake);
		group->refill = false;
		if (timer_due(&db->groups->timers, group - db->groups->groups) > now + ROOM_PAUSE)
			group_set_timer(db, group, now + ROOM_PAUSE);
		return;
	}
	group->refill = false;
	group_advance(db, group, now, wake);
}
