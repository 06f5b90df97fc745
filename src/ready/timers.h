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

/*
 * The timers of the elements ("things") of one array.  An element stores its time as a
 * TimestampTz, valid if the element has a timer.  The element also stores the position of its
 * timer in the heap as a uint32, or JOBQ_NONE without a timer.
 */
typedef struct JobqTimers
{
	char	   *things;			/* the array */
	Size		size;			/* of an element, in bytes */
	Size		due;			/* offset of the time within an element */
	Size		place;			/* offset of the position within an element */
	uint32		n;
	uint32	   *heap;			/* indices of elements, as a binary heap by
								 * time */
} JobqTimers;

#endif							/* JOBQ_READY_TIMERS_H */
