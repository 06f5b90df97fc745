/*-------------------------------------------------------------------------
 *
 * text.c
 *	  Texts and times in the JSON of errors and events.
 *
 * src/base/text.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/datetime.h"
#include "utils/json.h"
#include "utils/timestamp.h"

/* Bytes of a text that stands among others in jsonb. */
#define MAX_TEXT	4000

/*
 * A copy of the text, cut to so many bytes.
 */
char *
jobq_cut_text(const char *text, int limit)
{
	size_t		length = strnlen(text, (size_t) limit + MAX_MULTIBYTE_CHAR_LEN);

	return pnstrdup(text, pg_mbcliplen(text, (int) length, limit));
}

/*
 * Append the text as a string of JSON, cut to a length that does no harm.
 */
void
jobq_append_text(StringInfo buf, const char *text)
{
	escape_json(buf, jobq_cut_text(text, MAX_TEXT));
}

/*
 * Append a member of this name to an object of JSON that has one already: the time in
 * the session's time zone.
 */
void
jobq_append_time(StringInfo buf, const char *name, TimestampTz at)
{
	char		time[MAXDATELEN + 1];

	(void) JsonEncodeDateTime(time, TimestampTzGetDatum(at), TIMESTAMPTZOID, NULL);
	appendStringInfo(buf, ", \"%s\": ", name);
	escape_json(buf, time);
}
