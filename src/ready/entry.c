/*-------------------------------------------------------------------------
 *
 * entry.c
 *	  The entries of lanes, in sorted lists.
 *
 * A lane's list nearly always grows at its end, because keys arrive nearly in
 * order.  A key that belongs far from both ends is not searched a place for
 * under the lock; the lane's cursor steps back below it instead, and the
 * scheduler's next scan merges it in.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/entry.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/* Lanes with so few entries are short: they keep more of them when those are scarce. */
#ifndef SHORT_LANE
#define SHORT_LANE	16
#endif

/*
 * Who gives an entry, the last of them first; within a class, the one that has most, or
 * the least urgent one.
 */
enum
{
	LAST_ONE,					/* has no other */
	LIKE_OTHERS,				/* has more than the one that needs it */
	LESS_URGENT,
	FULL_LANE,					/* its jobs cannot start now */
	LONG_LANE,
	SHORT_ABOVE_SHARE,			/* its role has more than its share */
	LONG_ABOVE_SHARE,
	CLOSED_LANE					/* nobody takes jobs from it */
};
#define GIVES(class)	(((int64) (class) << 33) + 1)
#define LEAST(lane)		((int64) (lane)->priority - PG_INT32_MIN)

/* Steps to search a place for one entry, from each end of the list. */
#ifndef MAX_WALK
#define MAX_WALK	64
#endif

static void lane_activate(JobqDatabase *db, JobqLane *lane);
static void lane_deactivate(JobqDatabase *db, JobqLane *lane);
static bool over_share(JobqDatabase *db, const JobqLane *lane, uint32 more);
static bool has_little(JobqDatabase *db, const JobqLane *lane);
static int64 can_give(JobqDatabase *db, const JobqLane *lane,
					  const JobqLane *for_lane, bool over, bool for_full,
					  bool must, TimestampTz now);
static bool was_full(JobqDatabase *db, const JobqLane *for_lane, bool over,
					 bool full, TimestampTz now);
static JobqLane *find_giver(JobqDatabase *db, const JobqLane *for_lane,
							bool must);
static void entry_drop(JobqDatabase *db, JobqLane *lane, uint32 index);
static void lane_stick(JobqDatabase *db, JobqLane *lane);

/*
 * All entries are free, but for tallies.
 */
void
entries_clear(JobqDatabase *db)
{
	db->ready->free_head = JOBQ_NONE;
	db->ready->nfree = db->ready->timers.n = 0;
	for (uint32 i = jobq_ready_entries; i-- > 0;)
	{
		if (db->ready->entries[i].lane == JOBQ_NO_LANE)
			TALLY(db, i)->timer = JOBQ_NONE;	/* it stays */
		else
			place_give(db, i);
	}
	db->ready->active_head = JOBQ_NONE;
	db->ready->entry_hand = 0;
	db->ready->entries_full_until = 0;
}

static void
lane_activate(JobqDatabase *db, JobqLane *lane)
{
	db->ready->news++;
	lane->active_prev = JOBQ_NONE;
	lane->active_next = db->ready->active_head;
	if (db->ready->active_head != JOBQ_NONE)
		db->ready->lanes[db->ready->active_head].active_prev = JOBQ_LANE_INDEX(db, lane);
	db->ready->active_head = JOBQ_LANE_INDEX(db, lane);
	jobq_lane_place(db, lane);
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
	jobq_lane_place(db, lane);
}

/*
 * Take an entry out of its lane.  If that was its first one, and others are left, returns
 * true: then the lane is to be moved in its heap.
 */
static bool
unlink_entry(JobqDatabase *db, JobqLane *lane, uint32 index)
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
 * Take an entry out of its lane.
 */
void
entry_unlink(JobqDatabase *db, JobqLane *lane, uint32 index)
{
	if (unlink_entry(db, lane, index))
		lane_moved(db, lane);
}

/*
 * A job of the lane was popped: the scheduler shall read on where few are left.
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
 * Take an entry that is popped out of its lane.
 */
void
entry_leave(JobqDatabase *db, JobqLane *lane, uint32 index, JobqWakeList *wake)
{
	entry_unlink(db, lane, index);
	look_for_more(lane, wake);
}

/*
 * Take the first entry, which is popped, out of its lane.  If it has no group, the lane is
 * not moved yet: lane_served_one() follows, before anybody asks its heap which lane
 * comes first, and moves it to where its turn is as well.
 */
uint32
entry_leave_first(JobqDatabase *db, JobqLane *lane, JobqWakeList *wake)
{
	uint32		index = lane->head;

	if (unlink_entry(db, lane, index) &&
		(db->ready->entries[index].group != 0 || lane->own != JOBQ_NONE))
		lane_moved(db, lane);
	look_for_more(lane, wake);
	return index;
}

/*
 * Take an entry for a job of the lane from the free list, which is not empty.
 */
uint32
entry_alloc(JobqDatabase *db, JobqLane *lane)
{
	uint32		index = place_take(db);

	db->ready->entries[index].lane = JOBQ_LANE_INDEX(db, lane);
	db->ready->roles[lane->role_index].nentries++;
	return index;
}

/*
 * Give an entry that is in no lane back to the free list.
 */
void
entry_free(JobqDatabase *db, uint32 index)
{
	JobqLane   *lane = &db->ready->lanes[db->ready->entries[index].lane];

	db->ready->roles[lane->role_index].nentries--;
	place_give(db, index);
}

/*
 * An entry leaves its lane, and is not popped: its group shall not wait for it.
 */
void
entry_uncall(JobqDatabase *db, uint32 index)
{
	JobqEntry  *entry = &db->ready->entries[index];
	JobqGroup  *group = entry->group == 0 ? NULL
		: jobq_group_find(db, entry->group);

	if (group != NULL && group->called == entry->key.id)
	{
		group->called = 0;
		group_set_timer(db, group, 0);	/* long ago */
	}
}

/*
 * Drop an entry of a lane that is read again.  There may be no such row any more.
 */
static void
entry_drop(JobqDatabase *db, JobqLane *lane, uint32 index)
{
	entry_uncall(db, index);
	entry_unlink(db, lane, index);
	entry_free(db, index);
}

/*
 * An entry, as what is popped.
 */
void
entry_push(JobqDatabase *db, uint32 index, JobqPush *popped)
{
	const JobqEntry *entry = &db->ready->entries[index];
	const JobqLane *lane = &db->ready->lanes[entry->lane];

	popped->queue_id = lane->queue_id;
	popped->priority = lane->priority;
	popped->role = lane->role;
	popped->flow = lane->flow;
	popped->kind = lane->kind;
	popped->tenant = lane->tenant;
	popped->limit_key = lane->limit_key;
	popped->cost = lane->cost;
	popped->held = lane->held;
	popped->group = entry->group;
	popped->quarantine = lane->quarantine;
	popped->notify = popped->first = false;
	popped->key = entry->key;
	popped->ctid = entry->ctid;
	popped->permits = JOBQ_NO_PERMITS;
	popped->charged = 0;
}

/*
 * The same of one that was unlinked; gives it back.
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
 * With so many more, has the lane's role more entries than its share?
 */
static bool
over_share(JobqDatabase *db, const JobqLane *lane, uint32 more)
{
	return db->ready->roles[lane->role_index].nentries + more >
		jobq_ready_entries / Max(db->ready->nroles, 1);
}

/*
 * Has the lane's role next to nothing?
 */
static bool
has_little(JobqDatabase *db, const JobqLane *lane)
{
	return db->ready->roles[lane->role_index].nentries < SHORT_LANE;
}

/*
 * How well can the lane do without an entry: the most is the best, 0 is not at
 * all.  "over": the role that needs one has more than its share; "for_full": limits keep
 * the jobs of the lane that needs one from starting.
 *
 * A lane from which nobody takes jobs can do without all of its entries but one, and
 * without that as well if the other one has none.
 *
 * Of a short lane, all entries but one go to one that is needed more: whose jobs can
 * start, if its own cannot; or else which is more urgent.  One that is needed as much gets
 * a part of them, and any other lane gets one, if it has none.  So as long as there are
 * more entries than lanes, no lane is without, and those whose jobs cannot start for now
 * do not keep others from running.  The last entry goes only to a lane that is needed more
 * and has none.  Nothing of that goes back and forth, but when jobs come or go, or limits
 * become full or free.
 *
 * The entries of a role that has more than its share go to a role that needs one and has
 * next to nothing, however urgent they are.  But a role that has more than its share, or
 * would have then, takes entries only from itself and from others that have: so what is
 * given for a share is never taken back, neither for urgency nor from a long lane, and not
 * even by way of a third role.  Else they would take entries from each other, and no job
 * would begin.
 *
 * Without a lane that needs one, only long lanes can; or, if it must be, any, the
 * least urgent first.
 */
static int64
can_give(JobqDatabase *db, const JobqLane *lane, const JobqLane *for_lane,
		 bool over, bool for_full, bool must, TimestampTz now)
{
	bool		is_long = lane->count > SHORT_LANE;
	bool		full;

	if (lane == for_lane || lane->quarantine)
		return 0;
	if (jobq_lane_is_closed(db, lane) &&
		(lane->count > 1 || must || (for_lane != NULL && for_lane->count == 0)))
		return GIVES(CLOSED_LANE) + lane->count;
	if (for_lane == NULL)
		return is_long ? GIVES(LONG_LANE) + lane->count
			: must ? GIVES(LESS_URGENT) + LEAST(lane) : 0;
	if (lane->role != for_lane->role && !over && over_share(db, lane, 0))
	{
		if (is_long)
			return GIVES(LONG_ABOVE_SHARE) + lane->count;
		if (lane->priority >= for_lane->priority || has_little(db, for_lane))
			return GIVES(SHORT_ABOVE_SHARE) + LEAST(lane);
	}
	if (over && lane->role != for_lane->role && !over_share(db, lane, 0))
		return 0;
	if (is_long)
		return lane->count / 2 < for_lane->count ? 0 : GIVES(LONG_LANE) + lane->count;

	full = lane_is_full(db, lane, now);
	if (full != for_full ? full : lane->priority > for_lane->priority)
	{
		if (lane->count > 1 && for_lane->count < SHORT_LANE)
			return GIVES(full ? FULL_LANE : LESS_URGENT) + LEAST(lane);
		return for_lane->count == 0 ? GIVES(LAST_ONE) + LEAST(lane) : 0;
	}
	if (for_lane->count == 0 ||
		(full == for_full && lane->priority == for_lane->priority))
		return lane->count / 2 > for_lane->count ? GIVES(LIKE_OTHERS) + lane->count : 0;
	return 0;
}

/*
 * Was an entry looked for in vain just now, for a lane that had no worse a claim?
 */
static bool
was_full(JobqDatabase *db, const JobqLane *for_lane, bool over, bool full,
		 TimestampTz now)
{
	const JobqReady *ready = db->ready;

	return now < ready->entries_full_until &&
		now >= ready->entries_full_until - FULL_PAUSE &&
		for_lane->count >= ready->entries_full_count &&
		for_lane->priority >= ready->entries_full_priority &&
		(over || !ready->entries_full_over) &&
		(full || !ready->entries_full_limited) &&
		(ready->entries_full_little || !has_little(db, for_lane));
}

/*
 * The lane that gives an entry to the one that needs it, or NULL.
 *
 * The lanes are looked at in a circle, from where one was found the last time: it
 * may have more.
 */
static JobqLane *
find_giver(JobqDatabase *db, const JobqLane *for_lane, bool must)
{
	JobqReady  *ready = db->ready;
	TimestampTz now = jobq_now();
	bool		over = for_lane != NULL && over_share(db, for_lane, 1);
	bool		full = for_lane != NULL && lane_is_full(db, for_lane, now);
	JobqLane   *giver = NULL;
	int64		most = 0;
	uint32		first = ready->lanes[ready->entry_hand].count > 0
		? ready->entry_hand : ready->active_head;
	uint32		at = first;
	int			n = 0;

	if (at == JOBQ_NONE ||
		(for_lane != NULL && (jobq_lane_is_closed(db, for_lane) ||
							  was_full(db, for_lane, over, full, now))))
		return NULL;
	do
	{
		JobqLane   *lane = &ready->lanes[at];
		int64		gives = can_give(db, lane, for_lane, over, full, must, now);

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
		ready->entries_full_over = over;
		ready->entries_full_limited = full;
		ready->entries_full_little = has_little(db, for_lane);
	}
	return giver;
}

/*
 * Is there an entry for a job of the lane?  One that is closed gets what nobody else
 * needs.
 */
bool
jobq_lane_gets_entry(JobqDatabase *db, const JobqLane *lane)
{
	if (jobq_lane_is_closed(db, lane))
		return db->ready->nfree >= (uint32) jobq_ready_entries / 8;
	return db->ready->nfree > 0 || find_giver(db, lane, false) != NULL;
}

/*
 * Free an entry by cutting the tail of another lane; its scan will find the job
 * again.  False if there is none that can be done without.  for_lane: which lane needs
 * it, or NULL; must: any lane can do without.
 */
bool
entry_evict(JobqDatabase *db, JobqLane *for_lane, bool must)
{
	JobqReady  *ready = db->ready;
	JobqLane   *victim = find_giver(db, for_lane, must);
	JobqKey		evicted;
	uint32		index;

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
		ready->starved = true;	/* nobody pops there who would have it read */
	return true;
}

/*
 * The lane has got another job.  If its jobs do not wait for a place, and there seems to
 * be none, the scheduler sees to it.
 */
static void
lane_stick(JobqDatabase *db, JobqLane *lane)
{
	JobqHeap   *heaps = db->ready->heaps;

	if (lane->heap == JOBQ_NONE || lane->kind_limiter == JOBQ_NO_LIMITER ||
		db->limits->limiters[lane->kind_limiter].when_taken == JOBQ_WHEN_TAKEN_WAIT)
		return;
	if (!db->limits->limiters[lane->kind_limiter].keyed)
	{
		if (heaps[lane->heap].tenant == JOBQ_NONE &&
			limiter_turns_away(db, lane->kind_limiter))
			heap_stick(db, &heaps[lane->heap]);
	}
	else if (lane->own != JOBQ_NONE && heaps[lane->own].lent == JOBQ_NONE)
		heap_stick(db, &heaps[lane->own]);
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
	}
	return INSERTED;
}

/*
 * Insert in order, if the place is near one of the ends.  An entry of the same job in
 * another group is another one: only the row tells which of them is outdated.
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
		if (cmp == 0 && db->ready->entries[at].group == push->group)
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
		if (cmp == 0 && db->ready->entries[at].group == push->group)
		{
			db->ready->entries[at].ctid = push->ctid;
			return DUPLICATE;
		}
		at = db->ready->entries[at].next;
	}
	return TOO_FAR;
}
