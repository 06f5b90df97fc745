/*-------------------------------------------------------------------------
 *
 *	  Timers: times at which elements of an array must be checked.
 *
 * src/ready/timers.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_TIMERS_H
#define JOBQ_READY_TIMERS_H

#include "ready/job.h"

typedef struct JobqTimer
{
	TimestampTz due;
	uint32		index;			/* of the element */
} JobqTimer;

/*
 * The timers of the elements ("things") of one array.  An element stores the position of its
 * timer in the heap as a uint32, or JOBQ_NONE without a timer.
 */
typedef struct JobqTimers
{
	char	   *things;			/* the array */
	Size		size;			/* of an element, in bytes */
	Size		place;			/* offset of the position within an element */
	uint32		n;
	JobqTimer  *heap;			/* a binary heap by time */
} JobqTimers;

#endif							/* JOBQ_READY_TIMERS_H */
