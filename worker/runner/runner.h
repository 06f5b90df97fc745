/*-------------------------------------------------------------------------
 *
 * runner.h
 *	  The door of the room runner: a worker, which runs jobs one after the
 *	  other.
 *
 * A worker is connected as one role to one database.  It pops jobs that this
 * role has enqueued, and runs each in a transaction of its own, or lets it
 * commit as it likes if its handler is a procedure.  jobq.work() does the same
 * in a client's session.
 *
 * Promises: a job that was popped has ended, or is back in the ready set, or is
 * named by the worker's slot when the worker leaves, so that the scheduler can
 * charge it.  What a handler leaves in the session is undone before the next
 * job.
 *
 * Locks: JobqShared.lock when a worker comes and goes; JobqDatabase.lock to pop
 * a job; JobqSlot.mutex when a job begins and ends.  None while a handler runs.
 *
 * An attempt whose process is gone is charged here, too.
 *
 * Only the scheduler calls this room.
 *
 * worker/runner/runner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_RUNNER_H
#define JOBQ_RUNNER_H

#include "base/base.h"
#include "attempt/attempt.h"
#include "memory/memory.h"
#include "process/process.h"

/* What a worker is told when it starts. */
typedef struct WorkerStart
{
	int			slot;			/* reserved for it */
	uint32		generation;		/* of the slot */
	Oid			dboid;
	Oid			role;
} WorkerStart;

/* An attempt at a job that whoever made it cannot charge any more. */
typedef struct LostAttempt
{
	int64		job_id;
	int			attempt;		/* what was charged when it began ... */
	int			crashes;		/* ... and of these, for a crash */
	bool		crashed;		/* this one has crashed the server process */
	TimestampTz started_at;
	JobqStop	stop;			/* the job was asked to stop */
	int64		lease;			/* token of its lease, or 0; not known of a
								 * crash */
	JobqSlot   *slot;			/* of the worker, or NULL */
} LostAttempt;

typedef enum LostCharge
{
	LOST_GONE,					/* the job does not run again */
	LOST_LIVE,					/* it does */
	LOST_BEFORE,				/* it does, and was charged before */
	LOST_TAKEN,					/* somebody else has its row: nothing was done */
} LostCharge;

/* worker/runner/charge.c */
extern LostCharge charge_lost_attempt(Relation rel, const LostAttempt *lost,
									  const JobqError *error);
extern LostCharge charge_culprit(Relation rel, const JobqCulprit *culprit);

/* worker/runner/worker.c */
extern bool worker_register(const WorkerStart *start);

#endif							/* JOBQ_RUNNER_H */
