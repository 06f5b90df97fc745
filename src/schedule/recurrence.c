/*-------------------------------------------------------------------------
 *
 * recurrence.c
 *	  Occurrences of a rule (rrule.h), in local time.
 *
 * A rule has dates, and times of day that are the same on each date.  dates.c computes the
 * dates of one period at a time: first the period in which the search begins, and then the
 * following periods.  This file handles the parts that cover several periods: INTERVAL,
 * COUNT, UNTIL, DTSTART, and weeks.
 *
 * The time of a search is bounded.  A search ends after a hundred years, and any later
 * occurrence is ignored.  No cron expression has a gap of more than 40 years: 29 February on
 * a certain weekday, with the year 2100 between.  COUNT needs a search for each occurrence
 * from the start of the rule, so the number of examined days is limited, too.
 *
 * src/schedule/recurrence.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/datetime.h"

#include "schedule/inner.h"

/* Maximum length of a search, in days. */
#define MAX_AHEAD		36525

/*
 * Maximum number of days that are examined to count occurrences.  A thousand years have
 * fewer days, and take some milliseconds.
 */
#define MAX_COUNTED		500000

/* Result of a search without a match. */
#define NO_DAY			PG_INT32_MAX

static void derive(JobqRrule *rule, int64 anchor);
static int64 last_counted(JobqRrule *rule);
static bool next_occurrence(JobqRrule *rule, int64 from, int64 until,
							int *looked, int64 *match);
static int	next_day(JobqRrule *rule, int from, int *looked);
static int	aligned_day(const JobqRrule *rule, int day);
static int	aligned_period(const JobqRrule *rule, int period);
static bool next_time(const JobqRrule *rule, int from, int *match);

/*
 * Prepare a rule for jobq_rrule_match().  anchor: the start of the rule, in local seconds since
 * 1970.  Without DTSTART, the first occurrence is after the anchor.  The caller must check an
 * UNTIL in UTC.  Takes no locks.  ERROR if the COUNT takes too long to count.
 */
void
jobq_rrule_begin(JobqRrule *rule, int64 anchor)
{
	int			unused;

	if (rule->ready && rule->anchor == anchor)
		return;
	rule->ready = false;
	rule->begin = rule->end = 0;
	rule->asked = rule->answer = PG_INT32_MIN;
	derive(rule, anchor);
	rule->first = rule->has_start ? anchor : anchor + 1;
	rule->last = rule->has_until && !rule->until_is_utc ? rule->until
		: PG_INT64_MAX;

	/* the rule has no time of day */
	if (!next_time(rule, 0, &unused))
		rule->last = PG_INT64_MIN;
	else if (rule->count > 0)
		rule->last = last_counted(rule);
	rule->ready = true;
}

/*
 * Derive the parts that the rule does not specify from the anchor.
 */
static void
derive(JobqRrule *rule, int64 anchor)
{
	JobqRruleDays *days = &rule->days;
	int			second = jobq_rrule_modulo(anchor, SECS_PER_DAY);
	int			year;
	int			month;
	int			mday;

	rule->anchor = anchor;
	rule->anchor_day = (int) ((anchor - second) / SECS_PER_DAY) + UNIX_EPOCH_JDATE;
	j2date(rule->anchor_day, &year, &month, &mday);

	rule->hours = rule->hour != 0 ? rule->hour
		: rule->freq <= JOBQ_RRULE_HOURLY ? ~UINT64CONST(0)
		: UINT64CONST(1) << (second / SECS_PER_HOUR);
	rule->minutes = rule->minute != 0 ? rule->minute
		: rule->freq <= JOBQ_RRULE_MINUTELY ? ~UINT64CONST(0)
		: UINT64CONST(1) << (second / SECS_PER_MINUTE % MINS_PER_HOUR);
	rule->seconds = rule->second != 0 ? rule->second
		: rule->freq <= JOBQ_RRULE_SECONDLY ? ~UINT64CONST(0)
		: UINT64CONST(1) << (second % SECS_PER_MINUTE);

	*days = rule->given;
	rule->by = rule->freq != JOBQ_RRULE_YEARLY ? JOBQ_RRULE_MONTH
		: days->weekno.given ? JOBQ_RRULE_WEEKS : JOBQ_RRULE_YEAR;
	rule->anchor_period = rule->by == JOBQ_RRULE_MONTH
		? year * MONTHS_PER_YEAR + month - 1 : year;
	if (days->has_day || days->monthday.given || days->yearday.given)
		return;
	if (days->weekno.given || rule->freq == JOBQ_RRULE_WEEKLY)
	{
		days->has_day = true;
		jobq_rrule_add(&days->day[j2day(rule->anchor_day)], 0);
	}
	else if (rule->freq >= JOBQ_RRULE_MONTHLY)
	{
		jobq_rrule_add(&days->monthday, mday);
		if (rule->freq == JOBQ_RRULE_YEARLY && !days->month.given)
			jobq_rrule_add(&days->month, month);
	}
}

/*
 * Return the time of the last occurrence allowed by COUNT.
 */
static int64
last_counted(JobqRrule *rule)
{
	int64		at = rule->first - 1;
	int			looked = 0;

	for (int i = 0; i < rule->count; i++)
	{
		int64		match;

		if (!next_occurrence(rule, at + 1, PG_INT64_MAX, &looked, &match))
			break;
		at = match;
		if (looked > MAX_COUNTED)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("COUNT of recurrence rule \"%s\" takes too long to count",
							rule->text),
					 errhint("Give UNTIL instead, or a smaller COUNT.")));
	}
	return at;
}

/*
 * Find the first occurrence of a rule from "from" to before "until", in local seconds since
 * 1970.  Returns false if there is none.  jobq_rrule_begin() must have prepared the rule.
 * Changes the cached state of the rule.  Takes no locks.
 */
bool
jobq_rrule_match(JobqRrule *rule, int64 from, int64 until, int64 *match)
{
	int			looked = 0;

	return next_occurrence(rule, from, until, &looked, match);
}

static bool
next_occurrence(JobqRrule *rule, int64 from, int64 until, int *looked,
				int64 *match)
{
	int			second;
	int			day;

	from = Max(from, rule->first);
	until = rule->last < until ? rule->last + 1 : until;
	if (from >= until)
		return false;
	second = jobq_rrule_modulo(from, SECS_PER_DAY);
	day = (int) ((from - second) / SECS_PER_DAY);
	for (;;)
	{
		int			found = next_day(rule, day + UNIX_EPOCH_JDATE, looked);
		int			time;

		if (found == NO_DAY)
			return false;
		found -= UNIX_EPOCH_JDATE;
		if ((int64) found * SECS_PER_DAY >= until)
			return false;
		if (found > day)
			second = 0;
		if (next_time(rule, second, &time))
		{
			*match = (int64) found * SECS_PER_DAY + time;
			return *match < until;
		}
		day = found + 1;
		second = 0;
	}
}

/*
 * Return the first day of a rule from this day on, or NO_DAY.  Adds the number of examined
 * days to *looked.
 */
static int
find_day(JobqRrule *rule, int from, int *looked)
{
	int			at = from;

	for (;;)
	{
		at = aligned_day(rule, at);
		if (at < rule->begin || at >= rule->end)
		{
			int			period = jobq_rrule_period_of(rule, at);

			CHECK_FOR_INTERRUPTS();
			*looked += jobq_rrule_read(rule, aligned_period(rule, period));
			at = Max(at, rule->begin);
		}
		if (at > from + MAX_AHEAD)
			return NO_DAY;
		for (int i = 0; i < rule->ndates; i++)
			if (rule->dates[i] >= at &&
				aligned_day(rule, rule->dates[i]) == rule->dates[i])
				return rule->dates[i];
		at = rule->end;
	}
}

/*
 * The same, with a cache of one result.
 *
 * With a time zone, a single search becomes many searches, each between two changes of the
 * clocks.  The last result is therefore reused: see "asked" in rrule.h.
 */
static int
next_day(JobqRrule *rule, int from, int *looked)
{
	if (from < rule->asked || from > rule->answer)
	{
		rule->answer = find_day(rule, from, looked);
		rule->asked = from;
	}
	return rule->answer;
}

/*
 * Return the first day from this day on that is a multiple of INTERVAL days or weeks away
 * from the anchor.
 */
static int
aligned_day(const JobqRrule *rule, int day)
{
	int			week;
	int			ahead;

	if (rule->interval == 1)
		return day;
	if (rule->freq == JOBQ_RRULE_DAILY)
		return day + jobq_rrule_modulo(rule->anchor_day - day, rule->interval);
	if (rule->freq != JOBQ_RRULE_WEEKLY)
		return day;

	week = jobq_rrule_week_begin(rule, day);
	ahead = jobq_rrule_modulo((jobq_rrule_week_begin(rule, rule->anchor_day) -
							   week) / 7, rule->interval);
	return ahead == 0 ? day : week + 7 * ahead;
}

/*
 * The same for periods, if INTERVAL counts months or years.  Skips months that the rule does
 * not allow.
 */
static int
aligned_period(const JobqRrule *rule, int period)
{
	int			interval = rule->freq == JOBQ_RRULE_MONTHLY ||
		rule->freq == JOBQ_RRULE_YEARLY ? rule->interval : 1;

	if (interval > 1)
		period += jobq_rrule_modulo(rule->anchor_period - period, interval);
	if (rule->by == JOBQ_RRULE_MONTH && rule->days.month.given)
		for (int i = 0; i < MONTHS_PER_YEAR; i++, period += interval)
			if (rule->days.month.begin[0] >>
				(jobq_rrule_modulo(period, MONTHS_PER_YEAR) + 1) & 1)
				break;
	return period;
}

/*
 * Return the distance from a position to the next bit that is set.  Without such a bit, return
 * the distance to the end.
 */
static int
next_bit(uint64 bits, int from, int end)
{
	bits >>= from;
	return bits == 0 ? end - from : Min(pg_rightmost_one_pos64(bits), end - from);
}

/*
 * Find the first time of day of a rule, from second "from" of the day on.  Returns false if
 * there is none.
 */
static bool
next_time(const JobqRrule *rule, int from, int *match)
{
	int			anchor = jobq_rrule_modulo(rule->anchor, SECS_PER_DAY);
	int			unit = rule->freq == JOBQ_RRULE_HOURLY ? SECS_PER_HOUR
		: rule->freq == JOBQ_RRULE_MINUTELY ? SECS_PER_MINUTE : 1;

	while (from < SECS_PER_DAY)
	{
		int			hour = from / SECS_PER_HOUR;
		int			minute = from / SECS_PER_MINUTE;
		int			ahead = rule->freq > JOBQ_RRULE_HOURLY ? 0
			: jobq_rrule_modulo(anchor / unit - from / unit, rule->interval);

		if (ahead > 0)
			from = (from / unit + ahead) * unit;
		else if ((ahead = next_bit(rule->hours, hour, HOURS_PER_DAY)) > 0)
			from = (hour + ahead) * SECS_PER_HOUR;
		else if ((ahead = next_bit(rule->minutes, minute % MINS_PER_HOUR, MINS_PER_HOUR)) > 0)
			from = (minute + ahead) * SECS_PER_MINUTE;
		else if ((ahead = next_bit(rule->seconds, from % SECS_PER_MINUTE, SECS_PER_MINUTE)) > 0)
			from += ahead;
		else
		{
			*match = from;
			return true;
		}
	}
	return false;
}
