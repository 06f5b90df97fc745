/*-------------------------------------------------------------------------
 *
 * process.c
 *	  Functions shared by the processes of jobq.
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

#include "commit/commit.h"

JobqDatabase *my_db = NULL;
int			my_db_index = -1;

static emit_log_hook_type prev_emit_log = NULL;

static void emit_log(ErrorData *edata);

/*
 * Have the postmaster start a process without automatic restart.  The caller is notified when
 * the process starts and ends, and supervises it.  False if no process slot is free.  If handle
 * is not NULL, *handle is set, in the caller's memory context.
 */
bool
process_register(const ProcessToStart *process, BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *started;

	Assert(process->extra_size <= BGW_EXTRALEN);
	worker.bgw_flags = JOBQ_WORKER_FLAGS;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "jobq", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, process->function, BGW_MAXLEN);
	strlcpy(worker.bgw_name, process->name, BGW_MAXLEN);
	strlcpy(worker.bgw_type, process->type, BGW_MAXLEN);
	worker.bgw_main_arg = process->arg;
	worker.bgw_notify_pid = MyProcPid;
	memcpy(worker.bgw_extra, process->extra, process->extra_size);
	if (!RegisterDynamicBackgroundWorker(&worker, &started))
		return false;
	if (handle != NULL)
		*handle = started;
	else
		pfree(started);
	return true;
}

/* Set the database that this process serves, as an index in shared memory. */
void
process_serve(int database)
{
	my_db_index = database;
	my_db = &jobq_shared->databases[database];
}

/*
 * The worker of this slot is gone: release its resources.  The slot may then be reassigned,
 * also to another database.  For live and unused see jobq_permits_release().  Takes db->lock
 * exclusively.
 */
void
process_slot_gone(JobqDatabase *db, JobqSlot *slot, bool live, bool unused, TimestampTz now)
{
	JobqWakeList wake = {0};

	if (slot->holding->lines.n > 0)
		jobq_lines_clear(&slot->holding->lines);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_permits_release(db, &slot->holding->permits, slot->holding->permits_job, live,
						 unused, now, &wake);
	jobq_slot_release_more(db, slot, slot->holding->nmore, unused, now, &wake);
	jobq_set_leave_all(db, slot, now, &wake);
	jobq_unlock(db, &wake);
}

/*
 * Install signal handlers, and read the configuration.  SIGTERM is die(), because die()
 * respects critical sections.  The process then exits at the next interrupt check, in a
 * handler or in a query.
 */
void
process_start(void)
{
	prev_emit_log = emit_log_hook;
	emit_log_hook = emit_log;
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	jobq_commit_quietly();

	/* a background worker ignores SIGHUP until now: a reload may be lost */
	ProcessConfigFile(PGC_SIGHUP);
	BackgroundWorkerUnblockSignals();
}

/* Log no error when a process is terminated because the server is being stopped. */
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
 * Handle interrupts between two jobs or two duties, or before a sleep.  If the server is being
 * stopped, the process exits here by itself, and the postmaster logs nothing.  The launcher
 * exits with 1, which the postmaster logs.  After a 0 the postmaster would not restart the
 * launcher if the stop does not happen.
 */
void
process_interrupts(void)
{
	if (ProcDiePending && process_stopping())
		proc_exit(my_db == NULL ? 1 : 0);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Override settings of the database, the role or the configuration file that must not affect
 * this process.  A worker runs user code and keeps most settings.
 */
void
process_pin_settings(bool is_worker)
{
#define PIN(name, value) \
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE)
	PIN("idle_in_transaction_session_timeout", "0");
	PIN("default_transaction_read_only", "off");
	/* an error must not end a process of jobq */
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
	/* workers and users need the slots of parallel workers */
	PIN("max_parallel_workers_per_gather", "0");
}

/*
 * Disable lock_timeout until the end of the transaction, or of the nest level of settings.
 * lock_timeout is meant for handlers, not for writes about their jobs.
 */
void
process_wait_for_locks(void)
{
	if (LockTimeout > 0)
		(void) set_config_option("lock_timeout", "0", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Load the libraries that the database or the role requires in each session, because they may
 * restrict the session.  The server does this for clients only.  Runs a transaction.
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
 * True if the server is being stopped, or the postmaster is dead.  A process that ends now is
 * not at fault.  The postmaster records the stop in the lock file before sending signals.  If
 * the postmaster was killed, the file shows nothing, but a process that reacts to the death
 * checks later.  Raises no error.
 */
bool
process_stopping(void)
{
	char		buffer[2 * MAXPGPATH + 1024];
	char	   *line = buffer;
	int			fd;
	ssize_t		n;

	/* not PostmasterIsAlive(), which waits for a signal that may be late */
	if (!PostmasterIsAliveInternal())
		return true;
	fd = BasicOpenFile("postmaster.pid", O_RDONLY | PG_BINARY);
	if (fd < 0)
		return true;
	n = read(fd, buffer, sizeof(buffer) - 1);
	close(fd);
	buffer[Max(n, 0)] = '\0';

	for (int i = 1; i < LOCK_FILE_LINE_PM_STATUS && line != NULL; i++)
	{
		line = strchr(line, '\n');
		if (line != NULL)
			line++;
	}
	return line != NULL && strncmp(line, PM_STATUS_STOPPING,
								   strlen(PM_STATUS_STOPPING)) == 0;
}

/* The number of processors of the machine. */
int
process_processors(void)
{
	static int	n = 0;

	if (n == 0)
		n = Max((int) sysconf(_SC_NPROCESSORS_ONLN), 1);
	return n;
}

/*
 * Sleep until the latch is set or the timeout (in milliseconds) is over.  Handle interrupts
 * and a reload of the configuration.  Returns true after a reload.
 *
 * The caller has read "calls" before checking for work, and passes the value as "seen".  If
 * "calls" has changed, or a signal has arrived, the latch may have been reset meanwhile.  The
 * function then does not sleep.
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

/* Start a transaction with an active snapshot. */
void
process_begin_transaction(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}
