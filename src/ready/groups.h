/*-------------------------------------------------------------------------
 *
 *	  Groups: jobs with the same key run one after the other, in order.
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
 * Usually a group waits for one job.  But an owner that had lost its turn may regain it,
 * because the queue has more patience or the clock was put back.  If another job of the group
 * is running then, and its attempt fails, the group waits for two jobs.  The second job is in
 * the table only.  When the first job is over, no job starts before the scheduler has read
 * which job is next.
 */
#define JOBQ_OTHERS_NONE	0
#define JOBQ_OTHERS_READ	1	/* the scheduler is about to read the table */
#define JOBQ_OTHERS_KNOWN	2

/*
 * A group with a running job, a job between two attempts, or waiting jobs.
 *
 * Up to JOBQ_MAX_PARKED jobs of the group are parked, in order.  Further jobs are dropped
 * ("spilled").  The scheduler reads the jobs above the cursor from the table when few parked
 * jobs are left.
 *
 * Jobs of a group may come from several lanes.  The next job of the group is therefore
 * "called" back to its lane, and later jobs are parked until the called job is popped.
 *
 * Predecessors: the lane of a popped job does not show the jobs of the group in other lanes.
 * The gate therefore searches the index job_group (jobq_group_is_busy() in src/attempt), and
 * a job with a predecessor is parked until the predecessor is popped (jobq_group_wait()).  The
 * search is left out if the pop was certain that no job comes before (no_predecessor() in
 * pop.c).
 *
 * Owner: the row stores since when the group waits for the job (group_held), for use after a
 * crash, and for jobq.work() without a scheduler.  Whether the job has lost its turn follows
 * from the row, the queue and the clock, and is stored nowhere: jobq_group_is_held_by() decides
 * for a row, and jobq_group_waits_until() for a group in memory.  When a job may have regained
 * its turn, the scheduler reads the owners again (groups_read_owners()).
 *
 * Moves: a session that gives a waiting job another position or time reports the change at
 * commit (jobq_group_moved()).  Until the commit or the rollback, the row is locked.  A worker
 * that finds the row locked makes the group wait for this job (jobq_row_is_taken()), because the
 * next job would overtake otherwise.
 *
 * Groups of the database: the group has jobs in several queues, and has an odd id.  The id is a
 * hash of the role's OID and the key, so a renamed role keeps its groups.  A trigger corrects
 * the id where a dump or replication brings jobs to roles with other OIDs.
 *
 * No slot: without a slot for another group, the entry is dropped, and the lane is read again
 * from JobqLane.skipped on when a slot is free.  The group of a dropped job may get a slot
 * meanwhile, and wait for this job.  The job is then handed over at once (jobq_group_call()).
 * Otherwise, groups could hold all slots while they wait for jobs that need a slot.
 */
#ifndef JOBQ_MAX_PARKED
#define JOBQ_MAX_PARKED		64
#endif
typedef struct JobqGroup
{
	int64		id;				/* 0: free */
	int64		owner;			/* the job for which the group waits; or 0 */
	int64		current;		/* the job that was admitted last, except for
								 * further jobs of a call */
	TimestampTz owner_since;	/* start of the wait for the owner ... */
	TimestampTz current_since;	/* ... or for "current"; 0: not yet */
	int32		owner_queue;	/* queue of the owner */
	int32		current_queue;
	int64		called;			/* the called job, which is in its lane; or 0 */
	TimestampTz called_run_at;	/* position of the called job */
	int32		called_priority;
	uint32		next;			/* in the bucket, or free list link */
	uint32		head;			/* parked entries */
	uint16		nparked;
	uint16		limiter;		/* limiter of the queue, if the group belongs
								 * to a queue */
	uint32		account;		/* account of the role: see shares.h */
	uint32		timer;			/* position among the timers, or JOBQ_NONE */
	uint32		slot;			/* index + 1 of the worker's slot, if jobs of
								 * the group run in its call; or 0 */
	uint32		held_next;		/* groups of the same call, or JOBQ_NONE */
	uint32		held_prev;
	int			running;		/* all jobs of a call are one */
	bool		spilled;
	bool		dropped;		/* a job was spilled during the read */
	bool		refill;			/* the scheduler must read jobs */
	uint8		others;			/* JOBQ_OTHERS_*: does the group wait for
								 * further jobs besides its owner? */
	int32		cursor_priority;
	TimestampTz cursor_run_at;
	int64		cursor_id;
} JobqGroup;

/*
 * Does the group have jobs of several queues?  The id of the group tells.  The group then
 * has the standard policy, regardless of the policies of the queues.
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
	bool		refill;			/* jobs of a group must be read */
	bool		full;			/* a lane is skipping */
	bool		owners;			/* the owners must be read: a job may have
								 * regained its turn, or a group waits for a
								 * further job or in vain */
	bool		owners_first;	/* ... before lanes, which may have jobs that
								 * come after owners */
	bool		unnoted;		/* running jobs without a noted hand-over may
								 * have arrived: read owners, too */
	bool		look;			/* all groups must be examined */
	TimestampTz due;			/* when the scheduler must come: a group may
								 * become free, or there may be room */
	TimestampTz room_due;		/* time of the next search for room, if full */
	TimestampTz swept_at;		/* time of the last search for idle groups */
	uint32		ngroups;
	uint32		free;
	JobqGroup  *groups;			/* [jobq_max_groups] */
	uint32	   *bucket;			/* [jobq_max_groups] */
	JobqTimers	timers;			/* [jobq_max_groups] */
} JobqGroups;

/* A job that has begun and will run again: its group waits for the job. */
typedef struct JobqGroupHold
{
	int64		group;
	int64		job;
	int32		queue_id;
	Oid			role;
	TimestampTz since;			/* since the job first came back */
} JobqGroupHold;

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
extern void jobq_groups_read_begin(JobqDatabase *db);
extern bool jobq_group_read(JobqGroup *group, int64 job_id, int32 queue_id,
							TimestampTz since);
extern void jobq_groups_read_end(JobqDatabase *db, TimestampTz now);

/* src/ready/group.c */
extern void jobq_group_held(JobqDatabase *db, const JobqGroupHold *hold, const JobqSlot *slot,
							TimestampTz now, JobqWakeList *wake);
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

/* The due jobs of a group above its cursor, in order. */
typedef struct JobqRefill
{
	const JobqPush *rows;
	int			nrows;
	const JobqPush *last;		/* end of the range that was read; NULL: all
								 * jobs were read */
} JobqRefill;

extern void jobq_group_refilled(JobqDatabase *db, JobqGroup *group,
								const JobqRefill *refill, TimestampTz now,
								JobqWakeList *wake);

#endif							/* JOBQ_READY_GROUPS_H */
