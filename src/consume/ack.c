/*-------------------------------------------------------------------------
 *
 * ack.c
 *	  ack(), nack(), reject(), release(): a consumer ends its leased jobs.
 *
 * A set handler calls nack(), reject() and release() with a null token for its jobs.  The worker
 * then carries out the request at the end of the attempt (jobq_ask_for()).
 *
 * The token fences the job: a consumer whose lease has ended gets an error and changes
 * nothing.  The consequences of a failed attempt are the same as for workers (finish.c).
 *
 * The way of an ack(): check the lease in shared memory, fetch the row at the lease's position,
 * delete the row, insert the row of the archive, and note the end of the lease
 * (jobq_at_commit_lease()).  At commit, the lease and its permits are released
 * (src/commit/lease_commit.c).  After a rollback, the lease is as before.
 *
 * db->lock is released between the check of the lease and the delete of the row.  Another process
 * may end the lease meanwhile.  Both processes delete the same version of the row, and only one process
 * succeeds.  nack(), reject() and release() may insert a new version while the lease still
 * exists.  The scheduler must not end the lease with this version: see jobq_lease_leaves().
 *
 * src/consume/ack.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "attempt/attempt.h"
#include "commit/commit.h"
#include "consume/consume.h"
#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_ack);
PG_FUNCTION_INFO_V1(jobq_ack_many);
PG_FUNCTION_INFO_V1(jobq_nack);
PG_FUNCTION_INFO_V1(jobq_reject);
PG_FUNCTION_INFO_V1(jobq_release);

/* Number of jobs that ack_many() archives at a time. */
#define ACK_CHUNK	100

/*
 * Raise the error for a caller without a valid lease of the job.
 */
void
jobq_lease_lost(int64 id)
{
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_LEASE_LOST),
			 errmsg("job " INT64_FORMAT " is not leased with this token", id),
			 errhint("The lease has expired or was ended; the job may be somebody else's now.")));
}

/*
 * Check n leases and copy them to leases[]; since[] gets the times at which they were granted.
 * ERROR if a token is not valid or a lease has expired.  For an expired lease that this
 * transaction has ended, the caller raises the error.  ERROR as well unless the current user
 * may act for the consumer's role or for the job's role.  Takes db->lock in shared mode.
 */
static void
check_leases(JobqDatabase *db, const int64 *ids, const int64 *tokens, int n,
			 JobqLease *leases, TimestampTz *since)
{
	Oid		   *holders = palloc(sizeof(Oid) * n);
	Oid			holder = InvalidOid;	/* last role found permitted */
	TimestampTz now;

	LWLockAcquire(db->lock, LW_SHARED);
	for (int i = 0; i < n; i++)
	{
		const JobqLease *lease = jobq_lease_find(db, ids[i]);

		leases[i].id = 0;
		if (lease == NULL || lease->token != tokens[i])
			continue;
		leases[i] = *lease;
		since[i] = db->leases->bundles[lease->bundle].since;
		holders[i] = db->leases->bundles[lease->bundle].role;
	}
	LWLockRelease(db->lock);

	now = jobq_now();
	for (int i = 0; i < n; i++)
	{
		if (leases[i].id == 0)
			jobq_lease_lost(ids[i]);
		if (holders[i] == holder || jobq_may_act_for(holders[i]))
			holder = holders[i];
		else if (!jobq_may_act_for(leases[i].role))
			jobq_lease_lost(ids[i]);
		if (leases[i].until <= now && !jobq_lease_is_ended(ids[i]))
			ereport(ERROR,
					(errcode(ERRCODE_JOBQ_LEASE_LOST),
					 errmsg("the lease of job " INT64_FORMAT " has expired", ids[i]),
					 errhint("Reserve with a longer lease, or extend it in time.")));
	}
}

/*
 * Check and return the lease of one job, with errors as in check_leases().  *since, if not
 * NULL, gets the time at which the lease was granted.  ERROR also if the current transaction
 * has ended the lease already.  Takes db->lock in shared mode.
 */
JobqLease
jobq_check_lease(JobqDatabase *db, int64 id, int64 token, TimestampTz *since)
{
	JobqLease	lease;
	TimestampTz begun;

	check_leases(db, &id, &token, 1, &lease, &begun);
	if (jobq_lease_is_ended(id))
		jobq_lease_lost(id);
	if (since != NULL)
		*since = begun;
	return lease;
}

/*
 * Delete the row of a job that the caller holds, waiting for a concurrent transaction if
 * needed.  ERROR if the lease is lost meanwhile.  Returns the time at which the lease was
 * granted.
 */
static TimestampTz
take_row(JobqDatabase *db, Relation rel, int64 id, int64 token, JobqJob *job)
{
	for (;;)
	{
		TimestampTz since;
		JobqLease	lease = jobq_check_lease(db, id, token, &since);
		JobqKey		key = {lease.run_at, id};
		Snapshot	snapshot;
		TransactionId blocker;
		bool		found;

		CommandCounterIncrement();
		snapshot = RegisterSnapshot(GetLatestSnapshot());
		found = jobq_job_fetch(rel, &lease.ctid, key, snapshot, job);
		UnregisterSnapshot(snapshot);
		if (!found)
			jobq_lease_lost(id);
		if (jobq_job_delete_or_blocker(rel, job, &blocker))
			return since;

		/*
		 * the scheduler, a cancel or another ack holds the row: wait, then
		 * retry
		 */
		CHECK_FOR_INTERRUPTS();
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job->ctid, XLTW_Delete);
	}
}

/*
 * Delete the rows of jobs that are acknowledged.  The leases are checked together, and the
 * rows are read with one snapshot.  If a row cannot be deleted at once, take_row() deletes it.
 *
 * ended_some: this transaction may have ended leases before, so each lease is looked up among the
 * notes of the transaction.  Otherwise, only a job named twice by *held can have ended.  The row of
 * this job is deleted already, and take_row() raises the error.
 */
static void
take_rows(JobqDatabase *db, Relation rel, const Held *held, bool ended_some, JobqJob *jobs,
		  TimestampTz *since)
{
	const int64 *ids = held->ids;
	const int64 *tokens = held->tokens;
	JobqLease  *leases = palloc(sizeof(JobqLease) * held->n);
	Snapshot	snapshot;

	check_leases(db, ids, tokens, held->n, leases, since);
	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	for (int i = 0; i < held->n; i++)
	{
		JobqKey		key = {leases[i].run_at, ids[i]};

		if (ended_some && jobq_lease_is_ended(ids[i]))
			jobq_lease_lost(ids[i]);
		if (!jobq_job_fetch(rel, &leases[i].ctid, key, snapshot, &jobs[i]) ||
			!jobq_job_delete(rel, &jobs[i]))
			since[i] = take_row(db, rel, ids[i], tokens[i], &jobs[i]);
		jobq_at_commit_lease(LEASE_END, ids[i], tokens[i], JOBQ_NONE, 0);
	}
	UnregisterSnapshot(snapshot);
	pfree(leases);
}

/*
 * Read the current row of a leased job into *job.  False if the row is no longer there.  The
 * caller must have opened and locked rel.
 */
bool
jobq_read_held(Relation rel, const JobqLease *lease, JobqJob *job)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	JobqKey		key = {lease->run_at, lease->id};
	bool		found = jobq_job_fetch(rel, &lease->ctid, key, snapshot, job);

	UnregisterSnapshot(snapshot);
	return found;
}

/*
 * Complete the jobs, in chunks of ACK_CHUNK.  function: name of the SQL function, for messages.
 */
static void
ack(const Held *held, const JobqResults *results, const char *function)
{
	JobqDatabase *db = jobq_served_database(function);
	Relation	rel = jobq_open_jobs();
	JobqJob    *jobs = palloc(sizeof(JobqJob) * Min(held->n, ACK_CHUNK));
	TimestampTz since[ACK_CHUNK];
	bool		ended_some = jobq_leases_noted();

	for (int done = 0; done < held->n; done += ACK_CHUNK)
	{
		int			n = Min(held->n - done, ACK_CHUNK);
		Held		chunk = {n, held->ids + done, held->tokens + done};

		take_rows(db, rel, &chunk, ended_some, jobs, since);
		for (int i = 0; i < n; i++)
		{
			JOB_SET(&jobs[i], JOB_ATTEMPT,
					Int32GetDatum(job_attempt(&jobs[i]) + 1));
			jobq_log_keep_told(db, NULL, &jobs[i]);
		}
		if (n == 1)
		{
			bool		has_result = results->n > 0 && !results->nulls[done];

			jobq_archive(&jobs[0], CAUSE_COMPLETED, since[0], has_result,
						 has_result ? results->values[done] : (Datum) 0, NULL);
		}
		else
			jobq_archive_many(jobs, since, n,
							  results->n > 0 ? results->values + done : NULL,
							  results->n > 0 ? results->nulls + done : NULL);
	}
	pfree(jobs);
	table_close(rel, NoLock);
}

/*
 * ack(id, token, result): complete a job and store its result, if given.  ERROR if the lease
 * is lost.
 */
Datum
jobq_ack(PG_FUNCTION_ARGS)
{
	static const char function[] = "jobq.ack()";
	Held		held;
	JobqResults results;

	jobq_get_held(fcinfo, &held, function);
	jobq_get_result(fcinfo, 2, &results);
	ack(&held, &results, function);
	PG_RETURN_VOID();
}

/*
 * ack_many(ids, tokens, results): complete several jobs, all or none.  ERROR if one lease is
 * lost.  The rows are deleted in the order of the ids.
 */
Datum
jobq_ack_many(PG_FUNCTION_ARGS)
{
	static const char function[] = "jobq.ack_many()";
	Held		held;
	JobqResults results;

	jobq_get_held_many(fcinfo, &held, function);
	jobq_get_results(fcinfo, 2, &held, &results);
	jobq_sort_held(&held, &results);
	ack(&held, &results, function);
	PG_RETURN_VOID();
}

/*
 * Fill *trier with the consumer of the job and its progress, copied into the current memory
 * context.  Without a lease the consumer is NULL and the progress is -1.  Takes db->lock in
 * shared mode.
 */
static void
trier_of(JobqDatabase *db, int64 id, JobqTrier *trier)
{
	const JobqLease *lease;
	JobqLease	copy;
	JobqLeaseBundle bundle;

	LWLockAcquire(db->lock, LW_SHARED);
	lease = jobq_lease_find(db, id);
	if (lease != NULL)
	{
		copy = *lease;
		bundle = db->leases->bundles[lease->bundle];
	}
	LWLockRelease(db->lock);
	memset(trier, 0, sizeof(JobqTrier));
	trier->progress = lease == NULL ? -1 : copy.progress;
	trier->message = lease == NULL ? "" : pstrdup(copy.message);
	trier->consumer = lease == NULL ? NULL : pstrdup(bundle.consumer);
}

/*
 * Record a failed attempt and end the lease.
 *
 * final: the job becomes a dead letter.  delay_ms: milliseconds until the next attempt; -1
 * stands for the job's backoff.
 */
static void
fail_attempt(FunctionCallInfo fcinfo, const char *function, const char *message,
			 int sqlerrcode, bool final, int64 delay_ms)
{
	JobqError	error = {.sqlerrcode = sqlerrcode,.message = message};
	Held		held;
	int64		id;
	int64		token;
	JobqDatabase *db;
	Relation	rel;
	JobqJob		job;
	JobqTrier	trier;
	JobqFailure failure = {.error = &error,.charge = true,.final = final,.delay_ms = delay_ms};

	jobq_get_held(fcinfo, &held, function);
	id = held.ids[0];
	token = held.tokens[0];
	db = jobq_served_database(function);
	rel = jobq_open_jobs();
	failure.started_at = take_row(db, rel, id, token, &job);
	trier_of(db, id, &trier);
	error.trier = &trier;
	jobq_log_keep_told(db, NULL, &job);
	jobq_job_count_exception(&job);

	/*
	 * The consumer has survived an attempt, so the job is no suspect any
	 * more.  release() does not clear the column, because the consumer may
	 * not have begun the job.
	 */
	job.nulls[JOB_TOGETHER - 1] = true;
	jobq_at_commit_lease(jobq_job_failed(rel, &job, &failure) ? LEASE_RETRY : LEASE_END,
						 id, token, JOBQ_NONE, 0);
	(void) jobq_lease_leaves(db);
	table_close(rel, NoLock);
}

/*
 * nack(id, token, error, delay): report a failed attempt.  The next attempt follows after the
 * delay, or by the job's backoff if the delay is null.  ERROR if the lease is lost.
 */
Datum
jobq_nack(PG_FUNCTION_ARGS)
{
	JobqCurrent *current = jobq_job_of_set(fcinfo, "jobq.nack()");
	const char *error = !PG_ARGISNULL(2) ? text_to_cstring(PG_GETARG_TEXT_PP(2))
		: current != NULL ? "the handler could not do the job"
		: "the consumer could not do the job";
	int64		delay_ms = PG_ARGISNULL(3) ? -1
		: jobq_interval_ms(PG_GETARG_INTERVAL_P(3), "delay", 0, JOBQ_MAX_DELAY_MS);

	if (current != NULL)
		jobq_ask_for(current, OUTCOME_NACK, delay_ms, error);
	else
		fail_attempt(fcinfo, "jobq.nack()", error, ERRCODE_JOBQ_NACK, false, delay_ms);
	PG_RETURN_VOID();
}

/*
 * reject(id, token, reason): make the job a dead letter at once, whatever attempts remain.
 * ERROR if the lease is lost.
 */
Datum
jobq_reject(PG_FUNCTION_ARGS)
{
	JobqCurrent *current = jobq_job_of_set(fcinfo, "jobq.reject()");
	const char *reason = !PG_ARGISNULL(2) ? text_to_cstring(PG_GETARG_TEXT_PP(2))
		: current != NULL ? "the handler has rejected the job"
		: "the consumer rejected the job";

	if (current != NULL)
		jobq_ask_for(current, OUTCOME_REJECT, 0, reason);
	else
		fail_attempt(fcinfo, "jobq.reject()", reason, ERRCODE_JOBQ_FAILED, true, 0);
	PG_RETURN_VOID();
}

/*
 * Replace the payload of a released job.  The new payload decides what runs under the job's
 * role, or under run_as of the queue.  ERROR therefore unless the current user can become the
 * job's role, and the role may still enqueue into the queue.
 */
static void
set_payload(JobqJob *job, Datum payload)
{
	Oid			role = job_role(job);
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);

	if (!jobq_may_become(role) || queue == NULL ||
		!jobq_may_produce(role, queue))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to give job " INT64_FORMAT " another payload",
						job_id(job)),
				 errhint("A role that may enqueue into the queue can for its own jobs, and who can SET ROLE to that role.")));
	jobq_refuse_borrowed(role);
	jobq_set_payload(job, payload);
	jobq_log_say(job, psprintf("released with another payload by %s",
							   GetUserNameFromId(GetUserId(), false)));
}

/*
 * Release a job whose lease is in memory only and whose row stays unchanged.
 */
static void
release_in_memory(JobqDatabase *db, Relation rel, const JobqLease *lease, TimestampTz since)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(lease->queue_id, &buffer);
	JobqJob		job;

	jobq_at_commit_lease_back(lease->id, lease->token, jobq_relay_tells(queue));
	if (!jobq_lease_leaves(db))
		jobq_lease_lost(lease->id);
	jobq_notify_queue(queue);
	if (!jobq_read_held(rel, lease, &job))
		return;

	/* keep the job's hold on its group, with the original start time */
	if (!JOB_ISNULL(&job, JOB_GROUP_HELD))
		jobq_job_holds_group(&job);
	jobq_count_attempt(&job, JOBQ_N_STARTED, since, jobq_now());
	jobq_state_changed(&job, jobq_waiting_state(&job, jobq_now()));
}

/*
 * Return whether a row of jobq_internal.lease may name the job.  The answer stays the same while
 * the lease lasts.  Takes db->lock in shared mode.
 */
bool
jobq_lease_durable(JobqDatabase *db, int64 id)
{
	const JobqLease *lease;
	bool		durable;

	LWLockAcquire(db->lock, LW_SHARED);
	lease = jobq_lease_find(db, id);
	durable = lease != NULL &&
		ItemPointerIsValid(&db->leases->bundles[lease->bundle].row.ctid);
	LWLockRelease(db->lock);
	return durable;
}

/*
 * Return a job to its queue after delay_ms, with *payload if payload is not NULL.  No attempt
 * is charged.
 *
 * If no row of jobq_internal.lease names the job, release_in_memory() suffices.  Otherwise the
 * row of the job is written anew.  The row of jobq_internal.lease then names an old version, so a
 * crash does not restore the lease.
 */
static void
release(int64 id, int64 token, int64 delay_ms, const Datum *payload)
{
	JobqDatabase *db = jobq_served_database("jobq.release()");
	Relation	rel = jobq_open_jobs();
	TimestampTz since;
	JobqLease	lease = jobq_check_lease(db, id, token, &since);
	JobqJob		job;

	if (delay_ms == 0 && payload == NULL && lease.lines.n == 0 && !jobq_lease_durable(db, id))
		release_in_memory(db, rel, &lease, since);
	else
	{
		since = take_row(db, rel, id, token, &job);
		jobq_count_attempt(&job, JOBQ_N_STARTED, since, jobq_now());
		if (delay_ms > 0)
			jobq_job_set_run_at(&job, jobq_now() + delay_ms * 1000);
		jobq_at_commit_lease(LEASE_RETRY, id, token, JOBQ_NONE, 0);
		(void) jobq_lease_leaves(db);
		jobq_log_keep_told(db, NULL, &job);
		if (payload != NULL)
			set_payload(&job, *payload);
		jobq_job_insert_again(rel, &job);
		jobq_state_changed(&job, jobq_waiting_state(&job, jobq_now()));
	}
	table_close(rel, NoLock);
}

/*
 * release(id, token, delay, payload): return a job to its queue without charging an attempt.
 * A null payload leaves the payload unchanged.  ERROR if the lease is lost, or if the current
 * user may not replace the payload.
 */
Datum
jobq_release(PG_FUNCTION_ARGS)
{
	bool		anew = !PG_ARGISNULL(3);
	Datum		payload = anew ? PG_GETARG_DATUM(3) : (Datum) 0;
	int64		delay_ms = jobq_interval_ms(jobq_interval_arg(fcinfo, "delay"), "delay", 0,
											JOBQ_MAX_DELAY_MS);
	JobqCurrent *current = jobq_job_of_set(fcinfo, "jobq.release()");
	Held		held;

	if (current != NULL && anew)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a handler cannot release a job with another payload"),
				 errhint("Enqueue another job, and let this job complete.")));
	if (current != NULL)
	{
		jobq_ask_for(current, OUTCOME_SNOOZE, delay_ms, NULL);
		PG_RETURN_VOID();
	}
	jobq_get_held(fcinfo, &held, "jobq.release()");
	release(held.ids[0], held.tokens[0], delay_ms, anew ? &payload : NULL);
	PG_RETURN_VOID();
}
