/*-------------------------------------------------------------------------
 *
 * jobs.h
 *	  A job as a C struct, its row, and operations on both.
 *
 * Part of the interface of the directory store.
 *
 * src/store/jobs.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_JOBS_H
#define JOBQ_JOBS_H

#include "utils/snapshot.h"

#include "stats/stats.h"
#include "store/names.h"

/*
 * Attribute numbers of jobq_internal.job.  Columns of fixed width come first.
 */
enum
{
	JOB_ID = 1,
	JOB_RUN_AT,
	JOB_ENQUEUED_AT,
	JOB_QUEUE_ID,
	JOB_PRIORITY,
	JOB_ROLE,
	JOB_RUN_AS,
	JOB_FLOW,
	JOB_ATTEMPT,
	JOB_MAX_ATTEMPTS,
	JOB_EXCEPTIONS,
	JOB_CRASHES,
	JOB_WATCH,
	JOB_DORMANT,
	JOB_KIND,
	JOB_PAYLOAD,
	JOB_TIMEOUT,
	JOB_RETRY_UNTIL,
	JOB_EXPIRES_AT,
	JOB_LEASE_TOKEN,
	JOB_LEASE_UNTIL,
	JOB_HEADERS,
	JOB_BACKOFF,
	JOB_ERRORS,
	JOB_GROUP_ID,
	JOB_GROUP_KEY,
	JOB_GROUP_HELD,
	JOB_UNIQUE_UNTIL,
	JOB_UNIQUE_QUEUE,
	JOB_UNIQUE_KEY,
	JOB_BATCH_ID,
	JOB_FREE_DELAY,
	JOB_FREE_RUN_AT,
	JOB_LOG,
	JOB_CONTEXT,
	JOB_TENANT,
	JOB_TAGS,
	JOB_LIMIT_COST,
	JOB_TOGETHER,
	JOB_WAITS_FOR,
	JOB_ASKED_BY,
	JOB_NATTS = JOB_ASKED_BY
};

/*
 * A job.  values[] and nulls[] are the row.  Values passed by reference point into memory of
 * the job's memory context.
 */
typedef struct JobqJob
{
	Datum		values[JOB_NATTS];
	bool		nulls[JOB_NATTS];
	ItemPointerData ctid;
	TransactionId xmin;			/* of the row, as read */
	TransactionId version;		/* raw xmin; kept by freezing and rewriting */
	bool		tried;			/* a transaction deleted or locked the row */
	JobqStatAt	stat;			/* its counters: see count.c */
} JobqJob;

/*
 * Clear the cached counters of the job.  Required after a change of queue, role or tenant, and
 * for a job not made by jobq_job_init() or jobq_job_from_tuple().
 */
#define job_clear_stat(job)	((job)->stat.base = NULL)

#define JOB(job, att)		((job)->values[(att) - 1])
#define JOB_ISNULL(job, att) ((job)->nulls[(att) - 1])
#define JOB_SET(job, att, value) \
	((job)->values[(att) - 1] = (value), (job)->nulls[(att) - 1] = false)

#define job_id(job)			DatumGetInt64(JOB(job, JOB_ID))
#define job_run_at(job)		DatumGetTimestampTz(JOB(job, JOB_RUN_AT))
#define job_queue_id(job)	DatumGetInt32(JOB(job, JOB_QUEUE_ID))
#define job_priority(job)	DatumGetInt32(JOB(job, JOB_PRIORITY))
#define job_role(job)		DatumGetObjectId(JOB(job, JOB_ROLE))
#define job_run_as(job)		DatumGetObjectId(JOB(job, JOB_RUN_AS))
#define job_flow(job)		DatumGetInt32(JOB(job, JOB_FLOW))
#define job_attempt(job)	DatumGetInt32(JOB(job, JOB_ATTEMPT))
#define job_max_attempts(job) DatumGetInt32(JOB(job, JOB_MAX_ATTEMPTS))

/* True if attempt number n is the last one allowed by max_attempts. */
#define job_last_attempt(job, n) \
	(job_max_attempts(job) > 0 && (n) >= job_max_attempts(job))

/* True if the job may begin at most once, whatever ends its attempt. */
#define job_only_once(job) \
	(job_max_attempts(job) == 1 && JOB_ISNULL(job, JOB_RETRY_UNTIL))

/*
 * True if the job's consumer was lost while it held several jobs, of which any may be the
 * cause.  A call of reserve() then returns at most job_together() of these jobs.
 */
#define job_suspect(job)	(!JOB_ISNULL(job, JOB_TOGETHER))
#define job_together(job)	((int) DatumGetInt16(JOB(job, JOB_TOGETHER)))

#define job_watch(job)		DatumGetBool(JOB(job, JOB_WATCH))
#define job_group(job) \
	(JOB_ISNULL(job, JOB_GROUP_ID) ? 0 : DatumGetInt64(JOB(job, JOB_GROUP_ID)))
#define job_held_since(job)	DatumGetTimestampTz(JOB(job, JOB_GROUP_HELD))
#define job_batch(job) \
	(JOB_ISNULL(job, JOB_BATCH_ID) ? 0 : DatumGetInt64(JOB(job, JOB_BATCH_ID)))
#define job_asked_by(job) \
	(JOB_ISNULL(job, JOB_ASKED_BY) ? 0 : DatumGetInt64(JOB(job, JOB_ASKED_BY)))
#define job_blocked(job)	(job_run_at(job) == DT_NOEND)
#define job_leased(job)		(!JOB_ISNULL(job, JOB_LEASE_TOKEN))

/*
 * run_at of a suspended job without a time limit: the beginning of the year 9999.  Not
 * infinity, so that the job does not look blocked to batches and workflows.
 */
#define JOB_NO_LIMIT		(INT64CONST(2921575) * USECS_PER_DAY)

/* The process or consumer of a failed attempt, and its progress. */
typedef struct JobqTrier
{
	int			pid;			/* the worker's, or 0 */
	const char *consumer;		/* or NULL */
	float4		progress;		/* percent, or -1 */
	const char *message;		/* reported with progress, or "" */
} JobqTrier;

/* Error of an attempt. */
typedef struct JobqError
{
	int			sqlerrcode;
	const char *message;
	const char *detail;			/* or NULL */
	const char *hint;			/* or NULL */
	const char *context;		/* or NULL */
	const JobqTrier *trier;		/* or NULL */
	const ErrorData *raised;	/* the error of the server that this is, or
								 * NULL */
} JobqError;

/*
 * Options of an enqueue() about unique keys, beyond those stored in the job.
 */
typedef struct JobqUnique
{
	char		on_conflict;
	TimestampTz held_until;		/* end of the window, or DT_NOBEGIN */
	bool		exempt;			/* a retry: ignores max_length */
	List	   *by;				/* names of fields that make the key, or NIL */
	const char *merge;			/* merging function, or NULL */
	Datum		uuid;			/* the client's uuid, or 0 */
	int			max;			/* maximum number of holders */
	bool		ask_cost;		/* compute the cost at the limiter */
	bool		several;		/* the statement has several jobs for a key */
} JobqUnique;

/* Payload merged by the function for a waiting job. */
typedef struct JobqMerged
{
	bool		done;			/* the function was called */
	ItemPointerData ctid;		/* for this row of the waiting job, */
	TransactionId version;		/* in this version */
	Datum		payload;
	Datum		cost;			/* at its limiter ... */
	bool		no_cost;		/* ... or null */
} JobqMerged;

/* Result of an attempt to take over the waiting holder of a unique key. */
typedef enum JobqTaken
{
	JOBQ_NOT_TAKEN,				/* the holder no longer waits */
	JOBQ_TAKEN_OVER,			/* row deleted, to be written again */
	JOBQ_LOOK_AGAIN,			/* code of the user ran: check again */
} JobqTaken;

/* The key of a job in jobq_internal.unique_key, without the role. */
typedef struct JobqUniqueKey
{
	Datum		key;
	Datum		kind;			/* empty: a key of all kinds */
	Datum		queue_id;		/* or UNIQUE_IN_DATABASE */
} JobqUniqueKey;

/* Value of jobq_internal.job.unique_queue for a key unique in all queues. */
#define UNIQUE_IN_DATABASE	0

/* Values of jobq_internal.job.unique_until, and of JobqUnique.on_conflict. */
#define UNIQUE_UNTIL_FINISH	'f'
#define UNIQUE_UNTIL_START	's'
#define UNIQUE_SKIP			's'
#define UNIQUE_IGNORE		'i'
#define UNIQUE_REPLACE		'r'
#define UNIQUE_MERGE		'm'
#define UNIQUE_RESET		't'
#define UNIQUE_ERROR		'e'

/*
 * Outcome requested by a handler that returns.  The effects of the handler commit with each
 * outcome.  A job that runs again is "live": its group waits for the job, as the queue says.
 *
 * The names of SNOOZE and RELEASE are not those of SQL: snooze() requests RELEASE if "charge" is
 * true, and otherwise SNOOZE.  release(), for a job of a set handler, requests SNOOZE.
 */
typedef enum JobqOutcome
{
	OUTCOME_COMPLETE = 0,		/* completed; the attempt is charged */
	OUTCOME_SNOOZE,				/* runs again after delay_ms; not charged */
	OUTCOME_RELEASE,			/* runs again after delay_ms; charged, and a
								 * dead letter if this was the last attempt */
	OUTCOME_DISCARD,			/* cancelled; charged */
	OUTCOME_SUSPEND,			/* the procedure waits: runs again at "until",
								 * or as soon as what it waits for comes; not
								 * charged */
	OUTCOME_NACK,				/* of a job of a set handler: failed; charged;
								 * runs again after delay_ms or the backoff,
								 * or is a dead letter */
	OUTCOME_REJECT,				/* of a job of a set handler: a dead letter;
								 * charged */
} JobqOutcome;

/* Size of a job's trace in bytes, with the terminating zero. */
#define JOBQ_TRACE_SIZE		56

/* src/attempt/asked.c */
typedef struct JobqAsked JobqAsked;

/*
 * The job that runs in this process.  The job of perform() hides the job of the calling
 * worker.
 */
typedef struct JobqCurrent
{
	const JobqJob *job;
	int			attempt;		/* its number */
	int64		version;		/* of the handler, as of the first step; 0: a
								 * statement */
	JobqOutcome outcome;
	int64		delay_ms;		/* of snooze, release and nack */
	TimestampTz until;			/* of suspend */
	const char *waits_for;		/* of suspend: see jobq_internal.job */
	const char *reason;			/* of discard, nack and reject */
	JobqAsked  *asked;			/* requests of this transaction */
	bool		rejected;		/* reject_current() was called */
	bool		barred;			/* no further attempt can succeed */
	bool		suspended;		/* the suspension has committed */
	bool		set;			/* runs in a set handler, perhaps with other
								 * jobs, which are linked by "outer" */
	JobqSlot   *slot;			/* or NULL in perform() and work() */
	MemoryContext memory;		/* outlives an abort; NULL in perform() */
	List	   *log;			/* lines in JSON */
	char		trace[JOBQ_TRACE_SIZE]; /* or "" */
	struct JobqCurrent *outer;
} JobqCurrent;

/* src/store/job.c */
extern int64 jobq_next_id(void);
extern void jobq_job_draw_id(JobqJob *job);
extern void jobq_job_init(JobqJob *job, const char *kind, Datum payload,
						  int32 queue_id, Oid role);
extern bool jobq_job_expires_by(const JobqJob *job, const JobqQueue *queue);
extern void jobq_job_set_run_at(JobqJob *job, TimestampTz run_at);
extern void jobq_job_from_tuple(Relation rel, HeapTuple tuple, JobqJob *job);
extern const char *jobq_job_kind(const JobqJob *job);
extern bool jobq_job_is_statement(const JobqJob *job);
extern bool jobq_job_is_workflow(const JobqJob *job);
extern int	jobq_job_timeout(const JobqHandler *handler, const JobqJob *job);
extern void jobq_job_count_exception(JobqJob *job);
extern void jobq_job_set_payload(JobqJob *job, Datum payload);

/* src/store/limit_hash.c */
extern uint32 jobq_kind_hash(const char *kind);
extern uint32 jobq_limiter_hash(const char *name);

/* src/store/flow.c */
extern int64 jobq_group_id(int32 queue_id, text *key);
extern void jobq_set_group(JobqJob *job, Datum group_key);
extern bool jobq_group_changed(const JobqJob *job);
extern bool jobq_group_is_held_by(const JobqJob *job, TimestampTz now);
extern void jobq_set_group_right(JobqJob *job);
extern void jobq_change_group(JobqJob *job);
extern void jobq_set_flow(JobqJob *job);
extern bool jobq_flow_changed(const JobqJob *job);
extern void jobq_push_flow(const JobqJob *job, JobqPush *push);
extern bool jobq_flow_has_key(const JobqJob *job);
extern void jobq_limiters_of(const char *kind, const JobqQueue *queue, uint32 *limiters);
extern void jobq_job_needs(const JobqJob *job, JobqNeed *needs);
extern bool jobq_tenant_paused(const JobqQueue *queue, const char *tenant);
extern bool jobq_kind_paused(const JobqQueue *queue, const char *kind);
extern uint32 jobq_held_hash(const char *kind);

/* src/store/tenant.c */
extern bool jobq_tenant_parse(const char *text, char *by, char *name);
extern char *jobq_job_tenant(const JobqJob *job, const JobqQueue *queue);
extern uint32 jobq_tenant_hash(const char *tenant);

/* src/store/state.c */
extern const char *jobq_waiting_state(const JobqJob *job, TimestampTz now);
extern void jobq_state_changed(const JobqJob *job, const char *state);
extern void jobq_tell_running(const JobqJob *job, int attempt, float4 progress,
							  bool now);

/* src/store/row.c */
extern Relation jobq_open_jobs(void);
extern Relation jobq_try_open_jobs(void);
extern bool jobq_job_fetch(Relation rel, const ItemPointerData *ctid,
						   JobqKey key, Snapshot snapshot, JobqJob *job);
extern bool jobq_job_fetch_entry(Relation rel, const JobqPush *entry,
								 Snapshot snapshot, JobqJob *job);
extern bool jobq_job_find(Relation rel, int64 id, Snapshot snapshot,
						  JobqJob *job);
extern bool jobq_job_find_now(Relation rel, int64 id, JobqJob *job);
extern void jobq_job_insert(Relation rel, JobqJob *job);
extern void jobq_job_insert_back(Relation rel, JobqJob *job);
extern void jobq_job_insert_again(Relation rel, JobqJob *job);
extern void jobq_job_holds_group(const JobqJob *job);
extern bool jobq_job_delete(Relation rel, JobqJob *job);
extern bool jobq_job_delete_or_blocker(Relation rel, JobqJob *job,
									   TransactionId *blocker);
extern bool jobq_job_lease(Relation rel, JobqJob *job);
extern void jobq_push_of_job(JobqPush *push, const JobqJob *job,
							 const JobqQueue *queue);
extern void jobq_job_push(const JobqJob *job);
extern bool jobq_relay_tells(const JobqQueue *queue);
extern void jobq_notify_queue(const JobqQueue *queue);
extern void jobq_job_push_if_undone(const JobqJob *job);

/* src/store/current.c */
extern JobqCurrent *jobq_current;
extern JobqCurrent *jobq_current_of(int64 id);
extern bool jobq_job_runs(const JobqJob *job);
extern bool jobq_job_kept(const JobqJob *job);

/* src/store/trace.c */
extern void jobq_trace(const JobqJob *job, char *trace);
extern void jobq_follow_trace(JobqJob *job);
extern void jobq_add_trace(JobqJob *job, const JobqJob *other);
extern char *jobq_trace_headers(const JobqJob *job);

/* src/store/blocked.c */
extern void jobq_job_unblock(JobqJob *job);
extern void jobq_job_free(Relation rel, JobqJob *job);

/* src/store/unique.c */
extern void jobq_unique_set_scope(JobqJob *job, const char *word);
extern void jobq_unique_insert(Relation rel, JobqJob *job,
							   const JobqUnique *unique);
extern bool jobq_unique_reclaim(Relation rel, const JobqJob *job);
extern bool jobq_unique_release(const JobqJob *job);
extern int64 jobq_unique_holder(const JobqJob *job);

/* src/store/unique_key.c */
extern void jobq_unique_key(const JobqJob *job, JobqUniqueKey *key);
extern bool jobq_unique_started(const JobqJob *job);
extern void jobq_unique_finished(const JobqJob *job, bool completed);

/* src/store/unique_prune.c */
extern void jobq_unique_prune(ItemPointer from, ItemPointer to, TimestampTz now);

/* src/store/unique_waiting.c */
extern void jobq_unique_place(const JobqJob *job, const JobqUnique *unique);
extern JobqTaken jobq_unique_take(Relation rel, int64 id, JobqJob *job,
								  const JobqUnique *unique, JobqMerged *merged);

/* src/store/uuid.c */
extern bool jobq_uuid_take(Relation rel, JobqJob *job, Datum uuid);
extern void jobq_uuid_settle(const JobqJob *job, Datum uuid);
extern List *jobq_jobs_of_uuid(Datum uuid);
extern void jobq_uuid_prune(ItemPointer from, ItemPointer to);

/* src/store/user_function.c */
extern Oid	jobq_user_function(const char *signature, int nargs, Oid result,
							   const char *cannot, const char *hint);

/* src/store/merge.c */
extern Oid	jobq_merge_function(const char *signature);
extern Datum jobq_merge_payloads(const char *signature, const JobqJob *waiting,
								 const JobqJob *job);

/* src/store/limit_key.c */
extern void jobq_limit_keys_install(void);
extern void jobq_check_limit_by(const char *by);
extern uint32 jobq_limit_key(const JobqJob *job, uint32 limiter,
							 const char *tenant);
extern const char *jobq_limiter_cost_function(uint32 limiter);
extern int32 jobq_limit_cost(const JobqJob *job, uint32 limiter);

/* src/store/limit_cost.c */
extern Oid	jobq_cost_function(const char *signature);
extern bool jobq_limit_is_priced(const JobqJob *job);
extern void jobq_ask_limit_cost(JobqJob *job);

#endif							/* JOBQ_JOBS_H */
