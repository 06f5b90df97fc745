/*-------------------------------------------------------------------------
 *
 * cron.h
 *	  Cron expressions and intervals: when a schedule is due.
 *
 * src/schedule/cron.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_CRON_H
#define JOBQ_CRON_H

#include "datatype/timestamp.h"
#include "pgtime.h"

/* What an expression says: bits are the values that a field allows. */
typedef struct JobqCron
{
	int64		interval;		/* microseconds; 0: the fields count */
	uint64		second;
	uint64		minute;
	uint64		hour;
	uint64		day;
	uint64		month;
	uint64		weekday;		/* 0 is Sunday */
	bool		any_day;		/* the field begins with an asterisk */
	bool		any_weekday;
	bool		real_time;		/* any hour: time changes do not matter */
} JobqCron;

extern void jobq_cron_parse(const char *text, JobqCron *cron);
extern pg_tz *jobq_cron_zone(const char *name);
extern TimestampTz jobq_cron_next(const JobqCron *cron, pg_tz *zone,
								  TimestampTz anchor, TimestampTz after);
extern TimestampTz jobq_cron_last(const JobqCron *cron, pg_tz *zone,
								  TimestampTz anchor, TimestampTz from,
								  TimestampTz until);

#endif							/* JOBQ_CRON_H */
