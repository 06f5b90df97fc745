/*-------------------------------------------------------------------------
 *
 * shown.c
 *	  What callers see from whom payloads are hidden (--hide-payload).
 *
 * A route lists the members of its answer that such callers see: route->shown.  All
 * other members are null, so a column that is added later is hidden until a route
 * lists it.  Texts that a handler, a producer or a statement writes are not listed,
 * because they may quote the payload: errors, log lines, progress messages, keys.
 *
 * A filter must not compare such a column either: see "-NAME" in statement.c.
 *
 * client/shown.c
 *
 *-------------------------------------------------------------------------
 */
#include "web.h"

#include <stdlib.h>
#include <string.h>

/* What any answer may have. */
static const char frame[] = "items next id done count";

/* Whether a list of words has this one; "whole" if it stands there with a star. */
static bool
list_has(const char *list, const char *word, size_t size, bool *whole)
{
	for (size_t length; *list != '\0'; list += length + (list[length] == ' '))
	{
		length = strcspn(list, " ");
		*whole = length > 0 && list[length - 1] == '*';
		if (length - *whole == size && strncmp(list, word, size) == 0)
			return true;
	}
	return false;
}

/* The end of the string that begins here. */
static const char *
string_end(const char *at)
{
	for (at++; *at != '\0' && *at != '"'; at++)
		if (*at == '\\' && at[1] != '\0')
			at++;
	return *at == '"' ? at + 1 : at;
}

/* The end of the value that begins here. */
static const char *
value_end(const char *at)
{
	int			depth = 0;

	while (*at != '\0' && (depth > 0 || strchr(",]}", *at) == NULL))
	{
		if (*at == '"')
		{
			at = string_end(at);
			continue;
		}
		depth += *at == '{' || *at == '[' ? 1 : *at == '}' || *at == ']' ? -1 : 0;
		at++;
	}
	return at;
}

/*
 * A JSON document of the database server as the callers of this route see it from whom
 * payloads are hidden.  The result is to be freed.
 *
 * A name in route->shown with a star stands for its value as a whole.  Without a star,
 * the members of an object below it must be listed, too.
 */
char *
shown_text(const Route *route, const char *json)
{
	const char *list = route->shown != NULL ? route->shown : "";
	PQExpBufferData text;

	initPQExpBuffer(&text);
	while (*json != '\0')
	{
		size_t		plain = strcspn(json, "\"");
		const char *end;
		bool		whole;

		appendBinaryPQExpBuffer(&text, json, plain);
		json += plain;
		if (*json == '\0')
			break;
		end = string_end(json);
		plain = end - json;
		while (strchr(" \t\r\n", *end) != NULL && *end != '\0')
			end++;
		if (*end != ':')
		{
			/* a value */
			appendBinaryPQExpBuffer(&text, json, plain);
			json += plain;
			continue;
		}
		appendBinaryPQExpBuffer(&text, json, end + 1 - json);
		if (!list_has(list, json + 1, plain - 2, &whole) && !list_has(frame, json + 1, plain - 2, &whole))
		{
			appendPQExpBufferStr(&text, "null");
			json = value_end(end + 1);
		}
		else
		{
			json = whole ? value_end(end + 1) : end + 1;
			appendBinaryPQExpBuffer(&text, end + 1, json - end - 1);
		}
	}
	if (PQExpBufferDataBroken(text))
		fatal(EXIT_REFUSED, "out of memory");
	return text.data;
}

/*
 * Whether the message of an error of the database server may be told to callers from
 * whom payloads are hidden.  Messages of these classes name jobs by their number, and
 * queues, kinds and roles.
 */
bool
error_is_shown(const char *sqlstate)
{
	static const char *const shown[] = {
		"JQ001", "JQ002", "JQ003", "JQ004", "JQ011", "JQ012", "JQ015",
		"42501", "42704", "25006", "57", "53", "08", "3F000", "42P01", "42883"
	};

	for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++)
		if (strncmp(sqlstate, shown[i], strlen(shown[i])) == 0)
			return true;
	return false;
}
