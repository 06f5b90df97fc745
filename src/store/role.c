/*-------------------------------------------------------------------------
 *
 * role.c
 *	  The type jobq_internal.role, and rows of roles that do not exist.
 *
 * pg_dump writes the name of a role.  The input function of regrole fails if the role does
 * not exist, and the COPY of the whole table fails as well.  Here the name becomes an OID of
 * a range in which no role can be, and this session remembers the name.  A trigger keeps the
 * row aside, with the name (control/parts/73-held.sql), so that no OID of the range is ever
 * stored.
 *
 * A role whose OID is in the range would be refused by the tables of jobq.  The counter of OIDs
 * reaches the range after four billion objects.
 *
 * src/store/role.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/partition.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/rel.h"

#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_role_in);
PG_FUNCTION_INFO_V1(jobq_role_out);
PG_FUNCTION_INFO_V1(jobq_hold_row);

/*
 * OIDs that stand for names of missing roles.  73-held.sql contains these numbers, too.  The
 * next OID is JOBQ_NO_ROLE.
 */
#define FIRST_ABSENT	((Oid) 4294901760)
#define LAST_ABSENT		(JOBQ_NO_ROLE - 1)

/* Columns of a row, all or some, as text. */
typedef struct HeldColumns
{
	int			n;
	Datum	   *names;
	Datum	   *contents;
	bool	   *nulls;
} HeldColumns;

/* The names of this session: the role with the OID FIRST_ABSENT + i. */
static char **absent = NULL;
static uint32 nabsent = 0;

/*
 * Return the name for the OID, or NULL if the OID stands for no name.
 */
static const char *
absent_name(Oid role)
{
	return role >= FIRST_ABSENT && role - FIRST_ABSENT < nabsent ? absent[role - FIRST_ABSENT]
		: NULL;
}

/*
 * Return the OID for the name of a role that does not exist.  WARNING when the session meets
 * the name for the first time.
 */
static Oid
absent_role(const char *name)
{
	for (uint32 i = 0; i < nabsent; i++)
		if (strcmp(absent[i], name) == 0)
			return FIRST_ABSENT + i;
	if (nabsent > LAST_ABSENT - FIRST_ABSENT)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many roles do not exist"),
				 errhint("Create the roles before the restore.")));
	if (absent == NULL)
		absent = MemoryContextAlloc(TopMemoryContext, sizeof(char *));
	else if ((nabsent & (nabsent - 1)) == 0)
		absent = repalloc(absent, Max(2 * nabsent, 1) * sizeof(char *));
	absent[nabsent] = MemoryContextStrdup(TopMemoryContext, name);
	ereport(WARNING,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("role \"%s\" does not exist", name),
			 errdetail("Rows of the role are kept aside."),
			 errhint("Create the role, and then call jobq.adopt().")));
	return FIRST_ABSENT + nabsent++;
}

/*
 * role_in(cstring): like regrolein(), but accepts the name of a role that does not exist.
 */
Datum
jobq_role_in(PG_FUNCTION_ARGS)
{
	const char *text = PG_GETARG_CSTRING(0);
	List	   *names;
	Oid			role;

	if (strcmp(text, "-") == 0 || strspn(text, "0123456789") == strlen(text))
		return DirectFunctionCall1(regrolein, CStringGetDatum(text));
	names = jobq_name_list(text);
	if (list_length(names) != 1)
		return DirectFunctionCall1(regrolein, CStringGetDatum(text));
	role = get_role_oid(strVal(linitial(names)), true);
	PG_RETURN_OID(OidIsValid(role) ? role : absent_role(strVal(linitial(names))));
}

/*
 * role_out(role): like regroleout(), but knows the names that role_in() has accepted.
 */
Datum
jobq_role_out(PG_FUNCTION_ARGS)
{
	const char *name = absent_name(PG_GETARG_OID(0));

	if (name != NULL)
		PG_RETURN_CSTRING(pstrdup(quote_identifier(name)));
	return DirectFunctionCall1(regroleout, PG_GETARG_DATUM(0));
}

/*
 * Write the columns of the row to jobq_internal.held_row.  batch_id is 0 if the row is of no
 * batch.
 */
static void
hold(const char *table, const char *role, const HeldColumns *held, Datum batch_id)
{
	static SPIPlanPtr insert = NULL;
	static const Oid types[] = {TEXTOID, TEXTOID, TEXTARRAYOID, TEXTARRAYOID, INT8OID};
	int			lower = 1;
	int			n = held->n;
	Datum		values[] = {
		CStringGetTextDatum(table), CStringGetTextDatum(quote_identifier(role)),
		PointerGetDatum(construct_array(held->names, n, TEXTOID, -1, false, TYPALIGN_INT)),
		PointerGetDatum(construct_md_array(held->contents, held->nulls, 1, &n, &lower, TEXTOID, -1, false, TYPALIGN_INT)),
		batch_id
	};

	SPI_connect();
	jobq_query_kept(&insert, "INSERT INTO jobq_internal.held_row (table_name, role, columns, contents, batch_id)"
					" VALUES ($1, $2, $3, $4, nullif($5, 0))",
					lengthof(types), types, values, NULL, SPI_OK_INSERT);
	SPI_finish();
}

static HeapTuple
with_role(HeapTuple tuple, TupleDesc desc, int column, Oid role)
{
	Datum		value = ObjectIdGetDatum(role);
	bool		isnull = false;

	return heap_modify_tuple_by_cols(tuple, desc, 1, &column, &value, &isnull);
}

/*
 * hold_row(): row trigger before INSERT for rows with a missing role.  Keeps the row in
 * jobq_internal.held_row, with these exceptions:
 *
 * - A queue and its delegation are inserted with JOBQ_NO_ROLE, and only the role is kept,
 *   because the jobs of other roles need the queue.
 * - A job whose run_as alone does not exist is inserted with the owner as run_as, because
 *   the batch and the unique key need the job.  The job is written anew when it is about to
 *   run, as after a change of the queue's run_as.
 *
 * ERROR in logical replication: the publisher would not find the row at its deletion, and
 * the job could run a second time here.
 */
Datum
jobq_hold_row(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	const JobqRelations *rels = jobq_relations();
	Relation	rel;
	TupleDesc	desc;
	HeapTuple	tuple;
	Oid			relid;
	const char *name = NULL;
	int			column = 0;
	HeldColumns held = {0};
	Datum		batch_id = Int64GetDatum(0);
	bool		role_only;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_FOR_ROW(trigdata->tg_event) ||
		!TRIGGER_FIRED_BEFORE(trigdata->tg_event) || !TRIGGER_FIRED_BY_INSERT(trigdata->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("%s must be fired BEFORE INSERT ... FOR EACH ROW", "jobq_internal.hold_row()")));

	rel = trigdata->tg_relation;
	desc = RelationGetDescr(rel);
	tuple = trigdata->tg_trigtuple;
	relid = RelationGetRelid(rel);
	for (int i = 0; i < desc->natts && name == NULL; i++)
		if (TupleDescAttr(desc, i)->atttypid == rels->role_type)
		{
			bool		isnull;
			Datum		value = heap_getattr(tuple, i + 1, desc, &isnull);

			name = isnull ? NULL : absent_name(DatumGetObjectId(value));
			column = i + 1;
		}
	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("a role of the row does not exist")));
	if (SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role \"%s\" does not exist", name),
				 errhint("Create the role. Logical replication then goes on.")));
	if (relid == rels->job && column == JOB_RUN_AS)
	{
		bool		isnull;
		Oid			role = DatumGetObjectId(heap_getattr(tuple, JOB_ROLE, desc, &isnull));

		return PointerGetDatum(with_role(tuple, desc, JOB_RUN_AS, role));
	}

	role_only = relid == rels->queue || relid == rels->delegation;
	held.names = palloc(sizeof(Datum) * desc->natts);
	held.contents = palloc0(sizeof(Datum) * desc->natts);
	held.nulls = palloc(sizeof(bool) * desc->natts);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		Datum		value;

		/* the id is the first column of queues and delegations */
		if (att->attisdropped || (role_only && i > 0 && i + 1 != column))
			continue;
		value = heap_getattr(tuple, i + 1, desc, &held.nulls[held.n]);
		held.names[held.n] = CStringGetTextDatum(NameStr(att->attname));
		if (!held.nulls[held.n])
		{
			Oid			output;
			bool		is_varlena;

			getTypeOutputInfo(att->atttypid, &output, &is_varlena);
			held.contents[held.n] = CStringGetTextDatum(OidOutputFunctionCall(output, value));
			if (strcmp(NameStr(att->attname), "batch_id") == 0)
				batch_id = value;
		}
		held.n++;
	}
	hold(rel->rd_rel->relispartition ? get_rel_name(get_partition_parent(relid, false))
		 : RelationGetRelationName(rel), name, &held, batch_id);
	return PointerGetDatum(role_only ? with_role(tuple, desc, column, JOBQ_NO_ROLE) : NULL);
}

/*
 * False if no rows are kept aside.  True if there are some, or were some before VACUUM.
 */
bool
jobq_has_held_rows(void)
{
	Relation	rel = table_open(jobq_relations()->held_row, AccessShareLock);
	bool		empty = RelationGetNumberOfBlocks(rel) == 0;

	table_close(rel, NoLock);
	return !empty;
}

/*
 * Return whether jobs of the batch are kept aside.  The caller must be connected to SPI.
 */
bool
jobq_batch_is_held(int64 id)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};

	return jobq_has_held_rows() &&
		jobq_query_kept(&plan, "SELECT FROM jobq_internal.held_row WHERE batch_id = $1 LIMIT 1",
						1, types, values, NULL, SPI_OK_SELECT) > 0;
}

/*
 * Return held rows to their tables if their roles exist now.  Returns the number of jobs,
 * without dormant jobs.  The caller must be connected to SPI.
 */
int64
jobq_return_rows(void)
{
	jobq_query("SELECT jobq_internal.return_rows()", 0, NULL, NULL, NULL, SPI_OK_SELECT);
	return DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, INT8OID, NULL));
}
