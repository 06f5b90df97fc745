/*-------------------------------------------------------------------------
 *
 * leaver.c
 *	  reassign_owned(), drop_owned(), and the warning of DROP ROLE: objects of a role to
 *	  be dropped.
 *
 * jobq does not prevent the drop of a role.  The role's jobs then become dead letters, each
 * when due, and the role's schedules fail.  DROP ROLE therefore warns if the role has jobs
 * or schedules.
 *
 * src/operate/leaver.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "operate/inner.h"
#include "operate/operate.h"

PG_FUNCTION_INFO_V1(jobq_reassign_owned);
PG_FUNCTION_INFO_V1(jobq_drop_owned);

#define JOBS_OF		"SELECT id FROM jobq_internal.job WHERE role = $1 ORDER BY id"

/*
 * Return the ids found by the query for the role, in an array allocated in the current memory
 * context.  *n gets the number of ids.
 */
static int64 *
ids_of(const char *query, Oid role, uint64 *n)
{
	static const Oid types[] = {OIDOID};
	Datum		values[] = {ObjectIdGetDatum(role)};
	MemoryContext caller = CurrentMemoryContext;
	int64	   *ids;

	SPI_connect();
	*n = jobq_query(query, 1, types, values, NULL, SPI_OK_SELECT);
	ids = MemoryContextAllocHuge(caller, sizeof(int64) * (*n + 1));
	for (uint64 i = 0; i < *n; i++)
	{
		ids[i] = DatumGetInt64(jobq_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, INT8OID, NULL));
	}
	SPI_finish();
	return ids;
}

/*
 * Find the live job with this id.  False if the job no longer belongs to the role.
 */
static bool
find_of(Relation rel, int64 id, Oid role, JobqJob *job)
{
	Snapshot	snapshot;
	bool		found;

	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	found = jobq_job_find(rel, id, snapshot, job);
	UnregisterSnapshot(snapshot);
	return found && job_role(job) == role;
}

/*
 * Reassign the unique key held by the job.
 */
static void
reassign_key(const JobqJob *job, Oid from, Oid to)
{
	static const Oid types[] = {TEXTOID, TEXTOID, OIDOID, INT8OID, OIDOID, INT4OID};
	JobqUniqueKey key;
	Datum		values[6];

	if (JOB_ISNULL(job, JOB_UNIQUE_KEY))
		return;
	jobq_unique_key(job, &key);
	values[0] = key.key;
	values[1] = key.kind;
	values[2] = ObjectIdGetDatum(from);
	values[3] = JOB(job, JOB_ID);
	values[4] = ObjectIdGetDatum(to);
	values[5] = key.queue_id;
	SPI_connect();
	(void) jobq_query("UPDATE jobq_internal.unique_key SET role = $5 WHERE key = $1"
					  " AND kind = $2 AND queue_id = $6 AND role = $3 AND job_id = $4",
					  6, types, values, NULL, SPI_OK_UPDATE);
	SPI_finish();
}

/*
 * Reassign the uuids of reassigned jobs and dead letters.  If the other role uses the same
 * uuid already, nothing changes.  roles: the old and the new role.
 */
static void
reassign_uuids(Datum *roles)
{
	static const Oid types[] = {OIDOID, OIDOID};

	SPI_connect();
	(void) jobq_query("UPDATE jobq_internal.job_uuid u SET role = $2 WHERE u.role = $1"
					  " AND NOT EXISTS (SELECT FROM jobq_internal.job_uuid o WHERE o.uuid = u.uuid AND o.role = $2)"
					  " AND (EXISTS (SELECT FROM jobq_internal.job j WHERE j.id = u.job_id AND j.role = $2)"
					  " OR EXISTS (SELECT FROM jobq_internal.dead_letter f WHERE f.id = u.job_id AND f.role = $2))",
					  2, types, roles, NULL, SPI_OK_UPDATE);
	SPI_finish();
}

/*
 * Reassign a waiting job, in the way of jobq_edit_live().  May wait for a concurrent
 * transaction.  False if the job runs, is a plain statement, or no longer exists.
 */
static bool
reassign_job(Relation rel, int64 id, Oid from, Oid to)
{
	for (;;)
	{
		TransactionId blocker;
		JobqJob		job;

		CHECK_FOR_INTERRUPTS();
		if (!find_of(rel, id, from, &job) || jobq_job_runs(&job) ||
			jobq_job_is_statement(&job))
			return false;
		jobq_signals_lock(id, from, ExclusiveLock);
		if (jobq_job_delete_or_blocker(rel, &job, &blocker))
		{
			jobq_job_push_if_undone(&job);
			jobq_lease_room(1);
			jobq_at_commit_lease(LEASE_END, id, 0, JOBQ_NONE, 0);
			JOB_SET(&job, JOB_ROLE, ObjectIdGetDatum(to));
			job_clear_stat(&job);
			if (jobq_group_shared(job_group(&job)))
				jobq_change_group(&job);	/* a shared group is per role */
			jobq_job_insert(rel, &job);
			reassign_key(&job, from, to);
			return true;
		}
		if (jobq_job_runs(&job))
			return false;
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job.ctid, XLTW_Delete);
	}
}

/*
 * reassign_owned(from, to): make another role the owner of all waiting jobs, dead letters,
 * schedules, event handlers and open batches.  Returns the number of jobs and dead letters.
 * ERROR unless the current user can become both roles, and if both roles have jobs with the
 * same unique key.
 *
 * Plain statements are not reassigned: a statement written by the first role would run as the
 * second.
 */
Datum
jobq_reassign_owned(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {OIDOID, OIDOID};
	static const char *const queries[] = {
		"UPDATE jobq_internal.schedule SET role = $2 WHERE role = $1"
		" AND kind <> '" JOBQ_SQL_KIND "'",
		"WITH mine AS (DELETE FROM jobq_internal.event_handler WHERE role = $1 RETURNING event, handler, queue, kind, within, required)"
		" INSERT INTO jobq_internal.event_handler SELECT $2, m.* FROM mine m ON CONFLICT DO NOTHING",
		/* a finished batch continues if its dead letters are retried */
		"UPDATE jobq_internal.batch SET role = $2 WHERE role = $1 AND (finished_at IS NULL"
		" OR id IN (SELECT batch_id FROM jobq_internal.dead_letter WHERE role = $1"
		" AND batch_id IS NOT NULL AND kind <> '" JOBQ_SQL_KIND "'))",
		/* keys of live jobs follow their jobs, or stay with running jobs */
		"UPDATE jobq_internal.unique_key u SET role = $2 WHERE role = $1"
		" AND NOT EXISTS (SELECT FROM jobq_internal.job j WHERE j.id = u.job_id)"
	};
	Oid			from = jobq_role_arg(fcinfo, 0, "from", false);
	Oid			to = jobq_role_arg(fcinfo, 1, "to", true);
	Datum		values[] = {ObjectIdGetDatum(from), ObjectIdGetDatum(to)};
	MemoryContext context;
	Relation	rel;
	int64	   *ids;
	uint64		njobs;
	uint64		others = 0;		/* schedules, event handlers and batches */
	int64		moved = 0;

	PreventCommandIfReadOnly("jobq.reassign_owned()");
	if (!jobq_may_become(from) || !jobq_may_become(to))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to reassign jobs"),
				 errhint("You must be able to SET ROLE to both roles; only superusers can for a role that was dropped.")));
	jobq_refuse_borrowed(to);
	if (from == to)
		PG_RETURN_INT64(0);

	rel = jobq_open_jobs();
	SPI_connect();
	if (jobq_query("SELECT FROM jobq_internal.unique_key a JOIN jobq_internal.unique_key b USING (key, kind, queue_id)"
				   " WHERE a.role = $1 AND b.role = $2 LIMIT 1",
				   2, types, values, NULL, SPI_OK_SELECT) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("both roles have jobs with the same unique key"),
				 errhint("Cancel or retry the jobs of one of them first.")));
	for (int i = 0; i < (int) lengthof(queries); i++)
		others += jobq_query(queries[i], 2, types, values, NULL,
							 queries[i][0] == 'W' ? SPI_OK_INSERT : SPI_OK_UPDATE);
	moved = (int64) jobq_query("UPDATE jobq_internal.dead_letter SET role = $2 WHERE role = $1"
							   " AND kind <> '" JOBQ_SQL_KIND "'",
							   2, types, values, NULL, SPI_OK_UPDATE);
	SPI_finish();

	ids = ids_of(JOBS_OF, from, &njobs);
	context = AllocSetContextCreate(CurrentMemoryContext, "jobq reassign",
									ALLOCSET_DEFAULT_SIZES);
	for (uint64 i = 0; i < njobs; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(context);

		moved += reassign_job(rel, ids[i], from, to);
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	pfree(ids);
	table_close(rel, NoLock);
	reassign_uuids(values);
	jobq_audit(fcinfo, moved == 0 && others > 0 ? -1 : moved);
	PG_RETURN_INT64(moved);
}

/*
 * drop_owned(role): cancel the role's jobs and batches, stop the running jobs, and delete the
 * role's schedules, event handlers and dead letters.  Returns the number of jobs and dead
 * letters.  ERROR unless the current user is a member of the role or may manage all queues.
 */
Datum
jobq_drop_owned(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {OIDOID};
	Oid			role = jobq_role_arg(fcinfo, 0, "role", false);
	Datum		values[] = {ObjectIdGetDatum(role)};
	MemoryContext context;
	Relation	rel;
	int64	   *ids;
	uint64		njobs;
	uint64		nbatches;
	uint64		others;			/* schedules, event handlers and batches */
	int64		dropped = 0;

	PreventCommandIfReadOnly("jobq.drop_owned()");
	if (!jobq_may(JOBQ_MAY_MANAGE, role, 0))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to drop the jobs of another role"),
				 errhint("A member of that role can, and who has the privilege manage.")));
	rel = jobq_open_jobs();
	SPI_connect();
	others = jobq_query("DELETE FROM jobq_internal.schedule WHERE role = $1", 1, types,
						values, NULL, SPI_OK_DELETE);
	others += jobq_query("DELETE FROM jobq_internal.event_handler WHERE role = $1", 1, types,
						 values, NULL, SPI_OK_DELETE);
	dropped = jobq_delete_and_count(DELETE_AND_COUNT("DELETE FROM jobq_internal.dead_letter WHERE role = $1"
													 RETURNING_LETTERS),
									1, types, values);
	SPI_finish();

	/* first, so that no batch replaces the cancelled jobs */
	ids = ids_of("SELECT id FROM jobq_internal.batch WHERE role = $1"
				 " AND finished_at IS NULL AND NOT dormant ORDER BY id", role, &nbatches);
	for (uint64 i = 0; i < nbatches; i++)
		others += jobq_batch_cancel_open(ids[i]);
	pfree(ids);

	ids = ids_of(JOBS_OF, role, &njobs);
	context = AllocSetContextCreate(CurrentMemoryContext, "jobq drop_owned",
									ALLOCSET_DEFAULT_SIZES);
	for (uint64 i = 0; i < njobs; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(context);
		JobqChosen	chosen = {.role = role};

		if (jobq_current_of(ids[i]) == NULL)
			dropped += jobq_cancel_job(rel, ids[i], true, &chosen);
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	pfree(ids);
	table_close(rel, NoLock);
	jobq_audit(fcinfo, dropped == 0 && others > 0 ? -1 : dropped);
	PG_RETURN_INT64(dropped);
}

/*
 * Raise a WARNING if the role, which was dropped, still owns jobs, schedules, handlers,
 * batches or run_as settings in this database.  name: the role's former name.
 */
void
jobq_warn_of_leaver(Oid role, const char *name)
{
	static const Oid types[] = {OIDOID};
	Datum		values[] = {ObjectIdGetDatum(role)};
	char	   *what;

	if (jobq_relations_if_installed() == NULL)
		return;
	SPI_connect();
	(void) jobq_query("SELECT concat_ws(', ',"
					  " CASE WHEN EXISTS (SELECT FROM jobq_internal.job WHERE role = $1) THEN 'jobs' END,"
					  " CASE WHEN EXISTS (SELECT FROM jobq_internal.schedule WHERE role = $1) THEN 'schedules' END,"
					  " CASE WHEN EXISTS (SELECT FROM jobq_internal.event_handler WHERE role = $1) THEN 'handlers of events' END,"
					  " CASE WHEN EXISTS (SELECT FROM jobq_internal.batch WHERE role = $1 AND finished_at IS NULL) THEN 'batches' END,"
					  " CASE WHEN EXISTS (SELECT FROM jobq_internal.queue q LEFT JOIN jobq_internal.delegation d ON d.queue_id = q.id"
					  " WHERE q.run_as = $1 OR d.set_by = $1) THEN 'run_as of queues' END)",
					  1, types, values, NULL, SPI_OK_SELECT);
	what = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	if (what != NULL && what[0] != '\0')
		ereport(WARNING,
				(errmsg("role \"%s\" has left something in jobq: %s", name, what),
				 errdetail("Its jobs become dead letters, and its schedules fail."),
				 errhint("Give them to another role with jobq.reassign_owned('%u', 'role'), or drop them with jobq.drop_owned('%u'); set run_as of queues again with jobq.alter_queue().",
						 role, role)));
	SPI_finish();
}
