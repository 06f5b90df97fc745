/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  Declarations shared by the files of the directory compose: batches as read from the
 *	  table, and new steps.
 *
 * src/compose/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COMPOSE_INNER_H
#define JOBQ_COMPOSE_INNER_H

#include "utils/hsearch.h"

#include "compose/compose.h"

/* Row lock with which a batch is read. */
typedef enum BatchLock
{
	BATCH_NO_LOCK,
	BATCH_LOCK_END,				/* the batch does not end */
	BATCH_LOCK_ALL,				/* the row does not change */
} BatchLock;

/* Instead of a privilege: the current user must be able to act for the role. */
#define MAY_ACT_FOR		0

/* A batch, as read from the table. */
typedef struct BatchState
{
	Oid			role;
	char		state;
	bool		over;
	bool		ending;			/* remaining jobs are to be cancelled */
	bool		dormant;
	bool		has_steps;
	bool		expects;		/* waits for its first job: see
								 * BATCH_COLUMN_STARTED_AT */
	int64		parent;			/* outer batch, or 0 */
	int64		parent_job;		/* job that represents this batch there */
} BatchState;

/* The callbacks of a batch, in the order of their columns in jobq_internal.batch. */
#define NCALLBACKS		3
extern const char *const callback_names[NCALLBACKS];

/* A batch to be inserted. */
typedef struct NewBatch
{
	Datum		name;			/* or 0 */
	Datum		callbacks[NCALLBACKS];
	bool		no_callbacks[NCALLBACKS];
	bool		allow_failures;
	bool		started;
	bool		has_steps;
	int64		parent;			/* outer batch, or 0 */
	int64		parent_job;		/* job that represents this batch there */
} NewBatch;

/* src/compose/batch.c */
extern int64 batch_insert(const NewBatch *batch);
extern void batch_read(int privilege, int64 id, BatchLock lock, BatchState *batch);
extern void batch_lock_letters(int64 id);
extern void batch_check_begun(int64 id, const BatchState *batch);
extern void batch_wrong_state(int64 id, const char *state, const char *hint);

/* src/compose/add_jobs.c */
extern bool batch_open_to_add(int64 id, BatchState *batch);

/* A step that is being defined. */
typedef struct NewStep
{
	char	   *name;
	char	   *what;			/* the name, quoted for messages */
	Jsonb	   *definition;
	Jsonb	   *nested;			/* definition of the nested workflow, or NULL */
	bool		nested_chain;	/* nested is a chain */
	struct Workflow *inner;		/* the nested workflow, once read */
	int64		inner_id;		/* batch of the nested workflow */
	Jsonb	   *map;			/* reference to an array, or NULL */
	bool		optional;
	bool		conditional;
	int		   *needs;			/* index in steps, or nsteps + index in known */
	int			nneeds;
	int			waits;			/* new steps needed, and not yet sorted */
	int			mark;			/* nsearches of its last visit */
	JobqSpec	spec;
	JobqUnique	unique;
	JobqJob		job;
} NewStep;

/* An existing step of the workflow, mentioned by a new step. */
typedef struct KnownStep
{
	int64		job_id;
	int			mark;			/* see NewStep */
} KnownStep;

/* Maximum depth of nested workflows, including the outermost workflow. */
#define MAX_LEVELS		8

typedef struct Workflow
{
	int64		batch_id;		/* batch that gets added steps, or 0 */
	bool		chain;
	struct Workflow *outer;		/* outer workflow, or NULL */
	int			place;			/* index of the step in outer->steps */
	int			level;			/* 1 for the outermost */
	NewBatch	batch;
	Jsonb	   *options;		/* options of all steps, or NULL */
	int			nsteps;
	NewStep    *steps;
	HTAB	   *names;
	int			nsearches;
	int		   *stack;			/* space for the indexes of all steps */
	int			nknown;
	int			max_known;
	KnownStep  *known;
} Workflow;

/* src/compose/known.c */
extern void known_check_room(int64 batch_id, int n);
extern int64 known_job(int64 batch_id, const char *name);
extern int	known_place(Workflow *workflow, const char *name);
extern bool known_comes_after(const Datum *jobs, int njobs, int64 before);

/* src/compose/nest.c */
/*
 * The keys of a step beside the options of a job.  The first STEP_KEYS_NAMED keys do not exist in a
 * chain: step_keys + STEP_KEYS_NAMED lists the keys there.  The same applies to nested_keys.
 */
#define STEP_KEYS_NAMED	2
extern const char *const step_keys[];

extern bool member_of(const Jsonb *object, const char *key, JsonbValue *value);
extern int	nest_level(int64 batch_id);
extern void nest_find(NewStep *step);
extern void nest_parse(Jsonb *definition, const char *what, bool named,
					   JobqSpec *spec);
extern void nest_prepare(JobqJob *job, const JobqJob *first,
						 const JobqSpec *spec);
extern void nest_set_inner(JobqJob *job, int64 inner_id);
extern Jsonb *nest_kept(Jsonb *definition, const JobqSpec *spec,
						const JobqJob *job);
extern void nest_restore(JobqJob *job, Jsonb *definition, const char *what,
						 int64 inner_id);

/* src/compose/define.c */
extern Jsonb *workflow_with_options(Jsonb *options, Jsonb *definition);
extern void workflow_read_options(Workflow *workflow, Jsonb *options);
extern void workflow_read_steps(Workflow *workflow, Jsonb *array);

/* src/compose/definition.c */
extern void workflow_read(Workflow *workflow, Jsonb *steps);
extern void workflow_read_definition(Workflow *workflow, Jsonb *definition);

#endif							/* JOBQ_COMPOSE_INNER_H */
