/*-------------------------------------------------------------------------
 *
 * given.c
 *	  Jobs handed to a consumer over HTTP.
 *
 * A caller with the whole answer is responsible for ending the leases.  Jobs of
 * an incomplete answer, and jobs without a caller, go back to their queue at
 * once.  No attempt is charged then.
 *
 * client/web/given.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <stdlib.h>
#include <string.h>

#define LEASE_LOST		"JQ011"

typedef struct Release
{
	Statement	statement;
	Principal  *principal;
	Given	   *given;
	const char *values[2];
} Release;

int			releases_under_way;

static const char release_sql[] = "SELECT jobq.release(j.id, j.token) "
"FROM (SELECT * FROM unnest($1::int8[], $2::int8[]) AS u (id, token) ORDER BY id) AS j";

Given *
given_make(void)
{
	Given	   *given = allocate(sizeof(Given));

	initPQExpBuffer(&given->jobs);
	initPQExpBuffer(&given->ids);
	initPQExpBuffer(&given->tokens);
	appendPQExpBufferStr(&given->jobs, "{\"jobs\":[");
	appendPQExpBufferChar(&given->ids, '{');
	appendPQExpBufferChar(&given->tokens, '{');
	return given;
}

void
given_add(Given *given, const char *id, const char *token, const char *job)
{
	const char *comma = given->n++ > 0 ? "," : "";

	appendPQExpBuffer(&given->ids, "%s%s", comma, id);
	appendPQExpBuffer(&given->tokens, "%s%s", comma, token);
	appendPQExpBufferStr(&given->jobs, comma);
	appendPQExpBufferStr(&given->jobs, job);
}

static void
given_free(Given *given)
{
	termPQExpBuffer(&given->jobs);
	termPQExpBuffer(&given->ids);
	termPQExpBuffer(&given->tokens);
	free(given);
}

/*
 * Release each of several jobs in a separate statement.
 */
static void
give_back_each(Principal *principal, const Given *given)
{
	const char *id = given->ids.data + 1;
	const char *token = given->tokens.data + 1;

	while (*id != '\0')
	{
		Given	   *one = given_make();

		appendPQExpBuffer(&one->ids, "%.*s", (int) strcspn(id, ",}"), id);
		appendPQExpBuffer(&one->tokens, "%.*s", (int) strcspn(token, ",}"), token);
		one->n = 1;
		id += strcspn(id, ",}") + 1;
		token += strcspn(token, ",}") + 1;
		given_back(principal, one);
	}
}

static void
release_done(Statement *statement, PGresult *result, const char *why)
{
	Release    *release = statement->owner;
	Given	   *given = release->given;

	/* a lost lease makes the statement fail for all jobs */
	if (result != NULL && strcmp(sqlstate_of(result), LEASE_LOST) == 0 && strchr(given->ids.data, ',') != NULL)
		give_back_each(release->principal, given);
	else if (result == NULL || PQresultStatus(result) != PGRES_TUPLES_OK)
		say("jobs %s could not be given back: %s", given->ids.data,
			result != NULL ? PQresultErrorMessage(result) : why);
	given_free(release->given);
	releases_under_way--;
	principal_leave(release->principal);
	free(release);
}

/*
 * Release jobs not received by any caller.
 */
void
given_back(Principal *principal, Given *given)
{
	Release    *release;

	if (given->n == 0)
	{
		given_free(given);
		return;
	}
	release = allocate(sizeof(Release));
	appendPQExpBufferChar(&given->ids, '}');
	appendPQExpBufferChar(&given->tokens, '}');
	release->given = given;
	release->principal = principal;
	release->values[0] = given->ids.data;
	release->values[1] = given->tokens.data;
	release->statement = (Statement)
	{
		.sql = release_sql,.n = 2,.values = release->values,.done = release_done,.owner = release
	};
	releases_under_way++;
	principal_use(principal);
	pool_send(principal, &release->statement);
}

/*
 * Callback: the answer was sent, or was not sent as a whole.
 */
static void
given_sent(Request *request, bool whole)
{
	Given	   *given = request->state;

	request->state = NULL;
	if (given == NULL)
		return;
	if (whole)
		given_free(given);
	else
		given_back(request->principal, given);
}

/*
 * Send jobs to a caller.
 */
void
given_hand_over(Request *request, Given *given)
{
	request->state = given;
	request->sent = given_sent;
	request->leave = NULL;
	if (request->refused)
	{
		given_sent(request, false);
		answer_refused(request);
	}
	else if (request_is_gone(request))
		/* given_sent() releases the jobs */
		request_resume(request);
	else
	{
		if (PQExpBufferDataBroken(given->jobs) || PQExpBufferDataBroken(given->ids) ||
			PQExpBufferDataBroken(given->tokens))
			fatal(EXIT_REFUSED, "out of memory");
		answer(request, MHD_HTTP_OK, "application/json", given->jobs.data, given->jobs.len);
		/* the answer has its own copy */
		termPQExpBuffer(&given->jobs);
		initPQExpBuffer(&given->jobs);
	}
}
