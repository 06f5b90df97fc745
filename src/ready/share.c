/*-------------------------------------------------------------------------
 *
 * share.c
 *	  The accounts of roles: how much each holds of what all need.
 *
 * Whoever takes something keeps the number of the account with it, so that
 * giving it back costs no search.  An account is there as long as something is
 * held.  If more roles hold something than there are accounts, the others have
 * one together, which is never given up.
 *
 * All functions want the lock of these shares held exclusively.  Nothing here can
 * fail.
 *
 * src/ready/share.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"

#include "ready/inner.h"

/* The account of those that have none of their own. */
#define OTHERS	0

static uint32
bucket_of(Oid role)
{
	return murmurhash32(role) % JOBQ_MAX_ACCOUNTS;
}

/*
 * Nobody holds anything: when the shared memory is made.
 */
void
jobq_shares_clear(JobqShares *shares)
{
	memset(shares, 0, sizeof(JobqShares));
	for (uint32 i = 0; i < JOBQ_MAX_ACCOUNTS; i++)
	{
		shares->bucket[i] = JOBQ_NONE;
		shares->accounts[i].next = i + 1 < JOBQ_MAX_ACCOUNTS ? i + 1
			: JOBQ_NONE;
	}
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
 * The role's account, which is that of the others if it has none.
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
	uint32	   *link = &shares->bucket[bucket_of(account->role)];

	if (index == OTHERS || !is_empty(account))
		return;
	while (*link != index)
		link = &shares->accounts[*link].next;
	*link = account->next;
	account->next = shares->free;
	shares->free = index;
}

/*
 * There are so many of these, and nobody holds one.
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
 * How many the role holds, or those that have no account.
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
 * Is there one, and may the role have it?
 */
bool
jobq_share_left(JobqShares *shares, Oid role, JobqShareOf what)
{
	uint64		most = (uint64) free_of(shares, what) * JOBQ_SHARE;

	/* nobody holds more than all together */
	return shares->held[what] < most ||
		jobq_share_held(shares, role, what) < most;
}

/*
 * The same, but a good part of what the role can have at most.  Who waits for one
 * of many waits for this, and comes less often.
 */
bool
share_is_ample(JobqShares *shares, Oid role, JobqShareOf what)
{
	uint64		free = free_of(shares, what);

	return free > 0 && jobq_share_held(shares, role, what) <= free * JOBQ_SHARE / 3;
}

/*
 * The role takes one.  Returns whose account it is on, for when it is given back.
 */
uint32
jobq_share_take(JobqShares *shares, Oid role, JobqShareOf what)
{
	uint32		index = find(shares, role);

	if (index == OTHERS && shares->free != JOBQ_NONE)
	{
		JobqAccount *account;

		index = shares->free;
		account = &shares->accounts[index];
		shares->free = account->next;
		memset(account, 0, sizeof(JobqAccount));
		account->role = role;
		account->next = shares->bucket[bucket_of(role)];
		shares->bucket[bucket_of(role)] = index;
	}
	account_add(shares, index, what);
	return index;
}

/*
 * One more on an account that something is held on.
 */
void
account_add(JobqShares *shares, uint32 index, JobqShareOf what)
{
	Assert(shares->held[what] < shares->total[what]);
	shares->held[what]++;
	shares->accounts[index].held[what]++;
}

/*
 * It is given back.
 */
void
jobq_share_give(JobqShares *shares, uint32 index, JobqShareOf what)
{
	Assert(shares->accounts[index].held[what] > 0);
	shares->held[what]--;
	shares->accounts[index].held[what]--;
	free_if_empty(shares, index);
}
