/*-------------------------------------------------------------------------
 *
 * waiter.c
 *	  Sessions that wait for the end of a job.
 *
 * A session takes a place in the list before it looks whether the job has ended.
 * So either its look sees the end, or whoever commits the end sees the place.
 *
 * src/commit/waiter.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/wait_event.h"

#include "commit/commit.h"

/*
 * Note that this session waits for the job.
 */
int
jobq_add_waiter(int64 id)
{
	int			place = -1;

	LWLockAcquire(jobq_shared->waiters->lock, LW_EXCLUSIVE);
	for (int i = 0; i < JOBQ_MAX_WAITERS && place < 0; i++)
	{
		JobqWaiter *waiter = &jobq_shared->waiters->waiter[i];

		if (waiter->proc == NULL)
		{
			waiter->dboid = MyDatabaseId;
			waiter->job_id = id;
			waiter->proc = MyProc;
			pg_atomic_fetch_add_u32(&jobq_shared->waiters->n, 1);
			place = i;
		}
	}
	LWLockRelease(jobq_shared->waiters->lock);
	if (place < 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many sessions wait for jobs"),
				 errdetail("At most %d can wait at a time.", JOBQ_MAX_WAITERS)));
	return place;
}

/*
 * This session is about to look whether the job has ended.
 */
void
jobq_waiter_look(int place)
{
	ResetLatch(MyLatch);
	jobq_shared->waiters->waiter[place].woken = false;
	pg_memory_barrier();
}

/*
 * Sleep until the job may have ended, if it has not since the last look: that
 * may have waited for a lock or a page, and taken the latch's news for its own.
 */
void
jobq_waiter_sleep(int place, long ms, uint32 wait_event)
{
	pg_read_barrier();
	if (!jobq_shared->waiters->waiter[place].woken)
		jobq_client_wait(ms, wait_event);
	CHECK_FOR_INTERRUPTS();
}

/*
 * This session does not wait for it any more.
 */
void
jobq_drop_waiter(int place)
{
	LWLockAcquire(jobq_shared->waiters->lock, LW_EXCLUSIVE);
	jobq_shared->waiters->waiter[place].proc = NULL;
	pg_atomic_fetch_sub_u32(&jobq_shared->waiters->n, 1);
	LWLockRelease(jobq_shared->waiters->lock);
}

/*
 * This session waits no more: clean-up after an error.
 */
void
jobq_remove_waiters(int code, Datum arg)
{
	LWLockAcquire(jobq_shared->waiters->lock, LW_EXCLUSIVE);
	for (int i = 0; i < JOBQ_MAX_WAITERS; i++)
	{
		if (jobq_shared->waiters->waiter[i].proc == MyProc)
		{
			jobq_shared->waiters->waiter[i].proc = NULL;
			pg_atomic_fetch_sub_u32(&jobq_shared->waiters->n, 1);
		}
	}
	LWLockRelease(jobq_shared->waiters->lock);
}

/*
 * Wake the sessions that wait for this job, or for any if job_id is 0.  Cheap
 * if there are none.
 */
void
jobq_wake_waiters(Oid dboid, int64 job_id)
{
	if (pg_atomic_read_u32(&jobq_shared->waiters->n) == 0)
		return;
	LWLockAcquire(jobq_shared->waiters->lock, LW_SHARED);
	for (int i = 0; i < JOBQ_MAX_WAITERS; i++)
	{
		JobqWaiter *waiter = &jobq_shared->waiters->waiter[i];

		if (waiter->proc != NULL &&
			(job_id == 0 || waiter->job_id == job_id) &&
			waiter->dboid == dboid)
		{
			waiter->woken = true;
			SetLatch(&waiter->proc->procLatch);
		}
	}
	LWLockRelease(jobq_shared->waiters->lock);
}
