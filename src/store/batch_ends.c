/*-------------------------------------------------------------------------
 *
 * batch_ends.c
 *	  Live jobs of a batch, and outcomes of its ended jobs.
 *
 * A batch may have millions of jobs.  The scheduler does nothing else during the check for
 * live jobs and during the count.  Both functions therefore read the indexes by batch, and
 * visit rows only to check visibility.
 *
 * The finished jobs of a batch are in the partitions of the archive.  Its dead letters are in
 * jobq_internal.dead_letter.  The list of these tables and of their indexes by batch is cached
 * until a table changes.  A partition without this index is read completely.
 *
 * The caller of an exported function provides a registered snapshot.
 *
 * src/store/batch_ends.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "partitioning/partbounds.h"
#include "partitioning/partdesc.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/partcache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/store.h"

/* A table of ended jobs: a partition of the archive, or dead_letter. */
typedef struct EndTable
{
	Oid			relid;
	Oid			index;			/* by batch, or InvalidOid */
	AttrNumber	batch_id;
	AttrNumber	state;			/* InvalidAttrNumber: all dead */
	TimestampTz until;			/* upper bound of finished_at, or DT_NOEND */
} EndTable;

/*
 * Parameters of a search.  If first_of is a state, the search ends at the first job in this state,
 * or at the first dead letter.
 */
typedef struct Search
{
	int64		batch_id;
	TimestampTz since;			/* no job of the batch ended earlier */
	Snapshot	snapshot;
	char		first_of;		/* or 0: count all */
	JobqBatchCounts *counts;
} Search;

/* A scan of an index with the batch as its first column. */
typedef struct EntryScan
{
	Relation	rel;
	Relation	index;
	Snapshot	snapshot;
	int			nkeys;
	ScanKeyData keys[2];
} EntryScan;

static EndTable *tables = NULL;
static int	ntables = 0;		/* 0: not loaded */
static Oid	tables_of = InvalidOid; /* the archive */

/* count of invalidations and aborts */
static uint64 changes = 0;

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

const JobqCache jobq_batch_ends_cache = {
	.changed = relation_changed,
	.forget = forget_tables,
};

/*
 * Return whether an index has an entry for each ended job of a batch, and exactly the columns
 * that scan_entries() reads: the batch, and the state unless all jobs of the table are dead.
 */
static bool
is_by_batch(Relation index, const EndTable *table)
{
	Form_pg_index form = index->rd_index;
	int			nkeys = table->state == InvalidAttrNumber ? 1 : 2;
	List	   *predicate;
	NullTest   *test;

	if (index->rd_rel->relam != BTREE_AM_OID || !form->indisvalid ||
		form->indnatts != nkeys || form->indnkeyatts != nkeys ||
		form->indkey.values[0] != table->batch_id ||
		(nkeys == 2 && form->indkey.values[1] != table->state))
		return false;
	predicate = RelationGetIndexPredicate(index);
	if (predicate == NIL)
		return true;
	test = linitial(predicate);
	return list_length(predicate) == 1 && IsA(test, NullTest) &&
		test->nulltesttype == IS_NOT_NULL && IsA(test->arg, Var) &&
		((Var *) test->arg)->varattno == table->batch_id;
}

/* Fill in the entry of a table: columns and index by batch. */
static void
end_table(Oid relid, bool letters, EndTable *table)
{
	Relation	rel = table_open(relid, AccessShareLock);
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;

	*table = (EndTable)
	{
		.relid = relid,
			.batch_id = get_attnum(relid, "batch_id"),
			.state = letters ? InvalidAttrNumber : get_attnum(relid, "state"),
			.until = DT_NOEND
	};
	if (rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("jobq_internal.%s is not an ordinary table",
						RelationGetRelationName(rel)),
				 errhint("Partitions of jobq_internal.archive cannot be foreign tables, nor have partitions.")));
	if (table->batch_id == InvalidAttrNumber || get_atttype(relid, table->batch_id) != INT8OID ||
		(!letters && (table->state == InvalidAttrNumber ||
					  get_atttype(relid, table->state) != CHAROID)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table jobq_internal.%s has other columns than its own",
						RelationGetRelationName(rel)),
				 errhint("The tables of jobq cannot have other columns than its own.")));
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		if (is_by_batch(index, table))
			table->index = lfirst_oid(lc);
		index_close(index, NoLock);
	}
	list_free(indexes);
	table_close(rel, NoLock);
}

/*
 * Set the upper bound of finished_at for each partition of the archive.  Does nothing if an
 * administrator has changed the partitioning by days.
 */
static void
read_bounds(Relation archive, PartitionDesc partitions, EndTable *found)
{
	PartitionKey key = RelationGetPartitionKey(archive);
	PartitionBoundInfo bounds = partitions->boundinfo;

	if (partitions->nparts == 0 || key->strategy != PARTITION_STRATEGY_RANGE ||
		key->partnatts != 1 || key->parttypid[0] != TIMESTAMPTZOID)
		return;
	for (int i = 0; i < bounds->ndatums; i++)
		if (bounds->indexes[i] >= 0 &&
			bounds->kind[i][0] == PARTITION_RANGE_DATUM_VALUE)
			found[bounds->indexes[i]].until = DatumGetTimestampTz(bounds->datums[i][0]);
}

/* Load the list of tables.  Repeats if a table changes meanwhile. */
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
			elog(ERROR, "jobq_internal.archive is not partitioned");
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
			read_bounds(archive, partitions, found);
		if (changes == before)
			end_table(rels->dead_letter, true, &found[partitions->nparts]);
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
		counts->dead++;
	else if (state == STATE_COMPLETED)
		counts->completed++;
	else if (state == STATE_CANCELLED)
		counts->cancelled++;
	else if (state == STATE_EXPIRED)
		counts->expired++;
}

/*
 * Scan the entries of an index, for rows visible to the snapshot.  Calls each() with the second
 * column, or with 0 if there is none, until each() returns false.
 */
static void
scan_entries(EntryScan *this, ScanDirection direction,
			 bool (*each) (Datum second, void *arg), void *arg)
{
	Relation	rel = this->rel;
	TupleDesc	desc = RelationGetDescr(this->index);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	Buffer		map = InvalidBuffer;
	IndexScanDesc scan;
	ItemPointer tid;
	bool		more = true;

	scan = jobq_index_beginscan(rel, this->index, this->snapshot, this->nkeys);
	scan->xs_want_itup = true;
	index_rescan(scan, this->keys, this->nkeys, NULL, 0);
	while (more && (tid = index_getnext_tid(scan, direction)) != NULL)
	{
		Datum		second = (Datum) 0;
		bool		isnull = false;

		CHECK_FOR_INTERRUPTS();
		/* see the comment in nodeIndexonlyscan.c why this is safe */
		if (!VM_ALL_VISIBLE(rel, ItemPointerGetBlockNumber(tid), &map) &&
			!index_fetch_heap(scan, slot))
			continue;
		if (desc->natts > 1)
			second = index_getattr(scan->xs_itup, 2, desc, &isnull);
		if (!isnull)
			more = each(second, arg);
	}
	index_endscan(scan);
	if (BufferIsValid(map))
		ReleaseBuffer(map);
	ExecDropSingleTupleTableSlot(slot);
}

static bool
count_entry(Datum second, void *arg)
{
	const Search *search = arg;

	count_end(search->counts, second == (Datum) 0 ? 'f' : DatumGetChar(second));
	return true;
}

/*
 * Count the entries of the batch in the index.  The index contains the state, or all jobs of
 * the table are dead.
 */
static void
count_by_index(const EndTable *table, Relation rel, const Search *search)
{
	EntryScan	scan = {
		.rel = rel,
		.index = index_open(table->index, AccessShareLock),
		.snapshot = search->snapshot,
		.nkeys = 1
	};

	ScanKeyInit(&scan.keys[0], 1, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(search->batch_id));
	scan_entries(&scan, ForwardScanDirection, count_entry, unconstify(Search *, search));
	index_close(scan.index, AccessShareLock);
}

static bool
note_id(Datum second, void *arg)
{
	*(int64 *) arg = DatumGetInt64(second);
	return false;
}

/*
 * Find a live job of the batch: the last job visible to the snapshot with an id of at most
 * up_to.  Returns false if there is none.
 */
bool
jobq_batch_find_live(int64 id, int64 up_to, Snapshot snapshot, int64 *job_id)
{
	Relation	rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	EntryScan	scan = {
		.rel = rel,
		.index = jobq_open_index(rel, JOBQ_JOB_BATCH),
		.snapshot = snapshot,
		.nkeys = 2
	};

	ScanKeyInit(&scan.keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	ScanKeyInit(&scan.keys[1], 2, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(up_to));
	*job_id = 0;
	scan_entries(&scan, BackwardScanDirection, note_id, job_id);
	index_close(scan.index, NoLock);
	table_close(rel, NoLock);
	return *job_id != 0;
}

/*
 * Search one table.  Returns true if the search is over because a job was found.
 */
static bool
search_table(const EndTable *table, Relation rel, const Search *search)
{
	ScanKeyData keys[2];
	int			nkeys = 1;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	/* a row visible to the snapshot would be in a block */
	if (RelationGetNumberOfBlocks(rel) == 0)
		return false;
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

/* Search all tables. */
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
			Relation	rel;

			if (table.until <= search->since)
				continue;
			rel = try_table_open(table.relid, AccessShareLock);

			/*
			 * the table may have changed while this session waited for the
			 * lock
			 */
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
 * Return whether a job of the batch is dead or expired, as far as its row still exists.
 * since: no job of the batch ended earlier.
 */
bool
jobq_batch_has_failures(int64 id, TimestampTz since, Snapshot snapshot)
{
	Search		search = {.batch_id = id,.since = since,.snapshot = snapshot,
	.first_of = STATE_EXPIRED};

	return search_ends(&search);
}

/*
 * Add the outcomes of the batch's ended jobs to *counts, as far as their rows still exist.
 * since: no job of the batch ended earlier.
 */
void
jobq_batch_count(int64 id, TimestampTz since, Snapshot snapshot, JobqBatchCounts *counts)
{
	Search		search = {.batch_id = id,.since = since,.snapshot = snapshot,.counts = counts};

	(void) search_ends(&search);
}
