/*-------------------------------------------------------------------------
 *
 * steps.c
 *	  How far the steps of a workflow are.
 *
 * jobq.step says which jobs are steps, and what they need; where a job is, its
 * table says, or jobq.step if retention or the like has removed it from there.
 *
 * src/compose/steps.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "compose/compose.h"

static int	compare_names(const void *a, const void *b);

/*
 * Read the steps of a batch into a memory context of their own, a child of the
 * current one; the caller is connected to SPI, and has the batch's row locked, or is
 * the scheduler.
 */
void
jobq_steps_load(int64 batch_id, JobqSteps *workflow)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr read_steps = NULL;
	static SPIPlanPtr read_states = NULL;
	Datum		values[] = {Int64GetDatum(batch_id)};
	MemoryContext read = AllocSetContextCreate(CurrentMemoryContext,
											   "jobq steps as read",
											   ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = CurrentMemoryContext;
	SPITupleTable *table;
	Datum	  **needs;
	uint64		n;

	workflow->memory = AllocSetContextCreate(CurrentMemoryContext, "jobq steps",
											 ALLOCSET_DEFAULT_SIZES);
	workflow->by_name = NULL;
	n = jobq_query_kept(&read_steps, "SELECT job_id, name, needs FROM jobq.step"
						" WHERE batch_id = $1 ORDER BY job_id",
						1, types, values, NULL, SPI_OK_SELECT);
	table = SPI_tuptable;
	workflow->nsteps = (int) n;
	workflow->steps = MemoryContextAllocZero(workflow->memory,
											 sizeof(JobqStep) * (n + 1));
	MemoryContextSwitchTo(read);
	needs = palloc(sizeof(Datum *) * (n + 1));
	for (uint64 i = 0; i < n; i++)
	{
		JobqStep   *step = &workflow->steps[i];

		step->job_id = DatumGetInt64(jobq_column(table->vals[i], table->tupdesc, 1, INT8OID, NULL));
		step->name = MemoryContextStrdup(workflow->memory,
										 TextDatumGetCString(jobq_column(table->vals[i], table->tupdesc, 2, TEXTOID, NULL)));
		deconstruct_array(DatumGetArrayTypeP(jobq_column(table->vals[i], table->tupdesc, 3, INT8ARRAYOID, NULL)),
						  INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE,
						  &needs[i], NULL, &step->nneeds);
		step->state = STEP_GONE;
	}
	for (uint64 i = 0; i < n; i++)
	{
		JobqStep   *step = &workflow->steps[i];

		step->needs = MemoryContextAlloc(workflow->memory,
										 sizeof(JobqStep *) * (step->nneeds + 1));
		for (int j = 0; j < step->nneeds; j++)
			step->needs[j] = jobq_step_of_job(workflow,
											  DatumGetInt64(needs[i][j]));
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(read);
	SPI_freetuptable(table);

	/* one statement: in its snapshot a job is in one of the tables, the last */
	n = jobq_query_kept(&read_states, "SELECT job_id, state FROM jobq.step"
						" WHERE batch_id = $1 AND state IS NOT NULL"
						" UNION ALL SELECT id, CASE WHEN state = 'x' AND started_at IS NULL"
						" AND (reason = '" BATCH_FAILED_REASON "' OR reason LIKE '" STEP_NEED_REASON "%')"
						" THEN 'd' ELSE state END FROM jobq.archive WHERE batch_id = $1"
						" UNION ALL SELECT id, 'f' FROM jobq.failed_job WHERE batch_id = $1"
						" UNION ALL SELECT id, CASE WHEN run_at = 'infinity' THEN 'b' ELSE 'l' END::\"char\""
						" FROM jobq.job WHERE batch_id = $1",
						1, types, values, NULL, SPI_OK_SELECT);
	table = SPI_tuptable;
	for (uint64 i = 0; i < n; i++)
	{
		JobqStep   *step =
			jobq_step_of_job(workflow,
							 DatumGetInt64(jobq_column(table->vals[i], table->tupdesc, 1, INT8OID, NULL)));

		if (step != NULL)
			step->state = DatumGetChar(jobq_column(table->vals[i], table->tupdesc, 2, CHAROID, NULL));
	}
	SPI_freetuptable(table);
}

/*
 * Note at each step who needs it, and for how many others it waits.
 */
void
jobq_steps_link(JobqSteps *workflow)
{
	for (int i = 0; i < workflow->nsteps; i++)
	{
		JobqStep   *step = &workflow->steps[i];

		step->waits = step->nneeds;
		for (int j = 0; j < step->nneeds; j++)
		{
			if (step->needs[j] == NULL)
				continue;
			step->needs[j]->nusers++;
			if (step->needs[j]->state == STATE_COMPLETED)
				step->waits--;
		}
	}
	for (int i = 0; i < workflow->nsteps; i++)
	{
		JobqStep   *step = &workflow->steps[i];

		step->users = MemoryContextAlloc(workflow->memory,
										 sizeof(JobqStep *) * (step->nusers + 1));
		step->nusers = 0;
	}
	for (int i = 0; i < workflow->nsteps; i++)
	{
		JobqStep   *step = &workflow->steps[i];

		for (int j = 0; j < step->nneeds; j++)
			if (step->needs[j] != NULL)
				step->needs[j]->users[step->needs[j]->nusers++] = step;
	}
}

/*
 * The step whose job it is, or NULL.
 */
JobqStep *
jobq_step_of_job(const JobqSteps *workflow, int64 job_id)
{
	int			low = 0;
	int			high = workflow->nsteps;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (workflow->steps[middle].job_id < job_id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < workflow->nsteps && workflow->steps[low].job_id == job_id
		? &workflow->steps[low] : NULL;
}

static int
compare_names(const void *a, const void *b)
{
	return strcmp((*(JobqStep *const *) a)->name, (*(JobqStep *const *) b)->name);
}

/*
 * The step of that name, or NULL.
 */
JobqStep *
jobq_step_named(JobqSteps *workflow, const char *name)
{
	JobqStep	wanted = {.name = unconstify(char *, name)};
	JobqStep   *key = &wanted;
	JobqStep  **found;

	if (workflow->by_name == NULL)
	{
		workflow->by_name = MemoryContextAlloc(workflow->memory,
											   sizeof(JobqStep *) * (workflow->nsteps + 1));
		for (int i = 0; i < workflow->nsteps; i++)
			workflow->by_name[i] = &workflow->steps[i];
		qsort(workflow->by_name, workflow->nsteps, sizeof(JobqStep *),
			  compare_names);
	}
	found = bsearch(&key, workflow->by_name, workflow->nsteps,
					sizeof(JobqStep *), compare_names);
	return found == NULL ? NULL : *found;
}

/*
 * Is all that the step needs completed?
 */
bool
jobq_step_needs_done(const JobqStep *step)
{
	for (int i = 0; i < step->nneeds; i++)
		if (step->needs[i] == NULL || step->needs[i]->state != STATE_COMPLETED)
			return false;
	return true;
}

/*
 * Why the step can not run any more, if something that it needs has ended
 * otherwise; or NULL.
 */
const char *
jobq_step_need_lost(const JobqStep *step)
{
	for (int i = 0; i < step->nneeds; i++)
	{
		const JobqStep *need = step->needs[i];

		if (need == NULL)
			return STEP_NEED_REASON "that is not kept any more";
		switch (need->state)
		{
			case STEP_FAILED:
				return psprintf(STEP_NEED_REASON "\"%s\", which has failed",
								need->name);
			case STATE_CANCELLED:
			case STEP_DROPPED:
				return psprintf(STEP_NEED_REASON "\"%s\", which was cancelled",
								need->name);
			case STATE_EXPIRED:
				return psprintf(STEP_NEED_REASON "\"%s\", which has expired",
								need->name);
			case STEP_GONE:
				return psprintf(STEP_NEED_REASON "\"%s\", which is not kept any more",
								need->name);
			default:
				break;
		}
	}
	return NULL;
}
