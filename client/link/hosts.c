/*-------------------------------------------------------------------------
 *
 * hosts.c
 *	  The server to which a connection is tried first.
 *
 * client/link/hosts.c
 *
 *-------------------------------------------------------------------------
 */
#include "link/link.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CONNECT_TIME		15.0	/* seconds, without a connect_timeout */
#define SHORTEST_CONNECT	2.0 /* as libpq has it */
#define MOST_PLACES			64	/* addresses of all hosts */

/* An address of a server.  Unused fields are empty strings. */
typedef struct Place
{
	char	   *host;
	char	   *address;
	char	   *port;
} Place;

static void
forget(char **text)
{
	free(*text);
	*text = NULL;
}

/*
 * Return the number of elements of a comma-separated list.
 */
static int
length_of(const char *list)
{
	int			n = list != NULL;

	for (const char *c = list; c != NULL && *c != '\0'; c++)
		n += *c == ',';
	return n;
}

/*
 * Return a copy of element n of a list, which may be empty.  A single element applies
 * to all hosts.
 */
static char *
element(const char *list, int n)
{
	char	   *one;

	if (list == NULL)
		return copy_text("");
	for (int i = 0; i < n && strchr(list, ',') != NULL; i++)
		list = strchr(list, ',') + 1;
	one = copy_text(list);
	one[strcspn(one, ",")] = '\0';
	return one;
}

static const char *
option_of(PQconninfoOption *options, const char *name)
{
	for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++)
		if (strcmp(option->keyword, name) == 0 && option->val != NULL && option->val[0] != '\0')
			return option->val;
	return NULL;
}

/*
 * Return the timeout for each address of a connection attempt, in seconds.
 */
double
hosts_patience(PGconn *conn)
{
	PQconninfoOption *options = PQconninfo(conn);
	const char *timeout = option_of(options, "connect_timeout");
	double		given = timeout != NULL ? strtod(timeout, NULL) : 0;

	PQconninfoFree(options);
	return given <= 0 ? CONNECT_TIME : given < SHORTEST_CONNECT ? SHORTEST_CONNECT : given;
}

/*
 * True if PQconnectPoll(), which has just returned "polling", has begun with another
 * address.  PQhost() then returns another pointer than "host", or the host is the
 * same and the attempt has started again.
 */
bool
hosts_begun(PGconn *conn, PostgresPollingStatusType polling, const char **host)
{
	const char *before = *host;

	*host = PQhost(conn);
	return *host != before || (polling == PGRES_POLLING_WRITING && PQstatus(conn) == CONNECTION_STARTED);
}

/*
 * Resolve a host.  If the host has no address now, return the name alone, so that
 * libpq reports the error.
 */
static int
resolve(const char *host, const char *port, Place *places, int room)
{
	struct addrinfo wanted = {.ai_family = AF_UNSPEC,.ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	int			n = 0;

	if (getaddrinfo(host, NULL, &wanted, &found) != 0)
		found = NULL;
	for (struct addrinfo *one = found; one != NULL && n < room; one = one->ai_next)
	{
		char		address[NI_MAXHOST];

		if (getnameinfo(one->ai_addr, one->ai_addrlen, address, sizeof(address), NULL, 0, NI_NUMERICHOST) == 0)
			places[n++] = (Place)
		{
			copy_text(host), copy_text(address), copy_text(port)
		};
	}
	if (found != NULL)
		freeaddrinfo(found);
	if (n == 0)
		places[n++] = (Place)
	{
		copy_text(host), copy_text(""), copy_text(port)
	};
	return n;
}

/*
 * Return all addresses in the order of libpq, at most MOST_PLACES.
 */
static int
places_of(const Hosts *hosts, Place *places)
{
	int			nhosts = length_of(hosts->addresses != NULL ? hosts->addresses : hosts->hosts);
	int			n = 0;

	for (int i = 0; i < nhosts && n < MOST_PLACES; i++)
	{
		char	   *host = element(hosts->hosts, i);
		char	   *address = element(hosts->addresses, i);
		char	   *port = element(hosts->ports, i);

		/* an address, a socket or an empty host needs no lookup */
		if (address[0] == '\0' && host[0] != '\0' && host[0] != '/' && host[0] != '@')
		{
			n += resolve(host, port, places + n, MOST_PLACES - n);
			free(host);
			free(address);
			free(port);
		}
		else
			places[n++] = (Place)
		{
			host, address, port
		};
	}
	return n;
}

static bool
is_silent(const Hosts *hosts, const Place *place)
{
	return strcmp(place->host[0] != '\0' ? place->host : place->address, hosts->host) == 0 &&
		strcmp(place->address, hosts->address) == 0 &&
		(place->port[0] == '\0' || strcmp(place->port, hosts->port) == 0);
}

/*
 * If an address was silent, append parameters that put this address last.  The lists
 * end with NULL.  Names are resolved again each time, because their addresses may
 * have changed.
 */
void
hosts_add(Hosts *hosts, const char **keywords, const char **values)
{
	static const char *const names[HOST_WORDS] = {"host", "hostaddr", "port"};
	Place		places[MOST_PLACES];
	PQExpBufferData lists[HOST_WORDS];
	bool		given[HOST_WORDS] = {false, false, false};
	int			n;
	int			first = 0;

	if (hosts->host == NULL)
		return;
	n = places_of(hosts, places);
	for (int i = 0; i < n; i++)
		if (is_silent(hosts, &places[i]))
			first = i + 1;
	for (int i = 0; i < HOST_WORDS; i++)
		initPQExpBuffer(&lists[i]);
	for (int i = 0; i < n; i++)
	{
		const Place *place = &places[(first + i) % n];
		const char *const texts[HOST_WORDS] = {place->host, place->address, place->port};

		for (int j = 0; j < HOST_WORDS; j++)
		{
			appendPQExpBuffer(&lists[j], "%s%s", i > 0 ? "," : "", texts[j]);
			given[j] |= texts[j][0] != '\0';
		}
	}
	while (*keywords != NULL)
	{
		keywords++;
		values++;
	}
	for (int i = 0; i < HOST_WORDS; i++)
	{
		if (PQExpBufferDataBroken(lists[i]))
			fatal(EXIT_REFUSED, "out of memory");
		free(hosts->words[i]);
		hosts->words[i] = lists[i].data;
		if (n > 1 && given[i])
		{
			*keywords++ = names[i];
			*values++ = hosts->words[i];
		}
	}
	*keywords = NULL;
	*values = NULL;
	for (int i = 0; i < n; i++)
	{
		free(places[i].host);
		free(places[i].address);
		free(places[i].port);
	}
}

/*
 * The current address of this connection attempt does not answer.
 */
void
hosts_silent(Hosts *hosts, PGconn *conn)
{
	if (!hosts->known)
	{
		/* before the first silence, the lists are still as configured */
		PQconninfoOption *options = PQconninfo(conn);
		const char *names[HOST_WORDS] = {"host", "hostaddr", "port"};
		char	  **lists[HOST_WORDS] = {&hosts->hosts, &hosts->addresses, &hosts->ports};

		for (int i = 0; i < HOST_WORDS; i++)
		{
			const char *list = option_of(options, names[i]);

			*lists[i] = list != NULL ? copy_text(list) : NULL;
		}
		hosts->known = options != NULL;
		PQconninfoFree(options);
	}
	hosts_answer(hosts);
	hosts->host = copy_text(PQhost(conn) != NULL ? PQhost(conn) : "");
	hosts->address = copy_text(PQhostaddr(conn) != NULL ? PQhostaddr(conn) : "");
	hosts->port = copy_text(PQport(conn) != NULL ? PQport(conn) : "");
}

/*
 * A suitable server has answered, or all servers have.  The next attempt uses the
 * configured order.
 */
void
hosts_answer(Hosts *hosts)
{
	forget(&hosts->host);
	forget(&hosts->address);
	forget(&hosts->port);
}

void
hosts_free(Hosts *hosts)
{
	hosts_answer(hosts);
	forget(&hosts->hosts);
	forget(&hosts->addresses);
	forget(&hosts->ports);
	for (int i = 0; i < HOST_WORDS; i++)
		forget(&hosts->words[i]);
	hosts->known = false;
}
