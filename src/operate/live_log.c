/*-------------------------------------------------------------------------
 *
 * live_log.c
 *	  The log lines of a running job, for the views.
 *
 * src/operate/live_log.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

#include "attempt/attempt.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_live_log);

/*
 * True if the current user may read the job's contents.  slot: slot of the job's worker, or
 * NULL if a consumer holds the job.  May take the mutex of the slot, or db->lock in shared
 * mode.
 */
static bool
may_read(JobqDatabase *db, JobqSlot *slot, int64 id)
{
	Oid			role = InvalidOid;
	int32		queue_id = 0;

	if (slot != NULL)
	{
		JobqRun		run;

		if (jobq_run_read_of(slot, id, &run))
		{
			role = run.role;
			queue_id = run.queue_id;
		}
	}
	else
	{
		const JobqLease *lease;

		LWLockAcquire(db->lock, LW_SHARED);
		lease = jobq_lease_find(db, id);
		if (lease != NULL)
		{
			role = lease->role;
			queue_id = lease->queue_id;
		}
		LWLockRelease(db->lock);
	}
	return OidIsValid(role) && jobq_may(JOBQ_MAY_MANAGE, role, queue_id);
}

/*
 * live_log(id, log): the log of a running job.  "log" has the lines of earlier attempts, from
 * the row.  The lines of the current attempt are added from shared memory if the user may read
 * the job.
 *
 * When an attempt ends, its lines move from shared memory to the row.  Lines found in both
 * places are returned once.
 */
Datum
jobq_live_log(PG_FUNCTION_ARGS)
{
	int64		id = PG_GETARG_INT64(0);
	JobqDatabase *db = jobq_my_database();
	JobqSlot   *slot = db == NULL ? NULL : jobq_slot_of_job(db, id);
	Datum		live;
	Datum		last;
	char	   *lines = NULL;
	int			n;

	if (db != NULL && may_read(db, slot, id))
		lines = jobq_log_told(db, slot, id);
	if (lines == NULL)
	{
		if (PG_ARGISNULL(1))
			PG_RETURN_NULL();
		PG_RETURN_DATUM(PG_GETARG_DATUM(1));
	}
	live = jobq_text_to_jsonb(lines);
	if (PG_ARGISNULL(1) || !JB_ROOT_IS_ARRAY(PG_GETARG_JSONB_P(1)) ||
		JB_ROOT_IS_SCALAR(PG_GETARG_JSONB_P(1)) ||
		JB_ROOT_COUNT(PG_GETARG_JSONB_P(1)) == 0)
		PG_RETURN_DATUM(live);
	last = DirectFunctionCall2(jsonb_array_element, PG_GETARG_DATUM(1),
							   Int32GetDatum(-1));
	n = DatumGetInt32(DirectFunctionCall1(jsonb_array_length, live));
	for (int i = n - 1; i >= 0; i--)
	{
		Datum		line = DirectFunctionCall2(jsonb_array_element, live,
											   Int32GetDatum(i));

		if (!DatumGetBool(DirectFunctionCall2(jsonb_eq, line, last)))
			continue;
		for (; i >= 0; i--)
			live = DirectFunctionCall2(jsonb_delete_idx, live, Int32GetDatum(0));
	}
	PG_RETURN_DATUM(DirectFunctionCall2(jsonb_concat, PG_GETARG_DATUM(1), live));
}
