/*-------------------------------------------------------------------------
 *
 * lane.c
 *	  Lanes, found by (queue, priority, role, flow), and their sorted lists of
 *	  entries.
 *
 * A lane's list nearly always grows at its end, because keys arrive nearly in
 * order.  A key that belongs far from both ends is not searched a place for
 * under the lock; the lane's cursor steps back below it instead, and the
 * scheduler's next scan merges it in.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/lane.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"
#include "utils/timestamp.h"

#include "ready/inner.h"

/* Lanes with so few entries keep them when those are scarce. */
#ifndef SHORT_LANE
#define SHORT_LANE	16
#endif

/* Steps to search a place for one entry, from each end of the list. */
#ifndef MAX_WALK
#define MAX_WALK	64
#endif

static uint32 lane_bucket(int32 queue_id, int32 priority, Oid role, int32 flow,
						  bool quarantine);
static bool lane_served(const JobqLane *lane);
static JobqLane *lane_take(JobqDatabase *db);
static void lane_activate(JobqDatabase *db, JobqLane *lane);
static void lane_deactivate(JobqDatabase *db, JobqLane *lane);
static void entry_drop(JobqDatabase *db, JobqLane *lane, uint32 index);

/*
 * The lane of these, or NULL if it is not there and "create" is false or no
 * lane can be had.  A new lane takes its rank from another of the same queue.
 */
JobqLane *
jobq_lane_find(JobqDatabase *db, int32 queue_id, int32 priority, Oid role,
			   int32 flow, bool quarantine, bool create)
{
	uint32		bucket = lane_bucket(queue_id, priority, role, flow, quarantine);
	JobqLane   *lane;

	for (uint32 i = db->ready->bucket[bucket]; i != JOBQ_NONE; i = lane->hash_next)
	{
		lane = &db->ready->lanes[i];
		if (lane->queue_id == queue_id && lane->priority == priority &&
			lane->role == role && lane->flow == flow &&
			lane->quarantine == quarantine)
			return lane;
	}
	if (!create)
		return NULL;

	lane = lane_take(db);
	if (lane == NULL)
	{
		db->ready->overflow = true;
		db->ready->complete = false;	/* it may have due rows when it is made */
		db->relay_due = 0;		/* lanes may be kept for the relay only */
		return NULL;
	}
	memset(lane, 0, sizeof(JobqLane));
	db->ready->lanes_made++;
	lane->in_use = true;
	lane->quarantine = quarantine;
	lane->queue_id = queue_id;
	lane->priority = priority;
	lane->role = role;
	lane->flow = flow;
	lane->cursor.run_at = PG_INT64_MIN;
	lane->cursor.id = PG_INT64_MIN;
	lane->missed.run_at = PG_INT64_MAX;
	lane->missed.id = PG_INT64_MAX;
	lane->next_due = DT_NOEND;
	lane->queue_limiter = jobq_limiter_find(db, queue_id, 0);
	lane->kind_limiter = JOBQ_NO_LIMITER;
	lane->head = lane->tail = JOBQ_NONE;
	lane->more = !db->ready->complete && !quarantine;
	lane->hash_next = db->ready->bucket[bucket];
	db->ready->bucket[bucket] = JOBQ_LANE_INDEX(db, lane);

	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *other = &db->ready->lanes[i];

		if (other->in_use && other->ranked && other->queue_id == queue_id)
		{
			memcpy(lane->rank, other->rank, sizeof(lane->rank));
			lane->paused = other->paused;
			lane->consumer = other->consumer;
			lane->ranked = true;
			break;
		}
	}
	return lane;
}

/*
 * Is there no other lane of the queue?
 */
bool
lane_is_only(JobqDatabase *db, JobqLane *lane)
{
	if (lane->only_as_of != db->ready->lanes_made)
	{
		lane->only_as_of = db->ready->lanes_made;
		lane->only = true;
		for (int i = 0; i < jobq_max_lanes && lane->only; i++)
			lane->only = !db->ready->lanes[i].in_use || &db->ready->lanes[i] == lane ||
				db->ready->lanes[i].queue_id != lane->queue_id;
	}
	return lane->only;
}

/*
 * The lane gets a job: note what all jobs of a lane with a flow have in common.
 * Limits that are not loaded yet are waited for.
 */
void
lane_set_flow(JobqDatabase *db, JobqLane *lane, const JobqPush *push)
{
	if (lane->kind == push->kind && lane->tenant == push->tenant &&
		(lane->kind == 0 || lane->kind_limiter != JOBQ_NO_LIMITER))
		return;
	lane->kind = push->kind;
	lane->tenant = push->tenant;
	lane->kind_limiter = JOBQ_NO_LIMITER;
	if (lane->kind != 0)
	{
		lane->kind_limiter = jobq_limiter_find(db, 0, lane->kind);
		if (lane->kind_limiter == JOBQ_NO_LIMITER)
		{
			lane->ranked = false;
			db->reload = db->limits->stale = true;
		}
	}
}

static uint32
lane_bucket(int32 queue_id, int32 priority, Oid role, int32 flow,
			bool quarantine)
{
	uint32		hash = murmurhash32((uint32) queue_id);

	hash = hash_combine(hash, murmurhash32((uint32) priority));
	hash = hash_combine(hash, murmurhash32(role + (quarantine ? 1 : 0)));
	hash = hash_combine(hash, (uint32) flow);
	return hash % JOBQ_LANE_BUCKETS;
}

static bool
lane_served(const JobqLane *lane)
{
	if (!lane->ranked || lane->consumer)
		return true;
	for (int i = 0; i < JOBQ_MAX_POOLS; i++)
		if (lane->rank[i] != JOBQ_NOT_SERVED)
			return true;
	return false;
}

/*
 * A lane that is not in use, or else one that can be done without, unlinked
 * from its bucket: it holds nothing and awaits nothing; or only jobs of the
 * future, and then all is read anew when the first of them is due; or its
 * queue is paused or nobody serves it, and then a lane that is missing may
 * have due rows.  What a lane has for the relay must have been collected.
 */
static JobqLane *
lane_take(JobqDatabase *db)
{
	JobqLane   *idle = NULL;
	JobqLane   *future = NULL;
	JobqLane   *paused = NULL;
	JobqLane   *victim;
	uint32	   *link;

	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &db->ready->lanes[i];

		if (!lane->in_use)
			return lane;
		if (lane->scanning || lane->quarantine || lane->notify ||
			lane->parked > 0)
			continue;
		if (lane->paused || !lane_served(lane))
			paused = lane;
		else if (lane->count > 0 || lane->more || lane->skipping)
			continue;
		else if (lane->next_due == DT_NOEND)
			idle = lane;
		else if (future == NULL || lane->next_due > future->next_due)
			future = lane;
	}

	if (idle != NULL)
		victim = idle;
	else if (future != NULL)
	{
		victim = future;
		db->ready->forgotten_due = Min(db->ready->forgotten_due, future->next_due);
	}
	else if (paused != NULL)
	{
		victim = paused;
		while (victim->count > 0)
		{
			uint32		index = victim->head;

			entry_drop(db, victim, index);
		}
		db->ready->complete = false;
		db->ready->paused_forgotten = true;
		db->ready->evictions++;
	}
	else
		return NULL;

	link = &db->ready->bucket[lane_bucket(victim->queue_id, victim->priority,
								   victim->role, victim->flow,
								   victim->quarantine)];
	while (*link != JOBQ_LANE_INDEX(db, victim))
		link = &db->ready->lanes[*link].hash_next;
	*link = victim->hash_next;
	return victim;
}

static void
lane_activate(JobqDatabase *db, JobqLane *lane)
{
	db->ready->news++;
	for (uint32 i = db->limits->weighted ? db->ready->active_head : JOBQ_NONE; i != JOBQ_NONE;
		 i = db->ready->lanes[i].active_next)
		if (db->ready->lanes[i].queue_id == lane->queue_id)
			lane->queue_turn = Max(lane->queue_turn, db->ready->lanes[i].queue_turn);
	lane->active_prev = JOBQ_NONE;
	lane->active_next = db->ready->active_head;
	if (db->ready->active_head != JOBQ_NONE)
		db->ready->lanes[db->ready->active_head].active_prev = JOBQ_LANE_INDEX(db, lane);
	db->ready->active_head = JOBQ_LANE_INDEX(db, lane);
}

static void
lane_deactivate(JobqDatabase *db, JobqLane *lane)
{
	if (lane->active_prev != JOBQ_NONE)
		db->ready->lanes[lane->active_prev].active_next = lane->active_next;
	else
		db->ready->active_head = lane->active_next;
	if (lane->active_next != JOBQ_NONE)
		db->ready->lanes[lane->active_next].active_prev = lane->active_prev;
}

/*
 * A job of the lane found no place: have the lane read again from this one on,
 * but later.  What is in quarantine is read with the lane that is not.
 */
void
lane_skip(JobqDatabase *db, JobqLane *lane, JobqKey key)
{
	if (lane->quarantine)
	{
		db->ready->overflow = true;
		lane = jobq_lane_find(db, lane->queue_id, lane->priority, lane->role,
							  lane->flow, false, false);
		if (lane == NULL)
		{
			db->ready->complete = false;	/* it is read when it is made */
			return;
		}
	}
	if (!lane->skipping || jobq_key_cmp(key, lane->skipped) < 0)
	{
		lane->skipping = true;
		lane->skipped = key;
	}
}

/*
 * A row of this lane from "from" on has become visible: have it scanned.
 */
void
jobq_lane_look(JobqDatabase *db, JobqLane *lane, JobqKey from,
			   JobqWakeList *wake)
{
	if (lane->scanning && jobq_key_cmp(from, lane->missed) < 0)
		lane->missed = from;
	if (jobq_key_cmp(from, lane->cursor) <= 0)
		lane->cursor = key_below(from);
	lane->more = true;
	wake->scheduler = true;
}

/*
 * Take an entry out of its lane.
 */
void
entry_unlink(JobqDatabase *db, JobqLane *lane, uint32 index)
{
	JobqEntry  *entry = &db->ready->entries[index];

	if (entry->prev != JOBQ_NONE)
		db->ready->entries[entry->prev].next = entry->next;
	else
		lane->head = entry->next;
	if (entry->next != JOBQ_NONE)
		db->ready->entries[entry->next].prev = entry->prev;
	else
		lane->tail = entry->prev;
	if (--lane->count == 0)
		lane_deactivate(db, lane);

}

/*
 * Give an entry that is in no lane back to the free list.
 */
void
entry_free(JobqDatabase *db, uint32 index)
{
	db->ready->entries[index].next = db->ready->free_head;
	db->ready->free_head = index;
	db->ready->nfree++;
}

/*
 * Drop an entry of a lane that is read again.  Its group shall not wait for it:
 * there may be no such row any more.
 */
static void
entry_drop(JobqDatabase *db, JobqLane *lane, uint32 index)
{
	JobqEntry  *entry = &db->ready->entries[index];
	JobqGroup  *group = entry->group == 0 ? NULL
		: jobq_group_find(db, entry->group);

	if (group != NULL && group->called == entry->key.id)
	{
		group->called = 0;
		db->groups->due = 0;		/* long ago */
	}
	entry_unlink(db, lane, index);
	entry_free(db, index);
}

/*
 * Free an entry by cutting the tail of the longest lane; its scan will find
 * the job again.  False if no other lane has clearly more than this one, if one
 * is named.
 */
bool
entry_evict(JobqDatabase *db, JobqLane *for_lane)
{
	JobqLane   *victim = NULL;
	JobqKey		evicted;
	uint32		index;

	for (uint32 i = db->ready->active_head; i != JOBQ_NONE;
		 i = db->ready->lanes[i].active_next)
	{
		JobqLane   *lane = &db->ready->lanes[i];

		if (!lane->quarantine && lane->count > SHORT_LANE &&
			(victim == NULL || lane->count > victim->count))
			victim = lane;
	}
	if (victim == NULL ||
		(for_lane != NULL &&
		 (victim == for_lane || victim->count / 2 < for_lane->count)))
		return false;

	index = victim->tail;
	evicted = db->ready->entries[index].key;
	entry_drop(db, victim, index);
	if (victim->scanning && jobq_key_cmp(evicted, victim->missed) < 0)
		victim->missed = evicted;
	if (jobq_key_cmp(victim->cursor, evicted) >= 0)
		victim->cursor = key_below(evicted);
	victim->more = true;
	return true;
}

/*
 * Insert behind the entry "after", or at the head if that is JOBQ_NONE.
 */
InsertResult
entry_insert_after(JobqDatabase *db, JobqLane *lane, uint32 after,
				   const JobqPush *push)
{
	uint32		index;
	JobqEntry  *entry;

	if (db->ready->nfree == 0 && !entry_evict(db, lane))
		return NO_ENTRY;

	index = db->ready->free_head;
	entry = &db->ready->entries[index];
	db->ready->free_head = entry->next;
	db->ready->nfree--;

	entry->key = push->key;
	entry->group = push->group;
	entry->ctid = push->ctid;
	entry->lane = JOBQ_LANE_INDEX(db, lane);
	entry->prev = after;
	if (after == JOBQ_NONE)
	{
		entry->next = lane->head;
		lane->head = index;
	}
	else
	{
		entry->next = db->ready->entries[after].next;
		db->ready->entries[after].next = index;
	}
	if (entry->next != JOBQ_NONE)
		db->ready->entries[entry->next].prev = index;
	else
		lane->tail = index;
	if (lane->count++ == 0)
		lane_activate(db, lane);
	return INSERTED;
}

/*
 * Insert in order, if the place is near one of the ends.
 */
InsertResult
entry_insert(JobqDatabase *db, JobqLane *lane, const JobqPush *push)
{
	uint32		at = lane->tail;

	for (int i = 0; i < MAX_WALK; i++)
	{
		int			cmp;

		if (at == JOBQ_NONE)
			return entry_insert_after(db, lane, JOBQ_NONE, push);
		cmp = jobq_key_cmp(db->ready->entries[at].key, push->key);
		if (cmp < 0)
			return entry_insert_after(db, lane, at, push);
		if (cmp == 0)
		{
			/* a row that was moved within the table keeps its newest place */
			db->ready->entries[at].ctid = push->ctid;
			return DUPLICATE;
		}
		at = db->ready->entries[at].prev;
	}

	at = lane->head;
	for (int i = 0; i < MAX_WALK; i++)
	{
		int			cmp = jobq_key_cmp(db->ready->entries[at].key, push->key);

		if (cmp > 0)
			return entry_insert_after(db, lane, db->ready->entries[at].prev, push);
		if (cmp == 0)
		{
			db->ready->entries[at].ctid = push->ctid;
			return DUPLICATE;
		}
		at = db->ready->entries[at].next;
	}
	return TOO_FAR;
}
