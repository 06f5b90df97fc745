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
 * A connection is made with the password that the caller has given, and never
 * with another one: not with that of a password file, and not by what else the
 * server takes for proof of who this program is.  So a role for which the server
 * asks for no password is refused, unless --allow-trust was said.
 *
 * client/pool.c
 *
 *-------------------------------------------------------------------------
 */
#include "web.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define CONNECT_TIME	15.0
#define LINE_TIME		15.0	/* for a statement, to come to its turn */
#define CLOSE_AFTER		60.0	/* a connection that nobody needs */
#define MAX_WAITING		4		/* of a principal */
#define MAX_WORDS		64

Principal  *principals;

static void backend_make(Principal *principal, bool waits);
static void backend_ready(void *owner, uint32_t events);
static void backend_watch(Backend *backend);
static void backend_connected(Backend *backend);
static void backend_failed(Backend *backend);
static void backend_drop(Backend *backend);
static void backend_lost(Backend *backend);
static void principal_failed(Principal *principal, const char *why, bool refused);
static void pool_run(Principal *principal);
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
	while (principal->backends != NULL)
		backend_drop(principal->backends);
	while (*at != principal)
		at = &(*at)->next;
	*at = principal->next;
	free(principal->role);
	forget_password(principal->password);
	forget_password(principal->conninfo);
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
 * The connection could not be made: nobody who waits for one will get it.
 */
static void
principal_failed(Principal *principal, const char *why, bool refused)
{
	void		(*proved) (Principal *, const char *, bool) = principal->proved;

	principal_use(principal);
	principal->proved = NULL;
	if (proved != NULL)
		proved(principal, why, refused);

	/*
	 * those that run have a connection; the password may have been changed
	 * since
	 */
	if (principal->nbackends == 0 || refused)
	{
		Statement  *statement = principal->first;

		principal->first = principal->last = NULL;
		for (Statement *next; statement != NULL; statement = next)
		{
			next = statement->next;
			statement->done(statement, NULL, why);
		}
	}
	if (refused)
		sessions_end(principal);
	principal_leave(principal);
}

static void
backend_make(Principal *principal, bool waits)
{
	const char *words[MAX_WORDS + 1];
	const char *values[MAX_WORDS + 1];
	PQconninfoOption *own = NULL;
	Backend    *backend = allocate(sizeof(Backend));
	int			n = 0;

	connection_words(words, values);
	while (words[n] != NULL)
	{
		/* the program's own role and password are not the caller's */
		if (strcmp(words[n], "user") == 0 || strcmp(words[n], "password") == 0)
		{
			for (int i = n; words[i] != NULL; i++)
			{
				words[i] = words[i + 1];
				values[i] = values[i + 1];
			}
			continue;
		}
		n++;
	}
	if (principal->conninfo != NULL)
	{
		own = PQconninfoParse(principal->conninfo, NULL);
		for (PQconninfoOption *option = own; option != NULL && option->keyword != NULL; option++)
			if (option->val != NULL && n < MAX_WORDS)
			{
				words[n] = option->keyword;
				values[n++] = option->val;
			}
	}
	else
	{
		words[n] = "user";
		values[n++] = principal->role;
		words[n] = "password";
		values[n++] = principal->password;
		words[n] = "passfile";
		values[n++] = "/dev/null";
	}
	words[n] = values[n] = NULL;

	backend->principal = principal;
	backend->waits = waits;
	backend->watched = (Watched)
	{
		.ready = backend_ready,.owner = backend,.fd = -1
	};
	backend->state = BACKEND_CONNECTING;
	backend->since = web_now;
	backend->next = principal->backends;
	principal->backends = backend;
	if (waits)
		principal->nwaiting++;
	else
		principal->nbackends++;
	backend->conn = PQconnectStartParams(words, values, 1);
	PQconninfoFree(own);
	if (backend->conn == NULL)
		fatal(EXIT_REFUSED, "out of memory");
	PQsetErrorVerbosity(backend->conn, PQERRORS_VERBOSE);
	if (PQstatus(backend->conn) == CONNECTION_BAD)
	{
		backend_failed(backend);
		return;
	}
	backend->polling = PGRES_POLLING_WRITING;
	backend_watch(backend);
}

static void
backend_watch(Backend *backend)
{
	uint32_t	events = EPOLLIN;

	if (backend->state == BACKEND_CONNECTING)
		events = backend->polling == PGRES_POLLING_WRITING ? EPOLLOUT : EPOLLIN;
	else if (PQflush(backend->conn) == 1)
		events |= EPOLLOUT;
	/* while it connects, the socket may be another one under the same number */
	if (backend->state == BACKEND_CONNECTING || backend->watched.events != events)
		loop_watch(&backend->watched, PQsocket(backend->conn), events);
}

static void
backend_drop(Backend *backend)
{
	Principal  *principal = backend->principal;
	Backend   **at = &principal->backends;

	while (*at != backend)
		at = &(*at)->next;
	*at = backend->next;
	if (backend->waits)
		principal->nwaiting--;
	else
		principal->nbackends--;
	loop_forget(&backend->watched);
	PQclear(backend->result);
	PQfinish(backend->conn);
	backend->conn = NULL;
	loop_free(backend);
}

/*
 * There was no connection.  libpq has no SQLSTATE for that but in its message, if
 * that is verbose: "FATAL:  28P01: password authentication failed", in whichever
 * language.  Only class 28, and that the role may not connect, is said of the
 * role; all else may be better soon.
 */
static void
backend_failed(Backend *backend)
{
	Principal  *principal = backend->principal;
	const char *message = PQerrorMessage(backend->conn);
	const char *said = message;
	bool		refused = false;
	char	   *why;

	/* of several addresses, the last counts */
	for (const char *at = message; (at = strstr(at, ":  ")) != NULL; at += 3)
		if (strspn(at + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && strncmp(at + 8, ": ", 2) == 0)
		{
			said = at + 10;
			refused = strncmp(at + 3, "28", 2) == 0 || strncmp(at + 3, "42501", 5) == 0;
		}
	why = copy_text(said);
	why[strcspn(why, "\n")] = '\0';
	principal_use(principal);
	backend_drop(backend);
	principal_failed(principal, why, refused);
	principal_leave(principal);
	free(why);
}

/*
 * The role may be what it says.  The settings that all statements need are one
 * round trip.  A page of jobs is to be read from the newest on until it is full,
 * though the planner, which cannot tell how many jobs are in a state, would rather
 * sort them all; so it is kept from that, and from compiling for what takes a few
 * milliseconds.
 */
static void
backend_connected(Backend *backend)
{
	char		sql[512];

	if (backend->principal->conninfo == NULL && !web.allow_trust &&
		!PQconnectionUsedPassword(backend->conn))
	{
		Principal  *principal = backend->principal;

		principal_use(principal);
		backend_drop(backend);
		principal_failed(principal, "the database server asks for no password, so anybody could log in", true);
		principal_leave(principal);
		return;
	}
	snprintf(sql, sizeof(sql), "SET search_path = pg_catalog; SET statement_timeout = %d; "
			 "SET lock_timeout = 0; SET idle_in_transaction_session_timeout = '60s'; "
			 "SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; "
			 "SET enable_sort = off; SET jit = off; "
			 "SET default_transaction_read_only = %s; SET application_name = 'jobq web'",
			 backend->waits ? 0 : web.timeout, web.read_only ? "on" : "off");
	PQsetErrorVerbosity(backend->conn, PQERRORS_DEFAULT);
	PQsetnonblocking(backend->conn, 1);
	backend->state = BACKEND_SETTING;
	backend->since = web_now;
	if (!PQsendQuery(backend->conn, sql))
		backend_failed(backend);
	else
		backend_watch(backend);
}

/*
 * The connection is lost, perhaps with a statement under way.
 */
static void
backend_lost(Backend *backend)
{
	Principal  *principal = backend->principal;
	char	   *why = copy_text(PQerrorMessage(backend->conn));
	Statement  *statement = backend->statement;

	if (backend->state == BACKEND_SETTING)
	{
		free(why);
		backend_failed(backend);
		return;
	}
	why[strcspn(why, "\n")] = '\0';
	principal_use(principal);
	backend->statement = NULL;
	backend_drop(backend);
	if (statement != NULL)
	{
		statement->backend = NULL;
		statement->done(statement, NULL, why[0] != '\0' ? why : "the connection to the database is lost");
	}
	pool_run(principal);
	principal_leave(principal);
	free(why);
}

/*
 * Something has come from the server.
 */
static void
backend_ready(void *owner, uint32_t events)
{
	Backend    *backend = owner;
	Principal  *principal = backend->principal;
	PGresult   *result;

	(void) events;
	if (backend->state == BACKEND_CONNECTING)
	{
		/* libpq may close the socket, and have another one after */
		backend->polling = PQconnectPoll(backend->conn);
		if (backend->polling == PGRES_POLLING_FAILED)
			backend_failed(backend);
		else if (backend->polling == PGRES_POLLING_OK)
			backend_connected(backend);
		else
			backend_watch(backend);
		return;
	}
	if (!PQconsumeInput(backend->conn) || PQstatus(backend->conn) == CONNECTION_BAD)
	{
		backend_lost(backend);
		return;
	}
	while (backend->state != BACKEND_IDLE && !PQisBusy(backend->conn))
	{
		result = PQgetResult(backend->conn);
		if (result != NULL)
		{
			/* of several, the first that is an error counts, else the last */
			if (backend->result == NULL || PQresultStatus(backend->result) != PGRES_FATAL_ERROR)
			{
				PQclear(backend->result);
				backend->result = result;
			}
			else
				PQclear(result);
			continue;
		}
		if (PQstatus(backend->conn) == CONNECTION_BAD)
		{
			backend_lost(backend);
			return;
		}
		result = backend->result;
		backend->result = NULL;
		principal_use(principal);
		if (backend->state == BACKEND_SETTING)
		{
			void		(*proved) (Principal *, const char *, bool) = principal->proved;

			backend->state = BACKEND_IDLE;
			principal->proven = true;
			principal->proved = NULL;
			if (proved != NULL)
				proved(principal, NULL, false);
		}
		else
		{
			Statement  *statement = backend->statement;

			backend->state = BACKEND_IDLE;
			backend->statement = NULL;
			statement->backend = NULL;
			statement->done(statement, result, NULL);
		}
		backend->since = web_now;
		PQclear(result);
		pool_run(principal);
		principal_leave(principal);
		return;
	}
	backend_watch(backend);
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
static void
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
		backend->statement = statement;
		backend->state = BACKEND_BUSY;
		backend->since = web_now;
		statement->backend = backend;
		if (!PQsendQueryParams(backend->conn, statement->sql, statement->n, NULL,
							   statement->values, NULL, NULL, 0))
		{
			/* this looks at the line anew */
			backend_lost(backend);
			return;
		}
		backend_watch(backend);
	}
	for (Backend *backend = principal->backends; backend != NULL; backend = backend->next)
		if (backend->state < BACKEND_IDLE)
			wanted[backend->waits]--;

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

static void *
cancel_thread(void *argument)
{
	char		why[256];

	PQcancel(argument, why, sizeof(why));
	PQfreeCancel(argument);
	return NULL;
}

/*
 * Ask the server to end a statement.  Its result comes all the same.  libpq waits
 * while it asks, so a thread does.
 */
void
pool_cancel(Statement *statement)
{
	PGcancel   *cancel = statement->backend != NULL ? PQgetCancel(statement->backend->conn) : NULL;
	pthread_attr_t attributes;
	pthread_t	thread;

	if (cancel == NULL)
		return;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attributes, cancel_thread, cancel) != 0)
		PQfreeCancel(cancel);
	pthread_attr_destroy(&attributes);
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
			if (backend->state == BACKEND_IDLE && web_now > backend->since + CLOSE_AFTER)
				backend_drop(backend);
			else if (backend->state < BACKEND_IDLE && web_now > backend->since + CONNECT_TIME)
			{
				backend_drop(backend);
				principal_failed(principal, "the database server does not answer", false);
				break;
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
		{
			if (principal->backends->statement != NULL)
			{
				char		why[256];
				PGcancel   *cancel = PQgetCancel(principal->backends->conn);

				if (cancel != NULL)
					PQcancel(cancel, why, sizeof(why));
				PQfreeCancel(cancel);
			}
			backend_drop(principal->backends);
		}
}
