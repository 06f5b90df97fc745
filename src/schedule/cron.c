/*-------------------------------------------------------------------------
 *
 * cron.c
 *	  When a schedule is due: the calendar behind a cron expression.
 *
 * The fields of an expression (expression.c) are the local time of a time zone; so
 * is what a recurrence rule says (recurrence.c).
 * When the clocks change, it is as in the cron of the larger distributions:
 *
 * - An entry with an asterisk for the hour (or all 24 of them), and a rule of
 *	 hours, minutes or seconds without BYHOUR, follows real time: it is due
 *	 whenever the local clock shows a time that matches, so not in an hour that
 *	 is left out, and twice in one that comes twice.
 * - Any other entry is meant for a time of day: it is due once if that comes
 *	 twice, the first time; and if it is left out, right after the gap.  Times
 *	 that fall together there are one.
 *
 * Both follow from one walk along the periods of constant offset from UTC:
 * jobq_cron_next().
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

/* After so many seconds the calendar repeats itself. */
#define CYCLE		(DAY_SECONDS * 146097)

/* No time change spans more than that. */
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
 * The time zone of that name.  Raises an error if there is none.
 */
pg_tz *
jobq_cron_zone(const char *name)
{
	static const char *const old_names[] = {
		"GMT0", "GMT+0", "GMT-0", "EST5EDT", "CST6CDT", "MST7MDT", "PST8PDT"
	};
	pg_tz	   *zone = name[0] != '\0' ? pg_tzset(name) : NULL;

	/*
	 * PostgreSQL reads UTC+2 as a rule in the style of POSIX: two hours to
	 * the west.  Nobody means that.
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
 * Whole seconds since 1970.
 */
static int64
floor_seconds(TimestampTz at)
{
	return at / USECS_PER_SEC - (at % USECS_PER_SEC < 0) + EPOCH_DIFF;
}

/*
 * Seconds since 1970, as the local clock shows them.
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
 * The first tick after a time, or infinity if there is none.  The anchor is
 * for intervals, and for recurrence rules without DTSTART.  Raises an error if the
 * COUNT of such a rule takes too long to count.
 */
TimestampTz
jobq_cron_next(const JobqCron *cron, pg_tz *zone, TimestampTz anchor,
			   TimestampTz after)
{
	int64		now;			/* "after", in seconds since 1970 */
	int64		horizon;
	int64		begin;
	int64		done = PG_INT64_MIN;	/* local times before were passed */

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

	/* early enough to know of a time that comes for the second time */
	begin = now - LONGEST_CHANGE;
	while (begin < horizon)
	{
		pg_time_t	at = begin;
		pg_time_t	boundary;
		long int	offset;
		long int	next_offset;
		int			is_dst;
		int			next_is_dst;
		int64		end;
		int64		from;
		int64		match;
		int			found;
		bool		gap = false;

		found = pg_next_dst_boundary(&at, &offset, &is_dst, &boundary,
									 &next_offset, &next_is_dst, zone);
		if (found < 0)
			break;
		end = found > 0 ? Min(boundary, horizon) : horizon;

		/* from "begin" to "end" the offset is the same */
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
 * The last tick not before "from", which is one itself, and not after "until".
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

	/* not all ticks from then on, but those of the last minute, hour ... */
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
 * Does it match at all, in any year?
 */
bool
jobq_cron_ever(const JobqCron *cron)
{
	int64		unused;

	return find_match(cron, 0, CYCLE, &unused);
}

/*
 * The first local time from "from" to before "until" that matches, in seconds
 * since 1970.
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
 * Is the schedule due on this day?  Lists of days and of weekdays have values, and
 * what depends on the month.
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
 * Is this the working day of the month that is nearest to one of these days?  That
 * is the day itself, or the Friday before it, or the Monday after it, unless
 * those are in another month.
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
 * The first time of day that matches, from second "from" of the day on.
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
