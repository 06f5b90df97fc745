/*-------------------------------------------------------------------------
 *
 * link.h
 *	  A connection that is never waited for, and that comes back.
 *
 * The command work has to look after processes while it waits for the server.
 * So it sends statements on links, and is told by poll() when there is
 * something to do.  A link that is lost is made anew, after pauses that grow
 * from a tenth of a second to ten seconds, and says so once each time.
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
	LINK_DOWN,					/* to be made at retry_at */
	LINK_CONNECTING,
	LINK_IDLE,
	LINK_BUSY,					/* a statement was sent */
} LinkState;

typedef struct Link
{
	LinkState	state;
	PGconn	   *conn;
	PostgresPollingStatusType polling;
	PGresult   *result;			/* of the statement, until all has come */
	double		since;			/* when it began to connect to an address, or
								 * to ask */
	double		patience;		/* for so long it waits when nothing moves any
								 * more */
	double		moved_at;		/* when a part of what it asks, or of the
								 * answer, was last on its way */
	bool		sending;		/* there is more to be sent */
	double		retry_at;
	double		pause;
	int			failures;		/* of attempts to make it anew */
	bool		loss_was_said;
	Hosts		hosts;
	const char *host;			/* to which it is being made: see
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
