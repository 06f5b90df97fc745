/*-------------------------------------------------------------------------
 *
 * timers.h
 *	  Timers: what is to be looked at when its time has come.
 *
 * src/ready/timers.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_TIMERS_H
#define JOBQ_READY_TIMERS_H

#include "ready/job.h"

/*
 * The timers of things of one array.  A thing knows when it is due, as a TimestampTz,
 * which is valid if it has a timer, and the place of its timer in the heap, as a uint32:
 * JOBQ_NONE if it has none.
 */
typedef struct JobqTimers
{
	char	   *things;			/* the array */
	Size		size;			/* of one of them */
	Size		due;			/* where in it that is */
	Size		place;			/* likewise */
	uint32		n;
	uint32	   *heap;			/* indices of things, as a binary heap by due */
} JobqTimers;

#endif							/* JOBQ_READY_TIMERS_H */
