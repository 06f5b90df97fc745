/*-------------------------------------------------------------------------
 *
 * cron.c
 *	  Cron expressions and intervals: when a schedule is due.
 *
 *	minute hour day month weekday			as in crontab(5)
 *	second minute hour day month weekday
 *	@hourly, @daily, @weekly, @monthly, @yearly
 *	every 90 seconds						counted from an anchor, in real time
 *
 * A field is *, a value, a range 1-5, each with a step if it is followed by
 * /2, or a list of these.  If both day and weekday are restricted (do not
 * begin with an asterisk), either is enough.
 *
 * The fields are the local time of a time zone.  When the clocks change, it
 * is as in the cron of the larger distributions:
 *
 * - An entry with an asterisk for the hour (or all 24 of them) follows real
 *	 time: it is due whenever the local clock shows a time that matches, so not
 *	 in an hour that is left out, and twice in one that comes twice.
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

#include <ctype.h>

#include "mb/pg_wchar.h"
#include "utils/datetime.h"
#include "utils/timestamp.h"

#include "schedule/schedule.h"

#define EPOCH_DIFF	(INT64CONST(86400) * (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE))
#define DAY_SECONDS			INT64CONST(86400)

/* After so many seconds the calendar repeats itself. */
#define CYCLE		(DAY_SECONDS * 146097)

/* No time change spans more than that. */
#define LONGEST_CHANGE	(2 * DAY_SECONDS)

/* bounds of an interval, in milliseconds */
#define MIN_INTERVAL	1000
#define MAX_INTERVAL	(DAY_SECONDS * 1000 * 36500)

/* The fields, in order; an expression of five begins with the minute. */
enum
{
	FIELD_SECOND,
	FIELD_MINUTE,
	FIELD_HOUR,
	FIELD_DAY,
	FIELD_MONTH,
	FIELD_WEEKDAY,
	NFIELDS
};

typedef struct Field
{
	const char *name;
	int			lowest;
	int			highest;
	const char *names;			/* of its values, three letters each */
	const char *allowed;
} Field;

static const Field fields[NFIELDS] = {
	{"second", 0, 59, NULL, "0 to 59"},
	{"minute", 0, 59, NULL, "0 to 59"},
	{"hour", 0, 23, NULL, "0 to 23"},
	{"day", 1, 31, NULL, "1 to 31"},
	{"month", 1, 12, "janfebmaraprmayjunjulaugsepoctnovdec",
	"1 to 12 or jan to dec"},
	{"weekday", 0, 7, "sunmontuewedthufrisat",
	"0 to 7, where 0 and 7 are Sunday, or sun to sat"},
};

/* The expression that is being parsed, for error messages. */
typedef struct Parse
{
	const char *text;
	int			nfields;
	int			number;			/* of the field within the expression, from 1 */
	const Field *field;
	const char *content;
} Parse;

static void parse_interval(const char *text, const char *at, JobqCron *cron);
static uint64 parse_field(Parse *parse, bool *any);
static int	take_value(Parse *parse, const char **at, bool *sunday);
static bool find_match(const JobqCron *cron, int64 from, int64 until,
					   int64 *match);
static bool day_matches(const JobqCron *cron, int month, int day, int weekday);
static bool find_time(const JobqCron *cron, int from, int *match);

pg_noreturn static void invalid_field(const Parse *parse, const char *problem,
									  const char *hint);
pg_noreturn static void invalid(const char *text, const char *problem,
								const char *hint);

static void
invalid(const char *text, const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid cron expression \"%s\": %s", text, problem),
			 errhint("%s", hint)));
}

/*
 * The hint tells what the field allows, after a more special one.
 */
static void
invalid_field(const Parse *parse, const char *problem, const char *hint)
{
	invalid(parse->text, problem,
			psprintf("%s%sField %d, the %s, allows %s, alone, as a range (%s), a list (%s), or with a step (%s); or *.",
					 hint ? hint : "", hint ? " " : "",
					 parse->number, parse->field->name, parse->field->allowed,
					 "1-5", "1,3,5", "*/2"));
}

/*
 * Parse an expression.  Raises an error if it is malformed, or is never due.
 */
void
jobq_cron_parse(const char *text, JobqCron *cron)
{
	static const struct
	{
		const char *name;
		const char *meaning;
	}			macros[] = {
		{"@yearly", "0 0 1 1 *"}, {"@annually", "0 0 1 1 *"},
		{"@monthly", "0 0 1 * *"}, {"@weekly", "0 0 * * 0"},
		{"@daily", "0 0 * * *"}, {"@midnight", "0 0 * * *"},
		{"@hourly", "0 * * * *"}
	};
	static const char *const usage =
		"Write [second] minute hour day month weekday, such as '30 4 * * mon-fri'; or @hourly, @daily, @weekly, @monthly, @yearly; or 'every 90 seconds'.";
	Parse		parse = {0};
	char	   *copy = pstrdup(text);
	char	   *content[NFIELDS];
	char	   *at;
	uint64		bits[NFIELDS];
	bool		any[NFIELDS];
	int64		unused;

	parse.text = text;

	memset(cron, 0, sizeof(JobqCron));
	while (isspace((unsigned char) *copy))
		copy++;
	for (at = copy + strlen(copy); at > copy && isspace((unsigned char) at[-1]);)
		*--at = '\0';

	if (pg_strncasecmp(copy, "every", 5) == 0 &&
		!isalpha((unsigned char) copy[5]))
	{
		parse_interval(text, copy + 5, cron);
		return;
	}
	if (*copy == '@')
	{
		const char *meaning = NULL;

		for (int i = 0; i < (int) lengthof(macros); i++)
			if (pg_strcasecmp(copy, macros[i].name) == 0)
				meaning = macros[i].meaning;
		if (meaning == NULL)
			invalid(text, psprintf("\"%s\" is not known", copy), usage);
		copy = pstrdup(meaning);
	}

	for (at = copy; *at != '\0';)
	{
		if (parse.nfields < NFIELDS)
			content[parse.nfields] = at;
		parse.nfields++;
		while (*at != '\0' && !isspace((unsigned char) *at))
			at++;
		while (isspace((unsigned char) *at))
			*at++ = '\0';
	}
	if (parse.nfields != NFIELDS && parse.nfields != NFIELDS - 1)
		invalid(text, psprintf("it has %d %s, not 5 or 6", parse.nfields,
							   parse.nfields == 1 ? "field" : "fields"),
				usage);

	bits[FIELD_SECOND] = 1;
	for (int i = 0; i < parse.nfields; i++)
	{
		int			field = i + NFIELDS - parse.nfields;

		parse.number = i + 1;
		parse.field = &fields[field];
		parse.content = content[i];
		bits[field] = parse_field(&parse, &any[field]);
	}
	cron->second = bits[FIELD_SECOND];
	cron->minute = bits[FIELD_MINUTE];
	cron->hour = bits[FIELD_HOUR];
	cron->day = bits[FIELD_DAY];
	cron->month = bits[FIELD_MONTH];
	cron->weekday = (bits[FIELD_WEEKDAY] | bits[FIELD_WEEKDAY] >> 7) & 0x7f;
	cron->any_day = any[FIELD_DAY];
	cron->any_weekday = any[FIELD_WEEKDAY];
	cron->real_time = any[FIELD_HOUR] ||
		cron->hour == (UINT64CONST(1) << 24) - 1;

	if (!find_match(cron, 0, CYCLE, &unused))
		invalid(text, "it never matches",
				"There is no such day in any of the months.");
}

/*
 * "every", followed by an interval.
 */
static void
parse_interval(const char *text, const char *at, JobqCron *cron)
{
	static const char *const usage =
		"Write 'every 90 seconds', 'every 5 minutes', 'every 1 hour 30 minutes', or another interval.";
	static const char *const stops[] = {NULL};
	char	   *duration = jobq_duration_cut(&at, stops);
	const char *problem;

	problem = *at != '\0' ? psprintf("\"%s\" cannot follow an interval", at)
		: jobq_duration_parse(duration, MIN_INTERVAL, MAX_INTERVAL,
							  &cron->interval);
	if (problem != NULL)
		invalid(text, problem, usage);
}

/*
 * The bits of a field.
 */
static uint64
parse_field(Parse *parse, bool *any)
{
	const Field *field = parse->field;
	const char *at = parse->content;
	uint64		bits = 0;

	*any = *at == '*';
	for (;;)
	{
		int			low;
		int			high;
		int			step = 1;
		bool		range = true;
		bool		unused;

		if (*at == '*')
		{
			low = field->lowest;
			high = field->highest - (field == &fields[FIELD_WEEKDAY]);
			at++;
		}
		else
		{
			bool		sunday = false;

			low = high = take_value(parse, &at, &unused);
			range = *at == '-';
			if (range)
			{
				at++;
				high = take_value(parse, &at, &sunday);
				if (sunday && low > 0)
					high = 7;
				if (high < low)
					invalid_field(parse,
								  psprintf("%s range \"%s\" goes backwards",
										   field->name, parse->content),
								  psprintf("Write it as two: %d-%d,%d-%d.",
										   low, field->highest -
										   (field == &fields[FIELD_WEEKDAY]),
										   field->lowest, high));
			}
		}
		if (*at == '/')
		{
			const char *from = ++at;

			for (step = 0; isdigit((unsigned char) *at) && step < 1000; at++)
				step = step * 10 + (*at - '0');
			if (at == from || step == 0)
				invalid_field(parse,
							  psprintf("%s step \"/%s\" is not a number above 0",
									   field->name, from), NULL);
			if (!range)
				invalid_field(parse,
							  psprintf("%s \"%s\" has a step but no range",
									   field->name, parse->content),
							  psprintf("From %d on is %d-%d/%d.", low, low,
									   field->highest, step));
			if (step > high - low)
				invalid_field(parse,
							  psprintf("%s step %d is larger than its range",
									   field->name, step),
							  "A step begins anew with each range; an interval is written 'every 90 minutes'.");
		}
		for (int i = low; i <= high; i += step)
			bits |= UINT64CONST(1) << i;
		if (*at == '\0')
			return bits;
		if (*at != ',')
			invalid_field(parse, psprintf("%s \"%s\" could not be read from \"%s\" on",
										  field->name, parse->content, at),
						  NULL);
		at++;
	}
}

/*
 * One value; "sunday" if it was given as sun, which can end a week as well.
 */
static int
take_value(Parse *parse, const char **at, bool *sunday)
{
	const Field *field = parse->field;
	const char *from = *at;
	int			value = 0;

	*sunday = false;
	if (isdigit((unsigned char) *from))
	{
		for (; isdigit((unsigned char) **at); (*at)++)
			value = Min(value * 10 + (**at - '0'), 100000);
		if (value < field->lowest || value > field->highest)
			invalid_field(parse, psprintf("%s %.*s is out of range",
										  field->name, (int) (*at - from),
										  from), NULL);
		return value;
	}
	while (isalpha((unsigned char) **at))
		(*at)++;
	if (field->names != NULL && *at - from == 3)
	{
		for (value = 0; field->names[value * 3] != '\0'; value++)
		{
			if (pg_strncasecmp(from, field->names + value * 3, 3) == 0)
			{
				*sunday = field == &fields[FIELD_WEEKDAY] && value == 0;
				return value + field->lowest;
			}
		}
	}
	if (*from == '\0' || *from == ',' || *from == '-' || *from == '/')
		invalid_field(parse, psprintf("%s \"%s\" lacks a value", field->name,
									  parse->content), NULL);
	if (*at == from)
		*at += pg_mblen(from);
	invalid_field(parse, psprintf("%s \"%.*s\" is not known", field->name,
								  (int) (*at - from), from), NULL);
}

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
 * The first tick after a time, or infinity if there is none.  The anchor is
 * for intervals.
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

	now = after / USECS_PER_SEC - (after % USECS_PER_SEC < 0) + EPOCH_DIFF;
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
 * The first local time from "from" to before "until" that matches, in seconds
 * since 1970.
 */
static bool
find_match(const JobqCron *cron, int64 from, int64 until, int64 *match)
{
	int64		day = from / DAY_SECONDS - (from % DAY_SECONDS < 0);
	int			seconds = (int) (from - day * DAY_SECONDS);

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
		if (day_matches(cron, month, mday,
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

static bool
day_matches(const JobqCron *cron, int month, int day, int weekday)
{
	bool		by_day = (cron->day & UINT64CONST(1) << day) != 0;
	bool		by_weekday = (cron->weekday & UINT64CONST(1) << weekday) != 0;

	if (cron->any_day || cron->any_weekday)
		return by_day && by_weekday;
	return by_day || by_weekday;
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
