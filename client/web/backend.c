/*-------------------------------------------------------------------------
 *
 * backend.c
 *	  A connection of a principal to the database.
 *
 * The program connects only with the password given by the caller.  A password file is
 * never used.  Nor may the server accept the identity of the program itself, by "peer"
 * for example.  The program therefore refuses a role if the server asks for no password,
 * unless --allow-trust is set.  A token with a connection string is exempt, and
 * so are the links of link.c, which use the program's own role.
 *
 * A connection runs one statement at a time.  A cancel request uses a connection of its
 * own, and may arrive after the end of its statement.  Therefore the next statement
 * waits until the server has processed the cancel request.
 *
 * A connection reports to its owner, pool.c, through BackendReports.
 *
 * client/web/backend.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define MAX_WORDS		64
#define LARGE_MESSAGE	(1024 * 1024)	/* bytes; libpq keeps a buffer of this
										 * size */

/* A cancel request.  PQcancel() blocks, so a thread calls it. */
struct Cancel
{
	PGcancel   *request;
	Backend    *backend;		/* NULL: closed */
};

/* A pipe: each thread writes the address of its Cancel after PQcancel() has returned. */
static int	cancels[2] = {-1, -1};
static Watched cancels_watched = {.fd = -1};
static int	ncancels;			/* in progress */

static void hear_nothing(void *nobody, const PGresult *result);
static void backend_ready(void *owner, uint32_t events);
static void backend_watch(Backend *backend);
static void backend_failed(Backend *backend);

static Hosts *
hosts_of(Principal *principal)
{
	return principal->conninfo != NULL ? &principal->hosts : &principal->database->hosts;
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
 * Start a connection, which reports to its owner.  A start may fail at once.
 */
void
backend_make(Principal *principal, bool waits, const BackendReports *reports)
{
	const char *words[MAX_WORDS + HOST_WORDS + 1];
	const char *values[MAX_WORDS + HOST_WORDS + 1];
	PQconninfoOption *own = NULL;
	Backend    *backend = allocate(sizeof(Backend));
	int			n = 0;

	connection_words(principal->database->dbname, words, values);
	while (words[n] != NULL)
	{
		/*
		 * for another role, leave out the role and the password of the
		 * program
		 */
		if (principal->role[0] != '\0' &&
			(strcmp(words[n], "user") == 0 || strcmp(words[n], "password") == 0))
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
			/* of several databases, the parameter of a token chooses one */
			if (option->val != NULL && n < MAX_WORDS && (nweb_databases == 1 || strcmp(option->keyword, "dbname") != 0))
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
	hosts_add(hosts_of(principal), words, values);

	backend->principal = principal;
	backend->reports = reports;
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
	backend->patience = hosts_patience(backend->conn);
	backend->host = PQhost(backend->conn);
	/* notices may contain text of the role, so keep them out of the log */
	PQsetNoticeReceiver(backend->conn, hear_nothing, NULL);
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
hear_nothing(void *nobody, const PGresult *result)
{
	(void) nobody;
	(void) result;
}

static void
backend_watch(Backend *backend)
{
	uint32_t	events = EPOLLIN;

	if (backend->state == BACKEND_CONNECTING)
		events = backend->polling == PGRES_POLLING_WRITING ? EPOLLOUT : EPOLLIN;
	else if (PQflush(backend->conn) == 1)
		events |= EPOLLOUT;
	/* libpq may have opened a new socket with the same number */
	if (backend->state == BACKEND_CONNECTING || backend->watched.events != events)
		loop_watch(&backend->watched, PQsocket(backend->conn), events);
}

/*
 * Close a connection without a report.  Its memory is freed after this round of the loop.
 */
void
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
	if (backend->cancel != NULL)
		backend->cancel->backend = NULL;
	loop_forget(&backend->watched);
	PQclear(backend->result);
	PQfinish(backend->conn);
	backend->conn = NULL;
	loop_free(backend);
}

/*
 * Close a connection that could not be made, and report the failure.
 */
static void
backend_refuse(Backend *backend, const char *why, bool refused)
{
	backend_drop(backend);
	backend->reports->failed(backend->principal, why, refused);
}

/*
 * The server has not answered for too long.  Further attempts try the silent address
 * last, until another address is silent.
 */
void
backend_silent(Backend *backend)
{
	if (backend->state == BACKEND_CONNECTING)
		hosts_silent(hosts_of(backend->principal), backend->conn);
	backend_refuse(backend, "the database server does not answer", false);
}

/*
 * The connection has failed.  libpq reports the SQLSTATE only in the verbose message:
 * "FATAL:  28P01: password authentication failed", in any language.  Class 28 and 42501
 * (no CONNECT privilege) count as a refusal of the role.  All other errors may be
 * temporary.
 */
static void
backend_failed(Backend *backend)
{
	const char *message = PQerrorMessage(backend->conn);
	const char *said = message;
	bool		refused = false;
	char	   *why;

	/* with several addresses, the error of the last address counts */
	for (const char *at = message; (at = strstr(at, ":  ")) != NULL; at += 3)
		if (strspn(at + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && strncmp(at + 8, ": ", 2) == 0)
		{
			said = at + 10;
			refused = strncmp(at + 3, "28", 2) == 0 || strncmp(at + 3, "42501", 5) == 0;
		}
	why = copy_text(said);
	why[strcspn(why, "\n")] = '\0';
	backend_refuse(backend, why, refused);
	free(why);
}

/*
 * The role is authenticated: send the settings for all statements, in one round trip.  A
 * page of jobs must be read from the newest job on until the page is full.  The planner
 * cannot estimate the number of jobs in a state, and would rather sort all jobs.
 * enable_sort = off prevents the sort.  jit = off saves compilation, which is not
 * worthwhile for statements of a few milliseconds.
 */
static void
backend_connected(Backend *backend)
{
	char		sql[512];

	if (backend->principal->conninfo == NULL && !web.allow_trust &&
		!PQconnectionUsedPassword(backend->conn))
	{
		backend_refuse(backend, "the database server asks for no password, so anybody could log in", true);
		return;
	}
	snprintf(sql, sizeof(sql), "SET search_path = pg_catalog; SET statement_timeout = %d; "
			 "SET lock_timeout = 0; SET idle_in_transaction_session_timeout = '60s'; "
			 "SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; "
			 "SET enable_sort = off; SET jit = off; SET client_min_messages = error; "
			 "SET default_transaction_read_only = %s; SET application_name = 'jobq web'",
			 statement_time(backend->waits), web.read_only ? "on" : "off");
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
 * The connection is lost.  A running statement ends without a result.
 */
void
backend_lost(Backend *backend)
{
	char	   *why = copy_text(PQerrorMessage(backend->conn));
	Statement  *statement = backend->statement;

	if (backend->state == BACKEND_SETTING)
	{
		free(why);
		backend_failed(backend);
		return;
	}
	why[strcspn(why, "\n")] = '\0';
	backend->statement = NULL;
	if (statement != NULL)
		statement->backend = NULL;
	backend_drop(backend);
	backend->reports->ended(backend->principal, statement, NULL,
							why[0] != '\0' ? why : "the connection to the database is lost");
	free(why);
}

/*
 * Callback of the event loop: read from the server.
 */
static void
backend_ready(void *owner, uint32_t events)
{
	Backend    *backend = owner;
	PGresult   *result;

	(void) events;
	if (backend->state == BACKEND_CONNECTING)
	{
		/* libpq may close the socket and open a new one */
		backend->polling = PQconnectPoll(backend->conn);
		if (hosts_begun(backend->conn, backend->polling, &backend->host))
			backend->since = web_now;
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
	while ((backend->state == BACKEND_SETTING || backend->state == BACKEND_BUSY) &&
		   !PQisBusy(backend->conn))
	{
		result = PQgetResult(backend->conn);
		if (result != NULL)
		{
			/* keep the first error, or else the last result */
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
		if (backend->state == BACKEND_SETTING && PQresultStatus(result) != PGRES_COMMAND_OK)
		{
			PQclear(result);
			backend_failed(backend);
			return;
		}
		backend->since = web_now;
		if (backend->state == BACKEND_SETTING)
		{
			backend->state = BACKEND_IDLE;
			backend->reports->connected(backend->principal);
		}
		else
		{
			Statement  *statement = backend->statement;

			backend->large |= PQresultMemorySize(result) > LARGE_MESSAGE;
			backend->state = backend->cancel != NULL ? BACKEND_CANCELLED : BACKEND_IDLE;
			backend->statement = NULL;
			statement->backend = NULL;
			backend->reports->ended(backend->principal, statement, result, NULL);
		}
		PQclear(result);
		return;
	}
	backend_watch(backend);
}

/*
 * Send a statement on an idle connection.  False if the connection is lost:
 * the owner has the report.
 */
bool
backend_send(Backend *backend, Statement *statement)
{
	size_t		length = 0;

	for (int i = 0; i < statement->n; i++)
		length += statement->values[i] != NULL ? strlen(statement->values[i]) : 0;
	backend->large |= length > LARGE_MESSAGE;
	backend->statement = statement;
	backend->state = BACKEND_BUSY;
	backend->since = web_now;
	statement->backend = backend;
	if (!PQsendQueryParams(backend->conn, statement->sql, statement->n, NULL,
						   statement->values, NULL, NULL, 0))
	{
		backend_lost(backend);
		return false;
	}
	backend_watch(backend);
	return true;
}

static void *
cancel_thread(void *argument)
{
	struct Cancel *cancel = argument;
	char		why[256];

	/* returns when the server has closed the cancel connection */
	PQcancel(cancel->request, why, sizeof(why));
	PQfreeCancel(cancel->request);
	if (write(cancels[1], &cancel, sizeof(cancel)) != sizeof(cancel))
		fatal(EXIT_REFUSED, "could not write to a pipe: %s", strerror(errno));
	return NULL;
}

/*
 * Callback of the event loop: cancel threads have ended, and their connections may run
 * statements again.
 */
static void
cancels_ready(void *owner, uint32_t events)
{
	struct Cancel *cancel;

	(void) owner;
	(void) events;
	while (read(cancels[0], &cancel, sizeof(cancel)) == sizeof(cancel))
	{
		Backend    *backend = cancel->backend;

		free(cancel);
		ncancels--;
		if (backend == NULL)
			continue;
		backend->cancel = NULL;
		if (backend->state == BACKEND_CANCELLED)
		{
			backend->state = BACKEND_IDLE;
			backend->since = web_now;
			backend->reports->ended(backend->principal, NULL, NULL, NULL);
		}
	}
}

/*
 * Ask the server to cancel a running statement.  The statement still gets a result.
 */
void
backend_cancel(Statement *statement)
{
	Backend    *backend = statement->backend;
	PGcancel   *request = backend != NULL && backend->cancel == NULL ? PQgetCancel(backend->conn) : NULL;
	pthread_attr_t attributes;
	pthread_t	thread;

	if (request == NULL)
		return;
	if (cancels[0] < 0)
	{
		if (pipe2(cancels, O_CLOEXEC) != 0 || fcntl(cancels[0], F_SETFL, O_NONBLOCK) != 0)
			fatal(EXIT_REFUSED, "could not make a pipe: %s", strerror(errno));
		cancels_watched.ready = cancels_ready;
		loop_watch(&cancels_watched, cancels[0], EPOLLIN);
	}
	backend->cancel = allocate(sizeof(struct Cancel));
	backend->cancel->request = request;
	backend->cancel->backend = backend;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attributes, cancel_thread, backend->cancel) == 0)
		ncancels++;
	else
	{
		PQfreeCancel(request);
		free(backend->cancel);
		backend->cancel = NULL;
	}
	pthread_attr_destroy(&attributes);
}

/*
 * True while cancel requests are in progress.
 */
bool
backend_cancels(void)
{
	return ncancels > 0;
}

/*
 * Cancel the statement of a connection, and close the connection without waiting for the
 * server.
 */
void
backend_end(Backend *backend)
{
	if (backend->statement != NULL)
		backend_cancel(backend->statement);
	backend_drop(backend);
}
