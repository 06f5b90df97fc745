/*-------------------------------------------------------------------------
 *
 * offers.h
 *	  Sessions in jobq.reserve() that wait, and what is offered to them.
 *
 * src/ready/offers.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_OFFERS_H
#define JOBQ_READY_OFFERS_H

#include "ready/job.h"

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
 * about it is told, and looks for itself; so it does when roles are given privileges.
 * It leaves the list under the lock of its next look, or takes its offer there, or gives
 * it back if it has to leave: then the job is offered to the next one.
 */
#define JOBQ_MAX_TAKE_QUEUES	16

/*
 * Sessions that can wait in a database.  If that is not 1024, each session of the server
 * finds a place, whatever its role holds: see shares.h.
 */
#ifndef JOBQ_MAX_RESERVERS
#define JOBQ_MAX_RESERVERS		Min(1024, MaxBackends + MaxBackends / JOBQ_SHARE + 1)
#endif
#define JOBQ_MAX_KNOWN_ROLES	32
#define JOBQ_WAITING_BUCKETS	256
typedef struct JobqReserver
{
	PGPROC	   *proc;
	uint32		prev;			/* in the list, newest first */
	uint32		next;			/* likewise, or free list link */
	uint32		account;		/* its role's: see shares.h */
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
	uint32		grants;			/* grows when somebody may take more */
	uint32		waiting[JOBQ_WAITING_BUCKETS];	/* how many wait on queues of
												 * this hash */
	JobqReserver *reservers;	/* [JOBQ_MAX_RESERVERS] */
} JobqOffers;

/* src/ready/offer.c */
extern void jobq_unlock(JobqDatabase *db, JobqWakeList *wake);
extern uint32 jobq_reserver_add(JobqDatabase *db, Oid role,
								const JobqTaker *taker,
								const Oid *denied, int ndenied);
extern void jobq_reserver_remove(JobqDatabase *db, uint32 place,
								 TimestampTz now, JobqWakeList *wake);
extern bool jobq_reservers_dismiss(JobqDatabase *db);
extern void jobq_reservers_look(JobqDatabase *db);
extern bool jobq_offer_take(JobqDatabase *db, uint32 place,
							const JobqTaker *taker, JobqPush *job);

#endif							/* JOBQ_READY_OFFERS_H */
