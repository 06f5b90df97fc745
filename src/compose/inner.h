/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  What the files of the room compose offer each other: steps in the making.
 *
 * src/compose/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COMPOSE_INNER_H
#define JOBQ_COMPOSE_INNER_H

#include "utils/hsearch.h"

#include "compose/compose.h"

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
	int			nsteps;
	NewStep    *steps;
	HTAB	   *names;
	int			nsearches;
	int		   *stack;			/* room for the places of all steps */
} Workflow;

/* src/compose/define.c */
extern void workflow_read_steps(Workflow *workflow, Jsonb *array);

#endif							/* JOBQ_COMPOSE_INNER_H */
