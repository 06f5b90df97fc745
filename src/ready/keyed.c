/*-------------------------------------------------------------------------
 *
 *	  Heaps of a limiter's keys: which lanes takers find while the key may start a job.
 *
 * The heap of the takers is the heap that workers or consumers pop from.  A key has one heap of
 * its own for each heap of takers: with the same role, order and limiters.  JobqHeap.party tells
 * them apart.  The key's first lane is lent to the heap of the takers while the key may start a
 * job.  Takers therefore do not meet a full key, and the cost of a job does not depend on the
 * number of keys.  Code that changes a tally (tally.c), or the contents of a key's heap, calls
 * keyed_settle().  A key that waits for a token, or rests after failures, has a timer.
 *
 * A lane may have several keys with limits, such as a tenant and a host.  The lane waits in the
 * heap of one of them (JobqLane.at).  If another key becomes full while the lane is lent, the
 * lane is stale.  No code notices at that moment.  The taker that finds the stale lane moves it
 * to the heap of the full key (keyed_recall()).  Each lane therefore waits where a permit is
 * missing, and is lent again when this permit is returned.  A taker goes idle only after it has
 * moved all stale lanes of heaps with room.  A returned permit therefore need not wake a taker
 * for a lane that is lent already.
 *
 * The states of a lane with keys:
 *
 *	absent	in no heap: the lane has no job, or is closed, or no heap was free
 *	own		lane->heap is lane->own
 *	lent	lane->heap is the heap of the takers, and the lane is "lent" of lane->own
 *	stale	lent, but another key of the lane is full
 *
 *	state	event										new state		woken
 *	absent	jobq_lane_place(): keyed_choose(), then		own, or lent	by the caller
 *			keyed_enter()
 *	own		the key may start a job again:				lent, if first	a taker of the heap
 *			keyed_refill()												of the takers
 *	own		the lane now comes before the lent lane		lent; the other	none: a lane was lent
 *														lane is own		before
 *	lent	the key is full								own				none
 *	lent	another key is full							stale			none
 *	stale	that key may start a job again				lent			none: see above
 *	stale	keyed_recall(), or keyed_settle() of		own, at the		the next lane is lent
 *			lane->own									full key		instead (keyed_recall())
 *	any		jobq_lane_place(), lane_displace():			absent			none
 *			keyed_leave()
 *
 * heap_take() frees a heap of takers that becomes empty.  The heap of a key is freed only by
 * forget_if_empty(), and therefore by keyed_settle(), keyed_refill(), keyed_recall() and
 * keyed_leave(), and not by settle().  A caller must not use a heap after these calls.
 *
 * Keys are identified by hashes of 32 bits.  Keys with the same hash share their limits.
 *
 * src/ready/keyed.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

static bool settle(JobqDatabase *db, JobqHeap *own, TimestampTz now);

/*
 * Does the lane have a key with limits at the limiter of this source?
 */
bool
key_is_limited(JobqDatabase *db, const JobqLane *lane, int source)
{
	AssertLocked(db->lock);
	return lane->needs[source].key != 0 && keyed_policy(db, lane->limiters[source]) != NULL;
}

/*
 * Choose the heap for a lane that is in no heap and has keys with limits: the heap of a full
 * key.  If no key is full, jobs that do not wait for a permit of a key belong into the heap of
 * this key, where they are found when it is full (taken.c).
 */
void
keyed_choose(JobqDatabase *db, JobqLane *lane, TimestampTz now)
{
	int			best = -1;

	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		TimestampTz due = DT_NOEND;
		int			merit;

		if (!key_is_limited(db, lane, s))
			continue;
		merit = 2 * tally_is_full(db, lane->limiters[s], lane->needs[s].key, now, &due) +
			(db->limits->limiters[lane->limiters[s]].when_taken != JOBQ_WHEN_TAKEN_WAIT);
		if (merit > best)
		{
			best = merit;
			lane->at = s;
		}
	}
}

/*
 * Return the source of the limiter in whose key's heap the lane belongs, or -1 if no key of
 * the lane has limits.
 */
int
keyed_source(JobqDatabase *db, const JobqLane *lane)
{
	if (key_is_limited(db, lane, lane->at))
		return lane->at;
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (key_is_limited(db, lane, s))
			return s;
	return -1;
}

/* ---------- heaps ---------- */

/*
 * Does the lane come before the other lane of the same key?  Within a key there are no
 * turns.
 */
static bool
comes_first(JobqDatabase *db, const JobqLane *lane, const JobqLane *other)
{
	AssertExclusive(db->lock);
	if (lane->priority != other->priority)
		return lane->priority < other->priority;
	return jobq_key_cmp(db->ready->entries[lane->head].key,
						db->ready->entries[other->head].key) < 0;
}

/*
 * Return the tally of the key of this heap, or JOBQ_NONE.
 */
static uint32
tally_of(JobqDatabase *db, const JobqHeap *own)
{
	const JobqParty *party = &db->ready->parties[own->party];

	AssertExclusive(db->lock);
	return tally_find(db, party->owner, party->key);
}

/*
 * Return the limiter of this heap's key, or NULL.
 */
static const JobqLimiter *
policy_of(JobqDatabase *db, const JobqHeap *own)
{
	return keyed_policy(db, own->limiters[own->at]);
}

/*
 * A job of this heap may not start.  If the reason is that all permits of its key are held,
 * and the job does not wait for permits, the heap is stuck.
 */
static void
stick_if_taken(JobqDatabase *db, JobqHeap *own, uint32 tally)
{
	const JobqLimiter *policy = policy_of(db, own);

	AssertExclusive(db->lock);
	if (policy != NULL && policy->when_taken != JOBQ_WHEN_TAKEN_WAIT &&
		policy->max_running > 0 && tally != JOBQ_NONE &&
		TALLY(db, tally)->running >= policy->max_running)
		heap_stick(db, own);
}

/*
 * Return the source of another limiter than the one in whose key's heap the lane is, if the
 * lane's key there is full; otherwise -1.
 */
static int
waits_elsewhere(JobqDatabase *db, const JobqLane *lane, TimestampTz now)
{
	int			at = db->ready->heaps[lane->own].at;

	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		TimestampTz due = DT_NOEND;

		if (s != at && tally_is_full(db, lane->limiters[s], lane->needs[s].key, now, &due))
			return s;
	}
	return -1;
}

/*
 * Move a lane of this heap, or lent by this heap, to the heap of its key at the limiter of the
 * source.  The key is full.
 */
static void
move_lane(JobqDatabase *db, const JobqHeap *own, JobqLane *lane, int source, TimestampTz now)
{
	JobqHeap	key = *own;
	JobqHeap   *other;

	heap_take(db, lane);
	lane->own = JOBQ_NONE;
	lane->at = key.at = source;
	key.party = lane->keys[source];
	other = heap_make(db, &key);
	if (other == NULL)
		return;					/* the lane waits until a heap is free */
	lane->own = other - db->ready->heaps;
	heap_put(db, other, lane);
	(void) settle(db, other, now);
}

/*
 * Lend the first lane of the key's heap if the key may start a job, or take the lent lane back
 * if not.  Returns true if the heap had no lent lane before and has one now.  The heap may be
 * empty afterwards.
 *
 *	key		lent lane	first lane of the heap		outcome
 *	full	none		any							nothing
 *	full	any			any							the lent lane returns to the heap
 *	free	none		any							the first lane is lent: true
 *	free	in order	comes before the lent lane	both change places
 *	free	in order	comes after it, or none		nothing
 *	free	stale		any							the lent lane moves to the heap of the full
 *												key, and the first lane is lent instead
 *
 * A lane is lent only if there is a heap of takers, or room to make one.
 */
static bool
settle(JobqDatabase *db, JobqHeap *own, TimestampTz now)
{
	JobqReady  *ready = db->ready;
	TimestampTz due = DT_NOEND;
	uint32		tally = tally_of(db, own);
	bool		is_free = tally_may_start(policy_of(db, own),
										  tally == JOBQ_NONE ? NULL : TALLY(db, tally),
										  now, &due);
	JobqLane   *lent = own->lent == JOBQ_NONE ? NULL : &ready->lanes[own->lent];
	JobqLane   *first;
	JobqHeap   *heap = NULL;
	int			elsewhere;

	AssertExclusive(db->lock);

	/*
	 * do not remove a timer here, because other heaps of the key may wait for
	 * it
	 */
	if (due != DT_NOEND)
		tally_set_timer(db, tally, due);
	if (!is_free)
	{
		stick_if_taken(db, own, tally);
		own->lent = JOBQ_NONE;
		if (lent != NULL)
		{
			heap_take(db, lent);
			heap_put(db, own, lent);
		}
		return false;
	}
	elsewhere = lent == NULL ? -1 : waits_elsewhere(db, lent, now);
	first = own->root == JOBQ_NONE ? NULL : &ready->lanes[own->root];
	if (first != NULL && (lent == NULL || elsewhere >= 0 || comes_first(db, first, lent)))
	{
		JobqHeap	key = *own;

		key.party = JOBQ_NONE;
		heap = heap_make(db, &key);
	}
	if (heap != NULL)
	{
		heap_take(db, first);
		heap_put(db, heap, first);
		own->lent = JOBQ_LANE_INDEX(db, first);
		if (first->consumer)
			lane_offer(db, first);
	}
	else if (elsewhere >= 0)
		own->lent = JOBQ_NONE;
	if (elsewhere >= 0)
		move_lane(db, own, lent, elsewhere, now);
	else if (lent != NULL && heap != NULL)
	{
		heap_take(db, lent);
		heap_put(db, own, lent);
	}
	return heap != NULL && lent == NULL;
}

/* Free the heap of a key if it has no lane. */
static void
forget_if_empty(JobqDatabase *db, JobqHeap *own)
{
	uint32		party = own->party;
	uint32		tally;

	if (own->root != JOBQ_NONE || own->lent != JOBQ_NONE)
		return;
	tally = tally_of(db, own);
	heap_free(db, own);
	if (tally != JOBQ_NONE && db->ready->parties[party].heaps == JOBQ_NONE)
		tally_set_timer(db, tally, DT_NOEND);
}

/*
 * The tally of the key has changed, or the contents of this heap: lend the right lane.  The
 * heap is freed if it has no lane afterwards.
 */
void
keyed_settle(JobqDatabase *db, JobqHeap *own, TimestampTz now)
{
	AssertExclusive(db->lock);
	(void) settle(db, own, now);
	forget_if_empty(db, own);
}

/*
 * Like keyed_settle(), for a key that may start more jobs than before.  Returns the heap
 * whose takers are to be woken, or NULL.
 */
JobqHeap *
keyed_refill(JobqDatabase *db, JobqHeap *own, TimestampTz now)
{
	JobqHeap   *heap = NULL;

	AssertExclusive(db->lock);
	/* an already woken taker takes a job */
	if (settle(db, own, now) || keyed_room(db, own) > 1)
		heap = &db->ready->heaps[db->ready->lanes[own->lent].heap];
	forget_if_empty(db, own);
	return heap;
}

/*
 * Is the lane lent although no job of the lane may start, because another of its keys is full?
 */
bool
keyed_is_stale(JobqDatabase *db, const JobqLane *lane, TimestampTz now)
{
	AssertExclusive(db->lock);
	return lane->own != JOBQ_NONE &&
		db->ready->heaps[lane->own].lent == JOBQ_LANE_INDEX(db, lane) &&
		waits_elsewhere(db, lane, now) >= 0;
}

/*
 * If the lane, the first of a heap of takers, is stale, move the lane to the heap of the full
 * key, and return true.  *instead gets the lane that is lent instead, or JOBQ_NONE.  The heap
 * of the takers may be freed.
 */
bool
keyed_recall(JobqDatabase *db, JobqLane *lane, TimestampTz now, uint32 *instead)
{
	JobqHeap   *own;

	if (!keyed_is_stale(db, lane, now))
		return false;
	own = &db->ready->heaps[lane->own];
	(void) settle(db, own, now);
	*instead = own->lent;
	forget_if_empty(db, own);
	return true;
}

/*
 * Add a lane without a heap to this heap of its key.
 */
void
keyed_enter(JobqDatabase *db, JobqHeap *own, JobqLane *lane)
{
	AssertExclusive(db->lock);
	Assert(own->party != JOBQ_NONE && lane->own == JOBQ_NONE);
	lane->own = own - db->ready->heaps;
	heap_put(db, own, lane);
	keyed_settle(db, own, jobq_now());
}

/*
 * Remove the lane from its key's heap, or from the heap to which it is lent.
 */
void
keyed_leave(JobqDatabase *db, JobqLane *lane)
{
	JobqHeap   *own = &db->ready->heaps[lane->own];

	AssertExclusive(db->lock);
	Assert(lane->own != JOBQ_NONE);
	heap_take(db, lane);
	lane->own = JOBQ_NONE;
	if (own->lent == JOBQ_LANE_INDEX(db, lane))
		own->lent = JOBQ_NONE;
	if (own->root == JOBQ_NONE && own->lent == JOBQ_NONE)
		forget_if_empty(db, own);
	else
		keyed_settle(db, own, jobq_now());
}

/*
 * Return how many jobs of this heap of a key, including its lent lane, may start now.
 */
uint32
keyed_room(JobqDatabase *db, const JobqHeap *own)
{
	const JobqLimiter *policy = policy_of(db, own);
	uint32		index = tally_of(db, own);
	JobqTally  *tally = index == JOBQ_NONE ? NULL : TALLY(db, index);
	TimestampTz due = DT_NOEND;
	uint32		room = PG_INT32_MAX;

	AssertExclusive(db->lock);
	if (own->lent == JOBQ_NONE)
		return 0;
	if (policy != NULL && policy->max_running > 0)
		room = Max(policy->max_running - (tally == NULL ? 0 : tally->running), 0);
	if (policy != NULL && policy->rate.per_us > 0 && tally != NULL)
		room = Min(room, (uint32) Max(jobq_pace_tokens(policy, &tally->pace, jobq_now(), &due), 1));
	else if (policy != NULL && policy->rate.per_us > 0)
		room = Min(room, (uint32) policy->rate.burst);
	return Min(room, own->nentries + db->ready->lanes[own->lent].count);
}

/*
 * May a job of the lane start now, according to all limiters and its key?  Lowers
 * db->limits->due if the answer changes with time.
 */
bool
jobq_lane_free(JobqDatabase *db, const JobqLane *lane, TimestampTz now)
{
	AssertExclusive(db->lock);
	if (limiters_room(db, lane->limiters, now, &db->limits->due) == 0)
		return false;
	if (lane->own != JOBQ_NONE)
		return db->ready->heaps[lane->own].lent != JOBQ_NONE;

	/* no taker finds a lane without a heap */
	return lane->heap != JOBQ_NONE;
}

/*
 * Do limits prevent all jobs of the lane from starting now?  The lane may have no job in
 * memory.
 */
bool
lane_is_full(JobqDatabase *db, const JobqLane *lane, TimestampTz now)
{
	TimestampTz due = DT_NOEND;

	AssertExclusive(db->lock);
	if (limiters_room(db, lane->limiters, now, &due) == 0)
		return true;
	if (lane->own != JOBQ_NONE)
		return db->ready->heaps[lane->own].lent == JOBQ_NONE;
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (tally_is_full(db, lane->limiters[s], lane->needs[s].key, now, &due))
			return true;
	return false;
}

/*
 * Mark the heap in which the lane's takers find jobs, if consumers may be waiting.
 */
void
lane_offer(JobqDatabase *db, const JobqLane *lane)
{
	uint32		at = lane->own == JOBQ_NONE ? JOBQ_LANE_INDEX(db, lane)
		: db->ready->heaps[lane->own].lent;
	uint32		heap = at == JOBQ_NONE ? JOBQ_NONE : db->ready->lanes[at].heap;

	AssertExclusive(db->lock);
	if (heap != JOBQ_NONE && somebody_waits(db, lane->queue_id))
		heap_mark(db, &db->ready->heaps[heap]);
}

/*
 * The counters of this key of the limiter have changed: lend the right lanes.
 */
void
keyed_settle_all(JobqDatabase *db, uint32 limiter, uint32 key, TimestampTz now)
{
	const JobqParty *party = jobq_party_find(db, 0, limiter, key);
	uint32		next;

	AssertExclusive(db->lock);
	for (uint32 i = party == NULL ? JOBQ_NONE : party->heaps; i != JOBQ_NONE; i = next)
	{
		next = db->ready->heaps[i].next;
		keyed_settle(db, &db->ready->heaps[i], now);
	}
}
