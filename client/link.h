/*-------------------------------------------------------------------------
 *
 * link.h
 *	  A non-blocking connection that reconnects after a loss.
 *
 * The command work must serve processes while a statement runs.  Statements therefore run
 * on links, and the program waits for all events in poll().  A lost link reconnects after
 * a pause.  The pause grows from 0.1 to 10 seconds, and each loss is printed once.
 *
 * client/link.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_LINK_H
#define JOBQ_LINK_H

#include "hosts.h"

typedef enum LinkState
{
	LINK_DOWN,					/* to reconnect at retry_at */
	LINK_CONNECTING,
	LINK_IDLE,
	LINK_BUSY,					/* statement sent */
} LinkState;

typedef struct Link
{
	LinkState	state;
	PGconn	   *conn;
	PostgresPollingStatusType polling;
	PGresult   *result;			/* statement result so far */
	double		since;			/* start of the connection attempt at this
								 * address, or of the statement */
	double		patience;		/* timeout without traffic */
	double		moved_at;		/* when data was last sent or received */
	bool		sending;		/* data is left to send */
	double		retry_at;
	double		pause;
	int			failures;		/* failed attempts in a row */
	bool		loss_was_said;
	Hosts		hosts;
	const char *host;			/* current host while connecting: see
								 * hosts_begun() */
} Link;

extern void link_open(Link *link);
extern bool link_events(Link *link, int *fd, short *events);
extern double link_due(const Link *link);
extern PGresult *link_go_on(Link *link, bool *lost);
extern bool link_send(Link *link, double patience, const char *sql, int n, const char *const *values);
extern void link_cancel(Link *link);
extern void link_close(Link *link);

#endif							/* JOBQ_LINK_H */
