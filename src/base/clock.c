/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  jobq's time: what the clock says, and intervals as milliseconds.
 *
 * All of jobq asks jobq_now(), never the system, for the time of day.  A test
 * can put the clock forward for the whole cluster with jobq.test_clock(), and
 * so see a schedule of months pass without sleeping.
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

/*
 * By how many microseconds our time is ahead of the system's; in shared memory, if
 * there is any.
 */
static int64 no_offset = 0;
int64	   *jobq_clock_offset = &no_offset;

/* What jobq_now() has said last. */
TimestampTz jobq_last_now = 0;

/*
 * The current time.
 */
TimestampTz
jobq_now(void)
{
	jobq_last_now = GetCurrentTimestamp();
	jobq_last_now += *jobq_clock_offset;
	return jobq_last_now;
}

/*
 * The time at which this statement began, which costs no look at the clock.
 */
TimestampTz
jobq_statement_start(void)
{
	return GetCurrentStatementStartTimestamp() + *jobq_clock_offset;
}

/*
 * An interval in milliseconds, where a month has 30 days and a day 24 hours.
 *
 * Raises an error that names "what" if it is not between the bounds.
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
 * So many milliseconds later; infinity if that is too far for a timestamp.
 */
TimestampTz
jobq_later(TimestampTz at, int64 ms)
{
	if (ms >= (END_TIMESTAMP - 1) / 1000 - at / 1000)
		return DT_NOEND;
	return at + ms * 1000;
}

/*
 * clock(): the same for SQL.
 */
Datum
jobq_clock(PG_FUNCTION_ARGS)
{
	PG_RETURN_TIMESTAMPTZ(jobq_now());
}
