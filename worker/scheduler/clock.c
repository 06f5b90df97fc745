/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  Corrects the rows with times that were computed from a clock that was ahead.
 *
 * When the clock is put back, a pass goes through the tables of jobs and of unique
 * keys, piece by piece.  Each row has the time from which run_at was computed: the time
 * of the job's last error, or else of the enqueue.  If that time lies ahead of now, run_at
 * becomes later than now by the delay from that time.  In a row that an earlier pass has
 * corrected, that time still lies ahead, and the delay cannot be seen.  There run_at is put
 * back as the clock was.  Of the two times the later one is right.
 *
 * A pass corrects each row once: a row version that is later than the beginning of the pass
 * is left alone, because the pass itself may have written it.  So is a row that is ahead by
 * less than a minute, because it may have been written since the pass has read the clock.
 * The pass is repeated as long as transactions go on that were open when it began, because
 * their rows can be seen only after their commit.  It is not repeated if the clock is put
 * back once more: the pass for the second step sees these rows.
 *
 * A run_at that the caller has given is left alone.  A delay differs from such a time
 * because its distance from the enqueue has whole milliseconds.
 *
 * Schedules.c corrects the ticks, scheduler.c what is in shared memory.
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
#include "portability/instr_time.h"
#include "storage/bufmgr.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "scheduler/duty.h"

/* Blocks of a piece; jobs that one transaction moves. */
#define MAX_BLOCKS		256
#define MAX_MOVED		100

/* The pause after a piece, as a multiple of its duration; the pause after a lock. */
#define PAUSE_SHARE		4
#define LOCKED_PAUSE	USECS_PER_SEC

/* The pause before the pass is repeated; it doubles each time. */
#define FIRST_OPEN_PAUSE	USECS_PER_SEC
#define LAST_OPEN_PAUSE		(600 * USECS_PER_SEC)

/* A piece of a table. */
typedef struct Piece
{
	TimestampTz now;
	ItemPointerData from;
	ItemPointerData to;
	bool		end;			/* the table has no more */
	int64		after;			/* the last job that was looked at */
	int64		moved;
} Piece;

/* A job, and when it is to run. */
typedef struct Move
{
	int64		id;
	TimestampTz run_at;
} Move;

static void correct_jobs(Piece *piece);
static void correct_keys(Piece *piece);
static void correct_piece(void *arg);
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

/* Where the pass is, and how many rows it has corrected. */
static int	table = 0;
static BlockNumber block = 0;
static int64 after = 0;			/* within a piece: the last job looked at */
static int64 corrected = 0;

/* The oldest transaction that was open when the pass, or its repetition, began. */
static TransactionId oldest_open;
static int64 open_pause = FIRST_OPEN_PAUSE;

/* Reads MAX_BLOCKS blocks, or moves MAX_MOVED jobs. */
Duty		clock_duty = {
	.what = "correct times of a clock that was ahead",
	.run = run,
	.next_due = next_due,
};

/*
 * The clock was put back by so many microseconds: begin a pass, after the one that is under
 * way.
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
	open_pause = FIRST_OPEN_PAUSE;
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
 * Run the query for a piece: $1 is the time, $2 and $3 are its ends, and $4 is when the pass
 * began.  The clock was put back by $5 microseconds, and $6 is the last job of the piece that
 * was looked at.
 */
static uint64
query_piece(const char *query, const Piece *piece, int expected)
{
	static const Oid types[] = {TIMESTAMPTZOID, TIDOID, TIDOID, XIDOID, INT8OID, INT8OID};
	Datum		values[] = {
		TimestampTzGetDatum(piece->now), PointerGetDatum(&piece->from),
		PointerGetDatum(&piece->to), TransactionIdGetDatum(my_db->ahead_until),
		Int64GetDatum(my_db->ahead_by), Int64GetDatum(piece->after)
	};

	return jobq_query(query, lengthof(types), types, values, NULL, expected);
}

/*
 * Jobs: retries, delays, and jobs that were due at once.  A job that runs, or on which
 * another session works, is left out.
 */
static void
correct_jobs(Piece *piece)
{
	Move		moves[MAX_MOVED];
	int			n;

	n = (int) query_piece("SELECT j.id, greatest($1, $1 + (j.run_at - c.at), j.run_at - $5 * interval '1 us') FROM jobq_internal.job j, LATERAL"
						  " (SELECT CASE WHEN j.errors IS NULL THEN j.enqueued_at"
						  "  ELSE (j.errors -> -1 ->> 'at')::timestamptz END AS at) c"
						  " WHERE j.ctid >= $2 AND j.ctid < $3 AND j.run_at > $1 AND j.run_at < 'infinity'"
						  " AND NOT j.dormant AND c.at > $1 + interval '1 min'"
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
 * The windows of unique keys.
 */
static void
correct_keys(Piece *piece)
{
	piece->moved = query_piece("UPDATE jobq_internal.unique_key u SET held_until ="
							   " greatest($1, $1 + (u.held_until - c.at), u.held_until - $5 * interval '1 us')"
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
 * Do the next piece of the pass.  A piece that meets a lock is repeated.
 */
static TimestampTz
run(TimestampTz now)
{
	Piece		piece = {.now = now,.end = true,.after = after};
	instr_time	start;
	instr_time	took;
	ErrorData  *edata;

	after = 0;
	INSTR_TIME_SET_CURRENT(start);
	edata = scheduler_try(correct_piece, &piece);
	INSTR_TIME_SET_CURRENT(took);
	INSTR_TIME_SUBTRACT(took, start);
	if (edata != NULL && edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
	{
		FreeErrorData(edata);
		return now + LOCKED_PAUSE;
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
		return now + PAUSE_SHARE * (int64) INSTR_TIME_GET_MICROSEC(took);
	table = 0;
	if (my_db->ahead_more == 0 && TransactionIdPrecedes(oldest_open, my_db->ahead_until))
	{
		TimestampTz next = now + open_pause;

		open_pause = Min(2 * open_pause, LAST_OPEN_PAUSE);
		return next;
	}
	if (corrected > 0)
		ereport(LOG,
				(errmsg("the times of " INT64_FORMAT " jobs and unique keys were corrected",
						corrected),
				 errdetail("They were computed from a clock that was ahead.")));
	corrected = 0;
	my_db->ahead_until = InvalidTransactionId;
	if (my_db->ahead_more == 0)
		return DT_NOEND;
	clock_begin(my_db->ahead_more);
	my_db->ahead_more = 0;
	return now;
}
