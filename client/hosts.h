/*-------------------------------------------------------------------------
 *
 * hosts.h
 *	  Which of several servers is asked first for a connection.
 *
 * libpq tries the hosts of a connection string, and all addresses of each, one
 * after the other.  But when nobody waits for it, as with PQconnectPoll(), it
 * stays with one that is silent: only who waits has a connect_timeout.  So who
 * makes such a connection gives it up when an address has been silent for
 * hosts_patience(), and the next attempt begins behind that address.
 *
 * client/hosts.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_HOSTS_H
#define JOBQ_HOSTS_H

#include "jobq.h"

#define HOST_WORDS	3			/* what hosts_add() adds at most */

/* All zero at first. */
typedef struct Hosts
{
	/* as they were configured: lists with commas; or NULL */
	char	   *hosts;
	char	   *addresses;
	char	   *ports;
	bool		known;			/* these are */

	/* which of them was silent; or NULL */
	char	   *host;
	char	   *address;
	char	   *port;

	char	   *words[HOST_WORDS];	/* of the last attempt */
} Hosts;

extern double hosts_patience(PGconn *conn);
extern bool hosts_begun(PGconn *conn, PostgresPollingStatusType polling, const char **host);
extern void hosts_add(Hosts *hosts, const char **keywords, const char **values);
extern void hosts_silent(Hosts *hosts, PGconn *conn);
extern void hosts_answer(Hosts *hosts);
extern void hosts_free(Hosts *hosts);

#endif							/* JOBQ_HOSTS_H */
