/*-------------------------------------------------------------------------
 *
 * link.c
 *	  Links of jobq.signal_link(), which send a signal without a log-in.
 *
 * Programs that scan mails follow links.  GET therefore shows a page with a button, and only POST
 * sends the signal.  A browser gets pages, and any other program gets JSON.
 *
 * The statement runs as the program's own role, on a few connections for all strangers.  The
 * function checks the link, and needs no privilege.  A wrong link counts as a failed attempt
 * (attempt.c).
 *
 * client/web/link.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The use of a link: the owner of an attempt. */
typedef struct Use
{
	Statement	statement;
	const char *values[2];		/* the link, and the payload or NULL */
	Attempt    *attempt;
} Use;

/* The answer for each state of a link.  Without a problem: 200. */
typedef struct LinkAnswer
{
	const char *state;
	unsigned	problem;
	const char *says;
} LinkAnswer;

static const LinkAnswer states[] = {
	{"open", 0, NULL},
	{"sent", 0, "Thank you. Your answer has arrived."},
	{"used", 0, "This link has been used, and the answer has arrived."},
	{"expired", MHD_HTTP_GONE, "This link has expired."},
	{"over", MHD_HTTP_GONE, "No answer is needed any more."},
	{NULL}						/* invalid */
};

static void use_done(Statement *statement, PGresult *result, const char *why);

/*
 * The principal for the links of a database: the program's own role.
 */
static Principal *
own_principal(WebDatabase *database)
{
	if (database->own == NULL)
	{
		database->own = principal_make(database, "", NULL, "");
		principal_use(database->own);
	}
	return database->own;
}

/*
 * Decode a part of a form until one of these characters, and append the part as a JSON string.
 * Returns the end of the part.
 */
static const char *
append_form_part(PQExpBuffer json, const char *part, const char *ends)
{
	size_t		length = strcspn(part, ends);
	char	   *text = allocate(length + 1);
	char	   *to = text;

	for (const char *at = part; at < part + length; at++)
	{
		if (percent_decode(at, part + length, to))
			at += 2;
		else
			*to = *at == '+' ? ' ' : *at;
		to++;
	}
	append_json_string(json, text);
	free(text);
	return part + length;
}

/*
 * Return a form as a JSON object.  The caller frees the text.
 */
static char *
form_payload(const char *form)
{
	PQExpBufferData json;

	initPQExpBuffer(&json);
	appendPQExpBufferChar(&json, '{');
	while (*form != '\0')
	{
		if (json.len > 1)
			appendPQExpBufferChar(&json, ',');
		form = append_form_part(&json, form, "=&");
		appendPQExpBufferChar(&json, ':');
		form = append_form_part(&json, form + (*form == '='), "&");
		form += *form == '&';
	}
	appendPQExpBufferChar(&json, '}');
	if (PQExpBufferDataBroken(json))
		fatal(EXIT_REFUSED, "out of memory");
	return json.data;
}

/*
 * Return the payload of a POST, which the caller frees.
 */
static char *
payload_of(Request *request)
{
	const char *type = header_of(request, MHD_HTTP_HEADER_CONTENT_TYPE);

	if (request->body.len == 0)
		return copy_text("{}");
	if (type != NULL && strncasecmp(type, FORM_TYPE, strlen(FORM_TYPE)) == 0)
		return form_payload(request->body.data);
	return copy_text(request->body.data);
}

static void
use_forget(void *owner)
{
	Use		   *use = owner;

	free((char *) use->values[0]);
	free((char *) use->values[1]);
	free(use);
}

/*
 * Callback: the limits allow the attempt.
 */
static void
use_begin(Attempt *attempt)
{
	Use		   *use = attempt_owner(attempt);

	use->attempt = attempt;
	pool_send(own_principal(attempt_database(attempt)), &use->statement);
}

/*
 * GET and POST /signal/{}
 */
void
run_link(Request *request)
{
	Use		   *use = allocate(sizeof(Use));

	use->values[0] = copy_text(request->segment);
	if (strcmp(request->route->method, "POST") == 0)
		use->values[1] = payload_of(request);
	use->statement = (Statement)
	{
		.sql = "SELECT u.state, u.name FROM jobq_internal.use_link($1::pg_catalog.text, $2::pg_catalog.jsonb) AS u",
			.n = 2,.values = use->values,.done = use_done,.owner = use
	};
	attempt_make(request, "", use_begin, use, use_forget);
}

/*
 * Answer with the state of a valid link.
 */
static void
answer_state(Request *request, const LinkAnswer *state, const char *name)
{
	bool		posts = strcmp(request->route->method, "POST") == 0;

	if (wants_page(request))
		answer_page(request, state->problem > 0 ? state->problem : MHD_HTTP_OK, name,
					state->says, state->says == NULL ? "Confirm" : NULL);
	else if (state->problem > 0)
		answer_problem(request, state->problem, state->says);
	else
	{
		PQExpBufferData text;

		initPQExpBuffer(&text);
		appendPQExpBufferStr(&text, "{\"name\":");
		append_json_string(&text, name);
		appendPQExpBuffer(&text, ",\"done\":%s}", state->says != NULL ? "true" : "false");
		if (PQExpBufferDataBroken(text))
			fatal(EXIT_REFUSED, "out of memory");
		answer(request, MHD_HTTP_OK, "application/json", text.data, text.len);
		termPQExpBuffer(&text);
	}
	if (posts && strcmp(state->state, "used") == 0)
		answer_header(request, "Idempotency-Replayed", "true");
}

/*
 * Callback: the link was checked, and its signal sent.
 */
static void
use_done(Statement *statement, PGresult *result, const char *why)
{
	Use		   *use = statement->owner;
	const LinkAnswer *state = states;

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		/* a stranger does not get messages of the server */
		unsigned	status = result == NULL ? MHD_HTTP_SERVICE_UNAVAILABLE : status_of_error(result);

		if (result != NULL && status != MHD_HTTP_BAD_REQUEST)
			error("a link could not be used: %s", PQresultErrorMessage(result));
		(void) why;
		attempt_fails(use->attempt, false, status, status == MHD_HTTP_BAD_REQUEST ? "the body is not valid JSON"
					  : "The link cannot be used now. Try again later.");
		return;
	}
	while (state->state != NULL && strcmp(state->state, PQgetvalue(result, 0, 0)) != 0)
		state++;
	if (PQgetisnull(result, 0, 1) || state->state == NULL)
		attempt_fails(use->attempt, true, MHD_HTTP_NOT_FOUND, "This link is not valid. Perhaps a part of the address is missing.");
	else
	{
		Request    *request = attempt_succeeds(use->attempt);

		if (request != NULL)
			answer_state(request, state, PQgetvalue(result, 0, 1));
	}
}
