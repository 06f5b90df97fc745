/*-------------------------------------------------------------------------
 *
 *	  A job on its way into or out of the ready set, and the process that takes a job.
 *
 * src/ready/job.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_JOB_H
#define JOBQ_READY_JOB_H

#include "memory/memory.h"

#include "storage/block.h"

/* The sort key of a job within its lane. */
typedef struct JobqKey
{
	TimestampTz run_at;
	int64		id;
} JobqKey;

/* The number of limiters that a kind, or a queue, may name. */
#define JOBQ_MAX_NAMED	2

/*
 * The sources of a job's limits.  The job needs a permit of each limiter that these sources
 * name.  Arrays with JOBQ_NLIMITS elements have these indexes.
 */
typedef enum JobqLimitSource
{
	JOBQ_OF_QUEUE = 0,			/* limits of the queue itself */
	JOBQ_OF_KIND,				/* limits of the kind itself */
	JOBQ_NAMED_BY_KIND,			/* first limiter that the kind names */
	JOBQ_NAMED_BY_QUEUE = JOBQ_NAMED_BY_KIND + JOBQ_MAX_NAMED,	/* and the queue */
	JOBQ_NLIMITS = JOBQ_NAMED_BY_QUEUE + JOBQ_MAX_NAMED
} JobqLimitSource;

/* The needs of a job at a limiter. */
typedef struct JobqNeed
{
	uint32		limiter;		/* hash of the kind or of the limiter's name;
								 * 0: none, or the queue */
	uint32		key;			/* hash of the job's key at the limiter; at
								 * the queue: of the tenant, if the tenant has
								 * separate lanes; or 0 */
	int32		cost;			/* tokens; 0: no limiter; or JOBQ_PASSES */
} JobqNeed;

/* Value of "cost": the job bypasses the limiter. */
#define JOBQ_PASSES	(-1)

/* The tenant of a job, lane or lease. */
#define JOBQ_TENANT(x)	((x)->needs[JOBQ_OF_QUEUE].key)

/* The permits that a running job holds. */
#define JOBQ_NO_LIMITER	PG_UINT16_MAX
typedef struct JobqPermits
{
	uint16		limiters[JOBQ_NLIMITS]; /* indexes, or JOBQ_NO_LIMITER */
	uint32		tallies[JOBQ_NLIMITS];	/* indexes of the keys' tallies, or
										 * JOBQ_NONE */
	int32		costs[JOBQ_NLIMITS];	/* tokens taken */
	uint32		group;			/* index of the group, or JOBQ_NONE */
} JobqPermits;

#define JOBQ_NO_PERMITS \
	((JobqPermits) { \
		.limiters = {JOBQ_NO_LIMITER, JOBQ_NO_LIMITER, JOBQ_NO_LIMITER, \
					 JOBQ_NO_LIMITER, JOBQ_NO_LIMITER, JOBQ_NO_LIMITER}, \
		.tallies = {PG_UINT32_MAX, PG_UINT32_MAX, PG_UINT32_MAX, \
					PG_UINT32_MAX, PG_UINT32_MAX, PG_UINT32_MAX}, \
		.group = PG_UINT32_MAX \
	})

StaticAssertDecl(JOBQ_NLIMITS == 6, "JOBQ_NO_PERMITS has a value for each limiter");

static inline bool
jobq_permits_any(const JobqPermits *permits)
{
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (permits->limiters[s] != JOBQ_NO_LIMITER ||
			permits->tallies[s] != PG_UINT32_MAX)
			return true;
	return permits->group != PG_UINT32_MAX;
}

/* A job on its way into or out of the ready set. */
typedef struct JobqPush
{
	int32		queue_id;
	int32		priority;
	Oid			role;
	int32		flow;
	bool		quarantine;
	bool		notify;			/* mark the queue's channel for the relay */
	bool		first;			/* on the way out: no job of the group comes
								 * before this job, or the group waits for
								 * this job */
	JobqKey		key;
	ItemPointerData ctid;
	bool		unlimited;		/* on the way out: popped without permits of
								 * limiters, because the job will not run */
	JobqNeed	needs[JOBQ_NLIMITS];
	uint32		held;			/* hash of the kind, if the kind is paused; or
								 * 0 */
	int64		group;			/* or 0 */
	JobqPermits permits;		/* on the way out: the permits held */
	float		charged;		/* on the way out: microseconds of processor
								 * time charged in advance to the tenant's
								 * turn; or 0 */
} JobqPush;

/*
 * The gate's answer: may a job run now, and if not, why?
 */
typedef enum JobqVerdict
{
	JOBQ_MAY_RUN = 0,

	/* decided by row and queue: src/attempt/gate.c */
	JOBQ_GONE,					/* the row no longer exists */
	JOBQ_DORMANT,				/* the job runs on the publisher */
	JOBQ_TAKEN,					/* another process has the job */
	JOBQ_QUEUE_CLOSED,			/* the queue is paused, or has other takers */
	JOBQ_NOT_DUE,				/* the clock was put back */
	JOBQ_EXPIRED,				/* the job did not begin in time */
	JOBQ_UNWANTED,				/* the job that asked for it is cancelled */
	JOBQ_OTHER_LANE,			/* other limits apply to kind or queue now */
	JOBQ_OTHER_KEY,				/* the permits are those of another key with
								 * the same flow */
	JOBQ_LACKS_PERMIT,			/* the job was popped without a necessary
								 * permit */
	JOBQ_GROUP_BUSY,			/* another job of the group comes first */

	/* decided by the caller: src/consume */
	JOBQ_UNSENDABLE,			/* not representable in the consumer's
								 * encoding */
	JOBQ_NOT_TOGETHER,			/* the call of reserve() has jobs that a
								 * consumer must not hold together with this
								 * job */

	/* decided by the limits: permit.c */
	JOBQ_LIMITED,				/* a limiter has no free permit */
	JOBQ_KEY_LIMITED,			/* a limiter has none for the job's key */
} JobqVerdict;

/* A popping process: a worker of a pool, or a consumer with queues in order. */
typedef struct JobqTaker
{
	int			pool;			/* or -1 for a consumer */
	int			slot;			/* of the worker, or -1 */
	bool		unlimited;		/* the popped jobs do not run, and need a
								 * permit of their group only */
	int			nqueues;
	const int32 *queue_ids;
	bool		any_role;
	int			nroles;
	const Oid  *roles;
} JobqTaker;

/* Processes to wake after the lock is released. */
#ifndef JOBQ_MAX_WAKE
#define JOBQ_MAX_WAKE	16
#endif
#ifndef JOBQ_MAX_OFFERS
#define JOBQ_MAX_OFFERS 16
#endif
typedef struct JobqWakeList
{
	int			n;
	bool		scheduler;
	PGPROC	   *proc[JOBQ_MAX_WAKE + JOBQ_MAX_OFFERS];
} JobqWakeList;

static inline int
jobq_key_cmp(JobqKey a, JobqKey b)
{
	if (a.run_at != b.run_at)
		return a.run_at < b.run_at ? -1 : 1;
	if (a.id != b.id)
		return a.id < b.id ? -1 : 1;
	return 0;
}

#endif							/* JOBQ_READY_JOB_H */
