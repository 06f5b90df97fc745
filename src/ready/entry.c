/*-------------------------------------------------------------------------
 *
 *	  The entries of lanes, in sorted lists.
 *
 * A lane's list nearly always grows at its end, because keys arrive nearly in order.  For a
 * key far from both ends, no position is searched under the lock.  Instead, the lane's cursor
 * moves back below the key, and the scheduler's next scan merges the row.
 *
 * src/ready/entry.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/*
 * A lane with at most this number of entries is short, and keeps entries longer if they are
 * scarce.
 */
#ifndef SHORT_LANE
#define SHORT_LANE	16
#endif

/*
 * Classes of lanes that give up an entry; the highest class gives first.  Within a class, the
 * lane with the most entries gives, or the least urgent lane.
 */
enum
{
	LAST_ONE,					/* the lane has a single entry */
	LIKE_OTHERS,				/* more entries than the needy lane */
	LESS_URGENT,
	FULL_LANE,					/* jobs of the lane cannot start now */
	LONG_LANE,
	SHORT_ABOVE_SHARE,			/* the role exceeds its share */
	LONG_ABOVE_SHARE,
	CLOSED_LANE					/* no process takes jobs from the lane */
};
#define GIVES(class)	(((int64) (class) << 33) + 1)
#define LEAST(lane)		((int64) (lane)->priority - PG_INT32_MIN)

/* Maximum number of steps from each end of the list to find the position of an entry. */
#ifndef MAX_WALK
#define MAX_WALK	64
#endif

/* Why an entry is needed. */
typedef struct Need
{
	const JobqLane *lane;		/* for this lane; NULL: for none */
	bool		over;			/* its role exceeds its share */
	bool		full;			/* its jobs cannot start now */
	bool		must;			/* short lanes give entries as well */
} Need;

/*
 * Free all entries except tallies.
 */
void
entries_clear(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	db->ready->free_head = JOBQ_NONE;
	db->ready->nfree = db->ready->timers.n = 0;
	for (uint32 i = jobq_ready_entries; i-- > 0;)
	{
		if (db->ready->entries[i].lane == JOBQ_NO_LANE)
			TALLY(db, i)->timer = JOBQ_NONE;	/* the tally stays */
		else
			place_give(db, i);
	}
	db->ready->active_head = JOBQ_NONE;
	db->ready->entry_hand = 0;
	db->ready->entries_full_until = 0;
}

/*
 * Unlink an entry from its lane.  Returns true if the first entry was unlinked and further
 * entries remain.  The lane must then be moved in its heap.
 */
static bool
unlink_entry(JobqDatabase *db, JobqLane *lane, uint32 index)
{
	JobqEntry  *entry = &db->ready->entries[index];

	AssertExclusive(db->lock);
	Assert(lane->count > 0 && entry->lane == JOBQ_LANE_INDEX(db, lane));
	Assert(entry->prev != JOBQ_NONE || lane->head == index);
	Assert(entry->next != JOBQ_NONE || lane->tail == index);
	if (entry->prev != JOBQ_NONE)
		db->ready->entries[entry->prev].next = entry->next;
	else
		lane->head = entry->next;
	if (entry->next != JOBQ_NONE)
		db->ready->entries[entry->next].prev = entry->prev;
	else
		lane->tail = entry->prev;
	Assert(lane->heap == JOBQ_NONE || db->ready->heaps[lane->heap].nentries > 0);
	if (lane->heap != JOBQ_NONE)
		db->ready->heaps[lane->heap].nentries--;
	if (--lane->count == 0)
	{
		lane_deactivate(db, lane);
		return false;
	}
	return entry->prev == JOBQ_NONE;
}

/*
 * Unlink an entry, and move the lane in its heap if the entry was the first.
 */
static void
unlink_and_move(JobqDatabase *db, JobqLane *lane, uint32 index)
{
	AssertExclusive(db->lock);
	if (unlink_entry(db, lane, index))
		lane_moved(db, lane);
}

/*
 * A job of the lane was popped: the scheduler must read more jobs if few are left.
 */
static void
look_for_more(const JobqLane *lane, JobqWakeList *wake)
{
	uint32		low = jobq_ready_entries / 8;

	if (lane->more && !lane->scanning &&
		(lane->count == low || lane->count == 0))
		wake->scheduler = true;
}

/*
 * Unlink a popped entry.
 */
void
entry_leave(JobqDatabase *db, JobqLane *lane, uint32 index, JobqWakeList *wake)
{
	unlink_and_move(db, lane, index);
	look_for_more(lane, wake);
}

/*
 * Unlink the first entry of its lane, which is popped, and return its index.  If the entry
 * has no group, the lane is not moved in its heap yet.  The caller calls lane_served_one(),
 * which moves the lane for its changed turn as well, before the first lane of the heap is
 * needed again.
 */
uint32
entry_leave_first(JobqDatabase *db, JobqLane *lane, JobqWakeList *wake)
{
	uint32		index = lane->head;

	AssertExclusive(db->lock);
	if (unlink_entry(db, lane, index) &&
		(db->ready->entries[index].group != 0 || lane->own != JOBQ_NONE))
		lane_moved(db, lane);
	look_for_more(lane, wake);
	return index;
}

/*
 * Allocate an entry for a job of the lane.  The free list must not be empty.
 */
uint32
entry_alloc(JobqDatabase *db, JobqLane *lane)
{
	uint32		index = place_take(db);

	Assert(lane->in_use);
	db->ready->entries[index].lane = JOBQ_LANE_INDEX(db, lane);
	db->ready->roles[lane->role_index].nentries++;
	return index;
}

/*
 * Free an entry that is in no lane.
 */
void
entry_free(JobqDatabase *db, uint32 index)
{
	JobqLane   *lane = &db->ready->lanes[db->ready->entries[index].lane];

	Assert(lane->in_use && db->ready->roles[lane->role_index].nentries > 0);
	db->ready->roles[lane->role_index].nentries--;
	place_give(db, index);
}

/*
 * An entry leaves its lane without being popped: its group must not wait for the entry.
 */
void
entry_uncall(JobqDatabase *db, uint32 index)
{
	JobqEntry  *entry = &db->ready->entries[index];
	JobqGroup  *group = entry->group == 0 ? NULL
		: jobq_group_find(db, entry->group);

	AssertExclusive(db->lock);
	if (group != NULL && group->called == entry->key.id)
	{
		group->called = 0;
		group_set_timer(db, group, 0);	/* in the past */
	}
}

/*
 * Drop an entry of a lane that is read again.  The row of the entry may no longer exist.
 */
static void
entry_drop(JobqDatabase *db, JobqLane *lane, uint32 index)
{
	entry_uncall(db, index);
	unlink_and_move(db, lane, index);
	entry_free(db, index);
}

/*
 * Copy an entry to *popped, without permits.
 */
void
entry_push(JobqDatabase *db, uint32 index, JobqPush *popped)
{
	const JobqEntry *entry = &db->ready->entries[index];
	const JobqLane *lane = &db->ready->lanes[entry->lane];

	AssertLocked(db->lock);
	popped->queue_id = lane->queue_id;
	popped->priority = lane->priority;
	popped->role = lane->role;
	popped->flow = lane->flow;
	memcpy(popped->needs, lane->needs, sizeof(popped->needs));
	popped->held = lane->held;
	popped->group = entry->group;
	popped->quarantine = lane->quarantine;
	popped->notify = popped->first = popped->unlimited = false;
	popped->key = entry->key;
	popped->ctid = entry->ctid;
	popped->permits = JOBQ_NO_PERMITS;
	popped->charged = 0;
}

/*
 * Copy an unlinked entry to *popped, without permits, and free the entry.
 */
void
entry_take(JobqDatabase *db, uint32 index, JobqPush *popped)
{
	entry_push(db, index, popped);
	entry_free(db, index);
}

/*
 * Drop all entries of a lane that is given up.
 */
void
lane_empty(JobqDatabase *db, JobqLane *lane)
{
	while (lane->count > 0)
		entry_drop(db, lane, lane->tail);
}

/*
 * Would the lane's role exceed its share with "more" additional entries?
 */
static bool
over_share(JobqDatabase *db, const JobqLane *lane, uint32 more)
{
	return db->ready->roles[lane->role_index].nentries + more >
		jobq_ready_entries / Max(db->ready->nroles, 1);
}

/*
 * Does the lane's role have very few entries?
 */
static bool
has_little(JobqDatabase *db, const JobqLane *lane)
{
	return db->ready->roles[lane->role_index].nentries < SHORT_LANE;
}

/*
 * Return how easily the lane can give up an entry: the highest value is best, 0 means not at
 * all.  over: the role of the needy lane (for_lane) exceeds its share.  for_full: limits
 * prevent the jobs of for_lane from starting.
 *
 * A closed lane can give up all entries but one.  It can give up the last entry, too, if
 * for_lane has none.
 *
 * A short lane gives up all entries but one to a lane with a greater need.  A lane has a
 * greater need if its jobs can start and those of the short lane cannot, or otherwise if it
 * is more urgent.  A lane with the same need gets a part of the entries, and any other lane
 * gets a single entry, if it has none.  As long as there are more entries than lanes, no lane
 * is therefore without an entry.  Jobs that cannot start do not keep the remaining jobs from
 * running.  The last entry is given only to a lane with a greater need and without an entry.
 * No entry goes back and forth, unless jobs come or go, or limits become full or free.
 *
 * A role above its share gives entries to a role that needs an entry and has very few,
 * however urgent they are.  But a role above its share, also if only with the new entry,
 * takes entries only from itself and from roles above their shares.  Entries given for a
 * share are therefore never taken back, neither for urgency nor from a long lane, nor through
 * a third role.  Otherwise roles would take entries from each other, and no job would begin.
 *
 * Without a needy lane (for_lane NULL), only long lanes give entries.  With "must", any lane
 * does, the least urgent first.
 */
static int64
can_give(JobqDatabase *db, const JobqLane *lane, const Need *need, TimestampTz now)
{
	const JobqLane *for_lane = need->lane;
	bool		is_long = lane->count > SHORT_LANE;
	bool		full;

	if (lane == for_lane || lane->quarantine)
		return 0;
	if (jobq_lane_is_closed(db, lane) &&
		(lane->count > 1 || need->must || (for_lane != NULL && for_lane->count == 0)))
		return GIVES(CLOSED_LANE) + lane->count;
	if (for_lane == NULL)
		return is_long ? GIVES(LONG_LANE) + lane->count
			: need->must ? GIVES(LESS_URGENT) + LEAST(lane) : 0;
	if (lane->role != for_lane->role && !need->over && over_share(db, lane, 0))
	{
		if (is_long)
			return GIVES(LONG_ABOVE_SHARE) + lane->count;
		if (lane->priority >= for_lane->priority || has_little(db, for_lane))
			return GIVES(SHORT_ABOVE_SHARE) + LEAST(lane);
	}
	if (need->over && lane->role != for_lane->role && !over_share(db, lane, 0))
		return 0;
	if (is_long)
		return lane->count / 2 < for_lane->count ? 0 : GIVES(LONG_LANE) + lane->count;

	full = lane_is_full(db, lane, now);
	if (full != need->full ? full : lane->priority > for_lane->priority)
	{
		if (lane->count > 1 && for_lane->count < SHORT_LANE)
			return GIVES(full ? FULL_LANE : LESS_URGENT) + LEAST(lane);
		return for_lane->count == 0 ? GIVES(LAST_ONE) + LEAST(lane) : 0;
	}
	if (for_lane->count == 0 ||
		(full == need->full && lane->priority == for_lane->priority))
		return lane->count / 2 > for_lane->count ? GIVES(LIKE_OTHERS) + lane->count : 0;
	return 0;
}

/*
 * Has a recent search for an entry failed, for a lane with the same or a greater need?
 */
static bool
was_full(JobqDatabase *db, const Need *need, TimestampTz now)
{
	const JobqReady *ready = db->ready;

	return now < ready->entries_full_until &&
		now >= ready->entries_full_until - FULL_PAUSE &&
		need->lane->count >= ready->entries_full_count &&
		need->lane->priority >= ready->entries_full_priority &&
		(need->over || !ready->entries_full_over) &&
		(need->full || !ready->entries_full_limited) &&
		(ready->entries_full_little || !has_little(db, need->lane));
}

/*
 * Return the lane that gives up an entry for the needy lane, or NULL.
 *
 * The lanes are examined in a circle, beginning with the last giver, because that lane may
 * have more entries.
 */
static JobqLane *
find_giver(JobqDatabase *db, const JobqLane *for_lane, bool must)
{
	JobqReady  *ready = db->ready;
	TimestampTz now = jobq_now();
	Need		need = {
		.lane = for_lane,
		.over = for_lane != NULL && over_share(db, for_lane, 1),
		.full = for_lane != NULL && lane_is_full(db, for_lane, now),
		.must = must
	};
	JobqLane   *giver = NULL;
	int64		most = 0;
	uint32		first = ready->lanes[ready->entry_hand].count > 0
		? ready->entry_hand : ready->active_head;
	uint32		at = first;
	int			n = 0;

	if (at == JOBQ_NONE ||
		(for_lane != NULL && (jobq_lane_is_closed(db, for_lane) ||
							  was_full(db, &need, now))))
		return NULL;
	do
	{
		JobqLane   *lane = &ready->lanes[at];
		int64		gives = can_give(db, lane, &need, now);

		if (gives > most)
		{
			giver = lane;
			most = gives;
		}
		at = lane->active_next != JOBQ_NONE ? lane->active_next
			: ready->active_head;
	} while (at != first && most < GIVES(LONG_ABOVE_SHARE) &&
			 (++n % SAMPLE != 0 || giver == NULL));
	if (giver != NULL)
		ready->entry_hand = JOBQ_LANE_INDEX(db, giver);
	else if (for_lane != NULL)
	{
		ready->entries_full_until = now + FULL_PAUSE;
		ready->entries_full_count = for_lane->count;
		ready->entries_full_priority = for_lane->priority;
		ready->entries_full_over = need.over;
		ready->entries_full_limited = need.full;
		ready->entries_full_little = has_little(db, for_lane);
	}
	return giver;
}

/*
 * Is there an entry for a job of the lane?  A closed lane gets only superfluous entries.
 */
bool
jobq_lane_gets_entry(JobqDatabase *db, const JobqLane *lane)
{
	AssertExclusive(db->lock);
	if (jobq_lane_is_closed(db, lane))
		return db->ready->nfree >= (uint32) jobq_ready_entries / 8;
	return db->ready->nfree > 0 || find_giver(db, lane, false) != NULL;
}

/*
 * Free an entry by removing the last entry of another lane.  A scan of that lane will find
 * the job again.  Returns false if no lane can give up an entry.  for_lane: the needy lane,
 * or NULL; must: any lane can give up an entry.
 */
bool
entry_evict(JobqDatabase *db, JobqLane *for_lane, bool must)
{
	JobqReady  *ready = db->ready;
	JobqLane   *victim = find_giver(db, for_lane, must);
	JobqKey		evicted;
	uint32		index;

	AssertExclusive(db->lock);
	if (victim == NULL)
		return false;
	index = victim->tail;
	evicted = ready->entries[index].key;
	entry_drop(db, victim, index);
	if (victim->scanning && jobq_key_cmp(evicted, ready->missed) < 0)
		ready->missed = evicted;
	if (jobq_key_cmp(victim->cursor, evicted) >= 0)
		victim->cursor = key_below(evicted);
	victim->more = true;
	jobq_lane_expect(db, victim);
	if (victim->count == 0 && !jobq_lane_is_closed(db, victim))
		ready->starved = true;	/* no pop from this lane will request a read */
	return true;
}

/*
 * The lane has got another job.  If its jobs do not wait for permits, and there seems to be
 * no free permit, the scheduler must examine the heap.
 */
static void
lane_stick(JobqDatabase *db, JobqLane *lane)
{
	JobqHeap   *heaps = db->ready->heaps;

	if (lane->heap == JOBQ_NONE)
		return;
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		if (lane->limiters[s] == JOBQ_NO_LIMITER ||
			db->limits->limiters[lane->limiters[s]].when_taken == JOBQ_WHEN_TAKEN_WAIT)
			continue;
		if (!db->limits->limiters[lane->limiters[s]].keyed)
		{
			if (heaps[lane->heap].party == JOBQ_NONE &&
				limiter_turns_away(db, lane->limiters[s]))
				heap_stick(db, &heaps[lane->heap]);
		}
		else if (lane->own != JOBQ_NONE && heaps[lane->own].lent == JOBQ_NONE &&
				 heaps[lane->own].at == s)
			heap_stick(db, &heaps[lane->own]);
	}
}

/*
 * Insert behind the entry "after", or at the head if "after" is JOBQ_NONE.
 */
InsertResult
entry_insert_after(JobqDatabase *db, JobqLane *lane, uint32 after,
				   const JobqPush *push)
{
	uint32		index;
	JobqEntry  *entry;

	AssertExclusive(db->lock);
	Assert(after == JOBQ_NONE ||
		   db->ready->entries[after].lane == JOBQ_LANE_INDEX(db, lane));
	if (db->ready->nfree == 0 && !entry_evict(db, lane, false))
		return NO_ENTRY;

	index = entry_alloc(db, lane);
	entry = &db->ready->entries[index];
	entry->key = push->key;
	entry->group = push->group;
	entry->ctid = push->ctid;
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
	if (lane->heap != JOBQ_NONE)
		db->ready->heaps[lane->heap].nentries++;
	if (lane->count++ == 0)
		lane_activate(db, lane);
	else
	{
		if (after == JOBQ_NONE)
			lane_moved(db, lane);
		lane_stick(db, lane);
		if (lane_gathers(lane) && gather_suffices(db, lane))
			jobq_lane_place(db, lane);
	}
	return INSERTED;
}

/*
 * Insert in order, if the position is near an end of the list.  An entry of the same job in
 * another group is a separate entry, because only the row tells which of both is outdated.
 */
InsertResult
entry_insert(JobqDatabase *db, JobqLane *lane, const JobqPush *push)
{
	uint32		at = lane->tail;

	AssertExclusive(db->lock);
	for (int i = 0; i < MAX_WALK; i++)
	{
		int			cmp;

		if (at == JOBQ_NONE)
			return entry_insert_after(db, lane, JOBQ_NONE, push);
		cmp = jobq_key_cmp(db->ready->entries[at].key, push->key);
		if (cmp < 0)
			return entry_insert_after(db, lane, at, push);
		if (cmp == 0 && db->ready->entries[at].group == push->group)
		{
			/* a moved row: keep the new location */
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
		if (cmp == 0 && db->ready->entries[at].group == push->group)
		{
			db->ready->entries[at].ctid = push->ctid;
			return DUPLICATE;
		}
		at = db->ready->entries[at].next;
	}
	return TOO_FAR;
}
