/*-------------------------------------------------------------------------
 *
 * work.h
 *	  Interface of the folder work: the command work.
 *
 * The command runs jobs of consumer queues, as processes or as requests over HTTP.
 * inner.h states how a job is held and settled.
 *
 * client/work/work.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_WORK_H
#define JOBQ_WORK_H

#include "command/command.h"

/* client/work/work.c */
extern int	run_work(const Command *command, int argc, char **argv);

#endif							/* JOBQ_WORK_H */
