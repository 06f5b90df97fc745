/*-------------------------------------------------------------------------
 *
 * row.c
 *	  Rows of jobq_internal.job by direct heap access.
 *
 * What is done once per job goes past SPI, the executor and privilege checks:
 * it is several times cheaper, and no user code (triggers, row security,
 * search_path) can get in between.  A job's row is written once and deleted
 * once; a new place in its lane (a retry) is a delete and an insert under the
 * same id, so that the row's key never changes where it is.
 *
 * src/store/row.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/table.h"
#include "access/xact.h"
#include "commands/async.h"
#include "funcapi.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "storage/smgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "store/store.h"

/*
 * Open jobq_internal.job for writing.
 */
Relation
jobq_open_jobs(void)
{
	return jobq_open_table(JOBQ_JOB_TABLE, RowExclusiveLock);
}

/*
 * The same, or NULL if the extension was dropped.
 */
Relation
jobq_try_open_jobs(void)
{
	const JobqRelations *rels = jobq_relations_if_installed();

	Relation	rel = rels != NULL
		? try_table_open(rels->job, RowExclusiveLock) : NULL;

	if (rel != NULL)
		jobq_check_table(rel, JOBQ_JOB_TABLE);
	return rel;
}

/*
 * Has the table this block?  VACUUM may have truncated it since the block was noted.
 *
 * The storage manager keeps how many blocks there were when somebody asked it last, and
 * forgets it with the message of whoever truncates the table.  That was sent before his
 * lock was released, so who has locked the table has heard of it.
 */
static bool
has_block(Relation rel, BlockNumber block)
{
	BlockNumber blocks = RelationGetSmgr(rel)->smgr_cached_nblocks[MAIN_FORKNUM];

	return (blocks != InvalidBlockNumber && block < blocks) ||
		block < RelationGetNumberOfBlocks(rel);
}

/*
 * Read the row at ctid, if it is visible and is this job's.
 */
static bool
fetch_at(Relation rel, const ItemPointerData *ctid, int64 id,
		 Snapshot snapshot, JobqJob *job)
{
	HeapTupleData tuple;
	Buffer		buffer;
	bool		isnull;

	if (!has_block(rel, ItemPointerGetBlockNumber(ctid)))
		return false;
	tuple.t_self = *ctid;
	if (!heap_fetch(rel, snapshot, &tuple, &buffer, false))
		return false;
	if (DatumGetInt64(heap_getattr(&tuple, JOB_ID, RelationGetDescr(rel),
								   &isnull)) != id)
	{
		ReleaseBuffer(buffer);
		return false;
	}
	jobq_job_from_tuple(rel, &tuple, job);
	ReleaseBuffer(buffer);
	return true;
}

/*
 * Read the row that was at ctid when that was noted, if it is visible and is
 * this job's.  It is somewhere else if the table was written anew since (VACUUM
 * FULL, CLUSTER): then its id finds it, and a row that a job has got since is
 * known by its other run_at.
 */
bool
jobq_job_fetch(Relation rel, const ItemPointerData *ctid, JobqKey key,
			   Snapshot snapshot, JobqJob *job)
{
	return fetch_at(rel, ctid, key.id, snapshot, job) ||
		(jobq_job_find(rel, key.id, snapshot, job) &&
		 job_run_at(job) == key.run_at);
}

/*
 * The same for an entry of the ready set.  One that edit(), reassign_owned() or
 * another run_as of the queue has outdated may differ in its lane only, or in its group.
 * That may also be the one in which the job, which is to be written anew, belongs by now.
 */
bool
jobq_job_fetch_entry(Relation rel, const JobqPush *entry, Snapshot snapshot,
					 JobqJob *job)
{
	return jobq_job_fetch(rel, &entry->ctid, entry->key, snapshot, job) &&
		job_queue_id(job) == entry->queue_id &&
		job_priority(job) == entry->priority &&
		job_run_as(job) == entry->role &&
		job_flow(job) == entry->flow &&
		(job_group(job) == entry->group || jobq_group_changed(job));
}

/*
 * Find a live job by its id.
 */
bool
jobq_job_find(Relation rel, int64 id, Snapshot snapshot, JobqJob *job)
{
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, JOB_ID, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(id));
	scan = systable_beginscan(rel, jobq_index(rel, JOBQ_JOB_PKEY), true,
							  snapshot, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		jobq_job_from_tuple(rel, tuple, job);
	systable_endscan(scan);
	return HeapTupleIsValid(tuple);
}

/*
 * Find a live job by its id, as it is now.  For a serializable transaction that is no read
 * if the job is there: with a snapshot it would be one of the whole page of the index, for
 * which it would fail if another job came there.  But a row that is just being changed may
 * be missed without one.
 */
bool
jobq_job_find_now(Relation rel, int64 id, JobqJob *job)
{
	Snapshot	snapshot;
	bool		found;

	if (jobq_job_find(rel, id, SnapshotSelf, job))
		return true;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	found = jobq_job_find(rel, id, snapshot, job);
	UnregisterSnapshot(snapshot);
	return found;
}

/*
 * Insert the job, in the lane where it belongs now, set its ctid, and hand it
 * over at commit.
 */
void
jobq_job_insert(Relation rel, JobqJob *job)
{
	jobq_set_flow(job);
	job->ctid = jobq_insert_row(rel, job->values, job->nulls);
	jobq_count_rows(job, 1);
	jobq_job_push(job);
}

/*
 * The job as an entry of the ready set.  The queue's channel is not notified if
 * queue is NULL.
 */
void
jobq_push_of_job(JobqPush *push, const JobqJob *job, const JobqQueue *queue)
{
	push->queue_id = job_queue_id(job);
	push->priority = job_priority(job);
	push->role = job_run_as(job);
	jobq_push_flow(job, push);
	push->quarantine = DatumGetInt16(JOB(job, JOB_CRASHES)) > 0;
	push->notify = jobq_relay_tells(queue);
	push->key.run_at = job_run_at(job);
	push->key.id = job_id(job);
	push->ctid = job->ctid;
}

/*
 * Insert a job that has begun and will run again: its group waits for it, since it
 * came back for the first time, which the row says; its batch may be about to be
 * cancelled.
 */
void
jobq_job_insert_again(Relation rel, JobqJob *job)
{
	if (job_group(job) != 0)
	{
		if (JOB_ISNULL(job, JOB_GROUP_HELD))
			JOB_SET(job, JOB_GROUP_HELD, TimestampTzGetDatum(jobq_now()));
		jobq_at_commit_group_held(job_group(job), job_id(job), job_held_since(job));
	}
	if (job_batch(job) != 0)
		jobq_at_commit_batch(job_batch(job), job_id(job), false);
	jobq_job_insert(rel, job);
}

/*
 * At commit, hand the job over to the ready set.
 */
void
jobq_job_push(const JobqJob *job)
{
	JobqQueue	buffer;
	const JobqQueue *queue;
	JobqPush	push;

	if (job_blocked(job))
		return;
	queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	jobq_push_of_job(&push, job, queue);
	jobq_at_commit_push(&push);

	jobq_notify_queue(queue);
}

/*
 * Does the relay tell that the queue, which may be NULL, gets work by this transaction?
 */
bool
jobq_relay_tells(const JobqQueue *queue)
{
	return queue != NULL &&
		(queue->notify == NOTIFY_RELAY ||
		 (queue->notify == NOTIFY_TRANSACTIONAL && jobq_tells_by_relay));
}

/*
 * The queue, which may be NULL, gets work by this transaction: tell of it, if not the
 * relay does.
 */
void
jobq_notify_queue(const JobqQueue *queue)
{
	char		channel[NAMEDATALEN + 16];

	if (queue == NULL || queue->notify != NOTIFY_TRANSACTIONAL ||
		jobq_relay_tells(queue))
		return;
	snprintf(channel, sizeof(channel), "jobq_queue_%s", queue->name);
	Async_Notify(channel, "");
}

/*
 * Is this another transaction, which has not ended?
 */
static bool
in_the_way(TransactionId xid)
{
	return !TransactionIdIsCurrentTransactionId(xid) && TransactionIdIsInProgress(xid);
}

/*
 * The row seems to be locked, and not, or not by one other transaction: by this one
 * itself, which is in nobody's way, by one that has just ended, or by several.  Delete it,
 * if that is possible without waiting; else *blocker is one of those.
 */
static TM_Result
delete_locked(Relation rel, JobqJob *job, TransactionId *blocker)
{
	HeapTupleData tuple = {.t_self = job->ctid};
	CommandId	cid = GetCurrentCommandId(true);
	Buffer		buffer;
	TM_FailureData tmfd;
	MultiXactId several = InvalidMultiXactId;
	TM_Result	result;

	result = heap_lock_tuple(rel, &tuple, cid, LockTupleExclusive, LockWaitSkip,
							 false, &buffer, &tmfd);
	if (result == TM_WouldBlock)
	{
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		if (tuple.t_data->t_infomask & HEAP_XMAX_IS_MULTI)
			several = HeapTupleHeaderGetRawXmax(tuple.t_data);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	}
	ReleaseBuffer(buffer);
	if (result == TM_Ok)
		return jobq_heap_delete(rel, &job->ctid, cid, true, &tmfd);
	if (MultiXactIdIsValid(several))
	{
		MultiXactMember *members;
		int			n = GetMultiXactIdMembers(several, &members, false, false);

		*blocker = InvalidTransactionId;
		for (int i = 0; i < n && !TransactionIdIsValid(*blocker); i++)
			if (in_the_way(members[i].xid))
				*blocker = members[i].xid;
	}
	return result;
}

/*
 * Delete the row without waiting.  False if somebody else has deleted or
 * locked it, or is about to.
 */
bool
jobq_job_delete(Relation rel, JobqJob *job)
{
	TransactionId blocker;

	return jobq_job_delete_or_blocker(rel, job, &blocker);
}

/*
 * The same; if false, blocker is the transaction that is in the way, or
 * invalid if there is none any more.
 */
bool
jobq_job_delete_or_blocker(Relation rel, JobqJob *job, TransactionId *blocker)
{
	TM_FailureData tmfd;
	TM_Result	result;

	result = jobq_heap_delete(rel, &job->ctid, GetCurrentCommandId(true),
							  false, &tmfd);
	*blocker = result == TM_BeingModified ? tmfd.xmax : InvalidTransactionId;
	if (result == TM_BeingModified && !in_the_way(tmfd.xmax))
		result = delete_locked(rel, job, blocker);
	if (result == TM_Ok)
		jobq_count_rows(job, -1);
	return result == TM_Ok;
}

/*
 * The caller, who is no worker, has deleted the row: should that be undone,
 * hand the job over again.
 */
void
jobq_job_push_if_undone(const JobqJob *job)
{
	JobqPush	push;

	if (job_blocked(job))
		return;
	jobq_push_of_job(&push, job, NULL);
	jobq_at_abort_push(&push);
}

/*
 * Update the row in place: the caller has changed only columns that are in no
 * index, so this stays a heap-only update where the page has room.  Does not
 * wait; false as in jobq_job_delete().
 */
bool
jobq_job_lease(Relation rel, JobqJob *job)
{
	HeapTupleData locked;
	HeapTuple	tuple;
	Buffer		buffer;
	TM_FailureData tmfd;
	TM_Result	result;

	locked.t_self = job->ctid;
	result = heap_lock_tuple(rel, &locked, GetCurrentCommandId(true),
							 LockTupleNoKeyExclusive, LockWaitSkip, false,
							 &buffer, &tmfd);
	ReleaseBuffer(buffer);
	if (result != TM_Ok)
		return false;

	tuple = heap_form_tuple(RelationGetDescr(rel), job->values, job->nulls);
	jobq_heap_update(rel, &job->ctid, tuple);
	if (!HeapTupleIsHeapOnly(tuple))
		jobq_insert_entries(rel, &tuple, 1);
	job->ctid = tuple->t_self;
	heap_freetuple(tuple);
	return true;
}
