/*-------------------------------------------------------------------------
 *
 * lanes.h
 *	  Lanes and their entries, and who has lanes: queues, tenants, roles.
 *
 * src/ready/lanes.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_LANES_H
#define JOBQ_READY_LANES_H

#include "ready/job.h"
#include "ready/timers.h"

/* One job that may run now: 40 bytes. */
typedef struct JobqEntry
{
	JobqKey		key;
	int64		group;			/* or 0 */
	ItemPointerData ctid;		/* where the row was; verified when popped */
	uint16		lane;
	uint32		prev;			/* neighbours in the lane, or free list link */
	uint32		next;
} JobqEntry;

/*
 * What is counted of a tenant with limits, or of a limiter's key, in the place of an
 * entry: tally.c.
 */
typedef struct JobqTally
{
	double		full_at;		/* when its bucket is full, as a TimestampTz */
	TimestampTz due;			/* of its timer */
	int32		scope;			/* the queue, or JOBQ_KEYS_OF() */
	uint32		tenant;			/* or key */
	int32		running;		/* jobs that hold a permit of it */
	uint16		unused;
	uint16		lane;			/* JOBQ_NO_LANE */
	uint32		timer;			/* in JobqReady.timers, or JOBQ_NONE */
	uint32		next;			/* in the bucket */
} JobqTally;

#define JOBQ_NO_LANE		PG_UINT16_MAX

/*
 * Within what a tenant or a key is known: a queue's tenants by its id, which is
 * positive, and the keys of the limiter with this hash.
 */
#define JOBQ_KEYS_OF(limiter)	((int32) ((limiter) | 0x80000000))

/* With more of them, buckets of tenants of which no job runs are forgotten. */
#define JOBQ_MAX_TALLIES	((uint32) jobq_ready_entries / 4)

/*
 * A lane is the line of one (queue, priority, role, flow).  Its list holds a window
 * of the jobs that are due, in order of JobqKey; the rest is in the table.
 *
 * Invariant: a row of this lane that is due, whose transaction has ended and
 * whose key is not above "cursor", is in the list, or was popped, or is about
 * to be handed over by the backend that committed it.  Rows above the cursor
 * are found by the scheduler's next scan if "more" is set, or when the time
 * "next_due" has come; with "unread", when JobqReady.forgotten_due has.
 *
 * So a job that is not in memory may be in the table, and even be run next.  The ready
 * set alone proves that a job is absent only if it rules out each of these cases; of a
 * job of a group that is about to be handed over, handover.h tells.
 *
 * A lane with "quarantine" holds jobs that once crashed a server process.  It
 * is never scanned, and only one of its jobs runs at a time in a database.
 */
#define JOBQ_LACKS_QUEUE	0x01	/* its queue has limits for which there is
									 * no limiter left */
#define JOBQ_LACKS_KIND		0x02	/* likewise its kind, or what limits that */

typedef struct JobqLane
{
	/* whoever pops reads this, and little of what follows */
	bool		in_use;
	bool		quarantine;
	bool		more;			/* rows above the cursor may be due */
	bool		scanning;		/* the scheduler is reading above the cursor */
	bool		ranked;			/* order, paused and consumer are valid */
	bool		consumer;		/* served to consumers outside, not to workers */
	bool		paused;
	bool		alone;			/* is paused, as its tenant or kind is; its
								 * queue is not */
	bool		notify;			/* queue channel to be notified */
	bool		skipping;		/* jobs found no place for their groups, from
								 * "skipped" on */
	bool		expected;		/* is in the list JobqReady.expected */
	bool		noted;			/* is in the list JobqReady.noted */
	bool		passed;			/* is in the list JobqReady.passed */
	bool		unread;			/* was made while jobs of the future may have
								 * been forgotten */
	uint8		lacks;			/* JOBQ_LACKS_QUEUE, JOBQ_LACKS_KIND; then it
								 * is not served; valid if ranked */
	uint16		order;			/* its queue's: JobqReady.orders */
	uint16		queue_limiter;	/* valid if ranked; or JOBQ_NO_LIMITER */
	uint16		kind_limiter;
	int32		queue_id;
	int32		priority;
	Oid			role;
	uint32		tenant;			/* as in JobqPush; known with the first entry */
	uint32		limit_key;
	int32		cost;
	uint32		head;
	uint32		tail;
	uint32		count;
	uint32		heap;			/* in which it stands, or JOBQ_NONE */
	uint32		own;			/* the heap of its tenant or key, which has
								 * limits */
	uint32		party;			/* its queue, in JobqReady.parties */
	uint32		tenant_party;	/* its tenant, or its queue again */
	uint32		key_party;		/* its limiter's key, or its queue again */
	uint32		role_index;		/* in JobqReady.roles */

	int32		flow;
	uint32		kind;			/* as in JobqPush; known with the first entry */
	uint32		held;			/* of its jobs' kind, which is or was paused;
								 * or 0 */
	uint32		parked;			/* its entries that are parked at groups */
	JobqKey		skipped;		/* to be read again from here on */
	JobqKey		cursor;
	TimestampTz next_due;		/* lowest known run_at in the future */
	uint32		hash_next;		/* next lane in the same bucket, or free */
	uint32		active_prev;	/* lanes with count > 0 are linked */
	uint32		active_next;
	uint32		party_prev;		/* the lanes of a queue are linked */
	uint32		party_next;
	uint32		expected_next;
	uint32		noted_next;
	uint32		passed_next;
} JobqLane;

/*
 * A lane within its heap: all that is compared there.  These have an array of their own,
 * at the same places as the lanes, so that little memory is visited where lanes are
 * many.  Key and turn are what they were when the lane was placed: not above what they
 * are now.
 */
typedef struct JobqNode
{
	JobqKey		first;			/* of the lane's first job */
	double		turn;			/* of its tenant or queue */
	int32		priority;
	uint32		left;			/* lanes, or JOBQ_NONE */
	uint32		right;
	uint32		parent;
	uint8		dist;			/* see heap.c */
} JobqNode;

/*
 * A queue that has lanes, or a tenant of it that has: those who take turns.  Or a key
 * of a limiter.
 */
typedef struct JobqParty
{
	int32		scope;			/* the queue, or JOBQ_KEYS_OF() */
	uint32		tenant;			/* or key; 0: the queue itself */
	uint32		nlanes;
	uint32		lanes;			/* of a queue: the first */
	uint32		heaps;			/* of a queue of consumers, or a tenant with
								 * limits: the first */
	uint32		hash_next;		/* in the bucket, or free list link */
	double		turn;			/* when it is served next, in jobs, or in
								 * microseconds; only grows */
	float		cost;			/* microseconds that a job of it takes on
								 * average, or 0: not known */
	float		credit;			/* microseconds that it was charged too much */
} JobqParty;

/*
 * A role that has lanes.
 */
typedef struct JobqRole
{
	Oid			role;
	uint32		nlanes;
	uint32		nentries;		/* in its lanes, or parked */
	uint32		heaps;			/* of queues of workers: the first */
	uint32		hash_next;		/* in the bucket, or free list link */
	uint32		prev;			/* all roles are linked */
	uint32		next;
} JobqRole;

/*
 * Lanes that have jobs and are served stand in heaps, each with those of one
 * role that the same takers serve at the same rank and that need the same
 * permits.  So who pops compares the first lanes of a few heaps: without limits
 * there are as many as there are lines in the order of a pool.  A heap whose
 * limiter is full is passed over as a whole.
 *
 * The lanes of a tenant with limits stand in a heap of the tenant's, from which
 * nobody pops.  As long as the tenant may start a job, the first of them is lent to
 * the heap where it would stand otherwise.  So a tenant that is full is in nobody's
 * way, however many lanes and tenants there are.
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
	uint32		tenant;			/* its party, if it is a tenant's or a key's;
								 * or JOBQ_NONE */
	uint16		order;			/* of workers */
	uint16		queue_limiter;	/* or JOBQ_NO_LIMITER */
	uint16		kind_limiter;
	bool		consumer;
	bool		quarantine;
	bool		marked;			/* to be offered to consumers that wait */
	bool		stuck;			/* all places may be taken, and its jobs do
								 * not wait for one: taken.c */
	uint32		queue_turn;		/* its role's at these limiters:
								 * JobqReady.turns; or JOBQ_NONE */
	uint32		kind_turn;
	uint32		root;			/* the lane that comes first */
	uint32		lent;			/* of a tenant's: the lane that is, or
								 * JOBQ_NONE */
	uint32		nentries;		/* in its lanes */
	uint32		hash_next;		/* in the bucket, or free list link */
	uint32		prev;			/* of its role or queue */
	uint32		next;
	JobqHeapLink queue_link;	/* of those that have this limiter, but for
								 * tenants' */
	JobqHeapLink kind_link;
	uint32		marked_prev;	/* those that are marked are linked, too */
	uint32		marked_next;
	uint32		stuck_prev;		/* and those that are stuck, in the order in
								 * which they came to be */
	uint32		stuck_next;
} JobqHeap;

/*
 * A lane stands in one, and may have one of its tenant's beside it.  Many lanes share
 * theirs, so there are not two for each; those that find none wait until one is free.
 */
#ifndef JOBQ_MAX_HEAPS
#define JOBQ_MAX_HEAPS		((uint32) (jobq_max_lanes + jobq_max_lanes / 8))
#endif

/*
 * When a role had its last turn at a limiter: served.c.
 */
typedef struct JobqServed
{
	uint64		when;			/* as JobqLimits.served was */
	Oid			role;
	uint32		nheaps;			/* that have it */
	uint16		limiter;
	uint32		hash_next;		/* in the bucket */
	uint32		prev;			/* those that no heap has are linked, in the
								 * order in which that began */
	uint32		next;
} JobqServed;

/*
 * A heap has two limiters at most, but there are far fewer limiters than heaps: a heap
 * for whose limiters there are no places is not made.
 */
#ifndef JOBQ_MAX_TURNS
#define JOBQ_MAX_TURNS		JOBQ_MAX_HEAPS
#endif

/*
 * The place of a queue in the order of each pool, or JOBQ_NOT_SERVED.  Many queues
 * have the same: all that no pool names.
 */
#define JOBQ_NOT_SERVED		0xFF
typedef struct JobqOrder
{
	uint8		rank[JOBQ_MAX_POOLS];
	uint8		best;			/* the lowest of them */
} JobqOrder;

/* One for each name in jobq.workers, one for the others, and one for nobody. */
#define JOBQ_MAX_ORDERS		(JOBQ_MAX_POOLS * JOBQ_MAX_POOL_QUEUES + 2)
#define JOBQ_NO_ORDER		0	/* nobody serves the queue */

#ifndef JOBQ_MAX_LATE
#define JOBQ_MAX_LATE		128
#endif

/* Jobs that sessions in jobq.work() have found to have no place. */
#define JOBQ_MAX_ASKED		16

/*
 * The lanes of a database and their entries.
 */
typedef struct JobqReady
{
	bool		complete;		/* a lane that is not here has no due row */
	bool		overflow;		/* a lane found no place */
	bool		crowded;		/* likewise, or had to give way: to be told */
	bool		full_over;		/* of whom no lane could be had for: was he
								 * over his share ... */
	int32		full_priority;	/* ... and the priority of his lane */
	TimestampTz full_until;		/* then: do not look for one before */
	bool		starved;		/* a scan found no free entry, or a lane has
								 * lost its last one */
	bool		paused_forgotten;	/* a lane that was paused, or that nobody
									 * served, gave way with due rows */
	uint32		lanes_made;		/* how many so far, and one more */
	uint32		evictions;		/* lanes that gave way with due rows */
	TimestampTz forgotten_due;	/* not above the first run_at of lanes that
								 * are not here */
	int32		quarantine_slot;	/* slot that runs a quarantined job, or -1 */
	uint64		news;			/* grows with each lane that gets its first
								 * entry; may be read without lock */
	uint32		nfree;
	uint32		free_head;
	uint32		active_head;
	uint32		lane_free;
	uint32		party_free;
	uint32		ntallies;
	uint32		tally_hand;		/* where they were last looked through */
	uint32		role_free;
	uint32		heap_free;
	uint32		nroles;
	uint32		roles_head;
	uint32		expected;		/* lanes that may have to be read: all that
								 * have "more" or "next_due" */
	uint32		noted;			/* lanes that may have "notify": all that do */
	uint32		passed;			/* lanes that may have "skipping": all that do */
	uint32		turn_first;		/* of the turns that no heap has, and */
	uint32		turn_last;		/* JOBQ_NONE if there is none */
	uint32		marked;			/* heaps that are to be offered */
	uint32		stuck;			/* heaps that are stuck: the first, */
	uint32		stuck_last;		/* and the last */
	bool		stuck_news;		/* the scheduler is to be told of one, or of
								 * these: */
	int			nasked;
	JobqPush	asked[JOBQ_MAX_ASKED];	/* jobs that a session has found
										 * likewise */
	uint32		hand;			/* where a lane was last taken from another, */
	uint32		entry_hand;		/* and an entry */
	bool		entries_full_over;	/* as full_over and full_until, of
									 * entries; */
	bool		entries_full_limited;	/* were the lane's limits full; */
	bool		entries_full_little;	/* had the role next to nothing; */
	uint32		entries_full_count; /* how many the lane had; */
	int32		entries_full_priority;	/* and its priority */
	TimestampTz entries_full_until;
	uint32		norders;
	JobqOrder	orders[JOBQ_MAX_ORDERS];
	bool		heapless;		/* a lane found no heap */
	JobqKey		missed;			/* lowest key above the cursor of the lane,
								 * the only one at a time, that is scanned,
								 * which found no place in "late" */
	int			nlate;			/* handed over while their lane is scanned */
	JobqPush	late[JOBQ_MAX_LATE];
	JobqEntry  *entries;		/* [jobq_ready_entries] */
	JobqLane   *lanes;			/* [jobq_max_lanes], as are all that follow */
	JobqNode   *nodes;			/* of the same lanes */
	JobqRole   *roles;
	uint32	   *lane_bucket;
	uint32	   *heap_bucket;
	uint32	   *role_bucket;
	JobqHeap   *heaps;			/* [JOBQ_MAX_HEAPS] */
	uint32	   *limited;		/* [jobq_max_limiters]: those with the limiter */
	JobqServed *turns;			/* [JOBQ_MAX_TURNS] */
	uint32	   *turn_bucket;	/* [jobq_max_lanes] */
	JobqParty  *parties;		/* [3 * jobq_max_lanes] */
	uint32	   *party_bucket;
	uint32	   *tally_bucket;	/* [jobq_max_lanes] */
	JobqTimers	timers;			/* of tallies of tenants that wait for a
								 * token, [jobq_max_lanes] */
} JobqReady;

#define JOBQ_LANE_INDEX(db, lane)	((uint32) ((lane) - (db)->ready->lanes))

/* The place of the lane in the order of a pool, or JOBQ_NOT_SERVED. */
#define JOBQ_LANE_RANK(db, lane, pool) \
	((db)->ready->orders[(lane)->order].rank[pool])

/* src/ready/party.c */
extern JobqParty *jobq_party_find(JobqDatabase *db, int32 scope, uint32 tenant);
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
