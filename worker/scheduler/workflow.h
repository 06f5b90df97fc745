/*-------------------------------------------------------------------------
 *
 * workflow.h
 *	  Batches and workflows in the scheduler: steps that go on, and the outcome of an evaluation.
 *
 * batch.h describes the way of an evaluation.
 *
 * worker/scheduler/workflow.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULER_WORKFLOW_H
#define JOBQ_SCHEDULER_WORKFLOW_H

#include "scheduler/inner.h"

/* worker/scheduler/kept.c */
/*
 * A workflow kept in memory, and its progress.  Each step is blocked, live or over
 * (jobq_step_over()): a workflow with a failed step is not kept.
 */
typedef struct KeptWorkflow
{
	int64		batch_id;		/* hash key */
	uint64		used_at;		/* value of the use counter at the last use */
	TransactionId version;		/* xmin of the batch's row */
	JobqSteps	workflow;
	bool		grows;			/* steps were added */
	int			nblocked;		/* steps in the state BLOCKED */
	int			ncounted;		/* steps included in the total */
	int			nready;			/* steps in "ready" ... */
	int			ndone;			/* ... and how many of these are done */
	int			max_ready;
	JobqStep  **ready;			/* blocked steps that can move on, in order */
} KeptWorkflow;

extern KeptWorkflow *kept_find(int64 batch_id);
extern void kept_add(int64 batch_id, TransactionId version, bool grows,
					 JobqSteps *workflow);
extern bool kept_grow(KeptWorkflow *kept, JobqStep *step);
extern void kept_forget(int64 batch_id);
extern bool kept_count(KeptWorkflow *kept);
extern bool kept_over(KeptWorkflow *kept, JobqStep *step);

/* worker/scheduler/workflows.c */
/* A list of job ids. */
typedef struct JobList
{
	int			n;
	int			max;
	int64	   *ids;
} JobList;

/* The changes to a batch since its last evaluation. */
typedef struct BatchNews
{
	bool		whole;			/* the lists are incomplete: read all steps */
	bool		grows;			/* steps were added, listed or not */
	JobList		ended;			/* jobs that have ended */
	JobList		added;			/* jobs of added steps */
} BatchNews;

/* The remaining work of a workflow after an evaluation. */
typedef struct WorkflowFindings
{
	bool		blocked;		/* steps wait for other steps */
	bool		later;			/* a row was locked: evaluate again later */
	bool		more;			/* more work is left: evaluate again now */
} WorkflowFindings;

extern void workflow_advance(int64 batch_id, Oid role, TransactionId version,
							 bool ending, bool grows, WorkflowFindings *result);
extern bool workflow_grows(int64 batch_id, const BatchNews *news);
extern bool workflow_go_on(int64 batch_id, Oid role, TransactionId version,
						   const BatchNews *news, WorkflowFindings *result);
extern bool workflow_is_kept(int64 batch_id);

/* The state of an evaluation of a workflow. */
typedef struct StepContext
{
	int64		batch_id;
	Oid			role;
	Relation	rel;
	JobqSteps  *workflow;
	HTAB	   *results;		/* results used by steps, or NULL */
	HTAB	   *outer;			/* steps of outer workflows, or NULL */
	const JobqStep *array_of;	/* the step with "map" of "array", or NULL */
	Jsonb	   *array;			/* in array_memory */
	MemoryContext array_memory;
	MemoryContext memory;		/* reset after each step */
	WorkflowFindings *found;
} StepContext;

/* The outcome of moving on a blocked step.  The state of the step is the state in memory. */
typedef enum StepDone
{
	STEP_DONE_ALL,				/* the step has left the state BLOCKED */
	STEP_DONE_BEFORE,			/* likewise, but the tables said so before:
								 * only the state in memory has changed */
	STEP_DONE_SOME,				/* BLOCKED: more work is left to do now */
	STEP_DONE_SO_FAR,			/* BLOCKED: waits for its elements */
	STEP_DONE_NOTHING,			/* BLOCKED: the row was locked, or the job has
								 * ended, which leads to an evaluation */
} StepDone;

/* worker/scheduler/step.c */
/* The largest jsonb made from the results of steps, regardless of the settings. */
#define MAX_OF_RESULTS	((Size) 128 * 1024 * 1024)

extern Size step_max_size(void);
extern bool step_results_fit(Jsonb *results, const char *what, JobqError *error);
extern bool step_take_row(StepContext *context, const JobqStep *step,
						  JobqJob *job);
extern Jsonb *step_payload(StepContext *context, Jsonb *payload,
						   Jsonb *element, int place, JobqError *error);
extern int64 step_completed(StepContext *context, const char *name);
extern Jsonb *step_result_of(void *arg, const char *name);
extern void step_fail(StepContext *context, JobqStep *step, JobqJob *job,
					  const JobqError *error);

/* worker/scheduler/nest.c */
/* The outcome of a request to cancel the workflow behind a job. */
typedef enum NestCancel
{
	NEST_NONE,					/* no unfinished workflow */
	NEST_CANCELLED,				/* will end, together with the job */
	NEST_LOCKED,				/* the workflow row was locked */
} NestCancel;

extern StepDone nest_step(StepContext *context, JobqStep *step);
extern bool nest_runs(const JobqStep *step);
extern void nest_step_ended(const JobqStep *step);
extern NestCancel nest_cancel(const JobqJob *job, bool all);
extern bool nest_drop_if_lost(int64 id, int64 job_id, bool *dropped);
extern bool nest_take(int64 job_id, JobqJob *job, bool *taken);
extern void nest_end(int64 id, char state, bool dropped, JobqJob *job);
extern bool nest_has_dropped(int64 id);

/* Columns of the result of nest_find_error(). */
enum
{
	ERROR_JOB = 1,
	ERROR_KIND,
	ERROR_SQLSTATE,
	ERROR_TEXT,
	ERROR_CONTEXT,
	ERROR_STEP,
};

extern bool nest_find_error(int64 batch_id);
extern void nest_go_on(int64 id, WorkflowFindings *found);

/* worker/scheduler/condition.c */
extern bool condition_passed(StepContext *context, JobqStep *step, StepDone *done);

/* worker/scheduler/map.c */
extern StepDone map_step(StepContext *context, JobqStep *step);
extern Jsonb *map_payload(StepContext *context, const JobqStep *element,
						  Jsonb *template, JobqError *error);

/* worker/scheduler/callback.c */
extern char *callback_headers(int64 batch_id, const char *name,
							  const char *state, const JobqBatchCounts *counts);
extern void callback_event(int64 batch_id, const char *name, Oid role, char state,
						   const JobqBatchCounts *counts);

/* worker/scheduler/batch_evaluate.c */
/*
 * The outcome of an evaluation of a batch, which decides when the next evaluation comes.
 *
 * batch_watch_end() publishes the outcome to committing processes.  decide_next() in batches.c
 * then keeps the batch in the list of wanted batches, or forgets the batch until a committing
 * process requests an evaluation.
 */
typedef enum BatchOutcome
{
	/* the batch is forgotten */
	OUTCOME_OVER,				/* nothing is left to do: no request counts */
	OUTCOME_WITNESS,			/* the end of the witness is a request */
	OUTCOME_EACH_END,			/* each end of a job is a request */

	/* the batch stays wanted */
	OUTCOME_AGAIN,				/* evaluate now: more work is left to do */
	OUTCOME_LATER,				/* evaluate after a pause: a row was locked */
	OUTCOME_ALONE,				/* evaluate now, and not in a shared
								 * transaction; no row was changed */
} BatchOutcome;

/* The progress of cancelling a batch's jobs, over several evaluations. */
typedef struct BatchCancelled
{
	int64		to;				/* up to this job; 0: not begun */
	bool		again;			/* a job must be tried again */
	bool		changed;		/* an evaluation was requested meanwhile: jobs
								 * may have been added behind "to" */
} BatchCancelled;

extern BatchOutcome batch_evaluate(int64 id, const BatchNews *news, int64 bound,
								   bool shared, BatchCancelled *cancelled, int64 *witness);
extern void batch_rolled_back(int64 id, BatchCancelled *cancelled);

/* worker/scheduler/batch_read.c */
extern void batch_clock_put_back(int64 by);
extern bool batch_witness(int64 id, int64 bound, int64 *witness);

/* worker/scheduler/batch_watch.c */
extern void batch_watch_none(void);
extern bool batch_watch_begin(int64 id, bool *whole);
extern void batch_watch_end(int64 id, BatchOutcome outcome, int64 witness);

#endif							/* JOBQ_SCHEDULER_WORKFLOW_H */
