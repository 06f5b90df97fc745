/*-------------------------------------------------------------------------
 *
 * unique_key.c
 *	  The rows of jobq_internal.unique_key, and the release of a key when its job starts or
 *	  ends.
 *
 * Keys are looked up in their present state, and not by an MVCC snapshot.  In a serializable
 * transaction, a look-up by a snapshot would be a read of the whole index page.  All producers
 * write this page, and would fail although their keys are unrelated.  A look-up without a
 * snapshot may miss a row during a replacement.  A later insert finds this row.
 *
 * keys is jobq_internal.unique_key, locked for writing.
 *
 * src/store/unique_key.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/unique_keys.h"

/* Attribute numbers of jobq_internal.unique_key. */
enum
{
	KEY_JOB_ID = 1,
	KEY_HELD_UNTIL,
	KEY_ROLE,
	KEY_QUEUE_ID,
	KEY_UNTIL,
	KEY_KIND,
	KEY_KEY,
	KEY_NATTS = KEY_KEY
};

/* Return in *key the key of a job with a unique key. */
void
jobq_unique_key(const JobqJob *job, JobqUniqueKey *key)
{
	bool		of_kind = JOB_ISNULL(job, JOB_UNIQUE_QUEUE);

	key->key = JOB(job, JOB_UNIQUE_KEY);
	key->kind = of_kind ? JOB(job, JOB_KIND) : CStringGetTextDatum("");
	key->queue_id = of_kind ? Int32GetDatum(UNIQUE_IN_DATABASE)
		: JOB(job, JOB_UNIQUE_QUEUE);
}

/*
 * Return whether this transaction has locked the row, or another transaction that has ended.
 * False if several transactions have locked the row.
 */
static bool
was_locked(HeapTupleHeader row)
{
	TransactionId xmax = HeapTupleHeaderGetRawXmax(row);

	return TransactionIdIsValid(xmax) &&
		(row->t_infomask & HEAP_XMAX_IS_MULTI) == 0 &&
		(TransactionIdIsCurrentTransactionId(xmax) ||
		 !TransactionIdIsInProgress(xmax));
}

/* Find the row of the job's key.  Returns false if there is none. */
bool
jobq_key_find(Relation keys, const JobqJob *job, Snapshot snapshot, JobqKeyHolder *holder)
{
	ScanKeyData scankeys[4];
	SysScanDesc scan;
	HeapTuple	tuple;
	JobqUniqueKey key;

	jobq_unique_key(job, &key);
	ScanKeyInit(&scankeys[0], KEY_KEY, BTEqualStrategyNumber, F_TEXTEQ, key.key);
	ScanKeyInit(&scankeys[1], KEY_KIND, BTEqualStrategyNumber, F_TEXTEQ, key.kind);
	ScanKeyInit(&scankeys[2], KEY_ROLE, BTEqualStrategyNumber, F_OIDEQ,
				JOB(job, JOB_ROLE));
	ScanKeyInit(&scankeys[3], KEY_QUEUE_ID, BTEqualStrategyNumber, F_INT4EQ,
				key.queue_id);
	scan = systable_beginscan(keys, jobq_index(keys, JOBQ_UNIQUE_KEY_PKEY), true,
							  snapshot, lengthof(scankeys), scankeys);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		Datum		values[KEY_NATTS];
		bool		nulls[KEY_NATTS];

		heap_deform_tuple(tuple, RelationGetDescr(keys), values, nulls);
		holder->ctid = tuple->t_self;
		holder->job_id = DatumGetInt64(values[KEY_JOB_ID - 1]);
		holder->held_until = nulls[KEY_HELD_UNTIL - 1] ? DT_NOBEGIN
			: DatumGetTimestampTz(values[KEY_HELD_UNTIL - 1]);
		holder->until = DatumGetChar(values[KEY_UNTIL - 1]);
		holder->was_locked = was_locked(tuple->t_data);
	}
	systable_endscan(scan);
	return HeapTupleIsValid(tuple);
}

/*
 * Find the present row of the job's key, unless the job has lost the key to another job.
 */
static bool
find_own_key(Relation keys, const JobqJob *job, JobqKeyHolder *holder)
{
	CommandCounterIncrement();
	return jobq_key_find(keys, job, SnapshotSelf, holder) &&
		holder->job_id == job_id(job);
}

/*
 * Lock the key's row against replacement of the job by other transactions.  Returns false if
 * the row was changed meanwhile, or if it is locked and "wait" is false.
 */
bool
jobq_key_lock(Relation keys, const JobqKeyHolder *holder, bool wait)
{
	return jobq_lock_row(keys, &holder->ctid, wait ? LockWaitBlock : LockWaitSkip) == TM_Ok;
}

static HeapTuple
form_key(Relation keys, const JobqJob *job, char until, TimestampTz held_until)
{
	Datum		values[KEY_NATTS];
	bool		nulls[KEY_NATTS] = {0};
	JobqUniqueKey key;

	jobq_unique_key(job, &key);
	values[KEY_JOB_ID - 1] = JOB(job, JOB_ID);
	values[KEY_HELD_UNTIL - 1] = TimestampTzGetDatum(held_until);
	nulls[KEY_HELD_UNTIL - 1] = held_until == DT_NOBEGIN;
	values[KEY_ROLE - 1] = JOB(job, JOB_ROLE);
	values[KEY_UNTIL - 1] = CharGetDatum(until);
	values[KEY_QUEUE_ID - 1] = key.queue_id;
	values[KEY_KIND - 1] = key.kind;
	values[KEY_KEY - 1] = key.key;
	return heap_form_tuple(RelationGetDescr(keys), values, nulls);
}

/*
 * Wait for the end of the transaction that is about to write the row, as found by the dirty
 * snapshot.
 */
void
jobq_key_wait(Relation keys, const SnapshotData *dirty, ItemPointer ctid)
{
	TransactionId xid = TransactionIdIsValid(dirty->xmin) ? dirty->xmin : dirty->xmax;

	if (dirty->speculativeToken != 0)
		SpeculativeInsertionWait(dirty->xmin, dirty->speculativeToken);
	else if (TransactionIdIsValid(xid))
		XactLockTableWait(xid, keys, ctid, XLTW_InsertIndex);
}

/*
 * Insert a row for an unused key.  Returns false if another transaction is about to insert the
 * key.  If "wait", returns only when this transaction has ended.
 */
bool
jobq_key_insert(Relation keys, const JobqJob *job, TimestampTz held_until, bool wait)
{
	SnapshotData dirty;
	JobqKeyHolder holder;

	InitDirtySnapshot(dirty);
	if (jobq_key_find(keys, job, &dirty, &holder))
	{
		if (wait)
			jobq_key_wait(keys, &dirty, &holder.ctid);
		return false;
	}
	return jobq_insert_unless_there(keys,
									form_key(keys, job,
											 DatumGetChar(JOB(job, JOB_UNIQUE_UNTIL)),
											 held_until));
}

/* Store in a locked row that the job holds the key. */
void
jobq_key_update(Relation keys, JobqKeyHolder *holder, const JobqJob *job, char until,
				TimestampTz held_until)
{
	if (holder->job_id != job_id(job) || holder->until != until ||
		holder->held_until != held_until)
		jobq_update_row(keys, &holder->ctid, form_key(keys, job, until, held_until));
}

/*
 * The job starts: release the key if the job holds it until start.  Does not wait.  Returns
 * true if a row was written.
 */
bool
jobq_unique_started(const JobqJob *job)
{
	Relation	keys;
	JobqKeyHolder holder;
	bool		changed = false;

	if (JOB_ISNULL(job, JOB_UNIQUE_UNTIL) ||
		DatumGetChar(JOB(job, JOB_UNIQUE_UNTIL)) != UNIQUE_UNTIL_START)
		return false;
	keys = jobq_open_table(JOBQ_UNIQUE_KEY_TABLE, RowExclusiveLock);
	if (find_own_key(keys, job, &holder) && holder.until != UNTIL_WINDOW)
	{
		TM_FailureData tmfd;

		if (holder.held_until <= jobq_now())
			changed = jobq_heap_delete(keys, &holder.ctid,
									   GetCurrentCommandId(true), false,
									   &tmfd) == TM_Ok;
		else if (jobq_key_lock(keys, &holder, false))
		{
			jobq_key_update(keys, &holder, job, UNTIL_WINDOW, holder.held_until);
			changed = true;
		}
	}
	table_close(keys, NoLock);
	return changed;
}

/*
 * The job is over: release its key, if any.  The window of a completed job continues.  The
 * window of another job ends, because the job has not done its work.  Does not wait.
 */
void
jobq_unique_finished(const JobqJob *job, bool completed)
{
	Relation	keys;
	JobqKeyHolder holder;

	if (JOB_ISNULL(job, JOB_UNIQUE_KEY))
		return;
	keys = jobq_open_table(JOBQ_UNIQUE_KEY_TABLE, RowExclusiveLock);
	if (find_own_key(keys, job, &holder) &&
		!(completed && holder.held_until > jobq_now()))
	{
		TM_FailureData tmfd;

		(void) jobq_heap_delete(keys, &holder.ctid, GetCurrentCommandId(true),
								false, &tmfd);
	}
	table_close(keys, NoLock);
}
