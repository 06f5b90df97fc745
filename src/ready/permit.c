/*-------------------------------------------------------------------------
 *
 *	  Permits: the rights that a job must hold to run, and their return.
 *
 * The process that has popped a job holds the permits: a worker in a slot, a consumer in a
 * lease, a waiting consumer in an offer.  All permits are taken at once, and are returned
 * when the job's transaction is over.  The end of a lease returns the permits of the lease.
 *
 * src/ready/permit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

static void tenant_wake(JobqDatabase *db, uint32 index, TimestampTz now,
						JobqWakeList *wake);
static void give_back(JobqDatabase *db, uint16 index, int cost, bool unused,
					  TimestampTz now, JobqWakeList *wake);

/*
 * Forget all limiters, because the shared memory is new, or belongs to another database or a
 * new extension.
 */
void
jobq_limits_clear(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	limiters_clear(db);
	db->limits->weighted = false;
	db->limits->loaded = false;
	db->limits->due = DT_NOEND;
	groups_clear(db);
	jobq_tallies_clear(db);
	for (int i = 0; i < jobq_shared->nslots; i++)
		if (jobq_shared->slots[i].database == db - jobq_shared->databases)
			jobq_shared->slots[i].holding->permits = JOBQ_NO_PERMITS;
	for (int i = 0; i < jobq_max_leases; i++)
		db->leases->leases[i].permits = JOBQ_NO_PERMITS;
	for (int i = 0; i < JOBQ_MAX_RESERVERS; i++)
		db->offers->reservers[i].offer.permits = JOBQ_NO_PERMITS;
}

/*
 * Take the permits for a job of this lane, which must be free.
 */
JobqPermits
permits_take(JobqDatabase *db, const JobqLane *lane, uint32 group,
			 TimestampTz now)
{
	int			cost = Max(lane->cost, 1);
	JobqPermits permits = {lane->queue_limiter, lane->kind_limiter,
	JOBQ_NONE, JOBQ_NONE, group, cost};
	uint16	   *index[] = {&permits.queue, &permits.kind};
	int			costs[] = {1, cost};

	AssertExclusive(db->lock);
	for (int i = 0; i < 2; i++)
	{
		JobqLimiter *limiter;

		if (*index[i] == JOBQ_NO_LIMITER)
			continue;
		limiter = &db->limits->limiters[*index[i]];
		if (!jobq_limiter_counts(limiter))
		{
			*index[i] = JOBQ_NO_LIMITER;
			continue;
		}
		place_taken(limiter, lane->role, lane->consumer ? lane->queue_id : 0);
		jobq_limiter_filled(db, *index[i]);
		if (costs[i] > 1)
			limiter->dearest = Max(limiter->dearest, costs[i]);
		if (limiter->rate.per_us > 0 && !limiter->rate.by_group)
			limiter->pace.tokens -= costs[i];
	}

	/* both tallies may be new, and the popped job has freed one entry */
	if (db->ready->nfree < 2 && tenant_is_limited(db, lane) && key_is_limited(db, lane) &&
		tally_find(db, lane->queue_id, lane->tenant) == JOBQ_NONE &&
		tally_find(db, JOBQ_KEYS_OF(lane->kind), lane->limit_key) == JOBQ_NONE)
		(void) entry_evict(db, NULL, true);
	permits.tenant = tenant_take(db, lane->queue_limiter, lane->tenant, 1, now);
	permits.limit_key = tenant_take(db, lane->kind_limiter, lane->limit_key, cost,
									now);
	return permits;
}

/*
 * Take the permits for a job found in the table instead of popped, if all permits are free.
 * Returns JOBQ_MAY_RUN, or a value for the missing permit.  limited: the job's queue has
 * limits.  The job must name tenant and kind if these have limits.
 */
JobqVerdict
jobq_permits_ask(JobqDatabase *db, JobqPush *job, bool limited,
				 TimestampTz now, JobqWakeList *wake)
{
	JobqLane	lane = {0};
	TimestampTz due = DT_NOEND;
	uint32		place = JOBQ_NONE;

	AssertExclusive(db->lock);
	lane.queue_limiter = jobq_limiter_find(db, job->queue_id, 0);
	lane.kind_limiter = job->kind == 0 ? JOBQ_NO_LIMITER
		: jobq_limiter_find(db, 0, job->kind);
	if ((limited && lane.queue_limiter == JOBQ_NO_LIMITER) ||
		(job->kind != 0 && lane.kind_limiter == JOBQ_NO_LIMITER))
	{
		/* the scheduler has not loaded the limits yet, or has no slot */
		jobq_limits_missed(db);
		if (db->limits->stale)
			db->reload = wake->scheduler = true;
		return limited && lane.queue_limiter == JOBQ_NO_LIMITER
			? JOBQ_QUEUE_FULL : JOBQ_KIND_FULL;
	}
	if (lane.queue_limiter != JOBQ_NO_LIMITER &&
		(!limiter_free(&db->limits->limiters[lane.queue_limiter], now, &due) ||
		 place_is_kept_for_others(&db->limits->limiters[lane.queue_limiter],
								  job->role, now)))
		return JOBQ_QUEUE_FULL;
	if (lane.kind_limiter != JOBQ_NO_LIMITER &&
		(!limiter_free(&db->limits->limiters[lane.kind_limiter], now, &due) ||
		 place_is_kept_for_others(&db->limits->limiters[lane.kind_limiter],
								  job->role, now)))
	{
		taken_note(db, job);
		return JOBQ_KIND_FULL;
	}
	lane.tenant = job->tenant;
	lane.limit_key = job->limit_key;
	lane.cost = job->cost;
	lane.role = job->role;
	if (db->ready->nfree == 0)
		(void) entry_evict(db, NULL, false);	/* for a tally */
	if (!tenant_free(db, lane.queue_limiter, job->tenant, now))
		return JOBQ_TENANT_FULL;
	if (!tenant_free(db, lane.kind_limiter, job->limit_key, now))
	{
		taken_note(db, job);
		return JOBQ_KEY_FULL;
	}
	if (job->group != 0 &&
		!group_admit(db, job, lane.queue_limiter, now, &place))
		return JOBQ_GROUP_BUSY;
	job->permits = permits_take(db, &lane, place, now);
	turns_over(db, job->role, &job->permits);
	return JOBQ_MAY_RUN;
}

/*
 * Count a job of the tenant that runs without having asked for a permit.  Returns its permit
 * of the tenant.  Returns JOBQ_NONE if the tenant has no limits, or if there is no free entry
 * for the tally.
 */
uint32
jobq_tenant_count(JobqDatabase *db, int32 scope, uint32 tenant,
				  TimestampTz now)
{
	AssertExclusive(db->lock);
	if (db->ready->nfree == 0)
		(void) entry_evict(db, NULL, true);
	return tenant_count(db, scope, tenant, now);
}

static void
give_back(JobqDatabase *db, uint16 index, int cost, bool unused,
		  TimestampTz now, JobqWakeList *wake)
{
	JobqLimiter *limiter = &db->limits->limiters[index];
	bool		was_full = limiter->max_running > 0 &&
		limiter->running >= limiter->max_running;

	AssertExclusive(db->lock);
	Assert(limiter->running > 0);
	limiter->running--;
	if (unused && limiter->rate.per_us > 0 && !limiter->rate.by_group)
		limiter->pace.tokens = Min(limiter->pace.tokens + cost, limiter->rate.burst);
	if (was_full || unused || limiter->kept_until > now)
		place_freed(db, index, now, wake);
}

/*
 * Wake takers for the tenant of this tally, because more of its jobs may be able to start.
 * Free the tally if there is no state to remember.
 */
static void
tenant_wake(JobqDatabase *db, uint32 index, TimestampTz now,
			JobqWakeList *wake)
{
	JobqReady  *ready = db->ready;
	const JobqParty *party = jobq_party_find(db, TALLY(db, index)->scope,
											 TALLY(db, index)->tenant);
	uint32		next;

	AssertExclusive(db->lock);
	for (uint32 i = party == NULL ? JOBQ_NONE : party->heaps; i != JOBQ_NONE; i = next)
	{
		JobqHeap   *heap;

		next = ready->heaps[i].next;
		heap = tenant_refill(db, &ready->heaps[i], now);
		if (heap != NULL)
			heap_wake(db, heap, 1, now, wake);
	}
	tally_forget(db, index, now);
}

/*
 * Call tenant_wake() for tenants whose token has arrived.  The number per call is limited:
 * db->limits->due tells if there are more.
 */
void
tenants_wake(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	AssertExclusive(db->lock);
	for (int i = 0; i < SAMPLE; i++)
	{
		uint32		index = tally_due(db, now);

		if (index == JOBQ_NONE)
			return;
		tenant_wake(db, index, now, wake);
	}
	db->limits->due = Min(db->limits->due, now);
}

/*
 * Return the permits of a job whose transaction is over, and wake takers for other jobs.
 *
 * live: the job will run again, so its group may have to wait for the job.
 * unused: the job did not run at all.
 */
void
jobq_permits_release(JobqDatabase *db, JobqPermits *permits, int64 id,
					 bool live, bool unused, TimestampTz now,
					 JobqWakeList *wake)
{
	JobqPermits held = *permits;

	AssertExclusive(db->lock);
	*permits = JOBQ_NO_PERMITS;
	if (held.queue != JOBQ_NO_LIMITER)
		give_back(db, held.queue, 1, unused, now, wake);
	if (held.kind != JOBQ_NO_LIMITER)
		give_back(db, held.kind, held.cost, unused, now, wake);
	if (held.tenant != JOBQ_NONE)
	{
		tenant_give(db, held.tenant, unused ? 1 : 0, now);
		tenant_wake(db, held.tenant, now, wake);
	}
	if (held.limit_key != JOBQ_NONE)
	{
		tenant_give(db, held.limit_key, unused ? held.cost : 0, now);
		tenant_wake(db, held.limit_key, now, wake);
	}
	if (held.group != JOBQ_NONE)
		group_leave(db, held.group, id, live, unused, now, wake);
}

/*
 * Return the permits that the worker in this slot holds.  Parameters as for
 * jobq_permits_release().
 */
void
jobq_slot_release(JobqDatabase *db, JobqSlot *slot, bool live, bool unused,
				  TimestampTz now, JobqWakeList *wake)
{
	AssertExclusive(db->lock);
	jobq_permits_release(db, &slot->holding->permits, slot->holding->permits_job, live,
						 unused, now, wake);
}

/*
 * Count failed attempts of jobs with this queue, kind, role and group for the throttles.
 */
void
jobq_limits_failed(JobqDatabase *db, int32 queue_id, uint32 kind, Oid role,
				   int64 group, int failures, TimestampTz now)
{
	uint16		index[] = {jobq_limiter_find(db, queue_id, 0),
	jobq_limiter_find(db, 0, kind)};

	AssertExclusive(db->lock);
	for (int i = 0; i < 2; i++)
	{
		JobqLimiter *limiter;

		if (index[i] == JOBQ_NO_LIMITER)
			continue;
		limiter = &db->limits->limiters[index[i]];
		if (limiter->throttle.failures == 0)
			continue;
		if (!limiter->throttle.by_group)
			jobq_pace_failed(&limiter->throttle, &limiter->pace, failures, now);
		else if (group != 0 && !jobq_group_shared(group))
		{
			JobqGroup  *g = jobq_group_make(db, group, index[0], role,
											now);

			if (g != NULL)
				jobq_pace_failed(&limiter->throttle, &g->pace, failures, now);
		}
	}
}

/*
 * Wake workers for the lanes whose limiters have become free with time, and compute the next
 * such time (db->limits->due).
 */
void
jobq_limits_wake(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
	db->limits->due = DT_NOEND;
	for (int l = 0; l < db->limits->nlimiters; l++)
		for (uint32 i = ready->limited[l]; i != JOBQ_NONE; i = heap_next_at(db, i, l))
			if (ready->heaps[i].queue_limiter == l ||
				ready->heaps[i].queue_limiter == JOBQ_NO_LIMITER)	/* each heap once */
				heap_wake(db, &ready->heaps[i], PG_INT32_MAX, now, wake);
	tenants_wake(db, now, wake);
}

/*
 * End a lease and return its permits.  For live and unused see jobq_permits_release().
 */
void
jobq_lease_remove(JobqDatabase *db, JobqLease *lease, bool live, bool unused,
				  TimestampTz now, JobqWakeList *wake)
{
	int64		id = lease->id;
	JobqPermits permits = lease->permits;

	AssertExclusive(db->lock);
	lease_free(db, lease);
	jobq_permits_release(db, &permits, id, live, unused, now, wake);
}

/*
 * End a lease whose job goes back unused, before the job is handed over or searched for
 * again.  Otherwise the new entry would look like an entry of a leased job, and be dropped.
 * Does nothing if the job has no lease with this token.
 */
void
jobq_lease_undo(JobqDatabase *db, int64 id, int64 token, TimestampTz now,
				JobqWakeList *wake)
{
	JobqLease  *lease = jobq_lease_find(db, id);

	AssertExclusive(db->lock);
	if (lease != NULL && lease->token == token)
		jobq_lease_remove(db, lease, false, true, now, wake);
}
