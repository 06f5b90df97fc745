/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  Principals, and statements on their connections.
 *
 * The statements of a principal wait in a queue for its few connections.  Connections are
 * made on demand, and closed after a minute without use.  Statements that wait for jobs
 * (gateway.c) have separate connections, and never delay the rest.
 *
 * client/web/pool.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANCEL_TIME		1.0		/* for a cancel request to arrive; then its
								 * connection is closed */
#define ANSWER_TIME		15.0	/* for an answer, beyond the statement timeout */
#define LINE_TIME		15.0	/* for a statement in the queue */
#define CLOSE_AFTER		60.0	/* an idle connection */
#define CLOSE_LARGE_AFTER	1.0 /* an idle connection with memory for large
								 * results */
#define MAX_WAITING		4		/* waiting connections per principal */

Principal  *principals;

static void forget_password(char *password);

/*
 * Make a principal without users, from a role and password, or from the connection string
 * of a token.
 */
Principal *
principal_make(const char *role, const char *password, const char *conninfo)
{
	Principal  *principal = allocate(sizeof(Principal));

	principal->role = copy_text(role);
	principal->password = password != NULL ? copy_text(password) : NULL;
	principal->conninfo = conninfo != NULL ? copy_text(conninfo) : NULL;
	principal->hide_payload = payload_hidden(role, conninfo != NULL);
	principal->next = principals;
	principals = principal;
	return principal;
}

/*
 * Find another proven principal with the same role and password, or NULL.
 */
Principal *
principal_like(const Principal *other)
{
	for (Principal *principal = principals; principal != NULL; principal = principal->next)
		if (principal != other && principal->proven && principal->conninfo == NULL &&
			other->conninfo == NULL && strcmp(principal->role, other->role) == 0 &&
			secret_equal(principal->password, other->password))
			return principal;
	return NULL;
}

void
principal_use(Principal *principal)
{
	principal->users++;
}

/*
 * Drop a use.  The last user closes the connections.
 */
void
principal_leave(Principal *principal)
{
	Principal **at = &principals;

	if (--principal->users > 0)
		return;
	callers_forget(principal);
	while (principal->backends != NULL)
		backend_drop(principal->backends);
	while (*at != principal)
		at = &(*at)->next;
	*at = principal->next;
	free(principal->role);
	forget_password(principal->password);
	forget_password(principal->conninfo);
	hosts_free(&principal->hosts);
	free(principal->look);
	loop_free(principal);
}

static void
forget_password(char *password)
{
	if (password != NULL)
		explicit_bzero(password, strlen(password));
	free(password);
}

/*
 * Make the first connection.  principal->proved receives the outcome.
 */
void
principal_prove(Principal *principal)
{
	backend_make(principal, false);
}

/*
 * The statement timeout in the database, in milliseconds.  A statement that waits for
 * jobs may be delayed by a lock after it has reserved jobs.  No consumer has the jobs
 * then.  The database must end the statement and roll back before the client gives up.
 */
int
statement_time(bool waits)
{
	return web.timeout + (waits ? (int) (GATE_WAIT * 1000) : 0);
}

/*
 * A connection could not be made.  The waiting statements fail, unless another connection
 * of the same kind exists.  "refused": the server does not accept the role or password.
 */
void
principal_failed(Principal *principal, const char *why, bool refused)
{
	void		(*proved) (Principal *, const char *, bool) = principal->proved;
	Statement  *ended = NULL;
	Statement **ended_at = &ended;

	principal_use(principal);
	principal->proved = NULL;
	if (proved != NULL)
		proved(principal, why, refused);

	/*
	 * running statements have a connection; the password may have been
	 * changed since
	 */
	for (Statement **at = &principal->first; *at != NULL;)
	{
		Statement  *statement = *at;

		if (!refused && (statement->waits ? principal->nwaiting : principal->nbackends) > 0)
		{
			at = &statement->next;
			principal->last = statement;
			continue;
		}
		*at = statement->next;
		*ended_at = statement;
		ended_at = &statement->next;
	}
	*ended_at = NULL;
	if (principal->first == NULL)
		principal->last = NULL;
	for (Statement *next; ended != NULL; ended = next)
	{
		next = ended->next;
		ended->done(ended, NULL, why);
	}
	if (refused)
		sessions_end(principal);
	principal_leave(principal);
}

/*
 * Append a statement to the queue.
 */
void
pool_send(Principal *principal, Statement *statement)
{
	statement->next = NULL;
	statement->backend = NULL;
	statement->since = web_now;
	if (principal->last != NULL)
		principal->last->next = statement;
	else
		principal->first = statement;
	principal->last = statement;
	pool_run(principal);
}

/*
 * Assign queued statements to idle connections, and make connections for the rest.
 */
void
pool_run(Principal *principal)
{
	int			wanted[2] = {0, 0};

	for (Statement *statement = principal->first, *after; statement != NULL; statement = after)
	{
		Backend    *backend = principal->backends;

		after = statement->next;
		while (backend != NULL && (backend->state != BACKEND_IDLE || backend->waits != statement->waits))
			backend = backend->next;
		if (backend == NULL)
		{
			wanted[statement->waits]++;
			continue;
		}
		pool_withdraw(principal, statement);
		/* if the connection is lost, pool_run() is called again */
		if (!backend_send(backend, statement))
			return;
	}
	for (Backend *backend = principal->backends; backend != NULL; backend = backend->next)
		if (backend->state < BACKEND_IDLE || backend->state == BACKEND_CANCELLED)
			wanted[backend->waits]--;	/* soon available */

	/*
	 * if this fails, the queued statements have failed too, or use other
	 * connections
	 */
	if (wanted[false] > 0 && principal->nbackends < web.connections)
		backend_make(principal, false);
	else if (wanted[true] > 0 && principal->nwaiting < MAX_WAITING)
		backend_make(principal, true);
}

/*
 * Remove a statement from the queue.  False if it was not there.
 */
bool
pool_withdraw(Principal *principal, Statement *statement)
{
	Statement  *before = NULL;

	for (Statement *s = principal->first; s != NULL; before = s, s = s->next)
		if (s == statement)
		{
			if (before != NULL)
				before->next = s->next;
			else
				principal->first = s->next;
			if (principal->last == s)
				principal->last = before;
			return true;
		}
	return false;
}

/*
 * Enforce the timeouts of statements and connections.
 */
void
pool_tick(void)
{
	for (Principal *principal = principals, *next; principal != NULL; principal = next)
	{
		principal_use(principal);
		for (Backend *backend = principal->backends, *after; backend != NULL; backend = after)
		{
			after = backend->next;
			if (backend->state == BACKEND_IDLE && web_now > backend->since + (backend->large ? CLOSE_LARGE_AFTER : CLOSE_AFTER))
				backend_drop(backend);
			else if (backend->state < BACKEND_IDLE && web_now > backend->since + backend->patience)
			{
				backend_silent(backend);
				break;
			}
			else if (backend->state == BACKEND_BUSY &&
					 web_now > backend->since + statement_time(backend->waits) / 1000.0 + ANSWER_TIME)
			{
				/* cancel: reserved jobs would reach no consumer */
				backend_cancel(backend->statement);
				backend_lost(backend);
				break;
			}
			else if (backend->state == BACKEND_CANCELLED && web_now > backend->since + CANCEL_TIME)
			{
				backend_drop(backend);
				pool_run(principal);
			}
		}
		while (principal->first != NULL && web_now > principal->first->since + LINE_TIME)
		{
			Statement  *statement = principal->first;

			pool_withdraw(principal, statement);
			statement->done(statement, NULL, "all connections of this role are busy");
		}
		next = principal->next;
		principal_leave(principal);
	}
}

/*
 * The program ends, and running statements with it.
 */
void
pool_close(void)
{
	for (Principal *principal = principals; principal != NULL; principal = principal->next)
		while (principal->backends != NULL)
			backend_end(principal->backends);
}
