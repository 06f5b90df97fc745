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
#include "utils/hsearch.h"

#include "compose/compose.h"

typedef struct StepEntry
{
	int64		job_id;			/* hash key */
	JobqStep   *step;
} StepEntry;

static HTAB *index_steps(JobqSteps *workflow);
static JobqStep *find_step(HTAB *index, int64 job_id);

static HTAB *
index_steps(JobqSteps *workflow)
{
	HASHCTL		info = {
		.keysize = sizeof(int64),
		.entrysize = sizeof(StepEntry),
		.hcxt = CurrentMemoryContext
	};
	HTAB	   *index = hash_create("jobq steps", Max(workflow->nsteps, 16),
									&info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	for (int i = 0; i < workflow->nsteps; i++)
	{
		StepEntry  *entry = hash_search(index, &workflow->steps[i].job_id,
										HASH_ENTER, NULL);

		entry->step = &workflow->steps[i];
	}
	return index;
}

static JobqStep *
find_step(HTAB *index, int64 job_id)
{
	StepEntry  *entry = hash_search(index, &job_id, HASH_FIND, NULL);

	return entry == NULL ? NULL : entry->step;
}

/*
 * Read the steps of a batch, in the order of their jobs' ids, into the current
 * memory context; the caller is connected to SPI, and has the batch's row
 * locked.
 */
void
jobq_steps_load(int64 batch_id, JobqSteps *workflow)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr read_steps = NULL;
	static SPIPlanPtr read_states = NULL;
	Datum		values[] = {Int64GetDatum(batch_id)};
	HTAB	   *index;
	SPITupleTable *table;
	Datum	  **needs;
	uint64		n;

	n = jobq_query_kept(&read_steps, "SELECT job_id, name, needs FROM jobq.step"
						" WHERE batch_id = $1 ORDER BY job_id",
						1, types, values, NULL, SPI_OK_SELECT);
	table = SPI_tuptable;
	workflow->nsteps = (int) n;
	workflow->steps = palloc0(sizeof(JobqStep) * (n + 1));
	needs = palloc(sizeof(Datum *) * (n + 1));
	for (uint64 i = 0; i < n; i++)
	{
		JobqStep   *step = &workflow->steps[i];

		step->job_id = DatumGetInt64(jobq_column(table->vals[i], table->tupdesc, 1, INT8OID, NULL));
		step->name = TextDatumGetCString(jobq_column(table->vals[i], table->tupdesc, 2, TEXTOID, NULL));
		deconstruct_array(DatumGetArrayTypeP(jobq_column(table->vals[i], table->tupdesc, 3, INT8ARRAYOID, NULL)),
						  INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE,
						  &needs[i], NULL, &step->nneeds);
		step->state = STEP_GONE;
	}
	index = index_steps(workflow);
	for (uint64 i = 0; i < n; i++)
	{
		JobqStep   *step = &workflow->steps[i];

		step->needs = palloc(sizeof(JobqStep *) * (step->nneeds + 1));
		for (int j = 0; j < step->nneeds; j++)
			step->needs[j] = find_step(index, DatumGetInt64(needs[i][j]));
		pfree(needs[i]);
	}
	pfree(needs);
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
		JobqStep   *step = find_step(index,
									 DatumGetInt64(jobq_column(table->vals[i], table->tupdesc, 1, INT8OID, NULL)));

		if (step != NULL)
			step->state = DatumGetChar(jobq_column(table->vals[i], table->tupdesc, 2, CHAROID, NULL));
	}
	SPI_freetuptable(table);
	hash_destroy(index);
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
