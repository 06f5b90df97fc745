/*-------------------------------------------------------------------------
 *
 * limits.h
 *	  Limits of queues and kinds: how many jobs run, and how often one starts.
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
 * A job needs permits to start: of its queue's limiter, of its tenant there, of the
 * limiter that its kind has, or that kind or queue name, and of its group.  Whoever
 * pops it takes them all at once, and gives them back when the job's transaction is
 * over; a process that dies has its permits given back by the scheduler.  So a limit holds exactly, for workers and consumers alike.
 *
 * A job takes a token of each rate, but of a named limiter as many as it costs there.  It
 * starts when there is one, and what it takes above those that are there is owed: the
 * bucket has less than nothing until time has made up for it.  So dear jobs need not wait
 * for a full bucket, which cheap ones would keep from them, and on average no more
 * tokens are taken than come.
 *
 * What waits for a limiter stays in its lane, which is skipped meanwhile: jobs
 * of a limited kind, and of a tenant, have lanes of their own (src/store/flow.c).
 * What waits for its group is parked at the group, so that it is in nobody's way.
 */

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

#define JOBQ_MAX_WEIGHTS	32

/* What becomes of a job that is due while all places of its limiter are taken. */
typedef enum JobqWhenTaken
{
	JOBQ_WHEN_TAKEN_WAIT = 0,	/* it stays where it is */
	JOBQ_WHEN_TAKEN_RELEASE,	/* it comes again after some time */
	JOBQ_WHEN_TAKEN_SKIP,		/* it is cancelled */
	JOBQ_WHEN_TAKEN_REPLACE,	/* older ones of its role are */
} JobqWhenTaken;

/* The policy of a queue or of a kind, and what it counts. */
typedef struct JobqLimiter
{
	bool		in_use;
	uint16		next;			/* in its bucket, or free list link */
	bool		fair;			/* the queue's tenants take turns ... */
	bool		fair_cpu;		/* by processor time, not by number */
	bool		group_wait;		/* a group waits for its job that failed */
	bool		keyed;			/* a named limiter: each key of jobs is a
								 * tenant of it */
	int32		queue_id;		/* or 0 */
	uint32		kind;			/* hash of it, or of a limiter's name; or 0 */
	int			max_running;	/* 0: no limit */
	int			group_max_running;	/* 0: no limit */
	int64		group_patience; /* for its owner, in microseconds; 0: for ever */
	int			weight;			/* among queues of the same place in a pool */
	JobqRate	rate;
	JobqThrottle throttle;
	int			tenant_max_running; /* of each tenant; 0: no limit */
	JobqRate	tenant_rate;
	int			nweights;		/* of tenants that have another than 1 */
	uint32		weighted[JOBQ_MAX_WEIGHTS]; /* the tenants */
	uint16		weights[JOBQ_MAX_WEIGHTS];

	int			running;
	JobqPace	pace;
	double		tenant_turn;	/* of the tenant that was served last */
	float		tenant_cost;	/* of a job on average, as JobqParty.cost */

	/* For whom a place is kept: see keep.c. */
	TimestampTz kept_until;		/* if that is in the future */
	Oid			kept_role;
	int32		kept_queue;		/* of consumers; 0: for a worker */
	int32		kept_priority;	/* of its first job ... */
	uint64		kept_served;	/* ... and its role's turn */
	Oid			wants_worker;	/* whose turn it is, if no worker of it is
								 * there ... */
	TimestampTz wants_since;	/* ... for so long */

	JobqWhenTaken when_taken;	/* of max_running, or tenant_max_running if it
								 * is keyed: see taken.c */
	int64		release_after;	/* microseconds */
	bool		priced;			/* its jobs say what they cost */
	int			dearest;		/* what the dearest job has cost, above 1 */
} JobqLimiter;

/* What the limits of a tenant count. */
typedef struct JobqTenantState
{
	int			max_running;	/* 0: no limit */
	int			running;
	bool		paced;			/* it has a rate ... */
	double		tokens;
	TimestampTz due;			/* ... by which the next may start then */
} JobqTenantState;

/*
 * The limiters of a database.
 */
typedef struct JobqLimits
{
	bool		loaded;
	bool		stale;			/* policies have changed since */
	bool		loading;		/* the scheduler is reading them */
	bool		overfull;		/* some have no place, and their jobs wait */
	TimestampTz loaded_at;
	TimestampTz begun_at;		/* jobs count at others since: when that was
								 * loaded */
	bool		weighted;		/* a queue has a weight: queues take turns */
	Oid			jobs;			/* the jobq_internal.job that they are about */
	double		queue_turn;		/* of the queue that was served last */
	uint64		served;			/* grows with each job that is taken with
								 * permits */
	TimestampTz due;			/* when a lane may be free, with time */
	int			nlimiters;		/* places that are or were in use */
	uint16		free;
	JobqLimiter *limiters;		/* [jobq_max_limiters], as is the next */
	uint16	   *bucket;
} JobqLimits;

/*
 * Time that passes until so many tokens have come, at most some ten thousand years: so
 * that it can be added to a time.
 */
#define JOBQ_PACE_WAIT(tokens, rate) \
	((int64) Min((tokens) / (rate)->per_us, 1e18) + 1)

/* src/ready/limiter.c */
extern uint16 jobq_limiter_find(JobqDatabase *db, int32 queue_id, uint32 kind);
extern uint16 jobq_limiter_add(JobqDatabase *db, const JobqLimiter *limiter);
extern void jobq_limiter_drop(JobqDatabase *db, uint16 index);
extern void jobq_limits_missed(JobqDatabase *db);
extern bool jobq_limiter_counts(const JobqLimiter *limiter);
extern bool jobq_pace_free(const JobqRate *rate, JobqPace *pace,
						   TimestampTz now, TimestampTz *due);
extern void jobq_pace_failed(const JobqThrottle *throttle, JobqPace *pace,
							 int failures, TimestampTz now);

/* src/ready/tally.c */
extern bool jobq_tenants_limited(const JobqLimiter *limiter);
extern void jobq_tallies_clear(JobqDatabase *db);
extern void jobq_tallies_put_back(JobqDatabase *db, TimestampTz now);

/* src/ready/tenant.c */
extern bool jobq_tenant_state(JobqDatabase *db, int32 scope, uint32 tenant,
							  TimestampTz now, JobqTenantState *state);
extern void jobq_tenant_spend(JobqDatabase *db, int32 scope, uint32 tenant,
							  double tokens, TimestampTz now);
extern bool jobq_lane_free(JobqDatabase *db, const JobqLane *lane,
						   TimestampTz now);

/* src/ready/turn.c */
extern void jobq_turn_settle(JobqDatabase *db, const JobqPush *job,
							 double used, bool ran);
extern void jobq_turns_begin(JobqDatabase *db, uint16 limiter);

/* src/ready/taken.c */

/* A job that holds a place. */
typedef struct JobqHolder
{
	int64		id;
	Oid			role;			/* as which it runs */
	bool		stopping;		/* it was asked to stop */
	bool		leased;			/* a consumer has it */
} JobqHolder;

/* What jobs have in common that find all places taken. */
typedef struct JobqTakenBy
{
	Oid			role;			/* as which they run */
	uint32		limiter;		/* hash of its name */
	uint32		limit_key;		/* or 0 */
	JobqWhenTaken when_taken;
	int64		release_after;
	int			max_running;
} JobqTakenBy;

extern bool jobq_places_taken(JobqDatabase *db, uint32 limiter,
							  uint32 limit_key, JobqTakenBy *by, bool *ending);
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

/* Leases that are looked at under one lock. */
#define JOBQ_LEASES_AT_ONCE	1024

extern int	jobq_places_holders(JobqDatabase *db, const JobqTakenBy *by,
								JobqHolder *holders, int n, int most, int *at);

/* src/ready/permit.c */
extern void jobq_limits_clear(JobqDatabase *db);
extern JobqVerdict jobq_permits_ask(JobqDatabase *db, JobqPush *job,
									bool limited, TimestampTz now,
									JobqWakeList *wake);
extern uint32 jobq_tenant_count(JobqDatabase *db, int32 scope, uint32 tenant,
								TimestampTz now);
extern void jobq_permits_release(JobqDatabase *db, JobqPermits *permits,
								 int64 id, bool live, bool unused,
								 TimestampTz now, JobqWakeList *wake);
extern void jobq_slot_release(JobqDatabase *db, JobqSlot *slot, bool live,
							  bool unused, TimestampTz now,
							  JobqWakeList *wake);
extern void jobq_limits_failed(JobqDatabase *db, int32 queue_id, uint32 kind,
							   Oid role, int64 group, int failures,
							   TimestampTz now);
extern void jobq_limits_wake(JobqDatabase *db, TimestampTz now,
							 JobqWakeList *wake);

#endif							/* JOBQ_READY_LIMITS_H */
