/*-------------------------------------------------------------------------
 *
 * delete_many.c
 *	  Deletes the rows of several jobs, with one WAL record for each page.
 *
 * heap_delete() writes a WAL record of 54 bytes for each row.  The rows of a set handler's jobs
 * are usually neighbours.  This code makes the changes of heap_delete() to all of these rows of
 * a page, and logs the changed bytes of the page as a generic WAL record.
 *
 * Only for plain rows: visible, never locked, without TOAST values, on a page that is not marked
 * as all-visible.  All other rows, and all rows of a database with logical decoding, are deleted
 * by heap_delete().  A generic record is invisible to logical decoding.
 *
 * src/store/delete_many.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/generic_xlog.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/predicate.h"
#include "utils/rel.h"

#include "store/store.h"

/* Return whether the row can be deleted by mark_deleted().  The buffer is locked exclusively. */
static bool
is_plain(Relation rel, const JobqJob *job, Buffer buffer, CommandId cid)
{
	Page		page = BufferGetPage(buffer);
	OffsetNumber offset = ItemPointerGetOffsetNumber(&job->ctid);
	ItemId		item;
	HeapTupleData tuple;

	if (offset > PageGetMaxOffsetNumber(page))
		return false;
	item = PageGetItemId(page, offset);
	if (!ItemIdIsNormal(item))
		return false;
	tuple.t_self = job->ctid;
	tuple.t_tableOid = RelationGetRelid(rel);
	tuple.t_len = ItemIdGetLength(item);
	tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
	return HeapTupleSatisfiesUpdate(&tuple, cid, buffer) == TM_Ok &&
		(tuple.t_data->t_infomask & HEAP_XMAX_INVALID) != 0 &&
		!TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple.t_data)) &&
		!HeapTupleHasExternal(&tuple);
}

/* Make the changes of heap_delete() to a plain row of this page. */
static void
mark_deleted(Page page, const JobqJob *job, TransactionId xid, CommandId cid)
{
	ItemId		item = PageGetItemId(page, ItemPointerGetOffsetNumber(&job->ctid));
	HeapTupleHeader header = (HeapTupleHeader) PageGetItem(page, item);

	header->t_infomask &= ~(HEAP_XMAX_BITS | HEAP_MOVED);
	header->t_infomask2 |= HEAP_KEYS_UPDATED;
	HeapTupleHeaderClearHotUpdated(header);
	HeapTupleHeaderSetXmax(header, xid);
	HeapTupleHeaderSetCmax(header, cid, false);
	header->t_ctid = job->ctid;
}

/*
 * Delete the plain rows among n rows of the same page.  Sets deleted[] for each row.  Returns
 * the number of deleted rows.
 */
static int
delete_on_page(Relation rel, const JobqJob *jobs, int n, bool *deleted)
{
	TransactionId xid = GetCurrentTransactionId();
	CommandId	cid = GetCurrentCommandId(true);
	BlockNumber block = ItemPointerGetBlockNumber(&jobs[0].ctid);
	Buffer		buffer = ReadBuffer(rel, block);
	int			ndeleted = 0;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		deleted[i] = !PageIsAllVisible(BufferGetPage(buffer)) &&
			is_plain(rel, &jobs[i], buffer, cid);
		if (!deleted[i])
			continue;
		CheckForSerializableConflictIn(rel, unconstify(ItemPointerData *, &jobs[i].ctid), block);
		ndeleted++;
	}
	if (ndeleted > 0)
	{
		GenericXLogState *state;
		Page		page;

		/* as heap_delete(): another session may lock a row from now on */
		MultiXactIdSetOldestMember();
		state = GenericXLogStart(rel);
		page = GenericXLogRegisterBuffer(state, buffer, 0);
		PageSetPrunable(page, xid);
		for (int i = 0; i < n; i++)
			if (deleted[i])
				mark_deleted(page, &jobs[i], xid, cid);
		GenericXLogFinish(state);
	}
	UnlockReleaseBuffer(buffer);
	for (int i = 0; i < n; i++)
		if (deleted[i])
		{
			pgstat_count_heap_delete(rel);
			jobq_count_rows(&jobs[i], -1);
		}
	return ndeleted;
}

/*
 * Delete the rows of n jobs without waiting, like jobq_job_delete() for each.  Sets deleted[]:
 * false if another transaction has deleted or locked the row, or is about to.  Jobs of the same
 * page should be neighbours.
 */
void
jobq_job_delete_many(Relation rel, JobqJob *jobs, int n, bool *deleted)
{
	bool		plain = RelationNeedsWAL(rel) && !RelationIsLogicallyLogged(rel);

	for (int i = 0, last; i < n; i = last)
	{
		BlockNumber block = ItemPointerGetBlockNumber(&jobs[i].ctid);
		int			ndeleted = 0;

		last = i + 1;
		while (last < n && ItemPointerGetBlockNumber(&jobs[last].ctid) == block)
			last++;
		memset(&deleted[i], false, last - i);
		while (i < last && ndeleted == 0)
		{
			if (plain && last - i > 1)
				ndeleted = delete_on_page(rel, &jobs[i], last - i, &deleted[i]);
			if (ndeleted == 0)
			{
				/* heap_delete() clears the mark of an all-visible page */
				deleted[i] = jobq_job_delete(rel, &jobs[i]);
				i++;
			}
		}
		for (; i < last; i++)
			if (!deleted[i])
				deleted[i] = jobq_job_delete(rel, &jobs[i]);
	}
}
