/*-------------------------------------------------------------------------
 *
 * process.c
 *	  What launcher, schedulers and workers have in common.
 *
 * worker/process/process.c
 *
 *-------------------------------------------------------------------------
 */
#include "process/worker.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/pidfile.h"
#include "utils/snapmgr.h"

/*
 * Establish signal handlers: die() on SIGTERM, because it respects critical
 * sections and is turned into an orderly exit at the next interrupt check.
 */
void
process_start(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
}

/*
 * Settings of the database, the role or the file that must not reach this
 * process.  A worker runs user code and keeps most of them.
 */
void
process_pin_settings(bool is_worker)
{
#define PIN(name, value) \
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE)
	PIN("idle_in_transaction_session_timeout", "0");
	PIN("default_transaction_read_only", "off");
	if (JOBQ_HAS_TRANSACTION_TIMEOUT)
		PIN("transaction_timeout", "0");
	if (is_worker)
		return;
	PIN("search_path", "pg_catalog, pg_temp");
	PIN("session_replication_role", "origin");
	PIN("row_security", "on");
	PIN("default_transaction_isolation", "read committed");
	PIN("statement_timeout", "0");
	PIN("lock_timeout", "0");
	PIN("default_tablespace", "");
	/* a standby that is down must not stop the scheduler */
	PIN("synchronous_commit", "local");
	PIN("jit", "off");
}

/*
 * Is the postmaster shutting down?  It says so in its lock file before it
 * signals anybody.
 */
bool
process_stopping(void)
{
	FILE	   *file = AllocateFile("postmaster.pid", "r");
	char		line[MAXPGPATH];
	bool		stopping = false;

	if (file == NULL)
		return true;
	for (int i = 1; fgets(line, sizeof(line), file) != NULL; i++)
		if (i == LOCK_FILE_LINE_PM_STATUS)
			stopping = strncmp(line, PM_STATUS_STOPPING,
							   strlen(PM_STATUS_STOPPING)) == 0;
	FreeFile(file);
	return stopping;
}

/*
 * Sleep until the latch is set or the time is over, and handle interrupts and
 * a reload of the configuration.  True if there was one.
 *
 * The caller has read "calls" before he looked at what there is to do.  If
 * there were others since then, or a signal, its latch may have been reset on
 * the way: do not sleep.
 */
bool
process_sleep(pg_atomic_uint32 *calls, uint32 seen, long timeout_ms,
			  uint32 wait_event)
{
	CHECK_FOR_INTERRUPTS();
	if (!ConfigReloadPending && pg_atomic_read_u32(calls) == seen)
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout_ms, wait_event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		return true;
	}
	return false;
}

/*
 * Something that a row of one of our tables asks for could not be done: note in
 * its last_error why, in a transaction of its own, unless it is locked.  True if
 * that is news, or could not be found out.
 */
bool
process_note_error(const char *table, const char *column, Oid type, Datum key,
				   const ErrorData *edata)
{
	Oid			types[] = {type, TEXTOID};
	Datum		values[] = {key, CStringGetTextDatum(edata->message)};
	MemoryContext caller = CurrentMemoryContext;
	volatile bool news = true;

	run_begin_transaction();
	jobq_lock_jobs();
	PG_TRY();
	{
		SPI_connect();
		news = jobq_query(psprintf("UPDATE jobq.%s SET last_error = $2 WHERE %s IN"
								   " (SELECT %s FROM jobq.%s WHERE %s = $1"
								   "  AND last_error IS DISTINCT FROM $2 FOR UPDATE SKIP LOCKED)",
								   table, column, column, table, column),
						  2, types, values, NULL, SPI_OK_UPDATE) > 0;
		SPI_finish();
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		HOLD_INTERRUPTS();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	return news;
}
