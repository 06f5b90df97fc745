/*-------------------------------------------------------------------------
 *
 * duration.c
 *	  Durations within texts: "exponential 5s cap 300s", "100 per minute",
 *	  "every 1 hour 30 minutes".
 *
 * A duration is what the type interval accepts, as long as its length is
 * fixed: months and years have none.  A unit alone means one of it.
 *
 * src/base/duration.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <ctype.h>

#include "utils/datetime.h"
#include "utils/timestamp.h"

#define MAX_LENGTH	128

static bool decode_interval(const char *text, Interval *interval);

/*
 * Read an interval as interval_in() does.  False if it is none.
 */
static bool
decode_interval(const char *text, Interval *interval)
{
	char		buffer[MAX_LENGTH * 2];
	char	   *fields[MAXDATEFIELDS];
	int			types[MAXDATEFIELDS];
	int			nfields;
	int			type;
	int			error;
	struct pg_itm_in itm = {0};

	error = ParseDateTime(text, buffer, sizeof(buffer), fields, types,
						  MAXDATEFIELDS, &nfields);
	if (error == 0)
		error = DecodeInterval(fields, types, nfields, INTERVAL_FULL_RANGE,
							   &type, &itm);
	if (error == DTERR_BAD_FORMAT)
		error = DecodeISO8601Interval(pstrdup(text), &type, &itm);
	return error == 0 && type == DTK_DELTA &&
		itmin2interval(&itm, interval) == 0;
}

/*
 * So many milliseconds, as one would write it.
 */
char *
jobq_duration_text(int64 ms)
{
	static const struct
	{
		int64		ms;
		const char *unit;
	}			units[] = {
		{86400000, "days"}, {3600000, "h"}, {1000, "s"}
	};

	if (ms == 0)
		return pstrdup("0");
	for (int i = 0; i < (int) lengthof(units); i++)
		if (ms % units[i].ms == 0)
			return psprintf(INT64_FORMAT " %s", ms / units[i].ms, units[i].unit);
	return psprintf(INT64_FORMAT " ms", ms);
}

/*
 * Cut a duration from the text: all until a comma, or a word of "stops" (a list
 * that ends with NULL).  *at is left at what ended it.  Returns a copy, without
 * the space around it.
 */
char *
jobq_duration_cut(const char **at, const char *const *stops)
{
	const char *start = *at;
	const char *end = start;

	for (; *end != '\0' && *end != ','; end++)
	{
		bool		stop = false;

		if (end > start && !isspace((unsigned char) end[-1]))
			continue;
		for (int i = 0; stops[i] != NULL && !stop; i++)
		{
			size_t		length = strlen(stops[i]);

			stop = pg_strncasecmp(end, stops[i], length) == 0 &&
				!isalnum((unsigned char) end[length]);
		}
		if (stop)
			break;
	}
	*at = end;
	while (start < end && isspace((unsigned char) *start))
		start++;
	while (end > start && isspace((unsigned char) end[-1]))
		end--;
	return pnstrdup(start, end - start);
}

/*
 * Read a duration, which is to be between the bounds, all in milliseconds and
 * the result in microseconds.  Returns NULL, or what is wrong.
 */
const char *
jobq_duration_parse(const char *text, int64 lowest_ms, int64 highest_ms,
					int64 *us)
{
	Interval	interval;
	double		value;

	if (text[0] == '\0')
		return "a duration is missing";
	if (strlen(text) > MAX_LENGTH ||
		(!decode_interval(text, &interval) &&
		 (!isalpha((unsigned char) text[0]) ||
		  !decode_interval(psprintf("1 %s", text), &interval))))
		return psprintf("\"%s\" is not an interval such as 90s, 5 min, or 1 hour 30 minutes",
						text);
	if (interval.month != 0)
		return psprintf("\"%s\" has no fixed length: months and years differ",
						text);
	value = (double) interval.day * USECS_PER_DAY + (double) interval.time;
	if (value < lowest_ms * 1000.0 || value > highest_ms * 1000.0)
		return psprintf("\"%s\" is not between %s and %s", text,
						jobq_duration_text(lowest_ms),
						jobq_duration_text(highest_ms));
	*us = (int64) value;
	return NULL;
}
