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

#include "commit/inner.h"

/*
 * Note that this session waits for the job; an error if its role does for too many.
 */
int
jobq_add_waiter(int64 id)
{
	JobqWaiters *waiters = jobq_shared->waiters;
	Oid			role = GetUserId();
	int			place = -1;
	uint32		held;

	LWLockAcquire(waiters->lock, LW_EXCLUSIVE);
	held = jobq_share_held(&waiters->shares, role, JOBQ_OF_WAITERS);
	if (jobq_share_left(&waiters->shares, role, JOBQ_OF_WAITERS))
	{
		JobqWaiter *waiter = &waiters->waiter[waiters->free];

		place = waiters->free;
		waiters->free = waiter->next;
		waiter->account = jobq_share_take(&waiters->shares, role,
										  JOBQ_OF_WAITERS);
		waiter->dboid = MyDatabaseId;
		waiter->job_id = id;
		waiter->outcome = 0;
		waiter->prepared = false;
		waiter->proc = MyProc;
		pg_atomic_fetch_add_u32(&waiters->n, 1);
	}
	LWLockRelease(waiters->lock);
	if (place < 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("role \"%s\" waits for too many jobs",
						GetUserNameFromId(role, false)),
				 errdetail("It waits for %u; %d can be waited for in all databases together, and some places are kept for each role.",
						   held, JOBQ_MAX_WAITERS),
				 errhint("Wait in fewer sessions, or for fewer jobs at a time.")));
	return place;
}

/*
 * Give up the place.  Wants the lock.
 */
static void
leave(int place)
{
	JobqWaiters *waiters = jobq_shared->waiters;
	JobqWaiter *waiter = &waiters->waiter[place];

	waiter->proc = NULL;
	waiter->next = waiters->free;
	waiters->free = place;
	jobq_share_give(&waiters->shares, waiter->account, JOBQ_OF_WAITERS);
	pg_atomic_fetch_sub_u32(&waiters->n, 1);
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
 * What has become of the job, and whose it was, if that was told to who waits
 * because it leaves no row; or else 0.
 */
char
jobq_waiter_outcome(int place, Oid *role)
{
	JobqWaiter *waiter = &jobq_shared->waiters->waiter[place];
	char		outcome;

	LWLockAcquire(jobq_shared->waiters->lock, LW_EXCLUSIVE);
	outcome = waiter->outcome;
	*role = waiter->role;
	LWLockRelease(jobq_shared->waiters->lock);
	return outcome;
}

/*
 * Does any session wait?  Whoever begins to after this sees what has committed.
 */
bool
jobq_anybody_waits(void)
{
	return jobq_shared != NULL &&
		pg_atomic_read_u32(&jobq_shared->waiters->n) > 0;
}

/*
 * Tell each session that waits for a job what has become of it, if that is
 * found.  They are woken later.
 */
void
jobq_tell_waiters(Oid dboid, const JobqEnding *(*find) (int64 job_id))
{
	LWLockAcquire(jobq_shared->waiters->lock, LW_SHARED);
	for (int i = 0; i < JOBQ_MAX_WAITERS; i++)
	{
		JobqWaiter *waiter = &jobq_shared->waiters->waiter[i];
		const JobqEnding *outcome;

		if (waiter->proc == NULL || waiter->dboid != dboid)
			continue;
		outcome = find(waiter->job_id);
		if (outcome != NULL)
		{
			waiter->role = outcome->role;
			waiter->outcome = outcome->state;
		}
	}
	LWLockRelease(jobq_shared->waiters->lock);
}

/*
 * This session does not wait for it any more.
 */
void
jobq_drop_waiter(int place)
{
	LWLockAcquire(jobq_shared->waiters->lock, LW_EXCLUSIVE);
	leave(place);
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
			leave(i);
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

/*
 * COMMIT PREPARED may have ended jobs, and nobody knows which: wake all.
 */
void
jobq_wake_waiters_prepared(Oid dboid)
{
	if (pg_atomic_read_u32(&jobq_shared->waiters->n) == 0)
		return;
	LWLockAcquire(jobq_shared->waiters->lock, LW_EXCLUSIVE);
	for (int i = 0; i < JOBQ_MAX_WAITERS; i++)
	{
		JobqWaiter *waiter = &jobq_shared->waiters->waiter[i];

		if (waiter->proc != NULL && waiter->dboid == dboid)
			waiter->prepared = true;
	}
	LWLockRelease(jobq_shared->waiters->lock);
	jobq_wake_waiters(dboid, 0);
}

/*
 * Was there a COMMIT PREPARED since this session waits?
 */
bool
jobq_waiter_prepared(int place)
{
	bool		prepared;

	LWLockAcquire(jobq_shared->waiters->lock, LW_SHARED);
	prepared = jobq_shared->waiters->waiter[place].prepared;
	LWLockRelease(jobq_shared->waiters->lock);
	return prepared;
}
