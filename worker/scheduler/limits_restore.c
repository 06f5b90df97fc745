/*-------------------------------------------------------------------------
 *
 * limits_restore.c
 *	  Restores the token buckets and throttles of limiters, and of their keys, after a
 *	  server start.
 *
 * worker/scheduler/limits_restore.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"

#include "scheduler/duty.h"

/*
 * Restore the state of the limiter with this index, as if the server had not been restarted.
 * If memory is short, the most active keys come first.  Takes my_db->lock exclusively.
 */
static void
restore_limiter(uint16 index, TimestampTz now)
{
	const JobqLimiter *limiter = &my_db->limits->limiters[index];
	bool		paced = limiter->rate.per_us > 0;
	bool		throttled = limiter->throttle.failures > 0;
	const char *by = !limiter->keyed ? NULL
		: psprintf("jobq_internal.limit_key(%d, payload, headers, role::oid, tenant, group_key, tags)",
				   (int32) limiter->kind);
	uint64		n;

	if (!limiter->in_use || (!paced && !throttled))
		return;
	n = past_read(limiter, by, paced ? past_bucket_since(&limiter->rate, now) : DT_NOEND,
				  throttled ? now - limiter->throttle.window : DT_NOEND,
				  limiter->keyed ? JOBQ_MAX_TALLIES : 1);
	for (uint64 i = 0; i < n; i++)
	{
		Past		past = past_row(i);
		uint32		key = jobq_tenant_hash(past.name == NULL ? NULL
										   : text_to_cstring(past.name));

		past.spent.tokens = Min(past.spent.tokens, limiter->rate.burst + JOBQ_MAX_LIMIT_COST);
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		jobq_limiter_restore(my_db, index, key, &past.spent, now);
		LWLockRelease(my_db->lock);
	}
}

/*
 * Restore the state of all limiters with a rate or a throttle.  Must be called in a
 * transaction, before any job runs.
 */
void
limits_restore(void)
{
	TimestampTz now = jobq_now();

	SPI_connect();
	for (int i = 0; i < my_db->limits->nlimiters; i++)
		restore_limiter(i, now);
	SPI_finish();
}
