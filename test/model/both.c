/*-------------------------------------------------------------------------
 *
 * both.c
 *	  Fixed cases of jobs with limits of their tenant and of another key, and of a group in a call.
 *
 * A job has "tenant" and "key"; 0: none.  Only jobs of the queue LIMITED have tenants.
 *
 * test/model/both.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

#define LIMITED		4
#define ROLE		10
#define OTHER_ROLE	11
#define THIRD_ROLE	12

static Queue *
limited(void)
{
	return &world.queues[LIMITED - 1];
}

/*
 * Begin with a limit of one running job for each key, and without other limits.
 */
static void
begin(void)
{
	static const int sizes[] = {64, 40, 8, 8};

	world_start(0);
	model_memory(sizes);
	for (int q = 0; q < NQUEUES; q++)
	{
		world.queues[q].limited = world.queues[q].paused = world.queues[q].consumer = false;
		memset(&world.queues[q].limiter, 0, sizeof(JobqLimiter));
		world.queues[q].limiter.queue_id = q + 1;
		world.queues[q].limiter.group_max_running = world.queues[q].limiter.weight = 1;
	}
	limited()->limited = true;
	for (int n = 0; n < NNAMED; n++)
		world.named[n] = (JobqLimiter)
	{
		.kind = NAME(n),.keyed = true,.group_max_running = 1,
			.max_running = n == BY_TENANT ? 10 : 1
	};
}

/* Start an idle worker.  Pool 1 serves fewer queues than pool 0. */
static void
worker(int w, Oid role, int pool)
{
	JobqSlot   *slot = &jobq_shared->slots[w];

	slot->database = 0;
	slot->role = role;
	slot->pool = pool;
	slot->state = JOBQ_SLOT_ATTACHED;
	slot->proc = &model_procs[w];
	slot->idle = true;
	world.workers[w].awake = false;
}

/* Enqueue a job.  Returns its id. */
static int64
push(int32 queue, int32 priority, Oid role, uint32 tenant, uint32 key)
{
	JobqPush	job = {.queue_id = queue,.priority = priority,.role = role,
	.flow = tenant * 100 + key,.permits = JOBQ_NO_PERMITS};
	JobqWakeList wake = {0};

	if (tenant != 0)
		job.needs[SOURCE(BY_TENANT)] = (JobqNeed)
	{
		NAME(BY_TENANT), tenant, 1
	};
	if (key != 0)
		job.needs[SOURCE(0)] = (JobqNeed)
	{
		NAME(0), key, 1
	};
	job.key = (JobqKey)
	{
		world.now, ++world.next_id
	};
	ItemPointerSet(&job.ctid, world.next_id, 1);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_ready_push(db, &job, world.now, &wake);
	unlock(&wake);
	return job.key.id;
}

/*
 * The worker ends its job, and pops the next.  Returns the id, or 0.
 */
static int64
pop(int w)
{
	JobqSlot   *slot = &jobq_shared->slots[w];
	JobqTaker	taker = {.pool = slot->pool,.slot = w,.nroles = 1,.roles = &slot->role};
	JobqWakeList wake = {0};
	JobqPush	job;
	bool		popped;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	popped = jobq_ready_pop(db, &taker, world.now, &job, &wake);
	slot->idle = !popped;
	world.workers[w].awake = false;
	unlock(&wake);
	if (popped)
		world_ran(slot);
	return popped ? job.key.id : 0;
}

static void
expect(int64 popped, int64 id, const char *what)
{
	if (popped != id)
		model_fail("%s: job %d, not %d", what, (int) popped, (int) id);
}

/*
 * The lane of a role becomes stale while the queue is full.  The permit that comes back must
 * not be reserved for this role.
 */
static void
check_reserved(void)
{
	int64		next;

	begin();
	limited()->limiter.max_running = 1;
	worker(0, ROLE, 0);
	worker(1, OTHER_ROLE, 0);
	worker(2, THIRD_ROLE, 0);
	scheduler_start();
	scheduler_round();
	(void) push(LIMITED, 0, OTHER_ROLE, 2, 0);
	scheduler_round();
	(void) pop(1);
	(void) push(LIMITED, 0, ROLE, 1, 1);
	(void) push(3, 0, THIRD_ROLE, 0, 1);
	scheduler_round();
	(void) pop(2);
	next = push(LIMITED, 0, OTHER_ROLE, 2, 0);
	scheduler_round();
	expect(pop(0), 0, "the queue is full");
	expect(pop(1), next, "a permit is reserved for a lane that waits for its key");
}

/*
 * A worker was woken for a lane that is stale when the worker pops, and takes a more urgent
 * job.  Another worker must be woken for the lane that was lent instead.
 */
static void
check_woken(void)
{
	int64		urgent;
	int64		other;
	int64		instead;

	begin();
	world.named[BY_TENANT].max_running = 1;
	worker(0, ROLE, 0);
	worker(1, ROLE, 0);
	worker(2, ROLE, 1);
	worker(3, ROLE, 0);
	worker(4, THIRD_ROLE, 0);
	scheduler_start();
	scheduler_round();
	(void) push(LIMITED, 0, ROLE, 1, 0);
	(void) push(3, 0, THIRD_ROLE, 0, 1);
	scheduler_round();
	if (pop(3) == 0 || pop(4) == 0)
		model_fail("a job is not popped");

	/* both lanes wait for the key; the lanes of the other jobs are known */
	(void) push(LIMITED, 1, ROLE, 1, 1);
	instead = push(LIMITED, 3, ROLE, 2, 1);
	(void) push(LIMITED, 2, ROLE, 3, 0);
	(void) push(1, 0, ROLE, 0, 0);
	scheduler_round();
	if (pop(0) == 0 || pop(1) == 0)
		model_fail("a job is not popped");
	for (int w = 0; w < 3; w++)
		(void) pop(w);
	for (int w = 0; w < 3; w++)
		world.workers[w].awake = false;
	world.scheduler_awake = db->can_spawn = false;

	/* the key becomes free, and one worker is woken */
	(void) pop(4);
	urgent = push(LIMITED, 2, ROLE, 3, 0);
	expect(pop(0), urgent, "the more urgent job comes first");
	other = push(1, 0, ROLE, 0, 0);
	expect(pop(1), other, "the job of another queue comes first");
	if (!world.workers[2].awake)
		model_fail("no worker is woken for the lane that is lent instead");
	expect(pop(2), instead, "the lane that is lent instead");
}

/*
 * The limit of the keys is lowered while jobs of a key run, and lanes of the key are lent.
 */
static void
check_lowered(void)
{
	int64		first;

	begin();
	world.named[BY_TENANT].max_running = 5;
	world.named[0].max_running = 2;
	worker(0, THIRD_ROLE, 0);
	worker(1, THIRD_ROLE, 0);
	worker(2, ROLE, 0);
	scheduler_start();
	scheduler_round();
	(void) push(3, 0, THIRD_ROLE, 0, 1);
	(void) push(3, 0, THIRD_ROLE, 0, 1);
	(void) push(LIMITED, 1, ROLE, 1, 1);
	first = push(LIMITED, 0, ROLE, 1, 1);
	scheduler_round();
	if (pop(0) == 0 || pop(1) == 0)
		model_fail("a job is not popped");
	(void) push(LIMITED, 0, ROLE, 2, 1);
	scheduler_round();
	(void) pop(0);
	world.named[0].max_running = 1;
	db->reload = db->limits->stale = true;
	scheduler_round();
	expect(pop(2), 0, "the key is full");
	(void) pop(1);
	expect(pop(2), first, "the key is free");
}

/*
 * The rest of a key is over, and its lane is lent.  The key does not rest again when the clock is
 * put back into the rest, although another job of the key still runs.
 */
static void
check_put_back(void)
{
	JobqPush	job = {.queue_id = 3,.needs[SOURCE(0)] = {NAME(0), 1, 1}};
	JobqKeyedState state;
	int64		id;

	begin();
	world.named[0].max_running = 2;
	world.named[0].throttle = (JobqThrottle)
	{
		.failures = 1,.window = 2 * USECS_PER_SEC
	};
	worker(0, ROLE, 0);
	worker(1, ROLE, 0);
	scheduler_start();
	scheduler_round();
	(void) push(3, 0, ROLE, 0, 1);
	scheduler_round();
	if (pop(0) == 0)
		model_fail("a job is not popped");
	id = push(3, 0, ROLE, 0, 1);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_limits_failed(db, &job, 1, world.now);
	LWLockRelease(db->lock);
	expect(pop(1), 0, "the key rests");
	world.now += 3 * USECS_PER_SEC;
	scheduler_round();
	world.now -= 2 * USECS_PER_SEC;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	(void) jobq_keyed_state(db, NAME(0), 1, world.now, &state);
	LWLockRelease(db->lock);
	if (state.rest_until != 0)
		model_fail("the key rests again after the clock was put back");
	expect(pop(1), id, "the rest of the key is over");
}

/*
 * A job of a call is charged late, and the scheduler reads that its group waits for the job.  The
 * permit of the group is that of the call, so the job becomes the owner at once.
 */
static void
check_read_in_call(void)
{
	JobqSlot   *slot;
	JobqTaker	taker = {.slot = 0,.nroles = 1};
	JobqPush	job = {.queue_id = LIMITED,.role = ROLE,.permits = JOBQ_NO_PERMITS,.group = 500};
	JobqPush	first;
	JobqPush	more;
	JobqWakeList wake = {0};

	begin();
	slot = &jobq_shared->slots[0];
	taker.roles = &slot->role;
	worker(0, ROLE, 0);
	scheduler_start();
	scheduler_round();
	(void) push(LIMITED, 0, ROLE, 0, 0);
	job.key = (JobqKey)
	{
		world.now, ++world.next_id
	};
	ItemPointerSet(&job.ctid, world.next_id, 1);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_ready_push(db, &job, world.now, &wake);
	unlock(&wake);
	scheduler_round();
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (!jobq_ready_pop(db, &taker, world.now, &first, &wake) ||
		jobq_ready_pop_more(db, slot, &first, &more, 1, &wake) != 1 || more.key.id != job.key.id)
		model_fail("the jobs do not run in a call");
	if (!jobq_group_read(jobq_group_find(db, 500), job.key.id, LIMITED, world.now) ||
		jobq_group_find(db, 500)->owner != job.key.id)
		model_fail("the group of a call does not wait for a job that was charged late");
	unlock(&wake);
}

void
check_both(void)
{
	check_read_in_call();
	check_put_back();
	check_reserved();
	check_woken();
	check_lowered();
}
