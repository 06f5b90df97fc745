/*-------------------------------------------------------------------------
 *
 *	  Which lane is in which heap, and how many jobs of a heap may start.
 *
 * A lane that has jobs and is served is in the heap of its takers, rank and limiters, unless the
 * lane gathers further jobs first (gather.c).  If a limiter is keyed, the lane is in a heap of the key instead.  Such a heap lends its first lane
 * to the heap of the takers (keyed.c).
 *
 * src/ready/place.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "ready/inner.h"

#define LANE(i)		(&db->ready->lanes[i])

/*
 * Forget all orders, because all queues are about to be ranked again.  Otherwise orders
 * without a queue would remain.
 */
void
jobq_orders_forget(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	db->ready->heapless = false;
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = LANE(i);

		if (lane->in_use && lane->heap != JOBQ_NONE && !lane->consumer)
			lane_displace(db, lane);
		lane->order = JOBQ_NO_ORDER;
	}
	db->ready->norders = 1;
}

/*
 * Mark the lanes of consumers, because waiting consumers may find jobs now.
 */
void
jobq_consumers_wake(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	for (uint32 i = db->ready->active_head; i != JOBQ_NONE;
		 i = LANE(i)->active_next)
		if (LANE(i)->consumer)
			lane_offer(db, LANE(i));
}

/*
 * Is no process going to take jobs from the lane until the lane is ranked again, however many
 * jobs it has?
 */
bool
jobq_lane_is_closed(JobqDatabase *db, const JobqLane *lane)
{
	AssertLocked(db->lock);
	return !lane->ranked || lane->paused || lane->lacks != 0 ||
		(!lane->consumer && lane->order == JOBQ_NO_ORDER);
}

/*
 * Get the key of the heap to which the lane belongs.  False if the lane belongs to no heap.
 */
static bool
heap_key(JobqDatabase *db, const JobqLane *lane, JobqHeap *key)
{
	int			source;

	AssertExclusive(db->lock);
	if (lane->count == 0 || jobq_lane_is_closed(db, lane))
		return false;
	key->role = lane->role;
	key->consumer = lane->consumer;
	key->queue_id = lane->consumer ? lane->queue_id : 0;
	key->order = lane->consumer ? JOBQ_NO_ORDER : lane->order;
	memcpy(key->limiters, lane->limiters, sizeof(key->limiters));
	key->quarantine = lane->quarantine;
	source = keyed_source(db, lane);
	key->at = Max(source, 0);
	key->party = source < 0 ? JOBQ_NONE : lane->keys[source];
	return true;
}

/*
 * Remove the lane from its heap.
 */
void
lane_displace(JobqDatabase *db, JobqLane *lane)
{
	AssertExclusive(db->lock);
	if (lane->own != JOBQ_NONE)
		keyed_leave(db, lane);
	else if (lane->heap != JOBQ_NONE)
		heap_take(db, lane);
}

/*
 * Put the lane into the correct heap.  Called when takers, limits or tenant of the lane have
 * changed, and when the lane becomes empty or gets its first entry.
 */
void
jobq_lane_place(JobqDatabase *db, JobqLane *lane)
{
	uint32		at = lane->own != JOBQ_NONE ? lane->own : lane->heap;
	JobqHeap	key;
	JobqHeap   *heap;
	bool		wanted;

	AssertExclusive(db->lock);
	if (at == JOBQ_NONE)
		keyed_choose(db, lane, jobq_now());
	wanted = heap_key(db, lane, &key);
	wanted = !gather_settle(db, lane, wanted && !lane->consumer) && wanted;
	if (at != JOBQ_NONE)
	{
		if (wanted && heap_same(&db->ready->heaps[at], &key))
		{
			lane_moved(db, lane);
			return;
		}
		lane_displace(db, lane);
	}
	if (!wanted)
		return;
	heap = heap_make(db, &key);
	if (heap == NULL)
		return;
	turn_begin(db, lane);
	if (key.party != JOBQ_NONE)
		keyed_enter(db, heap, lane);
	else
		heap_put(db, heap, lane);
}

/*
 * Move the lane within its heap, after its first entry or its turn has changed.
 */
void
lane_moved(JobqDatabase *db, JobqLane *lane)
{
	AssertExclusive(db->lock);
	if (lane->heap == JOBQ_NONE)
		return;
	heap_moved(db, lane);
	if (lane->own != JOBQ_NONE)
		keyed_settle(db, &db->ready->heaps[lane->own], jobq_now());
}

/*
 * Place all lanes again, because limits have changed, and the kinds of turns with them.
 */
void
jobq_lanes_place(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	db->ready->heapless = false;
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = LANE(i);

		if (lane->in_use && lane->heap != JOBQ_NONE)
			lane_displace(db, lane);
	}
	for (int i = 0; i < jobq_max_lanes; i++)
		if (LANE(i)->in_use)
			jobq_lane_place(db, LANE(i));
	jobq_consumers_wake(db);	/* examine the marked heaps again */
}

/*
 * Return the first lane of the heap, which must not be empty.
 */
JobqLane *
heap_first(JobqDatabase *db, JobqHeap *heap)
{
	JobqLane   *lane = LANE(heap->root);

	AssertExclusive(db->lock);
	while (heap_turn(db, heap, lane) != db->ready->nodes[heap->root].turn)
	{
		heap_moved(db, lane);
		lane = LANE(heap->root);
	}
	return lane;
}

/*
 * Return how many jobs of the heap may start now, according to its limiters and to reserved
 * permits.  If the number changes with time, *due is lowered to that time.
 */
int
heap_room(JobqDatabase *db, JobqHeap *heap, TimestampTz now, TimestampTz *due)
{
	AssertExclusive(db->lock);
	return heap_room_for(db, heap, NULL, now, due);
}

/*
 * Like heap_room(), for a taker for which a permit may be reserved; NULL: any taker.
 */
int
heap_room_for(JobqDatabase *db, JobqHeap *heap, const JobqTaker *taker,
			  TimestampTz now, TimestampTz *due)
{
	AssertExclusive(db->lock);
	if (place_is_kept(db, heap, taker, now, due))
		return 0;
	return limiters_room(db, heap->limiters, now, due);
}

/*
 * Count the jobs in this part of the heap, up to "most".
 */
static uint32
count_jobs(JobqDatabase *db, uint32 lane, uint32 most)
{
	uint32		n;

	if (lane == JOBQ_NONE || most == 0)
		return 0;
	n = LANE(lane)->own == JOBQ_NONE ? LANE(lane)->count
		: keyed_room(db, &db->ready->heaps[LANE(lane)->own]);
	n = Min(n, most);
	n += count_jobs(db, db->ready->nodes[lane].left, most - n);
	return n + count_jobs(db, db->ready->nodes[lane].right, most - n);
}

/*
 * Return the number of jobs in the heap that their tenants may start, up to "most".
 */
uint32
heap_jobs(JobqDatabase *db, JobqHeap *heap, uint32 most)
{
	AssertExclusive(db->lock);
	return count_jobs(db, heap->root, most);
}

/*
 * Is the heap's role next at one of the heap's limiters, without a waiting worker?
 */
static bool
wants_worker(JobqDatabase *db, const JobqHeap *heap)
{
	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (heap->limiters[s] != JOBQ_NO_LIMITER &&
			db->limits->limiters[heap->limiters[s]].wants_worker == heap->role)
			return true;
	return false;
}

/*
 * Return how many jobs of the heap may start now, up to "most".  *priority gets the priority
 * of the first job.
 */
uint32
jobq_heap_demand(JobqDatabase *db, JobqHeap *heap, uint32 most,
				 TimestampTz now, int32 *priority)
{
	int			room = heap_room(db, heap, now, &db->limits->due);

	AssertExclusive(db->lock);

	/*
	 * the permit is reserved, or all are held: a worker of the next role must
	 * be there to wait
	 */
	if (room == 0 && wants_worker(db, heap))
		room = 1;
	*priority = heap_first(db, heap)->priority;
	return heap_jobs(db, heap, Min((uint32) room, most));
}

/*
 * Does a queue of consumers have a job that may start now, of a role that is not denied?
 */
bool
jobq_queue_has_job(JobqDatabase *db, int32 queue_id, const Oid *denied,
				   int ndenied, TimestampTz now)
{
	JobqParty  *party = jobq_party_find(db, queue_id, 0, 0);

	AssertExclusive(db->lock);
	for (uint32 i = party == NULL ? JOBQ_NONE : party->heaps; i != JOBQ_NONE;
		 i = db->ready->heaps[i].next)
	{
		JobqHeap   *heap = &db->ready->heaps[i];
		bool		is_denied = false;

		for (int j = 0; j < ndenied && !is_denied; j++)
			is_denied = denied[j] == heap->role;
		if (!is_denied && heap_room(db, heap, now, &db->limits->due) > 0)
			return true;
	}
	return false;
}
