/*-------------------------------------------------------------------------
 *
 * run_schedule.c
 *	  run_schedule(): enqueue the job of a schedule now.
 *
 * src/schedule/run_schedule.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "produce/produce.h"
#include "store/store.h"
#include "schedule/inner.h"

PG_FUNCTION_INFO_V1(jobq_run_schedule);

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
	JobqScheduleRow found;
	int64		last;

	SPI_connect();
	jobq_schedule_find_mine("jobq.run_schedule()", JOBQ_MAY_MONITOR, values[0], &found);
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
	job.previous_job = last = DatumGetInt64(row[4]);

	if (DatumGetBool(row[5]))
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("schedule \"%s\" runs on the publisher", job.schedule),
				 errhint("Call jobq.run_schedule() there, or jobq.adopt() here.")));
	if (last != 0 && jobq_overlap_parse(TextDatumGetCString(row[3])) != JOBQ_OVERLAP_ALLOW &&
		jobq_scheduled_is_live(last))
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("the last job " INT64_FORMAT " of schedule \"%s\" has not finished",
						last, job.schedule),
				 errhint("Its jobs do not overlap. Wait for that job, or cancel it.")));

	values[2] = Int64GetDatum(jobq_scheduled_enqueue(&job, found.role, now, JOBQ_TICK_EXTRA));
	jobq_query("UPDATE jobq_internal.schedule SET last_tick = $2, last_job_id = $3"
			   " WHERE name = $1", 3, types, values, NULL, SPI_OK_UPDATE);
	SPI_finish();
	jobq_audit(fcinfo, 1);
	PG_RETURN_DATUM(values[2]);
}
