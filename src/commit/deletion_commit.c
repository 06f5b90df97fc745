/*-------------------------------------------------------------------------
 *
 * deletion_commit.c
 *	  Hands over, at abort, the jobs whose rows a transaction has deleted.
 *
 * A worker or a consumer that has popped such a job meanwhile has found its row taken
 * and has dropped its entry.
 *
 * src/commit/deletion_commit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"

#include "commit/inner.h"

#define MAX_DELETIONS	64

/* A job whose row is deleted. */
typedef struct PendingDeletion
{
	SubTransactionId subid;
	JobqPush	push;
} PendingDeletion;

/* In the order of their subtransactions. */
static PendingDeletion deletions[MAX_DELETIONS];
static int	ndeletions = 0;

/* The subtransaction of the last deletion that found no room, or invalid. */
static SubTransactionId more_in = InvalidSubTransactionId;

/*
 * At abort, hand over a job whose row this transaction has deleted.
 */
void
jobq_at_abort_push(const JobqPush *push)
{
	if (ndeletions == MAX_DELETIONS)
	{
		more_in = Max(more_in, GetCurrentSubTransactionId());
		return;
	}
	deletions[ndeletions].subid = GetCurrentSubTransactionId();
	deletions[ndeletions].push = *push;
	ndeletions++;
}

static void
forget_deletions(void)
{
	ndeletions = 0;
	more_in = InvalidSubTransactionId;
}

static bool
deletions_noted(void)
{
	return ndeletions > 0 || more_in != InvalidSubTransactionId;
}

/*
 * What has committed is deleted for good.
 */
static bool
deletions_pending(JobqDatabase *db)
{
	forget_deletions();
	return false;
}

/*
 * A session that catches errors by the thousand comes by here each time.  So a
 * subtransaction that has deleted nothing touches no shared memory.
 */
static void
deletions_abort(SubTransactionId since)
{
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};
	bool		more = more_in != InvalidSubTransactionId && more_in >= since;

	if (!more && (ndeletions == 0 || deletions[ndeletions - 1].subid < since))
		return;
	if (db != NULL)
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (more && db != NULL)
	{
		db->rescan = true;
		wake.scheduler = true;
	}
	while (ndeletions > 0 && deletions[ndeletions - 1].subid >= since)
	{
		ndeletions--;
		if (db != NULL && db->scheduler != NULL)
			jobq_ready_push(db, &deletions[ndeletions].push, jobq_now(), &wake);
	}
	if (db != NULL)
		jobq_unlock(db, &wake);
	if (since == InvalidSubTransactionId)
		forget_deletions();
}

const JobqCommitBooks deletion_books =
{
	.noted = deletions_noted,
	.pending = deletions_pending,
	.abort = deletions_abort,
	.prepare = forget_deletions,
};
