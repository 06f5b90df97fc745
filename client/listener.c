/*-------------------------------------------------------------------------
 *
 * listener.c
 *	  The connection that listens for changes of jobs, for all callers.
 *
 * It is of this program's own role, and made anew when it is lost.  The database
 * says on channel jobq_job_ID that a job has changed, if it has "watch".
 *
 * client/listener.c
 *
 *-------------------------------------------------------------------------
 */
#include "link.h"
#include "web.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define LISTEN_TIME		15.0	/* for an answer, in seconds */

/* A channel that somebody wants to be told of. */
typedef struct Channel
{
	struct Channel *next;
	int64_t		job;
	int			users;
	bool		listening;
} Channel;

static Link listener;
static Watched listener_watched = {.fd = -1};
static Channel *channels;

static void listener_run(void);

/*
 * So many callers more, or less, want to be told of changes of a job.
 */
void
listen_to(int64_t job, int users)
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
	channel->users += users;
	listener_run();
}

/*
 * Have the connection listen to what is wanted, a channel at a time.
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
 * The connection that listens has something to say, or is to be made anew.
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
		/* its socket is closed, and the number may soon be another's */
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
			stream_job_changed(job);
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
 * The first connection is waited for, so that what is wrong with it ends the
 * program.
 */
void
listener_open(void)
{
	listener_watched.ready = listener_ready;
	link_open(&listener);
}

/*
 * What it is time for.
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
