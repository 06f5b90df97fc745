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
#include "utils/memutils.h"

#include "commit/inner.h"

#define FEW_OUTCOMES	64

typedef struct PendingOutcome
{
	JobqEnding	outcome;
	SubTransactionId subid;
} PendingOutcome;

/* In the order of their subtransactions; a few need no memory. */
static PendingOutcome few[FEW_OUTCOMES];
static PendingOutcome *outcomes = few;
static int	noutcomes = 0;
static int	max_outcomes = FEW_OUTCOMES;

static void
reset(void)
{
	noutcomes = 0;
	max_outcomes = FEW_OUTCOMES;
	outcomes = few;				/* the others go with the transaction */
}

/*
 * At commit, whoever waits for the job is to know that this has become of it.
 */
void
jobq_at_commit_outcome(int64 job_id, Oid role, char state)
{
	PendingOutcome *pending;

	if (noutcomes == max_outcomes)
	{
		PendingOutcome *more =
			MemoryContextAllocHuge(TopTransactionContext,
								   sizeof(PendingOutcome) * max_outcomes * 2);

		memcpy(more, outcomes, sizeof(PendingOutcome) * noutcomes);
		if (outcomes != few)
			pfree(outcomes);
		outcomes = more;
		max_outcomes *= 2;
	}
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
	reset();
	return false;
}

static void
outcomes_abort(SubTransactionId since)
{
	if (since == InvalidSubTransactionId)
		reset();
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

const JobqCommitBooks outcome_books = {
	.noted = outcomes_noted,
	.pending = outcomes_pending,
	.abort = outcomes_abort,
	.check_prepare = outcomes_check_prepare,
};
