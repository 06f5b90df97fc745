/*-------------------------------------------------------------------------
 *
 * launcher.h
 *	  Interface of the directory launcher: a single process per cluster, which keeps a
 *	  scheduler alive for each served database.
 *
 * Guarantees: a database in jobq.databases gets a scheduler as soon as the extension exists
 * there.  The processes of a database that is removed from the list, or dropped, exit.
 *
 * Locks: JobqShared.lock, JobqDatabase.lock.
 *
 * Only _PG_init() calls this directory.
 *
 * worker/launcher/launcher.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_LAUNCHER_H
#define JOBQ_LAUNCHER_H

#include "base/base.h"

/* worker/launcher/launcher.c */
extern void jobq_register_launcher(void);

#endif							/* JOBQ_LAUNCHER_H */
