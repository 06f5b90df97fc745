/*-------------------------------------------------------------------------
 *
 * reserve_job.c
 *	  reserve_job(): a consumer takes a job by its id.
 *
 * The job is found in the table, as by jobq.work(), and its permits are requested.  From
 * then on the job is treated like a job popped by reserve().  An entry of the job stays in
 * the ready set.  When a process pops the entry, it finds the job claimed, and drops the
 * entry.
 *
 * src/consume/reserve_job.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "attempt/attempt.h"
#include "commit/commit.h"
#include "consume/consume.h"

PG_FUNCTION_INFO_V1(jobq_reserve_job);

/*
 * Find the job, fill *push, and set *limited if its queue has limits.  False if the current
 * user may take no such job, or if the job may not run now.  ERROR if workers serve its queue.
 */
static bool
find_job(Relation rel, int64 id, JobqPush *push, bool *limited)
{
	Snapshot	snapshot;
	JobqQueue	buffer;
	const JobqQueue *queue;
	JobqJob		job;
	JobqJob		first;
	bool		found;

	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	found = jobq_job_find(rel, id, snapshot, &job);
	queue = found ? jobq_queue_by_id(job_queue_id(&job), &buffer) : NULL;
	if (queue == NULL ||
		((jobq_privileges(queue->id) & JOBQ_MAY_CONSUME) == 0 &&
		 !jobq_may_act_for(job_run_as(&job))))
	{
		UnregisterSnapshot(snapshot);
		return false;
	}
	if (queue->mode != MODE_CONSUMER)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("job " INT64_FORMAT " is in queue \"%s\", which is served by workers",
						id, queue->name),
				 errhint("Change it with jobq.alter_queue(%s, mode => 'consumer').",
						 quote_literal_cstr(queue->name))));

	jobq_set_group_right(&job);

	/* an uncommitted job of this transaction cannot be claimed */
	found = !TransactionIdIsCurrentTransactionId(job.xmin) &&
		!jobq_job_runs(&job) &&
		jobq_gate(rel, &job, MODE_CONSUMER, NULL, snapshot, jobq_now(),
				  &first) == JOBQ_MAY_RUN;
	if (found)
	{
		memset(push, 0, sizeof(JobqPush));
		push->permits = JOBQ_NO_PERMITS;
		*limited = jobq_claim_push(&job, queue, push);
	}
	UnregisterSnapshot(snapshot);
	return found;
}

/*
 * Lease the job with its permits.  False if another process holds the job, or if a permit is
 * not available.  ERROR if the role has reached its limit of leases.  Takes db->lock
 * exclusively.
 */
static bool
take_job(Reservation *reservation, JobqPush *push, bool limited)
{
	JobqDatabase *db = reservation->db;
	Oid			role = GetUserId();
	TimestampTz now = jobq_now();
	JobqWakeList wake = {0};
	int			source;
	bool		full;
	bool		taken = false;

	jobq_lease_room(3);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	full = !jobq_may_lease(db, role, true);
	if (!full && db->dboid == MyDatabaseId && jobq_lease_find(db, push->key.id) == NULL &&
		jobq_permits_ask(db, push, limited, now, &source, &wake) == JOBQ_MAY_RUN)
	{
		jobq_lease_popped(reservation, push, now);
		taken = true;
	}
	jobq_unlock(db, &wake);
	if (full)
		jobq_no_lease(db, role);
	return taken;
}

/*
 * reserve_job(id, lease, consumer): lease this job, if the job can run now.  Returns no row
 * otherwise.  Never waits for a job.  Errors as for reserve().
 */
Datum
jobq_reserve_job(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Reservation reservation;
	JobqPush	push;
	Relation	rel;
	bool		limited;

	jobq_require(JOBQ_MAY_ALL);
	PreventCommandIfReadOnly("jobq.reserve_job()");
	PreventCommandIfParallelMode("jobq.reserve_job()");
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("id and lease must not be null")));
	InitMaterializedSRF(fcinfo, 0);
	jobq_reservation_begin(&reservation, fcinfo, 1, 2);
	reservation.db = jobq_served_database("jobq.reserve_job()");
	reservation.max = 1;
	reservation.popped = &push;

	rel = jobq_open_jobs();
	if (find_job(rel, PG_GETARG_INT64(0), &push, &limited) &&
		(!jobq_claim_needed(&push, limited) ||
		 jobq_loaded_database() != NULL) &&
		take_job(&reservation, &push, limited))
		(void) jobq_lease_jobs(&reservation, rsinfo);
	table_close(rel, NoLock);
	return (Datum) 0;
}
