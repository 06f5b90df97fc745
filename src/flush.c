/*-------------------------------------------------------------------------
 *
 * flush.c
 *	  Told means durable: workers do not wait for the flush of their commits,
 *	  so whoever tells somebody of a job flushes first.
 *
 * src/flush.c
 *
 *-------------------------------------------------------------------------
 */
#include "jobq.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/lwlock.h"

#include "commit.h"

/*
 * Are there synchronous standbys, for whose flush a commit waits?
 */
static bool
replicated_synchronously(void)
{
	return SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0';
}

/*
 * Flush all that is visible; the position up to which that was.
 */
XLogRecPtr
jobq_flush(void)
{
	XLogRecPtr	lsn;

	/* two waits for one position are not foreseen: have one of our own */
	if (replicated_synchronously())
		lsn = jobq_log_message();
	else
	{
		/*
		 * This is where the next record will begin: behind a page header, if
		 * the last one has filled its page, and then nothing is there to be
		 * flushed.
		 */
		lsn = GetXLogInsertRecPtr();
		if (XLogSegmentOffset(lsn, wal_segment_size) == SizeOfXLogLongPHD)
			lsn -= SizeOfXLogLongPHD;
		else if (lsn % XLOG_BLCKSZ == SizeOfXLogShortPHD)
			lsn -= SizeOfXLogShortPHD;
	}
	XLogFlush(lsn);
	return lsn;
}

/*
 * Have the synchronous standbys, if there are any, flushed up to here?
 */
bool
jobq_replicated(XLogRecPtr lsn)
{
	bool		replicated;

	if (!replicated_synchronously())
		return true;
	LWLockAcquire(SyncRepLock, LW_SHARED);
	replicated = WalSndCtl->lsn[SYNC_REP_WAIT_FLUSH] >= lsn;
	LWLockRelease(SyncRepLock);
	return replicated;
}

/*
 * See that all that is visible is durable, and replicated where that is asked
 * for, before somebody is told of it: workers do not wait for the flush of
 * their commits.
 */
void
jobq_flush_before_telling(void)
{
	XLogRecPtr	lsn;

	if (RecoveryInProgress())
		return;
	lsn = jobq_flush();
	if (SyncRepRequested() && replicated_synchronously())
	{
		/* as in a commit: a cancel ends the wait with a warning */
		HOLD_INTERRUPTS();
		SyncRepWaitForLSN(lsn, true);
		RESUME_INTERRUPTS();
	}
}
