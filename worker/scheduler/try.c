/*-------------------------------------------------------------------------
 *
 * try.c
 *	  Transactions of the scheduler with their own error handling.
 *
 * Work for a schedule or a batch may fail because of the owner's input or actions.  The
 * work is then rolled back, and the scheduler continues.  A wait for a lock ends with an
 * error after DUTY_LOCK_TIMEOUT.
 *
 * Several pieces of work may share a transaction, so that one flush is enough.  Each
 * piece is then a subtransaction, and an error undoes only its own piece.
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
 * For use in PG_CATCH().  Aborts the transaction.  Returns the error, in the caller's
 * memory context, which becomes current.
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
 * Run body(arg) in a transaction of its own.  SPI is connected, and the table of jobs
 * is locked against DROP EXTENSION.  The body must check for the existence of the
 * extension.  Returns NULL after the commit.  On an error, the transaction is rolled
 * back and the error is returned, in the current memory context.  A lock timeout has
 * the code ERRCODE_LOCK_NOT_AVAILABLE.
 */
ErrorData *
scheduler_try(void (*body) (void *arg), void *arg)
{
	MemoryContext caller = CurrentMemoryContext;
	ErrorData  *volatile edata = NULL;

	PG_TRY();
	{
		process_begin_transaction();
		(void) set_config_option("lock_timeout", DUTY_LOCK_TIMEOUT, PGC_SUSET,
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
 * Do not wait for the flush of this commit.  A process that reports the result flushes
 * first (src/commit/flush.c), and a crash undoes the transaction as a whole.
 */
void
scheduler_commit_quietly(void)
{
	if (!jobq_synchronous_commit && synchronous_commit != SYNCHRONOUS_COMMIT_OFF)
		(void) set_config_option("synchronous_commit", "off", PGC_SUSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0,
								 false);
}

/*
 * Run body(arg) as a subtransaction within scheduler_try(), with SPI connected.
 * Returns NULL, or the error in the current memory context after the rollback of the
 * subtransaction.
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
