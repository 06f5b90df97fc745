/*-------------------------------------------------------------------------
 *
 * loop.c
 *	  The main loop: waits for sockets by epoll.
 *
 * A round of the loop processes all ready sockets.  A callback may end a request or a
 * connection with another event in the same round.  Memory of watched objects is therefore freed
 * between two rounds.
 *
 * client/web/loop.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

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
 * Call watched->ready after one of these events.  libpq may close a socket and open
 * another under the same number, and the previous registration proves nothing.
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
 * Free memory after this round.
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
 * A round: wait at most "patience" seconds, and call the owners of ready sockets.
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

		/* an earlier event of this round may have removed the watch */
		if (watched->fd >= 0)
			watched->ready(watched->owner, events[i].events);
	}
}
