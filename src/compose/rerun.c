/*-------------------------------------------------------------------------
 *
 * rerun.c
 *	  Rerunning steps of workflows: the work of rerun_steps(), with a step's name or
 *	  without.
 *
 * With a name, the named step and all its users run again.  Without a name, all steps run
 * again, except completed steps and steps with a dead letter.
 *
 * A step keeps the id of its job, because other steps and users refer to this id.  The
 * record of the previous run is therefore deleted: the row of the archive or the dead
 * letter, the state in jobq_internal.step, and the job's part in the counts of the batch.
 * The job is made anew from the step's definition, blocked.  The scheduler frees the job
 * when its needs are completed, which may be at once.  The job then gets the results of the
 * steps that have not been rerun.
 *
 * An evaluation of the workflow must not continue from state that was read before a rerun.
 * Each evaluation therefore takes a lock, without waiting, before it reads anything
 * (jobq_workflow_try_lock()).  A session takes the same lock before reading the states of
 * steps for a rerun, and keeps the lock until commit.  The batch's row is locked first.  An
 * evaluation waits for neither lock.  A rerun always writes the batch's row, so the
 * scheduler detects by the version of the row that its copy of the workflow is outdated.
 *
 * Rows that another transaction has locked are not waited for.  A session that retries a
 * dead letter has locked the dead letter before it waits for the batch's row, which is
 * locked here.
 *
 * src/compose/rerun.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "attempt/attempt.h"
#include "commit/commit.h"
#include "compose/inner.h"

/* A list of job ids. */
typedef struct Ids
{
	int			n;
	Datum	   *ids;
}			Ids;

static void run_nested(const JobqStep *step);

static LOCKTAG
lock_tag(int64 batch_id)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, jobq_relations()->batch,
					   (uint32) batch_id, (uint16) ((uint64) batch_id >> 32));
	return tag;
}

/*
 * Lock out reruns of steps before an evaluation of the batch, until the end of this
 * transaction.  Does not wait.  Returns false if another transaction is rerunning steps of
 * the batch.  Called by the scheduler.
 */
bool
jobq_workflow_try_lock(int64 batch_id)
{
	LOCKTAG		tag = lock_tag(batch_id);

	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Read and lock a workflow before its steps are rerun.  Until the end of the transaction,
 * the workflow then changes only by the ends of its jobs.  nested: the steps are rerun because
 * the step of the outer workflow is rerun.  A nested workflow must then be over.  If its own
 * steps are rerun, a nested workflow must not be over, because its job in the outer batch has
 * ended together with the workflow.  ERROR if the current user may not operate on the workflow, or its state does
 * not allow a rerun.  The caller must be connected to SPI.
 */
static void
open_workflow(int64 id, bool nested, BatchState *batch, JobqSteps *workflow)
{
	LOCKTAG		tag = lock_tag(id);

	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("steps cannot be run anew in a transaction with the isolation level \"%s\"",
						GetConfigOption("transaction_isolation", false, false)),
				 errhint("It would not see what has become of them. Use READ COMMITTED.")));
	batch_read(JOBQ_MAY_OPERATE, id, BATCH_LOCK_ALL, batch);
	if (!batch->has_steps)
		batch_wrong_state(id, "has no steps", "Only workflows and chains have.");
	if (batch->dormant)
		batch_wrong_state(id, "runs where it was replicated from",
						  "Run its steps anew there.");
	if (batch->ending && !batch->over)
		batch_wrong_state(id, batch->state == BATCH_CANCELLED ? "is being cancelled" : "is failing",
						  "Wait until it is over, with jobq.wait_batch().");
	if (batch->parent != 0 && batch->over && !nested)
		batch_wrong_state(id, psprintf("is over, together with its job in batch " INT64_FORMAT, batch->parent),
						  "Use jobq.retry_many() or jobq.rerun_steps() for the outer batch, or rerun the step of the outer workflow.");
	if (batch->parent != 0 && !batch->over && nested)
		batch_wrong_state(id, "is not over", "Wait for it, with jobq.wait_batch().");
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	jobq_steps_load(id, workflow);
	jobq_steps_link(workflow);
}

static void
add_id(Ids * ids, const JobqSteps *workflow, int64 id)
{
	if (ids->ids == NULL)
		ids->ids = palloc(sizeof(Datum) * workflow->nsteps);
	ids->ids[ids->n++] = Int64GetDatum(id);
}

static Datum
array_of(const Ids * ids)
{
	return jobq_int8_array(ids->ids, ids->n);
}

/*
 * Mark the step, and all its direct and indirect users.
 */
static void
mark_users(const JobqSteps *workflow, JobqStep *first)
{
	JobqStep  **stack = palloc(sizeof(JobqStep *) * workflow->nsteps);
	int			n = 0;

	first->again = true;
	stack[n++] = first;
	while (n > 0)
	{
		JobqStep   *step = stack[--n];

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < step->nusers; i++)
			if (!step->users[i]->again)
			{
				step->users[i]->again = true;
				stack[n++] = step->users[i];
			}
	}
	pfree(stack);
}

/*
 * ERROR if the step's job has not ended.  A job that is running in this process counts,
 * although its own transaction sees no row of the job.  A blocked job of an element also
 * counts, because it may be freed at any moment.
 */
static void
check_ended(int64 batch_id, const JobqStep *step)
{
	if (step->state != STEP_LIVE && jobq_current_of(step->job_id) == NULL &&
		(step->mapper == NULL || step->state != STEP_BLOCKED))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_WRONG_STATE),
			 errmsg("step \"%s\" of workflow " INT64_FORMAT " has not ended",
					jobq_step_name(step), batch_id),
			 errdetail("Its job, " INT64_FORMAT ", runs or waits to run.", step->job_id),
			 errhint("Wait for it with jobq.wait(), or cancel it with jobq.cancel().")));
}

/*
 * ERROR if a need of the step is lost, because the step would be cancelled at once.
 */
static void
check_needs(int64 batch_id, const JobqStep *step)
{
	const char *reason = jobq_step_lost_need(step);

	if (reason != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("step \"%s\" of workflow " INT64_FORMAT " cannot run: it %s",
						jobq_step_name(step), batch_id, reason),
				 errhint("Run that step anew, or all that has not completed, with jobq.rerun_steps() without a step.")));
}

/*
 * Delete the record of how these jobs have ended, and subtract the jobs from the counts of
 * the batch.  ERROR if another transaction has locked one of the rows.
 */
static void
forget_ends(int64 batch_id, const Ids * ids)
{
	static const Oid types[] = {INT8OID, INT8ARRAYOID};
	Datum		values[] = {Int64GetDatum(batch_id), array_of(ids)};

	(void) jobq_query("WITH a AS (DELETE FROM jobq_internal.archive WHERE batch_id = $1 AND id IN"
					  "  (SELECT id FROM jobq_internal.archive WHERE batch_id = $1 AND id = ANY ($2)"
					  "   FOR UPDATE SKIP LOCKED) RETURNING id),"
					  " f AS (DELETE FROM jobq_internal.dead_letter WHERE batch_id = $1 AND id IN"
					  "  (SELECT id FROM jobq_internal.dead_letter WHERE batch_id = $1 AND id = ANY ($2)"
					  "   FOR UPDATE SKIP LOCKED) RETURNING id),"
					  " counted AS (UPDATE jobq_internal.batch b SET"
					  "  completed = greatest(b.completed - g.completed, 0),"
					  "  dead = greatest(b.dead - g.dead, 0),"
					  "  cancelled = greatest(b.cancelled - g.cancelled, 0),"
					  "  expired = greatest(b.expired - g.expired, 0)"
					  "  FROM (SELECT " COUNTS_BY_OUTCOME
					  "   FROM jobq_internal.step WHERE job_id = ANY ($2) AND state IS NOT NULL"
					  "   AND job_id NOT IN (SELECT id FROM a UNION ALL SELECT id FROM f)) g"
					  "  WHERE b.id = $1)"
					  " SELECT ((SELECT pg_catalog.count(*) FROM a) + (SELECT pg_catalog.count(*) FROM f)) ="
					  "  ((SELECT pg_catalog.count(*) FROM jobq_internal.archive WHERE batch_id = $1 AND id = ANY ($2))"
					  "   + (SELECT pg_catalog.count(*) FROM jobq_internal.dead_letter WHERE batch_id = $1 AND id = ANY ($2)))",
					  2, types, values, NULL, SPI_OK_SELECT);
	if (!DatumGetBool(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, BOOLOID, NULL)))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("another transaction changes steps of workflow " INT64_FORMAT,
						batch_id),
				 errhint("Try again when it is over.")));
	jobq_query("UPDATE jobq_internal.step SET state = NULL, result = NULL"
			   " WHERE batch_id = $1 AND job_id = ANY ($2) AND state IS NOT NULL",
			   2, types, values, NULL, SPI_OK_UPDATE);
}

/*
 * Delete the elements of these steps.  The number of elements is unknown until the array is
 * known again.
 */
static void
forget_elements(int64 batch_id, const Ids * mappers)
{
	static const Oid types[] = {INT8OID, INT8ARRAYOID};
	Datum		values[] = {Int64GetDatum(batch_id), array_of(mappers)};

	jobq_query("DELETE FROM jobq_internal.step WHERE batch_id = $1 AND element_of = ANY ($2)",
			   2, types, values, NULL, SPI_OK_DELETE);
	jobq_query("UPDATE jobq_internal.step SET elements = " CppAsString2(JOBQ_UNKNOWN_ELEMENTS)
			   " WHERE batch_id = $1 AND job_id = ANY ($2)",
			   2, types, values, NULL, SPI_OK_UPDATE);
}

/*
 * Make the jobs of these steps anew.
 */
static void
make_jobs(int64 batch_id, Oid role, const JobqSteps *workflow, const Ids * ids)
{
	static const Oid types[] = {INT8ARRAYOID, TIMESTAMPTZOID};
	Datum		values[] = {array_of(ids), TimestampTzGetDatum(jobq_now())};
	JobqAgain	again = {
		.batch_id = batch_id,.role = role,.workflow = workflow,.by_user = true
	};
	Relation	rel = jobq_open_jobs();

	for (int i = 0; i < ids->n; i++)
		jobq_progress_forget(DatumGetInt64(ids->ids[i]));
	(void) jobq_query("SELECT s.job_id, $2, coalesce(s.definition, m.definition) FROM jobq_internal.step s"
					  " LEFT JOIN jobq_internal.step m ON m.job_id = s.element_of"
					  " WHERE s.job_id = ANY ($1) ORDER BY s.job_id",
					  2, types, values, NULL, SPI_OK_SELECT);
	jobq_steps_again(rel, &again);
	table_close(rel, NoLock);
}

/*
 * Set a batch to running again.  If the batch had not failed before, a new failure is
 * reported at once.  Otherwise, a failure is reported at the end of the batch.
 */
static void
reopen(int64 batch_id, char state)
{
	static const Oid types[] = {INT8OID};
	Datum		value = Int64GetDatum(batch_id);

	/* a nested workflow may have to wait; then no state is announced */
	jobq_query("UPDATE jobq_internal.batch SET finished_at = NULL, dropped = false,"
			   " state = CASE WHEN parent IS NOT NULL AND started_at IS NULL THEN 'p'::\"char\" ELSE 'r' END,"
			   " reopened = CASE WHEN state = 'c' THEN false WHEN state IN ('f', 'x') THEN true ELSE reopened END"
			   " WHERE id = $1 RETURNING state",
			   1, types, &value, NULL, SPI_OK_UPDATE_RETURNING);
	if (state != BATCH_RUNNING &&
		DatumGetChar(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, CHAROID, NULL)) == BATCH_RUNNING)
		jobq_batch_changed(batch_id, "running", false);
	jobq_at_commit_batch(batch_id, 0, false);
}

/*
 * Block all marked steps again, whatever their outcome, including the steps of nested
 * workflows.  Returns the number of marked steps.
 */
static int64
run_marked(int64 id, const BatchState *batch, const JobqSteps *workflow)
{
	Ids			jobs = {0};
	Ids			ends = {0};
	Ids			mappers = {0};
	int64		n = 0;

	check_stack_depth();
	for (int i = 0; i < workflow->nsteps; i++)
	{
		JobqStep   *step = workflow->steps[i];

		if (step->mapper != NULL ? !step->mapper->again : !step->again)
			continue;
		check_ended(id, step);
		if (step->mapper != NULL)
		{
			add_id(&ends, workflow, step->job_id);
			continue;
		}
		n++;
		if (step->mapped && step->nelements != JOBQ_UNKNOWN_ELEMENTS)
			add_id(&mappers, workflow, step->job_id);
		if (step->workflow_id != 0)
			run_nested(step);
		if (step->state == STEP_BLOCKED)
			continue;
		add_id(&ends, workflow, step->job_id);
		add_id(&jobs, workflow, step->job_id);
	}
	if (ends.n > 0)
		forget_ends(id, &ends);
	if (mappers.n > 0)
		forget_elements(id, &mappers);
	if (jobs.n > 0)
		make_jobs(id, batch->role, workflow, &jobs);
	return n;
}

/*
 * Rerun a step that is a nested workflow.  All steps of the workflow run again.  A pending
 * workflow is left alone.
 */
static void
run_nested(const JobqStep *step)
{
	static const Oid types[] = {INT8OID};
	Datum		value = Int64GetDatum(step->workflow_id);
	BatchState	batch;
	JobqSteps	workflow;

	batch_read(JOBQ_MAY_OPERATE, step->workflow_id, BATCH_LOCK_ALL, &batch);
	if (batch.state == BATCH_PENDING && !batch.over)
		return;
	open_workflow(step->workflow_id, true, &batch, &workflow);
	for (int i = 0; i < workflow.nsteps; i++)
		workflow.steps[i]->again = true;
	(void) run_marked(step->workflow_id, &batch, &workflow);
	jobq_query("UPDATE jobq_internal.batch SET started_at = NULL WHERE id = $1",
			   1, types, &value, NULL, SPI_OK_UPDATE);
	reopen(step->workflow_id, batch.state);
}

/*
 * Rerun the step with this name and all its users, direct and indirect.  Returns the number
 * of these steps.  Locks the batch's row and the lock of evaluations until the end of the
 * transaction.  ERROR if the step does not exist or has a lost need, one of the steps has
 * not ended, the current user cannot become the workflow's role, or another transaction has
 * locked a row.  Requires READ COMMITTED.  The caller must not be connected to SPI.
 */
int64
jobq_workflow_rerun(int64 id, const char *name)
{
	int64		n;
	BatchState	batch;
	JobqSteps	workflow;
	JobqStep   *first;

	jobq_lock_jobs();
	jobq_pin_queues();
	SPI_connect();
	open_workflow(id, false, &batch, &workflow);

	/* completed jobs may take effect twice, so only the author may do this */
	if (!jobq_may_become(batch.role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to run steps of workflow " INT64_FORMAT " once more",
						id),
				 errhint("Its own role can do this. Without a step, jobq.rerun_steps() runs what has not completed.")));
	jobq_refuse_borrowed(batch.role);
	first = jobq_step_named(&workflow, name);
	if (first == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("workflow " INT64_FORMAT " has no step \"%s\"", id, name),
				 errhint("The view jobq.steps shows those that it has.")));
	mark_users(&workflow, first);
	check_needs(id, first);
	n = run_marked(id, &batch, &workflow);
	reopen(id, batch.state);
	SPI_finish();
	return n;
}

/*
 * Return true if the workflow has already gone on without the step: another step has run,
 * runs or was skipped on the assumption that this step is over.
 */
static bool
is_settled(const JobqStep *step)
{
	if (!jobq_step_over(step))
		return false;
	if (step->mapper != NULL && jobq_step_over(step->mapper))
		return true;
	for (int i = 0; i < step->nusers; i++)
	{
		char		state = step->users[i]->state;

		if (state == STATE_COMPLETED || state == STEP_SKIPPED || state == STEP_LIVE)
			return true;
	}
	return false;
}

static int64 *
copy_id(int64 id)
{
	int64	   *copy = palloc(sizeof(int64));

	*copy = id;
	return copy;
}

/*
 * Block the cancelled and expired steps of a workflow again, and the dead steps without a
 * dead letter.  Returns the number of these steps.  An optional step is left alone if other
 * steps have run without the step.  The workflow is then running, even if it was cancelled.
 * The same applies to the steps of nested workflows.  Appends the ids of all these
 * workflows to *batches, in the caller's memory context.
 */
static int64
restore(int64 id, bool nested, List **batches)
{
	static const Oid types[] = {INT8OID};
	Datum		value = Int64GetDatum(id);
	Ids			jobs = {0};
	BatchState	batch;
	JobqSteps	workflow;
	uint64		nletters;
	Ids			inner = {0};
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext old;

	check_stack_depth();
	SPI_connect();
	if (nested)
	{
		/*
		 * the outer batch ended before this workflow began: it can still
		 * begin
		 */
		batch_read(JOBQ_MAY_OPERATE, id, BATCH_LOCK_ALL, &batch);
		if (batch.state == BATCH_PENDING && !batch.over)
		{
			SPI_finish();
			return 0;
		}
	}
	open_workflow(id, nested, &batch, &workflow);
	old = MemoryContextSwitchTo(caller);
	*batches = lappend(*batches, copy_id(id));
	MemoryContextSwitchTo(old);
	for (int i = 0; i < workflow.nsteps; i++)
	{
		JobqStep   *step = workflow.steps[i];

		step->again = jobq_step_loss(step->state) != NULL && !is_settled(step) &&
			jobq_current_of(step->job_id) == NULL;
	}
	nletters = jobq_query("SELECT id FROM jobq_internal.dead_letter WHERE batch_id = $1",
						  1, types, &value, NULL, SPI_OK_SELECT);
	for (uint64 i = 0; i < nletters; i++)
	{
		JobqStep   *step =
			jobq_step_of_job(&workflow, DatumGetInt64(jobq_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, INT8OID, NULL)));

		if (step == NULL)
			continue;
		step->again = false;
		if (step->workflow_id != 0)
			add_id(&inner, &workflow, step->workflow_id);
	}
	for (int i = 0; i < workflow.nsteps; i++)
		if (workflow.steps[i]->again)
		{
			add_id(&jobs, &workflow, workflow.steps[i]->job_id);
			if (workflow.steps[i]->workflow_id != 0)
				add_id(&inner, &workflow, workflow.steps[i]->workflow_id);
		}
	if (jobs.n > 0)
	{
		forget_ends(id, &jobs);
		make_jobs(id, batch.role, &workflow, &jobs);
	}
	for (int i = 0; i < inner.n; i++)
	{
		old = MemoryContextSwitchTo(caller);
		(void) restore(DatumGetInt64(inner.ids[i]), true, batches);
		MemoryContextSwitchTo(old);
	}

	/*
	 * A completed nested workflow stays over: only the results could not be
	 * stored.
	 */
	if (jobs.n > 0 || (nested && batch.state != BATCH_COMPLETED) ||
		batch.state == BATCH_CANCELLED)
		reopen(id, batch.state);
	SPI_finish();
	return jobs.n;
}

/*
 * Block the steps of a workflow and of its nested workflows again, as restore() describes.
 * Returns the number of the workflow's own steps.  *batches: receives the ids of all these
 * workflows, the outermost first.  Locks the dead letters, the rows of the batches, and the
 * locks of evaluations.  ERROR if the current user may not operate on the workflow, its
 * state does not allow a rerun, or another transaction has locked a row.  Requires READ
 * COMMITTED.  The caller must not be connected to SPI.
 */
int64
jobq_workflow_restore(int64 id, List **batches)
{
	BatchState	batch;

	jobq_lock_jobs();
	jobq_pin_queues();
	*batches = NIL;
	SPI_connect();
	batch_read(JOBQ_MAY_OPERATE, id, BATCH_NO_LOCK, &batch);
	batch_lock_letters(id);
	SPI_finish();
	return restore(id, false, batches);
}
