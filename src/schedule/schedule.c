/*-------------------------------------------------------------------------
 *
 * schedule.c
 *	  schedule(), unschedule(), run_schedule(), next_ticks(); pause() and resume() of a
 *	  schedule.
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
#include "schedule/schedule.h"

PG_FUNCTION_INFO_V1(jobq_schedule);
PG_FUNCTION_INFO_V1(jobq_unschedule);
PG_FUNCTION_INFO_V1(jobq_run_schedule);
PG_FUNCTION_INFO_V1(jobq_schedule_changed);

/* The arguments of schedule(). */
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
	NARGS,						/* number of arguments with a column */
	ARG_CONTEXT = NARGS,
	ARG_SQL,
	ARG_TRANSACTION,
	ARG_DATABASE
};

/* Number of columns without an argument. */
#define NMORE		6

#define MAX_NAME	127

typedef struct Found
{
	Oid			role;
	TimestampTz anchor;
	bool		paused;
	char	   *cron;
	char	   *timezone;
	TimestampTz next_tick;		/* DT_NOBEGIN: none */
	TimestampTz last_tick;		/* DT_NOBEGIN: none */
	int64		last_job;		/* 0: none */
	bool		held;
} Found;

/* A schedule dropped by this transaction. */
typedef struct Dropped
{
	const char *name;
	Found		was;
} Dropped;

/* The last dropped first.  Valid only in the transaction dropped_in. */
static List *dropped = NIL;
static FullTransactionId dropped_in;

static bool find_schedule(Datum name, bool lock, Found *found);
static void note_dropped(const char *name, const Found *found);
static const Found *find_dropped(const char *name);
static bool is_same(const JobqCron *cron, pg_tz *zone, const Found *found);
static void check_due(const JobqCron *cron, TimestampTz next, const char *rule);
static void find_mine(const char *function, int privilege, Datum name,
					  Found *found);
static void check_may_run(const char *name, Oid role);
static void check_owner(const char *name, Oid role);
static void check_word(const char *option, Datum word, const char *first,
					   const char *second, const char *third);
static Jsonb *add_context(Jsonb *options, Jsonb *context);
static void use_statement(FunctionCallInfo fcinfo, Datum *values, char *nulls);

/*
 * Read a schedule, and lock it if "lock" is set.  Returns false if it does not exist.  The
 * caller must be connected to SPI.
 */
static bool
find_schedule(Datum name, bool lock, Found *found)
{
	static const Oid types[] = {TEXTOID};
	TupleDesc	desc;
	HeapTuple	tuple;

	if (jobq_query(psprintf("SELECT role::oid, anchor, paused, cron, timezone,"
							" coalesce(next_tick, '-infinity'), coalesce(last_tick, '-infinity'),"
							" coalesce(last_job_id, 0), held FROM jobq_internal.schedule WHERE name = $1%s",
							lock ? " FOR UPDATE" : ""),
				   1, types, &name, NULL, SPI_OK_SELECT) == 0)
		return false;
	desc = SPI_tuptable->tupdesc;
	tuple = SPI_tuptable->vals[0];
	found->role = DatumGetObjectId(jobq_column(tuple, desc, 1, OIDOID, NULL));
	found->anchor = DatumGetTimestampTz(jobq_column(tuple, desc, 2, TIMESTAMPTZOID, NULL));
	found->paused = DatumGetBool(jobq_column(tuple, desc, 3, BOOLOID, NULL));
	found->cron = SPI_getvalue(tuple, desc, 4);
	found->timezone = SPI_getvalue(tuple, desc, 5);
	found->next_tick = DatumGetTimestampTz(jobq_column(tuple, desc, 6, TIMESTAMPTZOID, NULL));
	found->last_tick = DatumGetTimestampTz(jobq_column(tuple, desc, 7, TIMESTAMPTZOID, NULL));
	found->last_job = DatumGetInt64(jobq_column(tuple, desc, 8, INT8OID, NULL));
	found->held = DatumGetBool(jobq_column(tuple, desc, 9, BOOLOID, NULL));
	return true;
}

/*
 * Note that this transaction has dropped the schedule, for a later schedule() in the same
 * transaction.
 */
static void
note_dropped(const char *name, const Found *found)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	FullTransactionId now_in = GetTopFullTransactionId();
	Dropped    *this = palloc(sizeof(Dropped));

	if (!FullTransactionIdEquals(now_in, dropped_in))
		dropped = NIL;
	dropped_in = now_in;
	this->name = pstrdup(name);
	this->was = *found;
	this->was.cron = pstrdup(found->cron);
	this->was.timezone = pstrdup(found->timezone);
	dropped = lcons(this, dropped);
	MemoryContextSwitchTo(old);
}

/*
 * Return the last schedule of this name dropped by this transaction, or NULL.
 */
static const Found *
find_dropped(const char *name)
{
	ListCell   *lc;

	if (!FullTransactionIdIsValid(dropped_in) ||
		!FullTransactionIdEquals(GetTopFullTransactionIdIfAny(), dropped_in))
		return NULL;
	foreach(lc, dropped)
	{
		const Dropped *this = lfirst(lc);

		if (strcmp(this->name, name) == 0)
			return &this->was;
	}
	return NULL;
}

/*
 * Return true if the schedule in "found" has the same ticks.  Returns false if the row's
 * expression or time zone is invalid.
 */
static bool
is_same(const JobqCron *cron, pg_tz *zone, const Found *found)
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
 * Read and lock a schedule for which the current user has the privilege.  ERROR if there is
 * none.  function: name of the SQL function, for messages.  The caller must be connected to
 * SPI.
 */
static void
find_mine(const char *function, int privilege, Datum name, Found *found)
{
	PreventCommandIfReadOnly(function);
	if (!find_schedule(name, true, found) || !jobq_may(privilege, found->role, 0))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("schedule \"%s\" does not exist",
						TextDatumGetCString(name)),
				 errhint("It may be another role's.")));
}

/*
 * ERROR if the current user may not enqueue a job of the role's schedule now, because this
 * means to enqueue a job as that role.  The conditions are the same as for rerunning a job
 * of the role.
 */
static void
check_may_run(const char *name, Oid role)
{
	if (!jobq_may(JOBQ_MAY_MANAGE, role, 0) || !jobq_may_become(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to run schedule \"%s\"", name),
				 errhint("Its own role can do this, and who sees what is in it and can SET ROLE to that role.")));
	jobq_refuse_borrowed(role);
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
check_due(const JobqCron *cron, TimestampTz next, const char *rule)
{
	if (cron->rrule != NULL && next == DT_NOEND)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("recurrence rule \"%s\" has no tick from now on", rule),
				 errhint("It has ended, or its parts never fall together in the next hundred years.")));
}

static void
check_word(const char *option, Datum word, const char *first,
		   const char *second, const char *third)
{
	char	   *given = TextDatumGetCString(word);

	if (strcmp(given, first) != 0 && strcmp(given, second) != 0 &&
		strcmp(given, third) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for %s: \"%s\"", option, given),
				 errhint("It is one of %s, %s, %s.", first, second, third)));
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
	if (PG_ARGISNULL(ARG_TRANSACTION))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("transaction must not be null")));
	values[ARG_KIND] = CStringGetTextDatum(JOBQ_SQL_KIND);
	nulls[ARG_KIND] = ' ';
	values[ARG_PAYLOAD] =
		jobq_statement_payload(text_to_cstring(PG_GETARG_TEXT_PP(ARG_SQL)),
							   PG_GETARG_BOOL(ARG_TRANSACTION),
							   PG_ARGISNULL(ARG_DATABASE) ? NULL
							   : text_to_cstring(PG_GETARG_TEXT_PP(ARG_DATABASE)));
}

/*
 * SQL function schedule(name, cron, kind, payload, timezone, missed, overlap, options,
 * context, sql, transaction, database).  Writes nothing if the schedule is so.
 */
Datum
jobq_schedule(PG_FUNCTION_ARGS)
{
	static const char *const names[ARG_OPTIONS] = {
		"name", "cron", "kind", "payload", "timezone", "missed", "overlap"
	};
	static const Oid types[NARGS + NMORE] = {
		TEXTOID, TEXTOID, TEXTOID, JSONBOID, TEXTOID, TEXTOID, TEXTOID,
		JSONBOID, TIMESTAMPTZOID, TIMESTAMPTZOID, OIDOID, BOOLOID,
		TIMESTAMPTZOID, INT8OID
	};
	Datum		values[NARGS + NMORE];
	char		nulls[NARGS + NMORE + 1];
	const char *rule;
	const Found *was;
	JobqScheduledJob job;
	JobqCron	cron;
	pg_tz	   *zone;
	TimestampTz now = jobq_now();
	TimestampTz next;
	Found		found;

	PreventCommandIfReadOnly("jobq.schedule()");
	jobq_require(JOBQ_MAY_ALL);
	for (int i = 0; i < ARG_OPTIONS; i++)
		if (PG_ARGISNULL(i) && i != ARG_KIND)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not be null", names[i])));
	for (int i = 0; i < NARGS; i++)
	{
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
		values[i] = PG_ARGISNULL(i) ? (Datum) 0 : PG_GETARG_DATUM(i);
	}

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
	if (!PG_ARGISNULL(ARG_SQL))
		use_statement(fcinfo, values, nulls);

	job.schedule = TextDatumGetCString(values[ARG_NAME]);
	if (job.schedule[0] == '\0' || strlen(job.schedule) > MAX_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("schedule name \"%s\" must have 1 to %d bytes",
						job.schedule, MAX_NAME)));
	rule = TextDatumGetCString(values[ARG_CRON]);
	jobq_cron_parse(rule, &cron);
	zone = jobq_cron_zone(TextDatumGetCString(values[ARG_TIMEZONE]));
	values[ARG_TIMEZONE] = CStringGetTextDatum(pg_get_timezone_name(zone));
	check_word("missed", values[ARG_MISSED], "skip", "once", "all");
	check_word("overlap", values[ARG_OVERLAP], "allow", "skip", "queue");
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

	next = jobq_cron_next(&cron, zone, now, now);
	values[NARGS] = TimestampTzGetDatum(now);
	values[NARGS + 1] = TimestampTzGetDatum(next);
	values[NARGS + 2] = ObjectIdGetDatum(GetUserId());
	values[NARGS + 3] = BoolGetDatum(false);
	memcpy(nulls + NARGS, "    nn", NMORE + 1);

	SPI_connect();
	if (find_schedule(values[ARG_NAME], false, &found))
	{
		check_owner(job.schedule, found.role);
		if (jobq_query("SELECT FROM jobq_internal.schedule s WHERE name = $1 AND"
					   " (cron, kind, payload, timezone, missed, overlap, options)"
					   " IS NOT DISTINCT FROM ($2, $3, $4, $5, $6, $7, $8)"
					   " AND last_error IS NULL"
					   " AND EXISTS (SELECT FROM pg_roles r WHERE r.oid = s.role)",
					   NARGS, types, values, nulls, SPI_OK_SELECT) > 0)
		{
			SPI_finish();
			PG_RETURN_VOID();
		}
	}
	for (;;)
	{
		if (find_schedule(values[ARG_NAME], true, &found))
		{
			check_owner(job.schedule, found.role);
			if (is_same(&cron, zone, &found))
				values[NARGS + 3] = BoolGetDatum(true);
			else
				check_due(&cron, next, rule);

			/*
			 * An existing schedule keeps its role, unless the role was
			 * dropped.  A paused schedule stays paused.  If the ticks are the
			 * same as before, the next tick does not change.
			 */
			jobq_query("UPDATE jobq_internal.schedule s SET kind = $3, payload = $4,"
					   " missed = $6, overlap = $7, options = $8, last_error = NULL,"
					   " cron = $2, timezone = $5, held = held AND $12,"
					   " anchor = CASE WHEN $12 THEN anchor ELSE $9 END,"
					   " next_tick = CASE WHEN paused THEN NULL WHEN $12 THEN next_tick ELSE $10 END,"
					   " role = CASE WHEN EXISTS (SELECT FROM pg_roles r WHERE r.oid = s.role) THEN role ELSE $11 END"
					   " WHERE name = $1",
					   NARGS + 4, types, values, nulls, SPI_OK_UPDATE);
			break;
		}
		was = find_dropped(job.schedule);
		if (was != NULL && !was->paused && was->role == GetUserId() &&
			was->next_tick != DT_NOBEGIN && is_same(&cron, zone, was))
		{
			/*
			 * dropped and recreated in this transaction: continue its ticks
			 */
			values[NARGS] = TimestampTzGetDatum(was->anchor);
			values[NARGS + 1] = TimestampTzGetDatum(was->next_tick);
			values[NARGS + 3] = BoolGetDatum(was->held);
			values[NARGS + 4] = TimestampTzGetDatum(was->last_tick);
			values[NARGS + 5] = Int64GetDatum(was->last_job);
			nulls[NARGS + 4] = was->last_tick == DT_NOBEGIN ? 'n' : ' ';
			nulls[NARGS + 5] = was->last_job == 0 ? 'n' : ' ';
		}
		else
			check_due(&cron, next, rule);
		if (jobq_query("INSERT INTO jobq_internal.schedule (name, cron, kind, payload,"
					   " timezone, missed, overlap, options, anchor, next_tick, role,"
					   " held, last_tick, last_job_id)"
					   " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
					   " ON CONFLICT DO NOTHING",
					   NARGS + NMORE, types, values, nulls, SPI_OK_INSERT) > 0)
		{
			/*
			 * The trigger for restored rows clears next_tick if the first
			 * tick has already passed, because the trigger cannot recognize a
			 * new schedule.  Restore the value.
			 */
			static const Oid tick_types[] = {TEXTOID, TIMESTAMPTZOID, BOOLOID};
			Datum		tick[] = {values[ARG_NAME], values[NARGS + 1], values[NARGS + 3]};

			jobq_query("UPDATE jobq_internal.schedule SET next_tick = $2, held = $3"
					   " WHERE name = $1 AND next_tick IS NULL",
					   3, tick_types, tick, NULL, SPI_OK_UPDATE);
			break;
		}
		/* another session has just created a schedule of this name */
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
	Found		found;

	SPI_connect();
	find_mine("jobq.unschedule()", JOBQ_MAY_MANAGE, name, &found);
	jobq_query("DELETE FROM jobq_internal.schedule WHERE name = $1", 1, types, &name, NULL,
			   SPI_OK_DELETE);
	note_dropped(TextDatumGetCString(name), &found);
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
	Found		found;

	SPI_connect();
	find_mine(function, JOBQ_MAY_OPERATE, values[0], &found);
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
 * SQL function run_schedule(name).  Enqueues the job of an additional tick at the present
 * time, and returns the job's id.  The regular ticks do not change.  The schedule's row is
 * locked, so neither the scheduler nor another call can enqueue a job of the schedule
 * meanwhile.  ERROR if the current user may not run the schedule, the schedule is dormant,
 * or "overlap" forbids the job.
 */
Datum
jobq_run_schedule(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {TEXTOID, TIMESTAMPTZOID, INT8OID};
	static const Oid columns[] = {TEXTOID, JSONBOID, JSONBOID, TEXTOID, INT8OID, BOOLOID};
	TimestampTz now = jobq_now();
	Datum		values[3] = {PG_GETARG_DATUM(0), TimestampTzGetDatum(now)};
	JobqScheduledJob job;
	Datum		row[6];
	bool		nulls[6];
	Found		found;
	int64		last;

	SPI_connect();
	find_mine("jobq.run_schedule()", JOBQ_MAY_MONITOR, values[0], &found);
	check_may_run(TextDatumGetCString(values[0]), found.role);
	if (jobq_query("SELECT kind, payload, options, overlap, coalesce(last_job_id, 0), dormant"
				   " FROM jobq_internal.schedule WHERE name = $1",
				   1, types, values, NULL, SPI_OK_SELECT) != 1)
		elog(ERROR, "schedule vanished while it was locked");
	jobq_check_types(SPI_tuptable->tupdesc, columns, lengthof(columns));
	heap_deform_tuple(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, row, nulls);
	job.schedule = TextDatumGetCString(values[0]);
	job.kind = TextDatumGetCString(row[0]);
	job.payload = row[1];
	job.options = nulls[2] ? NULL : DatumGetJsonbP(row[2]);
	job.previous_job = last = nulls[4] ? 0 : DatumGetInt64(row[4]);

	if (DatumGetBool(row[5]))
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("schedule \"%s\" runs on the publisher", job.schedule),
				 errhint("Call jobq.run_schedule() there, or jobq.adopt() here.")));
	if (last != 0 && strcmp(TextDatumGetCString(row[3]), "allow") != 0 &&
		jobq_scheduled_is_live(last))
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("the last job " INT64_FORMAT " of schedule \"%s\" has not finished",
						last, job.schedule),
				 errhint("Its jobs do not overlap. Wait for that job, or cancel it.")));

	values[2] = Int64GetDatum(jobq_scheduled_enqueue(&job, found.role, now, false));
	jobq_query("UPDATE jobq_internal.schedule SET last_tick = $2, last_job_id = $3"
			   " WHERE name = $1", 3, types, values, NULL, SPI_OK_UPDATE);
	SPI_finish();
	jobq_audit(fcinfo, 1);
	PG_RETURN_DATUM(values[2]);
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
