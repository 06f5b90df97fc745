/*-------------------------------------------------------------------------
 *
 * schedule.h
 *	  Interface of the directory schedule: recurring jobs.
 *
 * This directory computes when an expression is due, and makes the job of a tick.  The
 * scheduler performs the ticks (worker/scheduler/schedules.c).
 *
 * Guarantee: a single transaction enqueues the job of a tick and sets the schedule's next
 * tick.
 *
 * Locks: no locks in shared memory.  SQL functions lock the schedule's row.
 *
 * src/schedule/schedule.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULE_H
#define JOBQ_SCHEDULE_H

#include "datatype/timestamp.h"
#include "pgtime.h"
#include "utils/jsonb.h"

#include "produce/produce.h"

/* A parsed expression: an interval, or a rule. */
typedef struct JobqCron
{
	int64		interval;		/* microseconds; 0: the rule applies */
	struct JobqRrule *rule;		/* see rrule.h */
} JobqCron;

/* The policy for ticks that could not be checked in time: see worker/scheduler/ticks.c. */
typedef enum JobqMissed
{
	JOBQ_MISSED_SKIP,
	JOBQ_MISSED_ONCE,			/* one job for all */
	JOBQ_MISSED_ALL
}			JobqMissed;

/* The policy for a tick while the last job of the schedule is live. */
typedef enum JobqOverlap
{
	JOBQ_OVERLAP_ALLOW,			/* the tick gets a job */
	JOBQ_OVERLAP_SKIP,			/* the tick gets no job */
	JOBQ_OVERLAP_QUEUE			/* the tick is held until the job has ended */
}			JobqOverlap;

/* src/schedule/policy.c */
extern JobqMissed jobq_missed_parse(const char *word);
extern JobqOverlap jobq_overlap_parse(const char *word);

/* src/schedule/expression.c */
extern void jobq_cron_parse(const char *text, JobqCron *cron);

/* src/schedule/same.c */
extern bool jobq_cron_same(const JobqCron *a, const JobqCron *b, pg_tz *zone_a,
						   pg_tz *zone_b);

/* src/schedule/cron.c */
extern pg_tz *jobq_cron_zone(const char *name);
extern TimestampTz jobq_cron_next(const JobqCron *cron, pg_tz *zone,
								  TimestampTz anchor, TimestampTz after);
extern TimestampTz jobq_cron_last(const JobqCron *cron, pg_tz *zone,
								  TimestampTz anchor, TimestampTz from,
								  TimestampTz until);

typedef struct JobqScheduledJob
{
	const char *schedule;
	const char *kind;
	Datum		payload;
	Jsonb	   *options;		/* of schedule(), or NULL */
	int64		previous_job;	/* previous job, or 0 */
} JobqScheduledJob;

/* The purpose for which the job of a schedule is made. */
typedef enum JobqTickFor
{
	JOBQ_TICK_CHECK,			/* to check the definition of the schedule,
								 * whose options are not stored yet */
	JOBQ_TICK_EXTRA,			/* run_schedule(): the job may run at once */
	JOBQ_TICK_DUE				/* the job may be delayed by a part of
								 * "jitter" */
}			JobqTickFor;

/* src/schedule/schedule.c */
extern bool jobq_schedule_pause(const char *function, text *name, bool paused);

/* src/schedule/tick.c */
extern Jsonb *jobq_scheduled_check(const JobqScheduledJob *scheduled);
extern bool jobq_scheduled_is_live(int64 id);
extern int64 jobq_scheduled_enqueue(const JobqScheduledJob *scheduled, Oid role,
									TimestampTz tick, JobqTickFor what);

#endif							/* JOBQ_SCHEDULE_H */
