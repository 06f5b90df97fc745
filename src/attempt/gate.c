/*-------------------------------------------------------------------------
 *
 * gate.c
 *	  The gate: decides whether a job may run now, and carries out the consequence if not.
 *
 * An entry of the ready set is a hint that may be outdated.  The row may be gone or moved, the
 * queue paused, or the kind limited meanwhile.  A process that has popped a job therefore
 * passes the row to jobq_gate().  A session in jobq.work(), which finds its jobs in the table,
 * does the same.  jobq_gate() contains all conditions, in order of precedence.
 *
 * src/attempt/gate.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"

#include "attempt/attempt.h"

static bool is_as_popped(const JobqPush *push, const JobqPush *entry);
static bool lacks_permit(const JobqJob *job, const JobqPush *push, const JobqPermits *permits,
						 const JobqQueue *queue);
static void give_back(const JobqPush *push, int64 token, bool limits);
static void give_to_lane(const JobqPush *push, int64 token);
static void drop_lease(int64 id, int64 token);
static bool take_away(Relation rel, JobqJob *job, const JobqPush *entry,
					  int64 token);
static void look_again(Relation rel, int64 id);
static void wait_for_group(Relation rel, const JobqPush *entry,
						   const JobqJob *first, int64 token);
static void fail_unsendable(Relation rel, JobqJob *job);

/*
 * Decide whether the job may run now.  Changes nothing; jobq_turn_away() does.
 *
 * mode: the mode of the caller, as in jobq_internal.queue.  entry: the popped entry with the
 * permits.  NULL if the job was found in the table, and its permits are still to be acquired.
 * first: with JOBQ_GROUP_BUSY, set to the preceding job of the group, if known.
 */
JobqVerdict
jobq_gate(Relation rel, const JobqJob *job, char mode, const JobqPush *entry,
		  Snapshot snapshot, TimestampTz now, JobqJob *first)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	bool		paused;

	if (DatumGetBool(JOB(job, JOB_DORMANT)))
		return JOBQ_DORMANT;
	if (job_leased(job) || jobq_job_kept(job))
		return JOBQ_TAKEN;
	if (queue != NULL && (queue->paused || queue->mode != mode))
		return JOBQ_QUEUE_CLOSED;
	paused = queue != NULL &&
		((queue->tenants_paused &&
		  jobq_tenant_paused(queue, jobq_job_tenant(job, queue))) ||
		 jobq_kind_paused(queue, jobq_job_kind(job)));
	if (paused && (entry == NULL || !jobq_flow_changed(job)))
		return JOBQ_QUEUE_CLOSED;
	if (job_run_at(job) > now)
		return JOBQ_NOT_DUE;
	if (!JOB_ISNULL(job, JOB_EXPIRES_AT) &&
		DatumGetTimestampTz(JOB(job, JOB_EXPIRES_AT)) <= now)
		return JOBQ_EXPIRED;
	if (job_asked_by(job) != 0 && jobq_asker_is_cancelled(rel, job))
		return JOBQ_UNWANTED;
	if (entry != NULL)
	{
		JobqPush	push;

		if (jobq_flow_changed(job) || jobq_group_changed(job))
			return JOBQ_OTHER_LANE;
		jobq_push_flow(job, &push);

		/* the job is in a lane of a limiter that no longer applies */
		for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
			if (push.needs[s].limiter == 0 &&
				(entry->unlimited ? entry->needs[s].limiter != 0
				 : entry->permits.limiters[s] != JOBQ_NO_LIMITER))
				return JOBQ_OTHER_LANE;
		if (!is_as_popped(&push, entry))
			return JOBQ_OTHER_KEY;
		if (!entry->unlimited && lacks_permit(job, &push, &entry->permits, queue))
			return JOBQ_LACKS_PERMIT;
	}
	if (jobq_group_is_busy(rel, job, queue, entry, snapshot, first))
		return JOBQ_GROUP_BUSY;
	return JOBQ_MAY_RUN;
}

/*
 * True if the permits of the popped entry match the needs of the job.  The permits are for the
 * needs stored in the lane.  The flow is a hash of these, so a lane may contain jobs with
 * different needs.  The lane stores the needs of the job that was pushed last.
 */
static bool
is_as_popped(const JobqPush *push, const JobqPush *entry)
{
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
		if (push->needs[s].limiter != 0 &&
			(push->needs[s].limiter != entry->needs[s].limiter ||
			 push->needs[s].key != entry->needs[s].key ||
			 push->needs[s].cost != entry->needs[s].cost))
			return false;
	return true;
}

/*
 * True if the kind has limits, so that its jobs need permits.
 */
static bool
kind_counts(const JobqJob *job)
{
	JobqHandler buffer;
	const JobqHandler *handler = jobq_handler(jobq_job_kind(job), &buffer);

	return handler != NULL && handler->counts;
}

/*
 * True if the job was popped without a necessary permit.
 */
static bool
lacks_permit(const JobqJob *job, const JobqPush *push, const JobqPermits *permits,
			 const JobqQueue *queue)
{
	if (queue != NULL && queue->limited &&
		permits->limiters[JOBQ_OF_QUEUE] == JOBQ_NO_LIMITER)
		return true;
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
		if ((push->needs[s].limiter != 0 && permits->limiters[s] == JOBQ_NO_LIMITER &&
			 (s != JOBQ_OF_KIND || kind_counts(job))) ||
			(push->needs[s].key != 0 && permits->tallies[s] == JOBQ_NONE))
			return true;
	return false;
}

/*
 * Handle a popped job that may not run, according to verdict.  token: lease of the consumer
 * for the job, which is ended; or 0.  Takes db->lock exclusively.
 *
 * Returns true if rows were written, for which other sessions may wait.
 */
bool
jobq_turn_away(Relation rel, JobqVerdict verdict, JobqJob *job,
			   const JobqPush *entry, const JobqJob *first, int64 token)
{
	JobqPush	push = *entry;

	switch (verdict)
	{
		case JOBQ_MAY_RUN:
			break;

		case JOBQ_GONE:
			drop_lease(entry->key.id, token);
			if (token != 0)
				look_again(rel, entry->key.id);
			break;

		case JOBQ_DORMANT:
		case JOBQ_TAKEN:
			drop_lease(entry->key.id, token);
			break;

		case JOBQ_QUEUE_CLOSED:
		case JOBQ_LACKS_PERMIT:
			jobq_push_flow(job, &push);
			give_back(&push, token, verdict == JOBQ_LACKS_PERMIT);
			break;

		case JOBQ_OTHER_KEY:
		case JOBQ_NOT_TOGETHER:
			jobq_push_flow(job, &push);
			give_to_lane(&push, token);
			break;

		case JOBQ_NOT_DUE:
			drop_lease(entry->key.id, token);
			jobq_job_push(job);
			jobq_job_push_if_undone(job);
			return true;

		case JOBQ_EXPIRED:
			if (!take_away(rel, job, entry, token))
				break;
			jobq_archive_unstarted(job, CAUSE_EXPIRED, NULL);
			return true;

		case JOBQ_UNWANTED:
			if (!take_away(rel, job, entry, token))
				break;
			jobq_archive_unstarted(job, CAUSE_CANCELLED, JOBQ_ASKER_CANCELLED);
			jobq_cancel_asked(rel, job);
			return true;

		case JOBQ_UNSENDABLE:
			if (!take_away(rel, job, entry, token))
				break;
			fail_unsendable(rel, job);
			return true;

		case JOBQ_OTHER_LANE:
			if (!take_away(rel, job, entry, token))
				break;
			if (jobq_group_changed(job))
				jobq_change_group(job);
			jobq_job_insert(rel, job);
			return true;

		case JOBQ_GROUP_BUSY:
			wait_for_group(rel, entry, first, token);
			break;

		case JOBQ_LIMITED:
		case JOBQ_KEY_LIMITED:
			elog(ERROR, "a job that was popped has its permits");
	}
	return false;
}

/*
 * Make the job a dead letter without an attempt, because no consumer has received it.  The
 * job's row is deleted already.
 */
static void
fail_unsendable(Relation rel, JobqJob *job)
{
	JobqError	error = {
		.sqlerrcode = ERRCODE_CHARACTER_NOT_IN_REPERTOIRE,
		.message = psprintf("the job has a text that a consumer whose client_encoding is \"%s\" cannot be sent",
							pg_get_client_encoding_name())
	};

	jobq_job_dies(rel, job, &error);
}

/*
 * Push the job back into the lane.  The lane is served again after the scheduler has ranked it
 * anew.  limits: the scheduler must load the limits first.  token: lease of the job, which
 * ends; or 0.
 */
static void
give_back(const JobqPush *push, int64 token, bool limits)
{
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};
	JobqLane   *lane;

	if (db == NULL)
		return;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	lane = jobq_lane_find(db, push->queue_id, push->priority, push->role,
						  push->flow, push->quarantine, true);
	if (lane != NULL)
	{
		jobq_lane_unrank(db, lane);
		if (limits)
			jobq_limits_missed(db);
		wake.scheduler = true;
	}
	jobq_lease_undo(db, push->key.id, token, jobq_now(), &wake);
	jobq_ready_push(db, push, push->key.run_at, &wake);
	jobq_unlock(db, &wake);
}

/*
 * Push the job back where its lane had the needs of another job.  The lane now has the needs
 * of this job, and the job is popped again with permits for these needs.
 *
 * First release the permits that this process holds for the job.  Otherwise the next taker
 * would find the group busy, pop another job of the lane, push back that job as well, and so
 * on.
 */
static void
give_to_lane(const JobqPush *push, int64 token)
{
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};

	if (db == NULL)
		return;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_lease_undo(db, push->key.id, token, jobq_now(), &wake);
	if (token == 0 && jobq_my_slot != NULL &&
		jobq_my_slot->holding->permits_job == push->key.id)
		jobq_permits_release(db, &jobq_my_slot->holding->permits, push->key.id, false, true,
							 jobq_now(), &wake);
	jobq_ready_push(db, push, push->key.run_at, &wake);
	jobq_unlock(db, &wake);
}

/*
 * Delete the row of a job refused by the gate.  False if another transaction has the
 * row.
 *
 * token: of the consumer's lease, or 0.  A consumer's transaction may last long and meet many
 * such jobs.  These leases end at once, so that leases and slots are free for further jobs.
 * Only a job with a group permit keeps its lease until the outcome is known.
 *
 * Another transaction with the row pushes the job again after a rollback, and the lease must
 * not be in the way then.  Until the end of the other transaction, the job still precedes the
 * remaining jobs of the group.
 */
static bool
take_away(Relation rel, JobqJob *job, const JobqPush *entry, int64 token)
{
	TransactionId blocker;
	bool		deleted = jobq_job_delete_or_blocker(rel, job, &blocker);

	if (!deleted)
		jobq_row_is_taken(rel, job, entry->permits.group);
	if (token == 0)
		return deleted;
	if (deleted && entry->permits.group != JOBQ_NONE)
	{
		jobq_at_commit_lease(LEASE_UNUSED, entry->key.id, token, JOBQ_NONE, 0);
		return true;
	}
	if (deleted)
		jobq_job_push_if_undone(job);
	drop_lease(entry->key.id, token);
	if (!deleted && !(TransactionIdIsValid(blocker) && TransactionIdIsInProgress(blocker)))
		look_again(rel, entry->key.id);
	return deleted;
}

/*
 * End the lease at once, not with the transaction.  The job may have another entry, which is
 * valid and must not seem to be leased.
 */
static void
drop_lease(int64 id, int64 token)
{
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};

	if (token == 0 || db == NULL)
		return;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_lease_undo(db, id, token, jobq_now(), &wake);
	jobq_unlock(db, &wake);
}

/*
 * The job is not where the entry pointed.  The job may have been moved.  While its lease was
 * held, the entry of the new row seemed to belong to a leased job, and was dropped.  Push the
 * entry again if necessary.
 */
static void
look_again(Relation rel, int64 id)
{
	JobqDatabase *db = jobq_my_database();
	Snapshot	snapshot;
	JobqJob		job;
	bool		found;

	/*
	 * rows written by this transaction are pushed at commit; rows deleted by
	 * it must not be visible
	 */
	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	found = jobq_job_find(rel, id, snapshot, &job) && !job_blocked(&job) &&
		!DatumGetBool(JOB(&job, JOB_DORMANT)) &&
		!TransactionIdIsCurrentTransactionId(job.xmin);
	UnregisterSnapshot(snapshot);
	if (found && db != NULL)
	{
		JobqWakeList wake = {0};
		JobqPush	push;

		jobq_push_of_job(&push, &job, NULL);
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		if (jobq_lease_find(db, id) == NULL)
			jobq_ready_push(db, &push, jobq_now(), &wake);
		jobq_unlock(db, &wake);
	}
}

/* The job waits, and its group continues with the job first. */
static void
wait_for_group(Relation rel, const JobqPush *entry, const JobqJob *first,
			   int64 token)
{
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};
	JobqPush	push = *entry;
	JobqPush	called = {0};

	jobq_push_of_job(&called, first, NULL);
	if (TransactionIdIsCurrentTransactionId(first->xmin))
		jobq_at_abort_group_moved(job_group(first), job_id(first));

	/*
	 * a process that makes a group wait for a job must check afterwards
	 * whether the job still exists, so no interrupt may come in between
	 */
	HOLD_INTERRUPTS();
	push.permits = JOBQ_NO_PERMITS;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (jobq_group_call(db, entry->permits.group, &called))
		jobq_ready_push(db, &called, jobq_now(), &wake);
	jobq_lease_undo(db, push.key.id, token, jobq_now(), &wake);
	if (!jobq_group_wait(db, &push, jobq_now(), &wake))
		jobq_ready_push(db, &push, push.key.run_at, &wake);
	jobq_unlock(db, &wake);
	jobq_group_see(rel, first);
	RESUME_INTERRUPTS();
}

/*
 * A group waits for this job, which may have ended or moved before.  Check this, and let the
 * group go on if so.  Takes db->lock exclusively.
 */
void
jobq_group_see(Relation rel, const JobqJob *first)
{
	JobqDatabase *db = jobq_my_database();
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	JobqJob		again;
	bool		found = jobq_job_find(rel, job_id(first), latest, &again);

	if (!found || job_run_at(&again) != job_run_at(first) ||
		job_priority(&again) != job_priority(first))
	{
		JobqWakeList wake = {0};

		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		if (found)
			jobq_group_moved(db, job_group(first), job_id(first), jobq_now(), &wake);
		else
			jobq_group_end(db, job_group(first), job_id(first), jobq_now(), &wake);
		jobq_unlock(db, &wake);
	}
	UnregisterSnapshot(latest);
}

/*
 * The worker has popped the job but cannot get its row, because another transaction holds the
 * row.  After a rollback there, the job precedes the remaining jobs of the group as before.
 * The group therefore waits for the outcome.  group: index of the job's group, or JOBQ_NONE.
 * Takes db->lock exclusively.
 */
void
jobq_row_is_taken(Relation rel, const JobqJob *job, uint32 group)
{
	JobqDatabase *db = jobq_my_database();
	JobqPush	push = {0};

	if (group == JOBQ_NONE || db == NULL)
		return;
	jobq_push_of_job(&push, job, NULL);
	HOLD_INTERRUPTS();
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_group_taken(db, group, &push);
	LWLockRelease(db->lock);
	jobq_group_see(rel, job);
	RESUME_INTERRUPTS();
}
