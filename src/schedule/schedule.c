/*-------------------------------------------------------------------------
 *
 * schedule.c
 *	  schedule(), unschedule(); pause() and resume() of a schedule.
 *
 * A schedule is a row of jobq_internal.schedule.  The scheduler
 * (worker/scheduler/schedules.c) performs the ticks.  A trigger notifies the scheduler of
 * changed rows at commit.
 *
 * src/schedule/schedule.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "store/store.h"
#include "commit/commit.h"
#include "produce/produce.h"
#include "schedule/inner.h"

PG_FUNCTION_INFO_V1(jobq_schedule);
PG_FUNCTION_INFO_V1(jobq_unschedule);
PG_FUNCTION_INFO_V1(jobq_schedule_changed);

/*
 * The arguments of schedule() with a column, in the order of values[] in Call, followed by the
 * columns without an argument.  Column c is parameter c + 1 of the queries.
 */
enum
{
	ARG_NAME,
	ARG_CRON,
	ARG_KIND,
	ARG_PAYLOAD,
	ARG_TIMEZONE,
	ARG_MISSED,
	ARG_OVERLAP,
	ARG_OPTIONS,
	NARGS,
	COLUMN_ANCHOR = NARGS,
	COLUMN_NEXT_TICK,
	COLUMN_ROLE,
	COLUMN_HELD,
	COLUMN_LAST_TICK,
	COLUMN_LAST_JOB,
	NCOLUMNS,
	IS_SAME = NCOLUMNS,			/* no column, for update_schedule() only: the
								 * ticks do not change */
	NPARAMETERS
};

static const Oid column_types[NPARAMETERS] = {
	TEXTOID, TEXTOID, TEXTOID, JSONBOID, TEXTOID, TEXTOID, TEXTOID, JSONBOID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, OIDOID, BOOLOID, TIMESTAMPTZOID, INT8OID, BOOLOID
};

/* The arguments of schedule() without a column. */
enum
{
	ARG_CONTEXT = NARGS,
	ARG_SQL,
	ARG_TRANSACTION,
	ARG_DATABASE
};

#define MAX_NAME	127

/*
 * A call of schedule(): the row of the schedule, as parameters of the queries, and the parsed
 * expression.
 */
typedef struct Call
{
	Datum		values[NPARAMETERS];
	char		nulls[NPARAMETERS + 1];
	const char *name;
	const char *rule;			/* the expression, also parsed: */
	JobqCron	cron;
	pg_tz	   *zone;
	TimestampTz next;			/* the first tick from now on */
} Call;

/*
 * Return true if the schedule in "found" has the same ticks.  Returns false if the row's
 * expression or time zone is invalid.
 */
static bool
is_same(const JobqCron *cron, pg_tz *zone, const JobqScheduleRow *found)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile bool same = false;

	PG_TRY();
	{
		JobqCron	was;

		jobq_cron_parse(found->cron, &was);
		same = jobq_cron_same(cron, &was, zone, jobq_cron_zone(found->timezone));
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_INVALID_PARAMETER_VALUE)
			PG_RE_THROW();
		/* the parsers hold no resources to be released */
		MemoryContextSwitchTo(caller);
		FlushErrorState();
	}
	PG_END_TRY();
	return same;
}

/*
 * ERROR if the current user may not change a schedule of the role.
 */
static void
check_owner(const char *name, Oid role)
{
	if (!jobq_may_become(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("schedule \"%s\" belongs to another role", name),
				 errhint("Choose another name.")));
	jobq_refuse_borrowed(role);
}

/*
 * ERROR if a recurrence rule has no tick any more.
 */
static void
check_due(TimestampTz next, const char *rule)
{
	if (next == DT_NOEND)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("recurrence rule \"%s\" has no tick from now on", rule),
				 errhint("It has ended, or its parts never fall together in the next hundred years.")));
}

/*
 * Add the argument "context" to the options.  ERROR if the options contain a context
 * already.
 */
static Jsonb *
add_context(Jsonb *options, Jsonb *context)
{
	char	   *text = JsonbToCString(NULL, &context->root, VARSIZE(context));
	Datum		added = jobq_text_to_jsonb(psprintf("{\"context\": %s}", text));
	JsonbValue	value;

	if (options == NULL)
		return DatumGetJsonbP(added);
	if (getKeyJsonValueFromContainer(&options->root, "context", 7, &value) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("context is given twice: as an argument, and in options"),
				 errhint("Give one of them.")));
	return DatumGetJsonbP(DirectFunctionCall2(jsonb_concat,
											  JsonbPGetDatum(options), added));
}

/*
 * Convert the argument "sql" to kind and payload.
 */
static void
use_statement(FunctionCallInfo fcinfo, Datum *values, char *nulls)
{
	if (!JB_ROOT_IS_OBJECT(DatumGetJsonbP(values[ARG_PAYLOAD])) ||
		JB_ROOT_COUNT(DatumGetJsonbP(values[ARG_PAYLOAD])) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("payload and sql cannot be given together")));
	jobq_not_null(fcinfo, ARG_TRANSACTION, "transaction");
	values[ARG_KIND] = CStringGetTextDatum(JOBQ_SQL_KIND);
	nulls[ARG_KIND] = ' ';
	values[ARG_PAYLOAD] =
		jobq_statement_payload(text_to_cstring(PG_GETARG_TEXT_PP(ARG_SQL)),
							   PG_GETARG_BOOL(ARG_TRANSACTION),
							   PG_ARGISNULL(ARG_DATABASE) ? NULL
							   : text_to_cstring(PG_GETARG_TEXT_PP(ARG_DATABASE)));
}

/*
 * ERROR if an argument is null, or if arguments are not allowed together.
 */
static void
check_arguments(FunctionCallInfo fcinfo)
{
	static const char *const names[ARG_OPTIONS] = {
		"name", "cron", "kind", "payload", "timezone", "missed", "overlap"
	};

	for (int i = 0; i < ARG_OPTIONS; i++)
		if (i != ARG_KIND)
			jobq_not_null(fcinfo, i, names[i]);
	if (PG_ARGISNULL(ARG_KIND) == PG_ARGISNULL(ARG_SQL))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 PG_ARGISNULL(ARG_KIND) ? errmsg("neither kind nor sql is given")
				 : errmsg("kind and sql cannot be given together"),
				 errhint("Give one of them: a kind of job, or a statement.")));
	if (PG_ARGISNULL(ARG_SQL) && !PG_ARGISNULL(ARG_DATABASE))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("database is given without sql"),
				 errhint("The jobs of a kind run in this database.")));
}

/*
 * Check the arguments, and fill *call.
 */
static void
read_call(FunctionCallInfo fcinfo, Call *call)
{
	Datum	   *values = call->values;
	char	   *nulls = call->nulls;
	TimestampTz now = jobq_now();
	JobqScheduledJob job;

	check_arguments(fcinfo);
	for (int i = 0; i < NARGS; i++)
	{
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
		values[i] = PG_ARGISNULL(i) ? (Datum) 0 : PG_GETARG_DATUM(i);
	}
	if (!PG_ARGISNULL(ARG_SQL))
		use_statement(fcinfo, values, nulls);

	call->name = TextDatumGetCString(values[ARG_NAME]);
	if (call->name[0] == '\0' || strlen(call->name) > MAX_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("schedule name \"%s\" must have 1 to %d bytes",
						call->name, MAX_NAME)));
	call->rule = TextDatumGetCString(values[ARG_CRON]);
	jobq_cron_parse(call->rule, &call->cron);
	call->zone = jobq_cron_zone(TextDatumGetCString(values[ARG_TIMEZONE]));
	values[ARG_TIMEZONE] = CStringGetTextDatum(pg_get_timezone_name(call->zone));
	(void) jobq_missed_parse(TextDatumGetCString(values[ARG_MISSED]));
	(void) jobq_overlap_parse(TextDatumGetCString(values[ARG_OVERLAP]));

	job.schedule = call->name;
	job.kind = TextDatumGetCString(values[ARG_KIND]);
	job.payload = values[ARG_PAYLOAD];
	job.options = NULL;
	job.previous_job = 0;
	if (!PG_ARGISNULL(ARG_OPTIONS))
	{
		job.options = PG_GETARG_JSONB_P(ARG_OPTIONS);
		jobq_options_check(job.options);
	}
	if (!PG_ARGISNULL(ARG_CONTEXT))
		job.options = add_context(job.options, PG_GETARG_JSONB_P(ARG_CONTEXT));
	job.options = jobq_scheduled_check(&job);
	nulls[ARG_OPTIONS] = job.options == NULL ? 'n' : ' ';
	values[ARG_OPTIONS] = JsonbPGetDatum(job.options);

	call->next = jobq_cron_next(&call->cron, call->zone, now, now);
	values[COLUMN_ANCHOR] = TimestampTzGetDatum(now);
	values[COLUMN_NEXT_TICK] = TimestampTzGetDatum(call->next);
	values[COLUMN_ROLE] = ObjectIdGetDatum(GetUserId());
	values[COLUMN_HELD] = BoolGetDatum(false);
	values[COLUMN_LAST_TICK] = values[COLUMN_LAST_JOB] = (Datum) 0;
	memset(nulls + NARGS, ' ', NPARAMETERS - NARGS);
	nulls[COLUMN_LAST_TICK] = nulls[COLUMN_LAST_JOB] = 'n';
	nulls[NPARAMETERS] = '\0';
}

/*
 * Return true if the schedule has these values already, so that nothing need be written.  A
 * schedule with an error, or without its role, is written.  The caller must be connected to SPI.
 */
static bool
is_stored(Call *call)
{
	return jobq_query("SELECT FROM jobq_internal.schedule s WHERE name = $1 AND"
					  " (cron, kind, payload, timezone, missed, overlap, options)"
					  " IS NOT DISTINCT FROM ($2, $3, $4, $5, $6, $7, $8)"
					  " AND last_error IS NULL"
					  " AND EXISTS (SELECT FROM pg_roles r WHERE r.oid = s.role)",
					  NARGS, column_types, call->values, call->nulls,
					  SPI_OK_SELECT) > 0;
}

/*
 * Change the schedule, which the caller has locked.
 *
 * An existing schedule keeps its role, unless the role was dropped.  A paused schedule stays
 * paused.  If the ticks are the same as before ($15), the next tick does not change.
 */
static void
update_schedule(Call *call, const JobqScheduleRow *found)
{
	bool		same = is_same(&call->cron, call->zone, found);

	if (!same)
		check_due(call->next, call->rule);
	call->values[IS_SAME] = BoolGetDatum(same);
	jobq_query("UPDATE jobq_internal.schedule s SET kind = $3, payload = $4,"
			   " missed = $6, overlap = $7, options = $8, last_error = NULL,"
			   " cron = $2, timezone = $5, held = held AND $15,"
			   " anchor = CASE WHEN $15 THEN anchor ELSE $9 END,"
			   " next_tick = CASE WHEN paused THEN NULL WHEN $15 THEN next_tick ELSE $10 END,"
			   " role = CASE WHEN EXISTS (SELECT FROM pg_roles r WHERE r.oid = s.role) THEN role ELSE $11 END"
			   " WHERE name = $1",
			   NPARAMETERS, column_types, call->values, call->nulls, SPI_OK_UPDATE);
}

/*
 * Insert the schedule.  A schedule dropped by this transaction continues its ticks.  Returns
 * false if another session has just created a schedule of this name.
 */
static bool
insert_schedule(Call *call)
{
	static const Oid tick_types[] = {TEXTOID, TIMESTAMPTZOID, BOOLOID};
	Datum	   *values = call->values;
	Datum		tick[3];
	const JobqScheduleRow *was = jobq_schedule_find_dropped(call->name);

	if (was != NULL && !was->paused && was->role == GetUserId() &&
		was->next_tick != DT_NOBEGIN && is_same(&call->cron, call->zone, was))
	{
		values[COLUMN_ANCHOR] = TimestampTzGetDatum(was->anchor);
		values[COLUMN_NEXT_TICK] = TimestampTzGetDatum(was->next_tick);
		values[COLUMN_HELD] = BoolGetDatum(was->held);
		values[COLUMN_LAST_TICK] = TimestampTzGetDatum(was->last_tick);
		values[COLUMN_LAST_JOB] = Int64GetDatum(was->last_job);
		call->nulls[COLUMN_LAST_TICK] = was->last_tick == DT_NOBEGIN ? 'n' : ' ';
		call->nulls[COLUMN_LAST_JOB] = was->last_job == 0 ? 'n' : ' ';
	}
	else
		check_due(call->next, call->rule);
	if (jobq_query("INSERT INTO jobq_internal.schedule (name, cron, kind, payload,"
				   " timezone, missed, overlap, options, anchor, next_tick, role,"
				   " held, last_tick, last_job_id)"
				   " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
				   " ON CONFLICT DO NOTHING",
				   NCOLUMNS, column_types, values, call->nulls, SPI_OK_INSERT) == 0)
		return false;

	/*
	 * The trigger schedule_restored() clears next_tick if the first tick has
	 * already passed, because the trigger cannot tell a new schedule from a
	 * restored schedule.  Restore the value.
	 */
	tick[0] = values[ARG_NAME];
	tick[1] = values[COLUMN_NEXT_TICK];
	tick[2] = values[COLUMN_HELD];
	jobq_query("UPDATE jobq_internal.schedule SET next_tick = $2, held = $3"
			   " WHERE name = $1 AND next_tick IS NULL",
			   3, tick_types, tick, NULL, SPI_OK_UPDATE);
	return true;
}

/*
 * SQL function schedule(name, cron, kind, payload, timezone, missed, overlap, options,
 * context, sql, transaction, database).  Writes nothing, and locks no row, if the schedule has
 * these values already.
 */
Datum
jobq_schedule(PG_FUNCTION_ARGS)
{
	Call		call;
	JobqScheduleRow found;

	PreventCommandIfReadOnly("jobq.schedule()");
	jobq_require(JOBQ_MAY_ALL);
	read_call(fcinfo, &call);
	SPI_connect();
	if (jobq_schedule_find(call.values[ARG_NAME], false, &found))
	{
		check_owner(call.name, found.role);
		if (is_stored(&call))
		{
			SPI_finish();
			PG_RETURN_VOID();
		}
	}

	/* repeat if another session creates or drops the schedule meanwhile */
	for (;;)
	{
		if (jobq_schedule_find(call.values[ARG_NAME], true, &found))
		{
			check_owner(call.name, found.role);
			update_schedule(&call, &found);
			break;
		}
		if (insert_schedule(&call))
			break;
	}
	SPI_finish();
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}

/*
 * SQL function unschedule(name).
 */
Datum
jobq_unschedule(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {TEXTOID};
	Datum		name = PG_GETARG_DATUM(0);
	JobqScheduleRow found;

	SPI_connect();
	jobq_schedule_find_mine("jobq.unschedule()", JOBQ_MAY_MANAGE, name, &found);
	jobq_query("DELETE FROM jobq_internal.schedule WHERE name = $1", 1, types, &name, NULL,
			   SPI_OK_DELETE);
	jobq_schedule_note_dropped(TextDatumGetCString(name), &found);
	SPI_finish();
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}

/*
 * Pause a schedule, or resume a paused schedule from the next tick.  Returns false, and writes
 * nothing, if the schedule is in this state.  function: the calling SQL function, for
 * messages.  Locks the schedule's row.  ERROR if the schedule does not
 * exist or the current user may not operate on it.  The caller must not be connected to
 * SPI.
 */
bool
jobq_schedule_pause(const char *function, text *name, bool paused)
{
	static const Oid types[] = {TEXTOID, TIMESTAMPTZOID};
	Datum		values[2] = {PointerGetDatum(name)};
	JobqCron	cron;
	JobqScheduleRow found;

	SPI_connect();
	jobq_schedule_find_mine(function, JOBQ_MAY_OPERATE, values[0], &found);
	if (paused && !found.paused)
		jobq_query("UPDATE jobq_internal.schedule SET paused = true, next_tick = NULL, held = false"
				   " WHERE name = $1", 1, types, values, NULL, SPI_OK_UPDATE);
	else if (!paused && found.paused)
	{
		jobq_cron_parse(found.cron, &cron);
		values[1] = TimestampTzGetDatum(jobq_cron_next(&cron,
													   jobq_cron_zone(found.timezone),
													   found.anchor,
													   jobq_now()));
		jobq_query("UPDATE jobq_internal.schedule SET paused = false, next_tick = $2,"
				   " last_error = NULL WHERE name = $1",
				   2, types, values, NULL, SPI_OK_UPDATE);
	}
	SPI_finish();
	return paused != found.paused;
}

/*
 * Statement trigger on jobq_internal.schedule.  The scheduler reads the table again after
 * commit.
 */
Datum
jobq_schedule_changed(PG_FUNCTION_ARGS)
{
	JobqDatabase *db = jobq_my_database();

	jobq_check_after_trigger(fcinfo, "jobq_internal.schedule_changed()", true);

	/* the scheduler knows its own changes */
	if (db == NULL || db->scheduler != MyProc)
		jobq_at_commit_changed(JOBQ_CHANGED_SCHEDULES);
	return PointerGetDatum(NULL);
}
