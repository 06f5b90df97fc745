/*-------------------------------------------------------------------------
 *
 * taken.h
 *	  Jobs that must not wait for a permit of their limiter: the interface
 *	  between the choice of jobs (taken.c, contest.c) and the execution (taken_job.c).
 *
 * worker/scheduler/taken.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULER_TAKEN_H
#define JOBQ_SCHEDULER_TAKEN_H

#include "lib/ilist.h"

#include "scheduler/inner.h"

/* Jobs of a heap to compare. */
#define MOST_COMPARED	64

typedef enum Action
{
	LOOK,						/* seems to be gone or changed */
	RELEASE,
	SKIP,
	REPLACE,					/* is waiting, and newer jobs come first */
	STOP						/* the same for a running job */
} Action;

typedef struct Fate
{
	dlist_node	node;			/* in the list of jobs kept back */
	JobqSteady	at;				/* end of the pause, if kept back */
	JobqPush	job;			/* for a running job, only the id is known */
	JobqTakenBy by;
	JobqHeap	heap;			/* key only */
	Action		action;
	int64		newer;			/* the job that replaces this job */
	bool		undone;			/* the action was not carried out */
	bool		ending;			/* ... because a permit becomes free soon */
	bool		other;			/* ... because of a different limit key */
} Fate;

/* Competing jobs, some of which must give way. */
typedef struct Contest
{
	JobqHeap	heap;			/* key only */
	JobqTakenBy by;
	JobqPush   *waiting;
	int			nwaiting;
	JobqHolder *holders;
	int			nholders;
	Fate	   *items;			/* the resulting actions */
	int			nitems;
} Contest;

/* worker/scheduler/taken_job.c */
extern void taken_carry_out(void *arg);

/* worker/scheduler/contest.c */
extern void contest_compare(void *contest);

#endif							/* JOBQ_SCHEDULER_TAKEN_H */
