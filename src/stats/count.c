/*-------------------------------------------------------------------------
 *
 * count.c
 *	  Counts the gauges from the tables while transactions continue.
 *
 * The counting process reads all rows with a single snapshot.  Transactions that commit
 * meanwhile add to the gauges as usual.  Changes that the snapshot does not see are also added
 * to since_count.  In the end, the sum of the counted rows and since_count replaces the gauge.
 *
 * The snapshot is taken under the lock, together with a mark on all slots.  A committing
 * process that finds a mark acquires the lock to read the snapshot.  Each committing process
 * therefore falls into one of two cases.  The process may have added to a gauge before the
 * mark; the snapshot then sees the transaction.  Otherwise the process can check whether the
 * snapshot sees the transaction.  A process may also add its notes after the count has ended,
 * although the snapshot saw its transaction.  The transactions seen by a snapshot are
 * therefore stored until the next snapshot.
 *
 * src/stats/count.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/transam.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"

#include "stats/stats.h"

/*
 * Begin to count.  Returns a registered snapshot for reading the tables.  Returns NULL if
 * there are too many transactions at the moment, or if base belongs to another database.
 * *number identifies this count.  Acquires JobqStats.lock exclusively.
 */
Snapshot
jobq_stats_count_begin(JobqStatBase *base, TimestampTz now, uint32 *number)
{
	Snapshot	snapshot;
	bool		room;
	uint32		all = jobq_stats->nstats + (uint32) jobq_max_databases;

	/* allocates the memory for the second call, which then cannot fail */
	(void) GetLatestSnapshot();

	LWLockAcquire(jobq_stats->lock, LW_EXCLUSIVE);
	if (base->dboid != MyDatabaseId)
	{
		LWLockRelease(jobq_stats->lock);
		return NULL;
	}
	base->recount = false;
	base->count = *number = ++jobq_stats->ncounts;
	for (uint32 place = 0; place < all; place++)
	{
		JobqStat   *stat = &jobq_stats->stats[place];

		SpinLockAcquire(&stat->mutex);
		if (stat->in_use && stat->name.dboid == base->dboid &&
			stat->name.jobs == base->jobs)
		{
			stat->count = base->count;
			memset(stat->since_count, 0, sizeof(stat->since_count));
			memset(&stat->counts.scheduled, 0, sizeof(JobqCalendar));
			(void) jobq_calendar_turn(&stat->counts.scheduled, now);
		}
		SpinLockRelease(&stat->mutex);
	}
	snapshot = GetLatestSnapshot();
	room = jobq_seen_set(&base->seen, base->xip, JOBQ_STATS_XIDS, snapshot,
						 InvalidTransactionId);
	LWLockRelease(jobq_stats->lock);
	if (!room)
	{
		jobq_stats_count_end(base, *number, NULL, now);
		return NULL;
	}
	return RegisterSnapshot(snapshot);
}

/*
 * Request a new count, because jobs of the database have changed without a note.  Takes no
 * lock.
 */
void
jobq_stats_unknown(Oid dboid)
{
	for (int i = 0; i < jobq_max_databases; i++)
		if (jobq_stats->bases[i].dboid == dboid)
			jobq_stats->bases[i].recount = true;
}

/*
 * The clock was put back to now.  Limit the stored times of the database to now.  Have the
 * jobs counted anew, because other jobs wait for their time now.  Acquires JobqStats.lock
 * exclusively.
 */
void
jobq_stats_put_back(Oid dboid, TimestampTz now)
{
	LWLockAcquire(jobq_stats->lock, LW_EXCLUSIVE);
	for (uint32 place = 0; place < jobq_stats->nstats + (uint32) jobq_max_databases; place++)
	{
		JobqStat   *stat = &jobq_stats->stats[place];

		if (!stat->in_use || stat->name.dboid != dboid)
			continue;
		SpinLockAcquire(&stat->mutex);
		stat->used_at = Min(stat->used_at, now);
		stat->counts.completed_at = Min(stat->counts.completed_at, now);
		SpinLockRelease(&stat->mutex);
	}
	jobq_stats->full_until = 0;
	LWLockRelease(jobq_stats->lock);
	jobq_stats_unknown(dboid);
}

/* True if the gauges are exact.  Takes no lock. */
bool
jobq_stats_exact(const JobqStatBase *base)
{
	return base->known && !base->recount && base->count == 0;
}

/*
 * True if the last snapshot did not see the transaction, which has committed since.  The
 * caller must hold JobqStats.lock, or the mutex of a slot without a mark.
 */
bool
jobq_stats_count_missed(const JobqStatBase *base, FullTransactionId fxid)
{
	return jobq_seen_missed(&base->seen, base->xip, fxid);
}

/*
 * End the count.  The gauges of each slot become counted[slot], all 0 where the pointer is
 * NULL.  If counted is NULL, the count was given up.  Does nothing if the count with this
 * number is over, or another count has begun.  Acquires JobqStats.lock exclusively.
 */
void
jobq_stats_count_end(JobqStatBase *base, uint32 number, JobqCounted **counted,
					 TimestampTz now)
{
	uint32		all = jobq_stats->nstats + (uint32) jobq_max_databases;

	LWLockAcquire(jobq_stats->lock, LW_EXCLUSIVE);
	if (number == 0 || base->count != number)
	{
		LWLockRelease(jobq_stats->lock);
		return;
	}
	for (uint32 place = 0; place < all; place++)
	{
		JobqStat   *stat = &jobq_stats->stats[place];

		SpinLockAcquire(&stat->mutex);
		if (stat->in_use && stat->count == number)
		{
			JobqCounted *found = counted == NULL ? NULL : counted[place];

			for (int i = 0; i < JOBQ_NGAUGES && counted != NULL; i++)
				stat->counts.gauges[i] = stat->since_count[i] +
					(found == NULL ? 0 : found->gauges[i]);
			(void) jobq_calendar_turn(&stat->counts.scheduled, now);
			if (found != NULL)
			{
				(void) jobq_calendar_turn(&found->scheduled, now);
				jobq_calendar_merge(&stat->counts.scheduled, &found->scheduled);
			}
			stat->count = 0;
		}
		SpinLockRelease(&stat->mutex);
	}
	base->count = 0;
	if (counted == NULL)
	{
		base->recount = true;
		base->seen.xmax = InvalidFullTransactionId;
	}
	else if (!base->recount)
		base->known = true;
	LWLockRelease(jobq_stats->lock);
}
