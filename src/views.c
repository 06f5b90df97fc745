/*-------------------------------------------------------------------------
 *
 * views.c
 *	  What shared memory shows: the workers, as a set of rows.
 *
 * src/views.c
 *
 *-------------------------------------------------------------------------
 */
#include "jobq.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "shared.h"

PG_FUNCTION_INFO_V1(jobq_worker_slots);
PG_FUNCTION_INFO_V1(jobq_scheduler_state);

/*
 * worker_slots(): the workers of this database that the user may see.
 */
Datum
jobq_worker_slots(PG_FUNCTION_ARGS)
{
	enum
	{
		PID, ROLE, POOL, STATE, STARTED_AT, JOB_ID_, KIND, ATTEMPT_,
		JOB_STARTED_AT, PROGRESS, MESSAGE, JOBS_DONE, JOBS_FAILED, NATTS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	JobqDatabase *db = jobq_my_database();

	InitMaterializedSRF(fcinfo, 0);
	if (db == NULL)
		return (Datum) 0;

	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];
		JobqSlot	copy;
		Datum		values[NATTS];
		bool		nulls[NATTS] = {0};
		bool		running;

		LWLockAcquire(jobq_shared->lock, LW_SHARED);
		SpinLockAcquire(&slot->mutex);
		memcpy(&copy, slot, sizeof(JobqSlot));
		SpinLockRelease(&slot->mutex);
		LWLockRelease(jobq_shared->lock);

		if (copy.state == JOBQ_SLOT_FREE ||
			copy.database != db - jobq_shared->databases ||
			!has_privs_of_role(GetUserId(), copy.role))
			continue;
		running = copy.state == JOBQ_SLOT_ATTACHED && copy.job_id != 0;
		values[PID] = Int32GetDatum(copy.pid);
		nulls[PID] = copy.state != JOBQ_SLOT_ATTACHED;
		values[ROLE] = ObjectIdGetDatum(copy.role);
		values[POOL] = Int32GetDatum(copy.pool + 1);
		values[STATE] =
			CStringGetTextDatum(copy.state == JOBQ_SLOT_STARTING ? "starting"
								: copy.state == JOBQ_SLOT_DEAD ? "exited"
								: copy.retire ? "leaving"
								: running ? "running" : "idle");
		values[STARTED_AT] = TimestampTzGetDatum(copy.started_at);
		nulls[STARTED_AT] = nulls[PID];
		values[JOB_ID_] = Int64GetDatum(copy.job_id);
		values[KIND] = CStringGetTextDatum(copy.kind);
		values[ATTEMPT_] = Int32GetDatum(copy.attempt + 1);
		values[JOB_STARTED_AT] = TimestampTzGetDatum(copy.job_started_at);
		values[PROGRESS] = Float4GetDatum(copy.progress);
		values[MESSAGE] = CStringGetTextDatum(copy.message);
		nulls[JOB_ID_] = nulls[KIND] = nulls[ATTEMPT_] =
			nulls[JOB_STARTED_AT] = !running;
		nulls[PROGRESS] = !running || copy.progress < 0;
		nulls[MESSAGE] = nulls[PROGRESS] || copy.message[0] == '\0';
		values[JOBS_DONE] = Int64GetDatum((int64) copy.jobs_done);
		values[JOBS_FAILED] = Int64GetDatum((int64) copy.jobs_failed);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * scheduler_state(): one row about this database's scheduler, none if it has
 * none.
 */
Datum
jobq_scheduler_state(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	JobqDatabase *db = jobq_my_database();
	Datum		values[4];
	bool		nulls[4] = {0};

	InitMaterializedSRF(fcinfo, 0);
	if (db == NULL)
		return (Datum) 0;
	LWLockAcquire(db->lock, LW_SHARED);
	values[0] = Int32GetDatum(db->scheduler_pid);
	nulls[0] = db->scheduler == NULL;
	values[1] = BoolGetDatum(db->complete);
	values[2] = Int32GetDatum(jobq_ready_entries - (int) db->nfree);
	values[3] = TimestampTzGetDatum(db->wake_at);
	LWLockRelease(db->lock);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}
