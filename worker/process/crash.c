/*-------------------------------------------------------------------------
 *
 * crash.c
 *	  Determines which process crashed, from the messages of the postmaster.
 *
 * When a process crashes, the postmaster stops all other processes.  The postmaster first logs
 * the crashed process, and then the termination of all remaining processes, once per crash.
 * These messages are the only reliable evidence of the first crash.  Afterwards all processes
 * are gone, and processes that were too slow were killed like the culprit.  A log hook in the
 * postmaster reads the messages, and marks the culprit in the flight recorder.
 *
 * The postmaster must not be harmed.  This code therefore touches no shared memory, takes no
 * lock, and raises no error.
 *
 * worker/process/crash.c
 *
 *-------------------------------------------------------------------------
 */
#include "process/process.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/elog.h"

static emit_log_hook_type prev_emit_log = NULL;
static bool seen = false;

static void listen_to_log(ErrorData *edata);
static void postmaster_exit(int code, Datum arg);

/* Install the log hook.  Called in the postmaster, when the library is loaded. */
void
crash_listen(void)
{
	prev_emit_log = emit_log_hook;
	emit_log_hook = listen_to_log;
	on_proc_exit(postmaster_exit, (Datum) 0);
}

static bool
in_postmaster(void)
{
	return IsPostmasterEnvironment && !IsUnderPostmaster;
}

static void
listen_to_log(ErrorData *edata)
{
	static int	last_pid = 0;

	if (prev_emit_log != NULL)
		prev_emit_log(edata);
	if (!in_postmaster() || edata->elevel != LOG || edata->message_id == NULL ||
		edata->message == NULL)
		return;

	/*
	 * how a process has ended: this part of the message is never translated
	 */
	if (strstr(edata->message_id, "(PID %d)") != NULL)
	{
		const char *at = strstr(edata->message, "(PID ");

		last_pid = at == NULL ? 0 : atoi(at + strlen("(PID "));
	}
	else if (strcmp(edata->message_id,
					"terminating any other active server processes") == 0)
	{
		if (last_pid > 0)
		{
			flight_accuse(last_pid, jobq_bgworker_starter(last_pid));
			seen = true;
		}
		last_pid = 0;
	}
}

/*
 * The postmaster exits by itself, for example after a crash with restart_after_crash off.
 */
static void
postmaster_exit(int code, Datum arg)
{
	if (in_postmaster() && seen)
		flight_outlive();
}
