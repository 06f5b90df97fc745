/*-------------------------------------------------------------------------
 *
 * partitions.c
 *	  Makes the partitions of the archive ahead of time, one for each day.
 *
 * A partition is made only if the lock is granted quickly, because other sessions queue
 * behind the lock request.  After a lock timeout, the scheduler tries again after
 * seconds, later after up to half an hour.  Until then, jobs of the day are stored in the
 * default partition.
 *
 * worker/scheduler/partitions.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "executor/spi.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

/* Partitions made ahead, including today's. */
#define DAYS_AHEAD		4

/* The largest number of rows moved into a new partition. */
#define MAX_MOVED		"10000"

/* Completes "the scheduler cannot ..." if a partition cannot be made. */
#define MAKE_DAYS		"make the partitions of the archive"

/* A day without a partition. */
typedef struct Day
{
	TimestampTz start;
	bool		is_today;
} Day;

/* The next day to process, counted from today. */
static int	ahead = 0;
static bool not_made = false;	/* a day of this pass failed */
static int	nfailed = 0;		/* passes in a row that failed */

/*
 * Log an error in the maintenance of the archive, unless it is a lock timeout.
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
 * Run body(arg) in a transaction of its own.  Returns false after an error, which
 * archive_tell() has reported.
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
 * Compute the name of a day's partition, and the beginning of the day as text (UTC).
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
 * Make the partition of a day, unless it exists.
 *
 * Jobs already finished on this day are moved from the default partition.  If there are
 * too many, no partition is made for the day.  A concurrent query planned before the
 * new partition would miss the moved rows.  The archive itself is therefore locked, so
 * no query can be between planning and reading.  For today, rows may still arrive
 * before the lock is granted, so today always needs the lock.
 *
 * Default privileges of the current user must not apply to tables of jobq.  They are
 * revoked before the partition becomes visible.
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
	(void) set_config_option("lock_timeout", ARCHIVE_LOCK_TIMEOUT, PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	(void) SPI_execute(psprintf("DO $$ BEGIN"
								" IF (SELECT count(*) FROM (SELECT FROM jobq_internal.archive_default"
								" WHERE finished_at >= '%s' AND finished_at < '%s' LIMIT " MAX_MOVED " + 1) f) <= " MAX_MOVED " THEN"
								" IF %s OR EXISTS (SELECT FROM jobq_internal.archive_default"
								" WHERE finished_at >= '%s' AND finished_at < '%s') THEN"
								" LOCK TABLE ONLY jobq_internal.archive IN ACCESS EXCLUSIVE MODE;"
								" END IF;"
								" LOCK TABLE jobq_internal.archive_default IN ACCESS EXCLUSIVE MODE;"
								" CREATE TABLE jobq_internal.%s (LIKE jobq_internal.archive INCLUDING CONSTRAINTS, PRIMARY KEY (id)) USING heap;"
								" PERFORM jobq_internal.take_back('TABLE jobq_internal.%s', c.relacl, c.relowner, true)"
								" FROM pg_class c WHERE c.oid = 'jobq_internal.%s'::regclass;"
								" CREATE INDEX %s_batch ON jobq_internal.%s (batch_id, state) WHERE batch_id IS NOT NULL;"
								" CREATE INDEX %s_failed ON jobq_internal.%s (id) WHERE errors IS NOT NULL;"
								" WITH moved AS (DELETE FROM jobq_internal.archive_default"
								" WHERE finished_at >= '%s' AND finished_at < '%s' RETURNING *)"
								" INSERT INTO jobq_internal.%s SELECT * FROM moved;"
								" ALTER TABLE jobq_internal.archive ATTACH PARTITION jobq_internal.%s"
								" FOR VALUES FROM ('%s') TO ('%s');"
								" END IF; END $$",
								from, to, day->is_today ? "true" : "false", from,
								to, name, name, name, name, name, name, name, from, to, name,
								name, from, to), false, 0);
}

/*
 * Make the next of the partitions of today and the following days.  Returns the time of
 * the next call.
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
	if (!not_made)
	{
		nfailed = 0;
		trouble_over(MAKE_DAYS);
		return now + ARCHIVE_PAUSE;
	}
	not_made = false;
	return now + jobq_pause_length(PAUSE_ARCHIVE_FAILED, ++nfailed);
}
