/*-------------------------------------------------------------------------
 *
 * ready.c
 *	  The ready set: lanes of jobs that may run now, in shared memory.
 *
 * A claim pops an entry and writes no tuple.  An entry is only a hint: whoever
 * pops it verifies the row by ctid and id, and drops the entry if the row is
 * gone or taken.  So an entry may be there twice, but a due row must never be
 * missing: see the invariant beside JobqLane.
 *
 * A lane's list is sorted, and nearly always grows at its end, because keys
 * arrive nearly in order.  A key that belongs far from both ends is not
 * searched a place for under the lock; the lane's cursor steps back below it
 * instead, and the scheduler's next scan merges it in.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready.c
 *
 *-------------------------------------------------------------------------
 */
#include "jobq.h"

#include "common/hashfn.h"
#include "utils/timestamp.h"

#include "shared.h"

/* Steps to search a place for one entry, from each end of the list. */
#define MAX_WALK	64

/* A lane of which workers take several at a time; plenty is left for all. */
#define LONG_LANE	512

typedef enum InsertResult
{
	INSERTED,
	DUPLICATE,
	TOO_FAR,
	NO_ENTRY
} InsertResult;

static uint32 lane_bucket(int32 queue_id, int32 priority, Oid role,
						  bool quarantine);
static JobqLane *lane_take(JobqDatabase *db);
static void lane_activate(JobqDatabase *db, JobqLane *lane);
static void lane_deactivate(JobqDatabase *db, JobqLane *lane);
static void entry_unlink(JobqDatabase *db, JobqLane *lane, uint32 index);
static void entry_free(JobqDatabase *db, uint32 index);
static void take(JobqDatabase *db, JobqLane *lane, uint32 index,
				 JobqPush *popped);
static void fill_hand(JobqDatabase *db, JobqLane *lane, uint8 rank,
					  JobqSlot *slot, BlockNumber block);
static bool entry_evict(JobqDatabase *db, JobqLane *for_lane);
static InsertResult entry_insert_after(JobqDatabase *db, JobqLane *lane,
									   uint32 after, const JobqPush *push);
static InsertResult entry_insert(JobqDatabase *db, JobqLane *lane,
								 const JobqPush *push);
static bool reserver_takes(const JobqReserver *reserver, const JobqLane *lane);

static inline JobqKey
key_below(JobqKey key)
{
	key.id--;
	return key;
}

/*
 * Forget all lanes and entries.
 */
void
jobq_ready_clear(JobqDatabase *db)
{
	for (int i = 0; i < JOBQ_LANE_BUCKETS; i++)
		db->bucket[i] = JOBQ_NONE;
	for (int i = 0; i < jobq_max_lanes; i++)
		db->lanes[i].in_use = false;
	for (uint32 i = 0; i < (uint32) jobq_ready_entries; i++)
		db->entries[i].next = i + 1;
	db->entries[jobq_ready_entries - 1].next = JOBQ_NONE;
	db->free_head = 0;
	db->nfree = jobq_ready_entries;
	db->active_head = JOBQ_NONE;
	jobq_hand_forget(db);
	db->complete = false;
	db->overflow = false;
	db->starved = false;
	db->forgotten_due = DT_NOEND;
	db->quarantine_slot = -1;
}

/*
 * The lane of these, or NULL if it is not there and "create" is false or no
 * lane can be had.  A new lane takes its rank from another of the same queue.
 */
JobqLane *
jobq_lane_find(JobqDatabase *db, int32 queue_id, int32 priority, Oid role,
			   bool quarantine, bool create)
{
	uint32		bucket = lane_bucket(queue_id, priority, role, quarantine);
	JobqLane   *lane;

	for (uint32 i = db->bucket[bucket]; i != JOBQ_NONE; i = lane->hash_next)
	{
		lane = &db->lanes[i];
		if (lane->queue_id == queue_id && lane->priority == priority &&
			lane->role == role && lane->quarantine == quarantine)
			return lane;
	}
	if (!create)
		return NULL;

	lane = lane_take(db);
	if (lane == NULL)
	{
		db->overflow = true;
		return NULL;
	}
	memset(lane, 0, sizeof(JobqLane));
	lane->in_use = true;
	lane->quarantine = quarantine;
	lane->queue_id = queue_id;
	lane->priority = priority;
	lane->role = role;
	lane->cursor.run_at = PG_INT64_MIN;
	lane->cursor.id = PG_INT64_MIN;
	lane->missed.run_at = PG_INT64_MAX;
	lane->missed.id = PG_INT64_MAX;
	lane->next_due = DT_NOEND;
	lane->head = lane->tail = JOBQ_NONE;
	lane->more = !db->complete && !quarantine;
	lane->hash_next = db->bucket[bucket];
	db->bucket[bucket] = JOBQ_LANE_INDEX(db, lane);

	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *other = &db->lanes[i];

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

static uint32
lane_bucket(int32 queue_id, int32 priority, Oid role, bool quarantine)
{
	uint32		hash = murmurhash32((uint32) queue_id);

	hash = hash_combine(hash, murmurhash32((uint32) priority));
	hash = hash_combine(hash, murmurhash32(role + (quarantine ? 1 : 0)));
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
 * have due rows.
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
		JobqLane   *lane = &db->lanes[i];

		if (!lane->in_use)
			return lane;
		if (lane->scanning || lane->quarantine)
			continue;
		if (lane->paused || !lane_served(lane))
			paused = lane;
		else if (lane->count > 0 || lane->more)
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
		db->forgotten_due = Min(db->forgotten_due, future->next_due);
	}
	else if (paused != NULL)
	{
		victim = paused;
		while (victim->count > 0)
		{
			uint32		index = victim->head;

			entry_unlink(db, victim, index);
			entry_free(db, index);
		}
		db->complete = false;
	}
	else
		return NULL;

	link = &db->bucket[lane_bucket(victim->queue_id, victim->priority,
								   victim->role, victim->quarantine)];
	while (*link != JOBQ_LANE_INDEX(db, victim))
		link = &db->lanes[*link].hash_next;
	*link = victim->hash_next;
	return victim;
}

static void
lane_activate(JobqDatabase *db, JobqLane *lane)
{
	db->news++;
	lane->active_prev = JOBQ_NONE;
	lane->active_next = db->active_head;
	if (db->active_head != JOBQ_NONE)
		db->lanes[db->active_head].active_prev = JOBQ_LANE_INDEX(db, lane);
	db->active_head = JOBQ_LANE_INDEX(db, lane);
}

static void
lane_deactivate(JobqDatabase *db, JobqLane *lane)
{
	if (lane->active_prev != JOBQ_NONE)
		db->lanes[lane->active_prev].active_next = lane->active_next;
	else
		db->active_head = lane->active_next;
	if (lane->active_next != JOBQ_NONE)
		db->lanes[lane->active_next].active_prev = lane->active_prev;
}

/*
 * Take an entry out of its lane.
 */
static void
entry_unlink(JobqDatabase *db, JobqLane *lane, uint32 index)
{
	JobqEntry  *entry = &db->entries[index];

	if (entry->prev != JOBQ_NONE)
		db->entries[entry->prev].next = entry->next;
	else
		lane->head = entry->next;
	if (entry->next != JOBQ_NONE)
		db->entries[entry->next].prev = entry->prev;
	else
		lane->tail = entry->prev;
	if (--lane->count == 0)
		lane_deactivate(db, lane);

}

static void
entry_free(JobqDatabase *db, uint32 index)
{
	db->entries[index].next = db->free_head;
	db->free_head = index;
	db->nfree++;
}

/*
 * Free an entry by cutting the tail of the longest lane; its scan will find
 * the job again.  False if no other lane has clearly more than this one.
 */
static bool
entry_evict(JobqDatabase *db, JobqLane *for_lane)
{
	JobqLane   *victim = NULL;
	JobqKey		evicted;
	uint32		index;

	for (uint32 i = db->active_head; i != JOBQ_NONE;
		 i = db->lanes[i].active_next)
	{
		JobqLane   *lane = &db->lanes[i];

		if (!lane->quarantine && lane->count > 16 &&
			(victim == NULL || lane->count > victim->count))
			victim = lane;
	}
	if (victim == NULL || victim == for_lane ||
		victim->count / 2 < for_lane->count)
		return false;

	index = victim->tail;
	evicted = db->entries[index].key;
	entry_unlink(db, victim, index);
	entry_free(db, index);
	if (victim->scanning && jobq_key_cmp(evicted, victim->missed) < 0)
		victim->missed = evicted;
	if (jobq_key_cmp(victim->cursor, evicted) >= 0)
		victim->cursor = key_below(evicted);
	victim->more = true;
	return true;
}

static InsertResult
entry_insert_after(JobqDatabase *db, JobqLane *lane, uint32 after,
				   const JobqPush *push)
{
	uint32		index;
	JobqEntry  *entry;

	if (db->nfree == 0 && !entry_evict(db, lane))
		return NO_ENTRY;

	index = db->free_head;
	entry = &db->entries[index];
	db->free_head = entry->next;
	db->nfree--;

	entry->key = push->key;
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
		entry->next = db->entries[after].next;
		db->entries[after].next = index;
	}
	if (entry->next != JOBQ_NONE)
		db->entries[entry->next].prev = index;
	else
		lane->tail = index;
	if (lane->count++ == 0)
		lane_activate(db, lane);
	return INSERTED;
}

/*
 * Insert in order, if the place is near one of the ends.
 */
static InsertResult
entry_insert(JobqDatabase *db, JobqLane *lane, const JobqPush *push)
{
	uint32		at = lane->tail;

	for (int i = 0; i < MAX_WALK; i++)
	{
		int			cmp;

		if (at == JOBQ_NONE)
			return entry_insert_after(db, lane, JOBQ_NONE, push);
		cmp = jobq_key_cmp(db->entries[at].key, push->key);
		if (cmp < 0)
			return entry_insert_after(db, lane, at, push);
		if (cmp == 0)
		{
			/* a row that was moved within the table keeps its newest place */
			db->entries[at].ctid = push->ctid;
			return DUPLICATE;
		}
		at = db->entries[at].prev;
	}

	at = lane->head;
	for (int i = 0; i < MAX_WALK; i++)
	{
		int			cmp = jobq_key_cmp(db->entries[at].key, push->key);

		if (cmp > 0)
			return entry_insert_after(db, lane, db->entries[at].prev, push);
		if (cmp == 0)
		{
			db->entries[at].ctid = push->ctid;
			return DUPLICATE;
		}
		at = db->entries[at].next;
	}
	return TOO_FAR;
}

/*
 * A row of this lane from "from" on has become visible: have it scanned.
 */
void
jobq_ready_look(JobqDatabase *db, JobqLane *lane, JobqKey from,
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
 * Hand over one job whose transaction has committed.
 *
 * The caller sends the wake-ups after it has released the lock.
 */
void
jobq_ready_push(JobqDatabase *db, const JobqPush *push, TimestampTz now,
				JobqWakeList *wake)
{
	bool		due = push->key.run_at <= now;
	JobqLane   *lane;
	InsertResult result;

	lane = jobq_lane_find(db, push->queue_id, push->priority, push->role,
						  push->quarantine && due, true);
	if (lane == NULL)
	{
		wake->scheduler = true;
		return;
	}
	if (!lane->ranked)
	{
		db->reload = true;
		wake->scheduler = true;
	}
	if (push->notify && due)
	{
		lane->notify = true;
		jobq_relay_mark(db, now, wake);
	}
	if (!due)
	{
		if (push->key.run_at < lane->next_due)
			lane->next_due = push->key.run_at;
		/* the clock was put back */
		if (jobq_key_cmp(push->key, lane->cursor) <= 0)
			lane->cursor = key_below(push->key);
		if (push->key.run_at < db->wake_at)
			wake->scheduler = true;
		return;
	}

	if (!lane->quarantine && jobq_key_cmp(push->key, lane->cursor) > 0)
	{
		if (lane->scanning)
		{
			if (jobq_key_cmp(push->key, lane->missed) < 0)
				lane->missed = push->key;
			lane->more = true;
			return;
		}
		if (lane->more || lane->next_due <= push->key.run_at)
		{
			lane->more = true;
			if (lane->count == 0)
				wake->scheduler = true;
			return;
		}
	}

	result = entry_insert(db, lane, push);
	switch (result)
	{
		case INSERTED:
			if (!lane->quarantine &&
				jobq_key_cmp(push->key, lane->cursor) > 0)
				lane->cursor = push->key;
			jobq_ready_wake(db, lane, wake);
			break;
		case DUPLICATE:
			break;
		case TOO_FAR:
		case NO_ENTRY:
			if (lane->quarantine)
				db->overflow = true;
			else
				jobq_ready_look(db, lane, push->key, wake);
			break;
	}
}

/*
 * Take over what a scan of the lane has found: "nrows" rows in order, all
 * that was visible between the lane's cursor and "cursor".
 */
void
jobq_ready_publish(JobqDatabase *db, JobqLane *lane, const JobqPush *rows,
				   int nrows, JobqKey cursor, bool more,
				   TimestampTz next_due, JobqWakeList *wake)
{
	uint32		after = JOBQ_NONE;
	JobqKey		done = lane->cursor;

	/* jobs that became due, or were many: the queue gets work */
	if (lane->count == 0 && nrows > 0)
	{
		lane->notify = true;
		jobq_relay_mark(db, jobq_now(), wake);
	}

	/* where does the first one belong? */
	if (nrows > 0)
	{
		after = lane->tail;
		while (after != JOBQ_NONE &&
			   jobq_key_cmp(db->entries[after].key, rows[0].key) >= 0)
			after = db->entries[after].prev;
	}

	for (int i = 0; i < nrows; i++)
	{
		const JobqPush *row = &rows[i];

		if (db->nleases > 0 && jobq_lease_find(db, row->key.id) != NULL)
			continue;
		if (row->quarantine)
		{
			JobqLane   *quarantine = jobq_lane_find(db, lane->queue_id,
													lane->priority, lane->role,
													true, true);

			if (quarantine == NULL ||
				entry_insert(db, quarantine, row) == NO_ENTRY)
				db->overflow = true;
			else
				jobq_ready_wake(db, quarantine, wake);
		}
		else
		{
			uint32		next;

			next = after == JOBQ_NONE ? lane->head : db->entries[after].next;
			while (next != JOBQ_NONE &&
				   jobq_key_cmp(db->entries[next].key, row->key) < 0)
			{
				after = next;
				next = db->entries[next].next;
			}
			if (next != JOBQ_NONE &&
				jobq_key_cmp(db->entries[next].key, row->key) == 0)
			{
				db->entries[next].ctid = row->ctid;
				after = next;
			}
			else if (entry_insert_after(db, lane, after, row) == INSERTED)
			{
				after = after == JOBQ_NONE ? lane->head
					: db->entries[after].next;
				jobq_ready_wake(db, lane, wake);
			}
			else
			{
				db->starved = true;
				cursor = done;
				more = true;
				break;
			}
		}
		done = row->key;
	}

	lane->scanning = false;
	lane->cursor = cursor;
	lane->more = more;
	if (next_due < lane->next_due)
		lane->next_due = next_due;
	if (jobq_key_cmp(lane->missed, lane->cursor) <= 0)
		lane->cursor = key_below(lane->missed);
	if (lane->missed.run_at != PG_INT64_MAX)
		lane->more = true;
	lane->missed.run_at = PG_INT64_MAX;
	lane->missed.id = PG_INT64_MAX;
}

/*
 * The place of the lane in the order of this taker, or JOBQ_NOT_SERVED.
 */
static uint8
lane_rank(const JobqLane *lane, const JobqTaker *taker)
{
	uint8		rank = JOBQ_NOT_SERVED;

	if (!lane->ranked || lane->paused)
		return JOBQ_NOT_SERVED;
	if (taker->pool >= 0)
		rank = lane->rank[taker->pool];
	else if (lane->consumer)
		for (int i = 0; i < taker->nqueues && rank == JOBQ_NOT_SERVED; i++)
			if (taker->queue_ids[i] == lane->queue_id)
				rank = i;
	if (rank == JOBQ_NOT_SERVED || taker->any_role)
		return rank;
	for (int i = 0; i < taker->nroles; i++)
		if (taker->roles[i] == lane->role)
			return rank;
	return JOBQ_NOT_SERVED;
}

/*
 * Pop the job that comes first for this taker, in order of its queues,
 * priority, run_at and id.  "refill" is set if a lane wants to be scanned; the
 * caller then wakes the scheduler.
 */
bool
jobq_ready_pop(JobqDatabase *db, const JobqTaker *taker, JobqPush *popped,
			   bool *refill)
{
	JobqLane   *best = NULL;
	uint8		best_rank = JOBQ_NOT_SERVED;
	JobqSlot   *mine = taker->slot >= 0 ? &jobq_shared->slots[taker->slot]
		: NULL;
	uint32		low = jobq_ready_entries / 8;
	uint32		before;
	uint32		index;

	*refill = false;
	for (uint32 i = db->active_head; i != JOBQ_NONE;
		 i = db->lanes[i].active_next)
	{
		JobqLane   *lane = &db->lanes[i];
		uint8		rank = lane_rank(lane, taker);

		if (rank == JOBQ_NOT_SERVED ||
			(lane->quarantine && taker->pool >= 0 && db->quarantine_slot >= 0))
			continue;
		if (best != NULL)
		{
			if (rank != best_rank)
			{
				if (rank > best_rank)
					continue;
			}
			else if (lane->priority != best->priority)
			{
				if (lane->priority > best->priority)
					continue;
			}
			else if (jobq_key_cmp(db->entries[lane->head].key,
								  db->entries[best->head].key) > 0)
				continue;
		}
		best = lane;
		best_rank = rank;
	}

	/* what is in the hand comes first, unless something is more urgent */
	if (mine != NULL &&
		jobq_hand_take_unless(db, mine, best != NULL, best_rank,
							  best != NULL ? best->priority : 0, popped))
		return true;
	if (best == NULL)
		return mine != NULL && jobq_hand_steal(mine, popped);

	before = best->count;
	index = best->head;
	entry_unlink(db, best, index);
	take(db, best, index, popped);
	if (best->quarantine && taker->pool >= 0)
		db->quarantine_slot = taker->slot;
	else if (mine != NULL)
		fill_hand(db, best, best_rank, mine,
				  ItemPointerGetBlockNumber(&popped->ctid));

	if (best->more && !best->scanning &&
		((before > low && best->count <= low) || best->count == 0))
		*refill = true;
	if (db->starved && db->nfree >= low)
	{
		db->starved = false;
		*refill = true;
	}
	return true;
}

/*
 * The entry as what was popped; gives the entry back.
 */
static void
take(JobqDatabase *db, JobqLane *lane, uint32 index, JobqPush *popped)
{
	JobqEntry  *entry = &db->entries[index];

	popped->queue_id = lane->queue_id;
	popped->priority = lane->priority;
	popped->role = lane->role;
	popped->quarantine = lane->quarantine;
	popped->notify = false;
	popped->key = entry->key;
	popped->ctid = entry->ctid;
	entry_free(db, index);
}

/*
 * From a long lane, take along the following jobs whose rows are on the same
 * page (see hand.c).
 */
static void
fill_hand(JobqDatabase *db, JobqLane *lane, uint8 rank, JobqSlot *slot,
		  BlockNumber block)
{
	int			room = lane->count > LONG_LANE ? jobq_hand_room(slot) : 0;

	while (room-- > 0 && lane->count > LONG_LANE)
	{
		uint32		index = lane->head;
		JobqPush	job;

		if (ItemPointerGetBlockNumber(&db->entries[index].ctid) != block)
			break;
		entry_unlink(db, lane, index);
		take(db, lane, index, &job);
		jobq_hand_put(db, slot, rank, &job);
	}
}

/*
 * The relay has something to say: see that the scheduler wakes in time.
 */
void
jobq_relay_mark(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	TimestampTz due = now + jobq_notify_interval * INT64CONST(1000);

	if (db->relay_pending && db->relay_due <= due)
		return;
	db->relay_pending = true;
	db->relay_due = due;
	if (db->relay_due < db->wake_at)
		wake->scheduler = true;
}

static bool
reserver_takes(const JobqReserver *reserver, const JobqLane *lane)
{
	for (int i = 0; i < reserver->ndenied; i++)
		if (reserver->denied[i] == lane->role)
			return false;
	for (int i = 0; i < reserver->nqueues; i++)
		if (reserver->queue_ids[i] == lane->queue_id)
			return true;
	return false;
}

/*
 * Choose who is woken for a job in the lane: a consumer that waits, or an idle
 * worker, or else the scheduler if it may be able to start one.
 */
void
jobq_ready_wake(JobqDatabase *db, JobqLane *lane, JobqWakeList *wake)
{
	int			index = db - jobq_shared->databases;
	bool		served = false;

	if (!lane->ranked)
	{
		db->reload = true;
		wake->scheduler = true;
		return;
	}
	if (lane->paused || wake->n >= JOBQ_MAX_WAKE)
		return;

	if (lane->consumer)
	{
		/* it takes itself off the list, and comes back if it finds nothing */
		for (uint32 i = 0; i < db->nreservers; i++)
		{
			JobqReserver *reserver = &db->reservers[i];

			if (reserver_takes(reserver, lane))
			{
				wake->proc[wake->n++] = reserver->proc;
				*reserver = db->reservers[--db->nreservers];
				return;
			}
		}
		return;
	}

	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot->state == JOBQ_SLOT_FREE || slot->state == JOBQ_SLOT_DEAD ||
			slot->database != index || slot->role != lane->role ||
			lane->rank[slot->pool] == JOBQ_NOT_SERVED)
			continue;
		served = true;
		if (slot->state == JOBQ_SLOT_ATTACHED && slot->idle && !slot->retire)
		{
			PGPROC	   *proc = slot->proc;	/* may vanish: read once */

			if (proc == NULL)
				continue;
			slot->idle = false;
			wake->proc[wake->n++] = proc;
			return;
		}
	}
	if (!served || db->can_spawn)
		wake->scheduler = true;
}

/*
 * Send the wake-ups, after the lock was released.
 */
void
jobq_wake(JobqDatabase *db, JobqWakeList *wake)
{
	for (int i = 0; i < wake->n; i++)
		SetLatch(&wake->proc[i]->procLatch);
	if (wake->scheduler)
		jobq_wake_scheduler(db);
}
