/*-------------------------------------------------------------------------
 *
 * insert.c
 *	  Inserts rows and index entries without the executor.
 *
 * This code is similar to CatalogTupleInsert(), with two differences that matter for each job.
 * Data about the indexes is cached until a relation changes.  Two predicates of indexes are
 * supported: a column is null, or is not null.  A row without a group therefore has no entry
 * in the index of groups, and a finished batch has none in the index of unfinished batches.
 *
 * The caller has locked the table for writing.
 *
 * src/store/insert.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "executor/tuptable.h"
#include "nodes/primnodes.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "store/store.h"

#define MAX_KEPT	8

/* Rows that are inserted together. */
#define MAX_SLOTS	64

/*
 * An index, with the result of BuildIndexInfo().  For other indexes than B-trees, the result
 * is built for each statement, because other access methods store data of the statement in it.
 */
typedef struct KeptIndex
{
	Oid			oid;
	IndexInfo  *info;			/* or NULL */
	AttrNumber	column;			/* of the predicate; or 0 */
	bool		if_null;		/* predicate is IS NULL */
} KeptIndex;

/* The indexes of a table.  Cached until any relation changes. */
typedef struct KeptTable
{
	Oid			oid;
	int			nindexes;
	KeptIndex  *indexes;
} KeptTable;

/*
 * Rows in the table.  For a single row with known values, the values need not be extracted
 * from the tuple.
 */
typedef struct Rows
{
	int			n;
	HeapTuple  *tuples;
	const Datum *values;		/* or NULL */
	const bool *nulls;
} Rows;

static KeptTable kept[MAX_KEPT];
static int	nkept = 0;
static MemoryContext kept_context = NULL;

/* number of relation changes */
static uint64 changes = 0;

/* number of calls using cached data */
static int	users = 0;

/* A relation has changed: the cache may be outdated. */
static void
relation_changed(Oid relid)
{
	changes++;
	nkept = 0;
}

/* End of a transaction: all calls using cached data have ended or failed. */
static void
transaction_ended(void)
{
	users = 0;
}

const JobqCache jobq_indexes_cache = {
	.changed = relation_changed,
	.ended = transaction_ended,
};

/* Clear the cache.  Data in use lives until the end of the transaction. */
static void
reset_kept(void)
{
	nkept = 0;
	if (kept_context != NULL && users == 0)
	{
		MemoryContextReset(kept_context);
		return;
	}
	if (kept_context != NULL)
		MemoryContextSetParent(kept_context, TopTransactionContext);
	kept_context = NULL;
	kept_context = AllocSetContextCreate(CacheMemoryContext, "jobq indexes",
										 ALLOCSET_SMALL_SIZES);
}

/*
 * Read the index's predicate: its column and its condition.  ERROR if the predicate is not
 * supported.
 */
static void
read_predicate(Relation rel, Relation index, const IndexInfo *info,
			   KeptIndex *kept_index)
{
	kept_index->column = InvalidAttrNumber;
	kept_index->if_null = false;
	if (info->ii_Predicate == NIL)
		return;
	if (list_length(info->ii_Predicate) == 1 &&
		IsA(linitial(info->ii_Predicate), NullTest))
	{
		NullTest   *test = linitial_node(NullTest, info->ii_Predicate);

		if (!test->argisrow && IsA(test->arg, Var))
		{
			kept_index->column = ((Var *) test->arg)->varattno;
			kept_index->if_null = test->nulltesttype == IS_NULL;
			return;
		}
	}
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("index \"%s\" on \"%s\" has a predicate",
					RelationGetRelationName(index),
					RelationGetRelationName(rel)),
			 errhint("Drop it.")));
}

/*
 * Return the indexes of the table.  The table is locked, so no session can add an index to be
 * maintained by this transaction.
 */
static KeptTable
kept_table(Relation rel)
{
	KeptTable	table;
	uint64		before;
	List	   *indexes;
	ListCell   *lc;
	int			n = 0;

	for (int i = 0; i < nkept; i++)
		if (kept[i].oid == RelationGetRelid(rel))
			return kept[i];

	/* opening an index may clear the cache and rebuild the list */
	indexes = RelationGetIndexList(rel);
	foreach(lc, indexes)
		index_close(index_open(lfirst_oid(lc), RowExclusiveLock), NoLock);

	if (nkept == 0 || nkept == MAX_KEPT)
		reset_kept();
	before = changes;
	table.oid = RelationGetRelid(rel);
	table.nindexes = list_length(indexes);
	table.indexes = MemoryContextAlloc(kept_context,
									   sizeof(KeptIndex) * (table.nindexes + 1));
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), NoLock);
		KeptIndex  *kept_index = &table.indexes[n++];
		MemoryContext old = MemoryContextSwitchTo(kept_context);

		kept_index->oid = lfirst_oid(lc);
		kept_index->info = BuildIndexInfo(index);
		MemoryContextSwitchTo(old);
		read_predicate(rel, index, kept_index->info, kept_index);
		if (index->rd_rel->relam != BTREE_AM_OID)
			kept_index->info = NULL;
		index_close(index, NoLock);
	}
	list_free(indexes);
	if (changes == before)
		kept[nkept++] = table;
	return table;
}

static bool
insert_entry(Relation rel, Relation index, IndexInfo *info, const Rows *rows, int i,
			 IndexUniqueCheck check)
{
	HeapTuple	tuple = rows->tuples[i];
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	for (int j = 0; j < info->ii_NumIndexAttrs; j++)
	{
		AttrNumber	att = info->ii_IndexAttrNumbers[j];

		if (att <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("index \"%s\" on \"%s\" has an expression",
							RelationGetRelationName(index),
							RelationGetRelationName(rel)),
					 errhint("Drop it.")));
		if (rows->values != NULL)
		{
			values[j] = rows->values[att - 1];
			nulls[j] = rows->nulls[att - 1];
		}
		else
			values[j] = heap_getattr(tuple, att, RelationGetDescr(rel), &nulls[j]);
	}
	return index_insert(index, values, nulls, &tuple->t_self, rel,
						info->ii_Unique ? check : UNIQUE_CHECK_NO,
						false, info);
}

/* Return whether row i has an entry in the index. */
static bool
has_entry(const KeptIndex *kept_index, Relation rel, const Rows *rows, int i)
{
	bool		isnull;

	if (kept_index->column == InvalidAttrNumber)
		return true;
	isnull = rows->nulls != NULL ? rows->nulls[kept_index->column - 1]
		: heap_attisnull(rows->tuples[i], kept_index->column, RelationGetDescr(rel));
	return isnull == kept_index->if_null;
}

/* Return whether no row has an entry in the index. */
static bool
has_no_entries(const KeptIndex *kept_index, Relation rel, const Rows *rows)
{
	for (int i = 0; i < rows->n; i++)
		if (has_entry(kept_index, rel, rows, i))
			return false;
	return true;
}

/*
 * Insert the rows' entries into one index.  Returns false if a key exists already and "check"
 * is UNIQUE_CHECK_PARTIAL.
 */
static bool
insert_into(Relation rel, const KeptIndex *kept_index, const Rows *rows,
			IndexUniqueCheck check)
{
	IndexInfo  *info = kept_index->info;
	Relation	index;
	bool		inserted = true;

	/* the index need not even be opened */
	if ((info != NULL && !info->ii_ReadyForInserts) ||
		has_no_entries(kept_index, rel, rows))
		return true;
	index = index_open(kept_index->oid, RowExclusiveLock);
	if (info == NULL)
		info = BuildIndexInfo(index);
	if (info->ii_ReadyForInserts)
	{
		for (int i = 0; i < rows->n; i++)
			if (has_entry(kept_index, rel, rows, i))
				inserted &= insert_entry(rel, index, info, rows, i, check) ||
					!info->ii_Unique;
		if (info != kept_index->info)
			jobq_index_insert_cleanup(index, info);
	}
	index_close(index, NoLock);
	return inserted;
}

static void
insert_entries(Relation rel, const Rows *rows)
{
	KeptTable	table = kept_table(rel);

	users++;
	for (int i = 0; i < table.nindexes; i++)
		(void) insert_into(rel, &table.indexes[i], rows, UNIQUE_CHECK_YES);
	users--;
}

/* Insert the index entries of rows already in the table. */
void
jobq_insert_entries(Relation rel, HeapTuple *tuples, int ntuples)
{
	Rows		rows = {.n = ntuples,.tuples = tuples};

	insert_entries(rel, &rows);
}

/* Insert a row with its index entries.  Returns its tuple identifier. */
ItemPointerData
jobq_insert_row(Relation rel, Datum *values, bool *nulls)
{
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	Rows		rows = {.n = 1,.tuples = &tuple,.values = values,.nulls = nulls};
	ItemPointerData ctid;

	heap_insert(rel, tuple, GetCurrentCommandId(true), 0, NULL);
	insert_entries(rel, &rows);
	ctid = tuple->t_self;
	heap_freetuple(tuple);
	return ctid;
}

/*
 * Insert rows with their index entries.  A page of rows is logged once.  The tuples get their
 * tuple identifiers, and are freed.
 */
void
jobq_insert_tuples(Relation rel, HeapTuple *tuples, int ntuples)
{
	TupleTableSlot *slots[MAX_SLOTS];
	TupleDesc	desc;

	if (ntuples == 0)
		return;

	/* a copy has no reference count to maintain for each slot */
	desc = CreateTupleDescCopy(RelationGetDescr(rel));
	for (int i = 0; i < Min(ntuples, MAX_SLOTS); i++)
		slots[i] = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
	for (int done = 0; done < ntuples; done += MAX_SLOTS)
	{
		int			n = Min(ntuples - done, MAX_SLOTS);

		for (int i = 0; i < n; i++)
			ExecStoreHeapTuple(tuples[done + i], slots[i], true);
		heap_multi_insert(rel, slots, n, GetCurrentCommandId(true), 0, NULL);
		for (int i = 0; i < n; i++)
			tuples[done + i]->t_self = slots[i]->tts_tid;
		jobq_insert_entries(rel, tuples + done, n);
	}
	for (int i = 0; i < Min(ntuples, MAX_SLOTS); i++)
		ExecDropSingleTupleTableSlot(slots[i]);
	FreeTupleDesc(desc);
}

/*
 * Insert a row, unless its key exists or another transaction is inserting the key.  Returns
 * false then, without waiting.  All unique indexes of the table must be on this key: there may
 * be two during a replacement of the index.
 */
bool
jobq_insert_unless_there(Relation rel, HeapTuple tuple)
{
	TransactionId xid = GetCurrentTransactionId();
	KeptTable	table = kept_table(rel);
	TupleTableSlot *slot;
	Rows		rows = {.n = 1,.tuples = &tuple};
	uint32		token;
	bool		inserted = true;

	users++;
	slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
	token = SpeculativeInsertionLockAcquire(xid);
	ExecStoreHeapTuple(tuple, slot, false);
	table_tuple_insert_speculative(rel, slot, GetCurrentCommandId(true), 0,
								   NULL, token);
	tuple->t_self = slot->tts_tid;
	for (int i = 0; i < table.nindexes && inserted; i++)
		inserted = insert_into(rel, &table.indexes[i], &rows, UNIQUE_CHECK_PARTIAL);
	table_tuple_complete_speculative(rel, slot, token, inserted);
	SpeculativeInsertionLockRelease(xid);
	ExecDropSingleTupleTableSlot(slot);
	users--;
	return inserted;
}

/* Lock the row against changes, like FOR NO KEY UPDATE. */
TM_Result
jobq_lock_row(Relation rel, const ItemPointerData *ctid, LockWaitPolicy policy)
{
	HeapTupleData tuple;
	Buffer		buffer;
	TM_FailureData tmfd;
	TM_Result	result;

	tuple.t_self = *ctid;
	result = heap_lock_tuple(rel, &tuple, GetCurrentCommandId(true),
							 LockTupleNoKeyExclusive, policy, false, &buffer, &tmfd);
	ReleaseBuffer(buffer);
	return result;
}

/*
 * Replace a row that is locked, or was written by this transaction.  Only columns without a
 * key may differ.  Frees the tuple.  *ctid gets the new position.
 */
void
jobq_update_row(Relation rel, ItemPointer ctid, HeapTuple tuple)
{
	jobq_heap_update(rel, ctid, tuple);
	if (!HeapTupleIsHeapOnly(tuple))
		jobq_insert_entries(rel, &tuple, 1);
	*ctid = tuple->t_self;
	heap_freetuple(tuple);
}
