/*-------------------------------------------------------------------------
 *
 * tokens.c
 *	  Which workers are woken when jobs become free with time.
 *
 * test/model/tokens.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

#define QUEUE	1				/* of world.queues: the queue with time slices and
								 * rates */
#define ROLE	10
#define NCREW	3

/*
 * Create a queue with these limits, or with a limiter by tenant, and some idle workers of one
 * role.
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
	memset(&queue->limiter, 0, sizeof(JobqLimiter));
	if (limiter->keyed)
		world.named[BY_TENANT] = *limiter;
	else
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
push_as(Oid role, uint32 tenant)
{
	JobqPush	job = {.queue_id = world.queues[QUEUE].id,.role = role,
	.flow = tenant,.permits = JOBQ_NO_PERMITS};
	JobqWakeList wake = {0};

	if (tenant != 0)
		job.needs[SOURCE(BY_TENANT)] = (JobqNeed)
	{
		NAME(BY_TENANT), tenant, 1
	};
	job.key = (JobqKey)
	{
		world.now, ++world.next_id
	};
	ItemPointerSet(&job.ctid, world.next_id, 1);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_ready_push(db, &job, world.now, &wake);
	unlock(&wake);
}

static void
push(uint32 tenant)
{
	push_as(ROLE, tenant);
}

/*
 * The worker pops a job, and ends the job at once if "ends".  Returns whether there was a job.
 */
static bool
worker_step(int w, bool ends)
{
	JobqSlot   *slot = &jobq_shared->slots[w];
	JobqTaker	taker = {.pool = 0,.slot = w,.nroles = 1,.roles = &slot->role};
	JobqWakeList wake = {0};
	JobqPush	job;
	bool		popped;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	popped = jobq_ready_pop(db, &taker, world.now, &job, &wake);
	world.workers[w].awake = popped && ends;
	slot->idle = !popped;
	unlock(&wake);
	if (popped)
		world_ran(slot);
	return popped;
}

/*
 * Each worker that is awake pops a job.  Returns the number of jobs popped.
 */
static int
work(bool ends)
{
	int			n = 0;

	for (int w = 0; w < NCREW; w++)
		n += world.workers[w].awake && worker_step(w, ends);
	return n;
}

/*
 * A worker is woken for the first job that becomes free with time.  Before the worker
 * wakes, a second job becomes free.  Another worker must run the second job meanwhile.
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
 * After a rest due to failures, all idle workers may run a job: more workers than fit
 * into a wake list.
 */
static void
check_rest(void)
{
	JobqLimiter limiter = {.throttle = {.failures = 1,.window = USECS_PER_SEC}};
	JobqPush	failed = {.queue_id = world.queues[QUEUE].id,.role = ROLE};
	int			n = 0;

	begin(&limiter);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_limits_failed(db, &failed, 1, world.now);
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
 * Tokens are sums of fractions.  A token that is missing by a rounding error counts.
 */
static void
check_fraction(void)
{
	JobqLimiter limiter = {.rate = {.per_us = 1.0 / USECS_PER_HOUR,.burst = 1}};

	begin(&limiter);
	push(0);
	push(0);
	scheduler_round();			/* ranks the lane */
	if (work(false) != 1)
		model_fail("more or less than one job starts by a rate of one");
	world.now += USECS_PER_HOUR - 1000;
	if (!worker_step(0, false))
		model_fail("a job waits for a millionth of a token");
}

/*
 * A permit is reserved for a worker that does not come, and limits are checked meanwhile.
 * When the reservation ends, the scheduler wakes a worker of the other role.
 */
static void
check_kept(void)
{
	JobqLimiter limiter = {.max_running = 1};
	JobqSlot   *slots = jobq_shared->slots;
	int			first = 0;
	int			waiting = 0;
	int			woken = 0;

	begin(&limiter);
	slots[1].role = ROLE + 1;
	slots[2].role = ROLE + 2;
	for (Oid role = ROLE; role <= ROLE + 2; role++)
		push_as(role, 0);
	scheduler_round();			/* ranks the lanes, and wakes the workers */
	if (work(false) != 1)
		model_fail("more or less than one job of a limiter with one permit runs");
	for (int w = 0; w < NCREW; w++)
	{
		waiting += slots[w].idle;
		if (!slots[w].idle)
			first = w;
	}

	/* the worker ends the job, and the permit is reserved for another role */
	if (worker_step(first, false))
		model_fail("a role takes the permit again that another role waits for");
	for (int w = 0; w < NCREW; w++)
		woken += world.workers[w].awake;
	if (waiting != 2 || woken != 1)
		model_fail("%d workers wait, and %d are woken", waiting, woken);
	for (int w = 0; w < NCREW; w++)
		world.workers[w].awake = false; /* the woken worker does not come */
	db->limits->due = world.now;
	scheduler_round();
	for (int w = 0; w < NCREW; w++)
		world.workers[w].awake = false;
	if (db->wake_at > world.now + 2 * KEEP_PATIENCE)
		model_fail("nobody looks at a permit that is reserved in vain");
	world.now = db->wake_at + 1;
	scheduler_round();
	if (work(false) != 1)
		model_fail("no worker is woken for a permit that was reserved in vain");
}

/*
 * Fails if a job becomes free with time, and no idle worker is woken.
 */
void
check_tokens_come(void)
{
	JobqLimiter limiter = {.rate = {.per_us = 2.0 / USECS_PER_SEC,.burst = 2}};
	JobqLimiter tenants = {.keyed = true,.kind = NAME(BY_TENANT),
	.rate = {.per_us = 2.0 / USECS_PER_SEC,.burst = 2}};

	check_free(&limiter, 0, "a rate");
	check_free(&tenants, 1, "a rate of each tenant");
	check_rest();
	check_kept();
	check_fraction();
}
