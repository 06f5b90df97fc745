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
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/ready.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/jobq.h"

#include "utils/timestamp.h"

#include "ready/lanes.h"

/* A lane of which workers take several at a time; plenty is left for all. */
#define LONG_LANE	512

static double tenant_turn(const JobqLane *lane, double now);
static double queue_turn(JobqDatabase *db, const JobqLane *lane);
static bool no_predecessor(JobqDatabase *db, JobqLane *lane, JobqKey key,
						   TimestampTz now);
static void take(JobqDatabase *db, JobqLane *lane, uint32 index,
				 JobqPush *popped);
static void fill_hand(JobqDatabase *db, JobqLane *lane, uint8 rank,
					  JobqSlot *slot, BlockNumber block);

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
	jobq_groups_unpark(db);
	jobq_hand_forget(db);
	db->nlate = 0;
	db->complete = false;
	db->overflow = false;
	db->starved = false;
	db->forgotten_due = DT_NOEND;
	db->quarantine_slot = -1;
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
						  push->flow, push->quarantine && due, true);
	if (lane == NULL)
	{
		wake->scheduler = true;
		if (push->quarantine && due)
			lane = jobq_lane_find(db, push->queue_id, push->priority,
								  push->role, push->flow, false, false);
		if (lane != NULL)
			lane_skip(db, lane, push->key);
		return;
	}
	lane_set_flow(db, lane, push);
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
		{
			lane->cursor = key_below(push->key);
			if (lane->scanning && jobq_key_cmp(push->key, lane->missed) < 0)
				lane->missed = push->key;
		}
		if (push->key.run_at < db->wake_at)
			wake->scheduler = true;
		return;
	}

	if (!lane->quarantine && jobq_key_cmp(push->key, lane->cursor) > 0)
	{
		if (lane->scanning)
		{
			if (db->nlate < JOBQ_MAX_LATE)
				db->late[db->nlate++] = *push;
			else
			{
				if (jobq_key_cmp(push->key, lane->missed) < 0)
					lane->missed = push->key;
				lane->more = true;
			}
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
			jobq_ready_wake(db, lane, now, wake);
			break;
		case DUPLICATE:
			break;
		case TOO_FAR:
		case NO_ENTRY:
			if (lane->quarantine)
				lane_skip(db, lane, push->key);
			else
				jobq_ready_look(db, lane, push->key, wake);
			wake->scheduler = true;
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
	TimestampTz now = jobq_now();
	int			nlate;

	/* jobs that became due, or were many: the queue gets work */
	if (lane->count == 0 && nrows > 0)
	{
		lane->notify = true;
		jobq_relay_mark(db, now, wake);
	}
	if (nrows > 0)
		lane_set_flow(db, lane, &rows[0]);

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
													lane->flow, true, true);
			InsertResult result = NO_ENTRY;

			if (quarantine != NULL)
			{
				lane_set_flow(db, quarantine, row);
				result = entry_insert(db, quarantine, row);
			}
			if (result == TOO_FAR || result == NO_ENTRY)
			{
				lane_skip(db, lane, row->key);
				db->overflow = true;
			}
			else
				jobq_ready_wake(db, quarantine, now, wake);
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
				jobq_ready_wake(db, lane, now, wake);
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

	/* the scan may have passed what was committed meanwhile */
	nlate = db->nlate;
	db->nlate = 0;
	for (int i = 0; i < nlate; i++)
		jobq_ready_push(db, &db->late[i], now, wake);
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
 * Does the lane come before the other in the order of a taker, for whom they
 * have these ranks?  By rank; then by turn, if queues have weights; by
 * priority; by the tenants' turn, if the queue is fair; by age.
 */
static bool
lane_before(JobqDatabase *db, const JobqLane *lane, uint8 rank,
			const JobqLane *other, uint8 other_rank)
{
	if (rank != other_rank)
		return rank < other_rank;
	if (db->weighted && lane->queue_id != other->queue_id)
	{
		double		turn = queue_turn(db, lane);
		double		other_turn = queue_turn(db, other);

		if (turn != other_turn)
			return turn < other_turn;
	}
	if (lane->priority != other->priority)
		return lane->priority < other->priority;
	if (lane->queue_id == other->queue_id && lane->tenant != other->tenant &&
		lane->queue_limiter != JOBQ_NO_LIMITER &&
		db->limiters[lane->queue_limiter].fair)
	{
		double		now = db->limiters[lane->queue_limiter].tenant_turn;
		double		turn = tenant_turn(lane, now);
		double		other_turn = tenant_turn(other, now);

		if (turn != other_turn)
			return turn < other_turn;
	}
	return jobq_key_cmp(db->entries[lane->head].key,
						db->entries[other->head].key) <= 0;
}

/*
 * A lane without a tenant is from before the queue was fair.  It comes first:
 * its jobs are written anew, so that those of all tenants are seen.
 */
static double
tenant_turn(const JobqLane *lane, double now)
{
	return lane->tenant == 0 ? -1 : Max(lane->turn, now);
}

static double
queue_turn(JobqDatabase *db, const JobqLane *lane)
{
	return Max(lane->queue_turn, db->queue_turn);
}

/*
 * The lane whose first job comes first for this taker, or NULL.
 */
static JobqLane *
best_lane(JobqDatabase *db, const JobqTaker *taker, TimestampTz now,
		  uint8 *best_rank)
{
	JobqLane   *best = NULL;

	for (uint32 i = db->active_head; i != JOBQ_NONE;
		 i = db->lanes[i].active_next)
	{
		JobqLane   *lane = &db->lanes[i];
		uint8		rank = lane_rank(lane, taker);

		if (rank == JOBQ_NOT_SERVED ||
			(lane->quarantine && taker->pool >= 0 && db->quarantine_slot >= 0))
			continue;
		if (best != NULL && !lane_before(db, lane, rank, best, *best_rank))
			continue;
		if (!jobq_lane_free(db, lane, now))
			continue;
		best = lane;
		*best_rank = rank;
	}
	return best;
}

/*
 * Pop the job that comes first for this taker, together with its permits.  A
 * worker gets its last job's permits back into the pool first.
 */
bool
jobq_ready_pop(JobqDatabase *db, const JobqTaker *taker, TimestampTz now,
			   JobqPush *popped, JobqWakeList *wake)
{
	JobqSlot   *mine = taker->slot >= 0 ? &jobq_shared->slots[taker->slot]
		: NULL;
	uint32		low = jobq_ready_entries / 8;
	JobqLane   *best;
	uint8		best_rank = JOBQ_NOT_SERVED;
	uint32		before;
	uint32		index;
	uint32		group;

	if (mine != NULL && jobq_permits_any(&mine->permits))
		jobq_permits_release(db, &mine->permits, mine->permits_job, mine->live,
							 mine->unused, now, wake);

again:
	best = best_lane(db, taker, now, &best_rank);

	/* what is in the hand comes first, unless something is more urgent */
	if (mine != NULL &&
		jobq_hand_take_unless(db, mine, best != NULL, best_rank,
							  best != NULL ? best->priority : 0, popped))
		return true;
	if (best == NULL)
	{
		if (Min(db->limits_due, db->groups_due) < db->wake_at)
			wake->scheduler = true;
		return mine != NULL && jobq_hand_steal(mine, popped);
	}

	before = best->count;
	index = best->head;
	group = JOBQ_NONE;
	entry_unlink(db, best, index);
	if (best->more && !best->scanning &&
		((before > low && best->count <= low) || best->count == 0))
		wake->scheduler = true;
	if (db->starved && db->nfree >= low)
	{
		db->starved = false;
		wake->scheduler = true;
	}
	if (db->entries[index].group != 0 &&
		jobq_group_enter(db, best, index, now, &group, wake) == JOBQ_PARKED)
		goto again;
	take(db, best, index, popped);
	if (popped->group != 0)
		popped->first = no_predecessor(db, best, popped->key, now);
	popped->permits = jobq_permits_take(db, best, group);
	jobq_lane_served(db, best);
	if (mine != NULL)
	{
		mine->permits = popped->permits;
		mine->permits_job = popped->key.id;
		mine->live = false;
		mine->unused = true;	/* until it begins */
	}
	if (best->quarantine && taker->pool >= 0)
		db->quarantine_slot = taker->slot;
	else if (mine != NULL && !jobq_permits_any(&popped->permits) &&
			 !db->weighted)
		fill_hand(db, best, best_rank, mine,
				  ItemPointerGetBlockNumber(&popped->ctid));
	return true;
}

/*
 * Is it sure, without a look at the table, that no job of the same group comes
 * before this one, which was popped and whose turn it is as far as its group
 * knows?  It is if all jobs of the queue stand in this lane, and all that is due
 * there up to this one has been read.
 */
static bool
no_predecessor(JobqDatabase *db, JobqLane *lane, JobqKey key, TimestampTz now)
{
	return db->complete && !db->rescan && now < db->forgotten_due &&
		now < lane->next_due &&
		!lane->quarantine && !lane->skipping && !lane->scanning &&
		jobq_key_cmp(key, lane->cursor) <= 0 && lane_is_only(db, lane);
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
	popped->flow = lane->flow;
	popped->kind = lane->kind;
	popped->tenant = lane->tenant;
	popped->group = entry->group;
	popped->quarantine = lane->quarantine;
	popped->notify = popped->first = false;
	popped->key = entry->key;
	popped->ctid = entry->ctid;
	popped->permits = JOBQ_NO_PERMITS;
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

		if (ItemPointerGetBlockNumber(&db->entries[index].ctid) != block ||
			db->entries[index].group != 0)
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

/*
 * See that a job in the lane is taken: mark the lane for consumers that wait, or
 * choose an idle worker, or else the scheduler if it may be able to start one.
 */
void
jobq_ready_wake(JobqDatabase *db, JobqLane *lane, TimestampTz now,
				JobqWakeList *wake)
{
	int			index = db - jobq_shared->databases;
	bool		served = false;

	if (!lane->ranked)
	{
		db->reload = true;
		wake->scheduler = true;
		return;
	}
	if (lane->paused)
		return;
	if (!jobq_lane_free(db, lane, now))
	{
		/* whoever gives a permit back will see to it, or the time */
		if (db->limits_due < db->wake_at)
			wake->scheduler = true;
		return;
	}

	if (lane->consumer)
	{
		if (db->reserver_head != JOBQ_NONE)
			lane->marked = db->any_marked = true;
		return;
	}
	if (wake->n >= JOBQ_MAX_WAKE)
		return;

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
