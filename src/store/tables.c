/*-------------------------------------------------------------------------
 *
 * tables.c
 *	  Opens the tables and indexes of jobq, and checks their definitions.
 *
 * Rows are read and written without the executor, by the numbers and types of their columns.
 * The owner of the tables can change these, and can recreate indexes.  All tables are
 * therefore opened by functions of this file, which check a table once after each change.
 *
 * REINDEX CONCURRENTLY gives an index another OID. The command waits for all transactions that
 * have locked the table, in any mode.  The OID of an index must therefore be requested while
 * its table is open.  The OID is then valid until the lock of the table is released.
 *
 * src/store/tables.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "store/store.h"

/* jobq_internal.role, whose OID differs between databases. */
#define ROLE_TYPE	InvalidOid

typedef struct Column
{
	Oid			type;
	bool		may_be_null;
} Column;

static const Column queue_columns[] = {
	{INT4OID, false}, {BOOLOID, false}, {TEXTOID, false}, {TEXTARRAYOID, true}, {TEXTARRAYOID, true}, {TEXTOID, true}, {TEXTOID, false}, {TEXTOID, false}, {TEXTOID, false}, {TEXTOID, false},
	{INTERVALOID, true}, {INTERVALOID, true}, {BOOLOID, false}, {INT4OID, true}, {INT4OID, true}, {TEXTOID, true}, {TEXTOID, true},
	{TEXTARRAYOID, true}, {INT4OID, false}, {TEXTOID, false}, {TEXTOID, false}, {TEXTOID, true}, {TEXTOID, false}, {JSONBOID, true},
	{INT4OID, true}, {TEXTOID, false}, {INTERVALOID, true}, {TEXTARRAYOID, true},
	{TEXTOID, false}, {ROLE_TYPE, true},
};

static const Column delegation_columns[] = {
	{INT4OID, false}, {ROLE_TYPE, false},
};

static const Column handler_columns[] = {
	{TEXTOID, false}, {TEXTOID, false}, {TEXTOID, true}, {INT4OID, true}, {INT4OID, true}, {TEXTOID, true},
	{INT4OID, true}, {BOOLOID, true}, {INT4OID, true}, {INT4OID, true},
	{TEXTOID, true}, {TEXTOID, true}, {TEXTOID, true}, {TEXTARRAYOID, true}, {TEXTOID, true},
	{TEXTARRAYOID, true}, {TEXTARRAYOID, true}, {INT8OID, true}, {INT8OID, true}, {INT8OID, true},
	{TEXTARRAYOID, true}, {INT4OID, true}, {INT4OID, true},
};

static const Column job_columns[] = {
	{INT8OID, false}, {TIMESTAMPTZOID, false}, {TIMESTAMPTZOID, false}, {INT4OID, false}, {INT4OID, false},
	{ROLE_TYPE, false}, {ROLE_TYPE, false}, {INT4OID, false}, {INT4OID, false}, {INT4OID, false}, {INT2OID, false}, {INT2OID, false},
	{BOOLOID, false}, {BOOLOID, false}, {TEXTOID, false}, {JSONBOID, false}, {INT4OID, true},
	{TIMESTAMPTZOID, true}, {TIMESTAMPTZOID, true}, {INT8OID, true},
	{TIMESTAMPTZOID, true}, {JSONBOID, true}, {TEXTOID, true}, {JSONBOID, true},
	{INT8OID, true}, {TEXTOID, true}, {TIMESTAMPTZOID, true}, {CHAROID, true}, {INT4OID, true},
	{TEXTOID, true}, {INT8OID, true}, {INT8OID, true}, {TIMESTAMPTZOID, true},
	{JSONBOID, true}, {JSONBOID, true}, {TEXTOID, true}, {TEXTARRAYOID, true}, {INT4OID, true},
	{INT2OID, true}, {TEXTOID, true}, {INT8OID, true},
};

static const Column unique_key_columns[] = {
	{INT8OID, false}, {TIMESTAMPTZOID, true}, {ROLE_TYPE, false}, {INT4OID, false}, {CHAROID, false}, {TEXTOID, false},
	{TEXTOID, false},
};

static const Column job_uuid_columns[] = {
	{INT8OID, false}, {ROLE_TYPE, false}, {UUIDOID, false},
};

static const Column lease_columns[] = {
	{INT8OID, false}, {INT8OID, false}, {TIMESTAMPTZOID, false}, {TIMESTAMPTZOID, false}, {ROLE_TYPE, false},
	{TEXTOID, false}, {INT8ARRAYOID, false}, {XIDARRAYOID, false}, {INT4OID, true},
};

static const Column archive_columns[] = {
	{TIMESTAMPTZOID, false}, {INT8OID, false}, {TIMESTAMPTZOID, false}, {TIMESTAMPTZOID, true},
	{TIMESTAMPTZOID, false}, {INT4OID, false}, {INT4OID, false}, {ROLE_TYPE, false}, {INT4OID, false}, {INT4OID, false},
	{CHAROID, false}, {CHAROID, true}, {TEXTOID, false}, {JSONBOID, true}, {JSONBOID, true}, {JSONBOID, true},
	{TEXTOID, true}, {TEXTOID, true}, {INT8OID, true}, {JSONBOID, true}, {JSONBOID, true}, {JSONBOID, true}, {TEXTOID, true},
	{TEXTARRAYOID, true}, {JSONBOID, true}, {INT4OID, true},
};

static const Column dead_letter_columns[] = {
	{TIMESTAMPTZOID, false}, {INT8OID, false}, {TIMESTAMPTZOID, false}, {TIMESTAMPTZOID, true},
	{TIMESTAMPTZOID, false}, {INT4OID, false}, {INT4OID, false}, {ROLE_TYPE, false}, {INT4OID, false}, {INT4OID, false},
	{INT2OID, false}, {INT2OID, false}, {BOOLOID, false}, {TEXTOID, false}, {JSONBOID, false}, {INT4OID, true},
	{JSONBOID, true}, {TEXTOID, true}, {TEXTOID, false}, {TEXTOID, false}, {TEXTOID, true},
	{JSONBOID, false}, {TEXTOID, true}, {CHAROID, true}, {INT4OID, true}, {TEXTOID, true},
	{INT8OID, true}, {JSONBOID, true}, {JSONBOID, true}, {TEXTOID, true}, {TEXTARRAYOID, true},
	{INT4OID, true}, {INT8OID, false}, {INT8OID, true},
};

static const Column step_columns[] = {
	{INT8OID, false}, {INT8OID, false}, {CHAROID, true}, {TEXTOID, false}, {INT8ARRAYOID, false}, {JSONBOID, true},
	{JSONBOID, true}, {INT4OID, true}, {INT8OID, true}, {INT4OID, true}, {BOOLOID, false}, {BOOLOID, false},
	{INT8OID, true},
};

static const Column privilege_columns[] = {
	{INT4OID, false}, {ROLE_TYPE, false}, {TEXTOID, false},
};

static const Column event_handler_columns[] = {
	{ROLE_TYPE, false}, {TEXTOID, false}, {TEXTOID, false}, {TEXTOID, false}, {TEXTOID, false},
	{BOOLOID, false}, {BOOLOID, false},
};

static const Column limiter_columns[] = {
	{TEXTOID, false}, {INT4OID, true}, {TEXTOID, true}, {TEXTOID, true}, {TEXTOID, true},
	{TEXTOID, true}, {TEXTOID, false},
};

static const Column batch_columns[] = {
	{INT8OID, false}, {TIMESTAMPTZOID, false}, {TIMESTAMPTZOID, true}, {TIMESTAMPTZOID, true}, {ROLE_TYPE, false},
	{CHAROID, false}, {BOOLOID, false}, {BOOLOID, false}, {BOOLOID, false}, {BOOLOID, false}, {BOOLOID, false},
	{BOOLOID, false}, {INT8OID, true}, {INT8OID, true},
	{INT8OID, false}, {INT8OID, false}, {INT8OID, false}, {INT8OID, false}, {TEXTOID, true},
	{JSONBOID, true}, {JSONBOID, true}, {JSONBOID, true}, {TEXTOID, true},
};

static const Column procedure_step_columns[] = {
	{INT8OID, false}, {TIMESTAMPTZOID, false}, {INT8OID, false}, {INT8OID, false}, {CHAROID, false},
	{TEXTOID, false}, {TIMESTAMPTZOID, true}, {TIMESTAMPTZOID, true}, {TEXTOID, true}, {JSONBOID, true},
};

static const Column signal_columns[] = {
	{INT8OID, false}, {INT8OID, false}, {TIMESTAMPTZOID, false}, {TEXTOID, false}, {TEXTOID, false},
	{JSONBOID, false}, {TEXTOID, true}, {CHAROID, true},
};

static const Column audit_columns[] = {
	{INT8OID, false}, {TIMESTAMPTZOID, false}, {TEXTOID, false}, {TEXTOID, false}, {TEXTOID, false},
	{TEXTOID, false}, {TEXTARRAYOID, false}, {INT8OID, true},
};

/* The tables: the position of the OID in JobqRelations, and the columns. */
static const struct
{
	size_t		relid;
	const Column *columns;
	int			ncolumns;
}			tables[JOBQ_NTABLES] = {
#define TABLE(field, list) {offsetof(JobqRelations, field), list, lengthof(list)}
	[JOBQ_QUEUE_TABLE] = TABLE(queue, queue_columns),
	[JOBQ_DELEGATION_TABLE] = TABLE(delegation, delegation_columns),
	[JOBQ_HANDLER_TABLE] = TABLE(handler, handler_columns),
	[JOBQ_JOB_TABLE] = TABLE(job, job_columns),
	[JOBQ_UNIQUE_KEY_TABLE] = TABLE(unique_key, unique_key_columns),
	[JOBQ_JOB_UUID_TABLE] = TABLE(job_uuid, job_uuid_columns),
	[JOBQ_LEASE_TABLE] = TABLE(lease, lease_columns),
	[JOBQ_ARCHIVE_TABLE] = TABLE(archive, archive_columns),
	[JOBQ_DEAD_LETTER_TABLE] = TABLE(dead_letter, dead_letter_columns),
	[JOBQ_STEP_TABLE] = TABLE(step, step_columns),
	[JOBQ_PRIVILEGE_TABLE] = TABLE(privilege, privilege_columns),
	[JOBQ_EVENT_HANDLER_TABLE] = TABLE(event_handler, event_handler_columns),
	[JOBQ_LIMITER_TABLE] = TABLE(limiter, limiter_columns),
	[JOBQ_BATCH_TABLE] = TABLE(batch, batch_columns),
	[JOBQ_PROCEDURE_STEP_TABLE] = TABLE(procedure_step, procedure_step_columns),
	[JOBQ_SIGNAL_TABLE] = TABLE(signal, signal_columns),
	[JOBQ_AUDIT_TABLE] = TABLE(audit, audit_columns),
#undef TABLE
};

StaticAssertDecl(lengthof(queue_columns) == QUEUE_NATTS, "columns of jobq_internal.queue");
StaticAssertDecl(lengthof(handler_columns) == HANDLER_NATTS, "columns of jobq_internal.handler");
StaticAssertDecl(lengthof(job_columns) == JOB_NATTS, "columns of jobq_internal.job");
StaticAssertDecl(lengthof(privilege_columns) == PRIVILEGE_NATTS, "columns of jobq_internal.privilege");
StaticAssertDecl(lengthof(event_handler_columns) == EVENT_HANDLER_NATTS, "columns of jobq_internal.event_handler");
StaticAssertDecl(lengthof(limiter_columns) == LIMITER_NATTS, "columns of jobq_internal.limiter");
StaticAssertDecl(lengthof(batch_columns) == BATCH_NCOLUMNS, "columns of jobq_internal.batch");
StaticAssertDecl(lengthof(procedure_step_columns) == PSTEP_NATTS, "columns of jobq_internal.procedure_step");
StaticAssertDecl(lengthof(signal_columns) == SIGNAL_NATTS, "columns of jobq_internal.signal");
StaticAssertDecl(lengthof(audit_columns) == AUDIT_NATTS, "columns of jobq_internal.audit");

/* The indexes: their names and their columns. */
#define MAX_KEYS	6
static const struct
{
	const char *name;
	AttrNumber	keys[MAX_KEYS];
}			indexes[JOBQ_NINDEXES] = {
	[JOBQ_QUEUE_PKEY] = {"queue_pkey", {QUEUE_ID}},
	[JOBQ_QUEUE_NAME_KEY] = {"queue_name_key", {QUEUE_NAME}},
	[JOBQ_QUEUE_MADE_BY] = {"queue_made_by", {QUEUE_MADE_BY}},
	[JOBQ_DELEGATION_PKEY] = {"delegation_pkey", {1}},
	[JOBQ_HANDLER_PKEY] = {"handler_pkey", {HANDLER_KIND}},
	[JOBQ_JOB_PKEY] = {"job_pkey", {JOB_ID}},
	[JOBQ_JOB_READY] = {"job_ready", {JOB_QUEUE_ID, JOB_PRIORITY, JOB_RUN_AS,
	JOB_FLOW, JOB_RUN_AT, JOB_ID}},
	[JOBQ_JOB_GROUP] = {"job_group", {JOB_GROUP_ID, JOB_PRIORITY, JOB_RUN_AT,
	JOB_ID}},
	[JOBQ_JOB_GROUP_HELD] = {"job_group_held", {JOB_GROUP_ID, JOB_GROUP_HELD}},
	[JOBQ_JOB_BATCH] = {"job_batch", {JOB_BATCH_ID, JOB_ID}},
	[JOBQ_UNIQUE_KEY_PKEY] = {"unique_key_pkey", {7, 6, 3, 4}},
	[JOBQ_JOB_UUID_PKEY] = {"job_uuid_pkey", {3, 2}},
	[JOBQ_LEASE_PKEY] = {"lease_pkey", {1}},
	[JOBQ_DEAD_LETTER_QUEUE] = {"dead_letter_queue", {6}},
	[JOBQ_PRIVILEGE_PKEY] = {"privilege_pkey", {PRIVILEGE_QUEUE_ID,
	PRIVILEGE_ROLE, PRIVILEGE_PRIVILEGE}},
	[JOBQ_BATCH_PKEY] = {"batch_pkey", {BATCH_COLUMN_ID}},
	[JOBQ_PROCEDURE_STEP_PKEY] = {"procedure_step_pkey", {PSTEP_JOB_ID, PSTEP_NAME}},
	[JOBQ_SIGNAL_PKEY] = {"signal_pkey", {SIGNAL_JOB_ID, SIGNAL_NAME, SIGNAL_ID}},
	[JOBQ_SIGNAL_NEXT] = {"signal_next", {SIGNAL_JOB_ID, SIGNAL_NAME, SIGNAL_ID}},
};

/* The OIDs of successfully checked tables. */
static Oid	checked[JOBQ_NTABLES];

/* The OIDs of known indexes, and of their tables. */
static struct
{
	Oid			index;
	Oid			table;
}			known[JOBQ_NINDEXES];

/* count of invalidations and aborts */
static uint64 changes = 0;

static void
relation_changed(Oid relid)
{
	changes++;
	for (int i = 0; i < JOBQ_NTABLES; i++)
		if (relid == InvalidOid || relid == checked[i])
			checked[i] = InvalidOid;
	for (int i = 0; i < JOBQ_NINDEXES; i++)
		if (relid == InvalidOid || relid == known[i].index ||
			relid == known[i].table)
			known[i].index = known[i].table = InvalidOid;
}

static void
forget_tables(void)
{
	relation_changed(InvalidOid);
}

const JobqCache jobq_tables_cache = {
	.changed = relation_changed,
	.forget = forget_tables,
};

static Oid
type_of(const Column *column)
{
	return column->type == ROLE_TYPE ? jobq_relations()->role_type : column->type;
}

/*
 * Open a table of jobq in this lock mode.  ERROR if it does not have the expected columns.
 */
Relation
jobq_open_table(JobqTable table, LOCKMODE mode)
{
	Oid			relid = *(const Oid *) ((const char *) jobq_relations() +
										tables[table].relid);
	Relation	rel = table_open(relid, mode);

	jobq_check_table(rel, table);
	return rel;
}

/*
 * ERROR if the relation does not have the table's columns.  The caller has locked the
 * relation.
 */
void
jobq_check_table(Relation rel, JobqTable table)
{
	TupleDesc	desc = RelationGetDescr(rel);
	uint64		before = changes;

	if (likely(checked[table] == RelationGetRelid(rel)))
		return;
	jobq_check_columns(desc, tables[table].ncolumns);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		const Column *column = &tables[table].columns[i];
		Oid			type = type_of(column);

		if (att->attisdropped)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("column %d of jobq_internal.%s was dropped", i + 1,
							RelationGetRelationName(rel)),
					 errhint("The tables of jobq cannot have other columns than its own.")));
		if (att->atttypid != type)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("column \"%s\" of jobq_internal.%s has type %s instead of %s",
							NameStr(att->attname), RelationGetRelationName(rel),
							format_type_be(att->atttypid),
							format_type_be(type)),
					 errhint("The tables of jobq cannot have other columns than its own.")));
		if (!jobq_has_no_nulls(desc, i) && !column->may_be_null)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("column \"%s\" of jobq_internal.%s is not marked NOT NULL",
							NameStr(att->attname), RelationGetRelationName(rel)),
					 errhint("Restore it with ALTER TABLE ... ALTER COLUMN ... SET NOT NULL.")));
	}
	if (changes == before)
	{
		checked[table] = RelationGetRelid(rel);
		jobq_cache_filled();
	}
}

/*
 * ERROR if the row type of a query does not have the types of the columns of jobs.
 */
void
jobq_check_job_row(TupleDesc desc)
{
	Oid			types[JOB_NATTS];

	Assert(tables[JOBQ_JOB_TABLE].ncolumns == (int) lengthof(types));
	for (int i = 0; i < (int) lengthof(types); i++)
		types[i] = type_of(&tables[JOBQ_JOB_TABLE].columns[i]);
	jobq_check_types(desc, types, lengthof(types));
}

static bool
is_btree(Oid index)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(index));
	bool		result = HeapTupleIsValid(tuple) &&
		((Form_pg_class) GETSTRUCT(tuple))->relam == BTREE_AM_OID;

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return result;
}

/* Return why this index of the table cannot be used, or NULL. */
static const char *
index_problem(Oid index, Oid table, const AttrNumber *keys)
{
	HeapTuple	tuple;
	Form_pg_index form;
	const char *problem = NULL;

	if (!OidIsValid(index))
		return "It does not exist.";
	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	if (!HeapTupleIsValid(tuple))
		return "It is not an index.";
	form = (Form_pg_index) GETSTRUCT(tuple);
	if (form->indrelid != table)
		problem = "It is the index of another table.";
	else if (!form->indisvalid)
		problem = "It is not valid.";
	else if (!is_btree(index))
		problem = "It is not a B-tree.";
	else
		for (int i = 0; i < MAX_KEYS && keys[i] != InvalidAttrNumber; i++)
			if (i >= form->indnkeyatts || form->indkey.values[i] != keys[i])
				problem = "It has other columns.";
	ReleaseSysCache(tuple);
	return problem;
}

/*
 * Return the OID of an index of the table, which must be open.  ERROR if the index does not
 * exist, or differs from its original definition.
 */
Oid
jobq_index(Relation rel, JobqIndex index)
{
	if (likely(known[index].table == RelationGetRelid(rel)))
		return known[index].index;
	for (;;)
	{
		uint64		before = changes;
		Oid			relid = get_relname_relid(indexes[index].name,
											  RelationGetNamespace(rel));
		const char *problem = index_problem(relid, RelationGetRelid(rel),
											indexes[index].keys);

		/* the index may be replaced during the check */
		if (problem != NULL && changes != before)
			continue;
		if (problem != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("index jobq_internal.%s cannot be used", indexes[index].name),
					 errdetail_internal("%s", problem),
					 errhint("Make it anew, as CREATE EXTENSION jobq makes it, or with REINDEX.")));
		if (changes == before)
		{
			known[index].index = relid;
			known[index].table = RelationGetRelid(rel);
			jobq_cache_filled();
		}
		return relid;
	}
}

/* Open an index of the table, which must be open, for reading. */
Relation
jobq_open_index(Relation rel, JobqIndex index)
{
	return index_open(jobq_index(rel, index), AccessShareLock);
}
