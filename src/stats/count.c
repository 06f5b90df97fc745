/*-------------------------------------------------------------------------
 *
 * count.c
 *	  Gauges are counted from the tables, while transactions go on.
 *
 * Whoever counts reads all rows with one snapshot.  Transactions that commit
 * meanwhile add to the gauges as ever, and to since_count what the snapshot does not
 * see: the sum of what was counted and of that is right in the end, and takes the
 * gauge's place.
 *
 * The snapshot is taken under the lock, when all places are marked; who finds such a
 * mark takes the lock to see the snapshot.  So whoever commits has either added to a
 * gauge before its place was marked, and is seen by the snapshot, or knows whether
 * he is.  He may also come when all is counted, as he is seen before he adds: so what
 * the snapshot has seen is known until the next one.
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
 * Begin to count; the snapshot to count with, registered, or NULL if there are too
 * many transactions for that now, or the base is another database's.  *number is that of
 * this counting.
 */
Snapshot
jobq_stats_count_begin(JobqStatBase *base, TimestampTz now, uint32 *number)
{
	Snapshot	snapshot;
	FullTransactionId next;
	uint32		all = jobq_stats->nstats + (uint32) jobq_max_databases;

	/* makes the room that the second one needs, which cannot fail then */
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
	next = ReadNextFullTransactionId();
	base->xmax = FullTransactionIdFromU64(U64FromFullTransactionId(next) -
										  (uint32) (XidFromFullTransactionId(next) - snapshot->xmax));
	base->nxip = Min((int) snapshot->xcnt, JOBQ_STATS_XIDS);
	memcpy(base->xip, snapshot->xip, sizeof(TransactionId) * base->nxip);
	LWLockRelease(jobq_stats->lock);
	if (snapshot->xcnt > JOBQ_STATS_XIDS)
	{
		jobq_stats_count_end(base, *number, NULL, now);
		return NULL;
	}
	return RegisterSnapshot(snapshot);
}

/*
 * Something has changed the database's jobs that was not noted: have them counted
 * anew.  Takes no lock.
 */
void
jobq_stats_unknown(Oid dboid)
{
	for (int i = 0; i < jobq_max_databases; i++)
		if (jobq_stats->bases[i].dboid == dboid)
			jobq_stats->bases[i].recount = true;
}

/*
 * The clock was put back to this time: nothing of the database's has happened later, and
 * its jobs are counted anew, as those that wait for their time are others now.
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

/*
 * Are the gauges right?  Takes no lock.
 */
bool
jobq_stats_exact(const JobqStatBase *base)
{
	return base->known && !base->recount && base->count == 0;
}

/*
 * Has the last snapshot not seen the transaction, which has committed since?  Wants
 * the lock, or the mutex of a place that is not marked.
 */
bool
jobq_stats_count_missed(const JobqStatBase *base, FullTransactionId fxid)
{
	if (FullTransactionIdFollowsOrEquals(fxid, base->xmax))
		return true;
	for (int i = 0; i < base->nxip; i++)
		if (base->xip[i] == XidFromFullTransactionId(fxid))
			return true;
	return false;
}

/*
 * All is counted: the gauges of each place are these, all 0 where it has NULL.
 * counted is NULL: it was given up.  Nothing is done if the counting with this number
 * is over, or another has begun.
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
		base->xmax = InvalidFullTransactionId;
	}
	else if (!base->recount)
		base->known = true;
	LWLockRelease(jobq_stats->lock);
}
