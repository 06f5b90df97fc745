/*-------------------------------------------------------------------------
 *
 * failure_commit.c
 *	  Failed attempts: at commit, they are counted by the limits of their jobs.
 *
 * A consumer may return many jobs at once, each with another key.  A throttle counts all of
 * these attempts.
 *
 * src/commit/failure_commit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"

#include "commit/inner.h"

/* Number of recent entries that are searched for an equal entry. */
#define LAST_FAILURES	16

typedef struct PendingFailure
{
	SubTransactionId subid;
	JobqPush	job;			/* queue and needs of the first job */
	int			n;
} PendingFailure;

/*
 * In the order of their subtransactions.  The memory is reused by the next transaction.
 */
static PendingFailure *failures = NULL;
static int	nfailures = 0;
static int	max_failures = 0;

/*
 * At commit, count a failed attempt of a job with this job's queue and needs against its
 * limits.  Takes no lock.  ERROR if out of memory.
 */
void
jobq_at_commit_failed(const JobqPush *job)
{
	SubTransactionId subid = GetCurrentSubTransactionId();

	for (int i = nfailures - 1; i >= Max(0, nfailures - LAST_FAILURES); i--)
		if (failures[i].subid == subid && failures[i].job.queue_id == job->queue_id &&
			memcmp(failures[i].job.needs, job->needs, sizeof(job->needs)) == 0)
		{
			failures[i].n++;
			return;
		}
	failures = jobq_grow(failures, &max_failures, nfailures + 1,
						 sizeof(PendingFailure));
	failures[nfailures++] = (PendingFailure)
	{
		subid, *job, 1
	};
}

static bool
failures_noted(void)
{
	return nfailures > 0;
}

static bool
failures_pending(JobqDatabase *db)
{
	if (db == NULL)
		nfailures = 0;
	return nfailures > 0;
}

static void
failures_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	AssertExclusive(db->lock);
	for (int i = 0; i < nfailures; i++)
		jobq_limits_failed(db, &failures[i].job, failures[i].n, now);
	nfailures = 0;
}

static void
failures_abort(SubTransactionId since)
{
	while (nfailures > 0 && failures[nfailures - 1].subid >= since)
		nfailures--;
}

static void
failures_give_back(void)
{
	Assert(nfailures == 0);
	failures = jobq_give_back(failures, &max_failures);
}

const JobqCommitBooks failure_books =
{
	.noted = failures_noted,
	.pending = failures_pending,
	.commit = failures_commit,
	.abort = failures_abort,
	.give_back = failures_give_back,
};
