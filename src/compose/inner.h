/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  What the files of the room compose offer each other: batches as they were
 *	  read, and steps in the making.
 *
 * src/compose/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COMPOSE_INNER_H
#define JOBQ_COMPOSE_INNER_H

#include "utils/hsearch.h"

#include "compose/compose.h"

/* How a batch is read: who may change it meanwhile. */
#define ANYBODY			""
#define NOBODY_ENDS_IT	" FOR SHARE"
#define NOBODY			" FOR NO KEY UPDATE"

/* A batch, as it was read. */
typedef struct Batch
{
	Oid			role;
	char		state;
	bool		over;
	bool		ending;			/* what is left of it is to be cancelled */
	bool		dormant;
	bool		has_steps;
	bool		expects;		/* was started before it had a job, and waits
								 * for the first one */
	int64		parent;			/* of which it is part, or 0 */
	int64		parent_job;		/* that stands for it there */
} Batch;

/* src/compose/batch.c */
extern void batch_read(int privilege, int64 id, const char *lock,
					   Batch *batch);
extern void batch_lock_letters(int64 id);
extern void batch_check_begun(int64 id, const Batch *batch);
extern void batch_wrong_state(int64 id, const char *state, const char *hint);

/* src/compose/add_jobs.c */
extern bool batch_open_to_add(int64 id, Batch *batch);

/* A step in the making. */
typedef struct NewStep
{
	char	   *name;
	char	   *what;			/* the same for messages */
	Jsonb	   *definition;
	Jsonb	   *nested;			/* the workflow that it is itself, or NULL */
	bool		nested_chain;	/* ... is a chain */
	struct Workflow *inner;		/* the same, when it is read */
	int64		inner_id;		/* its batch */
	Jsonb	   *map;			/* the array whose elements have jobs, or NULL */
	bool		optional;
	bool		conditional;
	int		   *needs;			/* places in the array of steps, or behind it
								 * in that of those known */
	int			nneeds;
	int			waits;			/* new steps that it needs, and that have not
								 * been put in order yet */
	int			mark;			/* the search that has met it last */
	JobqSpec	spec;
	JobqUnique	unique;
	JobqJob		job;
} NewStep;

/* A step that the workflow has already, of which one in the making speaks. */
typedef struct KnownStep
{
	int64		job_id;
	int			mark;			/* as of a new one */
} KnownStep;

#define NCALLBACKS		3

/* Workflows in workflows: so many levels, with the outermost. */
#define MAX_LEVELS		8

typedef struct Workflow
{
	int64		batch_id;		/* to which steps are added, or 0 */
	bool		chain;
	struct Workflow *outer;		/* of which it is a step, or NULL */
	int			place;			/* of that step */
	int			level;			/* 1: the outermost */
	Datum		name;			/* or 0 */
	Datum		callbacks[NCALLBACKS];	/* in the order of jobq_batch_insert() */
	bool		no_callbacks[NCALLBACKS];
	bool		allow_failures;
	Jsonb	   *options;		/* that all steps have, or NULL */
	int			nsteps;
	NewStep    *steps;
	HTAB	   *names;
	int			nsearches;
	int		   *stack;			/* room for the places of all steps */
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
