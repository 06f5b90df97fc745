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
#include "miscadmin.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "produce/enqueue.h"
#include "store/store.h"
#include "schedule/schedule.h"

static void prepare_scheduled(JobqJob *job, const JobqScheduledJob *scheduled,
							  TimestampTz tick);

/*
 * The job of a schedule's tick; its headers tell which.
 */
static void
prepare_scheduled(JobqJob *job, const JobqScheduledJob *scheduled,
				  TimestampTz tick)
{
	static const int option[NSCHEDULE_OPTIONS] = {
		[SCHEDULE_QUEUE] = OPTION_QUEUE,
		[SCHEDULE_PRIORITY] = OPTION_PRIORITY,
		[SCHEDULE_MAX_ATTEMPTS] = OPTION_MAX_ATTEMPTS,
		[SCHEDULE_BACKOFF] = OPTION_BACKOFF,
		[SCHEDULE_TIMEOUT] = OPTION_TIMEOUT,
		[SCHEDULE_HEADERS] = OPTION_HEADERS,
		[SCHEDULE_EXPIRES_AFTER] = OPTION_EXPIRES_AT,
		[SCHEDULE_GROUP_KEY] = OPTION_GROUP_KEY,
	};
	Datum		options[NOPTIONS];
	bool		nulls[NOPTIONS];
	JobqUnique	unique;
	char		when[MAXDATELEN + 1];
	int			utc = 0;
	StringInfoData buf;

	memset(nulls, true, sizeof(nulls));
	for (int i = 0; i < NSCHEDULE_OPTIONS; i++)
	{
		options[option[i]] = scheduled->options[i];
		nulls[option[i]] = scheduled->nulls[i];
	}
	options[OPTION_RUN_AT] = TimestampTzGetDatum(tick);
	nulls[OPTION_RUN_AT] = false;
	if (!nulls[OPTION_EXPIRES_AT])
	{
		Interval   *after = DatumGetIntervalP(options[OPTION_EXPIRES_AT]);
		int64		ms = jobq_interval_ms(after, "expires_after", 1,
										  JOBQ_MAX_DELAY_MS);

		options[OPTION_EXPIRES_AT] = TimestampTzGetDatum(tick + ms * 1000);
	}

	initStringInfo(&buf);
	appendStringInfoString(&buf, "{\"schedule\": ");
	escape_json(&buf, scheduled->schedule);
	appendStringInfo(&buf, ", \"scheduled_for\": \"%s\"}",
					 JsonEncodeDateTime(when, TimestampTzGetDatum(tick),
										TIMESTAMPTZOID, &utc));
	if (nulls[OPTION_HEADERS])
		options[OPTION_HEADERS] = jobq_text_to_jsonb(buf.data);
	else
		options[OPTION_HEADERS] =
			DirectFunctionCall2(jsonb_concat, options[OPTION_HEADERS],
								jobq_text_to_jsonb(buf.data));
	nulls[OPTION_HEADERS] = false;

	jobq_prepare_job(job, &unique, scheduled->kind, options, nulls);
	jobq_set_payload(job, scheduled->payload);
}

/*
 * Could this user enqueue such a job?  An error if not.
 */
void
jobq_scheduled_check(const JobqScheduledJob *scheduled)
{
	JobqJob		job;

	prepare_scheduled(&job, scheduled, jobq_now());
}

/*
 * Enqueue the job of a tick on behalf of the role; returns its id.
 */
int64
jobq_scheduled_enqueue(const JobqScheduledJob *scheduled, Oid role,
					   TimestampTz tick)
{
	JobqJob		job;
	Relation	rel;
	Oid			userid;
	int			sec_context;

	/* no code of the role's runs: this is about whose job it is */
	GetUserIdAndSecContext(&userid, &sec_context);
	SetUserIdAndSecContext(role, sec_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
	prepare_scheduled(&job, scheduled, tick);
	rel = jobq_open_jobs();
	jobq_length_reserve(job_queue_id(&job), 1);
	jobq_job_insert(rel, &job);
	table_close(rel, NoLock);
	SetUserIdAndSecContext(userid, sec_context);
	return job_id(&job);
}
