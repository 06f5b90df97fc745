/*-------------------------------------------------------------------------
 *
 * operate.c
 *	  Operating on jobs: cancel(), retry(), delete(), restart_workers().
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
PG_FUNCTION_INFO_V1(jobq_adopt);
PG_FUNCTION_INFO_V1(jobq_loaded);

/*
 * An error for a job that is to be retried or deleted and is no dead letter;
 * the caller is connected to SPI.
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
 * Find a live job with which this user may do this, as it is now.  If he may only
 * see it, that is an error if "refuse".
 */
bool
jobq_find_for(int privilege, Relation rel, int64 id, bool refuse, JobqJob *job)
{
	/* see what this statement itself has enqueued, too */
	CommandCounterIncrement();
	if (!jobq_job_find_now(rel, id, job))
		return false;
	if (refuse)
		jobq_refuse_to_see_only(privilege, id, job_role(job), job_queue_id(job));
	return jobq_may(privilege, job_role(job), job_queue_id(job));
}

/*
 * The same for a job that is named alone, if chosen is NULL; or for one of many, which
 * must still be what was chosen.
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
 * An error unless the job has finished and this user may see it.
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
 * If a worker runs the job, have it stop: a query cancel now, and SIGTERM by
 * the scheduler if the handler resists.  If one has died at the job, the scheduler, which
 * is to charge it, cancels it; but not if it is just being charged, or no scheduler is there.
 */
bool
jobq_ask_to_stop(int64 id)
{
	JobqDatabase *db = jobq_my_database();
	JobqSlot   *slot = db != NULL ? jobq_slot_names_job(db, id) : NULL;
	bool		asked = false;

	if (slot == NULL)
		return false;

	/* the lock keeps the process from leaving the slot before the signal */
	LWLockAcquire(jobq_shared->lock, LW_SHARED);
	if (slot->state == JOBQ_SLOT_ATTACHED)
	{
		SpinLockAcquire(&slot->mutex);
		if (slot->job_id == id && !slot->over)
		{
			/* the time runs from the first request */
			if (slot->stop != JOBQ_STOP_CANCEL || slot->stop_job != id)
				slot->kill_at = jobq_now() +
					jobq_cancel_grace * INT64CONST(1000);
			slot->stop = JOBQ_STOP_CANCEL;
			slot->stop_job = id;
			asked = true;

			/* it may be at another job when the mutex is released */
			(void) kill(slot->pid, SIGINT);
		}
		SpinLockRelease(&slot->mutex);
	}
	else if (slot->state == JOBQ_SLOT_DEAD && db->scheduler != NULL && !db->stop)
	{
		SpinLockAcquire(&slot->mutex);
		asked = slot->job_id == id && !slot->over && !slot->charging;
		if (asked)
		{
			slot->stop = JOBQ_STOP_CANCEL;
			slot->stop_job = id;
		}
		SpinLockRelease(&slot->mutex);
	}
	LWLockRelease(jobq_shared->lock);
	if (asked)
		jobq_wake_scheduler(db);
	return asked;
}

/*
 * The job's row is deleted, or written anew: whoever holds a lease of it loses that
 * when this commits.  always: also who may get one before.  Where workers take the jobs
 * nobody does, but a consumer may have one from before the queue was theirs.
 */
void
jobq_end_lease(const JobqJob *job, bool always)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);

	if (!always && queue != NULL && queue->mode != MODE_CONSUMER &&
		!jobq_job_runs(job))
		return;
	jobq_lease_room(1);
	jobq_at_commit_lease(LEASE_END, job_id(job), 0, JOBQ_NONE, 0);
}

/*
 * Cancel a job of which a consumer has a lease, or that nobody runs, without waiting.  False if somebody else
 * has its row, or there is none any more.
 */
bool
jobq_take_from_consumer(Relation rel, int64 id, const char *reason)
{
	JobqJob		job;

	if (!jobq_job_find(rel, id, GetActiveSnapshot(), &job) ||
		!jobq_job_delete(rel, &job))
		return false;
	jobq_job_push_if_undone(&job);
	jobq_end_lease(&job, true);
	jobq_log_keep_told(jobq_my_database(), NULL, &job);
	jobq_archive(&job, STATE_CANCELLED, DT_NOBEGIN, false, (Datum) 0, reason);
	return true;
}

/*
 * A worker was asked to stop this job, which it does not run any more: cancel the job, if
 * it is there, or have the worker stop that runs it now, without waiting.  False if another
 * session has its row, or has just moved it.  *over: there is no such job any more.
 */
bool
jobq_cancel_owed(Relation rel, int64 id, bool *over)
{
	JobqJob		job;

	*over = false;
	if (jobq_ask_to_stop(id))
		return true;
	*over = !jobq_job_find(rel, id, GetActiveSnapshot(), &job) ||
		jobq_take_from_consumer(rel, id, "cancelled while it ran");

	/* a worker names the job before it takes the row */
	return *over || jobq_ask_to_stop(id);
}

/*
 * Does the job run on the publisher?  Then it is that one's to cancel or retry: what is
 * done here is undone there.  An error if it is named alone.
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
 * Cancel a live job, or have the worker that runs it stop.  False if there is none
 * that this user may cancel, or if it runs on the publisher, or if somebody has begun it
 * and running is false.
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

		/* one that stands for a workflow ends with it */
		if (jobq_job_is_workflow(&job) && jobq_batch_cancel_nested(&job, running))
			return true;
		if (jobq_job_delete_or_blocker(rel, &job, &blocker))
		{
			jobq_job_push_if_undone(&job);
			/* its consumer, if it has one, will find the lease gone */
			jobq_end_lease(&job, chosen == NULL);
			jobq_log_keep_told(jobq_my_database(), NULL, &job);
			jobq_archive(&job, STATE_CANCELLED, DT_NOBEGIN, false, (Datum) 0,
						 "cancelled");
			return true;
		}

		/*
		 * Its worker is just about to begin or to end it, or another session
		 * works on it: look again when that transaction is over, unless a
		 * worker shows up first.
		 */
		if (running ? jobq_ask_to_stop(id) : jobq_job_runs(&job))
			return running;
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job.ctid, XLTW_Delete);
	}
}

/*
 * cancel(id): true if the job was taken out of its queue, or the worker that
 * runs it was asked to stop; false if it had finished.
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
	PG_RETURN_BOOL(cancelled);
}

/*
 * Run a job that waits for its next attempt now.  False if there is none that this
 * user may retry; if it is in another state, that is an error if it is named alone, or
 * else false.
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
			job_run_at(&job) > jobq_now() && !jobq_job_runs(&job);
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

		/* another session works on it: see what becomes */
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job.ctid, XLTW_Delete);
	}
	jobq_job_push_if_undone(&job);
	/* a consumer that has got hold of it since will find the lease gone */
	jobq_end_lease(&job, chosen == NULL);
	jobq_job_set_run_at(&job, jobq_now());
	jobq_job_insert(rel, &job);
	jobq_state_changed(&job, "ready");
	return true;
}

/*
 * retry(id): run a dead letter again under its id, with all its attempts; or
 * run a job that waits for its next attempt now.
 */
Datum
jobq_retry(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {INT8OID};
	int64		id = PG_GETARG_INT64(0);
	Datum		values[] = {Int64GetDatum(id)};
	int64		reopened = 0;
	Relation	rel;

	PreventCommandIfReadOnly("jobq.retry()");
	jobq_pin_queues();
	rel = jobq_open_jobs();
	if (jobq_retry_waiting(rel, id, NULL))
	{
		table_close(rel, NoLock);
		PG_RETURN_VOID();
	}

	SPI_connect();
	if (jobq_query("DELETE FROM jobq_internal.dead_letter WHERE id = $1" RETURNING_JOB,
				   1, types, values, NULL, SPI_OK_DELETE_RETURNING) == 0)
		not_a_dead_letter(id);
	jobq_revive(rel, SPI_tuptable->vals[0], SPI_tuptable->tupdesc, &reopened);
	SPI_finish();
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}

/*
 * delete(id): delete a dead letter.
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
	PG_RETURN_VOID();
}

/*
 * restart_workers(): the workers of this database leave after their current
 * job, and new ones take their place.
 */
Datum
jobq_restart_workers(PG_FUNCTION_ARGS)
{
	JobqDatabase *db;
	int			index;

	jobq_require_all(JOBQ_MAY_MANAGE, "restart workers");
	jobq_require_preload("jobq.restart_workers()");
	db = jobq_my_database();
	if (db == NULL)
		PG_RETURN_VOID();
	index = db - jobq_shared->databases;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if ((slot->state == JOBQ_SLOT_ATTACHED ||
			 slot->state == JOBQ_SLOT_STARTING) && slot->database == index)
		{
			PGPROC	   *proc = slot->proc;

			slot->retire = true;
			if (proc != NULL)
				SetLatch(&proc->procLatch);
		}
	}
	LWLockRelease(db->lock);
	PG_RETURN_VOID();
}

/*
 * activate(): run at the end of the install script and of each update, so that
 * the launcher starts a scheduler as soon as the extension is there, and all
 * sessions look at the version again; warns where there will be no scheduler.
 * Takes back what ALTER DEFAULT PRIVILEGES has given on what the script has made.
 */
Datum
jobq_activate(PG_FUNCTION_ARGS)
{
	const JobqRelations *rels = jobq_relations_of_any_version();

	if (rels == NULL)
		(void) jobq_relations();	/* says what is wrong */
	jobq_refuse_later_version(rels->extension);
	CacheInvalidateRelcacheByRelid(rels->job);

	/*
	 * Called as whoever runs the script: jobq's own queries are refused where
	 * the library does not work with the version that a step ends in.
	 */
	if (creating_extension)
		(void) OidFunctionCall0(LookupFuncName(list_make2(makeString(pstrdup("jobq_internal")),
														  makeString(pstrdup("settle_privileges"))),
											   0, NULL, false));

	/* pg_dump and pg_restore turn it off first of all */
	jobq_at_commit_created(rels->job, !row_security);
	jobq_warn_if_not_served();
	PG_RETURN_VOID();
}

/*
 * An error if a subscription brings roles by their numbers: what it has brought may be
 * another role's here.  The caller is connected to SPI.
 */
static void
refuse_binary(void)
{
	static const Oid types[] = {OIDOID};
	Datum		values[] = {ObjectIdGetDatum(jobq_relations()->job)};

	if (jobq_query("SELECT s.subname::text FROM pg_subscription s"
				   " JOIN pg_subscription_rel r ON r.srsubid = s.oid"
				   " JOIN pg_class c ON c.oid = r.srrelid"
				   " JOIN pg_class j ON j.relnamespace = c.relnamespace"
				   " WHERE s.subbinary AND j.oid = $1 LIMIT 1",
				   1, types, values, NULL, SPI_OK_SELECT) == 0)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("subscription \"%s\" is binary, and brings roles by their numbers",
					SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1)),
			 errdetail("Jobs could run as other roles than those that have enqueued them."),
			 errhint("Have it bring jobq's tables anew without \"binary\". If all roles have the same numbers here as there, drop it, and adopt them.")));
}

/*
 * adopt(): jobs that logical replication brought here, or that came with a copy of another
 * database, become this database's own and run.  Returns how many logical replication has
 * brought.  A grant of EXECUTE is not enough for that.
 */
Datum
jobq_adopt(PG_FUNCTION_ARGS)
{
	uint64		count;

	jobq_require_owner("adopt jobs");
	SPI_connect();
	refuse_binary();

	/* of jobs with the same key, the last one has it */
	jobq_query("INSERT INTO jobq_internal.unique_key (job_id, role, queue_id, until, kind, key)"
			   " SELECT id, role, coalesce(unique_queue, 0), unique_until,"
			   " CASE WHEN unique_queue IS NULL THEN kind ELSE '' END, unique_key FROM jobq_internal.job"
			   " WHERE dormant AND unique_key IS NOT NULL"
			   " AND (unique_until = 'f' OR attempt = 0)"
			   " ORDER BY id DESC ON CONFLICT DO NOTHING",
			   0, NULL, NULL, NULL, SPI_OK_INSERT);
	count = jobq_query("UPDATE jobq_internal.job SET dormant = false WHERE dormant",
					   0, NULL, NULL, NULL, SPI_OK_UPDATE);

	jobq_query("UPDATE jobq_internal.schedule SET dormant = false WHERE dormant",
			   0, NULL, NULL, NULL, SPI_OK_UPDATE);
	jobq_query("UPDATE jobq_internal.batch SET dormant = false, adopted = true WHERE dormant",
			   0, NULL, NULL, NULL, SPI_OK_UPDATE);

	/* sequences are not replicated: new jobs must not take these ids */
	jobq_query("SELECT pg_catalog.setval('jobq_internal.job_id_seq', max(id)) FROM jobq_internal.job"
			   " HAVING max(id) > (SELECT last_value FROM jobq_internal.job_id_seq)",
			   0, NULL, NULL, NULL, SPI_OK_SELECT);
	jobq_query("SELECT pg_catalog.setval('jobq_internal.batch_id_seq', max(id)) FROM jobq_internal.batch"
			   " HAVING max(id) > (SELECT last_value FROM jobq_internal.batch_id_seq)",
			   0, NULL, NULL, NULL, SPI_OK_SELECT);
	jobq_serve_here();
	SPI_finish();
	jobq_at_commit_unnoted();
	PG_RETURN_INT64((int64) count);
}

/*
 * Statement trigger on jobq_internal.job: fires for COPY and SQL, as in a
 * restore, not for jobq's own direct writes.
 */
Datum
jobq_loaded(PG_FUNCTION_ARGS)
{
	jobq_check_after_trigger(fcinfo, "jobq_internal.loaded()", true);
	jobq_at_commit_unnoted();
	return PointerGetDatum(NULL);
}
