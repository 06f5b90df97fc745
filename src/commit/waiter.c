/*-------------------------------------------------------------------------
 *
 * waiter.c
 *	  Sessions that wait for the end of a job or of a batch.
 *
 * A session allocates a slot before checking whether the job has ended.  Either the check sees
 * the end, or the process that commits the end sees the slot.
 *
 * Times are in milliseconds.  Unless stated otherwise, exported functions take
 * JobqWaiters.lock, and the caller must not hold it.
 *
 * src/commit/waiter.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/wait_event.h"

#include "commit/inner.h"

/* Number of slots that this session has allocated so far. */
static uint32 taken = 0;

static int *
bucket_of(Oid dboid, int64 job_id)
{
	uint32		hash = hash_combine(murmurhash32(dboid),
									murmurhash32((uint32) job_id ^
												 (uint32) ((uint64) job_id >> 32)));

	return &jobq_shared->waiters->bucket[hash & (JOBQ_WAITER_BUCKETS - 1)];
}

/*
 * Insert the allocated slot into the bucket of its job.
 */
static void
join(int place)
{
	JobqWaiters *waiters = jobq_shared->waiters;
	JobqWaiter *waiter = &waiters->waiter[place];
	int		   *bucket = bucket_of(waiter->dboid, waiter->job_id);

	AssertExclusive(waiters->lock);
	waiter->prev = -1;
	waiter->next = *bucket;
	if (*bucket >= 0)
		waiters->waiter[*bucket].prev = place;
	*bucket = place;
}

/*
 * Allocate a slot for this session, which waits for the job.  Returns the slot's number.
 * ERROR if the role has used up its quota.
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
		waiter->number = ++taken;
		waiter->proc = MyProc;
		join(place);
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
 * Free the slot.
 */
static void
leave(int place)
{
	JobqWaiters *waiters = jobq_shared->waiters;
	JobqWaiter *waiter = &waiters->waiter[place];

	AssertExclusive(waiters->lock);
	Assert(waiter->proc == MyProc);
	Assert(waiter->prev >= 0 || *bucket_of(waiter->dboid, waiter->job_id) == place);
	if (waiter->prev >= 0)
		waiters->waiter[waiter->prev].next = waiter->next;
	else
		*bucket_of(waiter->dboid, waiter->job_id) = waiter->next;
	if (waiter->next >= 0)
		waiters->waiter[waiter->next].prev = waiter->prev;
	waiter->proc = NULL;
	waiter->next = waiters->free;
	waiters->free = place;
	jobq_share_give(&waiters->shares, waiter->account, JOBQ_OF_WAITERS);
	pg_atomic_fetch_sub_u32(&waiters->n, 1);
}

/* Prepare for a check of whether the job has ended.  Takes no lock. */
void
jobq_waiter_look(int place)
{
	ResetLatch(MyLatch);
	jobq_shared->waiters->waiter[place].woken = false;
	pg_memory_barrier();
}

/*
 * Sleep for at most ms milliseconds, until the job may have ended.  Returns at once if the job
 * may have ended since the last check.  The check may have waited for a lock or a page, and
 * reset the latch there.  Takes no lock.  ERROR if the query is canceled.
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
 * Return the outcome of a job that leaves no row, and set *role to the job's role.  Returns 0
 * if no outcome was reported.
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
 * Return whether any session waits in any database.  A session that starts waiting later sees
 * the committed change.  Takes no lock.
 */
bool
jobq_anybody_waits(void)
{
	return jobq_shared != NULL &&
		pg_atomic_read_u32(&jobq_shared->waiters->n) > 0;
}

/*
 * Report the outcome of this job to the sessions waiting for the job.  They are woken later.
 */
void
jobq_tell_waiters(Oid dboid, const JobqEnding *ending)
{
	JobqWaiters *waiters = jobq_shared->waiters;

	LWLockAcquire(waiters->lock, LW_SHARED);
	for (int i = *bucket_of(dboid, ending->job_id); i >= 0;
		 i = waiters->waiter[i].next)
	{
		JobqWaiter *waiter = &waiters->waiter[i];

		if (waiter->job_id != ending->job_id || waiter->dboid != dboid)
			continue;
		waiter->role = ending->role;
		waiter->outcome = ending->state;
	}
	LWLockRelease(waiters->lock);
}

/* Free the slot, because this session no longer waits. */
void
jobq_drop_waiter(int place)
{
	LWLockAcquire(jobq_shared->waiters->lock, LW_EXCLUSIVE);
	leave(place);
	LWLockRelease(jobq_shared->waiters->lock);
}

/*
 * Return the argument of jobq_remove_waiters() for a clean-up of the slots allocated from now
 * on.  Takes no lock.
 */
Datum
jobq_waiters_from_here(void)
{
	return UInt32GetDatum(taken);
}

/*
 * Clean-up after an error: free the slots allocated since jobq_waiters_from_here().  Older
 * slots belong to a call that continues, if code of the user was called there and has caught
 * the error.
 */
void
jobq_remove_waiters(int code, Datum from)
{
	LWLockAcquire(jobq_shared->waiters->lock, LW_EXCLUSIVE);
	for (int i = 0; i < JOBQ_MAX_WAITERS; i++)
	{
		JobqWaiter *waiter = &jobq_shared->waiters->waiter[i];

		if (waiter->proc == MyProc &&
			(int32) (waiter->number - DatumGetUInt32(from)) > 0)
			leave(i);
	}
	LWLockRelease(jobq_shared->waiters->lock);
}

static void
wake(JobqWaiter *waiter)
{
	waiter->woken = true;
	SetLatch(&waiter->proc->procLatch);
}

/*
 * Wake the sessions waiting for this job, or all waiting sessions of the database if job_id is
 * 0.  Cheap if no session waits.
 */
void
jobq_wake_waiters(Oid dboid, int64 job_id)
{
	JobqWaiters *waiters = jobq_shared->waiters;

	if (pg_atomic_read_u32(&waiters->n) == 0)
		return;
	LWLockAcquire(waiters->lock, LW_SHARED);
	for (int i = 0; i < JOBQ_MAX_WAITERS && job_id == 0; i++)
		if (waiters->waiter[i].proc != NULL && waiters->waiter[i].dboid == dboid)
			wake(&waiters->waiter[i]);
	for (int i = job_id == 0 ? -1 : *bucket_of(dboid, job_id); i >= 0;
		 i = waiters->waiter[i].next)
		if (waiters->waiter[i].job_id == job_id &&
			waiters->waiter[i].dboid == dboid)
			wake(&waiters->waiter[i]);
	LWLockRelease(waiters->lock);
}

/*
 * Wake all waiting sessions of the database, because COMMIT PREPARED may have ended unknown
 * jobs.
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
 * Return whether a prepared transaction has committed since this session began to wait.
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
