/*-------------------------------------------------------------------------
 *
 * duty.h
 *	  What the scheduler has to do, piece by piece.
 *
 * A duty says when it is due, and does what is due.  The loop (scheduler.c) goes
 * through all duties in each round, in the order of its table, and sleeps until
 * the first of them is due or somebody sets its latch.
 *
 * While one duty runs, all others wait.  So each is bounded in time; the comment
 * at its definition says by what.  None waits for a lock longer than LOCK_PATIENCE:
 * then there is an error, and what is a role's own affair catches that (try.c,
 * share.c).  If a duty itself ends with it, because somebody has locked one of
 * jobq's tables, it is run again after a pause that grows, and the others go on.
 * So a duty that changes shared memory, and then fails, must be mended by what
 * read_anew() in scheduler.c asks for.
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
	const char *what;			/* "the scheduler cannot ..." */

	/*
	 * Once, before the first round, in the order of the table: read what is
	 * to be known.  Returns as run().  NULL: there is nothing to read, and
	 * the duty is due in the first round.
	 */
	TimestampTz (*load) (TimestampTz now);

	/*
	 * Do what is to be done.  Returns when the duty is due again by its own
	 * plan: "now" if there is more to do at once, DT_NOEND if it has no plan.
	 */
	TimestampTz (*run) (TimestampTz now);

	/*
	 * When the duty is due by what others have noted in shared memory, and by
	 * its own plan, as far as that counts then.  NULL: its plan is all.  Only
	 * reads.  Called without a lock to decide whether to run, and with
	 * db->lock held to decide how long to sleep.
	 */
	TimestampTz (*next_due) (TimestampTz plan, TimestampTz now);

	/* Runs in each round: it sees for itself what there is to do. */
	bool		each_round;

	/* Does not run while scheduler_paused(). */
	bool		pausable;

	/* The rest is the loop's: what load() or run() has returned */
	TimestampTz plan;

	/* it has met a lock: when it is run again, and after how long; or 0 */
	TimestampTz again_at;
	int64		pause;
} Duty;

extern Duty extension_duty;		/* leaves when the extension does */
extern Duty identity_duty;		/* keeps a copy from running jobs */
extern Duty discover_duty;		/* finds lanes in the index */
extern Duty rank_duty;			/* says which workers serve a lane */
extern Duty scan_duty;			/* reads the due jobs of lanes */
extern Duty clock_duty;			/* corrects times of a clock that was ahead */
extern Duty schedules_duty;		/* enqueues the jobs of schedules */
extern Duty batches_duty;		/* sees what becomes of batches */
extern Duty supervise_duty;		/* looks after the workers */
extern Duty limits_duty;		/* hands out what time has set free */
extern Duty taken_duty;			/* ends jobs that do not wait for a place */
extern Duty expire_duty;		/* ends leases whose time is over */
extern Duty forget_duty;		/* removes leases of jobs that are gone */
extern Duty collect_duty;		/* removes rows of leases that have ended */
extern Duty relay_duty;			/* sends what the relay has collected */
extern Duty sweep_duty;			/* the safety net */
extern Duty retention_duty;		/* looks after the archive */
extern Duty count_duty;			/* counts the jobs for the statistics */
extern Duty monitors_duty;		/* tells of what has begun or ended */

#endif							/* JOBQ_DUTY_H */
