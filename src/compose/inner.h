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
} Batch;

/* src/compose/batch.c */
extern void batch_read(int privilege, int64 id, const char *lock,
					   Batch *batch);
extern void batch_wrong_state(int64 id, const char *state, const char *hint);

#define MAX_STEP_NAME	127

/* A step in the making. */
typedef struct NewStep
{
	char	   *name;
	char	   *what;			/* the same for messages */
	Jsonb	   *definition;
	Jsonb	   *map;			/* the array whose elements have jobs, or NULL */
	bool		optional;
	bool		conditional;
	int		   *needs;			/* places in the array of steps */
	int			nneeds;
	int			waits;			/* needs that have not been put in order yet */
	int			mark;			/* the search that has met it last */
	JobqSpec	spec;
	JobqJob		job;
} NewStep;

typedef struct Workflow
{
	bool		chain;
	Jsonb	   *options;		/* that all steps have, or NULL */
	int			nsteps;
	NewStep    *steps;
	HTAB	   *names;
	int			nsearches;
	int		   *stack;			/* room for the places of all steps */
} Workflow;

/* src/compose/define.c */
extern void workflow_read_options(Workflow *workflow, Jsonb *options);
extern void workflow_read_steps(Workflow *workflow, Jsonb *array);

#endif							/* JOBQ_COMPOSE_INNER_H */
