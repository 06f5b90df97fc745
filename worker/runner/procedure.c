/*-------------------------------------------------------------------------
 *
 * procedure.c
 *	  Runs a job with a procedure, which may COMMIT, or with a statement that cannot run
 *	  in a transaction.
 *
 * A COMMIT of the procedure would end a claim by deletion.  The job's row therefore gets a
 * lease first, with the attempt charged.  The procedure is called within a portal, as by CALL.
 * The last transaction, which the procedure leaves open, deletes the row.  Work committed by the
 * procedure before an error stays, as the author intended.
 *
 * The procedure does not wait for the flush of its lease.  A crash of the server can undo the
 * lease, and the job is then as supervise_lost_lease() would leave it: due, without a lease, and
 * with the attempt given back.  Later commits of the procedure are never flushed before the lease.
 *
 * A portal created before the transaction belongs to no transaction and survives commits.  The
 * same applies to the arguments, in the portal's memory.
 *
 * A statement such as VACUUM is run as if a client had sent it.  The statement begins and ends
 * transactions itself, and leaves a transaction open.  Its effects stay whatever happens to
 * the job, so after a crash the statement may run again.  The same applies to a statement in
 * another database (errand.c).
 *
 * worker/runner/procedure.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include "access/table.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/pquery.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

static Portal portal = NULL;

/* the run of the procedure, for run_suspend() */
static RunContext *procedure_run = NULL;

static void call_procedure(RunContext *run, JobqJob *job,
						   const JobqFunction *function);
static void end_run(RunContext *run, const JobqJob *job, Oid role, bool has_result,
					Datum result);

/*
 * Write the lease, which charges the attempt.  The lease of a statement that may run only once is
 * flushed, because after a crash no second run may begin.  False if another transaction has taken
 * the row.  Ends the transaction and closes rel.
 */
static bool
lease_job(RunContext *run, Relation rel, JobqJob *job, int64 token)
{
	JobqJob		unleased = *job;
	volatile bool leased = true;

	PG_TRY();
	{
		JOB_SET(job, JOB_ATTEMPT, Int32GetDatum(jobq_current->attempt));
		JOB_SET(job, JOB_LEASE_TOKEN, Int64GetDatum(token));
		JOB_SET(job, JOB_LEASE_UNTIL, TimestampTzGetDatum(DT_NOEND));
		leased = jobq_job_lease(rel, job);
		if (leased)
		{
			jobq_run_to(&run->slot->run, JOBQ_RUN_BEGUN);
			jobq_within(JOBQ_WITHIN_STARTED, GetUserId());
			if (job_only_once(job) && jobq_job_is_statement(job))
				ForceSyncCommit();
		}
		else
		{
			jobq_row_is_taken(rel, job, run->slot->holding->permits.group);
			run->next = JOBQ_RUN_MISSED;
			job->nulls[JOB_LEASE_TOKEN - 1] = true;
		}
		table_close(rel, NoLock);
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		*job = unleased;		/* the abort restores the row */
		PG_RE_THROW();
	}
	PG_END_TRY();
	return leased;
}

/*
 * Run the procedure or statement of the job.  Called in the transaction that has read the job;
 * ends without an open transaction.  Closes rel.  Errors are raised.  The lease in *job then
 * tells the caller that the attempt is charged.  The caller calls run_procedure_end() after
 * the abort.
 */
void
run_procedure(RunContext *run, Relation rel, JobqJob *job,
			  const JobqFunction *function)
{
	int			attempt = jobq_current->attempt;
	Oid			role = GetUserId();
	MemoryContext old = CurrentMemoryContext;
	JobqStatement statement;
	Datum		result = (Datum) 0;
	int64		token;
	static const int kept[] = {JOB_PAYLOAD, JOB_HEADERS, JOB_CONTEXT};
	Datum		copies[lengthof(kept)];

	/* out-of-line values may disappear after this transaction */
	MemoryContextSwitchTo(run->memory);
	for (int i = 0; i < (int) lengthof(kept); i++)
		if (!JOB_ISNULL(job, kept[i]))
			copies[i] = PointerGetDatum(PG_DETOAST_DATUM_COPY(JOB(job, kept[i])));
	if (function->statement)
		jobq_statement_read(JOB(job, JOB_PAYLOAD), &statement);
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	token = jobq_lease_token(my_db);
	LWLockRelease(my_db->lock);
	SpinLockAcquire(&run->slot->mutex);
	run->slot->run.token = token;
	SpinLockRelease(&run->slot->mutex);

	/*
	 * The settings carried by the job apply to all transactions of the
	 * procedure.  A committing transaction therefore applies the settings to
	 * the session, and clean_session() resets them.  If this fails, no lease
	 * has charged the attempt.
	 */
	jobq_enter_context(job, GUC_ACTION_SET);

	if (!lease_job(run, rel, job, token))
		return;
	for (int i = 0; i < (int) lengthof(kept); i++)
		if (!JOB_ISNULL(job, kept[i]))
			JOB(job, kept[i]) = copies[i];
	jobq_tell_running(job, attempt, -1, true);
	if (function->statement)
	{
		uint64		rows;

		MemoryContextSwitchTo(run->memory);
		rows = OidIsValid(statement.database) ? errand_run(&statement)
			: run_top_level(&statement);
		MemoryContextSwitchTo(run->memory);
		result = jobq_statement_result(&statement, rows);
	}
	else
		call_procedure(run, job, function);

	/* deferred triggers belong to the handler */
	MemoryContextSwitchTo(run->memory);
	jobq_fire_deferred();
	allowance_check();
	PushActiveSnapshot(GetTransactionSnapshot());
	end_run(run, job, role, function->statement, result);
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	run_procedure_end();
}

/*
 * Call the procedure within a portal, which outlives transactions.  The last transaction is
 * left open.
 */
static void
call_procedure(RunContext *run, JobqJob *job, const JobqFunction *function)
{
	bool		isnull;

	portal = CreatePortal("jobq procedure", true, true);
	portal->visible = false;
	ResourceOwnerDelete(portal->resowner);
	portal->resowner = CurrentResourceOwner;
	ActivePortal = portal;
	PortalContext = portal->portalContext;

	/* an active portal cannot be closed by the procedure */
	portal->status = PORTAL_ACTIVE;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	EnsurePortalSnapshotExists();
	MemoryContextSwitchTo(run->memory);
	procedure_run = run;
	(void) jobq_call_handler(function, job, jobq_current->attempt, false, &isnull);
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
}

/*
 * Drop the portal, if there is one.  Called outside of transactions.  abort_attempt() calls this
 * function also after an error, once the transaction is aborted.
 */
void
run_procedure_end(void)
{
	procedure_run = NULL;
	if (portal == NULL)
		return;
	ActivePortal = NULL;
	PortalContext = NULL;

	/* the portal code did not run it, and checks the status */
	portal->status = PORTAL_FAILED;
	PortalDrop(portal, false);
	portal = NULL;
}

/*
 * Write the end of the run in the transaction of the procedure, which the caller commits.
 * Raises an error if the lease is lost.  The caller has an active snapshot.
 */
static void
end_run(RunContext *run, const JobqJob *job, Oid role, bool has_result, Datum result)
{
	Relation	rel;
	JobqJob		now;
	JobqKey		key = {job_run_at(job), job_id(job)};
	int			nestlevel = NewGUCNestLevel();

	process_wait_for_locks();
	rel = jobq_open_jobs();
	if (!jobq_job_fetch(rel, &job->ctid, key, GetActiveSnapshot(), &now) ||
		!job_leased(&now) ||
		DatumGetInt64(JOB(&now, JOB_LEASE_TOKEN)) != run->slot->run.token ||
		!jobq_job_delete(rel, &now))
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_CANCELLED),
				 errmsg("the job was cancelled while it ran")));
	AtEOXact_GUC(false, nestlevel);
	jobq_within(JOBQ_WITHIN_COMPLETED, role);
	process_wait_for_locks();

	jobq_tells_by_relay = true;

	/* the procedure may have made the transaction read-only */
	XactReadOnly = false;
	if (jobq_attempt_returned(rel, &now, jobq_current, run->slot->run.started_at,
							  has_result, result))
		run->next = JOBQ_RUN_LIVE;
	table_close(rel, NoLock);
}

/*
 * True if this process runs the procedure of a job, and the job is not that of perform().
 */
bool
run_is_procedure(void)
{
	return procedure_run != NULL && jobq_current != NULL && jobq_current->memory != NULL;
}

/*
 * End the run of the procedure that calls this function: the job is suspended, and runs again
 * at run_at.  Commits the transaction of the procedure together with the suspension.  Does not
 * return: the error only unwinds the procedure, and no block of the procedure can catch the
 * error, because a block with a handler of exceptions cannot commit.
 *
 * waits_for: shown for the job.  The caller has checked run_is_procedure(), and that the
 * procedure may commit.  ERROR as from end_run() and from the commit; the attempt then fails.
 */
void
run_suspend(TimestampTz run_at, const char *waits_for)
{
	RunContext *run = procedure_run;
	JobqCurrent *current = jobq_current;
	JobqOutcome before = current->outcome;

	/* deferred triggers belong to the handler */
	jobq_fire_deferred();
	allowance_check();
	current->outcome = OUTCOME_SUSPEND;
	current->until = run_at;
	current->waits_for = waits_for;
	PushActiveSnapshot(GetTransactionSnapshot());
	end_run(run, current->job, GetUserId(), false, (Datum) 0);
	PopActiveSnapshot();
	jobq_injection_point("jobq-suspending");
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	SPI_commit();
	current->suspended = true;
	current->outcome = before;
	jobq_injection_point("jobq-suspended");
	ereport(ERROR,
			(errcode(ERRCODE_QUERY_CANCELED),
			 errmsg("the job is suspended")));
}
