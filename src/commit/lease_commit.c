/*-------------------------------------------------------------------------
 *
 * lease_commit.c
 *	  Changes of leases at the end of a transaction.
 *
 * A lease is granted when its job is popped, and becomes valid when the transaction commits.
 * Changes that end or extend a lease also take effect at commit.
 *
 * src/commit/lease_commit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"

#include "utils/hsearch.h"

#include "commit/inner.h"

typedef struct PendingLease
{
	SubTransactionId subid;
	LeaseAction action;
	int64		id;
	int64		token;			/* 0: any */
	uint32		bundle;
	uint32		stat;			/* number of the job's counters */
	uint32		name;			/* hash of the kind */
	bool		notify;			/* notify the queue if the job comes back */
	bool		marked;			/* this note has marked the lease as LEAVING */
	TimestampTz until;

	/* of LEASE_BUNDLE: the lives in which the bundle was made */
	int64		leases_life;	/* JobqLeases.life */
	int64		database_life;	/* JobqDatabase.life */
} PendingLease;

static int	nleases = 0;

static PendingLease *leases = NULL; /* reused by the next transaction */
static int	max_leases = 0;

/*
 * Allocate memory for n more notes, so that jobq_at_commit_lease() cannot fail.  ERROR if out
 * of memory.
 */
void
jobq_lease_room(int n)
{
	leases = jobq_grow(leases, &max_leases, nleases + n, sizeof(PendingLease));
}

/*
 * Return whether this transaction has ended or returned the lease of the job.
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
 * Note a change of a lease for the end of this transaction.  The caller must have called
 * jobq_lease_room(): this function cannot fail.  token 0 means any token.  Takes no lock.
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
	lease->marked = false;
	lease->until = until;
}

/*
 * Mark the lease as LEAVING for this note, and return whether the lease had not expired.  A
 * pending lease does not expire.  The caller holds db->lock exclusively.
 */
static bool
leaves(JobqDatabase *db, PendingLease *pending)
{
	JobqLease  *lease = jobq_lease_find(db, pending->id);

	AssertExclusive(db->lock);
	if (lease == NULL || lease->token != pending->token)
		return false;
	if (lease->state == JOBQ_LEASE_PENDING)
		return true;
	if (lease->state == JOBQ_LEASE_HELD)
	{
		jobq_lease_to(db, lease, JOBQ_LEASE_LEAVING);
		pending->marked = true;
	}
	return lease->until > jobq_now();
}

/*
 * Mark the lease of the last note as being ended by its holder.  The scheduler then
 * does not end the lease, even if the lease expires before this transaction is over.  The same
 * holds while the job's new row is visible and the lease still exists.  A rollback removes the
 * mark.  Takes db->lock.
 *
 * Returns true if the lease has not expired.  The scheduler has then not begun to end the lease:
 * it reads the clock before it takes the lock, this function afterwards.
 */
bool
jobq_lease_leaves(JobqDatabase *db)
{
	bool		in_time;

	Assert(nleases > 0);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	in_time = leaves(db, &leases[nleases - 1]);
	LWLockRelease(db->lock);
	return in_time;
}

/*
 * Return the ids of the jobs whose leases this transaction has ended or returned, or NULL if there
 * are none.  ERROR if out of memory.
 */
static HTAB *
ended_jobs(void)
{
	HTAB	   *ended = NULL;

	for (int i = 0; i < nleases; i++)
	{
		HASHCTL		ctl = {.keysize = sizeof(int64),.entrysize = sizeof(int64),.hcxt = CurrentMemoryContext};

		if (leases[i].action == LEASE_EXTEND || leases[i].action == LEASE_BUNDLE ||
			leases[i].action == LEASE_TAKE)
			continue;
		if (ended == NULL)
			ended = hash_create("jobq ended leases", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		(void) hash_search(ended, &leases[i].id, HASH_ENTER, NULL);
	}
	return ended;
}

/*
 * Before the commit: ERROR if a lease that this transaction extends has expired or was ended
 * meanwhile.  Until the end of the commit, the scheduler does not end these leases.  Takes
 * db->lock exclusively.
 */
static void
leases_before_commit(void)
{
	JobqDatabase *db = jobq_my_database();
	bool		extends = false;
	HTAB	   *ended;
	const PendingLease *lost = NULL;

	for (int i = 0; i < nleases && !extends; i++)
		extends = leases[i].action == LEASE_EXTEND;
	if (db == NULL || !extends)
		return;
	ended = ended_jobs();
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	for (int i = nleases - 1; i >= 0 && lost == NULL; i--)
	{
		PendingLease *pending = &leases[i];

		if (pending->action == LEASE_EXTEND &&
			(ended == NULL || hash_search(ended, &pending->id, HASH_FIND, NULL) == NULL) &&
			!leaves(db, pending))
			lost = pending;
	}
	LWLockRelease(db->lock);
	if (lost != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_LEASE_LOST),
				 errmsg("a lease has ended before its extension was committed"),
				 errdetail("It was the lease of job " INT64_FORMAT ".", lost->id),
				 errhint("Commit the call of jobq.extend() at once, in a transaction of its own.")));
}

/*
 * Note the return of the job to the queue.  Sessions listening for the queue are notified
 * if notify is set.  Conditions as for jobq_at_commit_lease().
 */
void
jobq_at_commit_lease_back(int64 id, int64 token, bool notify)
{
	jobq_at_commit_lease(LEASE_BACK, id, token, JOBQ_NONE, 0);
	leases[nleases - 1].notify = notify;
}

/*
 * Set further values of the lease that was just noted as granted.  stat: number of the job's
 * counters.  kind: hash of the kind.  notify: notify the queue if the job comes back.  Calls
 * must come in the order of the notes.
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
 * Note that the creator of this bundle releases its reference at the end of this transaction.
 * Cannot fail after jobq_lease_room().  The caller holds db->lock.
 */
void
jobq_at_commit_bundle(JobqDatabase *db, uint32 bundle)
{
	AssertLocked(db->lock);
	jobq_at_commit_lease(LEASE_BUNDLE, 0, 0, bundle, 0);
	leases[nleases - 1].leases_life = db->leases->life;
	leases[nleases - 1].database_life = db->life;
}

/*
 * Return whether this transaction has created a bundle and not released its reference.
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
 * Return whether the bundle still exists.  The scheduler of a new extension may start as soon
 * as the locks of this transaction are released, and clears all bundles.  The bundles are also
 * cleared when the database loses its slot.
 */
static bool
bundle_lives(const JobqDatabase *db, const PendingLease *pending)
{
	AssertLocked(db->lock);
	return pending->leases_life == db->leases->life && pending->database_life == db->life;
}

/*
 * Return whether a bundle still exists that this transaction has noted.  The caller holds
 * db->lock.
 */
bool
jobq_bundle_lives(JobqDatabase *db, uint32 bundle)
{
	AssertLocked(db->lock);
	for (int i = nleases - 1; i >= 0; i--)
		if (leases[i].action == LEASE_BUNDLE && leases[i].bundle == bundle)
			return bundle_lives(db, &leases[i]);
	return false;
}

/*
 * Carry out the notes at commit.  Cannot fail.
 */
static void
leases_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	const PendingLease *made = NULL;	/* the last bundle */

	AssertExclusive(db->lock);
	for (int i = 0; i < nleases; i++)
	{
		PendingLease *pending = &leases[i];
		JobqLease  *lease;
		JobqPush	push;
		uint32		bundle;

		if (pending->action == LEASE_BUNDLE)
		{
			made = pending;		/* see below */
			continue;
		}
		lease = jobq_lease_find(db, pending->id);
		if (lease == NULL ||
			(pending->token != 0 && lease->token != pending->token))
			continue;
		switch (pending->action)
		{
			case LEASE_TAKE:

				/*
				 * a scheduler may have shown the lease, and the client may
				 * leave it
				 */
				if (lease->state != JOBQ_LEASE_LEAVING)
					jobq_lease_to(db, lease, JOBQ_LEASE_HELD);
				lease->stat = pending->stat;
				if (pending->name != 0)
					lease->name = pending->name;

				/* limits that started meanwhile have not counted the job */
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
				 * The lease may have been created again from its row, after
				 * all bundles were cleared.
				 */
				bundle = pending->bundle;
				Assert(bundle == JOBQ_NONE ||
					   (made != NULL && made->bundle == bundle));
				if (bundle != JOBQ_NONE && !bundle_lives(db, made))
					bundle = JOBQ_NONE;
				if (pending->marked)
					jobq_lease_to(db, lease, JOBQ_LEASE_HELD);
				jobq_lease_move(db, lease, bundle, pending->until);
				if (lease->until < db->wake_at)
					wake->scheduler = true;
				break;
			case LEASE_BUNDLE:
				break;
		}
	}
	/* a creator releases the bundle when leases refer to the bundle */
	for (int i = 0; i < nleases; i++)
		if (leases[i].action == LEASE_BUNDLE && bundle_lives(db, &leases[i]))
			jobq_lease_bundle_release(db, leases[i].bundle);
	if (db->leases->ngarbage > JOBQ_LEASE_GARBAGE / 2)
		wake->scheduler = true;
	nleases = 0;
}

/*
 * The end or the extension of the lease was rolled back: the scheduler watches the lease again.
 */
static void
stays(JobqDatabase *db, const PendingLease *pending, JobqWakeList *wake)
{
	JobqLease  *lease = jobq_lease_find(db, pending->id);

	AssertExclusive(db->lock);
	if (lease == NULL || lease->token != pending->token || !pending->marked)
		return;
	jobq_lease_to(db, lease, JOBQ_LEASE_HELD);
	db->leases->next_expiry = Min(db->leases->next_expiry, lease->until);
	if (lease->until < db->wake_at)
		wake->scheduler = true;
}

/* Undo what was noted since this subtransaction began, or all notes. */
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
			/* the row was never visible */
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
				 pending->action == LEASE_BACK || pending->action == LEASE_EXTEND)
			stays(db, pending, &wake);
	}
	jobq_unlock(db, &wake);
}

/*
 * PREPARE TRANSACTION: ERROR if jobs of consumers were reserved or finished.
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

/* Return whether this transaction has granted or ended a lease. */
bool
jobq_leases_noted(void)
{
	return nleases > 0;
}

/* Without a database slot there are no leases. */
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
	.before_commit = leases_before_commit,
	.commit = leases_commit,
	.abort = leases_abort,
	.check_prepare = leases_check_prepare,
	.give_back = leases_give_back,
};
