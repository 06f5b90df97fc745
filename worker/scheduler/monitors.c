/*-------------------------------------------------------------------------
 *
 * monitors.c
 *	  Looks at the monitors, and tells of what has begun or ended.
 *
 * What is looked at is in shared memory, or is a small table, and is read once for all
 * monitors (control/parts/84-monitors.sql).  That a monitor is on is in its row, so
 * what has begun is told once, whatever is restarted.  Where a row is locked, it is
 * left to the next look.
 *
 * worker/scheduler/monitors.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "executor/spi.h"

#include "scheduler/duty.h"
#include "store/store.h"

/* From look to look, if there are monitors; else jobq.poll_interval. */
#define LOOK_PAUSE		(5 * USECS_PER_SEC)

/* A look may take one part in so many of the scheduler's time. */
#define LOOK_SHARE		20

static bool any = false;

static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static void look(void *arg);
static void note_failure(const ErrorData *edata);

/* Reads the statistics once. */
Duty		monitors_duty = {
	.run = run,
	.next_due = next_due,
	.pausable = false,
};

static TimestampTz
run(TimestampTz now)
{
	TimestampTz pause = jobq_poll_interval * USECS_PER_SEC;
	TimestampTz begun = GetCurrentTimestamp();
	ErrorData  *edata;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->monitors_changed = false;
	LWLockRelease(my_db->lock);
	edata = scheduler_try(look, NULL);
	note_failure(edata);
	if (any || edata != NULL)
		pause = Max(Min(LOOK_PAUSE, pause),
					LOOK_SHARE * (GetCurrentTimestamp() - begun));
	return now + pause;
}

/*
 * Who makes or changes a monitor has it looked at.
 */
static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	return my_db->monitors_changed ? now : plan;
}

/*
 * See whether there is a monitor, and if so, look at all.
 */
static void
look(void *arg)
{
	any = false;
	if (jobq_relations_if_installed() == NULL)
		return;
	any = jobq_query("SELECT FROM jobq.monitor LIMIT 1", 0, NULL, NULL, NULL,
					 SPI_OK_SELECT) > 0;
	if (any)
		jobq_query("SELECT jobq_internal.check_monitors()", 0, NULL, NULL, NULL,
				   SPI_OK_SELECT);
}

/*
 * Say once that it fails, until it works again.  A lock is the next look's affair.
 */
static void
note_failure(const ErrorData *edata)
{
	static int	failing = 0;

	if (edata == NULL)
		failing = 0;
	else if (edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
			 edata->sqlerrcode != failing)
	{
		failing = edata->sqlerrcode;
		ereport(LOG,
				(errcode(failing),
				 errmsg("jobq cannot look at its monitors: %s", edata->message)));
	}
}
