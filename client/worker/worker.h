/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  Interface of the folder worker: the command work.
 *
 * The command runs jobs of consumer queues, as processes or as requests over HTTP.
 * inner.h states how a job is held and settled.
 *
 * client/worker/worker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_CLIENT_WORKER_H
#define JOBQ_CLIENT_WORKER_H

#include "command/command.h"

/* client/worker/work.c */
extern int	run_work(const Command *command, int argc, char **argv);

#endif							/* JOBQ_CLIENT_WORKER_H */
