/*-------------------------------------------------------------------------
 *
 * many.c
 *	  Cancel, retry, edit or delete all jobs that fulfil given conditions.
 *
 * One query chooses the jobs and stores their ids in a tuplestore, which spills to disk.
 * The jobs are then processed CHUNK at a time, so memory does not grow with the number of
 * jobs.  For each chunk the query is repeated with the ids of the chunk, because jobs may
 * have changed.  Each job that still fulfils the conditions is processed like a single job.
 * The repeated query locks dead letters.  If a live job has a new row version when
 * processed, the query is repeated for this job.
 *
 * Privileges are checked for each job by jobq_may().  A role without the right to read a job
 * cannot find out the contents by conditions (privileges_for()).
 *
 * src/operate/many.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "operate/inner.h"

/* Number of jobs that are fetched and processed at a time. */
#define CHUNK		1000

/* Maximum number of parameters of a query. */
#define MAX_PARAMS	(2 * NFILTERS + 5)

/*
 * Condition: dead letter "j" can start after a retry.  A step of a cancelled batch with run_at
 * infinity would wait without end.
 */
#define CAN_BEGIN \
	" AND (j.run_at < 'infinity' OR EXISTS (SELECT FROM jobq_internal.batch b" \
	" WHERE b.id = j.batch_id AND b.state <> 'x'))"

const JobqArg jobq_filters[NFILTERS] = {
#define JOB_FILTER(name, NAME, type, oid, comment) \
	[FILTER_##NAME] = {#name, oid},
#include "operate/filters.h"
#undef JOB_FILTER
};

/* A query under construction, with the values of its parameters. */
typedef struct ManyQuery
{
	StringInfoData text;
	int			n;
	Oid			types[MAX_PARAMS];
	Datum		values[MAX_PARAMS];
}			ManyQuery;

static void add_may(ManyQuery * query, const JobqMany * many, const char *alias);

/*
 * True if the operation concerns dead letters; false if live jobs.
 */
bool
jobq_many_of_letters(const JobqMany * many)
{
	if (many->action == MANY_DELETE)
		return true;
	if (many->nulls[FILTER_STATE])
		return many->action == MANY_RETRY;
	return strcmp(TextDatumGetCString(many->values[FILTER_STATE]), "dead") == 0;
}

/*
 * True if the operation concerns all live jobs that are not running.
 */
static bool
only_waiting(const JobqMany * many)
{
	return !many->nulls[FILTER_STATE] &&
		strcmp(TextDatumGetCString(many->values[FILTER_STATE]), "waiting") == 0;
}

/*
 * Append a condition on jobs to the query.  In the condition, ~ stands for "alias."  and $ for
 * a new parameter with the given type and value.
 */
static void
add(ManyQuery * query, const char *alias, const char *condition, Oid type,
	Datum value)
{
	Assert(query->n < MAX_PARAMS);
	query->types[query->n] = type;
	query->values[query->n++] = value;
	appendStringInfoString(&query->text, " AND ");
	for (; *condition != '\0'; condition++)
	{
		if (*condition == '~')
			appendStringInfo(&query->text, "%s.", alias);
		else if (*condition == '$')
			appendStringInfo(&query->text, "$%d", query->n);
		else
			appendStringInfoChar(&query->text, *condition);
	}
}

/* Condition: a live job is running, or a consumer holds the job. */
#define IS_BEGUN \
	"(~id IN (SELECT r.job_id FROM jobq_internal.running_jobs r) OR ~lease_token IS NOT NULL)"

/*
 * Append all conditions given by the caller.
 */
static void
add_filters(ManyQuery * query, const JobqMany * many, const char *alias)
{
	bool		letters = jobq_many_of_letters(many);
	JobqQueue	buffer;
	const JobqQueue *queue;
	struct
	{
		int			filter;
		const char *condition;
		const char *of_letter;	/* NULL: same as condition */
	}			conditions[] = {
		{FILTER_KIND, "~kind = $", NULL},
		{FILTER_TENANT, "~tenant = $", NULL},
		{FILTER_ERROR, "~errors -> -1 ->> 'message' LIKE $", "~error LIKE $"},
		{FILTER_SQLSTATE, "~errors -> -1 ->> 'sqlstate' = $", "~sqlstate = $"},
		{FILTER_FINGERPRINT, "~errors -> -1 -> 'fingerprint' = to_jsonb($)", "~fingerprint = $"},
		{FILTER_PAYLOAD, "~payload @> $", NULL},
		{FILTER_GROUP_KEY, "~group_key = $", NULL},
		{FILTER_UNIQUE_KEY,
			"~id IN (SELECT u.job_id FROM jobq_internal.unique_key u WHERE u.key = $)",
		"~unique_key = $"},
		{FILTER_BATCH_ID, "~batch_id = $", NULL},
		{FILTER_TAGS, "~tags @> $", NULL},
		{FILTER_IDS, "~id = ANY ($)", NULL},
		{FILTER_STATE, only_waiting(many) ? "NOT " IS_BEGUN " AND $ = 'waiting'"
			: "jobq_internal.live_state(" IS_BEGUN ", ~run_at, ~expires_at, ~errors IS NOT NULL, ~waits_for IS NOT NULL) = $",
		"$ = 'dead'"},
	};

	if (many->queue_id != 0)
		add(query, alias, "~queue_id = $", INT4OID,
			Int32GetDatum(many->queue_id));
	if (!many->nulls[FILTER_OLDER_THAN])
		add(query, alias, letters ? "~finished_at <= $" : "~enqueued_at <= $",
			TIMESTAMPTZOID, TimestampTzGetDatum(many->before));
	if (!many->nulls[FILTER_NEWER_THAN])
		add(query, alias, letters ? "~finished_at > $" : "~enqueued_at > $",
			TIMESTAMPTZOID, TimestampTzGetDatum(many->after));

	/*
	 * group_id has an index, and with group_scope "queue" selects groups of
	 * this queue only
	 */
	if (many->queue_id != 0 && !many->nulls[FILTER_GROUP_KEY] && !letters &&
		(queue = jobq_queue_by_id(many->queue_id, &buffer)) != NULL &&
		queue->group_scope == GROUP_OF_QUEUE)
		add(query, alias, "~group_id = $", INT8OID,
			Int64GetDatum(jobq_group_id(many->queue_id,
										DatumGetTextPP(many->values[FILTER_GROUP_KEY]))));
	for (int i = 0; i < (int) lengthof(conditions); i++)
	{
		int			filter = conditions[i].filter;

		if (!many->nulls[filter])
			add(query, alias, letters && conditions[i].of_letter != NULL
				? conditions[i].of_letter : conditions[i].condition,
				jobq_filters[filter].type, many->values[filter]);
	}
}

/*
 * Write the query for all jobs that fulfil the conditions, or, if ids is not NULL, for the ids
 * that still match.  The query returns id, role, queue and version, ordered by id.  With ids,
 * dead letters are locked, because the caller then deletes by id.
 */
static void
write_query(ManyQuery * query, const JobqMany * many, ArrayType *ids)
{
	query->n = 0;
	initStringInfo(&query->text);
	appendStringInfo(&query->text,
					 "SELECT j.id, j.role::oid, j.queue_id, j.xmin FROM jobq_internal.%s j WHERE true",
					 jobq_many_of_letters(many) ? "dead_letter" : "job");
	add_filters(query, many, "j");

	/* dormant jobs run on the publisher and must not use up max_jobs */
	if (!jobq_many_of_letters(many))
		appendStringInfoString(&query->text, " AND NOT j.dormant");
	if (many->action == MANY_RETRY && jobq_many_of_letters(many))
	{
		appendStringInfoString(&query->text, KEY_IS_FREE CAN_BEGIN);

		/*
		 * Of dead letters with the same unique key, choose the last.  With
		 * ids this condition is not needed: each key occurs once.
		 */
		if (ids == NULL)
		{
			appendStringInfoString(&query->text,
								   " AND (j.unique_key IS NULL OR NOT EXISTS (SELECT FROM jobq_internal.dead_letter g"
								   " WHERE g.unique_key = j.unique_key"
								   " AND g.unique_queue IS NOT DISTINCT FROM j.unique_queue"
								   " AND (g.kind = j.kind OR j.unique_queue IS NOT NULL)"
								   " AND g.role = j.role AND g.id > j.id");
			add_filters(query, many, "g");
			add_may(query, many, "g");
			appendStringInfoString(&query->text, "))");
		}
	}
	if (ids != NULL)
		add(query, "j", "~id = ANY ($)", INT8ARRAYOID, PointerGetDatum(ids));
	appendStringInfoString(&query->text, " ORDER BY j.id");
	if (ids != NULL && jobq_many_of_letters(many))
		appendStringInfoString(&query->text, " FOR UPDATE OF j");
}

/*
 * Return the privilege needed for the operation.  A condition on contents needs the privilege
 * to read contents, because otherwise a user could guess the contents.
 */
static int
privileges_for(const JobqMany * many)
{
	return many->action == MANY_DELETE || !many->nulls[FILTER_PAYLOAD] ||
		!many->nulls[FILTER_GROUP_KEY] || !many->nulls[FILTER_UNIQUE_KEY]
		? JOBQ_MAY_MANAGE : JOBQ_MAY_OPERATE;
}

/*
 * Append the condition that the current user has the necessary privilege for the dead letter.
 */
static void
add_may(ManyQuery * query, const JobqMany * many, const char *alias)
{
	int			needed = privileges_for(many);
	ArrayBuildState *queues = NULL;
	SPITupleTable *found;

	if ((jobq_privileges(0) & needed) != 0)
		return;
	(void) jobq_query("SELECT id FROM jobq_internal.queue", 0, NULL, NULL, NULL, SPI_OK_SELECT);
	found = SPI_tuptable;
	queues = initArrayResult(INT4OID, CurrentMemoryContext, false);
	for (uint64 i = 0; i < found->numvals; i++)
	{
		Datum		id = jobq_column(found->vals[i], found->tupdesc, 1, INT4OID, NULL);

		if ((jobq_privileges(DatumGetInt32(id)) & needed) != 0)
			queues = accumArrayResult(queues, id, false, INT4OID, CurrentMemoryContext);
	}
	SPI_freetuptable(found);
	add(query, alias,
		psprintf("(~queue_id = ANY ($) OR pg_catalog.pg_has_role(%u, ~role::oid, 'USAGE'))",
				 GetUserId()),
		INT4ARRAYOID, makeArrayResult(queues, CurrentMemoryContext));
}

/*
 * True if the current user may apply the operation to the job of this row.  *id gets the job's
 * id.
 */
static bool
may(const JobqMany * many, HeapTuple row, TupleDesc desc, int64 *id)
{
	Oid			role;
	int32		queue_id;

	*id = DatumGetInt64(jobq_column(row, desc, 1, INT8OID, NULL));
	role = DatumGetObjectId(jobq_column(row, desc, 2, OIDOID, NULL));
	queue_id = DatumGetInt32(jobq_column(row, desc, 3, INT4OID, NULL));
	return jobq_may(privileges_for(many), role, queue_id) &&
		(many->action != MANY_EDIT || jobq_may_edit(&many->edit, role, queue_id));
}

/*
 * Put the ids of all matching jobs into the tuplestore, and return their number.  The caller
 * must be connected to SPI.
 */
static int64
choose(const JobqMany * many, TupleDesc desc, Tuplestorestate *ids)
{
	int64		most = many->nulls[FILTER_MAX_JOBS] ? PG_INT64_MAX
		: DatumGetInt64(many->values[FILTER_MAX_JOBS]);
	int64		left = most;
	JobqOwnerState state;
	ManyQuery	query;
	Portal		portal;
	uint64		n;

	write_query(&query, many, NULL);
	jobq_become_owner(&state);
	portal = SPI_cursor_open_with_args(NULL, query.text.data, query.n,
									   query.types, query.values, NULL, false,
									   left < PG_INT64_MAX ? CURSOR_OPT_FAST_PLAN : 0);
	jobq_unbecome_owner(&state);
	do
	{
		CHECK_FOR_INTERRUPTS();
		jobq_become_owner(&state);
		SPI_cursor_fetch(portal, true, CHUNK);
		jobq_unbecome_owner(&state);
		n = SPI_processed;
		for (uint64 i = 0; i < n && left > 0; i++)
		{
			int64		id;
			Datum		value;
			bool		isnull = false;

			if (!may(many, SPI_tuptable->vals[i], SPI_tuptable->tupdesc, &id))
				continue;
			value = Int64GetDatum(id);
			tuplestore_putvalues(ids, desc, &value, &isnull);
			left--;
		}
		SPI_freetuptable(SPI_tuptable);
	} while (n > 0 && left > 0);
	SPI_cursor_close(portal);
	return most - left;
}

/*
 * Delete these dead letters, which the caller has locked.  Returns their number.  The caller
 * must be connected to SPI.
 */
static int64
delete_letters(ArrayType *array)
{
	static const Oid types[] = {INT8ARRAYOID};
	Datum		values[] = {PointerGetDatum(array)};
	int64		n;

	n = jobq_delete_and_count(DELETE_AND_COUNT("DELETE FROM jobq_internal.dead_letter WHERE id = ANY ($1)"
											   RETURNING_LETTERS),
							  1, types, values);
	SPI_freetuptable(SPI_tuptable);
	return n;
}

/*
 * Apply the operation to one job.  The job may be a dead letter only for an edit.  False if
 * the job is no longer in a suitable state.
 */
static bool
treat_job(const JobqMany * many, Relation rel, int64 id, JobqChosen * chosen)
{
	switch (many->action)
	{
		case MANY_CANCEL:
			/* a job that stands for a started workflow is "blocked", too */
			if (!many->nulls[FILTER_STATE] &&
				jobq_word_number("running, blocked",
								 TextDatumGetCString(many->values[FILTER_STATE])) < 0)
				return jobq_cancel_job(rel, id, false, chosen);
			return jobq_current_of(id) == NULL &&
				jobq_cancel_job(rel, id, true, chosen);
		case MANY_RETRY:
			return jobq_retry_waiting(rel, id, chosen);
		case MANY_EDIT:
			if (jobq_many_of_letters(many))
				return jobq_edit_letter(id, &many->edit, false);
			return jobq_edit_live(rel, id, &many->edit, chosen);
		case MANY_DELETE:
			break;
	}
	return false;
}

/*
 * Move the ids of jobs that still fulfil the conditions to the front, with the row versions,
 * and return the number of ids.  For live jobs the query uses the latest snapshot, as the
 * operations do.  Dead letters are locked, which fails with a serialization error if the
 * transaction's snapshot is too old.
 */
static int
ask_again(const JobqMany * many, Datum *ids, TransactionId *versions, int n)
{
	ArrayType  *array = construct_array(ids, n, INT8OID, 8, FLOAT8PASSBYVAL,
										TYPALIGN_DOUBLE);
	ManyQuery	query;
	uint64		found;

	write_query(&query, many, array);
	found = jobq_many_of_letters(many)
		? jobq_query(query.text.data, query.n, query.types, query.values, NULL,
					 SPI_OK_SELECT)
		: jobq_query_latest(query.text.data, query.n, query.types, query.values,
							SPI_OK_SELECT);
	n = 0;
	for (uint64 i = 0; i < found; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		int64		id;

		if (!may(many, row, SPI_tuptable->tupdesc, &id))
			continue;
		versions[n] = DatumGetTransactionId(jobq_column(row, SPI_tuptable->tupdesc,
														4, XIDOID, NULL));
		ids[n++] = Int64GetDatum(id);
	}
	SPI_freetuptable(SPI_tuptable);
	return n;
}

/*
 * Apply the operation to each of the n chosen jobs, if the conditions are still fulfilled.
 * Returns the number of processed jobs.
 */
static int64
treat_chunk(const JobqMany * many, Datum *chosen, int n)
{
	TransactionId *versions = palloc(sizeof(TransactionId) * n);
	int64		done = 0;
	MemoryContext context;
	MemoryContext old;
	Relation	rel;

	/* same lock order as enqueue() */
	if (many->action == MANY_RETRY || (many->action == MANY_EDIT && many->edit.writes))
		jobq_pin_queues();
	rel = jobq_open_jobs();
	n = ask_again(many, chosen, versions, n);
	if (n == 0)
		done = 0;
	else if (many->action == MANY_DELETE)
		done = delete_letters(construct_array(chosen, n, INT8OID, 8, FLOAT8PASSBYVAL,
											  TYPALIGN_DOUBLE));
	else if (many->action == MANY_RETRY && jobq_many_of_letters(many))
		done = jobq_letters_again(rel, chosen, n, 0, false);
	else
	{
		context = AllocSetContextCreate(CurrentMemoryContext, "jobq job of many",
										ALLOCSET_DEFAULT_SIZES);
		old = MemoryContextSwitchTo(context);
		for (int i = 0; i < n; i++)
		{
			JobqChosen	row;

			do
			{
				CHECK_FOR_INTERRUPTS();
				MemoryContextReset(context);
				row = (JobqChosen)
				{
					.version = versions[i]
				};
				if (treat_job(many, rel, DatumGetInt64(chosen[i]), &row))
					done++;
			} while (row.changed && ask_again(many, &chosen[i], &versions[i], 1) > 0);
		}
		MemoryContextSwitchTo(old);
	}
	table_close(rel, NoLock);
	return done;
}

/*
 * Process all chosen jobs, CHUNK at a time.  Returns the number of processed jobs.
 */
static int64
treat_chosen(const JobqMany * many, TupleDesc desc, Tuplestorestate *ids)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	Datum	   *chosen = palloc(sizeof(Datum) * CHUNK);
	int64		done = 0;
	bool		more = true;

	while (more)
	{
		MemoryContext context;
		MemoryContext old;
		int			n = 0;

		while (n < CHUNK &&
			   (more = tuplestore_gettupleslot(ids, true, false, slot)))
		{
			bool		isnull;

			chosen[n++] = slot_getattr(slot, 1, &isnull);
		}
		if (n == 0)
			break;
		context = AllocSetContextCreate(CurrentMemoryContext, "jobq many",
										ALLOCSET_DEFAULT_SIZES);
		old = MemoryContextSwitchTo(context);
		done += treat_chunk(many, chosen, n);
		MemoryContextSwitchTo(old);
		MemoryContextDelete(context);
	}
	ExecDropSingleTupleTableSlot(slot);
	return done;
}

/*
 * Apply the operation "many" to all jobs that fulfil the conditions and for which the current
 * user has the privileges.  Returns the number of processed jobs; for a dry run the number of
 * chosen jobs.  The jobs are chosen once, at the beginning.  May wait for concurrent transactions on the rows of the jobs.
 */
int64
jobq_many_run(const JobqMany * many)
{
	TupleDesc	desc = CreateTemplateTupleDesc(1);
	Tuplestorestate *ids;
	int64		done;

	TupleDescInitEntry(desc, 1, "id", INT8OID, -1, 0);
	TupleDescFinalize(desc);
	SPI_connect();
	ids = tuplestore_begin_heap(false, false, work_mem);
	done = choose(many, desc, ids);
	if (!many->dry_run)
		done = treat_chosen(many, desc, ids);
	tuplestore_end(ids);
	SPI_finish();
	return done;
}
