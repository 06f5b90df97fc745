/*-------------------------------------------------------------------------
 *
 * groups.h
 *	  Groups: jobs that run one at a time, in order.
 *
 * src/ready/groups.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_GROUPS_H
#define JOBQ_READY_GROUPS_H

#include "ready/limits.h"
#include "ready/timers.h"

/*
 * A group waits for one job as a rule.  But an owner that had lost its turn may get it
 * back, because its queue has more patience or the clock was put back, while another
 * runs, which then fails.  The second is in the table only; when the first one is over,
 * nobody starts before the scheduler has read who is next.
 */
#define JOBQ_OTHERS_NONE	0
#define JOBQ_OTHERS_READ	1	/* the scheduler is about to find out */
#define JOBQ_OTHERS_KNOWN	2

/*
 * A group of which a job runs, or waits for its next attempt, or others wait.
 *
 * Up to JOBQ_MAX_PARKED of its jobs are parked, in order.  If there were more,
 * they were dropped ("spilled"), and the scheduler reads those above the cursor
 * when the parked ones come to their end.
 *
 * Jobs of a group may come from several lanes.  So the one whose turn it is has
 * been "called", and those that come after it are parked until it has been
 * popped.
 */
#ifndef JOBQ_MAX_PARKED
#define JOBQ_MAX_PARKED		64
#endif
typedef struct JobqGroup
{
	int64		id;				/* 0: free */
	int64		owner;			/* only this job may run; or 0 */
	int64		current;		/* the job that was taken in last */
	TimestampTz owner_since;	/* the group has waited for its owner ... */
	TimestampTz current_since;	/* ... or for the other since then; 0: not yet */
	int32		owner_queue;	/* of which these are */
	int32		current_queue;
	int64		called;			/* the job that is in its lane; or 0 */
	TimestampTz called_run_at;	/* and its place */
	int32		called_priority;
	uint32		next;			/* in the bucket, or free list link */
	uint32		head;			/* parked entries */
	uint16		nparked;
	uint16		limiter;		/* of its queue, if it is of one */
	uint32		account;		/* whose share it is: see shares.h */
	uint32		timer;			/* its place among the timers, or JOBQ_NONE */
	TimestampTz due;			/* by that */
	int			running;
	bool		spilled;
	bool		dropped;		/* something was, while it was being read */
	bool		refill;			/* the scheduler shall read */
	uint8		others;			/* JOBQ_OTHERS_*: does it wait for others than
								 * its owner, too? */
	int32		cursor_priority;
	TimestampTz cursor_run_at;
	int64		cursor_id;
	JobqPace	pace;
} JobqGroup;

/*
 * Has the group jobs of several queues?  Its id tells so.  It has the standard policy,
 * whatever that of a queue is.
 */
static inline bool
jobq_group_shared(int64 id)
{
	return (id & 1) != 0;
}

/*
 * The groups of a database.
 */
typedef struct JobqGroups
{
	bool		refill;			/* a group wants to be read */
	bool		full;			/* a lane is skipping */
	bool		owners;			/* jobs that had lost their turn may have it
								 * again, a group waits for another, or in
								 * vain: the scheduler shall read them */
	bool		owners_first;	/* ... before it reads lanes, which may have
								 * jobs that come after them */
	bool		unnoted;		/* jobs that run may have come of which
								 * nothing was noted: likewise */
	bool		look;			/* at all of them */
	TimestampTz due;			/* when the scheduler shall come: a group may
								 * be free, with time, or there may be room */
	TimestampTz room_due;		/* when it looks for room, if full */
	TimestampTz swept_at;		/* idle groups were looked for */
	uint32		ngroups;
	uint32		free;
	JobqGroup  *groups;			/* [jobq_max_groups] */
	uint32	   *bucket;			/* [jobq_max_groups] */
	JobqTimers	timers;			/* [jobq_max_groups] */
} JobqGroups;

/* src/ready/group_table.c */
extern JobqGroup *jobq_group_find(JobqDatabase *db, int64 id);
extern JobqGroup *jobq_group_make(JobqDatabase *db, int64 id, uint16 limiter,
								  Oid role, TimestampTz now);
extern void jobq_groups_look(JobqDatabase *db, TimestampTz now);
extern void jobq_groups_forget(JobqDatabase *db, TimestampTz now);
extern TimestampTz jobq_group_waits_until(JobqDatabase *db,
										  const JobqGroup *group);
extern void jobq_group_take(JobqGroup *group, int64 id, int32 queue_id);
extern void jobq_group_wait_for(JobqGroup *group, int64 id, int32 queue_id,
								TimestampTz since);
extern void jobq_group_held(JobqDatabase *db, int64 id, int64 job_id,
							TimestampTz since);
extern void jobq_groups_read_begin(JobqDatabase *db);
extern bool jobq_group_read(JobqGroup *group, int64 job_id, int32 queue_id,
							TimestampTz since);
extern void jobq_groups_read_end(JobqDatabase *db, TimestampTz now);

/* src/ready/group.c */
extern bool jobq_group_call(JobqDatabase *db, uint32 group, const JobqPush *job);
extern void jobq_group_taken(JobqDatabase *db, uint32 place,
							 const JobqPush *job);
extern bool jobq_group_wait(JobqDatabase *db, const JobqPush *job,
							TimestampTz now, JobqWakeList *wake);
extern void jobq_group_end(JobqDatabase *db, int64 id, int64 job_id,
						   TimestampTz now, JobqWakeList *wake);
extern void jobq_group_moved(JobqDatabase *db, int64 id, int64 job_id,
							 TimestampTz now, JobqWakeList *wake);
extern void jobq_groups_wake(JobqDatabase *db, TimestampTz now,
							 JobqWakeList *wake);
extern void jobq_group_refilled(JobqDatabase *db, JobqGroup *group,
								const JobqPush *rows, int nrows,
								const JobqPush *last, TimestampTz now,
								JobqWakeList *wake);

#endif							/* JOBQ_READY_GROUPS_H */
