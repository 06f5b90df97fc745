/*-------------------------------------------------------------------------
 *
 *	  The door of the room memory: the frame of jobq's shared memory, and the processes
 *	  known there.
 *
 * The table jobq_internal.job is authoritative.  Shared memory is an index of the jobs that
 * may run now, and is rebuilt from the table after a restart.
 *
 * This room owns the slots of databases and workers, and wakes processes.  The rest of shared
 * memory belongs to the other rooms.  Each room declares *areas*, which are attached to the
 * cluster, to a database or to a worker's slot.  All sizes are fixed at server start.
 * Nothing is therefore allocated later, and nothing here can fail.
 *
 * Locks, in the order in which they may be acquired:
 *
 *	JobqShared.lock		which database owns which JobqDatabase; which slots
 *						are in use; requests to the launcher
 *	JobqDatabase.lock	the areas of the database, and whether a worker is
 *						idle: everything that a push or a pop touches
 *	JobqWaiters.lock	the sessions in jobq.wait(); see commit.h
 *	JobqLinePool.lock	lines written by running jobs with log(); see lines.h
 *	JobqStats.lock		which name is counted where; see stats.h
 *	JobqSlot.mutex		the run of a worker (run.h), and its prefetched
 *						jobs; held for a few instructions, or for one signal
 *						to the worker, so that the signal reaches the job for
 *						which it is meant
 *
 * No lock is held during an operation that can fail.  A process that holds a lock never
 * acquires an earlier one of this list.
 *
 * Wake-ups: a set latch means news, but a latch that is not set proves nothing.  A wait for a
 * lock, or for a page being read by another process, resets the latch.  A process with such
 * waits between check and sleep needs a separate mark, which is set before the latch: "calls"
 * of launcher and scheduler, JobqWaiter.woken.  A worker or a consumer has no such waits.
 *
 * src/memory/memory.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_MEMORY_H
#define JOBQ_MEMORY_H

#include "base/base.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/spin.h"

#include "memory/run.h"

/*
 * A pending cancellation: the request reached the job's worker too late to stop the job, and
 * the job may run again.  A restart of the server forgets pending cancellations.
 */
typedef struct JobqOwed
{
	int64		job_id;
	uint64		ticket;			/* differs for each request */
} JobqOwed;

#define JOBQ_MAX_OWED	64

/*
 * A task that the scheduler cannot do.
 */
typedef struct JobqTrouble
{
	char		what[64];		/* "the scheduler cannot ..."; "": unused */
	char		error[192];
	TimestampTz since;			/* time of the first failure */
	JobqSteady	until;			/* cleared then, if no failure follows; 0:
								 * cleared */
	JobqSteady	told_at;		/* when this error was last logged */
	int64		failures;		/* since the first failure */
} JobqTrouble;

#define JOBQ_MAX_TROUBLES	16

/*
 * One served database.
 */
typedef struct JobqDatabase
{
	LWLock	   *lock;

	/* Protected by JobqShared.lock; dboid may be read without the lock. */
	Oid			dboid;			/* InvalidOid: unused */
	PGPROC	   *scheduler;		/* NULL: none running.  Changed under both
								 * locks. */
	int			scheduler_pid;
	pg_atomic_uint32 calls;		/* number of wake-ups of the scheduler */
	bool		stop;			/* DDL on the database: processes must leave */
	JobqSteady	stop_until;		/* ... and stay away until this time */
	JobqSteady	retry_at;		/* start no scheduler before this time */
	int			failures;		/* schedulers in a row that died early */
	bool		absent;			/* the extension is not installed there */
	int			nworkers;		/* number of workers at the last count */
	int			ndead;			/* slots in state JOBQ_SLOT_DEAD; may be read
								 * without the lock */
	JobqSteady	wants_since;	/* since when a process slot is missing; 0:
								 * none is */
	JobqSteady	wants_at;		/* when the scheduler last reported this */

	/*
	 * Set to a new value under both locks each time this slot is assigned to
	 * a database.  Values are unique among all slots.  A caller that saved
	 * the value can tell whether the slot still belongs to the same database.
	 */
	int64		life;

	/* Used by the scheduler only; kept for the next scheduler. */
	int64		clock_seen;		/* offset of the clock in use; 0: none */
	TransactionId ahead_until;	/* row versions before this may have times of
								 * a clock that was ahead; 0: none */
	int64		ahead_by;		/* microseconds by which the clock was put
								 * back */
	int64		ahead_more;		/* further microseconds, if put back again
								 * during the correction */
	TransactionId ahead_since;	/* no earlier pass has corrected row versions
								 * before this; 0: there was none */

	/* Protected by lock: requests to the scheduler. */
	bool		created;		/* a new extension: the served objects may be
								 * outdated */
	bool		rescan;			/* read all lanes again */
	bool		reload;			/* queues or settings changed: rank lanes
								 * again */
	bool		relay_pending;	/* the relay has notifications to send ... */
	TimestampTz relay_due;		/* ... at this time */
	bool		schedules_changed;	/* read the schedules again */
	bool		schedule_freed; /* a job for which a schedule waits may have
								 * finished */
	bool		monitors_changed;	/* evaluate the monitors */
	bool		batches_look;	/* evaluate the watched batches */
	bool		batches_sweep;	/* ... and all others */
	int			nowed;			/* number of pending cancellations; may be
								 * read without the lock */
	JobqOwed	owed[JOBQ_MAX_OWED];
	uint64		tickets;		/* last ticket given to a pending cancellation */

	/* Protected by lock: state reported by the scheduler. */
	TimestampTz wake_at;		/* when the scheduler intends to wake */
	bool		can_spawn;		/* a wake-up may lead to more workers */
	bool		places_shared;	/* too few processes for all pools: workers
								 * serve other pools, too */
	bool		keeps_spares;	/* a worker that makes room becomes a spare */
	bool		delays_starts;	/* more workers start when one of the starting
								 * workers has looked for a job */
	int			wanted[JOBQ_MAX_POOLS]; /* number of workers to leave, marked
										 * "yields" or idle */
	int64		stay;			/* with "comes_back", a worker stays for these
								 * microseconds from its turn_at */
	bool		copied;			/* an unadopted copy: no worker starts; may be
								 * read without the lock */
	int			ntroubles;		/* entries with "until"; may be read without
								 * the lock */
	JobqTrouble troubles[JOBQ_MAX_TROUBLES];

	/*
	 * Protected by lock: the areas of the rooms.  Until the slot is assigned
	 * to its first database, the areas are not initialized, and only
	 * "unused_areas" is set.
	 */
	char	   *unused_areas;
	struct JobqReady *ready;	/* src/ready */
	struct JobqLimits *limits;
	struct JobqGroups *groups;
	struct JobqLeases *leases;
	struct JobqOffers *offers;
	struct JobqShares *shares;
	struct JobqTold *told;		/* commit.h */
	struct JobqLengths *lengths;	/* store.h */
} JobqDatabase;

/* Changed by jobq_slot_to() only. */
typedef enum JobqSlotState
{
	JOBQ_SLOT_FREE = 0,			/* -> STARTING, set by a scheduler */
	JOBQ_SLOT_STARTING,			/* registered; -> ATTACHED by the worker, FREE
								 * by the scheduler or the launcher */
	JOBQ_SLOT_ATTACHED,			/* -> DEAD by the worker's exit hook */
	JOBQ_SLOT_DEAD,				/* -> FREE by the scheduler, after charging
								 * the job, or by the launcher */
} JobqSlotState;

/* Number of ended jobs that the slot of a worker keeps, for the views. */
#define JOBQ_LAST_JOBS	20

/*
 * One worker.  The generation grows each time the slot is assigned, so that a process with a
 * slow start cannot occupy a reassigned slot.
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
	bool		connect_failed; /* the process died before it was connected */
	bool		gave_back;		/* the process ended with a job that had not
								 * begun */

	/* Protected by JobqDatabase.lock. */
	bool		idle;
	TimestampTz idle_since;		/* time of the last search for a job; 0: none
								 * since turn_at */
	TimestampTz turn_at;		/* begin of its time slice in the pool */
	bool		spare;			/* has left its pool, and runs no jobs */
	bool		resting;		/* leaves the processors to other workers */
	TimestampTz full_at;		/* when the worker last found that the busy
								 * workers use all processors; needs no lock */
	bool		retire;			/* leave after the current job */
	bool		yields;			/* the same, if another role still needs the
								 * slot */
	bool		yields_anyway;	/* ... or even if none does */
	TimestampTz yields_since;
	bool		comes_back;		/* the role had a worker shortly before */

	slock_t		mutex;
	JobqRun		run;			/* see run.h */
	JobqMembers *members;		/* likewise */
	uint64		jobs_done;		/* by the worker, without the mutex */
	uint64		jobs_failed;
	int64		last_jobs[JOBQ_LAST_JOBS];	/* the next ended job goes to the
											 * element jobs_done +
											 * jobs_failed, modulo the size */

	/* The areas of the rooms; each room documents its locks. */
	struct JobqHolding *holding;	/* ready.h */
} JobqSlot;

/* Sets of states, for jobq_foreach_slot(). */
#define JOBQ_SLOTS_ALL			(~0)
#define JOBQ_SLOTS_FREE			(1 << JOBQ_SLOT_FREE)
#define JOBQ_SLOTS_USED			(~(1 << JOBQ_SLOT_FREE))
#define JOBQ_SLOTS_COMING		((1 << JOBQ_SLOT_STARTING) | (1 << JOBQ_SLOT_ATTACHED))
#define JOBQ_SLOTS_ATTACHED		(1 << JOBQ_SLOT_ATTACHED)
#define JOBQ_SLOTS_DEAD			(1 << JOBQ_SLOT_DEAD)
#define JOBQ_SLOTS_WITH_RUN		((1 << JOBQ_SLOT_ATTACHED) | (1 << JOBQ_SLOT_DEAD))

/*
 * State of the clock watch; see clock_watch.c.  An offset is the number of microseconds by
 * which jobq_now() is ahead of the time since boot.
 */
typedef struct JobqClock
{
	slock_t		mutex;
	int64		seen;			/* time since boot at the last check */
	int64		offset;			/* the offset at that check */
	int64		since;			/* time since boot when this offset was first
								 * seen */
	int64		trusted;		/* the offset used for deleting rows */
} JobqClock;

typedef struct JobqShared
{
	LWLock	   *lock;

	/* Protected by lock. */
	PGPROC	   *launcher;		/* NULL: none running */
	pg_atomic_uint32 calls;		/* number of wake-ups of the launcher; needs
								 * no lock */
	bool		flight_read;	/* the flight recorder has been read since the
								 * start */
	bool		poke;			/* the launcher must check all databases again */
	uint64		pokes;			/* number of such requests since the start */
	uint64		pokes_seen;		/* requests seen by the last check */
	TimestampTz restored_at;	/* last time a restore created the extension */
	JobqSteady	refused_at;		/* last time the server had no slot for a
								 * process */

	JobqClockShift clock_shift; /* of jobq.test_clock() */
	JobqClock	clock;			/* protected by its own mutex */
	int64		lives;			/* assignments of database slots so far */

	int			ndatabases;
	JobqDatabase *databases;
	int			nslots;
	JobqSlot   *slots;

	/* The areas of the rooms. */
	struct JobqWaiters *waiters;	/* commit.h */
	struct JobqLinePool *lines; /* ready.h */
	struct JobqHandovers *handovers;	/* likewise */
} JobqShared;

extern JobqShared *jobq_shared; /* NULL without shared_preload_libraries */

/*
 * For each slot of the database in one of these states.  db may be NULL, for all databases.
 * "slot" is declared here.  Takes no lock: unless the caller holds JobqShared.lock, the state
 * and the database of the slot may change.
 */
#define jobq_foreach_slot(slot, db, states) \
	for (JobqSlot *slot = jobq_slot_from(jobq_shared->slots, (db), (states)); \
		 slot != NULL; slot = jobq_slot_from(slot + 1, (db), (states)))

static inline JobqSlot *
jobq_slot_from(JobqSlot *slot, const JobqDatabase *db, int states)
{
	for (; slot < jobq_shared->slots + jobq_shared->nslots; slot++)
		if (((1 << slot->state) & states) != 0 &&
			(db == NULL || db == &jobq_shared->databases[slot->database]))
			return slot;
	return NULL;
}

/*
 * This process holds the LWLock, in any mode or exclusively; or it holds no LWLock of jobq.
 * The postmaster initializes the shared memory without locks.  The server cannot tell which
 * process holds a spinlock.
 */
#define AssertLocked(lock) \
	Assert(!IsUnderPostmaster || LWLockHeldByMe(lock))
#define AssertExclusive(lock) \
	Assert(!IsUnderPostmaster || LWLockHeldByMeInMode(lock, LW_EXCLUSIVE))
#define AssertUnlocked() \
	Assert(jobq_shared == NULL || !jobq_holds_lock())

/* Locks of the cluster, for areas. */
typedef enum JobqExtraLock
{
	JOBQ_LOCK_OF_WAITERS,
	JOBQ_LOCK_OF_LINES,
	JOBQ_LOCK_OF_STATS,
	JOBQ_NEXTRA_LOCKS
} JobqExtraLock;

/*
 * An area of shared memory that a room declares.  "size" must depend only on settings that
 * are fixed at server start.  "init" is called once for each owner of the area (JobqShared
 * for the cluster, a JobqDatabase or a JobqSlot) with memory of that size.  Areas of slots
 * are initialized first, then areas of the cluster.  The areas of a database are initialized
 * when its slot is first assigned, under its lock.  The operating system provides memory for
 * pages that are used, so databases that are not served cost address space only.
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
extern void jobq_shmem_areas(const JobqArea *const *areas, int nareas);
extern void jobq_shmem_request(void);
extern bool jobq_shmem_startup(void);
extern void jobq_database_areas(JobqDatabase *db);
extern LWLock *jobq_extra_lock(JobqExtraLock which);
#ifdef USE_ASSERT_CHECKING
extern bool jobq_holds_lock(void);
#endif
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
extern JobqSlot *jobq_my_slot;
extern bool jobq_tells_by_relay;
extern uint64 jobq_owe_cancel(JobqDatabase *db, int64 job_id);
extern void jobq_cancel_paid(JobqDatabase *db, uint64 ticket);

/* src/memory/run.c */
extern void jobq_slot_to(JobqSlot *slot, JobqSlotState state);
extern void jobq_run_to(JobqRun *run, JobqRunState state);
extern void jobq_run_ended(void);
extern void jobq_run_read(JobqSlot *slot, JobqRun *run);
extern JobqMember *jobq_slot_member(const JobqSlot *slot, int64 job_id);
extern bool jobq_slot_runs(const JobqSlot *slot, int64 job_id);
extern bool jobq_run_read_of(JobqSlot *slot, int64 job_id, JobqRun *run);
extern const JobqArea jobq_members_area;
extern JobqSlot *jobq_slot_of_job(JobqDatabase *db, int64 job_id);
extern JobqSlot *jobq_slot_names_job(JobqDatabase *db, int64 job_id);
extern bool jobq_slot_keeps_job(JobqDatabase *db, int64 job_id, int attempt, bool tried);

#endif							/* JOBQ_MEMORY_H */
