/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  Principals, and statements on their connections.
 *
 * A principal's statements wait in line for one of its few connections, which
 * are made when they are needed and closed when they were not for a minute.
 * Statements that wait for jobs (gateway.c) have connections of their own, so
 * that they keep no others from theirs.
 *
 * client/pool.c
 *
 *-------------------------------------------------------------------------
 */
#include "web.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANCEL_TIME		1.0		/* until what cancels has come, or its
								 * connection is closed */
#define ANSWER_TIME		15.0	/* for an answer, beyond what the statement
								 * may take */
#define LINE_TIME		15.0	/* for a statement, to come to its turn */
#define CLOSE_AFTER		60.0	/* a connection that nobody needs */
#define CLOSE_LARGE_AFTER	1.0 /* one that has memory for large results */
#define MAX_WAITING		4		/* of a principal */

Principal  *principals;

static void forget_password(char *password);

/*
 * A principal that nobody uses yet: of a role and its password, or of a token's
 * connection string.
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
 * Another one of the same role and password that was proven, or NULL.
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
 * The last who leaves closes the connections.
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
 * Make the first connection, and have principal->proved called.
 */
void
principal_prove(Principal *principal)
{
	backend_make(principal, false);
}

/*
 * How long a statement may take in the database, in milliseconds.  One that waits for
 * jobs may be held up by a lock when it has taken them; they are nobody's until then,
 * so it is to end there, and give them back, before it is given up here.
 */
int
statement_time(bool waits)
{
	return web.timeout + (waits ? (int) (GATE_WAIT * 1000) : 0);
}

/*
 * A connection could not be made: nobody who waits for one will get it, unless there
 * is another one of its kind.  "refused" says that the role may not connect as it is.
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
	 * those that run have a connection; the password may have been changed
	 * since
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
 * Have a statement done when it is its turn.
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
 * Give the statements that wait to connections, and make connections for those
 * that are left.
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
		/* if it is lost, this looks at the line anew */
		if (!backend_send(backend, statement))
			return;
	}
	for (Backend *backend = principal->backends; backend != NULL; backend = backend->next)
		if (backend->state < BACKEND_IDLE || backend->state == BACKEND_CANCELLED)
			wanted[backend->waits]--;	/* is there soon */

	/*
	 * if one cannot be made, those who wait have been told, or others serve
	 * them
	 */
	if (wanted[false] > 0 && principal->nbackends < web.connections)
		backend_make(principal, false);
	else if (wanted[true] > 0 && principal->nwaiting < MAX_WAITING)
		backend_make(principal, true);
}

/*
 * Take a statement out of the line.  False if it has left it.
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
 * What has waited for too long, and what nobody needs.
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
				/* it may have taken jobs, which nobody would get */
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
 * The program ends: what runs is ended with it.
 */
void
pool_close(void)
{
	for (Principal *principal = principals; principal != NULL; principal = principal->next)
		while (principal->backends != NULL)
			backend_end(principal->backends);
}
