/*-------------------------------------------------------------------------
 *
 * statement.c
 *	  The statement of a route: its parameters and its result.
 *
 * The words of route->parameters name the source of each parameter:
 *
 *	{}		the segment of the path matched by {}
 *	{2}		the segment matched by the second {}
 *	body	the body; {} if there is none
 *	?NAME	an argument after the path's question mark; null if absent
 *	-NAME	like ?NAME, but refused to callers with hidden payloads, because
 *			trial and error would reveal a hidden value
 *	=NAME	an argument that is not a parameter of the statement, but chooses it
 *	#NAME	a header; null if absent
 *	hide	true if payloads are hidden from the caller
 *	csrf	the secret of the session against cross-site requests
 *	readonly	true with --read-only
 *
 * The server parses the body, in SQL.  The same statement first checks the members: all
 * are known to the route, no required member is missing, and only some may be an object or
 * an array.  The route's own statement
 * must therefore be a scalar expression.
 *
 * client/web/statement.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Members of bodies that may be an object or an array.  The statements read all other members
 * as text, in which an object would be valid.
 */
#define COMPOSITE \
	"carry,changes,context,fail_on,fair_weights,headers,ids,limiters,options,payload,queues,result,results,retry_on,tags,tokens,uniqueness"

typedef struct Count
{
	const char *name;
	int			n;
}			Count;

static void statement_done(Statement *statement, PGresult *result, const char *why);
static void append_list(PQExpBuffer sql, const char *members, bool needed, bool hide);
static void statement_left(Request *request);

/* Check a query argument: an unknown name is an error. */
static enum MHD_Result
argument_known(void *closure, enum MHD_ValueKind kind, const char *key, const char *value)
{
	Request    *request = closure;
	const char *words = request->route->parameters != NULL ? request->route->parameters : "";
	size_t		length = strlen(key);

	(void) kind;
	(void) value;
	for (const char *at = words; length > 0 && (at = strstr(at, key)) != NULL; at += length)
	{
		if (at == words || strchr("?-=", at[-1]) == NULL || (at[length] != '\0' && at[length] != ' '))
			continue;
		if (at[-1] == '-' && request->principal->hide_payload)
			request->status = MHD_HTTP_FORBIDDEN;
		return MHD_YES;
	}
	request->state = (void *) key;
	return MHD_NO;
}

/* Count an argument of this name. */
static enum MHD_Result
argument_counted(void *closure, enum MHD_ValueKind kind, const char *key, const char *value)
{
	Count	   *count = closure;

	(void) kind;
	(void) value;
	count->n += strcmp(key, count->name) == 0;
	return MHD_YES;
}

/* Stop at an argument that is given twice. */
static enum MHD_Result
argument_single(void *closure, enum MHD_ValueKind kind, const char *key, const char *value)
{
	Request    *request = closure;
	Count		count = {key, 0};

	(void) kind;
	(void) value;
	MHD_get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND, argument_counted, &count);
	if (count.n == 1)
		return MHD_YES;
	request->state = (void *) key;
	return MHD_NO;
}

/*
 * Check that the route knows all arguments of the request, and that no value would be ignored.
 * Otherwise answer the request, and return false.
 */
bool
arguments_known(Request *request)
{
	PQExpBufferData text;

	/* libmicrohttpd ends a value there */
	if (strchr(request->target, '?') != NULL && strstr(strchr(request->target, '?'), "%00") != NULL)
	{
		answer_problem_as(request, MHD_HTTP_BAD_REQUEST, "invalid-argument", "an argument has a byte that is zero");
		return false;
	}
	request->state = NULL;
	MHD_get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND, argument_single, request);
	if (request->state != NULL)
	{
		initPQExpBuffer(&text);
		appendPQExpBuffer(&text, "the argument \"%s\" is given more than once", (const char *) request->state);
		request->state = NULL;
		answer_problem_as(request, MHD_HTTP_BAD_REQUEST, "invalid-argument", text.data);
		termPQExpBuffer(&text);
		return false;
	}
	MHD_get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND, argument_known, request);
	if (request->state == NULL && request->status != MHD_HTTP_FORBIDDEN)
		return true;
	if (request->state == NULL)
	{
		answer_problem_as(request, MHD_HTTP_FORBIDDEN, "hidden-payload", "what is hidden from this role is not searched for it");
		return false;
	}
	initPQExpBuffer(&text);
	appendPQExpBuffer(&text, "there is no argument \"%s\"", (const char *) request->state);
	request->state = NULL;
	answer_problem_as(request, MHD_HTTP_BAD_REQUEST, "unknown-argument", text.data);
	termPQExpBuffer(&text);
	return false;
}

/*
 * Answer that an argument has a wrong value, and return false.
 */
static bool
refuse_value(Request *request, const char *name, const char *value, const char *allowed)
{
	PQExpBufferData text;

	initPQExpBuffer(&text);
	appendPQExpBuffer(&text, "invalid value for \"%s\": \"%s\"; it is %s", name, value, allowed);
	answer_problem_as(request, MHD_HTTP_BAD_REQUEST, "invalid-argument", text.data);
	termPQExpBuffer(&text);
	return false;
}

/*
 * Check an argument against the list of its values, "NAME VALUE...".  If the value is not
 * listed, answer the request and return false.
 */
static bool
argument_listed(Request *request, const char *words)
{
	size_t		name_length = strcspn(words, " ");
	char		name[64];
	const char *value;
	PQExpBufferData allowed;
	bool		listed = false;

	snprintf(name, sizeof(name), "%.*s", (int) name_length, words);
	value = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, name);
	if (value == NULL || value[0] == '\0')
		return true;
	initPQExpBuffer(&allowed);
	words += name_length + 1;
	for (size_t length; *words != '\0'; words += length + (words[length] == ' '))
	{
		length = strcspn(words, " ");
		if (strlen(value) == length && strncmp(value, words, length) == 0)
			listed = true;
		appendPQExpBuffer(&allowed, "%s%.*s", allowed.len == 0 ? "one of " : ", ", (int) length, words);
	}
	if (!listed)
		refuse_value(request, name, value, allowed.data);
	termPQExpBuffer(&allowed);
	return listed;
}

/*
 * Check the number of items of a page.  If the number is out of range, answer the request
 * and return false.
 */
static bool
limit_allowed(Request *request)
{
	const char *value = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "limit");
	int			most = request->route->most > 0 ? request->route->most : MOST_ITEMS;
	char		allowed[64];

	if (value == NULL || value[0] == '\0' ||
		(strlen(value) <= 9 && strspn(value, "0123456789") == strlen(value) && atoi(value) >= 1 && atoi(value) <= most))
		return true;
	snprintf(allowed, sizeof(allowed), "a number from 1 to %d", most);
	return refuse_value(request, "limit", value, allowed);
}

static bool
parameters_of(Request *request)
{
	const char *at = request->route->parameters != NULL ? request->route->parameters : "";
	int			n = 0;

	for (size_t length; *at != '\0'; at += length + (at[length] == ' '))
	{
		char		word[64];
		const char *value = NULL;

		length = strcspn(at, " ");
		if (length >= sizeof(word) || n == MAX_PARAMETERS)
			return false;
		if (at[0] == '=')
			continue;
		memcpy(word, at, length);
		word[length] = '\0';
		if (strcmp(word, "{}") == 0)
			value = request->segment;
		else if (strcmp(word, "{2}") == 0)
			value = request->second_segment;
		else if (strcmp(word, "body") == 0 && request->body.len > 0)
		{
			/* may be large, and has no other use: move it */
			request->values[n++] = request->body.data;
			initPQExpBuffer(&request->body);
			continue;
		}
		else if (strcmp(word, "body") == 0)
			value = "{}";
		else if (word[0] == '?' || word[0] == '-')
			value = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, word + 1);
		else if (word[0] == '#')
			value = header_of(request, word + 1);
		else if (strcmp(word, "hide") == 0)
			value = request->principal->hide_payload ? "true" : "false";
		else if (strcmp(word, "csrf") == 0)
			value = request->session != NULL ? request->session->csrf : NULL;
		else if (strcmp(word, "readonly") == 0)
			value = web.read_only ? "true" : "false";
		/* an argument without a value counts as absent */
		if (value != NULL && strchr("?-", word[0]) != NULL && value[0] == '\0')
			value = NULL;
		if (value == NULL && request->route->most > 0 && strcmp(word, "?limit") == 0)
		{
			snprintf(word, sizeof(word), "%d", request->route->most);
			value = word;
		}
		request->values[n++] = value != NULL ? copy_text(value) : NULL;
	}
	request->statement.n = n;
	return true;
}

/*
 * Append an array of the allowed members, or of the required members, of a body.  A member
 * written -NAME is not allowed to callers with hidden payloads, like an argument -NAME.
 */
static void
append_members(PQExpBuffer sql, const Request *request, bool needed)
{
	const Route *route = request->route;
	bool		hide = request->principal->hide_payload;

	if (route->members_of_many != NULL)
	{
		appendPQExpBufferStr(sql, "CASE WHEN $1::jsonb ? 'ids' THEN ");
		append_list(sql, route->members_of_many, needed, hide);
		appendPQExpBufferStr(sql, " ELSE ");
		append_list(sql, route->members, needed, hide);
		appendPQExpBufferStr(sql, " END");
	}
	else
		append_list(sql, route->members, needed, hide);
}

static void
append_list(PQExpBuffer sql, const char *members, bool needed, bool hide)
{
	bool		first = true;

	appendPQExpBufferStr(sql, "'{");
	for (size_t length; *members != '\0'; members += length + (members[length] == ' '))
	{
		bool		must;
		bool		guess;

		length = strcspn(members, " ");
		must = members[length - 1] == '!';
		guess = members[0] == '-';
		if ((needed && !must) || (guess && hide))
			continue;
		appendPQExpBuffer(sql, "%s%.*s", first ? "" : ",", (int) (length - must - guess), members + guess);
		first = false;
	}
	appendPQExpBufferStr(sql, "}'::text[]");
}

/*
 * Run the statement of the route, and answer with its result.
 */
void
statement_begin(Request *request)
{
	const Route *route = request->route;
	Statement  *statement = &request->statement;
	PQExpBufferData sql;

	for (int i = 0; i < MAX_LISTED && route->words[i] != NULL; i++)
		if (!argument_listed(request, route->words[i]))
			return;
	if (!limit_allowed(request))
		return;
	if (!parameters_of(request))
		fatal(EXIT_REFUSED, "the parameters of %s are wrong", route->path);
	if (route->members != NULL)
	{
		initPQExpBuffer(&sql);
		appendPQExpBufferStr(&sql, "SELECT CASE WHEN coalesce(u.bad, u.lacks, u.wrong) IS NULL THEN (");
		appendPQExpBufferStr(&sql, route->sql);
		appendPQExpBufferStr(&sql, ") END, u.bad, u.lacks, u.wrong FROM (SELECT "
							 "(SELECT k FROM jsonb_object_keys($1::jsonb) AS k WHERE NOT k = ANY (");
		append_members(&sql, request, false);
		appendPQExpBufferStr(&sql, ") LIMIT 1) AS bad, (SELECT k FROM unnest(");
		append_members(&sql, request, true);
		appendPQExpBufferStr(&sql, ") AS k WHERE $1::jsonb -> k IS NULL OR $1::jsonb -> k = 'null' LIMIT 1) AS lacks, "
							 "(SELECT e.key FROM jsonb_each($1::jsonb) AS e WHERE jsonb_typeof(e.value) IN ('object', 'array') "
							 "AND NOT e.key = ANY ('{" COMPOSITE "}') LIMIT 1) AS wrong) AS u");
		if (PQExpBufferDataBroken(sql))
			fatal(EXIT_REFUSED, "out of memory");
		request->sql = sql.data;
	}
	statement->sql = request->sql != NULL ? request->sql : route->sql;
	statement->values = (const char *const *) request->values;
	statement->done = statement_done;
	statement->owner = request;
	request->leave = statement_left;
	request_suspend(request);
	pool_send(request->principal, statement);
}

/*
 * The caller has hung up.  A running statement continues.
 */
static void
statement_left(Request *request)
{
	if (pool_withdraw(request->principal, &request->statement))
		request_resume(request);
}

/*
 * Return false, and answer the request, if a member of the body is unknown, missing, or of a
 * wrong type.
 */
static bool
members_fit(Request *request, const PGresult *result)
{
	static const struct
	{
		const char *type;
		const char *says;
	}			list[] = {
		{"unknown-member", "the body has a member \"%s\", which is not known here"},
		{"missing-member", "the body lacks the member \"%s\""},
		{"invalid-member", "the member \"%s\" of the body must not be an object or an array"},
	};

	for (int i = 0; i < 3; i++)
		if (!PQgetisnull(result, 0, i + 1))
		{
			PQExpBufferData text;

			initPQExpBuffer(&text);
			appendPQExpBuffer(&text, list[i].says, PQgetvalue(result, 0, i + 1));
			answer_problem_as(request, MHD_HTTP_BAD_REQUEST, list[i].type, text.data);
			termPQExpBuffer(&text);
			return false;
		}
	return true;
}

static void
statement_done(Statement *statement, PGresult *result, const char *why)
{
	Request    *request = statement->owner;
	const Route *route = request->route;

	request->leave = NULL;
	if (request->gone && (!(route->flags & ROUTE_CONSUMES) || PQresultStatus(result) != PGRES_TUPLES_OK))
		request_resume(request);
	else if (result == NULL)
		answer_no_connection(request, why);
	else if (PQresultStatus(result) != PGRES_TUPLES_OK)
		answer_error(request, result);
	else if (route->members != NULL && !members_fit(request, result))
		return;
	else if (PQntuples(result) == 0 || PQgetisnull(result, 0, 0))
		answer_problem(request, MHD_HTTP_NOT_FOUND, "it does not exist, or is another role's");
	else if (route->answer != NULL)
		route->answer(request, result);
	else if (request->principal->hide_payload)
	{
		char	   *text = shown_text(route, PQgetvalue(result, 0, 0));

		answer(request, MHD_HTTP_OK, "application/json", text, strlen(text));
		free(text);
	}
	else
		answer(request, MHD_HTTP_OK, "application/json", PQgetvalue(result, 0, 0), PQgetlength(result, 0, 0));
}
