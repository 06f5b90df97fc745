/*-------------------------------------------------------------------------
 *
 *	  Functions that the files of the room ready declare for each other, in the order of the
 *	  files.  Each file uses only files above its own.
 *
 * The functions assert the lock that they need.  No function here can fail.
 *
 * src/ready/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_INNER_H
#define JOBQ_READY_INNER_H

#include "ready/ready.h"

/*
 * May a session be waiting for jobs of this queue?  False is certain.  True may be caused by
 * another queue with the same hash.
 */
static inline bool
somebody_waits(const JobqDatabase *db, int32 queue_id)
{
	return db->offers->waiting[(uint32) queue_id % JOBQ_WAITING_BUCKETS] > 0;
}

/* src/ready/share.c */
extern bool share_is_ample(JobqShares *shares, Oid role, JobqShareOf what);
extern void account_add(JobqShares *shares, uint32 account, JobqShareOf what);

/*
 * Take a slot for an entry or a tally from the free list, which must not be empty.
 */
static inline uint32
place_take(JobqDatabase *db)
{
	uint32		index = db->ready->free_head;

	AssertExclusive(db->lock);
	Assert(index != JOBQ_NONE && db->ready->nfree > 0);
	db->ready->free_head = db->ready->entries[index].next;
	db->ready->nfree--;
	return index;
}

/*
 * Return the slot of an entry or tally to the free list.
 */
static inline void
place_give(JobqDatabase *db, uint32 index)
{
	AssertExclusive(db->lock);
	Assert(db->ready->nfree < (uint32) jobq_ready_entries);
	db->ready->entries[index].lane = 0;
	db->ready->entries[index].next = db->ready->free_head;
	db->ready->free_head = index;
	db->ready->nfree++;
}

/*
 * Return the index of the limiter among the limiters of the heap, which must include it.
 */
static inline int
heap_source(const JobqHeap *heap, uint16 limiter)
{
	int			s = 0;

	while (heap->limiters[s] != limiter)
	{
		s++;
		Assert(s < JOBQ_NLIMITS);
	}
	return s;
}

/* src/ready/timer.c */
extern void timer_set(JobqTimers *timers, uint32 index, TimestampTz due);
extern TimestampTz timer_due(const JobqTimers *timers, uint32 index);
extern void timers_put_back(JobqTimers *timers, TimestampTz now);
extern TimestampTz timers_next(const JobqTimers *timers);
extern uint32 timer_take_due(JobqTimers *timers, TimestampTz now);

/* src/ready/gather.c */
extern void gathering_clear(JobqDatabase *db);
extern void gather_from(JobqLane *lane, TimestampTz since);
extern bool lane_may_gather(JobqDatabase *db, const JobqLane *lane);
extern bool gather_suffices(JobqDatabase *db, const JobqLane *lane);
extern bool gather_settle(JobqDatabase *db, JobqLane *lane, bool served);

/*
 * Does the lane wait for further jobs, in no heap?
 */
static inline bool
lane_gathers(const JobqLane *lane)
{
	return lane->timer != JOBQ_NONE;
}

/* src/ready/served.c */
extern void turns_clear(JobqDatabase *db);
extern bool turns_left(JobqDatabase *db, const JobqHeap *key);
extern void turns_join(JobqDatabase *db, JobqHeap *heap);
extern void turns_leave(JobqDatabase *db, JobqHeap *heap);
extern uint64 turn_of(JobqDatabase *db, const JobqHeap *heap, uint16 limiter);
extern void turn_over(JobqDatabase *db, Oid role, uint16 limiter);
extern void turns_over(JobqDatabase *db, Oid role, const JobqPermits *permits);

/* src/ready/pace.c */

/* The least number of tokens that counts as a token.  Tokens are sums of fractions. */
#define ONE_TOKEN	(1 - 1e-6)

extern void pace_restore(JobqLimiter *policy, JobqPace *pace, const JobqSpent *spent,
						 TimestampTz now);
extern bool pace_is_fresh(const JobqLimiter *policy, JobqPace *pace, TimestampTz now);

/* src/ready/limiter.c */

/* Microseconds for which a permit is reserved for the woken taker: keep.c. */
#define KEEP_PATIENCE	USECS_PER_SEC

extern void limiters_clear(JobqDatabase *db);
extern bool turn_before(int32 priority, uint64 served, int32 other_priority,
						uint64 other_served);
extern bool place_is_kept(JobqDatabase *db, const JobqHeap *heap,
						  const JobqTaker *taker, TimestampTz now,
						  TimestampTz *due);
extern bool place_is_kept_for(const JobqLimiter *limiter,
							  const JobqHeap *heap);
extern bool place_is_kept_for_others(const JobqLimiter *limiter, Oid role,
									 TimestampTz now);
extern void place_taken(JobqLimiter *limiter, Oid role, int32 queue_id);
extern bool limiter_turns_away(JobqDatabase *db, uint16 index);
extern bool limiter_free(JobqLimiter *limiter, TimestampTz now,
						 TimestampTz *due);
extern int	limiters_room(JobqDatabase *db, const uint16 *limiters, TimestampTz now,
						  TimestampTz *due);

/* src/ready/handover.c */
extern bool handover_is_due(JobqDatabase *db, int64 group);

/* src/ready/group_table.c */
extern void group_is_run_by(JobqGroup *group, int64 id);

/* Microseconds between searches for room, if there is no slot for another group. */
#define ROOM_PAUSE	(USECS_PER_SEC / 10)

extern void groups_clear(JobqDatabase *db);
extern JobqLimiter *group_policy(JobqDatabase *db, const JobqGroup *group);
extern bool group_has_owners(JobqDatabase *db, const JobqGroup *group);
extern void group_set_policy(JobqDatabase *db, JobqGroup *group,
							 uint16 limiter);
extern void group_lose_patience(JobqDatabase *db, JobqGroup *group,
								TimestampTz now);
extern void group_set_timer(JobqDatabase *db, JobqGroup *group,
							TimestampTz due);
extern JobqGroup *group_due(JobqDatabase *db, TimestampTz now);
extern void groups_expect(JobqDatabase *db);
extern void groups_want_room(JobqDatabase *db, TimestampTz now);
extern void group_forget_if_idle(JobqDatabase *db, JobqGroup *group);

/* src/ready/lease.c */
extern void lease_free(JobqDatabase *db, JobqLease *lease);

/* src/ready/party.c */
extern void parties_clear(JobqDatabase *db);
extern void lane_join_parties(JobqDatabase *db, JobqLane *lane);
extern void lane_leave_parties(JobqDatabase *db, JobqLane *lane);
extern void lane_set_need(JobqDatabase *db, JobqLane *lane, int source, JobqNeed need);
extern void turn_begin(JobqDatabase *db, JobqLane *lane);

/* src/ready/heap.c */
extern void heaps_clear(JobqDatabase *db);
extern JobqHeap *heap_find(JobqDatabase *db, const JobqHeap *key);
extern uint32 heap_next_at(JobqDatabase *db, uint32 heap, uint16 limiter);
extern void heap_mark(JobqDatabase *db, JobqHeap *heap);
extern void heap_unmark(JobqDatabase *db, JobqHeap *heap);
extern void heap_stick(JobqDatabase *db, JobqHeap *heap);
extern void heap_unstick(JobqDatabase *db, JobqHeap *heap);
extern double heap_turn(JobqDatabase *db, const JobqHeap *heap,
						const JobqLane *lane);
extern bool heap_before(JobqDatabase *db, const JobqHeap *heap, uint32 lane,
						uint32 other);
extern bool heap_same(const JobqHeap *a, const JobqHeap *b);
extern JobqHeap *heap_make(JobqDatabase *db, const JobqHeap *key);
extern void heap_free(JobqDatabase *db, JobqHeap *heap);
extern void heap_put(JobqDatabase *db, JobqHeap *heap, JobqLane *lane);
extern void heap_take(JobqDatabase *db, JobqLane *lane);
extern void heap_moved(JobqDatabase *db, JobqLane *lane);

/* src/ready/tally.c */

/* Size of a sample: the search for the least needed slot is limited to this number. */
#ifndef SAMPLE
#define SAMPLE		64
#endif

#define TALLY(db, index)	((JobqTally *) &(db)->ready->entries[index])

extern const JobqLimiter *keyed_policy(JobqDatabase *db, uint16 limiter);
extern const JobqLimiter *keyed_policy_of(JobqDatabase *db, uint32 limiter);
extern uint32 tally_find(JobqDatabase *db, uint32 limiter, uint32 key);
extern uint32 tally_make(JobqDatabase *db, uint32 limiter, uint32 key,
						 TimestampTz now);
extern void tally_forget(JobqDatabase *db, uint32 index, TimestampTz now);
extern bool tally_may_start(const JobqLimiter *policy, JobqTally *tally,
							TimestampTz now, TimestampTz *due);
extern bool tally_is_full(JobqDatabase *db, uint16 limiter, uint32 key,
						  TimestampTz now, TimestampTz *due);
extern void tally_set_timer(JobqDatabase *db, uint32 index, TimestampTz due);
extern uint32 tally_due(JobqDatabase *db, TimestampTz now);

/* src/ready/keyed.c */
extern bool key_is_limited(JobqDatabase *db, const JobqLane *lane, int source);
extern void keyed_choose(JobqDatabase *db, JobqLane *lane, TimestampTz now);
extern int	keyed_source(JobqDatabase *db, const JobqLane *lane);
extern void keyed_settle(JobqDatabase *db, JobqHeap *own, TimestampTz now);
extern JobqHeap *keyed_refill(JobqDatabase *db, JobqHeap *own, TimestampTz now);
extern bool keyed_is_stale(JobqDatabase *db, const JobqLane *lane, TimestampTz now);
extern bool keyed_recall(JobqDatabase *db, JobqLane *lane, TimestampTz now,
						 uint32 *instead);
extern void keyed_enter(JobqDatabase *db, JobqHeap *own, JobqLane *lane);
extern void keyed_leave(JobqDatabase *db, JobqLane *lane);
extern bool lane_is_full(JobqDatabase *db, const JobqLane *lane,
						 TimestampTz now);
extern void lane_offer(JobqDatabase *db, const JobqLane *lane);
extern uint32 keyed_room(JobqDatabase *db, const JobqHeap *own);
extern void keyed_settle_all(JobqDatabase *db, uint32 limiter, uint32 key,
							 TimestampTz now);

/* src/ready/key_permit.c */
extern bool keyed_free(JobqDatabase *db, uint16 limiter, uint32 key,
					   TimestampTz now);
extern uint32 keyed_take(JobqDatabase *db, uint16 limiter, uint32 key,
						 int cost, TimestampTz now);
extern uint32 keyed_count(JobqDatabase *db, uint32 limiter, uint32 key,
						  TimestampTz now);
extern void keyed_give(JobqDatabase *db, uint32 index, int tokens,
					   TimestampTz now);
extern void keyed_failed(JobqDatabase *db, uint16 limiter, uint32 key, int failures,
						 TimestampTz now);

/* src/ready/place.c */
extern void lane_displace(JobqDatabase *db, JobqLane *lane);
extern void lane_moved(JobqDatabase *db, JobqLane *lane);
extern JobqLane *heap_first(JobqDatabase *db, JobqHeap *heap);
extern uint32 heap_jobs(JobqDatabase *db, JobqHeap *heap, uint32 most);
extern int	heap_room(JobqDatabase *db, JobqHeap *heap, TimestampTz now,
					  TimestampTz *due);
extern int	heap_room_for(JobqDatabase *db, JobqHeap *heap,
						  const JobqTaker *taker, TimestampTz now,
						  TimestampTz *due);

/* src/ready/list.c */
extern void lane_activate(JobqDatabase *db, JobqLane *lane);
extern void lane_deactivate(JobqDatabase *db, JobqLane *lane);
extern void lane_pass(JobqDatabase *db, JobqLane *lane, JobqKey key);

/* src/ready/lane.c */

/* Microseconds without another search after a search of all candidates has failed. */
#define FULL_PAUSE	(USECS_PER_SEC / 100)

extern void lanes_clear(JobqDatabase *db);
extern void lane_skip(JobqDatabase *db, JobqLane *lane, JobqKey key);
extern bool lane_is_only(JobqDatabase *db, const JobqLane *lane);
extern bool lane_set_flow(JobqDatabase *db, JobqLane *lane,
						  const JobqPush *push);

/* src/ready/entry.c */
typedef enum InsertResult
{
	INSERTED,
	DUPLICATE,
	TOO_FAR,					/* not near an end of the list */
	NO_ENTRY					/* all entries are in use */
} InsertResult;

extern void entries_clear(JobqDatabase *db);
extern void lane_empty(JobqDatabase *db, JobqLane *lane);
extern uint32 entry_alloc(JobqDatabase *db, JobqLane *lane);
extern void entry_leave(JobqDatabase *db, JobqLane *lane, uint32 index,
						JobqWakeList *wake);
extern uint32 entry_leave_first(JobqDatabase *db, JobqLane *lane,
								JobqWakeList *wake);
extern bool entry_evict(JobqDatabase *db, JobqLane *for_lane, bool must);
extern void entry_free(JobqDatabase *db, uint32 index);
extern void entry_uncall(JobqDatabase *db, uint32 index);
extern void entry_push(JobqDatabase *db, uint32 index, JobqPush *popped);
extern void entry_take(JobqDatabase *db, uint32 index, JobqPush *popped);
extern InsertResult entry_insert_after(JobqDatabase *db, JobqLane *lane,
									   uint32 after, const JobqPush *push);
extern InsertResult entry_insert(JobqDatabase *db, JobqLane *lane,
								 const JobqPush *push);

static inline JobqKey
key_below(JobqKey key)
{
	key.id--;
	return key;
}

/* src/ready/wake.c */
extern JobqReserver *reserver_for(JobqDatabase *db, const JobqLane *lane);
extern bool reserver_knows(const JobqReserver *reserver, Oid role, int nroles);
extern bool reserver_takes(const JobqReserver *reserver, int32 queue_id);
extern bool heap_has_taker(JobqDatabase *db, JobqHeap *heap);
extern void heap_wake(JobqDatabase *db, JobqHeap *heap, int n, TimestampTz now,
					  JobqWakeList *wake);
extern void gathering_wake_due(JobqDatabase *db, TimestampTz now, JobqWakeList *wake);

/* src/ready/keep.c */
extern void place_freed(JobqDatabase *db, uint16 limiter, TimestampTz now,
						JobqWakeList *wake);

/* src/ready/park.c */
extern int	group_compare(int32 priority_a, JobqKey a, int32 priority_b,
						  JobqKey b);
extern int32 group_entry_priority(JobqDatabase *db, uint32 index);
extern bool group_is_next(JobqDatabase *db, const JobqGroup *group, int64 id,
						  int32 priority, JobqKey key);
extern void group_spill(JobqGroup *group, int32 priority, JobqKey key);
extern uint32 group_unlink(JobqDatabase *db, JobqGroup *group, uint32 *link);
extern void group_park(JobqDatabase *db, JobqGroup *group, uint32 index);
extern bool group_call(JobqDatabase *db, JobqGroup *group, uint32 *link,
					   TimestampTz now, JobqWakeList *wake);
extern void group_skip(JobqDatabase *db, JobqLane *lane, uint32 index,
					   TimestampTz now);
extern void groups_make_room(JobqDatabase *db, TimestampTz now,
							 JobqWakeList *wake);

/* src/ready/group.c */
typedef enum JobqEntrance
{
	JOBQ_ENTERED,
	JOBQ_PARKED					/* parked at the group, or dropped */
} JobqEntrance;

extern void groups_unpark(JobqDatabase *db);
extern JobqEntrance group_enter(JobqDatabase *db, JobqLane *lane, uint32 index,
								TimestampTz now, uint32 *place,
								JobqWakeList *wake);
extern bool group_admit(JobqDatabase *db, const JobqPush *job, uint16 limiter,
						TimestampTz now, uint32 *place);
extern void group_leave(JobqDatabase *db, uint32 place, int64 id, bool live,
						bool unused, TimestampTz now, JobqWakeList *wake);
extern void group_advance(JobqDatabase *db, JobqGroup *group, TimestampTz now,
						  JobqWakeList *wake);

/* The number of a slot in JobqGroup.slot. */
#define SLOT_NUMBER(slot) ((uint32) ((slot) - jobq_shared->slots) + 1)

/* src/ready/group_set.c */
extern bool group_set_takes(JobqDatabase *db, const JobqLane *lane, int64 group);
extern void group_set_hold(JobqDatabase *db, JobqSlot *slot, uint32 place);
extern JobqEntrance group_set_enter(JobqDatabase *db, JobqSlot *slot, JobqLane *lane,
									uint32 index, TimestampTz now, uint32 *place,
									JobqWakeList *wake);
extern uint32 group_set_next(JobqDatabase *db, JobqSlot *slot, JobqLane *lane, uint32 place,
							 TimestampTz now, JobqWakeList *wake);

/* src/ready/taken.c */
extern void taken_note(JobqDatabase *db, const JobqPush *job, int source);

/* src/ready/permit.c */
extern JobqPermits permits_take(JobqDatabase *db, const JobqLane *lane,
								uint32 group, TimestampTz now);
extern void keyed_wake_due(JobqDatabase *db, TimestampTz now,
						   JobqWakeList *wake);

/* src/ready/prefetch.c */
extern bool prefetch_take_unless(JobqDatabase *db, JobqSlot *slot, bool lane,
								 uint8 rank, int32 priority, JobqPush *popped);
extern bool prefetch_take_like(JobqSlot *slot, const JobqPush *like, JobqPush *popped);
extern void prefetch_put(JobqDatabase *db, JobqSlot *slot, uint8 rank,
						 const JobqPush *job);
extern int	prefetch_room(JobqSlot *slot);
extern bool prefetch_steal(const JobqSlot *mine, JobqPush *popped);
extern bool prefetch_drop(JobqSlot *slot, JobqPush *popped);
extern void prefetch_forget(JobqDatabase *db);

/* src/ready/turn.c */
extern JobqLane *lane_best(JobqDatabase *db, const JobqTaker *taker,
						   TimestampTz now, uint8 *best_rank);
extern double lane_served_one(JobqDatabase *db, JobqLane *lane);

/* src/ready/verify.c */
#ifdef USE_ASSERT_CHECKING
extern void ready_verify(JobqDatabase *db);
extern void ready_verify_sometimes(JobqDatabase *db);
#else
#define ready_verify_sometimes(db)	((void) 0)
#endif

/* src/ready/offer.c */
extern void reservers_clear(JobqDatabase *db);

#endif							/* JOBQ_READY_INNER_H */
