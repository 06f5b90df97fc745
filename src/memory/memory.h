/*-------------------------------------------------------------------------
 *
 * memory.h
 *	  The door of the room memory: the frame of jobq's shared memory, and the
 *	  processes that are known there.
 *
 * The table jobq_internal.job is the truth; shared memory is the index of what
 * may run now.  Everything here is rebuilt from the table after a restart.
 *
 * This room has the places of databases and workers, and knows who is to be
 * woken.  What else lies in shared memory belongs to other rooms: each of
 * them declares its own *areas*, which hang on the cluster, on a database or on a
 * worker's slot.  All sizes are fixed at server start.  So nothing here is
 * ever allocated, and nothing can fail.
 *
 * Locks, in the order in which they may be taken:
 *
 *	JobqShared.lock		which database owns which JobqDatabase; which slots
 *						are in use; what the launcher is asked to do
 *	JobqDatabase.lock	the areas of the database, and whether a worker is
 *						idle: all that a push or a pop touches
 *	JobqWaiters.lock	the sessions in jobq.wait(); see commit.h
 *	JobqLinePool.lock	what jobs that run have told by log(); see lines.h
 *	JobqStats.lock		which name is counted where; see stats.h
 *	JobqSlot.mutex		what a worker is running, and what it has taken along;
 *						held for a few instructions, or for one signal to the
 *						worker, which is then meant for the job that it runs
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
 * src/memory/memory.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_MEMORY_H
#define JOBQ_MEMORY_H

#include "base/base.h"

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/spin.h"

/* "No entry", "no lane" and the like in fields that hold an index. */
#define JOBQ_NONE		PG_UINT32_MAX

/*
 * A job that its worker was asked to stop when it could do so no more, and that may run
 * again: to be cancelled.  The end of the server forgets it.
 */
typedef struct JobqOwed
{
	int64		job_id;
	uint64		ticket;			/* grows each time that this is owed */
} JobqOwed;

#define JOBQ_MAX_OWED	64

/*
 * A part of its work that the scheduler cannot do.
 */
typedef struct JobqTrouble
{
	char		what[64];		/* "the scheduler cannot ..."; "": not in use */
	char		error[192];
	TimestampTz since;			/* the first failure */
	TimestampTz until;			/* over, unless it fails again before; 0: over */
	TimestampTz told_at;		/* when the log was told of this error */
	int64		failures;		/* since the first */
} JobqTrouble;

#define JOBQ_MAX_TROUBLES	16

/*
 * One served database.
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
	int			nworkers;		/* workers, when they were last counted */
	int			ndead;			/* slots that are JOBQ_SLOT_DEAD; may be read
								 * without */
	TimestampTz wants_since;	/* it lacks a place for a process; 0: no */
	TimestampTz wants_at;		/* when it said so last */

	/*
	 * Grows when the place is given to a database, under both locks.  No two
	 * places ever have the same, so who kept it knows what is still his.
	 */
	int64		life;

	/* The scheduler's own; they outlive it. */
	int64		clock_seen;		/* the clock's offset that it goes by; 0: none */
	TransactionId ahead_until;	/* row versions before this may have times of
								 * a clock that was ahead; 0: none has */
	int64		ahead_by;		/* the clock was put back by so many
								 * microseconds */
	int64		ahead_more;		/* and, while that is corrected, by so many
								 * more */
	TransactionId ahead_since;	/* row versions before this were corrected by
								 * no pass before; 0: there was none */

	/* Protected by lock: what the scheduler is asked to do. */
	bool		created;		/* a new extension: not what is served,
								 * perhaps */
	bool		rescan;			/* read all lanes anew */
	bool		reload;			/* queues or settings changed: rank lanes anew */
	bool		relay_pending;	/* the relay has something to say ... */
	TimestampTz relay_due;		/* ... at this time */
	bool		schedules_changed;	/* read the schedules again */
	bool		schedule_freed; /* a job that a schedule waits for may have
								 * finished */
	bool		monitors_changed;	/* look at the monitors */
	bool		batches_look;	/* look at the batches that are watched */
	bool		batches_sweep;	/* ... and at all */
	int			nowed;			/* cancels that are owed; may be read without */
	JobqOwed	owed[JOBQ_MAX_OWED];
	uint64		tickets;		/* of these, so far */

	/* Protected by lock: what the scheduler tells. */
	TimestampTz wake_at;		/* when it means to wake */
	bool		can_spawn;		/* waking it may get more workers */
	bool		places_shared;	/* pools lack processes: each takes the
								 * others' places */
	int			wanted[JOBQ_MAX_POOLS]; /* so many workers are to leave: those
										 * that yield or find nothing to do */
	int64		stay;			/* ... unless its role comes back: not before
								 * this time, in microseconds */
	bool		copied;			/* is a copy that was not adopted: no worker
								 * starts; may be read without */
	int			ntroubles;		/* with "until"; may be read without */
	JobqTrouble troubles[JOBQ_MAX_TROUBLES];

	/* Protected by lock: the areas of the rooms. */
	struct JobqReady *ready;	/* src/ready */
	struct JobqLimits *limits;
	struct JobqGroups *groups;
	struct JobqLeases *leases;
	struct JobqOffers *offers;
	struct JobqShares *shares;
	struct JobqTold *told;		/* commit.h */
	struct JobqLengths *lengths;	/* store.h */
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
	bool		gave_back;		/* it ended with a job that had not begun */

	/* Protected by JobqDatabase.lock. */
	bool		idle;
	TimestampTz idle_since;		/* when it looked for a job last; 0: never */
	bool		resting;		/* leaves the processors to other workers */
	bool		retire;			/* leave after the current job */
	bool		yields;			/* the same, if another role still wants that */
	bool		yields_anyway;	/* ... or not */
	TimestampTz yields_since;
	bool		comes_back;		/* its role had a worker shortly before */

	/* Protected by mutex; the worker itself reads its own without. */
	slock_t		mutex;
	int64		job_id;			/* 0: none */
	Oid			job_role;		/* whose job it is; role runs it */
	bool		over;			/* its attempt is committed */
	bool		begun;			/* it has had the job's row: set by the worker
								 * without the mutex, before anybody else can
								 * have that */
	bool		asked_for;		/* others have popped the job meanwhile, and
								 * left it to this worker */
	bool		charging;		/* it has died, and the scheduler writes that */
	int32		queue_id;
	uint32		stat;			/* where it is counted: see stats.h */
	int32		attempt;		/* attempts charged before this run */
	int64		lease;			/* token of the row's lease, if the handler is
								 * a procedure; or 0 */
	TimestampTz job_started_at;
	TimestampTz deadline;		/* query cancel by the worker's own timer */
	TimestampTz kill_at;		/* SIGTERM by the scheduler, or infinity */
	int64		stop_job;		/* job that stop is meant for */
	JobqStop	stop;
	float4		progress;		/* percent, or -1 */
	char		kind[NAMEDATALEN * 2];
	char		message[JOBQ_PROGRESS_LEN];
	uint32		tenant;			/* hash of the job's */
	bool		passes;			/* it passes by its limiter, if that asks */
	uint64		jobs_done;
	uint64		jobs_failed;

	/* The areas of the rooms; each says who protects it. */
	struct JobqHolding *holding;	/* ready.h */
} JobqSlot;

/*
 * What is known of the clock; see clock_watch.c.  An offset is by how many microseconds
 * jobq_now() is ahead of the time since boot.
 */
typedef struct JobqClock
{
	slock_t		mutex;
	int64		seen;			/* time since boot at the last look */
	int64		offset;			/* at that look */
	int64		since;			/* time since boot when it was seen first */
	int64		trusted;		/* the offset that deleting rows goes by */
} JobqClock;

typedef struct JobqShared
{
	LWLock	   *lock;

	/* Protected by lock. */
	PGPROC	   *launcher;		/* NULL: none running */
	pg_atomic_uint32 calls;		/* how often it was woken; by no lock */
	bool		flight_read;	/* the flight recorder was read in this life */
	bool		poke;			/* launcher shall look at all databases again */
	uint64		pokes;			/* how often it was asked to, from the start
								 * on */
	uint64		pokes_seen;		/* by its last look */
	TimestampTz restored_at;	/* when a restore has made the extension, last */
	TimestampTz refused_at;		/* the server had no place for a process */

	int64		clock_offset;	/* microseconds; see clock.c */
	JobqClock	clock;			/* protected by its own mutex */
	int64		lives;			/* of places of databases, so far */

	int			ndatabases;
	JobqDatabase *databases;
	int			nslots;
	JobqSlot   *slots;

	/* The areas of the rooms. */
	struct JobqWaiters *waiters;	/* commit.h */
	struct JobqLinePool *lines; /* ready.h */
	struct JobqHandovers *handovers;	/* likewise */
} JobqShared;

extern JobqShared *jobq_shared;

/* Locks of the cluster that areas have. */
typedef enum JobqExtraLock
{
	JOBQ_LOCK_OF_WAITERS,
	JOBQ_LOCK_OF_LINES,
	JOBQ_LOCK_OF_STATS,
	JOBQ_NEXTRA_LOCKS
} JobqExtraLock;

/*
 * An area of shared memory that a room declares.  "size" depends on settings
 * only that are fixed at server start.  "init" is called once for each owner of
 * the area (for the cluster: JobqShared; a JobqDatabase; a JobqSlot) with memory
 * of that size; those of slots come first, then those of the cluster.
 */
typedef enum JobqAreaOwner
{
	JOBQ_AREA_OF_SLOT,
	JOBQ_AREA_OF_CLUSTER,
	JOBQ_AREA_OF_DATABASE,
} JobqAreaOwner;

typedef struct JobqArea
{
	JobqAreaOwner owner;
	Size		(*size) (void);
	void		(*init) (void *owner, char *memory);
} JobqArea;

/* src/memory/memory.c */
extern void jobq_shmem_request(const JobqArea *const *areas, int nareas);
extern bool jobq_shmem_startup(void);
extern LWLock *jobq_extra_lock(JobqExtraLock which);
extern void jobq_require_preload(const char *what);
extern bool jobq_names_database(void);
extern void jobq_warn_if_not_served(void);

/* src/memory/clock_watch.c */
extern void jobq_clock_init(JobqClock *clock);
extern int64 jobq_clock_look(void);
extern int64 jobq_clock_ahead(void);
extern void jobq_clock_confirm(void);

/* src/memory/process.c */
extern JobqDatabase *jobq_my_database(void);
extern JobqDatabase *jobq_find_database(Oid dboid);
extern bool jobq_has_scheduler(JobqDatabase **db);
extern void jobq_poke_launcher(void);
extern void jobq_wake_launcher(void);
extern void jobq_wake_scheduler(JobqDatabase *db);
extern JobqSlot *jobq_slot_of_job(JobqDatabase *db, int64 job_id);
extern JobqSlot *jobq_slot_names_job(JobqDatabase *db, int64 job_id);
extern bool jobq_slot_keeps_job(JobqDatabase *db, int64 job_id, int attempt, bool tried);
extern JobqSlot *jobq_my_slot;
extern bool jobq_tells_by_relay;
extern void jobq_slot_job_over(void);
extern uint64 jobq_owe_cancel(JobqDatabase *db, int64 job_id);
extern void jobq_cancel_paid(JobqDatabase *db, uint64 ticket);

#endif							/* JOBQ_MEMORY_H */
