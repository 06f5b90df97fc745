/*-------------------------------------------------------------------------
 *
 * rrule.h
 *	  A recurrence rule, as rrule.c reads it, and recurrence.c and dates.c use it.
 *
 * src/schedule/rrule.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULE_RRULE_H
#define JOBQ_SCHEDULE_RRULE_H

/* No number in a rule of days is larger, and no period has more days. */
#define JOBQ_RRULE_HIGHEST	366
#define JOBQ_RRULE_DAYS		(53 * 7)

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

/* Its dates are looked for by the month, the year, or the year of whole weeks. */
typedef enum JobqRrulePeriod
{
	JOBQ_RRULE_MONTH,
	JOBQ_RRULE_YEAR,
	JOBQ_RRULE_WEEKS
} JobqRrulePeriod;

/* The numbers of a part, as bits: 1 is the first, and from the end the last. */
typedef struct JobqRruleSet
{
	bool		given;
	uint64		begin[JOBQ_RRULE_HIGHEST / 64 + 1];
	uint64		end[JOBQ_RRULE_HIGHEST / 64 + 1];
} JobqRruleSet;

/* What the dates depend on. */
typedef struct JobqRruleDays
{
	JobqRruleSet month;
	JobqRruleSet monthday;
	JobqRruleSet yearday;
	JobqRruleSet weekno;
	JobqRruleSet setpos;
	JobqRruleSet day[7];		/* which ones, from Sunday; 0: each */
	bool		has_day;
	bool		numbered;		/* some are not 0 */
	int			week_start;		/* 0 is Sunday */
} JobqRruleDays;

typedef struct JobqRrule
{
	/* what it says */
	const char *text;
	JobqRruleFreq freq;
	int			interval;
	int			count;			/* 0: none */
	bool		has_start;
	bool		has_until;
	bool		until_is_utc;
	int64		start;			/* local seconds since 1970 */
	int64		until;			/* the same, or in UTC */
	uint64		second;			/* bits; 0: not given */
	uint64		minute;
	uint64		hour;
	JobqRruleDays given;

	/* what that means with an anchor: recurrence.c */
	bool		ready;
	int64		anchor;			/* local seconds */
	int			anchor_day;		/* as a Julian day */
	int			anchor_period;
	int64		first;			/* no occurrence before, or after */
	int64		last;
	uint64		seconds;
	uint64		minutes;
	uint64		hours;
	JobqRrulePeriod by;
	JobqRruleDays days;

	/* the days of the last period, as Julian days in order */
	int			period;
	int			ndates;
	int			dates[JOBQ_RRULE_DAYS];

	/* the last answer: there is no day from "asked" to before it */
	int			asked;
	int			answer;
} JobqRrule;

#endif							/* JOBQ_SCHEDULE_RRULE_H */
