/*-------------------------------------------------------------------------
 *
 * limit_count.c
 *	  Number of queues, kinds and named limiters with limits, and its maximum.
 *
 * src/store/limit_count.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "nodes/value.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/store.h"

/*
 * Return whether the queue with this name has limits, or other settings requiring a limiter
 * slot.  The caller is connected to SPI.
 */
bool
jobq_queue_is_limited(Datum name)
{
	static const Oid types[] = {TEXTOID};

	return jobq_query("SELECT FROM jobq_internal.queue WHERE name = $1 AND (" JOBQ_LIMITED_QUEUE ")",
					  1, types, &name, NULL, SPI_OK_SELECT) > 0;
}

/* Return whether the kind has limits.  The caller is connected to SPI. */
bool
jobq_kind_is_limited(Datum kind)
{
	static const Oid types[] = {TEXTOID};

	return jobq_query("SELECT FROM jobq_internal.handler WHERE kind = $1 AND (" JOBQ_LIMITED_KIND ")",
					  1, types, &kind, NULL, SPI_OK_SELECT) > 0;
}

/* The same condition as JOBQ_LIMITED_QUEUE. */
static bool
row_of_queue_is_limited(const Datum *values, const bool *nulls)
{
	static const int limits[] = {
		QUEUE_MAX_RUNNING, QUEUE_RATE, QUEUE_THROTTLE, QUEUE_WEIGHT
	};

	for (int i = 0; i < (int) lengthof(limits); i++)
		if (!nulls[limits[i] - 1])
			return true;
	return DatumGetInt32(values[QUEUE_GROUP_MAX_RUNNING - 1]) != 1 ||
		strcmp(TextDatumGetCString(values[QUEUE_GROUP_ON_FAILURE - 1]), "wait") != 0 ||
		strcmp(TextDatumGetCString(values[QUEUE_FAIR - 1]), "off") != 0;
}

/* The same condition as JOBQ_LIMITED_KIND. */
static bool
row_of_kind_is_limited(const Datum *values, const bool *nulls)
{
	return !nulls[HANDLER_MAX_RUNNING - 1] || !nulls[HANDLER_RATE - 1] ||
		!nulls[HANDLER_THROTTLE - 1] || !nulls[HANDLER_CHUNK_WAIT - 1];
}

static bool
row_of_limiter_is_limited(const Datum *values, const bool *nulls)
{
	return true;
}

/* Tables of objects with limits. */
static const struct
{
	JobqTable	table;
	AttrNumber	natts;
	AttrNumber	name;
	bool		(*is_limited) (const Datum *values, const bool *nulls);
}			limited_tables[] = {
	{JOBQ_QUEUE_TABLE, QUEUE_NATTS, QUEUE_NAME, row_of_queue_is_limited},
	{JOBQ_HANDLER_TABLE, HANDLER_NATTS, HANDLER_KIND, row_of_kind_is_limited},
	{JOBQ_LIMITER_TABLE, LIMITER_NATTS, LIMITER_NAME, row_of_limiter_is_limited},
};

/* Add the names of rows with limits visible to the snapshot. */
static List *
add_limited(List *names, Relation rel, int table, Snapshot snapshot)
{
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Datum		values[QUEUE_NATTS + HANDLER_NATTS + LIMITER_NATTS];
		bool		nulls[QUEUE_NATTS + HANDLER_NATTS + LIMITER_NATTS];

		CHECK_FOR_INTERRUPTS();
		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		if (limited_tables[table].is_limited(values, nulls))
			names = lappend(names,
							makeString(TextDatumGetCString(values[limited_tables[table].name - 1])));
	}
	systable_endscan(scan);
	return names;
}

static int
compare_names(const ListCell *a, const ListCell *b)
{
	return strcmp(strVal(lfirst(a)), strVal(lfirst(b)));
}

/*
 * Return how many rows of the table have limits, before or after the changes of open
 * transactions.
 */
static int
limited_rows(int table)
{
	Relation	rel = jobq_open_table(limited_tables[table].table, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SnapshotData dirty;
	const char *last = NULL;
	List	   *names;
	ListCell   *lc;
	int			n = 0;

	/* this scan misses no row moved by another transaction */
	InitDirtySnapshot(dirty);
	names = add_limited(NIL, rel, table, snapshot);
	names = add_limited(names, rel, table, &dirty);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	list_sort(names, compare_names);
	foreach(lc, names)
	{
		n += last == NULL || strcmp(last, strVal(lfirst(lc))) != 0;
		last = strVal(lfirst(lc));
	}
	return n;
}

/*
 * ERROR if more queues, kinds and named limiters have limits than there are limiter slots.
 * Call after giving limits to an object without limits.  The error rolls the change back.
 *
 * No lock is needed.  Limits added or removed by open transactions are counted, and each
 * session writes its own change before it counts.  Of two sessions, at least one therefore
 * sees the limits of the other.
 */
void
jobq_check_limited(void)
{
	int			n = 0;

	for (int i = 0; i < (int) lengthof(limited_tables); i++)
		n += limited_rows(i);
	if (n > jobq_max_limiters)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("more than %d queues, kinds and limiters cannot have limits, weights, or policies for groups and tenants",
						jobq_max_limiters),
				 errhint("The view jobq.limits shows those that have; take away what is not needed with jobq.alter_queue(), jobq.register() or jobq.drop_limiter(), or raise jobq.ready_entries. Tenants of one queue, and keys of one limiter, have limits without being counted.")));
}
