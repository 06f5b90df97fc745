/*-------------------------------------------------------------------------
 *
 * leases_forget.c
 *	  Removes leases of deleted jobs.
 *
 * A process that ends a job of a consumer without its token, as cancel() does, ends the
 * lease at commit.  In two cases this is impossible.  First, the transaction commits
 * after a restart but before the lease is restored (leases_load.c).  Second, a prepared
 * transaction loses its notes.  After a possible case, all leases are checked, and
 * leases of deleted jobs are removed.
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

/* Positions checked under the lock, and leases whose jobs are checked, in one round. */
#define MAX_PLACES		4096
#define MAX_LEASES		1000

/* The pause between checks after prepared transactions (microseconds). */
#define FORGET_PAUSE	USECS_PER_SEC

/* A lease, and the token of its reservation. */
typedef struct Known
{
	int64		id;
	int64		token;
}			Known;

static TimestampTz forget(TimestampTz now);
static TimestampTz next_forget(TimestampTz plan, TimestampTz now);
static int	forget_some(Relation jobs, int place);

/*
 * Removes the leases of deleted jobs.  A round checks some thousand positions, with one
 * index lookup for each lease.
 */
Duty		forget_duty = {
	.what = "remove leases of jobs that are gone",
	.run = forget,
	.next_due = next_forget,
};

/* The first position not checked yet. */
static int	next_place = 0;

static TimestampTz
forget(TimestampTz now)
{
	Relation	jobs;

	if (next_place == 0)
	{
		/* a commit from now on requests another check */
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
 * Remove all leases of deleted jobs.  Must be called in a transaction, with
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
 * Check some leases from this position on.  Returns the position to continue at; 0 at
 * the end.  Takes my_db->lock exclusively.
 *
 * The jobs are looked up after the leases were read, so the snapshot sees each job with
 * a lease.  A job may return with the same id and be reserved again; it then has a
 * different token.
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
