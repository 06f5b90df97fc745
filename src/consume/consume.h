/*-------------------------------------------------------------------------
 *
 * consume.h
 *	  Interface of the directory consume: reservation of jobs by programs outside the
 *	  server.
 *
 * A reservation pops entries from the ready set, as a worker does.  The popped jobs become
 * leases in shared memory, where ack() finds them.  Unless the queue keeps leases in memory
 * only, each call of reserve() also writes a row of jobq_internal.lease.
 *
 *	reserve()		pop_jobs(): entries and permits -> leases in the state PENDING
 *					jobq_lease_jobs(): the gate reads the rows; other jobs are turned away.
 *					The jobs left are returned, and a row of jobq_internal.lease is written
 *	commit			the leases are HELD.  Abort: the entries return to their lanes
 *	extend()		writes a further row; at commit, the lease moves to this row's bundle
 *	ack(), nack(), reject(), release()
 *					check the token, delete the job's row, write the consequence, and note the
 *					end of the lease (jobq_at_commit_lease())
 *	commit			the lease is free, its permits are released
 *
 * If no function ends a lease in time, the scheduler ends the lease
 * (worker/scheduler/leases.c).  The states of a lease and the bundle are explained in leases.h.
 *
 * Guarantees: a consumer with a lost lease gets an error, never a silent success.  A waiting
 * session does not poll.
 *
 * Locks: db->lock protects leases and the list of waiting consumers.  No row of a job is
 * written until the job ends.
 *
 * src/consume/consume.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_CONSUME_H
#define JOBQ_CONSUME_H

#include "nodes/execnodes.h"

#include "fmgr.h"

#include "attempt/attempt.h"

/* Attribute numbers of jobq_internal.lease. */
enum
{
	LEASE_COLUMN_ID = 1,
	LEASE_COLUMN_TOKEN,
	LEASE_COLUMN_UNTIL,
	LEASE_COLUMN_SINCE,
	LEASE_COLUMN_ROLE,
	LEASE_COLUMN_CONSUMER,
	LEASE_COLUMN_JOB_IDS,
	LEASE_COLUMN_JOB_VERSIONS,
	LEASE_COLUMN_N_HELD,
	LEASE_COLUMN_NATTS = LEASE_COLUMN_N_HELD
};

#define MIN_LEASE_MS	100
#define MAX_LEASE_MS	(INT64CONST(7) * 86400000)

/*
 * State of one call of reserve() or reserve_job().
 *
 * A call of reserve() has rounds: it checks the roles, pops jobs, and reads their rows.  If all
 * popped jobs are turned away, another round follows.  The bundle stays the same in all rounds,
 * so that a call needs a single bundle.  The token is new in each round, because a job turned
 * away may have become the job of another consumer.
 */
typedef struct Reservation
{
	/* arguments of the call */
	JobqDatabase *db;
	int32		queue_ids[JOBQ_MAX_TAKE_QUEUES];
	int			max;			/* number of jobs */
	int64		lease_ms;
	int			held;			/* the consumer's other jobs; < 0: unknown */
	const char *consumer;
	inet_struct client;
	bool		plain;			/* the statement only calls reserve() */

	/* the role check of the current round: jobq_reserver_roles() */
	JobqTaker	taker;
	Oid		   *roles;			/* [jobq_max_lanes]: the array of taker.roles */
	Oid		   *denied;			/* [jobq_max_lanes]: roles with lanes, whose
								 * jobs the caller may not have */
	int			ndenied;
	uint32		grants;			/* JobqOffers.grants before the check */

	/* the popped jobs of the current round */
	JobqPush   *popped;			/* [max] */
	int			npopped;
	int64		token;			/* of their leases; 0: no job yet */
	TimestampTz until;			/* of their leases */

	/* for the whole call */
	uint32		bundle;			/* of the leases, or JOBQ_NONE */
	uint32		place;			/* this session's JobqReserver in the list of
								 * waiting sessions, or JOBQ_NONE */
	int			checks_left;	/* empty checks left before giving up */
	bool		wrote;			/* a popped job was turned away with a write */
} Reservation;

/* Ids and tokens of leased jobs. */
typedef struct Held
{
	int			n;
	int64	   *ids;
	int64	   *tokens;
} Held;

/* Results of leased jobs; n is 0 if the consumer gave none. */
typedef struct JobqResults
{
	int			n;
	Datum	   *values;
	bool	   *nulls;			/* the job has no result */
} JobqResults;

/* src/consume/held.c */
extern void jobq_get_held(FunctionCallInfo fcinfo, Held *held,
						  const char *function);
extern void jobq_get_held_many(FunctionCallInfo fcinfo, Held *held,
							   const char *function);
extern void jobq_get_result(FunctionCallInfo fcinfo, int arg,
							JobqResults *results);
extern void jobq_get_results(FunctionCallInfo fcinfo, int arg, const Held *held,
							 JobqResults *results);
extern void jobq_distinct_held(Held *held);
extern void jobq_sort_held(Held *held, JobqResults *results);
extern Interval *jobq_interval_arg(FunctionCallInfo fcinfo, const char *name);

/* src/consume/ack.c */
extern void jobq_lease_lost(int64 id);
extern JobqLease jobq_check_lease(JobqDatabase *db, int64 id, int64 token,
								  TimestampTz *since);
extern bool jobq_lease_durable(JobqDatabase *db, int64 id);
extern bool jobq_read_held(Relation rel, const JobqLease *lease, JobqJob *job);

/* src/consume/send.c */
extern bool jobq_can_be_sent(const JobqJob *job);

/* src/consume/await.c */
extern void jobq_reserver_roles(Reservation *reservation);
extern bool jobq_reserver_unranked(Reservation *reservation);
extern bool jobq_reserver_coming(Reservation *reservation);
extern bool jobq_reserver_list(Reservation *reservation);
extern bool jobq_reserver_pop(Reservation *reservation, TimestampTz now,
							  JobqPush *job, JobqWakeList *wake);
extern void jobq_reserver_leave(int code, Datum arg);
extern bool jobq_reserver_plain(FunctionCallInfo fcinfo);
extern void jobq_reserver_sleep(Reservation *reservation, long ms);

/* src/consume/reserve.c */
extern JobqDatabase *jobq_served_database(const char *function);
extern bool jobq_may_lease(JobqDatabase *db, Oid role, bool new_bundle);
extern void jobq_no_lease(JobqDatabase *db, Oid role);
extern void jobq_reservation_begin(Reservation *reservation,
								   FunctionCallInfo fcinfo, int lease,
								   int consumer);
extern void jobq_lease_popped(Reservation *reservation, const JobqPush *job,
							  TimestampTz now);

/* src/consume/lease_jobs.c */
extern int	jobq_lease_jobs(Reservation *reservation, ReturnSetInfo *rsinfo);

/*
 * A row of jobq_internal.lease to be written.  The id is a number from the counter of tokens:
 * the token for the row of a reservation, and a new number for the row of an extension.  The row
 * identifies the versions of the jobs' rows by their xmin, which VACUUM FULL and CLUSTER preserve.
 */
typedef struct JobqLeaseRecord
{
	int64		id;
	int64		token;
	TimestampTz until;
	int			n;				/* number of jobs */
	const int64 *jobs;
	const TransactionId *versions;	/* xmin of the rows of the jobs */
} JobqLeaseRecord;

extern void jobq_lease_row(JobqDatabase *db, uint32 bundle, const JobqLeaseRecord *record);

#endif							/* JOBQ_CONSUME_H */
