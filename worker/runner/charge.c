/*-------------------------------------------------------------------------
 *
 * charge.c
 *	  Charges attempts of processes that are gone.
 *
 * The process was a terminated worker, or has crashed.  The scheduler charges these attempts.
 * After a crash, a session in jobq.work() does so as well, because there may be no scheduler.
 * The session must not begin a job before the job's crash is charged.
 *
 * worker/runner/charge.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"

/*
 * Number and pause (in milliseconds) of the checks with which a session waits for the
 * launcher.
 */
#define LOOKS		500
#define LOOK_PAUSE	10

static void end_stopped(Relation rel, JobqJob *job, const LostAttempt *lost, int attempt);
static bool is_charged(const LostAttempt *lost, const JobqJob *job);

/*
 * Charge an attempt in the caller's transaction, unless it was charged before.  The active
 * snapshot must see the job's row.  Returns the outcome for the job.
 */
LostCharge
charge_lost_attempt(Relation rel, const LostAttempt *lost,
					const JobqError *error)
{
	JobqJob		job;
	JobqHandler buffer;
	const JobqHandler *handler;
	bool		by_itself = lost->crashed || lost->stop == JOBQ_STOP_TIMEOUT;
	JobqFailure failure = {
		.started_at = lost->started_at,.error = error,.delay_ms = by_itself ? -1 : 0
	};
	bool		leased;

	if (!jobq_job_find(rel, lost->job_id, GetActiveSnapshot(), &job))
		return LOST_GONE;
	leased = job_leased(&job);
	if (lost->stop != JOBQ_STOP_CANCEL && is_charged(lost, &job))
		return LOST_BEFORE;

	if (lost->slot != NULL)
		jobq_log_keep_told(jobq_my_database(), lost->slot, &job);
	if (lost->stop == JOBQ_STOP_CANCEL)
	{
		if (!jobq_job_delete(rel, &job))
			return LOST_TAKEN;
		end_stopped(rel, &job, lost, lost->attempt);
		return LOST_ENDED;
	}
	handler = jobq_handler(jobq_job_kind(&job), &buffer);
	failure.final = lost->stop == JOBQ_STOP_TIMEOUT &&
		handler != NULL && handler->fail_on_timeout;
	if (lost->crashed)
		jobq_count(&job, JOBQ_N_CRASHED, 1);
	if (lost->crashed && lost->started_at == DT_NOBEGIN)
		jobq_count(&job, JOBQ_N_STARTED, 1);
	if (lost->crashed)
		JOB_SET(&job, JOB_CRASHES, Int16GetDatum(lost->crashes + 1));
	if (lost->stop == JOBQ_STOP_TIMEOUT)
		jobq_job_count_exception(&job);

	/* the crash may have undone the records of earlier failed attempts */
	if (!leased)
		JOB_SET(&job, JOB_ATTEMPT,
				Int32GetDatum(Max(job_attempt(&job), lost->attempt)));
	if (lost->crashed && !leased &&
		jobq_group_overtaken(rel, &job, GetActiveSnapshot()))
		return jobq_job_put_back(rel, &job, lost->started_at, error) ? LOST_LIVE : LOST_TAKEN;
	if (!jobq_job_delete(rel, &job))
		return LOST_TAKEN;
	failure.charge = !leased;
	return jobq_job_failed(rel, &job, &failure) ? LOST_LIVE : LOST_ENDED;
}

/*
 * The lost worker was to stop this job, because of cancel(): cancel the job.  The caller has
 * deleted the job's row.  attempt: attempts charged before.
 */
static void
end_stopped(Relation rel, JobqJob *job, const LostAttempt *lost, int attempt)
{
	JOB_SET(job, JOB_ATTEMPT, Int32GetDatum(attempt + 1));
	jobq_archive(job, CAUSE_STOPPED, lost->started_at, false, (Datum) 0, NULL);
	jobq_cancel_asked(rel, job);
}

/*
 * True if the job's row shows that the attempt was charged.  A lease proves that the attempt
 * was counted at the start, but does not prove a failure.  Another lease belongs to a later
 * attempt.
 *
 * After a crash the row's attempt number proves nothing.  The row's number may be lower than
 * the worker's, because the crash undid a commit that was not flushed.  The row's number may
 * be higher, because the job ran again in a session.  Only the charge for a crash changes
 * the job's number of crashes.  The charge is flushed before the flight recorder forgets the
 * crash.
 */
static bool
is_charged(const LostAttempt *lost, const JobqJob *job)
{
	if (lost->crashed)
		return DatumGetInt16(JOB(job, JOB_CRASHES)) != lost->crashes;
	if (job_leased(job))
		return DatumGetInt64(JOB(job, JOB_LEASE_TOKEN)) != lost->lease;
	return job_attempt(job) != lost->attempt;
}

/*
 * The process is gone that ran this job together with others, and any of them may be the
 * cause.  Make the job a suspect, which runs alone, without a charge.  Does nothing if the job
 * has finished or is a suspect already.  njobs: for the job's log.  slot: of the worker, or NULL.
 */
static LostCharge
suspect(Relation rel, int64 id, int njobs, JobqSlot *slot)
{
	JobqJob		job;

	if (!jobq_job_find(rel, id, GetActiveSnapshot(), &job) || job_leased(&job))
		return LOST_GONE;
	if (job_suspect(&job) || DatumGetInt16(JOB(&job, JOB_CRASHES)) > 0)
		return LOST_BEFORE;
	if (!jobq_job_delete(rel, &job))
		return LOST_TAKEN;
	if (slot != NULL)
		jobq_log_keep_told(jobq_my_database(), slot, &job);
	JOB_SET(&job, JOB_TOGETHER, Int16GetDatum(1));
	jobq_log_say(&job, psprintf("given back without a charge: its worker was lost, which ran %d jobs together", njobs));

	/* several jobs of a group may have run, so the group waits for none */
	if (JOB_ISNULL(&job, JOB_GROUP_HELD))
		jobq_job_insert_back(rel, &job);
	else
		jobq_job_insert_again(rel, &job);
	jobq_state_changed(&job, jobq_waiting_state(&job, jobq_now()));
	return LOST_LIVE;
}

/*
 * A worker is lost that ran these jobs together: charge none of them, in the caller's
 * transaction.  Jobs named by cancel() are cancelled.  The other jobs become suspects, unless the
 * worker was terminated because of cancel().  A job whose row another session has locked does not
 * become a suspect; the job may have left the set before the call for this reason.  Returns the
 * number of jobs to be cancelled whose row is locked; their ids are the first elements of
 * "locked".
 */
int
charge_together(Relation rel, const JobqMembers *members, const LostAttempt *lost,
				int64 *locked)
{
	int			nlocked = 0;

	for (int i = 0; i < members->n; i++)
	{
		const JobqMember *member = &members->jobs[i];
		JobqJob		job;

		if (!member->stop)
		{
			if (lost->stop != JOBQ_STOP_CANCEL)
				(void) suspect(rel, member->job, members->n, lost->slot);
			continue;
		}
		if (!jobq_job_find(rel, member->job, GetActiveSnapshot(), &job))
			continue;
		if (!jobq_job_delete(rel, &job))
		{
			locked[nlocked++] = member->job;
			continue;
		}
		if (lost->slot != NULL)
			jobq_log_keep_told(jobq_my_database(), lost->slot, &job);
		end_stopped(rel, &job, lost, member->attempt);
	}
	return nlocked;
}

/*
 * Charge a job that was running in a crashed process, in the caller's transaction.  If several
 * jobs ran together, make them suspects instead.  The result is then LOST_LIVE if any job has
 * become a suspect, or else LOST_TAKEN if the row of any job is locked.
 */
LostCharge
charge_culprit(Relation rel, const JobqCulprit *culprit)
{
	LostCharge	outcome = LOST_GONE;
	JobqError	error = {.sqlerrcode = ERRCODE_JOBQ_WORKER_LOST,
		.message = "the server process crashed while it ran the job"
	};
	LostAttempt lost = {.job_id = culprit->job_id,.attempt = culprit->attempt,
		.crashes = culprit->crashes,.crashed = true,.started_at = DT_NOBEGIN
	};

	if (culprit->nmembers == 0)
		return charge_lost_attempt(rel, &lost, &error);
	for (int i = 0; i < culprit->nmembers; i++)
	{
		LostCharge	charged = suspect(rel, culprit->members[i], culprit->nmembers, NULL);

		if (charged == LOST_LIVE || (charged == LOST_TAKEN && outcome != LOST_LIVE))
			outcome = charged;
	}
	return outcome;
}

/*
 * Does the culprit run as the current user?  The jobs of a set run as the same role.  Also true
 * if no job is left.
 */
static bool
is_own(Relation rel, const JobqCulprit *culprit)
{
	JobqJob		job;

	if (culprit->nmembers == 0)
		return !jobq_job_find(rel, culprit->job_id, GetActiveSnapshot(), &job) ||
			job_run_as(&job) == GetUserId();
	for (int i = 0; i < culprit->nmembers; i++)
		if (jobq_job_find(rel, culprit->members[i], GetActiveSnapshot(), &job))
			return job_run_as(&job) == GetUserId();
	return true;
}

/*
 * Charge the jobs of the current user that crashed a process, before this session runs jobs.
 * Returns true if a job was charged, or made a suspect.  The caller then commits first, so that a
 * crash of the next job does not undo the charge.  A job whose row is locked is left for the next
 * call, and does not begin before (charge_pending()).  Waits for the launcher to read the flight
 * recorder.
 *
 * The record is cleared at the next call, in another transaction, once the charge is durable.
 */
bool
charge_crashed(Relation rel)
{
	static bool alone = false;	/* there is no launcher */
	static TransactionId charged_in = InvalidTransactionId;
	TransactionId xid = GetTopTransactionIdIfAny();
	static uint32 wait_event = 0;
	JobqCulprit culprit;
	bool		some = false;

	if (jobq_shared == NULL || !IsUnderPostmaster || alone ||
		(TransactionIdIsValid(xid) && xid == charged_in))
		return false;

	/* after a crash, the launcher first determines the culprit */
	for (int i = 0; i < LOOKS && !jobq_shared->flight_read; i++)
	{
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LOOK_PAUSE, jobq_wait_event(wait_event, "JobqCrashes"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	alone = !jobq_shared->flight_read;
	if (alone)
		return false;
	flight_open(false);
	flight_attach(true);

	for (int next = 0; flight_culprit(MyDatabaseId, &next, &culprit);)
	{
		if (!is_own(rel, &culprit))
			continue;
		switch (charge_culprit(rel, &culprit))
		{
			case LOST_LIVE:
			case LOST_ENDED:
				some = true;
				break;
			case LOST_GONE:
			case LOST_BEFORE:
				(void) jobq_flush();
				flight_clear_culprit(&culprit);
				break;
			case LOST_TAKEN:
				break;
		}
	}
	if (some)
		charged_in = GetTopTransactionIdIfAny();
	Assert(!some || TransactionIdIsValid(charged_in));
	return some;
}

/*
 * Must this job be charged with a crash before it begins?  True as long as another session has
 * locked the row.  The process that charges the job writes a new version of the row, and thereby
 * hands the job over.
 */
bool
charge_pending(const JobqJob *job)
{
	return flight_accuses(job_id(job), DatumGetInt16(JOB(job, JOB_CRASHES)),
						  job_suspect(job));
}
