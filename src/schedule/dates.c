/*-------------------------------------------------------------------------
 *
 * dates.c
 *	  The days of a rule (rrule.h) in one period.
 *
 * A period is a month, or a year for rules with FREQ=YEARLY.  With BYWEEKNO, the period is
 * a year of whole weeks.  The first week of such a year is the first with at least four
 * days in the calendar year, so each week belongs to exactly one year.
 *
 * Each list of a rule allows or forbids a day independently of the other lists.  The days
 * of the rule are the days of the period allowed by all lists.  RFC 5545 describes lists
 * that expand and lists that limit; the result is the same.  BYSETPOS chooses among the
 * resulting days.  A year takes some microseconds.
 *
 * In a cron expression, a list of days of the month may also contain nearest working days.
 * Two such lists can be alternatives: see "either" in rrule.h.
 *
 * Functions here take no locks and raise no errors.
 *
 * src/schedule/dates.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/datetime.h"

#include "schedule/inner.h"

/* Fixed cost of a month, as a number of examined days. */
#define COST_MONTH		8

/* A day, and the range of days within which it is counted. */
typedef struct Position
{
	int			day;			/* Julian day */
	int			begin;			/* first day of the range */
	int			end;			/* day after the range */
} Position;

static inline bool allows(const JobqRruleSet *set, Position at, int unit);
static inline bool has(const JobqRruleSet *set, int from_begin, int from_end);
static bool allows_day(const JobqRrule *rule, int weekday, Position in_month,
					   Position in_year);
static bool allows_weekday(const JobqRrule *rule, int weekday,
						   Position in_month, Position in_year);
static bool is_nearest_workday(const JobqRruleSet *set, Position in_month,
							   int weekday);
static void choose(JobqRrule *rule);

/*
 * Return the period of a Julian day: a year, or a number of months since January of the
 * year 0.
 */
int
jobq_rrule_period_of(const JobqRrule *rule, int day)
{
	int			year;
	int			month;
	int			mday;

	/* a week belongs to the year with most of its days */
	if (rule->by == JOBQ_RRULE_WEEKS)
		day = jobq_rrule_week_begin(rule, day) + 3;
	j2date(day, &year, &month, &mday);
	return rule->by == JOBQ_RRULE_MONTH ? year * MONTHS_PER_YEAR + month - 1 : year;
}

/*
 * Return the first day of a period, as a Julian day.
 */
static int
period_begin(const JobqRrule *rule, int period)
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
 * Return the first day of the week of a Julian day, as a Julian day.
 */
int
jobq_rrule_week_begin(const JobqRrule *rule, int day)
{
	return day - jobq_rrule_modulo(j2day(day) - rule->days.week_start, 7);
}

/*
 * Compute the days of a period.  Stores the days in rule->dates.  Returns the cost, as a
 * number of examined days.
 */
int
jobq_rrule_read(JobqRrule *rule, int period)
{
	const JobqRruleDays *days = &rule->days;
	int			begin = period_begin(rule, period);
	int			end = period_begin(rule, period + 1);
	int			day = begin;
	int			looked = 0;

	rule->begin = begin;
	rule->end = end;
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
		looked += COST_MONTH;
		if (days->month.given && !has(&days->month, month, 0))
		{
			day = in_month.end;
			continue;
		}
		in_year.begin = date2j(year, 1, 1);
		in_year.end = date2j(year + 1, 1, 1);
		for (; day < Min(end, in_month.end); day++, looked++)
		{
			in_month.day = in_year.day = in_period.day = day;
			if (allows_day(rule, weekday, in_month, in_year) &&
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
 * Return true if the list allows the unit of the day.  unit: length of the unit in days.
 * Units are counted from both ends of the range.
 */
static inline bool
allows(const JobqRruleSet *set, Position at, int unit)
{
	return !set->given || has(set, (at.day - at.begin) / unit + 1,
							  (at.end - 1 - at.day) / unit + 1);
}

/*
 * Return true if the set contains one of the two numbers.
 */
static inline bool
has(const JobqRruleSet *set, int from_begin, int from_end)
{
	return (set->begin[from_begin / 64] >> from_begin % 64 & 1) != 0 ||
		(set->end[from_end / 64] >> from_end % 64 & 1) != 0;
}

/*
 * Return true if the lists of weekdays and of days of the month allow the day.
 */
static bool
allows_day(const JobqRrule *rule, int weekday, Position in_month,
		   Position in_year)
{
	const JobqRruleDays *days = &rule->days;
	bool		by_monthday = allows(&days->monthday, in_month, 1) ||
		(days->nearest_workday.given &&
		 is_nearest_workday(&days->nearest_workday, in_month, weekday));

	if (by_monthday == days->either)
		return by_monthday;		/* whether or not the weekday is allowed */
	return allows_weekday(rule, weekday, in_month, in_year);
}

/*
 * Return true if BYDAY allows the day.  The nth weekday is counted within the year if the
 * rule has FREQ=YEARLY without BYMONTH and BYWEEKNO.  Otherwise, it is counted within the
 * month.
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
 * Return true if the day is the working day of its month that is nearest to one of the given
 * days.  A Friday is nearest to the Saturday, and a Monday to the Sunday.  At the ends of the
 * month, a Friday is nearest to the Sunday, too, and a Monday to the Saturday.
 */
static bool
is_nearest_workday(const JobqRruleSet *set, Position in_month, int weekday)
{
	int			from = in_month.day;
	int			to = in_month.day;

	if (weekday == 0 || weekday == 6)
		return false;
	if (weekday == 1)
		from -= from - 2 == in_month.begin ? 2 : 1;
	if (weekday == 5)
		to += to + 3 == in_month.end ? 2 : 1;
	to = Min(to, in_month.end - 1);
	for (in_month.day = Max(from, in_month.begin); in_month.day <= to; in_month.day++)
		if (allows(set, in_month, 1))
			return true;
	return false;
}

/*
 * Apply BYSETPOS: keep only the days at the given positions, counted from either end.
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
