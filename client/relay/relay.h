/*-------------------------------------------------------------------------
 *
 * relay.h
 *	  Interface of the folder relay: the command relay.
 *
 * The command connects a queue with RabbitMQ, in one direction.  Jobs become messages in
 * client/worker, and messages become jobs here.
 *
 * client/relay/relay.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_RELAY_H
#define JOBQ_RELAY_H

#include "worker/worker.h"

/* How the body of a message becomes a payload. */
typedef enum BodyHow
{
	BODY_JSON,
	BODY_TEXT,
	BODY_AUTO,
} BodyHow;

typedef struct ConsumeOptions
{
	BrokerOptions broker;
	const char *queue;			/* or NULL: the queue of the kind */
	const char *kind;			/* or NULL: the type of the message */
	BodyHow		body;
	bool		ignore_ids;
	bool		stop_when_empty;
	bool		verbose;
} ConsumeOptions;

/* client/relay/relay.c */
extern int	run_relay(const Command *command, int argc, char **argv);

/* client/relay/consume.c */
extern int	run_consume(const ConsumeOptions *options);

#endif							/* JOBQ_RELAY_H */
