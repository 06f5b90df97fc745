/*-------------------------------------------------------------------------
 *
 * broker.h
 *	  Interface of the folder broker: a connection to RabbitMQ.
 *
 * The calls of librabbitmq block, in the worst case for two heartbeats.  A thread
 * therefore owns the connection, and the loop of the command goes on: leases must be
 * extended meanwhile.  The two share lists of messages under a lock.  The thread
 * reconnects after a loss, with pauses that grow from 0.1 to 10 seconds.
 *
 * All functions are for the main thread.  None of them blocks, except broker_open(), and
 * broker_close() for a limited time.
 *
 * Publishing: the broker confirms each message.  A message whose confirm is missing when
 * the connection is lost is published again, so a message can arrive twice, with the same
 * id.  An error of the broker closes the channel without naming a message.  The thread
 * then publishes the unconfirmed messages one at a time, until it has found the message.
 *
 * Consuming: a message belongs to the connection on which it came.  The broker sends the
 * message again on the next connection unless it was settled before.
 *
 * client/broker/broker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_BROKER_H
#define JOBQ_BROKER_H

#include "link/link.h"

#define LONGEST_NAME	255		/* bytes, in the protocol */

typedef struct BrokerOptions
{
	const char *url;			/* may contain a password */
	const char *ca_file;		/* for TLS, as the next two; or NULL */
	const char *cert_file;
	const char *key_file;
	const char *source;			/* queue to consume; NULL: publish */
	int			prefetch;		/* most messages not yet settled */
} BrokerOptions;

typedef enum BrokerState
{
	BROKER_CONNECTING,			/* at first, and for a moment after a loss */
	BROKER_UP,
	BROKER_BLOCKED,				/* connected; the broker takes no messages */
	BROKER_DOWN,				/* an attempt to connect has failed */
} BrokerState;

typedef enum MessageOutcome
{
	MESSAGE_CONFIRMED,
	MESSAGE_RETURNED,			/* no queue is bound for it: "why" */
	MESSAGE_NACKED,				/* the broker could not store it */
	MESSAGE_FAULTY,				/* the broker, or its protocol, refuses it:
								 * "why" */
} MessageOutcome;

typedef struct Message
{
	struct Message *next;
	void	   *owner;			/* of a message to publish; NULL: abandoned */
	char	   *exchange;
	char	   *key;			/* routing key */
	char	   *id;				/* or NULL, as the next three */
	char	   *type;
	char	   *content_type;
	char	   *headers;		/* a JSON object */
	char	   *body;			/* followed by a zero byte */
	size_t		length;
	int64_t		timestamp;		/* seconds since 1970, or 0 */

	MessageOutcome outcome;
	char	   *why;
	uint64_t	tag;			/* delivery tag of the connection */
	uint64_t	connection;		/* number of the connection */
	bool		accepted;		/* how a consumed message was settled */
} Message;

/* client/broker/url.c */
typedef struct BrokerAddress
{
	char	   *user;
	char	   *password;
	char	   *host;
	char	   *vhost;
	int			port;
	bool		tls;
} BrokerAddress;

extern const char *broker_read_address(char *url, BrokerAddress *address);
extern char *broker_url(char *argument, const char *option);

#ifdef HAVE_RABBITMQ

/* client/broker/broker.c */
extern void broker_open(const BrokerOptions *options);
extern int	broker_fd(void);
extern BrokerState broker_look(void);
extern void broker_publish(Message *message);
extern bool broker_take_back(Message *message, bool even_sent);
extern Message *broker_next(void);
extern bool broker_is_current(const Message *message);
extern char *broker_name_of_source(void);
extern int64_t broker_count(double since);
extern void broker_settle(Message *message, bool accepted);
extern bool broker_close(double timeout);

/* client/broker/content.c */
struct json_t;
extern struct json_t *broker_headers(const char *text, char *why, size_t size);

/* client/broker/list.c */
extern void message_free(Message *message);

#endif							/* HAVE_RABBITMQ */
#endif							/* JOBQ_BROKER_H */
