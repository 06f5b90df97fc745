/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  Declarations shared by the files of the folder broker.
 *
 * client/broker/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_BROKER_INNER_H
#define JOBQ_BROKER_INNER_H

#include "broker/broker.h"

#include <amqp.h>
#include <amqp_framing.h>
#include <pthread.h>

#define CHANNEL		1
#define SAID_REASON	512

typedef struct List
{
	Message    *first;
	Message   **last;
	int			n;
} List;

/* The state shared by the two threads.  All after the lock is under the lock. */
typedef struct BrokerShared
{
	BrokerOptions options;		/* as the next three, set before the thread
								 * starts */
	BrokerAddress address;
	int			news_pipe[2];	/* to the main thread */
	int			wake_pipe[2];	/* to the thread of the connection */

	pthread_mutex_t lock;
	pthread_cond_t tried;
	BrokerState state;
	char		reason[SAID_REASON];	/* of the last failure */
	char	   *lines;			/* to print, with line ends; or NULL */
	List		waiting;
	List		sent;
	List		done;
	List		settled;
	uint64_t	connection;		/* number of this connection */
	bool		count_wanted;
	int64_t		count;			/* messages in the consumed queue */
	double		counted_at;
	bool		closing;		/* broker_close() was called */
	bool		ended;			/* the thread uses nothing any more */
} BrokerShared;

/* client/broker/list.c */
extern BrokerShared shared;

extern void list_append(List *list, Message *message);
extern bool list_unlink(List *list, Message *message);
extern void pipe_signal(int pipe);
extern void pipe_drain(int pipe);
extern void broker_add_line(const char *format,...) __attribute__((format(printf, 1, 2)));
extern void broker_set_state(BrokerState now);

/* client/broker/thread.c */
extern void *broker_run(void *unused);

/* client/broker/connect.c */
extern amqp_connection_state_t broker_connect(const BrokerOptions *options, const BrokerAddress *address,
											  char *why, size_t size);
extern void broker_explain(amqp_rpc_reply_t reply, char *why, size_t size);

/* client/broker/numbers.c */
extern char *numbers_quote(const char *json);
extern struct json_t *number_of(const amqp_field_value_t *field);
extern char *numbers_unmark(char *json);

/* client/broker/content.c */
extern int	broker_send(amqp_connection_state_t conn, const Message *message);
extern Message *broker_receive(const amqp_basic_deliver_t *delivery, const amqp_message_t *content);

#endif							/* JOBQ_BROKER_INNER_H */
