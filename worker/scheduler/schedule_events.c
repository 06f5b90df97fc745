/*-------------------------------------------------------------------------
 *
 * schedule_events.c
 *	  Events of schedules: ticks without a job, and errors of schedules.
 *
 * Each event is raised in the transaction that updates the schedule's row.  A crash
 * therefore never loses or duplicates an event.
 *
 * worker/scheduler/schedule_events.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/json.h"

/* The largest number of ticks counted for an event. */
#define MAX_COUNTED	100

static void
append_schedule(StringInfo buf, const char *name, const char *kind)
{
	appendStringInfoString(buf, ", \"schedule\": ");
	escape_json(buf, name);
	appendStringInfoString(buf, ", \"kind\": ");
	escape_json(buf, kind);
}

static void
describe_missed(StringInfo buf, void *arg)
{
	const MissedTicks *missed = (const MissedTicks *) arg;
	TimestampTz last = jobq_cron_last(missed->cron, missed->zone, missed->anchor,
									  missed->first, missed->until - 1);
	TimestampTz tick = missed->first;
	int			n = 1;

	while (tick < last && n < MAX_COUNTED)
	{
		tick = jobq_cron_next(missed->cron, missed->zone, missed->anchor, tick);
		n++;
	}
	append_schedule(buf, missed->job->schedule, missed->job->kind);
	jobq_append_time(buf, "tick", missed->first);
	jobq_append_time(buf, "last_tick", last);
	appendStringInfo(buf, ", \"ticks\": %d, \"reason\": \"%s\"", n, missed->policy);
}

/*
 * Raise an event for these ticks without a job, if there are any.  Must run in the
 * transaction that advances the schedule.
 */
void
schedule_missed(Oid role, const MissedTicks *missed)
{
	MissedTicks copy = *missed;

	if (missed->first < missed->until)
		jobq_event_of(JOBQ_EVENT_SCHEDULE_MISSED, role, NULL, missed->job->kind,
					  describe_missed, &copy);
}

/* A schedule after an error, with values from the row. */
typedef struct Failed
{
	const char *name;
	const char *kind;
	TimestampTz tick;
	const ErrorData *edata;
} Failed;

static void
describe_failed(StringInfo buf, void *arg)
{
	const Failed *failed = (const Failed *) arg;

	append_schedule(buf, failed->name, failed->kind);
	if (!TIMESTAMP_NOT_FINITE(failed->tick))
		jobq_append_time(buf, "tick", failed->tick);
	appendStringInfo(buf, ", \"sqlstate\": \"%s\", \"error\": ",
					 unpack_sql_state(failed->edata->sqlerrcode));
	jobq_append_text(buf, failed->edata->message);
}

/*
 * Raise an event for a new error of a schedule.  Must run in the transaction that
 * stores the error in the row.  arg is a ScheduleError.
 */
void
schedule_failed(void *arg)
{
	static const Oid types[] = {TEXTOID};
	const ScheduleError *error = (const ScheduleError *) arg;
	Datum		values[] = {CStringGetTextDatum(error->name)};
	Failed		failed = {.name = error->name,.edata = error->edata};
	HeapTuple	row;
	TupleDesc	desc;
	Oid			role;

	if ((jobq_heard & (UINT32_C(1) << JOBQ_EVENT_SCHEDULE_FAILED)) == 0 ||
		jobq_query("SELECT role::oid, kind, coalesce(next_tick, '-infinity')"
				   " FROM jobq_internal.schedule WHERE name = $1",
				   1, types, values, NULL, SPI_OK_SELECT) == 0)
		return;
	row = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	role = DatumGetObjectId(jobq_column(row, desc, 1, OIDOID, NULL));
	failed.kind = TextDatumGetCString(jobq_column(row, desc, 2, TEXTOID, NULL));
	failed.tick = DatumGetTimestampTz(jobq_column(row, desc, 3, TIMESTAMPTZOID, NULL));
	jobq_event_of(JOBQ_EVENT_SCHEDULE_FAILED, role, NULL, failed.kind,
				  describe_failed, &failed);
}
