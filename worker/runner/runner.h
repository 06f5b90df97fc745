/*-------------------------------------------------------------------------
 *
 * runner.h
 *	  Interface of the directory runner: a worker, which runs jobs in sequence.
 *
 * A worker is connected as a single role to a single database.  The worker pops jobs that run
 * as this role.  Each job runs in a transaction of its own, or commits itself if the handler
 * is a procedure.  jobq.work() does the same in a client's session.  The directory also
 * charges attempts of processes that are gone.
 *
 * Guarantees: a popped job has ended, or is back in the ready set, or is named by the worker's
 * slot when the worker exits, so that the scheduler can charge it.  Everything that a handler
 * leaves in the session is removed before the next job.
 *
 * Locks: JobqShared.lock when a worker starts and exits; JobqDatabase.lock to pop a job;
 * JobqSlot.mutex when a job begins and ends.  No lock is held while a handler runs.
 *
 * The scheduler calls functions of this directory, and src/durable ends runs.
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

/* Arguments of a worker at its start. */
typedef struct WorkerStart
{
	int			slot;			/* reserved for the worker */
	uint32		generation;		/* of the slot */
	Oid			dboid;
	Oid			role;
} WorkerStart;

/* An attempt of a process that is gone. */
typedef struct LostAttempt
{
	int64		job_id;
	int			attempt;		/* attempts charged at its start ... */
	int			crashes;		/* ... and of these, for a crash */
	bool		crashed;		/* this attempt crashed the process */
	TimestampTz started_at;
	JobqStop	stop;			/* the job was asked to stop */
	int64		lease;			/* token of the lease, or 0; unknown after a
								 * crash */
	JobqSlot   *slot;			/* of the worker, or NULL */
} LostAttempt;

/*
 * What became of a lost attempt.  A charge is repeated, after the commit, until nothing is
 * charged any more.  Then the last charge is durable, and the record of the attempt may go.
 */
typedef enum LostCharge
{
	LOST_GONE,					/* the job had finished */
	LOST_ENDED,					/* charged now; the job does not run again */
	LOST_LIVE,					/* charged now, or made a suspect; the job
								 * runs again */
	LOST_BEFORE,				/* charged before; the job runs again */
	LOST_TAKEN,					/* another session has the row, and nothing
								 * was written.  If the attempt had the row
								 * before, the caller tries again after the
								 * session, and the job does not begin until
								 * then */
} LostCharge;

/* worker/runner/charge.c */
extern LostCharge charge_lost_attempt(Relation rel, const LostAttempt *lost,
									  const JobqError *error);
extern int	charge_together(Relation rel, const JobqMembers *members,
							const LostAttempt *lost, int64 *locked);
extern LostCharge charge_culprit(Relation rel, const JobqCulprit *culprit);

/* worker/runner/procedure.c */
extern bool run_is_procedure(void);
pg_noreturn extern void run_suspend(TimestampTz run_at, const char *waits_for);

/* worker/runner/worker.c */
extern bool worker_register(const WorkerStart *start);

#endif							/* JOBQ_RUNNER_H */
