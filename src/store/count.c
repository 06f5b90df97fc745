/*-------------------------------------------------------------------------
 *
 * count.c
 *	  Counts of job outcomes by queue, kind and tenant, for the statistics.
 *
 * All counts take effect when the transaction commits (src/stats).
 *
 * src/store/count.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "lib/stringinfo.h"
#include "utils/timestamp.h"

#include "store/store.h"

/*
 * Maximum distance in the calendar of a job, if the row does not show the time of the entry.
 */
#define NEAR	(60 * USECS_PER_DAY)

/* Return the name for the statistics, with pointers to the texts. */
static JobqStatKey
stat_key(const JobqLetterName * name)
{
	return (JobqStatKey)
	{
		.queue_id = name->queue_id,.role = name->role,
			.kind = VARDATA_ANY(name->kind),.kind_length = VARSIZE_ANY_EXHDR(name->kind),
			.tenant = name->tenant == NULL ? "" : VARDATA_ANY(name->tenant),
			.tenant_length = name->tenant == NULL ? 0 : VARSIZE_ANY_EXHDR(name->tenant)
	};
}

static JobqStatKey
stat_key_of_job(const JobqJob *job)
{
	JobqLetterName name = {
		.queue_id = job_queue_id(job),.role = job_role(job),
		.kind = DatumGetTextPP(JOB(job, JOB_KIND)),
		.tenant = JOB_ISNULL(job, JOB_TENANT) ? NULL : DatumGetTextPP(JOB(job, JOB_TENANT))
	};

	return stat_key(&name);
}

/* Return this transaction's note for jobs with these names, or NULL. */
static JobqStatNote *
note_of(const JobqJob *job)
{
	JobqStatAt *at = &unconstify(JobqJob *, job)->stat;
	JobqStatNote *note;
	JobqStatKey key;

	if (jobq_shared == NULL)
		return NULL;
	if (at->base != NULL && (note = jobq_stats_note_at(at)) != NULL)
		return note;
	key = stat_key_of_job(job);
	return jobq_stats_note(jobq_relations()->job, &key, at);
}

/*
 * Return the slot in shared memory for counts of jobs like this one, or JOBQ_NONE.
 */
uint32
jobq_count_place(const JobqJob *job)
{
	JobqStatAt *at = &unconstify(JobqJob *, job)->stat;
	JobqStatKey key;

	if (jobq_shared == NULL)
		return JOBQ_NONE;
	key = stat_key_of_job(job);
	return jobq_stats_place(jobq_relations()->job, &key, at);
}

/*
 * Return whether the job counts as waiting for a time, up to the end of the time's slot in the
 * calendar. *run_at is the time. *away is the distance to the time, in microseconds, when the
 * job was entered.
 *
 * The row of a job enqueued for a later time, without a failure, always shows both values.
 * The row of a retried or unblocked job does not show when the row was written.  If this job
 * leaves early, its removal is computed as if the job were entered now.  A slot may then
 * count too many jobs, and another slot too few, until both times have passed.
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
 * Count n inserted rows like this one in jobq_internal.job, or deleted rows if n is negative.
 * Dormant jobs count when they are adopted.
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
 * Return the slot in shared memory for counts of dead letters like this one, or JOBQ_NONE.
 */
uint32
jobq_letter_place(const JobqLetterName * name)
{
	JobqStatAt	unused;
	JobqStatKey key = stat_key(name);

	return jobq_shared == NULL ? JOBQ_NONE
		: jobq_stats_place(jobq_relations()->job, &key, &unused);
}

/* Count n new dead letters like this one, or removed ones if n is negative. */
void
jobq_count_letter(const JobqLetterName * name, int n)
{
	JobqStatNote *note;
	JobqStatAt	unused;
	JobqStatKey key = stat_key(name);

	if (jobq_shared == NULL)
		return;
	note = jobq_stats_note(jobq_relations()->job, &key, &unused);
	if (note != NULL)
		note->gauges[JOBQ_LETTERS] += n;
}

/* Add n to a counter of jobs like this one. */
void
jobq_count(const JobqJob *job, JobqCounter what, int n)
{
	JobqStatNote *note = note_of(job);

	if (note != NULL)
		note->counters[what] += n;
}

/*
 * Count the end of an attempt.  what: the outcome of the job.  started_at: DT_NOBEGIN if the
 * attempt never began.  The job must still have the run_at of this attempt.
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
 * Append the resources used so far by the run of this job, as a JSON object after the text
 * "before".  Returns false and appends nothing if the job does not run in this process.
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
