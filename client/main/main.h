/*-------------------------------------------------------------------------
 *
 * main.h
 *	  Interface of the folder main: the table of all commands.
 *
 * The highest folder of the program jobq.
 *
 * client/main/main.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_MAIN_H
#define JOBQ_MAIN_H

#include "command/command.h"

/* client/main/commands.c */
extern const Command commands[];
extern const Command *command_find(const char *name);

#endif							/* JOBQ_MAIN_H */
