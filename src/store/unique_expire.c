/*-------------------------------------------------------------------------
 *
 * unique_expire.c
 *	  Ends a job that has expired, for the one who wants its unique key.
 *
 * The scheduler would end it later, and a worker that comes across it at once.  It is
 * apart from unique.c, as the archive uses that.
 *
 * src/store/unique_expire.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "store/store.h"

static bool expire(Relation rel, JobqJob *job);

/*
 * Delete the job's row, and archive it.  False if somebody else had the row, which
 * may have become another when this returns.
 */
static bool
expire(Relation rel, JobqJob *job)
{
	TransactionId blocker;

	if (!jobq_job_delete_or_blocker(rel, job, &blocker))
	{
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job->ctid, XLTW_Delete);
		return false;
	}
	jobq_job_push_if_undone(job);
	jobq_archive(job, STATE_EXPIRED, DT_NOBEGIN, false, (Datum) 0,
				 "not started before expires_at");
	return true;
}

/*
 * Have unique.c use this; once per process.
 */
void
jobq_unique_expire_install(void)
{
	jobq_unique_expire = expire;
}
