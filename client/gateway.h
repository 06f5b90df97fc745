/*-------------------------------------------------------------------------
 *
 * gateway.h
 *	  Gates, and who is parked there: between gateway.c and gate.c.
 *
 * client/gateway.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_GATEWAY_H
#define JOBQ_GATEWAY_H

#include <jansson.h>

#include "web.h"

#define MAX_QUEUES		16		/* that one statement waits for, and that a
								 * caller can name */

/* The queues that some who are parked at a gate want, in the order that they have said. */
typedef struct Wish
{
	struct Wish *next;
	struct Gate *gate;
	json_t	   *queues;
	int			ncallers;
	int			wanted;			/* jobs, by all of them */
	bool		asked;			/* the statement is for all these queues, or
								 * was the last time */
} Wish;

/* A caller who waits. */
typedef struct Parked
{
	struct Parked *next;
	Request    *request;
	Wish	   *wish;
	int			max;
	double		since;
	double		until;
	Given	   *given;
} Parked;

typedef struct Gate
{
	struct Gate *next;
	Principal  *principal;
	char	   *lease;
	int			held;			/* jobs of other calls, of each caller: 0, 1
								 * for some, or -1 if that is not told */
	double		apart_until;	/* 0: new wishes of this lease come here */
	Parked	   *first;			/* has waited longest */
	Wish	   *wishes;			/* those that were left out come first */
	Statement	statement;
	bool		asked;			/* its statement is under way */
	bool		brief;			/* and ends soon */
	bool		cancelled;
	int			nwishes;		/* for which it waits */
	int			nqueues;
	char	   *queues[MAX_QUEUES];
	int			most;			/* jobs that it takes */
	char	   *plenty;			/* a queue that may have more than it took */
	char	   *array;
	char		max[16];
	char		wait[32];
	const char *values[5];
} Gate;

/* gate.c */
extern Wish *wish_for(Principal *principal, const char *lease, int held, json_t *queues);
extern void wish_take_out(Wish *wish);
extern void gate_run(Gate *gate);

/* gateway.c */
extern Gate *unpark(Parked *parked);

#endif							/* JOBQ_GATEWAY_H */
