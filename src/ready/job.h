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

/* The permits that a running job holds. */
#define JOBQ_NO_LIMITER	PG_UINT16_MAX
typedef struct JobqPermits
{
	uint16		queue;			/* index of the limiter, or JOBQ_NO_LIMITER */
	uint16		kind;
	uint32		tenant;			/* index of the tenant's tally, or JOBQ_NONE */
	uint32		limit_key;		/* index of the tally of the limiter's key, or
								 * JOBQ_NONE */
	uint32		group;			/* index of the group, or JOBQ_NONE */
	int32		cost;			/* tokens of "kind" and limit_key */
} JobqPermits;

#define JOBQ_NO_PERMITS \
	((JobqPermits) {JOBQ_NO_LIMITER, JOBQ_NO_LIMITER, PG_UINT32_MAX, PG_UINT32_MAX, PG_UINT32_MAX, 0})

static inline bool
jobq_permits_any(const JobqPermits *permits)
{
	return permits->queue != JOBQ_NO_LIMITER ||
		permits->kind != JOBQ_NO_LIMITER || permits->tenant != PG_UINT32_MAX ||
		permits->limit_key != PG_UINT32_MAX || permits->group != PG_UINT32_MAX;
}

/* Value of "cost": the job bypasses its limiter. */
#define JOBQ_PASSES	(-1)

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
	uint32		kind;			/* hash of the kind or named limiter, or 0 */
	uint32		tenant;			/* hash of the tenant, if the tenant has
								 * separate lanes; or 0 */
	uint32		limit_key;		/* hash of the limiter's key, if the limiter
								 * has keys; or 0 */
	uint32		held;			/* hash of the kind, if the kind is paused; or
								 * 0 */
	int32		cost;			/* tokens of that limiter; 0: no cost given;
								 * or JOBQ_PASSES */
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
	JOBQ_QUEUE_FULL,
	JOBQ_TENANT_FULL,
	JOBQ_KIND_FULL,
	JOBQ_KEY_FULL,
} JobqVerdict;

/* A process that pops: a worker of a pool, or a consumer with queues in order. */
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
