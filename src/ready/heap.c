/*-------------------------------------------------------------------------
 *
 *	  Heaps: lanes in the order in which they are served.
 *
 * A heap is a leftist tree.  The right subtree is the one with the shorter path to its end,
 * and all work is done along right paths, which have logarithmic length.  "dist" is the
 * length of this path.  (Knuth, The Art of Computer Programming, 5.2.3.)
 *
 * Within a heap, lanes are ordered by turn, if queues have weights; then by priority; then by
 * the tenants' turn, if the queue is fair; then by the age of the first job.  A turn belongs
 * to a queue or tenant, which may have many lanes, and never decreases.  A lane therefore
 * keeps the turn by which it was placed.  The lane is placed again when it comes to the top
 * and its turn has changed.
 *
 * The lanes of a limiter's key have separate heaps, from which no process pops: see keyed.c.
 * The heap of each lane is determined in place.c.
 *
 * src/ready/heap.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"

#include "ready/inner.h"

#define NODE_OF(lane)	(&db->ready->nodes[lane])

static uint32 heap_bucket(const JobqHeap *key);

/*
 * Forget all heaps and orders.  There must be no lane with jobs.
 */
void
heaps_clear(JobqDatabase *db)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
	for (uint32 i = 0; i < JOBQ_MAX_HEAPS; i++)
	{
		ready->heaps[i].root = JOBQ_NONE;
		ready->heaps[i].marked = ready->heaps[i].stuck = false;
		ready->heaps[i].hash_next = i + 1 < JOBQ_MAX_HEAPS ? i + 1
			: JOBQ_NONE;
	}
	for (int i = 0; i < jobq_max_lanes; i++)
		ready->heap_bucket[i] = JOBQ_NONE;
	ready->heap_free = 0;
	for (int i = 0; i < jobq_max_limiters; i++)
		ready->limited[i] = JOBQ_NONE;
	ready->marked = JOBQ_NONE;
	ready->stuck = ready->stuck_last = JOBQ_NONE;
	turns_clear(db);
	ready->heapless = false;
	memset(ready->orders[JOBQ_NO_ORDER].rank, JOBQ_NOT_SERVED,
		   sizeof(ready->orders[JOBQ_NO_ORDER].rank));
	ready->orders[JOBQ_NO_ORDER].best = JOBQ_NOT_SERVED;
	ready->norders = 1;
}

/*
 * Return the order with these ranks, one for each pool.  The order is created if necessary.
 */
uint16
jobq_order_find(JobqDatabase *db, const uint8 *rank)
{
	JobqReady  *ready = db->ready;
	JobqOrder  *order;

	AssertExclusive(db->lock);
	for (uint32 i = 0; i < ready->norders; i++)
		if (memcmp(ready->orders[i].rank, rank, sizeof(order->rank)) == 0)
			return i;
	if (ready->norders == JOBQ_MAX_ORDERS)
		return JOBQ_NO_ORDER;	/* impossible: see JOBQ_MAX_ORDERS */
	order = &ready->orders[ready->norders];
	memcpy(order->rank, rank, sizeof(order->rank));
	order->best = JOBQ_NOT_SERVED;
	for (int p = 0; p < JOBQ_MAX_POOLS; p++)
		order->best = Min(order->best, rank[p]);
	return ready->norders++;
}

/*
 * Are the lanes of this heap ordered by the turns of tenants?
 */
static bool
is_fair(JobqDatabase *db, const JobqHeap *heap)
{
	return heap->limiters[JOBQ_OF_QUEUE] != JOBQ_NO_LIMITER &&
		db->limits->limiters[heap->limiters[JOBQ_OF_QUEUE]].fair;
}

/*
 * Return the current turn of the lane in this heap.
 *
 * A lane without a tenant in a fair queue dates from before the queue was fair.  Such a lane
 * comes first.  Its jobs are then written again, and move to the lanes of their tenants.  In
 * a heap of a single key there are no turns.
 */
double
heap_turn(JobqDatabase *db, const JobqHeap *heap, const JobqLane *lane)
{
	AssertExclusive(db->lock);
	if (heap->party != JOBQ_NONE)
		return 0;
	if (is_fair(db, heap))
		return JOBQ_TENANT(lane) == 0 ? -1
			: db->ready->parties[lane->keys[JOBQ_OF_QUEUE]].turn;
	return db->limits->weighted ? db->ready->parties[lane->party].turn : 0;
}

/*
 * Does the lane come before another lane of the same heap?
 */
bool
heap_before(JobqDatabase *db, const JobqHeap *heap, uint32 lane, uint32 other)
{
	const JobqNode *a = NODE_OF(lane);
	const JobqNode *b = NODE_OF(other);

	AssertExclusive(db->lock);

	/* the turn of the queue, or of the tenant */
	if (a->turn != b->turn && !is_fair(db, heap))
		return a->turn < b->turn;
	if (a->priority != b->priority)
		return a->priority < b->priority;
	if (a->turn != b->turn)
		return a->turn < b->turn;
	return jobq_key_cmp(a->first, b->first) < 0;
}

/*
 * Merge two trees.  Returns the root.
 */
static uint32
merge(JobqDatabase *db, const JobqHeap *heap, uint32 a, uint32 b)
{
	uint32		child;
	JobqNode   *node;

	if (a == JOBQ_NONE)
		return b;
	if (b == JOBQ_NONE)
		return a;
	if (heap_before(db, heap, b, a))
	{
		uint32		swap = a;

		a = b;
		b = swap;
	}
	node = NODE_OF(a);
	child = merge(db, heap, node->right, b);
	NODE_OF(child)->parent = a;
	node->right = child;

	/* usually unchanged, and so not longer than the left path */
	if (NODE_OF(child)->dist + 1 == node->dist)
		return a;
	if (node->left == JOBQ_NONE ||
		NODE_OF(node->left)->dist < NODE_OF(node->right)->dist)
	{
		node->right = node->left;
		node->left = child;
	}
	node->dist = node->right == JOBQ_NONE ? 0 : NODE_OF(node->right)->dist + 1;
	return a;
}

static void
add(JobqDatabase *db, JobqHeap *heap, uint32 lane)
{
	AssertExclusive(db->lock);
	NODE_OF(lane)->left = NODE_OF(lane)->right = JOBQ_NONE;
	NODE_OF(lane)->dist = 0;
	heap->root = merge(db, heap, heap->root, lane);
	NODE_OF(heap->root)->parent = JOBQ_NONE;
}

static void
take_out(JobqDatabase *db, JobqHeap *heap, uint32 lane)
{
	uint32		parent = NODE_OF(lane)->parent;
	uint32		child = merge(db, heap, NODE_OF(lane)->left, NODE_OF(lane)->right);

	AssertExclusive(db->lock);
	Assert(parent == JOBQ_NONE ? heap->root == lane
		   : NODE_OF(parent)->left == lane || NODE_OF(parent)->right == lane);
	if (child != JOBQ_NONE)
		NODE_OF(child)->parent = parent;
	if (parent == JOBQ_NONE)
	{
		heap->root = child;
		return;
	}
	if (NODE_OF(parent)->left == lane)
		NODE_OF(parent)->left = child;
	else
		NODE_OF(parent)->right = child;

	/* the paths above may have become shorter */
	for (uint32 i = parent; i != JOBQ_NONE; i = NODE_OF(i)->parent)
	{
		JobqNode   *above = NODE_OF(i);
		int			left = above->left == JOBQ_NONE ? -1 : NODE_OF(above->left)->dist;
		int			right = above->right == JOBQ_NONE ? -1 : NODE_OF(above->right)->dist;
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
	hash = hash_combine(hash, murmurhash32(key->party));
	hash = hash_combine(hash, ((uint32) key->order << 2) +
						(key->consumer ? 2 : 0) + (key->quarantine ? 1 : 0));
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		hash = hash_combine(hash, key->limiters[s]);
	return hash % jobq_max_lanes;
}

/*
 * Do the two heaps have the same key?
 */
bool
heap_same(const JobqHeap *a, const JobqHeap *b)
{
	return a->role == b->role && a->queue_id == b->queue_id &&
		a->party == b->party &&
		a->order == b->order &&
		memcmp(a->limiters, b->limiters, sizeof(a->limiters)) == 0 &&
		a->consumer == b->consumer && a->quarantine == b->quarantine;
}

/*
 * Return the heap's link in the list of heaps with this limiter, which must be one of the
 * heap's limiters.
 */
static JobqHeapLink *
link_at(JobqHeap *heap, uint16 limiter)
{
	return &heap->links[heap_source(heap, limiter)];
}

/*
 * Return the next heap with the limiter after this heap, or JOBQ_NONE.
 */
uint32
heap_next_at(JobqDatabase *db, uint32 heap, uint16 limiter)
{
	AssertExclusive(db->lock);
	return link_at(&db->ready->heaps[heap], limiter)->next;
}

/*
 * Link the heap at its limiters.  Heaps of keys are not linked, because no process pops
 * from them.
 */
static void
limiters_join(JobqDatabase *db, JobqHeap *heap)
{
	uint32		index = heap - db->ready->heaps;

	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS && heap->party == JOBQ_NONE; s++)
	{
		uint32	   *first;

		if (heap->limiters[s] == JOBQ_NO_LIMITER)
			continue;
		Assert(heap_source(heap, heap->limiters[s]) == s);
		first = &db->ready->limited[heap->limiters[s]];
		heap->links[s] = (JobqHeapLink)
		{
			JOBQ_NONE, *first
		};
		if (*first != JOBQ_NONE)
			link_at(&db->ready->heaps[*first], heap->limiters[s])->prev = index;
		*first = index;
	}
}

static void
limiters_leave(JobqDatabase *db, JobqHeap *heap)
{
	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS && heap->party == JOBQ_NONE; s++)
	{
		uint16		limiter = heap->limiters[s];
		const JobqHeapLink *link = &heap->links[s];

		if (limiter == JOBQ_NO_LIMITER)
			continue;
		Assert(link->prev != JOBQ_NONE ||
			   db->ready->limited[limiter] == heap - db->ready->heaps);
		if (link->prev != JOBQ_NONE)
			link_at(&db->ready->heaps[link->prev], limiter)->next = link->next;
		else
			db->ready->limited[limiter] = link->next;
		if (link->next != JOBQ_NONE)
			link_at(&db->ready->heaps[link->next], limiter)->prev = link->prev;
	}
}

/*
 * Return the list in which the heap is linked: by role, by queue, or by key.
 */
static uint32 *
heap_list(JobqDatabase *db, const JobqHeap *heap)
{
	if (heap->party != JOBQ_NONE)
		return &db->ready->parties[heap->party].heaps;
	return heap->consumer ? &jobq_party_find(db, heap->queue_id, 0, 0)->heaps
		: &jobq_role_find(db, heap->role)->heaps;
}

/*
 * Return the heap with this key, or NULL.
 */
JobqHeap *
heap_find(JobqDatabase *db, const JobqHeap *key)
{
	AssertLocked(db->lock);
	for (uint32 i = db->ready->heap_bucket[heap_bucket(key)]; i != JOBQ_NONE;
		 i = db->ready->heaps[i].hash_next)
		if (heap_same(&db->ready->heaps[i], key))
			return &db->ready->heaps[i];
	return NULL;
}

/*
 * Return the heap with this key, created if necessary.  NULL if there is no free slot.  The
 * scheduler then places all lanes again when a slot is free.
 */
JobqHeap *
heap_make(JobqDatabase *db, const JobqHeap *key)
{
	JobqReady  *ready = db->ready;
	uint32	   *bucket = &ready->heap_bucket[heap_bucket(key)];
	uint32	   *list;
	uint32		index;
	JobqHeap   *heap = heap_find(db, key);

	AssertExclusive(db->lock);
	if (heap != NULL)
		return heap;
	index = ready->heap_free;
	if (index == JOBQ_NONE || !turns_left(db, key))
	{
		ready->heapless = true;
		return NULL;
	}
	heap = &ready->heaps[index];
	ready->heap_free = heap->hash_next;
	*heap = *key;
	heap->marked = heap->stuck = false;
	heap->root = heap->lent = JOBQ_NONE;
	heap->nentries = 0;
	heap->hash_next = *bucket;
	*bucket = index;
	list = heap_list(db, heap);
	heap->prev = JOBQ_NONE;
	heap->next = *list;
	if (*list != JOBQ_NONE)
		ready->heaps[*list].prev = index;
	*list = index;
	turns_join(db, heap);
	limiters_join(db, heap);
	return heap;
}

/*
 * Free an empty heap.
 */
void
heap_free(JobqDatabase *db, JobqHeap *heap)
{
	JobqReady  *ready = db->ready;
	uint32		index = heap - ready->heaps;
	uint32	   *link = &ready->heap_bucket[heap_bucket(heap)];

	AssertExclusive(db->lock);
	Assert(heap->root == JOBQ_NONE && heap->lent == JOBQ_NONE && heap->nentries == 0);
	heap_unmark(db, heap);
	heap_unstick(db, heap);
	while (*link != index)
		link = &ready->heaps[*link].hash_next;
	*link = heap->hash_next;
	if (heap->prev != JOBQ_NONE)
		ready->heaps[heap->prev].next = heap->next;
	else
		*heap_list(db, heap) = heap->next;
	if (heap->next != JOBQ_NONE)
		ready->heaps[heap->next].prev = heap->prev;
	turns_leave(db, heap);
	limiters_leave(db, heap);
	heap->hash_next = ready->heap_free;
	ready->heap_free = index;
	if (ready->heapless)
	{
		db->reload = true;
		db->limits->due = 0;	/* in the past */
	}
}

/*
 * Mark the heap: hand off the jobs of the heap to waiting consumers.
 */
void
heap_mark(JobqDatabase *db, JobqHeap *heap)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
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

	AssertExclusive(db->lock);
	if (!heap->marked)
		return;
	Assert(heap->marked_prev != JOBQ_NONE || ready->marked == heap - ready->heaps);
	heap->marked = false;
	if (heap->marked_prev != JOBQ_NONE)
		ready->heaps[heap->marked_prev].marked_next = heap->marked_next;
	else
		ready->marked = heap->marked_next;
	if (heap->marked_next != JOBQ_NONE)
		ready->heaps[heap->marked_next].marked_prev = heap->marked_prev;
}

/*
 * Mark the heap as stuck: its jobs do not wait for permits, and all permits may be held.  The
 * scheduler decides about the jobs.
 */
void
heap_stick(JobqDatabase *db, JobqHeap *heap)
{
	JobqReady  *ready = db->ready;
	uint32		index = heap - ready->heaps;

	AssertExclusive(db->lock);
	if (heap->stuck)
		return;
	heap->stuck = ready->stuck_news = true;
	heap->stuck_next = JOBQ_NONE;
	heap->stuck_prev = ready->stuck_last;
	if (ready->stuck_last != JOBQ_NONE)
		ready->heaps[ready->stuck_last].stuck_next = index;
	else
		ready->stuck = index;
	ready->stuck_last = index;
}

void
heap_unstick(JobqDatabase *db, JobqHeap *heap)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
	if (!heap->stuck)
		return;
	Assert(heap->stuck_prev != JOBQ_NONE || ready->stuck == heap - ready->heaps);
	heap->stuck = false;
	if (heap->stuck_prev != JOBQ_NONE)
		ready->heaps[heap->stuck_prev].stuck_next = heap->stuck_next;
	else
		ready->stuck = heap->stuck_next;
	if (heap->stuck_next != JOBQ_NONE)
		ready->heaps[heap->stuck_next].stuck_prev = heap->stuck_prev;
	else
		ready->stuck_last = heap->stuck_prev;
}

/*
 * A permit of the limiter was taken.  If it was the last one, and jobs of the limiter do not
 * wait for permits, the limiter's heaps are stuck.
 */
void
jobq_limiter_filled(JobqDatabase *db, uint16 index)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
	if (!limiter_turns_away(db, index))
		return;
	for (uint32 i = ready->limited[index]; i != JOBQ_NONE; i = heap_next_at(db, i, index))
		heap_stick(db, &ready->heaps[i]);
}

/*
 * Store the values by which the lane is placed.
 */
static void
note_place(JobqDatabase *db, const JobqLane *lane, double turn)
{
	JobqNode   *node = NODE_OF(JOBQ_LANE_INDEX(db, lane));

	node->first = db->ready->entries[lane->head].key;
	node->priority = lane->priority;
	node->turn = turn;
}

/*
 * Put a lane that is in no heap into this heap.
 */
void
heap_put(JobqDatabase *db, JobqHeap *heap, JobqLane *lane)
{
	AssertExclusive(db->lock);
	Assert(lane->in_use && lane->count > 0 && lane->heap == JOBQ_NONE);
	lane->heap = heap - db->ready->heaps;
	heap->nentries += lane->count;
	note_place(db, lane, heap_turn(db, heap, lane));
	add(db, heap, JOBQ_LANE_INDEX(db, lane));
	for (int s = 0; s < JOBQ_NLIMITS && heap->party == JOBQ_NONE; s++)
		if (limiter_turns_away(db, heap->limiters[s]))
			heap_stick(db, heap);
}

/*
 * Remove the lane from its heap.  An empty heap is freed, unless it belongs to a key.
 */
void
heap_take(JobqDatabase *db, JobqLane *lane)
{
	JobqHeap   *heap = &db->ready->heaps[lane->heap];

	AssertExclusive(db->lock);
	Assert(lane->heap != JOBQ_NONE && heap->nentries >= lane->count);
	take_out(db, heap, JOBQ_LANE_INDEX(db, lane));
	heap->nentries -= lane->count;
	lane->heap = JOBQ_NONE;
	if (heap->root == JOBQ_NONE && heap->party == JOBQ_NONE)
		heap_free(db, heap);
}

/*
 * Move the lane within its heap, after its first entry or its turn has changed.  A new turn
 * mostly changes the order, so only a lane with the same turn is compared with its neighbours.
 */
void
heap_moved(JobqDatabase *db, JobqLane *lane)
{
	JobqHeap   *heap = &db->ready->heaps[lane->heap];
	uint32		index = JOBQ_LANE_INDEX(db, lane);
	const JobqNode *node = NODE_OF(index);
	double		turn = heap_turn(db, heap, lane);
	bool		same_turn = turn == node->turn;

	AssertExclusive(db->lock);
	Assert(lane->heap != JOBQ_NONE && lane->count > 0);
	note_place(db, lane, turn);
	if (same_turn &&
		(node->parent == JOBQ_NONE || !heap_before(db, heap, index, node->parent)) &&
		(node->left == JOBQ_NONE || !heap_before(db, heap, node->left, index)) &&
		(node->right == JOBQ_NONE || !heap_before(db, heap, node->right, index)))
		return;
	take_out(db, heap, index);
	add(db, heap, index);
}
