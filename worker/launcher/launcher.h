/*-------------------------------------------------------------------------
 *
 * launcher.h
 *	  The door of the room launcher: one process per cluster that keeps a
 *	  scheduler per served database alive.
 *
 * Promises: a database that "jobq.databases" names has a scheduler as soon as
 * it has the extension; one that is taken off the list, or dropped, is left.
 *
 * Locks: JobqShared.lock, JobqDatabase.lock.
 *
 * Only _PG_init() calls this room.
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
