/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  Permits of a job that a session in work() has found in the table.
 *
 * The permits of a worker are in the worker's slot.  A session has no slot, so the permits are
 * stored in a lease that exists in memory only.  The lease ends with the transaction.  An
 * abort returns the permits unused.
 *
 * Without a scheduler, jobs are not counted and need no permit.  Groups keep their order
 * nevertheless: the gate asks the table which job comes first.  A lock per group, held to the
 * end of the transaction, serializes the sessions, so that two jobs of a group never run at a
 * time.
 *
 * src/attempt/claim.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "attempt/attempt.h"

/* How long to wait for the scheduler to load new limits, in milliseconds. */
#define LOAD_TIMEOUT_MS	10000
#define PAUSE_MS	10L

/*
 * Return this database once its scheduler has loaded limits and leases, or NULL without a
 * scheduler.  Waits up to LOAD_TIMEOUT_MS.  Raises an error if limits or leases have not been
 * loaded by then.  The caller holds no lock.
 */
JobqDatabase *
jobq_loaded_database(void)
{
	static uint32 wait_event = 0;
	JobqDatabase *db;

	AssertUnlocked();
	for (int waited = 0; waited < LOAD_TIMEOUT_MS; waited += PAUSE_MS)
	{
		if (!jobq_has_scheduler(&db))
			return NULL;
		if (db != NULL && db->limits->loaded && db->leases->loaded &&
			!db->limits->stale && !db->limits->loading)
			return db;
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 PAUSE_MS, jobq_wait_event(wait_event, "JobqLoad"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	if (db == NULL || !db->limits->loaded || !db->leases->loaded)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_NOT_RUNNING),
				 errmsg("the scheduler of this database has not loaded the limits yet"),
				 errhint("The server's log says what keeps it from running.")));
	return db;
}

/*
 * ERROR if the database is a copy that was not adopted, because the original runs the jobs.
 * function: name of the SQL function, for the message.  The copy is known once the scheduler has
 * loaded the leases.
 */
void
jobq_refuse_copy(const JobqDatabase *db, const char *function)
{
	if (db->copied)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_NOT_RUNNING),
				 errmsg("%s does not work in a copy of a database that was served elsewhere",
						function),
				 errhint("Cancel what must not run here, and then call jobq.adopt().")));
}

static void
group_tag(Relation rel, const JobqJob *job, LOCKTAG *tag)
{
	uint64		group = (uint64) job_group(job);

	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, RelationGetRelid(rel),
					   (uint32) group, (uint16) (group >> 32));
}

/*
 * Lock the job's group to the end of the transaction, without waiting.  False if another
 * session holds the lock.  The lock tag has 48 bits of the group id, so two groups may share a
 * lock.  In this case a group waits for an unrelated group.
 */
static bool
lock_group(Relation rel, const JobqJob *job)
{
	LOCKTAG		tag;

	group_tag(rel, job, &tag);
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

static void
unlock_group(Relation rel, const JobqJob *job)
{
	LOCKTAG		tag;

	group_tag(rel, job, &tag);
	LockRelease(&tag, ExclusiveLock, false);
}

/*
 * Fill *push, which must be zeroed, with the properties of a job that a session has found in
 * the table.  Returns true if the queue has limits; the caller passes the result to
 * jobq_permits_ask().
 */
bool
jobq_claim_push(const JobqJob *job, const JobqQueue *queue, JobqPush *push)
{
	push->queue_id = job_queue_id(job);
	push->priority = job_priority(job);
	push->role = job_run_as(job);
	jobq_push_flow(job, push);
	jobq_job_needs(job, push->needs);
	push->quarantine = DatumGetInt16(JOB(job, JOB_CRASHES)) > 0;
	push->key.run_at = job_run_at(job);
	push->key.id = job_id(job);
	push->ctid = job->ctid;
	return queue != NULL && queue->limited;
}

/*
 * Return whether a job needs permits.  queue_limited: the result of jobq_claim_push().
 */
bool
jobq_claim_needed(const JobqPush *push, bool queue_limited)
{
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (push->needs[s].limiter != 0)
			return true;
	return queue_limited || push->group != 0;
}

/*
 * Acquire the permits of a job that this session has found in the table, until the end of the
 * transaction.  Returns JOBQ_MAY_RUN, or the reason why the job may not run, with *limited as
 * for jobq_permits_ask().  *token identifies the lease for jobq_claim_undo() and
 * jobq_claim_end(), and is 0 if no lease was needed.  Takes db->lock exclusively.  Raises an
 * error if no lease is free.
 */
JobqVerdict
jobq_claim(Relation rel, const JobqJob *job, int64 *token, int *limited)
{
	JobqQueue	queue_buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job),
											  &queue_buffer);
	bool		queue_limited;
	JobqVerdict verdict;
	JobqWakeList wake = {0};
	JobqPush	push = {0};
	TimestampTz now = jobq_now();
	Snapshot	latest;
	JobqJob		first;
	uint32		name;
	JobqDatabase *db;
	bool		locked = job_group(job) != 0 && queue != NULL &&
		(queue->group_max_running == 1 || jobq_group_shared(job_group(job))) &&
		!jobq_has_scheduler(&db);

	*token = 0;
	if (jobq_job_runs(job))
		return JOBQ_TAKEN;

	/* a session cannot go on with a procedure that has committed a step */
	if (jobq_has_progress(job_id(job)))
		return JOBQ_TAKEN;
	if (locked && !lock_group(rel, job))
		return JOBQ_GROUP_BUSY;
	latest = RegisterSnapshot(GetLatestSnapshot());
	verdict = jobq_gate(rel, job, MODE_WORKER, NULL, latest, now, &first);
	UnregisterSnapshot(latest);
	if (verdict != JOBQ_MAY_RUN)
	{
		if (locked)
			unlock_group(rel, job);
		return verdict;
	}
	queue_limited = jobq_claim_push(job, queue, &push);
	if (!jobq_claim_needed(&push, queue_limited))
		return JOBQ_MAY_RUN;
	db = jobq_loaded_database();
	if (db == NULL)
		return JOBQ_MAY_RUN;

	/* from here to the release of the lock nothing can fail */
	name = jobq_kind_hash(jobq_job_kind(job));
	jobq_lease_room(3);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (db->leases->free == JOBQ_NONE || db->leases->bundle_free == JOBQ_NONE)
	{
		LWLockRelease(db->lock);
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many jobs are leased"),
				 errhint("Raise \"%s\".", "jobq.ready_entries")));
	}
	if (jobq_lease_find(db, push.key.id) != NULL)
		verdict = JOBQ_TAKEN;
	else
		verdict = jobq_permits_ask(db, &push, queue_limited, now, limited, &wake);
	if (verdict == JOBQ_MAY_RUN)
	{
		uint32		bundle = jobq_lease_bundle(db, GetUserId());
		JobqLeaseBundle *b = &db->leases->bundles[bundle];

		*token = jobq_lease_token(db);
		b->pid = MyProcPid;
		b->since = now;
		strlcpy(b->consumer, "jobq.work()", NAMEDATALEN);
		jobq_lease_add(db, &push, *token, DT_NOEND, bundle)->name = name;
		jobq_at_commit_lease(LEASE_TAKE, push.key.id, *token, JOBQ_NONE, 0);
		jobq_at_commit_bundle(db, bundle);
	}
	jobq_unlock(db, &wake);
	return verdict;
}

/*
 * Return the permits of jobq_claim() at once, because another transaction has the job's row.
 * Takes db->lock exclusively.
 */
void
jobq_claim_undo(const JobqJob *job, int64 token)
{
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};
	JobqLease  *lease;

	if (token == 0 || db == NULL)
		return;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	lease = jobq_lease_find(db, job_id(job));
	if (lease != NULL && lease->token == token)
		jobq_lease_remove(db, lease, false, true, jobq_now(), &wake);
	jobq_unlock(db, &wake);
}

/*
 * The job has run.  Its permits are returned when this transaction has committed.  live: the
 * job will run again.
 */
void
jobq_claim_end(const JobqJob *job, int64 token, bool live)
{
	if (token == 0)
		return;
	jobq_lease_room(1);
	jobq_at_commit_lease(live ? LEASE_RETRY : LEASE_END, job_id(job), token,
						 JOBQ_NONE, 0);
}
