/*-------------------------------------------------------------------------
 *
 * lease_commit.c
 *	  What becomes of leases at the end of a transaction.
 *
 * A lease is taken when its job is popped, and holds when the transaction
 * commits; whatever ends it or makes it longer does so at commit, too.
 *
 * src/commit/lease_commit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/jobq.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "commit/commit.h"

typedef struct PendingLease
{
	SubTransactionId subid;
	LeaseAction action;
	int64		id;
	int64		token;			/* 0: any */
	uint32		bundle;
	TimestampTz until;
} PendingLease;

int			jobq_lease_notes = 0;

static PendingLease *leases = NULL; /* kept from one transaction to the next */
static int	max_leases = 0;

/*
 * See that so many more leases can be noted without an error.
 */
void
jobq_lease_room(int n)
{
	int			wanted = jobq_lease_notes + n;

	if (wanted <= max_leases)
		return;
	wanted = Max(wanted, 2 * max_leases);
	if (leases == NULL)
		leases = MemoryContextAlloc(TopMemoryContext,
									sizeof(PendingLease) * wanted);
	else
		leases = repalloc_huge(leases, sizeof(PendingLease) * wanted);
	max_leases = wanted;
}

/*
 * Has this transaction ended the lease of the job, or given it back?
 */
bool
jobq_lease_is_ended(int64 id)
{
	for (int i = jobq_lease_notes - 1; i >= 0; i--)
		if (leases[i].id == id &&
			(leases[i].action == LEASE_END ||
			 leases[i].action == LEASE_RETRY ||
			 leases[i].action == LEASE_BACK))
			return true;
	return false;
}

/*
 * Note what becomes of a lease at the end of this transaction.  Room for it
 * was made by jobq_lease_room(): this cannot fail.
 */
void
jobq_at_commit_lease(LeaseAction action, int64 id, int64 token, uint32 bundle,
					 TimestampTz until)
{
	PendingLease *lease = &leases[jobq_lease_notes++];

	Assert(jobq_lease_notes <= max_leases);
	lease->subid = GetCurrentSubTransactionId();
	lease->action = action;
	lease->id = id;
	lease->token = token;
	lease->bundle = bundle;
	lease->until = until;
}

/*
 * Note that whoever made this bundle lets go of it at the end of this
 * transaction.  Likewise; wants db->lock.
 */
void
jobq_at_commit_bundle(JobqDatabase *db, uint32 bundle)
{
	jobq_at_commit_lease(LEASE_BUNDLE, db->lease_life, 0, bundle, 0);
}

/*
 * Is it still there?  A new extension's scheduler, which may come as soon as
 * our locks are released, forgets all.
 */
static bool
bundle_lives(const JobqDatabase *db, const PendingLease *pending)
{
	return pending->id == db->lease_life;
}

/*
 * Carry out what was noted, at commit.  Wants db->lock; cannot fail.
 */
void
jobq_leases_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	for (int i = 0; i < jobq_lease_notes; i++)
	{
		PendingLease *pending = &leases[i];
		JobqLease  *lease;
		JobqPush	push;

		if (pending->action == LEASE_BUNDLE)
			continue;			/* below */
		lease = jobq_lease_find(db, pending->id);
		if (lease == NULL ||
			(pending->token != 0 && lease->token != pending->token))
			continue;
		switch (pending->action)
		{
			case LEASE_TAKE:
				lease->state = JOBQ_LEASE_HELD;
				db->next_expiry = Min(db->next_expiry, lease->until);
				if (lease->until < db->wake_at)
					wake->scheduler = true;
				break;
			case LEASE_END:
			case LEASE_RETRY:
				jobq_lease_remove(db, lease, pending->action == LEASE_RETRY,
								  false, now, wake);
				break;
			case LEASE_BACK:
				push = jobq_lease_push(lease);
				jobq_ready_push(db, &push, now, wake);
				jobq_lease_remove(db, lease, true, false, now, wake);
				break;
			case LEASE_EXTEND:
				jobq_lease_move(db, lease, pending->bundle, pending->until);
				if (lease->until < db->wake_at)
					wake->scheduler = true;
				break;
			case LEASE_BUNDLE:
				break;
		}
	}
	/* whoever made a bundle lets go of it when its leases hold it */
	for (int i = 0; i < jobq_lease_notes; i++)
		if (leases[i].action == LEASE_BUNDLE && bundle_lives(db, &leases[i]))
			jobq_lease_bundle_release(db, leases[i].bundle);
	if (db->ngarbage > JOBQ_LEASE_GARBAGE / 2)
		wake->scheduler = true;
	jobq_lease_notes = 0;
}

/*
 * Undo what was taken since this subtransaction began, or at all.
 */
void
jobq_leases_abort(SubTransactionId since)
{
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};

	if (jobq_lease_notes == 0 || leases[jobq_lease_notes - 1].subid < since)
		return;
	if (db == NULL)
	{
		jobq_lease_notes = 0;
		return;
	}
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	while (jobq_lease_notes > 0 && leases[jobq_lease_notes - 1].subid >= since)
	{
		PendingLease *pending = &leases[--jobq_lease_notes];

		if (pending->action == LEASE_BUNDLE)
		{
			if (!bundle_lives(db, pending))
				continue;
			/* its row was never there */
			ItemPointerSetInvalid(&db->bundles[pending->bundle].row.ctid);
			jobq_lease_bundle_release(db, pending->bundle);
		}
		else if (pending->action == LEASE_TAKE)
		{
			JobqLease  *lease = jobq_lease_find(db, pending->id);

			if (lease != NULL && lease->token == pending->token)
			{
				JobqPush	push = jobq_lease_push(lease);
				TimestampTz now = jobq_now();

				jobq_ready_push(db, &push, now, &wake);
				jobq_lease_remove(db, lease, false, true, now, &wake);
			}
		}
	}
	jobq_unlock(db, &wake);
}

/*
 * PREPARE TRANSACTION: an error if consumers' jobs were reserved or finished.
 */
void
jobq_leases_check_prepare(void)
{
	for (int i = 0; i < jobq_lease_notes; i++)
		if (leases[i].token != 0 || leases[i].action == LEASE_BUNDLE)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has reserved or finished jobs of consumers")));
}
