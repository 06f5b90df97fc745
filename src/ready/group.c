/*-------------------------------------------------------------------------
 *
 * group.c
 *	  Groups: jobs with the same group_key run one at a time, in order.
 *
 * A group has a place in shared memory only while one of its jobs runs, waits
 * for its next attempt, or others wait for it.  A job that is popped while its
 * group is busy is parked there; when the group is free, its first parked job
 * goes back to its lane, from where it is popped again.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/group.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/jobq.h"

#include "common/hashfn.h"
#include "utils/timestamp.h"

#include "ready/lanes.h"

/* Read more when so few are left. */
#define FEW_PARKED	16

static uint32 bucket_of(int64 id);
static JobqLimiter *policy_of(JobqDatabase *db, const JobqGroup *group);
static void set_policy(JobqDatabase *db, JobqGroup *group, uint16 limiter);
static bool group_pace_free(JobqDatabase *db, JobqGroup *group,
							TimestampTz now, TimestampTz *due);
static bool may_start(JobqDatabase *db, JobqGroup *group, int64 id,
					  TimestampTz now, TimestampTz *due);
static void forget_if_idle(JobqDatabase *db, JobqGroup *group,
						   TimestampTz now);

/*
 * Forget all groups.
 */
void
jobq_groups_clear(JobqDatabase *db)
{
	for (uint32 i = 0; i < (uint32) jobq_max_groups; i++)
	{
		memset(&db->groups[i], 0, sizeof(JobqGroup));
		db->groups[i].next = i + 1;
		db->group_bucket[i] = JOBQ_NONE;
	}
	db->groups[jobq_max_groups - 1].next = JOBQ_NONE;
	db->group_free = 0;
	db->ngroups = 0;
	db->group_refill = false;
	db->groups_full = false;
	db->groups_swept_at = 0;
	db->groups_due = DT_NOEND;
}

/*
 * The lanes and entries were forgotten: so is what was parked, which is read
 * again.
 */
void
jobq_groups_unpark(JobqDatabase *db)
{
	TimestampTz now = jobq_now();

	for (int i = 0; i < jobq_max_groups; i++)
	{
		JobqGroup  *group = &db->groups[i];

		if (group->id == 0)
			continue;
		group->head = JOBQ_NONE;
		group->nparked = 0;
		group->called = 0;
		group->spilled = group->refill = false;
		forget_if_idle(db, group, now);
	}
	db->groups_full = false;
	db->group_refill = false;
	db->groups_due = DT_NOEND;
}

static uint32
bucket_of(int64 id)
{
	return murmurhash32((uint32) id ^ (uint32) (id >> 32)) % jobq_max_groups;
}

static JobqLimiter *
policy_of(JobqDatabase *db, const JobqGroup *group)
{
	static JobqLimiter standard =
	{
		.group_max_running = 1,.group_wait = true
	};

	return group->limiter == JOBQ_NO_LIMITER ? &standard
		: &db->limiters[group->limiter];
}

/*
 * The policy of its queue, which may be another than before: then the group may
 * have no more to wait for its owner.
 */
static void
set_policy(JobqDatabase *db, JobqGroup *group, uint16 limiter)
{
	JobqLimiter *policy;

	group->limiter = limiter;
	policy = policy_of(db, group);
	if (!policy->group_wait || policy->group_max_running != 1)
		group->owner = 0;
}

/*
 * The group, or NULL if nothing is known of it.
 */
JobqGroup *
jobq_group_find(JobqDatabase *db, int64 id)
{
	for (uint32 i = db->group_bucket[bucket_of(id)]; i != JOBQ_NONE;
		 i = db->groups[i].next)
		if (db->groups[i].id == id)
			return &db->groups[i];
	return NULL;
}

/*
 * The group, made if there is none; or NULL if there is no room.
 */
JobqGroup *
jobq_group_make(JobqDatabase *db, int64 id, uint16 limiter, TimestampTz now)
{
	JobqGroup  *group = jobq_group_find(db, id);
	uint32		index;
	uint32		bucket = bucket_of(id);
	JobqLimiter *policy;

	if (group != NULL)
		return group;
	if (db->group_free == JOBQ_NONE &&
		(now >= db->groups_swept_at + ROOM_PAUSE || now < db->groups_swept_at))
	{
		db->groups_swept_at = now;
		jobq_groups_forget(db, now);
	}
	index = db->group_free;
	if (index == JOBQ_NONE)
		return NULL;
	group = &db->groups[index];
	db->group_free = group->next;
	memset(group, 0, sizeof(JobqGroup));
	group->id = id;
	group->limiter = limiter;
	group->head = JOBQ_NONE;
	policy = policy_of(db, group);
	group->pace.tokens = policy->rate.burst;
	group->pace.tokens_at = now;
	group->next = db->group_bucket[bucket];
	db->group_bucket[bucket] = index;
	db->ngroups++;
	return group;
}

/*
 * May a job of the group start by the group's own rate and throttle?
 */
static bool
group_pace_free(JobqDatabase *db, JobqGroup *group, TimestampTz now,
				TimestampTz *due)
{
	JobqLimiter *policy = policy_of(db, group);
	JobqRate	none = {0};

	if (!policy->throttle.by_group)
		group->pace.failures = group->pace.rest_until = 0;
	return jobq_pace_free(policy->rate.by_group ? &policy->rate : &none,
						  &group->pace, now, due);
}

/*
 * Give up the place of a group of which nothing needs to be known.
 */
static void
forget_if_idle(JobqDatabase *db, JobqGroup *group, TimestampTz now)
{
	uint32		index = group - db->groups;
	uint32	   *link;
	JobqLimiter *policy;
	TimestampTz due = DT_NOEND;

	if (group->id == 0 || group->running > 0 || group->owner != 0 ||
		group->called != 0 || group->nparked > 0 || group->spilled)
		return;
	policy = policy_of(db, group);
	(void) group_pace_free(db, group, now, &due);
	if (group->pace.rest_until > now ||
		(group->pace.failures > 0 &&
		 now < group->pace.window_start + policy->throttle.window) ||
		(policy->rate.by_group && policy->rate.per_us > 0 &&
		 group->pace.tokens < policy->rate.burst))
		return;
	link = &db->group_bucket[bucket_of(group->id)];
	while (*link != index)
		link = &db->groups[*link].next;
	*link = group->next;
	group->id = 0;
	group->next = db->group_free;
	db->group_free = index;
	db->ngroups--;
}

/*
 * The same for all groups: some become idle with time.
 */
void
jobq_groups_forget(JobqDatabase *db, TimestampTz now)
{
	for (int i = 0; i < jobq_max_groups && db->ngroups > 0; i++)
		forget_if_idle(db, &db->groups[i], now);
}

/*
 * May this job of the group start now, as far as the others do not come first?
 */
static bool
may_start(JobqDatabase *db, JobqGroup *group, int64 id, TimestampTz now,
		  TimestampTz *due)
{
	JobqLimiter *policy = policy_of(db, group);

	if (group->owner != 0 && group->owner != id)
		return false;
	if (policy->group_max_running > 0 &&
		group->running >= policy->group_max_running)
		return false;
	return group_pace_free(db, group, now, due);
}

/*
 * If the group is free, call its first parked job; or its owner, for which it
 * waits.
 */
void
group_advance(JobqDatabase *db, JobqGroup *group, TimestampTz now,
			  JobqWakeList *wake)
{
	TimestampTz due = DT_NOEND;
	uint32	   *link;
	bool		unread = false; /* there may be others before the first */

	/* its queue may have got another policy */
	if (group->head != JOBQ_NONE)
		set_policy(db, group,
				   db->lanes[db->entries[group->head].lane].queue_limiter);
	do
	{
		link = &group->head;
		if (group->owner != 0)
			while (*link != JOBQ_NONE &&
				   db->entries[*link].key.id != group->owner)
				link = &db->entries[*link].next;
	} while (*link != JOBQ_NONE &&
			 group_is_next(db, group, db->entries[*link].key.id,
						   group_entry_priority(db, *link),
						   db->entries[*link].key) &&
			 group->called != db->entries[*link].key.id &&
			 may_start(db, group, db->entries[*link].key.id, now, &due) &&
			 !group_call(db, group, link, now, wake));
	if (due < db->groups_due)
	{
		db->groups_due = due;
		if (due < db->wake_at)
			wake->scheduler = true;
	}
	if (group->spilled && group->head != JOBQ_NONE)
	{
		JobqKey		cursor = {group->cursor_run_at, group->cursor_id};

		unread = group_compare(group_entry_priority(db, group->head),
							   db->entries[group->head].key,
							   group->cursor_priority, cursor) > 0;
	}
	if (group->spilled && !group->refill &&
		(group->nparked <= FEW_PARKED || unread))
	{
		group->refill = true;
		db->group_refill = true;
		wake->scheduler = true;
	}
	forget_if_idle(db, group, now);
}

static uint32
take_in(JobqDatabase *db, JobqGroup *group, int64 id)
{
	JobqLimiter *policy = policy_of(db, group);

	if (policy->rate.by_group && policy->rate.per_us > 0)
		group->pace.tokens -= 1;
	group->current = id;
	group->running++;
	return group - db->groups;
}

/*
 * A job with a group was popped, and its entry unlinked from its lane.  Take
 * it in, or park it.
 */
JobqEntrance
jobq_group_enter(JobqDatabase *db, JobqLane *lane, uint32 index,
				 TimestampTz now, uint32 *place, JobqWakeList *wake)
{
	JobqEntry  *entry = &db->entries[index];
	JobqGroup  *group = jobq_group_make(db, entry->group, lane->queue_limiter,
										now);
	TimestampTz due = DT_NOEND;

	if (group == NULL)
	{
		group_skip(db, lane, index, now, wake);
		return JOBQ_PARKED;
	}
	set_policy(db, group, lane->queue_limiter);
	if (group->called == entry->key.id)
		group->called = 0;
	if (!group_is_next(db, group, entry->key.id, lane->priority, entry->key) ||
		!may_start(db, group, entry->key.id, now, &due))
	{
		group_park(db, group, index);
		group_advance(db, group, now, wake);
		return JOBQ_PARKED;
	}
	*place = take_in(db, group, entry->key.id);
	if (group->nparked > 0 || group->spilled)
		group_advance(db, group, now, wake);
	return JOBQ_ENTERED;
}

/*
 * A job with a group was found in the table: take it in if it may start.  Its
 * entry, if there is one, stays where it is, and is dropped in the end.
 */
bool
jobq_group_admit(JobqDatabase *db, const JobqPush *job, uint16 limiter,
				 TimestampTz now, uint32 *place)
{
	JobqGroup  *group = jobq_group_make(db, job->group, limiter, now);
	TimestampTz due = DT_NOEND;

	if (group == NULL)
		return false;
	set_policy(db, group, limiter);
	if (!group_is_next(db, group, job->key.id, job->priority, job->key) ||
		!may_start(db, group, job->key.id, now, &due))
	{
		forget_if_idle(db, group, now);
		return false;
	}
	if (group->called == job->key.id)
		group->called = 0;
	*place = take_in(db, group, job->key.id);
	return true;
}

/*
 * A job that was taken in has to wait for this one, which is in another lane.
 */
void
jobq_group_call(JobqDatabase *db, uint32 place, int64 id, int32 priority,
				TimestampTz run_at)
{
	JobqGroup  *group = &db->groups[place];
	JobqKey		called = {group->called_run_at, group->called};
	JobqKey		key = {run_at, id};

	/* one that is parked will be called */
	for (uint32 i = group->head; i != JOBQ_NONE; i = db->entries[i].next)
		if (db->entries[i].key.id == id)
			return;
	if (group->called == 0 ||
		group_compare(priority, key, group->called_priority, called) < 0)
	{
		group->called = id;
		group->called_priority = priority;
		group->called_run_at = run_at;
	}
}

/*
 * The job's transaction is over.  If the job will run again ("live"), its
 * group waits for it, unless the queue says otherwise.
 */
void
jobq_group_leave(JobqDatabase *db, uint32 place, int64 id, bool live,
				 bool unused, TimestampTz now, JobqWakeList *wake)
{
	JobqGroup  *group = &db->groups[place];
	JobqLimiter *policy = policy_of(db, group);

	Assert(group->id != 0 && group->running > 0);
	group->running--;
	if (unused && policy->rate.by_group && policy->rate.per_us > 0)
		group->pace.tokens += 1;

	/*
	 * An owner remains one until it has run: what was popped under its id may
	 * be an outdated entry, which finds no row.
	 */
	if (live && policy->group_wait && policy->group_max_running == 1)
		group->owner = id;
	else if (!unused && group->owner == id)
		group->owner = 0;
	group_advance(db, group, now, wake);
}

/*
 * A job is no more to be waited for: it is finished, or not there.
 */
void
jobq_group_end(JobqDatabase *db, int64 id, int64 job_id, TimestampTz now,
			   JobqWakeList *wake)
{
	JobqGroup  *group = jobq_group_find(db, id);

	if (group == NULL)
		return;
	for (uint32 *link = &group->head; *link != JOBQ_NONE;
		 link = &db->entries[*link].next)
	{
		uint32		index = *link;

		if (db->entries[index].key.id != job_id)
			continue;
		*link = db->entries[index].next;
		group->nparked--;
		db->lanes[db->entries[index].lane].parked--;
		entry_free(db, index);
		break;
	}
	if (group->owner == job_id)
		group->owner = 0;
	if (group->called == job_id)
		group->called = 0;
	group_advance(db, group, now, wake);
}

/*
 * Let go on what has waited for its time.
 */
void
jobq_groups_wake(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	db->groups_due = DT_NOEND;
	for (int i = 0; i < jobq_max_groups && db->ngroups > 0; i++)
		if (db->groups[i].id != 0)
			group_advance(db, &db->groups[i], now, wake);
	if (db->groups_full)
		jobq_groups_make_room(db, now, wake);
}
