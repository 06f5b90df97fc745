/*-------------------------------------------------------------------------
 *
 * schedule.h
 *	  The door of the room schedule: jobs that come again.
 *
 * When an expression is due, and the job of a tick.  The ticks themselves are the
 * scheduler's (worker/scheduler/schedules.c).
 *
 * What it promises: a tick's job and the schedule's step to the next tick are one
 * transaction.
 *
 * Locks: none of its own.
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

/* What an expression says: bits are the values that a field allows. */
typedef struct JobqCron
{
	struct JobqRrule *rrule;	/* NULL, or the rule that counts (rrule.h) */
	int64		interval;		/* microseconds; 0: the fields count */
	uint64		second;
	uint64		minute;
	uint64		hour;
	uint64		day;
	uint64		month;
	uint64		weekday;		/* 0 is Sunday */
	uint64		before_end;		/* so many days before the month's last: L-2 */
	uint64		nearest_workday;	/* to these days: 15W; 0 for the last: LW */
	uint8		nth_weekday[7]; /* which ones of the month: fri#2; 0: friL */
	bool		any_day;		/* the field begins with an asterisk, or is ? */
	bool		any_weekday;
	bool		real_time;		/* any hour: time changes do not matter */
} JobqCron;

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
	int64		previous_job;	/* the schedule's last one, or 0 */
} JobqScheduledJob;

/* src/schedule/schedule.c */
extern void jobq_schedule_pause(const char *function, text *name, bool paused);

/* src/schedule/tick.c */
extern Jsonb *jobq_scheduled_check(const JobqScheduledJob *scheduled);
extern bool jobq_scheduled_is_live(int64 id);
extern int64 jobq_scheduled_enqueue(const JobqScheduledJob *scheduled, Oid role,
									TimestampTz tick, bool spread);

#endif							/* JOBQ_SCHEDULE_H */
