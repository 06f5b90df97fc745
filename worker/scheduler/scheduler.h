/*-------------------------------------------------------------------------
 *
 * scheduler.h
 *	  The door of the room scheduler: one process per served database that
 *	  decides which job may run next and which workers there are.
 *
 * The scheduler loads the ready set from the table, looks after its workers,
 * enqueues the jobs of schedules, sees the end of batches, ends leases, sends
 * what the relay has collected, and keeps the archive's partitions.  Each of
 * these is a duty (duty.h); a round of its loop asks each of them in turn.
 *
 * Promises: what is due is done in the round in which it is due; in an idle
 * database no round comes between two safety checks.  Nothing is lost by a
 * scheduler that dies at any place: the next one reads everything anew.
 *
 * Locks: JobqShared.lock for slots; JobqDatabase.lock for all that is ready;
 * row locks of its own tables, for which it does not wait where a user's
 * transaction may hold them.
 *
 * Only the launcher calls this room.
 *
 * worker/scheduler/scheduler.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULER_H
#define JOBQ_SCHEDULER_H

#include "base/base.h"

/* worker/scheduler/scheduler.c */
extern bool scheduler_register(int database);

/* worker/scheduler/places.c */
extern void places_make_way(int for_database);

#endif							/* JOBQ_SCHEDULER_H */
