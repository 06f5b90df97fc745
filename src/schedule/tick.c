/*-------------------------------------------------------------------------
 *
 * tick.c
 *	  The job of a schedule's tick.
 *
 * src/schedule/tick.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "produce/produce.h"
#include "store/store.h"
#include "schedule/schedule.h"

/* Job options not allowed for a schedule, and what to use instead. */
static const struct
{
	int			option;
	const char *name;
	const char *instead;
}			refused[] = {
#define REFUSED(name, NAME, instead) {OPTION_##NAME, #name, instead}
	REFUSED(run_at, RUN_AT, "A job of a schedule may run from its tick on."),
	REFUSED(delay, DELAY, "A job of a schedule may run from its tick on."),
	REFUSED(retry_until, RETRY_UNTIL, "Use max_attempts or expires_after."),
	REFUSED(expires_at, EXPIRES_AT, "Use expires_after, which counts from the tick."),
	REFUSED(unique_key, UNIQUE_KEY, "Use overlap => 'skip' or 'queue'."),
	REFUSED(uniqueness, UNIQUENESS, "Use overlap => 'skip' or 'queue'."),
	REFUSED(uuid, UUID, "Each tick makes another job."),
};

/*
 * Return an interval from the schedule's own options in milliseconds, or -1 if not given.
 */
static int64
own_interval(const JobqScheduledJob *scheduled, const char *name)
{
	Interval   *given = jobq_interval_from_jsonb(scheduled->options, "options",
												 name);

	return given == NULL ? -1
		: jobq_interval_ms(given, name, 1, JOBQ_MAX_DELAY_MS);
}

/*
 * Compute the options of a tick's job.  ERROR if an option is not allowed for schedules.
 */
static void
read_options(const JobqScheduledJob *scheduled, TimestampTz tick,
			 JobqTickFor what, Datum *options, bool *nulls)
{
	const char *own[] = {"expires_after", "jitter",
	what == JOBQ_TICK_CHECK ? NULL : JOBQ_KEPT_COST, NULL};
	TimestampTz run_at = tick;

	memset(nulls, true, sizeof(bool) * NOPTIONS);
	if (scheduled->options != NULL)
	{
		int64		expires_after;
		int64		jitter;

		jobq_options_from_jsonb(scheduled->options, "options", own, options,
								nulls);
		for (int i = 0; i < (int) lengthof(refused); i++)
			if (!nulls[refused[i].option])
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("a schedule cannot have the option \"%s\"",
								refused[i].name),
						 errhint("%s", refused[i].instead)));
		if (!nulls[OPTION_HEADERS] &&
			!JB_ROOT_IS_OBJECT(DatumGetJsonbP(options[OPTION_HEADERS])))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("headers of a schedule must be a JSON object"),
					 errhint("The schedule's name and the tick are added to them.")));
		expires_after = own_interval(scheduled, own[0]);
		jitter = own_interval(scheduled, own[1]);
		if (expires_after >= 0 && jitter >= expires_after)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("jitter must be shorter than expires_after"),
					 errhint("Both count from the tick: a job could expire before it may run.")));
		if (expires_after >= 0)
		{
			options[OPTION_EXPIRES_AT] = TimestampTzGetDatum(jobq_later(tick, expires_after));
			nulls[OPTION_EXPIRES_AT] = false;
		}
		if (what == JOBQ_TICK_DUE && jitter > 0)
			run_at = jobq_later(tick, (int64) (pg_prng_double(&pg_global_prng_state) *
											   (jitter + 1)));
	}
	options[OPTION_RUN_AT] = TimestampTzGetDatum(run_at);
	nulls[OPTION_RUN_AT] = false;

	/* a failed statement is tried again at the next tick */
	if (nulls[OPTION_MAX_ATTEMPTS] && jobq_is_statement(scheduled->kind))
	{
		options[OPTION_MAX_ATTEMPTS] = Int32GetDatum(1);
		nulls[OPTION_MAX_ATTEMPTS] = false;
	}
}

/*
 * Make the job of a schedule's tick.  The headers contain the name of the schedule and the
 * tick.  Except for JOBQ_TICK_CHECK, the options are stored options, with the context of the
 * schedule's creator and the job's cost at its limiter.
 */
static void
prepare_scheduled(JobqJob *job, const JobqScheduledJob *scheduled,
				  TimestampTz tick, JobqTickFor what)
{
	bool		kept = what != JOBQ_TICK_CHECK;
	Datum		options[NOPTIONS];
	bool		nulls[NOPTIONS];
	JobqUnique	unique;
	char		when[MAXDATELEN + 1];
	int			utc = 0;
	int32		cost;
	StringInfoData buf;

	read_options(scheduled, tick, what, options, nulls);
	initStringInfo(&buf);
	appendStringInfoString(&buf, "{\"schedule\": ");
	escape_json(&buf, scheduled->schedule);
	appendStringInfo(&buf, ", \"scheduled_for\": \"%s\"",
					 JsonEncodeDateTime(when, TimestampTzGetDatum(tick),
										TIMESTAMPTZOID, &utc));
	if (scheduled->previous_job != 0)
		appendStringInfo(&buf, ", \"previous_job\": " INT64_FORMAT,
						 scheduled->previous_job);
	appendStringInfoChar(&buf, '}');
	if (nulls[OPTION_HEADERS])
		options[OPTION_HEADERS] = jobq_text_to_jsonb(buf.data);
	else
		options[OPTION_HEADERS] =
			DirectFunctionCall2(jsonb_concat, options[OPTION_HEADERS],
								jobq_text_to_jsonb(buf.data));
	nulls[OPTION_HEADERS] = false;

	if (kept)
		jobq_prepare_kept_job(job, &unique, scheduled->kind, options, nulls);
	else
		jobq_prepare_job(job, &unique, scheduled->kind, options, nulls);
	jobq_set_payload(job, scheduled->payload);
	if (!kept)
		jobq_ask_limit_cost(job);
	else if (scheduled->options != NULL &&
			 (cost = jobq_kept_limit_cost(scheduled->options)) >= 0)
		JOB_SET(job, JOB_LIMIT_COST, Int32GetDatum(cost));
}

/*
 * ERROR if the current user could not enqueue the schedule's jobs.  Returns the options to
 * be stored, or NULL if there are none.  The stored options contain the context of a job
 * enqueued now, and its cost at its limiter.  May run code of users to compute the cost.
 * Used when a schedule is created or changed.
 */
Jsonb *
jobq_scheduled_check(const JobqScheduledJob *scheduled)
{
	JobqJob		job;

	prepare_scheduled(&job, scheduled, jobq_now(), JOBQ_TICK_CHECK);
	if (scheduled->options == NULL && JOB_ISNULL(&job, JOB_CONTEXT) &&
		JOB_ISNULL(&job, JOB_LIMIT_COST))
		return NULL;
	return jobq_keep_limit_cost(jobq_keep_context(scheduled->options != NULL ? scheduled->options
												  : DatumGetJsonbP(jobq_text_to_jsonb("{}")), &job),
								&job);
}

/*
 * Return true if the job of a tick has not ended.  The caller must be connected to SPI.
 * Takes no row lock.
 */
bool
jobq_scheduled_is_live(int64 id)
{
	static const Oid types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};

	return jobq_query("SELECT FROM jobq_internal.job WHERE id = $1", 1, types, values,
					  NULL, SPI_OK_SELECT) > 0;
}

/*
 * Enqueue the job of a tick on behalf of the role, and return the job's id.  ERROR if the role
 * was dropped, or the options are invalid.  The caller must have locked the schedule's row.
 */
int64
jobq_scheduled_enqueue(const JobqScheduledJob *scheduled, Oid role,
					   TimestampTz tick, JobqTickFor what)
{
	JobqJob		job;
	Relation	rel;
	JobqRoleState caller;

	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_BAD_ROLE),
				 errmsg("role with OID %u does not exist", role)));

	jobq_become_role(role, &caller);
	prepare_scheduled(&job, scheduled, tick, what);
	jobq_job_draw_id(&job);
	rel = jobq_open_jobs();
	jobq_length_reserve(&job, 1);
	jobq_job_insert(rel, &job);
	jobq_count(&job, JOBQ_N_ENQUEUED, 1);
	table_close(rel, NoLock);
	jobq_unbecome_role(&caller);
	return job_id(&job);
}
