/*-------------------------------------------------------------------------
 *
 * expression.c
 *	  Parsing of cron expressions and intervals; recurrence rules are passed on to rrule.c.
 *
 *	minute hour day month weekday			as in crontab(5)
 *	second minute hour day month weekday
 *	@hourly, @daily, @weekly, @monthly, @yearly
 *	every 90 seconds, @every 90s			counted from an anchor, in real time
 *	RRULE:FREQ=MONTHLY;BYDAY=-1FR			as in iCalendar (rrule.c)
 *
 * A field is a list of items, separated by commas.  An item is *, a value, or a range such
 * as 1-5.  A step such as /2 may follow an asterisk or a range.  A list of days may also
 * contain these items:
 *
 *	L, L-2			the last day of the month, two days before it
 *	15W, LW			the working day (Monday to Friday) nearest to the 15th, and to the
 *					last day; always in the same month
 *
 * A list of weekdays may also contain these items:
 *
 *	fri#2, friL		the second Friday of the month, the last Friday
 *
 * The fields day and weekday may also be ?, with the meaning of *.  If both are restricted
 * (do not begin with * or ?), a day matches if either field matches.
 *
 * A cron expression becomes a daily rule that begins with the first day of the calendar.
 * The meaning of rules is in recurrence.c.
 *
 * src/schedule/expression.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <ctype.h>

#include "mb/pg_wchar.h"

#include "schedule/inner.h"

/* limits of an interval, in milliseconds */
#define MIN_INTERVAL	1000
#define MAX_INTERVAL	(INT64CONST(86400) * 1000 * 36500)

/* The fields, in order.  An expression with five fields begins with the minute. */
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
	const char *names;			/* of the values, three letters each */
	const char *allowed;
	const char *more;			/* further items of its lists */
} Field;

static const Field fields[NFIELDS] = {
	{"second", 0, 59, NULL, "0 to 59", ""},
	{"minute", 0, 59, NULL, "0 to 59", ""},
	{"hour", 0, 23, NULL, "0 to 23", ""},
	{"day", 1, 31, NULL, "1 to 31", "L, L-2, 15W, LW; "},
	{"month", 1, 12, "janfebmaraprmayjunjulaugsepoctnovdec",
	"1 to 12 or jan to dec", ""},
	{"weekday", 0, 7, "sunmontuewedthufrisat",
	"0 to 7, where 0 and 7 are Sunday, or sun to sat", "fri#2, friL; "},
};

static const char *const usage =
"Write [second] minute hour day month weekday, such as '30 4 * * mon-fri'; or @hourly, @daily, @weekly, @monthly, @yearly; or 'every 90 seconds'; or 'RRULE:FREQ=MONTHLY;BYDAY=-1FR'.";

/* The expression being parsed, for error messages. */
typedef struct Parse
{
	const char *text;
	int			nfields;
	int			number;			/* position of the field, from 1 */
	const Field *field;
	const char *content;
	JobqRruleDays *days;		/* receives the days that are no plain values */
} Parse;

static void parse_interval(const char *text, const char *at, JobqCron *cron);
static JobqRrule *parse_fields(const char *text, char *copy);
static uint64 parse_field(Parse *parse, bool *any);
static int	take_value(Parse *parse, const char **at, bool *sunday);
static bool take_end_of_month(Parse *parse, const char **at);
static bool take_suffix(Parse *parse, const char **at, int value);

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
 * Raise an ERROR.  The message's hint lists the values allowed in the field, after the
 * given special hint.
 */
static void
invalid_field(const Parse *parse, const char *problem, const char *hint)
{
	invalid(parse->text, problem,
			psprintf("%s%sField %d, the %s, allows %s, alone, as a range (%s), a list (%s), or with a step (%s); %sor *.",
					 hint ? hint : "", hint ? " " : "",
					 parse->number, parse->field->name, parse->field->allowed,
					 "1-5", "1,3,5", "*/2", parse->field->more));
}

/*
 * Parse an expression.  *cron is overwritten.  ERROR if the expression is malformed.  A
 * cron expression without any tick is an ERROR, too; a recurrence rule without ticks is
 * not.  Takes no locks.
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
	const char *interval;
	char	   *copy = pstrdup(text);
	char	   *at;

	memset(cron, 0, sizeof(JobqCron));
	while (isspace((unsigned char) *copy))
		copy++;
	for (at = copy + strlen(copy); at > copy && isspace((unsigned char) at[-1]);)
		*--at = '\0';

	if (jobq_rrule_is(copy))
	{
		cron->rule = jobq_rrule_parse(copy);
		return;
	}

	interval = copy + (*copy == '@');
	if (pg_strncasecmp(interval, "every", 5) == 0 &&
		!isalpha((unsigned char) interval[5]))
	{
		parse_interval(text, interval + 5, cron);
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

	cron->rule = parse_fields(text, copy);
}

/*
 * Parse the fields of a cron expression.  Returns a new rule in the current memory context.
 * copy: the fields, changed here.
 */
static JobqRrule *
parse_fields(const char *text, char *copy)
{
	JobqRrule  *rule = palloc0(sizeof(JobqRrule));
	JobqRruleDays *days = &rule->given;
	Parse		parse = {0};
	char	   *content[NFIELDS];
	uint64		bits[NFIELDS];
	bool		any[NFIELDS];
	int64		unused;

	parse.text = text;

	parse.days = days;
	for (char *at = copy; *at != '\0';)
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

	rule->freq = JOBQ_RRULE_DAILY;
	rule->interval = 1;
	rule->has_start = true;
	rule->start = -(int64) UNIX_EPOCH_JDATE * SECS_PER_DAY;
	rule->second = bits[FIELD_SECOND];
	rule->minute = bits[FIELD_MINUTE];
	rule->hour = bits[FIELD_HOUR];
	rule->real_time = any[FIELD_HOUR] || rule->hour == JOBQ_RRULE_ALL_HOURS;
	days->month.given = days->monthday.given = days->has_day = true;
	days->month.begin[0] = bits[FIELD_MONTH];
	days->monthday.begin[0] = bits[FIELD_DAY];
	for (int i = 0; i <= 7; i++)
		if (bits[FIELD_WEEKDAY] & UINT64CONST(1) << i)
			jobq_rrule_add(&days->day[i % 7], 0);
	days->either = !any[FIELD_DAY] && !any[FIELD_WEEKDAY];

	jobq_rrule_begin(rule, rule->start);
	if (!jobq_rrule_match(rule, 0, PG_INT64_MAX, &unused))
		invalid(text, "it never matches",
				"There is no such day in any of the months.");
	return rule;
}

/*
 * Parse the interval after "every".
 */
static void
parse_interval(const char *text, const char *at, JobqCron *cron)
{
	static const char *const hint =
		"Write 'every 90 seconds', 'every 5 minutes', 'every 1 hour 30 minutes', or another interval.";
	static const char *const stops[] = {NULL};
	char	   *duration = jobq_duration_cut(&at, stops);
	const char *problem;

	problem = *at != '\0' ? psprintf("\"%s\" cannot follow an interval", at)
		: jobq_duration_parse(duration, MIN_INTERVAL, MAX_INTERVAL,
							  &cron->interval);
	if (problem != NULL)
		invalid(text, problem, hint);
}

/*
 * Parse a field, and return the bits of its values.
 */
static uint64
parse_field(Parse *parse, bool *any)
{
	const Field *field = parse->field;
	const char *at = parse->content;
	uint64		bits = 0;

	*any = *at == '*';
	if (strcmp(at, "?") == 0 &&
		(field == &fields[FIELD_DAY] || field == &fields[FIELD_WEEKDAY]))
	{
		at = "*";
		*any = true;
	}
	for (;;)
	{
		int			low;
		int			high;
		int			step = 1;
		bool		range = true;
		bool		unused;

		if (take_end_of_month(parse, &at))
		{
			/* stored in parse->days: an empty range sets no bits */
			low = 1;
			high = 0;
			range = false;
		}
		else if (*at == '*')
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
			if (take_suffix(parse, &at, low))
				high = low - 1; /* likewise */
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
		if (*at == '/' && low <= high)
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
 * Parse L, L-2 or LW in a list of days.
 */
static bool
take_end_of_month(Parse *parse, const char **at)
{
	int			before = 0;

	if (parse->field != &fields[FIELD_DAY] || pg_toupper((unsigned char) **at) != 'L')
		return false;
	(*at)++;
	if (pg_toupper((unsigned char) **at) == 'W')
	{
		(*at)++;
		jobq_rrule_add(&parse->days->nearest_workday, -1);
		return true;
	}
	if (**at == '-')
	{
		const char *from = ++*at;

		for (; isdigit((unsigned char) **at) && before < 1000; (*at)++)
			before = before * 10 + (**at - '0');
		if (before < 1 || before > 30)
			invalid_field(parse, psprintf("day \"L-%s\" is not so many days before the last",
										  from),
						  "L-1 to L-30 are counted from the last day of the month.");
	}
	jobq_rrule_add(&parse->days->monthday, -1 - before);
	return true;
}

/*
 * Parse the suffix of a single value: W after a day, #2 or L after a weekday.
 */
static bool
take_suffix(Parse *parse, const char **at, int value)
{
	int			suffix = pg_toupper((unsigned char) **at);
	int			nth = -1;

	if (parse->field == &fields[FIELD_DAY] && suffix == 'W')
	{
		(*at)++;
		jobq_rrule_add(&parse->days->nearest_workday, value);
		return true;
	}
	if (parse->field != &fields[FIELD_WEEKDAY] ||
		(suffix != 'L' && suffix != '#'))
		return false;
	(*at)++;
	if (suffix == '#')
	{
		if (**at < '1' || **at > '5' || isdigit((unsigned char) (*at)[1]))
			invalid_field(parse, psprintf("weekday \"%s\" does not say which one of the month",
										  parse->content),
						  "#1 to #5 follow the weekday; L is the last one.");
		nth = **at - '0';
		(*at)++;
	}
	jobq_rrule_add(&parse->days->day[value % 7], nth);
	return true;
}

/*
 * Parse a value.  *sunday: true if the value is written as sun, which may end a range, too.
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
	if (field == &fields[FIELD_WEEKDAY] && *at - from == 4 &&
		pg_toupper((unsigned char) from[3]) == 'L')
		(*at)--;				/* friL */
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
