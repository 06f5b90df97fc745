/*-------------------------------------------------------------------------
 *
 * text.c
 *	  Texts and times in the JSON of errors and events, and words of texts that users write.
 *
 * src/base/text.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <ctype.h>

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/datetime.h"
#include "utils/json.h"
#include "utils/timestamp.h"

/* Maximum length of a text within jsonb, in bytes. */
#define MAX_TEXT	4000

/* Return a copy of the text, truncated to limit bytes at a character boundary. */
char *
jobq_cut_text(const char *text, int limit)
{
	size_t		length = strnlen(text, (size_t) limit + MAX_MULTIBYTE_CHAR_LEN);

	return pnstrdup(text, pg_mbcliplen(text, (int) length, limit));
}

/* Append the text as a JSON string, truncated to MAX_TEXT bytes. */
void
jobq_append_text(StringInfo buf, const char *text)
{
	escape_json(buf, jobq_cut_text(text, MAX_TEXT));
}

/*
 * Append a time to a JSON object that already has a member, in the session's time zone.  name:
 * name of the new member.
 */
void
jobq_append_time(StringInfo buf, const char *name, TimestampTz at)
{
	char		time[MAXDATELEN + 1];

	(void) JsonEncodeDateTime(time, TimestampTzGetDatum(at), TIMESTAMPTZOID, NULL);
	appendStringInfo(buf, ", \"%s\": ", name);
	escape_json(buf, time);
}

/* Return the rest of the text after white space. */
const char *
jobq_skip_space(const char *at)
{
	while (isspace((unsigned char) *at))
		at++;
	return at;
}

/*
 * Read the word, in upper or lower case, and the space after it.  Returns false, and reads
 * nothing, if the text does not begin with the word.
 */
bool
jobq_take_word(const char **at, const char *word)
{
	size_t		length = strlen(word);

	if (pg_strncasecmp(*at, word, length) != 0 ||
		isalpha((unsigned char) (*at)[length]))
		return false;
	*at = jobq_skip_space(*at + length);
	return true;
}
