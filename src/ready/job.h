/*-------------------------------------------------------------------------
 *
 * job.h
 *	  A job on its way into the ready set and out of it, and who takes it.
 *
 * src/ready/job.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_JOB_H
#define JOBQ_READY_JOB_H

#include "memory/memory.h"

#include "storage/block.h"

/* The place of a job within its lane. */
typedef struct JobqKey
{
	TimestampTz run_at;
	int64		id;
} JobqKey;

/* What a running job holds. */
#define JOBQ_NO_LIMITER	PG_UINT16_MAX
typedef struct JobqPermits
{
	uint16		queue;			/* limiters, or JOBQ_NO_LIMITER */
	uint16		kind;
	uint32		tenant;			/* tally, or JOBQ_NONE */
	uint32		limit_key;		/* likewise, of its limiter's key */
	uint32		group;			/* index, or JOBQ_NONE */
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

/* Instead of tokens: the job passes by its limiter. */
#define JOBQ_PASSES	(-1)

/* A job on its way into the ready set, or out of it. */
typedef struct JobqPush
{
	int32		queue_id;
	int32		priority;
	Oid			role;
	int32		flow;
	bool		quarantine;
	bool		notify;			/* mark the queue's channel for the relay */
	bool		first;			/* on its way out: no job of its group comes
								 * before it, or it is the one for which that
								 * waits */
	JobqKey		key;
	ItemPointerData ctid;
	uint32		kind;			/* hash of its kind's or named limiter, or 0 */
	uint32		tenant;			/* hash, if its tenant has lanes of its own,
								 * or 0 */
	uint32		limit_key;		/* hash of its key, if its limiter is by one,
								 * or 0 */
	uint32		held;			/* hash of its kind, if that is paused, or 0 */
	int32		cost;			/* tokens that it takes of that limiter; 0: it
								 * has none; or JOBQ_PASSES */
	int64		group;			/* or 0 */
	JobqPermits permits;		/* on its way out: what it holds */
	float		charged;		/* likewise: microseconds of processor time
								 * that its tenant's turn was moved on by,
								 * until it is known what it takes; or 0 */
} JobqPush;

/*
 * May a job run now?  If not, what stands in the way.
 */
typedef enum JobqVerdict
{
	JOBQ_MAY_RUN = 0,

	/* by its row and its queue: src/attempt/gate.c */
	JOBQ_GONE,					/* there is no such row any more */
	JOBQ_DORMANT,				/* it runs on the publisher */
	JOBQ_TAKEN,					/* somebody else has it */
	JOBQ_QUEUE_CLOSED,			/* the queue is paused, or is for others */
	JOBQ_NOT_DUE,				/* the clock was put back */
	JOBQ_EXPIRED,				/* it did not begin in time */
	JOBQ_OTHER_LANE,			/* its kind or queue has other limits now */
	JOBQ_OTHER_KEY,				/* it was popped with permits of another key,
								 * whose flow is the same */
	JOBQ_LACKS_PERMIT,			/* likewise: it was popped without one */
	JOBQ_GROUP_BUSY,			/* another job of its group comes first */

	/* by who asks: src/consume */
	JOBQ_UNSENDABLE,			/* the consumer's encoding lacks its texts */
	JOBQ_NOT_TOGETHER,			/* the call of reserve() has jobs with which a
								 * consumer must not hold it */

	/* by the limits: permit.c */
	JOBQ_QUEUE_FULL,
	JOBQ_TENANT_FULL,
	JOBQ_KIND_FULL,
	JOBQ_KEY_FULL,
} JobqVerdict;

/* Who pops: a worker of a pool, or a consumer with queues in order. */
typedef struct JobqTaker
{
	int			pool;			/* or -1 for a consumer */
	int			slot;			/* the worker's, or -1 */
	bool		unlimited;		/* what it pops does not run, and needs a
								 * permit of its group only */
	int			nqueues;
	const int32 *queue_ids;
	bool		any_role;
	int			nroles;
	const Oid  *roles;
} JobqTaker;

/* Who is to be woken when the lock has been released. */
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
