/*-------------------------------------------------------------------------
 *
 * module.h
 *	  The room module: how the library is loaded, and what it does to utility
 *	  commands.  It stands above all others, and nobody calls it but the server.
 *
 * src/module/module.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_MODULE_H
#define JOBQ_MODULE_H

#include "base/base.h"

/* src/module/utility.c */
extern void jobq_install_utility_hook(void);

#endif							/* JOBQ_MODULE_H */
