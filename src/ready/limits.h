/*-------------------------------------------------------------------------
 *
 *	  Limits of queues and kinds: how many jobs run, and how often a job starts.
 *
 * The key of a job at a limiter with "by" is read in src/store/limit_key.c, the cost of a job in
 * src/store/limit_cost.c.
 *
 * src/ready/limits.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_LIMITS_H
#define JOBQ_READY_LIMITS_H

#include "ready/lanes.h"

/*
 * Limits
 *
 * A job needs permits to start: from each of its limiters (JobqLimitSource), from its key at
 * each limiter with keys, and from its group.  The process that pops the job takes all permits
 * at once, and returns them when the job's transaction is over.  The scheduler returns the
 * permits of a dead process.  A limit is therefore exact, for workers and consumers alike.
 *
 * A job starts if there is at least one token of each rate, and pays one token, or its full cost
 * at a named limiter.  The balance of the bucket may become negative.  The next job then waits
 * until the balance is at least one.  An expensive job therefore need not wait for a full bucket,
 * which cheap jobs would prevent.  On average, no more tokens are taken than arrive.
 *
 * A job that waits for a limiter stays in its lane, and the lane is skipped meanwhile.  Jobs
 * of a limited kind, and jobs of a tenant, have separate lanes (src/store/flow.c).  A job
 * waiting for its group is parked at the group, and blocks no further jobs.
 */

#define JOBQ_MAX_WEIGHTS	32

/* The consequence for a job that is due while its limiter has no free permit. */
typedef enum JobqWhenTaken
{
	JOBQ_WHEN_TAKEN_WAIT = 0,	/* the job waits */
	JOBQ_WHEN_TAKEN_RELEASE,	/* the job is due again after some time */
	JOBQ_WHEN_TAKEN_SKIP,		/* the job is cancelled */
	JOBQ_WHEN_TAKEN_REPLACE,	/* older jobs of the role are cancelled */
} JobqWhenTaken;

/*
 * The policy of a queue, of a kind, or of a named limiter, and its counters.  The limits of a
 * keyed limiter apply to each key: the key's tally has "running" and "pace" (tally.c).
 */
typedef struct JobqLimiter
{
	bool		in_use;
	uint16		next;			/* in the bucket, or free list link */
	bool		fair;			/* tenants of the queue take turns ... */
	bool		fair_cpu;		/* ... by processor time, not by number of
								 * jobs */
	bool		group_wait;		/* a group waits for a job whose attempt
								 * failed */
	bool		keyed;			/* a named limiter whose max_running, rate and
								 * throttle apply to each key */
	int32		queue_id;		/* or 0 */
	uint32		kind;			/* hash of the kind, or of the limiter's name;
								 * or 0 */
	int			max_running;	/* 0: no limit */
	int			group_max_running;	/* 0: no limit */
	int64		group_patience; /* timeout of the wait for the owner, in
								 * microseconds; 0: none */
	int			weight;			/* among queues of the same rank in a pool */
	JobqRate	rate;
	JobqThrottle throttle;
	int			nweights;		/* number of tenants with a weight above 1 */
	uint32		weighted[JOBQ_MAX_WEIGHTS]; /* hashes of these tenants */
	uint16		weights[JOBQ_MAX_WEIGHTS];

	int			running;		/* of all keys together */
	JobqPace	pace;			/* unused if keyed */
	double		tenant_turn;	/* of the tenant that was served last */
	float		tenant_cost;	/* average of a job, as JobqParty.cost */

	/* The taker for which a permit is reserved: see keep.c. */
	TimestampTz kept_until;		/* reserved if in the future */
	Oid			kept_role;
	int32		kept_queue;		/* of consumers; 0: for a worker */
	int32		kept_priority;	/* priority of the first job ... */
	uint64		kept_served;	/* ... and last turn of the role */
	Oid			wants_worker;	/* the role to be served next, if it has no
								 * worker ... */
	TimestampTz wants_since;	/* ... and since when */

	JobqWhenTaken when_taken;	/* if max_running is reached: see taken.c */
	int64		release_after;	/* microseconds */
	bool		priced;			/* jobs have individual costs */
	int			dearest;		/* highest cost of a job so far, if above 1 */

	int			chunk;			/* of a kind: most jobs of a call ... */
	int64		chunk_wait;		/* ... for which the first job waits this
								 * long, in microseconds; 0: not at all */
} JobqLimiter;

/* The state of a key's limits. */
typedef struct JobqKeyedState
{
	int			max_running;	/* 0: no limit */
	int			running;
	bool		paced;			/* the key has a rate ... */
	double		tokens;
	TimestampTz due;			/* ... by which the next job may start then */
	bool		throttled;		/* the key has a throttle ... */
	int			failures;		/* ... which has counted these failures */
	TimestampTz rest_until;		/* or 0 */
} JobqKeyedState;

/* The use of a rate and a throttle before a start of the server. */
typedef struct JobqSpent
{
	double		tokens;
	int			failures;
	TimestampTz failed_at;		/* time of the first failure */
} JobqSpent;

/*
 * The limiters of a database.
 */
typedef struct JobqLimits
{
	bool		loaded;
	bool		stale;			/* policies have changed since the load */
	bool		loading;		/* the scheduler is reading the policies */
	bool		overfull;		/* some limiters have no slot, and their jobs
								 * wait */
	TimestampTz loaded_at;
	TimestampTz begun_at;		/* last load that changed which jobs a limiter
								 * counts */
	bool		weighted;		/* a queue has a weight: queues take turns */
	Oid			jobs;			/* oid of the jobq_internal.job of these
								 * limits */
	double		queue_turn;		/* of the queue that was served last */
	uint64		served;			/* increased with each job that takes permits */
	TimestampTz due;			/* earliest time at which a lane may become
								 * free */
	int			nlimiters;		/* slots that are or were in use */
	uint16		free;
	JobqLimiter *limiters;		/* [jobq_max_limiters], like the next */
	uint16	   *bucket;
} JobqLimits;

/*
 * Microseconds until this number of tokens has arrived.  At most some ten thousand years, so
 * that the result can be added to a time.
 */
#define JOBQ_PACE_WAIT(tokens, rate) \
	((int64) Min((tokens) / (rate)->per_us, 1e18) + 1)

/* src/ready/limiter.c */
extern uint16 jobq_limiter_find(JobqDatabase *db, int32 queue_id, uint32 kind);
extern void jobq_limiters_unique(uint32 *limiters);
extern void jobq_limiters_find(JobqDatabase *db, int32 queue_id, const JobqNeed *needs,
							   uint16 *limiters);
extern uint16 jobq_limiter_add(JobqDatabase *db, const JobqLimiter *limiter);
extern void jobq_limiter_drop(JobqDatabase *db, uint16 index);
extern void jobq_limits_missed(JobqDatabase *db);
extern bool jobq_limiter_counts(const JobqLimiter *limiter);

/* src/ready/pace.c */
extern double jobq_pace_tokens(const JobqLimiter *policy, JobqPace *pace,
							   TimestampTz now, TimestampTz *due);
extern void jobq_pace_spend(const JobqLimiter *policy, JobqPace *pace, double tokens,
							TimestampTz now);
extern void jobq_pace_change(const JobqLimiter *policy, JobqPace *pace,
							 const JobqRate *rate, TimestampTz now);
extern void jobq_pace_failed(const JobqLimiter *policy, JobqPace *pace, int failures,
							 TimestampTz now);
extern int	jobq_pace_failures(const JobqLimiter *policy, JobqPace *pace, TimestampTz now,
							   TimestampTz *rest_until);
extern bool jobq_pace_free(const JobqLimiter *policy, JobqPace *pace, TimestampTz now,
						   TimestampTz *due);

/* src/ready/tally.c */
extern void jobq_tallies_clear(JobqDatabase *db);
extern void jobq_tallies_put_back(JobqDatabase *db, TimestampTz now);

/* src/ready/gather.c */
extern void jobq_gathering_put_back(JobqDatabase *db, TimestampTz now);

/* src/ready/wake.c */
extern void jobq_gathered_wake(JobqDatabase *db, const JobqPush *job, JobqWakeList *wake);

/* src/ready/lane.c */
extern TimestampTz jobq_gathers_until(JobqDatabase *db, int32 queue_id, int32 priority, Oid role,
									  int32 flow);

/* src/ready/key_permit.c */
extern bool jobq_keyed_state(JobqDatabase *db, uint32 limiter, uint32 key,
							 TimestampTz now, JobqKeyedState *state);
extern void jobq_limiter_restore(JobqDatabase *db, uint16 limiter, uint32 key,
								 const JobqSpent *spent, TimestampTz now);

/* src/ready/keyed.c */
extern bool jobq_lane_free(JobqDatabase *db, const JobqLane *lane,
						   TimestampTz now);

/* src/ready/turn.c */
extern void jobq_turn_settle(JobqDatabase *db, const JobqPush *job,
							 double used, bool ran);
extern void jobq_turns_begin(JobqDatabase *db, uint16 limiter);

/* src/ready/taken.c */

/* A job that holds a permit of a limiter. */
typedef struct JobqHolder
{
	int64		id;
	Oid			role;			/* the role under which the job runs */
	bool		stopping;		/* the job was asked to stop */
	bool		leased;			/* held by a consumer */
} JobqHolder;

/* Common properties of jobs that find no free permit at their limiter. */
typedef struct JobqTakenBy
{
	Oid			role;			/* the role under which the jobs run */
	uint32		limiter;		/* hash of the limiter's name */
	uint32		limit_key;		/* or 0 */
	JobqWhenTaken when_taken;
	int64		release_after;
	int			max_running;
} JobqTakenBy;

extern bool jobq_places_taken(JobqDatabase *db, uint32 limiter,
							  uint32 limit_key, JobqTakenBy *by, bool *ending);
extern bool jobq_needs_taken(JobqDatabase *db, const JobqNeed *needs,
							 JobqTakenBy *by, bool *ending);
extern JobqHeap *jobq_stuck_next(JobqDatabase *db, JobqTakenBy *by,
								 bool *ending);
extern void jobq_stuck_again(JobqDatabase *db, const JobqHeap *key);
extern int	jobq_stuck_take(JobqDatabase *db, const JobqHeap *key,
							JobqPush *jobs, int most, JobqWakeList *wake);
extern int	jobq_stuck_list(JobqDatabase *db, const JobqHeap *key,
							JobqPush *jobs, int most);
extern bool jobq_stuck_remove(JobqDatabase *db, const JobqPush *job,
							  JobqWakeList *wake);
extern bool jobq_is_handed_out(JobqDatabase *db, int64 id);

/* Number of leases examined under one acquisition of the lock. */
#define JOBQ_LEASES_AT_ONCE	1024

extern int	jobq_places_holders(JobqDatabase *db, const JobqTakenBy *by,
								JobqHolder *holders, int n, int most, int *at);

/* src/ready/group_set.c */
extern void jobq_set_leave(JobqDatabase *db, JobqSlot *slot, uint32 place, TimestampTz now,
						   JobqWakeList *wake);
extern void jobq_set_alone(JobqDatabase *db, JobqSlot *slot, uint32 place, int64 id);
extern void jobq_set_alone_over(JobqDatabase *db, JobqSlot *slot, int64 id, TimestampTz now,
								JobqWakeList *wake);
extern void jobq_set_leave_all(JobqDatabase *db, JobqSlot *slot, TimestampTz now,
							   JobqWakeList *wake);

/* src/ready/permit.c */
extern void jobq_limits_clear(JobqDatabase *db);
extern JobqVerdict jobq_permits_ask(JobqDatabase *db, JobqPush *job,
									bool queue_limited, TimestampTz now,
									int *limited, JobqWakeList *wake);
extern uint32 jobq_keyed_count(JobqDatabase *db, uint32 limiter, uint32 key,
							   TimestampTz now);
extern void jobq_permits_release(JobqDatabase *db, JobqPermits *permits,
								 int64 id, bool live, bool unused,
								 TimestampTz now, JobqWakeList *wake);
extern void jobq_slot_release(JobqDatabase *db, JobqSlot *slot, TimestampTz now,
							  JobqWakeList *wake);
extern void jobq_slot_release_more(JobqDatabase *db, JobqSlot *slot, int n, bool unused,
								   TimestampTz now, JobqWakeList *wake);
extern void jobq_limits_failed(JobqDatabase *db, const JobqPush *job, int failures,
							   TimestampTz now);
extern void jobq_limits_wake(JobqDatabase *db, TimestampTz now,
							 JobqWakeList *wake);

#endif							/* JOBQ_READY_LIMITS_H */
