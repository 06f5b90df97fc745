/*-------------------------------------------------------------------------
 *
 * link.c
 *	  A non-blocking connection that reconnects after a loss.
 *
 * client/link/link.c
 *
 *-------------------------------------------------------------------------
 */
#include "link/link.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRST_PAUSE		0.1
#define LAST_PAUSE		10.0
#define CANCEL_TIME		60		/* for one attempt, in seconds */
#define MOST_FILES		65536	/* most open files of the program */

static void drop(Link *link, const char *why);
static bool send_further(Link *link);

/*
 * Open a link.  The first connection blocks, so that an error ends the program.
 */
void
link_open(Link *link, const char *dbname)
{
	PGconn	   *conn = connect_to(dbname);

	if (conn == NULL)
		exit(EXIT_NO_CONNECTION);
	link_begin(link, dbname, conn);
}

/*
 * Open a link without waiting, with a connection to the database, or NULL.  Without a
 * connection link_go_on() connects, and repeats failed attempts.
 */
void
link_begin(Link *link, const char *dbname, PGconn *conn)
{
	memset(link, 0, sizeof(Link));
	link->dbname = dbname;
	link->conn = conn;
	link->state = conn != NULL ? LINK_IDLE : LINK_DOWN;
	link->pause = FIRST_PAUSE;
	if (conn != NULL)
		PQsetnonblocking(conn, 1);
}

static void
start(Link *link)
{
	const char *keywords[CONNECTION_WORDS + HOST_WORDS];
	const char *values[CONNECTION_WORDS + HOST_WORDS];

	connection_words(link->dbname, keywords, values);
	hosts_add(&link->hosts, keywords, values);
	link->conn = PQconnectStartParams(keywords, values, 1);
	link->since = seconds();
	if (link->conn == NULL || PQstatus(link->conn) == CONNECTION_BAD)
	{
		hosts_answer(&link->hosts);
		drop(link, link->conn != NULL ? PQerrorMessage(link->conn) : "out of memory");
		return;
	}
	hear_notices(link->conn);
	link->patience = hosts_patience(link->conn);
	link->host = PQhost(link->conn);
	link->polling = PGRES_POLLING_WRITING;
	link->state = LINK_CONNECTING;
}

/*
 * Close the connection after a loss or a failed attempt, and schedule a retry.
 */
static void
drop(Link *link, const char *why)
{
	bool		again = link->state == LINK_DOWN || link->state == LINK_CONNECTING;
	double		pause;

	/* a server may accept connections, and close each at once */
	if (!again && seconds() > link->up_since + LAST_PAUSE)
		link->pause = FIRST_PAUSE;
	pause = link->pause * (0.75 + 0.5 * drand48());

	if (trouble_is_news(why))
	{
		/* only the first line of libpq's message for each address */
		say("%s: %.*s; trying again in %.1f s", again ? "no connection" : "the connection is lost",
			(int) strcspn(why, "\n"), why, pause);
		link->loss_was_said = true;
	}
	link->failures = again ? link->failures + 1 : 0;
	link->retry_at = seconds() + pause;
	link->pause = fmin(link->pause * 2, LAST_PAUSE);
	link->state = LINK_DOWN;
	PQclear(link->result);
	link->result = NULL;
	PQfinish(link->conn);
	link->conn = NULL;
}

/*
 * Get the events to poll for; false if there are none.
 */
bool
link_events(Link *link, int *fd, short *events)
{
	if (link->state == LINK_DOWN)
		return false;
	*fd = PQsocket(link->conn);
	*events = POLLIN;
	if (link->state == LINK_CONNECTING && link->polling == PGRES_POLLING_WRITING)
		*events = POLLOUT;
	else if (link->state == LINK_BUSY && send_further(link))
		*events |= POLLOUT;
	return true;
}

/*
 * Continue sending.  Returns true if data is left.
 */
static bool
send_further(Link *link)
{
	bool		more = PQflush(link->conn) == 1;

	if (link->sending && !more)
		link->moved_at = seconds();
	link->sending = more;
	return more;
}

/*
 * When link_go_on() must be called without an event, by seconds().
 */
double
link_due(const Link *link)
{
	return link->state == LINK_DOWN ? link->retry_at
		: link->state == LINK_CONNECTING ? link->since + link->patience
		: link->state == LINK_BUSY ? link->moved_at + link->patience : INFINITY;
}

static void
connect_further(Link *link)
{
	struct pollfd ready = {.fd = PQsocket(link->conn),
	.events = link->polling == PGRES_POLLING_WRITING ? POLLOUT : POLLIN};

	if (poll(&ready, 1, 0) <= 0)
	{
		if (seconds() > link->since + link->patience)
		{
			hosts_silent(&link->hosts, link->conn);
			drop(link, "the server does not answer");
		}
		return;
	}
	link->polling = PQconnectPoll(link->conn);
	if (hosts_begun(link->conn, link->polling, &link->host))
		link->since = seconds();
	if (link->polling == PGRES_POLLING_FAILED)
	{
		hosts_answer(&link->hosts);
		drop(link, PQerrorMessage(link->conn));
	}
	else if (link->polling == PGRES_POLLING_OK)
	{
		if (link->loss_was_said)
			say("connected again, to %s port %s", PQhost(link->conn), PQport(link->conn));
		hosts_answer(&link->hosts);
		link->loss_was_said = false;
		link->failures = 0;
		link->up_since = seconds();
		PQsetnonblocking(link->conn, 1);
		link->state = LINK_IDLE;
	}
}

/*
 * Process input or a timeout.  Returns a complete result, or NULL; the caller clears it.
 * "lost": the link was lost during a statement, and the outcome of the statement is
 * unknown.
 */
PGresult *
link_go_on(Link *link, bool *lost)
{
	PGresult   *result;
	struct pollfd moves;

	*lost = false;
	if (link->state == LINK_DOWN)
	{
		if (seconds() >= link->retry_at)
			start(link);
		return NULL;
	}
	if (link->state == LINK_CONNECTING)
	{
		connect_further(link);
		return NULL;
	}

	/* a transfer may exceed the timeout while data moves */
	moves = (struct pollfd)
	{
		PQsocket(link->conn), link->sending ? POLLIN | POLLOUT : POLLIN, 0
	};
	if (poll(&moves, 1, 0) > 0)
		link->moved_at = seconds();
	if (!PQconsumeInput(link->conn) || PQstatus(link->conn) == CONNECTION_BAD)
	{
		*lost = link->state == LINK_BUSY;
		drop(link, PQerrorMessage(link->conn));
		return NULL;
	}
	if (link->state != LINK_BUSY)
		return NULL;
	while (!PQisBusy(link->conn))
	{
		result = PQgetResult(link->conn);
		if (result == NULL)
		{
			if (PQstatus(link->conn) == CONNECTION_BAD)
			{
				*lost = true;
				drop(link, link->result != NULL ? PQresultErrorMessage(link->result)
					 : PQerrorMessage(link->conn));
				return NULL;
			}
			result = link->result;
			link->result = NULL;
			link->state = LINK_IDLE;
			return result;
		}

		/*
		 * keep the first error, else the last result: the transaction commits
		 * after its rows
		 */
		if (link->result == NULL || PQresultStatus(link->result) != PGRES_FATAL_ERROR)
		{
			PQclear(link->result);
			link->result = result;
		}
		else
			PQclear(result);
	}
	if (seconds() > link->moved_at + link->patience)
	{
		/* else the statement could keep a session on the server */
		link_cancel(link);
		*lost = true;
		drop(link, "the server does not answer");
	}
	return NULL;
}

/*
 * Send a statement.  False if the link is not free.  The link counts as lost after
 * "patience" seconds without traffic.
 */
bool
link_send(Link *link, double patience, const char *sql, int n, const char *const *values)
{
	if (link->state != LINK_IDLE)
		return false;
	if (!PQsendQueryParams(link->conn, sql, n, NULL, values, NULL, NULL, 0))
	{
		drop(link, PQerrorMessage(link->conn));
		return false;
	}
	link->state = LINK_BUSY;
	link->since = link->moved_at = seconds();
	link->sending = false;
	link->patience = patience;
	return true;
}

/*
 * Ask the server to cancel the statement.  The result still arrives.  A separate process
 * sends the request, because the server may not answer.  The process is detached by a
 * double fork.
 */
void
link_cancel(Link *link)
{
	char		why[256];
	PGcancel   *cancel = link->state == LINK_BUSY ? PQgetCancel(link->conn) : NULL;
	pid_t		child;

	if (cancel == NULL)
		return;
	fflush(NULL);
	child = fork();
	if (child == 0)
	{
		if (fork() == 0)
		{
			/* inherited sockets and pipes must not outlive the parent */
			for (long fd = fmin(sysconf(_SC_OPEN_MAX), MOST_FILES); fd > STDERR_FILENO; fd--)
				close((int) fd);
			alarm(CANCEL_TIME);
			(void) PQcancel(cancel, why, sizeof(why));
		}
		_exit(0);
	}
	if (child > 0)
		(void) waitpid(child, NULL, 0);
	PQfreeCancel(cancel);
}

void
link_close(Link *link)
{
	PQclear(link->result);
	PQfinish(link->conn);
	hosts_free(&link->hosts);
	memset(link, 0, sizeof(Link));
}
