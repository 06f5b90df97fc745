/*-------------------------------------------------------------------------
 *
 * moves.c
 *	  Waiting jobs get another queue position: sessions that call edit() with a priority
 *	  or run_at.
 *
 * A session deletes the row.  Until the commit, a process popping the job finds the row
 * locked and drops the entry.  The rest of the group waits for the job, which is still
 * in the table.  After the commit the row is at its new position, and the session
 * notifies later.  Two sessions may edit the same job in turn, and notify in reverse
 * order.
 *
 * test/model/moves.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

static void move_on(Move *move, uint32 b, uint32 c);
static void tell(const Move *move);
static bool in_lane(int64 id);

/*
 * Has a session deleted the row, and not committed?  Or locked the row of a job to be charged?
 */
bool
row_is_taken(const Row *row)
{
	if (row->uncharged)
		return true;
	for (int i = 0; i < MAX_MOVES; i++)
		if (world.moves[i].state == MOVE_OPEN &&
			world.moves[i].job.key.id == row->job.key.id)
			return true;
	return false;
}

/*
 * Has the session of the move here committed, but not notified yet?
 */
bool
row_is_untold(const Row *row)
{
	for (int i = 0; i < MAX_MOVES; i++)
		if (world.moves[i].state == MOVE_COMMITTED &&
			row_is_at(row, &world.moves[i].job))
			return true;
	return false;
}

/*
 * Is the row deleted, or moved without notification?
 */
bool
row_is_moving(const Row *row)
{
	return row_is_untold(row) || row_is_taken(row);
}

/*
 * One step of a session: lock a waiting job, or continue the current edit.
 */
void
op_move(uint32 a, uint32 b, uint32 c)
{
	Move	   *move = &world.moves[a % MAX_MOVES];

	if (move->state == MOVE_NONE)
	{
		Row		   *row = NULL;

		for (int i = 0; i < MAX_ROWS && row == NULL; i++)
		{
			row = &world.rows[((a >> 8) + i) % MAX_ROWS];
			if (row->state != ROW_LIVE || row->txn >= 0 || row->worker >= 0 ||
				row->session >= 0 || row_is_taken(row))
				row = NULL;
		}
		if (row == NULL)
			return;
		trace("  job %d is taken\n", (int) row->job.key.id);
		move->state = MOVE_OPEN;
		move->job = row->job;
		if (b % 4 == 0)
			return;
	}
	move_on(move, b >> 2, c);
	if (move->state == MOVE_COMMITTED && (b >> 2) % 4 != 0)
		move_on(move, b >> 2, c);
}

/*
 * Commit, roll back, or notify of the commit.
 */
static void
move_on(Move *move, uint32 b, uint32 c)
{
	Row		   *row = &world.rows[row_of(move->job.key.id)];
	JobqWakeList wake = {0};

	if (move->state == MOVE_COMMITTED)
	{
		move->state = MOVE_NONE;
		tell(move);
		if (move->counted)
			jobq_handover_end(move->raised);
		return;
	}
	if ((b >> 2) % 8 == 0)
	{
		trace("  job %d stays\n", (int) move->job.key.id);
		move->state = MOVE_NONE;
		row->committed = ++world.tick;
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		jobq_ready_push(db, &move->job, world.now, &wake);
		unlock(&wake);
		return;
	}
	move->state = MOVE_COMMITTED;
	move->counted = row->job.group != 0;
	if (move->counted)
		move->raised = jobq_handover_begin(db->dboid, row->job.group);
	row->committed = ++world.tick;
	if ((b >> 5) % 4 == 0)
		row->job.priority = (b >> 7) % 4;
	else
		row->job.key.run_at = world.now + (int64) (c % (4 * USECS_PER_SEC)) -
			USECS_PER_SEC;
	ItemPointerSet(&row->job.ctid, 1 + row->job.key.id / 4, 7 + c % 16);
	move->job = row->job;
	trace("  job %d: priority %d, at %+d\n", (int) row->job.key.id,
		  row->job.priority, (int) (row->job.key.run_at - world.now));
}

static void
tell(const Move *move)
{
	const JobqPush *job = &move->job;
	JobqWakeList wake = {0};
	JobqGroup  *group;

	trace("  job %d\n", (int) job->key.id);
	world.tick++;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (job->group != 0)
		jobq_group_moved(db, job->group, job->key.id, world.now, &wake);
	group = job->group == 0 ? NULL : jobq_group_find(db, job->group);
	if (group != NULL && group->owner != job->key.id)
	{
		if (group->called == job->key.id)
			model_fail("group %d waits for job %d where it was", (int) group->id,
					   (int) job->key.id);
		for (uint32 i = group->head; i != JOBQ_NONE; i = db->ready->entries[i].next)
			if (db->ready->entries[i].key.id == job->key.id)
				model_fail("job %d is parked where it was", (int) job->key.id);
	}
	jobq_ready_push(db, job, world.now, &wake);
	unlock(&wake);
}

/*
 * All sessions end.
 */
void
moves_end(void)
{
	for (int i = 0; i < MAX_MOVES; i++)
		while (world.moves[i].state != MOVE_NONE)
			move_on(&world.moves[i], 0, 0);
}

static bool
in_lane(int64 id)
{
	for (int l = 0; l < jobq_max_lanes; l++)
		if (db->ready->lanes[l].in_use)
			for (uint32 i = db->ready->lanes[l].head; i != JOBQ_NONE;
				 i = db->ready->entries[i].next)
				if (db->ready->entries[i].key.id == id)
					return true;
	return false;
}

/*
 * No group waits for a job before the job is due.  Exceptions are an earlier wait, and
 * an outdated entry about to be popped.
 */
void
check_moved(void)
{
	for (int g = 0; g < jobq_max_groups && !world.put_back; g++)
	{
		const JobqGroup *group = &db->groups->groups[g];
		int			r = group->id == 0 || group->called == 0 ? -1
			: row_of(group->called);
		const Row  *row = r < 0 ? NULL : &world.rows[r];

		if (row != NULL && group->owner != group->called && !row_is_due(row) &&
			!row_is_moving(row) && row->txn < 0 && row->worker < 0 &&
			row->session < 0 && !in_lane(group->called))
			model_fail("group %d waits for job %d, which is due at %+.6f",
					   (int) group->id, (int) group->called,
					   (row->job.key.run_at - world.now) / 1e6);
	}
}
