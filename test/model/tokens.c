/*-------------------------------------------------------------------------
 *
 * tokens.c
 *	  Who is woken where time sets jobs free.
 *
 * test/model/tokens.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

#define QUEUE	1				/* of world.queues: that with turns and rates */
#define ROLE	10
#define NCREW	3

/*
 * A queue with these limits, and some workers of one role that have nothing to do.
 */
static void
begin(const JobqLimiter *limiter)
{
	static const int sizes[] = {64, 40, 8, 8};
	Queue	   *queue = &world.queues[QUEUE];

	world_start(0);
	model_memory(sizes);
	for (int q = 0; q < NQUEUES; q++)
		world.queues[q].limited = false;
	queue->limited = true;
	queue->limiter = *limiter;
	queue->limiter.queue_id = queue->id;
	queue->limiter.group_max_running = queue->limiter.weight = 1;
	for (int w = 0; w < NCREW; w++)
	{
		JobqSlot   *slot = &jobq_shared->slots[w];

		slot->database = 0;
		slot->role = ROLE;
		slot->state = JOBQ_SLOT_ATTACHED;
		slot->proc = &model_procs[w];
		slot->idle = true;
		world.workers[w].awake = false;
	}
	scheduler_start();
	scheduler_round();
}

static void
push(uint32 tenant)
{
	JobqPush	job = {.queue_id = world.queues[QUEUE].id,.role = ROLE,.tenant = tenant,
	.flow = tenant,.permits = JOBQ_NO_PERMITS};
	JobqWakeList wake = {0};

	job.key = (JobqKey)
	{
		world.now, ++world.next_id
	};
	ItemPointerSet(&job.ctid, world.next_id, 1);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_ready_push(db, &job, world.now, &wake);
	unlock(&wake);
}

/*
 * Who is awake looks for a job, and ends it at once if "ends".  Returns how many have
 * found one.
 */
static int
work(bool ends)
{
	int			n = 0;

	for (int w = 0; w < NCREW; w++)
	{
		JobqSlot   *slot = &jobq_shared->slots[w];
		JobqTaker	taker = {.pool = 0,.slot = w,.nroles = 1,.roles = &slot->role};
		JobqWakeList wake = {0};
		JobqPush	job;

		if (!world.workers[w].awake)
			continue;
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		world.workers[w].awake = jobq_ready_pop(db, &taker, world.now, &job, &wake);
		n += world.workers[w].awake;
		slot->idle = !world.workers[w].awake;
		unlock(&wake);
		slot->holding->unused = false;
		if (!ends)
			world.workers[w].awake = false;
	}
	return n;
}

/*
 * Time sets one job free, for which a worker is woken; before that has come, there is
 * room for another one.  While it runs the first, somebody else must run that.
 */
static void
check_free(const JobqLimiter *limiter, uint32 tenant, const char *what)
{
	int			n;

	begin(limiter);
	for (int i = 0; i < 8; i++)
		push(tenant);
	scheduler_round();			/* ranks the lane */
	while (work(true) > 0)
		;
	world.now = db->limits->due;
	scheduler_round();
	world.now += USECS_PER_SEC / 2;
	n = work(false);
	n += work(false);
	if (n != 2)
		model_fail("%s: %d jobs run where 2 may", what, n);
}

/*
 * The rest after failures is over: all who have nothing to do may run a job, more than a
 * list of those to be woken has room for.
 */
static void
check_rest(void)
{
	JobqLimiter limiter = {.throttle = {.failures = 1,.window = USECS_PER_SEC}};
	int			n = 0;

	begin(&limiter);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_limits_failed(db, world.queues[QUEUE].id, 0, ROLE, 0, 1, world.now);
	LWLockRelease(db->lock);
	for (int i = 0; i < 8; i++)
		push(0);
	scheduler_round();			/* ranks the lane */
	if (work(false) != 0)
		model_fail("a job runs while its queue rests");
	world.now += 2 * USECS_PER_SEC;
	scheduler_round();
	for (int i = 0; i < NCREW; i++)
		n += work(false);
	if (n != NCREW)
		model_fail("after a rest %d jobs run where %d may", n, NCREW);
}

/*
 * Fails if time sets a job free, and nobody is woken for it who has nothing to do.
 */
void
check_tokens_come(void)
{
	JobqLimiter limiter = {.rate = {.per_us = 2.0 / USECS_PER_SEC,.burst = 2}};
	JobqLimiter tenants = {.tenant_rate = {.per_us = 2.0 / USECS_PER_SEC,.burst = 2}};

	check_free(&limiter, 0, "a rate");
	check_free(&tenants, 1, "a rate of each tenant");
	check_rest();
}
