/*-------------------------------------------------------------------------
 *
 * crash.c
 *	  Whose crash it was: what the postmaster knows.
 *
 * When a process crashes, the postmaster stops all others.  It says in the log
 * which one it was, and that it terminates the others, in this order and before
 * it does so; in each crash it says that once.  That is the only trustworthy
 * word about who was the first: afterwards all processes are gone, and those who
 * were too slow were killed like the culprit.  A hook of the log listens to it,
 * in the postmaster itself, and notes it in the flight recorder.
 *
 * The postmaster must not come to harm.  So this touches no shared memory and
 * takes no lock, and nothing here raises an error.
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

/*
 * Listen to the postmaster; called in it, when the library is loaded.
 */
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

	/* how a process has ended: this part of the message is never translated */
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
 * The postmaster ends in good order, after a crash if "restart_after_crash" is
 * off.
 */
static void
postmaster_exit(int code, Datum arg)
{
	if (in_postmaster() && seen)
		flight_outlive();
}
