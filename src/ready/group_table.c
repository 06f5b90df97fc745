/*-------------------------------------------------------------------------
 *
 *	  The table of groups with a state to remember.
 *
 * A group has a slot in shared memory only while a job of the group runs or waits, or while
 * rate or throttle of the group are not at rest.
 *
 * src/ready/group_table.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"
#include "utils/timestamp.h"

#include "ready/inner.h"

JOBQ_CHAIN(group, JobqGroup, next);

/*
 * Forget all groups.
 */
void
groups_clear(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	for (uint32 i = 0; i < (uint32) jobq_max_groups; i++)
	{
		memset(&db->groups->groups[i], 0, sizeof(JobqGroup));
		db->groups->groups[i].timer = JOBQ_NONE;
		db->groups->bucket[i] = JOBQ_NONE;
	}
	db->groups->free = group_chain_all(db->groups->groups, jobq_max_groups);
	db->groups->ngroups = 0;
	jobq_shares_set(db->shares, JOBQ_OF_GROUPS, jobq_max_groups);
	db->groups->refill = false;
	db->groups->full = false;
	db->groups->owners = db->groups->unnoted = db->groups->owners_first = false;
	db->groups->look = false;
	db->groups->swept_at = 0;
	db->groups->timers.n = 0;
	db->groups->due = DT_NOEND;
}

/*
 * Set the time at which the scheduler examines the group, replacing an earlier time.
 * DT_NOEND: no time.
 */
void
group_set_timer(JobqDatabase *db, JobqGroup *group, TimestampTz due)
{
	AssertExclusive(db->lock);
	timer_set(&db->groups->timers, group - db->groups->groups, due);
	db->groups->due = Min(db->groups->due, due);
}

/*
 * Return a group whose time has come, or NULL.  The caller examines the group.
 */
JobqGroup *
group_due(JobqDatabase *db, TimestampTz now)
{
	uint32		index = timer_take_due(&db->groups->timers, now);

	AssertExclusive(db->lock);
	return index == JOBQ_NONE ? NULL : &db->groups->groups[index];
}

/*
 * Make the scheduler come when the first timer of a group is due.
 */
void
groups_expect(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	db->groups->due = Min(db->groups->due, timers_next(&db->groups->timers));
}

/*
 * There was no slot for a group: search for room after a pause.
 */
void
groups_want_room(JobqDatabase *db, TimestampTz now)
{
	AssertExclusive(db->lock);
	db->groups->full = true;
	db->groups->room_due = now + ROOM_PAUSE;
	db->groups->due = Min(db->groups->due, db->groups->room_due);
}

/*
 * Make the scheduler examine all groups, because limits have changed or the clock was put
 * back.
 */
void
jobq_groups_look(JobqDatabase *db, TimestampTz now)
{
	AssertExclusive(db->lock);
	db->groups->look = true;
	db->groups->due = Min(db->groups->due, now);
}

static uint32
bucket_of(int64 id)
{
	return murmurhash32((uint32) id ^ (uint32) (id >> 32)) % jobq_max_groups;
}

/*
 * Return the policy of the group: the policy of its queue, or the standard policy.
 */
JobqLimiter *
group_policy(JobqDatabase *db, const JobqGroup *group)
{
	static JobqLimiter standard =
	{
		.group_max_running = 1,.group_wait = true
	};

	AssertExclusive(db->lock);
	return group->limiter == JOBQ_NO_LIMITER ? &standard
		: &db->limits->limiters[group->limiter];
}

/*
 * Does the group wait for jobs that will run again?
 */
bool
group_has_owners(JobqDatabase *db, const JobqGroup *group)
{
	const JobqLimiter *policy = group_policy(db, group);

	return policy->group_wait && policy->group_max_running == 1;
}

/*
 * Set the policy of the group's queue, which may have changed.  The group may no longer have
 * to wait for its owner.
 */
void
group_set_policy(JobqDatabase *db, JobqGroup *group, uint16 limiter)
{
	AssertExclusive(db->lock);
	group->limiter = jobq_group_shared(group->id) ? JOBQ_NO_LIMITER : limiter;
	if (!group_has_owners(db, group))
	{
		group->owner = 0;
		group->others = JOBQ_OTHERS_NONE;
	}
}

/*
 * Return until when the group waits for its owner; DT_NOEND if there is no timeout.  The
 * timeout comes from the owner's queue.  This is the only policy of a queue that applies to a
 * group of the database.
 */
TimestampTz
jobq_group_waits_until(JobqDatabase *db, const JobqGroup *group)
{
	uint16		limiter = group->limiter;

	AssertExclusive(db->lock);
	if (jobq_group_shared(group->id))
		limiter = jobq_limiter_find(db, group->owner_queue, 0);
	if (limiter == JOBQ_NO_LIMITER ||
		db->limits->limiters[limiter].group_patience == 0)
		return DT_NOEND;
	return group->owner_since + db->limits->limiters[limiter].group_patience;
}

/*
 * Remove an owner for which the group has waited too long.  The owner loses its turn, and is
 * ordered by time, as any other job.
 */
void
group_lose_patience(JobqDatabase *db, JobqGroup *group, TimestampTz now)
{
	AssertExclusive(db->lock);
	if (group->owner != 0 && now >= jobq_group_waits_until(db, group))
		group->owner = 0;
}

/*
 * The permit of the group is held for this job.
 */
void
group_is_run_by(JobqGroup *group, int64 id)
{
	group->current = id;
	group->current_since = group->owner == id ? group->owner_since : 0;
}

/*
 * Record that a job of the group runs.
 */
void
jobq_group_take(JobqGroup *group, int64 id, int32 queue_id)
{
	group_is_run_by(group, id);
	group->current_queue = queue_id;
	group->running++;
}

/*
 * Make the group wait for this job.  since: the start of the wait.
 */
void
jobq_group_wait_for(JobqGroup *group, int64 id, int32 queue_id,
					TimestampTz since)
{
	group->owner = id;
	group->owner_since = since;
	group->owner_queue = queue_id;
}

/*
 * Prepare the groups before the scheduler reads from the table for which jobs the groups
 * wait.
 */
void
jobq_groups_read_begin(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	db->groups->owners = db->groups->owners_first = false;
	for (int i = 0; i < jobq_max_groups && db->groups->ngroups > 0; i++)
		if (db->groups->groups[i].others == JOBQ_OTHERS_KNOWN)
			db->groups->groups[i].others = JOBQ_OTHERS_READ;
}

/*
 * The scheduler has read that the group waits for this job.  A job that has the permit of the group
 * needs no wait now, and becomes the owner when the permit is returned.  A job of a call shares the
 * permit, and becomes the owner now.  Returns true if the job has become the owner.  The caller then
 * hands the job over again, because the job may have been dropped before it was the owner.
 */
bool
jobq_group_read(JobqGroup *group, int64 job_id, int32 queue_id, TimestampTz since)
{
	if (group->owner == job_id)
		return false;
	if (group->running > 0 && group->slot == 0 && group->current == job_id)
	{
		if (group->current_since == 0)
			group->current_since = since;
		return false;
	}
	if (group->owner != 0)
	{
		group->others = JOBQ_OTHERS_KNOWN;
		return false;
	}
	jobq_group_wait_for(group, job_id, queue_id, since);
	if (group->running == 0)
		group->current = job_id;
	return true;
}

/*
 * The scheduler has read all owners.  Jobs may already wait for them, so all groups are
 * examined.
 */
void
jobq_groups_read_end(JobqDatabase *db, TimestampTz now)
{
	AssertExclusive(db->lock);
	for (int i = 0; i < jobq_max_groups && db->groups->ngroups > 0; i++)
		if (db->groups->groups[i].others == JOBQ_OTHERS_READ)
			db->groups->groups[i].others = JOBQ_OTHERS_NONE;
	jobq_groups_look(db, now);
}

/*
 * Return the group, or NULL if the group has no slot.
 */
JobqGroup *
jobq_group_find(JobqDatabase *db, int64 id)
{
	AssertExclusive(db->lock);
	for (uint32 i = db->groups->bucket[bucket_of(id)]; i != JOBQ_NONE;
		 i = db->groups->groups[i].next)
		if (db->groups->groups[i].id == id)
			return &db->groups->groups[i];
	return NULL;
}

/*
 * Free the slot of the group if there is no state to remember.
 */
void
group_forget_if_idle(JobqDatabase *db, JobqGroup *group)
{
	uint32		index = group - db->groups->groups;

	AssertExclusive(db->lock);
	Assert(group->id == 0 || (group->nparked == 0) == (group->head == JOBQ_NONE));
	if (group->id == 0 || group->running > 0 || group->owner != 0 ||
		group->others != JOBQ_OTHERS_NONE || group->called != 0 ||
		group->nparked > 0 || group->spilled)
		return;
	group_chain_remove(&db->groups->bucket[bucket_of(group->id)], db->groups->groups, index);
	group_set_timer(db, group, DT_NOEND);
	group->id = 0;
	group_chain_push(&db->groups->free, db->groups->groups, index);
	db->groups->ngroups--;
	jobq_share_give(db->shares, group->account, JOBQ_OF_GROUPS);
}

/*
 * Free the slots of all groups without a state to remember.  Groups become idle with time.
 */
void
jobq_groups_forget(JobqDatabase *db, TimestampTz now)
{
	AssertExclusive(db->lock);
	for (int i = 0; i < jobq_max_groups && db->groups->ngroups > 0; i++)
	{
		if (db->groups->groups[i].id != 0)
			group_lose_patience(db, &db->groups->groups[i], now);
		group_forget_if_idle(db, &db->groups->groups[i]);
	}
}

/*
 * Return the group, created for this role if necessary.  NULL if there is no free slot.  The
 * caller has checked the role's share.
 */
JobqGroup *
jobq_group_make(JobqDatabase *db, int64 id, uint16 limiter, Oid role,
				TimestampTz now)
{
	JobqGroup  *group = jobq_group_find(db, id);
	uint32		index;

	AssertExclusive(db->lock);
	if (group != NULL)
		return group;
	if (db->groups->free == JOBQ_NONE &&
		(now >= db->groups->swept_at + ROOM_PAUSE || now < db->groups->swept_at))
	{
		db->groups->swept_at = now;
		jobq_groups_forget(db, now);
	}
	index = group_chain_pop(&db->groups->free, db->groups->groups);
	if (index == JOBQ_NONE)
		return NULL;
	group = &db->groups->groups[index];
	memset(group, 0, sizeof(JobqGroup));
	group->id = id;
	group->limiter = jobq_group_shared(id) ? JOBQ_NO_LIMITER : limiter;
	group->account = jobq_share_take(db->shares, role, JOBQ_OF_GROUPS);
	group->head = group->timer = JOBQ_NONE;
	group_chain_push(&db->groups->bucket[bucket_of(id)], db->groups->groups, index);
	db->groups->ngroups++;
	return group;
}
