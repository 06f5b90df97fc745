/*-------------------------------------------------------------------------
 *
 * ticks.c
 *	  Runs the due ticks of one schedule, and computes the time of its next check.
 *
 * A tick is missed if the scheduler could not check it in time: because no scheduler was
 * running, the schedule could not be read, or the clock has jumped.  A tick is not
 * missed while it waits for the schedule's last job; the row is then marked "held", and
 * next_tick is the waiting tick.
 *
 * Several ticks may be due.  Which of them get a job?
 *
 *	missed		all			each, the oldest first
 *				once		the newest.  The remaining ticks are reported as missed
 *				skip		the newest, unless it was missed itself.  The remaining ticks are
 *							reported as missed
 *
 *	overlap		allow		the job of a tick does not depend on the last job
 *	(the last	skip		no due tick gets a job.  All are reported as overlapping
 *	job is		queue		the chosen tick waits for the end of the job.  Ticks before it are
 *	live)					reported as missed
 *
 * The list of all schedules is in schedules.c.
 *
 * worker/scheduler/ticks.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"

#include "scheduler/schedules.h"

/* A tick checked later than this was missed (microseconds). */
#define GRACE			(10 * USECS_PER_SEC)

/* Ticks in one transaction. */
#define MAX_TICKS		100

/* The pause before the trust in the clock is checked again (microseconds). */
#define TRUST_PAUSE		USECS_PER_SEC

/* A row of jobq_internal.schedule during a check. */
typedef struct Row
{
	Oid			role;
	bool		active;			/* neither paused nor dormant */
	bool		held;
	bool		failed;			/* has a last_error: a due tick could not be
								 * run */
	TimestampTz served_since;	/* earlier ticks were missed */
	TimestampTz planned;		/* when this check was due */
	TimestampTz anchor;
	TimestampTz next_tick;		/* DT_NOBEGIN: restored from a dump */
	TimestampTz last_tick;
	int64		last_job;		/* 0: none */
	JobqMissed	missed;
	JobqOverlap overlap;
	JobqCron	cron;
	pg_tz	   *zone;
	JobqScheduledJob job;
} Row;

static void write_row(Schedule *schedule, const Row *row);

/*
 * Lock and read the row.  Returns false if the row does not exist or is locked.
 */
static bool
read_row(const Schedule *schedule, Row *row)
{
	static const Oid types[] = {TEXTOID, TIDOID};
	Datum		values[] = {
		CStringGetTextDatum(schedule->name), PointerGetDatum(&schedule->ctid)
	};
	static const char *const columns =
		"SELECT role::oid, paused OR dormant, held, anchor,"
		" coalesce(next_tick, '-infinity'), last_tick, coalesce(last_job_id, 0),"
		" missed, overlap, cron, timezone, last_error IS NOT NULL, kind, payload,"
		" options FROM jobq_internal.schedule";
	static const Oid column_types[] = {
		OIDOID, BOOLOID, BOOLOID, TIMESTAMPTZOID,
		TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID,
		TEXTOID, TEXTOID, TEXTOID, TEXTOID, BOOLOID, TEXTOID, JSONBOID,
		JSONBOID
	};
	Datum		v[lengthof(column_types)];
	bool		nulls[lengthof(column_types)];
	const char *name = schedule->name;
	bool		known = ItemPointerIsValid(&schedule->ctid);

	if (jobq_query(psprintf("%s WHERE name = $1 %s FOR UPDATE SKIP LOCKED",
							columns, known ? "AND ctid = $2" : ""),
				   known ? 2 : 1, types, values, NULL, SPI_OK_SELECT) == 0)
		return false;
	jobq_check_types(SPI_tuptable->tupdesc, column_types, lengthof(column_types));
	heap_deform_tuple(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, v, nulls);

	memset(row, 0, sizeof(Row));
	row->role = DatumGetObjectId(v[0]);
	row->active = !DatumGetBool(v[1]);
	row->held = DatumGetBool(v[2]);
	row->anchor = DatumGetTimestampTz(v[3]);
	row->next_tick = DatumGetTimestampTz(v[4]);
	row->last_tick = nulls[5] ? DT_NOBEGIN : DatumGetTimestampTz(v[5]);
	row->last_job = DatumGetInt64(v[6]);
	row->missed = jobq_missed_parse(TextDatumGetCString(v[7]));
	row->overlap = jobq_overlap_parse(TextDatumGetCString(v[8]));
	row->failed = DatumGetBool(v[11]);
	row->job.schedule = name;
	row->job.kind = TextDatumGetCString(v[12]);
	row->job.payload = v[13];
	row->job.options = nulls[14] ? NULL : DatumGetJsonbP(v[14]);
	jobq_cron_parse(TextDatumGetCString(v[9]), &row->cron);
	row->zone = jobq_cron_zone(TextDatumGetCString(v[10]));
	return true;
}

static TimestampTz
next_after(const Row *row, TimestampTz after)
{
	return jobq_cron_next(&row->cron, row->zone, row->anchor, after);
}

/*
 * True if no scheduler could check the tick in time.  A tick that failed was checked in time, and
 * is tried again.  A tick after the time of this try has not failed yet.
 */
static bool
is_late(const Row *row, TimestampTz tick, TimestampTz now)
{
	return tick < row->served_since ||
		(now - tick > GRACE && !(row->failed && tick <= row->planned));
}

/*
 * Choose the next of the due ticks by the policy "missed".  Returns false if it allows none.
 * A tick that has waited for the last job comes first, whatever the policy.
 */
static bool
choose_tick(const Row *row, TimestampTz now, TimestampTz *tick)
{
	TimestampTz last;

	*tick = row->next_tick;
	if (row->held || row->missed == JOBQ_MISSED_ALL)
		return true;
	last = jobq_cron_last(&row->cron, row->zone, row->anchor, row->next_tick,
						  now);
	if (row->missed == JOBQ_MISSED_SKIP && is_late(row, last, now))
		return false;
	*tick = last;
	return true;
}

/*
 * Report the ticks from next_tick to before "until" as skipped by the policy.
 */
static void
report_skipped(const Row *row, TimestampTz until, const char *policy)
{
	MissedTicks missed = {
		.job = &row->job,.cron = &row->cron,.zone = row->zone,.anchor = row->anchor,
		.first = row->next_tick,.until = until,.policy = policy
	};

	schedule_missed(row->role, &missed);
}

/*
 * Correct times from a clock that was ahead by more than JOBQ_CLOCK_SLACK.  next_tick cannot be
 * later than the first tick from now on.  A later next_tick comes from such a clock, and becomes
 * this first tick.  Ticks that have run by the wrong clock therefore run again, except up to a
 * last_tick that is ahead by no more than the slack.  Returns true if the row was changed.
 */
static bool
correct_by_clock(Row *row, TimestampTz now)
{
	TimestampTz from = now;
	TimestampTz next;
	bool		changed = false;

	if (row->anchor > now + JOBQ_CLOCK_SLACK)
	{
		row->anchor = now;
		changed = true;
	}
	if (row->last_tick > now && row->last_tick <= now + JOBQ_CLOCK_SLACK)
		from = row->last_tick;
	next = next_after(row, from);
	if (row->next_tick <= next)
		return changed;
	row->next_tick = next;
	row->held = false;
	return true;
}

/*
 * True if several ticks must be made up for, but the clock may be ahead (clock.c).  Their jobs
 * could not be taken back.
 */
static bool
waits_for_trust(const Row *row, TimestampTz now)
{
	return row->missed == JOBQ_MISSED_ALL && jobq_clock_ahead() > 0 &&
		row->next_tick <= now && next_after(row, row->next_tick) <= now;
}

/*
 * Publish one more job, until schedules.c publishes all jobs again.  If the list is full,
 * the job displaces the last entry.  Returns true in this case.  Takes my_db->lock
 * exclusively.
 */
static bool
publish_job(int64 job)
{
	JobqTold   *told = my_db->told;
	bool		found = false;
	bool		displaces = false;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < told->nwaited && !found; i++)
		found = told->waited[i] == job;
	if (!found)
	{
		if (told->nwaited == JOBQ_MAX_WAITED)
		{
			told->nwaited--;
			displaces = true;
		}
		told->waited[told->nwaited++] = job;
	}
	LWLockRelease(my_db->lock);
	return displaces;
}

/*
 * Apply the policy "overlap" to the chosen tick.  Returns true if the tick gets no job now,
 * because the last job is live.  The tick is then skipped, or waits.  Sets *changed if the row
 * must be written.
 */
static bool
overlaps(Schedule *schedule, Row *row, TimestampTz now, TimestampTz tick, bool *changed)
{
	if (row->last_job == 0)
		return false;
	switch (row->overlap)
	{
		case JOBQ_OVERLAP_ALLOW:
			return false;
		case JOBQ_OVERLAP_SKIP:
			if (!jobq_scheduled_is_live(row->last_job))
				return false;
			tick = next_after(row, now);
			report_skipped(row, tick, "overlap");
			row->held = row->failed = false;
			row->next_tick = tick;
			*changed = true;
			return true;
		case JOBQ_OVERLAP_QUEUE:
			/* publish before the check: see Schedule */
			schedule->displaced |= publish_job(row->last_job);
			if (!jobq_scheduled_is_live(row->last_job))
				return false;
			*changed |= !row->held || row->failed || tick != row->next_tick;
			report_skipped(row, tick, "missed");
			row->held = true;
			row->failed = false;
			row->next_tick = tick;
			return true;
	}
	return false;				/* keep compiler quiet */
}

/*
 * Enqueue a job for each due tick, as the policies allow.  Computes the time of the next check.
 *
 * The states of a row, and the functions that bring the row there:
 *
 *	state		paused	held	next_tick	last_job_id		last_error	set by
 *	active		false	false	a tick (1)	any, or null	null		schedule(), pause(false),
 *																	fire()
 *	held		false	true	a tick (2)	a live job (3)	null		fire(): overlap queue
 *	failing		false	any		as before	as before		set			schedules.c: fire() has raised
 *																	an error
 *	paused		true	false	null		any, or null	any			pause(true)
 *	restored	false	false	null		any, or null	any			trigger schedule_restored()
 *
 * (1) or infinity, if a recurrence rule has ended
 * (2) the tick that waits; ahead, if the clock was put back
 * (3) when the row was written.  The end of the job does not change the row
 *
 * fire() brings a failing row to active or held when a due tick gets a job, or "overlap" applies to
 * the tick.  A row whose failed tick was missed stays failing.  run_schedule() sets last_job_id in
 * any state.  A dormant row came by replication, and is as on the publisher.
 */
static void
fire(Schedule *schedule, Row *row, TimestampTz now)
{
	bool		changed = false;

	/*
	 * The clock may have been changed since the round began.  A later time is
	 * not used for ticks, because it may come from an untrusted clock.
	 */
	TimestampTz clock = jobq_now();

	now = Min(now, clock);

	jobq_injection_point("jobq-schedule-read");
	schedule->check_at = DT_NOEND;
	if (!row->active)
		return;
	if (row->next_tick > now)
		changed |= correct_by_clock(row, clock);
	if (row->next_tick == DT_NOBEGIN)
	{
		/* restored from a dump: skip earlier ticks */
		row->next_tick = next_after(row, now);
		changed = true;
	}

	if (waits_for_trust(row, now))
	{
		if (changed)
			write_row(schedule, row);
		schedule->check_at = now + TRUST_PAUSE;
		return;
	}

	for (int i = 0; i < MAX_TICKS && row->next_tick <= now; i++)
	{
		TimestampTz tick;

		if (!choose_tick(row, now, &tick))
		{
			tick = next_after(row, now);
			report_skipped(row, tick, "missed");
			row->next_tick = tick;
			changed = true;
			break;
		}
		if (overlaps(schedule, row, now, tick, &changed))
			break;
		report_skipped(row, tick, "missed");
		row->job.previous_job = row->last_job;
		row->last_job = jobq_scheduled_enqueue(&row->job, row->role, tick, JOBQ_TICK_DUE);
		row->last_tick = tick;
		row->next_tick = next_after(row, tick);
		row->held = row->failed = false;
		changed = true;
		if (row->overlap != JOBQ_OVERLAP_ALLOW || share_over())
			break;
	}

	jobq_injection_point("jobq-schedule-looked");
	if (changed)
		write_row(schedule, row);

	/*
	 * a held tick can lie ahead if the clock was put back; its job is then
	 * not published
	 */
	if (row->held && row->next_tick <= now)
		schedule->waits_for = row->last_job;
	else
		schedule->check_at = row->next_tick;
}

/*
 * Write the locked row, and remember its new ctid.
 */
static void
write_row(Schedule *schedule, const Row *row)
{
	static const Oid types[] = {
		TEXTOID, TIMESTAMPTZOID, BOOLOID, TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID, BOOLOID
	};
	Datum		values[] = {
		CStringGetTextDatum(schedule->name),
		TimestampTzGetDatum(row->next_tick), BoolGetDatum(row->held),
		TimestampTzGetDatum(row->last_tick), Int64GetDatum(row->last_job),
		TimestampTzGetDatum(row->anchor), BoolGetDatum(row->failed)
	};
	char		nulls[] = "       ";

	if (row->last_tick == DT_NOBEGIN)
		nulls[3] = 'n';
	if (row->last_job == 0)
		nulls[4] = 'n';
	if (jobq_query("UPDATE jobq_internal.schedule SET next_tick = $2, held = $3,"
				   " last_tick = $4, last_job_id = $5, anchor = $6,"
				   " last_error = CASE WHEN $7 THEN last_error END"
				   " WHERE name = $1 RETURNING ctid",
				   7, types, values, nulls, SPI_OK_UPDATE_RETURNING) != 1)
		elog(ERROR, "schedule \"%s\" vanished while it was locked",
			 schedule->name);
	schedule->ctid =
		*(ItemPointer) DatumGetPointer(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, TIDOID, NULL));
}

/*
 * Lock the row of the schedule, enqueue a job for each due tick, and set the time of the
 * next check, or the job for which the schedule waits.  Ticks before "since" count as
 * missed, because no scheduler was running.  Returns false if the row is locked by
 * another session, or does not exist.  The caller must be connected to SPI.
 */
bool
ticks_fire(Schedule *schedule, TimestampTz now, TimestampTz since)
{
	Row			row;

	if (!read_row(schedule, &row))
		return false;
	row.served_since = since;
	row.planned = schedule->check_at;
	fire(schedule, &row, now);
	return true;
}
