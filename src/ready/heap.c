/*-------------------------------------------------------------------------
 *
 * heap.c
 *	  Heaps: lanes in the order in which they are served.
 *
 * A heap is a leftist tree: of two subtrees the one with the shorter way to its
 * end is the right one, and all work is done along right ways, whose length is
 * logarithmic.  "dist" is that length.  (Knuth, The Art of Computer Programming,
 * 5.2.3.)
 *
 * Within a heap, lanes come by turn, if queues have weights; by priority; by the
 * tenants' turn, if the queue is fair; by the age of their first job.  A turn
 * belongs to a queue or tenant, which may have many lanes, and only grows.  So a
 * lane keeps the one that it was placed by, and is placed anew when it comes to
 * the top and its turn is another.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/heap.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"

#include "ready/inner.h"

#define LANE(i)		(&db->ready->lanes[i])

static bool is_fair(JobqDatabase *db, const JobqHeap *heap);
static double turn_now(JobqDatabase *db, const JobqHeap *heap,
					   const JobqLane *lane);
static bool comes_before(JobqDatabase *db, const JobqHeap *heap,
						 const JobqLane *lane, const JobqLane *other);
static uint32 merge(JobqDatabase *db, const JobqHeap *heap, uint32 a, uint32 b);
static void add(JobqDatabase *db, JobqHeap *heap, JobqLane *lane);
static void take_out(JobqDatabase *db, JobqHeap *heap, JobqLane *lane);
static uint32 heap_bucket(const JobqHeap *key);
static JobqHeap *heap_make(JobqDatabase *db, const JobqHeap *key);
static void heap_free(JobqDatabase *db, JobqHeap *heap);
static bool heap_key(JobqDatabase *db, const JobqLane *lane, JobqHeap *key);
static void leave(JobqDatabase *db, JobqLane *lane);
static bool same_key(const JobqHeap *a, const JobqHeap *b);

/*
 * No lane has a job.
 */
void
heaps_clear(JobqDatabase *db)
{
	JobqReady  *ready = db->ready;

	for (uint32 i = 0; i < (uint32) jobq_max_lanes; i++)
	{
		ready->heap_bucket[i] = JOBQ_NONE;
		ready->heaps[i].root = JOBQ_NONE;
		ready->heaps[i].marked = false;
		ready->heaps[i].hash_next = i + 1 < (uint32) jobq_max_lanes ? i + 1
			: JOBQ_NONE;
	}
	ready->heap_free = 0;
	ready->limited = ready->marked = JOBQ_NONE;
	memset(ready->orders[JOBQ_NO_ORDER].rank, JOBQ_NOT_SERVED,
		   sizeof(ready->orders[JOBQ_NO_ORDER].rank));
	ready->orders[JOBQ_NO_ORDER].best = JOBQ_NOT_SERVED;
	ready->norders = 1;
}

/*
 * The order with these ranks, one for each pool.
 */
uint16
jobq_order_find(JobqDatabase *db, const uint8 *rank)
{
	JobqReady  *ready = db->ready;
	JobqOrder  *order;

	for (uint32 i = 0; i < ready->norders; i++)
		if (memcmp(ready->orders[i].rank, rank, sizeof(order->rank)) == 0)
			return i;
	if (ready->norders == JOBQ_MAX_ORDERS)
		return JOBQ_NO_ORDER;	/* cannot be: see JOBQ_MAX_ORDERS */
	order = &ready->orders[ready->norders];
	memcpy(order->rank, rank, sizeof(order->rank));
	order->best = JOBQ_NOT_SERVED;
	for (int p = 0; p < JOBQ_MAX_POOLS; p++)
		order->best = Min(order->best, rank[p]);
	return ready->norders++;
}

/*
 * All queues are about to be ranked anew: orders that none of them has any more
 * shall not remain.
 */
void
jobq_orders_forget(JobqDatabase *db)
{
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = LANE(i);

		if (lane->in_use && lane->heap != JOBQ_NONE && !lane->consumer)
			leave(db, lane);
		lane->order = JOBQ_NO_ORDER;
	}
	db->ready->norders = 1;
}

/*
 * Consumers that wait may find that they have jobs.
 */
void
jobq_consumers_wake(JobqDatabase *db)
{
	for (uint32 i = db->ready->active_head; i != JOBQ_NONE;
		 i = LANE(i)->active_next)
		if (LANE(i)->consumer && LANE(i)->heap != JOBQ_NONE &&
			somebody_waits(db, LANE(i)->queue_id))
			heap_mark(db, &db->ready->heaps[LANE(i)->heap]);
}

/*
 * Are the lanes of this heap ordered by the turns of tenants?
 */
static bool
is_fair(JobqDatabase *db, const JobqHeap *heap)
{
	return heap->queue_limiter != JOBQ_NO_LIMITER &&
		db->limits->limiters[heap->queue_limiter].fair;
}

/*
 * A lane without a tenant is from before the queue was fair.  It comes first:
 * its jobs are written anew, so that those of all tenants are seen.
 */
static double
turn_now(JobqDatabase *db, const JobqHeap *heap, const JobqLane *lane)
{
	if (is_fair(db, heap))
		return lane->tenant == 0 ? -1
			: db->ready->parties[lane->tenant_party].turn;
	return db->limits->weighted ? db->ready->parties[lane->party].turn : 0;
}

static bool
comes_before(JobqDatabase *db, const JobqHeap *heap, const JobqLane *lane,
			 const JobqLane *other)
{
	bool		fair = is_fair(db, heap);

	/* it is that of the queue, or of the tenant */
	if (!fair && lane->turn != other->turn)
		return lane->turn < other->turn;
	if (lane->priority != other->priority)
		return lane->priority < other->priority;
	if (lane->turn != other->turn)
		return lane->turn < other->turn;
	return jobq_key_cmp(db->ready->entries[lane->head].key,
						db->ready->entries[other->head].key) < 0;
}

/*
 * Two trees become one.
 */
static uint32
merge(JobqDatabase *db, const JobqHeap *heap, uint32 a, uint32 b)
{
	uint32		child;
	JobqLane   *lane;

	if (a == JOBQ_NONE)
		return b;
	if (b == JOBQ_NONE)
		return a;
	if (comes_before(db, heap, LANE(b), LANE(a)))
	{
		uint32		swap = a;

		a = b;
		b = swap;
	}
	lane = LANE(a);
	child = merge(db, heap, lane->right, b);
	LANE(child)->parent = a;
	lane->right = child;
	if (lane->left == JOBQ_NONE ||
		LANE(lane->left)->dist < LANE(lane->right)->dist)
	{
		lane->right = lane->left;
		lane->left = child;
	}
	lane->dist = lane->right == JOBQ_NONE ? 0 : LANE(lane->right)->dist + 1;
	return a;
}

static void
add(JobqDatabase *db, JobqHeap *heap, JobqLane *lane)
{
	lane->left = lane->right = JOBQ_NONE;
	lane->dist = 0;
	heap->root = merge(db, heap, heap->root, JOBQ_LANE_INDEX(db, lane));
	LANE(heap->root)->parent = JOBQ_NONE;
}

static void
take_out(JobqDatabase *db, JobqHeap *heap, JobqLane *lane)
{
	uint32		index = JOBQ_LANE_INDEX(db, lane);
	uint32		parent = lane->parent;
	uint32		child = merge(db, heap, lane->left, lane->right);

	if (child != JOBQ_NONE)
		LANE(child)->parent = parent;
	if (parent == JOBQ_NONE)
	{
		heap->root = child;
		return;
	}
	if (LANE(parent)->left == index)
		LANE(parent)->left = child;
	else
		LANE(parent)->right = child;

	/* the ways above may have become shorter */
	for (uint32 i = parent; i != JOBQ_NONE; i = LANE(i)->parent)
	{
		JobqLane   *above = LANE(i);
		int			left = above->left == JOBQ_NONE ? -1 : LANE(above->left)->dist;
		int			right = above->right == JOBQ_NONE ? -1 : LANE(above->right)->dist;
		uint8		dist = Min(left, right) + 1;

		if (left < right)
		{
			uint32		swap = above->left;

			above->left = above->right;
			above->right = swap;
		}
		if (above->dist == dist)
			break;
		above->dist = dist;
	}
}

static uint32
heap_bucket(const JobqHeap *key)
{
	uint32		hash = murmurhash32(key->role);

	hash = hash_combine(hash, murmurhash32((uint32) key->queue_id));
	hash = hash_combine(hash, ((uint32) key->order << 2) +
						(key->consumer ? 2 : 0) + (key->quarantine ? 1 : 0));
	hash = hash_combine(hash, ((uint32) key->queue_limiter << 16) +
						key->kind_limiter);
	return hash % jobq_max_lanes;
}

static bool
same_key(const JobqHeap *a, const JobqHeap *b)
{
	return a->role == b->role && a->queue_id == b->queue_id &&
		a->order == b->order && a->queue_limiter == b->queue_limiter &&
		a->kind_limiter == b->kind_limiter && a->consumer == b->consumer &&
		a->quarantine == b->quarantine;
}

/*
 * Where the heap is linked: at its role, or at its queue.
 */
static uint32 *
heap_list(JobqDatabase *db, const JobqHeap *heap)
{
	return heap->consumer ? &jobq_party_find(db, heap->queue_id, 0)->heaps
		: &jobq_role_find(db, heap->role)->heaps;
}

/*
 * The heap that has what the key has, or NULL.
 */
JobqHeap *
heap_find(JobqDatabase *db, const JobqHeap *key)
{
	for (uint32 i = db->ready->heap_bucket[heap_bucket(key)]; i != JOBQ_NONE;
		 i = db->ready->heaps[i].hash_next)
		if (same_key(&db->ready->heaps[i], key))
			return &db->ready->heaps[i];
	return NULL;
}

static JobqHeap *
heap_make(JobqDatabase *db, const JobqHeap *key)
{
	JobqReady  *ready = db->ready;
	uint32	   *bucket = &ready->heap_bucket[heap_bucket(key)];
	uint32	   *list;
	uint32		index;
	JobqHeap   *heap = heap_find(db, key);

	if (heap != NULL)
		return heap;
	index = ready->heap_free;
	Assert(index != JOBQ_NONE);
	heap = &ready->heaps[index];
	ready->heap_free = heap->hash_next;
	*heap = *key;
	heap->marked = false;
	heap->root = JOBQ_NONE;
	heap->nlanes = heap->nentries = 0;
	heap->hash_next = *bucket;
	*bucket = index;
	list = heap_list(db, heap);
	heap->prev = JOBQ_NONE;
	heap->next = *list;
	if (*list != JOBQ_NONE)
		ready->heaps[*list].prev = index;
	*list = index;
	if (heap->queue_limiter != JOBQ_NO_LIMITER ||
		heap->kind_limiter != JOBQ_NO_LIMITER)
	{
		heap->limited_prev = JOBQ_NONE;
		heap->limited_next = ready->limited;
		if (ready->limited != JOBQ_NONE)
			ready->heaps[ready->limited].limited_prev = index;
		ready->limited = index;
	}
	return heap;
}

/*
 * The heap is empty.
 */
static void
heap_free(JobqDatabase *db, JobqHeap *heap)
{
	JobqReady  *ready = db->ready;
	uint32		index = heap - ready->heaps;
	uint32	   *link = &ready->heap_bucket[heap_bucket(heap)];

	heap_unmark(db, heap);
	while (*link != index)
		link = &ready->heaps[*link].hash_next;
	*link = heap->hash_next;
	if (heap->prev != JOBQ_NONE)
		ready->heaps[heap->prev].next = heap->next;
	else
		*heap_list(db, heap) = heap->next;
	if (heap->next != JOBQ_NONE)
		ready->heaps[heap->next].prev = heap->prev;
	if (heap->queue_limiter != JOBQ_NO_LIMITER ||
		heap->kind_limiter != JOBQ_NO_LIMITER)
	{
		if (heap->limited_prev != JOBQ_NONE)
			ready->heaps[heap->limited_prev].limited_next = heap->limited_next;
		else
			ready->limited = heap->limited_next;
		if (heap->limited_next != JOBQ_NONE)
			ready->heaps[heap->limited_next].limited_prev = heap->limited_prev;
	}
	heap->hash_next = ready->heap_free;
	ready->heap_free = index;
}

/*
 * Have what is in the heap offered to consumers that wait.
 */
void
heap_mark(JobqDatabase *db, JobqHeap *heap)
{
	JobqReady  *ready = db->ready;

	if (heap->marked)
		return;
	heap->marked = true;
	heap->marked_prev = JOBQ_NONE;
	heap->marked_next = ready->marked;
	if (ready->marked != JOBQ_NONE)
		ready->heaps[ready->marked].marked_prev = heap - ready->heaps;
	ready->marked = heap - ready->heaps;
}

void
heap_unmark(JobqDatabase *db, JobqHeap *heap)
{
	JobqReady  *ready = db->ready;

	if (!heap->marked)
		return;
	heap->marked = false;
	if (heap->marked_prev != JOBQ_NONE)
		ready->heaps[heap->marked_prev].marked_next = heap->marked_next;
	else
		ready->marked = heap->marked_next;
	if (heap->marked_next != JOBQ_NONE)
		ready->heaps[heap->marked_next].marked_prev = heap->marked_prev;
}

/*
 * In which heap does the lane belong?  False if in none.
 */
static bool
heap_key(JobqDatabase *db, const JobqLane *lane, JobqHeap *key)
{
	if (lane->count == 0 || !lane->ranked || lane->paused ||
		(!lane->consumer && lane->order == JOBQ_NO_ORDER))
		return false;
	key->role = lane->role;
	key->consumer = lane->consumer;
	key->queue_id = lane->consumer ? lane->queue_id : 0;
	key->order = lane->consumer ? JOBQ_NO_ORDER : lane->order;
	key->queue_limiter = lane->queue_limiter;
	key->kind_limiter = lane->kind_limiter;
	key->quarantine = lane->quarantine;
	return true;
}

static void
leave(JobqDatabase *db, JobqLane *lane)
{
	JobqHeap   *heap = &db->ready->heaps[lane->heap];

	take_out(db, heap, lane);
	heap->nentries -= lane->count;
	lane->heap = JOBQ_NONE;
	if (--heap->nlanes == 0)
		heap_free(db, heap);
}

/*
 * The lane has other takers, limits or a tenant than before, or has got its
 * first entry, or lost its last one: see that it stands where it belongs.
 */
void
jobq_lane_place(JobqDatabase *db, JobqLane *lane)
{
	JobqHeap	key;
	bool		wanted = heap_key(db, lane, &key);
	JobqHeap   *heap = lane->heap == JOBQ_NONE ? NULL
		: &db->ready->heaps[lane->heap];

	if (heap != NULL)
	{
		if (wanted && same_key(heap, &key))
		{
			lane_moved(db, lane);
			return;
		}
		leave(db, lane);
	}
	if (!wanted)
		return;
	heap = heap_make(db, &key);
	lane->heap = heap - db->ready->heaps;
	heap->nlanes++;
	heap->nentries += lane->count;
	turn_begin(db, lane);
	lane->turn = turn_now(db, heap, lane);
	add(db, heap, lane);
}

/*
 * The lane has another first entry, or turn: it comes later than before, or
 * earlier.
 */
void
lane_moved(JobqDatabase *db, JobqLane *lane)
{
	JobqHeap   *heap;
	double		turn;

	if (lane->heap == JOBQ_NONE)
		return;
	heap = &db->ready->heaps[lane->heap];
	turn = turn_now(db, heap, lane);
	if (turn == lane->turn &&
		(lane->parent == JOBQ_NONE ||
		 !comes_before(db, heap, lane, LANE(lane->parent))) &&
		(lane->left == JOBQ_NONE ||
		 !comes_before(db, heap, LANE(lane->left), lane)) &&
		(lane->right == JOBQ_NONE ||
		 !comes_before(db, heap, LANE(lane->right), lane)))
		return;
	if (heap->nlanes > 1)
		take_out(db, heap, lane);
	else
		heap->root = JOBQ_NONE;
	lane->turn = turn;
	add(db, heap, lane);
}

/*
 * Limits have changed, and so what turns there are: all lanes are placed anew.
 */
void
jobq_lanes_place(JobqDatabase *db)
{
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = LANE(i);

		if (lane->in_use && lane->heap != JOBQ_NONE)
			leave(db, lane);
	}
	for (int i = 0; i < jobq_max_lanes; i++)
		if (LANE(i)->in_use)
			jobq_lane_place(db, LANE(i));
	jobq_consumers_wake(db);	/* what was marked is looked at again */
}

/*
 * The lane that comes first.
 */
JobqLane *
heap_first(JobqDatabase *db, JobqHeap *heap)
{
	JobqLane   *lane = LANE(heap->root);

	while (turn_now(db, heap, lane) != lane->turn)
	{
		lane_moved(db, lane);
		lane = LANE(heap->root);
	}
	return lane;
}

/*
 * How many jobs of the heap may start now, by its limiters.
 */
int
heap_room(JobqDatabase *db, JobqHeap *heap, TimestampTz now, TimestampTz *due)
{
	if (heap->queue_limiter == JOBQ_NO_LIMITER &&
		heap->kind_limiter == JOBQ_NO_LIMITER)
		return PG_INT32_MAX;
	return jobq_lane_room(db, LANE(heap->root), now, due);
}

/*
 * Count jobs in this part of the heap, up to so many.
 */
static uint32
count_jobs(JobqDatabase *db, uint32 lane, uint32 most)
{
	uint32		n;

	if (lane == JOBQ_NONE || most == 0)
		return 0;
	n = Min(LANE(lane)->count, most);
	n += count_jobs(db, LANE(lane)->left, most - n);
	return n + count_jobs(db, LANE(lane)->right, most - n);
}

/*
 * How many jobs of the heap may start now, up to so many, and the priority of the
 * first.
 */
uint32
jobq_heap_demand(JobqDatabase *db, JobqHeap *heap, uint32 most,
				 TimestampTz now, int32 *priority)
{
	int			room = heap_room(db, heap, now, &db->limits->due);

	*priority = heap_first(db, heap)->priority;
	return count_jobs(db, heap->root, Min((uint32) room, most));
}

/*
 * Has a queue of consumers a job that may start now, of another role than
 * these?
 */
bool
jobq_queue_has_job(JobqDatabase *db, int32 queue_id, const Oid *denied,
				   int ndenied, TimestampTz now)
{
	JobqParty  *party = jobq_party_find(db, queue_id, 0);

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
