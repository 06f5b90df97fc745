/*-------------------------------------------------------------------------
 *
 * login.c
 *	  Log-ins with a role and its password.
 *
 * client/web/login.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void log_in_proved(Principal *principal, const char *why, bool refused);

/*
 * Callback: the limits allow the attempt.  Its owner is the password.
 */
static void
log_in_begin(Attempt *attempt)
{
	Principal  *principal = principal_make(attempt_database(attempt), attempt_name(attempt),
										   attempt_owner(attempt), NULL);

	principal_use(principal);
	principal->proved = log_in_proved;
	principal->proving = attempt;
	principal_prove(principal);
}

static void
password_forget(void *password)
{
	explicit_bzero(password, strlen(password));
	free(password);
}

/*
 * POST /api/session
 */
void
run_log_in(Request *request)
{
	json_t	   *document = json_loadb(request->body.data, request->body.len, JSON_REJECT_DUPLICATES, NULL);
	const char *role;
	const char *password;

	if (json_unpack_ex(document, NULL, JSON_STRICT, "{s:s, s:s}", "role", &role, "password", &password) != 0 ||
		role[0] == '\0')
		answer_problem(request, MHD_HTTP_BAD_REQUEST, "the body must be {\"role\": \"...\", \"password\": \"...\"}");
	else if (strlen(role) > MOST_OF_ROLE)
		answer_problem(request, MHD_HTTP_BAD_REQUEST, "a role's name has no more than 63 bytes");
	else if (password[0] == '\0')
		/* libpq would look for a password elsewhere */
		answer_problem(request, MHD_HTTP_UNAUTHORIZED, "the password is empty");
	else
		attempt_make(request, role, log_in_begin, copy_text(password), password_forget);
	/* now only the attempt holds the password */
	json_decref(document);
	explicit_bzero(request->body.data, request->body.len);
	resetPQExpBuffer(&request->body);
}

/*
 * The answer to a log-in was sent, or failed.  A session with an undelivered id ends.
 */
static void
log_in_sent(Request *request, bool whole)
{
	Session    *session = request->session;

	if (session != NULL && (!whole || !session->told))
		session_free(session);
}

/*
 * The server has accepted or rejected the password.
 */
static void
log_in_proved(Principal *principal, const char *why, bool refused)
{
	Attempt    *attempt = principal->proving;
	Request    *request;
	Principal  *other;

	if (why != NULL)
	{
		attempt_fails(attempt, refused, refused ? MHD_HTTP_UNAUTHORIZED : MHD_HTTP_SERVICE_UNAVAILABLE, why);
		principal_leave(principal);
		return;
	}

	request = attempt_succeeds(attempt);
	if (request == NULL)
	{
		principal_leave(principal);
		return;
	}
	other = principal_like(principal);
	if (other != NULL)
	{
		principal_use(other);
		principal_leave(principal);
		principal = other;
	}
	request->session = session_make(principal);
	request->sent = log_in_sent;
	request->principal = principal;
	principal_use(principal);
	statement_begin(request);
}
