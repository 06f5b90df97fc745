/*-------------------------------------------------------------------------
 *
 *	  The door of the room ready: jobs that may run now, and the processes that may take
 *	  these jobs.
 *
 * The ready set is an index, in shared memory, of the due jobs.  The index is divided into
 * lanes, which are sorted lists.  Jobs come in by push (from the process that has committed
 * them) and by publish (from scans of the scheduler).  Workers and consumers pop.  A pop
 * returns the first job for its taker, together with the necessary permits: of each limiter of
 * the job (JobqLimitSource), of the job's key at each of these limiters, and of its group.
 *
 * Promises: a popped entry is only a hint, so the taker must read the row.  A row that is due
 * is never missing (see JobqLane).  Permits are exact: a popped job holds the permits until
 * the release.  A waiting consumer is handed a job in the moment in which the job may start.
 *
 * Locks: the caller holds db->lock.  Each function asserts the needed mode: exclusive, or any
 * mode if the function only reads.  A function takes or releases the lock only if its comment
 * says so.  No function in this room can fail or allocate memory.  A caller that passes a
 * wake list releases the lock with jobq_unlock(), which carries out the list.
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
 * The holdings of a worker: the permits of the job that was popped last, and of the jobs popped
 * to run together with this job, and the prefetched jobs (prefetch.c).
 */
#define JOBQ_MAX_PREFETCH	31
typedef struct JobqHolding
{
	/* Protected by JobqDatabase.lock. */
	JobqPermits permits;
	int64		permits_job;
	JobqPermits more;			/* of each further job popped to run together */
	int			nmore;			/* number of these jobs, if they need permits */
	uint32		groups;			/* the groups of a call: see group_set.c */
	uint32		woken;			/* index + 1 of the lane for which the worker
								 * was woken; or 0 */

	/* Lines that the handler has written with log(); see lines.h. */
	JobqLines	lines;

	/* Protected by JobqSlot.mutex: jobs [next, count) are next. */
	uint32		next;
	uint32		count;
	uint8		rank;			/* rank of the jobs' lane, in the worker's
								 * pool */
	int32		priority;
	uint64		news;			/* JobqReady.news at the last comparison with
								 * the lanes */
	JobqPush	prefetched[JOBQ_MAX_PREFETCH];
} JobqHolding;

/* Does the worker hold any permit? */
static inline bool
jobq_holding_any(const JobqHolding *holding)
{
	return jobq_permits_any(&holding->permits) || holding->nmore > 0 ||
		holding->groups != JOBQ_NONE;
}

/* src/ready/area.c */
extern const JobqArea jobq_holding_area;
extern const JobqArea jobq_ready_area;

/* src/ready/wake.c */
extern bool jobq_lane_wake(JobqDatabase *db, JobqLane *lane, TimestampTz now,
						   JobqWakeList *wake);
extern void jobq_spare_recall(JobqSlot *slot, TimestampTz now);
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

/* The result of reading a lane from its cursor on. */
typedef struct JobqScanned
{
	JobqPush   *rows;			/* all visible rows up to the cursor, in order */
	int			nrows;
	JobqKey		cursor;
	bool		more;			/* further due rows may exist */
	TimestampTz next_due;		/* lowest run_at found in the future */
} JobqScanned;

extern void jobq_ready_publish(JobqDatabase *db, JobqLane *lane,
							   const JobqScanned *scanned, JobqWakeList *wake);
extern void jobq_scan_failed(JobqDatabase *db);
extern void jobq_prefetch_return(JobqDatabase *db, JobqSlot *slot,
								 JobqWakeList *wake);

/* src/ready/pop.c */
extern bool jobq_ready_pop(JobqDatabase *db, const JobqTaker *taker,
						   TimestampTz now, JobqPush *popped,
						   JobqWakeList *wake);
extern int	jobq_ready_pop_more(JobqDatabase *db, JobqSlot *slot, const JobqPush *last,
								JobqPush *more, int room, JobqWakeList *wake);
extern void jobq_quarantine_over(JobqDatabase *db, int slot);

#endif							/* JOBQ_READY_H */
