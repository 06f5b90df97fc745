/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  Declarations shared by the files of the directory schedule.
 *
 * src/schedule/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULE_INNER_H
#define JOBQ_SCHEDULE_INNER_H

#include "schedule/rrule.h"
#include "schedule/schedule.h"

/* A row of jobq_internal.schedule. */
typedef struct JobqScheduleRow
{
	Oid			role;
	TimestampTz anchor;
	bool		paused;
	char	   *cron;
	char	   *timezone;
	TimestampTz next_tick;		/* DT_NOBEGIN: none */
	TimestampTz last_tick;		/* DT_NOBEGIN: none */
	int64		last_job;		/* 0: none */
	bool		held;
} JobqScheduleRow;

/* src/schedule/find.c */
extern bool jobq_schedule_find(Datum name, bool lock, JobqScheduleRow *found);
extern void jobq_schedule_find_mine(const char *function, int privilege, Datum name,
									JobqScheduleRow *found);
extern void jobq_schedule_note_dropped(const char *name, const JobqScheduleRow *found);
extern const JobqScheduleRow *jobq_schedule_find_dropped(const char *name);

/* src/schedule/rrule.c */
extern bool jobq_rrule_is(const char *text);
extern JobqRrule *jobq_rrule_parse(const char *text);
extern void jobq_rrule_add(JobqRruleSet *set, int number);

/* src/schedule/dates.c */
extern int	jobq_rrule_period_of(const JobqRrule *rule, int day);
extern int	jobq_rrule_week_begin(const JobqRrule *rule, int day);
extern int	jobq_rrule_read(JobqRrule *rule, int period);

/* src/schedule/recurrence.c */
extern void jobq_rrule_begin(JobqRrule *rule, int64 anchor);
extern bool jobq_rrule_match(JobqRrule *rule, int64 from, int64 until,
							 int64 *match);

/*
 * Return value modulo by, never negative.  by must be positive.
 */
static inline int
jobq_rrule_modulo(int64 value, int64 by)
{
	return (int) ((value % by + by) % by);
}

#endif							/* JOBQ_SCHEDULE_INNER_H */
