/*-------------------------------------------------------------------------
 *
 * workflows.c
 *	  Advances workflows: frees steps whose needs are met, and cancels steps
 *	  with lost needs.
 *
 * This is part of the evaluation of the batch (batch_evaluate.c).  The work follows from the
 * state of the steps' jobs.  Evaluations may therefore repeat, also after a crash:
 *
 * - A blocked step is freed if each of its needs is completed, or skipped, or
 *   optional and over.  If a condition of the step does not hold, the step is skipped.
 * - A blocked step is cancelled if one of its needs has ended in another way.
 * - A step cancelled only because of a lost need is blocked again when the need is
 *   no longer lost, because a dead step was retried.
 *
 * Reading all steps at each end of a job would take longer than the steps.  Large
 * workflows are therefore kept in memory (kept.c), with a list of the steps that can move
 * on.  An evaluation has two ways (advance_steps() in batch_evaluate.c):
 *
 *	workflow_go_on()	if there is a copy of the same version, and the news list all changes:
 *						apply the news, and move on the listed steps
 *	workflow_advance()	otherwise: read all steps, move on each blocked step, and keep the
 *						result
 *
 * Both move on a step by move_step().  A workflow is "sound" if it may be kept: each step is
 * blocked, live or over, and the batch is not ending.  With any other state, such as a failed
 * step, the copy is dropped, and the next evaluation reads all steps.
 *
 * worker/scheduler/workflows.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/workflow.h"

#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "produce/produce.h"
#include "store/store.h"

/* Steps blocked again in one evaluation, at most; and at a time. */
#define MAX_RESTORED	100
#define RESTORED_PIECE	20

static void remember_ends(int64 batch_id, const BatchNews *news);
static void restore_steps(StepContext *context);
static bool put_news(KeptWorkflow *kept, const BatchNews *news);
static void cancel_step(StepContext *context, JobqStep *step, const char *reason);
static bool advance_step(StepContext *context, JobqStep *step, bool ending, int64 passed);
static StepDone move_step(StepContext *context, JobqStep *step);
static StepDone free_step(StepContext *context, JobqStep *step);

static void
begin_steps(StepContext *context, int64 batch_id, Oid role, JobqSteps *workflow,
			WorkflowFindings *found)
{
	memset(context, 0, sizeof(StepContext));
	context->batch_id = batch_id;
	context->role = role;
	context->workflow = workflow;
	context->found = found;
	context->rel = jobq_open_jobs();
	context->array_memory = AllocSetContextCreate(CurrentMemoryContext, "jobq array",
												  ALLOCSET_DEFAULT_SIZES);
	context->memory = AllocSetContextCreate(CurrentMemoryContext, "jobq step",
											ALLOCSET_DEFAULT_SIZES);
}

static void
end_steps(StepContext *context)
{
	if (context->results != NULL)
		hash_destroy(context->results);
	if (context->outer != NULL)
		hash_destroy(context->outer);
	MemoryContextDelete(context->array_memory);
	MemoryContextDelete(context->memory);
	table_close(context->rel, NoLock);
}

/*
 * True if steps were added to the batch, as far as known.
 */
bool
workflow_grows(int64 batch_id, const BatchNews *news)
{
	KeptWorkflow *kept = kept_find(batch_id);

	return news->grows || news->added.n > 0 || (kept != NULL && kept->grows);
}

/*
 * Evaluate all steps of a batch.  role is the owner of the batch, and version is the
 * xmin of its row.  ending: the batch has failed, and no step may begin.  grows: see
 * workflow_grows().  Caller is connected to SPI.
 */
void
workflow_advance(int64 batch_id, Oid role, TransactionId version, bool ending,
				 bool grows, WorkflowFindings *found)
{
	static const BatchNews all = {.whole = true};
	StepContext context;
	JobqSteps	workflow;
	MemoryContext old;
	int64		passed;
	bool		changed;
	bool		sound = !ending;

	memset(found, 0, sizeof(WorkflowFindings));
	kept_forget(batch_id);
	jobq_steps_load(batch_id, &workflow);
	for (int i = 0; i < workflow.nsteps; i++)
	{
		char		state = workflow.steps[i]->state;

		found->blocked |= state == STEP_BLOCKED ||
			(state == STEP_DROPPED && !ending);
		sound &= state == STEP_LIVE || jobq_step_over(workflow.steps[i]);
	}

	/* steps added later may need steps already over */
	if (XLogLogicalInfoActive())
		remember_ends(batch_id, &all);
	if (!found->blocked)
	{
		if (grows && sound)
			kept_add(batch_id, version, true, &workflow);
		else
			MemoryContextDelete(workflow.memory);
		return;
	}
	jobq_injection_point("jobq-steps-read");
	begin_steps(&context, batch_id, role, &workflow, found);
	if (!ending)
		restore_steps(&context);
	old = MemoryContextSwitchTo(context.memory);
	passed = share_passed();
	do
	{
		changed = false;
		for (int i = 0; i < workflow.nsteps && !found->more; i++)
		{
			if (workflow.steps[i]->state != STEP_BLOCKED)
				continue;
			CHECK_FOR_INTERRUPTS();
			changed |= advance_step(&context, workflow.steps[i], ending, passed);
			MemoryContextReset(context.memory);
		}
	} while (changed && !found->more);
	MemoryContextSwitchTo(old);
	end_steps(&context);

	found->blocked = false;
	sound = !ending;
	for (int i = 0; i < workflow.nsteps; i++)
	{
		const JobqStep *step = workflow.steps[i];
		bool		goes_on = jobq_step_over(step) || step->state == STEP_LIVE;

		found->blocked |= !goes_on;
		sound &= goes_on || step->state == STEP_BLOCKED;
	}
	if (sound && (found->blocked || grows) && !found->later)
		kept_add(batch_id, version, grows, &workflow);
	else
		MemoryContextDelete(workflow.memory);
}

/*
 * Continue a kept workflow.  Returns false, without any change, if all steps must be
 * evaluated.  Caller is connected to SPI.
 */
bool
workflow_go_on(int64 batch_id, Oid role, TransactionId version,
			   const BatchNews *news, WorkflowFindings *found)
{
	KeptWorkflow *kept = news->whole ? NULL : kept_find(batch_id);
	StepContext context;
	MemoryContext old;
	bool		sound = true;

	if (kept == NULL || kept->version != version || !put_news(kept, news))
	{
		kept_forget(batch_id);
		return false;
	}
	memset(found, 0, sizeof(WorkflowFindings));
	if (XLogLogicalInfoActive() && news->ended.n > 0)
		remember_ends(batch_id, news);
	begin_steps(&context, batch_id, role, &kept->workflow, found);
	old = MemoryContextSwitchTo(context.memory);
	while (sound && kept->ndone < kept->nready && !found->more)
	{
		JobqStep   *step = kept->ready[kept->ndone];
		StepDone	done;

		CHECK_FOR_INTERRUPTS();
		done = move_step(&context, step);
		MemoryContextReset(context.memory);
		if (done == STEP_DONE_SOME)
		{
			found->more = true;
			break;
		}
		kept->ndone++;
		if (done == STEP_DONE_BEFORE)
			done = STEP_DONE_ALL;
		if (done == STEP_DONE_ALL)
			kept->nblocked--;
		sound = done == STEP_DONE_SO_FAR ||
			(done == STEP_DONE_ALL && (step->state == STEP_LIVE ||
									   (jobq_step_over(step) && kept_over(kept, step))));
		found->more = kept->ndone < kept->nready && share_over();
	}
	MemoryContextSwitchTo(old);
	end_steps(&context);
	sound &= kept_count(kept);
	found->blocked = !sound || kept->nblocked > 0;
	if (!sound || (kept->nblocked == 0 && !kept->grows))
		kept_forget(batch_id);
	return true;
}

/*
 * Add new steps to the kept workflow.  Returns false in an unexpected state.
 */
static bool
put_added(KeptWorkflow *kept, const JobList *added)
{
	int64	   *ids = palloc(sizeof(int64) * (added->n + 1));
	JobqStep   *steps;
	int			n = 0;
	bool		sound = true;

	for (int i = 0; i < added->n; i++)
		if (jobq_step_of_job(&kept->workflow, added->ids[i]) == NULL)
			ids[n++] = added->ids[i];
	if (n > 0)
	{
		steps = jobq_steps_add(kept->batch_id, &kept->workflow, ids, n);
		sound = steps != NULL;
		for (int i = 0; i < n && sound; i++)
			sound = kept_grow(kept, &steps[i]);
	}
	pfree(ids);
	return sound;
}

/*
 * Apply the news to the kept workflow: added steps and ended jobs.  Returns false in an
 * unexpected state.
 */
static bool
put_news(KeptWorkflow *kept, const BatchNews *news)
{
	static const Oid types[] = {INT8ARRAYOID};
	static SPIPlanPtr plan = NULL;
	Datum	   *ids;
	int			nids = 0;
	SPITupleTable *table;
	Datum		array;
	uint64		n;
	bool		sound = true;

	/* an added step may have ended already */
	if (!put_added(kept, &news->added))
		return false;
	ids = palloc(sizeof(Datum) * (news->ended.n + 1));

	/*
	 * the batch may have jobs that are no steps; a retried job may be
	 * reported often
	 */
	for (int i = 0; i < news->ended.n; i++)
	{
		JobqStep   *step = jobq_step_of_job(&kept->workflow, news->ended.ids[i]);

		if (step == NULL || jobq_step_over(step) || step->state == STEP_REPORTED)
			continue;
		if (step->state != STEP_LIVE)
			return false;
		step->state = STEP_REPORTED;
		ids[nids++] = Int64GetDatum(step->job_id);
	}
	if (nids == 0)
		return true;
	array = jobq_int8_array(ids, nids);
	n = jobq_query_kept(&plan, "SELECT id, state FROM jobq_internal.archive WHERE id = ANY ($1)"
						" UNION ALL SELECT id, 'l' FROM jobq_internal.job WHERE id = ANY ($1)"
						" AND run_at < 'infinity'",
						1, types, &array, NULL, SPI_OK_SELECT);
	table = SPI_tuptable;
	for (uint64 i = 0; i < n && sound; i++)
	{
		JobqStep   *step =
			jobq_step_of_job(&kept->workflow,
							 DatumGetInt64(jobq_column(table->vals[i], table->tupdesc, 1, INT8OID, NULL)));
		char		state = DatumGetChar(jobq_column(table->vals[i], table->tupdesc, 2, CHAROID, NULL));

		if (state == STATE_COMPLETED)
			sound = kept_over(kept, step);
		else
			sound = state == STEP_LIVE;
		step->state = state;
	}
	SPI_freetuptable(table);
	pfree(ids);
	return sound && n == (uint64) nids;
}

bool
workflow_is_kept(int64 batch_id)
{
	return kept_find(batch_id) != NULL;
}

/*
 * Store the ends of steps in jobq_internal.step for subscribers of logical replication,
 * which have no archive.
 */
static void
remember_ends(int64 batch_id, const BatchNews *news)
{
	static const Oid types[] = {INT8OID, INT8ARRAYOID};
	static SPIPlanPtr plans[2] = {NULL, NULL};
	Datum		values[2] = {Int64GetDatum(batch_id)};
	Datum	   *ids;

	if (news->whole)
	{
		jobq_query_kept(&plans[0], "UPDATE jobq_internal.step s SET state = " STATE_OR_DROPPED("a.") ", result = a.result"
						" FROM jobq_internal.archive a WHERE a.batch_id = $1 AND a.id = s.job_id"
						" AND s.job_id IN (SELECT job_id FROM jobq_internal.step WHERE batch_id = $1"
						"  AND state IS NULL FOR UPDATE SKIP LOCKED)",
						1, types, values, NULL, SPI_OK_UPDATE);
		return;
	}
	ids = palloc(sizeof(Datum) * news->ended.n);
	for (int i = 0; i < news->ended.n; i++)
		ids[i] = Int64GetDatum(news->ended.ids[i]);
	values[1] = jobq_int8_array(ids, news->ended.n);
	jobq_query_kept(&plans[1], "UPDATE jobq_internal.step s SET state = " STATE_OR_DROPPED("a.") ", result = a.result"
					" FROM jobq_internal.archive a WHERE a.id = ANY ($2) AND a.id = s.job_id"
					" AND s.job_id IN (SELECT job_id FROM jobq_internal.step WHERE batch_id = $1"
					"  AND job_id = ANY ($2) AND state IS NULL FOR UPDATE SKIP LOCKED)",
					2, types, values, NULL, SPI_OK_UPDATE);
	pfree(ids);
}

/*
 * Choose some of the steps cancelled because of lost needs that could run now.  Sets
 * ids to their job ids, and returns their number.
 */
static int
choose_dropped(const JobqSteps *workflow, Datum *ids)
{
	int			nids = 0;
	bool		changed;

	do
	{
		changed = false;
		for (int i = 0; i < workflow->nsteps && nids < RESTORED_PIECE; i++)
		{
			JobqStep   *step = workflow->steps[i];

			if (step->state != STEP_DROPPED || jobq_step_lost_need_or_element(step) != NULL)
				continue;
			ids[nids++] = Int64GetDatum(step->job_id);
			step->state = STEP_RESTORED;
			changed = true;
		}
	} while (changed && nids < RESTORED_PIECE);
	return nids;
}

/*
 * Block the chosen steps again.
 */
static void
restore_chosen(StepContext *context, Datum *ids, int nids)
{
	static const Oid types[] = {INT8OID, INT8ARRAYOID, TIMESTAMPTZOID};
	Datum		values[3];
	JobqAgain	again = {
		.batch_id = context->batch_id,.role = context->role,.workflow = context->workflow
	};
	uint64		n;

	values[0] = Int64GetDatum(context->batch_id);
	values[1] = jobq_int8_array(ids, nids);
	values[2] = TimestampTzGetDatum(jobq_now());
	jobq_pin_queues();
	n = jobq_query("WITH a AS (DELETE FROM jobq_internal.archive WHERE batch_id = $1 AND id IN"
				   " (SELECT id FROM jobq_internal.archive WHERE batch_id = $1 AND id = ANY ($2)"
				   "  FOR UPDATE SKIP LOCKED) RETURNING id, enqueued_at),"
				   " forgotten AS (UPDATE jobq_internal.step t SET state = NULL, result = NULL"
				   "  FROM a WHERE t.job_id = a.id AND t.state IS NOT NULL)"
				   " SELECT a.id, a.enqueued_at, coalesce(s.definition, m.definition) FROM a"
				   " JOIN jobq_internal.step s ON s.job_id = a.id"
				   " LEFT JOIN jobq_internal.step m ON m.job_id = s.element_of ORDER BY a.id",
				   2, types, values, NULL, SPI_OK_SELECT);
	jobq_steps_again(context->rel, &again);
	if (n < (uint64) nids)
	{
		/* steps no longer in the archive are counted in the batch */
		uint64		more = jobq_query("WITH b AS (SELECT id FROM jobq_internal.batch WHERE id = $1"
									  "  FOR NO KEY UPDATE SKIP LOCKED),"
									  " t AS (UPDATE jobq_internal.step s SET state = NULL, result = NULL"
									  "  WHERE EXISTS (SELECT FROM b) AND s.job_id IN"
									  "  (SELECT job_id FROM jobq_internal.step WHERE batch_id = $1 AND job_id = ANY ($2)"
									  "   AND state = 'd' FOR UPDATE SKIP LOCKED)"
									  "  AND NOT EXISTS (SELECT FROM jobq_internal.archive a WHERE a.batch_id = $1 AND a.id = s.job_id)"
									  "  RETURNING job_id, definition, element_of),"
									  " counted AS (UPDATE jobq_internal.batch SET cancelled = greatest(cancelled -"
									  "  (SELECT pg_catalog.count(*) FROM t), 0)"
									  "  WHERE id = $1 AND EXISTS (SELECT FROM t))"
									  " SELECT t.job_id, $3, coalesce(t.definition, m.definition) FROM t"
									  " LEFT JOIN jobq_internal.step m ON m.job_id = t.element_of ORDER BY t.job_id",
									  3, types, values, NULL, SPI_OK_SELECT);

		jobq_steps_again(context->rel, &again);
		n += more;
	}
	context->found->later |= n < (uint64) nids;
}

/*
 * Block steps again that were cancelled because of lost needs and could run now, as far
 * as time allows.
 */
static void
restore_steps(StepContext *context)
{
	Datum		ids[RESTORED_PIECE];
	int64		passed = share_passed();
	int			done = 0;
	int			n;

	while ((n = choose_dropped(context->workflow, ids)) > 0)
	{
		restore_chosen(context, ids, n);
		done += n;
		if (n == RESTORED_PIECE && (done >= MAX_RESTORED || share_over_from(passed)))
		{
			context->found->more = true;
			break;
		}
	}
}

/*
 * Cancel the blocked step if a need is lost, or move on the step if all needs are over.
 * Returns true if the step has left the state BLOCKED.  Sets context->found->more if work is
 * left, or if the time slice is over.  passed: the part of the time slice used for reading the
 * steps.  At least as much time is used for moving them on, because the next evaluation reads all
 * steps again.
 */
static bool
advance_step(StepContext *context, JobqStep *step, bool ending, int64 passed)
{
	StepDone	done = STEP_DONE_ALL;
	const char *reason = jobq_step_lost_need_or_element(step);

	Assert(step->state == STEP_BLOCKED);
	if (reason != NULL)
		cancel_step(context, step, reason);
	else if (!ending && jobq_step_needs_done(step))
		done = move_step(context, step);
	context->found->more |= done == STEP_DONE_SOME;
	if (step->state == STEP_BLOCKED)
		return false;
	if (done != STEP_DONE_BEFORE)
		context->found->more |= share_over_from(passed);
	return true;
}

/*
 * Cancel a step with a lost need.  Without its row, the step stays as it is.
 */
static void
cancel_step(StepContext *context, JobqStep *step, const char *reason)
{
	JobqJob		job;

	if (!step_take_row(context, step, &job))
		return;
	jobq_archive_unstarted(&job, CAUSE_NEED_LOST, reason);
	step->state = STEP_DROPPED;
	nest_step_ended(step);
}

/*
 * Move on a blocked step whose needs are over: the job is freed, or the next piece of work is
 * done for a step with "map" or a nested workflow.  The condition of the step is checked
 * before the step begins.
 */
static StepDone
move_step(StepContext *context, JobqStep *step)
{
	if (step->conditional && step->nwritten == 0 && !nest_runs(step))
	{
		StepDone	done;

		if (!condition_passed(context, step, &done))
			return done;
	}
	if (step->workflow_id != 0)
		return nest_step(context, step);
	return step->mapped ? map_step(context, step) : free_step(context, step);
}

/*
 * Free a step, with the results of earlier steps in its payload.  Or free an element
 * whose job was created again, with the element in its payload.
 */
static StepDone
free_step(StepContext *context, JobqStep *step)
{
	Jsonb	   *payload;
	JobqJob		job;

	if (!step_take_row(context, step, &job))
		return STEP_DONE_NOTHING;
	payload = DatumGetJsonbP(JOB(&job, JOB_PAYLOAD));
	if (step->mapper != NULL || jobq_result_refs(payload, "payload", false) != NIL)
	{
		JobqError	error;

		payload = step->mapper != NULL
			? map_payload(context, step, payload, &error)
			: step_payload(context, payload, NULL, 0, &error);
		if (payload == NULL)
		{
			step_fail(context, step, &job, &error);
			return STEP_DONE_ALL;
		}
		JOB_SET(&job, JOB_PAYLOAD, JsonbPGetDatum(payload));
	}
	jobq_job_free(context->rel, &job);
	step->state = STEP_LIVE;
	return STEP_DONE_ALL;
}
