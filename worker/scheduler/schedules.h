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

/*
 * A schedule waits either for a time (check_at), or for the end of its last job (waits_for;
 * check_at is then infinity, and the row is "held").  A process that commits the end of a
 * published job wakes the scheduler, which then checks all schedules with "published".
 *
 *	check with a live last job, overlap => 'queue'
 *		ticks_fire():		put the job into JobqTold.waited, then test whether the job is
 *							live: its end before the test is seen by the test, and its end
 *							afterwards wakes the scheduler
 *		publish_jobs():		after the checks of the round, write JobqTold.waited anew
 *	end of the job			schedule_freed: check again
 *	each sweep (sweep.c)	schedule_freed, as the last safety net
 *
 * The list JobqTold.waited is bounded.  If a job finds no room, all waiting schedules are polled.
 */
typedef struct Schedule
{
	char	   *name;
	Oid			role;
	ItemPointerData ctid;		/* of the row; invalid: unknown */
	int			locked;			/* lock timeouts in a row */
	bool		failed;			/* with an error: retry soon */
	TimestampTz check_at;
	int64		waits_for;		/* job id, or 0 */
	bool		published;		/* waits_for was in JobqTold.waited since the
								 * last check */
	bool		displaced;		/* waits_for has displaced another job in
								 * JobqTold.waited, whose schedule needs a
								 * poll */
} Schedule;

/* worker/scheduler/ticks.c */
extern bool ticks_fire(Schedule *schedule, TimestampTz now, TimestampTz since);

#endif							/* JOBQ_SCHEDULER_SCHEDULES_H */
