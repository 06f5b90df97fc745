/*-------------------------------------------------------------------------
 *
 * turns.c
 *	  Shares of tenants by processor time, and when a throttle rests.
 *
 * Two tenants of a queue always have jobs.  A worker pops a job, and the model reports
 * the cost after "flight" more pops, as if these jobs ran at the same time.  In the end
 * each tenant has had its share, despite wrong estimates.
 *
 * test/model/turns.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

#include <math.h>

#define QUEUE		(&world.queues[1])
#define ROLE		10
#define MAX_FLIGHT	64

typedef struct Case
{
	const char *name;
	double		(*cost) (int tenant, int nth);	/* of the nth job of a tenant */
	int			flight;			/* number of concurrent jobs */
	int			pops;
	int			weight;			/* of tenant 1; tenant 2 has weight 1 */
	int			late;			/* tenant 2 has jobs from this pop on */
	double		bound;			/* allowed difference of the shares */
} Case;

static double
steady(int tenant, int nth)
{
	return tenant == 1 ? 10000 : 1000;
}

/* some jobs cost almost nothing, some twice the average */
static double
varied(int tenant, int nth)
{
	return tenant == 1 ? ((nth * UINT64CONST(0x9E3779B97F4A7C15)) >> 63) * 20000.0 : 1000;
}

static double
monster(int tenant, int nth)
{
	return tenant == 1 && nth == 5 ? 1000000 : 1000;
}

static double
nothing(int tenant, int nth)
{
	return tenant == 1 ? 0 : 1000;
}

/*
 * a job that was expensive while tenant 1 was alone becomes cheap, then expensive again
 */
static double
fortune(int tenant, int nth)
{
	return tenant == 1 && nth < 160 ? (nth < 64 ? 100000 : 0) : 100000;
}

static const Case cases[] =
{
	{
		"ten times as dear", steady, 1, 2000, 1, 0, 10000
	},
	{
		"five at a time", steady, 5, 2000, 1, 0, 10000
	},
	{
		"three turns", steady, 5, 2000, 3, 0, 10000
	},
	{
		"as it comes", varied, 5, 4000, 1, 0, 60000
	},
	{
		"a monster", monster, 5, 5000, 1, 0, 20000
	},
	{
		"for nothing", nothing, 1, 50000, 1, 0, 0
	},
	{
		"a fortune", fortune, 64, 1100, 1, 200, 2000000
	},
};

static void
enqueue(int tenant)
{
	JobqWakeList wake = {0};
	JobqPush	job = {.queue_id = QUEUE->id,.role = ROLE,.flow = tenant,
	.permits = JOBQ_NO_PERMITS};

	JOBQ_TENANT(&job) = tenant;
	job.key = (JobqKey)
	{
		world.now, ++world.next_id
	};
	ItemPointerSet(&job.ctid, 1, 1);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_ready_push(db, &job, world.now, &wake);
	unlock(&wake);
}

static void
begin(const Case *which)
{
	JobqLimiter *limiter = &QUEUE->limiter;

	world_start(624);			/* many slots, and no limits but these */
	memset(limiter, 0, sizeof(JobqLimiter));
	QUEUE->limited = limiter->in_use = limiter->fair = limiter->fair_cpu = true;
	limiter->queue_id = QUEUE->id;
	limiter->weight = 1;
	limiter->nweights = 1;
	limiter->weighted[0] = 1;
	limiter->weights[0] = which->weight;
	db->ready->complete = db->limits->stale = true;
	for (int i = 0; i < 3; i++)
	{
		enqueue(1);
		if (which->late == 0)
			enqueue(2);
	}
	scheduler_rank();
}

static void
run_case(const Case *which)
{
	Oid			role = ROLE;
	JobqTaker	taker = {.pool = 0,.slot = 0,.nroles = 1,.roles = &role};
	struct
	{
		JobqPush	job;
		double		cost;
	}			runs[MAX_FLIGHT] = {0};
	double		used[3] = {0};
	int			n[3] = {0};

	begin(which);
	for (int i = 0; i < which->pops; i++)
	{
		JobqWakeList wake = {0};
		JobqPush   *job = &runs[i % which->flight].job;
		double	   *cost = &runs[i % which->flight].cost;
		bool		popped;

		if (i == which->late && i > 0)
		{
			enqueue(2);
			scheduler_rank();
		}
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		if (job->charged > 0)
			jobq_turn_settle(db, job, *cost, true);
		popped = jobq_ready_pop(db, &taker, world.now, job, &wake);
		unlock(&wake);
		if (!popped)
			model_fail("%s: there is no job", which->name);
		world_ran(&jobq_shared->slots[taker.slot]);
		*cost = which->cost(JOBQ_TENANT(job), n[JOBQ_TENANT(job)]++);
		if (i >= which->late)
			used[JOBQ_TENANT(job)] += *cost / (JOBQ_TENANT(job) == 1 ? which->weight : 1);
		enqueue(JOBQ_TENANT(job));
	}
	if (n[1] == 0 || n[2] == 0)
		model_fail("%s: a tenant has no turn at all", which->name);
	if (which->bound == 0)
	{
		/* each job of tenant 2 costs as much as a hundred of tenant 1 */
		if (n[1] > 120 * n[2] || n[1] < 80 * n[2])
			model_fail("%s: %d turns, and %d", which->name, n[1], n[2]);
	}
	else if (fabs(used[1] - used[2]) > which->bound)
		model_fail("%s: %.0f microseconds by %d jobs, and %.0f by %d", which->name,
				   used[1], n[1], used[2], n[2]);
}

/*
 * Fails if a tenant had more or less than its share.
 */
void
check_costs(void)
{
	for (int i = 0; i < lengthof(cases); i++)
		run_case(&cases[i]);
}

/*
 * Fails if a throttle does not treat failures with slightly different times, in any
 * order, as simultaneous.  Times differ because each process reads the clock before it
 * has the lock.
 */
void
check_throttle(void)
{
	JobqLimiter limiter = {.throttle = {.failures = 3,.window = USECS_PER_SEC}};
	TimestampTz now = INT64CONST(1000000) * USECS_PER_SEC;

	for (int step = -5; step <= 5; step++)
	{
		JobqPace	pace = {0};
		TimestampTz due = DT_NOEND;

		for (int i = 0; i < limiter.throttle.failures; i++)
			jobq_pace_failed(&limiter, &pace, 1, now + i * step * 1000);
		if (jobq_pace_free(&limiter, &pace, now + 5000, &due))
			model_fail("a throttle lets jobs start after failures %d ms apart", step);
	}
}
