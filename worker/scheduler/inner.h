/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  Declarations shared by the files of this directory, in dependency order:
 *	  each file uses only files above its own section.  The duties of the
 *	  scheduler are in duty.h.
 *
 * worker/scheduler/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULER_INNER_H
#define JOBQ_SCHEDULER_INNER_H

#include "base/base.h"

#include "access/relscan.h"
#include "access/skey.h"
#include "executor/tuptable.h"

#include "attempt/attempt.h"
#include "compose/compose.h"
#include "process/process.h"
#include "schedule/schedule.h"

/*
 * True if no worker may start in this database, because of "jobq.start_paused" or
 * because the database is a copy.
 */
static inline bool
scheduler_paused(void)
{
	return jobq_start_paused || my_db->copied;
}

/* worker/scheduler/try.c */

/*
 * How long the scheduler waits for a lock.  Short, because all other duties wait
 * meanwhile.
 */
#define DUTY_LOCK_TIMEOUT	"5ms"

extern ErrorData *scheduler_caught(MemoryContext caller);
extern ErrorData *scheduler_try(void (*body) (void *arg), void *arg);
extern ErrorData *scheduler_try_part(void (*body) (void *arg), void *arg);
extern void scheduler_commit_quietly(void);

/* worker/scheduler/trouble.c */
extern bool trouble_note(const char *what, const char *error, int64 pause);
extern void trouble_over(const char *what);

/* worker/scheduler/partitions.c */

/* Lock timeout for creating or dropping a partition while others read. */
#define ARCHIVE_LOCK_TIMEOUT	"50ms"

/* Time between two checks of the archive, in microseconds, without errors. */
#define ARCHIVE_PAUSE	(INT64CONST(3600) * USECS_PER_SEC)

extern void archive_tell(const char *what, const ErrorData *edata);
extern bool archive_try(const char *what, void (*body) (void *arg), void *arg);
extern void archive_day_name(TimestampTz day, char *name, size_t name_size,
							 char *date, size_t date_size);
extern TimestampTz archive_make_days(TimestampTz now);

/* Completes "the scheduler cannot ..." when old rows cannot be deleted. */
#define ARCHIVE_DELETE	"delete what has grown old"

/* worker/scheduler/clock.c */

/* A smaller step back of the clock is waited out (microseconds). */
#define JOBQ_CLOCK_SLACK	(60 * USECS_PER_SEC)

extern void clock_begin(int64 by);

/* worker/scheduler/share.c */
/* A task for a role. */
typedef struct RoleTask
{
	Oid			role;
	int			locked;			/* lock timeouts in a row */
	TimestampTz since;			/* due since this time */
	int64		item;			/* the caller's identifier */
	int64		key;			/* private to share.c */
} RoleTask;

/* A task that shares a transaction with other tasks. */
typedef struct Part
{
	Oid			role;
	int			locked;			/* as in RoleTask */
	void	   *arg;
	bool		rests;			/* skipped: the role must pause */
	ErrorData  *edata;			/* the error, or NULL */
	int64		took;			/* private to share.c */
}			Part;

extern void share_begin(void);
extern bool share_over(void);
extern int64 share_passed(void);
extern bool share_over_from(int64 passed);
extern TimestampTz share_may(Oid role, int locked, TimestampTz now);
extern void share_add(RoleTask *tasks, int *n, Oid role, int locked,
					  TimestampTz since, int64 item);
extern void share_order(RoleTask *tasks, int n);
extern ErrorData *share_try(Oid role, void (*body) (void *arg), void *arg);
extern int	share_try_together(Part * parts, int n, void (*body) (void *arg),
							   TimestampTz now);

/* worker/scheduler/old_rows.c */
/* A bite: a transaction that deletes old rows from a piece of a table. */
typedef struct Bite
{
	TimestampTz now;
	TimestampTz short_now;		/* the time for the retention times of queues */
	const char *day;			/* the partition, if it belongs to a day */
	ItemPointerData from;
	ItemPointerData to;
	bool		repeated;		/* not the first bite of this piece */
	bool		end;			/* result: the piece ends the table */
	bool		again;			/* result: more rows in this piece */
	bool		left;			/* result: some rows could not be deleted */
} Bite;

extern void old_rows_of_batches(Bite *bite);
extern void old_rows_of_short(Bite *bite);
extern void old_rows_default(Bite *bite);
extern void old_rows_letters(Bite *bite);
extern void old_rows_batches(Bite *bite);
extern void old_rows_keys(Bite *bite);
extern void old_rows_uuids(Bite *bite);
extern void old_rows_audit(Bite *bite);
extern void old_rows_steps(Bite *bite);
extern void old_rows_signals(Bite *bite);

/* worker/scheduler/later.c */
extern TimestampTz later_at(int64 job_id, TimestampTz now);
extern TimestampTz later_failed(int64 job_id, ErrorData *edata, TimestampTz now);
extern void later_done(int64 job_id);

/* worker/scheduler/owed.c */
extern void owed_cancel(TimestampTz now, TimestampTz *wake);

/* worker/scheduler/note.c */
/* A row with a column last_error, and the key of the row. */
typedef struct ErrorRow
{
	const char *table;
	const char *column;
	Oid			type;
	Datum		key;
} ErrorRow;

extern bool scheduler_note_error(const ErrorRow *row, const ErrorData *edata,
								 void (*tell) (void *arg), void *arg);

/* worker/scheduler/role.c */
extern bool role_can_work(Oid role, JobqError *error);
extern void role_left_early(Oid role, bool connected, TimestampTz now,
							TimestampTz *wake);
extern TimestampTz role_retry_at(Oid role, TimestampTz now);
extern void role_charge(Oid role, const JobqError *error, TimestampTz now,
						TimestampTz *wake);
extern bool role_charged_lately(Oid role);

/* worker/scheduler/demand.c */
/* A role with jobs for a pool. */
typedef struct RoleDemand
{
	Oid			role;
	uint32		waiting;		/* jobs ready to start */
	int64		urgency;		/* of the first; a lower value comes first */
	int			workers;		/* without those about to leave */
	int			ready;			/* of these, idle or starting */
	int			coming;			/* of these, have not looked for a job */
	TimestampTz full_at;		/* when they last used all processors; 0:
								 * never */
} RoleDemand;

/* A pool, and the roles with jobs for the pool, ordered by OID. */
typedef struct PoolDemand
{
	int			size;
	int			workers;		/* all workers */
	int			leaving;		/* of these, about to leave */
	bool		by_turn;		/* demand_next() used round robin */
	TimestampTz full_until;		/* demand_next() left out roles until then */
	bool		delayed;		/* ... until starting workers look for jobs */
	int			nroles;
	RoleDemand *roles;
} PoolDemand;

/* A snapshot of a worker. */
typedef struct WorkerView
{
	int			slot;
	uint32		generation;
	Oid			role;
	int			pool;
	bool		coming;			/* has not begun to work */
	bool		idle;
	bool		in_job;
	bool		leaves;
	bool		comes_back;
	bool		yields;			/* decision: must leave */
	bool		yields_anyway;
	TimestampTz turn_at;
	TimestampTz full_at;
	TimestampTz idle_since;		/* if idle */
	TimestampTz yields_since;	/* or 0 */
	int			peers;			/* staying peers, including this worker */
	int64		urgency;		/* of the waiting jobs of the role */
} WorkerView;

/* A snapshot of a spare worker. */
typedef struct SpareView
{
	int			slot;
	uint32		generation;
	Oid			role;
	int			pool;
	TimestampTz since;			/* when the worker last had work; 0: unknown */
} SpareView;

typedef struct Demand
{
	TimestampTz now;
	int			npools;
	PoolDemand	pools[JOBQ_MAX_POOLS];
	int			nworkers;
	WorkerView *workers;		/* peers (same role and pool) are adjacent */
	int			nspares;
	SpareView  *spares;
	int			spares_leaving; /* further spares, about to exit */
	int			nworkers_started;	/* in this round */
	int			most;			/* workers and spares that may exist */
} Demand;

extern Demand *demand_read(const JobqPoolSet *pools, TimestampTz now);
extern int	demand_without_worker(const PoolDemand *pool);
extern RoleDemand *demand_next(Demand *demand, int index);
extern void demand_met(PoolDemand *pool, int index, RoleDemand *role);

/* worker/scheduler/yield.c */
extern TimestampTz yield_places(Demand *demand, bool shared, TimestampTz now);

/* worker/scheduler/spares.c */
extern TimestampTz spares_begin(Demand *demand, TimestampTz now);
extern bool spares_recall(Demand *demand, int pool, Oid role, TimestampTz now);
extern bool spares_make_way(Demand *demand);

/* worker/scheduler/places.c */
extern int	places_find(bool *others);
extern bool places_any(void);
extern void places_enough(void);
extern void places_free(void);

/* worker/scheduler/spawn.c */
extern TimestampTz spawn_workers(TimestampTz now);
extern void spawn_again(bool came);
extern void spawn_dismiss(void);

/* worker/scheduler/extension.c */
extern void extension_check(void);

/* worker/scheduler/supervise.c */
extern void supervise_lost_lease(int64 id);

/* worker/scheduler/index.c */
/* A position in the ready index. */
typedef struct IndexPosition
{
	int32		queue_id;
	int32		priority;
	Oid			role;
	int32		flow;
	JobqKey		key;
} IndexPosition;

/* A scan of the ready index within one transaction. */
typedef struct ReadyIndex
{
	Relation	rel;
	Relation	index;
	TupleTableSlot *slot;
	IndexScanDesc desc;
	ScanKeyData keys[5];
	ScanKeyData members[6];
} ReadyIndex;

extern void index_begin(ReadyIndex *scan);
extern void index_end(ReadyIndex *scan);
extern void index_key_after(ScanKey header, ScanKey members, int first,
							int last, const IndexPosition *after);
extern void index_position(IndexScanDesc desc, IndexPosition *at);
extern bool index_read_row(TupleTableSlot *slot, const JobqPush *first, JobqPush *push,
						   bool *dormant, bool *leased);
extern void index_note_leased(int64 id);
extern void index_end_lost(void);

/* worker/scheduler/tokens.c */
extern void tokens_begin(void);
extern void tokens_renew(void);

/* A kind (as hash) or a queue, and the limiters (as hashes; 0: none) that it names. */
typedef struct Member
{
	int32		queue_id;		/* 0: a kind */
	uint32		kind;
	uint32		limiters[JOBQ_MAX_NAMED];
} Member;

typedef struct Members
{
	Member	   *members;		/* sorted */
	uint64		n;
} Members;

/* Limiters that are named but do not exist. */
typedef struct Missing
{
	uint32	   *hashes;
	int			n;
	char		first[JOBQ_MAX_LIMITER_NAME + 1];	/* name of the first */
} Missing;

/* worker/scheduler/policies.c */
extern int	policies_read(JobqLimiter **limiters, bool *weighted);
extern bool policies_wait(const JobqLimiter *limiter);
extern int	policies_compare(const void *a, const void *b);
extern Members policies_members(void);
extern Missing policies_missing(void);
extern void policies_tell_missing(const Missing *missing);
extern void policies_limiters(const Members *members, int32 queue_id,
							  uint32 kind, uint16 *limiters);

/* worker/scheduler/past.c */

/* The jobs of a name that started or failed before the server start. */
typedef struct Past
{
	text	   *name;			/* or NULL */
	JobqSpent	spent;
} Past;

extern void past_begin(const JobqLimiter *limiters, int n);
extern void past_end(void);
extern uint64 past_read(const JobqLimiter *limiter, const char *by,
						TimestampTz started_since, TimestampTz failed_since,
						int most);
extern Past past_row(uint64 i);
extern TimestampTz past_bucket_since(const JobqRate *rate, TimestampTz now);

/* worker/scheduler/groups.c */
extern void groups_restore(void);
extern TimestampTz groups_owners_due(TimestampTz now);
extern void groups_read_owners(void);
extern void groups_refill(void);
extern void groups_sweep(void);

/* worker/scheduler/limits_restore.c */
extern void limits_restore(void);

/* worker/scheduler/leases_forget.c */
extern void leases_forget(Relation jobs);

/* worker/scheduler/leases_load.c */
extern TimestampTz leases_load(TimestampTz now);

/* worker/scheduler/limits.c */
extern void limits_load(void);
extern uint8 limits_lacked(const JobqLane *lane);

/* worker/scheduler/limit_permits.c */
extern void limits_begin_to_count(uint16 index, JobqWakeList *wake);
extern void limits_count_named(const Members *members, TimestampTz now, JobqWakeList *wake);
extern void limits_forget_permits(const bool *stays);
extern JobqPermits limits_of_lease(const JobqPush *push);

/* worker/scheduler/aside.c */
extern BackgroundWorkerHandle *aside_start(const char *type, const char *function);
extern bool aside_gone(BackgroundWorkerHandle *process);
extern bool aside_over(BackgroundWorkerHandle **process);
extern void aside_begin(Datum main_arg, const char *activity);
extern void aside_leave_if_unwanted(void);

/* worker/scheduler/monitors.c */
extern void monitors_leave(void);

/* worker/scheduler/counter.c */
extern BackgroundWorkerHandle *counter_start(void);
extern void counter_count(JobqStatBase *base, TimestampTz now);

/* worker/scheduler/schedules.c */
extern void schedules_put_back(void);

/* worker/scheduler/schedule_events.c */
/* Ticks of a schedule without a job: from the tick "first" until before "until". */
typedef struct MissedTicks
{
	const JobqScheduledJob *job;
	const JobqCron *cron;
	pg_tz	   *zone;
	TimestampTz anchor;
	TimestampTz first;
	TimestampTz until;
	const char *policy;			/* the reason: missed or overlap */
} MissedTicks;

/* A schedule, and the error that kept it from enqueuing its job. */
typedef struct ScheduleError
{
	const char *name;
	const ErrorData *edata;
} ScheduleError;

extern void schedule_missed(Oid role, const MissedTicks *missed);
extern void schedule_failed(void *arg);

#endif							/* JOBQ_SCHEDULER_INNER_H */
