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
 * src/group.c
 *
 *-------------------------------------------------------------------------
 */
#include "jobq.h"

#include "common/hashfn.h"
#include "utils/timestamp.h"

#include "lanes.h"

/* Read more when so few are left. */
#define FEW_PARKED	16

static uint32 bucket_of(int64 id);
static JobqLimiter * policy_of(JobqDatabase *db, const JobqGroup * group);
static bool group_free(JobqDatabase *db, JobqGroup * group, TimestampTz now,
					   TimestampTz *due);
static void forget_if_idle(JobqDatabase *db, JobqGroup * group,
						   TimestampTz now);
static void park(JobqDatabase *db, JobqGroup * group, uint32 index);
static void advance(JobqDatabase *db, JobqGroup * group, TimestampTz now,
					JobqWakeList *wake);

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
		group->spilled = group->refill = false;
		forget_if_idle(db, group, now);
	}
	db->group_refill = false;
	db->groups_due = DT_NOEND;
}

static uint32
bucket_of(int64 id)
{
	return murmurhash32((uint32) id ^ (uint32) (id >> 32)) % jobq_max_groups;
}

static JobqLimiter *
policy_of(JobqDatabase *db, const JobqGroup * group)
{
	static JobqLimiter standard =
	{
		.group_max_running = 1,.group_wait = true
	};

	return group->limiter == JOBQ_NO_LIMITER ? &standard
		: &db->limiters[group->limiter];
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
	if (db->group_free == JOBQ_NONE)
		for (int i = 0; i < jobq_max_groups; i++)
			forget_if_idle(db, &db->groups[i], now);
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
 * Give up the place of a group of which nothing needs to be known.
 */
static void
forget_if_idle(JobqDatabase *db, JobqGroup * group, TimestampTz now)
{
	uint32		index = group - db->groups;
	uint32	   *link;
	JobqLimiter *policy;
	TimestampTz due = DT_NOEND;

	if (group->id == 0 || group->running > 0 || group->owner != 0 ||
		group->nparked > 0 || group->spilled)
		return;
	policy = policy_of(db, group);
	if (group->pace.rest_until > now ||
		(group->pace.failures > 0 && policy->throttle.by_group &&
		 now < group->pace.window_start + policy->throttle.window))
		return;
	if (policy->rate.by_group && policy->rate.per_us > 0)
	{
		(void) jobq_pace_free(&policy->rate, &group->pace, now, &due);
		if (group->pace.tokens < policy->rate.burst)
			return;
	}
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
 * May a job of the group start that is not its owner?
 */
static bool
group_free(JobqDatabase *db, JobqGroup * group, TimestampTz now,
		   TimestampTz *due)
{
	JobqLimiter *policy = policy_of(db, group);
	JobqRate	none = {0};

	if (group->owner != 0)
		return false;
	if (policy->group_max_running > 0 &&
		group->running >= policy->group_max_running)
		return false;
	return jobq_pace_free(policy->rate.by_group ? &policy->rate : &none,
						  &group->pace, now, due);
}

static int
compare_places(int32 priority_a, JobqKey a, int32 priority_b, JobqKey b)
{
	if (priority_a != priority_b)
		return priority_a < priority_b ? -1 : 1;
	return jobq_key_cmp(a, b);
}

static int32
entry_priority(JobqDatabase *db, uint32 index)
{
	return db->lanes[db->entries[index].lane].priority;
}

/*
 * Park an entry that was unlinked from its lane, or drop it if there are too
 * many, or if it is parked already.
 */
static void
park(JobqDatabase *db, JobqGroup * group, uint32 index)
{
	JobqEntry  *entry = &db->entries[index];
	int32		priority = entry_priority(db, index);
	uint32	   *link = &group->head;

	/* the job that runs may be back before it has left: it is needed */
	if (entry->key.id != group->current &&
		(group->spilled || group->nparked >= JOBQ_MAX_PARKED ||
		 db->nfree < (uint32) jobq_ready_entries / 4))
	{
		JobqKey		cursor = {group->cursor_run_at, group->cursor_id};

		if (!group->spilled ||
			compare_places(priority, entry->key, group->cursor_priority,
						   cursor) <= 0)
		{
			group->cursor_priority = priority;
			group->cursor_run_at = entry->key.run_at;
			group->cursor_id = entry->key.id - 1;
		}
		group->spilled = true;
		group->dropped = true;
		entry_free(db, index);
		return;
	}

	while (*link != JOBQ_NONE)
	{
		int			cmp = compare_places(entry_priority(db, *link),
										 db->entries[*link].key, priority,
										 entry->key);

		if (cmp == 0)
		{
			db->entries[*link].ctid = entry->ctid;
			entry_free(db, index);
			return;
		}
		if (cmp > 0)
			break;
		link = &db->entries[*link].next;
	}
	entry->next = *link;
	*link = index;
	group->nparked++;
	db->lanes[entry->lane].parked++;
}

/*
 * If the group is free, let its first parked job go back to its lane; or its
 * owner, for which it waits.
 */
static void
advance(JobqDatabase *db, JobqGroup * group, TimestampTz now,
		JobqWakeList *wake)
{
	TimestampTz due = DT_NOEND;
	uint32	   *link = &group->head;

	if (group->owner != 0)
		while (*link != JOBQ_NONE && db->entries[*link].key.id != group->owner)
			link = &db->entries[*link].next;
	if (*link != JOBQ_NONE &&
		(group->owner != 0 || group_free(db, group, now, &due)))
	{
		uint32		index = *link;
		JobqEntry  *entry = &db->entries[index];
		JobqLane   *lane = &db->lanes[entry->lane];
		JobqPush	push = {0};

		*link = entry->next;
		group->nparked--;
		lane->parked--;
		push.key = entry->key;
		push.ctid = entry->ctid;
		push.group = entry->group;
		entry_free(db, index);
		switch (entry_insert(db, lane, &push))
		{
			case INSERTED:
				jobq_ready_wake(db, lane, now, wake);
				break;
			case DUPLICATE:
				break;
			case TOO_FAR:
			case NO_ENTRY:
				jobq_ready_look(db, lane, push.key, wake);
				break;
		}
	}
	if (due < db->groups_due)
	{
		db->groups_due = due;
		if (due < db->wake_at)
			wake->scheduler = true;
	}
	if (group->spilled && !group->refill && group->nparked <= FEW_PARKED)
	{
		group->refill = true;
		db->group_refill = true;
		wake->scheduler = true;
	}
	forget_if_idle(db, group, now);
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
	JobqLimiter *policy;

	if (group == NULL)
		return JOBQ_NO_GROUP;
	group->limiter = lane->queue_limiter;
	if (group->owner != entry->key.id &&
		(!group_free(db, group, now, &due) ||
		 (group->nparked > 0 &&
		  compare_places(entry_priority(db, group->head),
						 db->entries[group->head].key, lane->priority,
						 entry->key) < 0)))
	{
		park(db, group, index);
		advance(db, group, now, wake);
		return JOBQ_PARKED;
	}
	policy = policy_of(db, group);
	if (policy->rate.by_group && policy->rate.per_us > 0)
		group->pace.tokens -= 1;
	group->owner = 0;
	group->current = entry->key.id;
	group->running++;
	*place = group - db->groups;
	return JOBQ_ENTERED;
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
	if (live && policy->group_wait && policy->group_max_running == 1)
		group->owner = id;
	advance(db, group, now, wake);
}

/*
 * A job is finished without having run: its group need not wait for it.
 */
void
jobq_group_end(JobqDatabase *db, int64 id, int64 job_id, TimestampTz now,
			   JobqWakeList *wake)
{
	JobqGroup  *group = jobq_group_find(db, id);

	if (group == NULL || group->owner != job_id)
		return;
	group->owner = 0;
	advance(db, group, now, wake);
}

/*
 * The scheduler has read the group's due jobs above its cursor: these rows, in
 * order, and "all" that there are.
 */
void
jobq_group_refilled(JobqDatabase *db, JobqGroup * group, const JobqPush *rows,
					int nrows, bool all, TimestampTz now, JobqWakeList *wake)
{
	bool		dropped = group->dropped;
	int32		priority = group->cursor_priority;
	JobqKey		cursor = {group->cursor_run_at, group->cursor_id};

	group->spilled = false;
	for (int i = 0; i < nrows && !group->spilled; i++)
	{
		const JobqPush *row = &rows[i];
		JobqLane   *lane = jobq_lane_find(db, row->queue_id, row->priority,
										  row->role, row->flow, row->quarantine,
										  true);
		uint32		index = db->free_head;
		JobqEntry  *entry;

		if (db->nleases > 0 && jobq_lease_find(db, row->key.id) != NULL)
			continue;
		if (lane == NULL || index == JOBQ_NONE)
		{
			all = false;
			break;
		}
		entry = &db->entries[index];
		db->free_head = entry->next;
		db->nfree--;
		entry->key = row->key;
		entry->ctid = row->ctid;
		entry->group = row->group;
		entry->lane = JOBQ_LANE_INDEX(db, lane);
		park(db, group, index);
		if (!group->spilled)
		{
			group->cursor_priority = row->priority;
			group->cursor_run_at = row->key.run_at;
			group->cursor_id = row->key.id;
		}
	}
	if (dropped)
	{
		/* it may be before what was read */
		group->cursor_priority = priority;
		group->cursor_run_at = cursor.run_at;
		group->cursor_id = cursor.id;
	}
	group->refill = false;
	group->spilled |= !all || dropped;
	advance(db, group, now, wake);
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
			advance(db, &db->groups[i], now, wake);
}
