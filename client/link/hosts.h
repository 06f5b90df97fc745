/*-------------------------------------------------------------------------
 *
 * hosts.h
 *	  The server to which a connection is tried first.
 *
 * libpq tries the hosts of a connection string, and all addresses of each
 * host, in order.  connect_timeout applies only to blocking calls:
 * PQconnectPoll() stays at a silent address.  A caller of PQconnectPoll()
 * therefore gives up after hosts_patience() seconds of silence.  The next
 * attempt begins behind the silent address.
 *
 * client/link/hosts.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_HOSTS_H
#define JOBQ_HOSTS_H

#include <stdbool.h>

#include <libpq-fe.h>

#define HOST_WORDS	3			/* maximum added by hosts_add() */

/* Initially all zero. */
typedef struct Hosts
{
	/* the configured lists, separated by commas; or NULL */
	char	   *hosts;
	char	   *addresses;
	char	   *ports;
	bool		known;			/* the lists are known */

	/* the silent address; or NULL */
	char	   *host;
	char	   *address;
	char	   *port;

	char	   *words[HOST_WORDS];	/* from the last attempt */
} Hosts;

/* client/link/hosts.c */
extern double hosts_patience(PGconn *conn);
extern bool hosts_begun(PGconn *conn, PostgresPollingStatusType polling, const char **host);
extern void hosts_add(Hosts *hosts, const char **keywords, const char **values);
extern void hosts_silent(Hosts *hosts, PGconn *conn);
extern void hosts_answer(Hosts *hosts);
extern void hosts_free(Hosts *hosts);

#endif							/* JOBQ_HOSTS_H */
