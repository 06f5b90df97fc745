/*-------------------------------------------------------------------------
 *
 * listener.c
 *	  The connection that listens for changes of jobs, for all callers.
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

static Link listener;
static Watched listener_watched = {.fd = -1};
static Channel *channels;

static void listener_run(void);

/*
 * Return the channel of a job, for a listener that calls listener_leave() later.
 */
Channel *
listener_join(int64_t job)
{
	Channel    *channel = channels;

	while (channel != NULL && channel->job != job)
		channel = channel->next;
	if (channel == NULL)
	{
		channel = allocate(sizeof(Channel));
		channel->job = job;
		channel->next = channels;
		channels = channel;
	}
	channel->users++;
	listener_run();
	return channel;
}

void
listener_leave(Channel *channel)
{
	channel->users--;
	listener_run();
}

/*
 * Note that a job has changed.
 */
static void
channel_changed(int64_t job)
{
	for (Channel *channel = channels; channel != NULL; channel = channel->next)
		if (channel->job == job)
			channel->changes++;
}

/*
 * Send LISTEN or UNLISTEN for the next changed channel, if the connection is idle.
 */
static void
listener_run(void)
{
	for (Channel **at = &channels; *at != NULL && listener.state == LINK_IDLE;)
	{
		Channel    *channel = *at;
		char		sql[64];

		if (channel->listening == (channel->users > 0))
		{
			if (channel->listening)
				at = &channel->next;
			else
			{
				*at = channel->next;
				free(channel);
			}
			continue;
		}
		channel->listening = channel->users > 0;
		snprintf(sql, sizeof(sql), "%s jobq_job_%lld", channel->listening ? "LISTEN" : "UNLISTEN",
				 (long long) channel->job);
		link_send(&listener, LISTEN_TIME, sql, 0, NULL);
	}
}

/*
 * Process input of the connection, or reconnect.
 */
static void
listener_go_on(void)
{
	bool		was_there = listener.state == LINK_IDLE || listener.state == LINK_BUSY;
	bool		lost;
	PGresult   *result = link_go_on(&listener, &lost);
	PGnotify   *notify;

	PQclear(result);
	if (listener.state == LINK_DOWN || listener.state == LINK_CONNECTING)
	{
		/* the closed socket's number may soon be reused */
		if (listener.state == LINK_DOWN)
			listener_watched.fd = -1;
		if (was_there)
			for (Channel *channel = channels; channel != NULL; channel = channel->next)
				channel->listening = false;
		return;
	}
	while ((notify = PQnotifies(listener.conn)) != NULL)
	{
		long long	job = strncmp(notify->relname, "jobq_job_", 9) == 0 ? atoll(notify->relname + 9) : 0;

		if (job > 0)
			channel_changed(job);
		PQfreemem(notify);
	}
	listener_run();
}

static void
listener_ready(void *owner, uint32_t events)
{
	(void) owner;
	(void) events;
	listener_go_on();
}

/*
 * Open the connection.  The first attempt blocks, so that an error ends the program.
 */
void
listener_open(void)
{
	listener_watched.ready = listener_ready;
	link_open(&listener, settings.dbname);
}

/*
 * Handle timeouts, and watch the current socket.
 */
void
listener_tick(void)
{
	int			fd;
	short		events;

	if (link_due(&listener) <= web_now)
		listener_go_on();
	if (link_events(&listener, &fd, &events))
		loop_watch(&listener_watched, fd, (events & POLLIN ? EPOLLIN : 0) | (events & POLLOUT ? EPOLLOUT : 0));
	else
		listener_watched.fd = -1;
}

/*
 * GET /healthz
 */
void
run_health(Request *request)
{
	static const char good[] = "{\"status\":\"ok\"}\n";

	if (listener.state == LINK_IDLE || listener.state == LINK_BUSY)
		answer(request, MHD_HTTP_OK, "application/json", good, strlen(good));
	else
		answer_no_connection(request, "there is no connection to the database");
}

void
listener_close(void)
{
	link_close(&listener);
}
