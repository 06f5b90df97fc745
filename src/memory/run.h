/*-------------------------------------------------------------------------
 *
 *	  The run of a worker: the job that the worker has, from the pop to the next pop.
 *
 * The door memory.h includes this header.
 *
 * src/memory/run.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_MEMORY_RUN_H
#define JOBQ_MEMORY_RUN_H

#include "base/base.h"

#define JOBQ_PROGRESS_LEN	128

/*
 * The states of a run.  jobq_run_to() is the only writer, and knows the same successors.
 *
 * The slot *names* the job from CLAIMED to the end of the attempt: cancel() asks the worker to
 * stop the job, and no other worker begins the job.  After the attempt, the worker still holds
 * the job's permits, until the next pop.  The state then decides how the permits are returned.
 *
 * A worker that exits during a job leaves its slot DEAD, because the lost attempt must be
 * recorded before the job may run again.  The exit hook is on_shmem_exit, which runs after the
 * abort of the open transaction, so the job's row is free by then.  Until the scheduler has
 * charged the attempt and freed the slot (worker/scheduler/supervise.c), no process begins the
 * job:
 *
 * - The row of a procedure's job keeps its lease, and the slot has the lease's token.  Only the
 * scheduler removes the lease, so the charge never concerns a later run of the job.
 *
 * - Any other job is refused by the gate (jobq_slot_keeps_job()), and its entry is dropped.
 * The process that frees the slot hands over the job if "asked_for" is set.
 *
 * - A function that moves or removes jobs treats the job as running (jobq_job_runs()).
 * cancel() leaves its request in the dead slot.
 *
 * Only a lock on the job's row can therefore delay the charge.  A slot is freed without a charge
 * if the server is being stopped, if the postmaster is dead, or if the end of the attempt has
 * committed (ENDING).
 */
typedef enum JobqRunState
{
	JOBQ_RUN_NONE = 0,			/* no job since the start of the process, or
								 * no process; -> POPPED */
	JOBQ_RUN_POPPED,			/* the worker has the job's entry, but may not
								 * begin the job yet, or not again; ->
								 * CLAIMED, TURNED_AWAY, MISSED, NONE */
	JOBQ_RUN_CLAIMED,			/* the slot names the job; -> BEGUN, MISSED,
								 * DEAD; and after an error before the worker
								 * has had the row, such as a missing handler:
								 * ENDING, POPPED, DONE, LIVE */
	JOBQ_RUN_BEGUN,				/* the worker has had the job's row: set
								 * before any other process can have the row;
								 * -> ENDING, POPPED, DONE, LIVE, DEAD */
	JOBQ_RUN_ENDING,			/* the end of the attempt is committed; ->
								 * DONE, LIVE */

	/* The attempt is over, and the slot does not name the job. */
	JOBQ_RUN_DONE,				/* the job does not run again; -> POPPED, NONE */
	JOBQ_RUN_LIVE,				/* the job will run again; -> DONE, POPPED,
								 * NONE */
	JOBQ_RUN_MISSED,			/* another session had the job's row, or this
								 * worker carried out a cancel() before
								 * another try; -> POPPED, NONE */
	JOBQ_RUN_TURNED_AWAY,		/* the gate has refused the job; -> POPPED,
								 * NONE */

	/* The worker has died.  The slot names the job until it is charged. */
	JOBQ_RUN_DEAD,				/* -> CHARGING, NONE */
	JOBQ_RUN_CHARGING,			/* the scheduler records the lost attempt; ->
								 * CHARGED, DEAD, NONE */
	JOBQ_RUN_CHARGED,			/* -> NONE */
} JobqRunState;

/* Why a worker was asked to stop its job.  A higher value replaces a lower one. */
typedef enum JobqStop
{
	JOBQ_STOP_NONE = 0,
	JOBQ_STOP_TIMEOUT,
	JOBQ_STOP_CANCEL,
} JobqStop;

/*
 * Protected by JobqSlot.mutex.  The worker reads its own run without the mutex.  Without the
 * mutex, the worker may change to BEGUN, and between states in which the slot does not name
 * the job.
 *
 * The fields below "died_in" are set when the job is claimed, and stay until the next claim.
 */
typedef struct JobqRun
{
	JobqRunState state;
	JobqRunState died_in;		/* of a dead worker: CLAIMED or BEGUN */
	bool		asked_for;		/* other processes have popped the job
								 * meanwhile, and left the job to this worker */
	bool		passes;			/* the job bypasses limiters with costs */
	JobqStop	stop;			/* request to stop this job */
	int64		job;			/* id */
	Oid			role;			/* owner of the job; the slot's role runs the
								 * job */
	int32		queue_id;
	int32		attempt;		/* attempts charged before this run */
	uint32		stat;			/* where the job is counted: see stats.h */
	uint32		tenant;			/* hash of the job's tenant */
	int64		token;			/* of the row's lease, if the handler is a
								 * procedure; or 0 */
	TimestampTz started_at;
	TimestampTz deadline;		/* query cancel by the worker's own timer */
	TimestampTz kill_at;		/* SIGTERM by the scheduler, or infinity */
	float4		progress;		/* percent, or -1 */
	char		kind[NAMEDATALEN * 2];
	char		message[JOBQ_PROGRESS_LEN];
} JobqRun;

/* The largest number of jobs that a handler takes in a call. */
#define JOBQ_MAX_CHUNK	1000

/* A job of a chunk. */
typedef struct JobqMember
{
	int64		job;			/* id */
	int32		attempt;		/* attempts charged before this run */
	bool		stop;			/* cancel() has named the job */
} JobqMember;

/*
 * The jobs of a run whose handler takes several, sorted by id.  The slot names all of them, in
 * the states in which the slot names JobqRun.job, which is one of them.  No job: the run has a
 * single job.  If the worker dies, the chunk stays until the slot is free.
 *
 * Protected by JobqSlot.mutex.  The worker reads its own chunk without the mutex.
 */
typedef struct JobqMembers
{
	int			n;
	JobqMember	jobs[JOBQ_MAX_CHUNK];
} JobqMembers;

#define JOBQ_RUN_BIT(state) (1 << (state))

/*
 * Is the run in one of these states?  states: bits of JOBQ_RUN_BIT().
 */
static inline bool
jobq_run_in(const JobqRun *run, int states)
{
	return (JOBQ_RUN_BIT(run->state) & states) != 0;
}

/*
 * Does the slot name the job, of a worker that runs the job or has died with it?  The end of
 * the attempt is not committed.
 */
static inline bool
jobq_run_open(const JobqRun *run)
{
	return jobq_run_in(run, JOBQ_RUN_BIT(JOBQ_RUN_CLAIMED) | JOBQ_RUN_BIT(JOBQ_RUN_BEGUN) |
					   JOBQ_RUN_BIT(JOBQ_RUN_DEAD) | JOBQ_RUN_BIT(JOBQ_RUN_CHARGING));
}

/*
 * Is this job open?
 */
static inline bool
jobq_run_is_of(const JobqRun *run, int64 job_id)
{
	return run->job == job_id && jobq_run_open(run);
}

/*
 * Is the worker busy with a job, or was it until its death?  Other than for jobq_run_open(),
 * the end of the attempt may be committed.
 */
static inline bool
jobq_run_busy(const JobqRun *run)
{
	return run->state == JOBQ_RUN_ENDING || jobq_run_open(run);
}

/*
 * Has the job not begun, although the worker may hold permits for it?
 */
static inline bool
jobq_run_unused(const JobqRun *run)
{
	return jobq_run_in(run, JOBQ_RUN_BIT(JOBQ_RUN_POPPED) | JOBQ_RUN_BIT(JOBQ_RUN_MISSED) |
					   JOBQ_RUN_BIT(JOBQ_RUN_TURNED_AWAY));
}

/*
 * Has the worker died without a record of the lost attempt?
 */
static inline bool
jobq_run_lost(const JobqRun *run)
{
	return jobq_run_in(run, JOBQ_RUN_BIT(JOBQ_RUN_DEAD) | JOBQ_RUN_BIT(JOBQ_RUN_CHARGING));
}

#endif							/* JOBQ_MEMORY_RUN_H */
