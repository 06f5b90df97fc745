/*-------------------------------------------------------------------------
 *
 * old_rows.c
 *	  Deletes the old rows of a piece of a table.
 *
 * retention.c chooses the pieces.  Each function deletes at most MAX_ROWS rows, or MAX_BATCHES
 * batches, and leaves rows locked by other sessions.
 *
 * The setting of a queue is read by a subquery for each row, which always uses the index of
 * queues.  With a join, the planner would choose.
 *
 * worker/scheduler/old_rows.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"

/* Rows, or batches, deleted by a bite. */
#define MAX_ROWS		500
#define MAX_BATCHES		5

/* Batches of a piece skipped after an error. */
#define MAX_PASSED		100

/*
 * Run a query that deletes rows which ended before $1.  The piece lies between $2 and
 * $3, and $4 is the current time.  "minutes" is the retention time.
 */
static void
delete_piece(SPIPlanPtr *plan, const char *query, Bite *bite, int minutes)
{
	static const Oid types[] = {TIMESTAMPTZOID, TIDOID, TIDOID, TIMESTAMPTZOID};
	Datum		values[] = {
		TimestampTzGetDatum(bite->now - minutes * (60 * USECS_PER_SEC)),
		PointerGetDatum(&bite->from), PointerGetDatum(&bite->to),
		TimestampTzGetDatum(bite->now)
	};

	jobq_query_kept(plan, query, 4, types, values, NULL, SPI_OK_SELECT);
	bite->again = DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
											1, INT8OID, NULL)) == MAX_ROWS;
	SPI_freetuptable(SPI_tuptable);
}

/* The setting of the queue of row t, or NULL. */
#define OF_QUEUE(setting) \
	"(SELECT q." setting " FROM jobq_internal.queue q WHERE q.id = t.queue_id)"

/*
 * Up to MAX_ROWS old rows of a piece, without rows locked by other sessions.  The
 * setting of the queue applies if it is shorter than the general setting.
 */
#define OLD_ROWS(table, setting) \
	"ctid = ANY (ARRAY(SELECT t.ctid FROM " table " t" \
	" WHERE t.ctid >= $2 AND t.ctid < $3 AND t.finished_at < greatest($1, $4 - " OF_QUEUE(setting) ")" \
	" LIMIT " CppAsString2(MAX_ROWS) " FOR UPDATE SKIP LOCKED))"

/*
 * Delete rows of the partition bite->day.  "which" is an SQL condition on table t; $3 in it
 * is bite->short_now.
 */
static void
delete_of_day(Bite *bite, const char *which)
{
	static const Oid types[] = {TIDOID, TIDOID, TIMESTAMPTZOID};
	static const Oid rows_type = TIDARRAYOID;
	Datum		values[] = {
		PointerGetDatum(&bite->from), PointerGetDatum(&bite->to),
		TimestampTzGetDatum(bite->short_now)
	};
	Datum		rows;
	bool		none;

	jobq_query(psprintf("SELECT pg_catalog.array_agg(ctid), pg_catalog.count(*) FROM"
						" (SELECT t.ctid FROM jobq_internal.%s t WHERE t.ctid >= $1 AND t.ctid < $2 AND %s"
						" LIMIT " CppAsString2(MAX_ROWS) ") r", bite->day, which),
			   3, types, values, NULL, SPI_OK_SELECT);
	rows = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, TIDARRAYOID, &none);
	if (none)
		return;

	/*
	 * another session may be deleting some of these rows, so rows may be left
	 * even if fewer are deleted
	 */
	bite->again = DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
											2, INT8OID, NULL)) == MAX_ROWS;
	jobq_query(psprintf(DELETE_AND_COUNT("DELETE FROM jobq_internal.%s WHERE ctid = ANY ($1)" RETURNING_FINISHED),
						bite->day),
			   1, &rows_type, &rows, NULL, SPI_OK_SELECT);
}

/*
 * In an expired partition, delete the rows of jobs of batches.  No row may be skipped.
 */
void
old_rows_of_batches(Bite *bite)
{
	delete_of_day(bite, "t.batch_id IS NOT NULL");
}

/*
 * In a partition still in use, delete the rows too old for their queue.
 */
void
old_rows_of_short(Bite *bite)
{
	delete_of_day(bite, "t.finished_at < $3 - " OF_QUEUE("archive_retention"));
}

/*
 * Delete old finished jobs outside the partitions of days.
 */
void
old_rows_default(Bite *bite)
{
	static SPIPlanPtr plan = NULL;

	delete_piece(&plan, DELETE_AND_COUNT("DELETE FROM jobq_internal.archive_default WHERE "
										 OLD_ROWS("jobq_internal.archive_default",
												  "archive_retention") RETURNING_FINISHED),
				 bite, jobq_archive_retention);
}

/*
 * Delete old dead letters.
 */
void
old_rows_letters(Bite *bite)
{
	static SPIPlanPtr plan = NULL;

	delete_piece(&plan, DELETE_AND_COUNT("DELETE FROM jobq_internal.dead_letter WHERE "
										 OLD_ROWS("jobq_internal.dead_letter",
												  "dead_retention") RETURNING_LETTERS),
				 bite, jobq_dead_retention);
}

/*
 * Delete a batch and its steps.  arg is the id.
 */
static void
delete_batch(void *arg)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr delete_steps = NULL;
	static SPIPlanPtr delete = NULL;

	jobq_query_kept(&delete_steps, "DELETE FROM jobq_internal.step WHERE batch_id = $1",
					1, types, arg, NULL, SPI_OK_DELETE);
	jobq_query_kept(&delete, "DELETE FROM jobq_internal.batch WHERE id = $1",
					1, types, arg, NULL, SPI_OK_DELETE);
}

/*
 * Delete old batches with their steps, up to MAX_BATCHES, fewer if they have many
 * steps.  A nested batch stays as long as its parent.  A batch is skipped if it cannot
 * be deleted, because a foreign key of another table refers to it or a row is locked.
 */
void
old_rows_batches(Bite *bite)
{
	static Datum passed[MAX_PASSED];	/* skipped batches of this piece */
	static int	npassed = 0;
	static SPIPlanPtr find = NULL;
	static const Oid find_types[] = {TIMESTAMPTZOID, TIDOID, TIDOID, INT8ARRAYOID};
	Datum		values[] = {
		TimestampTzGetDatum(bite->now - jobq_dead_retention *
							(60 * USECS_PER_SEC)),
		PointerGetDatum(&bite->from), PointerGetDatum(&bite->to), 0
	};
	Datum		ids[MAX_BATCHES];
	int			n;
	int			done = 0;

	if (!bite->repeated)
		npassed = 0;
	values[3] = jobq_int8_array(passed, npassed);
	share_begin();
	n = (int) jobq_query_kept(&find, "SELECT id FROM jobq_internal.batch b WHERE ctid >= $2 AND ctid < $3"
							  " AND finished_at < $1 AND id <> ALL ($4)"
							  " AND NOT EXISTS (SELECT FROM jobq_internal.batch p WHERE p.id = b.parent) LIMIT " CppAsString2(MAX_BATCHES)
							  " FOR UPDATE SKIP LOCKED",
							  4, find_types, values, NULL, SPI_OK_SELECT);
	for (int i = 0; i < n; i++)
	{
		ids[i] = jobq_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, INT8OID, NULL);
	}
	while (done < n && npassed < MAX_PASSED && (done == 0 || !share_over()))
	{
		Datum		id = ids[done++];
		ErrorData  *edata = scheduler_try_part(delete_batch, &id);

		if (edata == NULL)
			continue;
		if (npassed == 0)
			archive_tell(ARCHIVE_DELETE, edata);
		FreeErrorData(edata);
		bite->left = true;
		passed[npassed++] = id;
	}
	bite->again = (n == MAX_BATCHES || done < n) && npassed < MAX_PASSED;
}

/*
 * Delete unique keys without effect.
 */
void
old_rows_keys(Bite *bite)
{
	jobq_unique_prune(&bite->from, &bite->to, bite->now);
}

/*
 * Delete UUIDs of deleted jobs.
 */
void
old_rows_uuids(Bite *bite)
{
	jobq_uuid_prune(&bite->from, &bite->to);
}

/*
 * Delete old rows of the audit log, which are kept as long as dead letters.
 */
void
old_rows_audit(Bite *bite)
{
	static SPIPlanPtr plan = NULL;

	delete_piece(&plan, "WITH gone AS (DELETE FROM jobq_internal.audit WHERE ctid = ANY (ARRAY(SELECT a.ctid"
				 " FROM jobq_internal.audit a WHERE a.ctid >= $2 AND a.ctid < $3 AND a.at < $1"
				 " LIMIT " CppAsString2(MAX_ROWS) " FOR UPDATE SKIP LOCKED)) RETURNING id)"
				 " SELECT pg_catalog.count(*) FROM gone", bite, jobq_dead_retention);
}

/*
 * Delete steps of procedures of deleted jobs.
 */
void
old_rows_steps(Bite *bite)
{
	jobq_progress_prune(&bite->from, &bite->to);
}

/*
 * Delete signals to deleted jobs.
 */
void
old_rows_signals(Bite *bite)
{
	jobq_signals_prune(&bite->from, &bite->to);
}
