/*-------------------------------------------------------------------------
 *
 * test_clock.c
 *	  Tests put jobq's clock forward, for the whole cluster.
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
 * test_clock(interval): put jobq's clock forward by so much against the
 * system's, for the whole cluster, and let the schedulers look at it.  A grant of
 * EXECUTE is not enough for that.
 */
Datum
jobq_test_clock(PG_FUNCTION_ARGS)
{
	Interval   *offset = PG_GETARG_INTERVAL_P(0);

	jobq_require_preload("jobq.test_clock()");
	jobq_require_owner("put jobq's clock forward");
	jobq_shared->clock_offset =
		jobq_interval_ms(offset, "offset", 0,
						 JOBQ_MAX_DELAY_MS) * 1000;
	for (int i = 0; i < jobq_shared->ndatabases; i++)
		jobq_wake_scheduler(&jobq_shared->databases[i]);
	PG_RETURN_VOID();
}
