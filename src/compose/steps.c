/*-------------------------------------------------------------------------
 *
 * steps.c
 *	  Progress of the steps of a workflow.
 *
 * jobq_internal.step contains the steps and their needs.  The state of a job follows from
 * the table with its row.  If retention or a similar operation has deleted that row,
 * jobq_internal.step contains the state.
 *
 * Only jobq_steps_load() and jobq_steps_add() read tables and take locks.
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

static uint64 query_states(SPIPlanPtr *plan, const char *of_step, const char *of_job,
						   Oid type, Datum value);
static void find_needs(JobqSteps *workflow, JobqStep *step, const Datum *needs);
static void put_states(JobqSteps *workflow, uint64 n);
static void sort_steps(JobqSteps *workflow, int from);
static void put_name(JobqSteps *workflow, JobqStep *step);

/*
 * Make room for n more steps.
 */
static void
make_room(JobqSteps *workflow, int n)
{
	if (workflow->nsteps + n <= workflow->max_steps)
		return;
	workflow->max_steps = Max(workflow->nsteps + n, 2 * workflow->max_steps);
	workflow->steps = workflow->steps == NULL
		? MemoryContextAlloc(workflow->memory, sizeof(JobqStep *) * workflow->max_steps)
		: repalloc(workflow->steps, sizeof(JobqStep *) * workflow->max_steps);
}

/*
 * Append the job of an element to the elements of its step.
 */
static void
add_element(JobqSteps *workflow, JobqStep *mapper, JobqStep *step)
{
	if (mapper->nwritten == mapper->max_written)
	{
		mapper->max_written = Max(2 * mapper->max_written, 16);
		mapper->elements = mapper->elements == NULL
			? MemoryContextAlloc(workflow->memory, sizeof(JobqStep *) * mapper->max_written)
			: repalloc(mapper->elements, sizeof(JobqStep *) * mapper->max_written);
	}
	step->mapper = mapper;
	step->place = mapper->nwritten;
	mapper->elements[mapper->nwritten++] = step;
}

/*
 * Read a row of jobq_internal.step.  Returns true for a step, and false for an element.
 * *needs: receives the job ids of the needs, in the current memory context.
 */
static bool
read_step(JobqSteps *workflow, HeapTuple row, TupleDesc desc, JobqStep *step,
		  Datum **needs)
{
	bool		is_step;
	bool		isnull;
	Datum		workflow_id;
	Datum		elements;
	Datum		mapper;

	step->job_id = DatumGetInt64(jobq_column(row, desc, 1, INT8OID, NULL));
	step->state = STEP_GONE;
	elements = jobq_column(row, desc, 4, INT4OID, &isnull);
	step->mapped = !isnull;
	step->nelements = isnull ? 0 : DatumGetInt32(elements);
	mapper = jobq_column(row, desc, 5, INT8OID, &is_step);
	if (is_step)
		step->name = MemoryContextStrdup(workflow->memory,
										 TextDatumGetCString(jobq_column(row, desc, 2, TEXTOID, NULL)));
	else
	{
		JobqStep   *found = jobq_step_of_job(workflow, DatumGetInt64(mapper));

		/* the index is counted here: the table may have been modified */
		if (found != NULL && found->mapped)
			add_element(workflow, found, step);
		else
			step->name = MemoryContextStrdup(workflow->memory, "");
	}
	step->optional = DatumGetBool(jobq_column(row, desc, 6, BOOLOID, NULL));
	step->conditional = DatumGetBool(jobq_column(row, desc, 7, BOOLOID, NULL));
	workflow_id = jobq_column(row, desc, 8, INT8OID, &isnull);
	step->workflow_id = isnull ? 0 : DatumGetInt64(workflow_id);
	deconstruct_array(DatumGetArrayTypeP(jobq_column(row, desc, 3, INT8ARRAYOID, NULL)),
					  INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE,
					  needs, NULL, &step->nneeds);
	return is_step;
}

/*
 * Read the steps of a batch, with their states.  *workflow is overwritten.  All data are in
 * a new memory context, a child of the current context.  The users of steps, and the numbers
 * of waits, are unknown before jobq_steps_link().  The caller must be connected to SPI, and must have locked the batch's row or be the
 * scheduler.
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
	JobqStep   *steps;
	Datum	  **needs;
	uint64		n;

	memset(workflow, 0, sizeof(JobqSteps));
	workflow->memory = AllocSetContextCreate(CurrentMemoryContext, "jobq steps",
											 ALLOCSET_DEFAULT_SIZES);
	n = jobq_query_kept(&read_steps, "SELECT job_id, name, needs, elements, element_of, optional, conditional, workflow_id FROM jobq_internal.step"
						" WHERE batch_id = $1 ORDER BY element_of IS NOT NULL, element, job_id",
						1, types, values, NULL, SPI_OK_SELECT);
	table = SPI_tuptable;
	make_room(workflow, (int) n);
	/* the rows of elements follow the rows of the steps */
	steps = MemoryContextAllocZero(workflow->memory, sizeof(JobqStep) * (n + 1));
	MemoryContextSwitchTo(read);
	needs = palloc(sizeof(Datum *) * (n + 1));
	for (uint64 i = 0; i < n; i++)
	{
		workflow->steps[i] = &steps[i];
		if (read_step(workflow, table->vals[i], table->tupdesc, &steps[i], &needs[i]))
			workflow->nsteps++;
	}
	workflow->nsteps = (int) n;
	sort_steps(workflow, 0);
	for (uint64 i = 0; i < n; i++)
		find_needs(workflow, &steps[i], needs[i]);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(read);
	SPI_freetuptable(table);
	put_states(workflow, query_states(&read_states, "batch_id = $1", "batch_id = $1",
									  INT8OID, values[0]));
}

/*
 * Look up the needs of the step by their job ids, among all steps.
 */
static void
find_needs(JobqSteps *workflow, JobqStep *step, const Datum *needs)
{
	step->needs = MemoryContextAlloc(workflow->memory,
									 sizeof(JobqStep *) * (step->nneeds + 1));
	for (int i = 0; i < step->nneeds; i++)
		step->needs[i] = jobq_step_of_job(workflow, DatumGetInt64(needs[i]));
}

/*
 * Read the states of jobs in a single statement.  In the snapshot of one statement, each
 * job is in one of the tables.
 */
static uint64
query_states(SPIPlanPtr *plan, const char *of_step, const char *of_job, Oid type,
			 Datum value)
{
	return jobq_query_kept(plan, *plan != NULL ? NULL
						   : psprintf("SELECT job_id, state FROM jobq_internal.step WHERE %s AND state IS NOT NULL"
									  " UNION ALL SELECT id, " STATE_OR_DROPPED("") " FROM jobq_internal.archive WHERE %s"
									  " UNION ALL SELECT id, 'f' FROM jobq_internal.dead_letter WHERE %s"
									  " UNION ALL SELECT id, CASE WHEN run_at = 'infinity' THEN 'b' ELSE 'l' END::\"char\""
									  " FROM jobq_internal.job WHERE %s", of_step, of_job, of_job, of_job),
						   1, &type, &value, NULL, SPI_OK_SELECT);
}

/*
 * Store the states read by query_states().  The last state of a job counts.
 */
static void
put_states(JobqSteps *workflow, uint64 n)
{
	SPITupleTable *table = SPI_tuptable;

	for (uint64 i = 0; i < n; i++)
	{
		JobqStep   *step =
			jobq_step_of_job(workflow,
							 DatumGetInt64(jobq_column(table->vals[i], table->tupdesc, 1, INT8OID, NULL)));

		/* the job of a skipped step was cancelled */
		if (step != NULL && step->state != STEP_SKIPPED)
			step->state = DatumGetChar(jobq_column(table->vals[i], table->tupdesc, 2, CHAROID, NULL));
	}
	SPI_freetuptable(table);
}

/*
 * Read steps added to the workflow since the last read.  Returns the steps as an array in
 * the memory of the workflow, or NULL if a step is missing.  The caller must register them
 * as users of their needs (jobq_step_add_user()).  The caller must be connected to SPI.
 */
JobqStep *
jobq_steps_add(int64 batch_id, JobqSteps *workflow, const int64 *job_ids, int n)
{
	static const Oid types[] = {INT8OID, INT8ARRAYOID};
	static SPIPlanPtr read_added = NULL;
	static SPIPlanPtr read_states = NULL;
	Datum	   *ids = palloc(sizeof(Datum) * n);
	Datum	  **needs = palloc(sizeof(Datum *) * n);
	Datum		values[2] = {Int64GetDatum(batch_id)};
	SPITupleTable *table;
	JobqStep   *steps;

	for (int i = 0; i < n; i++)
		ids[i] = Int64GetDatum(job_ids[i]);
	values[1] = jobq_int8_array(ids, n);
	if (jobq_query_kept(&read_added, "SELECT job_id, name, needs, elements, element_of, optional, conditional, workflow_id FROM jobq_internal.step"
						" WHERE batch_id = $1 AND job_id = ANY ($2) AND element_of IS NULL ORDER BY job_id",
						2, types, values, NULL, SPI_OK_SELECT) != (uint64) n)
		return NULL;
	table = SPI_tuptable;
	steps = MemoryContextAllocZero(workflow->memory, sizeof(JobqStep) * n);
	make_room(workflow, n);
	for (int i = 0; i < n; i++)
	{
		(void) read_step(workflow, table->vals[i], table->tupdesc, &steps[i], &needs[i]);
		workflow->steps[workflow->nsteps++] = &steps[i];
		put_name(workflow, &steps[i]);
	}
	sort_steps(workflow, workflow->nsteps - n);
	for (int i = 0; i < n; i++)
		find_needs(workflow, &steps[i], needs[i]);
	SPI_freetuptable(table);
	put_states(workflow, query_states(&read_states, "job_id = ANY ($1)", "id = ANY ($1)",
									  INT8ARRAYOID, values[1]));
	return steps;
}

/*
 * Append the jobs of the next n elements to a step with "map".  The jobs are live.
 */
void
jobq_steps_grow(JobqSteps *workflow, JobqStep *step, const int64 *job_ids, int n)
{
	JobqStep   *elements = MemoryContextAllocZero(workflow->memory,
												  sizeof(JobqStep) * n);

	make_room(workflow, n);
	for (int i = 0; i < n; i++)
	{
		elements[i].job_id = job_ids[i];
		elements[i].state = STEP_LIVE;
		elements[i].optional = step->optional;
		add_element(workflow, step, &elements[i]);
		workflow->steps[workflow->nsteps++] = &elements[i];
	}
	sort_steps(workflow, workflow->nsteps - n);
	step->nleft += n;
}

/*
 * Register a user of the step: another step that needs it.  The caller must count the
 * waits.
 */
void
jobq_step_add_user(JobqSteps *workflow, JobqStep *step, JobqStep *user)
{
	if (step->nusers == step->max_users)
	{
		step->max_users = Max(2 * step->max_users, 4);
		step->users = step->users == NULL
			? MemoryContextAlloc(workflow->memory, sizeof(JobqStep *) * step->max_users)
			: repalloc(step->users, sizeof(JobqStep *) * step->max_users);
	}
	step->users[step->nusers++] = user;
}

/*
 * Fill the fields derived from needs and states: users, waits and nleft.  Call this
 * function once, after jobq_steps_load().
 */
void
jobq_steps_link(JobqSteps *workflow)
{
	for (int i = 0; i < workflow->nsteps; i++)
	{
		JobqStep   *step = workflow->steps[i];

		step->waits = step->nneeds;
		for (int j = 0; j < step->nneeds; j++)
		{
			if (step->needs[j] == NULL)
				continue;
			step->needs[j]->nusers++;
			if (jobq_step_over(step->needs[j]))
				step->waits--;
		}
		step->nleft = 0;
		for (int j = 0; j < step->nwritten; j++)
			if (!jobq_step_over(step->elements[j]))
				step->nleft++;
	}
	for (int i = 0; i < workflow->nsteps; i++)
	{
		JobqStep   *step = workflow->steps[i];

		if (step->nusers > 0)
			step->users = MemoryContextAlloc(workflow->memory,
											 sizeof(JobqStep *) * step->nusers);
		step->max_users = step->nusers;
		step->nusers = 0;
	}
	for (int i = 0; i < workflow->nsteps; i++)
	{
		JobqStep   *step = workflow->steps[i];

		for (int j = 0; j < step->nneeds; j++)
			if (step->needs[j] != NULL)
				step->needs[j]->users[step->needs[j]->nusers++] = step;
	}
}

/*
 * Return the step with this job, or NULL.  Binary search.
 */
JobqStep *
jobq_step_of_job(const JobqSteps *workflow, int64 job_id)
{
	int			low = 0;
	int			high = workflow->nsteps;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (workflow->steps[middle]->job_id < job_id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < workflow->nsteps && workflow->steps[low]->job_id == job_id
		? workflow->steps[low] : NULL;
}

static int
compare_ids(const void *a, const void *b)
{
	int64		x = (*(JobqStep *const *) a)->job_id;
	int64		y = (*(JobqStep *const *) b)->job_id;

	return x < y ? -1 : x > y;
}

/*
 * Sort the steps by job id.  The steps before index "from" are sorted already.  Ids usually
 * ascend, but another session may have reserved lower ids and used them later.
 */
static void
sort_steps(JobqSteps *workflow, int from)
{
	for (int i = Max(from, 1); i < workflow->nsteps; i++)
		if (workflow->steps[i - 1]->job_id > workflow->steps[i]->job_id)
		{
			qsort(workflow->steps, workflow->nsteps, sizeof(JobqStep *),
				  compare_ids);
			return;
		}
}

static int
compare_names(const void *a, const void *b)
{
	return strcmp((*(JobqStep *const *) a)->name, (*(JobqStep *const *) b)->name);
}

/*
 * Return the step with this name, or NULL.  The first call sorts all steps by name.
 */
JobqStep *
jobq_step_named(JobqSteps *workflow, const char *name)
{
	JobqStep	wanted = {.name = unconstify(char *, name)};
	JobqStep   *key = &wanted;
	JobqStep  **found;

	if (workflow->by_name == NULL)
	{
		workflow->max_named = workflow->nsteps + 1;
		workflow->by_name = MemoryContextAlloc(workflow->memory,
											   sizeof(JobqStep *) * workflow->max_named);
		for (int i = 0; i < workflow->nsteps; i++)
			if (workflow->steps[i]->name != NULL)
				workflow->by_name[workflow->nnamed++] = workflow->steps[i];
		qsort(workflow->by_name, workflow->nnamed, sizeof(JobqStep *),
			  compare_names);
	}
	found = bsearch(&key, workflow->by_name, workflow->nnamed,
					sizeof(JobqStep *), compare_names);
	return found == NULL ? NULL : *found;
}

/*
 * Insert a new step into the list sorted by name, if that list exists.
 */
static void
put_name(JobqSteps *workflow, JobqStep *step)
{
	int			low = 0;
	int			high = workflow->nnamed;

	if (workflow->by_name == NULL)
		return;
	if (workflow->nnamed == workflow->max_named)
	{
		workflow->max_named *= 2;
		workflow->by_name = repalloc(workflow->by_name,
									 sizeof(JobqStep *) * workflow->max_named);
	}
	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (strcmp(workflow->by_name[middle]->name, step->name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	memmove(&workflow->by_name[low + 1], &workflow->by_name[low],
			sizeof(JobqStep *) * (workflow->nnamed - low));
	workflow->by_name[low] = step;
	workflow->nnamed++;
}

/*
 * Return why users of a step in this state cannot run, as the end of a message.  NULL if the step
 * has not ended, or is completed or skipped.
 */
const char *
jobq_step_loss(char state)
{
	switch (state)
	{
		case STEP_DEAD:
			return "is dead";
		case STATE_CANCELLED:
		case STEP_DROPPED:
			return "was cancelled";
		case STATE_EXPIRED:
			return "has expired";
		case STEP_GONE:
			return "is not kept any more";
		default:
			return NULL;
	}
}

/*
 * Return true if the step does not keep other steps from running: the step is completed or
 * skipped, or is optional and has ended otherwise.
 */
bool
jobq_step_over(const JobqStep *step)
{
	return step->state == STATE_COMPLETED || step->state == STEP_SKIPPED ||
		(step->optional && step->state != STEP_GONE && jobq_step_loss(step->state) != NULL);
}

/*
 * Return true if all needs of the step are over.
 */
bool
jobq_step_needs_done(const JobqStep *step)
{
	for (int i = 0; i < step->nneeds; i++)
		if (step->needs[i] == NULL || !jobq_step_over(step->needs[i]))
			return false;
	return true;
}

/*
 * Return true if each element of the array has a job, and all these jobs are over.
 */
bool
jobq_step_elements_done(const JobqStep *step)
{
	if (step->nwritten != step->nelements)
		return false;
	for (int i = 0; i < step->nwritten; i++)
		if (!jobq_step_over(step->elements[i]))
			return false;
	return true;
}

/*
 * Return the name of a step, or the name and index of an element.  The latter is allocated
 * in the current memory context.
 */
const char *
jobq_step_name(const JobqStep *step)
{
	return step->mapper == NULL ? step->name
		: psprintf("%s[%d]", step->mapper->name, step->place);
}

/*
 * Return why steps that need this step cannot run any more, or NULL if they can.
 */
static const char *
lost_to(const JobqStep *need)
{
	const char *loss = jobq_step_over(need) ? NULL : jobq_step_loss(need->state);

	return loss == NULL ? NULL
		: psprintf("needs step \"%s\", which %s", jobq_step_name(need), loss);
}

/*
 * Return why the step cannot run because of a lost need, or NULL.  The text may be allocated in
 * the current memory context.
 */
const char *
jobq_step_lost_need(const JobqStep *step)
{
	const char *reason = NULL;

	for (int i = 0; i < step->nneeds && reason == NULL; i++)
		reason = step->needs[i] == NULL
			? "needs a step that is not kept any more"
			: lost_to(step->needs[i]);
	return reason;
}

/*
 * Like jobq_step_lost_need(), but elements of the step count as needs, too.
 */
const char *
jobq_step_lost_need_or_element(const JobqStep *step)
{
	const char *reason = jobq_step_lost_need(step);

	for (int i = 0; i < step->nwritten && reason == NULL; i++)
		reason = lost_to(step->elements[i]);
	return reason;
}
