/*-------------------------------------------------------------------------
 *
 * kept.c
 *	  Workflows that the scheduler keeps in memory between looks at them.
 *
 * A look that knows how far a workflow was, and which jobs have ended since,
 * costs as much as there is to do, and not as much as the workflow has steps
 * (workflows.c).  What is kept is a copy of what the tables say, and can be
 * forgotten at any time: the next look reads all steps then.  It must be if the row of
 * the batch has another version: then steps may run once more (src/compose/rerun.c).
 *
 * Only large workflows are kept, and of these as many steps as MAX_KEPT_STEPS.  One in
 * which no step waits goes first, and then which was not looked at for longest.
 *
 * A workflow in which no step waits is kept only if steps were added to it: more of
 * them are likely to come, which wait for those that it has.
 *
 * worker/scheduler/kept.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"

/* Below this it is as cheap to read all steps. */
#define LEAST_STEPS		32

/* Of all workflows; one takes about 200 bytes. */
#define MAX_KEPT_STEPS	200000

static HTAB *kept = NULL;
static int	nsteps = 0;			/* of all */
static uint64 nuses = 0;

/*
 * What is kept of the batch, or NULL.
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
 * Keep a workflow, whose memory becomes ours: all of its steps are blocked, live or
 * over.
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
	entry = hash_search(kept, &batch_id, HASH_ENTER, NULL);
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

		if (step->state != STEP_BLOCKED)
			continue;
		entry->nblocked++;
		if (step->waits == 0 && (!step->mapped || step->nleft == 0 ||
								 step->nwritten != step->nelements))
			kept_ready(entry, step);
	}
}

/*
 * There is something to be done for the step.
 */
void
kept_ready(KeptWorkflow *this, JobqStep *step)
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
 * The step was added, as jobq_steps_add() has read it.  False if what is known of the
 * others is not enough to say what follows.
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
				kept_ready(this, step);
			return !step->mapped || step->nelements == JOBQ_UNKNOWN_ELEMENTS;
		default:
			return false;
	}
}

/*
 * The workflow may have grown.  False if it is too large to be kept.
 */
bool
kept_count(KeptWorkflow *this)
{
	nsteps += this->workflow.nsteps - this->ncounted;
	this->ncounted = this->workflow.nsteps;
	return nsteps <= MAX_KEPT_STEPS;
}

/*
 * Forget what is kept of the batch, if anything is.
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
 * A step or an element is over: what waited for it alone is ready.  False if such
 * a step is not blocked.
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
			kept_ready(this, user);
	}
	if (step->mapper != NULL && --step->mapper->nleft == 0 &&
		step->mapper->nwritten == step->mapper->nelements)
	{
		if (step->mapper->state != STEP_BLOCKED)
			return false;
		kept_ready(this, step->mapper);
	}
	return true;
}
