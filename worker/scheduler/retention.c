/*-------------------------------------------------------------------------
 *
 * retention.c
 *	  Makes the archive's partitions ahead of time, drops those whose time is
 *	  over, and deletes old dead letters.
 *
 * A partition is dropped only if that needs no waiting: a reader of an old
 * day must not make everybody else queue behind us.
 *
 * worker/scheduler/retention.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "compose/compose.h"
#include "scheduler/duty.h"

/* Partitions that are made ahead, today's included. */
#define DAYS_AHEAD	4

/* Rows that are moved into a new partition at most. */
#define MAX_MOVED	"10000"

#define RETENTION_PAUSE	(INT64CONST(3600) * USECS_PER_SEC)

/* No partitions are made so long after CREATE EXTENSION. */
#define RESTORE_TIME	(5 * USECS_PER_SEC)

static TimestampTz load(TimestampTz now);
static TimestampTz run(TimestampTz now);
static void make_days(TimestampTz now);
static void drop_days(TimestampTz before);
static void delete_rows(TimestampTz now);
static void run_quietly(const char *query, int nargs, Oid *types,
						Datum *values);
static void drop_day(const char *name);

/*
 * A statement waits for a lock for 200 ms at the most, and moves MAX_MOVED rows.
 * How many rows it deletes is not bounded: once an hour, as many as have grown
 * old since.
 */
Duty		retention_duty = {
	.load = load,
	.run = run,
	.pausable = true,
};

/*
 * Run one statement in a transaction of its own; an error is logged and is
 * not ours.
 */
static void
run_quietly(const char *query, int nargs, Oid *types, Datum *values)
{
	MemoryContext context = CurrentMemoryContext;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		(void) set_config_option("lock_timeout", "200ms", PGC_SUSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0,
								 false);
		SPI_connect();
		(void) SPI_execute_with_args(query, nargs, types, values, NULL, false,
									 0);
		SPI_finish();
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		HOLD_INTERRUPTS();
		edata = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		RESUME_INTERRUPTS();
		ereport(LOG,
				(errcode(edata->sqlerrcode),
				 errmsg("jobq could not look after its archive now: %s",
						edata->message)));
		FreeErrorData(edata);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
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
 * Drop the archive of a day, and keep what batches and workflows need of their
 * jobs in there.
 */
static void
drop_day(const char *name)
{
	run_quietly(psprintf("LOCK TABLE jobq.%s IN SHARE MODE;"
						 " UPDATE jobq.batch b SET completed = b.completed + g.completed,"
						 " cancelled = b.cancelled + g.cancelled, expired = b.expired + g.expired"
						 " FROM (" COUNT_BY_BATCH "FROM jobq.%s WHERE batch_id IS NOT NULL GROUP BY batch_id) g"
						 " WHERE b.id = g.batch_id;"
						 " UPDATE jobq.step s SET state = a.state, result = a.result"
						 " FROM jobq.%s a WHERE s.job_id = a.id;"
						 " DROP TABLE jobq.%s", name, name, name, name), 0, NULL, NULL);
}

static TimestampTz
run(TimestampTz now)
{
	make_days(now);
	drop_days(now - jobq_archive_retention * (60 * USECS_PER_SEC));
	delete_rows(now);
	return now + RETENTION_PAUSE;
}

/*
 * The day's partition is wanted before the first job is finished.  But if the
 * extension was created just now, that may be a restore, which brings partitions
 * of its own.
 */
static TimestampTz
load(TimestampTz now)
{
	if (now < jobq_shared->poked_at + RESTORE_TIME)
		return now + RESTORE_TIME;
	return jobq_start_paused ? now : run(now);
}

/*
 * Make the partitions of today and of the next days.
 */
static void
make_days(TimestampTz now)
{
	TimestampTz today = now - now % USECS_PER_DAY;

	for (int i = 0; i < DAYS_AHEAD; i++)
	{
		char		name[NAMEDATALEN];
		char		unused[NAMEDATALEN];
		char		from[32];
		char		to[32];

		day_name(today + i * USECS_PER_DAY, name, sizeof(name), from,
				 sizeof(from));
		day_name(today + (i + 1) * USECS_PER_DAY, unused, sizeof(unused), to,
				 sizeof(to));

		/*
		 * What was finished before goes along from the default partition;
		 * where that is much, the day stays there.  A query that knows the
		 * old partitions only would not find it, so then nobody may be
		 * between planning and reading: the archive itself is locked.  Today
		 * more may come until we have the lock.
		 */
		run_quietly(psprintf("DO $$ BEGIN"
							 " IF pg_catalog.to_regclass('jobq.%s') IS NULL"
							 " AND (SELECT count(*) FROM (SELECT FROM jobq.archive_default"
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
							 name, from, to, i == 0 ? "true" : "false", from, to,
							 name, name, name, from, to, name, name, from, to),
					0, NULL, NULL);
	}
}

/*
 * Drop the partitions of the days before this time.
 */
static void
drop_days(TimestampTz before)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *old = NIL;
	ListCell   *lc;
	char		name[NAMEDATALEN];
	char		unused[32];

	/* the names of the days are in order, as are the days */
	day_name(before, name, sizeof(name), unused, sizeof(unused));
	process_begin_transaction();
	SPI_connect();
	if (SPI_execute(psprintf("SELECT c.relname FROM pg_catalog.pg_inherits i"
							 " JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid"
							 " WHERE i.inhparent = 'jobq.archive'::pg_catalog.regclass"
							 " AND c.relname ~ '^archive_[0-9]{8}$'"
							 " AND c.relname < '%s'", name), true, 0) == SPI_OK_SELECT)
	{
		for (uint64 i = 0; i < SPI_processed; i++)
		{
			MemoryContext spi = MemoryContextSwitchTo(context);

			old = lappend(old, SPI_getvalue(SPI_tuptable->vals[i],
											SPI_tuptable->tupdesc, 1));
			MemoryContextSwitchTo(spi);
		}
	}
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	foreach(lc, old)
		drop_day(lfirst(lc));
}

/*
 * Delete the rows whose time is over: those that are in no day's partition, dead
 * letters, batches, and unique keys that mean nothing any more.
 */
static void
delete_rows(TimestampTz now)
{
	static Oid	types[] = {TIMESTAMPTZOID};
	Datum		values[1];

	values[0] = TimestampTzGetDatum(now - jobq_archive_retention *
									(60 * USECS_PER_SEC));
	run_quietly(DELETE_AND_COUNT("DELETE FROM jobq.archive_default WHERE finished_at < $1"
								 RETURNING_FINISHED), 1, types, values);
	values[0] = TimestampTzGetDatum(now - jobq_failed_retention *
									(60 * USECS_PER_SEC));
	run_quietly(DELETE_AND_COUNT("DELETE FROM jobq.failed_job WHERE finished_at < $1"
								 RETURNING_LETTERS), 1, types, values);
	run_quietly("WITH gone AS (DELETE FROM jobq.batch WHERE finished_at < $1 RETURNING id)"
				" DELETE FROM jobq.step s USING gone g WHERE s.batch_id = g.id", 1,
				types, values);

	process_begin_transaction();
	jobq_unique_prune();
	PopActiveSnapshot();
	CommitTransactionCommand();
}
