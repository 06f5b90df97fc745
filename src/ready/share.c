/*-------------------------------------------------------------------------
 *
 *	  The accounts of roles: how many items of each limited kind a role holds.
 *
 * The holder of an item stores the number of its account, so that returning the item needs no
 * search.  An account exists as long as its role holds an item.  If more roles hold items
 * than there are accounts, the remaining roles share an account that is never freed.
 *
 * The caller of every function here holds the lock of the structure that contains the shares,
 * exclusively for a change: JobqDatabase.lock (leases, bundles, groups, reservers, messages),
 * JobqWaiters.lock (waiters), JobqLinePool.lock (chunks), or JobqStats.lock (statistics).  No
 * function here can fail.
 *
 * src/ready/share.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"

#include "ready/inner.h"

JOBQ_CHAIN(account, JobqAccount, next);

/* The account shared by roles without an account of their own. */
#define OTHERS	0

static uint32
bucket_of(Oid role)
{
	return murmurhash32(role) % JOBQ_MAX_ACCOUNTS;
}

/*
 * Initialize the shares in new shared memory: no role holds an item.
 */
void
jobq_shares_clear(JobqShares *shares)
{
	memset(shares, 0, sizeof(JobqShares));
	for (uint32 i = 0; i < JOBQ_MAX_ACCOUNTS; i++)
		shares->bucket[i] = JOBQ_NONE;
	(void) account_chain_all(shares->accounts, JOBQ_MAX_ACCOUNTS);
	shares->free = shares->accounts[OTHERS].next;
}

static bool
is_empty(const JobqAccount *account)
{
	for (int i = 0; i < JOBQ_NSHARES; i++)
		if (account->held[i] > 0)
			return false;
	return true;
}

/*
 * Return the role's account, or OTHERS if it has none.
 */
static uint32
find(const JobqShares *shares, Oid role)
{
	uint32		i = shares->bucket[bucket_of(role)];

	while (i != JOBQ_NONE && shares->accounts[i].role != role)
		i = shares->accounts[i].next;
	return i == JOBQ_NONE ? OTHERS : i;
}

static void
free_if_empty(JobqShares *shares, uint32 index)
{
	JobqAccount *account = &shares->accounts[index];

	if (index == OTHERS || !is_empty(account))
		return;
	account_chain_remove(&shares->bucket[bucket_of(account->role)], shares->accounts, index);
	account_chain_push(&shares->free, shares->accounts, index);
}

/*
 * Set the total number of items of a kind, none of which is held.
 */
void
jobq_shares_set(JobqShares *shares, JobqShareOf what, uint32 total)
{
	shares->total[what] = total;
	shares->held[what] = 0;
	for (uint32 i = 0; i < JOBQ_MAX_ACCOUNTS; i++)
	{
		if (shares->accounts[i].held[what] == 0)
			continue;
		shares->accounts[i].held[what] = 0;
		free_if_empty(shares, i);
	}
}

/*
 * Return the number of items that the role holds.  For a role without an account, return the
 * number held by all such roles.
 */
uint32
jobq_share_held(JobqShares *shares, Oid role, JobqShareOf what)
{
	return shares->accounts[find(shares, role)].held[what];
}

static uint32
free_of(const JobqShares *shares, JobqShareOf what)
{
	return shares->total[what] - shares->held[what];
}

/*
 * Is there a free item, and may the role take an item?
 */
bool
jobq_share_left(JobqShares *shares, Oid role, JobqShareOf what)
{
	uint64		most = (uint64) free_of(shares, what) * JOBQ_SHARE;

	/* no account holds more than all together */
	return shares->held[what] < most ||
		jobq_share_held(shares, role, what) < most;
}

/*
 * Is a good part of the role's possible maximum free?  For callers waiting for any of many
 * items, for fewer wake-ups than with jobq_share_left().
 */
bool
share_is_ample(JobqShares *shares, Oid role, JobqShareOf what)
{
	uint64		free = free_of(shares, what);

	return free > 0 && jobq_share_held(shares, role, what) <= free * JOBQ_SHARE / 3;
}

/*
 * Take an item for the role.  Returns the account, which the caller passes to
 * jobq_share_give() later.  An item must be free.
 */
uint32
jobq_share_take(JobqShares *shares, Oid role, JobqShareOf what)
{
	uint32		index = find(shares, role);

	if (index == OTHERS && shares->free != JOBQ_NONE)
	{
		JobqAccount *account;

		index = account_chain_pop(&shares->free, shares->accounts);
		account = &shares->accounts[index];
		memset(account, 0, sizeof(JobqAccount));
		account->role = role;
		account_chain_push(&shares->bucket[bucket_of(role)], shares->accounts, index);
	}
	account_add(shares, index, what);
	return index;
}

/*
 * Take an item for an account that holds items already.  An item must be free.
 */
void
account_add(JobqShares *shares, uint32 index, JobqShareOf what)
{
	Assert(shares->held[what] < shares->total[what]);
	shares->held[what]++;
	shares->accounts[index].held[what]++;
}

/*
 * Return an item that was taken for this account.
 */
void
jobq_share_give(JobqShares *shares, uint32 index, JobqShareOf what)
{
	Assert(shares->held[what] > 0 && shares->accounts[index].held[what] > 0);
	shares->held[what]--;
	shares->accounts[index].held[what]--;
	free_if_empty(shares, index);
}
