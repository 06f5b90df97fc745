/*-------------------------------------------------------------------------
 *
 * tenants.c
 *	  Limits of tenants: counts running jobs for new limits, and restores the
 *	  state of limits after a start.
 *
 * worker/scheduler/tenants.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"

#include "scheduler/duty.h"

static void remember_past(JobqLimiter *limiter, TimestampTz now);

/*
 * Count the running jobs of the queue for their tenants, because the queue has new
 * limits for tenants.  A job reserved by a consumer before its queue had tenants is
 * not counted.  The caller holds db->lock.
 */
void
tenants_begin_to_count(int32 queue_id, TimestampTz now)
{
	AssertExclusive(my_db->lock);
	jobq_foreach_slot(slot, my_db, JOBQ_SLOTS_WITH_RUN)
	{
		JobqPermits *permits = &slot->holding->permits;
		JobqRun    *run = &slot->run;
		uint32		tenant = 0;

		if (permits->tallies[JOBQ_OF_QUEUE] != JOBQ_NONE)
			continue;
		SpinLockAcquire(&slot->mutex);
		if (jobq_run_busy(run) && run->queue_id == queue_id)
		{
			tenant = run->tenant;
			slot->holding->permits_job = run->job;
		}
		SpinLockRelease(&slot->mutex);
		permits->tallies[JOBQ_OF_QUEUE] = jobq_tenant_count(my_db, queue_id, tenant, now);
	}
	jobq_foreach_lease(lease, my_db)
	{
		if (lease->queue_id == queue_id &&
			lease->permits.tallies[JOBQ_OF_QUEUE] == JOBQ_NONE)
			lease->permits.tallies[JOBQ_OF_QUEUE] =
				jobq_tenant_count(my_db, queue_id, JOBQ_TENANT(lease), now);
	}
}

/*
 * Restore the token buckets of the queue's tenants, or of the limiter's keys, after a
 * server start, as limits.c does for queues and kinds.  If memory is short, the most
 * active tenants come first.  Takes my_db->lock exclusively.
 */
static void
remember_past(JobqLimiter *limiter, TimestampTz now)
{
	const char *by = !limiter->keyed ? "tenant"
		: psprintf("jobq_internal.limit_key(%d, payload, headers, role::oid, tenant)",
				   (int32) limiter->kind);
	int32		scope = limiter->keyed ? JOBQ_KEYS_OF(limiter->kind)
		: limiter->queue_id;
	uint64		n = past_read(limiter, by,
							  past_bucket_since(&limiter->tenant_rate, now),
							  DT_NOEND, JOBQ_MAX_TALLIES);

	for (uint64 i = 0; i < n; i++)
	{
		Past		past = past_row(i);
		uint32		tenant = jobq_tenant_hash(past.name == NULL ? NULL
											  : text_to_cstring(past.name));

		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		if (limiter->priced)	/* tokens in debt */
			limiter->dearest = Max(limiter->dearest,
								   (int) Min(past.started - limiter->tenant_rate.burst + 1,
											 JOBQ_MAX_LIMIT_COST));
		jobq_tenant_spend(my_db, scope, tenant, past.started, now);
		LWLockRelease(my_db->lock);
	}
}

/*
 * Restore the buckets of all queues with a rate for tenants, and of all limiters with a
 * rate for keys.  Must be called in a transaction.
 */
void
tenants_restore(void)
{
	TimestampTz now = jobq_now();

	SPI_connect();
	for (int i = 0; i < my_db->limits->nlimiters; i++)
	{
		JobqLimiter *limiter = &my_db->limits->limiters[i];

		if (limiter->in_use && limiter->tenant_rate.per_us > 0)
			remember_past(limiter, now);
	}
	SPI_finish();
}
