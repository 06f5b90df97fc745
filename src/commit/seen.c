/*-------------------------------------------------------------------------
 *
 * seen.c
 *	  Count a table with one snapshot while other transactions commit.
 *
 * A transaction adds its notes to the number after the commit.  The count must neither lose
 * notes nor add notes twice.  Therefore the transactions in progress for the snapshot are
 * stored.  If the snapshot has seen a transaction as committed, the counted rows include the
 * changes, and the transaction does not add its notes.
 *
 * The snapshot is taken under the lock that is held when notes are added.  A transaction can
 * therefore find out, when adding notes later, whether the snapshot has seen the commit.
 *
 * src/commit/seen.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/transam.h"

#include "commit/commit.h"

/*
 * Store which transactions the snapshot has seen as committed.  xip: room for max transaction
 * ids.  own: a further transaction that counts as in progress, or InvalidTransactionId.
 * Returns false, and stores nothing, without enough room.  Cannot fail.
 */
bool
jobq_seen_set(JobqSeen *seen, TransactionId *xip, int max, Snapshot snapshot,
			  TransactionId own)
{
	FullTransactionId next;
	int			n = snapshot->xcnt;

	if (n + (TransactionIdIsValid(own) ? 1 : 0) > max)
		return false;
	next = ReadNextFullTransactionId();
	seen->xmax = FullTransactionIdFromU64(U64FromFullTransactionId(next) -
										  (uint32) (XidFromFullTransactionId(next) - snapshot->xmax));
	memcpy(xip, snapshot->xip, sizeof(TransactionId) * n);
	if (TransactionIdIsValid(own))
		xip[n++] = own;
	seen->nxip = n;
	return true;
}

/*
 * Return whether the transaction, committed since, was in progress for the snapshot.
 */
bool
jobq_seen_missed(const JobqSeen *seen, const TransactionId *xip, FullTransactionId fxid)
{
	if (FullTransactionIdFollowsOrEquals(fxid, seen->xmax))
		return true;
	for (int i = 0; i < seen->nxip; i++)
		if (xip[i] == XidFromFullTransactionId(fxid))
			return true;
	return false;
}
