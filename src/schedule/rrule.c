/*-------------------------------------------------------------------------
 *
 * rrule.c
 *	  Parsing of recurrence rules of iCalendar (RFC 5545).
 *
 *	RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9
 *	DTSTART:20260105T090000 RRULE:FREQ=WEEKLY;INTERVAL=2
 *
 * The parser rejects everything that is not implemented.  Each part may occur once, with
 * values in range, and only in combinations allowed by the RFC.  The meaning of rules is in
 * recurrence.c.
 *
 * src/schedule/rrule.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <ctype.h>

#include "mb/pg_wchar.h"
#include "utils/datetime.h"

#include "schedule/inner.h"

#define MAX_LENGTH		2000	/* bytes of a rule */
#define MAX_INTERVAL	10000
#define MAX_COUNT		1000

/* The parts of a rule. */
typedef enum PartKind
{
	PART_FREQ,
	PART_INTERVAL,
	PART_COUNT,
	PART_UNTIL,
	PART_WKST,
	PART_BYSECOND,
	PART_BYMINUTE,
	PART_BYHOUR,
	PART_BYDAY,
	PART_BYMONTHDAY,
	PART_BYYEARDAY,
	PART_BYWEEKNO,
	PART_BYMONTH,
	PART_BYSETPOS,
	NPARTS
} PartKind;

static const struct
{
	const char *name;
	const char *allowed;
	int			lowest;			/* for numbers */
	int			highest;
	bool		from_end;		/* negative numbers count from the end */
}			parts[NPARTS] = {
	[PART_FREQ] = {"FREQ", "YEARLY, MONTHLY, WEEKLY, DAILY, HOURLY, MINUTELY, or SECONDLY"},
	[PART_INTERVAL] = {"INTERVAL", "a number from 1 to 10000", 1, MAX_INTERVAL},
	[PART_COUNT] = {"COUNT", "a number from 1 to 1000", 1, MAX_COUNT},
	[PART_UNTIL] = {"UNTIL", "a local time such as 20261231T180000, or one of UTC such as 20261231T170000Z"},
	[PART_WKST] = {"WKST", "SU, MO, TU, WE, TH, FR, or SA"},
	[PART_BYSECOND] = {"BYSECOND", "a list of 0 to 59", 0, 59},
	[PART_BYMINUTE] = {"BYMINUTE", "a list of 0 to 59", 0, 59},
	[PART_BYHOUR] = {"BYHOUR", "a list of 0 to 23", 0, 23},
	[PART_BYDAY] = {"BYDAY", "a list of SU, MO, TU, WE, TH, FR and SA, with 1 to 53 or -1 to -53 in front if FREQ is MONTHLY or YEARLY", 1, 53, true},
	[PART_BYMONTHDAY] = {"BYMONTHDAY", "a list of 1 to 31, or -1 to -31", 1, 31, true},
	[PART_BYYEARDAY] = {"BYYEARDAY", "a list of 1 to 366, or -1 to -366", 1, JOBQ_RRULE_HIGHEST, true},
	[PART_BYWEEKNO] = {"BYWEEKNO", "a list of 1 to 53, or -1 to -53", 1, 53, true},
	[PART_BYMONTH] = {"BYMONTH", "a list of 1 to 12", 1, 12},
	[PART_BYSETPOS] = {"BYSETPOS", "a list of 1 to 366, or -1 to -366", 1, JOBQ_RRULE_HIGHEST, true},
};

/* In the order of JobqRruleFreq. */
static const char *const freqs[] = {
	"SECONDLY", "MINUTELY", "HOURLY", "DAILY", "WEEKLY", "MONTHLY", "YEARLY"
};
static const char *const weekdays = "SUMOTUWETHFRSA";

static const char *const usage =
"Write 'RRULE:FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9;BYMINUTE=0;BYSECOND=0', with 'DTSTART:20260105T090000 ' in front of it if there is a first time.";

static void parse_rule(JobqRrule *rule, char *at);
static void parse_part(JobqRrule *rule, PartKind part, char *value);
static void parse_list(JobqRrule *rule, PartKind part, char *value,
					   JobqRruleSet *set);
static uint64 parse_bits(JobqRrule *rule, PartKind part, char *value);
static int	parse_number(const JobqRrule *rule, PartKind part, const char *value);
static int	parse_weekday(const JobqRrule *rule, PartKind part, const char *value,
						  int *number);
static bool parse_time(const char *at, bool *utc, int64 *seconds);
static void check_together(const JobqRrule *rule);
static void check_steps(const JobqRrule *rule);

pg_noreturn static void invalid(const JobqRrule *rule, const char *problem,
								const char *hint);
pg_noreturn static void invalid_part(const JobqRrule *rule, PartKind part,
									 const char *value);

static void
invalid(const JobqRrule *rule, const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid recurrence rule \"%s\": %s", rule->text, problem),
			 errhint("%s", hint)));
}

static void
invalid_part(const JobqRrule *rule, PartKind part, const char *value)
{
	invalid(rule, psprintf("%s \"%s\" is not allowed", parts[part].name, value),
			psprintf("%s is %s.", parts[part].name, parts[part].allowed));
}

/*
 * Return true if the text is intended as a recurrence rule.
 */
bool
jobq_rrule_is(const char *text)
{
	return pg_strncasecmp(text, "RRULE", 5) == 0 ||
		pg_strncasecmp(text, "DTSTART", 7) == 0;
}

/*
 * Parse a rule.  Returns a new rule in the current memory context.  ERROR if the rule is
 * malformed or not supported.  Takes no locks.
 */
JobqRrule *
jobq_rrule_parse(const char *text)
{
	JobqRrule  *rule;
	char	   *copy;
	char	   *word;
	char	   *rest;
	bool		has_rule = false;

	if (strlen(text) > MAX_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("recurrence rule is too long"),
				 errhint("It may have %d bytes.", MAX_LENGTH)));
	rule = palloc0(sizeof(JobqRrule));
	rule->text = pstrdup(text);
	rule->interval = 1;
	rule->given.week_start = 1;

	copy = pstrdup(text);
	for (word = strtok_r(copy, " \t\r\n", &rest); word != NULL;
		 word = strtok_r(NULL, " \t\r\n", &rest))
	{
		if (pg_strncasecmp(word, "RRULE:", 6) == 0)
		{
			if (has_rule)
				invalid(rule, "RRULE is given twice", usage);
			has_rule = true;
			parse_rule(rule, word + 6);
		}
		else if (pg_strncasecmp(word, "DTSTART:", 8) == 0)
		{
			bool		utc;

			if (rule->has_start)
				invalid(rule, "DTSTART is given twice", usage);
			if (!parse_time(word + 8, &utc, &rule->start) || utc)
				invalid(rule, psprintf("DTSTART \"%s\" is not allowed", word + 8),
						"DTSTART is a local time of the schedule's time zone, such as 20260105T090000.");
			rule->has_start = true;
		}
		else if (pg_strncasecmp(word, "DTSTART;", 8) == 0)
			invalid(rule, "DTSTART cannot have parameters",
					"Give the time zone as timezone, and write DTSTART:20260105T090000.");
		else
			invalid(rule, psprintf("\"%s\" is neither DTSTART: nor RRULE:", word),
					usage);
	}
	if (!has_rule)
		invalid(rule, "RRULE: is missing", usage);
	check_together(rule);
	rule->real_time = rule->freq <= JOBQ_RRULE_HOURLY &&
		(rule->hour == 0 || rule->hour == JOBQ_RRULE_ALL_HOURS);
	return rule;
}

/*
 * Parse the parts of a rule.
 */
static void
parse_rule(JobqRrule *rule, char *at)
{
	bool		seen[NPARTS] = {0};

	for (char *next; at != NULL; at = next)
	{
		char	   *value;
		int			part;

		next = strchr(at, ';');
		if (next != NULL)
			*next++ = '\0';
		value = strchr(at, '=');
		if (value == NULL)
			invalid(rule, psprintf("\"%s\" has no value", at), usage);
		*value++ = '\0';
		for (part = 0; part < NPARTS; part++)
			if (pg_strcasecmp(at, parts[part].name) == 0)
				break;
		if (part == NPARTS)
			invalid(rule, psprintf("part \"%s\" is not known", at),
					"The parts are FREQ, INTERVAL, COUNT, UNTIL, WKST, BYSECOND, BYMINUTE, BYHOUR, BYDAY, BYMONTHDAY, BYYEARDAY, BYWEEKNO, BYMONTH, and BYSETPOS.");
		if (seen[part])
			invalid(rule, psprintf("%s is given twice", parts[part].name),
					"Give each part once, with all of its values in one list.");
		seen[part] = true;
		parse_part(rule, part, value);
	}
	if (!seen[PART_FREQ])
		invalid(rule, "FREQ is missing", psprintf("FREQ is %s.",
												  parts[PART_FREQ].allowed));
}

static void
parse_part(JobqRrule *rule, PartKind part, char *value)
{
	JobqRruleDays *given = &rule->given;
	int			freq;

	switch (part)
	{
		case PART_FREQ:
			for (freq = 0; freq < (int) lengthof(freqs); freq++)
				if (pg_strcasecmp(value, freqs[freq]) == 0)
					break;
			if (freq == lengthof(freqs))
				invalid_part(rule, part, value);
			rule->freq = freq;
			break;
		case PART_INTERVAL:
			rule->interval = parse_number(rule, part, value);
			break;
		case PART_COUNT:
			rule->count = parse_number(rule, part, value);
			break;
		case PART_UNTIL:
			if (!parse_time(value, &rule->until_is_utc, &rule->until))
				invalid_part(rule, part, value);
			rule->has_until = true;
			break;
		case PART_WKST:
			given->week_start = parse_weekday(rule, part, value, NULL);
			break;
		case PART_BYSECOND:
			rule->second = parse_bits(rule, part, value);
			break;
		case PART_BYMINUTE:
			rule->minute = parse_bits(rule, part, value);
			break;
		case PART_BYHOUR:
			rule->hour = parse_bits(rule, part, value);
			break;
		case PART_BYDAY:
			given->has_day = true;
			parse_list(rule, part, value, given->day);
			break;
		case PART_BYMONTHDAY:
			parse_list(rule, part, value, &given->monthday);
			break;
		case PART_BYYEARDAY:
			parse_list(rule, part, value, &given->yearday);
			break;
		case PART_BYWEEKNO:
			parse_list(rule, part, value, &given->weekno);
			break;
		case PART_BYMONTH:
			parse_list(rule, part, value, &given->month);
			break;
		case PART_BYSETPOS:
			parse_list(rule, part, value, &given->setpos);
			break;
		case NPARTS:
			break;
	}
}

/*
 * Add a number to a set.  A negative number counts from the end.
 */
void
jobq_rrule_add(JobqRruleSet *set, int number)
{
	uint64	   *bits = number < 0 ? set->end : set->begin;

	bits[abs(number) / 64] |= UINT64CONST(1) << abs(number) % 64;
	set->given = true;
}

/*
 * Parse a list of values.  BYDAY has a set for each weekday.
 */
static void
parse_list(JobqRrule *rule, PartKind part, char *value, JobqRruleSet *set)
{
	for (char *next; value != NULL; value = next)
	{
		int			number;
		int			weekday = 0;

		next = strchr(value, ',');
		if (next != NULL)
			*next++ = '\0';
		if (part == PART_BYDAY)
		{
			weekday = parse_weekday(rule, part, value, &number);
			rule->given.numbered |= number != 0;
		}
		else
			number = parse_number(rule, part, value);
		jobq_rrule_add(&set[weekday], number);
	}
}

/*
 * Parse a list of hours, minutes or seconds.  Returns the bits of the values.
 */
static uint64
parse_bits(JobqRrule *rule, PartKind part, char *value)
{
	JobqRruleSet set = {0};

	parse_list(rule, part, value, &set);
	return set.begin[0];
}

static int
parse_number(const JobqRrule *rule, PartKind part, const char *value)
{
	const char *at = value;
	int			number = 0;

	if (parts[part].from_end && (*at == '-' || *at == '+'))
		at++;
	if (!isdigit((unsigned char) *at))
		invalid_part(rule, part, value);
	for (; isdigit((unsigned char) *at); at++)
		number = Min(number * 10 + (*at - '0'), 100000);
	if (*at != '\0' || number < parts[part].lowest ||
		number > parts[part].highest)
		invalid_part(rule, part, value);
	return *value == '-' ? -number : number;
}

/*
 * Parse a weekday, and return its index, 0 for Sunday.  *number: receives the number before
 * the weekday, or 0.  number is NULL if a number is not allowed.
 */
static int
parse_weekday(const JobqRrule *rule, PartKind part, const char *value,
			  int *number)
{
	const char *at = value;

	if (number != NULL)
	{
		at += strspn(at, "+-0123456789");
		*number = at == value ? 0
			: parse_number(rule, part, pnstrdup(value, at - value));
	}
	if (strlen(at) == 2)
		for (int i = 0; i < 7; i++)
			if (pg_strncasecmp(at, weekdays + 2 * i, 2) == 0)
				return i;
	invalid_part(rule, part, value);
}

/*
 * Parse a time such as 20260105T090000, and convert it to seconds since 1970.  Returns
 * false if the text is not a time.
 */
static bool
parse_time(const char *at, bool *utc, int64 *seconds)
{
	static const char *const form = "dddddddd" "T" "dddddd";
	static const int widths[] = {4, 2, 2, 2, 2, 2};
	int			v[lengthof(widths)] = {0};
	size_t		length = strlen(form);

	if (strlen(at) < length)
		return false;
	for (size_t i = 0; i < length; i++)
		if (form[i] == 'd' ? !isdigit((unsigned char) at[i])
			: pg_toupper((unsigned char) at[i]) != form[i])
			return false;
	*utc = pg_toupper((unsigned char) at[length]) == 'Z';
	if (at[length + *utc] != '\0')
		return false;
	for (int i = 0; i < (int) lengthof(widths); i++)
	{
		if (pg_toupper((unsigned char) *at) == 'T')
			at++;
		for (int j = 0; j < widths[i]; j++)
			v[i] = v[i] * 10 + (*at++ - '0');
	}
	if (v[0] < 1 || v[1] < 1 || v[1] > 12 || v[2] < 1 ||
		v[2] > day_tab[isleap(v[0])][v[1] - 1] ||
		v[3] > 23 || v[4] > 59 || v[5] > 59)
		return false;
	*seconds = (int64) (date2j(v[0], v[1], v[2]) - UNIX_EPOCH_JDATE) * SECS_PER_DAY +
		v[3] * SECS_PER_HOUR + v[4] * SECS_PER_MINUTE + v[5];
	return true;
}

/*
 * ERROR if parts are combined that the RFC forbids, or that are not supported here.
 */
static void
check_together(const JobqRrule *rule)
{
	const JobqRruleDays *given = &rule->given;
	JobqRruleFreq freq = rule->freq;

	if (rule->count > 0 && rule->has_until)
		invalid(rule, "it has COUNT and UNTIL", "Give one of them.");
	if (given->weekno.given && freq != JOBQ_RRULE_YEARLY)
		invalid(rule, "BYWEEKNO needs FREQ=YEARLY", "Write FREQ=YEARLY, or leave it out.");
	if (given->yearday.given && freq >= JOBQ_RRULE_DAILY && freq <= JOBQ_RRULE_MONTHLY)
		invalid(rule, psprintf("BYYEARDAY cannot be had with FREQ=%s", freqs[freq]),
				"Write FREQ=YEARLY, or use BYMONTH and BYMONTHDAY.");
	if (given->monthday.given && freq == JOBQ_RRULE_WEEKLY)
		invalid(rule, "BYMONTHDAY cannot be had with FREQ=WEEKLY",
				"Write FREQ=DAILY or FREQ=MONTHLY; BYDAY can be had with it.");
	if (given->numbered && freq < JOBQ_RRULE_MONTHLY)
		invalid(rule, psprintf("BYDAY with numbers cannot be had with FREQ=%s", freqs[freq]),
				"Write FREQ=MONTHLY or FREQ=YEARLY, or the weekdays without numbers.");
	if (given->numbered && given->weekno.given)
		invalid(rule, "BYDAY with numbers cannot be had with BYWEEKNO",
				"Write the weekdays without numbers.");
	if (given->setpos.given)
	{
		if (freq < JOBQ_RRULE_MONTHLY)
			invalid(rule, psprintf("BYSETPOS cannot be had with FREQ=%s", freqs[freq]),
					"Write FREQ=MONTHLY or FREQ=YEARLY.");
		if (!given->has_day && !given->monthday.given && !given->yearday.given &&
			!given->weekno.given && !given->month.given)
			invalid(rule, "BYSETPOS needs a list of days",
					"Give BYDAY, BYMONTHDAY, BYYEARDAY, BYWEEKNO, or BYMONTH.");
		if ((rule->hour & (rule->hour - 1)) != 0 ||
			(rule->minute & (rule->minute - 1)) != 0 ||
			(rule->second & (rule->second - 1)) != 0)
			invalid(rule, "BYSETPOS cannot be had with several times a day",
					"It counts days. Give one BYHOUR, BYMINUTE and BYSECOND, or several schedules.");
	}
	check_steps(rule);
}

/*
 * ERROR if an interval shorter than a day does not divide a day, because each day must have
 * the same times.
 */
static void
check_steps(const JobqRrule *rule)
{
	static const struct
	{
		int			units;
		const char *name;
	}			days[] = {
		{SECS_PER_DAY, "second"}, {MINS_PER_HOUR * HOURS_PER_DAY, "minute"},
		{HOURS_PER_DAY, "hour"}
	};

	if (rule->freq > JOBQ_RRULE_HOURLY ||
		(rule->interval <= days[rule->freq].units &&
		 days[rule->freq].units % rule->interval == 0))
		return;
	invalid(rule, psprintf("INTERVAL=%d with FREQ=%s does not divide a day",
						   rule->interval, freqs[rule->freq]),
			psprintf("The day has %d %ss. Write 'every %d %ss', which is counted in real time.",
					 days[rule->freq].units, days[rule->freq].name,
					 rule->interval, days[rule->freq].name));
}
