/*-------------------------------------------------------------------------
 *
 * shares.h
 *	  What roles hold of things of which there are only so many.
 *
 * A role may have all that nobody else needs, but for a rest that is kept for who
 * comes next: it takes nothing more when it holds JOBQ_SHARE times what is free.
 * So one that is alone gets seven eighths; two get seven fifteenths each; and
 * nobody has to be counted but those who hold something.
 *
 * Lanes and entries, which can be taken from who has them, have another rule: see
 * lane.c and entry.c.
 *
 * src/ready/shares.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_SHARES_H
#define JOBQ_READY_SHARES_H

#include "memory/memory.h"

#ifndef JOBQ_SHARE
#define JOBQ_SHARE	7
#endif

/* What is shared. */
typedef enum JobqShareOf
{
	JOBQ_OF_LEASES = 0,
	JOBQ_OF_BUNDLES,
	JOBQ_OF_GROUPS,
	JOBQ_OF_RESERVERS,
	JOBQ_OF_MESSAGES,
	JOBQ_OF_WAITERS,
	JOBQ_OF_CHUNKS,
	JOBQ_OF_STATS,
	JOBQ_NSHARES
} JobqShareOf;

/*
 * A role that holds something.  Those that find no account of their own share the
 * first.
 */
#ifndef JOBQ_MAX_ACCOUNTS
#define JOBQ_MAX_ACCOUNTS	1024
#endif
typedef struct JobqAccount
{
	Oid			role;
	uint32		held[JOBQ_NSHARES];
	uint32		next;			/* in the bucket, or free list link */
} JobqAccount;

typedef struct JobqShares
{
	uint32		total[JOBQ_NSHARES];	/* that there are */
	uint32		held[JOBQ_NSHARES]; /* by all together */
	uint32		free;
	JobqAccount accounts[JOBQ_MAX_ACCOUNTS];
	uint32		bucket[JOBQ_MAX_ACCOUNTS];
} JobqShares;

/* src/ready/share.c */
extern void jobq_shares_clear(JobqShares *shares);
extern void jobq_shares_set(JobqShares *shares, JobqShareOf what, uint32 total);
extern bool jobq_share_left(JobqShares *shares, Oid role, JobqShareOf what);
extern uint32 jobq_share_held(JobqShares *shares, Oid role, JobqShareOf what);
extern uint32 jobq_share_take(JobqShares *shares, Oid role, JobqShareOf what);
extern void jobq_share_give(JobqShares *shares, uint32 account,
							JobqShareOf what);

#endif							/* JOBQ_READY_SHARES_H */
