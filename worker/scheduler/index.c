/*-------------------------------------------------------------------------
 *
 * index.c
 *	  Reads rows of jobq_internal.job through the index job_ready, to fill the
 *	  ready set.
 *
 * worker/scheduler/index.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/tuptable.h"
#include "storage/ipc.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* Leased rows without a worker noted by a scan. */
#define MAX_LOST		64

static int64 lost[MAX_LOST];
static int	nlost = 0;

/*
 * Start a transaction, and open the index.  Ends the process if the extension is gone.
 */
void
index_begin(ReadyIndex *scan)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	if (jobq_relations_if_installed() == NULL)
		proc_exit(0);
	PushActiveSnapshot(GetTransactionSnapshot());
	scan->rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	scan->index = jobq_open_index(scan->rel, JOBQ_JOB_READY);
	scan->slot = table_slot_create(scan->rel, NULL);
}

void
index_end(ReadyIndex *scan)
{
	ExecDropSingleTupleTableSlot(scan->slot);
	index_close(scan->index, NoLock);
	table_close(scan->rel, NoLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * Build a scan key for "the index columns first to last are greater than these values".
 */
void
index_key_after(ScanKey header, ScanKey members, int first, int last,
				const IndexPosition *after)
{
	for (int att = first; att <= last; att++)
	{
		RegProcedure cmp = F_BTINT4CMP;
		Datum		value = (Datum) 0;

		switch (att)
		{
			case READY_QUEUE_ID:
				value = Int32GetDatum(after->queue_id);
				break;
			case READY_PRIORITY:
				value = Int32GetDatum(after->priority);
				break;
			case READY_ROLE:
				cmp = F_BTOIDCMP;
				value = ObjectIdGetDatum(after->role);
				break;
			case READY_FLOW:
				value = Int32GetDatum(after->flow);
				break;
			case READY_RUN_AT:
				cmp = F_TIMESTAMPTZ_CMP;
				value = TimestampTzGetDatum(after->key.run_at);
				break;
			case READY_ID:
				cmp = F_BTINT8CMP;
				value = Int64GetDatum(after->key.id);
				break;
		}
		ScanKeyEntryInitialize(&members[att - first],
							   SK_ROW_MEMBER | (att == last ? SK_ROW_END : 0),
							   att, BTGreaterStrategyNumber, InvalidOid,
							   InvalidOid, cmp, value);
	}
	MemSet(header, 0, sizeof(ScanKeyData));
	header->sk_flags = SK_ROW_HEADER;
	header->sk_attno = first;
	header->sk_strategy = BTGreaterStrategyNumber;
	header->sk_argument = PointerGetDatum(members);
}

/*
 * Get the position of the current index entry, whether its row exists or not.  The scan
 * must have xs_want_itup set.
 */
void
index_position(IndexScanDesc desc, IndexPosition *at)
{
	IndexTuple	tuple = desc->xs_itup;
	TupleDesc	itupdesc = desc->xs_itupdesc;
	bool		isnull;

	at->queue_id = DatumGetInt32(index_getattr(tuple, READY_QUEUE_ID,
											   itupdesc, &isnull));
	at->priority = DatumGetInt32(index_getattr(tuple, READY_PRIORITY,
											   itupdesc, &isnull));
	at->role = DatumGetObjectId(index_getattr(tuple, READY_ROLE, itupdesc,
											  &isnull));
	at->flow = DatumGetInt32(index_getattr(tuple, READY_FLOW, itupdesc,
										   &isnull));
	at->key.run_at = DatumGetTimestampTz(index_getattr(tuple, READY_RUN_AT,
													   itupdesc, &isnull));
	at->key.id = DatumGetInt64(index_getattr(tuple, READY_ID, itupdesc,
											 &isnull));
}

/*
 * Convert the row in the slot to an entry.  Returns false if the job cannot start:
 * dormant, or with a lease (*leased is set).
 *
 * first: the entry of another row of the same lane, or NULL.  Values common to the lane
 * are copied from this entry, because computing them costs as much as the rest.
 */
bool
index_read_row(TupleTableSlot *slot, const JobqPush *first, JobqPush *push,
			   bool *dormant, bool *leased)
{
	HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);
	bool		isnull;

	memset(push, 0, sizeof(JobqPush));
	push->key.id = DatumGetInt64(slot_getattr(slot, JOB_ID, &isnull));
	push->key.run_at = DatumGetTimestampTz(slot_getattr(slot, JOB_RUN_AT,
														&isnull));
	push->queue_id = DatumGetInt32(slot_getattr(slot, JOB_QUEUE_ID, &isnull));
	push->priority = DatumGetInt32(slot_getattr(slot, JOB_PRIORITY, &isnull));
	push->role = DatumGetObjectId(slot_getattr(slot, JOB_RUN_AS, &isnull));
	push->flow = DatumGetInt32(slot_getattr(slot, JOB_FLOW, &isnull));
	push->permits = JOBQ_NO_PERMITS;
	push->quarantine =
		DatumGetInt16(slot_getattr(slot, JOB_CRASHES, &isnull)) > 0;
	push->ctid = slot->tts_tid;
	*dormant = DatumGetBool(slot_getattr(slot, JOB_DORMANT, &isnull));

	/* avoid deforming the columns behind the payload */
	*leased = !heap_attisnull(tuple, JOB_LEASE_TOKEN, NULL);
	if (first != NULL && !push->quarantine)
	{
		memcpy(push->needs, first->needs, sizeof(push->needs));
		push->held = first->held;
		if (!heap_attisnull(tuple, JOB_GROUP_ID, NULL))
			push->group = DatumGetInt64(slot_getattr(slot, JOB_GROUP_ID, &isnull));
	}
	else if (push->flow != 0 || !heap_attisnull(tuple, JOB_GROUP_ID, NULL))
	{
		JobqJob		job;

		slot_getallattrs(slot);
		memcpy(job.values, slot->tts_values, sizeof(job.values));
		memcpy(job.nulls, slot->tts_isnull, sizeof(job.nulls));
		jobq_push_flow(&job, push);
	}
	return !*dormant && !*leased;
}

/*
 * Note a leased row if no slot names the job.  Such a row has lost its worker together
 * with the process in charge of the worker.
 */
void
index_note_leased(int64 id)
{
	if (!jobq_slot_names_job(my_db, id) && nlost < MAX_LOST)
		lost[nlost++] = id;
}

/*
 * Handle the noted rows.  Must be called outside a transaction.
 */
void
index_end_lost(void)
{
	for (int i = 0; i < nlost; i++)
		supervise_lost_lease(lost[i]);
	nlost = 0;
}
