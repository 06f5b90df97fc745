/*-------------------------------------------------------------------------
 *
 * taken.h
 *	  What becomes of jobs that do not wait for a place of their limiter: between the
 *	  files that decide it (contest.c) and carry it out (taken.c).
 *
 * worker/scheduler/taken.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULER_TAKEN_H
#define JOBQ_SCHEDULER_TAKEN_H

#include "lib/ilist.h"

#include "scheduler/inner.h"

/* Jobs of a heap that are compared. */
#define MOST_COMPARED	64

typedef enum Action
{
	LOOK,						/* it seems to be gone or changed */
	RELEASE,
	SKIP,
	REPLACE,					/* it waits, and newer ones come before it */
	STOP						/* the same, but it runs */
} Action;

typedef struct Fate
{
	dlist_node	node;			/* of those that are kept back */
	TimestampTz at;				/* likewise: until then */
	JobqPush	job;			/* of one that runs, only its id is known */
	JobqTakenBy by;
	JobqHeap	heap;			/* only its key */
	Action		action;
	int64		newer;			/* the job that comes instead of it */
	bool		undone;			/* what was to be done is not */
	bool		ending;			/* likewise, as a place is about to be free */
	bool		other;			/* likewise, as it needs a place of another
								 * key */
} Fate;

/* Jobs of which some are to give way. */
typedef struct Contest
{
	JobqHeap	heap;			/* only its key */
	JobqTakenBy by;
	JobqPush   *waiting;
	int			nwaiting;
	JobqHolder *holders;
	int			nholders;
	Fate	   *items;			/* what follows from it */
	int			nitems;
} Contest;

/* worker/scheduler/contest.c */
extern void contest_compare(void *contest);

#endif							/* JOBQ_SCHEDULER_TAKEN_H */
