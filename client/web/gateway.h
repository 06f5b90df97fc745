/*-------------------------------------------------------------------------
 *
 * gateway.h
 *	  Gates and parked callers: the interface between gateway.c and gate.c.
 *
 * client/web/gateway.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_GATEWAY_H
#define JOBQ_GATEWAY_H

#include <jansson.h>

#include "web/inner.h"

#define MAX_QUEUES		16		/* per statement, and per caller */

/*
 * A list of queues, as named by callers, and the demand of the callers parked
 * for this list.
 */
typedef struct Wish
{
	struct Wish *next;
	struct Gate *gate;
	json_t	   *queues;
	int			ncallers;
	int			wanted;			/* jobs, for all callers together */
	bool		asked;			/* the current or last statement includes all
								 * these queues */
} Wish;

/* A waiting caller. */
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
	int			held;			/* jobs held by each caller from other calls:
								 * 0, 1 for some, -1 if unknown */
	double		apart_until;	/* 0: accepts new wishes for this lease */
	Parked	   *first;			/* has waited longest */
	Wish	   *wishes;			/* wishes left out last time come first */
	Statement	statement;
	bool		asked;			/* the statement is in progress */
	bool		brief;			/* the statement ends soon */
	bool		cancelled;
	int			nwishes;		/* number in the statement */
	int			nqueues;
	char	   *queues[MAX_QUEUES];
	int			most;			/* jobs per statement */
	char	   *plenty;			/* a queue that may have more jobs */
	char	   *array;
	char		max[16];
	char		wait[32];
	const char *values[5];
} Gate;

/* client/web/gate.c */
extern Wish *wish_for(Principal *principal, const char *lease, int held, json_t *queues);
extern Gate *unpark(Parked *parked);
extern void gate_run(Gate *gate);

#endif							/* JOBQ_GATEWAY_H */
