/*-------------------------------------------------------------------------
 *
 * caller.c
 *	  Connections of callers: for how long they may be there, and which of them
 *	  makes room for others.
 *
 * A caller has so much time for a request, however many bytes come meanwhile.
 * After that its connection is shut down.
 *
 * A connection belongs to a crowd: that of the principal that was shown on it last, or
 * that of strangers from its address.  Of principals' there are as many as may be, and
 * beside them a few strangers, since each connection is a stranger's until a token or a
 * session is shown.  If there are too many of either side, the largest crowd of that side
 * loses a connection: a principal's that which was used longest ago, an address's the
 * oldest.  So no principal, and no address, keeps others out, however many connections
 * it makes.
 *
 * The same holds for memory: the bodies that have come, and what is still to be sent.
 * What one crowd may have kept is limited, and so is what all of them may.  Beyond that
 * connections are shut down: callers that have neither sent nor read for SLOW_TIME, and
 * then, for an answer, callers that still send.  If there are none, the caller that asks
 * for memory gets none.  So other connections of a crowd never cut off a caller that
 * reads.
 *
 * Crowds are kept by their number of connections, as thousands may come and go: none
 * of them looks at all others.
 *
 * client/caller.c
 *
 *-------------------------------------------------------------------------
 */
#include "web.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/queue.h>
#include <sys/socket.h>

#define RECEIVE_TIME	20.0	/* for a request */
#define SEND_TIME		60.0	/* for an answer */
#define SLOW_TIME		5.0		/* without a byte: the caller makes room */
#define MAX_ENDING		64		/* that are shut down, beside those that may
								 * be there */
#define MAX_STRANGERS	32		/* that may be there in any case */
#define MAX_KEPT		(256 * 1024 * 1024) /* bytes, beside one body of
											 * --max-body */
#define MAX_KEPT_OF_CROWD	(64 * 1024 * 1024)	/* of several connections */
#define ADDRESS_LISTS	1024

TAILQ_HEAD(CallerList, Caller);
TAILQ_HEAD(CrowdList, Crowd);

/* A connection of a caller. */
struct Caller
{
	TAILQ_ENTRY(Caller) all;
	TAILQ_ENTRY(Caller) crowded;
	struct Crowd *crowd;		/* NULL: it is shut down */
	int			fd;
	Address		address;
	enum
	{
		CALLER_SENDS,			/* a request */
		CALLER_WAITS,			/* for an answer, or for an event */
		CALLER_READS,			/* an answer, or an event */
		CALLER_RESTS			/* between two requests */
	}			state;			/* in this order, again and again */
	double		deadline;
	size_t		kept;			/* bytes, for it */
	double		moved;			/* when it has sent or read something */
	int			queued;			/* bytes that the kernel had for it last */
	void		(*release) (void *owner);	/* frees what is kept; or NULL */
	void	   *owner;
};

/* Connections of principals, or of strangers. */
typedef struct Side
{
	struct CrowdList *by_size;	/* up to one more than may be */
	int			largest;		/* of their sizes, or 0 */
	int			n;				/* connections */
} Side;

/* The connections of a principal, or of strangers from an address. */
typedef struct Crowd
{
	TAILQ_ENTRY(Crowd) same_size;
	LIST_ENTRY(Crowd) same_list;	/* of strangers */
	Side	   *side;
	Principal  *principal;		/* NULL: strangers */
	Address		address;		/* of strangers */
	struct CallerList callers;	/* that which was used longest ago first; of
								 * strangers, that which came first */
	int			n;
	size_t		kept;			/* bytes, for all of them */
} Crowd;

static struct CallerList callers = TAILQ_HEAD_INITIALIZER(callers);
static Side known;
static Side strangers;
static LIST_HEAD(, Crowd) by_address[ADDRESS_LISTS];
static size_t kept;				/* bytes, for all callers */

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
	Side	   *side = crowd->side;

	side->n += change;
	if (crowd->n > 0)
		TAILQ_REMOVE(&side->by_size[crowd->n], crowd, same_size);
	crowd->n += change;
	if (crowd->n == 0)
	{
		if (crowd->principal != NULL)
			crowd->principal->crowd = NULL;
		else
			LIST_REMOVE(crowd, same_list);
		free(crowd);
	}
	else
	{
		TAILQ_INSERT_TAIL(&side->by_size[crowd->n], crowd, same_size);
		if (crowd->n > side->largest)
			side->largest = crowd->n;
	}
	while (side->largest > 0 && TAILQ_EMPTY(&side->by_size[side->largest]))
		side->largest--;
}

static void
crowd_leave(Caller *caller)
{
	Crowd	   *crowd = caller->crowd;

	if (crowd == NULL)
		return;
	TAILQ_REMOVE(&crowd->callers, caller, crowded);
	crowd->kept -= caller->kept;
	kept -= caller->kept;
	caller->crowd = NULL;
	crowd_change(crowd, -1);
}

static void
crowd_join(Caller *caller, Crowd *crowd)
{
	TAILQ_INSERT_TAIL(&crowd->callers, caller, crowded);
	crowd->kept += caller->kept;
	kept += caller->kept;
	caller->crowd = crowd;
	crowd_change(crowd, 1);
}

/*
 * The crowd of a principal, or, with NULL, of strangers from an address.
 */
static Crowd *
crowd_of(Principal *principal, const Address *address)
{
	unsigned	hash = 0;
	Crowd	   *crowd;

	for (size_t i = 0; i < sizeof(Address); i++)
		hash = hash * 31 + address->bytes[i];
	hash %= ADDRESS_LISTS;
	if (principal != NULL && principal->crowd != NULL)
		return principal->crowd;
	if (principal == NULL)
		LIST_FOREACH(crowd, &by_address[hash], same_list)
			if (memcmp(&crowd->address, address, sizeof(Address)) == 0)
			return crowd;
	crowd = allocate(sizeof(Crowd));
	TAILQ_INIT(&crowd->callers);
	crowd->side = principal != NULL ? &known : &strangers;
	crowd->principal = principal;
	crowd->address = *address;
	if (principal != NULL)
		principal->crowd = crowd;
	else
		LIST_INSERT_HEAD(&by_address[hash], crowd, same_list);
	return crowd;
}

/*
 * Shut down the connection of a caller.
 */
void
caller_end(Caller *caller)
{
	if (caller->crowd == NULL)
		return;
	crowd_leave(caller);
	shutdown(caller->fd, SHUT_RDWR);
	caller->deadline = INFINITY;
	if (caller->release != NULL)
		caller->release(caller->owner);
}

static void
largest_loses(Side *side)
{
	caller_end(TAILQ_FIRST(&TAILQ_FIRST(&side->by_size[side->largest])->callers));
}

/*
 * If there are too many callers, some have to go.
 */
static void
callers_make_room(void)
{
	while (known.n > web.clients)
		largest_loses(&known);
	while (strangers.n > MAX_STRANGERS && known.n + strangers.n > web.clients)
		largest_loses(&strangers);
}

/*
 * A caller has read if the kernel has less for it than before.
 */
static void
caller_look(Caller *caller)
{
	int			queued;

	if (caller->state != CALLER_READS || ioctl(caller->fd, SIOCOUTQ, &queued) != 0)
		return;
	if (queued < caller->queued)
		caller->moved = web_now;
	caller->queued = queued;
}

/*
 * Whether a caller has neither sent nor read for so long that it makes room.  Where its
 * socket is ready, this program is slow, and not the caller.
 */
static bool
caller_is_slow(Caller *caller)
{
	struct pollfd socket = {.fd = caller->fd};

	if (caller->state == CALLER_WAITS)
		return false;
	caller_look(caller);
	socket.events = caller->state == CALLER_READS ? POLLOUT : POLLIN;
	if (web_now - caller->moved > SLOW_TIME && poll(&socket, 1, 0) > 0 && (socket.revents & socket.events))
		caller->moved = web_now;
	return web_now - caller->moved > SLOW_TIME;
}

/*
 * The caller of a crowd that makes room for another one of it, or, with NULL, for another
 * crowd; or NULL.
 */
static Caller *
crowd_victim(const Crowd *crowd, const Caller *newer)
{
	enum
	{
		SLOW, SENDS, OTHER, NONE
	}			best = newer == NULL ? NONE : newer->state == CALLER_SENDS ? SENDS : OTHER;
	Caller	   *victim = NULL;
	Caller	   *caller;

	TAILQ_FOREACH(caller, &crowd->callers, crowded)
	{
		int			rank;

		if (caller == newer || caller->kept == 0)
			continue;
		rank = caller_is_slow(caller) ? SLOW : caller->state == CALLER_SENDS ? SENDS : OTHER;
		if (rank < (int) best || (victim != NULL && rank == (int) best && caller->moved < victim->moved))
		{
			victim = caller;
			best = rank;
		}
	}
	return victim;
}

/*
 * So many bytes are kept for a caller now.  If that is too much for its crowd, or for all,
 * others make room.  False if none of them can: then they must not be kept.
 */
bool
caller_keeps(Caller *caller, size_t bytes)
{
	Crowd	   *crowd = caller->crowd;
	size_t		before = caller->kept;

	caller->kept = bytes;
	if (crowd == NULL)
		return true;
	crowd->kept += bytes - before;
	kept += bytes - before;
	if (bytes <= before)
		return true;
	while (crowd->kept > MAX_KEPT_OF_CROWD && crowd->kept > bytes)
	{
		Caller	   *victim = crowd_victim(crowd, caller);

		if (victim == NULL)
			return false;
		caller_end(victim);
	}
	while (kept > MAX_KEPT + web.max_body)
	{
		Crowd	   *most = crowd;
		Caller	   *victim;
		Caller	   *other;

		TAILQ_FOREACH(other, &callers, all)
			if (other->crowd != NULL && other->crowd->kept > most->kept)
			most = other->crowd;
		victim = crowd_victim(most, most == crowd ? caller : NULL);
		if (victim == NULL)
			return false;
		caller_end(victim);
	}
	return true;
}

/*
 * Have this called when the caller has to go, so that the memory is free before its
 * connection is closed.  NULL takes that back.
 */
void
caller_releases(Caller *caller, void (*release) (void *owner), void *owner)
{
	caller->release = release;
	caller->owner = owner;
}

/*
 * The caller has sent a part of its request, or read a part of its answer, or its
 * answer begins.
 */
void
caller_moves(Caller *caller)
{
	caller->moved = web_now;
}

const Address *
caller_address(const Caller *caller)
{
	return &caller->address;
}

/*
 * Of IPv6 a caller may have a whole network of 64 bits.
 */
static void
address_set(Address *address, const struct sockaddr *from)
{
	memset(address, 0, sizeof(Address));
	if (from->sa_family == AF_INET6)
	{
		const struct in6_addr *ip = &((const struct sockaddr_in6 *) (const void *) from)->sin6_addr;

		memcpy(address, ip, IN6_IS_ADDR_V4MAPPED(ip) ? 16 : 8);
	}
	else if (from->sa_family == AF_INET)
	{
		address->bytes[10] = address->bytes[11] = 0xff;
		memcpy(address->bytes + 12, &((const struct sockaddr_in *) (const void *) from)->sin_addr, 4);
	}
}

static void
side_open(Side *side, int most)
{
	side->by_size = allocate((most + 2) * sizeof(struct CrowdList));
	for (int i = 0; i < most + 2; i++)
		TAILQ_INIT(&side->by_size[i]);
}

/*
 * A caller has come.
 */
Caller *
caller_make(int fd, const struct sockaddr *address)
{
	Caller	   *caller = allocate(sizeof(Caller));

	if (known.by_size == NULL)
	{
		side_open(&known, callers_most());
		side_open(&strangers, callers_most());
	}
	caller->fd = fd;
	address_set(&caller->address, address);
	caller->moved = web_now;
	caller->deadline = web_now + RECEIVE_TIME;
	TAILQ_INSERT_HEAD(&callers, caller, all);
	crowd_join(caller, crowd_of(NULL, &caller->address));
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
	if (caller->crowd == NULL || (principal == NULL && caller->crowd->principal == NULL))
		return;
	if (principal != NULL && caller->crowd == principal->crowd)
	{
		TAILQ_REMOVE(&caller->crowd->callers, caller, crowded);
		TAILQ_INSERT_TAIL(&caller->crowd->callers, caller, crowded);
		return;
	}
	crowd_leave(caller);
	crowd_join(caller, crowd_of(principal, &caller->address));
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
		crowd_join(caller, crowd_of(NULL, &caller->address));
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
	caller->state = CALLER_SENDS;
	if (caller->crowd != NULL)
		caller->deadline = web_now + RECEIVE_TIME;
}

void
caller_waits(Caller *caller)
{
	caller->state = CALLER_WAITS;
	caller->deadline = INFINITY;
}

void
caller_is_answered(Caller *caller)
{
	caller->state = CALLER_READS;
	if (caller->crowd != NULL)
		caller->deadline = web_now + SEND_TIME;
}

void
caller_rests(Caller *caller)
{
	caller->state = CALLER_RESTS;
	if (caller->crowd != NULL)
		caller->deadline = web_now + IDLE_TIME;
}

/*
 * Shut down callers that take too long, and see which have read.
 */
void
callers_tick(void)
{
	for (Caller *caller = TAILQ_FIRST(&callers); caller != NULL; caller = TAILQ_NEXT(caller, all))
	{
		if (caller->kept > 0)
			caller_look(caller);
		if (web_now > caller->deadline)
			caller_end(caller);
	}
}
