/*-------------------------------------------------------------------------
 *
 * consume.h
 *	  The door of the room consume: programs outside the server take jobs.
 *
 * A reservation pops from the ready set, as a worker does, and what it got becomes
 * leases: in shared memory, where ack() finds them, and, unless the queue keeps them
 * in memory only, in a row of jobq_internal.lease for each call of reserve().
 *
 * What it promises: a consumer that has lost its lease gets an error, never a silent
 * success.  A session that waits does not poll.
 *
 * Locks: db->lock for leases and waiting; nothing is written to a job's row until it
 * ends.
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
	LEASE_ID = 1,
	LEASE_TOKEN,
	LEASE_LEASE_UNTIL,
	LEASE_SINCE,
	LEASE_ROLE,
	LEASE_CONSUMER,
	LEASE_JOB_IDS,
	LEASE_JOB_VERSIONS,
	LEASE_N_HELD,
	LEASE_NATTS = LEASE_N_HELD
};

#define MIN_LEASE_MS	100
#define MAX_LEASE_MS	(INT64CONST(7) * 86400000)

/* One call of reserve(). */
typedef struct Reservation
{
	JobqDatabase *db;
	JobqTaker	taker;
	int32		queue_ids[JOBQ_MAX_TAKE_QUEUES];
	Oid		   *roles;			/* [jobq_max_lanes], as is denied */
	Oid		   *denied;
	int			ndenied;
	int			max;
	int64		lease_ms;
	int			held;			/* jobs of other calls; below 0: not told */
	int64		token;			/* of what was popped last; or 0 */
	int			patience;		/* looks in vain that are left */
	uint32		grants;			/* JobqOffers.grants, when it looked for its
								 * roles */
	const char *consumer;
	inet_struct client;
	JobqPush   *popped;			/* [max] */
	int			npopped;
	uint32		bundle;
	uint32		place;			/* among those that wait, or JOBQ_NONE */
	bool		plain;			/* the statement does nothing but reserve */
	bool		wrote;			/* rows of jobs that were not for us */
} Reservation;

/* Jobs and their tokens. */
typedef struct Held
{
	int			n;
	int64	   *ids;
	int64	   *tokens;
} Held;

/* Their results, if n is not 0. */
typedef struct JobqResults
{
	int			n;
	Datum	   *values;
	bool	   *nulls;			/* the job has none */
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
extern void jobq_sort_held(Held *held, JobqResults *results);

/* src/consume/ack.c */
extern void jobq_lease_lost(int64 id);
extern JobqLease jobq_check_lease(JobqDatabase *db, int64 id, int64 token,
								  TimestampTz *since);
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
extern int	jobq_lease_jobs(Reservation *reservation, ReturnSetInfo *rsinfo);
extern void jobq_lease_row(JobqDatabase *db, uint32 bundle, int64 row_id,
						   int64 token, TimestampTz until,
						   const int64 *ids, const TransactionId *versions,
						   int nids);

#endif							/* JOBQ_CONSUME_H */
