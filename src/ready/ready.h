/*-------------------------------------------------------------------------
 *
 * ready.h
 *	  The door of the room ready: which jobs may run now, and who may take them.
 *
 * The ready set is an index, in shared memory, of the jobs that are due.  It is
 * divided into lanes, each in order.  Jobs come in by push (from whoever has
 * committed them) and publish (from scans of the scheduler); workers and
 * consumers pop.  A pop gives the job that comes first for its taker, together
 * with the permits that it needs: a place and a token at the limiters of its
 * queue and kind, and its group's turn.
 *
 * What it promises: a popped entry is only a hint, whose row must be read; but
 * a row that is due is never missing (see JobqLane).  Permits are exact: a job
 * that has been popped holds them until they are released.  A consumer that
 * waits gets its job offered in the same moment in which it may start.
 *
 * Locks: every function wants db->lock held exclusively, but for those that say
 * otherwise, and releases it only if it says so.  Nothing in this room can fail
 * or allocate memory.  Whoever has called a function with a wake list releases
 * the lock by jobq_unlock(), which carries the list out.
 *
 * src/ready/ready.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_H
#define JOBQ_READY_H

#include "memory/memory.h"

#include "storage/block.h"

/* The place of a job within its lane. */
typedef struct JobqKey
{
	TimestampTz run_at;
	int64		id;
} JobqKey;

/* What a running job holds. */
#define JOBQ_NO_LIMITER	PG_UINT16_MAX
typedef struct JobqPermits
{
	uint16		queue;			/* limiters, or JOBQ_NO_LIMITER */
	uint16		kind;
	uint32		group;			/* index, or JOBQ_NONE */
} JobqPermits;

#define JOBQ_NO_PERMITS \
	((JobqPermits) {JOBQ_NO_LIMITER, JOBQ_NO_LIMITER, PG_UINT32_MAX})

static inline bool
jobq_permits_any(const JobqPermits *permits)
{
	return permits->queue != JOBQ_NO_LIMITER ||
		permits->kind != JOBQ_NO_LIMITER || permits->group != PG_UINT32_MAX;
}

/* A job on its way into the ready set, or out of it. */
typedef struct JobqPush
{
	int32		queue_id;
	int32		priority;
	Oid			role;
	int32		flow;
	bool		quarantine;
	bool		notify;			/* mark the queue's channel for the relay */
	bool		first;			/* on its way out: no job of its group comes
								 * before it */
	JobqKey		key;
	ItemPointerData ctid;
	uint32		kind;			/* hash of a kind with limits, or 0 */
	uint32		tenant;			/* hash, in a queue that is fair, or 0 */
	int64		group;			/* or 0 */
	JobqPermits permits;		/* on its way out: what it holds */
} JobqPush;

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
 * A lane is the line of one (queue, priority, role, flow).  Its list holds a window
 * of the jobs that are due, in order of JobqKey; the rest is in the table.
 *
 * Invariant: a row of this lane that is due, whose transaction has ended and
 * whose key is not above "cursor", is in the list, or was popped, or is about
 * to be handed over by the backend that committed it.  Rows above the cursor
 * are found by the scheduler's next scan if "more" is set, or when the time
 * "next_due" has come.
 *
 * A lane with "quarantine" holds jobs that once crashed a server process.  It
 * is never scanned, and only one of its jobs runs at a time in a database.
 */
typedef struct JobqLane
{
	bool		in_use;
	bool		quarantine;
	bool		more;			/* rows above the cursor may be due */
	bool		scanning;		/* the scheduler is reading above the cursor */
	bool		ranked;			/* order, paused and consumer are valid */
	bool		consumer;		/* served to consumers outside, not to workers */
	bool		paused;
	bool		notify;			/* queue channel to be notified */
	bool		skipping;		/* jobs found no place for their groups, from
								 * "skipped" on */
	bool		expected;		/* is in the list JobqReady.expected */
	bool		noted;			/* is in the list JobqReady.noted */
	uint8		dist;			/* within its heap: heap.c */
	uint16		order;			/* its queue's: JobqReady.orders */
	int32		queue_id;
	int32		priority;
	Oid			role;
	int32		flow;
	uint32		kind;			/* as in JobqPush; known with the first entry */
	uint32		tenant;
	uint16		queue_limiter;	/* valid if ranked; or JOBQ_NO_LIMITER */
	uint16		kind_limiter;
	JobqKey		skipped;		/* to be read again from here on */
	uint32		parked;			/* its entries that are parked at groups */
	double		turn;			/* of its tenant or queue, as its heap knows
								 * it: not above what it is */
	JobqKey		cursor;
	JobqKey		missed;			/* lowest key above the cursor that found no
								 * place in JobqDatabase.late while scanning */
	TimestampTz next_due;		/* lowest known run_at in the future */
	uint32		head;
	uint32		tail;
	uint32		count;
	uint32		hash_next;		/* next lane in the same bucket, or free */
	uint32		active_prev;	/* lanes with count > 0 are linked */
	uint32		active_next;
	uint32		party;			/* its queue, in JobqReady.parties */
	uint32		tenant_party;	/* its tenant, or its queue again */
	uint32		role_index;		/* in JobqReady.roles */
	uint32		party_prev;		/* the lanes of a queue are linked */
	uint32		party_next;
	uint32		expected_next;
	uint32		noted_next;
	uint32		heap;			/* in which it stands, or JOBQ_NONE */
	uint32		left;			/* within the heap */
	uint32		right;
	uint32		parent;
} JobqLane;

/*
 * A queue that has lanes, or a tenant of it that has: those who take turns.
 */
typedef struct JobqParty
{
	int32		queue_id;
	uint32		tenant;			/* 0: the queue itself */
	uint32		nlanes;
	uint32		lanes;			/* of a queue: the first */
	uint32		heaps;			/* of a queue of consumers: the first */
	uint32		hash_next;		/* in the bucket, or free list link */
	double		turn;			/* when it is served next, in jobs */
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
 */
typedef struct JobqHeap
{
	Oid			role;
	int32		queue_id;		/* of consumers; or 0 */
	uint16		order;			/* of workers */
	uint16		queue_limiter;	/* or JOBQ_NO_LIMITER */
	uint16		kind_limiter;
	bool		consumer;
	bool		quarantine;
	bool		marked;			/* to be offered to consumers that wait */
	uint32		root;			/* the lane that comes first */
	uint32		nlanes;
	uint32		hash_next;		/* in the bucket, or free list link */
	uint32		prev;			/* of its role or queue */
	uint32		next;
	uint32		limited_prev;	/* those that have a limiter are linked */
	uint32		limited_next;
	uint32		marked_prev;	/* and so are those that are marked */
	uint32		marked_next;
} JobqHeap;

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
	bool		starved;		/* a scan found no free entry */
	bool		paused_forgotten;	/* a lane of a queue that was paused, or
									 * that nobody served, gave way with due
									 * rows */
	uint32		lanes_made;		/* how many so far, and one more */
	uint32		evictions;		/* lanes that gave way with due rows */
	TimestampTz forgotten_due;	/* lowest next_due of lanes that gave way */
	int32		quarantine_slot;	/* slot that runs a quarantined job, or -1 */
	uint64		news;			/* grows with each lane that gets its first
								 * entry; may be read without lock */
	uint32		nfree;
	uint32		free_head;
	uint32		active_head;
	uint32		lane_free;
	uint32		party_free;
	uint32		role_free;
	uint32		heap_free;
	uint32		nroles;
	uint32		roles_head;
	uint32		expected;		/* lanes that may have to be read: all that
								 * have "more" or "next_due" */
	uint32		noted;			/* lanes that may have "notify": all that do */
	uint32		limited;		/* heaps with a limiter */
	uint32		marked;			/* heaps that are to be offered */
	uint32		hand;			/* where a lane was last taken from another, */
	uint32		entry_hand;		/* and an entry */
	bool		entries_full_over;	/* as full_over and full_until, of
									 * entries; */
	uint32		entries_full_count; /* and how many the lane had */
	TimestampTz entries_full_until;
	uint32		norders;
	JobqOrder	orders[JOBQ_MAX_ORDERS];
	int			nlate;			/* handed over while their lane, the only one
								 * at a time, is scanned */
	JobqPush	late[JOBQ_MAX_LATE];
	JobqEntry  *entries;		/* [jobq_ready_entries] */
	JobqLane   *lanes;			/* [jobq_max_lanes], as are all that follow */
	JobqHeap   *heaps;
	JobqRole   *roles;
	uint32	   *lane_bucket;
	uint32	   *heap_bucket;
	uint32	   *role_bucket;
	JobqParty  *parties;		/* [2 * jobq_max_lanes] */
	uint32	   *party_bucket;
} JobqReady;

#define JOBQ_LANE_INDEX(db, lane)	((uint32) ((lane) - (db)->ready->lanes))

/* The place of the lane in the order of a pool, or JOBQ_NOT_SERVED. */
#define JOBQ_LANE_RANK(db, lane, pool) \
	((db)->ready->orders[(lane)->order].rank[pool])

/*
 * Limits
 *
 * A job needs permits to start: of its queue's limiter, of its kind's, and of
 * its group.  Whoever pops it takes them all at once, and gives them back when
 * the job's transaction is over; a process that dies has its permits given back
 * by the scheduler.  So a limit holds exactly, for workers and consumers alike.
 *
 * What waits for a limiter stays in its lane, which is skipped meanwhile: jobs
 * of a limited kind have lanes of their own (src/store/flow.c).  What waits for
 * its group is parked at the group, so that it is in nobody's way.
 */

/* A token bucket, as it is configured. */
typedef struct JobqRate
{
	double		per_us;			/* tokens that come in a microsecond; 0: none */
	double		burst;			/* how many it holds */
	bool		by_group;		/* one for each group */
} JobqRate;

/* Rest after so many failures. */
typedef struct JobqThrottle
{
	int			failures;		/* 0: none */
	int64		window;			/* microseconds */
	bool		by_group;
} JobqThrottle;

/* How full a bucket is, and whether there is a rest. */
typedef struct JobqPace
{
	double		tokens;
	TimestampTz tokens_at;
	int			failures;
	TimestampTz window_start;
	TimestampTz rest_until;
} JobqPace;

/* How many queues and kinds may have a limiter. */
#define JOBQ_MAX_LIMITERS	128
#define JOBQ_MAX_WEIGHTS	32

typedef struct JobqWeight
{
	uint32		tenant;
	int			weight;
} JobqWeight;

/* The policy of a queue or of a kind, and what it counts. */
typedef struct JobqLimiter
{
	bool		in_use;
	bool		fair;			/* the queue's tenants take turns */
	bool		group_wait;		/* a group waits for its job that failed */
	int32		queue_id;		/* or 0 */
	uint32		kind;			/* hash, or 0 */
	int			max_running;	/* 0: no limit */
	int			group_max_running;	/* 0: no limit */
	int			weight;			/* among queues of the same place in a pool */
	JobqRate	rate;
	JobqThrottle throttle;
	int			nweights;
	JobqWeight	weights[JOBQ_MAX_WEIGHTS];

	int			running;
	JobqPace	pace;
	double		tenant_turn;	/* of the tenant that was served last */
} JobqLimiter;

/*
 * The limiters of a database.
 */
typedef struct JobqLimits
{
	bool		loaded;
	bool		stale;			/* policies have changed since */
	bool		loading;		/* the scheduler is reading them */
	bool		weighted;		/* a queue has a weight: queues take turns */
	Oid			jobs;			/* the jobq.job that they are about */
	double		queue_turn;		/* of the queue that was served last */
	TimestampTz due;			/* when a lane may be free, with time */
	int			nlimiters;		/* places that are or were in use */
	JobqLimiter limiters[JOBQ_MAX_LIMITERS];
} JobqLimits;

/*
 * A group of which a job runs, or waits for its next attempt, or others wait.
 *
 * Up to JOBQ_MAX_PARKED of its jobs are parked, in order.  If there were more,
 * they were dropped ("spilled"), and the scheduler reads those above the cursor
 * when the parked ones come to their end.
 *
 * Jobs of a group may come from several lanes.  So the one whose turn it is has
 * been "called", and those that come after it are parked until it has been
 * popped.
 */
#ifndef JOBQ_MAX_PARKED
#define JOBQ_MAX_PARKED		64
#endif
typedef struct JobqGroup
{
	int64		id;				/* 0: free */
	int64		owner;			/* only this job may run; or 0 */
	int64		current;		/* the job that was taken in last */
	int64		called;			/* the job that is in its lane; or 0 */
	int32		called_priority;	/* and its place */
	TimestampTz called_run_at;
	uint32		next;			/* in the bucket, or free list link */
	uint32		head;			/* parked entries */
	uint16		nparked;
	uint16		limiter;		/* of its queue */
	int			running;
	bool		spilled;
	bool		dropped;		/* something was, while it was being read */
	bool		refill;			/* the scheduler shall read */
	int32		cursor_priority;
	TimestampTz cursor_run_at;
	int64		cursor_id;
	JobqPace	pace;
} JobqGroup;

/*
 * The groups of a database.
 */
typedef struct JobqGroups
{
	bool		refill;			/* a group wants to be read */
	bool		full;			/* a lane is skipping */
	TimestampTz due;			/* when a group may be free, with time */
	TimestampTz swept_at;		/* idle groups were looked for */
	uint32		ngroups;
	uint32		free;
	JobqGroup  *groups;			/* [jobq_max_groups] */
	uint32	   *bucket;			/* [jobq_max_groups] */
} JobqGroups;

/*
 * May a job run now?  If not, what stands in the way.
 */
typedef enum JobqVerdict
{
	JOBQ_MAY_RUN = 0,

	/* by its row and its queue: src/attempt/gate.c */
	JOBQ_GONE,					/* there is no such row any more */
	JOBQ_DORMANT,				/* it runs on the publisher */
	JOBQ_TAKEN,					/* somebody else has it */
	JOBQ_QUEUE_CLOSED,			/* the queue is paused, or is for others */
	JOBQ_NOT_DUE,				/* the clock was put back */
	JOBQ_EXPIRED,				/* it did not begin in time */
	JOBQ_OTHER_LANE,			/* its kind or queue has other limits now */
	JOBQ_LACKS_PERMIT,			/* likewise: it was popped without one */
	JOBQ_GROUP_BUSY,			/* another job of its group comes first */

	/* by the limits: permit.c */
	JOBQ_QUEUE_FULL,
	JOBQ_KIND_FULL,
} JobqVerdict;

/*
 * A consumer's right to a job until a time.  It is in shared memory, where ack
 * finds it; a durable one is also named by a row of jobq.lease, from which it
 * is made again after a restart.  The job's own row is not touched.
 */
typedef enum JobqLeaseState
{
	JOBQ_LEASE_PENDING = 0,		/* the reserving transaction is still open */
	JOBQ_LEASE_HELD,
} JobqLeaseState;

#define JOBQ_LEASE_MESSAGE	40

typedef struct JobqLease
{
	int64		id;				/* the job's */
	int64		token;
	TimestampTz until;			/* at most the deadline */
	TimestampTz deadline;		/* by the job's timeout, or infinity */
	TimestampTz run_at;			/* the job's, as are the next eight */
	Oid			role;
	int32		flow;
	int32		queue_id;
	int32		priority;
	uint32		kind;
	uint32		tenant;
	int64		group;
	JobqPermits permits;
	bool		quarantine;
	uint8		state;
	ItemPointerData ctid;
	float4		progress;		/* percent, or -1 */
	char		message[JOBQ_LEASE_MESSAGE];
	uint32		bundle;
	uint32		next;			/* in the bucket, or free list link */
} JobqLease;

/* A row of jobq.lease. */
typedef struct JobqLeaseRow
{
	int64		id;
	ItemPointerData ctid;		/* invalid: there is none */
} JobqLeaseRow;

/* What one call of reserve() got: its row in jobq.lease, and who has it. */
typedef struct JobqLeaseBundle
{
	uint32		outstanding;	/* leases; 0: free */
	uint32		next_free;
	JobqLeaseRow row;
	int			pid;
	Oid			role;
	TimestampTz since;
	char		consumer[NAMEDATALEN];
	char		client[48];
} JobqLeaseBundle;

/* Reservations at a time: half of them may be of a single job. */
#define JOBQ_MAX_BUNDLES	(jobq_max_leases / 2)
#define JOBQ_LEASE_GARBAGE	2048

/*
 * The leases of a database.
 *
 * A token is drawn under the lock under which the lease begins, from a counter
 * that only rises; the scheduler has set the tokens below tokens_end aside
 * (worker/scheduler/tokens.c).
 */
typedef struct JobqLeases
{
	bool		loaded;			/* what jobq.lease has is here */
	int64		life;			/* grows when they are all forgotten */
	Oid			jobs;			/* the jobq.job that they are about */
	int64		next_token;
	int64		tokens_end;
	uint32		nleases;
	uint32		free;
	uint32		bundle_free;
	TimestampTz next_expiry;	/* not above the lowest "until" */
	uint32		ngarbage;		/* more than fit: look through the table */
	JobqLease  *leases;			/* [jobq_max_leases] */
	uint32	   *bucket;			/* [jobq_max_leases] */
	JobqLeaseBundle *bundles;	/* [JOBQ_MAX_BUNDLES] */
	JobqLeaseRow *garbage;		/* [JOBQ_LEASE_GARBAGE]: rows that are not
								 * needed any more */
} JobqLeases;

/*
 * The place of a session in jobq.reserve() that waits for work.  It is free, or
 * in the list of those that wait, or holds an offer: a job that somebody has
 * popped for the session, with its permits.
 *
 * Rule: when db->lock is released, a session waits only if there is no job for
 * it that may start.  So whoever puts a job into a lane, or gives a permit back,
 * marks its heap (jobq_lane_wake()), and releases the lock by jobq_unlock(),
 * which makes offers of what is in marked heaps, and then sets the latches.  If
 * it would make too many, heaps remain marked, and the next who releases the
 * lock goes on: one who was made an offer, at the latest.
 *
 * A session that waits is not asked which roles it may act for, so only jobs of
 * roles are offered of which it has said so; of a role that it has not thought
 * about it is told, and looks for itself.  It leaves the list under the lock of
 * its next look, or takes its offer there, or gives it back if it has to leave:
 * then the job is offered to the next one.
 */
#define JOBQ_MAX_TAKE_QUEUES	16
#ifndef JOBQ_MAX_RESERVERS
#define JOBQ_MAX_RESERVERS		1024
#endif
#define JOBQ_MAX_KNOWN_ROLES	32
#define JOBQ_WAITING_BUCKETS	256
typedef struct JobqReserver
{
	PGPROC	   *proc;
	uint32		prev;			/* in the list, newest first */
	uint32		next;			/* likewise, or free list link */
	int			nqueues;
	int32		queue_ids[JOBQ_MAX_TAKE_QUEUES];
	bool		any_role;
	int			nallowed;
	int			nroles;
	Oid			roles[JOBQ_MAX_KNOWN_ROLES];	/* first those whose jobs it
												 * may take, then others */
	bool		offered;
	JobqPush	offer;
} JobqReserver;

/*
 * The sessions of a database that wait in jobq.reserve().
 */
typedef struct JobqOffers
{
	uint32		free;
	uint32		head;			/* of the list of those that wait */
	uint32		waiting[JOBQ_WAITING_BUCKETS];	/* how many wait on queues of
												 * this hash */
	JobqReserver *reservers;	/* [JOBQ_MAX_RESERVERS] */
} JobqOffers;

/* Who pops: a worker of a pool, or a consumer with queues in order. */
typedef struct JobqTaker
{
	int			pool;			/* or -1 for a consumer */
	int			slot;			/* the worker's, or -1 */
	int			nqueues;
	const int32 *queue_ids;
	bool		any_role;
	int			nroles;
	const Oid  *roles;
} JobqTaker;

/*
 * What a worker holds: the permits of the job that it popped last, and the jobs
 * that it has taken along (prefetch.c).
 */
#define JOBQ_MAX_PREFETCH	31
typedef struct JobqHolding
{
	/* Protected by JobqDatabase.lock. */
	JobqPermits permits;
	int64		permits_job;

	/* Set by the worker for itself: what became of its last job. */
	bool		live;			/* it will run again */
	bool		unused;			/* it did not run at all, or not yet */

	/* Protected by JobqSlot.mutex: jobs [next, count) are next. */
	uint32		next;
	uint32		count;
	uint8		rank;			/* of their lane, in the worker's pool */
	int32		priority;
	uint64		news;			/* JobqReady.news when we last thought */
	JobqPush	prefetched[JOBQ_MAX_PREFETCH];
} JobqHolding;

/* Who is to be woken when the lock has been released. */
#ifndef JOBQ_MAX_WAKE
#define JOBQ_MAX_WAKE	16
#endif
#ifndef JOBQ_MAX_OFFERS
#define JOBQ_MAX_OFFERS 16
#endif
typedef struct JobqWakeList
{
	int			n;
	bool		scheduler;
	PGPROC	   *proc[JOBQ_MAX_WAKE + JOBQ_MAX_OFFERS];
} JobqWakeList;

/* src/ready/area.c */
extern const JobqArea jobq_holding_area;
extern const JobqArea jobq_ready_area;

/* src/ready/limiter.c */
extern uint16 jobq_limiter_find(JobqDatabase *db, int32 queue_id, uint32 kind);
extern bool jobq_pace_free(const JobqRate *rate, JobqPace *pace,
						   TimestampTz now, TimestampTz *due);
extern void jobq_pace_failed(const JobqThrottle *throttle, JobqPace *pace,
							 int failures, TimestampTz now);
extern int	jobq_lane_room(JobqDatabase *db, const JobqLane *lane,
						   TimestampTz now, TimestampTz *due);
extern bool jobq_lane_free(JobqDatabase *db, const JobqLane *lane,
						   TimestampTz now);

/* src/ready/group_table.c */
extern JobqGroup *jobq_group_find(JobqDatabase *db, int64 id);
extern JobqGroup *jobq_group_make(JobqDatabase *db, int64 id, uint16 limiter,
								  TimestampTz now);
extern void jobq_groups_forget(JobqDatabase *db, TimestampTz now);

/* src/ready/lease.c */
extern void jobq_leases_clear(JobqDatabase *db);
extern int64 jobq_lease_token(JobqDatabase *db);
extern JobqLease *jobq_lease_find(JobqDatabase *db, int64 id);
extern JobqLease *jobq_lease_add(JobqDatabase *db, const JobqPush *job,
								 int64 token, TimestampTz until,
								 uint32 bundle);
extern void jobq_lease_limit(JobqDatabase *db, JobqLease *lease,
							 TimestampTz deadline);
extern void jobq_lease_move(JobqDatabase *db, JobqLease *lease, uint32 bundle,
							TimestampTz until);
extern uint32 jobq_lease_bundle(JobqDatabase *db);
extern void jobq_lease_bundle_release(JobqDatabase *db, uint32 bundle);
extern JobqPush jobq_lease_push(const JobqLease *lease);

/* src/ready/party.c */
extern JobqParty *jobq_party_find(JobqDatabase *db, int32 queue_id,
								  uint32 tenant);
extern JobqRole *jobq_role_find(JobqDatabase *db, Oid role);

/* src/ready/heap.c */
extern uint16 jobq_order_find(JobqDatabase *db, const uint8 *rank);
extern void jobq_orders_forget(JobqDatabase *db);
extern void jobq_consumers_wake(JobqDatabase *db);
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
extern void jobq_lane_note(JobqDatabase *db, JobqLane *lane);
extern JobqLane *jobq_lane_next_noted(JobqDatabase *db);

/* src/ready/lane.c */
extern JobqLane *jobq_lane_find(JobqDatabase *db, int32 queue_id,
								int32 priority, Oid role, int32 flow,
								bool quarantine, bool create);
extern void jobq_lane_look(JobqDatabase *db, JobqLane *lane, JobqKey from,
						   JobqWakeList *wake);
extern void jobq_lane_reset(JobqDatabase *db, JobqLane *lane);
extern void jobq_lane_unrank(JobqDatabase *db, JobqLane *lane);
extern void jobq_lane_rank(JobqDatabase *db, JobqLane *lane, uint16 order,
						   bool consumer, bool paused);

/* src/ready/wake.c */
extern void jobq_lane_wake(JobqDatabase *db, JobqLane *lane, TimestampTz now,
						   JobqWakeList *wake);
extern void jobq_role_wake(JobqDatabase *db, Oid role, TimestampTz now,
						   JobqWakeList *wake);
extern void jobq_relay_mark(JobqDatabase *db, TimestampTz now,
							JobqWakeList *wake);

/* src/ready/group.c */
extern void jobq_group_call(JobqDatabase *db, uint32 group, int64 id,
							int32 priority, TimestampTz run_at);
extern void jobq_group_end(JobqDatabase *db, int64 id, int64 job_id,
						   TimestampTz now, JobqWakeList *wake);
extern void jobq_groups_wake(JobqDatabase *db, TimestampTz now,
							 JobqWakeList *wake);
extern void jobq_group_refilled(JobqDatabase *db, JobqGroup *group,
								const JobqPush *rows, int nrows,
								const JobqPush *last, TimestampTz now,
								JobqWakeList *wake);

/* src/ready/permit.c */
extern void jobq_limits_clear(JobqDatabase *db);
extern JobqVerdict jobq_permits_ask(JobqDatabase *db, JobqPush *job,
									bool limited, TimestampTz now,
									JobqWakeList *wake);
extern void jobq_permits_release(JobqDatabase *db, JobqPermits *permits,
								 int64 id, bool live, bool unused,
								 TimestampTz now, JobqWakeList *wake);
extern void jobq_lease_remove(JobqDatabase *db, JobqLease *lease, bool live,
							  bool unused, TimestampTz now,
							  JobqWakeList *wake);
extern void jobq_lease_undo(JobqDatabase *db, int64 id, int64 token,
							TimestampTz now, JobqWakeList *wake);
extern void jobq_limits_failed(JobqDatabase *db, int32 queue_id, uint32 kind,
							   int64 group, int failures, TimestampTz now);
extern void jobq_limits_wake(JobqDatabase *db, TimestampTz now,
							 JobqWakeList *wake);

/* src/ready/prefetch.c */
extern bool jobq_prefetch_take(JobqDatabase *db, JobqSlot *slot,
							   JobqPush *popped);

/* src/ready/push.c */
extern void jobq_ready_clear(JobqDatabase *db);
extern void jobq_ready_push(JobqDatabase *db, const JobqPush *push,
							TimestampTz now, JobqWakeList *wake);
extern void jobq_ready_look(JobqDatabase *db, const JobqPush *from,
							TimestampTz now, JobqWakeList *wake);
extern void jobq_ready_publish(JobqDatabase *db, JobqLane *lane,
							   const JobqPush *rows, int nrows,
							   JobqKey cursor, bool more,
							   TimestampTz next_due, JobqWakeList *wake);
extern void jobq_prefetch_return(JobqDatabase *db, JobqSlot *slot,
								 JobqWakeList *wake);

/* src/ready/pop.c */
extern bool jobq_ready_pop(JobqDatabase *db, const JobqTaker *taker,
						   TimestampTz now, JobqPush *popped,
						   JobqWakeList *wake);
extern void jobq_quarantine_over(JobqDatabase *db, int slot);

/* src/ready/offer.c */
extern void jobq_unlock(JobqDatabase *db, JobqWakeList *wake);
extern uint32 jobq_reserver_add(JobqDatabase *db, const JobqTaker *taker,
								const Oid *denied, int ndenied);
extern void jobq_reserver_remove(JobqDatabase *db, uint32 place,
								 TimestampTz now, JobqWakeList *wake);
extern bool jobq_offer_take(JobqDatabase *db, uint32 place,
							const JobqTaker *taker, JobqPush *job);

static inline int
jobq_key_cmp(JobqKey a, JobqKey b)
{
	if (a.run_at != b.run_at)
		return a.run_at < b.run_at ? -1 : 1;
	if (a.id != b.id)
		return a.id < b.id ? -1 : 1;
	return 0;
}

#endif							/* JOBQ_READY_H */
