/*-------------------------------------------------------------------------
 *
 * module.h
 *	  Interface of the directory module: loading of the library, and utility commands.
 *	  This is the highest directory.  Only the server calls its functions.
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
