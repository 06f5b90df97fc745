/*-------------------------------------------------------------------------
 *
 * loop.c
 *	  Waits for sockets by epoll.
 *
 * What is ready is told of in one turn after another.  A turn may end a request
 * or a connection of which the same turn has another event, so what is watched
 * is freed between two turns.
 *
 * client/loop.c
 *
 *-------------------------------------------------------------------------
 */
#include "web.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define EVENTS_AT_A_TIME	256

double		web_now;

static int	epoll = -1;
static void **garbage;
static int	ngarbage;
static int	garbage_size;

void
loop_open(void)
{
	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		fatal(EXIT_REFUSED, "epoll_create1: %s", strerror(errno));
	web_now = seconds();
}

/*
 * Have watched->ready called when one of these events has come.  Sockets of
 * libpq may be closed and made anew under the same number; so that one was
 * watched before says nothing.
 */
void
loop_watch(Watched *watched, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events,.data.ptr = watched};

	if (watched->fd != fd)
		loop_forget(watched);
	if (epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) != 0 &&
		epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
		fatal(EXIT_REFUSED, "epoll_ctl: %s", strerror(errno));
	watched->fd = fd;
	watched->events = events;
}

void
loop_forget(Watched *watched)
{
	if (watched->fd >= 0)
		epoll_ctl(epoll, EPOLL_CTL_DEL, watched->fd, NULL);
	watched->fd = -1;
	watched->events = 0;
}

/*
 * Free this after the turn.
 */
void
loop_free(void *memory)
{
	if (ngarbage == garbage_size)
	{
		garbage_size = garbage_size > 0 ? 2 * garbage_size : 64;
		garbage = enlarge(garbage, garbage_size * sizeof(void *));
	}
	garbage[ngarbage++] = memory;
}

/*
 * A turn: wait so many seconds at most, and tell whoever has something to do.
 */
void
loop_wait(double patience)
{
	struct epoll_event events[EVENTS_AT_A_TIME];
	int			n;

	while (ngarbage > 0)
		free(garbage[--ngarbage]);
	n = epoll_wait(epoll, events, EVENTS_AT_A_TIME,
				   (int) ceil(fmin(fmax(patience, 0), 60) * 1000));
	web_now = seconds();
	for (int i = 0; i < n; i++)
	{
		Watched    *watched = events[i].data.ptr;

		/* it may have been forgotten in this turn */
		if (watched->fd >= 0)
			watched->ready(watched->owner, events[i].events);
	}
}
