/*-------------------------------------------------------------------------
 *
 * row.c
 *	  Rows of jobq_internal.job by direct heap access.
 *
 * Operations for each job bypass SPI, the executor and privilege checks.  This is several
 * times cheaper, and no code of users (triggers, row security, search_path) can interfere.  A
 * job's row is written once and deleted once.  A new position in its lane, for example by a
 * retry, is a delete and an insert with the same id.  The key of a row is therefore never
 * updated in place.
 *
 * Unless stated otherwise, rel is jobq_internal.job, opened by jobq_open_jobs().
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

/* Open jobq_internal.job for writing. */
Relation
jobq_open_jobs(void)
{
	return jobq_open_table(JOBQ_JOB_TABLE, RowExclusiveLock);
}

/* Like jobq_open_jobs(), but returns NULL if the extension was dropped. */
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
 * Return whether the table has this block.  VACUUM may have truncated the table since the
 * block was noted.  The storage manager caches the number of blocks, and drops the cached
 * value when the truncating process sends its invalidation.  This is sent before the lock of
 * the table is released.  A process with a lock on the table has therefore received the
 * invalidation.
 */
static bool
has_block(Relation rel, BlockNumber block)
{
	BlockNumber blocks = RelationGetSmgr(rel)->smgr_cached_nblocks[MAIN_FORKNUM];

	return (blocks != InvalidBlockNumber && block < blocks) ||
		block < RelationGetNumberOfBlocks(rel);
}

/* Read the row at ctid, if it is visible and belongs to this job. */
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
 * Read the row noted at ctid, if it is visible and belongs to this job.  If the table was
 * rewritten since (VACUUM FULL, CLUSTER), the row is found by its id.  A newer row of the job
 * has another run_at, and is not returned.  Returns false if there is no row.
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
 * Like jobq_job_fetch(), for an entry of the ready set.  edit(), reassign_owned() or a change
 * of run_as may have outdated the entry, so that only its lane or its group differs from the
 * row.  Returns false then.  A group that does not fit its queue any more is accepted, because
 * the row will be written again.
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
 * Find a live job by id.  Returns false if there is none visible to the snapshot.
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
 * Find the present row of a live job by id.  If the job exists, this does not count as a read
 * of a serializable transaction.  With an MVCC snapshot it would be a read of the whole index
 * page, and the transaction would fail if another job were inserted there.  A scan without a
 * snapshot may miss a row during a change.  The second scan finds this row.
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
 * Insert the job into the present lane, set the ctid, and hand the job over at commit.
 */
void
jobq_job_insert(Relation rel, JobqJob *job)
{
	Assert(job_id(job) != 0);
	jobq_set_flow(job);
	job->ctid = jobq_insert_row(rel, job->values, job->nulls);
	jobq_count_rows(job, 1);
	jobq_job_push(job);
}

/*
 * Convert the job to an entry of the ready set.  If queue is NULL, the queue's channel is not
 * notified.
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
 * Insert a job to be run again as if it had not run.  The job's batch is evaluated, because the
 * batch may be about to be cancelled.
 */
void
jobq_job_insert_back(Relation rel, JobqJob *job)
{
	if (job_batch(job) != 0)
		jobq_at_commit_batch(job_batch(job), job_id(job), false);
	jobq_job_insert(rel, job);
}

/*
 * Insert a job to be run again.  Its group waits for the job, since the time when the job
 * first returned.  The row stores this time.
 */
void
jobq_job_insert_again(Relation rel, JobqJob *job)
{
	if (job_group(job) != 0)
	{
		if (JOB_ISNULL(job, JOB_GROUP_HELD))
			JOB_SET(job, JOB_GROUP_HELD, TimestampTzGetDatum(jobq_now()));
		jobq_job_holds_group(job);
	}
	jobq_job_insert_back(rel, job);
}

/*
 * At commit, make the group of the job wait for the job.  The row stores since when.
 */
void
jobq_job_holds_group(const JobqJob *job)
{
	JobqGroupHold hold = {
		.group = job_group(job),.job = job_id(job),.queue_id = job_queue_id(job),
		.role = job_role(job),.since = job_held_since(job)
	};

	jobq_at_commit_group_held(&hold);
}

/*
 * At commit, hand the job over to the ready set.  Does nothing for a blocked job.
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
 * Return whether the relay notifies the queue's channel of work.  queue may be NULL.
 */
bool
jobq_relay_tells(const JobqQueue *queue)
{
	return queue != NULL &&
		(queue->notify == NOTIFY_RELAY ||
		 (queue->notify == NOTIFY_TRANSACTIONAL && jobq_tells_by_relay));
}

/*
 * Notify the queue's channel in this transaction, if the relay does not do so.  queue may be
 * NULL.
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

/* Return whether this is another transaction that has not ended. */
static bool
in_the_way(TransactionId xid)
{
	return !TransactionIdIsCurrentTransactionId(xid) && TransactionIdIsInProgress(xid);
}

/*
 * Delete a seemingly locked row, if this is possible without waiting.  The lock may be held by
 * this transaction, by a just ended transaction, or by several transactions.  If the row
 * cannot be deleted, *blocker is one of these, if any.
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
 * Delete the row without waiting.  Returns false if another transaction has deleted or locked
 * the row, or is about to.
 */
bool
jobq_job_delete(Relation rel, JobqJob *job)
{
	TransactionId blocker;

	return jobq_job_delete_or_blocker(rel, job, &blocker);
}

/*
 * Like jobq_job_delete().  If the result is false, *blocker is the blocking transaction, or
 * invalid if it has ended.
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
 * The caller, which is not a worker, has deleted the row.  At abort, hand the job over again.
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
 * Update the row in place.  The caller has changed only columns without an index.  The update
 * is therefore heap-only if the page has room.  Does not wait.  Returns false if another
 * transaction has locked or changed the row.
 */
bool
jobq_job_lease(Relation rel, JobqJob *job)
{
	if (jobq_lock_row(rel, &job->ctid, LockWaitSkip) != TM_Ok)
		return false;
	jobq_update_row(rel, &job->ctid,
					heap_form_tuple(RelationGetDescr(rel), job->values, job->nulls));
	return true;
}
