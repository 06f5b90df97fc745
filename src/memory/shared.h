/*-------------------------------------------------------------------------
 *
 * shared.h
 *	  The shared memory of jobq and its lock protocol.
 *
 * The table jobq.job is the truth; shared memory is the index of what may
 * run now.  Everything here is rebuilt from the table after a restart.
 *
 * Layout: one JobqShared, then jobq.max_databases JobqDatabase structs, each
 * with its lanes and entries, then jobq.max_workers JobqSlot structs.  All
 * sizes are fixed at server start.
 *
 * Locks, in the order in which they may be taken:
 *
 *	JobqShared.lock		which database owns which JobqDatabase; which slots
 *						are in use; what the launcher is asked to do
 *	JobqDatabase.lock	lanes, entries, the relay ring, and whether a worker
 *						is idle: all that a push or a pop touches
 *	JobqShared.waiter_lock	the list of sessions in jobq.wait()
 *	JobqSlot.mutex		what a worker is running; held for a few instructions
 *
 * No lock is held across anything that can fail, and none is taken by a
 * process that holds a later one.
 *
 * Wake-ups: a latch that is set tells that there is news, but one that is not
 * set tells nothing.  Whoever waits for a lock, or for somebody else who reads
 * a page, resets it on the way.  So whoever does such things between his look
 * and his sleep needs a mark of his own, which is made before the latch is set:
 * "calls" of launcher and scheduler, JobqWaiter.woken.  A worker or a consumer
 * does nothing of the kind between the two.
 *
 * src/memory/shared.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SHARED_H
#define JOBQ_SHARED_H

#include "base/jobq.h"
#include "ready/limit.h"

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/spin.h"

/* "No entry", "no lane" in the index fields below. */
#define JOBQ_NONE		PG_UINT32_MAX

/* The place of a job within its lane. */
typedef struct JobqKey
{
	TimestampTz run_at;
	int64		id;
} JobqKey;

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
	bool		ranked;			/* rank[], paused and consumer are valid */
	bool		consumer;		/* served to consumers outside, not to workers */
	bool		paused;
	bool		notify;			/* queue channel to be notified */
	bool		marked;			/* to be offered to consumers that wait */
	uint8		rank[JOBQ_MAX_POOLS];	/* place in the pool's order, or
										 * JOBQ_NOT_SERVED */
	int32		queue_id;
	int32		priority;
	Oid			role;
	int32		flow;
	uint32		kind;			/* as in JobqPush; known with the first entry */
	uint32		tenant;
	uint16		queue_limiter;	/* valid if ranked; or JOBQ_NO_LIMITER */
	uint16		kind_limiter;
	bool		skipping;		/* jobs found no place for their groups, from */
	bool		only;			/* the only lane of its queue, as of: */
	JobqKey		skipped;		/* this one on: to be read again */
	uint32		parked;			/* its entries that are parked at groups */
	uint32		only_as_of;		/* JobqDatabase.lanes_made */
	double		turn;			/* of its tenant */
	double		queue_turn;		/* of its queue, among weighted queues */
	JobqKey		cursor;
	JobqKey		missed;			/* lowest key above the cursor that found no
								 * place in JobqDatabase.late while scanning */
	TimestampTz next_due;		/* lowest known run_at in the future */
	uint32		head;
	uint32		tail;
	uint32		count;
	uint32		hash_next;		/* next lane in the same bucket */
	uint32		active_prev;	/* lanes with count > 0 are linked */
	uint32		active_next;
} JobqLane;

#define JOBQ_NOT_SERVED		0xFF
#define JOBQ_MAX_LATE		128
#define JOBQ_LANE_BUCKETS	1024

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
 * The place of a session in jobq.reserve() that waits for work.  It is free, or
 * in the list of those that wait, or holds an offer: a job that somebody has
 * popped for the session, with its permits.
 *
 * Rule: when db->lock is released, a session waits only if there is no job for
 * it that may start.  So whoever puts a job into a lane, or gives a permit back,
 * marks the lane (jobq_ready_wake()), and releases the lock by jobq_unlock(),
 * which makes offers of what is in marked lanes, and then sets the latches.  If
 * it would make too many, lanes remain marked, and the next who releases the
 * lock goes on: one who was made an offer, at the latest.
 *
 * A session that waits is not asked which roles it may act for, so only jobs of
 * roles are offered of which it has said so; of a role that it has not thought
 * about it is told, and looks for itself.  It leaves the list under the lock of
 * its next look, or takes its offer there, or gives it back if it has to leave:
 * then the job is offered to the next one.
 */
#define JOBQ_MAX_TAKE_QUEUES	16
#define JOBQ_MAX_RESERVERS		1024
#define JOBQ_MAX_KNOWN_ROLES	32
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

/* How many jobs a queue with max_length has: see length.c. */
#define JOBQ_MAX_LENGTHS	64
#define JOBQ_LENGTH_XIDS	512
#define JOBQ_MAX_PREPARED	64
typedef struct JobqLength
{
	int32		queue_id;		/* 0: free */
	Oid			jobs;			/* jobq.job that was counted */
	bool		valid;
	int64		committed;
	int64		reserved;		/* by open transactions */
	FullTransactionId xmax;		/* of the snapshot that counted */
	int			nxip;
	TransactionId xip[JOBQ_LENGTH_XIDS];
} JobqLength;

/* Places that a prepared transaction has reserved. */
typedef struct JobqPreparedPlaces
{
	TransactionId xid;
	int32		queue_id;
	Oid			jobs;
	int			n;
} JobqPreparedPlaces;

/*
 * A batch whose jobs come to their end: see batch_commit.c.  Its place is a
 * hash of its id; another batch may take it unless a look is wanted.
 */
#define JOBQ_MAX_WATCHES	256
#define JOBQ_ANY_WITNESS	PG_UINT64_MAX	/* each job */
typedef struct JobqBatchWatch
{
	pg_atomic_uint64 batch_id;	/* 0: none; may be read without lock */
	pg_atomic_uint64 witness;	/* a live job of it, or 0 while the scheduler
								 * looks for one; likewise */
	bool		look;			/* the scheduler shall look at it */
} JobqBatchWatch;

/* A message for the NOTIFY relay. */
#define JOBQ_RELAY_PAYLOAD	440
#define JOBQ_RELAY_SIZE		480
typedef struct JobqRelayMessage
{
	char		channel[NAMEDATALEN];
	char		payload[JOBQ_RELAY_PAYLOAD];
} JobqRelayMessage;

/* Jobs that schedules wait for; where there are more, they are polled. */
#define JOBQ_MAX_WAITED		64

/* A job whose server process crashed, to be charged by its scheduler. */
#define JOBQ_MAX_CULPRITS	32
typedef struct JobqCulprit
{
	int64		job_id;
	int32		attempt;		/* attempts charged before the run */
	int32		record;			/* where the flight recorder keeps it */
} JobqCulprit;

/*
 * State of one served database.
 */
typedef struct JobqDatabase
{
	LWLock	   *lock;

	/* Protected by JobqShared.lock; dboid may be read without. */
	Oid			dboid;			/* InvalidOid: not in use */
	PGPROC	   *scheduler;		/* NULL: none running.  Also changed under
								 * this struct's own lock. */
	int			scheduler_pid;
	pg_atomic_uint32 calls;		/* how often it was woken */
	bool		stop;			/* DDL on the database: processes shall leave */
	TimestampTz stop_until;		/* ... and stay away until then */
	TimestampTz retry_at;		/* do not start a scheduler before */
	int			failures;		/* schedulers that died young, in a row */
	bool		absent;			/* the extension is not installed there */

	/* Protected by lock. */
	bool		complete;		/* a lane that is not here has no due row */
	uint32		lanes_made;		/* how many so far, and one more */
	bool		rescan;			/* scheduler shall read all lanes anew */
	bool		reload;			/* queues or settings changed: rank lanes anew */
	bool		overflow;		/* a lane found no place */
	uint32		evictions;		/* lanes that gave way with due rows */
	bool		starved;		/* a scan found no free entry */
	TimestampTz forgotten_due;	/* lowest next_due of lanes that gave way */
	bool		relay_pending;	/* relay has something to say */
	bool		can_spawn;		/* waking the scheduler may get more workers */
	Oid			waiting_role;	/* it has jobs and lacks workers: one of
								 * another role that finds nothing to do had
								 * better leave */
	TimestampTz wake_at;		/* when the scheduler means to wake */
	TimestampTz relay_due;		/* when relay_pending is to be served */
	uint32		nfree;
	uint32		free_head;
	uint32		active_head;
	uint64		news;			/* grows with each lane that gets its first
								 * entry; may be read without lock */
	int			nlate;			/* handed over while their lane, the only one
								 * at a time, is scanned */
	JobqPush	late[JOBQ_MAX_LATE];
	int32		quarantine_slot;	/* slot that runs a quarantined job, or -1 */
	uint32		bucket[JOBQ_LANE_BUCKETS];
	uint32		relay_head;		/* next message to send */
	uint32		relay_count;
	uint32		relay_reserved; /* places promised to open transactions */
	/* Limits, likewise; see limit.h. */
	bool		limits_loaded;
	bool		limits_stale;	/* policies have changed since */
	bool		limits_loading; /* the scheduler is reading them */
	bool		weighted;		/* a queue has a weight: queues take turns */
	Oid			limits_of;		/* jobq.job that they are about */
	int			nlimiters;		/* places that are or were in use */
	double		queue_turn;		/* of the queue that was served last */
	TimestampTz limits_due;		/* when a lane may be free, with time */
	TimestampTz groups_due;		/* when a group may be */
	bool		group_refill;	/* a group wants to be read */
	bool		groups_full;	/* a lane is skipping */
	TimestampTz groups_swept_at;	/* idle groups were looked for */
	uint32		ngroups;
	uint32		group_free;
	JobqLimiter limiters[JOBQ_MAX_LIMITERS];
	JobqGroup  *groups;			/* [jobq_max_groups] */
	uint32	   *group_bucket;	/* [jobq_max_groups] */

	bool		created;		/* a new extension: not what is served,
								 * perhaps */
	bool		leases_loaded;	/* what jobq.lease has is in leases */
	int64		lease_life;		/* grows when they are all forgotten */
	Oid			leases_of;		/* jobq.job that they are about */
	Oid			job_file;		/* its file when rows' places were first
								 * noted; may be read without lock */
	uint32		nleases;
	uint32		lease_free;
	uint32		bundle_free;
	TimestampTz next_expiry;	/* not above the lowest "until" */
	uint32		ngarbage;		/* more than fit: look through the table */
	bool		any_marked;		/* perhaps a lane is */
	uint32		reserver_free;
	uint32		reserver_head;	/* of the list of those that wait */
	int			nlengths;		/* may be read without lock */
	JobqLength	lengths[JOBQ_MAX_LENGTHS];
	int			nprepared;
	JobqPreparedPlaces prepared[JOBQ_MAX_PREPARED];
	bool		schedules_changed;	/* scheduler shall read them again */
	bool		schedule_freed; /* a job of waited[] may have finished */
	int			nwaited;		/* may be read without lock */
	int64		waited[JOBQ_MAX_WAITED];	/* jobs that schedules wait for */
	bool		batches_look;	/* scheduler shall look at those of watches[] */
	bool		batches_sweep;	/* ... and at all */
	JobqBatchWatch watches[JOBQ_MAX_WATCHES];
	int			nculprits;
	JobqCulprit culprits[JOBQ_MAX_CULPRITS];

	JobqLane   *lanes;			/* [jobq_max_lanes] */
	JobqEntry  *entries;		/* [jobq_ready_entries] */
	JobqRelayMessage *relay;	/* [JOBQ_RELAY_SIZE] */
	JobqLease  *leases;			/* [jobq_max_leases] */
	uint32	   *lease_bucket;	/* [jobq_max_leases] */
	JobqLeaseBundle *bundles;	/* [JOBQ_MAX_BUNDLES] */
	JobqLeaseRow *garbage;		/* [JOBQ_LEASE_GARBAGE]: those that are not
								 * needed any more */
	JobqReserver *reservers;	/* [JOBQ_MAX_RESERVERS] */
} JobqDatabase;

typedef enum JobqSlotState
{
	JOBQ_SLOT_FREE = 0,			/* -> STARTING, by a scheduler */
	JOBQ_SLOT_STARTING,			/* registered; -> ATTACHED by the worker, DEAD
								 * by the scheduler */
	JOBQ_SLOT_ATTACHED,			/* -> DEAD by the worker's exit hook */
	JOBQ_SLOT_DEAD,				/* -> FREE by the scheduler, after it charged
								 * the job */
} JobqSlotState;

/* What a worker was asked to stop for; ordered by who wins. */
typedef enum JobqStop
{
	JOBQ_STOP_NONE = 0,
	JOBQ_STOP_TIMEOUT,
	JOBQ_STOP_CANCEL,
} JobqStop;

#define JOBQ_PROGRESS_LEN	128
#define JOBQ_MAX_HAND		31

/*
 * One worker.  The generation grows each time the slot is given out, so that
 * a process that was slow to start cannot take another's place.
 */
typedef struct JobqSlot
{
	/* Protected by JobqShared.lock. */
	JobqSlotState state;
	uint32		generation;
	int			database;		/* index of its JobqDatabase */
	Oid			role;
	int			pool;

	/* Set by the worker when it attaches, under JobqShared.lock. */
	PGPROC	   *proc;
	int			pid;
	TimestampTz started_at;
	bool		connect_failed; /* it died before it was connected */

	/* Protected by JobqDatabase.lock. */
	JobqPermits permits;		/* of the last job that was popped */
	int64		permits_job;
	bool		idle;
	bool		resting;		/* leaves the processors to other workers */
	bool		retire;			/* leave after the current job */

	/* Set by the worker for itself: what became of its last job. */
	bool		live;			/* it will run again */
	bool		unused;			/* it did not run at all, or not yet */

	/* Protected by mutex; the worker itself reads its own without. */
	slock_t		mutex;
	int64		job_id;			/* 0: none */
	int32		queue_id;
	int32		attempt;		/* attempts charged before this run */
	TimestampTz job_started_at;
	TimestampTz deadline;		/* query cancel by the worker's own timer */
	TimestampTz kill_at;		/* SIGTERM by the scheduler, or infinity */
	int64		stop_job;		/* job that stop is meant for */
	JobqStop	stop;
	float4		progress;		/* percent, or -1 */
	char		kind[NAMEDATALEN * 2];
	char		message[JOBQ_PROGRESS_LEN];
	uint64		jobs_done;
	uint64		jobs_failed;

	/* The hand (hand.c): jobs [hand_next, hand_count) are next. */
	uint32		hand_next;
	uint32		hand_count;
	uint8		hand_rank;		/* of their lane, in the worker's pool */
	int32		hand_priority;
	uint64		hand_news;		/* JobqDatabase.news when we last thought */
	JobqPush	hand[JOBQ_MAX_HAND];
} JobqSlot;

/* A session in jobq.wait(). */
typedef struct JobqWaiter
{
	PGPROC	   *proc;			/* NULL: free */
	bool		woken;			/* since it began to look */
	Oid			dboid;
	int64		job_id;
} JobqWaiter;

#define JOBQ_MAX_WAITERS	2048

typedef struct JobqShared
{
	LWLock	   *lock;
	LWLock	   *waiter_lock;

	/* Protected by lock. */
	PGPROC	   *launcher;		/* NULL: none running */
	pg_atomic_uint32 calls;		/* how often it was woken; by no lock */
	bool		flight_read;	/* the flight recorder was read in this life */
	int64		clock_offset;	/* microseconds; tests only */
	bool		poke;			/* launcher shall look at all databases again */
	uint64		pokes;			/* how often it was asked to, from the start
								 * on */
	uint64		pokes_seen;		/* by its last look */
	TimestampTz poked_at;
	int			wanting;		/* database that lacks a process ... */
	TimestampTz wanting_at;		/* ... since then, 0 if none */

	int			ndatabases;
	JobqDatabase *databases;
	int			nslots;
	JobqSlot   *slots;

	pg_atomic_uint32 nwaiters;
	JobqWaiter	waiters[JOBQ_MAX_WAITERS];	/* by waiter_lock */
} JobqShared;

/* src/memory/shared.c */
extern JobqShared *jobq_shared;
extern void jobq_shmem_request(void);
extern void jobq_shmem_startup(void);
extern void jobq_warn_if_not_served(void);
extern void jobq_require_preload(const char *what);
extern JobqDatabase *jobq_my_database(void);
extern JobqDatabase *jobq_find_database(Oid dboid);
extern void jobq_poke_launcher(void);
extern bool jobq_has_scheduler(JobqDatabase **db);
extern void jobq_wake_launcher(void);
extern void jobq_wake_scheduler(JobqDatabase *db);
extern void jobq_quarantine_over(JobqDatabase *db, int slot);
extern void jobq_wake_waiters(Oid dboid, int64 job_id);
extern JobqSlot *jobq_slot_of_job(JobqDatabase *db, int64 job_id);

/* src/ready/ready.c: all of these want db->lock held exclusively */
#define JOBQ_MAX_WAKE	16
#define JOBQ_MAX_OFFERS 16
typedef struct JobqWakeList
{
	int			n;
	bool		scheduler;
	PGPROC	   *proc[JOBQ_MAX_WAKE + JOBQ_MAX_OFFERS];
} JobqWakeList;

extern void jobq_ready_clear(JobqDatabase *db);
extern JobqLane *jobq_lane_find(JobqDatabase *db, int32 queue_id,
								int32 priority, Oid role, int32 flow,
								bool quarantine, bool create);
extern void jobq_ready_push(JobqDatabase *db, const JobqPush *push,
							TimestampTz now, JobqWakeList *wake);
extern void jobq_ready_look(JobqDatabase *db, JobqLane *lane, JobqKey from,
							JobqWakeList *wake);
extern void jobq_ready_publish(JobqDatabase *db, JobqLane *lane,
							   const JobqPush *rows, int nrows,
							   JobqKey cursor, bool more,
							   TimestampTz next_due, JobqWakeList *wake);
extern void jobq_relay_mark(JobqDatabase *db, TimestampTz now,
							JobqWakeList *wake);

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

extern bool jobq_ready_pop(JobqDatabase *db, const JobqTaker *taker,
						   TimestampTz now, JobqPush *popped,
						   JobqWakeList *wake);
extern void jobq_ready_wake(JobqDatabase *db, JobqLane *lane,
							TimestampTz now, JobqWakeList *wake);

/* src/ready/offer.c: likewise; the first one releases the lock */
extern void jobq_unlock(JobqDatabase *db, JobqWakeList *wake);
extern void jobq_reservers_clear(JobqDatabase *db);
extern uint32 jobq_reserver_add(JobqDatabase *db, const JobqTaker *taker,
								const Oid *denied, int ndenied);
extern void jobq_reserver_remove(JobqDatabase *db, uint32 place,
								 TimestampTz now, JobqWakeList *wake);
extern bool jobq_offer_take(JobqDatabase *db, uint32 place,
							const JobqTaker *taker, JobqPush *job);

/* src/ready/hand.c */
extern bool jobq_hand_take(JobqDatabase *db, JobqSlot *slot,
						   JobqPush *popped);
extern bool jobq_hand_take_unless(JobqDatabase *db, JobqSlot *slot, bool lane,
								  uint8 rank, int32 priority,
								  JobqPush *popped);
extern void jobq_hand_put(JobqDatabase *db, JobqSlot *slot, uint8 rank,
						  const JobqPush *job);
extern int	jobq_hand_room(JobqSlot *slot);
extern bool jobq_hand_steal(const JobqSlot *mine, JobqPush *popped);
extern void jobq_hand_return(JobqDatabase *db, JobqSlot *slot,
							 JobqWakeList *wake);
extern void jobq_hand_forget(JobqDatabase *db);

/* src/ready/lease.c: all of these want db->lock held exclusively */
extern void jobq_leases_clear(JobqDatabase *db);
extern JobqLease *jobq_lease_find(JobqDatabase *db, int64 id);
extern JobqLease *jobq_lease_add(JobqDatabase *db, const JobqPush *job,
								 int64 token, TimestampTz until,
								 uint32 bundle);
extern void jobq_lease_limit(JobqDatabase *db, JobqLease *lease,
							 TimestampTz deadline);
extern void jobq_lease_remove(JobqDatabase *db, JobqLease *lease, bool live,
							  bool unused, TimestampTz now,
							  JobqWakeList *wake);
extern void jobq_lease_undo(JobqDatabase *db, int64 id, int64 token,
							TimestampTz now, JobqWakeList *wake);
extern void jobq_lease_move(JobqDatabase *db, JobqLease *lease, uint32 bundle,
							TimestampTz until);
extern uint32 jobq_lease_bundle(JobqDatabase *db);
extern void jobq_lease_bundle_release(JobqDatabase *db, uint32 bundle);
extern JobqPush jobq_lease_push(const JobqLease *lease);

#define JOBQ_LANE_INDEX(db, lane)	((uint32) ((lane) - (db)->lanes))

static inline int
jobq_key_cmp(JobqKey a, JobqKey b)
{
	if (a.run_at != b.run_at)
		return a.run_at < b.run_at ? -1 : 1;
	if (a.id != b.id)
		return a.id < b.id ? -1 : 1;
	return 0;
}

#endif							/* JOBQ_SHARED_H */
