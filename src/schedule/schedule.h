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

/*
 * Its options, in the order of the arguments of schedule() and of the columns
 * of jobq.schedule.
 */
enum
{
	SCHEDULE_QUEUE,
	SCHEDULE_PRIORITY,
	SCHEDULE_MAX_ATTEMPTS,
	SCHEDULE_BACKOFF,
	SCHEDULE_TIMEOUT,
	SCHEDULE_HEADERS,
	SCHEDULE_EXPIRES_AFTER,
	SCHEDULE_GROUP_KEY,
	NSCHEDULE_OPTIONS
};

typedef struct JobqScheduledJob
{
	const char *schedule;
	const char *kind;
	Datum		payload;
	Datum		options[NSCHEDULE_OPTIONS];
	bool		nulls[NSCHEDULE_OPTIONS];
} JobqScheduledJob;

/* src/schedule/tick.c */
extern void jobq_scheduled_check(const JobqScheduledJob *scheduled);
extern int64 jobq_scheduled_enqueue(const JobqScheduledJob *scheduled, Oid role,
									TimestampTz tick);

#endif							/* JOBQ_SCHEDULE_H */
