/*-------------------------------------------------------------------------
 *
 *	  Jobs that do not wait for a permit of their limiter: functions for the scheduler,
 *	  which carries out the consequences (worker/scheduler/taken.c).
 *
 * A limiter determines the consequence for a job that is due while no permit of the limiter,
 * or of the job's key, is free (JobqLimiter.when_taken).  Unless the job waits, a table must
 * be written, which is a task of the scheduler.  The heap of such jobs is therefore linked as
 * "stuck", and the scheduler is woken.
 *
 * Invariant: a heap with lanes and without a free permit is stuck, or the scheduler has
 * examined the heap since its last permit was taken and its last job came.  The invariant is
 * kept wherever a lane gets a position in a heap or another job, and where the last permit is
 * taken (heap.c, entry.c, keyed.c).  A stuck heap may have free permits nevertheless, so the
 * scheduler checks.  Loading the limits, which the sweep does from time to time, makes all
 * heaps be examined again.  A lane with several limited keys is examined only in the heap of
 * one of them.  While the lane waits for another key, or is lent by another key, its jobs wait
 * for the next taker, which moves the lane.
 *
 * Jobs that the scheduler takes out of a heap count as popped for the cursor of the lane.
 * The scheduler hands the remaining jobs over again.
 *
 * src/ready/taken.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "ready/inner.h"

/*
 * Do these permits include a permit of the limiter?  tally: the tally of the key, or
 * JOBQ_NONE if the limiter is not keyed.
 */
static bool
holds_place(const JobqPermits *permits, uint16 index, uint32 tally)
{
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (tally != JOBQ_NONE ? permits->tallies[s] == tally
			: permits->limiters[s] == index)
			return true;
	return false;
}

/*
 * Does the worker hold a permit for an attempt that is over, or for a job that may not run
 * now?  The worker is about to return the permit.
 */
static bool
is_ending(JobqSlot *slot, uint16 index, uint32 tally)
{
	bool		ending;

	if (!holds_place(&slot->holding->permits, index, tally))
		return false;
	SpinLockAcquire(&slot->mutex);
	if (jobq_run_unused(&slot->run))
		ending = slot->run.state == JOBQ_RUN_TURNED_AWAY;
	else
		ending = !jobq_run_is_of(&slot->run, slot->holding->permits_job);
	SpinLockRelease(&slot->mutex);
	return ending;
}

/*
 * Are all permits of the limiter with this hash, or of this key of the limiter, held, and do
 * its jobs not wait for permits?  If so, *by gets the consequence, without the role.
 * *ending: a permit is about to be returned without further action.
 *
 * The caller holds db->lock.
 */
bool
jobq_places_taken(JobqDatabase *db, uint32 limiter, uint32 limit_key,
				  JobqTakenBy *by, bool *ending)
{
	uint16		index = limiter == 0 ? JOBQ_NO_LIMITER
		: jobq_limiter_find(db, 0, limiter);
	const JobqLimiter *policy = index == JOBQ_NO_LIMITER ? NULL
		: &db->limits->limiters[index];
	uint32		tally = JOBQ_NONE;

	AssertLocked(db->lock);
	*ending = false;
	if (policy == NULL || policy->when_taken == JOBQ_WHEN_TAKEN_WAIT)
		return false;
	if (policy->keyed)
	{
		tally = tally_find(db, limiter, limit_key);
		if (tally == JOBQ_NONE || policy->max_running <= 0 ||
			TALLY(db, tally)->running < policy->max_running)
			return false;
	}
	else if (!limiter_turns_away(db, index))
		return false;
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_ALL)
	{
		*ending |= is_ending(slot, index, tally);
	}
	by->limiter = limiter;
	by->limit_key = policy->keyed ? limit_key : 0;
	by->when_taken = policy->when_taken;
	by->release_after = policy->release_after;
	by->max_running = policy->max_running;
	return true;
}

/*
 * Like jobq_places_taken(), for any limiter of a job with these needs.
 */
bool
jobq_needs_taken(JobqDatabase *db, const JobqNeed *needs, JobqTakenBy *by, bool *ending)
{
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (jobq_places_taken(db, needs[s].limiter, needs[s].key, by, ending))
			return true;
	return false;
}

/*
 * Are all permits for the jobs of this heap held, and do its jobs not wait for permits?  In a
 * heap of a key, the permits of this key count, but of no other key.  *by and *ending are as
 * for jobq_places_taken().
 */
static bool
heap_is_taken(JobqDatabase *db, const JobqHeap *heap, JobqTakenBy *by, bool *ending)
{
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		const JobqLimiter *limiter = heap->limiters[s] == JOBQ_NO_LIMITER ? NULL
			: &db->limits->limiters[heap->limiters[s]];
		bool		of_key = heap->party != JOBQ_NONE && heap->at == s;

		if (limiter != NULL && (!limiter->keyed || of_key) &&
			jobq_places_taken(db, limiter->kind,
							  of_key ? db->ready->parties[heap->party].key : 0, by,
							  ending))
			return true;
	}
	return false;
}

/*
 * Unlink and return the heap that has been stuck longest; NULL if there is none.  *by and
 * *ending are as for jobq_places_taken().  After NULL, heaps that were not examined may
 * remain.
 */
JobqHeap *
jobq_stuck_next(JobqDatabase *db, JobqTakenBy *by, bool *ending)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
	for (int i = 0; i < SAMPLE && ready->stuck != JOBQ_NONE; i++)
	{
		JobqHeap   *heap = &ready->heaps[ready->stuck];

		heap_unstick(db, heap);
		if (heap->root == JOBQ_NONE || !heap_is_taken(db, heap, by, ending))
			continue;
		by->role = heap->role;
		return heap;
	}
	return NULL;
}

/*
 * Mark the heap with this key as stuck again, if the heap exists.
 */
void
jobq_stuck_again(JobqDatabase *db, const JobqHeap *key)
{
	JobqHeap   *heap = heap_find(db, key);

	AssertExclusive(db->lock);
	if (heap != NULL && heap->root != JOBQ_NONE)
		heap_stick(db, heap);
}

/*
 * Take up to "most" jobs out of the heap with this key, in order, and return their number.
 * If jobs remain, the heap is stuck again, behind other heaps.
 */
int
jobq_stuck_take(JobqDatabase *db, const JobqHeap *key, JobqPush *jobs, int most,
				JobqWakeList *wake)
{
	JobqHeap   *heap = heap_find(db, key);
	int			n = 0;

	AssertExclusive(db->lock);
	while (n < most && heap != NULL && heap->root != JOBQ_NONE)
	{
		JobqLane   *lane = &db->ready->lanes[heap->root];
		uint32		index = lane->head;

		entry_uncall(db, index);
		entry_leave(db, lane, index, wake);
		entry_take(db, index, &jobs[n++]);
		heap = heap_find(db, key);
	}
	if (heap != NULL && heap->root != JOBQ_NONE)
		heap_stick(db, heap);
	return n;
}

static int
list_lanes(JobqDatabase *db, uint32 lane, JobqPush *jobs, int most)
{
	const JobqReady *ready = db->ready;
	int			n = 0;

	if (lane == JOBQ_NONE || most == 0)
		return 0;
	for (uint32 i = ready->lanes[lane].head; i != JOBQ_NONE && n < most;
		 i = ready->entries[i].next)
		entry_push(db, i, &jobs[n++]);
	n += list_lanes(db, ready->nodes[lane].left, jobs + n, most - n);
	return n + list_lanes(db, ready->nodes[lane].right, jobs + n, most - n);
}

/*
 * Copy the first jobs of some lanes of the heap with this key, up to "most", and return their
 * number.  The jobs remain in their lanes.  The caller holds db->lock.
 */
int
jobq_stuck_list(JobqDatabase *db, const JobqHeap *key, JobqPush *jobs, int most)
{
	const JobqHeap *heap = heap_find(db, key);

	AssertLocked(db->lock);
	return heap == NULL ? 0 : list_lanes(db, heap->root, jobs, most);
}

/*
 * Take a listed job out of its lane.  Returns false if the job is no longer among the first
 * jobs of the lane.
 */
bool
jobq_stuck_remove(JobqDatabase *db, const JobqPush *job, JobqWakeList *wake)
{
	JobqLane   *lane = jobq_lane_find(db, job->queue_id, job->priority, job->role,
									  job->flow, job->quarantine, false);
	uint32		at = lane == NULL ? JOBQ_NONE : lane->head;

	AssertExclusive(db->lock);
	for (int i = 0; i < 2 * SAMPLE && at != JOBQ_NONE; i++)
	{
		if (jobq_key_cmp(db->ready->entries[at].key, job->key) == 0 &&
			db->ready->entries[at].group == job->group)
		{
			entry_uncall(db, at);
			entry_leave(db, lane, at, wake);
			entry_free(db, at);
			return true;
		}
		at = db->ready->entries[at].next;
	}
	return false;
}

/*
 * Note a job for the scheduler that a session has found in the table, without a free permit at
 * the limiter of this source.  The job does not wait for a permit.  If too many jobs are noted
 * already, the job will be found again later.
 */
void
taken_note(JobqDatabase *db, const JobqPush *job, int source)
{
	JobqReady  *ready = db->ready;
	JobqTakenBy by;
	bool		ending;

	AssertExclusive(db->lock);
	if (ready->nasked == JOBQ_MAX_ASKED ||
		!jobq_places_taken(db, job->needs[source].limiter, job->needs[source].key, &by,
						   &ending) || ending)
		return;
	for (int i = 0; i < ready->nasked; i++)
		if (ready->asked[i].key.id == job->key.id)
			return;
	ready->asked[ready->nasked++] = *job;
	ready->stuck_news = true;
}

/*
 * Is the job held by a process: a worker that has popped it, whether begun or not, or a
 * session with an offer or a lease?  The entry in the job's lane is then outdated, and the
 * missing permit may be the job's own.  The permits of a worker are compared, not its current
 * job.  A worker can begin at any time, and has the row only a moment later.
 *
 * The caller holds db->lock.
 */
bool
jobq_is_handed_out(JobqDatabase *db, int64 id)
{
	AssertLocked(db->lock);
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_ALL)
	{
		const JobqHolding *holding = slot->holding;

		if (holding->permits_job == id && slot->run.state != JOBQ_RUN_TURNED_AWAY &&
			jobq_permits_any(&holding->permits))
			return true;
	}
	for (int i = 0; i < JOBQ_MAX_RESERVERS; i++)
		if (db->offers->reservers[i].offered && db->offers->reservers[i].offer.key.id == id)
			return true;
	return jobq_lease_find(db, id) != NULL;
}

/* Append a holder.  If there is no room, the result is not in the array. */
static JobqHolder *
add_holder(JobqHolder *holders, int *n, int most, int64 id, Oid role)
{
	static JobqHolder no_room;
	JobqHolder *holder = *n < most ? &holders[(*n)++] : &no_room;

	memset(holder, 0, sizeof(JobqHolder));
	holder->id = id;
	holder->role = role;
	return holder;
}

/*
 * Append the jobs that hold a permit of the limiter, or of this key of the limiter, to the n
 * holders in the array, which has room for "most".  Returns the new number.  *at must be 0 at
 * first.  If *at is not 0 afterwards, the caller calls again for further jobs, and may
 * release the lock in between.
 *
 * The caller holds db->lock.
 */
int
jobq_places_holders(JobqDatabase *db, const JobqTakenBy *by, JobqHolder *holders,
					int n, int most, int *at)
{
	uint16		index = jobq_limiter_find(db, 0, by->limiter);
	uint32		tally = JOBQ_NONE;
	int			until = Min(*at + JOBQ_LEASES_AT_ONCE, jobq_max_leases);

	AssertLocked(db->lock);
	if (index != JOBQ_NO_LIMITER && db->limits->limiters[index].keyed)
	{
		tally = tally_find(db, by->limiter, by->limit_key);
		if (tally == JOBQ_NONE)
			index = JOBQ_NO_LIMITER;
	}
	if (index == JOBQ_NO_LIMITER)
	{
		*at = 0;
		return n;
	}
	if (*at == 0)
	{
		jobq_foreach_slot(slot, db, JOBQ_SLOTS_ALL)
		{
			int64		id = slot->holding->permits_job;
			bool		stopping;

			if (!holds_place(&slot->holding->permits, index, tally))
				continue;
			SpinLockAcquire(&slot->mutex);
			stopping = slot->run.stop == JOBQ_STOP_CANCEL && slot->run.job == id;
			SpinLockRelease(&slot->mutex);
			add_holder(holders, &n, most, id, slot->role)->stopping = stopping;
		}
		for (int i = 0; i < JOBQ_MAX_RESERVERS; i++)
		{
			const JobqReserver *reserver = &db->offers->reservers[i];

			if (reserver->offered && holds_place(&reserver->offer.permits, index, tally))
				(void) add_holder(holders, &n, most, reserver->offer.key.id,
								  reserver->offer.role);
		}
	}
	for (int i = *at; i < until && db->leases->nleases > 0; i++)
	{
		const JobqLease *lease = &db->leases->leases[i];

		if (lease->id != 0 && holds_place(&lease->permits, index, tally))
			add_holder(holders, &n, most, lease->id, lease->role)->leased = true;
	}
	*at = until == jobq_max_leases || db->leases->nleases == 0 ? 0 : until;
	return n;
}
