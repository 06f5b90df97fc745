/*-------------------------------------------------------------------------
 *
 * hosts.c
 *	  Which of several servers is asked first for a connection.
 *
 * client/hosts.c
 *
 *-------------------------------------------------------------------------
 */
#include "hosts.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CONNECT_TIME		15.0	/* unless there is a connect_timeout */
#define SHORTEST_CONNECT	2.0 /* as libpq has it */
#define MOST_PLACES			64	/* addresses of all hosts */

/* Where a server may be.  Texts that do not matter are empty. */
typedef struct Place
{
	char	   *host;
	char	   *address;
	char	   *port;
} Place;

static void forget(char **text);
static int	length_of(const char *list);
static char *element(const char *list, int n);
static const char *option_of(PQconninfoOption *options, const char *name);
static int	resolve(const char *host, const char *port, Place *places, int room);
static int	places_of(const Hosts *hosts, Place *places);
static bool is_silent(const Hosts *hosts, const Place *place);

static void
forget(char **text)
{
	free(*text);
	*text = NULL;
}

/*
 * How many there are in a list with commas.
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
 * A copy of one of them, which may be empty.  One alone is that of all.
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
 * For how many seconds each address may be silent while a connection is made.
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
 * Has PQconnectPoll(), which has just said this, begun with another address?  That is
 * another host, whose name libpq has elsewhere than at "host", or another address of
 * the same one.
 */
bool
hosts_begun(PGconn *conn, PostgresPollingStatusType polling, const char **host)
{
	const char *before = *host;

	*host = PQhost(conn);
	return *host != before || (polling == PGRES_POLLING_WRITING && PQstatus(conn) == CONNECTION_STARTED);
}

/*
 * The addresses of a host; if there are none now, libpq shall say so.
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
 * All addresses, in the order that libpq tries them: at most MOST_PLACES.
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

		/* others are names of sockets */
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
 * If an address was silent, add words to those of a connection, which are ended by
 * NULL, that have it asked last.  Names are looked up anew, as they may have other
 * addresses now.
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
 * The address that this connection was being made to does not answer.
 */
void
hosts_silent(Hosts *hosts, PGconn *conn)
{
	if (!hosts->known)
	{
		/* nothing was silent before, so these are not ours */
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
 * All have answered, or one that will do: the next attempt has the order that was
 * configured.
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
