/*-------------------------------------------------------------------------
 *
 * keys.c
 *	  Restores the token buckets of limiters' keys after a start.
 *
 * worker/scheduler/keys.c
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
 * Restore the token buckets of the limiter's keys after a server start, as limits.c does
 * for other limiters.  If memory is short, the most active keys come first.  Takes
 * my_db->lock exclusively.
 */
static void
remember_past(JobqLimiter *limiter, TimestampTz now)
{
	const char *by = psprintf("jobq_internal.limit_key(%d, payload, headers, role::oid, tenant)",
							  (int32) limiter->kind);
	uint64		n = past_read(limiter, by,
							  past_bucket_since(&limiter->key_rate, now),
							  DT_NOEND, JOBQ_MAX_TALLIES);

	for (uint64 i = 0; i < n; i++)
	{
		Past		past = past_row(i);
		uint32		key = jobq_tenant_hash(past.name == NULL ? NULL
										   : text_to_cstring(past.name));

		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		if (limiter->priced)	/* tokens in debt */
			limiter->dearest = Max(limiter->dearest,
								   (int) Min(past.started - limiter->key_rate.burst + 1,
											 JOBQ_MAX_LIMIT_COST));
		jobq_keyed_spend(my_db, limiter->kind, key, past.started, now);
		LWLockRelease(my_db->lock);
	}
}

/*
 * Restore the buckets of all limiters with a rate for keys.  Must be called in a
 * transaction.
 */
void
keys_restore(void)
{
	TimestampTz now = jobq_now();

	SPI_connect();
	for (int i = 0; i < my_db->limits->nlimiters; i++)
	{
		JobqLimiter *limiter = &my_db->limits->limiters[i];

		if (limiter->in_use && limiter->key_rate.per_us > 0)
			remember_past(limiter, now);
	}
	SPI_finish();
}
