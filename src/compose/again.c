/*-------------------------------------------------------------------------
 *
 * again.c
 *	  Steps that run again: their jobs are made anew from the definitions.
 *
 * Used by a rerun (rerun.c), and by an evaluation for steps that were dropped because of a
 * failure (worker/scheduler/workflows.c).
 *
 * src/compose/again.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "attempt/attempt.h"
#include "compose/inner.h"

/*
 * Make the job of a step anew from the step's definition, blocked, and insert its row.  An
 * element gets the payload of its step here, and its value when freed.  ERROR if the
 * definition is no longer valid.
 */
static void
run_step_again(Relation rel, const JobqAgain *again, JobqStep *step,
			   TimestampTz enqueued_at, Jsonb *definition)
{
	JobqSpec	spec;
	JobqJob		job;
	JobqUnique	unique;
	JobqRoleState caller;
	const char *what = psprintf("step \"%s\"", jobq_step_name(step));

	if (step->workflow_id == 0)
		jobq_step_parse(definition, what, true, true, &spec);

	jobq_become_role(again->role, &caller);
	if (step->workflow_id == 0)
		jobq_spec_prepare_kept(&spec, &job, &unique);
	else
		nest_restore(&job, definition, what, step->workflow_id);
	jobq_unbecome_role(&caller);

	JOB_SET(&job, JOB_ID, Int64GetDatum(step->job_id));
	JOB_SET(&job, JOB_ENQUEUED_AT, TimestampTzGetDatum(enqueued_at));
	JOB_SET(&job, JOB_BATCH_ID, Int64GetDatum(again->batch_id));
	if (step->workflow_id == 0)
		jobq_job_block(&job, spec.options, spec.nulls);
	Assert(job_blocked(&job));
	if (again->by_user)
		jobq_log_say(&job, psprintf("once more, by %s", GetUserNameFromId(caller.userid, false)));
	jobq_job_again(rel, &job, again->by_user);
	step->state = STEP_BLOCKED;
}

/*
 * Block the steps in SPI_tuptable again.  The columns are the ids of their jobs, the times at
 * which the jobs were enqueued, and the definitions of the steps.  Steps missing in the
 * workflow are skipped.  rel: the open table of jobs.  Frees SPI_tuptable.
 */
void
jobq_steps_again(Relation rel, const JobqAgain *again)
{
	SPITupleTable *table = SPI_tuptable;
	TupleDesc	desc = table->tupdesc;
	MemoryContext one = AllocSetContextCreate(CurrentMemoryContext,
											  "jobq step again",
											  ALLOCSET_DEFAULT_SIZES);

	for (uint64 i = 0; i < table->numvals; i++)
	{
		HeapTuple	row = table->vals[i];
		MemoryContext old = MemoryContextSwitchTo(one);
		int64		id = DatumGetInt64(jobq_column(row, desc, 1, INT8OID, NULL));
		JobqStep   *step = jobq_step_of_job(again->workflow, id);

		CHECK_FOR_INTERRUPTS();
		if (step != NULL)
			run_step_again(rel, again, step,
						   DatumGetTimestampTz(jobq_column(row, desc, 2, TIMESTAMPTZOID, NULL)),
						   DatumGetJsonbP(jobq_column(row, desc, 3, JSONBOID, NULL)));
		MemoryContextSwitchTo(old);
		MemoryContextReset(one);
	}
	MemoryContextDelete(one);
	SPI_freetuptable(table);
}
