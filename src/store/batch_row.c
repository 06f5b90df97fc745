/*-------------------------------------------------------------------------
 *
 * batch_row.c
 *	  Rows of jobq.batch, and the ends of a batch's jobs, by direct heap access.
 *
 * A small batch costs its look (worker/scheduler/batch_look.c) about as much as its
 * jobs cost the workers.  So what each look reads and writes goes past the executor, as
 * a job's row does (row.c).
 *
 * A batch's finished jobs are in the partitions of the archive, its dead letters in
 * jobq.failed_job.  Which tables these are, and their indexes by batch, is kept until
 * one of them changes.  A partition whose index was dropped is read as a whole.
 *
 * src/store/batch_row.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "partitioning/partdesc.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/store.h"

/* A table in which jobs are that have ended: a partition of the archive, or failed_job. */
typedef struct EndTable
{
	Oid			relid;
	Oid			index;			/* by batch, or InvalidOid */
	AttrNumber	batch_id;
	AttrNumber	state;			/* InvalidAttrNumber: all have failed */
} EndTable;

/* What is counted: the scan ends at the first if first_of is a state. */
typedef struct Search
{
	int64		batch_id;
	Snapshot	snapshot;
	char		first_of;		/* or 0: count all */
	JobqBatchCounts *counts;
} Search;

static EndTable *tables = NULL;
static int	ntables = 0;		/* 0: not known */
static Oid	tables_of = InvalidOid; /* the archive */

/* how often a message, or an abort, may have outdated what is kept here */
static uint64 changes = 0;

static void end_table(Oid relid, bool failed, EndTable *table);
static void load_tables(void);
static void count_end(JobqBatchCounts *counts, char state);
static void count_by_index(const EndTable *table, Relation rel, const Search *search);
static bool search_table(const EndTable *table, Relation rel, const Search *search);
static bool search_ends(const Search *search);

static void
relation_changed(Oid relid)
{
	bool		known = relid == InvalidOid || relid == tables_of;

	changes++;
	for (int i = 0; i < ntables && !known; i++)
		known = relid == tables[i].relid || relid == tables[i].index;
	if (known)
		ntables = 0;
}

static void
forget_tables(void)
{
	relation_changed(InvalidOid);
}

const JobqCache jobq_batch_rows_cache = {
	.changed = relation_changed,
	.forget = forget_tables,
};

/*
 * Read the batch's row as the snapshot sees it; false if there is none.  Values point
 * into the current memory context.
 */
bool
jobq_batch_fetch(int64 id, Snapshot snapshot, JobqBatchRow *row)
{
	Relation	rel = jobq_open_table(JOBQ_BATCH_TABLE, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found;

	ScanKeyInit(&key, BATCH_COLUMN_ID, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(id));
	scan = systable_beginscan(rel, jobq_index(rel, JOBQ_BATCH_PKEY), true, snapshot,
							  1, &key);
	tuple = systable_getnext(scan);
	found = HeapTupleIsValid(tuple);
	if (found)
	{
		tuple = heap_copytuple(tuple);
		heap_deform_tuple(tuple, RelationGetDescr(rel), row->values, row->nulls);
		row->ctid = tuple->t_self;
		row->version = HeapTupleHeaderGetRawXmin(tuple->t_data);
	}
	systable_endscan(scan);
	table_close(rel, NoLock);
	return found;
}

/*
 * Lock the row that was read, as FOR NO KEY UPDATE SKIP LOCKED does.
 */
JobqRowLock
jobq_batch_lock(const JobqBatchRow *row)
{
	Relation	rel = jobq_open_table(JOBQ_BATCH_TABLE, RowExclusiveLock);
	HeapTupleData tuple;
	Buffer		buffer;
	TM_FailureData tmfd;
	TM_Result	result;

	tuple.t_self = row->ctid;
	result = heap_lock_tuple(rel, &tuple, GetCurrentCommandId(true),
							 LockTupleNoKeyExclusive, LockWaitSkip, false, &buffer,
							 &tmfd);
	ReleaseBuffer(buffer);
	table_close(rel, NoLock);
	return result == TM_Ok ? JOBQ_ROW_LOCKED
		: result == TM_WouldBlock ? JOBQ_ROW_BUSY : JOBQ_ROW_CHANGED;
}

/*
 * Write the row, which was locked, with other values of columns that are no key.
 */
void
jobq_batch_write(JobqBatchRow *row)
{
	Relation	rel = jobq_open_table(JOBQ_BATCH_TABLE, RowExclusiveLock);
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), row->values, row->nulls);

	jobq_heap_update(rel, &row->ctid, tuple);
	if (!HeapTupleIsHeapOnly(tuple))
		jobq_insert_entries(rel, &tuple, 1);
	row->ctid = tuple->t_self;
	heap_freetuple(tuple);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/*
 * Insert a batch.
 */
void
jobq_batch_put(JobqBatchRow *row)
{
	Relation	rel = jobq_open_table(JOBQ_BATCH_TABLE, RowExclusiveLock);
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), row->values, row->nulls);

	jobq_insert_tuple(rel, tuple);
	heap_freetuple(tuple);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/*
 * Where the table has what we look for.
 */
static void
end_table(Oid relid, bool failed, EndTable *table)
{
	Relation	rel = table_open(relid, AccessShareLock);
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;

	*table = (EndTable)
	{
		.relid = relid,
			.batch_id = get_attnum(relid, "batch_id"),
			.state = failed ? InvalidAttrNumber : get_attnum(relid, "state")
	};
	if (rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("jobq.%s is not an ordinary table",
						RelationGetRelationName(rel)),
				 errhint("Partitions of jobq.archive cannot be foreign tables, nor have partitions.")));
	if (table->batch_id == InvalidAttrNumber || get_atttype(relid, table->batch_id) != INT8OID ||
		(!failed && (table->state == InvalidAttrNumber ||
					 get_atttype(relid, table->state) != CHAROID)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table jobq.%s has other columns than its own",
						RelationGetRelationName(rel)),
				 errhint("The tables of jobq cannot have other columns than its own.")));
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		Form_pg_index form = index->rd_index;

		if (index->rd_rel->relam == BTREE_AM_OID && form->indisvalid &&
			form->indkey.values[0] == table->batch_id &&
			(failed ? form->indnkeyatts == 1
			 : form->indnkeyatts == 2 && form->indkey.values[1] == table->state))
			table->index = lfirst_oid(lc);
		index_close(index, NoLock);
	}
	list_free(indexes);
	table_close(rel, NoLock);
}

/*
 * Find out which tables there are.  It is done again if one changes meanwhile.
 */
static void
load_tables(void)
{
	const JobqRelations *rels = jobq_relations();
	uint64		before;

	do
	{
		Relation	archive = table_open(rels->archive, AccessShareLock);
		PartitionDesc partitions;
		EndTable   *found;

		if (archive->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
			elog(ERROR, "jobq.archive is not partitioned");
		before = changes;
		partitions = RelationGetPartitionDesc(archive, true);
		found = MemoryContextAlloc(TopMemoryContext,
								   sizeof(EndTable) * (partitions->nparts + 1));
		if (tables != NULL)
			pfree(tables);
		tables = found;
		ntables = 0;
		tables_of = rels->archive;
		for (int i = 0; i < partitions->nparts && changes == before; i++)
			end_table(partitions->oids[i], false, &found[i]);
		if (changes == before)
			end_table(rels->failed, true, &found[partitions->nparts]);
		if (changes == before)
			ntables = partitions->nparts + 1;
		table_close(archive, NoLock);
	} while (changes != before);
	jobq_cache_filled();
}

static void
count_end(JobqBatchCounts *counts, char state)
{
	if (state == 'f')
		counts->failed++;
	else if (state == STATE_COMPLETED)
		counts->completed++;
	else if (state == STATE_CANCELLED)
		counts->cancelled++;
	else if (state == STATE_EXPIRED)
		counts->expired++;
}

/*
 * Count what the index has of the batch.  It knows the states; of the rows it matters
 * only whether they are there.  A batch may have millions of jobs, and nothing can
 * follow before they are counted.
 */
static void
count_by_index(const EndTable *table, Relation rel, const Search *search)
{
	Relation	index = index_open(table->index, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	Buffer		map = InvalidBuffer;
	ScanKeyData key;
	IndexScanDesc scan;
	ItemPointer tid;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(search->batch_id));
	scan = jobq_index_beginscan(rel, index, search->snapshot, 1);
	scan->xs_want_itup = true;
	index_rescan(scan, &key, 1, NULL, 0);
	while ((tid = index_getnext_tid(scan, ForwardScanDirection)) != NULL)
	{
		char		state = 'f';
		bool		isnull = false;

		CHECK_FOR_INTERRUPTS();
		/* as nodeIndexonlyscan.c does, which says why this is safe */
		if (!VM_ALL_VISIBLE(rel, ItemPointerGetBlockNumber(tid), &map) &&
			!index_fetch_heap(scan, slot))
			continue;
		if (table->state != InvalidAttrNumber)
			state = DatumGetChar(index_getattr(scan->xs_itup, 2, RelationGetDescr(index), &isnull));
		if (!isnull)
			count_end(search->counts, state);
	}
	index_endscan(scan);
	if (BufferIsValid(map))
		ReleaseBuffer(map);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
}

/*
 * Search one of them.  True if it is found, and no more need be read.
 */
static bool
search_table(const EndTable *table, Relation rel, const Search *search)
{
	ScanKeyData keys[2];
	int			nkeys = 1;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	if (search->first_of == 0 && OidIsValid(table->index))
	{
		count_by_index(table, rel, search);
		return false;
	}
	ScanKeyInit(&keys[0], table->batch_id, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(search->batch_id));
	if (search->first_of != 0 && table->state != InvalidAttrNumber)
		ScanKeyInit(&keys[nkeys++], table->state, BTEqualStrategyNumber, F_CHAREQ,
					CharGetDatum(search->first_of));
	scan = systable_beginscan(rel, table->index, OidIsValid(table->index),
							  search->snapshot, nkeys, keys);
	while (!found && (tuple = systable_getnext(scan)) != NULL)
	{
		char		state = 'f';
		bool		isnull = false;

		CHECK_FOR_INTERRUPTS();
		if (table->state != InvalidAttrNumber)
			state = DatumGetChar(heap_getattr(tuple, table->state,
											  RelationGetDescr(rel), &isnull));
		found = search->first_of != 0;
		if (!found && !isnull)
			count_end(search->counts, state);
	}
	systable_endscan(scan);
	return found;
}

/*
 * Search all of them.
 */
static bool
search_ends(const Search *search)
{
	bool		found = false;
	bool		outdated;

	do
	{
		JobqBatchCounts before = {0};

		if (search->counts != NULL)
			before = *search->counts;
		if (ntables == 0)
			load_tables();
		outdated = false;
		for (int i = 0; i < ntables && !found; i++)
		{
			EndTable	table = tables[i];
			Relation	rel = try_table_open(table.relid, AccessShareLock);

			/* while we waited for it, it may have become another */
			outdated = rel == NULL || ntables == 0;
			if (!outdated)
				found = search_table(&table, rel, search);
			if (rel != NULL)
				table_close(rel, NoLock);
			if (outdated)
				break;
		}
		outdated |= ntables == 0;
		if (outdated && search->counts != NULL)
			*search->counts = before;
	} while (outdated && !found);
	return found;
}

/*
 * Has a job of the batch failed for good, or expired, as far as its row is still there?
 */
bool
jobq_batch_has_failures(int64 id, Snapshot snapshot)
{
	Search		search = {.batch_id = id,.snapshot = snapshot,.first_of = STATE_EXPIRED};

	return search_ends(&search);
}

/*
 * Add to the counts what has become of jobs of the batch whose rows are still there.
 */
void
jobq_batch_count(int64 id, Snapshot snapshot, JobqBatchCounts *counts)
{
	Search		search = {.batch_id = id,.snapshot = snapshot,.counts = counts};

	(void) search_ends(&search);
}
