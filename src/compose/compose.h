/*-------------------------------------------------------------------------
 *
 * compose.h
 *	  Interface of the directory compose: batches, workflows, and the results of steps.
 *
 * A batch is over when none of its jobs is live.  Then its callbacks are enqueued.  A
 * workflow is a batch with steps: jobs with needs.  A step waits for its needs and receives
 * their results.  This directory creates batches and reads their progress.  The scheduler
 * acts when jobs end (worker/scheduler/batches.c, workflows.c).
 *
 * Guarantee: jobs are added to a batch, and the state of a batch changes, in the caller's
 * transaction.
 *
 * Locks: a transaction that adds jobs to a batch takes a weak lock on the batch's row.  The
 * scheduler skips a locked batch and tries again later.  A rerun of steps and an evaluation
 * of the batch take the same lock (rerun.c).
 *
 * src/compose/compose.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COMPOSE_H
#define JOBQ_COMPOSE_H

#include "utils/jsonb.h"

#include "produce/produce.h"

/*
 * Values of jobq_internal.batch.state.  A batch is over if finished_at is set.  These are all
 * changes of the state:
 *
 *	PENDING -> RUNNING				BATCH_STARTS, BATCH_BEGINS
 *	any, not over -> CANCELLED		BATCH_CANCELS
 *	any, not over -> over			an evaluation: BATCH_ENDS (batch_evaluate.c)
 *	RUNNING -> FAILED, not over		likewise
 *	FAILED, COMPLETED -> RUNNING	a retry of a dead letter: jobq_batch_reopen()
 *	any, over -> RUNNING			a retry of the outer batch: BATCH_BEGINS
 *	any, over -> RUNNING, PENDING	a rerun of steps: reopen() in rerun.c.  PENDING if the
 *									batch is nested, and its step has needs to wait for
 */
#define BATCH_PENDING		'p'
#define BATCH_RUNNING		'r'
#define BATCH_COMPLETED		'c'
#define BATCH_FAILED		'f'
#define BATCH_CANCELLED		'x'

/*
 * Parts of an UPDATE of jobq_internal.batch, which check the state before.  A condition on the id
 * follows.  at: the current time.
 */
#define BATCH_STARTS(at) \
	" SET state = 'r', started_at = " at " WHERE state = 'p' AND "
#define BATCH_BEGINS(at) \
	" SET state = 'r', dropped = false, finished_at = NULL, started_at = coalesce(started_at, " at ")" \
	" WHERE (state = 'p' OR finished_at IS NOT NULL) AND "
#define BATCH_CANCELS \
	" SET state = 'x' WHERE finished_at IS NULL AND "

/*
 * May an evaluation change the state of a batch from "before" to "after"?  FAILED and CANCELLED
 * are written twice: when the batch fails or is cancelled, and again, with finished_at, when no
 * job is live any more.
 */
#define BATCH_ENDS(before, after) \
	((before) == (after) ? (after) == BATCH_FAILED || (after) == BATCH_CANCELLED \
	 : (before) == BATCH_RUNNING || ((before) == BATCH_PENDING && (after) == BATCH_CANCELLED))

/*
 * SQL expression: the state of a row of the archive.  The value is STEP_DROPPED for a job
 * cancelled because of the end of another job or of the batch.  row: prefix of the column
 * names, such as an alias with a dot.
 */
#define STATE_OR_DROPPED(row) \
	"CASE WHEN " row "cause IN (" CAUSES_DROPPED ") THEN 'd' ELSE " row "state END"

/*
 * SQL expressions: the counts of a batch, from a query with the states of steps or of other jobs.
 * A skipped step counts as cancelled.
 */
#define COUNTS_BY_OUTCOME \
	"pg_catalog.count(*) FILTER (WHERE state = 'c') AS completed," \
	" pg_catalog.count(*) FILTER (WHERE state = 'f') AS dead," \
	" pg_catalog.count(*) FILTER (WHERE state IN ('x', 'd', 's')) AS cancelled," \
	" pg_catalog.count(*) FILTER (WHERE state = 'e') AS expired "

/*
 * SQL query: delete finished jobs, add their numbers to the counts of their batches, and
 * return the number of deleted jobs.  delete: a DELETE that returns batch_id, state, id and
 * result (see RETURNING_FINISHED).  State and result of a deleted step are kept in
 * jobq_internal.step, including the state STEP_DROPPED.
 */
#define DELETE_AND_COUNT(delete) \
	"WITH gone AS (" delete ")," \
	" counted AS (UPDATE jobq_internal.batch b SET completed = b.completed + g.completed," \
	" dead = b.dead + g.dead, cancelled = b.cancelled + g.cancelled," \
	" expired = b.expired + g.expired" \
	" FROM (SELECT batch_id, " COUNTS_BY_OUTCOME "FROM gone WHERE batch_id IS NOT NULL GROUP BY batch_id) g" \
	" WHERE b.id = g.batch_id)," \
	" kept AS (UPDATE jobq_internal.step s SET result = g.result," \
	" state = CASE WHEN s.state = 's' THEN s.state ELSE g.state END" \
	" FROM gone g WHERE s.job_id = g.id AND g.batch_id IS NOT NULL)" \
	" SELECT pg_catalog.count(*) FROM gone"
#define RETURNING_FINISHED	" RETURNING batch_id, " STATE_OR_DROPPED("") " AS state, id, result"
#define RETURNING_LETTERS	" RETURNING batch_id, 'f'::\"char\" AS state, id, NULL::jsonb AS result"

/* src/compose/batch.c */
extern bool jobq_batch_cancel_open(int64 id);
extern bool jobq_batch_reopen(int64 batch_id);
extern void jobq_batch_changed(int64 batch_id, const char *state, bool over);
extern void jobq_batch_check_retry(int64 id);
extern void jobq_batch_check_visible(int64 id);
pg_noreturn extern void jobq_no_such_batch(int64 id);

/* src/compose/nest.c */
extern bool jobq_batch_cancel_nested(const JobqJob *job, bool begun);
extern void jobq_nest_make_job(JobqJob *job, int64 inner_id, int32 queue_id,
							   Oid role);

/* src/compose/block.c */
extern void jobq_job_block(JobqJob *job, const Datum *options,
						   const bool *nulls);

/* Maximum number of steps of a workflow. */
#define JOBQ_MAX_STEPS		100000

/* Maximum length of a step's name, in bytes. */
#define JOBQ_MAX_STEP_NAME	127

/* Attribute numbers of jobq_internal.step. */
enum
{
	STEP_JOB_ID = 1,
	STEP_BATCH_ID,
	STEP_STATE,
	STEP_NAME,
	STEP_NEEDS,
	STEP_DEFINITION,
	STEP_RESULT,
	STEP_ELEMENTS,
	STEP_ELEMENT_OF,
	STEP_ELEMENT,
	STEP_OPTIONAL,
	STEP_CONDITIONAL,
	STEP_WORKFLOW_ID,
	STEP_NATTS = STEP_WORKFLOW_ID
};

/* Number of elements of a step with "map" whose array is not known yet. */
#define JOBQ_UNKNOWN_ELEMENTS	(-1)

/*
 * State of a step: one of these values, or STATE_COMPLETED, STATE_CANCELLED or STATE_EXPIRED.
 * The state follows from the table with the job's row (steps.c).
 *
 *	state			the job is in				over?		counted as	rerun without a name
 *	BLOCKED			job, run_at = infinity		no			-			waits on
 *	LIVE			job							no			-			goes on
 *	COMPLETED		archive						yes			completed	stays
 *	SKIPPED			archive, step.state = 's'	yes			cancelled	stays
 *	DEAD			dead_letter					if optional	dead		only without a dead letter
 *	CANCELLED		archive						if optional	cancelled	runs
 *	DROPPED			archive						if optional	cancelled	runs
 *	EXPIRED			archive						if optional	expired		runs
 *	GONE			nowhere						no			-			runs
 *
 * A state that is neither over nor BLOCKED nor LIVE is "lost" for the users of the step:
 * jobq_step_loss().  The counts are COUNTS_BY_OUTCOME.  After retention or deletion of the job,
 * jobq_internal.step.state has the letter.
 */
#define STEP_BLOCKED		'b'
#define STEP_LIVE			'l'
#define STEP_DEAD			'f'
#define STEP_GONE			'g'
#define STEP_SKIPPED		's' /* the condition is false */
#define STEP_DROPPED		'd' /* see STATE_OR_DROPPED */

/* In memory only: */
#define STEP_RESTORED		'r' /* was DROPPED, and is about to be BLOCKED */
#define STEP_REPORTED		'n' /* was LIVE in a kept workflow, and a process
								 * has reported its end: to be read */

/*
 * An existing step of a workflow, or the job of an element of an array.  The step with
 * "map" waits for the jobs of its elements as for needs.
 */
typedef struct JobqStep
{
	int64		job_id;
	char	   *name;			/* NULL for an element; see jobq_step_name() */
	int			nneeds;
	struct JobqStep **needs;	/* an entry is NULL if the step is missing */
	int			nusers;			/* steps that need this one */
	int			max_users;
	struct JobqStep **users;
	int			waits;			/* needs that are not over; valid after
								 * jobq_steps_link() */
	char		state;
	bool		optional;
	bool		conditional;
	bool		again;			/* will be rerun (rerun.c) */
	int64		workflow_id;	/* batch of the nested workflow, or 0 */

	/* for a step with "map" */
	bool		mapped;
	int			nelements;		/* of the array, or JOBQ_UNKNOWN_ELEMENTS */
	int			nwritten;		/* number of elements with a job */
	int			nleft;			/* of these, not over; valid after
								 * jobq_steps_link() */
	int			max_written;
	struct JobqStep **elements; /* elements with a job, in order */

	/* for an element */
	struct JobqStep *mapper;	/* the step with "map", or NULL */
	int			place;			/* index in mapper->elements */
} JobqStep;

/*
 * The steps of a workflow as a graph.  Each step points to the steps that it needs, and after
 * jobq_steps_link() to the steps that need it.  A step is "over" if it no longer keeps other
 * steps from running (jobq_step_over()).  A need is "lost" if it has ended otherwise.
 */
typedef struct JobqSteps
{
	MemoryContext memory;		/* context of all allocations */
	int			nsteps;			/* including elements */
	int			max_steps;
	JobqStep  **steps;			/* sorted by job id */
	int			nnamed;
	int			max_named;
	JobqStep  **by_name;		/* sorted by name; NULL before the first call
								 * of jobq_step_named() */
} JobqSteps;

/* src/compose/steps.c */
extern void jobq_steps_load(int64 batch_id, JobqSteps *workflow);
extern void jobq_steps_link(JobqSteps *workflow);
extern JobqStep *jobq_step_of_job(const JobqSteps *workflow, int64 job_id);
extern JobqStep *jobq_step_named(JobqSteps *workflow, const char *name);
extern const char *jobq_step_lost_need(const JobqStep *step);
extern const char *jobq_step_lost_need_or_element(const JobqStep *step);
extern const char *jobq_step_loss(char state);
extern bool jobq_step_over(const JobqStep *step);
extern bool jobq_step_needs_done(const JobqStep *step);
extern bool jobq_step_elements_done(const JobqStep *step);
extern const char *jobq_step_name(const JobqStep *step);
extern void jobq_steps_grow(JobqSteps *workflow, JobqStep *step,
							const int64 *job_ids, int n);
extern JobqStep *jobq_steps_add(int64 batch_id, JobqSteps *workflow,
								const int64 *job_ids, int n);
extern void jobq_step_add_user(JobqSteps *workflow, JobqStep *step,
							   JobqStep *user);

/* src/compose/define.c */
extern void jobq_step_parse(Jsonb *definition, const char *what, bool named,
							bool kept,
							JobqSpec *spec);

/* How steps of a workflow run again. */
typedef struct JobqAgain
{
	int64		batch_id;
	Oid			role;			/* owner of the workflow */
	const JobqSteps *workflow;
	bool		by_user;		/* logged, and counted as a retry */
} JobqAgain;

/* src/compose/again.c */
extern void jobq_steps_again(Relation rel, const JobqAgain *again);

/* src/compose/rerun.c */
extern bool jobq_workflow_try_lock(int64 batch_id);
extern int64 jobq_workflow_rerun(int64 id, const char *name);
extern int64 jobq_workflow_restore(int64 id, List **batches);

/* src/compose/condition.c */
extern void jobq_condition_check(const char *condition, const char *what);
extern bool jobq_condition_holds(const char *condition, Jsonb *of);

/* src/compose/result_ref.c */
#define RESULT_KEY	"$result"
#define ELEMENT_KEY	"$element"

/* Values for the references in a payload. */
typedef struct JobqRefs
{
	/* return the result of the step, or NULL if the step has none */
	Jsonb	   *(*result_of) (void *arg, const char *name);
	void	   *arg;
	Jsonb	   *element;		/* NULL if elements cannot be referenced */
	int			place;			/* index of the element in its array, from 0 */
} JobqRefs;

extern void jobq_step_check_payload(const JobqJob *job);
extern bool jobq_is_result_ref(Jsonb *jsonb, const char *what);
extern List *jobq_result_refs(Jsonb *payload, const char *what, bool mapped);
extern Jsonb *jobq_results_put(Jsonb *payload, const JobqRefs *refs,
							   Size max_size, Size *size);

#endif							/* JOBQ_COMPOSE_H */
