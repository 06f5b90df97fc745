/*-------------------------------------------------------------------------
 *
 * pause.c
 *	  Pauses between attempts that fail again and again.
 *
 * Each pause in a row is twice as long as the previous pause, up to a limit.  Pauses are
 * measured by the steady clock.
 *
 * src/base/pause.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#define MS(n)	((n) * INT64CONST(1000))
#define S(n)	((n) * USECS_PER_SEC)

/* The first pause and the longest pause, in microseconds. */
static const struct
{
	int64		first;
	int64		longest;
}			pauses[] =

{
	/* a duty of the scheduler could not lock a table */
	[PAUSE_DUTY_LOCKED] = {MS(50), S(2)},

	/*
	 * the scheduler could not lock the row of a job, or work on the job
	 * failed
	 */
	[PAUSE_JOB_LOCKED] = {MS(50), S(2)},
	[PAUSE_JOB_FAILED] = {MS(50), S(60)},
	/* a batch or schedule could not be locked; and the pause of its role */
	[PAUSE_TASK_LOCKED] = {MS(100), S(10)},
	[PAUSE_ROLE_LOCKED] = {MS(50), S(1)},
	/* no worker could be started, or no worker of a role could connect */
	[PAUSE_NO_SLOT] = {MS(100), S(1)},
	[PAUSE_ROLE_TROUBLE] = {MS(100), S(5)},
	/* the lock for NOTIFY was not free */
	[PAUSE_NOTIFY_LOCKED] = {MS(50), MS(800)},
	/* a partition of the archive could not be created */
	[PAUSE_ARCHIVE_FAILED] = {S(10), S(1800)},
	/* transactions older than a correction of stored times are still open */
	[PAUSE_OPEN_TRANSACTIONS] = {S(1), S(600)},
	/* a scheduler ended before it had worked */
	[PAUSE_SCHEDULER_FAILED] = {S(1), S(60)},
	/* busy workers use all processors: a rest, and the checks during the rest */
	[PAUSE_WORKER_REST] = {MS(2), MS(1024)},
	[PAUSE_WORKER_REST_CHECK] = {MS(2), MS(16)},
};

/* Return the length of the n-th pause in a row (1 is the first), in microseconds. */
int64
jobq_pause_length(JobqPauseReason reason, int n)
{
	Assert(n > 0);
	return Min(pauses[reason].first << Min(n - 1, 20), pauses[reason].longest);
}

/* Return the length of the longest pause, in microseconds. */
int64
jobq_pause_longest(JobqPauseReason reason)
{
	return pauses[reason].longest;
}

/* Begin the next pause.  Pauses of several reasons may follow each other. */
void
jobq_pause_begin(JobqPause *pause, JobqPauseReason reason)
{
	if (pause->n == 0 || jobq_pause_length(reason, pause->n) < pauses[reason].longest)
		pause->n++;
	pause->until = jobq_steady() + jobq_pause_length(reason, pause->n);
}

/* Return when the pause ends as a time of day; "now" if the pause is over. */
TimestampTz
jobq_pause_due(const JobqPause *pause, TimestampTz now)
{
	return jobq_steady_due(pause->until, now);
}
