/*-------------------------------------------------------------------------
 *
 * uuid.c
 *	  Jobs that their client knows by a uuid: enqueued again, it is the same job.
 *
 * jobq_internal.job_uuid says which job a uuid of a role means.  Its row is written
 * in the transaction that enqueues the job, and stays when the job moves between the
 * tables, so these know nothing of it, and jobs without a uuid cost nothing.  A row
 * whose job is in none of the tables any more means nothing: the next job takes it
 * over, or the scheduler deletes it.
 *
 * A role's uuids are its own, as its unique keys are: nobody can find out, or keep
 * away, what another role enqueues.  Whoever may see a job finds it by its uuid.
 *
 * Two who enqueue the same uuid meet at the primary key: the second one waits for the
 * end of the first one's transaction.  Nobody waits for a handler.
 *
 * src/store/uuid.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"

#include "store/store.h"

/* Attribute numbers of jobq_internal.job_uuid. */
enum
{
	UUID_JOB_ID = 1,
	UUID_ROLE,
	UUID_UUID,
	UUID_NATTS = UUID_UUID
};

/* Which job a uuid means. */
typedef struct Meaning
{
	ItemPointerData ctid;
	int64		job_id;
	bool		own;			/* this transaction has written it */
}			Meaning;

static bool find_uuid(Relation uuids, Datum uuid, Oid role, Snapshot snapshot,
					  Meaning * meaning);
static bool has_row(Oid relid, JobqTable table, AttrNumber att, int64 id,
					Snapshot snapshot);
static bool is_kept(Relation rel, int64 id);
static bool lock_uuid(Relation uuids, const Meaning * meaning);
static HeapTuple form_uuid(Relation uuids, const JobqJob *job, Datum uuid);
static bool insert_uuid(Relation uuids, const JobqJob *job, Datum uuid);
static void update_uuid(Relation uuids, Meaning * meaning, const JobqJob *job,
						Datum uuid);

/*
 * Find the row of the role's uuid.
 */
static bool
find_uuid(Relation uuids, Datum uuid, Oid role, Snapshot snapshot,
		  Meaning * meaning)
{
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], UUID_UUID, BTEqualStrategyNumber, F_UUID_EQ, uuid);
	ScanKeyInit(&keys[1], UUID_ROLE, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(role));
	scan = systable_beginscan(uuids, jobq_index(uuids, JOBQ_JOB_UUID_PKEY), true,
							  snapshot, lengthof(keys), keys);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;

		meaning->ctid = tuple->t_self;
		meaning->own = TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmin(tuple->t_data));
		meaning->job_id = DatumGetInt64(heap_getattr(tuple, UUID_JOB_ID,
													 RelationGetDescr(uuids),
													 &isnull));
	}
	systable_endscan(scan);
	return HeapTupleIsValid(tuple);
}

/*
 * Is there a row with this id in the table, whose primary key it is?
 */
static bool
has_row(Oid relid, JobqTable table, AttrNumber att, int64 id, Snapshot snapshot)
{
	Relation	rel = table_open(relid, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	bool		found;

	jobq_check_table(rel, table);
	list_free(RelationGetIndexList(rel));	/* sets rd_pkindex */
	ScanKeyInit(&key, att, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	scan = systable_beginscan(rel, rel->rd_pkindex, OidIsValid(rel->rd_pkindex),
							  snapshot, 1, &key);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/*
 * Is the job in one of the tables?
 */
static bool
is_kept(Relation rel, int64 id)
{
	const JobqRelations *rels = jobq_relations();
	List	   *partitions;
	ListCell   *lc;
	Snapshot	snapshot;
	JobqJob		unused;
	bool		kept;

	/* what runs in this session has deleted its row already */
	if (jobq_current_of(id) != NULL || jobq_job_find(rel, id, SnapshotSelf, &unused))
		return true;

	/* it may be about to end: all that follows is by one snapshot */
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	kept = jobq_job_find(rel, id, snapshot, &unused) ||
		has_row(rels->dead_letter, JOBQ_DEAD_LETTER_TABLE, 2, id, snapshot);
	partitions = kept ? NIL : find_inheritance_children(rels->archive, AccessShareLock);
	foreach(lc, partitions)
	{
		kept = has_row(lfirst_oid(lc), JOBQ_ARCHIVE_TABLE, 2, id, snapshot);
		if (kept)
			break;
	}
	UnregisterSnapshot(snapshot);
	return kept;
}

/*
 * Lock the row, so that nobody else takes it over.  False if it was changed while we
 * waited.
 */
static bool
lock_uuid(Relation uuids, const Meaning * meaning)
{
	HeapTupleData tuple;
	Buffer		buffer;
	TM_FailureData tmfd;
	TM_Result	result;

	tuple.t_self = meaning->ctid;
	result = heap_lock_tuple(uuids, &tuple, GetCurrentCommandId(true),
							 LockTupleNoKeyExclusive, LockWaitBlock, false,
							 &buffer, &tmfd);
	ReleaseBuffer(buffer);
	return result == TM_Ok;
}

static HeapTuple
form_uuid(Relation uuids, const JobqJob *job, Datum uuid)
{
	Datum		values[UUID_NATTS] = {JOB(job, JOB_ID), JOB(job, JOB_ROLE), uuid};
	bool		nulls[UUID_NATTS] = {0};

	return heap_form_tuple(RelationGetDescr(uuids), values, nulls);
}

/*
 * Insert a row for a uuid that nobody had.  If somebody else is about to, wait until
 * that is decided, and return false.
 */
static bool
insert_uuid(Relation uuids, const JobqJob *job, Datum uuid)
{
	SnapshotData dirty;
	Meaning		meaning;

	InitDirtySnapshot(dirty);
	if (find_uuid(uuids, uuid, job_role(job), &dirty, &meaning))
	{
		TransactionId xid = TransactionIdIsValid(dirty.xmin) ? dirty.xmin
			: dirty.xmax;

		if (dirty.speculativeToken != 0)
			SpeculativeInsertionWait(dirty.xmin, dirty.speculativeToken);
		else if (TransactionIdIsValid(xid))
			XactLockTableWait(xid, uuids, &meaning.ctid, XLTW_InsertIndex);
		return false;
	}
	return jobq_insert_unless_there(uuids, form_uuid(uuids, job, uuid));
}

/*
 * Write into a row, which is locked or our own, that the uuid means the job.
 */
static void
update_uuid(Relation uuids, Meaning * meaning, const JobqJob *job, Datum uuid)
{
	HeapTuple	tuple = form_uuid(uuids, job, uuid);

	jobq_heap_update(uuids, &meaning->ctid, tuple);
	if (!HeapTupleIsHeapOnly(tuple))
		jobq_insert_entries(uuids, &tuple, 1);
	heap_freetuple(tuple);
}

/*
 * Have the uuid mean this job, which is about to be enqueued.  False if it means
 * another one of the same role, which is live, or has finished and is kept: then that
 * one's id is the job's.
 */
bool
jobq_uuid_take(Relation rel, JobqJob *job, Datum uuid)
{
	Relation	uuids = jobq_open_table(JOBQ_JOB_UUID_TABLE, RowExclusiveLock);
	bool		kept = false;

	for (bool locked = false;;)
	{
		Meaning		meaning;
		bool		found;

		CHECK_FOR_INTERRUPTS();
		CommandCounterIncrement();

		/*
		 * as keys are looked up, for the sake of serializable transactions:
		 * unique.c
		 */
		found = find_uuid(uuids, uuid, job_role(job), SnapshotSelf, &meaning);
		kept = found && is_kept(rel, meaning.job_id);
		if (kept)
		{
			JOB_SET(job, JOB_ID, Int64GetDatum(meaning.job_id));

			/* who is told that his job is there does not lose it by a crash */
			if (!meaning.own)
				jobq_flush_before_telling();
			break;
		}
		if (!found)
		{
			if (insert_uuid(uuids, job, uuid))
				break;
			continue;
		}

		/* with the lock, look again: nothing changes from here on */
		if (!locked)
		{
			locked = lock_uuid(uuids, &meaning);
			continue;
		}
		update_uuid(uuids, &meaning, job, uuid);
		break;
	}
	table_close(uuids, NoLock);
	return !kept;
}

/*
 * The job for which jobq_uuid_take() was called is not enqueued, because this one has its
 * unique key: the uuid means this job.  If its id is null (jobq_put_job()), the uuid means
 * none.
 */
void
jobq_uuid_settle(const JobqJob *job, Datum uuid)
{
	Relation	uuids = jobq_open_table(JOBQ_JOB_UUID_TABLE, RowExclusiveLock);
	Snapshot	snapshot;
	Meaning		meaning;
	bool		found;

	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	found = find_uuid(uuids, uuid, job_role(job), snapshot, &meaning);
	UnregisterSnapshot(snapshot);
	if (found && JOB_ISNULL(job, JOB_ID))
	{
		TM_FailureData tmfd;

		(void) jobq_heap_delete(uuids, &meaning.ctid, GetCurrentCommandId(true), false, &tmfd);
	}
	else if (found)
		update_uuid(uuids, &meaning, job, uuid);
	table_close(uuids, NoLock);
}

/*
 * The ids of the jobs that roles know by this uuid, that of the current user first;
 * pointers to int64.  Whether there still are such jobs, and who may see them, is not
 * asked.
 */
List *
jobq_jobs_of_uuid(Datum uuid)
{
	Relation	uuids = jobq_open_table(JOBQ_JOB_UUID_TABLE, AccessShareLock);
	Snapshot	snapshot;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *ids = NIL;

	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyInit(&key, UUID_UUID, BTEqualStrategyNumber, F_UUID_EQ, uuid);
	scan = systable_beginscan(uuids, jobq_index(uuids, JOBQ_JOB_UUID_PKEY), true,
							  snapshot, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		int64	   *id = palloc(sizeof(int64));
		bool		isnull;

		*id = DatumGetInt64(heap_getattr(tuple, UUID_JOB_ID,
										 RelationGetDescr(uuids), &isnull));
		if (DatumGetObjectId(heap_getattr(tuple, UUID_ROLE, RelationGetDescr(uuids),
										  &isnull)) == GetUserId())
			ids = lcons(id, ids);
		else
			ids = lappend(ids, id);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(uuids, AccessShareLock);
	return ids;
}

/*
 * Delete those of these rows whose jobs are gone.  The caller is connected to SPI.
 * In the scheduler.
 */
void
jobq_uuid_prune(ItemPointer from, ItemPointer to)
{
	static const Oid types[] = {TIDOID, TIDOID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {PointerGetDatum(from), PointerGetDatum(to)};
	Relation	uuids = jobq_open_table(JOBQ_JOB_UUID_TABLE, RowExclusiveLock);
	uint64		n;

	/* by subqueries that are no joins: each looks into the indexes */
	n = jobq_query_kept(&plan, "SELECT u.ctid FROM jobq_internal.job_uuid u"
						" WHERE u.ctid >= $1 AND u.ctid < $2"
						" AND (SELECT true FROM jobq_internal.job j WHERE j.id = u.job_id LIMIT 1) IS NULL"
						" AND (SELECT true FROM jobq_internal.dead_letter f WHERE f.id = u.job_id LIMIT 1) IS NULL"
						" AND (SELECT true FROM jobq_internal.archive a WHERE a.id = u.job_id LIMIT 1) IS NULL",
						2, types, values, NULL, SPI_OK_SELECT);

	/* one that was taken over since is let alone */
	for (uint64 i = 0; i < n; i++)
	{
		TM_FailureData tmfd;
		ItemPointer ctid = (ItemPointer)
			DatumGetPointer(jobq_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, TIDOID, NULL));

		(void) jobq_heap_delete(uuids, ctid, GetCurrentCommandId(true), false,
								&tmfd);
	}
	SPI_freetuptable(SPI_tuptable);
	table_close(uuids, NoLock);
}
