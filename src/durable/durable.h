/*-------------------------------------------------------------------------
 *
 * durable.h
 *	  Interface of the directory durable: procedures that keep their position.
 *
 * A procedure that runs a job may commit (worker/runner/procedure.c).  The functions of this
 * directory commit the effects together with a note of the completed step: a row of
 * jobq_internal.procedure_step.  The next run begins at the top of the procedure and skips the
 * noted steps.  Nothing is replayed, so the procedure need not be deterministic, and its
 * definition may change between two runs.
 *
 * A procedure may wait for a time, for a signal, or for the end of jobs that it has enqueued
 * (ask.c).  To wait, a procedure ends its run through the same code as snooze(): the job's row is
 * inserted again, with the time limit of the wait as run_at.  A suspended job is therefore a
 * scheduled job.  It has no worker, no permit and no entry in memory.  A signal makes the job
 * due in the transaction that sends the signal, as edit() does.
 *
 * Guarantees: a step is noted exactly if its effects have committed.  A run without its
 * lease cannot commit a note.  A signal sent before, during or after the suspension of a job
 * is received exactly once (signal.c has the argument).
 *
 * Locks: a note locks the row of the job, which the lease protects, until the commit.  A
 * signal, and the suspension of a job, take a heavyweight lock (signal.c).
 *
 * Only SQL calls functions of this directory.
 *
 * src/durable/durable.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_DURABLE_H
#define JOBQ_DURABLE_H

#include "store/store.h"

#endif							/* JOBQ_DURABLE_H */
