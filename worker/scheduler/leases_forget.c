/*-------------------------------------------------------------------------
 *
 * leases_forget.c
 *	  Leases whose jobs are gone come to an end.
 *
 * Whoever ends a job of a consumer in another way than by its token, as cancel() does,
 * ends the lease at commit.  Two cannot: a transaction that commits before the lease is
 * made again after a restart (leases_load.c), and one that was prepared, as what it had
 * noted is forgotten.  So when either may have been, all leases are looked at, and those
 * whose jobs are not there any more are removed.
 *
 * worker/scheduler/leases_forget.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/table.h"
#include "access/xact.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "scheduler/duty.h"

/* Places that are looked at under the lock, and leases whose jobs are, in one round. */
#define MAX_PLACES		4096
#define MAX_LEASES		1000

/* Where prepared transactions come one after another, so much time is in between. */
#define FORGET_PAUSE	USECS_PER_SEC

/* A lease, and the holding it stands for. */
typedef struct Known
{
	int64		id;
	int64		token;
}			Known;

static TimestampTz forget(TimestampTz now);
static TimestampTz next_forget(TimestampTz plan, TimestampTz now);
static int	forget_some(Relation jobs, int place);

/*
 * Removes the leases of jobs that are gone: in each round some thousand places, with
 * one look into an index for each lease.
 */
Duty		forget_duty = {
	.what = "remove leases of jobs that are gone",
	.run = forget,
	.next_due = next_forget,
};

/* The first place that is not looked at yet. */
static int	next_place = 0;

static TimestampTz
forget(TimestampTz now)
{
	Relation	jobs;

	if (next_place == 0)
	{
		/* who commits from now on has us look again */
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		my_db->leases->unsure = false;
		LWLockRelease(my_db->lock);
	}
	process_begin_transaction();
	jobs = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	next_place = forget_some(jobs, next_place);
	table_close(jobs, NoLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
	return next_place > 0 ? now : now + FORGET_PAUSE;
}

static TimestampTz
next_forget(TimestampTz plan, TimestampTz now)
{
	return next_place > 0 || my_db->leases->unsure ? plan : DT_NOEND;
}

/*
 * Remove all leases whose jobs are gone.  Called in a transaction, with
 * jobq_internal.job locked.
 */
void
leases_forget(Relation jobs)
{
	int			place = 0;

	do
		place = forget_some(jobs, place);
	while (place > 0);
}

/*
 * Look at some leases from this place on.  Returns the place to go on with; 0 if that
 * was the last.
 *
 * The jobs are looked for after the leases were read, so none of them is too new to be
 * seen.  A job may come back under its id, and be handed out again: that is another
 * token.
 */
static int
forget_some(Relation jobs, int place)
{
	Known	   *known = palloc(sizeof(Known) * MAX_LEASES);
	int			end = Min(place + MAX_PLACES, jobq_max_leases);
	Snapshot	snapshot;
	JobqWakeList wake = {0};
	int			n = 0;
	int			ngone = 0;

	LWLockAcquire(my_db->lock, LW_SHARED);
	if (my_db->leases->nleases == 0)
		place = end = jobq_max_leases;
	for (; place < end && n < MAX_LEASES; place++)
	{
		const JobqLease *lease = &my_db->leases->leases[place];

		if (lease->id != 0)
			known[n++] = (Known)
		{
			lease->id, lease->token
		};
	}
	LWLockRelease(my_db->lock);

	snapshot = RegisterSnapshot(GetLatestSnapshot());
	for (int i = 0; i < n; i++)
	{
		JobqJob		job;

		if (!jobq_job_find(jobs, known[i].id, snapshot, &job))
			known[ngone++] = known[i];
	}
	UnregisterSnapshot(snapshot);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < ngone; i++)
	{
		JobqLease  *lease = jobq_lease_find(my_db, known[i].id);

		if (lease != NULL && lease->token == known[i].token)
			jobq_lease_remove(my_db, lease, false, false, jobq_now(), &wake);
	}
	jobq_unlock(my_db, &wake);
	pfree(known);
	return place < jobq_max_leases ? place : 0;
}
