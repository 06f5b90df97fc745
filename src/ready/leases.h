/*-------------------------------------------------------------------------
 *
 * leases.h
 *	  Leases: what consumers hold.
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
 * A consumer's right to a job until a time.  It is in shared memory, where ack
 * finds it; a durable one is also named by a row of jobq_internal.lease, from
 * which it is made again after a restart.  The job's own row is not touched.
 */
typedef enum JobqLeaseState
{
	JOBQ_LEASE_PENDING = 0,		/* the reserving transaction is still open */
	JOBQ_LEASE_HELD,
	JOBQ_LEASE_LEAVING,			/* an open transaction ends it */
} JobqLeaseState;

#define JOBQ_LEASE_MESSAGE	36

typedef struct JobqLease
{
	int64		id;				/* the job's */
	int64		token;
	TimestampTz since;			/* when "until" was computed */
	TimestampTz until;			/* at most the deadline */
	TimestampTz deadline;		/* by the job's timeout, or infinity */
	TimestampTz run_at;			/* the job's, as are the next nine */
	Oid			role;
	int32		flow;
	int32		queue_id;
	int32		priority;
	uint32		kind;
	uint32		tenant;
	uint32		limit_key;
	int32		cost;
	int64		group;
	JobqPermits permits;
	uint32		name;			/* hash of its kind, limited or not; 0: not
								 * known before the lease is held */
	bool		quarantine;
	uint8		state;
	bool		extended;
	uint16		lost;			/* how many leases of the token were held when
								 * one of them ran out, since the last
								 * extension; or 0 */
	ItemPointerData ctid;
	float4		progress;		/* percent, or -1 */
	char		message[JOBQ_LEASE_MESSAGE];
	JobqLines	lines;			/* what its consumer has told by log() */
	uint32		bundle;
	uint32		stat;			/* where it is counted: see stats.h */
	uint32		next;			/* in the bucket, or free list link */
} JobqLease;

/* A row of jobq_internal.lease. */
typedef struct JobqLeaseRow
{
	int64		id;
	ItemPointerData ctid;		/* invalid: there is none */
} JobqLeaseRow;

/* What one call of reserve() got: its row in jobq_internal.lease, and who has it. */
typedef struct JobqLeaseBundle
{
	uint32		outstanding;	/* leases; 0: free */
	uint32		next_free;
	JobqLeaseRow row;
	TimestampTz since;
	int			pid;
	int			held;			/* other jobs of its consumer; below 0: not
								 * told */
	Oid			role;
	uint32		account;		/* its role's: see shares.h */
	char		consumer[NAMEDATALEN];
	inet_struct client;			/* its address; the family is 0 if it has none */
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
	bool		loaded;			/* what jobq_internal.lease has is here */
	int64		life;			/* grows when they are all forgotten */
	bool		unsure;			/* jobs of some may be gone */
	Oid			jobs;			/* the jobq_internal.job that they are about */
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
