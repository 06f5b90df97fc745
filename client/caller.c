/*-------------------------------------------------------------------------
 *
 * caller.c
 *	  Connections of callers: for how long they may be there, and which of them
 *	  makes room for others.
 *
 * A caller has so much time for a request, however many bytes come meanwhile.
 * After that its connection is shut down.
 *
 * A connection belongs to the crowd of the principal that was shown on it last, or
 * to that of strangers.  Of principals' there are as many as may be, and beside them
 * a few strangers, since each who comes is one until he has said who he is.  If
 * there are too many of these, the one that came first goes.  So callers who are
 * somebody are not kept out by those who are nobody, however many these are.
 *
 * If there are too many of principals, the largest crowd loses the connection that
 * was used longest ago.  So neither does a principal keep out the others, however
 * many connections it makes.
 *
 * Crowds are kept by their size, as thousands of connections may come and go: none
 * of them looks at all others.
 *
 * client/caller.c
 *
 *-------------------------------------------------------------------------
 */
#include "web.h"

#include <math.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <sys/socket.h>

#define RECEIVE_TIME	20.0	/* for a request */
#define SEND_TIME		60.0	/* for an answer */
#define MAX_ENDING		64		/* that are shut down, beside those that may
								 * be there */
#define MAX_STRANGERS	32		/* that may be there in any case */

TAILQ_HEAD(CallerList, Caller);
TAILQ_HEAD(CrowdList, Crowd);

/* A connection of a caller. */
struct Caller
{
	TAILQ_ENTRY(Caller) all;
	TAILQ_ENTRY(Caller) crowded;
	struct Crowd *crowd;		/* NULL: it is shut down */
	int			fd;
	double		deadline;
};

/* The connections of a principal. */
typedef struct Crowd
{
	TAILQ_ENTRY(Crowd) same_size;
	Principal  *principal;		/* NULL: strangers */
	struct CallerList callers;	/* that which was used longest ago first; of
								 * strangers, that which came first */
	int			n;
} Crowd;

static struct CallerList callers = TAILQ_HEAD_INITIALIZER(callers);
static Crowd strangers =
{
	.callers = TAILQ_HEAD_INITIALIZER(strangers.callers)
};
static struct CrowdList *by_size;	/* of principals, up to one more than may
									 * be */
static int	largest;			/* of their sizes, or 0 */
static int	nknown;				/* callers who are no strangers */

/*
 * How many connections are there at most, with those that are being shut down.
 */
unsigned
callers_most(void)
{
	return web.clients + MAX_STRANGERS + MAX_ENDING;
}

/*
 * A crowd has one caller more, or one less.
 */
static void
crowd_change(Crowd *crowd, int change)
{
	if (crowd->principal == NULL)
	{
		crowd->n += change;
		return;
	}
	nknown += change;
	if (crowd->n > 0)
		TAILQ_REMOVE(&by_size[crowd->n], crowd, same_size);
	crowd->n += change;
	if (crowd->n == 0)
	{
		crowd->principal->crowd = NULL;
		free(crowd);
	}
	else
	{
		TAILQ_INSERT_TAIL(&by_size[crowd->n], crowd, same_size);
		if (crowd->n > largest)
			largest = crowd->n;
	}
	while (largest > 0 && TAILQ_EMPTY(&by_size[largest]))
		largest--;
}

static void
crowd_leave(Caller *caller)
{
	Crowd	   *crowd = caller->crowd;

	if (crowd == NULL)
		return;
	TAILQ_REMOVE(&crowd->callers, caller, crowded);
	caller->crowd = NULL;
	crowd_change(crowd, -1);
}

static void
crowd_join(Caller *caller, Crowd *crowd)
{
	TAILQ_INSERT_TAIL(&crowd->callers, caller, crowded);
	caller->crowd = crowd;
	crowd_change(crowd, 1);
}

static Crowd *
crowd_of(Principal *principal)
{
	Crowd	   *crowd;

	if (principal == NULL)
		return &strangers;
	if (principal->crowd != NULL)
		return principal->crowd;
	crowd = allocate(sizeof(Crowd));
	crowd->principal = principal;
	TAILQ_INIT(&crowd->callers);
	principal->crowd = crowd;
	return crowd;
}

static void
caller_end(Caller *caller)
{
	if (caller->crowd == NULL)
		return;
	crowd_leave(caller);
	shutdown(caller->fd, SHUT_RDWR);
	caller->deadline = INFINITY;
}

/*
 * If there are too many callers, some have to go.
 */
static void
callers_make_room(void)
{
	while (nknown > web.clients)
		caller_end(TAILQ_FIRST(&TAILQ_FIRST(&by_size[largest])->callers));
	while (strangers.n > MAX_STRANGERS && nknown + strangers.n > web.clients)
		caller_end(TAILQ_FIRST(&strangers.callers));
}

/*
 * A caller has come.
 */
Caller *
caller_make(int fd)
{
	Caller	   *caller = allocate(sizeof(Caller));

	if (by_size == NULL)
	{
		by_size = allocate((web.clients + 2) * sizeof(struct CrowdList));
		for (int i = 0; i < web.clients + 2; i++)
			TAILQ_INIT(&by_size[i]);
	}
	caller->fd = fd;
	caller->deadline = web_now + RECEIVE_TIME;
	TAILQ_INSERT_HEAD(&callers, caller, all);
	crowd_join(caller, &strangers);
	callers_make_room();
	return caller;
}

/*
 * Its connection is closed.
 */
void
caller_free(Caller *caller)
{
	crowd_leave(caller);
	TAILQ_REMOVE(&callers, caller, all);
	free(caller);
}

/*
 * It has asked as this principal, or, with NULL, as one that there is not.
 */
void
caller_is(Caller *caller, Principal *principal)
{
	/* a stranger who asks again is no newer */
	if (caller->crowd == NULL || (principal == NULL && caller->crowd == &strangers))
		return;
	if (principal != NULL && caller->crowd == principal->crowd)
	{
		TAILQ_REMOVE(&caller->crowd->callers, caller, crowded);
		TAILQ_INSERT_TAIL(&caller->crowd->callers, caller, crowded);
		return;
	}
	crowd_leave(caller);
	crowd_join(caller, crowd_of(principal));
	callers_make_room();
}

/*
 * The principal is to be no one any more: nor are those who were it.
 */
void
callers_forget(Principal *principal)
{
	while (principal->crowd != NULL)
	{
		Caller	   *caller = TAILQ_FIRST(&principal->crowd->callers);

		crowd_leave(caller);
		crowd_join(caller, &strangers);
	}
	callers_make_room();
}

/*
 * A request of the caller begins; all of it is there; its answer is there; or that was
 * sent, and the next request may begin.
 */
void
caller_begins(Caller *caller)
{
	if (caller->crowd != NULL)
		caller->deadline = web_now + RECEIVE_TIME;
}

void
caller_waits(Caller *caller)
{
	caller->deadline = INFINITY;
}

void
caller_is_answered(Caller *caller)
{
	if (caller->crowd != NULL)
		caller->deadline = web_now + SEND_TIME;
}

void
caller_rests(Caller *caller)
{
	if (caller->crowd != NULL)
		caller->deadline = web_now + IDLE_TIME;
}

/*
 * Shut down whoever takes too long.
 */
void
callers_tick(void)
{
	for (Caller *caller = TAILQ_FIRST(&callers); caller != NULL; caller = TAILQ_NEXT(caller, all))
		if (web_now > caller->deadline)
			caller_end(caller);
}
