/*-------------------------------------------------------------------------
 *
 * top.h
 *	  Interface of the folder top: the command top.
 *
 * The command is a live screen of queues, workers and dead letters.  Without ncurses the
 * command ends the program with an error.
 *
 * client/top/top.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_TOP_H
#define JOBQ_TOP_H

#include "command/command.h"

/* client/top/top.c */
extern int	run_top(const Command *command, int argc, char **argv);

#endif							/* JOBQ_TOP_H */
