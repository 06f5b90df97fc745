/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  Statements on the connections of principals.
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

#define CANCEL_TIME		1.0		/* for a cancel request to arrive; then its
								 * connection is closed */
#define ANSWER_TIME		15.0	/* for an answer, beyond the statement timeout */
#define LINE_TIME		15.0	/* for a statement in the queue */
#define CLOSE_AFTER		60.0	/* an idle connection */
#define CLOSE_LARGE_AFTER	1.0 /* an idle connection with memory for large
								 * bodies or results */
#define MAX_WAITING		4		/* waiting connections per principal */

static void pool_connected(Principal *principal);
static void pool_failed(Principal *principal, const char *why, bool refused);
static void pool_ended(Principal *principal, Statement *statement, PGresult *result, const char *why);
static void pool_run(Principal *principal);

static const BackendReports reports = {
	.connected = pool_connected,
	.failed = pool_failed,
	.ended = pool_ended,
};

/*
 * Make the first connection.  principal->proved receives the outcome.
 */
void
principal_prove(Principal *principal)
{
	backend_make(principal, false, &reports);
}

/*
 * Report of a connection: the server has accepted the role.
 */
static void
pool_connected(Principal *principal)
{
	void		(*proved) (Principal *, const char *, bool) = principal->proved;

	principal_use(principal);
	principal->proven = true;
	principal->proved = NULL;
	if (proved != NULL)
		proved(principal, NULL, false);
	pool_run(principal);
	principal_leave(principal);
}

/*
 * Report of a connection: it could not be made.  The queued statements fail, unless another
 * connection of the same kind exists.  "refused": the server does not accept the role or
 * password.  Then all queued statements fail, and all sessions of the principal end.
 */
static void
pool_failed(Principal *principal, const char *why, bool refused)
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
 * Report of a connection: its statement has ended, or a cancel request has.  The
 * connection is idle or closed.
 */
static void
pool_ended(Principal *principal, Statement *statement, PGresult *result, const char *why)
{
	principal_use(principal);
	if (statement != NULL)
		statement->done(statement, result, why);
	pool_run(principal);
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
 * Assign queued statements to idle connections.  If statements are left, make one connection.
 * The report of this connection calls pool_run() again, which makes the next if needed.
 */
static void
pool_run(Principal *principal)
{
	int			wanted[2] = {0, 0}; /* by Statement.waits: connections that
									 * are missing, or too many if negative */

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
		backend_make(principal, false, &reports);
	else if (wanted[true] > 0 && principal->nwaiting < MAX_WAITING)
		backend_make(principal, true, &reports);
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
				/* the report may have closed other connections of the list */
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
