/*-------------------------------------------------------------------------
 *
 * rrule.h
 *	  A rule: parsed from a recurrence rule (rrule.c) or from a cron expression
 *	  (expression.c), and used by recurrence.c and dates.c.
 *
 * src/schedule/rrule.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULE_RRULE_H
#define JOBQ_SCHEDULE_RRULE_H

/* The highest number in a list of days, and the maximum number of days of a period. */
#define JOBQ_RRULE_HIGHEST	366
#define JOBQ_RRULE_DAYS		(53 * 7)

/* The bits of all hours. */
#define JOBQ_RRULE_ALL_HOURS	((UINT64CONST(1) << HOURS_PER_DAY) - 1)

typedef enum JobqRruleFreq
{
	JOBQ_RRULE_SECONDLY,
	JOBQ_RRULE_MINUTELY,
	JOBQ_RRULE_HOURLY,
	JOBQ_RRULE_DAILY,
	JOBQ_RRULE_WEEKLY,
	JOBQ_RRULE_MONTHLY,
	JOBQ_RRULE_YEARLY
} JobqRruleFreq;

/* Unit in which dates are computed: a month, a year, or a year of whole weeks. */
typedef enum JobqRrulePeriod
{
	JOBQ_RRULE_MONTH,
	JOBQ_RRULE_YEAR,
	JOBQ_RRULE_WEEKS
} JobqRrulePeriod;

/* The numbers of a list, as bits.  In begin, 1 is the first; in end, 1 is the last. */
typedef struct JobqRruleSet
{
	bool		given;
	uint64		begin[JOBQ_RRULE_HIGHEST / 64 + 1];
	uint64		end[JOBQ_RRULE_HIGHEST / 64 + 1];
} JobqRruleSet;

/* The parts of a rule from which its dates follow. */
typedef struct JobqRruleDays
{
	JobqRruleSet month;
	JobqRruleSet monthday;
	JobqRruleSet nearest_workday;	/* to these days; in cron: 15W, LW */
	JobqRruleSet yearday;
	JobqRruleSet weekno;
	JobqRruleSet setpos;
	JobqRruleSet day[7];		/* by weekday, 0: Sunday; number 0: every */
	bool		has_day;
	bool		numbered;		/* some numbers are not 0 */
	bool		either;			/* days of the month or weekdays, as in cron */
	int			week_start;		/* 0 is Sunday */
} JobqRruleDays;

typedef struct JobqRrule
{
	const char *text;			/* of a recurrence rule, for messages */

	/* as given in the text */
	JobqRruleFreq freq;
	int			interval;
	int			count;			/* 0: no limit */
	bool		has_start;
	bool		has_until;
	bool		until_is_utc;
	bool		real_time;		/* any hour: see cron.c */
	int64		start;			/* local seconds since 1970 */
	int64		until;			/* local seconds or, in UTC, seconds */
	uint64		second;			/* bits; 0: not given */
	uint64		minute;
	uint64		hour;
	JobqRruleDays given;

	/*
	 * Derived from these and an anchor by jobq_rrule_begin().  The members
	 * from here on are not compared by jobq_cron_same().
	 */
	bool		ready;
	int64		anchor;			/* local seconds */
	int			anchor_day;		/* Julian day */
	int			anchor_period;
	int64		first;			/* no occurrence is before this local second */
	int64		last;			/* ... nor after; PG_INT64_MIN: there is none */
	uint64		seconds;
	uint64		minutes;
	uint64		hours;
	JobqRrulePeriod by;
	JobqRruleDays days;

	/* the days of the last period, as ascending Julian days */
	int			begin;			/* first day of the period */
	int			end;			/* day after the period */
	int			ndates;
	int			dates[JOBQ_RRULE_DAYS];

	/*
	 * Last result of next_day(): the first day from "asked" on is "answer". A
	 * search from any day between the two therefore has the same result.
	 */
	int			asked;
	int			answer;
} JobqRrule;

#endif							/* JOBQ_SCHEDULE_RRULE_H */
