/*-------------------------------------------------------------------------
 *
 * flush.c
 *	  Flush before notification.
 *
 * Workers do not wait for the flush of their commits.  A process that reports a job's state to
 * another session or to a client must therefore flush the WAL first.
 *
 * src/commit/flush.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"

#include "commit/inner.h"

/*
 * Milliseconds between two commits of a process that may wake the WAL writer.
 */
#define WALWRITER_PAUSE	10

/* Return whether commits wait for the flush of synchronous standbys. */
static bool
replicated_synchronously(void)
{
	return SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0';
}

/*
 * Flush all visible changes.  Returns the position up to which the WAL was flushed.
 */
XLogRecPtr
jobq_flush(void)
{
	XLogRecPtr	lsn;

	/* SyncRepWaitForLSN() needs a position of its own for each wait */
	if (replicated_synchronously())
		lsn = jobq_log_message();
	else
	{
		/*
		 * The position of the next record.  If the last record has filled its
		 * page, the position is behind the header of the next page, and there
		 * is nothing to flush on that page.
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
 * Return whether synchronous standbys, if any, have flushed up to lsn.  Takes SyncRepLock in
 * shared mode.
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
 * Make all visible changes durable and, if configured, replicated, before a process reports
 * the changes to a session.  See the head of this file.  Does nothing in recovery.  The
 * caller holds no lock.
 */
void
jobq_flush_before_telling(void)
{
	XLogRecPtr	lsn;

	AssertUnlocked();
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

/* Whether the commits of this process seldom wake the WAL writer. */
static bool quiet = false;

/*
 * From now on, the commits of this process wake the WAL writer only from time to time.  Called
 * at the start of a process of jobq.
 *
 * Before PostgreSQL 17, each asynchronous commit wakes the WAL writer, even if no full page is
 * to be written.  On a busy machine, the WAL writer then takes the processor from a worker,
 * and often from a worker that other processes wait for.  flush_before_commit() therefore sets
 * the latch of the WAL writer without a signal.  The commit finds the latch set, and the WAL
 * writer sleeps until the end of its delay.  The same holds for the commits of procedures.
 *
 * The WAL writer must not be in its long sleep, which begins after some seconds without work.
 * The last commit of this process that was allowed to wake the WAL writer was at most
 * WALWRITER_PAUSE milliseconds ago.  The last commit came before the WAL writer searched for
 * work, or woke the WAL writer, or found the latch set by a second process.  The same holds for
 * the second process.  All commits, also of other sessions, are therefore flushed within the
 * time that synchronous_commit = off promises.
 */
void
jobq_commit_quietly(void)
{
	quiet = true;
}

/* The transaction is about to commit.  See jobq_commit_quietly(). */
void
flush_before_commit(void)
{
	static JobqSteady woken_at = 0;
	Latch	   *latch = jobq_walwriter_latch();

	/* a commit that writes nothing, or flushes by itself, wakes no process */
	if (latch == NULL || !quiet || synchronous_commit != SYNCHRONOUS_COMMIT_OFF ||
		!TransactionIdIsValid(GetTopTransactionIdIfAny()) || jobq_commit_deletes_files())
		return;
	if (!jobq_once_in(&woken_at, WALWRITER_PAUSE * 1000))
		latch->is_set = true;
}
