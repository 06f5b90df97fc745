/*-------------------------------------------------------------------------
 *
 * listener.c
 *	  The connection to each database that listens for changes of jobs, for all callers.
 *
 * The connection uses the program's own role, and reconnects after a loss.  The database
 * notifies the channel jobq_job_ID after a change of a job with "watch".
 *
 * client/web/listener.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define LISTEN_TIME		15.0	/* for an answer, in seconds */

static void listener_run(WebDatabase *database);

/*
 * Return the channel of a job, for a listener that calls listener_leave() later.
 */
Channel *
listener_join(WebDatabase *database, int64_t job)
{
	Channel    *channel = database->channels;

	while (channel != NULL && channel->job != job)
		channel = channel->next;
	if (channel == NULL)
	{
		channel = allocate(sizeof(Channel));
		channel->job = job;
		channel->next = database->channels;
		database->channels = channel;
	}
	channel->users++;
	listener_run(database);
	return channel;
}

void
listener_leave(WebDatabase *database, Channel *channel)
{
	channel->users--;
	listener_run(database);
}

/*
 * Note that a job has changed.
 */
static void
channel_changed(WebDatabase *database, int64_t job)
{
	for (Channel *channel = database->channels; channel != NULL; channel = channel->next)
		if (channel->job == job)
			channel->changes++;
}

/*
 * Send LISTEN or UNLISTEN for the next changed channel, if the connection is idle.  Channels
 * without users and without LISTEN are freed also while there is no connection: callers may come
 * and go then.
 */
static void
listener_run(WebDatabase *database)
{
	for (Channel **at = &database->channels; *at != NULL;)
	{
		Channel    *channel = *at;
		char		sql[64];

		if (channel->users == 0 && !channel->listening)
		{
			*at = channel->next;
			free(channel);
			continue;
		}
		if (channel->listening == (channel->users > 0) || database->listener.state != LINK_IDLE)
		{
			at = &channel->next;
			continue;
		}
		snprintf(sql, sizeof(sql), "%s jobq_job_%lld", channel->users > 0 ? "LISTEN" : "UNLISTEN",
				 (long long) channel->job);
		if (link_send(&database->listener, LISTEN_TIME, sql, 0, NULL))
			channel->listening = channel->users > 0;
	}
}

/*
 * Watch the current socket.
 */
static void
listener_watch(WebDatabase *database)
{
	int			fd;
	short		events;

	if (link_events(&database->listener, &fd, &events))
		loop_watch(&database->watched, fd, (events & POLLIN ? EPOLLIN : 0) | (events & POLLOUT ? EPOLLOUT : 0));
	else
		database->watched.fd = -1;
}

/*
 * Process input of the connection, or reconnect.
 */
static void
listener_go_on(WebDatabase *database)
{
	Link	   *link = &database->listener;
	bool		was_there = link->state == LINK_IDLE || link->state == LINK_BUSY;
	bool		lost;
	PGresult   *result = link_go_on(link, &lost);
	PGnotify   *notify;

	PQclear(result);
	if (link->state == LINK_DOWN || link->state == LINK_CONNECTING)
	{
		/* the number of a closed socket may soon be reused */
		listener_watch(database);
		if (was_there)
			for (Channel *channel = database->channels; channel != NULL; channel = channel->next)
				channel->listening = false;
		return;
	}
	while ((notify = PQnotifies(link->conn)) != NULL)
	{
		long long	job = strncmp(notify->relname, "jobq_job_", 9) == 0 ? atoll(notify->relname + 9) : 0;

		if (job > 0)
			channel_changed(database, job);
		PQfreemem(notify);
	}
	listener_run(database);
}

static void
listener_ready(void *owner, uint32_t events)
{
	(void) events;
	listener_go_on(owner);
}

/*
 * Watch the connections, which web_databases_open() has opened.
 */
void
listener_open(void)
{
	for (int i = 0; i < nweb_databases; i++)
		web_databases[i].watched = (Watched)
	{
		.ready = listener_ready,.owner = &web_databases[i],.fd = -1
	};
}

/*
 * Handle timeouts, and watch the current sockets.
 */
void
listener_tick(void)
{
	for (int i = 0; i < nweb_databases; i++)
	{
		WebDatabase *database = &web_databases[i];

		if (link_due(&database->listener) <= web_now)
			listener_go_on(database);
		listener_watch(database);
	}
}

static bool
is_connected(const WebDatabase *database)
{
	return database->listener.state == LINK_IDLE || database->listener.state == LINK_BUSY;
}

/*
 * GET /healthz: whether the database of the path can be reached, or any database if the path
 * names none.
 */
void
run_health(Request *request)
{
	static const char good[] = "{\"status\":\"ok\"}\n";
	bool		connected = is_connected(request->database);

	for (int i = 0; i < nweb_databases && !request->named; i++)
		connected |= is_connected(&web_databases[i]);
	if (connected)
		answer(request, MHD_HTTP_OK, "application/json", good, strlen(good));
	else
		answer_no_connection(request, "there is no connection to the database");
}

/*
 * GET /api/databases.  "root" leads from the console's address to the root of the server, from
 * where "path" leads to the console of a database.
 */
void
run_databases(Request *request)
{
	PQExpBufferData text;

	initPQExpBuffer(&text);
	appendPQExpBuffer(&text, "{\"root\":\"%s\",\"current\":", request->named ? "../../" : "");
	append_json_string(&text, request->database->label);
	appendPQExpBufferStr(&text, ",\"items\":[");
	for (int i = 0; i < nweb_databases; i++)
	{
		appendPQExpBufferStr(&text, i > 0 ? ",{\"name\":" : "{\"name\":");
		append_json_string(&text, web_databases[i].label);
		appendPQExpBuffer(&text, ",\"path\":\"db/%s/\",\"connected\":%s}", web_databases[i].segment,
						  is_connected(&web_databases[i]) ? "true" : "false");
	}
	appendPQExpBufferStr(&text, "]}");
	if (PQExpBufferDataBroken(text))
		fatal(EXIT_REFUSED, "out of memory");
	answer(request, MHD_HTTP_OK, "application/json", text.data, text.len);
	termPQExpBuffer(&text);
}

void
listener_close(void)
{
	for (int i = 0; i < nweb_databases; i++)
		link_close(&web_databases[i].listener);
}
