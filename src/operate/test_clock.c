/*-------------------------------------------------------------------------
 *
 * test_clock.c
 *	  test_clock(): put jobq's clock forward in tests, for the whole cluster, and return the
 *	  time.
 *
 * src/operate/test_clock.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "memory/memory.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_test_clock);

/*
 * Set the offset of jobq's clock against the system's clock, for the whole cluster, and wake
 * all schedulers.  A call with the current offset confirms the clock, so that a jump is
 * trusted.  ERROR unless the current user is the extension owner: EXECUTE on the function is
 * not sufficient.
 */
static void
set_clock(Interval *ahead)
{
	int64		offset;

	jobq_require_preload("jobq.test_clock()");
	jobq_require_owner("put jobq's clock forward");
	offset = jobq_interval_ms(ahead, "ahead", 0, JOBQ_MAX_DELAY_MS) * 1000;
	if (offset == jobq_shared->clock_shift.offset)
		jobq_clock_confirm();

	/* pauses of the time that passes must be over when jobq_now() is later */
	jobq_shared->clock_shift.passed += Max(offset - jobq_shared->clock_shift.offset, 0);
	pg_memory_barrier();
	jobq_shared->clock_shift.offset = offset;
	(void) jobq_clock_look();
	for (int i = 0; i < jobq_shared->ndatabases; i++)
		jobq_wake_scheduler(&jobq_shared->databases[i]);
}

/*
 * test_clock(ahead): return jobq's time, after setting the offset of the clock if the argument
 * is not null.  Without an argument, EXECUTE on the function is sufficient.
 */
Datum
jobq_test_clock(PG_FUNCTION_ARGS)
{
	if (!PG_ARGISNULL(0))
		set_clock(PG_GETARG_INTERVAL_P(0));
	PG_RETURN_TIMESTAMPTZ(jobq_now());
}
