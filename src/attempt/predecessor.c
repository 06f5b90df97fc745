/*-------------------------------------------------------------------------
 *
 * predecessor.c
 *	  Decides from the table whether a job must wait for another job of its group.
 *
 * src/attempt/predecessor.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "executor/tuptable.h"
#include "utils/fmgroids.h"

#include "attempt/attempt.h"

static bool group_is_held(Relation rel, const JobqJob *job,
						  const JobqQueue *queue, Snapshot snapshot,
						  JobqJob *holder);
static bool group_predecessor(Relation rel, const JobqJob *job, const JobqJob *after,
							  Snapshot snapshot, JobqJob *first);

/*
 * True if the job must wait for another job of its group.
 *
 * A group may have jobs in several lanes, because of several priorities, roles or limited
 * kinds.  The lane does not show jobs of further lanes, so the table is read, unless there is
 * only a single lane.
 *
 * A group permit proves two facts: no job of the group runs, and the group has no owner.
 * A job found in the table has no permit yet, and without a scheduler there are no
 * permits.  In this case the table is read for this condition, too.
 *
 * A job for which the group has waited too long is ordered like any job.
 */
bool
jobq_group_is_busy(Relation rel, const JobqJob *job, const JobqQueue *queue,
				   const JobqPush *entry, Snapshot snapshot, JobqJob *first)
{
	bool		shared = jobq_group_shared(job_group(job));
	bool		waits = shared || (queue != NULL && queue->group_waits);

	if (job_group(job) == 0 || queue == NULL ||
		(queue->group_max_running != 1 && !shared) ||
		(waits && jobq_group_is_held_by(job, jobq_now())))
		return false;
	if (entry != NULL &&
		(entry->first || entry->permits.group == JOBQ_NONE ||
		 jobq_my_database() == NULL))
		return false;
	if (entry == NULL && waits &&
		group_is_held(rel, job, queue, snapshot, first))
		return true;
	return group_predecessor(rel, job, NULL, snapshot, first);
}

/*
 * Search for another job of the same group that has begun before and for which the group still
 * waits, whether due or not.
 */
static bool
group_is_held(Relation rel, const JobqJob *job, const JobqQueue *queue,
			  Snapshot snapshot, JobqJob *holder)
{
	TimestampTz now = jobq_now();
	ScanKeyData keys[2];
	int			nkeys = 1;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&keys[0], JOB_GROUP_ID, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(job_group(job)));

	/* in one queue, skip jobs for which the group has waited too long */
	if (queue->group_patience > 0 && !jobq_group_shared(job_group(job)))
		ScanKeyInit(&keys[nkeys++], JOB_GROUP_HELD, BTGreaterStrategyNumber,
					F_TIMESTAMPTZ_GT,
					TimestampTzGetDatum(now - queue->group_patience));
	scan = systable_beginscan(rel, jobq_index(rel, JOBQ_JOB_GROUP_HELD), true,
							  snapshot, nkeys, keys);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		jobq_job_from_tuple(rel, tuple, holder);
		found = job_id(holder) != job_id(job) &&
			jobq_group_is_held_by(holder, now) &&
			!DatumGetBool(JOB(holder, JOB_DORMANT));
	}
	systable_endscan(scan);
	return found;
}

/*
 * True if another job of the group precedes this job, although this job has begun.  A crash
 * has then undone the completion of the preceding job: see jobq_job_put_back().
 */
bool
jobq_group_overtaken(Relation rel, const JobqJob *job, Snapshot snapshot)
{
	JobqQueue	buffer;
	JobqJob		first;

	return jobq_group_is_busy(rel, job, jobq_queue_by_id(job_queue_id(job), &buffer),
							  NULL, snapshot, &first);
}

/*
 * True if no due job of the group is between these two jobs of the same priority, of which the
 * first comes before the other.
 */
bool
jobq_group_follows(Relation rel, const JobqJob *before, const JobqJob *job, Snapshot snapshot)
{
	JobqJob		between;

	return (job_run_at(before) < job_run_at(job) ||
			(job_run_at(before) == job_run_at(job) && job_id(before) < job_id(job))) &&
		!group_predecessor(rel, job, before, snapshot, &between);
}

/*
 * Fill in a key of the index job_group: a position in the group before or after that of the job,
 * according to the strategy.  members: the three columns of the position, which stay in use.
 */
static void
position_key(ScanKey key, ScanKey members, StrategyNumber strategy, const JobqJob *job)
{
	ScanKeyEntryInitialize(&members[0], SK_ROW_MEMBER, 2, strategy, InvalidOid, InvalidOid,
						   F_BTINT4CMP, Int32GetDatum(job_priority(job)));
	ScanKeyEntryInitialize(&members[1], SK_ROW_MEMBER, 3, strategy, InvalidOid, InvalidOid,
						   F_TIMESTAMPTZ_CMP, TimestampTzGetDatum(job_run_at(job)));
	ScanKeyEntryInitialize(&members[2], SK_ROW_MEMBER | SK_ROW_END, 4, strategy, InvalidOid,
						   InvalidOid, F_BTINT8CMP, Int64GetDatum(job_id(job)));
	MemSet(key, 0, sizeof(ScanKeyData));
	key->sk_flags = SK_ROW_HEADER;
	key->sk_attno = 2;
	key->sk_strategy = strategy;
	key->sk_argument = PointerGetDatum(members);
}

/*
 * Search for a due job of the same group that precedes this job, and comes after the job "after"
 * of the same priority, unless NULL.
 */
static bool
group_predecessor(Relation rel, const JobqJob *job, const JobqJob *after, Snapshot snapshot,
				  JobqJob *first)
{
	TimestampTz now = jobq_now();
	Relation	index = jobq_open_index(rel, JOBQ_JOB_GROUP);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ScanKeyData keys[3];
	ScanKeyData members[2][3];
	IndexScanDesc scan;
	bool		found = false;
	int			nkeys = 1;

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(job_group(job)));
	position_key(&keys[nkeys++], members[0], BTLessStrategyNumber, job);
	if (after != NULL)
		position_key(&keys[nkeys++], members[1], BTGreaterStrategyNumber, after);

	scan = jobq_index_beginscan(rel, index, snapshot, nkeys);
	index_rescan(scan, keys, nkeys, NULL, 0);
	while (!found && index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		slot_getallattrs(slot);
		found = DatumGetTimestampTz(slot->tts_values[JOB_RUN_AT - 1]) <= now &&
			!DatumGetBool(slot->tts_values[JOB_DORMANT - 1]);
	}
	if (found)
		jobq_job_from_tuple(rel, ExecFetchSlotHeapTuple(slot, false, NULL), first);
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	return found;
}
