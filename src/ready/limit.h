/*-------------------------------------------------------------------------
 *
 * limit.h
 *	  Limits of queues, kinds and groups, in shared memory.
 *
 * A job needs permits to start: of its queue's limiter, of its kind's, and of
 * its group.  Whoever pops it takes them all at once, under the database's
 * lock, and gives them back when the job's transaction is over; a process that
 * dies has its permits given back by the scheduler.  So a limit holds exactly,
 * for workers and consumers alike.
 *
 * What waits for a limiter stays in its lane, which is skipped meanwhile: jobs
 * of a limited kind have lanes of their own (flow.c).  What waits for its group
 * is parked at the group, so that it is in nobody's way.
 *
 * src/ready/limit.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_LIMIT_H
#define JOBQ_LIMIT_H

#include "base/jobq.h"

struct JobqDatabase;
struct JobqLane;
struct JobqPush;
struct JobqWakeList;

/* A token bucket, as it is configured. */
typedef struct JobqRate
{
	double		per_us;			/* tokens that come in a microsecond; 0: none */
	double		burst;			/* how many it holds */
	bool		by_group;		/* one for each group */
} JobqRate;

/* Rest after so many failures. */
typedef struct JobqThrottle
{
	int			failures;		/* 0: none */
	int64		window;			/* microseconds */
	bool		by_group;
} JobqThrottle;

/* How full a bucket is, and whether there is a rest. */
typedef struct JobqPace
{
	double		tokens;
	TimestampTz tokens_at;
	int			failures;
	TimestampTz window_start;
	TimestampTz rest_until;
} JobqPace;

/* Which queues and kinds have a limiter, and how many may. */
#define JOBQ_LIMITED_QUEUE \
	"max_running IS NOT NULL OR rate IS NOT NULL OR throttle IS NOT NULL" \
	" OR fair_by IS NOT NULL OR group_max_running <> 1" \
	" OR group_on_failure <> 'w' OR weight IS NOT NULL"
#define JOBQ_LIMITED_KIND \
	"max_running IS NOT NULL OR rate IS NOT NULL OR throttle IS NOT NULL"
#define JOBQ_MAX_LIMITERS	128
#define JOBQ_NO_LIMITER		PG_UINT16_MAX
#define JOBQ_MAX_WEIGHTS	32

typedef struct JobqWeight
{
	uint32		tenant;
	int			weight;
} JobqWeight;

/* The policy of a queue or of a kind, and what it counts. */
typedef struct JobqLimiter
{
	bool		in_use;
	bool		fair;			/* the queue's tenants take turns */
	bool		group_wait;		/* a group waits for its job that failed */
	int32		queue_id;		/* or 0 */
	uint32		kind;			/* hash, or 0 */
	int			max_running;	/* 0: no limit */
	int			group_max_running;	/* 0: no limit */
	int			weight;			/* among queues of the same place in a pool */
	JobqRate	rate;
	JobqThrottle throttle;
	int			nweights;
	JobqWeight	weights[JOBQ_MAX_WEIGHTS];

	int			running;
	JobqPace	pace;
	double		tenant_turn;	/* of the tenant that was served last */
} JobqLimiter;

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
#define JOBQ_MAX_PARKED		64
typedef struct JobqGroup
{
	int64		id;				/* 0: free */
	int64		owner;			/* only this job may run; or 0 */
	int64		current;		/* the job that was taken in last */
	int64		called;			/* the job that is in its lane; or 0 */
	int32		called_priority;	/* and its place */
	TimestampTz called_run_at;
	uint32		next;			/* in the bucket, or free list link */
	uint32		head;			/* parked entries */
	uint16		nparked;
	uint16		limiter;		/* of its queue */
	int			running;
	bool		spilled;
	bool		dropped;		/* something was, while it was being read */
	bool		refill;			/* the scheduler shall read */
	int32		cursor_priority;
	TimestampTz cursor_run_at;
	int64		cursor_id;
	JobqPace	pace;
} JobqGroup;

/* What a running job holds. */
typedef struct JobqPermits
{
	uint16		queue;			/* limiters, or JOBQ_NO_LIMITER */
	uint16		kind;
	uint32		group;			/* index, or JOBQ_NONE */
} JobqPermits;

#define JOBQ_NO_PERMITS \
	((JobqPermits) {JOBQ_NO_LIMITER, JOBQ_NO_LIMITER, PG_UINT32_MAX})

static inline bool
jobq_permits_any(const JobqPermits *permits)
{
	return permits->queue != JOBQ_NO_LIMITER ||
		permits->kind != JOBQ_NO_LIMITER || permits->group != PG_UINT32_MAX;
}

/* What stands in the way of a job that was found without its lane. */
typedef enum JobqObstacle
{
	JOBQ_NO_OBSTACLE = 0,
	JOBQ_QUEUE_FULL,
	JOBQ_KIND_FULL,
	JOBQ_GROUP_BUSY,
	JOBQ_TAKEN,					/* somebody else has it */
} JobqObstacle;

typedef enum JobqEntrance
{
	JOBQ_ENTERED,
	JOBQ_PARKED					/* the entry is the group's now, or gone */
} JobqEntrance;

/* src/store/limit_text.c */
extern void jobq_rate_parse(const char *text, JobqRate *rate);
extern void jobq_throttle_parse(const char *text, JobqThrottle *throttle);
extern void jobq_check_limited(void);

/* src/ready/limit.c: all of these want db->lock held exclusively */
extern void jobq_limits_clear(struct JobqDatabase *db);
extern uint16 jobq_limiter_find(struct JobqDatabase *db, int32 queue_id,
								uint32 kind);
extern bool jobq_pace_free(const JobqRate *rate, JobqPace *pace,
						   TimestampTz now, TimestampTz *due);
extern void jobq_pace_failed(const JobqThrottle *throttle, JobqPace *pace,
							 int failures, TimestampTz now);
extern int	jobq_lane_room(struct JobqDatabase *db, const struct JobqLane *lane,
						   TimestampTz now, TimestampTz *due);
extern bool jobq_lane_free(struct JobqDatabase *db,
						   const struct JobqLane *lane, TimestampTz now);
extern JobqPermits jobq_permits_take(struct JobqDatabase *db,
									 const struct JobqLane *lane, uint32 group);
extern JobqObstacle jobq_permits_ask(struct JobqDatabase *db,
									 struct JobqPush *job, bool limited,
									 TimestampTz now,
									 struct JobqWakeList *wake);
extern void jobq_permits_release(struct JobqDatabase *db, JobqPermits *permits,
								 int64 id, bool live, bool unused,
								 TimestampTz now, struct JobqWakeList *wake);
extern void jobq_limits_failed(struct JobqDatabase *db, int32 queue_id,
							   uint32 kind, int64 group, int failures,
							   TimestampTz now);
extern void jobq_lane_served(struct JobqDatabase *db, struct JobqLane *lane);
extern void jobq_limits_wake(struct JobqDatabase *db, TimestampTz now,
							 struct JobqWakeList *wake);

/* src/ready/group.c: likewise */
extern void jobq_groups_clear(struct JobqDatabase *db);
extern void jobq_groups_unpark(struct JobqDatabase *db);
extern JobqGroup *jobq_group_find(struct JobqDatabase *db, int64 id);
extern JobqGroup *jobq_group_make(struct JobqDatabase *db, int64 id,
								  uint16 limiter, TimestampTz now);
extern JobqEntrance jobq_group_enter(struct JobqDatabase *db,
									 struct JobqLane *lane, uint32 entry,
									 TimestampTz now, uint32 *group,
									 struct JobqWakeList *wake);
extern bool jobq_group_admit(struct JobqDatabase *db,
							 const struct JobqPush *job, uint16 limiter,
							 TimestampTz now, uint32 *place);
extern void jobq_group_call(struct JobqDatabase *db, uint32 group, int64 id,
							int32 priority, TimestampTz run_at);
extern void jobq_group_leave(struct JobqDatabase *db, uint32 group, int64 id,
							 bool live, bool unused, TimestampTz now,
							 struct JobqWakeList *wake);
extern void jobq_group_end(struct JobqDatabase *db, int64 id, int64 job_id,
						   TimestampTz now, struct JobqWakeList *wake);
extern void jobq_groups_wake(struct JobqDatabase *db, TimestampTz now,
							 struct JobqWakeList *wake);
extern void jobq_groups_forget(struct JobqDatabase *db, TimestampTz now);

/* src/ready/park.c: likewise */
extern void jobq_group_refilled(struct JobqDatabase *db, JobqGroup *group,
								const struct JobqPush *rows, int nrows,
								const struct JobqPush *last, TimestampTz now,
								struct JobqWakeList *wake);
extern void jobq_groups_make_room(struct JobqDatabase *db, TimestampTz now,
								  struct JobqWakeList *wake);

#endif							/* JOBQ_LIMIT_H */
