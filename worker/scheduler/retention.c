/*-------------------------------------------------------------------------
 *
 * retention.c
 *	  Drops expired partitions of the archive, and deletes other old rows.  Also
 *	  decides when new partitions are made (partitions.c).
 *
 * The scheduler does nothing else meanwhile, so the work is split into bites.  A bite is
 * a transaction that processes some blocks of a table in about BITE_TIME.  The pause
 * after a bite is a multiple of the bite's duration.  Each table begins with few blocks,
 * because the speed of the previous table says nothing about the next.  A bite deletes
 * at most MAX_ROWS rows.  A pass goes through all tables, from the first block to the
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

/* Blocks of a bite; rows, or batches, deleted by a bite. */
#define FIRST_BLOCKS	4
#define MAX_BLOCKS		1024
#define MAX_ROWS		500
#define MAX_BATCHES		5

/* Batches of a piece skipped after an error. */
#define MAX_PASSED		100

/* Completes "the scheduler cannot ..." when a bite fails. */
#define DELETE_OLD		"delete what has grown old"

/*
 * The pause before the next pass if a bite has failed.  Otherwise passes begin ARCHIVE_PAUSE
 * apart.
 */
#define SHORT_PAUSE		(INT64CONST(60) * USECS_PER_SEC)

/* No partitions are made for this time after a restore has created the extension. */
#define RESTORE_TIME	(5 * USECS_PER_SEC)

/* A restore, which commits each table separately, has ended after this time. */
#define LONGEST_RESTORE	USECS_PER_DAY

/* A piece of a table, and the outcome of its bite. */
typedef struct Bite
{
	TimestampTz now;
	ItemPointerData from;
	ItemPointerData to;
	bool		end;			/* the piece ends the table */
	bool		again;			/* more rows in this piece */
} Bite;

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
static bool jobs_may_come(TimestampTz now, Oid table);
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
static void bite_steps(Bite *bite);
static void bite_signals(Bite *bite);
static void bite_audit(Bite *bite);
static void size_bites(int64 took);
static void pass_on(TimestampTz now);

static const Stage stages[] = {
	{NULL, find_old_day, bite_old_day, drop_day, false},
	{NULL, find_short_day, bite_short_day, NULL, false},
	{"archive_default", NULL, bite_default, NULL, false},
	{"dead_letter", NULL, bite_letters, NULL, false},
	{"batch", NULL, bite_batches, NULL, false},
	{"job_uuid", NULL, bite_uuids, NULL, true},
	{"audit", NULL, bite_audit, NULL, false},
	{"unique_key", NULL, bite_keys, NULL, true},
	{"procedure_step", NULL, bite_steps, NULL, true},
	{"signal", NULL, bite_signals, NULL, true},
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
static Datum passed[MAX_PASSED];	/* skipped batches of this piece */
static int	npassed = 0;
static TimestampTz began_at = 0;	/* the beginning of the pass */
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
	stages[stage].bite(bite);
}

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

/*
 * Up to MAX_ROWS old rows of a piece, without rows locked by other sessions.  The
 * setting of the queue applies if it is shorter than the general setting.
 */
#define OLD_ROWS(table, setting) \
	"ctid = ANY (ARRAY(SELECT t.ctid FROM " table " t LEFT JOIN jobq_internal.queue q ON q.id = t.queue_id" \
	" WHERE t.ctid >= $2 AND t.ctid < $3 AND t.finished_at < greatest($1, $4 - q." setting ")" \
	" LIMIT " CppAsString2(MAX_ROWS) " FOR UPDATE OF t SKIP LOCKED))"

/*
 * Delete rows of the day's partition.  "which" is an SQL condition on table t; $3 in it
 * is short_now.
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
	 * another session may be deleting some of these rows, so rows may be left
	 * even if fewer are deleted
	 */
	bite->again = DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
											2, INT8OID, NULL)) == MAX_ROWS;
	jobq_query(psprintf(DELETE_AND_COUNT("DELETE FROM jobq_internal.%s WHERE ctid = ANY ($1)" RETURNING_FINISHED),
						day),
			   1, &rows_type, &rows, NULL, SPI_OK_SELECT);
}

/*
 * In an expired partition, delete the rows of jobs of batches.  No row may be skipped.
 */
static void
bite_old_day(Bite *bite)
{
	delete_of_day(bite, "t.batch_id IS NOT NULL");
}

/*
 * In a partition still in use, delete the rows too old for their queue.
 */
static void
bite_short_day(Bite *bite)
{
	delete_of_day(bite, "EXISTS (SELECT FROM jobq_internal.queue q WHERE q.id = t.queue_id"
				  " AND t.finished_at < $3 - q.archive_retention)");
}

/*
 * Delete old finished jobs outside the partitions of days.
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
 * Delete old dead letters.
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
 * Delete unique keys without effect.
 */
static void
bite_keys(Bite *bite)
{
	jobq_unique_prune(&bite->from, &bite->to);
}

/*
 * Delete UUIDs of deleted jobs.
 */
static void
bite_uuids(Bite *bite)
{
	jobq_uuid_prune(&bite->from, &bite->to);
}

/*
 * Delete old rows of the audit log, which are kept as long as dead letters.
 */
static void
bite_audit(Bite *bite)
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
static void
bite_steps(Bite *bite)
{
	jobq_progress_prune(&bite->from, &bite->to);
}

/*
 * Delete signals to deleted jobs.
 */
static void
bite_signals(Bite *bite)
{
	jobq_signals_prune(&bite->from, &bite->to);
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
	Bite		bite = {.now = now};
	instr_time	start;
	int64		took;
	bool		done;

	if (stage == 0 && block == 0 && day[0] == '\0' && last_day[0] == '\0')
		began_at = now;
	INSTR_TIME_SET_CURRENT(start);
	done = archive_try(DELETE_OLD, take_bite, &bite);
	took = jobq_elapsed(start);
	if (!done)
		locked = day_locked = true;
	if (!done || !bite.again)
	{
		npassed = 0;
		block += nblocks;
	}
	size_bites(took);
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

	/*
	 * from its beginning: rows may have become old since then, in parts that
	 * are done
	 */
	pass_at = locked ? now + SHORT_PAUSE : began_at + ARCHIVE_PAUSE;
	locked = false;
}
