/*-------------------------------------------------------------------------
 *
 * later.c
 *	  What cannot be done about one job now is tried again later.
 *
 * The scheduler ends leases, charges jobs whose role cannot work or whose worker is lost,
 * and cancels jobs for which a worker owes that.  That may fail for one of them: somebody
 * has locked what is to be written, or a part of the job's row cannot be read.  Then it is
 * left as it is and tried again, after a pause that grows, and all else goes on.
 *
 * worker/scheduler/later.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"

/* The pauses; where something was locked, they grow no longer than the second. */
#define FIRST_PAUSE		(50 * INT64CONST(1000))
#define LOCKED_PAUSE	(2 * USECS_PER_SEC)
#define LAST_PAUSE		(60 * USECS_PER_SEC)

/* The log is told once of each job, and no more often than this. */
#define TELL_PAUSE		(10 * USECS_PER_SEC)

/* Jobs that are remembered. */
#define MAX_JOBS		10000

typedef struct Later
{
	int64		job_id;			/* hash key */
	TimestampTz at;
	int64		pause;
	bool		told;
} Later;

static HTAB *laters = NULL;

/* What the scheduler cannot do while there are some. */
#define GO_ON			"go on with some jobs"

static void tell(Later *later, const ErrorData *edata, TimestampTz now);

/*
 * When something may be tried for this job: "now" if at once.  Cannot fail.
 */
TimestampTz
later_at(int64 job_id, TimestampTz now)
{
	Later	   *later = laters == NULL ? NULL
		: hash_search(laters, &job_id, HASH_FIND, NULL);

	if (later == NULL)
		return now;
	/* the clock may have been put back */
	later->at = Min(later->at, now + later->pause);
	return Max(later->at, now);
}

/*
 * It could not be done, with this error, which is freed.  Returns when to try again.
 */
TimestampTz
later_failed(int64 job_id, ErrorData *edata, TimestampTz now)
{
	bool		locked = edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;
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
		later->pause = FIRST_PAUSE;
		later->told = false;
	}
	else
		later->pause = Min(2 * later->pause, locked ? LOCKED_PAUSE : LAST_PAUSE);
	later->at = now + later->pause;

	/* a lock that is soon given back is no news */
	if (!locked || later->pause >= LOCKED_PAUSE)
	{
		(void) trouble_note(GO_ON, edata->message, LAST_PAUSE);
		if (!later->told)
			tell(later, edata, now);
	}
	FreeErrorData(edata);
	return later->at;
}

static void
tell(Later *later, const ErrorData *edata, TimestampTz now)
{
	static TimestampTz told_at = 0;

	/* the clock may have been put back */
	told_at = Min(told_at, now);
	if (now < told_at + TELL_PAUSE)
		return;
	told_at = now;
	later->told = true;
	ereport(LOG,
			(errcode(edata->sqlerrcode),
			 errmsg("the jobq scheduler cannot go on with job " INT64_FORMAT ": %s",
					later->job_id, edata->message),
			 errhint("It tries again every %d seconds at least; all else goes on.",
					 (int) (LAST_PAUSE / USECS_PER_SEC))));
}

/*
 * It was done.
 */
void
later_done(int64 job_id)
{
	if (laters != NULL && hash_search(laters, &job_id, HASH_REMOVE, NULL) != NULL &&
		hash_get_num_entries(laters) == 0)
		trouble_over(GO_ON);
}
