/*-------------------------------------------------------------------------
 *
 * doubt.c
 *	  Fixed cases of a group whose first job has a locked row.
 *
 * The worker drops the entry of the job.  The group waits for the job, until an earlier job of
 * the group runs.  A later job must then ask the table for predecessors, even if its lane is new.
 *
 * test/model/doubt.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

#define GROUP	100

/*
 * Enqueue a job.  The jobs of queue 1 are in the group.  group: the index of the group, if a gate
 * has found the job in the table before; or JOBQ_NONE.  Returns the id of the job.
 */
static int64
push(int32 queue, TimestampTz run_at, uint32 group)
{
	JobqPush	job = {.queue_id = queue,.role = 10,.permits = JOBQ_NO_PERMITS};
	JobqWakeList wake = {0};

	job.group = queue == 1 ? GROUP : 0;
	job.key = (JobqKey)
	{
		run_at, ++world.next_id
	};
	ItemPointerSet(&job.ctid, world.next_id, 1);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (group != JOBQ_NONE)
		(void) jobq_group_call(db, group, &job);
	jobq_ready_push(db, &job, world.now, &wake);
	unlock(&wake);
	return job.key.id;
}

/*
 * The worker ends its job, and pops the next: this job; 0: none.  ran: the popped job runs.
 */
static JobqPush
pop(int64 id, bool ran)
{
	JobqSlot   *slot = &jobq_shared->slots[0];
	JobqTaker	taker = {.pool = 0,.slot = 0,.nroles = 1,.roles = &slot->role};
	JobqWakeList wake = {0};
	JobqPush	job = {0};

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	slot->idle = !jobq_ready_pop(db, &taker, world.now, &job, &wake);
	if ((slot->idle ? 0 : job.key.id) != id)
		model_fail("a group in doubt: job %d is popped, not %d",
				   slot->idle ? 0 : (int) job.key.id, (int) id);
	unlock(&wake);
	if (ran)
		world_ran(slot);
	else if (id != 0)
		jobq_run_to(&slot->run, JOBQ_RUN_TURNED_AWAY);
	return job;
}

/*
 * Three jobs of a group.  locked: the row of the first job is locked.  evicted: the lane is
 * evicted before the last job comes.
 */
static void
check_locked(bool locked, bool evicted)
{
	const int	sizes[] = {64, evicted ? 1 : 40, 8, 8};
	JobqSlot   *slot;
	int64		last = 0;
	uint32		place;
	JobqPush	job;

	world_start(0);
	model_memory(sizes);
	for (int q = 0; q < NQUEUES; q++)
		world.queues[q].limited = world.queues[q].paused = world.queues[q].consumer = false;
	slot = &jobq_shared->slots[0];
	slot->database = 0;
	slot->role = 10;
	slot->pool = 0;
	slot->state = JOBQ_SLOT_ATTACHED;
	slot->proc = &model_procs[0];
	slot->idle = true;
	scheduler_start();
	scheduler_round();

	job.key.id = push(1, world.now, JOBQ_NONE);
	if (!evicted)
		last = push(1, world.now, JOBQ_NONE);
	scheduler_rank();
	job = pop(job.key.id, !locked);
	place = job.permits.group;
	if (locked)
	{
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		jobq_group_taken(db, job.permits.group, &job);
		LWLockRelease(db->lock);
		(void) pop(0, false);	/* the group waits */
	}
	(void) pop(push(1, world.now - USECS_PER_SEC, locked ? place : JOBQ_NONE), true);
	if (evicted)
	{
		(void) push(2, world.now, JOBQ_NONE);
		if (db->ready->complete == locked)
			model_fail("the lane is evicted, and a new lane %s",
					   locked ? "knows all its jobs" : "must be read");
		return;
	}
	job = pop(last, true);
	if (job.first == locked)
		model_fail("job %d %s", (int) last, locked ? "passes a job whose row is locked"
				   : "has no predecessor, and must ask for one");
}

void
check_doubt(void)
{
	check_locked(false, false);
	check_locked(true, false);
	check_locked(false, true);
	check_locked(true, true);
}
