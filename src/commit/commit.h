/*-------------------------------------------------------------------------
 *
 * commit.h
 *	  The door of the room commit: what a transaction hands over when it ends,
 *	  and who is told.
 *
 * While a transaction runs, what it means for others is noted here: jobs that it
 * has written, leases that it takes or ends, jobs of batches that have ended,
 * notifications, sessions to be woken.  When it has committed, all of that goes
 * to shared memory at once, and those whom it concerns are woken; if it aborts,
 * what was reserved is given back.
 *
 * What it promises: nothing is handed over before it is visible, and nothing
 * after that can fail.  Rooms above that keep books of their own by
 * transaction join in (JobqCommitBooks).
 *
 * Locks: the functions that note take none, unless they say so; the hand-over
 * takes db->lock once.  JobqWaiters.lock is taken after it.
 *
 * src/commit/commit.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COMMIT_H
#define JOBQ_COMMIT_H

#include "access/xlogdefs.h"

#include "ready/ready.h"

/*
 * A batch whose jobs come to their end: see batch_commit.c.  Its place is a
 * hash of its id; another batch may take it unless a look is wanted.  Then the
 * other is only named.
 */
#define JOBQ_MAX_WATCHES	256
#define JOBQ_MAX_UNWATCHED	128
#define JOBQ_ANY_WITNESS	PG_UINT64_MAX	/* each job */
typedef struct JobqBatchWatch
{
	pg_atomic_uint64 batch_id;	/* 0: none; may be read without lock */
	pg_atomic_uint64 witness;	/* a live job of it, or 0 while the scheduler
								 * looks for one; likewise */
	bool		look;			/* the scheduler shall look at it */
	bool		named;			/* jobs that end are put into the list of ends */
	bool		whole;			/* that list does not say all */
	bool		grows;			/* steps were added to it */
} JobqBatchWatch;

/*
 * A job of a batch that was being watched so has ended, and is neither dead nor expired;
 * or it is that of a step that was added.
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


/* Jobs that schedules wait for; where there are more, they are polled. */
#define JOBQ_MAX_WAITED		64

/*
 * What committers tell the scheduler of a database.  Protected by db->lock.
 */
typedef struct JobqTold
{
	/* The relay: messages that are to be sent. */
	uint32		relay_head;		/* next message to send */
	uint32		relay_count;
	uint32		relay_reserved; /* places promised to open transactions */
	JobqRelayMessage relay[JOBQ_RELAY_SIZE];

	int			nwaited;		/* may be read without lock */
	int64		waited[JOBQ_MAX_WAITED];	/* jobs that schedules wait for */
	JobqBatchWatch watches[JOBQ_MAX_WATCHES];
	int			nunwatched;
	int64		unwatched[JOBQ_MAX_UNWATCHED];	/* batches that want a look,
												 * too */
	int			nends;
	JobqBatchEnd ends[JOBQ_MAX_ENDS];
} JobqTold;

/* A session in jobq.wait(). */
typedef struct JobqWaiter
{
	PGPROC	   *proc;			/* NULL: free */
	uint32		number;			/* of those that this session has taken */
	bool		woken;			/* since it began to look */
	char		outcome;		/* of a job that leaves no row; or 0 */
	bool		prepared;		/* a prepared transaction may have ended it */
	Oid			role;			/* the job's, if there is an outcome */
	Oid			dboid;
	int64		job_id;
	uint32		account;		/* its role's: see shares.h */
	int			prev;			/* in its bucket, or -1 */
	int			next;			/* likewise, or free list link */
} JobqWaiter;

/* The state of a job that leaves no row, if it was cancelled. */
#define JOBQ_ENDING_CANCELLED	'x'

/* What has become of a job that leaves no row. */
typedef struct JobqEnding
{
	int64		job_id;
	Oid			role;
	char		state;
} JobqEnding;

/*
 * Who waits for what: places, in buckets by database and job.  So the end of a job
 * looks only at those who wait for it, however many wait for others.
 *
 * Lock: "lock", exclusively to take or give up a place; shared, who has ended a job
 * may write its outcome and set "woken", as nobody else does for this job.
 */
#define JOBQ_MAX_WAITERS	2048
#define JOBQ_WAITER_BUCKETS	2048	/* a power of 2 */
typedef struct JobqWaiters
{
	LWLock	   *lock;
	pg_atomic_uint32 n;			/* by no lock */
	int			free;
	int			bucket[JOBQ_WAITER_BUCKETS];	/* the first place, or -1 */
	JobqShares	shares;
	JobqWaiter	waiter[JOBQ_MAX_WAITERS];
} JobqWaiters;

/* src/commit/area.c */
extern const JobqArea jobq_waiters_area;
extern const JobqArea jobq_told_area;

/*
 * Books that are kept of a transaction: what it has noted for its end.  Each
 * function may be NULL but "noted".
 */
typedef struct JobqCommitBooks
{
	/* has this transaction anything to tell, or to give back? */
	bool		(*noted) (void);

	/*
	 * Before commit, if anything was noted: may it be?  An error if not.
	 * Tables can be read and written, and locks be taken.
	 */
	void		(*before_commit) (void);

	/*
	 * After commit, without the lock: is there anything to be carried out?
	 * What concerns nobody is forgotten.  db is NULL if the database is not
	 * served: then all is.
	 */
	bool		(*pending) (JobqDatabase *db);

	/* carry it out, under db->lock; cannot fail */
	void		(*commit) (JobqDatabase *db, TimestampTz now,
						   JobqWakeList *wake);

	/*
	 * Rows may have become visible of which nothing was noted; likewise, but
	 * without the lock if the database is not served: then db is NULL.
	 */
	void		(*unnoted) (JobqDatabase *db);

	/* undo what was noted since this subtransaction began, or at all */
	void		(*abort) (SubTransactionId since);

	/* a subtransaction has become part of its parent; cannot fail */
	void		(*subcommit) (SubTransactionId subid, SubTransactionId parent);

	/* PREPARE TRANSACTION: an error if that cannot be done */
	void		(*check_prepare) (void);

	/* it was prepared; if NULL, all is undone */
	void		(*prepare) (void);

	/*
	 * The transaction is over, and nothing is noted any more: give back
	 * memory that was needed for very much, by jobq_give_back().  Without the
	 * lock; cannot fail.
	 */
	void		(*give_back) (void);
} JobqCommitBooks;

/*
 * What becomes of a lease at the end of the transaction.
 */
typedef enum LeaseAction
{
	LEASE_TAKE,					/* commit: it holds; abort: back to the queue */
	LEASE_END,					/* commit: it is over, and so is the job */
	LEASE_RETRY,				/* commit: it is over, the job runs again */
	LEASE_BACK,					/* commit: over, the job goes back to the
								 * queue */
	LEASE_UNUSED,				/* commit: over, the attempt has not begun */
	LEASE_EXTEND,				/* commit: another end, named by the bundle */
	LEASE_BUNDLE,				/* the reference of the bundle's maker */
} LeaseAction;

/* What the scheduler is to look at. */
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
extern void jobq_at_commit_failed(int32 queue_id, uint32 kind, Oid role,
								  int64 group);

/* src/commit/group_commit.c */
extern void jobq_at_commit_group_held(int64 group, int64 job_id,
									  TimestampTz since);
extern void jobq_at_commit_group_end(int64 group, int64 job_id);
extern void jobq_at_commit_group_moved(int64 group, int64 job_id);
extern void jobq_at_abort_group_moved(int64 group, int64 job_id);

/* src/commit/handover_commit.c */
extern void jobq_before_commit_prepared(void);

/* src/commit/lease_commit.c */
extern void jobq_lease_room(int n);
extern bool jobq_leases_noted(void);
extern bool jobq_lease_is_ended(int64 id);
extern bool jobq_lease_leaves(JobqDatabase *db, int64 id, int64 token);
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
