/*-------------------------------------------------------------------------
 *
 * charge.c
 *	  Charges attempts that whoever made them cannot charge any more.
 *
 * Who ran the job is gone: a worker that was terminated, or a process that has
 * crashed.  The scheduler does this; for a crash also a session in jobq.work(),
 * because there may be no scheduler, and because it must not begin a job that is
 * to be charged before that was done.
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

/* For so many looks, and milliseconds between two, a session waits for the launcher. */
#define LOOKS		500
#define LOOK_PAUSE	10

static bool is_charged(const LostAttempt *lost, const JobqJob *job);

/*
 * Charge an attempt, unless that was done before, in the caller's transaction.
 */
LostCharge
charge_lost_attempt(Relation rel, const LostAttempt *lost,
					const JobqError *error)
{
	JobqJob		job;
	JobqHandler buffer;
	const JobqHandler *handler;
	bool		by_itself = lost->crashed || lost->stop == JOBQ_STOP_TIMEOUT;
	bool		leased;
	bool		final;

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
		JOB_SET(&job, JOB_ATTEMPT, Int32GetDatum(lost->attempt + 1));
		jobq_archive(&job, STATE_CANCELLED, lost->started_at, false,
					 (Datum) 0, "cancelled while it ran");
		return LOST_GONE;
	}
	handler = jobq_handler(jobq_job_kind(&job), &buffer);
	final = lost->stop == JOBQ_STOP_TIMEOUT &&
		handler != NULL && handler->fail_on_timeout;
	if (lost->crashed)
		jobq_count(&job, JOBQ_N_CRASHED, 1);
	if (lost->crashed && lost->started_at == DT_NOBEGIN)
		jobq_count(&job, JOBQ_N_STARTED, 1);
	if (lost->crashed)
		JOB_SET(&job, JOB_CRASHES, Int16GetDatum(lost->crashes + 1));
	if (lost->stop == JOBQ_STOP_TIMEOUT)
		jobq_job_count_exception(&job);

	/* the crash may have undone how attempts before it had failed */
	if (!leased)
		JOB_SET(&job, JOB_ATTEMPT,
				Int32GetDatum(Max(job_attempt(&job), lost->attempt)));
	if (lost->crashed && !leased &&
		jobq_group_overtaken(rel, &job, GetActiveSnapshot()))
		return jobq_job_put_back(rel, &job, lost->started_at, error) ? LOST_LIVE : LOST_TAKEN;
	if (!jobq_job_delete(rel, &job))
		return LOST_TAKEN;
	return jobq_job_failed(rel, &job, lost->started_at, error, !leased, final,
						   by_itself ? -1 : 0) ? LOST_LIVE : LOST_GONE;
}

/*
 * Does the job's row show that the attempt was charged?  Its lease shows that it
 * was counted when it began, but not that it has failed.  Another lease is that of a
 * later attempt.
 *
 * After a crash the row's attempt proves nothing: it may be lower than what the
 * worker saw, because the crash undid a commit that was not flushed, or higher,
 * because the job ran again in a session.  Only the charge for a crash counts
 * the job's crashes, and it is flushed before the flight recorder forgets it.
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
 * Charge a job that was running in a process that has crashed.
 */
LostCharge
charge_culprit(Relation rel, const JobqCulprit *culprit)
{
	JobqError	error = {.sqlerrcode = ERRCODE_JOBQ_WORKER_LOST,
		.message = "the server process crashed while it ran the job"
	};
	LostAttempt lost = {.job_id = culprit->job_id,.attempt = culprit->attempt,
		.crashes = culprit->crashes,.crashed = true,.started_at = DT_NOBEGIN
	};

	return charge_lost_attempt(rel, &lost, &error);
}

/*
 * In a session that is about to run jobs of its user: charge those of them that
 * have crashed a process.  Returns whether there were any: then the caller commits
 * first, so that a crash of the next job does not undo it.
 *
 * The record is cleared the next time, in another transaction, once the charge
 * is durable.
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

	/* after a crash, the launcher first finds out whose it was */
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
		JobqJob		job;

		if (!jobq_job_find(rel, culprit.job_id, GetActiveSnapshot(), &job) ||
			DatumGetInt16(JOB(&job, JOB_CRASHES)) != culprit.crashes)
		{
			(void) jobq_flush();
			flight_clear_culprit(&culprit);
		}
		else if (job_run_as(&job) == GetUserId() &&
				 charge_culprit(rel, &culprit) != LOST_TAKEN)
			some = true;
	}
	if (some)
		charged_in = GetTopTransactionIdIfAny();
	return some;
}
