/*-------------------------------------------------------------------------
 *
 * count.c
 *	  Counts what becomes of jobs, by queue, kind and tenant, for the statistics.
 *
 * All of it counts when the transaction has committed (src/stats).
 *
 * src/store/count.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "lib/stringinfo.h"
#include "utils/timestamp.h"

#include "store/store.h"

/* What is farther away is entered for then, if the row does not tell when it came. */
#define NEAR	(60 * USECS_PER_DAY)

/*
 * The job's names, as they lie in its row.
 */
static void
get_names(const JobqJob *job, text **kind, text **tenant)
{
	*kind = DatumGetTextPP(JOB(job, JOB_KIND));
	*tenant = JOB_ISNULL(job, JOB_TENANT) ? NULL
		: DatumGetTextPP(JOB(job, JOB_TENANT));
}

/*
 * Where what this transaction does to jobs like this one is noted; or NULL.
 */
static JobqStatNote *
note_of(const JobqJob *job)
{
	JobqStatAt *at = &unconstify(JobqJob *, job)->stat;
	JobqStatNote *note;
	text	   *kind;
	text	   *tenant;

	if (jobq_shared == NULL)
		return NULL;
	if (at->base != NULL && (note = jobq_stats_note_at(at)) != NULL)
		return note;
	get_names(job, &kind, &tenant);
	return jobq_stats_note(jobq_relations()->job, job_queue_id(job), job_role(job),
						   VARDATA_ANY(kind), VARSIZE_ANY_EXHDR(kind),
						   tenant == NULL ? "" : VARDATA_ANY(tenant),
						   tenant == NULL ? 0 : VARSIZE_ANY_EXHDR(tenant), at);
}

/*
 * The place in shared memory where jobs like this one are counted, or JOBQ_NONE.
 */
uint32
jobq_count_place(const JobqJob *job)
{
	JobqStatAt *at = &unconstify(JobqJob *, job)->stat;
	text	   *kind;
	text	   *tenant;

	if (jobq_shared == NULL)
		return JOBQ_NONE;
	get_names(job, &kind, &tenant);
	return jobq_stats_place(jobq_relations()->job, job_queue_id(job), job_role(job),
							VARDATA_ANY(kind), VARSIZE_ANY_EXHDR(kind),
							tenant == NULL ? "" : VARDATA_ANY(tenant),
							tenant == NULL ? 0 : VARSIZE_ANY_EXHDR(tenant), at);
}

/*
 * Does the job wait for a time, or has it, until its slot in the calendar is over?
 * Which time that is, and how far away it was when it was entered.
 *
 * The row of a job that was enqueued for a later time, and has not failed, tells both,
 * and always the same.  That of one that waits for another attempt, or was freed, does not
 * tell when it was written: so one that goes before its time is struck out as if it
 * were entered now.  One place may have too many by that, and another too few, until
 * both are behind.
 */
bool
jobq_count_when(const JobqJob *job, TimestampTz now, TimestampTz *run_at, int64 *away)
{
	TimestampTz enqueued_at = DatumGetTimestampTz(JOB(job, JOB_ENQUEUED_AT));

	*run_at = job_run_at(job);
	if (JOB_ISNULL(job, JOB_ERRORS) && job_batch(job) == 0)
	{
		*away = *run_at - enqueued_at;
		return *run_at > enqueued_at;
	}
	*run_at = Min(*run_at, now + NEAR);
	*away = *run_at - now;
	return *away > 0;
}

/*
 * So many rows like this one have come into jobq_internal.job, or if n is negative,
 * have gone.  Dormant ones count when they are adopted.
 */
void
jobq_count_rows(const JobqJob *job, int n)
{
	JobqStatNote *note;
	TimestampTz run_at;
	int64		away;

	if (DatumGetBool(JOB(job, JOB_DORMANT)))
		return;
	note = note_of(job);
	if (note == NULL)
		return;
	note->gauges[JOBQ_LIVE] += n;
	if (job_blocked(job))
		note->gauges[JOBQ_BLOCKED] += n;
	else if (jobq_count_when(job, jobq_last_now, &run_at, &away))
		jobq_stats_note_run_at(note, run_at, away, n);
}

/*
 * The place in shared memory where dead letters like this one are counted, or
 * JOBQ_NONE.
 */
uint32
jobq_letter_place(const JobqLetterName * name)
{
	JobqStatAt	unused;

	if (jobq_shared == NULL)
		return JOBQ_NONE;
	return jobq_stats_place(jobq_relations()->job, name->queue_id, name->role,
							VARDATA_ANY(name->kind), VARSIZE_ANY_EXHDR(name->kind),
							name->tenant == NULL ? "" : VARDATA_ANY(name->tenant),
							name->tenant == NULL ? 0 : VARSIZE_ANY_EXHDR(name->tenant),
							&unused);
}

/*
 * So many dead letters like this one have come, or if n is negative, have gone.
 */
void
jobq_count_letter(const JobqLetterName * name, int n)
{
	JobqStatNote *note;
	JobqStatAt	unused;

	if (jobq_shared == NULL)
		return;
	note = jobq_stats_note(jobq_relations()->job, name->queue_id, name->role,
						   VARDATA_ANY(name->kind), VARSIZE_ANY_EXHDR(name->kind),
						   name->tenant == NULL ? "" : VARDATA_ANY(name->tenant),
						   name->tenant == NULL ? 0 : VARSIZE_ANY_EXHDR(name->tenant),
						   &unused);
	if (note != NULL)
		note->gauges[JOBQ_LETTERS] += n;
}

/*
 * So many jobs like this one have come to that.
 */
void
jobq_count(const JobqJob *job, JobqCounter what, int n)
{
	JobqStatNote *note = note_of(job);

	if (note != NULL)
		note->counters[what] += n;
}

/*
 * An attempt has ended that began at this time, or never did if that is DT_NOBEGIN;
 * "what" has become of the job.  Its run_at is still the one by which it has begun.
 */
void
jobq_count_attempt(const JobqJob *job, JobqCounter what, TimestampTz started_at,
				   TimestampTz now)
{
	JobqStatNote *note = note_of(job);

	if (note == NULL)
		return;
	if (what != JOBQ_N_STARTED)
		note->counters[what]++;
	if (started_at == DT_NOBEGIN)
		return;
	note->counters[JOBQ_N_STARTED]++;
	jobq_stats_note_times(note,
						  started_at - Max(job_run_at(job),
										   DatumGetTimestampTz(JOB(job, JOB_ENQUEUED_AT))),
						  now - started_at);
}

/*
 * Append what the run of this job has used so far, as a JSON object with this text before
 * it.  False, and nothing is appended, if it does not run in this process.
 */
bool
jobq_append_cost(StringInfo buf, const char *before, const JobqJob *job)
{
	JobqBill	spent;

	if (!jobq_bill_spent(job_id(job), &spent))
		return false;
	appendStringInfo(buf, "%s{\"cpu_ms\": " INT64_FORMAT ".%03d, \"buffers\": " INT64_FORMAT
					 ", \"buffers_read\": " INT64_FORMAT ", \"wal_bytes\": " INT64_FORMAT
					 ", \"temp_bytes\": " INT64_FORMAT "}",
					 before, spent.n[JOBQ_COST_CPU] / 1000, (int) (spent.n[JOBQ_COST_CPU] % 1000),
					 spent.n[JOBQ_COST_BUFFERS], spent.n[JOBQ_COST_READ],
					 spent.n[JOBQ_COST_WAL], spent.n[JOBQ_COST_TEMP]);
	return true;
}
