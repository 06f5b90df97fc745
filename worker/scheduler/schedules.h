/*-------------------------------------------------------------------------
 *
 * schedules.h
 *	  A schedule in the memory of the scheduler: the interface between the list
 *	  (schedules.c) and the ticks (ticks.c).
 *
 * worker/scheduler/schedules.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULER_SCHEDULES_H
#define JOBQ_SCHEDULER_SCHEDULES_H

#include "scheduler/inner.h"

typedef struct Schedule
{
	char	   *name;
	Oid			role;
	ItemPointerData ctid;		/* invalid: unknown */
	int			locked;			/* lock timeouts in a row */
	bool		failed;			/* with an error: retry soon */
	TimestampTz look_at;
	int64		waits_for;		/* job id, or 0 */
	bool		named;			/* published since the last check */
	bool		displaced;		/* its job has displaced another published job */
} Schedule;

/* worker/scheduler/ticks.c */
extern bool ticks_fire(Schedule *schedule, TimestampTz now, TimestampTz since);

#endif							/* JOBQ_SCHEDULER_SCHEDULES_H */
