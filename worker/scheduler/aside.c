/*-------------------------------------------------------------------------
 *
 * aside.c
 *	  Processes for long work of the scheduler, which continues meanwhile.
 *
 * The process connects like the scheduler, does one piece of work, and exits.  The process
 * exits early if the scheduler is gone or must leave the database.
 *
 * worker/scheduler/aside.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "commit/commit.h"

/* Arguments of the process: its database and its scheduler. */
typedef struct AsideStart
{
	Oid			dboid;
	int			scheduler_pid;
} AsideStart;

/* The scheduler of this process; 0 in the scheduler itself. */
static int	my_scheduler_pid = 0;

/*
 * Start a process of this type, such as "jobq counter", with this main function.  Returns a
 * handle for aside_over(), or NULL if the server has no free background worker slot.
 */
BackgroundWorkerHandle *
aside_start(const char *type, const char *function)
{
	AsideStart	start = {MyDatabaseId, MyProcPid};
	MemoryContext caller = MemoryContextSwitchTo(TopMemoryContext);
	BackgroundWorkerHandle *handle;
	char		name[BGW_MAXLEN];
	ProcessToStart process = {
		.type = type,.name = name,.function = function,
		.arg = Int32GetDatum(my_db_index),.extra = &start,.extra_size = sizeof(start)
	};

	snprintf(name, sizeof(name), "%s for database %u", type, MyDatabaseId);
	if (!process_register(&process, &handle))
		handle = NULL;
	MemoryContextSwitchTo(caller);
	return handle;
}

/*
 * True if the process has ended.
 */
bool
aside_gone(BackgroundWorkerHandle *process)
{
	pid_t		pid;

	return GetBackgroundWorkerPid(process, &pid) == BGWH_STOPPED;
}

/*
 * Free the handle if the process has ended: sets *process to NULL and returns true.
 */
bool
aside_over(BackgroundWorkerHandle **process)
{
	if (!aside_gone(*process))
		return false;
	pfree(*process);
	*process = NULL;
	return true;
}

/*
 * Begin the main function of the process: connect, and switch to a new memory context.
 */
void
aside_begin(Datum main_arg, const char *activity)
{
	AsideStart	start;

	memcpy(&start, MyBgworkerEntry->bgw_extra, sizeof(start));
	process_serve(DatumGetInt32(main_arg));
	process_start();
	my_scheduler_pid = start.scheduler_pid;
	aside_leave_if_unwanted();
	BackgroundWorkerInitializeConnectionByOid(start.dboid, InvalidOid, 0);
	process_pin_settings(false);
	SetConfigOption("lock_timeout", DUTY_LOCK_TIMEOUT, PGC_SUSET, PGC_S_OVERRIDE);
	jobq_tells_by_relay = true;
	MemoryContextSwitchTo(AllocSetContextCreate(TopMemoryContext, "jobq aside",
												ALLOCSET_DEFAULT_SIZES));
	pgstat_report_activity(STATE_RUNNING, activity);
}

/*
 * Handle interrupts.  The process exits if the scheduler no longer needs the result.
 */
void
aside_leave_if_unwanted(void)
{
	process_interrupts();
	if (my_scheduler_pid != 0 &&
		(my_db->stop || my_db->scheduler_pid != my_scheduler_pid))
		proc_exit(0);
}
