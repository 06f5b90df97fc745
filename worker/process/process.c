/*-------------------------------------------------------------------------
 *
 * process.c
 *	  What the processes of jobq have in common.
 *
 * worker/process/process.c
 *
 *-------------------------------------------------------------------------
 */
#include "process/process.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/pidfile.h"
#include "utils/snapmgr.h"

JobqDatabase *my_db = NULL;
int			my_db_index = -1;

static emit_log_hook_type prev_emit_log = NULL;

static void emit_log(ErrorData *edata);

/*
 * Have the postmaster start a process that is not started again when it ends:
 * who registers it is woken when it comes and goes, and looks after it.  The
 * process finds "extra" in its bgw_extra.  False if the server has no place for
 * another process; otherwise *process, if that is wanted, is in the caller's memory
 * context.
 */
bool
process_register(const char *type, const char *name, const char *function,
				 Datum arg, const void *extra, Size extra_size,
				 BackgroundWorkerHandle **process)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;

	Assert(extra_size <= BGW_EXTRALEN);
	worker.bgw_flags = JOBQ_WORKER_FLAGS;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "jobq", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, function, BGW_MAXLEN);
	strlcpy(worker.bgw_name, name, BGW_MAXLEN);
	strlcpy(worker.bgw_type, type, BGW_MAXLEN);
	worker.bgw_main_arg = arg;
	worker.bgw_notify_pid = MyProcPid;
	if (extra_size > 0)
		memcpy(worker.bgw_extra, extra, extra_size);
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		return false;
	if (process != NULL)
		*process = handle;
	else
		pfree(handle);
	return true;
}

/*
 * This process serves the database with this place in shared memory.
 */
void
process_serve(int database)
{
	my_db_index = database;
	my_db = &jobq_shared->databases[database];
}

/*
 * The worker in this slot is gone: it holds nothing any more, and the slot may be given
 * to another, of any database.  For live and unused see jobq_permits_release().  Takes
 * db->lock.
 */
void
process_slot_gone(JobqDatabase *db, JobqSlot *slot, bool live, bool unused, TimestampTz now)
{
	JobqWakeList wake = {0};

	if (slot->holding->lines.n > 0)
		jobq_lines_clear(&slot->holding->lines);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_slot_release(db, slot, live, unused, now, &wake);
	jobq_unlock(db, &wake);
}

/*
 * Establish signal handlers: die() on SIGTERM, because it respects critical
 * sections and is turned into an orderly exit at the next interrupt check,
 * wherever a handler or a query of ours has got to.
 */
void
process_start(void)
{
	prev_emit_log = emit_log_hook;
	emit_log_hook = emit_log;
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
}

/*
 * That a process is terminated because the server is being stopped is no news,
 * and no error.
 */
static void
emit_log(ErrorData *edata)
{
	if (prev_emit_log != NULL)
		prev_emit_log(edata);
	if (edata->elevel == FATAL &&
		edata->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN && process_stopping())
		edata->output_to_server = false;
}

/*
 * Handle interrupts, where nothing is going on: between two jobs, two duties, or
 * before a sleep.  If the server is being stopped, the process ends here as if
 * by itself, and the postmaster does not speak of it.  But the launcher ends with
 * 1, which the postmaster logs: after a 0 it would not start it again, should it
 * live on.
 */
void
process_interrupts(void)
{
	if (ProcDiePending && process_stopping())
		proc_exit(my_db == NULL ? 1 : 0);
	CHECK_FOR_INTERRUPTS();
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
	/* who lives on after an error must not be ended by it */
	PIN("exit_on_error", "off");
	if (JOBQ_HAS_TRANSACTION_TIMEOUT)
		PIN("transaction_timeout", "0");
	if (is_worker)
		return;
	PIN("role", "none");
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
 * Until the end of the transaction, or of its level of settings, wait for locks as
 * long as it takes: lock_timeout is meant for what handlers do, and not for what is
 * written about their jobs.
 */
void
process_wait_for_locks(void)
{
	if (LockTimeout > 0)
		(void) set_config_option("lock_timeout", "0", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Load the libraries that the database or the role wants in each session, which may
 * restrict what it can do.  The server does that for clients only.
 */
void
process_load_libraries(void)
{
	if (session_preload_libraries_string[0] == '\0' &&
		local_preload_libraries_string[0] == '\0')
		return;
	StartTransactionCommand();
	process_session_preload_libraries();
	CommitTransactionCommand();
}

/*
 * Is the server being stopped, or is the postmaster dead?  Then what ends does so
 * through no fault of its own.  The postmaster says so in its lock file before
 * it signals anybody.  If it was killed, the file tells nothing, but whoever
 * has noticed comes later than its death.  Raises no error.
 */
bool
process_stopping(void)
{
	char text[	2 * MAXPGPATH + 1024];
	char	   *line = text;
	int			fd;
	ssize_t		n;

	/* not PostmasterIsAlive(), which waits for a signal that may be late */
	if (!PostmasterIsAliveInternal())
		return true;
	fd = BasicOpenFile("postmaster.pid", O_RDONLY | PG_BINARY);
	if (fd < 0)
		return true;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[		Max(n, 0)] = '\0';

	for (int i = 1; i < LOCK_FILE_LINE_PM_STATUS && line != NULL; i++)
	{
		line = strchr(line, '\n');
		if (line != NULL)
			line++;
	}
	return line != NULL && strncmp(line, PM_STATUS_STOPPING,
								   strlen(PM_STATUS_STOPPING)) == 0;
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
	process_interrupts();
	if (!ConfigReloadPending && pg_atomic_read_u32(calls) == seen)
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout_ms, wait_event);
	ResetLatch(MyLatch);
	process_interrupts();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		return true;
	}
	return false;
}

/*
 * Start a transaction with an active snapshot.
 */
void
process_begin_transaction(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}
