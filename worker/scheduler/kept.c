/*-------------------------------------------------------------------------
 *
 * kept.c
 *	  Keeps workflows in memory between evaluations.
 *
 * With a kept workflow and the list of ended jobs, an evaluation costs as much as the
 * work to be done, regardless of the number of steps (workflows.c).  A kept workflow is
 * a copy of the tables and can be dropped at any time.  The next evaluation then reads
 * all steps.  The copy must be dropped if the row of the batch has a different version,
 * or if the news do not list all changes ("whole"): see batch.h.
 *
 * Only large workflows are kept, up to MAX_KEPT_STEPS steps in total.  To make room,
 * workflows without waiting steps are dropped first, then the least recently used.
 *
 * A workflow without waiting steps is kept only if steps were added to it.  More steps
 * are then likely to come, and to wait for the existing steps.
 *
 * worker/scheduler/kept.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/workflow.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"

/* A workflow with fewer steps is not kept, because reading all steps is as cheap. */
#define LEAST_STEPS		32

/* For all workflows; a step needs about 200 bytes. */
#define MAX_KEPT_STEPS	200000

static HTAB *kept = NULL;
static int	nsteps = 0;			/* of all workflows */
static uint64 nuses = 0;

/*
 * Find the kept workflow of the batch, or NULL.
 */
KeptWorkflow *
kept_find(int64 batch_id)
{
	KeptWorkflow *entry = kept == NULL ? NULL
		: hash_search(kept, &batch_id, HASH_FIND, NULL);

	if (entry != NULL)
		entry->used_at = ++nuses;
	return entry;
}

/*
 * Can the blocked step move on?  A step with "map" has two pieces of work: to write the jobs
 * of its elements, and to collect their results when all are over.
 */
static bool
can_move_on(const JobqStep *step)
{
	if (step->waits > 0)
		return false;
	return !step->mapped || step->nwritten != step->nelements || step->nleft == 0;
}

/*
 * Append the step to the list of the steps that can move on.
 */
static void
append_ready(KeptWorkflow *this, JobqStep *step)
{
	if (this->nready == this->max_ready)
	{
		this->max_ready = Max(2 * this->max_ready, 64);
		this->ready = this->ready == NULL
			? MemoryContextAlloc(this->workflow.memory, sizeof(JobqStep *) * this->max_ready)
			: repalloc(this->ready, sizeof(JobqStep *) * this->max_ready);
	}
	this->ready[this->nready++] = step;
}

/*
 * Keep a workflow, and take over its memory.  No copy of the workflow may exist.
 */
void
kept_add(int64 batch_id, TransactionId version, bool grows, JobqSteps *workflow)
{
	HASHCTL		info = {
		.keysize = sizeof(int64),
		.entrysize = sizeof(KeptWorkflow),
		.hcxt = TopMemoryContext
	};
	KeptWorkflow *entry;
	bool		found;

	if (workflow->nsteps < LEAST_STEPS || workflow->nsteps > MAX_KEPT_STEPS)
	{
		MemoryContextDelete(workflow->memory);
		return;
	}
	if (kept == NULL)
		kept = hash_create("jobq workflows", 16, &info,
						   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	while (nsteps + workflow->nsteps > MAX_KEPT_STEPS)
	{
		HASH_SEQ_STATUS seq;
		KeptWorkflow *other;
		KeptWorkflow *oldest = NULL;

		hash_seq_init(&seq, kept);
		while ((other = hash_seq_search(&seq)) != NULL)
			if (oldest == NULL ||
				((other->nblocked == 0) == (oldest->nblocked == 0)
				 ? other->used_at < oldest->used_at : other->nblocked == 0))
				oldest = other;
		kept_forget(oldest->batch_id);
	}
	jobq_steps_link(workflow);
	MemoryContextSetParent(workflow->memory, TopMemoryContext);
	entry = hash_search(kept, &batch_id, HASH_ENTER, &found);
	Assert(!found);
	entry->used_at = ++nuses;
	entry->version = version;
	entry->workflow = *workflow;
	entry->grows = grows;
	entry->nblocked = entry->nready = entry->ndone = 0;
	entry->max_ready = 0;
	entry->ready = NULL;
	entry->ncounted = workflow->nsteps;
	nsteps += workflow->nsteps;
	for (int i = 0; i < workflow->nsteps; i++)
	{
		JobqStep   *step = workflow->steps[i];

		Assert(step->state == STEP_BLOCKED || step->state == STEP_LIVE || jobq_step_over(step));
		if (step->state != STEP_BLOCKED)
			continue;
		entry->nblocked++;
		if (can_move_on(step))
			append_ready(entry, step);
	}
}

/*
 * Add a step, as read by jobq_steps_add().  Returns false if the kept state is not
 * enough to decide about the step.
 */
bool
kept_grow(KeptWorkflow *this, JobqStep *step)
{
	this->grows = true;
	for (int i = 0; i < step->nneeds; i++)
	{
		if (step->needs[i] == NULL)
			return false;
		if (jobq_step_over(step->needs[i]))
			continue;
		jobq_step_add_user(&this->workflow, step->needs[i], step);
		step->waits++;
	}
	switch (step->state)
	{
		case STEP_LIVE:
		case STATE_COMPLETED:
			return true;
		case STEP_BLOCKED:
			this->nblocked++;
			if (step->waits == 0)
				append_ready(this, step);
			return !step->mapped || step->nelements == JOBQ_UNKNOWN_ELEMENTS;
		default:
			return false;
	}
}

/*
 * Update the total after the workflow may have grown.  Returns false if the workflow is
 * too large to be kept.
 */
bool
kept_count(KeptWorkflow *this)
{
	nsteps += this->workflow.nsteps - this->ncounted;
	this->ncounted = this->workflow.nsteps;
	return nsteps <= MAX_KEPT_STEPS;
}

/*
 * Drop the kept workflow of the batch, if any.
 */
void
kept_forget(int64 batch_id)
{
	KeptWorkflow *entry = kept == NULL ? NULL
		: hash_search(kept, &batch_id, HASH_FIND, NULL);

	if (entry == NULL)
		return;
	nsteps -= entry->ncounted;
	MemoryContextDelete(entry->workflow.memory);
	(void) hash_search(kept, &batch_id, HASH_REMOVE, NULL);
}

/*
 * Note that a step or an element is over.  Steps that waited only for this step become
 * ready.  Returns false if a dependent step is not blocked.
 */
bool
kept_over(KeptWorkflow *this, JobqStep *step)
{
	for (int i = 0; i < step->nusers; i++)
	{
		JobqStep   *user = step->users[i];

		if (user->state != STEP_BLOCKED)
			return false;
		if (--user->waits == 0)
			append_ready(this, user);
	}
	if (step->mapper != NULL && --step->mapper->nleft == 0 &&
		step->mapper->nwritten == step->mapper->nelements)
	{
		if (step->mapper->state != STEP_BLOCKED)
			return false;
		append_ready(this, step->mapper);
	}
	return true;
}
