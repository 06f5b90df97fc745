/*-------------------------------------------------------------------------
 *
 * outcome.c
 *	  Tells who waits for a job what has become of it, if no table will.
 *
 * A job of a queue that keeps nothing leaves no row when it is over.  So its
 * outcome goes from the transaction that ends it to those who wait, after the
 * commit and before they are woken.
 *
 * COMMIT PREPARED does not know what the transaction has ended.  But it says that
 * there was one; and as none is prepared that has done else to such a job than
 * cancel it, who finds no trace then knows the outcome.
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

/* In the order of their subtransactions; kept from one transaction to the next. */
static PendingOutcome *outcomes = NULL;
static int	noutcomes = 0;
static int	max_outcomes = 0;

/*
 * At commit, whoever waits for the job is to know that this has become of it.
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
 * The transaction has committed: tell them, which needs no lock of the database.
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
