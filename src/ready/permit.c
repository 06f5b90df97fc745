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
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_ALL)
	{
		slot->holding->permits = slot->holding->more = JOBQ_NO_PERMITS;
		slot->holding->nmore = 0;
		slot->holding->groups = JOBQ_NONE;
	}
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
	JobqPermits permits = JOBQ_NO_PERMITS;

	AssertExclusive(db->lock);
	permits.group = group;
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		int			cost = Max(lane->needs[s].cost, 1);
		JobqLimiter *limiter;

		if (lane->limiters[s] == JOBQ_NO_LIMITER)
			continue;
		limiter = &db->limits->limiters[lane->limiters[s]];
		permits.costs[s] = cost;
		if (jobq_limiter_counts(limiter))
		{
			permits.limiters[s] = lane->limiters[s];
			place_taken(limiter, lane->role, lane->consumer ? lane->queue_id : 0);
			jobq_limiter_filled(db, lane->limiters[s]);
			limiter->dearest = Max(limiter->dearest, cost > 1 ? cost : 0);
			if (!limiter->keyed)
				jobq_pace_spend(limiter, &limiter->pace, cost, now);
		}

		/*
		 * The popped job has freed one entry, and several tallies may be new.
		 * If no lane can give up an entry, the job is not counted at this
		 * key.  Then all entries are tallies, parked jobs and jobs in
		 * quarantine, although tallies without running jobs are at most a
		 * quarter of the entries.
		 */
		if (db->ready->nfree == 0 && key_is_limited(db, lane, s) &&
			tally_find(db, lane->needs[s].limiter, lane->needs[s].key) == JOBQ_NONE)
			(void) entry_evict(db, NULL, true);
		permits.tallies[s] = keyed_take(db, lane->limiters[s], lane->needs[s].key, cost,
										now);
	}
	return permits;
}

/*
 * Take the permits for a job found in the table instead of popped, if all permits are free.
 * Returns JOBQ_MAY_RUN or JOBQ_GROUP_BUSY; or JOBQ_LIMITED or JOBQ_KEY_LIMITED, with the
 * JobqLimitSource of the missing permit in *limited.  queue_limited: the job's queue has
 * limits.
 */
JobqVerdict
jobq_permits_ask(JobqDatabase *db, JobqPush *job, bool queue_limited,
				 TimestampTz now, int *limited, JobqWakeList *wake)
{
	JobqLane	lane = {0};
	TimestampTz due = DT_NOEND;
	uint32		place = JOBQ_NONE;

	AssertExclusive(db->lock);
	lane.queue_id = job->queue_id;
	lane.role = job->role;
	memcpy(lane.needs, job->needs, sizeof(lane.needs));
	jobq_limiters_find(db, job->queue_id, job->needs, lane.limiters);
	if (db->ready->nfree == 0)
		(void) entry_evict(db, NULL, false);	/* for a tally */
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		JobqLimiter *limiter;

		*limited = s;
		if (lane.limiters[s] == JOBQ_NO_LIMITER)
		{
			if (s == JOBQ_OF_QUEUE ? !queue_limited : job->needs[s].limiter == 0)
				continue;

			/* the scheduler has not loaded the limits yet, or has no slot */
			jobq_limits_missed(db);
			if (db->limits->stale)
				db->reload = wake->scheduler = true;
			return JOBQ_LIMITED;
		}
		limiter = &db->limits->limiters[lane.limiters[s]];
		if (!limiter_free(limiter, now, &due) ||
			place_is_kept_for_others(limiter, job->role, now))
		{
			taken_note(db, job, s);
			return JOBQ_LIMITED;
		}
		if (!keyed_free(db, lane.limiters[s], job->needs[s].key, now))
		{
			taken_note(db, job, s);
			return JOBQ_KEY_LIMITED;
		}
	}
	if (job->group != 0 &&
		!group_admit(db, job, lane.limiters[JOBQ_OF_QUEUE], now, &place))
		return JOBQ_GROUP_BUSY;
	job->permits = permits_take(db, &lane, place, now);
	turns_over(db, job->role, &job->permits);
	return JOBQ_MAY_RUN;
}

/*
 * Count a job with this key of the limiter that runs without having asked for a permit.
 * Returns its permit of the key.  Returns JOBQ_NONE if the key has no limits, or if there is no
 * free entry for the tally.
 */
uint32
jobq_keyed_count(JobqDatabase *db, uint32 limiter, uint32 key, TimestampTz now)
{
	AssertExclusive(db->lock);
	if (db->ready->nfree == 0)
		(void) entry_evict(db, NULL, true);
	return keyed_count(db, limiter, key, now);
}

static void
give_back(JobqDatabase *db, uint16 index, int cost, bool unused,
		  TimestampTz now, JobqWakeList *wake)
{
	JobqLimiter *limiter = &db->limits->limiters[index];
	bool		was_full = !limiter->keyed && limiter->max_running > 0 &&
		limiter->running >= limiter->max_running;

	AssertExclusive(db->lock);
	Assert(limiter->running > 0);
	limiter->running--;
	if (unused && !limiter->keyed)
		jobq_pace_spend(limiter, &limiter->pace, -cost, now);
	if (was_full || unused || limiter->kept_until > now)
		place_freed(db, index, now, wake);
}

/*
 * Wake takers for the key of this tally, because more of its jobs may be able to start: one
 * more job, or with by_time any number.  Free the tally if there is no state to remember.
 */
static void
keyed_wake(JobqDatabase *db, uint32 index, bool by_time, TimestampTz now,
		   JobqWakeList *wake)
{
	JobqReady  *ready = db->ready;
	const JobqParty *party = jobq_party_find(db, 0, TALLY(db, index)->limiter,
											 TALLY(db, index)->key);
	uint32		next;

	AssertExclusive(db->lock);
	for (uint32 i = party == NULL ? JOBQ_NONE : party->heaps; i != JOBQ_NONE; i = next)
	{
		JobqHeap   *heap;

		next = ready->heaps[i].next;
		heap = keyed_refill(db, &ready->heaps[i], now);
		if (heap != NULL)
			heap_wake(db, heap, by_time ? keyed_room(db, &ready->heaps[i]) : 1, now, wake);
	}
	tally_forget(db, index, now);
}

/*
 * Call keyed_wake() for keys whose token has arrived, or whose rest has ended.  The number per call is limited:
 * db->limits->due tells if there are more.
 */
void
keyed_wake_due(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	AssertExclusive(db->lock);
	for (int i = 0; i < SAMPLE; i++)
	{
		uint32		index = tally_due(db, now);

		if (index == JOBQ_NONE)
			return;
		keyed_wake(db, index, true, now, wake);
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
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (held.limiters[s] != JOBQ_NO_LIMITER)
			give_back(db, held.limiters[s], held.costs[s], unused, now, wake);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		if (held.tallies[s] != JOBQ_NONE)
		{
			keyed_give(db, held.tallies[s], unused ? held.costs[s] : 0, now);
			keyed_wake(db, held.tallies[s], false, now, wake);
		}
	}
	if (held.group != JOBQ_NONE)
		group_leave(db, held.group, id, live, unused, now, wake);
}

/*
 * Return the permits of n of the further jobs that the worker in this slot has popped to run
 * together.  unused: the jobs did not run at all.
 */
void
jobq_slot_release_more(JobqDatabase *db, JobqSlot *slot, int n, bool unused, TimestampTz now,
					   JobqWakeList *wake)
{
	JobqHolding *holding = slot->holding;

	AssertExclusive(db->lock);
	Assert(n <= holding->nmore);
	for (int i = 0; i < n; i++)
	{
		JobqPermits permits = holding->more;

		jobq_permits_release(db, &permits, 0, false, unused, now, wake);
	}
	holding->nmore -= n;
	if (holding->nmore == 0)
		holding->more = JOBQ_NO_PERMITS;
}

/*
 * Return the permits that the worker in this slot holds.  Called by the worker, between two
 * jobs or at its end.
 */
void
jobq_slot_release(JobqDatabase *db, JobqSlot *slot, TimestampTz now, JobqWakeList *wake)
{
	AssertExclusive(db->lock);
	Assert(!jobq_run_busy(&slot->run));
	jobq_permits_release(db, &slot->holding->permits, slot->holding->permits_job,
						 slot->run.state == JOBQ_RUN_LIVE, jobq_run_unused(&slot->run),
						 now, wake);
	jobq_slot_release_more(db, slot, slot->holding->nmore, false, now, wake);
	jobq_set_leave_all(db, slot, now, wake);
}

/*
 * Count failed attempts of jobs with this job's queue and needs for the throttles.
 */
void
jobq_limits_failed(JobqDatabase *db, const JobqPush *job, int failures, TimestampTz now)
{
	uint16		limiters[JOBQ_NLIMITS];

	AssertExclusive(db->lock);
	jobq_limiters_find(db, job->queue_id, job->needs, limiters);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		JobqLimiter *limiter;

		if (limiters[s] == JOBQ_NO_LIMITER)
			continue;
		limiter = &db->limits->limiters[limiters[s]];
		if (limiter->throttle.failures == 0)
			continue;
		if (limiter->keyed)
		{
			if (db->ready->nfree == 0)
				(void) entry_evict(db, NULL, true); /* for a tally */
			keyed_failed(db, limiters[s], job->needs[s].key, failures, now);
		}
		else
			jobq_pace_failed(limiter, &limiter->pace, failures, now);
	}
}

/*
 * Return the first limiter of a heap that has limiters.
 */
static uint16
first_limiter(const JobqHeap *heap)
{
	int			s = 0;

	while (heap->limiters[s] == JOBQ_NO_LIMITER)
		s++;
	return heap->limiters[s];
}

/*
 * Do the jobs of a heap that has limiters need permits?
 */
static bool
heap_counts(JobqDatabase *db, const JobqHeap *heap)
{
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (heap->limiters[s] != JOBQ_NO_LIMITER &&
			jobq_limiter_counts(&db->limits->limiters[heap->limiters[s]]))
			return true;
	return false;
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
			if (first_limiter(&ready->heaps[i]) == l && /* each heap once */
				heap_counts(db, &ready->heaps[i]))
				heap_wake(db, &ready->heaps[i], PG_INT32_MAX, now, wake);
	keyed_wake_due(db, now, wake);
	gathering_wake_due(db, now, wake);
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
