/*-------------------------------------------------------------------------
 *
 * shown.c
 *	  Answers for callers with hidden payloads (--hide-payload).
 *
 * route->shown lists the visible members of an answer.  All other members are null, so a
 * new column stays hidden until a route lists it.  Texts written by a handler, a producer
 * or a statement are not listed, because they may quote the payload: errors, log lines,
 * progress messages, keys.
 *
 * A filter must not compare hidden columns either: see "-NAME" in statement.c.
 *
 * client/web/shown.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <stdlib.h>
#include <string.h>

/* Members allowed in every answer. */
static const char frame[] = "items next id done count";

/* True if a list of words contains this word; "whole" if the word has a star. */
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

/* The end of the string at "at". */
static const char *
string_end(const char *at)
{
	for (at++; *at != '\0' && *at != '"'; at++)
		if (*at == '\\' && at[1] != '\0')
			at++;
	return *at == '"' ? at + 1 : at;
}

/* The end of the value at "at". */
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
 * The visible part of a JSON document of the database server, for this route and callers
 * with hidden payloads.  The caller frees the result.
 *
 * A name with a star in route->shown allows the complete value.  Without a star, the
 * members of an object below the name must also be listed.
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
 * True if an error message of the database server may be shown to callers with hidden
 * payloads.  Messages of these classes contain only job ids, and names of queues, kinds
 * and roles.
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

/*
 * True if payloads are hidden from callers of this role.  "all" means all browsers.
 * Programs with a token are affected only if the list names their role.
 */
bool
payload_hidden(const char *role, bool is_token)
{
	const char *list = web.hide_payload;

	if (list == NULL)
		return false;
	if (strcmp(list, "all") == 0)
		return !is_token;
	for (size_t length; *list != '\0'; list += length + (list[length] == ','))
	{
		length = strcspn(list, ",");
		if (strlen(role) == length && strncmp(list, role, length) == 0)
			return true;
	}
	return false;
}
