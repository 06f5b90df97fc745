/*-------------------------------------------------------------------------
 *
 * caller.c
 *	  Connections of callers: their time limits, and which connection is shut down to
 *	  make room.
 *
 * Each phase of a request has a time limit, however many bytes arrive meanwhile.  After
 * the limit the connection is shut down.
 *
 * A connection belongs to a crowd: the crowd of the last principal shown on it, or the
 * crowd of strangers from its address.  Each connection is a stranger's until a token or
 * a session is shown.  Principals may have --max-clients connections in all, and a few
 * strangers are allowed beside them.  If a side has too many, its largest crowd loses a
 * connection.  A principal loses the least recently used connection, an address the
 * oldest.  No principal and no address can therefore keep others out by opening many
 * connections.
 *
 * Memory for received bodies and unsent answers is limited in the same way, per crowd and
 * in all.  Beyond the limit, connections of the crowd are shut down, the slow callers
 * first.  A slow caller has neither sent nor read for SLOW_TIME.  An answer may also
 * replace callers in CALLER_SENDS.  If no such caller exists, the request for memory
 * fails.  A caller that keeps reading is therefore never shut down for its own crowd.  If
 * the total is too large, the crowd with the most memory makes room for other crowds, at
 * last with any of its callers.
 *
 * Crowds are listed by their number of connections, so that a new connection never scans
 * all crowds.
 *
 * client/web/caller.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

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
#define SLOW_TIME		5.0		/* without a byte: the caller is slow */
#define MAX_ENDING		64		/* being shut down, beside the open
								 * connections */
#define MAX_STRANGERS	32		/* always allowed */
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
	struct Crowd *crowd;		/* NULL: being shut down */
	int			fd;
	Address		address;
	enum
	{
		CALLER_SENDS,			/* a request */
		CALLER_WAITS,			/* for an answer, or for an event */
		CALLER_READS,			/* an answer, or an event */
		CALLER_RESTS			/* between two requests */
	}			state;			/* repeated in this order */
	double		deadline;
	size_t		kept;			/* bytes for this caller */
	double		moved;			/* time of the last byte sent or read */
	int			queued;			/* last send queue of the kernel, bytes */
	void		(*release) (void *owner);	/* frees the memory; or NULL */
	void	   *owner;
};

/* Connections of principals, or of strangers. */
typedef struct Side
{
	struct CrowdList *by_size;	/* indexed by connections of a crowd */
	int			largest;		/* size of the largest crowd, or 0 */
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
	struct CallerList callers;	/* principal: least recently used first;
								 * strangers: oldest first */
	int			n;
	size_t		kept;			/* bytes, for all of them */
} Crowd;

static struct CallerList callers = TAILQ_HEAD_INITIALIZER(callers);
static Side known;
static Side strangers;
static LIST_HEAD(, Crowd) by_address[ADDRESS_LISTS];
static size_t kept;				/* bytes, for all callers */

/*
 * Return the maximum number of connections, including connections in shutdown.
 */
unsigned
callers_most(void)
{
	return web.clients + MAX_STRANGERS + MAX_ENDING;
}

/*
 * Add 1 to the number of callers of a crowd, or subtract 1.  Frees an empty crowd.
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
 * Return the crowd of a principal, or, with NULL, of strangers from an address.
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
 * Shut down connections while there are too many.
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
 * Note progress of a reading caller: the kernel's send queue is shorter than before.
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
 * True if a caller has neither sent nor read for SLOW_TIME.  If the socket is ready, the
 * delay is on the side of this program, and the caller is not slow.
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
 * Choose a caller of the crowd to shut down, or NULL.  "newer" is the caller of the same
 * crowd for which room is made.  NULL: the room is for another crowd.
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
 * Set the number of bytes kept for a caller.  If the crowd or the total exceeds its
 * limit, other callers are shut down.  False if the limit is still exceeded: the caller
 * of this function must then drop the bytes.
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
 * Set a function that frees the memory of a caller at shutdown, before the connection is
 * closed.  NULL removes the function.
 */
void
caller_releases(Caller *caller, void (*release) (void *owner), void *owner)
{
	caller->release = release;
	caller->owner = owner;
}

/*
 * Note progress: a part of the request arrived, a part of the answer was read, or the
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
 * Use 64 bits of an IPv6 address, because a caller may own the whole /64 network.
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
 * Register a new connection.
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
 * Free the caller after its connection is closed.
 */
void
caller_free(Caller *caller)
{
	crowd_leave(caller);
	TAILQ_REMOVE(&callers, caller, all);
	free(caller);
}

/*
 * The caller has authenticated as this principal, or failed to authenticate (NULL).
 */
void
caller_is(Caller *caller, Principal *principal)
{
	/* a stranger keeps its position when it sends another request */
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
 * The principal is no longer valid.  Its callers become strangers.
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
 * The states of a caller, in order: the request begins; the request is complete; the
 * answer begins; the answer was sent.
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
 * Shut down callers after their deadline, and note the progress of readers.
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
