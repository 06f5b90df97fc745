/*-------------------------------------------------------------------------
 *
 * flush.c
 *	  Told means durable: workers do not wait for the flush of their commits,
 *	  so whoever tells somebody of a job flushes first.
 *
 * src/commit/flush.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"

#include "commit/commit.h"

/* Milliseconds between two commits of a worker that may wake the WAL writer. */
#define WALWRITER_PAUSE	10

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

/*
 * The caller is about to commit without waiting for the flush.
 *
 * Before 17 each such commit wakes the WAL writer, even if not a page is there
 * to be written; on a busy machine that takes the processor from a worker, and
 * often from one that others wait for.  So we set its latch without a signal:
 * the commit finds it set, and the WAL writer sleeps to the end of its delay.
 *
 * It must not be in its long sleep then, which follows upon some seconds
 * without work.  It is not: our last commit that was free to wake it was a
 * moment ago, and came before it looked for work, or woke it, or found its latch
 * set by another worker, for which the same holds.  So commits, also those of
 * other sessions, are in the log when synchronous_commit = off promises it.
 */
void
jobq_commit_quietly(void)
{
	static TimestampTz woken_at = 0;
	Latch	   *latch = jobq_walwriter_latch();
	TimestampTz now;

	if (latch == NULL)
		return;
	now = jobq_last_now;		/* when the job's end was written */
	if (now < woken_at || now >= woken_at + WALWRITER_PAUSE * 1000)
		woken_at = now;
	else
		latch->is_set = true;
}
