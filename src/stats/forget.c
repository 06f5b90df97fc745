/*-------------------------------------------------------------------------
 *
 * forget.c
 *	  Slots of dropped queues and databases are freed, and counters are reset.
 *
 * src/stats/forget.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "stats/stats.h"

/*
 * Reset the counters of the queue, or of all queues if queue_id is 0.  Gauges stay.  Acquires
 * the mutex of each slot.
 */
void
jobq_stats_clear(Oid dboid, Oid jobs, int32 queue_id, TimestampTz now)
{
	for (uint32 place = 0; place < jobq_stats_places(); place++)
	{
		JobqStat   *stat = &jobq_stats->stats[place];
		JobqStatName *name = &stat->name;

		SpinLockAcquire(&stat->mutex);
		if (stat->in_use && name->dboid == dboid && name->jobs == jobs &&
			(queue_id == 0 || name->queue_id == queue_id))
		{
			memset(stat->counts.counters, 0, sizeof(stat->counts.counters));
			memset(&stat->counts.costs, 0, sizeof(JobqBill));
			memset(&stat->counts.waited, 0, sizeof(JobqTimes));
			memset(&stat->counts.ran, 0, sizeof(JobqTimes));
			memset(&stat->counts.history, 0, sizeof(JobqHistory));
			stat->counts.since = now;
		}
		SpinLockRelease(&stat->mutex);
	}
	(void) pg_atomic_fetch_add_u64(&jobq_stats->changes, 1);
}

/*
 * Free the slot of a name of a dropped queue, and add its gauges.  The caller must hold the
 * lock exclusively.
 */
static void
forget_place(uint32 place, int64 *gauges)
{
	JobqStat   *stat = &jobq_stats->stats[place];

	SpinLockAcquire(&stat->mutex);
	for (int i = 0; i < JOBQ_NGAUGES; i++)
		gauges[i] += stat->counts.gauges[i];
	SpinLockRelease(&stat->mutex);
	jobq_stats_give_up(place, false, 0);
}

/*
 * The queue was dropped: free the slots of the queue's names.  If jobs are being counted, the
 * result includes jobs of the queue, which another name must not get.  If the gauges of a
 * queue without jobs do not add up to 0, the other half is in the slot of the database.  In
 * both cases the jobs are counted anew.  Acquires JobqStats.lock exclusively, for
 * JOBQ_STATS_LOOK slots at a time.  A name evicted meanwhile was added to "(other)" of the
 * queue, which therefore comes last.
 */
void
jobq_stats_forget_queue(Oid dboid, Oid jobs, int32 queue_id)
{
	int64		gauges[JOBQ_NGAUGES] = {0};
	JobqStatBase *base;
	uint32		other;

	LWLockAcquire(jobq_stats->lock, LW_EXCLUSIVE);
	for (uint32 place = 0; place < jobq_stats->nstats; place++)
	{
		const JobqStat *stat = &jobq_stats->stats[place];

		if (place > 0 && place % JOBQ_STATS_LOOK == 0)
		{
			LWLockRelease(jobq_stats->lock);
			LWLockAcquire(jobq_stats->lock, LW_EXCLUSIVE);
		}
		if (stat->in_use && stat->name.dboid == dboid && stat->name.jobs == jobs &&
			stat->name.queue_id == queue_id && !stat->name.other)
			forget_place(place, gauges);
	}
	base = jobq_stats_base(dboid, jobs, false, 0);
	other = base == NULL ? JOBQ_NONE : jobq_stats_find_other(base, queue_id);
	if (other != JOBQ_NONE)
		forget_place(other, gauges);
	for (int i = 0; i < JOBQ_NGAUGES && base != NULL; i++)
		if (gauges[i] != 0 || base->count != 0)
			base->recount = true;
	jobq_stats->full_until = 0;
	(void) pg_atomic_fetch_add_u64(&jobq_stats->changes, 1);
	LWLockRelease(jobq_stats->lock);
}

/*
 * The database is gone, or has another extension: free all slots of the database, except those
 * of the table but_jobs, which may be InvalidOid.  Acquires JobqStats.lock exclusively.
 */
void
jobq_stats_forget_database(Oid dboid, Oid but_jobs)
{
	LWLockAcquire(jobq_stats->lock, LW_EXCLUSIVE);
	for (uint32 place = 0; place < jobq_stats_places(); place++)
	{
		JobqStat   *stat = &jobq_stats->stats[place];

		if (!stat->in_use || stat->name.dboid != dboid ||
			stat->name.jobs == but_jobs)
			continue;
		if (place < jobq_stats->nstats)
			jobq_stats_give_up(place, false, 0);
		else
		{
			SpinLockAcquire(&stat->mutex);
			stat->generation++;
			stat->in_use = false;
			SpinLockRelease(&stat->mutex);
		}
	}
	for (int i = 0; i < jobq_max_databases; i++)
		if (jobq_stats->bases[i].dboid == dboid &&
			jobq_stats->bases[i].jobs != but_jobs)
			jobq_stats->bases[i].dboid = InvalidOid;
	jobq_stats->full_until = 0;
	(void) pg_atomic_fetch_add_u64(&jobq_stats->changes, 1);
	LWLockRelease(jobq_stats->lock);
}
