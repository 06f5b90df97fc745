/*-------------------------------------------------------------------------
 *
 * retention.c
 *	  Drops the archive's partitions whose time is over, and deletes what else has
 *	  grown old.  It also says when partitions are made (partitions.c).
 *
 * All else of the scheduler waits for this, so it is done in small bites: some
 * blocks of a table in a transaction, as many as can be done in about BITE_TIME,
 * and then a pause of several times what that took.  Each table begins with few, as what
 * the one before took says nothing of it; and however much of a piece is old, no
 * more than MAX_ROWS are deleted at a time.  A pass goes through all tables, from their
 * first block to the last.  Rows that somebody has locked are left to the next pass,
 * which comes soon if it is more than a few.
 *
 * A partition is dropped only if that needs little waiting: while we wait,
 * everybody else queues behind us.  Before it is dropped, the rows that batches and
 * workflows count on are deleted in bites, so that the rest is quick.
 *
 * Nothing is deleted while the clock is not trusted (src/memory/clock_watch.c).
 *
 * Queues can have finished jobs go earlier.  A day's partition is read for that once
 * for each such time, when all jobs of the day are so old; and all of them once more
 * after a start, and when a queue's time has changed.
 *
 * worker/scheduler/retention.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/bufmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "compose/compose.h"
#include "scheduler/duty.h"

/* Microseconds that a bite shall take, and by how much longer the pause is. */
#define BITE_TIME		5000
#define PAUSE_SHARE		4

/* Blocks of a bite, and rows that it deletes, or batches. */
#define FIRST_BLOCKS	4
#define MAX_BLOCKS		1024
#define MAX_ROWS		500
#define MAX_BATCHES		5

/* Batches of a bite's piece that are passed over, as they could not be deleted. */
#define MAX_PASSED		100

/* What the scheduler cannot do where a bite fails. */
#define DELETE_OLD		"delete what has grown old"

/* To the next pass, if something was locked; else it is ARCHIVE_PAUSE. */
#define SHORT_PAUSE		(INT64CONST(60) * USECS_PER_SEC)

/* No partitions are made so long after a restore has made the extension. */
#define RESTORE_TIME	(5 * USECS_PER_SEC)

/* A piece of a table, and what has become of it. */
typedef struct Bite
{
	TimestampTz now;
	ItemPointerData from;
	ItemPointerData to;
	bool		end;			/* that was the last of the table */
	bool		again;			/* there is more in this piece */
} Bite;

/* What a pass goes through, in this order. */
typedef struct Stage
{
	const char *table;			/* NULL: the days that find_day() finds */
	bool		(*find_day) (TimestampTz now);
	void		(*bite) (Bite *bite);
	void		(*end_day) (void *arg); /* or NULL */
} Stage;

static TimestampTz load(TimestampTz now);
static TimestampTz run(TimestampTz now);
static bool find_old_day(TimestampTz now);
static bool find_short_day(TimestampTz now);
static void take_bite(void *arg);
static void drop_day(void *arg);
static void bite_old_day(Bite *bite);
static void bite_short_day(Bite *bite);
static void bite_default(Bite *bite);
static void bite_letters(Bite *bite);
static void delete_batch(void *arg);
static void bite_batches(Bite *bite);
static void bite_keys(Bite *bite);
static void bite_uuids(Bite *bite);
static void size_bites(int64 took);
static void pass_on(TimestampTz now);

static const Stage stages[] = {
	{NULL, find_old_day, bite_old_day, drop_day},
	{NULL, find_short_day, bite_short_day, NULL},
	{"archive_default", NULL, bite_default, NULL},
	{"dead_letter", NULL, bite_letters, NULL},
	{"batch", NULL, bite_batches, NULL},
	{"job_uuid", NULL, bite_uuids, NULL},
	{"unique_key", NULL, bite_keys, NULL},
};

#define NSTAGES		((int) lengthof(stages))

/* Where the pass is. */
static int	stage = 0;
static char day[NAMEDATALEN] = "";	/* the partition that it is at */
static char last_day[NAMEDATALEN] = ""; /* the one before */
static BlockNumber block = 0;
static BlockNumber nblocks = FIRST_BLOCKS;
static bool locked = false;		/* something was */
static bool day_locked = false; /* something of this day's was */
static Datum passed[MAX_PASSED];	/* batches of this piece that are left */
static int	npassed = 0;
static TimestampTz pass_at = 0;
static TimestampTz make_at = 0; /* when partitions are made */
static TimestampTz ran_at = 0;	/* the last time of run() */

/*
 * What is too old for its queue has gone from the partitions as of "done", by these
 * times of the queues; until when the pass under way does it.
 */
static TimestampTz short_done = DT_NOBEGIN;
static TimestampTz short_now = 0;
static int64 short_times = 0;

/*
 * Takes one bite, or makes a partition, which may move MAX_MOVED rows.
 */
Duty		retention_duty = {
	.what = "look after the archive",
	.load = load,
	.run = run,
	.pausable = true,
};

/*
 * The day's partition is wanted before the first job is finished.  But if a
 * restore has created the extension just now, it brings partitions of its own.
 */
static TimestampTz
load(TimestampTz now)
{
	TimestampTz restored = jobq_shared->restored_at;

	if (restored != 0 && now < restored + RESTORE_TIME)
		return make_at = restored + RESTORE_TIME;
	if (!scheduler_paused())
		while (archive_make_days(now) <= now)
			;
	return now;
}

static TimestampTz
run(TimestampTz now)
{
	bool		distrusted = jobq_clock_ahead() > 0;
	instr_time	start;
	instr_time	took;

	/* times that an earlier clock gave are far off when it has been put back */
	if (now < ran_at)
	{
		make_at = pass_at = now;
		/* the day was chosen by the earlier clock, and may not be old */
		stage = 0;
		day[0] = last_day[0] = '\0';
		block = 0;
		nblocks = FIRST_BLOCKS;
		locked = day_locked = false;
		npassed = 0;
		short_now = Min(short_now, now);
		short_done = Min(short_done, now);
	}
	ran_at = now;
	if (make_at <= now)
		make_at = archive_make_days(now);
	else if (pass_at <= now && !distrusted)
	{
		INSTR_TIME_SET_CURRENT(start);
		pass_on(now);
		INSTR_TIME_SET_CURRENT(took);
		INSTR_TIME_SUBTRACT(took, start);
		pass_at = Max(pass_at, jobq_now() + PAUSE_SHARE *
					  (int64) INSTR_TIME_GET_MICROSEC(took));
	}
	return Min(make_at, distrusted ? now + SHORT_PAUSE : pass_at);
}

/* The partitions of days after $1, in order: their names are, as are the days. */
#define DAYS_AFTER \
	"SELECT c.relname FROM pg_catalog.pg_inherits i" \
	" JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid" \
	" WHERE i.inhparent = 'jobq_internal.archive'::pg_catalog.regclass" \
	" AND c.relname ~ '^archive_[0-9]{8}$' AND c.relname > $1"

/* When the last job of such a day has finished, at the latest. */
#define END_OF_DAY \
	"(pg_catalog.to_date(pg_catalog.substr(c.relname, 9), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC'"

static bool
found_day(uint64 n)
{
	if (n > 0)
		strlcpy(day, SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1),
				NAMEDATALEN);
	return n > 0;
}

/*
 * Find the next partition whose time is over.
 */
static bool
find_old_day(TimestampTz now)
{
	static const Oid types[] = {TEXTOID, TEXTOID};
	char		name[NAMEDATALEN];
	char		unused[32];
	Datum		values[2];

	archive_day_name(now - jobq_archive_retention * (60 * USECS_PER_SEC),
					 name, sizeof(name), unused, sizeof(unused));
	values[0] = CStringGetTextDatum(last_day);
	values[1] = CStringGetTextDatum(name);
	return found_day(jobq_query(DAYS_AFTER " AND c.relname < $2 ORDER BY 1 LIMIT 1",
								2, types, values, NULL, SPI_OK_SELECT));
}

/*
 * Find the next partition in which all jobs have become too old for one of the queues
 * since this was done last.
 */
static bool
find_short_day(TimestampTz now)
{
	static const Oid types[] = {TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	Datum		values[3];
	int64		times;

	if (last_day[0] == '\0')
	{
		short_now = now;
		jobq_query("SELECT coalesce(pg_catalog.hashtextextended(pg_catalog.string_agg("
				   "pg_catalog.concat(id, ' ', archive_retention), ',' ORDER BY id), 0), 0)"
				   " FROM jobq_internal.queue WHERE archive_retention IS NOT NULL",
				   0, NULL, NULL, NULL, SPI_OK_SELECT);
		times = DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
										  1, INT8OID, NULL));
		if (times != short_times)
			short_done = DT_NOBEGIN;
		short_times = times;
	}
	if (short_times == 0)
		return false;
	values[0] = CStringGetTextDatum(last_day);
	values[1] = TimestampTzGetDatum(short_now);
	values[2] = TimestampTzGetDatum(short_done);
	return found_day(jobq_query(DAYS_AFTER
								" AND EXISTS (SELECT FROM jobq_internal.queue q WHERE q.archive_retention IS NOT NULL"
								" AND " END_OF_DAY " + q.archive_retention <= $2"
								" AND " END_OF_DAY " + q.archive_retention > $3)"
								" ORDER BY 1 LIMIT 1",
								3, types, values, NULL, SPI_OK_SELECT));
}

/*
 * Delete what is old in the next piece of the stage's table.
 */
static void
take_bite(void *arg)
{
	Bite	   *bite = (Bite *) arg;
	const char *table = stages[stage].table;
	const JobqRelations *rels = jobq_relations_if_installed();
	Oid			relid;
	Relation	rel;
	BlockNumber end;

	bite->end = true;
	if (rels == NULL)
		return;
	if (table == NULL)
	{
		if (day[0] == '\0' && !stages[stage].find_day(bite->now))
			return;
		table = day;
	}
	relid = get_relname_relid(table, rels->internal_schema);
	if (!OidIsValid(relid))
		return;
	rel = table_open(relid, AccessShareLock);
	end = RelationGetNumberOfBlocks(rel);
	table_close(rel, NoLock);
	bite->end = end <= block || end - block <= nblocks;
	if (end <= block)
		return;
	ItemPointerSet(&bite->from, block, 0);
	if (bite->end)
		ItemPointerSet(&bite->to, InvalidBlockNumber, 0);
	else
		ItemPointerSet(&bite->to, block + nblocks, 0);
	stages[stage].bite(bite);
}

/*
 * Run a query that deletes what has ended before $1, in the piece between $2 and
 * $3; the time is $4.
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

/*
 * MAX_ROWS rows of a piece that are old, by this setting of their queue if that is
 * earlier, and that nobody has locked.
 */
#define OLD_ROWS(table, setting) \
	"ctid = ANY (ARRAY(SELECT t.ctid FROM " table " t LEFT JOIN jobq_internal.queue q ON q.id = t.queue_id" \
	" WHERE t.ctid >= $2 AND t.ctid < $3 AND t.finished_at < greatest($1, $4 - q." setting ")" \
	" LIMIT " CppAsString2(MAX_ROWS) " FOR UPDATE OF t SKIP LOCKED))"

/*
 * Delete rows of the day's partition: "which" says of the table t which ones, and may
 * mention the time short_now as $3.
 */
static void
delete_of_day(Bite *bite, const char *which)
{
	static const Oid types[] = {TIDOID, TIDOID, TIMESTAMPTZOID};
	static const Oid rows_type = TIDARRAYOID;
	Datum		values[] = {
		PointerGetDatum(&bite->from), PointerGetDatum(&bite->to),
		TimestampTzGetDatum(short_now)
	};
	Datum		rows;
	bool		none;

	jobq_query(psprintf("SELECT pg_catalog.array_agg(ctid), pg_catalog.count(*) FROM"
						" (SELECT t.ctid FROM jobq_internal.%s t WHERE t.ctid >= $1 AND t.ctid < $2 AND %s"
						" LIMIT " CppAsString2(MAX_ROWS) ") r", day, which),
			   3, types, values, NULL, SPI_OK_SELECT);
	rows = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, TIDARRAYOID, &none);
	if (none)
		return;

	/*
	 * somebody else may delete some of these just now: there may be more all
	 * the same
	 */
	bite->again = DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
											2, INT8OID, NULL)) == MAX_ROWS;
	jobq_query(psprintf(DELETE_AND_COUNT("DELETE FROM jobq_internal.%s WHERE ctid = ANY ($1)" RETURNING_FINISHED),
						day),
			   1, &rows_type, &rows, NULL, SPI_OK_SELECT);
}

/*
 * Of a partition that will be dropped: the rows of jobs of batches.  None of them
 * may be skipped.
 */
static void
bite_old_day(Bite *bite)
{
	delete_of_day(bite, "t.batch_id IS NOT NULL");
}

/*
 * Of a partition that stays: what is too old for its queue.
 */
static void
bite_short_day(Bite *bite)
{
	delete_of_day(bite, "EXISTS (SELECT FROM jobq_internal.queue q WHERE q.id = t.queue_id"
				  " AND t.finished_at < $3 - q.archive_retention)");
}

/*
 * Finished jobs that are in no day's partition.
 */
static void
bite_default(Bite *bite)
{
	static SPIPlanPtr plan = NULL;

	delete_piece(&plan, DELETE_AND_COUNT("DELETE FROM jobq_internal.archive_default WHERE "
										 OLD_ROWS("jobq_internal.archive_default",
												  "archive_retention") RETURNING_FINISHED),
				 bite, jobq_archive_retention);
}

/*
 * Dead letters.
 */
static void
bite_letters(Bite *bite)
{
	static SPIPlanPtr plan = NULL;

	delete_piece(&plan, DELETE_AND_COUNT("DELETE FROM jobq_internal.dead_letter WHERE "
										 OLD_ROWS("jobq_internal.dead_letter",
												  "dead_retention") RETURNING_LETTERS),
				 bite, jobq_dead_retention);
}

/*
 * A batch, of which the id is given, with its steps.
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
 * Batches, with their steps: MAX_BATCHES, or fewer, as they may have many.  One that is
 * part of another stays as long as that does.  One that cannot be deleted, because a
 * table of somebody else's refers to it or a row of it is locked, is passed over.
 */
static void
bite_batches(Bite *bite)
{
	static SPIPlanPtr find = NULL;
	static const Oid find_types[] = {TIMESTAMPTZOID, TIDOID, TIDOID, INT8ARRAYOID};
	Datum		values[] = {
		TimestampTzGetDatum(bite->now - jobq_dead_retention *
							(60 * USECS_PER_SEC)),
		PointerGetDatum(&bite->from), PointerGetDatum(&bite->to),
		PointerGetDatum(construct_array(passed, npassed, INT8OID, 8,
										FLOAT8PASSBYVAL, TYPALIGN_DOUBLE))
	};
	Datum		ids[MAX_BATCHES];
	int			n;
	int			done = 0;

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
			archive_tell(DELETE_OLD, edata);
		FreeErrorData(edata);
		locked = true;
		passed[npassed++] = id;
	}
	bite->again = (n == MAX_BATCHES || done < n) && npassed < MAX_PASSED;
}

/*
 * Unique keys that mean nothing any more.
 */
static void
bite_keys(Bite *bite)
{
	jobq_unique_prune(&bite->from, &bite->to);
}

/*
 * Uuids whose jobs are gone.
 */
static void
bite_uuids(Bite *bite)
{
	jobq_uuid_prune(&bite->from, &bite->to);
}

/*
 * Drop the partition; what batches and workflows need of it is kept by now.
 */
static void
drop_day(void *arg)
{
	(void) set_config_option("lock_timeout", ARCHIVE_PATIENCE, PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	(void) SPI_execute(psprintf("DROP TABLE jobq_internal.%s", day), false, 0);
}

/*
 * A bite of the table has taken so many microseconds: how large is the next?
 */
static void
size_bites(int64 took)
{
	if (took > 2 * BITE_TIME)
		nblocks = Max((int64) nblocks * BITE_TIME / took, 1);
	else if (took < BITE_TIME)
		nblocks = Min(nblocks * 2, MAX_BLOCKS);
}

/*
 * Do the next piece of the pass, and say when to come again in pass_at.
 */
static void
pass_on(TimestampTz now)
{
	Bite		bite = {.now = now};
	instr_time	start;
	instr_time	took;
	bool		done;

	INSTR_TIME_SET_CURRENT(start);
	done = archive_try(DELETE_OLD, take_bite, &bite);
	INSTR_TIME_SET_CURRENT(took);
	INSTR_TIME_SUBTRACT(took, start);
	if (!done)
		locked = day_locked = true;
	if (!done || !bite.again)
	{
		npassed = 0;
		block += nblocks;
	}
	size_bites((int64) INSTR_TIME_GET_MICROSEC(took));
	if (!bite.end || (done && bite.again))
		return;

	block = 0;
	nblocks = FIRST_BLOCKS;
	if (day[0] != '\0')
	{
		if (day_locked ||
			(stages[stage].end_day != NULL && !archive_try(DELETE_OLD, stages[stage].end_day, NULL)))
			locked = true;
		strlcpy(last_day, day, NAMEDATALEN);
		day[0] = '\0';
		day_locked = false;
		return;
	}
	last_day[0] = '\0';
	if (stages[stage].find_day == find_short_day && !locked)
		short_done = short_now;
	if (++stage < NSTAGES)
		return;
	stage = 0;
	if (!locked)
		trouble_over(DELETE_OLD);
	pass_at = now + (locked ? SHORT_PAUSE : ARCHIVE_PAUSE);
	locked = false;
}
