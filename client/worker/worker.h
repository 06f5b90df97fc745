/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  Interface of the folder worker: the command work, and jobs as messages.
 *
 * The command runs jobs of consumer queues, as processes or as requests over HTTP.  For
 * the command relay, the same loop publishes the jobs as messages of a broker.  inner.h
 * states how a job is held and settled.
 *
 * client/worker/worker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_CLIENT_WORKER_H
#define JOBQ_CLIENT_WORKER_H

#include "broker/broker.h"
#include "command/command.h"

#include <signal.h>

/* Where the exchange, the routing key or the id of a message comes from. */
typedef struct PublishField
{
	const char *text;			/* for all jobs; or NULL */
	const char *from;			/* kind, queue, tenant, "header NAME", or
								 * "payload PATH"; or NULL */
} PublishField;

typedef struct PublishOptions
{
	const char *queues;			/* an array */
	const char *name;
	BrokerOptions broker;
	PublishField exchange;
	PublishField routing_key;
	PublishField message_id;	/* "from" only; otherwise, or where it is
								 * missing, made from the id of the job */
	int			window;			/* most messages without a confirm */
	double		lease;
	double		grace;			/* after a signal, for confirms */
	double		retry_delay;	/* of a message that the broker could not
								 * store */
	bool		stop_when_empty;
	bool		verbose;
} PublishOptions;

/* client/worker/signals.c */
extern volatile sig_atomic_t work_stops;	/* number of stop signals */

extern int	work_signals(void);

/* client/worker/all.c */
extern int	work_in_all(int (*work_in_one) (void));

/* client/worker/work.c */
extern int	run_work(const Command *command, int argc, char **argv);
extern int	run_publish(const PublishOptions *options);

#endif							/* JOBQ_CLIENT_WORKER_H */
