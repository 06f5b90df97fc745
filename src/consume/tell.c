/*-------------------------------------------------------------------------
 *
 * tell.c
 *	  set_progress(), log(): reports of a consumer about a leased job.
 *
 * The token fences the job, as in ack.c.
 *
 * src/consume/tell.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"
#include "mb/pg_wchar.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "attempt/attempt.h"
#include "commit/commit.h"
#include "consume/consume.h"

PG_FUNCTION_INFO_V1(jobq_report_progress);
PG_FUNCTION_INFO_V1(jobq_report_log);

/*
 * set_progress(id, token, percent, message): publish the progress of a leased job.  Visible at
 * once, before the transaction commits.  ERROR if the lease is lost.  Takes db->lock
 * exclusively.
 */
Datum
jobq_report_progress(PG_FUNCTION_ARGS)
{
	JobqDatabase *db;
	JobqLease	copy;
	JobqLease  *lease;
	Relation	rel;
	JobqJob		job;
	Held		held;
	float4		percent = jobq_percent_arg(fcinfo, 2);
	char	   *message = PG_ARGISNULL(3) ? pstrdup("")
		: text_to_cstring(PG_GETARG_TEXT_PP(3));

	jobq_get_held(fcinfo, &held, "jobq.set_progress()");
	message[pg_mbcliplen(message, strlen(message), JOBQ_LEASE_MESSAGE - 1)] = '\0';
	db = jobq_served_database("jobq.set_progress()");
	copy = jobq_check_lease(db, held.ids[0], held.tokens[0], NULL);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	lease = jobq_lease_find(db, held.ids[0]);
	if (lease != NULL && lease->token == held.tokens[0])
	{
		lease->progress = percent;
		strlcpy(lease->message, message, JOBQ_LEASE_MESSAGE);
	}
	LWLockRelease(db->lock);

	/* if this transaction made the reservation, notify at its commit */
	rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	if (jobq_read_held(rel, &copy, &job))
		jobq_tell_running(&job, job_attempt(&job) + 1, percent,
						  !jobq_leases_noted());
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}

/*
 * log(id, token, message, level): add a line to the log of a leased job.  The line is visible
 * at once, and stays if the transaction rolls back.  ERROR if the lease is lost.  Takes
 * db->lock in shared mode.  A set handler gives a null token.
 */
Datum
jobq_report_log(PG_FUNCTION_ARGS)
{
	int64		id;
	int64		token;
	JobqDatabase *db;
	JobqLease  *lease;
	JobqLease	copy;
	Relation	rel;
	JobqJob		job;
	char	   *line;
	bool		found;
	JobqCurrent *current = jobq_job_of_set(fcinfo, "jobq.log()");

	if (current != NULL)
	{
		jobq_log_add(current, jobq_log_line(fcinfo, 2, current->attempt));
		PG_RETURN_VOID();
	}
	PreventCommandIfReadOnly("jobq.log()");
	for (int i = 0; i < 2; i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s needs the job's id and token", "jobq.log()")));
	id = PG_GETARG_INT64(0);
	token = PG_GETARG_INT64(1);
	db = jobq_served_database("jobq.log()");
	copy = jobq_check_lease(db, id, token, NULL);
	rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	found = jobq_read_held(rel, &copy, &job);
	table_close(rel, NoLock);
	if (!found)
		jobq_lease_lost(id);
	line = jobq_log_line(fcinfo, 2, job_attempt(&job) + 1);

	LWLockAcquire(db->lock, LW_SHARED);
	lease = jobq_lease_find(db, id);
	found = lease != NULL && lease->token == token;
	if (found)
		(void) jobq_lines_add(&lease->lines,
							  db->leases->bundles[lease->bundle].role, id, line);
	LWLockRelease(db->lock);
	if (!found)
		jobq_lease_lost(id);
	PG_RETURN_VOID();
}
