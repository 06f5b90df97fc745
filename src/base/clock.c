/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  jobq's time: the current time, and intervals in milliseconds.
 *
 * All code of jobq calls jobq_now() for the time of day, and never the system.  A test can
 * advance the time for the whole cluster by jobq.test_clock().  A schedule of months then
 * passes without sleeping.
 *
 * The time of day may be put back or forward.  Pauses and timers that exist in memory only use
 * jobq_steady(), which runs evenly.  Sessions that wait use jobq_deadline().
 *
 * src/base/clock.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <time.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#ifdef CLOCK_BOOTTIME
#define STEADY_CLOCK	CLOCK_BOOTTIME
#else
#define STEADY_CLOCK	CLOCK_MONOTONIC
#endif

PG_FUNCTION_INFO_V1(jobq_clock);

/* In shared memory if available. */
static JobqClockShift no_shift = {0};
JobqClockShift *jobq_clock_shift = &no_shift;

/* The last result of jobq_now(). */
TimestampTz jobq_last_now = 0;

/* Return the current time. */
TimestampTz
jobq_now(void)
{
	jobq_last_now = GetCurrentTimestamp();
	jobq_last_now += jobq_clock_shift->offset;
	return jobq_last_now;
}

/*
 * Return the microseconds since the machine was started.  Includes the time in which the
 * machine was suspended, if the system can tell.
 */
int64
jobq_time_since_boot(void)
{
	struct timespec t;

	if (clock_gettime(STEADY_CLOCK, &t) != 0)
		elog(ERROR, "could not read the time since boot: %m");
	return t.tv_sec * USECS_PER_SEC + t.tv_nsec / 1000;
}

/*
 * Return the deadline of a session that waits for ms milliseconds, for jobq_ms_left().  A step
 * of the time of day makes the wait neither longer nor shorter, and neither does
 * jobq.test_clock().
 */
int64
jobq_deadline(int64 ms)
{
	return jobq_time_since_boot() + ms * 1000;
}

/* Return the milliseconds until the deadline, rounded up; 0 if the deadline has passed. */
long
jobq_ms_left(int64 deadline)
{
	int64		left = deadline - jobq_time_since_boot();

	return left <= 0 ? 0 : (long) Min(left / 1000 + (left % 1000 != 0), INT_MAX);
}

/*
 * Return the time of the steady clock, which starts with the machine and never steps back.
 * The time that a test lets pass by jobq.test_clock() passes here as well.
 */
JobqSteady
jobq_steady(void)
{
	return jobq_time_since_boot() + jobq_clock_shift->passed;
}

/*
 * Convert a time of the steady clock to a time of day, counted from "now".  A time in the past
 * becomes "now".
 */
TimestampTz
jobq_steady_due(JobqSteady at, TimestampTz now)
{
	return now + Max(at - jobq_steady(), 0);
}

/*
 * Allow something once in this number of microseconds: true if *last is longer ago, or 0.
 * Sets *last to the current time then.
 */
bool
jobq_once_in(JobqSteady *last, int64 us)
{
	JobqSteady	now = jobq_steady();

	if (*last != 0 && now < *last + us)
		return false;
	*last = now;
	return true;
}

/* Return the microseconds since then. */
int64
jobq_elapsed(instr_time since)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, since);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* Return the start time of the current statement, without reading the clock. */
TimestampTz
jobq_statement_start(void)
{
	return GetCurrentStatementStartTimestamp() + jobq_clock_shift->offset;
}

/*
 * Convert an interval to milliseconds.  A month has 30 days, and a day has 24 hours.  Raises
 * an error that contains "what" if the result is not between the bounds.
 */
int64
jobq_interval_ms(Interval *interval, const char *what, int64 lowest,
				 int64 highest)
{
	double		days = interval->month * 30.0 + interval->day;
	double		ms = days * 86400000.0 + interval->time / 1000.0;

	if (ms < (double) lowest || ms > (double) highest)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s %s is out of range", what,
						DatumGetCString(DirectFunctionCall1(interval_out,
															IntervalPGetDatum(interval)))),
				 errhint("It must be between %s and %s.",
						 jobq_duration_text(lowest), jobq_duration_text(highest))));
	return (int64) ms;
}

/*
 * Add ms milliseconds to a time.  Returns infinity if the result is too large for a timestamp.
 */
TimestampTz
jobq_later(TimestampTz at, int64 ms)
{
	if (ms >= (END_TIMESTAMP - 1) / 1000 - at / 1000)
		return DT_NOEND;
	return at + ms * 1000;
}

/* clock(): jobq_now() for SQL. */
Datum
jobq_clock(PG_FUNCTION_ARGS)
{
	PG_RETURN_TIMESTAMPTZ(jobq_now());
}
