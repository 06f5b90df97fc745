/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  jobq's time: the current time, and intervals in milliseconds.
 *
 * All code of jobq calls jobq_now() for the time of day, and never the system.  A test can
 * advance the time for the whole cluster by jobq.test_clock().  A schedule of months then
 * passes without sleeping.
 *
 * src/base/clock.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"


PG_FUNCTION_INFO_V1(jobq_clock);

/* Offset from the system's time in microseconds; in shared memory if available. */
static int64 no_offset = 0;
int64	   *jobq_clock_offset = &no_offset;

/* The last result of jobq_now(). */
TimestampTz jobq_last_now = 0;

/* Return the current time. */
TimestampTz
jobq_now(void)
{
	jobq_last_now = GetCurrentTimestamp();
	jobq_last_now += *jobq_clock_offset;
	return jobq_last_now;
}

/* Return the start time of the current statement, without reading the clock. */
TimestampTz
jobq_statement_start(void)
{
	return GetCurrentStatementStartTimestamp() + *jobq_clock_offset;
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
