/*-------------------------------------------------------------------------
 *
 * compose.h
 *	  The door of the room compose: jobs that belong together.
 *
 * A batch is over when none of its jobs is live; then its callbacks are enqueued.
 * A workflow is a batch of which some jobs, its steps, wait for others and take
 * their results.  What happens at the end of jobs is the scheduler's work
 * (worker/scheduler/batches.c, workflows.c); this room makes batches, and reads how
 * far they are.
 *
 * What it promises: the jobs of a batch are added, and its state changes, in the
 * caller's transaction.
 *
 * Locks: who adds jobs to a batch locks its row, weakly; the scheduler, which skips a
 * batch that is locked, comes again.  Who has steps run once more takes a lock that each
 * look at the batch takes, too (rerun.c).
 *
 * src/compose/compose.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COMPOSE_H
#define JOBQ_COMPOSE_H

#include "utils/jsonb.h"

#include "produce/produce.h"

/* Values of jobq_internal.batch.state. */
#define BATCH_PENDING		'p'
#define BATCH_RUNNING		'r'
#define BATCH_COMPLETED		'c'
#define BATCH_FAILED		'f'
#define BATCH_CANCELLED		'x'

/* Why a job of a batch is cancelled if the batch fails. */
#define BATCH_FAILED_REASON	"its batch has failed"
/* ... or what its batch is a part of has no use for it. */
#define BATCH_DROPPED_REASON	"its workflow is not needed any more"
/* ... or a step that it needs has ended otherwise; begins with this. */
#define STEP_NEED_REASON		"needs step "

/*
 * The state of a row of the archive; STEP_DROPPED of a job that was cancelled, before it
 * began, for one of these reasons.  row: what stands before the columns' names.
 */
#define STATE_OR_DROPPED(row) \
	"CASE WHEN " row "state = 'x' AND " row "started_at IS NULL AND (" row "reason IN" \
	" ('" BATCH_FAILED_REASON "', '" BATCH_DROPPED_REASON "')" \
	" OR pg_catalog.starts_with(" row "reason, '" STEP_NEED_REASON "'))" \
	" THEN 'd' ELSE " row "state END"

/*
 * A query that deletes finished jobs ("delete", which returns its batch_id and
 * state), keeps the counts of their batches, and returns how many there were.  Their
 * steps are known to be dropped still.
 */
#define DELETE_AND_COUNT(delete) \
	"WITH gone AS (" delete ")," \
	" counted AS (UPDATE jobq_internal.batch b SET completed = b.completed + g.completed," \
	" dead = b.dead + g.dead, cancelled = b.cancelled + g.cancelled," \
	" expired = b.expired + g.expired" \
	" FROM (" COUNT_BY_BATCH "FROM gone WHERE batch_id IS NOT NULL GROUP BY batch_id) g" \
	" WHERE b.id = g.batch_id)," \
	" kept AS (UPDATE jobq_internal.step s SET result = g.result," \
	" state = CASE WHEN s.state = 's' THEN s.state ELSE g.state END" \
	" FROM gone g WHERE s.job_id = g.id AND g.batch_id IS NOT NULL)" \
	" SELECT pg_catalog.count(*) FROM gone"
#define COUNT_BY_BATCH \
	"SELECT batch_id, pg_catalog.count(*) FILTER (WHERE state = 'c') AS completed," \
	" pg_catalog.count(*) FILTER (WHERE state = 'f') AS dead," \
	" pg_catalog.count(*) FILTER (WHERE state IN ('x', 'd')) AS cancelled," \
	" pg_catalog.count(*) FILTER (WHERE state = 'e') AS expired "
#define RETURNING_FINISHED	" RETURNING batch_id, " STATE_OR_DROPPED("") " AS state, id, result"
#define RETURNING_LETTERS	" RETURNING batch_id, 'f'::\"char\" AS state, id, NULL::jsonb AS result"

/* src/compose/batch.c */
extern int64 jobq_batch_insert(Datum name, const Datum *callbacks,
							   const bool *nulls, bool allow_failures,
							   bool started, bool has_steps, int64 parent,
							   int64 parent_job);
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

/* Most steps of a workflow. */
#define JOBQ_MAX_STEPS		100000

/* Bytes of a step's name. */
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

/* The number of elements of a step with "map" whose array is not there yet. */
#define JOBQ_UNKNOWN_ELEMENTS	(-1)

/*
 * Where a step's job is, beside the states of the archive.
 */
#define STEP_BLOCKED		'b'
#define STEP_LIVE			'l'
#define STEP_DEAD			'f'
#define STEP_GONE			'g'
#define STEP_SKIPPED		's' /* its condition does not hold */
#define STEP_DROPPED		'd' /* cancelled only because others are dead or
								 * expired */
#define STEP_RESTORED		'r' /* ... and about to be blocked again */
#define STEP_NAMED			'n' /* was live, and has been named since */

/*
 * A step of a workflow that exists; or the job of an element of an array, which counts
 * as a step that its step waits for.
 */
typedef struct JobqStep
{
	int64		job_id;
	char	   *name;			/* NULL: of an element; see jobq_step_name() */
	int			nneeds;
	struct JobqStep **needs;	/* NULL where there is no such step */
	int			nusers;			/* steps that need this one */
	int			max_users;
	struct JobqStep **users;
	int			waits;			/* needs that are not over: see
								 * jobq_steps_link() */
	char		state;
	bool		optional;
	bool		conditional;
	bool		again;			/* is to run once more (rerun.c) */
	int64		workflow_id;	/* the batch that it is itself, or 0 */

	/* of a step with "map" */
	bool		mapped;
	int			nelements;		/* of the array, or JOBQ_UNKNOWN_ELEMENTS */
	int			nwritten;		/* of these, those that have a job */
	int			nleft;			/* of these, those that are not over: see
								 * jobq_steps_link() */
	int			max_written;
	struct JobqStep **elements; /* those that have a job, in their order */

	/* of an element */
	struct JobqStep *mapper;	/* its step, or NULL */
	int			place;
} JobqStep;

typedef struct JobqSteps
{
	MemoryContext memory;		/* of all of it */
	int			nsteps;			/* with those of elements */
	int			max_steps;
	JobqStep  **steps;			/* in the order of their jobs' ids */
	int			nnamed;
	int			max_named;
	JobqStep  **by_name;		/* in the order of their names, or NULL */
} JobqSteps;

/* src/compose/steps.c */
extern void jobq_steps_load(int64 batch_id, JobqSteps *workflow);
extern void jobq_steps_link(JobqSteps *workflow);
extern JobqStep *jobq_step_of_job(const JobqSteps *workflow, int64 job_id);
extern JobqStep *jobq_step_named(JobqSteps *workflow, const char *name);
extern const char *jobq_step_lost_need(const JobqStep *step);
extern const char *jobq_step_need_lost(const JobqStep *step);
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

/* src/compose/rerun.c */
extern bool jobq_workflow_try_lock(int64 batch_id);
extern void jobq_step_restore(Relation rel, int64 batch_id, Oid role,
							  JobqStep *step, TimestampTz enqueued_at,
							  Jsonb *definition, bool again);
extern int64 jobq_workflow_rerun(int64 id, const char *name);
extern int64 jobq_workflow_restore(int64 id, List **batches);

/* src/compose/condition.c */
extern void jobq_condition_check(const char *condition, const char *what);
extern bool jobq_condition_holds(const char *condition, Jsonb *of);

/* src/compose/result_ref.c */
#define RESULT_KEY	"$result"
#define ELEMENT_KEY	"$element"

/* What references in a payload stand for. */
typedef struct JobqRefs
{
	/* the result of the step, or NULL if it has none */
	Jsonb	   *(*result_of) (void *arg, const char *name);
	void	   *arg;
	Jsonb	   *element;		/* or NULL if there are no references to one */
	int			place;			/* of the element in its array, from 0 */
} JobqRefs;

extern void jobq_step_check_payload(const JobqJob *job);
extern bool jobq_is_result_ref(Jsonb *jsonb, const char *what);
extern List *jobq_result_refs(Jsonb *payload, const char *what, bool mapped);
extern Jsonb *jobq_results_put(Jsonb *payload, const JobqRefs *refs,
							   Size max_size, Size *size);

#endif							/* JOBQ_COMPOSE_H */
