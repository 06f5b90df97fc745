/*-------------------------------------------------------------------------
 *
 * duty.h
 *	  The duties: the tasks of the scheduler.
 *
 * Each duty has a function to compute when the duty is due, and a function to do the
 * work.  In each round the loop (scheduler.c) goes through all duties, in the order of
 * its table.  Then the scheduler sleeps until the first duty is due or its latch is set.
 *
 * While a duty runs, the rest must wait.  Each duty is therefore bounded in time; see
 * the comment at the definition.  A duty waits for a lock no longer than DUTY_LOCK_TIMEOUT,
 * and then gets an error.  Errors that concern a single role are caught within the duty
 * (try.c, share.c).  If a lock on one of jobq's own tables times out, the duty as a
 * whole ends with this error.  The duty then runs again after a growing pause, and the
 * remaining duties continue.
 *
 * A duty may fail after it has changed shared memory.  The requests of read_anew() in
 * scheduler.c must be enough to repair the state.
 *
 * worker/scheduler/duty.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_DUTY_H
#define JOBQ_DUTY_H

#include "base/base.h"

typedef struct Duty
{
	const char *what;			/* completes "the scheduler cannot ..." */

	/*
	 * Runs once before the first round, in the order of the table, and reads
	 * the initial state.  Returns the same as run().  NULL if there is
	 * nothing to read; the duty is then due in the first round.
	 */
	TimestampTz (*load) (TimestampTz now);

	/*
	 * Does the work.  Returns the time at which the duty is due again by its
	 * own plan: "now" if more work is left, DT_NOEND if there is no plan.
	 */
	TimestampTz (*run) (TimestampTz now);

	/*
	 * Returns when the duty is due, from requests in shared memory and from
	 * its own plan, as far as the plan counts.  NULL: the plan alone counts.
	 * Must only read.  Called without a lock to decide whether to run, and
	 * with db->lock held to decide how long to sleep.
	 */
	TimestampTz (*next_due) (TimestampTz plan, TimestampTz now);

	/* Runs in each round, and checks by itself for work. */
	bool		each_round;

	/* Does not run while scheduler_paused(). */
	bool		pausable;

	/* Owned by the loop: the last result of load() or run(). */
	TimestampTz plan;

	/* after lock timeouts */
	JobqPause	pause;
} Duty;

extern Duty extension_duty;		/* exits after DROP EXTENSION */
extern Duty identity_duty;		/* keeps a copied database from running jobs */
extern Duty discover_duty;		/* finds lanes in the index */
extern Duty rank_duty;			/* chooses the workers for a lane */
extern Duty scan_duty;			/* reads the due jobs of lanes */
extern Duty clock_duty;			/* corrects times from a clock ahead of time */
extern Duty schedules_duty;		/* enqueues the jobs of schedules */
extern Duty batches_duty;		/* evaluates batches */
extern Duty supervise_duty;		/* starts and stops workers */
extern Duty limits_duty;		/* hands out permits freed by time */
extern Duty taken_duty;			/* ends jobs that need no worker */
extern Duty expire_duty;		/* ends expired leases */
extern Duty forget_duty;		/* removes leases of deleted jobs */
extern Duty collect_duty;		/* removes rows of ended leases */
extern Duty relay_duty;			/* sends the notifications of the relay */
extern Duty sweep_duty;			/* periodic safety check */
extern Duty retention_duty;		/* makes and drops archive partitions */
extern Duty count_duty;			/* counts the jobs for the statistics */
extern Duty monitors_duty;		/* reports begun and ended conditions */

#endif							/* JOBQ_DUTY_H */
