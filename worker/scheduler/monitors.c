/*-------------------------------------------------------------------------
 *
 * monitors.c
 *	  Checks the monitors, and reports begun and ended alerts.
 *
 * Most values are in shared memory or in small tables, and are read once for all monitors
 * (control/parts/84-monitors.sql).  The condition "new" reads the errors of all jobs.  If
 * the last check took long, the next check is done by a separate process.  Without a free
 * background worker slot, the scheduler checks itself.  The state of a monitor is stored in its
 * row, so each alert is reported once, regardless of restarts.  A locked row is left to
 * the next check.  Each change is also an event, raised in the same transaction.
 *
 * worker/scheduler/monitors.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"

#include "scheduler/duty.h"
#include "store/store.h"

/* The pause between checks if there are monitors; otherwise jobq.poll_interval. */
#define LOOK_PAUSE		(5 * USECS_PER_SEC)

/* Checks take at most this fraction (1/n) of the scheduler's time. */
#define LOOK_SHARE		20

/* A check that takes longer than this is done by a separate process (microseconds). */
#define LONG_CHECK		(100 * INT64CONST(1000))

/* Microseconds between two checks of the process, if its end was not noticed. */
#define PROCESS_PAUSE	USECS_PER_SEC

/* Completes "the scheduler cannot ..." after an error. */
#define CHECK_MONITORS	"check the monitors"

/* The columns of check_monitors(). */
enum
{
	ALERT_NAME = 1, ALERT_BEGAN, ALERT_CONDITION, ALERT_QUEUE, ALERT_KIND, ALERT_VALUE,
	ALERT_ABOVE, ALERT_UNTIL, ALERT_SINCE
};

/* A row of check_monitors(). */
typedef struct Alert
{
	HeapTuple	row;
	TupleDesc	desc;
} Alert;

PGDLLEXPORT void jobq_monitor_main(Datum main_arg);

static bool any = false;

/* The process that checks, or NULL; when the last check began, and its duration. */
static BackgroundWorkerHandle *process = NULL;
static instr_time begun;
static int64 took = 0;

static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static TimestampTz checked(bool again, TimestampTz now);
static ErrorData *check(void);
static void look(void *arg);
static void note_failure(const ErrorData *edata);

/* Reads the statistics once. */
Duty		monitors_duty = {
	.what = "look at monitors",
	.run = run,
	.next_due = next_due,
	.pausable = false,
};

static TimestampTz
run(TimestampTz now)
{
	ErrorData  *edata;

	if (process != NULL)
		return aside_over(&process) ? checked(true, jobq_now()) : now + PROCESS_PAUSE;
	INSTR_TIME_SET_CURRENT(begun);
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->monitors_changed = false;
	LWLockRelease(my_db->lock);
	if (took >= LONG_CHECK &&
		(process = aside_start("jobq monitor", "jobq_monitor_main")) != NULL)
		return now + PROCESS_PAUSE;
	edata = check();
	return checked(any || edata != NULL, now);
}

/*
 * A check has ended.  "again" is false if there are no monitors.  Returns the time of the
 * next check.
 */
static TimestampTz
checked(bool again, TimestampTz now)
{
	TimestampTz pause = jobq_poll_interval * USECS_PER_SEC;

	took = jobq_elapsed(begun);
	if (again)
		pause = Max(Min(LOOK_PAUSE, pause), LOOK_SHARE * took);
	return now + pause;
}

/*
 * The duty is due at once after a monitor was created or changed.
 */
static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	if (process != NULL)
		return aside_gone(process) ? now : plan;
	return my_db->monitors_changed ? now : plan;
}

/*
 * Main function of the process for long checks.
 */
void
jobq_monitor_main(Datum main_arg)
{
	aside_begin(main_arg, "jobq: checking the monitors");
	(void) check();
	proc_exit(0);
}

/*
 * End the process for long checks, because the scheduler exits.
 */
void
monitors_leave(void)
{
	if (process != NULL)
		TerminateBackgroundWorker(process);
}

/*
 * Check all monitors in a transaction.  Returns the error, or NULL.
 */
static ErrorData *
check(void)
{
	ErrorData  *edata = scheduler_try(look, NULL);

	note_failure(edata);
	return edata;
}

/*
 * Get a text column; NULL if null.
 */
static char *
text_of(const Alert *alert, int column)
{
	bool		isnull;
	Datum		value = jobq_column(alert->row, alert->desc, column, TEXTOID, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

static void
append_word(StringInfo buf, const Alert *alert, int column, const char *key)
{
	const char *word = text_of(alert, column);

	if (word == NULL)
		return;
	appendStringInfo(buf, ", \"%s\": ", key);
	escape_json(buf, word);
}

static void
append_number(StringInfo buf, const Alert *alert, int column, const char *key)
{
	bool		isnull;
	Datum		value = jobq_column(alert->row, alert->desc, column, FLOAT8OID, &isnull);

	/* JSON has no infinity and no NaN */
	if (!isnull && isfinite(DatumGetFloat8(value)))
		appendStringInfo(buf, ", \"%s\": %s", key,
						 DatumGetCString(DirectFunctionCall1(float8out, value)));
}

static void
describe(StringInfo buf, void *arg)
{
	const Alert *alert = (const Alert *) arg;

	append_word(buf, alert, ALERT_NAME, "monitor");
	append_word(buf, alert, ALERT_CONDITION, "condition");
	append_word(buf, alert, ALERT_QUEUE, "queue");
	append_word(buf, alert, ALERT_KIND, "kind");
	append_number(buf, alert, ALERT_VALUE, "value");
	append_number(buf, alert, ALERT_ABOVE, "above");
	append_number(buf, alert, ALERT_UNTIL, "until");
	jobq_append_time(buf, "since",
					 DatumGetTimestampTz(jobq_column(alert->row, alert->desc, ALERT_SINCE,
													 TIMESTAMPTZOID, NULL)));
}

/*
 * Raise events for begun and ended alerts.  Monitors have no owner, so the events count
 * as events of the extension's owner.
 */
static void
raise_events(const SPITupleTable *alerts)
{
	for (uint64 i = 0; i < alerts->numvals; i++)
	{
		Alert		alert = {alerts->vals[i], alerts->tupdesc};
		bool		began = DatumGetBool(jobq_column(alert.row, alert.desc, ALERT_BEGAN,
													 BOOLOID, NULL));

		jobq_event_of(began ? JOBQ_EVENT_ALERT_BEGAN : JOBQ_EVENT_ALERT_ENDED,
					  jobq_relations()->owner, text_of(&alert, ALERT_QUEUE),
					  text_of(&alert, ALERT_KIND), describe, &alert);
	}
}

/*
 * Check all monitors, if there are any.
 */
static void
look(void *arg)
{
	any = false;
	if (jobq_relations_if_installed() == NULL)
		return;
	any = jobq_query("SELECT FROM jobq_internal.monitor LIMIT 1", 0, NULL, NULL, NULL,
					 SPI_OK_SELECT) > 0;
	if (!any)
		return;
	jobq_injection_point("jobq-monitors-check");
	if (jobq_query("SELECT * FROM jobq_internal.check_monitors()", 0, NULL, NULL, NULL,
				   SPI_OK_SELECT) > 0)
		raise_events(SPI_tuptable);
	aside_leave_if_unwanted();
}

/*
 * Log a new error.  A lock timeout is ignored until the next check.
 */
static void
note_failure(const ErrorData *edata)
{
	if (edata == NULL)
		trouble_over(CHECK_MONITORS);
	else if (edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
			 trouble_note(CHECK_MONITORS, edata->message, USECS_PER_MINUTE))
		ereport(LOG,
				(errcode(edata->sqlerrcode),
				 errmsg("jobq cannot look at its monitors: %s", edata->message)));
}
