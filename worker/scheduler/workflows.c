/*-------------------------------------------------------------------------
 *
 * workflows.c
 *	  The scheduler's part in workflows: frees steps whose needs are completed,
 *	  and cancels those that cannot run any more.
 *
 * It is part of the look at their batch (batch_look.c).  What is to be done
 * follows from where the steps' jobs are, so that a look may come too often, or
 * again after a crash:
 *
 *	- a blocked step is freed if all that it needs is completed;
 *	- it is cancelled if something that it needs has ended otherwise;
 *	- one that was cancelled only because others failed is blocked again if
 *	  what it needs is not lost any more: a failed step was retried.
 *
 * worker/scheduler/workflows.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "produce/produce.h"
#include "store/store.h"
#include "compose/compose.h"

/* The largest payload with results in it, whatever jobq.max_payload says. */
#define MAX_PAYLOAD		((Size) 128 * 1024 * 1024)

/* Steps that are blocked again in one look. */
#define MAX_RESTORED	100

/* What a look at a workflow works with. */
typedef struct Look
{
	int64		batch_id;
	Oid			role;
	Relation	rel;
	JobqSteps	workflow;
	MemoryContext memory;		/* reset after each step */
	bool		locked;			/* somebody else has a row that we want */
	bool		more;			/* there is more than fits into one look */
} Look;

static void remember_ends(const Look *look);
static void restore_steps(Look *look);
static void restore_step(Look *look, JobqStep *step, TimestampTz enqueued_at,
						 Jsonb *definition);
static JobqStep *step_of_job(const Look *look, int64 job_id);
static bool take_row(Look *look, const JobqStep *step, JobqJob *job);
static void cancel_step(Look *look, JobqStep *step, const char *reason);
static void free_step(Look *look, JobqStep *step);
static Jsonb *result_of(void *arg, const char *name);

/*
 * Look at the steps of a batch of the role's; the caller is connected to SPI.
 * ending: the batch has failed, and nothing new begins.  False if somebody else
 * has locked something that is to be changed: then come again later.  *more is set
 * if there was more to do than fits into one look: then come again at once.
 */
bool
workflow_advance(int64 batch_id, Oid role, bool ending, bool *more)
{
	Look		look = {0};
	MemoryContext old;
	bool		blocked = false;
	bool		changed;

	look.batch_id = batch_id;
	look.role = role;
	jobq_steps_load(batch_id, &look.workflow);
	for (int i = 0; i < look.workflow.nsteps; i++)
	{
		char		state = look.workflow.steps[i].state;

		blocked |= state == STEP_BLOCKED || (state == STEP_DROPPED && !ending);
	}
	*more = false;
	if (!blocked)
		return true;
	if (XLogLogicalInfoActive())
		remember_ends(&look);

	look.rel = jobq_open_jobs();
	look.memory = AllocSetContextCreate(CurrentMemoryContext, "jobq step",
										ALLOCSET_DEFAULT_SIZES);
	if (!ending)
		restore_steps(&look);
	old = MemoryContextSwitchTo(look.memory);
	do
	{
		changed = false;
		for (int i = 0; i < look.workflow.nsteps && !look.more; i++)
		{
			JobqStep   *step = &look.workflow.steps[i];
			const char *reason;

			if (step->state != STEP_BLOCKED)
				continue;
			CHECK_FOR_INTERRUPTS();
			if (!ending && jobq_step_needs_done(step))
				free_step(&look, step);
			else if ((reason = jobq_step_need_lost(step)) != NULL)
				cancel_step(&look, step, reason);
			if (step->state != STEP_BLOCKED)
			{
				changed = true;
				look.more = share_over();
			}
			MemoryContextReset(look.memory);
		}
	} while (changed && !look.more);
	*more = look.more;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(look.memory);
	table_close(look.rel, NoLock);
	return !look.locked;
}

/*
 * A subscriber of logical replication has no archive: tell it by jobq.step how
 * steps have ended.
 */
static void
remember_ends(const Look *look)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {Int64GetDatum(look->batch_id)};

	jobq_query_kept(&plan, "UPDATE jobq.step s SET state = a.state, result = a.result"
					" FROM jobq.archive a WHERE a.batch_id = $1 AND a.id = s.job_id"
					" AND s.job_id IN (SELECT job_id FROM jobq.step WHERE batch_id = $1"
					"  AND state IS NULL FOR UPDATE SKIP LOCKED)",
					1, types, values, NULL, SPI_OK_UPDATE);
}

/*
 * Block those steps again that were cancelled because others failed, and that
 * could run now.
 */
static void
restore_steps(Look *look)
{
	static const Oid types[] = {INT8OID, INT8ARRAYOID};
	JobqSteps  *workflow = &look->workflow;
	Datum	   *ids = palloc(sizeof(Datum) * workflow->nsteps);
	int			nids = 0;
	bool		changed;
	Datum		values[2];
	SPITupleTable *table;
	uint64		n;

	do
	{
		changed = false;
		for (int i = 0; i < workflow->nsteps && !look->more; i++)
		{
			JobqStep   *step = &workflow->steps[i];

			if (step->state != STEP_DROPPED || jobq_step_need_lost(step) != NULL)
				continue;
			if (nids == MAX_RESTORED)
			{
				look->more = true;
				break;
			}
			ids[nids++] = Int64GetDatum(step->job_id);
			step->state = STEP_RESTORED;
			changed = true;
		}
	} while (changed && !look->more);
	if (nids == 0)
		return;

	values[0] = Int64GetDatum(look->batch_id);
	values[1] = PointerGetDatum(construct_array(ids, nids, INT8OID, 8,
												FLOAT8PASSBYVAL,
												TYPALIGN_DOUBLE));
	jobq_pin_queues();
	n = jobq_query("WITH a AS (DELETE FROM jobq.archive WHERE batch_id = $1 AND id IN"
				   " (SELECT id FROM jobq.archive WHERE batch_id = $1 AND id = ANY ($2)"
				   "  FOR UPDATE SKIP LOCKED) RETURNING id, enqueued_at),"
				   " forgotten AS (UPDATE jobq.step t SET state = NULL, result = NULL"
				   "  FROM a WHERE t.job_id = a.id AND t.state IS NOT NULL)"
				   " SELECT a.id, a.enqueued_at, s.definition FROM a"
				   " JOIN jobq.step s ON s.job_id = a.id ORDER BY a.id",
				   2, types, values, NULL, SPI_OK_SELECT);
	table = SPI_tuptable;
	for (uint64 i = 0; i < n; i++)
	{
		HeapTuple	tuple = table->vals[i];
		MemoryContext old = MemoryContextSwitchTo(look->memory);
		int64		id = DatumGetInt64(jobq_column(tuple, table->tupdesc, 1, INT8OID, NULL));
		TimestampTz enqueued_at =
			DatumGetTimestampTz(jobq_column(tuple, table->tupdesc, 2, TIMESTAMPTZOID, NULL));
		Datum		definition = jobq_column(tuple, table->tupdesc, 3, JSONBOID, NULL);

		restore_step(look, step_of_job(look, id), enqueued_at,
					 DatumGetJsonbP(definition));
		MemoryContextSwitchTo(old);
		MemoryContextReset(look->memory);
	}
	SPI_freetuptable(table);
	look->locked |= n < (uint64) nids;
	pfree(ids);
}

static void
restore_step(Look *look, JobqStep *step, TimestampTz enqueued_at,
			 Jsonb *definition)
{
	static const char *const more_keys[] = {"name", "needs", NULL};
	JobqSpec	spec;
	JobqJob		job;
	JobqUnique	unique;
	Oid			userid;
	int			sec_context;

	jobq_spec_parse(definition, psprintf("step \"%s\"", step->name), more_keys,
					&spec);

	/* no code of the role's runs: this is about whose job it is */
	GetUserIdAndSecContext(&userid, &sec_context);
	SetUserIdAndSecContext(look->role, sec_context |
						   SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
	jobq_spec_prepare_kept(&spec, &job, &unique);
	SetUserIdAndSecContext(userid, sec_context);

	JOB_SET(&job, JOB_ID, Int64GetDatum(step->job_id));
	JOB_SET(&job, JOB_ENQUEUED_AT, TimestampTzGetDatum(enqueued_at));
	JOB_SET(&job, JOB_BATCH_ID, Int64GetDatum(look->batch_id));
	jobq_job_block(&job, spec.options, spec.nulls);
	jobq_length_add(job_queue_id(&job));
	jobq_job_insert(look->rel, &job);
	jobq_state_changed(&job, "blocked");
	step->state = STEP_BLOCKED;
}

static JobqStep *
step_of_job(const Look *look, int64 job_id)
{
	int			low = 0;
	int			high = look->workflow.nsteps - 1;

	/* they are in the order of their jobs */
	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (look->workflow.steps[middle].job_id < job_id)
			low = middle + 1;
		else
			high = middle;
	}
	Assert(look->workflow.steps[low].job_id == job_id);
	return &look->workflow.steps[low];
}

/*
 * Delete the row of a blocked step, if that needs no waiting.
 */
static bool
take_row(Look *look, const JobqStep *step, JobqJob *job)
{
	for (;;)
	{
		Snapshot	snapshot;
		TransactionId blocker;
		bool		found;

		CommandCounterIncrement();
		snapshot = RegisterSnapshot(GetLatestSnapshot());
		found = jobq_job_find(look->rel, step->job_id, snapshot, job);
		UnregisterSnapshot(snapshot);

		/* its end, if that is it, has us called again */
		if (!found || !job_blocked(job))
			return false;
		if (jobq_job_delete_or_blocker(look->rel, job, &blocker))
			return true;

		/* somebody cancels it, or gives it another priority */
		if (TransactionIdIsValid(blocker))
		{
			look->locked = true;
			return false;
		}
		CHECK_FOR_INTERRUPTS();
	}
}

static void
cancel_step(Look *look, JobqStep *step, const char *reason)
{
	JobqJob		job;

	if (!take_row(look, step, &job))
		return;
	jobq_archive(&job, STATE_CANCELLED, DT_NOBEGIN, false, (Datum) 0, reason);
	step->state = STEP_DROPPED;
}

/*
 * Free a step, with the results that it takes in its payload.
 */
static void
free_step(Look *look, JobqStep *step)
{
	Size		max_size = Min((Size) jobq_max_payload * 1024, MAX_PAYLOAD);
	Size		size;
	Jsonb	   *payload;
	JobqJob		job;

	if (!take_row(look, step, &job))
		return;
	payload = DatumGetJsonbP(JOB(&job, JOB_PAYLOAD));
	if (jobq_result_refs(payload, "payload") != NIL)
	{
		payload = jobq_results_put(payload, result_of, look, max_size, &size);
		if (payload == NULL ||
			jobq_too_deep(JsonbPGetDatum(payload), VARSIZE(payload)))
		{
			JobqError	error = {.sqlerrcode = ERRCODE_PROGRAM_LIMIT_EXCEEDED};

			/* a retry will try this again, as it is still blocked then */
			if (payload == NULL)
			{
				error.message = psprintf("payload of %zu bytes, with the results of other steps, is larger than the allowed %zu kB",
										 size, max_size / 1024);
				error.hint = "Store the data in a table and return its key, or raise \"jobq.max_payload\".";
			}
			else
				error.message = psprintf("the nesting of the payload, with the results of other steps, is deeper than %d levels",
										 JOBQ_MAX_DEPTH);
			(void) jobq_job_failed(look->rel, &job, DT_NOBEGIN, &error, false,
								   true, 0);
			step->state = STEP_FAILED;
			return;
		}
		JOB_SET(&job, JOB_PAYLOAD, JsonbPGetDatum(payload));
	}
	jobq_job_free(look->rel, &job);
	step->state = STEP_LIVE;
}

/*
 * The result of a completed step, or NULL if it has none.
 */
static Jsonb *
result_of(void *arg, const char *name)
{
	static const Oid types[] = {INT8OID, INT8OID};
	static SPIPlanPtr plan = NULL;
	Look	   *look = arg;
	JobqStep   *step = NULL;
	Datum		values[2];

	for (int i = 0; i < look->workflow.nsteps && step == NULL; i++)
		if (strcmp(look->workflow.steps[i].name, name) == 0)
			step = &look->workflow.steps[i];
	if (step == NULL || step->state != STATE_COMPLETED)
		return NULL;
	if (!step->result_read)
	{
		values[0] = Int64GetDatum(look->batch_id);
		values[1] = Int64GetDatum(step->job_id);
		if (jobq_query_kept(&plan, "SELECT result FROM jobq.archive WHERE batch_id = $1 AND id = $2"
							" UNION ALL SELECT result FROM jobq.step WHERE job_id = $2 AND state IS NOT NULL",
							2, types, values, NULL, SPI_OK_SELECT) > 0)
		{
			bool		isnull;
			Datum		result = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, JSONBOID, &isnull);

			/* another step may take it, too */
			if (!isnull)
			{
				MemoryContext old =
					MemoryContextSwitchTo(MemoryContextGetParent(look->memory));

				step->result = DatumGetJsonbPCopy(result);
				MemoryContextSwitchTo(old);
			}
		}
		SPI_freetuptable(SPI_tuptable);
		step->result_read = true;
	}
	return step->result;
}
