/*-------------------------------------------------------------------------
 *
 *	  When a role had its last turn at a limiter.
 *
 * A turn belongs to a role, not to a single heap.  A role with many heaps, such as for many
 * queues of consumers, therefore has no more turns at the limiter of a kind.
 *
 * A record without a heap is kept until another role needs the slot.  Lanes are often placed
 * again, and a returning role must not lose its record.
 *
 * src/ready/served.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"

#include "ready/inner.h"

static uint32 *turn_bucket(JobqDatabase *db, Oid role, uint16 limiter);
static void link_idle(JobqDatabase *db, uint32 index);

/*
 * Forget all records.  There must be no heap.
 */
void
turns_clear(JobqDatabase *db)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
	for (int i = 0; i < jobq_max_lanes; i++)
		ready->turn_bucket[i] = JOBQ_NONE;
	ready->turn_first = ready->turn_last = JOBQ_NONE;
	for (uint32 i = 0; i < JOBQ_MAX_TURNS; i++)
	{
		memset(&ready->turns[i], 0, sizeof(JobqServed));
		link_idle(db, i);
	}
}

static uint32 *
turn_bucket(JobqDatabase *db, Oid role, uint16 limiter)
{
	return &db->ready->turn_bucket[hash_combine(murmurhash32(role), limiter) %
								   jobq_max_lanes];
}

static uint32
turn_find(JobqDatabase *db, Oid role, uint16 limiter)
{
	AssertExclusive(db->lock);
	for (uint32 i = *turn_bucket(db, role, limiter); i != JOBQ_NONE;
		 i = db->ready->turns[i].hash_next)
		if (db->ready->turns[i].role == role &&
			db->ready->turns[i].limiter == limiter)
			return i;
	return JOBQ_NONE;
}

/*
 * Link the record among the idle records, because no heap has it any more.
 */
static void
link_idle(JobqDatabase *db, uint32 index)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
	ready->turns[index].prev = ready->turn_last;
	ready->turns[index].next = JOBQ_NONE;
	if (ready->turn_last != JOBQ_NONE)
		ready->turns[ready->turn_last].next = index;
	else
		ready->turn_first = index;
	ready->turn_last = index;
}

static void
unlink_idle(JobqDatabase *db, uint32 index)
{
	JobqReady  *ready = db->ready;
	JobqServed *turn = &ready->turns[index];

	AssertExclusive(db->lock);
	Assert(turn->nheaps == 0 && (turn->prev != JOBQ_NONE || ready->turn_first == index));
	if (turn->prev != JOBQ_NONE)
		ready->turns[turn->prev].next = turn->next;
	else
		ready->turn_first = turn->next;
	if (turn->next != JOBQ_NONE)
		ready->turns[turn->next].prev = turn->prev;
	else
		ready->turn_last = turn->prev;
}

/*
 * Add a heap to the record of this role and limiter.  A new role begins after all other roles
 * except the last role served.
 */
static uint32
turn_join(JobqDatabase *db, Oid role, uint16 limiter)
{
	JobqReady  *ready = db->ready;
	uint32		index = turn_find(db, role, limiter);
	JobqServed *turn;

	AssertExclusive(db->lock);
	if (index == JOBQ_NONE)
	{
		uint32	   *bucket = turn_bucket(db, role, limiter);

		index = ready->turn_first;
		Assert(index != JOBQ_NONE);
		unlink_idle(db, index);
		turn = &ready->turns[index];
		if (turn->role != InvalidOid)
		{
			uint32	   *link = turn_bucket(db, turn->role, turn->limiter);

			while (*link != index)
				link = &ready->turns[*link].hash_next;
			*link = turn->hash_next;
		}
		turn->role = role;
		turn->limiter = limiter;
		turn->when = Max(db->limits->served, 1) - 1;
		turn->hash_next = *bucket;
		*bucket = index;
	}
	else if (ready->turns[index].nheaps == 0)
		unlink_idle(db, index);
	ready->turns[index].nheaps++;
	return index;
}

static void
turn_leave(JobqDatabase *db, uint32 index)
{
	AssertExclusive(db->lock);
	Assert(index == JOBQ_NONE || db->ready->turns[index].nheaps > 0);
	if (index != JOBQ_NONE && --db->ready->turns[index].nheaps == 0)
		link_idle(db, index);
}

/*
 * Are there slots for the records of a heap with this key?
 */
bool
turns_left(JobqDatabase *db, const JobqHeap *key)
{
	uint32		idle = db->ready->turn_first;

	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		uint32		index;

		if (key->limiters[s] == JOBQ_NO_LIMITER)
			continue;
		index = turn_find(db, key->role, key->limiters[s]);
		if (index != JOBQ_NONE && db->ready->turns[index].nheaps > 0)
			continue;
		if (idle == JOBQ_NONE)
			return false;
		idle = db->ready->turns[idle].next;
	}
	return true;
}

/*
 * Add a new heap to the records of the role.  turns_left() must have been true.
 */
void
turns_join(JobqDatabase *db, JobqHeap *heap)
{
	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		heap->turns[s] = heap->limiters[s] == JOBQ_NO_LIMITER ? JOBQ_NONE
			: turn_join(db, heap->role, heap->limiters[s]);
}

/*
 * Remove a freed heap from the records of the role.
 */
void
turns_leave(JobqDatabase *db, JobqHeap *heap)
{
	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		turn_leave(db, heap->turns[s]);
}

/*
 * Return when the heap's role had its last turn at the limiter, which must be one of the
 * heap's limiters.  The role with the lowest number comes first.
 */
uint64
turn_of(JobqDatabase *db, const JobqHeap *heap, uint16 limiter)
{
	AssertExclusive(db->lock);
	return db->ready->turns[heap->turns[heap_source(heap, limiter)]].when;
}

/*
 * Record a turn of the role at the limiter.
 */
void
turn_over(JobqDatabase *db, Oid role, uint16 limiter)
{
	uint32		index = turn_find(db, role, limiter);

	AssertExclusive(db->lock);
	db->limits->served += 2;	/* leaves a number for new roles */
	if (index != JOBQ_NONE)
		db->ready->turns[index].when = db->limits->served;
}

/*
 * Record the turn of a role after a job of the role has taken these permits.
 */
void
turns_over(JobqDatabase *db, Oid role, const JobqPermits *permits)
{
	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (permits->limiters[s] != JOBQ_NO_LIMITER)
			turn_over(db, role, permits->limiters[s]);
}
