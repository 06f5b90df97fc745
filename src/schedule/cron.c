/*-------------------------------------------------------------------------
 *
 * cron.c
 *	  Ticks of schedules: from the local times of a rule to times.
 *
 * The times of a rule (recurrence.c) are local times in a time zone.  When the clocks
 * change, jobq does the same as the cron of most distributions:
 *
 * - A cron expression with an asterisk or all 24 values for the hour follows real
 *	 time.  The same applies to a recurrence rule of hours, minutes or seconds without
 *	 BYHOUR.  Such a rule is due whenever the local clock shows a matching time: not
 *	 in an hour that is left out, and twice in an hour that is repeated.
 * - Any other rule is due at a time of day.  If the time is repeated, the entry
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

/* Maximum length of a search, in seconds: 400 years, because a rule may start in the future. */
#define MAX_AHEAD		(DAY_SECONDS * 146463)

/* No change of a time zone's offset spans more than this number of seconds. */
#define LONGEST_CHANGE	(2 * DAY_SECONDS)

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
 * rule.  ERROR if the COUNT of a rule takes too long to count.
 */
TimestampTz
jobq_cron_next(const JobqCron *cron, pg_tz *zone, TimestampTz anchor,
			   TimestampTz after)
{
	JobqRrule  *rule = cron->rule;

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

	jobq_rrule_begin(rule, rule->has_start ? rule->start
					 : to_local(floor_seconds(anchor), zone));
	now = floor_seconds(after);
	horizon = now + MAX_AHEAD;

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
		if (!rule->real_time)
		{
			gap = done != PG_INT64_MIN && begin > now &&
				jobq_rrule_match(rule, done, begin + offset, &match);
			from = Max(from, done);
			done = Max(done, end + offset);
		}
		if (gap)
			match = begin;
		else if (jobq_rrule_match(rule, from, end + offset, &match))
			match -= offset;
		else
		{
			begin = end;
			continue;
		}
		if (rule->until_is_utc && match > rule->until)
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
