/*-------------------------------------------------------------------------
 *
 * partitions.c
 *	  Makes the archive's partitions ahead of time, one a day.
 *
 * A partition is made only if that needs little waiting: while we wait, everybody
 * else queues behind us.  Where somebody is in the way, we come again, at first after
 * seconds and then after up to an hour; until then jobs of the day are in the default
 * partition.
 *
 * worker/scheduler/partitions.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "executor/spi.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

/* Partitions that are made ahead, today's included. */
#define DAYS_AHEAD		4

/* Rows that are moved into a new partition at most. */
#define MAX_MOVED		"10000"

/* What the scheduler cannot do where a partition is not made. */
#define MAKE_DAYS		"make the partitions of the archive"

/* The first pause if a day was not made; the last is ARCHIVE_PAUSE. */
#define FIRST_PAUSE		(10 * USECS_PER_SEC)

/* A day that gets its partition. */
typedef struct Day
{
	TimestampTz start;
	bool		is_today;
} Day;

static void make_day(void *arg);

/* Which day is made next, counted from today. */
static int	ahead = 0;
static bool not_made = false;	/* one of them was not */
static int64 make_pause = FIRST_PAUSE;

/*
 * Tell of an error in this part of the work, unless it is that something was locked.
 */
void
archive_tell(const char *what, const ErrorData *edata)
{
	if (edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
		trouble_note(what, edata->message, ARCHIVE_PAUSE))
		ereport(LOG,
				(errcode(edata->sqlerrcode),
				 errmsg("jobq could not look after its archive now: %s",
						edata->message)));
}

/*
 * Run the body in a transaction of its own.  False if it has failed, of which
 * archive_tell() tells.
 */
bool
archive_try(const char *what, void (*body) (void *arg), void *arg)
{
	ErrorData  *edata = scheduler_try(body, arg);

	if (edata == NULL)
		return true;
	archive_tell(what, edata);
	FreeErrorData(edata);
	return false;
}

/*
 * The name of a day's partition, and when the day begins, as text.
 */
void
archive_day_name(TimestampTz day, char *name, size_t name_size, char *date,
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
 *
 * Default privileges of whom we run as are not for jobq's tables: they are taken back
 * before anybody sees the partition.
 */
static void
make_day(void *arg)
{
	const Day  *day = (const Day *) arg;
	char		name[NAMEDATALEN];
	char		unused[NAMEDATALEN];
	char		from[32];
	char		to[32];
	Oid			there;

	archive_day_name(day->start, name, sizeof(name), from, sizeof(from));
	archive_day_name(day->start + USECS_PER_DAY, unused, sizeof(unused), to, sizeof(to));
	if (jobq_relations_if_installed() == NULL)
		return;
	there = get_relname_relid(name, jobq_relations()->internal_schema);
	if (OidIsValid(there) && !get_rel_relispartition(there))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_TABLE),
				 errmsg("jobq_internal.%s is not a partition of jobq_internal.archive", name)));
	if (OidIsValid(there))
		return;
	(void) set_config_option("lock_timeout", ARCHIVE_PATIENCE, PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	(void) SPI_execute(psprintf("DO $$ BEGIN"
								" IF (SELECT count(*) FROM (SELECT FROM jobq_internal.archive_default"
								" WHERE finished_at >= '%s' AND finished_at < '%s' LIMIT " MAX_MOVED " + 1) f) <= " MAX_MOVED " THEN"
								" IF %s OR EXISTS (SELECT FROM jobq_internal.archive_default"
								" WHERE finished_at >= '%s' AND finished_at < '%s') THEN"
								" LOCK TABLE ONLY jobq_internal.archive IN ACCESS EXCLUSIVE MODE;"
								" END IF;"
								" LOCK TABLE jobq_internal.archive_default IN ACCESS EXCLUSIVE MODE;"
								" CREATE TABLE jobq_internal.%s (LIKE jobq_internal.archive, PRIMARY KEY (id)) USING heap;"
								" PERFORM jobq_internal.take_back('TABLE jobq_internal.%s', c.relacl, c.relowner, true)"
								" FROM pg_class c WHERE c.oid = 'jobq_internal.%s'::regclass;"
								" CREATE INDEX %s_batch ON jobq_internal.%s (batch_id, state) WHERE batch_id IS NOT NULL;"
								" WITH moved AS (DELETE FROM jobq_internal.archive_default"
								" WHERE finished_at >= '%s' AND finished_at < '%s' RETURNING *)"
								" INSERT INTO jobq_internal.%s SELECT * FROM moved;"
								" ALTER TABLE jobq_internal.archive ATTACH PARTITION jobq_internal.%s"
								" FOR VALUES FROM ('%s') TO ('%s');"
								" END IF; END $$",
								from, to, day->is_today ? "true" : "false", from,
								to, name, name, name, name, name, from, to, name,
								name, from, to), false, 0);
}

/*
 * Make the next of the partitions of today and of the next days.  Returns when to
 * come again.
 */
TimestampTz
archive_make_days(TimestampTz now)
{
	Day			day = {
		.start = now - now % USECS_PER_DAY + ahead * USECS_PER_DAY,
		.is_today = ahead == 0
	};

	not_made |= !archive_try(MAKE_DAYS, make_day, &day);
	if (++ahead < DAYS_AHEAD)
		return now;
	ahead = 0;
	make_pause = not_made ? Min(2 * make_pause, ARCHIVE_PAUSE) : FIRST_PAUSE;
	if (!not_made)
	{
		trouble_over(MAKE_DAYS);
		return now + ARCHIVE_PAUSE;
	}
	not_made = false;
	return now + make_pause / 2;
}
