/*-------------------------------------------------------------------------
 *
 * operate.c
 *	  Operations on jobs: cancel(), retry(), delete(), restart_workers().
 *
 * src/operate/operate.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <signal.h>

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "parser/parse_func.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "attempt/attempt.h"
#include "commit/commit.h"
#include "store/store.h"
#include "compose/compose.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_cancel);
PG_FUNCTION_INFO_V1(jobq_retry);
PG_FUNCTION_INFO_V1(jobq_delete);
PG_FUNCTION_INFO_V1(jobq_restart_workers);
PG_FUNCTION_INFO_V1(jobq_activate);
PG_FUNCTION_INFO_V1(jobq_loaded);

/*
 * Raise the error for a retry or deletion of a job that is not a dead letter.  The caller must
 * be connected to SPI.
 */
static void
not_a_dead_letter(int64 id)
{
	static const Oid types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};

	if (jobq_query_latest("SELECT role::oid, queue_id FROM jobq_internal.archive WHERE id = $1"
						  " UNION ALL SELECT role::oid, queue_id FROM jobq_internal.job WHERE id = $1",
						  1, types, values, SPI_OK_SELECT) == 0 ||
		!jobq_may_with_row(JOBQ_MAY_MONITOR))
		jobq_no_such_job(id);
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_WRONG_STATE),
			 errmsg("job " INT64_FORMAT " is not a dead letter", id),
			 errhint("Only dead letters can be retried or deleted, and jobs that wait for their next attempt retried.")));
}

/*
 * Find the current version of a live job for which the current user has the privilege.  False
 * without such a job.  refuse: ERROR if the user may see the job but lacks the privilege.  The
 * caller has opened rel with jobq_open_jobs().
 */
bool
jobq_find_for(int privilege, Relation rel, int64 id, bool refuse, JobqJob *job)
{
	/* also see jobs enqueued by the current statement */
	CommandCounterIncrement();
	if (!jobq_job_find_now(rel, id, job))
		return false;
	if (refuse)
		jobq_refuse_to_see_only(privilege, id, job_role(job), job_queue_id(job));
	return jobq_may(privilege, job_role(job), job_queue_id(job));
}

/*
 * Like jobq_find_for().  If chosen is NULL, the job was named alone, and a lacking privilege
 * is an ERROR.  Otherwise, false also if the job differs from *chosen; chosen->changed is set
 * then.
 */
bool
jobq_find_chosen(int privilege, Relation rel, int64 id, JobqChosen * chosen,
				 JobqJob *job)
{
	if (!jobq_find_for(privilege, rel, id, chosen == NULL, job))
		return false;
	if (chosen == NULL)
		return true;
	chosen->changed =
		(TransactionIdIsValid(chosen->version) && chosen->version != job->version) ||
		(OidIsValid(chosen->role) && chosen->role != job_role(job));
	return !chosen->changed;
}

/*
 * ERROR unless the job has finished or is a dead letter, and the current user may see it.
 */
void
jobq_check_finished(int64 id)
{
	static const Oid types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};

	SPI_connect();
	if (jobq_query_latest("SELECT role::oid, queue_id FROM jobq_internal.archive WHERE id = $1"
						  " UNION ALL SELECT role::oid, queue_id FROM jobq_internal.dead_letter WHERE id = $1",
						  1, types, values, SPI_OK_SELECT) == 0 ||
		!jobq_may_with_row(JOBQ_MAY_MONITOR))
		jobq_no_such_job(id);
	SPI_finish();
}

/*
 * Carry out a pending cancellation: a worker was asked to stop this job, but no longer runs
 * the job.  Cancel the job, or ask the new worker to stop.  Does not wait: false if another
 * session holds the row or has just moved it.  *over is set if the job no longer exists.  The
 * caller must have set an active snapshot.
 */
bool
jobq_cancel_owed(Relation rel, int64 id, bool *over)
{
	JobqJob		job;

	*over = false;
	if (jobq_ask_to_stop(id))
		return true;
	*over = !jobq_job_find(rel, id, GetActiveSnapshot(), &job) ||
		jobq_take_from_consumer(rel, id, CAUSE_STOPPED, NULL);

	/* a worker publishes the job's id before deleting the row */
	return *over || jobq_ask_to_stop(id);
}

/*
 * True if the job runs on a publisher (logical replication).  In this case cancel or retry the
 * job there, because changes made here are overwritten.  ERROR if the job is named alone
 * (chosen is NULL).
 */
static bool
runs_elsewhere(const JobqJob *job, const JobqChosen * chosen)
{
	bool		dormant = DatumGetBool(JOB(job, JOB_DORMANT));

	if (dormant && chosen == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("job " INT64_FORMAT " was brought by logical replication, and runs on the publisher",
						job_id(job)),
				 errhint("Do that there; or, when the publisher is off, after jobq.adopt() here.")));
	return dormant;
}

/*
 * Cancel a live job, or ask its worker to stop.  False if the current user may cancel no job
 * with this id, if the job differs from *chosen, or if the job runs on a publisher.  With
 * running = false, also false if the job is already running.  chosen as in jobq_find_chosen().
 * May wait for a concurrent transaction on the row.  The caller has opened rel with
 * jobq_open_jobs().
 */
bool
jobq_cancel_job(Relation rel, int64 id, bool running, JobqChosen * chosen)
{
	for (;;)
	{
		TransactionId blocker;
		JobqJob		job;

		CHECK_FOR_INTERRUPTS();
		if (!jobq_find_chosen(JOBQ_MAY_OPERATE, rel, id, chosen, &job) ||
			runs_elsewhere(&job, chosen))
			return false;
		if (running ? jobq_ask_to_stop(id) : jobq_job_runs(&job))
			return running;

		/* a job that stands for a workflow ends with the workflow */
		if (jobq_job_is_workflow(&job) && jobq_batch_cancel_nested(&job, running))
			return true;
		if (jobq_job_delete_or_blocker(rel, &job, &blocker))
		{
			jobq_job_push_if_undone(&job);
			/* the consumer, if any, loses the lease */
			jobq_end_lease(&job, chosen == NULL);
			jobq_log_keep_told(jobq_my_database(), NULL, &job);
			jobq_archive_unstarted(&job, CAUSE_CANCELLED, NULL);
			jobq_cancel_asked(rel, &job);
			return true;
		}

		/*
		 * Its worker is about to start or end the job, or another session is
		 * changing it.  Unless a worker shows up, wait for the other
		 * transaction and retry.
		 */
		if (running ? jobq_ask_to_stop(id) : jobq_job_runs(&job))
			return running;
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job.ctid, XLTW_Delete);
	}
}

/*
 * cancel(id): true if the job was cancelled, or if the worker was asked to stop; false if the
 * job had finished.  ERROR if the job does not exist, without the privilege operate for the
 * job, and for a handler's own job.
 */
Datum
jobq_cancel(PG_FUNCTION_ARGS)
{
	int64		id = PG_GETARG_INT64(0);
	Relation	rel;
	bool		cancelled;

	PreventCommandIfReadOnly("jobq.cancel()");
	if (jobq_current_of(id) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("a handler cannot cancel its own job"),
				 errhint("Use jobq.cancel_current() or jobq.reject_current().")));
	rel = jobq_open_jobs();
	cancelled = jobq_cancel_job(rel, id, true, NULL);
	table_close(rel, NoLock);
	if (!cancelled)
		jobq_check_finished(id);
	jobq_audit(fcinfo, cancelled);
	PG_RETURN_BOOL(cancelled);
}

/*
 * Let a job that waits for the next attempt run now.  False if the current user may retry no
 * job with this id, or if the job differs from *chosen.  A job in another state is an ERROR if
 * chosen is NULL, and otherwise false.  May wait for a concurrent transaction on the row.  The
 * caller has opened rel with jobq_open_jobs().
 */
bool
jobq_retry_waiting(Relation rel, int64 id, JobqChosen * chosen)
{
	JobqJob		job;
	TransactionId blocker;

	for (;;)
	{
		bool		waits;

		CHECK_FOR_INTERRUPTS();
		if (!jobq_find_chosen(JOBQ_MAY_OPERATE, rel, id, chosen, &job) ||
			runs_elsewhere(&job, chosen))
			return false;
		waits = !JOB_ISNULL(&job, JOB_ERRORS) && !job_blocked(&job) &&
			JOB_ISNULL(&job, JOB_WAITS_FOR) && job_run_at(&job) > jobq_now() && !jobq_job_runs(&job);
		if (waits && jobq_job_delete_or_blocker(rel, &job, &blocker))
			break;
		if (!waits || jobq_job_runs(&job))
		{
			if (chosen != NULL)
				return false;
			ereport(ERROR,
					(errcode(ERRCODE_JOBQ_WRONG_STATE),
					 errmsg("job " INT64_FORMAT " is not a dead letter", id),
					 errhint("Only a dead letter, or a job that waits for its next attempt, can be retried.")));
		}

		/* another session is changing the job: wait, then retry */
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job.ctid, XLTW_Delete);
	}
	jobq_job_push_if_undone(&job);
	/* a consumer with a new lease of the job loses the lease */
	jobq_end_lease(&job, chosen == NULL);
	jobq_job_set_run_at(&job, jobq_now());
	jobq_job_insert(rel, &job);
	jobq_state_changed(&job, "ready");
	return true;
}

/*
 * retry(id): return a dead letter to its queue under the same id, with a full number of
 * attempts; or run a waiting job's next attempt now.  ERROR if the job is in another state, if
 * another job holds the unique key, and without the privilege operate for the job.
 */
Datum
jobq_retry(PG_FUNCTION_ARGS)
{
	int64		id = PG_GETARG_INT64(0);
	Datum		letter = Int64GetDatum(id);
	Relation	rel;

	PreventCommandIfReadOnly("jobq.retry()");
	jobq_pin_queues();
	rel = jobq_open_jobs();
	if (jobq_retry_waiting(rel, id, NULL))
	{
		table_close(rel, NoLock);
		jobq_audit(fcinfo, 1);
		PG_RETURN_VOID();
	}

	SPI_connect();
	if (jobq_letters_again(rel, &letter, 1, 0, true) == 0)
		not_a_dead_letter(id);
	SPI_finish();
	table_close(rel, NoLock);
	jobq_audit(fcinfo, 1);
	PG_RETURN_VOID();
}

/*
 * delete(id): delete a dead letter.  ERROR if the job is not a dead letter, or without the
 * privilege manage for the job.
 */
Datum
jobq_delete(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {INT8OID};
	int64		id = PG_GETARG_INT64(0);
	Datum		values[] = {Int64GetDatum(id)};
	Oid			role;
	int32		queue_id;
	bool		isnull;

	SPI_connect();
	if (jobq_query("DELETE FROM jobq_internal.dead_letter WHERE id = $1 RETURNING role::oid, queue_id, batch_id",
				   1, types, values, NULL, SPI_OK_DELETE_RETURNING) == 0)
		not_a_dead_letter(id);
	jobq_row_of_job(&role, &queue_id);
	jobq_refuse_to_see_only(JOBQ_MAY_MANAGE, id, role, queue_id);
	if (!jobq_may(JOBQ_MAY_MANAGE, role, queue_id))
		jobq_no_such_job(id);
	values[0] = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 3, INT8OID, &isnull);
	if (!isnull)
		jobq_query("UPDATE jobq_internal.batch SET dead = dead + 1 WHERE id = $1",
				   1, types, values, NULL, SPI_OK_UPDATE);
	values[0] = Int64GetDatum(id);
	if (!isnull)
		jobq_query("UPDATE jobq_internal.step SET state = 'f' WHERE job_id = $1",
				   1, types, values, NULL, SPI_OK_UPDATE);
	SPI_finish();
	jobq_audit(fcinfo, 1);
	PG_RETURN_VOID();
}

/*
 * restart_workers(): let the workers of this database exit after their current jobs, to be
 * replaced by new workers.  ERROR without the privilege manage for all queues.  Takes db->lock
 * exclusively.
 */
Datum
jobq_restart_workers(PG_FUNCTION_ARGS)
{
	JobqDatabase *db;

	jobq_require_all(JOBQ_MAY_MANAGE, "restart workers");
	PreventCommandIfReadOnly("jobq.restart_workers()");
	jobq_require_preload("jobq.restart_workers()");
	db = jobq_my_database();
	if (db == NULL)
		PG_RETURN_VOID();
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_COMING)
	{
		PGPROC	   *proc = slot->proc;

		slot->retire = true;
		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
	LWLockRelease(db->lock);
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}

/*
 * activate(): called at the end of the install script and of each update script.  The launcher
 * then starts a scheduler as soon as the extension exists, and all sessions check the version
 * again.  Warns if there will be no scheduler.  Revokes privileges that ALTER DEFAULT
 * PRIVILEGES has added to objects of the script.
 */
Datum
jobq_activate(PG_FUNCTION_ARGS)
{
	const JobqRelations *rels = jobq_relations_of_any_version();

	if (rels == NULL)
		(void) jobq_relations();	/* raises the error */
	jobq_refuse_later_version(rels->extension);
	CacheInvalidateRelcacheByRelid(rels->job);

	/*
	 * Called directly, as the user who runs the script.  A query by jobq
	 * would be refused if the library does not work with the version at the
	 * end of an update step.
	 */
	if (creating_extension)
		(void) OidFunctionCall0(LookupFuncName(list_make2(makeString(pstrdup("jobq_internal")),
														  makeString(pstrdup("settle_privileges"))),
											   0, NULL, false));

	/* pg_dump and pg_restore turn row_security off first */
	jobq_at_commit_created(rels->job, !row_security);
	jobq_warn_if_not_served();
	PG_RETURN_VOID();
}

/*
 * Statement trigger on jobq_internal.job.  Fires for COPY and SQL, as in a restore, and not
 * for jobq's direct writes.
 */
Datum
jobq_loaded(PG_FUNCTION_ARGS)
{
	jobq_check_after_trigger(fcinfo, "jobq_internal.loaded()", true);
	jobq_at_commit_unnoted();
	return PointerGetDatum(NULL);
}
