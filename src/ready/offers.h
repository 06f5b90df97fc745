/*-------------------------------------------------------------------------
 *
 *	  Sessions waiting in jobq.reserve(), and the jobs handed off to these sessions.
 *
 * src/ready/offers.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_OFFERS_H
#define JOBQ_READY_OFFERS_H

#include "ready/job.h"

/*
 * The slot of a session that waits for work in jobq.reserve().  The slot is free, or in the
 * list of waiting sessions, or holds an offer.  An offer is a job that another process has
 * popped for the session, with the permits of the job.
 *
 * Rule: when db->lock is released, a session waits only if no suitable job may start.  A
 * process that pushes a job into a lane, or returns a permit, therefore marks the heap
 * (jobq_lane_wake()).  The process releases the lock with jobq_unlock(), which hands off the
 * jobs of marked heaps, and then sets the latches.  Above a maximum number of offers, heaps
 * remain marked.  The next process that releases the lock continues, at the latest a session
 * with an offer.
 *
 * No process can check the privileges of a waiting session.  A session therefore gets only
 * jobs of roles in its list of allowed roles.  If a job of an unlisted role arrives, the
 * session is woken to check the job itself.  The session is also woken when privileges are
 * granted.  Under the lock of its next check, the session leaves the list or accepts its
 * offer.  A session that has to leave returns the offer.  A returned job is handed off to the
 * next session.
 */
#define JOBQ_MAX_TAKE_QUEUES	16

/*
 * Maximum number of waiting sessions in a database.  If this is less than 1024, each session
 * of the server finds a slot, regardless of its role's share: see shares.h.
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
	uint32		account;		/* of the role: see shares.h */
	int			nqueues;
	int32		queue_ids[JOBQ_MAX_TAKE_QUEUES];
	bool		any_role;
	int			nallowed;
	int			nroles;
	Oid			roles[JOBQ_MAX_KNOWN_ROLES];	/* first the nallowed roles
												 * with jobs for the session,
												 * then the remaining known
												 * roles */
	bool		offered;
	JobqPush	offer;
} JobqReserver;

/*
 * The waiting consumers of a database.
 */
typedef struct JobqOffers
{
	uint32		free;
	uint32		head;			/* first of the list of waiting sessions */
	uint32		grants;			/* incremented when a role may have gained
								 * privileges */
	uint32		waiting[JOBQ_WAITING_BUCKETS];	/* number of sessions that
												 * wait on queues with this
												 * hash */
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
