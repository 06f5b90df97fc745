/*-------------------------------------------------------------------------
 *
 * seen.c
 *	  Count a table with one snapshot while other transactions commit.
 *
 * After its commit, a transaction adds its notes to the number.  The count must neither lose
 * the notes nor add them twice.  Therefore the transactions in progress for the snapshot are
 * stored.  A transaction that the snapshot has seen as committed does not add its notes,
 * because the counted rows include its changes.
 *
 * The snapshot is taken under the lock under which notes are added.  A transaction that adds
 * its notes later can therefore find out whether the snapshot has seen its commit.
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
