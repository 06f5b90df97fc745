/*-------------------------------------------------------------------------
 *
 * next_ticks.c
 *	  next_ticks(): the next ticks of an expression, without a schedule.
 *
 * src/schedule/next_ticks.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "schedule/schedule.h"

PG_FUNCTION_INFO_V1(jobq_cron_next_sql);

/* Largest n. */
#define MAX_N		100000

/*
 * SQL function next_ticks(cron, timezone, after, n).  Returns the next n ticks.  The anchor
 * of intervals, and of recurrence rules without DTSTART, is "after".
 */
Datum
jobq_cron_next_sql(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	JobqCron	cron;
	pg_tz	   *zone;
	TimestampTz after = PG_ARGISNULL(2) ? jobq_now() : PG_GETARG_TIMESTAMPTZ(2);
	TimestampTz anchor = after;
	int			n;

	jobq_not_null(fcinfo, 0, "cron");
	jobq_not_null(fcinfo, 1, "timezone");
	jobq_not_null(fcinfo, 3, "n");
	n = PG_GETARG_INT32(3);
	if (n < 1 || n > MAX_N)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("n %d is out of range", n),
				 errhint("It must be between 1 and %d.", MAX_N)));
	if (TIMESTAMP_NOT_FINITE(after))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("after must be finite")));
	jobq_cron_parse(text_to_cstring(PG_GETARG_TEXT_PP(0)), &cron);
	zone = jobq_cron_zone(text_to_cstring(PG_GETARG_TEXT_PP(1)));

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	for (int i = 0; i < n; i++)
	{
		Datum		tick;
		bool		isnull = false;

		CHECK_FOR_INTERRUPTS();
		after = jobq_cron_next(&cron, zone, anchor, after);
		if (after == DT_NOEND)
			break;
		tick = TimestampTzGetDatum(after);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &tick, &isnull);
	}
	return (Datum) 0;
}
