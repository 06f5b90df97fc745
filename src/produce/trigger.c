/*-------------------------------------------------------------------------
 *
 * trigger.c
 *	  enqueue_trigger(): enqueue jobs for changed rows, as a transactional outbox.
 *
 * A row trigger enqueues one job for each row.  A statement trigger enqueues one job for all
 * rows of the statement, which it reads from the transition tables.  The cost of one job is
 * thus spread over many rows.  Large statements are split into several jobs, by the number of
 * rows and by their size.
 *
 * src/produce/trigger.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "commands/trigger.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_enqueue_trigger);

/* Default number of rows in a job. */
#define DEFAULT_ROWS	1000
#define MAX_ROWS		1000000

/*
 * A job is full when its text has this number of bytes.  The stored payload is mostly larger,
 * and must not exceed jobq.max_payload.
 */
#define FULL_TEXT		((int) Min((int64) jobq_max_payload * 1024 / 4, 64 * 1024 * 1024))

/* Expressions of the table's virtual generated columns. */
typedef struct Virtuals
{
	EState	   *estate;			/* or NULL: no virtual columns */
	TupleTableSlot *slot;
	ExprState **columns;		/* NULL for stored columns */
} Virtuals;

/* Read state of a transition table. */
typedef struct TransitionRows
{
	Tuplestorestate *store;		/* or NULL: no such table */
	int			pointer;
	TupleTableSlot *slot;
	StringInfoData text;		/* of the current job */
} TransitionRows;

/* Return the maximum number of rows in a job, from the trigger's argument. */
static int
rows_arg(const Trigger *trigger)
{
	char	   *end;
	long		rows;

	if (trigger->tgnargs < 3)
		return DEFAULT_ROWS;
	errno = 0;
	rows = strtol(trigger->tgargs[2], &end, 10);
	if (errno != 0 || end == trigger->tgargs[2] || *end != '\0' ||
		rows < 1 || rows > MAX_ROWS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid number of rows for jobq.enqueue_trigger(): \"%s\"",
						trigger->tgargs[2]),
				 errhint("It must be between 1 and %d.", MAX_ROWS)));
	return (int) rows;
}

static void
append_head(StringInfo buf, const TriggerData *trigdata, const char *op)
{
	Relation	rel = trigdata->tg_relation;

	appendStringInfo(buf, "{\"op\": \"%s\", \"table\": ", op);
	escape_json(buf,
				quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
										   RelationGetRelationName(rel)));
}

static void
virtuals_begin(Virtuals *virtuals, Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	memset(virtuals, 0, sizeof(Virtuals));
	for (int i = 0; i < desc->natts; i++)
	{
		if (!jobq_is_virtual(TupleDescAttr(desc, i)))
			continue;
		if (virtuals->estate == NULL)
		{
			virtuals->estate = CreateExecutorState();
			virtuals->slot = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
			virtuals->columns = palloc0(desc->natts * sizeof(ExprState *));
		}
		virtuals->columns[i] = ExecPrepareExpr((Expr *) jobq_virtual_expression(rel, i + 1),
											   virtuals->estate);
	}
}

/* Return the row with the values of its virtual columns computed. */
static HeapTuple
virtuals_computed(const Virtuals *virtuals, HeapTuple tuple, TupleDesc desc)
{
	ExprContext *econtext;
	Datum	   *values;
	bool	   *nulls;

	if (virtuals->estate == NULL)
		return tuple;
	values = palloc(desc->natts * sizeof(Datum));
	nulls = palloc(desc->natts * sizeof(bool));
	heap_deform_tuple(tuple, desc, values, nulls);
	ExecStoreHeapTuple(tuple, virtuals->slot, false);
	econtext = GetPerTupleExprContext(virtuals->estate);
	econtext->ecxt_scantuple = virtuals->slot;
	for (int i = 0; i < desc->natts; i++)
		if (virtuals->columns[i] != NULL)
			values[i] = ExecEvalExprSwitchContext(virtuals->columns[i], econtext,
												  &nulls[i]);
	tuple = heap_form_tuple(desc, values, nulls);
	ExecClearTuple(virtuals->slot);
	ResetPerTupleExprContext(virtuals->estate);
	return tuple;
}

static void
virtuals_end(Virtuals *virtuals)
{
	if (virtuals->estate == NULL)
		return;
	ExecDropSingleTupleTableSlot(virtuals->slot);
	FreeExecutorState(virtuals->estate);
}

/* Append the row as a JSON object, or null if tuple is NULL. */
static void
append_row(StringInfo buf, HeapTuple tuple, TupleDesc desc,
		   const Virtuals *virtuals)
{
	Datum		row;
	Datum		json;

	if (tuple == NULL)
	{
		appendStringInfoString(buf, "null");
		return;
	}
	row = heap_copy_tuple_as_datum(virtuals_computed(virtuals, tuple, desc), desc);
	json = OidFunctionCall1(F_ROW_TO_JSON_RECORD, row);
	appendStringInfoString(buf, TextDatumGetCString(json));
}

/* Enqueue a job with this payload. */
static void
put(const Trigger *trigger, const char *payload)
{
	Datum		options[NOPTIONS];
	bool		nulls[NOPTIONS];
	JobqJob		job;
	JobqUnique	unique;

	memset(nulls, true, sizeof(nulls));
	if (trigger->tgnargs >= 2)
	{
		options[OPTION_QUEUE] = CStringGetTextDatum(trigger->tgargs[1]);
		nulls[OPTION_QUEUE] = false;
	}
	jobq_prepare_job(&job, &unique, trigger->tgargs[0], options, nulls);
	jobq_set_payload(&job, jobq_text_to_jsonb(payload));
	jobq_put_job(&job, &unique);
}

/*
 * FOR EACH ROW: {op, table, new, old}.
 */
static void
enqueue_row(const TriggerData *trigdata, const char *op)
{
	TupleDesc	desc = RelationGetDescr(trigdata->tg_relation);
	bool		inserted = TRIGGER_FIRED_BY_INSERT(trigdata->tg_event);
	bool		updated = TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event);
	Virtuals	virtuals;
	StringInfoData buf;

	virtuals_begin(&virtuals, trigdata->tg_relation);
	initStringInfo(&buf);
	append_head(&buf, trigdata, op);
	appendStringInfoString(&buf, ", \"new\": ");
	append_row(&buf, inserted ? trigdata->tg_trigtuple
			   : updated ? trigdata->tg_newtuple : NULL, desc, &virtuals);
	appendStringInfoString(&buf, ", \"old\": ");
	append_row(&buf, inserted ? NULL : trigdata->tg_trigtuple, desc, &virtuals);
	appendStringInfoChar(&buf, '}');
	virtuals_end(&virtuals);
	put(trigdata->tg_trigger, buf.data);
}

/*
 * Begin to read the table with a read pointer of its own, so that other readers are not
 * disturbed.
 */
static void
rows_begin(TransitionRows *rows, Tuplestorestate *store, TupleDesc desc)
{
	rows->store = store;
	if (store == NULL)
		return;
	rows->pointer = tuplestore_alloc_read_pointer(store, EXEC_FLAG_REWIND);
	tuplestore_select_read_pointer(store, rows->pointer);
	tuplestore_rescan(store);
	rows->slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
}

/*
 * Append the next row to the text, which has n rows.  Returns false at the end.
 */
static bool
rows_next(TransitionRows *rows, int n, TupleDesc desc, const Virtuals *virtuals)
{
	HeapTuple	tuple;
	bool		should_free;

	if (rows->store == NULL)
		return false;
	tuplestore_select_read_pointer(rows->store, rows->pointer);
	if (!tuplestore_gettupleslot(rows->store, true, false, rows->slot))
		return false;
	tuple = ExecFetchSlotHeapTuple(rows->slot, false, &should_free);
	appendStringInfoString(&rows->text, n == 0 ? "[" : ", ");
	append_row(&rows->text, tuple, desc, virtuals);
	if (should_free)
		heap_freetuple(tuple);

	/* a row read from a file is in a context that is reset */
	ExecClearTuple(rows->slot);
	return true;
}

static void
append_rows(StringInfo buf, const char *name, const TransitionRows *rows)
{
	appendStringInfo(buf, ", \"%s\": ", name);
	if (rows->store == NULL)
		appendStringInfoString(buf, "null");
	else
	{
		appendBinaryStringInfo(buf, rows->text.data, rows->text.len);
		appendStringInfoChar(buf, ']');
	}
}

/*
 * FOR EACH STATEMENT: like enqueue_row(), with arrays of rows for new and old.  Both arrays of
 * an UPDATE are in the same order.
 */
static void
enqueue_statement(const TriggerData *trigdata, const char *op)
{
	TupleDesc	desc = RelationGetDescr(trigdata->tg_relation);
	int			most = rows_arg(trigdata->tg_trigger);
	MemoryContext context;
	MemoryContext old_context;
	TransitionRows new_rows = {0};
	TransitionRows old_rows = {0};
	Virtuals	virtuals;
	bool		more = true;

	if (trigdata->tg_newtable == NULL && trigdata->tg_oldtable == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("jobq.enqueue_trigger() for each statement lacks a transition table"),
				 errhint("Write REFERENCING NEW TABLE AS new, OLD TABLE AS old, or the one that is wanted.")));
	rows_begin(&new_rows, trigdata->tg_newtable, desc);
	rows_begin(&old_rows, trigdata->tg_oldtable, desc);
	virtuals_begin(&virtuals, trigdata->tg_relation);
	context = AllocSetContextCreate(CurrentMemoryContext, "jobq trigger",
									ALLOCSET_DEFAULT_SIZES);
	old_context = MemoryContextSwitchTo(context);
	while (more)
	{
		StringInfoData buf;
		int			n = 0;

		MemoryContextReset(context);
		initStringInfo(&new_rows.text);
		initStringInfo(&old_rows.text);
		while (n < most && new_rows.text.len + old_rows.text.len < FULL_TEXT)
		{
			bool		has_new = rows_next(&new_rows, n, desc, &virtuals);
			bool		has_old = rows_next(&old_rows, n, desc, &virtuals);

			CHECK_FOR_INTERRUPTS();
			more = has_new || has_old;
			if (!more)
				break;
			n++;
		}
		if (n == 0)
			break;
		initStringInfo(&buf);
		append_head(&buf, trigdata, op);
		append_rows(&buf, "new", &new_rows);
		append_rows(&buf, "old", &old_rows);
		appendStringInfoChar(&buf, '}');
		put(trigdata->tg_trigger, buf.data);
	}
	MemoryContextSwitchTo(old_context);
	MemoryContextDelete(context);
	virtuals_end(&virtuals);
	if (new_rows.slot != NULL)
		ExecDropSingleTupleTableSlot(new_rows.slot);
	if (old_rows.slot != NULL)
		ExecDropSingleTupleTableSlot(old_rows.slot);
}

/*
 * enqueue_trigger('kind' [, 'queue' [, 'rows']]): enqueue the changes of a row or a statement.
 * rows: maximum number of rows in a job.
 */
Datum
jobq_enqueue_trigger(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	bool		for_row;
	const char *op;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_AFTER(trigdata->tg_event) ||
		TRIGGER_FIRED_BY_TRUNCATE(trigdata->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("jobq.enqueue_trigger() must be fired AFTER INSERT, UPDATE or DELETE")));
	for_row = TRIGGER_FIRED_FOR_ROW(trigdata->tg_event);
	if (trigdata->tg_trigger->tgnargs < 1 ||
		trigdata->tg_trigger->tgnargs > (for_row ? 2 : 3))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("jobq.enqueue_trigger() takes a kind and, optionally, a queue, not %d arguments",
						trigdata->tg_trigger->tgnargs),
				 errhint("Write EXECUTE FUNCTION jobq.enqueue_trigger('kind', 'queue'). FOR EACH STATEMENT, the number of rows in a job can follow.")));

	op = TRIGGER_FIRED_BY_INSERT(trigdata->tg_event) ? "INSERT"
		: TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event) ? "UPDATE" : "DELETE";
	if (for_row)
		enqueue_row(trigdata, op);
	else
		enqueue_statement(trigdata, op);
	return PointerGetDatum(NULL);
}
