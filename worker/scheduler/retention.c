/*-------------------------------------------------------------------------
 *
 * retention.c
 *	  Makes the archive's partitions ahead of time, drops those whose time is
 *	  over, and deletes what else has grown old.
 *
 * All else of the scheduler waits for this, so it is done in small bites: some
 * blocks of a table in a transaction, as many as can be done in about BITE_TIME,
 * and then a pause of several times what that took.  A pass goes through all
 * tables, from their first block to the last.  Rows that somebody has locked are
 * left to the next pass, which comes soon if it is more than a few.
 *
 * A partition is dropped, or made, only if that needs little waiting: while we
 * wait, everybody else queues behind us.  Before it is dropped, the rows that
 * batches and workflows count on are deleted in bites, so that the rest is quick.
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

/* Partitions that are made ahead, today's included. */
#define DAYS_AHEAD		4

/* Rows that are moved into a new partition at most. */
#define MAX_MOVED		"10000"

/* How long a partition that is made or dropped waits for those who read. */
#define DDL_PATIENCE	"50ms"

/* Microseconds that a bite shall take, and by how much longer the pause is. */
#define BITE_TIME		5000
#define PAUSE_SHARE		4

/* Blocks of a bite, and batches that it deletes. */
#define FIRST_BLOCKS	16
#define MAX_BLOCKS		1024
#define MAX_BATCHES		5

/* From pass to pass; if something was locked; and if a day was not made. */
#define LONG_PAUSE		(INT64CONST(3600) * USECS_PER_SEC)
#define SHORT_PAUSE		(INT64CONST(60) * USECS_PER_SEC)
#define FIRST_PAUSE		(10 * USECS_PER_SEC)

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

/* A day that gets its partition. */
typedef struct Day
{
	TimestampTz start;
	bool		is_today;
} Day;

/* What a pass goes through, in this order. */
typedef struct Stage
{
	const char *table;			/* NULL: the partitions whose time is over */
	void		(*bite) (Bite *bite);
} Stage;

static TimestampTz load(TimestampTz now);
static TimestampTz run(TimestampTz now);
static bool try(void (*body) (void *arg), void *arg);
static void make_day(void *arg);
static TimestampTz make_days(TimestampTz now);
static bool find_old_day(TimestampTz before);
static void take_bite(void *arg);
static void drop_day(void *arg);
static void bite_day(Bite *bite);
static void bite_default(Bite *bite);
static void bite_letters(Bite *bite);
static void bite_batches(Bite *bite);
static void bite_keys(Bite *bite);
static void pass_on(TimestampTz now);

static const Stage stages[] = {
	{NULL, bite_day},
	{"archive_default", bite_default},
	{"failed_job", bite_letters},
	{"batch", bite_batches},
	{"unique_key", bite_keys},
};

#define NSTAGES		((int) lengthof(stages))

/* Where the pass is. */
static int	stage = 0;
static char old_day[NAMEDATALEN] = "";	/* a partition whose time is over */
static char kept_day[NAMEDATALEN] = ""; /* the last that could not be dropped */
static BlockNumber block = 0;
static BlockNumber nblocks = FIRST_BLOCKS;
static bool locked = false;		/* something was */
static bool day_locked = false; /* something of this day's was */
static TimestampTz pass_at = 0;

/* Which day is made next, counted from today. */
static int	ahead = 0;
static bool not_made = false;	/* one of them was not */
static int64 make_pause = FIRST_PAUSE;
static TimestampTz make_at = 0;

/*
 * Takes one bite, or makes a partition, which may move MAX_MOVED rows.
 */
Duty		retention_duty = {
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
	if (!jobq_start_paused)
		while (make_days(now) <= now)
			;
	return now;
}

static TimestampTz
run(TimestampTz now)
{
	instr_time	start;
	instr_time	took;

	/* the clock may have been put back */
	make_at = Min(make_at, now + LONG_PAUSE);
	pass_at = Min(pass_at, now + LONG_PAUSE);
	if (make_at <= now)
		make_at = make_days(now);
	else if (pass_at <= now)
	{
		INSTR_TIME_SET_CURRENT(start);
		pass_on(now);
		INSTR_TIME_SET_CURRENT(took);
		INSTR_TIME_SUBTRACT(took, start);
		if (INSTR_TIME_GET_MICROSEC(took) > 2 * BITE_TIME)
			nblocks = Max(nblocks / 2, 1);
		else if (INSTR_TIME_GET_MICROSEC(took) < BITE_TIME)
			nblocks = Min(nblocks * 2, MAX_BLOCKS);
		pass_at = Max(pass_at, jobq_now() + PAUSE_SHARE *
					  (int64) INSTR_TIME_GET_MICROSEC(took));
	}
	return Min(make_at, pass_at);
}

/*
 * Run the body in a transaction of its own.  False if it has failed, which is
 * logged unless something was locked.
 */
static bool
try(void (*body) (void *arg), void *arg)
{
	ErrorData  *edata = scheduler_try(body, arg);

	if (edata == NULL)
		return true;
	if (edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ereport(LOG,
				(errcode(edata->sqlerrcode),
				 errmsg("jobq could not look after its archive now: %s",
						edata->message)));
	FreeErrorData(edata);
	return false;
}

static void
day_name(TimestampTz day, char *name, size_t name_size, char *date,
		 size_t date_size)
{
	struct pg_tm tm;
	fsec_t		fsec;

	if (timestamp2tm(day, NULL, &tm, &fsec, NULL, NULL) != 0)
		elog(ERROR, "timestamp out of range");
	snprintf(name, name_size, "archive_%04d%02d%02d", tm.tm_year, tm.tm_mon,
			 tm.tm_mday);
	snprintf(date, date_size, "%04d-%02d-%02d 00:00:00+00", tm.tm_year,
			 tm.tm_mon, tm.tm_mday);
}

/*
 * Make the partition of a day, if it is not there.
 *
 * What was finished before goes along from the default partition; where that is
 * much, the day stays there.  A query that knows the old partitions only would not
 * find it, so then nobody may be between planning and reading: the archive itself
 * is locked.  Today more may come until we have the lock.
 */
static void
make_day(void *arg)
{
	const Day  *day = (const Day *) arg;
	char		name[NAMEDATALEN];
	char		unused[NAMEDATALEN];
	char		from[32];
	char		to[32];

	day_name(day->start, name, sizeof(name), from, sizeof(from));
	day_name(day->start + USECS_PER_DAY, unused, sizeof(unused), to, sizeof(to));
	if (jobq_relations_if_installed() == NULL ||
		OidIsValid(get_relname_relid(name, jobq_relations()->schema)))
		return;
	(void) set_config_option("lock_timeout", DDL_PATIENCE, PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	(void) SPI_execute(psprintf("DO $$ BEGIN"
								" IF (SELECT count(*) FROM (SELECT FROM jobq.archive_default"
								" WHERE finished_at >= '%s' AND finished_at < '%s' LIMIT " MAX_MOVED " + 1) f) <= " MAX_MOVED " THEN"
								" IF %s OR EXISTS (SELECT FROM jobq.archive_default"
								" WHERE finished_at >= '%s' AND finished_at < '%s') THEN"
								" LOCK TABLE ONLY jobq.archive IN ACCESS EXCLUSIVE MODE;"
								" END IF;"
								" LOCK TABLE jobq.archive_default IN ACCESS EXCLUSIVE MODE;"
								" CREATE TABLE jobq.%s (LIKE jobq.archive, PRIMARY KEY (id));"
								" CREATE INDEX %s_batch ON jobq.%s (batch_id, state) WHERE batch_id IS NOT NULL;"
								" WITH moved AS (DELETE FROM jobq.archive_default"
								" WHERE finished_at >= '%s' AND finished_at < '%s' RETURNING *)"
								" INSERT INTO jobq.%s SELECT * FROM moved;"
								" ALTER TABLE jobq.archive ATTACH PARTITION jobq.%s"
								" FOR VALUES FROM ('%s') TO ('%s');"
								" END IF; END $$",
								from, to, day->is_today ? "true" : "false", from,
								to, name, name, name, from, to, name, name, from,
								to), false, 0);
}

/*
 * Make the next of the partitions of today and of the next days.  Returns when to
 * come again.
 */
static TimestampTz
make_days(TimestampTz now)
{
	Day			day = {
		.start = now - now % USECS_PER_DAY + ahead * USECS_PER_DAY,
		.is_today = ahead == 0
	};

	not_made |= !try(make_day, &day);
	if (++ahead < DAYS_AHEAD)
		return now;
	ahead = 0;
	make_pause = not_made ? Min(2 * make_pause, LONG_PAUSE) : FIRST_PAUSE;
	if (!not_made)
		return now + LONG_PAUSE;
	not_made = false;
	return now + make_pause / 2;
}

/*
 * Find the next partition of a day before this time.
 */
static bool
find_old_day(TimestampTz before)
{
	static const Oid types[] = {TEXTOID, TEXTOID};
	char		name[NAMEDATALEN];
	char		unused[32];
	Datum		values[2];

	/* the names of the days are in order, as are the days */
	day_name(before, name, sizeof(name), unused, sizeof(unused));
	values[0] = CStringGetTextDatum(name);
	values[1] = CStringGetTextDatum(kept_day);
	if (jobq_query("SELECT c.relname FROM pg_catalog.pg_inherits i"
				   " JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid"
				   " WHERE i.inhparent = 'jobq.archive'::pg_catalog.regclass"
				   " AND c.relname ~ '^archive_[0-9]{8}$'"
				   " AND c.relname < $1 AND c.relname > $2"
				   " ORDER BY c.relname LIMIT 1",
				   2, types, values, NULL, SPI_OK_SELECT) == 0)
		return false;
	strlcpy(old_day, SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
								  1), NAMEDATALEN);
	return true;
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
		if (old_day[0] == '\0' &&
			!find_old_day(bite->now - jobq_archive_retention *
						  (60 * USECS_PER_SEC)))
			return;
		table = old_day;
	}
	relid = get_relname_relid(table, rels->schema);
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
 * $3.
 */
static void
delete_piece(SPIPlanPtr *plan, const char *query, Bite *bite, int minutes)
{
	static const Oid types[] = {TIMESTAMPTZOID, TIDOID, TIDOID};
	Datum		values[] = {
		TimestampTzGetDatum(bite->now - minutes * (60 * USECS_PER_SEC)),
		PointerGetDatum(&bite->from), PointerGetDatum(&bite->to)
	};

	jobq_query_kept(plan, query, 3, types, values, NULL, SPI_OK_SELECT);
	SPI_freetuptable(SPI_tuptable);
}

/* The rows of a piece that are to be deleted, and that nobody has locked. */
#define OLD_ROWS(table, condition) \
	"ctid = ANY (ARRAY(SELECT ctid FROM " table " WHERE ctid >= $2 AND ctid < $3" \
	" AND " condition " FOR UPDATE SKIP LOCKED))"

/*
 * Of a partition that will be dropped: the rows of jobs of batches.  None of them
 * may be skipped.
 */
static void
bite_day(Bite *bite)
{
	static const Oid types[] = {TIDOID, TIDOID};
	Datum		values[] = {
		PointerGetDatum(&bite->from), PointerGetDatum(&bite->to)
	};

	jobq_query(psprintf(DELETE_AND_COUNT("DELETE FROM jobq.%s WHERE ctid = ANY (ARRAY("
										 "SELECT ctid FROM jobq.%s WHERE ctid >= $1 AND ctid < $2"
										 " AND batch_id IS NOT NULL))" RETURNING_FINISHED),
						old_day, old_day),
			   2, types, values, NULL, SPI_OK_SELECT);
}

/*
 * Finished jobs that are in no day's partition.
 */
static void
bite_default(Bite *bite)
{
	static SPIPlanPtr plan = NULL;

	delete_piece(&plan, DELETE_AND_COUNT("DELETE FROM jobq.archive_default WHERE "
										 OLD_ROWS("jobq.archive_default",
												  "finished_at < $1") RETURNING_FINISHED),
				 bite, jobq_archive_retention);
}

/*
 * Dead letters.
 */
static void
bite_letters(Bite *bite)
{
	static SPIPlanPtr plan = NULL;

	delete_piece(&plan, DELETE_AND_COUNT("DELETE FROM jobq.failed_job WHERE "
										 OLD_ROWS("jobq.failed_job",
												  "finished_at < $1") RETURNING_LETTERS),
				 bite, jobq_failed_retention);
}

/*
 * Batches, with their steps; MAX_BATCHES, as they may have many.
 */
static void
bite_batches(Bite *bite)
{
	static const Oid types[] = {INT8ARRAYOID};
	static SPIPlanPtr find = NULL;
	static SPIPlanPtr delete_steps = NULL;
	static SPIPlanPtr delete = NULL;
	static const Oid find_types[] = {TIMESTAMPTZOID, TIDOID, TIDOID};
	Datum		values[] = {
		TimestampTzGetDatum(bite->now - jobq_failed_retention *
							(60 * USECS_PER_SEC)),
		PointerGetDatum(&bite->from), PointerGetDatum(&bite->to)
	};
	Datum		ids[MAX_BATCHES];
	Datum		array;
	int			n;

	n = (int) jobq_query_kept(&find, "SELECT id FROM jobq.batch WHERE ctid >= $2 AND ctid < $3"
							  " AND finished_at < $1 LIMIT " CppAsString2(MAX_BATCHES)
							  " FOR UPDATE SKIP LOCKED",
							  3, find_types, values, NULL, SPI_OK_SELECT);
	for (int i = 0; i < n; i++)
	{
		ids[i] = jobq_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, INT8OID, NULL);
	}
	bite->again = n == MAX_BATCHES;
	if (n == 0)
		return;
	array = PointerGetDatum(construct_array(ids, n, INT8OID, 8, FLOAT8PASSBYVAL,
											TYPALIGN_DOUBLE));
	jobq_query_kept(&delete_steps, "DELETE FROM jobq.step WHERE batch_id = ANY ($1)",
					1, types, &array, NULL, SPI_OK_DELETE);
	jobq_query_kept(&delete, "DELETE FROM jobq.batch WHERE id = ANY ($1)",
					1, types, &array, NULL, SPI_OK_DELETE);
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
 * Drop the partition; what batches and workflows need of it is kept by now.
 */
static void
drop_day(void *arg)
{
	(void) set_config_option("lock_timeout", DDL_PATIENCE, PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	(void) SPI_execute(psprintf("DROP TABLE jobq.%s", old_day), false, 0);
}

/*
 * Do the next piece of the pass, and say when to come again in pass_at.
 */
static void
pass_on(TimestampTz now)
{
	Bite		bite = {.now = now};

	if (!try(take_bite, &bite))
		locked = day_locked = true;
	if (bite.again)
		return;
	block += nblocks;
	if (!bite.end)
		return;

	block = 0;
	if (stages[stage].table == NULL && old_day[0] != '\0')
	{
		if (day_locked || !try(drop_day, NULL))
			locked = true;
		strlcpy(kept_day, old_day, NAMEDATALEN);
		old_day[0] = '\0';
		day_locked = false;
		return;
	}
	kept_day[0] = '\0';
	if (++stage < NSTAGES)
		return;
	stage = 0;
	pass_at = now + (locked ? SHORT_PAUSE : LONG_PAUSE);
	locked = false;
}
