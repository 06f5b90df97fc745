/*-------------------------------------------------------------------------
 *
 * cron.c
 *	  Ticks of schedules: the calendar of cron expressions.
 *
 * The fields of an expression (expression.c) and of a recurrence rule (recurrence.c) are
 * local times in a time zone.  When the clocks change, the rules are those of the cron of
 * most distributions:
 *
 * - An entry with an asterisk or all 24 values for the hour follows real time.
 *	 The same applies to a rule of hours, minutes or seconds without BYHOUR.
 *	 Such an entry is due whenever the local clock shows a matching time: not in
 *	 an hour that is left out, and twice in an hour that is repeated.
 * - Any other entry is due at a time of day.  If the time is repeated, the entry
 *	 is due once, the first time.  If the time is left out, the entry is due
 *	 right after the gap.  Several times in a gap make a single tick.
 *
 * Both follow from a single iteration over the periods of constant offset from UTC in
 * jobq_cron_next().  Functions here take no locks.
 *
 * src/schedule/cron.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/datetime.h"
#include "utils/timestamp.h"

#include "schedule/inner.h"

#define EPOCH_DIFF	(INT64CONST(86400) * (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE))
#define DAY_SECONDS			INT64CONST(86400)

/* The calendar repeats after this number of seconds. */
#define CYCLE		(DAY_SECONDS * 146097)

/* No change of a time zone's offset spans more than this number of seconds. */
#define LONGEST_CHANGE	(2 * DAY_SECONDS)

static int64 floor_seconds(TimestampTz at);
static int64 to_local(int64 at, pg_tz *zone);
static bool find_match(const JobqCron *cron, int64 from, int64 until,
					   int64 *match);
static bool day_matches(const JobqCron *cron, int year, int month, int day,
						int weekday);
static bool is_nearest_workday(uint64 days, int day, int weekday, int last);
static bool find_time(const JobqCron *cron, int from, int *match);

/*
 * Return the time zone with this name.  ERROR if the name is unknown or is a POSIX rule.
 */
pg_tz *
jobq_cron_zone(const char *name)
{
	static const char *const old_names[] = {
		"GMT0", "GMT+0", "GMT-0", "EST5EDT", "CST6CDT", "MST7MDT", "PST8PDT"
	};
	pg_tz	   *zone = name[0] != '\0' ? pg_tzset(name) : NULL;

	/*
	 * PostgreSQL reads UTC+2 as a POSIX rule: two hours to the west.  Users
	 * expect the opposite, so these names are rejected.
	 */
	if (zone != NULL && strchr(name, '/') == NULL &&
		strpbrk(name, "0123456789<") != NULL)
	{
		bool		known = false;

		for (int i = 0; i < (int) lengthof(old_names) && !known; i++)
			known = pg_strcasecmp(name, old_names[i]) == 0;
		if (!known)
			zone = NULL;
	}
	if (zone == NULL || !pg_tz_acceptable(zone))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("time zone \"%s\" is not known", name),
				 errhint("Give a name of pg_timezone_names, such as Europe/Madrid or UTC.")));
	return zone;
}

/*
 * Convert to seconds since 1970, rounded down.
 */
static int64
floor_seconds(TimestampTz at)
{
	return at / USECS_PER_SEC - (at % USECS_PER_SEC < 0) + EPOCH_DIFF;
}

/*
 * Convert seconds since 1970 in UTC to local seconds since 1970.
 */
static int64
to_local(int64 at, pg_tz *zone)
{
	pg_time_t	time = at;
	pg_time_t	boundary;
	long int	offset;
	long int	next_offset;
	int			is_dst;
	int			next_is_dst;

	if (pg_next_dst_boundary(&time, &offset, &is_dst, &boundary, &next_offset,
							 &next_is_dst, zone) < 0)
		offset = 0;
	return at + offset;
}

/*
 * Return the first tick after a time, or infinity if there is none.  anchor: the start of
 * intervals, and of recurrence rules without DTSTART.  May change the cached state of the
 * recurrence rule.  ERROR if the COUNT of a rule takes too long to count.
 */
TimestampTz
jobq_cron_next(const JobqCron *cron, pg_tz *zone, TimestampTz anchor,
			   TimestampTz after)
{
	/* seconds since 1970 in UTC */
	int64		now;			/* "after" */
	int64		horizon;		/* the search ends here */
	int64		begin;			/* of the current period of constant offset */

	/* local: times before this were covered by earlier periods */
	int64		done = PG_INT64_MIN;

	if (TIMESTAMP_NOT_FINITE(after))
		return DT_NOEND;
	if (cron->interval > 0)
	{
		int64		ticks = after < anchor ? 0
			: (after - anchor) / cron->interval;

		if (anchor + ticks * cron->interval > END_TIMESTAMP - 1 - cron->interval)
			return DT_NOEND;
		return anchor + (ticks + 1) * cron->interval;
	}

	if (cron->rrule != NULL)
		jobq_rrule_begin(cron->rrule, to_local(floor_seconds(anchor), zone));
	now = floor_seconds(after);
	horizon = now + CYCLE + 366 * DAY_SECONDS;

	/* early enough to detect a repeated local time */
	begin = now - LONGEST_CHANGE;
	while (begin < horizon)
	{
		pg_time_t	at = begin;
		pg_time_t	boundary;
		long int	offset;
		long int	next_offset;
		int			is_dst;
		int			next_is_dst;
		int64		end;		/* of the period, in UTC */
		int64		from;		/* local */
		int64		match;		/* local, then UTC */
		int			found;
		bool		gap = false;	/* a tick is due in the local times left
									 * out before this period */

		found = pg_next_dst_boundary(&at, &offset, &is_dst, &boundary,
									 &next_offset, &next_is_dst, zone);
		if (found < 0)
			break;
		end = found > 0 ? Min(boundary, horizon) : horizon;

		/* the offset is constant from "begin" to "end" */
		from = Max(begin, now + 1) + offset;
		if (!cron->real_time)
		{
			gap = done != PG_INT64_MIN && begin > now &&
				find_match(cron, done, begin + offset, &match);
			from = Max(from, done);
			done = Max(done, end + offset);
		}
		if (gap)
			match = begin;
		else if (find_match(cron, from, end + offset, &match))
			match -= offset;
		else
		{
			begin = end;
			continue;
		}
		if (cron->rrule != NULL && cron->rrule->until_is_utc &&
			match > cron->rrule->until)
			break;
		match -= EPOCH_DIFF;
		if (match > (END_TIMESTAMP - 1) / USECS_PER_SEC)
			break;
		return match * USECS_PER_SEC;
	}
	return DT_NOEND;
}

/*
 * Return the last tick from "from" to "until", both included.  "from" must be a tick.
 * anchor, changes of state and errors: as for jobq_cron_next().
 */
TimestampTz
jobq_cron_last(const JobqCron *cron, pg_tz *zone, TimestampTz anchor,
			   TimestampTz from, TimestampTz until)
{
	static const int64 spans[] = {
		USECS_PER_MINUTE, USECS_PER_HOUR, USECS_PER_DAY, 32 * USECS_PER_DAY,
		400 * USECS_PER_DAY
	};
	TimestampTz last = from;
	TimestampTz next;

	if (cron->interval > 0)
		return Max(from, from + (until - from) / cron->interval * cron->interval);

	/* skip most ticks: try the last minute, the last hour, and so on */
	for (int i = 0; i < (int) lengthof(spans) && last == from; i++)
	{
		if (until - spans[i] <= from)
			break;
		next = jobq_cron_next(cron, zone, anchor, until - spans[i]);
		if (next <= until)
			last = next;
	}
	while ((next = jobq_cron_next(cron, zone, anchor, last)) <= until)
		last = next;
	return last;
}

/*
 * Return true if a cron expression is due at all, in any year.  Does not apply to intervals
 * and recurrence rules.  Takes no locks.
 */
bool
jobq_cron_ever(const JobqCron *cron)
{
	int64		unused;

	return find_match(cron, 0, CYCLE, &unused);
}

/*
 * Find the first matching local time from "from" to before "until", in local seconds since
 * 1970.  Returns false if there is none.
 */
static bool
find_match(const JobqCron *cron, int64 from, int64 until, int64 *match)
{
	int64		day = from / DAY_SECONDS - (from % DAY_SECONDS < 0);
	int			seconds = (int) (from - day * DAY_SECONDS);

	if (cron->rrule != NULL)
		return jobq_rrule_match(cron->rrule, from, until, match);
	while (day * DAY_SECONDS < until)
	{
		int			year;
		int			month;
		int			mday;
		int			time;

		j2date((int) day + UNIX_EPOCH_JDATE, &year, &month, &mday);
		if ((cron->month & UINT64CONST(1) << month) == 0)
		{
			day = date2j(year + month / 12, month % 12 + 1, 1) -
				UNIX_EPOCH_JDATE;
			seconds = 0;
			continue;
		}
		if (day_matches(cron, year, month, mday,
						j2day((int) day + UNIX_EPOCH_JDATE)) &&
			find_time(cron, seconds, &time))
		{
			*match = day * DAY_SECONDS + time;
			return *match < until;
		}
		day++;
		seconds = 0;
	}
	return false;
}

/*
 * Return true if the expression is due on this day.  Lists of days and of weekdays contain
 * values, and items that depend on the month.
 */
static bool
day_matches(const JobqCron *cron, int year, int month, int day, int weekday)
{
	int			last = day_tab[isleap(year)][month - 1];
	int			nth = cron->nth_weekday[weekday];
	bool		by_day = (cron->day & UINT64CONST(1) << day) != 0 ||
		(cron->before_end & UINT64CONST(1) << (last - day)) != 0 ||
		(cron->nearest_workday != 0 &&
		 is_nearest_workday(cron->nearest_workday, day, weekday, last));
	bool		by_weekday = (cron->weekday & UINT64CONST(1) << weekday) != 0 ||
		(nth & 1 << ((day - 1) / 7 + 1)) != 0 ||
		((nth & 1) != 0 && day + 7 > last);

	if (cron->any_day || cron->any_weekday)
		return by_day && by_weekday;
	return by_day || by_weekday;
}

/*
 * Return true if this day is the working day of the month that is nearest to one of the
 * given days.  The nearest working day is the day itself, the Friday before, or the Monday
 * after, unless these are in another month.  days: bit 0 is the last day of the month.
 */
static bool
is_nearest_workday(uint64 days, int day, int weekday, int last)
{
	if (days & 1)
		days |= UINT64CONST(1) << last;
	if (weekday == 0 || weekday == 6)
		return false;
	if ((days & UINT64CONST(1) << day) != 0)
		return true;
	if (weekday == 5)
		return (day < last && (days & UINT64CONST(1) << (day + 1)) != 0) ||
			(day + 2 == last && (days & UINT64CONST(1) << last) != 0);
	return weekday == 1 &&
		((day > 1 && (days & UINT64CONST(1) << (day - 1)) != 0) ||
		 (day == 3 && (days & UINT64CONST(1) << 1) != 0));
}

/*
 * Find the first matching time of day, from second "from" of the day on.  Returns false if
 * there is none.
 */
static bool
find_time(const JobqCron *cron, int from, int *match)
{
	for (int hour = from / 3600; hour < 24; hour++)
	{
		if ((cron->hour & UINT64CONST(1) << hour) == 0)
			continue;
		for (int minute = Max(from - hour * 3600, 0) / 60; minute < 60; minute++)
		{
			int			start = hour * 3600 + minute * 60;

			if ((cron->minute & UINT64CONST(1) << minute) == 0)
				continue;
			for (int second = Max(from - start, 0); second < 60; second++)
			{
				if (cron->second & UINT64CONST(1) << second)
				{
					*match = start + second;
					return true;
				}
			}
		}
	}
	return false;
}
