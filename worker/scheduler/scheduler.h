/*-------------------------------------------------------------------------
 *
 * scheduler.h
 *	  Interface of the scheduler: one process per served database.  The
 *	  scheduler decides which job may run next, and starts and stops workers.
 *
 * The scheduler fills the ready set from the table, supervises workers, enqueues the
 * jobs of schedules, evaluates batches, ends leases, sends the notifications of the
 * relay, and maintains the archive's partitions.  Each of these tasks is a duty
 * (duty.h).  Each round of the main loop checks the duties in order.
 *
 * Guarantees: A due task is done in the round in which it is due.  An idle database has
 * no rounds between two safety checks.  A crash of the scheduler loses nothing, because
 * the next scheduler reads all state again.
 *
 * Locks: JobqShared.lock for slots; JobqDatabase.lock for the ready set and the
 * remaining state of the database; row locks in jobq's tables.  The scheduler does not
 * wait for row locks that user transactions may hold.
 *
 * Only the launcher calls these functions.
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
