/*-------------------------------------------------------------------------
 *
 * commit.h
 *	  Interface of the directory commit: hand-over at the end of a transaction, and notification
 *	  of the processes concerned.
 *
 * During a transaction, this code notes the changes that concern other processes: written
 * jobs, granted or ended leases, ended jobs of batches, notifications, and sessions to wake.
 * After the commit, all changes are written to shared memory at once, and the processes
 * concerned are woken.  After an abort, the reserved resources are released.
 *
 * Guarantees: no change is handed over before the change is visible.  No step after the commit
 * can fail.  Directories above register books of their own (JobqCommitBooks).
 *
 * Locks: functions that note a change take no lock, unless their comment says so.  The
 * hand-over takes db->lock once.  JobqWaiters.lock is taken after db->lock.
 *
 * src/commit/commit.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COMMIT_H
#define JOBQ_COMMIT_H

#include "access/xlogdefs.h"

#include "commit/notebook.h"
#include "ready/ready.h"

/*
 * Slot of a batch with ending jobs: see batch_commit.c.  The slot number is a hash of the
 * batch's id.  Another batch may be assigned to the slot, unless an evaluation is requested.
 * In this case, the id of the other batch is put into JobqTold.unwatched.
 */
#define JOBQ_MAX_WATCHES	256
#define JOBQ_MAX_UNWATCHED	128
#define JOBQ_ANY_WITNESS	PG_UINT64_MAX	/* any job is the witness */
typedef struct JobqBatchWatch
{
	pg_atomic_uint64 batch_id;	/* 0: free; readable without a lock */
	pg_atomic_uint64 witness;	/* a live job of the batch, or 0; likewise */
	bool		look;			/* an evaluation is requested */
	bool		named;			/* ended jobs are listed in JobqTold.ends */
	bool		whole;			/* the list is incomplete: read all steps */
	bool		grows;			/* steps were added */
} JobqBatchWatch;

/*
 * An ended job of a batch with "named" set, neither dead nor expired.  added: the job of an
 * added step instead.
 */
#define JOBQ_MAX_ENDS		1024
typedef struct JobqBatchEnd
{
	int64		batch_id;
	int64		job_id;
	bool		added;
} JobqBatchEnd;

/* A message for the NOTIFY relay. */
#define JOBQ_RELAY_PAYLOAD	440
#define JOBQ_RELAY_SIZE		480
typedef struct JobqRelayMessage
{
	char		channel[NAMEDATALEN];
	char		payload[JOBQ_RELAY_PAYLOAD];
} JobqRelayMessage;


/* Maximum number of jobs that schedules wait for.  Jobs beyond are polled. */
#define JOBQ_MAX_WAITED		64

/*
 * Reports of committers to the scheduler of a database.  Protected by db->lock.
 */
typedef struct JobqTold
{
	/* The relay: a ring of messages to send. */
	uint32		relay_head;		/* next message to send */
	uint32		relay_count;
	uint32		relay_reserved; /* slots reserved by open transactions */
	JobqRelayMessage relay[JOBQ_RELAY_SIZE];

	int			nwaited;		/* may be read without a lock */
	int64		waited[JOBQ_MAX_WAITED];	/* jobs that schedules wait for */
	JobqBatchWatch watches[JOBQ_MAX_WATCHES];
	int			nunwatched;
	int64		unwatched[JOBQ_MAX_UNWATCHED];	/* batches to evaluate, too */
	int			nends;
	JobqBatchEnd ends[JOBQ_MAX_ENDS];
} JobqTold;

/* A session in jobq.wait(). */
typedef struct JobqWaiter
{
	PGPROC	   *proc;			/* NULL: free */
	uint32		number;			/* serial number within the session */
	bool		woken;			/* since the session's last check */
	char		outcome;		/* of a job without a row; or 0 */
	bool		prepared;		/* a prepared transaction may have ended it */
	Oid			role;			/* the job's role, if outcome is set */
	Oid			dboid;
	int64		job_id;
	uint32		account;		/* the waiting role's: see shares.h */
	int			prev;			/* in its bucket, or -1 */
	int			next;			/* likewise, or free list link */
} JobqWaiter;

/* State of a cancelled job that leaves no row. */
#define JOBQ_ENDING_CANCELLED	'x'

/* Outcome of a job that leaves no row. */
typedef struct JobqEnding
{
	int64		job_id;
	Oid			role;
	char		state;
} JobqEnding;

/*
 * Sessions waiting for jobs: slots in hash buckets by database and job.  The end of a job
 * therefore examines only the sessions waiting for this job and for jobs in the same bucket.
 *
 * Lock: "lock".  Exclusive mode is required to allocate or free a slot.  In shared mode, the
 * process that has ended a job may write "outcome" and "role", and set "woken".  No other
 * process writes these fields for this job.
 */
#define JOBQ_MAX_WAITERS	2048
#define JOBQ_WAITER_BUCKETS	2048	/* a power of 2 */
typedef struct JobqWaiters
{
	LWLock	   *lock;
	pg_atomic_uint32 n;			/* used slots; not protected */
	int			free;
	int			bucket[JOBQ_WAITER_BUCKETS];	/* the first slot, or -1 */
	JobqShares	shares;
	JobqWaiter	waiter[JOBQ_MAX_WAITERS];
} JobqWaiters;

/* src/commit/area.c */
extern const JobqArea jobq_waiters_area;
extern const JobqArea jobq_told_area;

/*
 * Books of a transaction: notes of one subject for the transaction's end.  Each function
 * except "noted" may be NULL.
 */
typedef struct JobqCommitBooks
{
	/* has this transaction anything to report or to release? */
	bool		(*noted) (void);

	/*
	 * Before commit, if anything was noted: check that the commit is allowed.
	 * ERROR if not.  May read and write tables, and take locks.
	 */
	void		(*before_commit) (void);

	/*
	 * After commit, without db->lock: return whether anything is to be
	 * carried out, and drop irrelevant notes.  db is NULL if the database is
	 * not served.  Then all notes must be dropped.
	 */
	bool		(*pending) (JobqDatabase *db);

	/*
	 * Carry out the notes.  db->lock is held exclusively.  Cannot fail.  NULL
	 * if pending() carries out and drops all notes.
	 */
	void		(*commit) (JobqDatabase *db, TimestampTz now,
						   JobqWakeList *wake);

	/*
	 * Rows may have become visible without notes.  db->lock is held
	 * exclusively.  If the database is not served, db is NULL and no lock is
	 * held.  Cannot fail.
	 */
	void		(*unnoted) (JobqDatabase *db);

	/* undo notes since this subtransaction began, or all notes */
	void		(*abort) (SubTransactionId since);

	/* a subtransaction has committed into its parent; cannot fail */
	void		(*subcommit) (SubTransactionId subid, SubTransactionId parent);

	/* PREPARE TRANSACTION: ERROR if the notes do not allow it */
	void		(*check_prepare) (void);

	/* the transaction was prepared; if NULL, the notes are undone */
	void		(*prepare) (void);

	/*
	 * The transaction is over, and nothing is noted any more: release memory
	 * of large transactions with jobq_give_back().  No lock is held.  Cannot
	 * fail.
	 */
	void		(*give_back) (void);
} JobqCommitBooks;

/* Change of a lease at the end of the transaction. */
typedef enum LeaseAction
{
	LEASE_TAKE,					/* commit: lease holds; abort: job to queue */
	LEASE_END,					/* commit: lease and job are over */
	LEASE_RETRY,				/* commit: lease over, job runs again */
	LEASE_BACK,					/* commit: lease over, job back to queue */
	LEASE_UNUSED,				/* commit: over, attempt not begun */
	LEASE_EXTEND,				/* commit: another end, in a bundle */
	LEASE_BUNDLE,				/* reference of the bundle's creator */
} LeaseAction;

/* Changed objects, for jobq_at_commit_changed(). */
#define JOBQ_CHANGED_SCHEDULES	1
#define JOBQ_CHANGED_MONITORS	2

/* src/commit/commit.c */
extern void jobq_install_commit_callbacks(void);
extern void jobq_commit_join(const JobqCommitBooks *books);
extern void jobq_at_commit_push(const JobqPush *push);
extern void jobq_at_commit_wake(int64 job_id);
extern void jobq_at_commit_rescan(void);
extern void jobq_at_commit_unnoted(void);
extern void jobq_at_commit_prepared(void);
extern void jobq_at_commit_reload(void);
extern void jobq_at_commit_changed(int what);
extern void jobq_at_commit_created(Oid job, bool by_restore);
extern void jobq_at_commit_poke(void);

/* src/commit/deletion_commit.c */
extern void jobq_at_abort_push(const JobqPush *push);

/* src/commit/failure_commit.c */
extern void jobq_at_commit_failed(const JobqPush *job);

/* src/commit/group_commit.c */
extern void jobq_at_commit_group_held(const JobqGroupHold *hold);
extern void jobq_at_commit_group_end(int64 group, int64 job_id);
extern void jobq_at_commit_group_moved(int64 group, int64 job_id);
extern void jobq_at_abort_group_moved(int64 group, int64 job_id);

/* src/commit/handover_commit.c */
extern void jobq_before_commit_prepared(void);

/* src/commit/lease_commit.c */
extern void jobq_lease_room(int n);
extern bool jobq_leases_noted(void);
extern bool jobq_lease_is_ended(int64 id);
extern bool jobq_lease_leaves(JobqDatabase *db);
extern void jobq_at_commit_lease_back(int64 id, int64 token, bool notify);
extern void jobq_at_commit_lease_given(int64 id, uint32 stat, uint32 kind,
									   bool notify);
extern void jobq_at_commit_bundle(JobqDatabase *db, uint32 bundle);
extern bool jobq_bundle_noted(void);
extern bool jobq_bundle_lives(JobqDatabase *db, uint32 bundle);
extern void jobq_at_commit_lease(LeaseAction action, int64 id, int64 token,
								 uint32 bundle, TimestampTz until);

/* src/commit/batch_commit.c */
extern void jobq_at_commit_batch(int64 batch_id, int64 job_id, bool lost);
extern void jobq_at_commit_step(int64 batch_id, int64 job_id);
extern JobqBatchWatch *jobq_batch_watch(JobqDatabase *db, int64 batch_id);

/* src/commit/message.c */
extern void jobq_relay(const char *channel, const char *payload,
					   bool by_user);
extern void jobq_relay_now(const char *channel, const char *payload);
extern void jobq_relay_clear(JobqDatabase *db);

/* src/commit/flush.c */
extern XLogRecPtr jobq_flush(void);
extern bool jobq_replicated(XLogRecPtr lsn);
extern void jobq_flush_before_telling(void);
extern void jobq_commit_quietly(void);

/* src/commit/outcome.c */
extern void jobq_at_commit_outcome(int64 job_id, Oid role, char state);

/* src/commit/waiter.c */
extern int	jobq_add_waiter(int64 id);
extern void jobq_waiter_look(int place);
extern void jobq_waiter_sleep(int place, long ms, uint32 wait_event);
extern char jobq_waiter_outcome(int place, Oid *role);
extern void jobq_drop_waiter(int place);
extern Datum jobq_waiters_from_here(void);
extern void jobq_remove_waiters(int code, Datum from);
extern bool jobq_waiter_prepared(int place);
extern void jobq_wake_waiters(Oid dboid, int64 job_id);
extern void jobq_wake_waiters_prepared(Oid dboid);

#endif							/* JOBQ_COMMIT_H */
