/*-------------------------------------------------------------------------
 *
 * schedule.h
 *	  What a schedule says of the jobs that it enqueues.
 *
 * src/schedule/schedule.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULE_H
#define JOBQ_SCHEDULE_H

#include "base/base.h"
#include "utils/jsonb.h"

typedef struct JobqScheduledJob
{
	const char *schedule;
	const char *kind;
	Datum		payload;
	Jsonb	   *options;		/* of schedule(), or NULL */
} JobqScheduledJob;

/* src/schedule/tick.c */
extern void jobq_scheduled_check(const JobqScheduledJob *scheduled);
extern int64 jobq_scheduled_enqueue(const JobqScheduledJob *scheduled, Oid role,
									TimestampTz tick);

#endif							/* JOBQ_SCHEDULE_H */
