/*-------------------------------------------------------------------------
 *
 * patience.c
 *	  The jobs that groups wait for, and how long.
 *
 * A returned job holds the group.  When the patience of the queue ends, the job loses its
 * turn ("over"), and other jobs of the group may start.  Either value of the patience
 * counts: the queue's, or the value loaded by the scheduler.  The job gets its turn back
 * when the group waits for the job again.
 *
 * test/model/patience.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

static int64
loaded_patience(const Row *row)
{
	for (int i = 0; i < db->limits->nlimiters; i++)
		if (db->limits->limiters[i].in_use &&
			db->limits->limiters[i].queue_id == row->job.queue_id)
			return db->limits->limiters[i].group_patience;
	return 0;
}

static int64
patience_of(const Row *row)
{
	Queue	   *queue = queue_of(row->job.queue_id);

	return queue->limited ? queue->limiter.group_patience : 0;
}

static bool
has_lost(const Row *row, int64 patience, TimestampTz now)
{
	return row->held && patience > 0 && now >= row->held_since + patience;
}

/*
 * jobq_group_is_held_by(), computed from the row and its queue.
 */
bool
row_holds(const Row *row)
{
	return row->held && !has_lost(row, patience_of(row), world.now);
}

/*
 * True if the job must be ordered with the rest of the group.  Must hold now and at the
 * time of the pop, under the patience of the queue and the loaded value.
 */
bool
row_has_lost(const Row *row, TimestampTz popped)
{
	TimestampTz now = Min(popped, world.now);

	return has_lost(row, patience_of(row), now) &&
		has_lost(row, loaded_patience(row), now);
}

/*
 * The job is returned, or would be returned after a crash.
 */
void
row_hold(Row *row)
{
	if (!row->held)
	{
		row->held = true;
		row->over = false;
		row->held_since = world.now;
	}
}

/*
 * The hand-over of a job that holds its group.  "slot": the slot of the worker, or NULL.
 */
void
row_tell_hold(const Row *row, const JobqSlot *slot, JobqWakeList *wake)
{
	JobqGroupHold hold = {
		row->job.group, row->job.key.id, row->job.queue_id, row->job.role, row->held_since
	};

	if (row->job.group != 0)
		jobq_group_held(db, &hold, slot, world.now, wake);
}

/*
 * Update "over" after the time or the patience of a queue has changed.
 */
void
rows_age(void)
{
	for (int i = 0; i < MAX_ROWS; i++)
	{
		Row		   *row = &world.rows[i];

		row->over |= row->state == ROW_LIVE &&
			(has_lost(row, patience_of(row), world.now) ||
			 has_lost(row, loaded_patience(row), world.now));
	}
}

/*
 * As worker/scheduler/groups.c: read the owners in the order of job ids.
 */
void
read_owners(void)
{
	int64		last = 0;
	JobqWakeList wake = {0};

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_groups_read_begin(db);
	for (;;)
	{
		Row		   *row = NULL;
		JobqGroup  *group = NULL;
		uint16		limiter;
		const JobqLimiter *policy;

		for (int i = 0; i < MAX_ROWS; i++)
			if (world.rows[i].state == ROW_LIVE && world.rows[i].held &&
				world.rows[i].job.group != 0 && world.rows[i].job.key.id > last &&
				(row == NULL || world.rows[i].job.key.id < row->job.key.id))
				row = &world.rows[i];
		if (row == NULL)
			break;
		last = row->job.key.id;
		limiter = jobq_limiter_find(db, row->job.queue_id, 0);
		policy = limiter == JOBQ_NO_LIMITER ? NULL : &db->limits->limiters[limiter];
		if (policy == NULL ||
			((jobq_group_shared(row->job.group) ||
			  (policy->group_wait && policy->group_max_running == 1)) &&
			 !has_lost(row, policy->group_patience, world.now)))
			group = jobq_group_make(db, row->job.group, limiter, row->job.role,
									world.now);
		if (group != NULL)
		{
			if (jobq_group_read(group, last, row->job.queue_id, row->held_since) &&
				row->job.key.run_at < DT_NOEND)
				jobq_ready_push(db, &row->job, world.now, &wake);
			trace("  group %d waits for job %d, of which it knows job %d\n",
				  (int) group->id, (int) last, (int) group->owner);
		}
		/* a group does not wait for a running job, even if the job is returned unused */
		if (group != NULL && group->owner != last && group->running > 0 &&
			group->current == last)
			row->over = true;
		else if (group != NULL && row->over)
		{
			row->over = false;
			row->again = ++world.tick;
		}
	}
	jobq_groups_read_end(db, world.now);
	unlock(&wake);
}

/*
 * Timers are in order, and each belongs to the right group.  The scheduler wakes for the
 * first timer.
 */
static void
check_timers(void)
{
	const JobqGroups *groups = db->groups;
	uint32		n = 0;

	for (uint32 i = 0; i < groups->timers.n; i++)
	{
		TimestampTz due = groups->timers.heap[i].due;
		const JobqGroup *group = &groups->groups[groups->timers.heap[i].index];

		if (group->id == 0 || group->timer != i)
			model_fail("timer %u is another group's", i);
		if (due < groups->timers.heap[(Max(i, 1) - 1) / 2].due)
			model_fail("timer %u of a group is out of order", i);
		if (due < groups->due)
			model_fail("nobody looks at group %d in time", (int) group->id);
	}
	for (int g = 0; g < jobq_max_groups; g++)
		n += groups->groups[g].id != 0 && groups->groups[g].timer != JOBQ_NONE;
	if (n != groups->timers.n)
		model_fail("%u groups have a timer, and there are %u", n, groups->timers.n);
}

/*
 * Each group waits since the first return of the owner.  The scheduler wakes when the
 * patience ends.
 */
void
check_patience(void)
{
	check_timers();
	for (int g = 0; g < jobq_max_groups; g++)
	{
		JobqGroup  *group = &db->groups->groups[g];
		TimestampTz until;
		int			r;

		if (group->id == 0 || group->owner == 0)
			continue;
		r = row_of(group->owner);
		if (r >= 0 && world.rows[r].held && world.rows[r].job.group == group->id &&
			world.rows[r].held_since != group->owner_since)
			model_fail("group %d waits for job %d since %+.6f, not %+.6f",
					   (int) group->id, (int) group->owner,
					   (group->owner_since - world.now) / 1e6,
					   (world.rows[r].held_since - world.now) / 1e6);
		until = jobq_group_waits_until(db, group);
		if (group->head != JOBQ_NONE && world.now >= world.scheduler_last &&
			until < DT_NOEND - ROOM_PAUSE &&
			db->groups->due > Max(until, world.now) + ROOM_PAUSE)
			model_fail("group %d loses its patience at %+.6f, and the scheduler comes at %+.6f",
					   (int) group->id, (until - world.now) / 1e6,
					   (db->groups->due - world.now) / 1e6);
	}
}

/*
 * No group waits beyond the patience of the queue, because the scheduler has ended the
 * wait.
 */
void
check_stuck(void)
{
	for (int g = 0; g < jobq_max_groups; g++)
	{
		JobqGroup  *group = &db->groups->groups[g];

		if (group->id != 0 && group->owner != 0 && group->head != JOBQ_NONE &&
			jobq_group_waits_until(db, group) < world.now - ROOM_PAUSE)
			model_fail("group %d has waited too long for job %d",
					   (int) group->id, (int) group->owner);
	}
}
