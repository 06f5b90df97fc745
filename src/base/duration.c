/*-------------------------------------------------------------------------
 *
 * duration.c
 *	  Durations within texts: "exponential 5s cap 300s", "100 per minute", "every 1 hour
 *	  30 minutes".
 *
 * A duration has the format of the type interval, and must have a fixed length.  Months and
 * years are therefore not allowed.  A unit alone stands for 1 unit.
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

/* Parse an interval in the way of interval_in().  False if the text is not valid. */
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

/* Format a number of milliseconds for a message. */
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
 * Cut a duration from the text.  The duration ends at a comma, or before a word of "stops" (an
 * array that ends with NULL).  *at is set to the end.  Returns a trimmed copy.
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
 * Parse a duration.  The bounds are in milliseconds, the result is in microseconds.  Returns
 * NULL, or a description of the error.
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
