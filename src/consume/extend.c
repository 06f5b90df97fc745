/*-------------------------------------------------------------------------
 *
 * extend.c
 *	  extend(): a consumer extends the leases of its jobs.
 *
 * src/consume/extend.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "consume/consume.h"

PG_FUNCTION_INFO_V1(jobq_extend);
PG_FUNCTION_INFO_V1(jobq_extend_many);

/*
 * Create a bundle with the consumer of the lease of job "id", for leases that are extended, and
 * set *row_id to the id of a new row.  ERROR if the role has reached its limit of bundles.
 * Takes db->lock exclusively.
 *
 * A role at its limit must still be able to extend.  The first bundle of a transaction may
 * therefore exceed the limit.  At the commit, the leases leave their former bundle, which is then
 * mostly free.
 */
static uint32
copy_bundle(JobqDatabase *db, int64 id, int64 *row_id)
{
	JobqLease  *lease;
	JobqLeaseBundle *from;
	Oid			role;
	uint32		bundle = JOBQ_NONE;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	*row_id = jobq_lease_token(db);
	lease = jobq_lease_find(db, id);
	from = lease == NULL ? NULL : &db->leases->bundles[lease->bundle];
	role = from == NULL ? GetUserId() : from->role;
	if (jobq_share_left(db->shares, role, JOBQ_OF_BUNDLES) || !jobq_bundle_noted())
		bundle = jobq_lease_bundle(db, role);
	if (bundle != JOBQ_NONE)
	{
		jobq_at_commit_bundle(db, bundle);
		if (from != NULL)
		{
			JobqLeaseBundle *to = &db->leases->bundles[bundle];

			to->pid = from->pid;
			to->since = from->since;
			to->held = from->held;
			memcpy(to->consumer, from->consumer, sizeof(to->consumer));
			to->client = from->client;
		}
	}
	LWLockRelease(db->lock);
	if (bundle == JOBQ_NONE)
		jobq_no_lease(db, role);
	return bundle;
}

/*
 * Set new expiry times, counted from now, for the leases of *held.  Durable leases get an
 * additional row of jobq_internal.lease.  The row of the reservation stays unchanged, because
 * it may name other jobs, too.  ERROR if a lease is lost, also at commit.
 *
 * A lease in memory stays in memory, even if its queue has become durable.  Otherwise the new
 * row would restore the lease after a crash, although a concurrent release() in memory has ended
 * the lease.
 */
static void
extend(Held *held, Interval *interval, const char *function)
{
	JobqDatabase *db = jobq_served_database(function);
	TimestampTz until = jobq_now() +
		jobq_interval_ms(interval, "lease", MIN_LEASE_MS, MAX_LEASE_MS) * 1000;
	Relation	rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	int			done = 0;

	jobq_distinct_held(held);
	jobq_lease_room(2 * held->n);
	while (done < held->n)
	{
		int64		token = held->tokens[done];
		int64	   *ids = palloc(sizeof(int64) * (held->n - done));
		TransactionId *versions = palloc(sizeof(TransactionId) *
										 (held->n - done));
		int			ndurable = 0;
		uint32		bundle = JOBQ_NONE;
		JobqLeaseRecord record = {
			.token = token,.until = until,.jobs = ids,.versions = versions
		};
		int			first = done;

		/* one row for the jobs with the same token */
		while (done < held->n && held->tokens[done] == token)
		{
			JobqLease	lease = jobq_check_lease(db, held->ids[done], token, NULL);
			JobqQueue	buffer;
			const JobqQueue *queue = jobq_queue_by_id(lease.queue_id,
													  &buffer);
			JobqKey		key = {lease.run_at, lease.id};
			JobqJob		job;

			done++;
			if (queue == NULL || queue->lease != LEASE_DURABLE ||
				!jobq_lease_durable(db, lease.id))
				continue;
			if (!jobq_job_fetch(rel, &lease.ctid, key, snapshot, &job))
				jobq_lease_lost(lease.id);
			versions[ndurable] = job.version;
			ids[ndurable++] = lease.id;
		}
		if (ndurable > 0)
		{
			bundle = copy_bundle(db, ids[0], &record.id);
			record.n = ndurable;
			jobq_lease_row(db, bundle, &record);
		}
		for (int i = first; i < done; i++)
			jobq_at_commit_lease(LEASE_EXTEND, held->ids[i], token, bundle,
								 until);
	}
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
}

/*
 * extend(id, token, lease): let the lease expire this interval from now.  ERROR if the lease
 * is lost, or if the interval is outside MIN_LEASE_MS to MAX_LEASE_MS.
 */
Datum
jobq_extend(PG_FUNCTION_ARGS)
{
	static const char function[] = "jobq.extend()";
	Held		held;

	jobq_get_held(fcinfo, &held, function);
	extend(&held, jobq_interval_arg(fcinfo, "lease"), function);
	PG_RETURN_VOID();
}

/*
 * extend_many(ids, tokens, lease): like extend(), for several jobs, all or none.
 */
Datum
jobq_extend_many(PG_FUNCTION_ARGS)
{
	static const char function[] = "jobq.extend_many()";
	Held		held;

	jobq_get_held_many(fcinfo, &held, function);
	extend(&held, jobq_interval_arg(fcinfo, "lease"), function);
	PG_RETURN_VOID();
}
