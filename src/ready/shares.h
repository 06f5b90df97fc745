/*-------------------------------------------------------------------------
 *
 *	  How many of a limited number of items each role holds.
 *
 * A role may take all items that no other role needs, except a reserve for the next role.  A
 * role may take no more items when it holds JOBQ_SHARE times the number of free items.  With
 * JOBQ_SHARE 7, a single role gets seven eighths, and two roles get seven fifteenths each.
 * Only roles that hold items must be counted.
 *
 * Lanes and entries can be taken away from a role, and follow another rule: see lane.c and
 * entry.c.
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

/* The kinds of items. */
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
 * A role that holds items.  Roles for which there is no account share the first account.
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
	uint32		total[JOBQ_NSHARES];	/* number of items */
	uint32		held[JOBQ_NSHARES]; /* by all roles together */
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
