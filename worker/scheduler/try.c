/*-------------------------------------------------------------------------
 *
 * try.c
 *	  A transaction of the scheduler whose error is its own affair.
 *
 * What a schedule or a batch asks for may fail, because of what its owner has
 * written or done.  Then that is rolled back, and the loop goes on.  It may also
 * meet a lock of a transaction that stays open: that is an error, too, after
 * LOCK_PATIENCE.
 *
 * Several such things may share a transaction, so that they are flushed together:
 * then each is a part of it whose error undoes that part only.
 *
 * worker/scheduler/try.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"

/*
 * For PG_CATCH(): the error, in the caller's memory context, which is the current one
 * afterwards; and nothing of the transaction is left.
 */
ErrorData *
scheduler_caught(MemoryContext caller)
{
	ErrorData  *edata;

	MemoryContextSwitchTo(caller);
	HOLD_INTERRUPTS();
	edata = CopyErrorData();
	FlushErrorState();
	AbortOutOfAnyTransaction();
	RESUME_INTERRUPTS();
	MemoryContextSwitchTo(caller);
	return edata;
}

/*
 * Run body(arg) in a transaction of its own, with SPI connected and the table of
 * jobs locked against DROP EXTENSION; it looks itself whether the extension is
 * still there.  Returns NULL if that has committed; otherwise the error, in the
 * current memory context, and nothing of the transaction is left.  If a lock was
 * not to be had in time, that is ERRCODE_LOCK_NOT_AVAILABLE.
 */
ErrorData *
scheduler_try(void (*body) (void *arg), void *arg)
{
	MemoryContext caller = CurrentMemoryContext;
	ErrorData  *volatile edata = NULL;

	PG_TRY();
	{
		process_begin_transaction();
		(void) set_config_option("lock_timeout", LOCK_PATIENCE, PGC_SUSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0,
								 false);
		jobq_lock_jobs();
		SPI_connect();
		body(arg);
		SPI_finish();
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		edata = scheduler_caught(caller);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	return edata;
}

/*
 * The transaction need not wait for the flush of its commit: whoever tells of what it
 * has done flushes first (src/commit/flush.c), and a crash undoes it as a whole.
 */
void
scheduler_commit_quietly(void)
{
	if (jobq_synchronous_commit)
		return;
	if (synchronous_commit != SYNCHRONOUS_COMMIT_OFF)
		(void) set_config_option("synchronous_commit", "off", PGC_SUSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0,
								 false);
	jobq_commit_quietly();
}

/*
 * Run body(arg) as a part of a transaction that scheduler_try() has begun, with
 * SPI connected for it.  Returns NULL; or the error, in the current memory context,
 * and nothing of the part is left.
 */
ErrorData *
scheduler_try_part(void (*body) (void *arg), void *arg)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile edata = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		SPI_connect();
		body(arg);
		SPI_finish();
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		edata = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	return edata;
}
