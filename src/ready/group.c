/*-------------------------------------------------------------------------
 *
 * group.c
 *	  Groups: jobs with the same group_key run one at a time, in order.
 *
 * A job that is popped while its group is busy is parked there (park.c); when the
 * group is free, its first parked job goes back to its lane, from where it is
 * popped again.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/group.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/* Read more when so few are left. */
#ifndef FEW_PARKED
#define FEW_PARKED	16
#endif

static void group_advance(JobqDatabase *db, JobqGroup *group,
						  TimestampTz now, JobqWakeList *wake);
static JobqGroup *group_for(JobqDatabase *db, int64 id, uint16 limiter,
							Oid role, TimestampTz now);
static bool may_start(JobqDatabase *db, JobqGroup *group, int64 id,
					  TimestampTz now, TimestampTz *due);
static void unpark(JobqDatabase *db, JobqGroup *group, int64 job_id,
				   bool again);

/*
 * The lanes and entries were forgotten: so is what was parked, which is read
 * again.
 */
void
groups_unpark(JobqDatabase *db)
{
	TimestampTz now = jobq_now();

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
		group_forget_if_idle(db, group, now);
	}
	db->groups->full = false;
	db->groups->refill = false;
	db->groups->due = DT_NOEND;
}

/*
 * May this job of the group start now, as far as the others do not come first?
 */
static bool
may_start(JobqDatabase *db, JobqGroup *group, int64 id, TimestampTz now,
		  TimestampTz *due)
{
	JobqLimiter *policy = group_policy(db, group);

	if (group->owner != 0 ? group->owner != id : group->others != JOBQ_OTHERS_NONE)
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
static void
group_advance(JobqDatabase *db, JobqGroup *group, TimestampTz now,
			  JobqWakeList *wake)
{
	TimestampTz due = DT_NOEND;
	uint32	   *link;
	bool		unread = false; /* there may be others before the first */

	group_set_timer(db, group, DT_NOEND);

	/* its queue may have got another policy */
	if (group->head != JOBQ_NONE)
		group_set_policy(db, group,
						 db->ready->lanes[db->ready->entries[group->head].lane].queue_limiter);
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
			 may_start(db, group, db->ready->entries[*link].key.id, now, &due) &&
			 !group_call(db, group, link, now, wake));

	/* groups that lose their patience one soon after the other do so together */
	if (group->owner != 0 && group->head != JOBQ_NONE)
		due = Min(due, Max(jobq_group_waits_until(db, group), now + ROOM_PAUSE));
	if (group->timer == JOBQ_NONE || due < group->due)
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
	group_forget_if_idle(db, group, now);
}

static uint32
take_in(JobqDatabase *db, JobqGroup *group, int64 id, int32 queue_id)
{
	JobqLimiter *policy = group_policy(db, group);

	if (policy->rate.by_group && policy->rate.per_us > 0)
		group->pace.tokens -= 1;
	jobq_group_take(group, id, queue_id);
	return group - db->groups->groups;
}

/*
 * The group of a job that would start, made if there is none; or NULL if there is
 * no room, or the role has its share.
 */
static JobqGroup *
group_for(JobqDatabase *db, int64 id, uint16 limiter, Oid role,
		  TimestampTz now)
{
	JobqGroup  *group = jobq_group_find(db, id);

	if (group != NULL || !jobq_share_left(db->shares, role, JOBQ_OF_GROUPS))
		return group;
	return jobq_group_make(db, id, limiter, role, now);
}

/*
 * A job with a group was popped, and its entry unlinked from its lane.  Take
 * it in, or park it.
 */
JobqEntrance
group_enter(JobqDatabase *db, JobqLane *lane, uint32 index,
			TimestampTz now, uint32 *place, JobqWakeList *wake)
{
	JobqEntry  *entry = &db->ready->entries[index];
	JobqGroup  *group = group_for(db, entry->group, lane->queue_limiter,
								  lane->role, now);
	TimestampTz due = DT_NOEND;

	if (group == NULL)
	{
		group_skip(db, lane, index, now);
		return JOBQ_PARKED;
	}
	group_set_policy(db, group, lane->queue_limiter);
	group_lose_patience(db, group, now);
	if (group->called == entry->key.id)
		group->called = 0;
	if (!group_is_next(db, group, entry->key.id, lane->priority, entry->key) ||
		!may_start(db, group, entry->key.id, now, &due))
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
 * A job with a group was found in the table: take it in if it may start.  Its
 * entry, if there is one, stays where it is, and is dropped in the end.
 */
bool
group_admit(JobqDatabase *db, const JobqPush *job, uint16 limiter,
			TimestampTz now, uint32 *place)
{
	JobqGroup  *group = group_for(db, job->group, limiter, job->role, now);
	TimestampTz due = DT_NOEND;

	if (group == NULL)
		return false;
	group_set_policy(db, group, limiter);
	group_lose_patience(db, group, now);
	if (!group_is_next(db, group, job->key.id, job->priority, job->key) ||
		!may_start(db, group, job->key.id, now, &due))
	{
		group_forget_if_idle(db, group, now);
		return false;
	}
	if (group->called == job->key.id)
		group->called = 0;
	*place = take_in(db, group, job->key.id, job->queue_id);
	return true;
}

/*
 * A job that was taken in has to wait for this one, which was found in the table.  True
 * if its lane passes jobs over, for which there was no place, and it may be one of them.
 * Then the caller hands it over again, or the place that its group has now would be held
 * for as long as there is none for it.
 */
bool
jobq_group_call(JobqDatabase *db, uint32 place, const JobqPush *job)
{
	JobqGroup  *group = &db->groups->groups[place];
	JobqKey		called = {group->called_run_at, group->called};
	JobqLane   *lane;

	/* one that is parked will be called, unless that is an outdated entry */
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
 * A job that was taken in has lost its row to another transaction, which may not commit:
 * the others of its group wait for what becomes of it.
 */
void
jobq_group_taken(JobqDatabase *db, uint32 place, const JobqPush *job)
{
	JobqGroup  *group = &db->groups->groups[place];

	if (group->owner != job->key.id && group_policy(db, group)->group_max_running == 1)
		(void) jobq_group_call(db, place, job);
}

/*
 * A job that was popped comes after the one that its group was told to wait for: it is
 * parked.  False if it cannot be; then the caller hands it over again.
 *
 * It takes no entry from others.  In its lane it would, perhaps even from that other one,
 * which would find a place again as soon as this one is popped: and so on.
 */
bool
jobq_group_wait(JobqDatabase *db, const JobqPush *job, TimestampTz now,
				JobqWakeList *wake)
{
	JobqGroup  *group = jobq_group_find(db, job->group);
	JobqLane   *lane = jobq_lane_find(db, job->queue_id, job->priority, job->role,
									  job->flow, job->quarantine, false);

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
 * Drop what is parked of a job.  That may be two entries, if it has moved to another lane.
 * "again": it may be parked where it is by now, so it is read again if it is there.
 */
static void
unpark(JobqDatabase *db, JobqGroup *group, int64 job_id, bool again)
{
	uint32	   *link = &group->head;

	while (*link != JOBQ_NONE)
	{
		uint32		index = *link;
		JobqEntry  *entry = &db->ready->entries[index];

		if (entry->key.id != job_id)
		{
			link = &entry->next;
			continue;
		}
		if (again)
			group_spill(group, group_entry_priority(db, index), entry->key);
		*link = entry->next;
		group->nparked--;
		db->ready->lanes[entry->lane].parked--;
		entry_free(db, index);
	}
}

/*
 * The job's transaction is over.  If the job will run again ("live"), its
 * group waits for it, unless the queue says otherwise, or it has waited too long.
 */
void
group_leave(JobqDatabase *db, uint32 place, int64 id, bool live,
			bool unused, TimestampTz now, JobqWakeList *wake)
{
	JobqGroup  *group = &db->groups->groups[place];
	JobqLimiter *policy = group_policy(db, group);

	Assert(group->id != 0 && group->running > 0);
	group->running--;
	if (unused && policy->rate.by_group && policy->rate.per_us > 0)
		group->pace.tokens += 1;

	/*
	 * An owner remains one until it has run: what was popped under its id may
	 * be an outdated entry, which finds no row.  It does, too, if it has got
	 * back its turn while this one ran.  And somebody may have removed the
	 * job, which was to run again, before we come here.
	 */
	if (live && group->current == id && policy->group_wait && policy->group_max_running == 1)
	{
		if (group->owner == 0 || group->owner == id)
			jobq_group_wait_for(group, id, group->current_queue,
								group->current_since == 0 ? now : group->current_since);
		else
			group->others = JOBQ_OTHERS_KNOWN;
	}
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
	unpark(db, group, job_id, false);
	if (group->owner == job_id)
		group->owner = 0;
	if (group->called == job_id)
		group->called = 0;
	if (group->current == job_id)
		group->current = 0;
	group_advance(db, group, now, wake);
}

/*
 * A job that waits has got another place in its group, or another time.  It is no more to
 * be waited for where it was, as it may not be due any more, or others come before it by
 * now.  That does not concern an owner, for which the group waits whenever it comes.
 *
 * Who has moved it once may tell so after one who has moved it twice.
 */
void
jobq_group_moved(JobqDatabase *db, int64 id, int64 job_id, TimestampTz now,
				 JobqWakeList *wake)
{
	JobqGroup  *group = jobq_group_find(db, id);

	if (group == NULL || group->owner == job_id)
		return;
	unpark(db, group, job_id, true);
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
	uint32		most = db->groups->timers.n;
	bool		look = db->groups->look;
	JobqGroup  *group;

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
 * The scheduler has read the group's due jobs above its cursor: these rows, in
 * order, and all up to "last" if that is not all that there are.
 */
void
jobq_group_refilled(JobqDatabase *db, JobqGroup *group, const JobqPush *rows,
					int nrows, const JobqPush *last, TimestampTz now,
					JobqWakeList *wake)
{
	bool		dropped = group->dropped;
	int32		priority = group->cursor_priority;
	JobqKey		cursor = {group->cursor_run_at, group->cursor_id};
	int			before = group->nparked;
	bool		all = last == NULL;
	bool		stuck = false;
	JobqKey		read;

	group->spilled = false;
	for (int i = 0; i < nrows && !group->spilled; i++)
	{
		const JobqPush *row = &rows[i];
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
		db->reload |= !lane->ranked;
		index = entry_alloc(db, lane);
		entry = &db->ready->entries[index];
		entry->key = row->key;
		entry->ctid = row->ctid;
		entry->group = row->group;
		group_park(db, group, index);

		/* what gave way may be after rows that we do not come to any more */
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
		/* it may be before what was read */
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
		/* there was no place: not at once again */
		group->refill = true;	/* keeps group_advance() from asking */
		group_advance(db, group, now, wake);
		group->refill = false;
		if (group->timer == JOBQ_NONE || group->due > now + ROOM_PAUSE)
			group_set_timer(db, group, now + ROOM_PAUSE);
		return;
	}
	group->refill = false;
	group_advance(db, group, now, wake);
}
