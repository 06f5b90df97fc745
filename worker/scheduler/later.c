/*-------------------------------------------------------------------------
 *
 * later.c
 *	  Retries work on a single job after an error.
 *
 * The scheduler ends leases, charges jobs of broken roles or lost workers, and carries
 * out pending cancellations.  The work may fail for one job: a row is locked, or a part
 * of the job's row cannot be read.  The job is then tried again after a growing pause,
 * and the remaining work continues.
 *
 * worker/scheduler/later.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"

/* Log each job once, and any job no more often than this (microseconds). */
#define BETWEEN_MESSAGES	(10 * USECS_PER_SEC)

/* Jobs kept in memory. */
#define MAX_JOBS		10000

typedef struct Later
{
	int64		job_id;			/* hash key */
	JobqPause	pause;
	bool		told;
} Later;

static HTAB *laters = NULL;

/* Completes "the scheduler cannot ..." while jobs are waiting for a retry. */
#define GO_ON			"go on with some jobs"

static void tell(Later *later, const ErrorData *edata);

/*
 * Return when this job may be tried: "now" if at once.  Never fails.
 */
TimestampTz
later_at(int64 job_id, TimestampTz now)
{
	Later	   *later = laters == NULL ? NULL
		: hash_search(laters, &job_id, HASH_FIND, NULL);

	return later == NULL ? now : jobq_pause_due(&later->pause, now);
}

/*
 * Note a failed attempt for the job.  Frees edata.  Returns the time of the next
 * attempt.
 */
TimestampTz
later_failed(int64 job_id, ErrorData *edata, TimestampTz now)
{
	bool		locked = edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;
	JobqPauseReason reason = locked ? PAUSE_JOB_LOCKED : PAUSE_JOB_FAILED;
	Later	   *later;
	bool		found;

	if (laters != NULL && hash_get_num_entries(laters) >= MAX_JOBS)
	{
		hash_destroy(laters);
		laters = NULL;
	}
	if (laters == NULL)
	{
		HASHCTL		info = {
			.keysize = sizeof(int64),
			.entrysize = sizeof(Later),
			.hcxt = TopMemoryContext
		};

		laters = hash_create("jobq jobs for later", 16, &info,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	later = hash_search(laters, &job_id, HASH_ENTER, &found);
	if (!found)
	{
		memset(&later->pause, 0, sizeof(JobqPause));
		later->told = false;
	}
	jobq_pause_begin(&later->pause, reason);

	/* a lock held for a short time is not reported */
	if (!locked ||
		jobq_pause_length(reason, later->pause.n) == jobq_pause_longest(reason))
	{
		(void) trouble_note(GO_ON, edata->message, jobq_pause_longest(PAUSE_JOB_FAILED));
		if (!later->told)
			tell(later, edata);
	}
	FreeErrorData(edata);
	return jobq_pause_due(&later->pause, now);
}

static void
tell(Later *later, const ErrorData *edata)
{
	static JobqSteady told_at = 0;

	if (!jobq_once_in(&told_at, BETWEEN_MESSAGES))
		return;
	later->told = true;
	ereport(LOG,
			(errcode(edata->sqlerrcode),
			 errmsg("the jobq scheduler cannot go on with job " INT64_FORMAT ": %s",
					later->job_id, edata->message),
			 errhint("It tries again every %d seconds at least; all else goes on.",
					 (int) (jobq_pause_longest(PAUSE_JOB_FAILED) / USECS_PER_SEC))));
}

/*
 * Forget the job after a success.
 */
void
later_done(int64 job_id)
{
	if (laters != NULL && hash_search(laters, &job_id, HASH_REMOVE, NULL) != NULL &&
		hash_get_num_entries(laters) == 0)
		trouble_over(GO_ON);
}
