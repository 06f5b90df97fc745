/*-------------------------------------------------------------------------
 *
 * retention.c
 *	  Drops expired partitions of the archive, and deletes other old rows.  Also
 *	  decides when new partitions are made (partitions.c).
 *
 * The scheduler does nothing else meanwhile, so the work is split into bites.  A bite is
 * a transaction that processes some blocks of a table in about BITE_TIME (old_rows.c).  The pause
 * after a bite is a multiple of the bite's duration.  Each table begins with few blocks,
 * because the speed of the previous table says nothing about the next.  A bite
 * deletes a limited number of rows.  A pass goes through all tables, from the first block to the
 * last.  Locked rows are left to the next pass, which comes sooner after a failed bite.
 *
 * A partition is dropped only if the lock is granted quickly, because other sessions
 * queue behind the lock request.  Before the drop, the rows needed for the counts of
 * batches and workflows are deleted in bites, which makes the drop fast.
 *
 * Nothing is deleted while the clock is not trusted (src/memory/clock_watch.c).
 *
 * A queue can have a shorter retention time for finished jobs.  For each such time, a
 * day's partition is read once, when all jobs of the day are old enough.  All partitions
 * are read again after a start, and after a queue's retention time has changed.
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
#include "storage/bufmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "compose/compose.h"
#include "scheduler/duty.h"

/* The target duration of a bite in microseconds; the pause, as a multiple of the bite. */
#define BITE_TIME		5000
#define PAUSE_SHARE		4

/* Blocks of a bite. */
#define FIRST_BLOCKS	4
#define MAX_BLOCKS		1024

/*
 * The pause before the next pass if a bite has failed.  Otherwise passes begin ARCHIVE_PAUSE
 * apart.  Either way, the pause is at least as long as the pass, up to ARCHIVE_PAUSE.
 */
#define SHORT_PAUSE		(INT64CONST(60) * USECS_PER_SEC)

/* No partitions are made for this time after a restore has created the extension. */
#define RESTORE_TIME	(5 * USECS_PER_SEC)

/* A restore, which commits each table separately, has ended after this time. */
#define LONGEST_RESTORE	USECS_PER_DAY

/* A stage of a pass, in order. */
typedef struct Stage
{
	const char *table;			/* NULL: the partitions from find_day() */
	bool		(*find_day) (TimestampTz now);
	void		(*bite) (Bite *bite);
	void		(*end_day) (void *arg); /* or NULL */
	bool		of_jobs;		/* deletes rows of jobs that are in no table */
} Stage;

static TimestampTz load(TimestampTz now);
static TimestampTz run(TimestampTz now);
static bool find_old_day(TimestampTz now);
static bool find_short_day(TimestampTz now);
static void drop_day(void *arg);
static void pass_on(TimestampTz now);

static const Stage stages[] = {
	{NULL, find_old_day, old_rows_of_batches, drop_day, false},
	{NULL, find_short_day, old_rows_of_short, NULL, false},
	{"archive_default", NULL, old_rows_default, NULL, false},
	{"dead_letter", NULL, old_rows_letters, NULL, false},
	{"batch", NULL, old_rows_batches, NULL, false},
	{"job_uuid", NULL, old_rows_uuids, NULL, true},
	{"audit", NULL, old_rows_audit, NULL, false},
	{"unique_key", NULL, old_rows_keys, NULL, true},
	{"procedure_step", NULL, old_rows_steps, NULL, true},
	{"signal", NULL, old_rows_signals, NULL, true},
};

#define NSTAGES		((int) lengthof(stages))

/* The position of the pass. */
static int	stage = 0;
static char day[NAMEDATALEN] = "";	/* the current partition */
static char last_day[NAMEDATALEN] = ""; /* the previous one */
static BlockNumber block = 0;
static BlockNumber nblocks = FIRST_BLOCKS;
static bool locked = false;		/* a bite of this pass failed */
static bool day_locked = false; /* a bite of this day failed */
static bool repeated = false;	/* the last bite left rows of its piece */
static TimestampTz began_at = 0;	/* the beginning of the pass */
static instr_time began;		/* the same, on a clock that never steps */
static TimestampTz pass_at = 0; /* time of its next piece, or of the next pass */
static TimestampTz make_at = 0; /* time to make partitions */
static TimestampTz ran_at = 0;	/* the last run() */

/*
 * Jobs too old for their queue have been deleted as of short_done.  short_times is a
 * hash of the queues' retention times at that point.  short_now is the reference time
 * of the current pass.
 */
static TimestampTz short_done = DT_NOBEGIN;
static TimestampTz short_now = 0;
static int64 short_times = 0;

/*
 * A run takes one bite, or makes a partition, which may move MAX_MOVED rows.
 */
Duty		retention_duty = {
	.what = "look after the archive",
	.load = load,
	.run = run,
	.pausable = true,
};

/*
 * Make the partition of the day before the first job finishes.  If a restore has just
 * created the extension, wait, because the restore brings its own partitions.
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
	/* the clock may have been put back since the round began */
	bool		distrusted = jobq_clock_ahead() > 0 || jobq_now() < now;
	instr_time	start;

	/* times from an earlier clock are too far in the future */
	if (now < ran_at)
	{
		make_at = pass_at = now;
		/* the earlier clock chose the day, which may not be old */
		stage = 0;
		day[0] = last_day[0] = '\0';
		block = 0;
		nblocks = FIRST_BLOCKS;
		locked = day_locked = false;
		repeated = false;
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
		pass_at = Max(pass_at, jobq_now() + PAUSE_SHARE * jobq_elapsed(start));
	}
	return Min(make_at, distrusted ? now + SHORT_PAUSE : pass_at);
}

/* The partitions of days after $1, in order.  The names sort like the days. */
#define DAYS_AFTER \
	"SELECT c.relname FROM pg_catalog.pg_inherits i" \
	" JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid" \
	" WHERE i.inhparent = 'jobq_internal.archive'::pg_catalog.regclass" \
	" AND c.relname ~ '^archive_[0-9]{8}$' AND c.relname > $1"

/* The latest end of a job in the partition. */
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
 * Find the next expired partition.  Returns false if there is none.
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
 * Find the next partition in which all jobs have become too old for some queue since
 * the last pass.  Returns false if there is none.
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
 * Return whether jobs may still come to which rows of the table belong: a restore may be under
 * way, the jobs are kept aside because their roles do not exist, or logical replication brings
 * the rows of the table.  The caller is connected to SPI.
 */
static bool
jobs_may_come(TimestampTz now, Oid table)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {OIDOID};
	Datum		values[] = {ObjectIdGetDatum(table)};
	TimestampTz restored = jobq_shared->restored_at;

	return (restored != 0 && now < restored + LONGEST_RESTORE) ||
		jobq_query_kept(&plan, "SELECT FROM pg_catalog.pg_subscription_rel WHERE srrelid = $1"
						" UNION ALL (SELECT FROM jobq_internal.held_row LIMIT 1)",
						1, types, values, NULL, SPI_OK_SELECT) > 0;
}

/*
 * Delete old rows in the next piece of the stage's table.  arg is a Bite.
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
	if (stages[stage].of_jobs && jobs_may_come(bite->now, relid))
	{
		bite->end = true;
		return;
	}
	ItemPointerSet(&bite->from, block, 0);
	if (bite->end)
		ItemPointerSet(&bite->to, InvalidBlockNumber, 0);
	else
		ItemPointerSet(&bite->to, block + nblocks, 0);
	jobq_injection_point("jobq-retention-piece");
	bite->short_now = short_now;
	stages[stage].bite(bite);
}

/*
 * Drop the partition.  The counts needed by batches and workflows have been saved by
 * then.  Waits at most ARCHIVE_LOCK_TIMEOUT for the lock.
 */
static void
drop_day(void *arg)
{
	(void) set_config_option("lock_timeout", ARCHIVE_LOCK_TIMEOUT, PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	(void) SPI_execute(psprintf("DROP TABLE jobq_internal.%s", day), false, 0);
}

/*
 * Adjust the number of blocks of the next bite.  "took" is the duration of the last
 * bite in microseconds.
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
 * Do the next piece of the pass.  Sets pass_at at the end of the pass.
 */
static void
pass_on(TimestampTz now)
{
	Bite		bite = {.now = now,.day = day,.repeated = repeated};
	instr_time	start;
	int64		took;
	bool		done;

	if (stage == 0 && block == 0 && day[0] == '\0' && last_day[0] == '\0')
	{
		began_at = now;
		INSTR_TIME_SET_CURRENT(began);
	}
	INSTR_TIME_SET_CURRENT(start);
	done = archive_try(ARCHIVE_DELETE, take_bite, &bite);
	took = jobq_elapsed(start);
	if (!done)
		locked = day_locked = true;
	locked |= bite.left;
	repeated = done && bite.again;
	if (!repeated)
		block += nblocks;
	size_bites(took);
	if (!bite.end || repeated)
		return;

	block = 0;
	nblocks = FIRST_BLOCKS;
	if (day[0] != '\0')
	{
		if (day_locked ||
			(stages[stage].end_day != NULL && !archive_try(ARCHIVE_DELETE, stages[stage].end_day, NULL)))
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
		trouble_over(ARCHIVE_DELETE);

	/*
	 * from its beginning: rows may have become old since then, in parts that
	 * are done; but a long pass is followed by a rest
	 */
	took = Min(jobq_elapsed(began), ARCHIVE_PAUSE);
	pass_at = Max(locked ? now + SHORT_PAUSE : began_at + ARCHIVE_PAUSE, jobq_now() + took);
	locked = false;
}
