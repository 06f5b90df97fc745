/*-------------------------------------------------------------------------
 *
 * deletion_commit.c
 *	  Hand-over, at abort, of the jobs with rows deleted by the transaction.
 *
 * A worker or consumer may have popped one of these jobs meanwhile.  The process has found the
 * row locked, and has dropped the entry.
 *
 * src/commit/deletion_commit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"

#include "commit/inner.h"

#define MAX_DELETIONS	64

/* A job with a deleted row. */
typedef struct PendingDeletion
{
	SubTransactionId subid;
	JobqPush	push;
} PendingDeletion;

/* In the order of their subtransactions. */
static PendingDeletion deletions[MAX_DELETIONS];
static int	ndeletions = 0;

/*
 * The latest subtransaction with a deletion that did not fit the array, or invalid.
 */
static SubTransactionId more_in = InvalidSubTransactionId;

/*
 * At abort, hand over a job with a row that this transaction has deleted.  If the array is
 * full, the scheduler reads all lanes instead.  Takes no lock.
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

/* A committed deletion is final. */
static bool
deletions_pending(JobqDatabase *db)
{
	forget_deletions();
	return false;
}

/*
 * A session may catch thousands of errors, and each one calls this function.  A subtransaction
 * without deletions therefore touches no shared memory.
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
