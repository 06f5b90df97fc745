/*-------------------------------------------------------------------------
 *
 * nest.c
 *	  Nested workflows: as steps of an outer workflow, or added to a batch
 *	  (src/compose/nest.c).
 *
 * The evaluation of the outer batch starts the nested workflow when the needs of the
 * step are over.  The evaluation of the nested workflow ends both the workflow and its
 * job in the outer batch, in one transaction.  Each ends exactly once, and the outer
 * batch sees the end like the end of any job.  The evaluations do not wait for each
 * other's locks; a locked row is tried again later.
 *
 * If the outer batch is cancelled, the nested workflow is cancelled too.  If the outer
 * batch fails, or the step can no longer run, the nested workflow is dropped: waiting
 * jobs are cancelled, and running jobs may end.  A dropped workflow continues when the
 * outer batch is retried.  Steps continue like other steps cancelled because of a
 * failure (workflows.c).  Workflows added to the batch continue in nest_go_on().
 *
 * The retry of a dead letter in a nested workflow also reopens the outer batches, and makes the
 * jobs that represent the workflow live again: revive_outer() in src/operate/revive.c.
 *
 * worker/scheduler/nest.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/workflow.h"

#include "access/detoast.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "produce/produce.h"
#include "store/store.h"

/* Results read by one query. */
#define RESULTS_PIECE	1000

/* The error of a step in the error of its workflow, at most; in bytes. */
#define MAX_ERROR_TEXT	2000

/* Workflows continued in one evaluation, at most. */
#define GO_ON_PIECE		100

static StepDone begin(StepContext *context, JobqStep *step);
static StepDone complete(StepContext *context, JobqStep *step);
static bool is_step(int64 job_id);
static uint64 take_back(int64 id, Datum inner_ids);
static void put_back_jobs(int64 id, uint64 n);
static bool result_of(int64 id, Jsonb **result, JobqError *error);
static bool result_of_chain(int64 id, Jsonb **result);
static Jsonb *results_by_name(int64 id);
static void error_of(int64 id, JobqError *error);

/*
 * Get the state of the step's workflow.  Returns false if there is none.
 */
static bool
find_workflow(const JobqStep *step, char *state, bool *over)
{
	static const Oid types[] = {INT8OID, INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {Int64GetDatum(step->workflow_id), Int64GetDatum(step->job_id)};
	bool		found;

	found = jobq_query_kept(&plan, "SELECT state, finished_at IS NOT NULL FROM jobq_internal.batch"
							" WHERE id = $1 AND parent_job = $2",
							2, types, values, NULL, SPI_OK_SELECT) > 0;
	if (found)
	{
		*state = DatumGetChar(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, CHAROID, NULL));
		*over = DatumGetBool(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, BOOLOID, NULL));
	}
	SPI_freetuptable(SPI_tuptable);
	return found;
}

/*
 * True if the step is a workflow that has begun and is not over.
 */
bool
nest_runs(const JobqStep *step)
{
	char		state;
	bool		over;

	return step->workflow_id != 0 && find_workflow(step, &state, &over) &&
		!over && state != BATCH_PENDING;
}

/*
 * Begin or continue the workflow of a step whose needs are over.
 */
StepDone
nest_step(StepContext *context, JobqStep *step)
{
	JobqError	error = {.sqlerrcode = ERRCODE_UNDEFINED_OBJECT};
	JobqJob		job;
	char		state;
	bool		over;

	if (!find_workflow(step, &state, &over))
	{
		if (!step_take_row(context, step, &job))
			return STEP_DONE_NOTHING;
		error.message = psprintf("the workflow of step \"%s\" is gone", step->name);
		step_fail(context, step, &job, &error);
		return STEP_DONE_ALL;
	}
	if (over && state == BATCH_COMPLETED)
		return complete(context, step);
	if (over || state == BATCH_PENDING)
		return begin(context, step);
	step->state = STEP_LIVE;
	return STEP_DONE_BEFORE;
}

/*
 * Begin the workflow of the step, or continue a dropped workflow.  Does nothing if the row is
 * locked, or if a session has cancelled the pending workflow since find_workflow().
 */
static StepDone
begin(StepContext *context, JobqStep *step)
{
	static const Oid types[] = {INT8OID, TIMESTAMPTZOID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {Int64GetDatum(step->workflow_id), TimestampTzGetDatum(jobq_now())};

	jobq_injection_point("jobq-nest-begins");
	if (jobq_query_kept(&plan, "UPDATE jobq_internal.batch" BATCH_BEGINS("$2")
						"id = (SELECT id FROM jobq_internal.batch WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED)",
						2, types, values, NULL, SPI_OK_UPDATE) == 0)
	{
		context->found->later = true;
		return STEP_DONE_NOTHING;
	}
	jobq_at_commit_batch(step->workflow_id, 0, false);
	jobq_batch_changed(step->workflow_id, "running", false);
	step->state = STEP_LIVE;
	return STEP_DONE_ALL;
}

/*
 * Complete the step of a workflow already completed, whose results could not be stored
 * before.
 */
static StepDone
complete(StepContext *context, JobqStep *step)
{
	JobqJob		job;
	JobqError	error;
	Jsonb	   *result;

	if (!step_take_row(context, step, &job))
		return STEP_DONE_NOTHING;
	if (!result_of(step->workflow_id, &result, &error))
	{
		step_fail(context, step, &job, &error);
		return STEP_DONE_ALL;
	}
	jobq_archive(&job, CAUSE_COMPLETED, DT_NOBEGIN, result != NULL, JsonbPGetDatum(result), NULL);
	step->state = STATE_COMPLETED;
	return STEP_DONE_ALL;
}

/*
 * The step can no longer run, and its job has ended.  Request an evaluation of its
 * workflow; nest_drop_if_lost() then detects the end.
 */
void
nest_step_ended(const JobqStep *step)
{
	if (step->workflow_id != 0)
		jobq_at_commit_batch(step->workflow_id, 0, false);
}

/*
 * Cancel the workflow behind a job together with the outer batch.  all: the outer batch
 * was cancelled, otherwise it has failed.
 */
NestCancel
nest_cancel(const JobqJob *job, bool all)
{
	static const Oid types[] = {INT8OID, INT8OID};
	static SPIPlanPtr find = NULL;
	static SPIPlanPtr plans[2] = {NULL, NULL};
#define END_IT(change) \
	"UPDATE jobq_internal.batch" change \
	"id = (SELECT id FROM jobq_internal.batch WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED)"
	static const char *const queries[] = {END_IT(" SET dropped = true WHERE "), END_IT(BATCH_CANCELS)};
	Datum		values[] = {JOB(job, JOB_BATCH_ID), JOB(job, JOB_ID)};
	Datum		id;
	bool		done;

	if (jobq_query_kept(&find, "SELECT id, state, dropped FROM jobq_internal.batch"
						" WHERE parent = $1 AND parent_job = $2 AND finished_at IS NULL",
						2, types, values, NULL, SPI_OK_SELECT) == 0)
	{
		SPI_freetuptable(SPI_tuptable);
		return NEST_NONE;
	}
	id = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, INT8OID, NULL);
	done = DatumGetChar(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, CHAROID, NULL)) == BATCH_CANCELLED ||
		(!all && DatumGetBool(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 3, BOOLOID, NULL)));
	SPI_freetuptable(SPI_tuptable);
	if (done)
		return NEST_CANCELLED;
	if (jobq_query_kept(&plans[all], queries[all], 1, types, &id, NULL, SPI_OK_UPDATE) == 0)
		return NEST_LOCKED;
	jobq_at_commit_batch(DatumGetInt64(id), 0, false);
	if (all)
		jobq_batch_changed(DatumGetInt64(id), "cancelling", false);
	return NEST_CANCELLED;
}

/*
 * Find the current version of the job.  Returns false if there is none, or if it does
 * not stand for a workflow.
 */
static bool
find_job(Relation rel, int64 job_id, JobqJob *job)
{
	Snapshot	snapshot;
	bool		found;

	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	found = jobq_job_find(rel, job_id, snapshot, job);
	UnregisterSnapshot(snapshot);
	return found && jobq_job_is_workflow(job);
}

/*
 * Check whether the outer job of this workflow has ended before the workflow has begun
 * or was retried.  If so, mark the workflow as dropped.  Returns false if the row is
 * locked.
 */
bool
nest_drop_if_lost(int64 id, int64 job_id, bool *dropped)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		value = Int64GetDatum(id);
	Relation	rel = jobq_open_jobs();
	JobqJob		job;

	*dropped = !find_job(rel, job_id, &job);
	table_close(rel, NoLock);
	return !*dropped ||
		jobq_query_kept(&plan, "UPDATE jobq_internal.batch SET dropped = true WHERE id ="
						" (SELECT id FROM jobq_internal.batch WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED)",
						1, types, &value, NULL, SPI_OK_UPDATE) > 0;
}

/*
 * Claim the row of the outer job of a workflow about to end.  *taken is false if there
 * is no row.  Returns false if the row is locked.
 */
bool
nest_take(int64 job_id, JobqJob *job, bool *taken)
{
	Relation	rel = jobq_open_jobs();
	bool		free = true;

	*taken = false;
	while (free && !*taken && find_job(rel, job_id, job))
	{
		TransactionId blocker;

		CHECK_FOR_INTERRUPTS();
		*taken = jobq_job_delete_or_blocker(rel, job, &blocker);
		free = *taken || !TransactionIdIsValid(blocker);
	}
	table_close(rel, NoLock);
	return free;
}

/*
 * End the outer job in the same way as its workflow.  Caller has claimed the job's row.
 */
void
nest_end(int64 id, char state, bool dropped, JobqJob *job)
{
	Relation	rel;
	Jsonb	   *result = NULL;
	JobqError	error = {0};

	if (state == BATCH_CANCELLED)
	{
		jobq_archive_unstarted(job, dropped ? CAUSE_BATCH_FAILED : CAUSE_WORKFLOW_CANCELLED,
							   NULL);
		return;
	}
	if (state == BATCH_FAILED)
		error_of(id, &error);
	else if (!is_step(job_id(job)) || result_of(id, &result, &error))
	{
		jobq_archive(job, CAUSE_COMPLETED, DT_NOBEGIN, result != NULL, JsonbPGetDatum(result),
					 NULL);
		return;
	}
	rel = jobq_open_jobs();
	jobq_job_dies(rel, job, &error);
	table_close(rel, NoLock);
}

/*
 * True if the job is a step, whose result may be used by later steps.
 */
static bool
is_step(int64 job_id)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		value = Int64GetDatum(job_id);

	return jobq_query_kept(&plan, "SELECT FROM jobq_internal.step WHERE job_id = $1",
						   1, types, &value, NULL, SPI_OK_SELECT) > 0;
}

/*
 * True if a nested workflow of the batch was dropped.
 */
bool
nest_has_dropped(int64 id)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		value = Int64GetDatum(id);

	return jobq_query_kept(&plan, "SELECT FROM jobq_internal.batch WHERE parent = $1 AND dropped LIMIT 1",
						   1, types, &value, NULL, SPI_OK_SELECT) > 0;
}

/*
 * Restart the workflows that were added to a batch, were dropped because the batch had failed,
 * and are over by now.  The batch itself runs again.  found->blocked is set if a dropped workflow
 * is not over yet.  Each end of a job of the batch then requests an evaluation, and an evaluation
 * after the end of the workflow restarts the workflow.
 */
void
nest_go_on(int64 id, WorkflowFindings *found)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		value = Int64GetDatum(id);
	HeapTuple	row;
	TupleDesc	desc;
	ArrayType  *inner;
	uint64		wanted;
	uint64		n;

	/*
	 * jobs outside of steps are in the archive, within the retention time
	 */
	(void) jobq_query_kept(&plan, "SELECT ARRAY(SELECT b.id FROM jobq_internal.batch b"
						   "  WHERE b.parent = $1 AND b.dropped AND b.finished_at IS NOT NULL"
						   "  AND EXISTS (SELECT FROM jobq_internal.archive a WHERE a.id = b.parent_job AND a.batch_id = $1"
						   "   AND " STATE_OR_DROPPED("a.") " = 'd')"
						   "  AND NOT EXISTS (SELECT FROM jobq_internal.step s WHERE s.job_id = b.parent_job)"
						   "  ORDER BY b.parent_job LIMIT " CppAsString2(GO_ON_PIECE) "),"
						   " EXISTS (SELECT FROM jobq_internal.batch b"
						   "  WHERE b.parent = $1 AND b.dropped AND b.finished_at IS NULL"
						   "  AND NOT EXISTS (SELECT FROM jobq_internal.step s WHERE s.job_id = b.parent_job))",
						   1, types, &value, NULL, SPI_OK_SELECT);
	row = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	inner = DatumGetArrayTypePCopy(jobq_column(row, desc, 1, INT8ARRAYOID, NULL));
	found->blocked |= DatumGetBool(jobq_column(row, desc, 2, BOOLOID, NULL));
	SPI_freetuptable(SPI_tuptable);
	wanted = ArrayGetNItems(ARR_NDIM(inner), ARR_DIMS(inner));
	if (wanted == 0)
		return;
	jobq_pin_queues();
	n = take_back(id, PointerGetDatum(inner));
	put_back_jobs(id, n);
	found->later |= n < wanted;
	found->more |= n == GO_ON_PIECE;
}

/*
 * Restart these workflows, and return the archived rows of their outer jobs.  Locked
 * rows are skipped.
 */
static uint64
take_back(int64 id, Datum inner_ids)
{
	static const Oid types[] = {INT8OID, INT8ARRAYOID, TIMESTAMPTZOID};
	Datum		values[] = {Int64GetDatum(id), inner_ids, TimestampTzGetDatum(jobq_now())};

	return jobq_query("WITH b AS (SELECT id, parent_job FROM jobq_internal.batch WHERE id = ANY ($2)"
					  "  AND finished_at IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED),"
					  " a AS (DELETE FROM jobq_internal.archive WHERE batch_id = $1 AND id IN"
					  "  (SELECT id FROM jobq_internal.archive WHERE batch_id = $1 AND id IN (SELECT parent_job FROM b)"
					  "   FOR UPDATE SKIP LOCKED)"
					  "  RETURNING id, enqueued_at, queue_id, priority, role, headers, tags),"
					  " begun AS (UPDATE jobq_internal.batch" BATCH_BEGINS("$3")
					  "  id = ANY ($2) AND parent_job IN (SELECT id FROM a))"
					  " SELECT b.id, a.id, a.enqueued_at, a.queue_id, a.priority, a.role::oid, a.headers, a.tags"
					  " FROM a JOIN b ON b.parent_job = a.id ORDER BY a.id",
					  3, types, values, NULL, SPI_OK_SELECT);
}

/*
 * Create the outer jobs of the n workflows returned by take_back() again.
 */
static void
put_back_jobs(int64 id, uint64 n)
{
	SPITupleTable *table = SPI_tuptable;
	TupleDesc	desc = table->tupdesc;
	Relation	rel = jobq_open_jobs();

	for (uint64 i = 0; i < n; i++)
	{
		HeapTuple	row = table->vals[i];
		int64		inner_id = DatumGetInt64(jobq_column(row, desc, 1, INT8OID, NULL));
		Datum		value;
		bool		isnull;
		JobqJob		job;

		CHECK_FOR_INTERRUPTS();
		jobq_nest_make_job(&job, inner_id,
						   DatumGetInt32(jobq_column(row, desc, 4, INT4OID, NULL)),
						   DatumGetObjectId(jobq_column(row, desc, 6, OIDOID, NULL)));
		JOB_SET(&job, JOB_ID, jobq_column(row, desc, 2, INT8OID, NULL));
		JOB_SET(&job, JOB_ENQUEUED_AT, jobq_column(row, desc, 3, TIMESTAMPTZOID, NULL));
		JOB_SET(&job, JOB_PRIORITY, jobq_column(row, desc, 5, INT4OID, NULL));
		JOB_SET(&job, JOB_BATCH_ID, Int64GetDatum(id));
		value = jobq_column(row, desc, 7, JSONBOID, &isnull);
		if (!isnull)
			JOB_SET(&job, JOB_HEADERS, value);
		value = jobq_column(row, desc, 8, TEXTARRAYOID, &isnull);
		if (!isnull)
			JOB_SET(&job, JOB_TAGS, value);
		jobq_job_again(rel, &job, false);
		jobq_batch_changed(inner_id, "running", false);
		jobq_at_commit_batch(inner_id, 0, false);
	}
	table_close(rel, NoLock);
	SPI_freetuptable(table);
}

/*
 * Get the result of the workflow; NULL if there is none.  Returns false if the result
 * is too large, and sets *error.
 */
static bool
result_of(int64 id, Jsonb **result, JobqError *error)
{
	if (result_of_chain(id, result))
		return true;
	*result = results_by_name(id);
	return step_results_fit(*result, psprintf("results of the steps of workflow " INT64_FORMAT, id), error);
}

/*
 * Get the result of the last job of a chain, or NULL.  Returns false if the workflow is
 * not a chain.
 */
static bool
result_of_chain(int64 id, Jsonb **result)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		value = Int64GetDatum(id);
	bool		isnull = true;
	bool		found;

	*result = NULL;
	found = jobq_query_kept(&plan, "SELECT coalesce(a.result, s.result) FROM jobq_internal.step s"
							" LEFT JOIN jobq_internal.archive a ON a.id = s.job_id"
							" WHERE s.batch_id = $1 AND NOT s.definition ? 'name'"
							" ORDER BY s.job_id DESC LIMIT 1",
							1, types, &value, NULL, SPI_OK_SELECT) > 0;
	if (found)
		value = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, JSONBOID, &isnull);
	if (!isnull)
		*result = DatumGetJsonbPCopy(value);
	SPI_freetuptable(SPI_tuptable);
	return found;
}

/*
 * Build an object with the results of the completed steps, by name; null for a step
 * without a result.  Returns NULL if the object is too large.
 */
static Jsonb *
results_by_name(int64 id)
{
	static const Oid types[] = {INT8OID, INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {Int64GetDatum(id), Int64GetDatum(PG_INT64_MIN)};
	Size		max_size = step_max_size();
	Size		size = VARHDRSZ;
	JsonbParseState *state = NULL;
	uint64		n;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	do
	{
		n = jobq_query_kept(&plan, "SELECT s.job_id, s.name, coalesce(a.result, s.result) FROM jobq_internal.step s"
							" LEFT JOIN jobq_internal.archive a ON a.id = s.job_id"
							" WHERE s.batch_id = $1 AND s.job_id > $2 AND s.element_of IS NULL"
							" AND coalesce(a.state, s.state) = 'c'"
							" ORDER BY s.job_id LIMIT " CppAsString2(RESULTS_PIECE),
							2, types, values, NULL, SPI_OK_SELECT);
		for (uint64 i = 0; i < n; i++)
		{
			HeapTuple	row = SPI_tuptable->vals[i];
			JsonbValue	value = {.type = jbvString};
			char	   *name = TextDatumGetCString(jobq_column(row, SPI_tuptable->tupdesc, 2, TEXTOID, NULL));
			bool		isnull;
			Datum		result = jobq_column(row, SPI_tuptable->tupdesc, 3, JSONBOID, &isnull);

			values[1] = jobq_column(row, SPI_tuptable->tupdesc, 1, INT8OID, NULL);
			size += strlen(name) + sizeof(JEntry) * 2 + (isnull ? 0 : toast_raw_datum_size(result));
			if (size > max_size)
				break;
			value.val.string.val = name;
			value.val.string.len = strlen(name);
			pushJsonbValue(&state, WJB_KEY, &value);
			value.type = jbvNull;
			if (!isnull)
			{
				Jsonb	   *copy = DatumGetJsonbPCopy(result);

				value.type = jbvBinary;
				value.val.binary.data = &copy->root;
				value.val.binary.len = VARSIZE(copy) - VARHDRSZ;
			}
			pushJsonbValue(&state, WJB_VALUE, &value);
		}
		SPI_freetuptable(SPI_tuptable);
	} while (n == RESULTS_PIECE && size <= max_size);
	return size > max_size ? NULL
		: JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
}

/*
 * Find the first dead or expired job of the batch, if it still exists.  A job of an optional step is
 * used only if there is no other.  The result stays in SPI_tuptable: the columns are ERROR_...
 */
bool
nest_find_error(int64 batch_id)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		value = Int64GetDatum(batch_id);

	return jobq_query_kept(&plan, "SELECT e.id, e.kind, e.sqlstate, e.error, e.error_context, s.name FROM"
						   " (SELECT id, finished_at, kind, sqlstate, error, error_context"
						   "  FROM jobq_internal.dead_letter WHERE batch_id = $1"
						   "  UNION ALL SELECT id, finished_at, kind, NULL, 'the job has expired', NULL"
						   "  FROM jobq_internal.archive WHERE batch_id = $1 AND state = 'e') e"
						   " LEFT JOIN jobq_internal.step s ON s.job_id = e.id"
						   " ORDER BY coalesce(s.optional, false), e.finished_at, e.id LIMIT 1",
						   1, types, &value, NULL, SPI_OK_SELECT) > 0;
}

/*
 * Get the error of a failed workflow.  The text of the job's error is cut.
 */
static void
error_of(int64 id, JobqError *error)
{
	HeapTuple	row;
	TupleDesc	desc;
	char	   *sqlstate;
	char	   *name;

	error->sqlerrcode = ERRCODE_JOBQ_WRONG_STATE;
	error->message = psprintf("workflow " INT64_FORMAT " has failed", id);
	if (!nest_find_error(id))
		return;
	row = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	sqlstate = SPI_getvalue(row, desc, ERROR_SQLSTATE);
	if (sqlstate != NULL && strlen(sqlstate) == 5)
		error->sqlerrcode = MAKE_SQLSTATE(sqlstate[0], sqlstate[1], sqlstate[2],
										  sqlstate[3], sqlstate[4]);
	name = SPI_getvalue(row, desc, ERROR_STEP);
	error->message = psprintf("workflow " INT64_FORMAT " has failed: %s: %s", id,
							  name != NULL ? psprintf("step \"%s\"", name)
							  : psprintf("job %s", SPI_getvalue(row, desc, ERROR_JOB)),
							  jobq_cut_text(SPI_getvalue(row, desc, ERROR_TEXT), MAX_ERROR_TEXT));
}
