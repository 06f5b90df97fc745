/*-------------------------------------------------------------------------
 *
 * dates.c
 *	  The days of a recurrence rule (rrule.c) in one period.
 *
 * A period is a month, or a year if the rule counts in these.  With BYWEEKNO it is
 * the year of whole weeks, which begins with the first week that has four days in
 * the calendar's year: so a week that crosses into another year belongs to one of
 * them.
 *
 * Each list of a rule says of a day, by itself, whether it is allowed, and the days
 * of the period that all of them allow are those of the rule.  RFC 5545 speaks of
 * lists that expand and others that limit; the outcome is the same.  BYSETPOS
 * chooses from them in the end.  A year takes some microseconds.
 *
 * src/schedule/dates.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/datetime.h"

#include "schedule/inner.h"

/* What a month takes anyhow, in days that are looked at. */
#define COST_MONTH		8

/* A day, and where it is in what can be counted. */
typedef struct Position
{
	int			day;			/* Julian day */
	int			begin;			/* of what it is in */
	int			end;			/* the day after that */
} Position;

static bool allows(const JobqRruleSet *set, Position at, int unit);
static bool has(const JobqRruleSet *set, int from_begin, int from_end);
static bool allows_weekday(const JobqRrule *rule, int weekday,
						   Position in_month, Position in_year);
static void choose(JobqRrule *rule);

/*
 * The period that a Julian day is in: a year, or a month, counted from the first one
 * of year 0.
 */
int
jobq_rrule_period_of(const JobqRrule *rule, int day)
{
	int			year;
	int			month;
	int			mday;

	/* most of the week's days are in the year that the week belongs to */
	if (rule->by == JOBQ_RRULE_WEEKS)
		day = jobq_rrule_week_begin(rule, day) + 3;
	j2date(day, &year, &month, &mday);
	return rule->by == JOBQ_RRULE_MONTH ? year * MONTHS_PER_YEAR + month - 1 : year;
}

/*
 * The first day of a period.
 */
int
jobq_rrule_period_begin(const JobqRrule *rule, int period)
{
	int			month;

	if (rule->by == JOBQ_RRULE_WEEKS)
		return jobq_rrule_week_begin(rule, date2j(period, 1, 4));
	if (rule->by == JOBQ_RRULE_YEAR)
		return date2j(period, 1, 1);
	month = jobq_rrule_modulo(period, MONTHS_PER_YEAR);
	return date2j((period - month) / MONTHS_PER_YEAR, month + 1, 1);
}

/*
 * The first day of the week that a day is in.
 */
int
jobq_rrule_week_begin(const JobqRrule *rule, int day)
{
	return day - jobq_rrule_modulo(j2day(day) - rule->days.week_start, 7);
}

/*
 * Find the days of a period, unless they are those that were found last.  Returns
 * how many days were looked at, or could have been in the time.
 */
int
jobq_rrule_read(JobqRrule *rule, int period)
{
	const JobqRruleDays *days = &rule->days;
	int			begin = jobq_rrule_period_begin(rule, period);
	int			end = jobq_rrule_period_begin(rule, period + 1);
	int			day = begin;
	int			looked = 0;

	if (rule->period == period)
		return 0;
	rule->period = period;
	rule->ndates = 0;
	while (day < end)
	{
		int			year;
		int			month;
		int			mday;
		int			weekday = j2day(day);
		Position	in_month;
		Position	in_year;
		Position	in_period = {day, begin, end};

		j2date(day, &year, &month, &mday);
		in_month.begin = day - mday + 1;
		in_month.end = in_month.begin + day_tab[isleap(year)][month - 1];
		in_year.begin = date2j(year, 1, 1);
		in_year.end = date2j(year + 1, 1, 1);
		looked += COST_MONTH;
		if (days->month.given && !has(&days->month, month, 0))
			day = in_month.end;
		for (; day < Min(end, in_month.end); day++, looked++)
		{
			in_month.day = in_year.day = in_period.day = day;
			if (allows_weekday(rule, weekday, in_month, in_year) &&
				allows(&days->monthday, in_month, 1) &&
				allows(&days->yearday, in_year, 1) &&
				allows(&days->weekno, in_period, 7))
				rule->dates[rule->ndates++] = day;
			weekday = weekday == 6 ? 0 : weekday + 1;
		}
	}
	if (days->setpos.given)
		choose(rule);
	return looked;
}

/*
 * Is the unit of days allowed that a day is in, counted from either end?
 */
static bool
allows(const JobqRruleSet *set, Position at, int unit)
{
	return !set->given || has(set, (at.day - at.begin) / unit + 1,
							  (at.end - 1 - at.day) / unit + 1);
}

/*
 * Is one of these numbers in a set?
 */
static bool
has(const JobqRruleSet *set, int from_begin, int from_end)
{
	return (set->begin[from_begin / 64] >> from_begin % 64 & 1) != 0 ||
		(set->end[from_end / 64] >> from_end % 64 & 1) != 0;
}

/*
 * The nth weekday is that of the year only if the rule is one of years, without
 * months.
 */
static bool
allows_weekday(const JobqRrule *rule, int weekday, Position in_month,
			   Position in_year)
{
	const JobqRruleDays *days = &rule->days;
	const JobqRruleSet *set = &days->day[weekday];

	if (!days->has_day)
		return true;
	return set->given &&
		(has(set, 0, 0) ||
		 allows(set, rule->by == JOBQ_RRULE_YEAR && !days->month.given ? in_year
				: in_month, 7));
}

/*
 * BYSETPOS: those days that it counts, from either end.
 */
static void
choose(JobqRrule *rule)
{
	int			n = 0;

	for (int i = 0; i < rule->ndates; i++)
		if (has(&rule->days.setpos, i + 1, rule->ndates - i))
			rule->dates[n++] = rule->dates[i];
	rule->ndates = n;
}
