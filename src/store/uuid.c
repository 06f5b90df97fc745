/*-------------------------------------------------------------------------
 *
 * uuid.c
 *	  Jobs with a uuid chosen by the client: enqueuing a uuid again returns the same job.
 *
 * jobq_internal.job_uuid maps a uuid of a role to a job.  The row is written in the
 * transaction that enqueues the job, and stays when the job moves between the tables.  The
 * tables of jobs therefore need no uuid, and jobs without a uuid have no cost.  A row for a
 * job in none of the tables has no meaning: the next job takes the row over, or the scheduler
 * deletes the row.
 *
 * Each role has separate uuids, as for unique keys.  No role can detect or block the jobs of
 * another role.  A role with access to a job finds the job by the uuid.
 *
 * Two transactions with the same uuid meet at the primary key.  The second transaction waits
 * for the end of the first.  No caller waits for a handler.
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
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"

#include "store/unique_keys.h"

/* Attribute numbers of jobq_internal.job_uuid. */
enum
{
	UUID_JOB_ID = 1,
	UUID_ROLE,
	UUID_UUID,
	UUID_NATTS = UUID_UUID
};

/* The job of a uuid. */
typedef struct Meaning
{
	ItemPointerData ctid;
	int64		job_id;
	bool		own;			/* written by this transaction */
}			Meaning;

/* Find the row of the role's uuid. */
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
 * Return whether the table has a row with this id, which is its primary key.
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

/* Return whether the job is in one of the tables. */
static bool
is_kept(Relation rel, int64 id)
{
	const JobqRelations *rels = jobq_relations();
	List	   *partitions;
	ListCell   *lc;
	Snapshot	snapshot;
	JobqJob		unused;
	bool		kept;

	/* a job running in this session has deleted the row already */
	if (jobq_current_of(id) != NULL || jobq_job_find(rel, id, SnapshotSelf, &unused))
		return true;

	/* the job may be about to end: use one snapshot for all tables */
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	kept = jobq_job_find(rel, id, snapshot, &unused) ||
		has_row(rels->dead_letter, JOBQ_DEAD_LETTER_TABLE, DEAD_ID, id, snapshot);
	partitions = kept ? NIL : find_inheritance_children(rels->archive, AccessShareLock);
	foreach(lc, partitions)
	{
		kept = has_row(lfirst_oid(lc), JOBQ_ARCHIVE_TABLE, ARCHIVE_ID, id, snapshot);
		if (kept)
			break;
	}
	UnregisterSnapshot(snapshot);
	return kept;
}

static HeapTuple
form_uuid(Relation uuids, const JobqJob *job, Datum uuid)
{
	Datum		values[UUID_NATTS] = {JOB(job, JOB_ID), JOB(job, JOB_ROLE), uuid};
	bool		nulls[UUID_NATTS] = {0};

	return heap_form_tuple(RelationGetDescr(uuids), values, nulls);
}

/*
 * Insert a row for an unused uuid.  If another transaction is about to insert it, waits for
 * the end of that transaction, and returns false.
 */
static bool
insert_uuid(Relation uuids, const JobqJob *job, Datum uuid)
{
	SnapshotData dirty;
	Meaning		meaning;

	InitDirtySnapshot(dirty);
	if (find_uuid(uuids, uuid, job_role(job), &dirty, &meaning))
	{
		jobq_key_wait(uuids, &dirty, &meaning.ctid);
		return false;
	}
	return jobq_insert_unless_there(uuids, form_uuid(uuids, job, uuid));
}

/*
 * Assign the uuid to this job, which is about to be enqueued.  Returns false if the uuid
 * belongs to another job of the same role that is live, or finished and kept.  Then *job gets
 * the id of the other job.  Waits for transactions writing the same uuid.
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

		/* present state, because of serializable transactions: unique_key.c */
		found = find_uuid(uuids, uuid, job_role(job), SnapshotSelf, &meaning);
		kept = found && is_kept(rel, meaning.job_id);
		if (kept)
		{
			JOB_SET(job, JOB_ID, Int64GetDatum(meaning.job_id));

			/* a job reported to the client must survive a crash */
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

		/* with the lock, check again: the row does not change from here on */
		if (!locked)
		{
			locked = jobq_lock_row(uuids, &meaning.ctid, LockWaitBlock) == TM_Ok;
			continue;
		}
		jobq_update_row(uuids, &meaning.ctid, form_uuid(uuids, job, uuid));
		break;
	}
	table_close(uuids, NoLock);
	return !kept;
}

/*
 * The job passed to jobq_uuid_take() is not enqueued, because this job holds its unique key.
 * Assign the uuid to this job.  If the job's id is null (jobq_put_job()), delete the row of
 * the uuid.
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
		jobq_update_row(uuids, &meaning.ctid, form_uuid(uuids, job, uuid));
	table_close(uuids, NoLock);
}

/*
 * Return the ids of the jobs with this uuid, for all roles, the current user's first, as
 * pointers to int64.  The caller must check whether the jobs exist and may be seen.
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
 * Delete those of the rows from "from" up to "to" with jobs that no longer exist.  Called by
 * the scheduler, which is connected to SPI.
 */
void
jobq_uuid_prune(ItemPointer from, ItemPointer to)
{
	static const Oid types[] = {TIDOID, TIDOID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {PointerGetDatum(from), PointerGetDatum(to)};
	Relation	uuids = jobq_open_table(JOBQ_JOB_UUID_TABLE, RowExclusiveLock);

	/* subqueries instead of joins, for a use of the indexes */
	(void) jobq_query_kept(&plan, "SELECT u.ctid FROM jobq_internal.job_uuid u"
						   " WHERE u.ctid >= $1 AND u.ctid < $2"
						   " AND (SELECT true FROM jobq_internal.job j WHERE j.id = u.job_id LIMIT 1) IS NULL"
						   " AND (SELECT true FROM jobq_internal.dead_letter f WHERE f.id = u.job_id LIMIT 1) IS NULL"
						   " AND (SELECT true FROM jobq_internal.archive a WHERE a.id = u.job_id LIMIT 1) IS NULL",
						   2, types, values, NULL, SPI_OK_SELECT);
	jobq_keys_delete_found(uuids);
	table_close(uuids, NoLock);
}
