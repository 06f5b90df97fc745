/*-------------------------------------------------------------------------
 *
 *	  Lanes and their entries, and the owners of lanes: queues, tenants, roles.
 *
 * src/ready/lanes.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_LANES_H
#define JOBQ_READY_LANES_H

#include "ready/job.h"
#include "ready/pace.h"
#include "ready/timers.h"

/* A job that may run now: 40 bytes. */
typedef struct JobqEntry
{
	JobqKey		key;
	int64		group;			/* or 0 */
	ItemPointerData ctid;		/* last known location of the row; verified
								 * after the pop */
	uint16		lane;
	uint32		prev;			/* neighbours in the lane; "next" is also the
								 * free list link */
	uint32		next;
} JobqEntry;

/*
 * The counters of a limiter's key, in the slot of an entry: see tally.c.
 */
typedef struct JobqTally
{
	JobqPace	pace;
	uint32		limiter;		/* hash of the limiter's name */
	uint32		key;
	int32		running;		/* number of jobs that hold a permit of this
								 * tally */
	uint16		unused;
	uint16		lane;			/* JOBQ_NO_LANE */
	uint32		timer;			/* in JobqReady.timers, or JOBQ_NONE */
	uint32		next;			/* in the bucket */
} JobqTally;

#define JOBQ_NO_LANE		PG_UINT16_MAX

/* Above this number, buckets of keys without running jobs are forgotten. */
#define JOBQ_MAX_TALLIES	((uint32) jobq_ready_entries / 4)

/*
 * A lane is the sorted list of the jobs with the same queue, priority, role and flow.  The
 * list holds a window of the jobs that are due, in order of JobqKey.  The other jobs are in
 * the table only.
 *
 * Invariant: consider a row of this lane that is due, whose transaction has ended and whose
 * key is not above "cursor".  Its job is in the list, or was popped, or is about to be handed
 * over by the backend that committed the row.  Rows above the cursor are found by the
 * scheduler's next scan if "more" is set, or when the time "next_due" has come.  If "unread"
 * is set, they are found when the time JobqReady.forgotten_due has come.
 *
 * A job that is not in memory may therefore be in the table, and may even run next.  The
 * ready set alone proves that a job is absent only if it rules out each of these cases.  For
 * jobs of a group that are about to be handed over, see handover.h.
 *
 * If no slot is free, a lane is evicted (lane.c), and its jobs are read again when a slot is
 * free.  A lane with only jobs of the future may be evicted as well, and is not even created
 * after a start.  Only the earliest time of these jobs is kept (forgotten_due).  When this
 * time has come, the scheduler searches the table for missing lanes
 * (worker/scheduler/discover.c).  Among the existing lanes, the scheduler then reads only
 * lanes with "unread", which were created without knowledge of the forgotten rows.
 *
 * A lane with "quarantine" holds jobs that once crashed a server process.  The lane is never
 * scanned, and only one of its jobs runs at a time in a database.
 */
typedef struct JobqLane
{
	/* read by each pop, unlike most later fields */
	bool		in_use;
	bool		quarantine;
	bool		more;			/* rows above the cursor may be due */
	bool		scanning;		/* the scheduler is reading above the cursor */
	bool		ranked;			/* order, paused and consumer are valid */
	bool		consumer;		/* served to consumers, not to workers */
	bool		paused;
	bool		alone;			/* paused because the tenant or kind is; the
								 * queue is not */
	bool		notify;			/* the queue's channel must be notified */
	bool		skipping;		/* jobs found no slot for their groups, from
								 * "skipped" on */
	bool		expected;		/* is in the list JobqReady.expected */
	bool		noted;			/* is in the list JobqReady.noted */
	bool		passed;			/* is in the list JobqReady.passed */
	bool		unranked;		/* is in the list JobqReady.unranked */
	bool		unread;			/* created while jobs of the future may have
								 * been forgotten */
	bool		doubtful;		/* a job of a group was dropped, because
								 * another transaction had locked the row */
	uint8		at;				/* if several keys have limits: the
								 * JobqLimitSource in whose key's heap the
								 * lane waits */
	uint8		lacks;			/* a bit for each JobqLimitSource whose
								 * limiter has no slot, or does not exist: the
								 * lane is not served; valid if ranked */
	uint16		order;			/* of the queue: JobqReady.orders */
	uint16		limiters[JOBQ_NLIMITS]; /* valid if ranked; or JOBQ_NO_LIMITER */
	int32		queue_id;
	int32		priority;
	Oid			role;
	uint32		head;
	uint32		tail;
	uint32		count;
	uint32		heap;			/* heap of the lane, or JOBQ_NONE */
	uint32		own;			/* heap of a key with limits, or JOBQ_NONE */
	uint32		party;			/* the queue, in JobqReady.parties */
	JobqNeed	needs[JOBQ_NLIMITS];	/* needs of the job pushed last */
	uint32		keys[JOBQ_NLIMITS]; /* the keys there, or the queue again */
	uint32		role_index;		/* in JobqReady.roles */

	int32		flow;
	uint32		held;			/* hash of the jobs' kind, which is or was
								 * paused; or 0 */
	uint32		parked;			/* number of entries parked at groups */
	JobqKey		skipped;		/* the lane must be read again from here */
	JobqKey		cursor;
	TimestampTz next_due;		/* lowest known run_at in the future */
	TimestampTz since;			/* start of the wait for further jobs:
								 * gather.c */
	uint32		timer;			/* in JobqReady.gathering, or JOBQ_NONE */
	uint32		hash_next;		/* next lane in the same bucket, or free list */
	uint32		active_prev;	/* lanes with count > 0 are linked */
	uint32		active_next;
	uint32		party_prev;		/* the lanes of a queue are linked */
	uint32		party_next;
	uint32		expected_next;
	uint32		noted_next;
	uint32		passed_next;
	uint32		unranked_next;
} JobqLane;

/*
 * A lane within its heap: all values compared there.  Nodes have a separate array, with the
 * same indices as the lanes, so that operations on many lanes touch little memory.  Key and
 * turn are as of the time when the lane was placed: not above the current values.
 */
typedef struct JobqNode
{
	JobqKey		first;			/* key of the lane's first job */
	double		turn;			/* turn of the tenant or queue */
	int32		priority;
	uint32		left;			/* lanes, or JOBQ_NONE */
	uint32		right;
	uint32		parent;
	uint8		dist;			/* see heap.c */
} JobqNode;

/*
 * A party is an owner of lanes: a queue, a tenant of a queue, or a key of a limiter.  Queues and
 * tenants take turns (turn.c).  A key has heaps (keyed.c).  There are up to seven parties for
 * each lane, so a party is kept at 40 bytes.
 */
typedef struct JobqParty
{
	uint32		owner;			/* the queue's id; for a key, the hash of the
								 * limiter's name */
	uint32		key;			/* or tenant; 0: the queue itself */
	uint32		of_limiter:1;	/* a key of a limiter */
	uint32		nlanes:31;
	uint32		lanes;			/* of a queue: first lane */
	uint32		heaps;			/* of a queue of consumers, or a key: first
								 * heap */
	uint32		hash_next;		/* in the bucket, or free list link */
	double		turn;			/* virtual time of the next service, in jobs
								 * or in microseconds; never decreases */
	float		cost;			/* average microseconds of a job, or 0:
								 * unknown */
	float		credit;			/* microseconds charged in excess */
} JobqParty;

/* For each lane, the queue and the keys. */
#define JOBQ_MAX_PARTIES	((uint32) (1 + JOBQ_NLIMITS) * jobq_max_lanes)

/*
 * A role with lanes.
 */
typedef struct JobqRole
{
	Oid			role;
	uint32		nlanes;
	uint32		nentries;		/* in its lanes, or parked */
	uint32		heaps;			/* first heap of queues of workers */
	uint32		hash_next;		/* in the bucket, or free list link */
	uint32		prev;			/* all roles are linked */
	uint32		next;
} JobqRole;

/*
 * Lanes that have jobs and are served are in heaps.  A heap has the lanes of one role that
 * the same takers serve at the same rank and that need the same permits.  A process that pops
 * therefore compares the first lanes of a few heaps.  Without limits there are as many heaps
 * as lines in the order of a pool.  A heap whose limiter is full is skipped as a whole.
 *
 * The lanes of a limiter's key are in a separate heap of the key, from which no process pops.
 * While the key may start a job, its first lane is lent to the heap of the takers.  A full key
 * therefore delays no other jobs, whatever the number of lanes and keys.
 */
typedef struct JobqHeapLink
{
	uint32		prev;
	uint32		next;
} JobqHeapLink;

typedef struct JobqHeap
{
	Oid			role;
	int32		queue_id;		/* of consumers; or 0 */
	uint32		party;			/* the key, in JobqReady.parties, in a heap of
								 * a key; or JOBQ_NONE */
	uint16		order;			/* of workers */
	uint16		limiters[JOBQ_NLIMITS]; /* or JOBQ_NO_LIMITER; none is twice
										 * in the array */
	uint8		at;				/* in a heap of a key: the key's limiter, in
								 * the array */
	bool		consumer;
	bool		quarantine;
	bool		marked;			/* to be handed off to waiting consumers */
	bool		stuck;			/* permits may be used up, and jobs do not
								 * wait for permits: taken.c */
	uint32		turns[JOBQ_NLIMITS];	/* turns of the role at these
										 * limiters, in JobqReady.turns; or
										 * JOBQ_NONE */
	uint32		root;			/* the first lane */
	uint32		lent;			/* in a heap of a key: the lent lane, or
								 * JOBQ_NONE */
	uint32		nentries;		/* in its lanes */
	uint32		hash_next;		/* in the bucket, or free list link */
	uint32		prev;			/* of the role, queue or key */
	uint32		next;
	JobqHeapLink links[JOBQ_NLIMITS];	/* links between heaps with these
										 * limiters, without heaps of keys */
	uint32		marked_prev;	/* marked heaps are linked */
	uint32		marked_next;
	uint32		stuck_prev;		/* stuck heaps are linked, oldest first */
	uint32		stuck_next;
} JobqHeap;

/*
 * An estimate, not a bound: each lane may have a heap of its own key, and eight lanes share a
 * heap of takers.  If no heap is free, a lane waits without a heap (JobqReady.heapless), and
 * heap_free() has the scheduler place all lanes again.
 */
#ifndef JOBQ_MAX_HEAPS
#define JOBQ_MAX_HEAPS		((uint32) (jobq_max_lanes + jobq_max_lanes / 8))
#endif

/*
 * When a role had its last turn at a limiter: see served.c.
 */
typedef struct JobqServed
{
	uint64		when;			/* JobqLimits.served at that time */
	Oid			role;
	uint32		nheaps;			/* number of heaps with this record */
	uint16		limiter;
	uint32		hash_next;		/* in the bucket */
	uint32		prev;			/* records without a heap are linked, oldest
								 * first */
	uint32		next;
} JobqServed;

/*
 * A heap has at most JOBQ_NLIMITS limiters, but there are far fewer limiters than heaps.  A
 * heap is not created if there is no slot for its records.
 */
#ifndef JOBQ_MAX_TURNS
#define JOBQ_MAX_TURNS		JOBQ_MAX_HEAPS
#endif

/*
 * The rank of a queue in each pool, or JOBQ_NOT_SERVED.  Many queues have the same order,
 * such as all queues that no pool names.
 */
#define JOBQ_NOT_SERVED		0xFF
typedef struct JobqOrder
{
	uint8		rank[JOBQ_MAX_POOLS];
	uint8		best;			/* the lowest rank */
} JobqOrder;

/* An order for each name in jobq.workers, for all unnamed queues, and for unserved queues. */
#define JOBQ_MAX_ORDERS		(JOBQ_MAX_POOLS * JOBQ_MAX_POOL_QUEUES + 2)
#define JOBQ_NO_ORDER		0	/* no pool serves the queue */

#ifndef JOBQ_MAX_LATE
#define JOBQ_MAX_LATE		128
#endif

/* Jobs for which sessions in jobq.work() have found no permit. */
#define JOBQ_MAX_ASKED		16

/*
 * The lanes of a database and their entries.
 */
typedef struct JobqReady
{
	bool		complete;		/* a lane that is not here has no due row */
	bool		overflow;		/* there was no slot for a lane */
	bool		crowded;		/* likewise, or a lane was evicted: to be
								 * logged */
	bool		full_over;		/* the role of the lane without a slot had
								 * exceeded its share ... */
	int32		full_priority;	/* ... and the priority of this lane */
	TimestampTz full_until;		/* no such lane needs a search before this
								 * time */
	bool		starved;		/* a scan found no free entry, or a lane has
								 * lost its last entry */
	bool		paused_forgotten;	/* a paused or unserved lane with due rows
									 * was evicted */
	uint32		lanes_made;		/* number so far */
	uint32		evictions;		/* evicted lanes with due rows */
	TimestampTz forgotten_due;	/* not above the lowest run_at of lanes that
								 * are not here */
	int32		quarantine_slot;	/* slot that runs a quarantined job, or -1 */
	uint64		news;			/* incremented when a lane gets its first
								 * entry; may be read without the lock */
	uint32		nfree;
	uint32		free_head;
	uint32		active_head;
	uint32		lane_free;
	uint32		party_free;
	uint32		ntallies;
	uint32		tally_hand;		/* where the last search for idle tallies
								 * ended */
	uint32		role_free;
	uint32		heap_free;
	uint32		nroles;
	uint32		roles_head;
	uint32		expected;		/* lanes that may have to be read: includes
								 * all with "more" or "next_due" */
	uint32		noted;			/* includes all lanes with "notify" */
	uint32		passed;			/* includes all lanes with "skipping" */
	uint32		unranked;		/* lanes to be ranked, apart from those that
								 * JobqDatabase.reload ranks */
	uint32		turn_first;		/* turns without a heap: the first, */
	uint32		turn_last;		/* and the last; or JOBQ_NONE */
	uint32		marked;			/* heaps to be handed off to consumers */
	uint32		stuck;			/* stuck heaps: the first, */
	uint32		stuck_last;		/* and the last */
	bool		stuck_news;		/* the scheduler must be notified of a stuck
								 * heap or of these jobs: */
	int			nasked;
	JobqPush	asked[JOBQ_MAX_ASKED];	/* jobs that a session found without a
										 * free permit */
	uint32		hand;			/* where the last eviction of a lane ended, */
	uint32		entry_hand;		/* and of an entry */
	bool		entries_full_over;	/* as full_over and full_until, for
									 * entries; */
	bool		entries_full_limited;	/* the lane's limits were full; */
	bool		entries_full_little;	/* the role had few entries; */
	uint32		entries_full_count; /* number of entries of the lane; */
	int32		entries_full_priority;	/* and its priority */
	TimestampTz entries_full_until;
	uint32		norders;
	JobqOrder	orders[JOBQ_MAX_ORDERS];
	bool		heapless;		/* there was no heap for a lane */
	JobqKey		missed;			/* lowest key above the cursor of the scanned
								 * lane that found no slot in "late"; only one
								 * lane is scanned at a time */
	int			nlate;			/* handed over while their lane is scanned */
	JobqPush	late[JOBQ_MAX_LATE];
	JobqEntry  *entries;		/* [jobq_ready_entries] */
	JobqLane   *lanes;			/* [jobq_max_lanes], like the following arrays */
	JobqNode   *nodes;			/* nodes of the same lanes */
	JobqRole   *roles;
	uint32	   *lane_bucket;
	uint32	   *heap_bucket;
	uint32	   *role_bucket;
	JobqHeap   *heaps;			/* [JOBQ_MAX_HEAPS] */
	uint32	   *limited;		/* [jobq_max_limiters]: first heap with the
								 * limiter */
	JobqServed *turns;			/* [JOBQ_MAX_TURNS] */
	uint32	   *turn_bucket;	/* [jobq_max_lanes] */
	JobqParty  *parties;		/* [JOBQ_MAX_PARTIES] */
	uint32	   *party_bucket;
	uint32	   *tally_bucket;	/* [jobq_max_lanes] */
	JobqTimers	gathering;		/* of lanes that gather jobs: gather.c */
	JobqTimers	timers;			/* of keys that wait for a token, or rest.
								 * [jobq_max_lanes + 1]: only a key with a
								 * heap has a timer, and each heap has a lane,
								 * except a heap that settle() has emptied */
} JobqReady;

#define JOBQ_LANE_INDEX(db, lane)	((uint32) ((lane) - (db)->ready->lanes))

/* The rank of the lane in a pool, or JOBQ_NOT_SERVED. */
#define JOBQ_LANE_RANK(db, lane, pool) \
	((db)->ready->orders[(lane)->order].rank[pool])

/* src/ready/party.c */
extern JobqParty *jobq_party_find(JobqDatabase *db, int32 queue_id, uint32 limiter,
								  uint32 key);
extern JobqRole *jobq_role_find(JobqDatabase *db, Oid role);

/* src/ready/heap.c */
extern uint16 jobq_order_find(JobqDatabase *db, const uint8 *rank);
extern void jobq_limiter_filled(JobqDatabase *db, uint16 index);

/* src/ready/place.c */
extern void jobq_orders_forget(JobqDatabase *db);
extern void jobq_consumers_wake(JobqDatabase *db);
extern bool jobq_lane_is_closed(JobqDatabase *db, const JobqLane *lane);
extern void jobq_lane_place(JobqDatabase *db, JobqLane *lane);
extern void jobq_lanes_place(JobqDatabase *db);
extern uint32 jobq_heap_demand(JobqDatabase *db, JobqHeap *heap, uint32 most,
							   TimestampTz now, int32 *priority);
extern bool jobq_queue_has_job(JobqDatabase *db, int32 queue_id,
							   const Oid *denied, int ndenied,
							   TimestampTz now);

/* src/ready/list.c */
extern void jobq_lane_expect(JobqDatabase *db, JobqLane *lane);
extern uint32 *jobq_lane_next_expected(JobqDatabase *db, uint32 *from,
									   JobqLane **lane);
extern uint32 *jobq_lane_next_passed(JobqDatabase *db, uint32 *from,
									 JobqLane **lane);
extern void jobq_lane_note(JobqDatabase *db, JobqLane *lane);
extern JobqLane *jobq_lane_next_noted(JobqDatabase *db);
extern void jobq_lane_ask_rank(JobqDatabase *db, JobqLane *lane);
extern JobqLane *jobq_lane_next_unranked(JobqDatabase *db);

/* src/ready/entry.c */
extern bool jobq_lane_gets_entry(JobqDatabase *db, const JobqLane *lane);

/* src/ready/lane.c */
extern JobqLane *jobq_lane_find(JobqDatabase *db, int32 queue_id,
								int32 priority, Oid role, int32 flow,
								bool quarantine, bool create);
extern void jobq_lane_look(JobqDatabase *db, JobqLane *lane, JobqKey from,
						   JobqWakeList *wake);
extern void jobq_lane_reset(JobqDatabase *db, JobqLane *lane);
extern void jobq_lane_unrank(JobqDatabase *db, JobqLane *lane);
extern void jobq_lane_rank(JobqDatabase *db, JobqLane *lane, uint16 order,
						   bool consumer, bool paused, bool alone,
						   uint8 lacks);

#endif							/* JOBQ_READY_LANES_H */
