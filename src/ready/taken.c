/*-------------------------------------------------------------------------
 *
 * taken.c
 *	  Jobs that do not wait for a place of their limiter: what the scheduler asks who
 *	  carries out what is to become of them (worker/scheduler/taken.c).
 *
 * A limiter says what becomes of a job that is due while all its places, or all of the
 * job's key, are taken (JobqLimiter.when_taken).  Unless the job waits, a table is to be
 * written, which is the scheduler's business.  So the heap in which such jobs stand is
 * linked as "stuck", and the scheduler is woken.
 *
 * A heap that has lanes, and whose places are all taken, is stuck; or the scheduler has
 * looked at it since its last place was taken and its last job came.  That is seen to
 * where a lane gets a place in a heap or another job, and where the last place is taken
 * (heap.c, entry.c, tenant.c).  A heap may be stuck and have places all the same: whoever
 * looks at it asks.  When the limits are loaded anew, which the sweep has done from time
 * to time, all heaps are looked at again.
 *
 * What the scheduler takes out of a heap it has popped, as far as the cursor of the lane
 * is concerned: it hands back what it leaves alone.
 *
 * All functions want db->lock held exclusively, but for those that say otherwise.  Nothing
 * here can fail.
 *
 * src/ready/taken.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "ready/inner.h"

static bool holds_place(const JobqPermits *permits, uint16 index, uint32 tally);
static bool is_ending(JobqSlot *slot, uint16 index, uint32 tally);
static int	list_lanes(JobqDatabase *db, uint32 lane, JobqPush *jobs, int most);
static void add_holder(JobqHolder *holders, int *n, int most, int64 id, Oid role,
					   bool stopping, bool leased);

/*
 * Is one of the places among these permits?  tally: of the key, or JOBQ_NONE if the
 * limiter is not by one.
 */
static bool
holds_place(const JobqPermits *permits, uint16 index, uint32 tally)
{
	return tally != JOBQ_NONE ? permits->limit_key == tally
		: permits->kind == index;
}

/*
 * Does the worker hold a place for an attempt that is over, or for a job that may not run
 * now?  It is about to give it back.
 */
static bool
is_ending(JobqSlot *slot, uint16 index, uint32 tally)
{
	bool		over;

	if (!holds_place(&slot->holding->permits, index, tally))
		return false;
	if (slot->holding->turned_away)
		return true;
	if (slot->holding->unused)
		return false;
	SpinLockAcquire(&slot->mutex);
	over = slot->over || slot->job_id != slot->holding->permits_job;
	SpinLockRelease(&slot->mutex);
	return over;
}

/*
 * Are all places of the limiter with this hash taken, or of this key of it, and do its
 * jobs not wait for one?  Then *by says what becomes of them, but for the role.  *ending:
 * one will be free in a moment, without anybody's doing.  A shared lock is enough.
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

	*ending = false;
	if (policy == NULL || policy->when_taken == JOBQ_WHEN_TAKEN_WAIT)
		return false;
	if (policy->keyed)
	{
		tally = tally_find(db, JOBQ_KEYS_OF(limiter), limit_key);
		if (tally == JOBQ_NONE || policy->tenant_max_running <= 0 ||
			TALLY(db, tally)->running < policy->tenant_max_running)
			return false;
	}
	else if (!limiter_turns_away(db, index))
		return false;
	for (int i = 0; i < jobq_shared->nslots && !*ending; i++)
		if (jobq_shared->slots[i].database == db - jobq_shared->databases)
			*ending = is_ending(&jobq_shared->slots[i], index, tally);
	by->limiter = limiter;
	by->limit_key = policy->keyed ? limit_key : 0;
	by->when_taken = policy->when_taken;
	by->release_after = policy->release_after;
	by->max_running = policy->keyed ? policy->tenant_max_running
		: policy->max_running;
	return true;
}

/*
 * The heap that is stuck since longest, which it is not any more for now, and what becomes
 * of its jobs; or NULL.  Then others may remain, that were not looked at.
 */
JobqHeap *
jobq_stuck_next(JobqDatabase *db, JobqTakenBy *by, bool *ending)
{
	JobqReady  *ready = db->ready;

	for (int i = 0; i < SAMPLE && ready->stuck != JOBQ_NONE; i++)
	{
		JobqHeap   *heap = &ready->heaps[ready->stuck];
		const JobqLimiter *limiter = heap->kind_limiter == JOBQ_NO_LIMITER ? NULL
			: &db->limits->limiters[heap->kind_limiter];

		heap_unstick(db, heap);
		if (limiter == NULL || heap->root == JOBQ_NONE ||
			(limiter->keyed && heap->tenant == JOBQ_NONE) ||
			!jobq_places_taken(db, limiter->kind,
							   limiter->keyed ? ready->parties[heap->tenant].tenant : 0,
							   by, ending))
			continue;
		by->role = heap->role;
		return heap;
	}
	return NULL;
}

/*
 * Look at the heap of this key again, if there is one.
 */
void
jobq_stuck_again(JobqDatabase *db, const JobqHeap *key)
{
	JobqHeap   *heap = heap_find(db, key);

	if (heap != NULL && heap->root != JOBQ_NONE)
		heap_stick(db, heap);
}

/*
 * Take jobs out of the heap of this key, up to so many, those first that come first.  If
 * any are left, it is stuck again, after others.
 */
int
jobq_stuck_take(JobqDatabase *db, const JobqHeap *key, JobqPush *jobs, int most,
				JobqWakeList *wake)
{
	JobqHeap   *heap = heap_find(db, key);
	int			n = 0;

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
 * The first jobs of some lanes of the heap of this key, up to so many, which remain there.
 * A shared lock is enough.
 */
int
jobq_stuck_list(JobqDatabase *db, const JobqHeap *key, JobqPush *jobs, int most)
{
	const JobqHeap *heap = heap_find(db, key);

	return heap == NULL ? 0 : list_lanes(db, heap->root, jobs, most);
}

/*
 * Take this job, which was listed, out of its lane.  False if it is not among the first
 * ones there any more.
 */
bool
jobq_stuck_remove(JobqDatabase *db, const JobqPush *job, JobqWakeList *wake)
{
	JobqLane   *lane = jobq_lane_find(db, job->queue_id, job->priority, job->role,
									  job->flow, job->quarantine, false);
	uint32		at = lane == NULL ? JOBQ_NONE : lane->head;

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
 * A session has found the job in the table, and all places taken: it is none of those
 * that wait for one.  If too many are noted already, it will be found again.
 */
void
taken_note(JobqDatabase *db, const JobqPush *job)
{
	JobqReady  *ready = db->ready;
	JobqTakenBy by;
	bool		ending;

	if (ready->nasked == JOBQ_MAX_ASKED ||
		!jobq_places_taken(db, job->kind, job->limit_key, &by, &ending) || ending)
		return;
	for (int i = 0; i < ready->nasked; i++)
		if (ready->asked[i].key.id == job->key.id)
			return;
	ready->asked[ready->nasked++] = *job;
	ready->stuck_news = true;
}

/*
 * Has somebody got the job: a worker that has popped it, whether it has begun or not, a
 * session to which it is offered, or that has leased it?  Then what stands in its lane is
 * an outdated entry, and the place that is taken may be the job's own.  A worker is asked
 * for what it holds, and not for what it says that it runs: it can begin at any time, and
 * has the row only a moment later.  A shared lock is enough.
 */
bool
jobq_is_handed_out(JobqDatabase *db, int64 id)
{
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		const JobqSlot *slot = &jobq_shared->slots[i];
		const JobqHolding *holding = slot->holding;

		if (slot->database == db - jobq_shared->databases &&
			holding->permits_job == id && !holding->turned_away &&
			jobq_permits_any(&holding->permits))
			return true;
	}
	for (int i = 0; i < JOBQ_MAX_RESERVERS; i++)
		if (db->offers->reservers[i].offered && db->offers->reservers[i].offer.key.id == id)
			return true;
	return jobq_lease_find(db, id) != NULL;
}

static void
add_holder(JobqHolder *holders, int *n, int most, int64 id, Oid role, bool stopping,
		   bool leased)
{
	if (*n < most)
		holders[(*n)++] = (JobqHolder)
	{
		id, role, stopping, leased
	};
}

/*
 * Add those that hold a place of the limiter, or of this key of it, to the n that are in
 * the array, which has room for "most"; and return how many there are then.  *at is 0 at
 * first.  Unless it is 0 again afterwards, there is more to be looked at, and the lock can
 * be released before.  A shared lock is enough.
 */
int
jobq_places_holders(JobqDatabase *db, const JobqTakenBy *by, JobqHolder *holders,
					int n, int most, int *at)
{
	uint16		index = jobq_limiter_find(db, 0, by->limiter);
	uint32		tally = JOBQ_NONE;
	int			until = Min(*at + JOBQ_LEASES_AT_ONCE, jobq_max_leases);

	if (index != JOBQ_NO_LIMITER && db->limits->limiters[index].keyed)
	{
		tally = tally_find(db, JOBQ_KEYS_OF(by->limiter), by->limit_key);
		if (tally == JOBQ_NONE)
			index = JOBQ_NO_LIMITER;
	}
	if (index == JOBQ_NO_LIMITER)
	{
		*at = 0;
		return n;
	}
	for (int i = 0; i < jobq_shared->nslots && *at == 0; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];
		int64		id = slot->holding->permits_job;
		bool		stopping;

		if (slot->database != db - jobq_shared->databases ||
			!holds_place(&slot->holding->permits, index, tally))
			continue;
		SpinLockAcquire(&slot->mutex);
		stopping = slot->stop == JOBQ_STOP_CANCEL && slot->stop_job == id;
		SpinLockRelease(&slot->mutex);
		add_holder(holders, &n, most, id, slot->role, stopping, false);
	}
	for (int i = 0; i < JOBQ_MAX_RESERVERS && *at == 0; i++)
	{
		const JobqReserver *reserver = &db->offers->reservers[i];

		if (reserver->offered && holds_place(&reserver->offer.permits, index, tally))
			add_holder(holders, &n, most, reserver->offer.key.id,
					   reserver->offer.role, false, false);
	}
	for (int i = *at; i < until && db->leases->nleases > 0; i++)
	{
		const JobqLease *lease = &db->leases->leases[i];

		if (lease->id != 0 && holds_place(&lease->permits, index, tally))
			add_holder(holders, &n, most, lease->id, lease->role, false, true);
	}
	*at = until == jobq_max_leases || db->leases->nleases == 0 ? 0 : until;
	return n;
}
