/*-------------------------------------------------------------------------
 *
 * web.h
 *	  Interface of the folder web: the command web.
 *
 * The command is a server for HTTP: routes for programs, and the console.  Without
 * libmicrohttpd and jansson the command ends the program with an error.
 *
 * client/web/web.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_WEB_H
#define JOBQ_WEB_H

#include "command/command.h"

/* client/web/web.c */
extern int	run_web(const Command *command, int argc, char **argv);

#endif							/* JOBQ_WEB_H */
