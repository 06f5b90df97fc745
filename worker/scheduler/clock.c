/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  Corrects stored times that were computed while the clock was ahead.
 *
 * When the clock is put back, a pass goes through the tables of jobs and of unique keys,
 * piece by piece.  Each row has a base time from which run_at was computed: the time of
 * the job's last error, or else the time of the enqueue.  If the base time is in the
 * future, the delay from the base time to run_at is applied again from now.  A row that
 * an earlier pass has corrected still has a base time in the future, but no longer shows
 * its delay.  There run_at is put back by the same interval as the clock.  The pass uses
 * the later result.  A row that no earlier pass can have corrected has only the first
 * result.
 *
 * A pass corrects each row once.  Row versions newer than the beginning of the pass are
 * skipped, because the pass may have written them.  Rows ahead by less than a minute are
 * skipped as well, because a row may have been written since the pass read the clock.
 * The pass is repeated while transactions are open that were open when it began, because
 * their rows become visible only at commit.  There is no repetition if the clock is put
 * back again: the pass for the second step sees these rows.
 *
 * A run_at given by the caller is left alone.  A computed delay is a whole number of
 * milliseconds after the enqueue, which tells the two apart.  The time of a suspended job is left
 * alone, too: the wait of its procedure has the same time limit (src/durable/wait.c).
 *
 * ticks.c corrects the ticks of schedules, and scheduler.c corrects shared memory.
 *
 * worker/scheduler/clock.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "storage/bufmgr.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "scheduler/duty.h"

/* Blocks of a piece; jobs moved by one transaction. */
#define MAX_BLOCKS		256
#define MAX_MOVED		100

/*
 * The pause after a piece, as a multiple of its duration; the pause after a lock
 * timeout, in microseconds.
 */
#define PAUSE_SHARE		4
#define AFTER_LOCK		USECS_PER_SEC

/* A piece of a table. */
typedef struct Piece
{
	TimestampTz now;
	ItemPointerData from;
	ItemPointerData to;
	bool		end;			/* the piece reaches the end of the table */
	int64		after;			/* the last job already examined */
	int64		moved;
} Piece;

/* A job and its new run_at. */
typedef struct Move
{
	int64		id;
	TimestampTz run_at;
} Move;

static void correct_jobs(Piece *piece);
static void correct_keys(Piece *piece);
static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);

static const struct
{
	const char *table;
	void		(*correct) (Piece *piece);
}			tables[] =

{
	{"job", correct_jobs},
	{"unique_key", correct_keys},
};

/* The position of the pass, and the number of corrected rows. */
static int	table = 0;
static BlockNumber block = 0;
static int64 after = 0;			/* within a piece: the last job examined */
static int64 corrected = 0;

/* The oldest transaction open when the pass, or its repetition, began. */
static TransactionId oldest_open;
static int	repetitions = 0;

/* A run reads MAX_BLOCKS blocks, or moves MAX_MOVED jobs. */
Duty		clock_duty = {
	.what = "correct times of a clock that was ahead",
	.run = run,
	.next_due = next_due,
};

/*
 * Begin a pass after the clock was put back by "by" microseconds.  If a pass is under
 * way, the new pass begins after its end.
 */
void
clock_begin(int64 by)
{
	if (TransactionIdIsValid(my_db->ahead_until))
	{
		my_db->ahead_more += by;
		return;
	}
	my_db->ahead_by = by;
	my_db->ahead_until = ReadNextTransactionId();
	repetitions = 0;
	table = 0;
	block = 0;
	after = 0;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	return TransactionIdIsValid(my_db->ahead_until) ? plan : DT_NOEND;
}

static void
move_job(void *arg)
{
	static const Oid types[] = {INT8OID, TIMESTAMPTZOID};
	const Move *move = (const Move *) arg;
	Datum		values[] = {Int64GetDatum(move->id), TimestampTzGetDatum(move->run_at)};

	jobq_query("SELECT jobq.edit($1, run_at => $2)", 2, types, values, NULL, SPI_OK_SELECT);
}

/*
 * Run the query for a piece.  Parameters: $1 is the time now.  $2 and $3 are the bounds
 * of the piece (ctid).  $4 is the transaction ID at the beginning of the pass.  $5 is
 * the step of the clock in microseconds.  $6 is the last job of the piece already
 * examined.  $7 is the first transaction ID of row versions that the previous pass may
 * have corrected.  Returns the number of rows.
 */
static uint64
query_piece(const char *query, const Piece *piece, int expected)
{
	static const Oid types[] = {TIMESTAMPTZOID, TIDOID, TIDOID, XIDOID, INT8OID, INT8OID, XIDOID};
	Datum		values[] = {
		TimestampTzGetDatum(piece->now), PointerGetDatum(&piece->from),
		PointerGetDatum(&piece->to), TransactionIdGetDatum(my_db->ahead_until),
		Int64GetDatum(my_db->ahead_by), Int64GetDatum(piece->after),
		TransactionIdGetDatum(my_db->ahead_since)
	};

	return jobq_query(query, lengthof(types), types, values, NULL, expected);
}

/*
 * Correct jobs: retries, delays, and jobs due at once.  Running jobs, and jobs locked
 * by another session, are left out.
 */
static void
correct_jobs(Piece *piece)
{
	Move		moves[MAX_MOVED];
	int			n;

	n = (int) query_piece("SELECT j.id, greatest($1, $1 + (j.run_at - c.at),"
						  " CASE WHEN age(j.xmin) <= age($7) THEN j.run_at - $5 * interval '1 us' END) FROM jobq_internal.job j, LATERAL"
						  " (SELECT CASE WHEN j.errors IS NULL THEN j.enqueued_at"
						  "  ELSE (j.errors -> -1 ->> 'at')::timestamptz END AS at) c"
						  " WHERE j.ctid >= $2 AND j.ctid < $3 AND j.run_at > $1 AND j.run_at < 'infinity'"
						  " AND NOT j.dormant AND j.waits_for IS NULL AND c.at > $1 + interval '1 min'"
						  " AND (j.errors IS NOT NULL OR j.headers ? 'schedule' OR j.run_at = j.enqueued_at"
						  "  OR (j.run_at > j.enqueued_at"
						  "   AND extract(microseconds FROM j.run_at - j.enqueued_at) % 1000 = 0))"
						  " AND age(j.xmin) > age($4) AND j.id > $6"
						  " ORDER BY j.id LIMIT " CppAsString2(MAX_MOVED), piece, SPI_OK_SELECT);
	for (int i = 0; i < n; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;

		moves[i].id = DatumGetInt64(jobq_column(row, desc, 1, INT8OID, NULL));
		moves[i].run_at = DatumGetTimestampTz(jobq_column(row, desc, 2, TIMESTAMPTZOID, NULL));
	}
	for (int i = 0; i < n; i++)
	{
		ErrorData  *edata = scheduler_try_part(move_job, &moves[i]);

		if (edata == NULL)
			piece->moved++;
		else
			FreeErrorData(edata);
	}
	after = n == MAX_MOVED ? moves[n - 1].id : 0;
}

/*
 * Correct the time windows of unique keys.
 */
static void
correct_keys(Piece *piece)
{
	piece->moved = query_piece("UPDATE jobq_internal.unique_key u SET held_until ="
							   " greatest($1, $1 + (u.held_until - c.at),"
							   " CASE WHEN age(u.xmin) <= age($7) THEN u.held_until - $5 * interval '1 us' END)"
							   " FROM (SELECT k.ctid AS row, coalesce("
							   "  (SELECT enqueued_at FROM jobq_internal.job WHERE id = k.job_id),"
							   "  (SELECT enqueued_at FROM jobq_internal.archive WHERE id = k.job_id LIMIT 1),"
							   "  (SELECT enqueued_at FROM jobq_internal.dead_letter WHERE id = k.job_id)) AS at"
							   "  FROM jobq_internal.unique_key k WHERE k.ctid >= $2 AND k.ctid < $3 AND k.held_until > $1"
							   "   AND age(k.xmin) > age($4)) c"
							   " WHERE u.ctid = c.row AND u.held_until > $1 AND c.at > $1 + interval '1 min'",
							   piece, SPI_OK_UPDATE);
}

/*
 * Correct the rows of the next piece of the table.
 */
static void
correct_piece(void *arg)
{
	Piece	   *piece = (Piece *) arg;
	const JobqRelations *rels = jobq_relations_if_installed();
	Relation	rel;
	BlockNumber end;

	if (rels == NULL)
	{
		oldest_open = my_db->ahead_until;
		return;
	}
	/* the clock may have been put forward since the round began */
	piece->now = Max(piece->now, jobq_now());
	if (table == 0 && block == 0 && piece->after == 0)
		oldest_open = GetActiveSnapshot()->xmin;
	rel = table_open(get_relname_relid(tables[table].table, rels->internal_schema), AccessShareLock);
	end = RelationGetNumberOfBlocks(rel);
	table_close(rel, NoLock);
	if (end <= block)
		return;
	piece->end = end - block <= MAX_BLOCKS;
	ItemPointerSet(&piece->from, block, 0);
	ItemPointerSet(&piece->to, piece->end ? InvalidBlockNumber : block + MAX_BLOCKS, 0);
	tables[table].correct(piece);
}

/*
 * Do the next piece of the pass.  A piece is repeated after a lock timeout.  After any
 * other error the piece is skipped, with a log message.
 */
static TimestampTz
run(TimestampTz now)
{
	Piece		piece = {.now = now,.end = true,.after = after};
	instr_time	start;
	ErrorData  *edata;
	TransactionId since;

	after = 0;
	INSTR_TIME_SET_CURRENT(start);
	edata = scheduler_try(correct_piece, &piece);
	if (edata != NULL && edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
	{
		FreeErrorData(edata);
		return now + AFTER_LOCK;
	}
	if (edata != NULL)
	{
		ereport(LOG,
				(errcode(edata->sqlerrcode),
				 errmsg("times of a clock that was ahead are not corrected in a part of table \"jobq_internal.%s\": %s",
						tables[table].table, edata->message)));
		FreeErrorData(edata);
	}
	else
		corrected += piece.moved;
	if (edata != NULL || after == 0)
	{
		block = piece.end ? 0 : block + MAX_BLOCKS;
		table += piece.end;
	}
	if (table < (int) lengthof(tables))
		return now + PAUSE_SHARE * jobq_elapsed(start);
	table = 0;
	if (my_db->ahead_more == 0 && TransactionIdPrecedes(oldest_open, my_db->ahead_until))
		return now + jobq_pause_length(PAUSE_OPEN_TRANSACTIONS, ++repetitions);
	if (corrected > 0)
		ereport(LOG,
				(errmsg("the times of " INT64_FORMAT " jobs and unique keys were corrected",
						corrected),
				 errdetail("They were computed from a clock that was ahead.")));
	corrected = 0;
	since = TransactionIdIsValid(my_db->ahead_since) ? my_db->ahead_since : my_db->ahead_until;
	my_db->ahead_until = InvalidTransactionId;
	my_db->ahead_since = InvalidTransactionId;
	if (my_db->ahead_more == 0)
		return DT_NOEND;
	clock_begin(my_db->ahead_more);
	my_db->ahead_more = 0;
	my_db->ahead_since = since;
	return now;
}
