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
#include "base/base.h"

#include "access/xact.h"

#include "commit/inner.h"

typedef struct PendingLease
{
	SubTransactionId subid;
	LeaseAction action;
	int64		id;
	int64		token;			/* 0: any */
	uint32		bundle;
	uint32		stat;			/* where the job is counted */
	uint32		name;			/* hash of its kind */
	bool		notify;			/* its queue has work again if it comes back */
	TimestampTz until;
} PendingLease;

static int	nleases = 0;

static PendingLease *leases = NULL; /* kept from one transaction to the next */
static int	max_leases = 0;

/*
 * See that so many more leases can be noted without an error.
 */
void
jobq_lease_room(int n)
{
	leases = jobq_grow(leases, &max_leases, nleases + n, sizeof(PendingLease));
}

/*
 * Has this transaction ended the lease of the job, or given it back?
 */
bool
jobq_lease_is_ended(int64 id)
{
	for (int i = nleases - 1; i >= 0; i--)
		if (leases[i].id == id &&
			(leases[i].action == LEASE_END ||
			 leases[i].action == LEASE_RETRY ||
			 leases[i].action == LEASE_BACK ||
			 leases[i].action == LEASE_UNUSED))
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
	PendingLease *lease = &leases[nleases++];

	Assert(nleases <= max_leases);
	lease->subid = GetCurrentSubTransactionId();
	lease->action = action;
	lease->id = id;
	lease->token = token;
	lease->bundle = bundle;
	lease->stat = JOBQ_NONE;
	lease->name = 0;
	lease->notify = false;
	lease->until = until;
}

/*
 * Its holder ends the lease, as was noted: so the scheduler does not, even if its time is
 * over before this transaction is, or when the job's row can be seen anew and the lease is
 * still there.  If the transaction is undone, so is this.
 *
 * Returns whether the time was not over.  Then the scheduler has not begun to end it: it
 * looks at the clock before it takes the lock, and we after.
 */
bool
jobq_lease_leaves(JobqDatabase *db, int64 id, int64 token)
{
	JobqLease  *lease;
	bool		in_time = false;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	lease = jobq_lease_find(db, id);
	if (lease != NULL && lease->token == token)
	{
		in_time = lease->until > jobq_now();
		if (lease->state == JOBQ_LEASE_HELD)
			lease->state = JOBQ_LEASE_LEAVING;
	}
	LWLockRelease(db->lock);
	return in_time;
}

/*
 * Note that the job goes back to its queue, of which is told if "notify".  Likewise.
 */
void
jobq_at_commit_lease_back(int64 id, int64 token, bool notify)
{
	jobq_at_commit_lease(LEASE_BACK, id, token, JOBQ_NONE, 0);
	leases[nleases - 1].notify = notify;
}

/*
 * Where the job, whose lease was just noted, is counted, the hash of its kind, and whether
 * its queue is told should it come back.  They are asked for in the order in which they
 * were noted.
 */
void
jobq_at_commit_lease_given(int64 id, uint32 stat, uint32 kind, bool notify)
{
	static int	next = 0;

	for (int i = 0; i < nleases; i++)
	{
		next = next >= nleases ? 0 : next;
		if (leases[next].action == LEASE_TAKE && leases[next].id == id)
		{
			leases[next].stat = stat;
			leases[next].name = kind;
			leases[next].notify = notify;
			return;
		}
		next++;
	}
}

/*
 * Note that whoever made this bundle lets go of it at the end of this
 * transaction.  Likewise; wants db->lock.
 */
void
jobq_at_commit_bundle(JobqDatabase *db, uint32 bundle)
{
	jobq_at_commit_lease(LEASE_BUNDLE, db->leases->life, db->life, bundle, 0);
}

/*
 * Has this transaction made a bundle, which it has not let go of?
 */
bool
jobq_bundle_noted(void)
{
	for (int i = nleases - 1; i >= 0; i--)
		if (leases[i].action == LEASE_BUNDLE)
			return true;
	return false;
}

/*
 * Is it still there?  A new extension's scheduler, which may come as soon as
 * our locks are released, forgets all; so does the place of a database that is
 * left.
 */
static bool
bundle_lives(const JobqDatabase *db, const PendingLease *pending)
{
	return pending->id == db->leases->life && pending->token == db->life;
}

/*
 * The same for a bundle that this transaction has noted.  Wants db->lock.
 */
bool
jobq_bundle_lives(JobqDatabase *db, uint32 bundle)
{
	for (int i = nleases - 1; i >= 0; i--)
		if (leases[i].action == LEASE_BUNDLE && leases[i].bundle == bundle)
			return bundle_lives(db, &leases[i]);
	return false;
}

/*
 * Carry out what was noted, at commit.  Wants db->lock; cannot fail.
 */
static void
leases_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	const PendingLease *made = NULL;	/* the last bundle */

	for (int i = 0; i < nleases; i++)
	{
		PendingLease *pending = &leases[i];
		JobqLease  *lease;
		JobqPush	push;
		uint32		bundle;

		if (pending->action == LEASE_BUNDLE)
		{
			made = pending;		/* below */
			continue;
		}
		lease = jobq_lease_find(db, pending->id);
		if (lease == NULL ||
			(pending->token != 0 && lease->token != pending->token))
			continue;
		switch (pending->action)
		{
			case LEASE_TAKE:
				lease->state = JOBQ_LEASE_HELD;
				lease->stat = pending->stat;
				if (pending->name != 0)
					lease->name = pending->name;

				/* limits that have begun meanwhile have not counted it */
				if (lease->bundle == JOBQ_NONE ||
					(db->limits->begun_at >= db->leases->bundles[lease->bundle].since &&
					 db->limits->begun_at <= now))
					db->limits->stale = db->reload = wake->scheduler = true;
				db->leases->next_expiry = Min(db->leases->next_expiry, lease->until);
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
				push.notify = pending->notify;
				jobq_ready_push(db, &push, now, wake);
				jobq_lease_remove(db, lease, true, false, now, wake);
				break;
			case LEASE_UNUSED:
				jobq_lease_remove(db, lease, false, true, now, wake);
				break;
			case LEASE_EXTEND:

				/*
				 * The lease may be one that was made again, from its row,
				 * after all bundles were forgotten.
				 */
				bundle = pending->bundle;
				Assert(bundle == JOBQ_NONE ||
					   (made != NULL && made->bundle == bundle));
				if (bundle != JOBQ_NONE && !bundle_lives(db, made))
					bundle = JOBQ_NONE;
				jobq_lease_move(db, lease, bundle, pending->until);
				if (lease->until < db->wake_at)
					wake->scheduler = true;
				break;
			case LEASE_BUNDLE:
				break;
		}
	}
	/* whoever made a bundle lets go of it when its leases hold it */
	for (int i = 0; i < nleases; i++)
		if (leases[i].action == LEASE_BUNDLE && bundle_lives(db, &leases[i]))
			jobq_lease_bundle_release(db, leases[i].bundle);
	if (db->leases->ngarbage > JOBQ_LEASE_GARBAGE / 2)
		wake->scheduler = true;
	nleases = 0;
}

/*
 * The lease is not ended: the scheduler sees to it again.  Wants db->lock.
 */
static void
stays(JobqDatabase *db, const PendingLease *pending, JobqWakeList *wake)
{
	JobqLease  *lease = jobq_lease_find(db, pending->id);

	if (lease == NULL || lease->token != pending->token ||
		lease->state != JOBQ_LEASE_LEAVING)
		return;
	lease->state = JOBQ_LEASE_HELD;
	db->leases->next_expiry = Min(db->leases->next_expiry, lease->until);
	if (lease->until < db->wake_at)
		wake->scheduler = true;
}

/*
 * Undo what was taken since this subtransaction began, or at all.
 */
static void
leases_abort(SubTransactionId since)
{
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};

	if (nleases == 0 || leases[nleases - 1].subid < since)
		return;
	if (db == NULL)
	{
		nleases = 0;
		return;
	}
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	while (nleases > 0 && leases[nleases - 1].subid >= since)
	{
		PendingLease *pending = &leases[--nleases];

		if (pending->action == LEASE_BUNDLE)
		{
			if (!bundle_lives(db, pending))
				continue;
			/* its row was never there */
			ItemPointerSetInvalid(&db->leases->bundles[pending->bundle].row.ctid);
			jobq_lease_bundle_release(db, pending->bundle);
		}
		else if (pending->action == LEASE_TAKE)
		{
			JobqLease  *lease = jobq_lease_find(db, pending->id);

			if (lease != NULL && lease->token == pending->token)
			{
				JobqPush	push = jobq_lease_push(lease);
				TimestampTz now = jobq_now();

				push.notify = pending->notify;
				jobq_ready_push(db, &push, now, &wake);
				jobq_lease_remove(db, lease, false, true, now, &wake);
			}
		}
		else if (pending->action == LEASE_END || pending->action == LEASE_RETRY ||
				 pending->action == LEASE_BACK)
			stays(db, pending, &wake);
	}
	jobq_unlock(db, &wake);
}

/*
 * PREPARE TRANSACTION: an error if consumers' jobs were reserved or finished.
 */
static void
leases_check_prepare(void)
{
	for (int i = 0; i < nleases; i++)
		if (leases[i].token != 0 || leases[i].action == LEASE_BUNDLE)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has reserved or finished jobs of consumers")));
}

/*
 * Has this transaction taken or ended a lease?
 */
bool
jobq_leases_noted(void)
{
	return nleases > 0;
}

/*
 * Without a database there are no leases.
 */
static bool
leases_pending(JobqDatabase *db)
{
	if (db == NULL)
		nleases = 0;
	return nleases > 0;
}

static void
leases_give_back(void)
{
	Assert(nleases == 0);
	leases = jobq_give_back(leases, &max_leases);
}

const JobqCommitBooks lease_books =
{
	.noted = jobq_leases_noted,
	.pending = leases_pending,
	.commit = leases_commit,
	.abort = leases_abort,
	.check_prepare = leases_check_prepare,
	.give_back = leases_give_back,
};
