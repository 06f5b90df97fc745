/*-------------------------------------------------------------------------
 *
 * ready.h
 *	  The door of the room ready: which jobs may run now, and who may take them.
 *
 * The ready set is an index, in shared memory, of the jobs that are due.  It is
 * divided into lanes, each in order.  Jobs come in by push (from whoever has
 * committed them) and publish (from scans of the scheduler); workers and
 * consumers pop.  A pop gives the job that comes first for its taker, together
 * with the permits that it needs: a place and a token at the limiters of its
 * queue and kind, and its group's turn.
 *
 * What it promises: a popped entry is only a hint, whose row must be read; but
 * a row that is due is never missing (see JobqLane).  Permits are exact: a job
 * that has been popped holds them until they are released.  A consumer that
 * waits gets its job offered in the same moment in which it may start.
 *
 * Locks: every function wants db->lock held exclusively, but for those that say
 * otherwise, and releases it only if it says so.  Nothing in this room can fail
 * or allocate memory.  Whoever has called a function with a wake list releases
 * the lock by jobq_unlock(), which carries the list out.
 *
 * src/ready/ready.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_H
#define JOBQ_READY_H

#include "ready/groups.h"
#include "ready/handover.h"
#include "ready/lanes.h"
#include "ready/leases.h"
#include "ready/limits.h"
#include "ready/lines.h"
#include "ready/offers.h"
#include "ready/shares.h"

/*
 * What a worker holds: the permits of the job that it popped last, and the jobs
 * that it has taken along (prefetch.c).
 */
#define JOBQ_MAX_PREFETCH	31
typedef struct JobqHolding
{
	/* Protected by JobqDatabase.lock. */
	JobqPermits permits;
	int64		permits_job;
	uint32		woken;			/* the lane for which it was woken, and one
								 * more; or 0 */

	/* Set by the worker for itself: what became of its last job. */
	bool		live;			/* it will run again */
	bool		unused;			/* it did not run at all, or not yet */
	bool		turned_away;	/* nor will it now */

	/* What the handler has told by log(); see lines.h. */
	JobqLines	lines;

	/* Protected by JobqSlot.mutex: jobs [next, count) are next. */
	uint32		next;
	uint32		count;
	uint8		rank;			/* of their lane, in the worker's pool */
	int32		priority;
	uint64		news;			/* JobqReady.news when we last thought */
	JobqPush	prefetched[JOBQ_MAX_PREFETCH];
} JobqHolding;

/* src/ready/area.c */
extern const JobqArea jobq_holding_area;
extern const JobqArea jobq_ready_area;

/* src/ready/wake.c */
extern bool jobq_lane_wake(JobqDatabase *db, JobqLane *lane, TimestampTz now,
						   JobqWakeList *wake);
extern void jobq_role_wake(JobqDatabase *db, Oid role, TimestampTz now,
						   JobqWakeList *wake);
extern void jobq_relay_mark(JobqDatabase *db, TimestampTz now,
							JobqWakeList *wake);

/* src/ready/prefetch.c */
extern bool jobq_prefetch_take(JobqDatabase *db, JobqSlot *slot,
							   JobqPush *popped);

/* src/ready/push.c */
extern void jobq_ready_clear(JobqDatabase *db);
extern void jobq_ready_push(JobqDatabase *db, const JobqPush *push,
							TimestampTz now, JobqWakeList *wake);
extern void jobq_ready_look(JobqDatabase *db, const JobqPush *from,
							TimestampTz now, JobqWakeList *wake);
extern void jobq_ready_publish(JobqDatabase *db, JobqLane *lane,
							   const JobqPush *rows, int nrows,
							   JobqKey cursor, bool more,
							   TimestampTz next_due, JobqWakeList *wake);
extern void jobq_scan_failed(JobqDatabase *db);
extern void jobq_prefetch_return(JobqDatabase *db, JobqSlot *slot,
								 JobqWakeList *wake);

/* src/ready/pop.c */
extern bool jobq_ready_pop(JobqDatabase *db, const JobqTaker *taker,
						   TimestampTz now, JobqPush *popped,
						   JobqWakeList *wake);
extern void jobq_quarantine_over(JobqDatabase *db, int slot);

#endif							/* JOBQ_READY_H */
