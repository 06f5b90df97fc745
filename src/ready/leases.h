/*-------------------------------------------------------------------------
 *
 *	  Leases: the jobs that consumers hold.
 *
 * src/ready/leases.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_LEASES_H
#define JOBQ_READY_LEASES_H

#include "ready/job.h"
#include "ready/lines.h"

/*
 * A consumer's right to a job until a given time.  The lease is in shared memory, where ack()
 * finds it.  A durable lease is also named by a row of jobq_internal.lease, from which the
 * lease is recreated after a restart.  The job's own row is not touched.
 *
 *	 FREE --reserve()--> PENDING --commit--> HELD --jobq_lease_leaves()--> LEAVING
 *						    |                 | ^                             |  |
 *						  abort         end or| +-----------rollback----------+  |
 *						    |           expiry|                             commit
 *	 FREE <-----------------+-----------------+----------------------------------+
 *
 * nack(), reject() and release() mark the lease as LEAVING, because the job may have a row
 * while the old lease still exists.  The scheduler must not end the lease with this row.  A
 * transaction with extend() marks the lease during its commit, and the lease is HELD again
 * afterwards.
 */
typedef enum JobqLeaseState
{
	JOBQ_LEASE_FREE = 0,		/* -> PENDING */
	JOBQ_LEASE_PENDING,			/* the reserving transaction is still open; ->
								 * HELD, FREE */
	JOBQ_LEASE_HELD,			/* -> LEAVING, FREE; -> HELD if the scheduler
								 * has read the row before the reserving
								 * session reports its commit */
	JOBQ_LEASE_LEAVING,			/* an open transaction ends or extends the
								 * lease; -> FREE, or HELD if it rolls back */
} JobqLeaseState;

#define JOBQ_LEASE_MESSAGE	36

/*
 * The events of a lease, the process that changes it, and what happens to the other parts.  A
 * "release" of the bundle is of one reference.  With the last one, the row is garbage.
 *
 *	event					process: function				bundle			job
 *	reserve() pops the job,	session: jobq_lease_popped(),	made, or that	entry popped
 *	work() claims it		jobq_claim()					of the call
 *	the gate refuses		session: jobq_lease_undo()		released		by the verdict
 *	reserve() commits		session: leases_commit()		kept			not touched
 *	reserve() rolls back	session: leases_abort()			released; its	handed over again
 *															row is void
 *	extend() commits		session: leases_commit()		another with	not touched
 *															its own row, if
 *															durable
 *	ack() commits			session: leases_commit()		released		row is in the archive
 *	nack(), reject(),		session: leases_commit()		released		new row, handed over; or
 *	release() commit										a dead letter
 *	one of these rolls back	session: leases_abort()			kept			not touched
 *	expiry					scheduler: leases.c, then		released		as nack(), or without a
 *							leases_commit()									charge
 *	the job is cancelled,	the session that ends the job:	released		ended by this session
 *	moved or dropped		leases_commit()
 *	the row of the job is	scheduler: leases_forget.c		released		gone
 *	gone without a note
 *	start of the server		scheduler: leases_load.c, from	made from the	not touched
 *							the row							row
 *
 * The values that identify something:
 *
 *	token			the leases of a call of reserve().  Set by jobq_lease_add(), and by
 *					leases_load.c for a job that was reserved again.  extend() keeps the token
 *	row.id			a row of jobq_internal.lease: the token for the row of reserve(), and a new
 *					number for a row of extend().  Set by jobq_lease_row() and leases_load.c
 *	bundle			the consumer, and the row with the current end of the lease.  Set by
 *					jobq_lease_add() and jobq_lease_move()
 *	bundle->since	the time of reserve(), from which the job's timeout counts.  Copied by extend()
 *	lease->since	the time at which "until" was computed.  Set by jobq_lease_add() and
 *					jobq_lease_move()
 *
 * jobq_leases_put_back() corrects both times after the clock was put back.
 */

typedef struct JobqLease
{
	int64		id;				/* of the job */
	int64		token;
	TimestampTz since;			/* when "until" was computed */
	TimestampTz until;			/* at most the deadline */
	TimestampTz deadline;		/* by the job's timeout, or infinity */
	TimestampTz run_at;			/* this and the next six fields: of the job */
	Oid			role;
	int32		flow;
	int32		queue_id;
	int32		priority;
	JobqNeed	needs[JOBQ_NLIMITS];
	int64		group;
	JobqPermits permits;
	uint32		name;			/* hash of the job's kind, limited or not; 0:
								 * not known before the lease is held */
	bool		quarantine;
	uint8		state;			/* JOBQ_LEASE_*: changed by jobq_lease_to() */
	bool		extended;		/* the consumer has extended the lease, and
								 * has therefore begun the job */
	uint16		lost;			/* 0 until a lease with the same token
								 * expires; then how many of these leases were
								 * held at this time.  An extension resets the
								 * number.  See is_charged() in
								 * worker/scheduler/leases.c */
	ItemPointerData ctid;
	float4		progress;		/* percent, or -1 */
	char		message[JOBQ_LEASE_MESSAGE];
	JobqLines	lines;			/* lines that the consumer has written with
								 * log() */
	uint32		bundle;			/* index in JobqLeases.bundles */
	uint32		stat;			/* where the job is counted: see stats.h */
	uint32		next;			/* in the bucket, or free list link */
} JobqLease;

/* The position of a row of jobq_internal.lease. */
typedef struct JobqLeaseRow
{
	int64		id;
	ItemPointerData ctid;		/* invalid: no row */
} JobqLeaseRow;

/*
 * Data that several leases share: the row in jobq_internal.lease, and the consumer.  A call of
 * reserve() creates a bundle for its leases.  extend() creates a bundle for durable leases, and
 * copies the consumer.  The bundle has a reference for each lease, and one of its creator until
 * the end of the transaction.  With the last reference, the row becomes garbage.
 */
typedef struct JobqLeaseBundle
{
	uint32		outstanding;	/* number of references; 0: free */
	uint32		next_free;
	JobqLeaseRow row;
	TimestampTz since;
	int			pid;
	int			held;			/* number of other jobs of the consumer;
								 * negative: not reported */
	Oid			role;
	uint32		account;		/* of the role: see shares.h */
	char		consumer[NAMEDATALEN];
	inet_struct client;			/* address of the client; family 0: none */
} JobqLeaseBundle;

/* Maximum number of bundles.  Half of the leases may be in bundles of a single job. */
#define JOBQ_MAX_BUNDLES	(jobq_max_leases / 2)
#define JOBQ_LEASE_GARBAGE	2048

/*
 * The leases of a database.
 *
 * A token is drawn under the lock under which the lease begins, from a counter that never
 * goes back.  The scheduler has reserved the tokens below tokens_end
 * (worker/scheduler/tokens.c).
 */
typedef struct JobqLeases
{
	bool		loaded;			/* the leases of jobq_internal.lease are
								 * loaded */
	int64		life;			/* incremented when all leases are forgotten:
								 * a reference to a bundle is void then */
	bool		unsure;			/* the jobs of some leases may be gone: see
								 * leases_forget.c in worker/scheduler */
	Oid			jobs;			/* oid of the jobq_internal.job of these
								 * leases */
	int64		next_token;
	int64		tokens_end;
	uint32		nleases;
	uint32		free;
	uint32		bundle_free;
	TimestampTz next_expiry;	/* not above the lowest "until" */
	uint32		ngarbage;		/* above the array size: rows are missing in
								 * the array, and a scan of the table finds
								 * them */
	JobqLease  *leases;			/* [jobq_max_leases] */
	uint32	   *bucket;			/* [jobq_max_leases] */
	JobqLeaseBundle *bundles;	/* [JOBQ_MAX_BUNDLES] */
	JobqLeaseRow *garbage;		/* [JOBQ_LEASE_GARBAGE]: rows no longer needed */
} JobqLeases;

/*
 * For each lease of the database, in any state but FREE.  "lease" is declared here.  The
 * caller holds db->lock, and may end the lease.
 */
#define jobq_foreach_lease(lease, db) \
	for (JobqLease *lease = jobq_lease_from((db)->leases, 0); lease != NULL; \
		 lease = jobq_lease_from((db)->leases, lease - (db)->leases->leases + 1))

static inline JobqLease *
jobq_lease_from(const JobqLeases *leases, int index)
{
	for (; index < jobq_max_leases && leases->nleases > 0; index++)
		if (leases->leases[index].state != JOBQ_LEASE_FREE)
			return &leases->leases[index];
	return NULL;
}

/* src/ready/lease.c */
extern void jobq_leases_clear(JobqDatabase *db);
extern int64 jobq_lease_token(JobqDatabase *db);
extern JobqLease *jobq_lease_find(JobqDatabase *db, int64 id);
extern JobqLease *jobq_lease_add(JobqDatabase *db, const JobqPush *job,
								 int64 token, TimestampTz until,
								 uint32 bundle);
extern void jobq_lease_to(JobqDatabase *db, JobqLease *lease,
						  JobqLeaseState state);
extern void jobq_lease_limit(JobqDatabase *db, JobqLease *lease,
							 TimestampTz deadline);
extern void jobq_lease_move(JobqDatabase *db, JobqLease *lease, uint32 bundle,
							TimestampTz until);
extern uint32 jobq_lease_bundle(JobqDatabase *db, Oid role);
extern void jobq_lease_bundle_release(JobqDatabase *db, uint32 bundle);
extern void jobq_leases_put_back(JobqDatabase *db, TimestampTz now);
extern JobqPush jobq_lease_push(const JobqLease *lease);

/* src/ready/permit.c */
extern void jobq_lease_remove(JobqDatabase *db, JobqLease *lease, bool live,
							  bool unused, TimestampTz now,
							  JobqWakeList *wake);
extern void jobq_lease_undo(JobqDatabase *db, int64 id, int64 token,
							TimestampTz now, JobqWakeList *wake);

#endif							/* JOBQ_READY_LEASES_H */
