/*-------------------------------------------------------------------------
 *
 * outcome.c
 *	  Outcomes of jobs without a row, for waiting sessions.
 *
 * A job of a queue that keeps nothing leaves no row at its end.  The transaction that ends the
 * job reports the outcome to waiting sessions, after the commit and before they are woken.
 *
 * COMMIT PREPARED does not know which jobs the prepared transaction has ended.  But waiting
 * sessions learn that a prepared transaction has committed.  A prepared transaction can only
 * cancel jobs without a row.  A waiting session that finds no row therefore knows the outcome.
 *
 * src/commit/outcome.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"

#include "commit/inner.h"

typedef struct PendingOutcome
{
	JobqEnding	outcome;
	SubTransactionId subid;
} PendingOutcome;

/*
 * In the order of their subtransactions.  The memory is reused by the next transaction.
 */
static PendingOutcome *outcomes = NULL;
static int	noutcomes = 0;
static int	max_outcomes = 0;

/*
 * At commit, report this outcome of the job to the sessions waiting for the job.  Takes no
 * lock.  ERROR if out of memory.
 */
void
jobq_at_commit_outcome(int64 job_id, Oid role, char state)
{
	PendingOutcome *pending;

	outcomes = jobq_grow(outcomes, &max_outcomes, noutcomes + 1,
						 sizeof(PendingOutcome));
	pending = &outcomes[noutcomes++];
	pending->outcome.job_id = job_id;
	pending->outcome.role = role;
	pending->outcome.state = state;
	pending->subid = GetCurrentSubTransactionId();
}

static bool
outcomes_noted(void)
{
	return noutcomes > 0;
}

/*
 * The transaction has committed: report the outcomes.  Needs no lock of the database.
 */
static bool
outcomes_pending(JobqDatabase *db)
{
	for (int i = 0; i < noutcomes && jobq_anybody_waits(); i++)
		jobq_tell_waiters(MyDatabaseId, &outcomes[i].outcome);
	noutcomes = 0;
	return false;
}

static void
outcomes_abort(SubTransactionId since)
{
	while (noutcomes > 0 && outcomes[noutcomes - 1].subid >= since)
		noutcomes--;
}

static void
outcomes_check_prepare(void)
{
	for (int i = 0; i < noutcomes; i++)
		if (outcomes[i].outcome.state != JOBQ_ENDING_CANCELLED)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has finished job " INT64_FORMAT " of a queue that keeps nothing",
							outcomes[i].outcome.job_id),
					 errhint("Such jobs can only be cancelled in it.")));
}

static void
outcomes_give_back(void)
{
	Assert(noutcomes == 0);
	outcomes = jobq_give_back(outcomes, &max_outcomes);
}

const JobqCommitBooks outcome_books = {
	.noted = outcomes_noted,
	.pending = outcomes_pending,
	.abort = outcomes_abort,
	.check_prepare = outcomes_check_prepare,
	.give_back = outcomes_give_back,
};
