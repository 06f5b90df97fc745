/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  sleep(), await_signal(): a procedure waits without a worker.
 *
 * A wait is a step.  Its row is written with the suspension, without done_at, and keeps the time
 * limit, so that the limit does not depend on when the job runs.  In the run after the wait, the
 * same call finds the row, sets done_at, and returns.  A job that runs earlier, for example
 * after edit(), is suspended again.
 *
 * src/durable/wait.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "durable/inner.h"
#include "runner/runner.h"

PG_FUNCTION_INFO_V1(jobq_sleep);
PG_FUNCTION_INFO_V1(jobq_await_signal);

/*
 * Set done_at.  The caller commits.
 */
void
durable_set_done(const JobqCurrent *current, StepRow *row)
{
	durable_check_lease(current);
	STEP_SET(row, PSTEP_DONE_AT, TimestampTzGetDatum(jobq_now()));
	durable_write(current, row);
}

/*
 * Write the row, and end the run until the time limit of the row.  Does not return.
 */
void
durable_suspend(const JobqCurrent *current, StepRow *row, const char *waits_for)
{
	durable_check_lease(current);
	durable_write(current, row);
	run_suspend(STEP_ISNULL(row, PSTEP_UNTIL) ? JOB_NO_LIMIT
				: DatumGetTimestampTz(STEP(row, PSTEP_UNTIL)), waits_for);
}

/* Whether the wait has a time limit, and the time has come. */
bool
durable_is_over(const StepRow *row)
{
	return !STEP_ISNULL(row, PSTEP_UNTIL) &&
		DatumGetTimestampTz(STEP(row, PSTEP_UNTIL)) <= jobq_now();
}

/* Set the time limit of the row, from now on.  what: name of the parameter. */
void
durable_set_limit(Interval *interval, const char *what, StepRow *row)
{
	int64		ms = jobq_interval_ms(interval, what, 0, JOBQ_MAX_DELAY_MS);

	STEP_SET(row, PSTEP_UNTIL, TimestampTzGetDatum(jobq_now() + ms * 1000));
}

/*
 * CALL sleep(name, duration, until): return if the time has come.  Otherwise suspend the job.
 * Commits in both cases, and does nothing if the sleep has ended before.
 * ERROR if neither or both of duration and until are given.
 */
Datum
jobq_sleep(PG_FUNCTION_ARGS)
{
	const JobqCurrent *current = durable_require_commit(fcinfo, "jobq.sleep()");
	char	   *name = text_to_cstring(durable_name_arg(fcinfo, 0, "name"));
	StepRow		row;

	if (PG_ARGISNULL(1) == PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("one of duration and until must be given")));
	if (!PG_ARGISNULL(2) && TIMESTAMP_NOT_FINITE(PG_GETARG_TIMESTAMPTZ(2)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("until must be finite")));
	if (!durable_find_step(current, name, PSTEP_SLEEP, &row))
	{
		durable_begin(current, name, PSTEP_SLEEP, &row);
		if (PG_ARGISNULL(1))
			STEP_SET(&row, PSTEP_UNTIL, PG_GETARG_DATUM(2));
		else
			durable_set_limit(PG_GETARG_INTERVAL_P(1), "duration", &row);
	}
	if (!STEP_ISNULL(&row, PSTEP_DONE_AT))
		PG_RETURN_VOID();
	if (!durable_is_over(&row))
		durable_suspend(current, &row, psprintf("sleep \"%s\"", name));
	durable_set_done(current, &row);
	durable_commit();
	PG_RETURN_VOID();
}

/*
 * CALL await_signal(name, payload, timeout, step): return the payload of the signal, or null
 * after the timeout.  Suspend the job if there is neither.  Commits if the wait ends.
 */
Datum
jobq_await_signal(PG_FUNCTION_ARGS)
{
	const JobqCurrent *current = durable_require_commit(fcinfo, "jobq.await_signal()");
	char	   *name = text_to_cstring(durable_name_arg(fcinfo, 0, "name"));
	char	   *step = PG_ARGISNULL(3) ? name
		: text_to_cstring(durable_name_arg(fcinfo, 3, "step"));
	TupleDesc	desc;
	StepRow		row;

	desc = jobq_row_type(fcinfo, 1);
	if (!durable_find_step(current, step, PSTEP_AWAIT, &row))
	{
		durable_begin(current, step, PSTEP_AWAIT, &row);
		STEP_SET(&row, PSTEP_SIGNAL, CStringGetTextDatum(name));
		if (!PG_ARGISNULL(2))
			durable_set_limit(PG_GETARG_INTERVAL_P(2), "timeout", &row);
	}
	if (STEP_ISNULL(&row, PSTEP_DONE_AT))
	{
		Datum		payload;
		char	   *awaited = TextDatumGetCString(STEP(&row, PSTEP_SIGNAL));
		bool		found = durable_take_signal(current, awaited, step, &payload);

		if (!found)
		{
			durable_lock_signals(current);
			found = durable_take_signal(current, awaited, step, &payload);
		}
		if (found)
			STEP_SET(&row, PSTEP_RESULT, payload);
		else if (!durable_is_over(&row))
			durable_suspend(current, &row, durable_waits_for_signal(awaited));
		durable_set_done(current, &row);
		durable_commit();
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, &STEP(&row, PSTEP_RESULT),
													  &STEP_ISNULL(&row, PSTEP_RESULT))));
}
