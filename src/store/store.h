/*-------------------------------------------------------------------------
 *
 * store.h
 *	  The door of the room store: jobq's tables, and a job as a C struct.
 *
 * The tables are the truth.  A live job is a row of jobq.job, which is written
 * once and deleted once; a finished one is in jobq.archive or jobq.failed_job.
 * What moves it does so in one transaction, so that it is always in exactly one
 * of the three.  What is done once per job uses direct heap access (row.c,
 * archive.c): it is several times cheaper than a query, and no user code gets in
 * between.  All else is a query as the owner of the extension (query.c).
 *
 * What it promises: whoever writes or deletes a job's row here need not think of
 * the ready set, of the length of its queue, of its group, its batch, its unique
 * key and those who wait for it: that is noted for the commit.  Nothing here
 * waits for a handler that runs.
 *
 * Locks: tables are locked in the order in which DROP EXTENSION does, jobq.job
 * first (jobq_lock_jobs()); who adds jobs to a queue holds it (jobq_pin_queues()).
 * Errors are raised as usual; all functions want a transaction.
 *
 * src/store/store.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_STORE_H
#define JOBQ_STORE_H

#include "access/tableam.h"
#include "nodes/pg_list.h"
#include "storage/block.h"
#include "utils/array.h"
#include "utils/snapshot.h"

#include "commit/commit.h"
#include "stats/stats.h"

/*
 * What is cached, and how long it may be used
 *
 * The caches of this backend are emptied by invalidation messages.  Almost any
 * call may accept such: whatever takes a lock, opens a relation or looks into a
 * catalog, so each look-up below, too.  Therefore no pointer into a cache leaves
 * the file that keeps it:
 *
 * JobqQueue, JobqHandler and JobqFunction are copies that belong to whoever asks
 * for them.  They hold no pointers, but for JobqFunction.kind, to what is never
 * freed.  They stay as they were at the look-up: ask again for what has to be
 * up to date.
 *
 * JobqRelations is static, and all its fields are set at once.
 *
 * A FmgrInfo belongs to one call at a time, from jobq_function_begin() to
 * jobq_function_end().
 *
 * What insert.c knows of indexes it frees only when it uses none of it.
 */

/*
 * The relations of the extension in this database.  Indexes are not among them:
 * see jobq_index().
 */
typedef struct JobqRelations
{
	Oid			extension;
	Oid			schema;
	Oid			owner;
	Oid			queue;
	Oid			delegation;
	Oid			handler;
	Oid			job;
	Oid			job_seq;
	Oid			archive;
	Oid			archive_default;
	Oid			failed;
	Oid			unique_key;
	Oid			lease;
	Oid			lease_seq;
	Oid			step;
	Oid			batch;
	Oid			batch_seq;
	Oid			inbox;
	Oid			privilege;
	Oid			context_type;	/* row type jobq.job_context */
	bool		version_fits;	/* the library works with this version */
} JobqRelations;

/* The tables whose rows are read or written past the executor (tables.c). */
typedef enum JobqTable
{
	JOBQ_QUEUE_TABLE,
	JOBQ_DELEGATION_TABLE,
	JOBQ_HANDLER_TABLE,
	JOBQ_JOB_TABLE,
	JOBQ_UNIQUE_KEY_TABLE,
	JOBQ_LEASE_TABLE,
	JOBQ_ARCHIVE_TABLE,			/* and each of its partitions */
	JOBQ_FAILED_TABLE,
	JOBQ_STEP_TABLE,
	JOBQ_PRIVILEGE_TABLE,
	JOBQ_NTABLES
} JobqTable;

/* Their indexes that are asked for by name. */
typedef enum JobqIndex
{
	JOBQ_QUEUE_PKEY,
	JOBQ_QUEUE_NAME_KEY,
	JOBQ_DELEGATION_PKEY,
	JOBQ_HANDLER_PKEY,
	JOBQ_JOB_PKEY,
	JOBQ_JOB_READY,
	JOBQ_JOB_GROUP,
	JOBQ_JOB_GROUP_HELD,
	JOBQ_JOB_BATCH,
	JOBQ_UNIQUE_KEY_PKEY,
	JOBQ_LEASE_PKEY,
	JOBQ_PRIVILEGE_PKEY,
	JOBQ_NINDEXES
} JobqIndex;

/* Attribute numbers of jobq.queue. */
enum
{
	QUEUE_ID = 1,
	QUEUE_PAUSED,
	QUEUE_NAME,
	QUEUE_PAUSED_TENANTS,
	QUEUE_MADE_BY,
#define QUEUE_SETTING(name, NAME, type, column, check, words, comment) \
	QUEUE_##NAME,
#include "store/queue_settings.h"
#undef QUEUE_SETTING
	QUEUE_END,
	QUEUE_NATTS = QUEUE_END - 1
};

/* Settings of queues that are words: which of the words in the list it is. */
enum
{
	MODE_WORKER,
	MODE_CONSUMER
};
enum
{
	LEASE_DURABLE,
	LEASE_MEMORY
};
enum
{
	NOTIFY_RELAY,
	NOTIFY_TRANSACTIONAL,
	NOTIFY_OFF
};
enum
{
	KEEP_ALL,
	KEEP_NO_PAYLOAD,
	KEEP_NOTHING
};
enum
{
	GROUP_WAIT,
	GROUP_CONTINUE
};
enum
{
	RECYCLE_NEVER,
	RECYCLE_EACH
};

/* Longest name of a header or setting that names the tenant. */
#define JOBQ_MAX_TENANT_NAME	63

/* A longer tenant is cut to so many bytes. */
#define JOBQ_MAX_TENANT			200

/* What says whose a job is: its tenant. */
enum
{
	TENANT_NONE,
	TENANT_BY_SETTING,
	TENANT_BY_HEADER,
	TENANT_BY_SCHEMA,
	TENANT_BY_ROLE
};

typedef struct JobqQueue
{
	int32		id;
	bool		paused;
	char		notify;
	char		keep;
	char		mode;
	char		lease;
	char		group_on_failure;
	char		recycle;
	int			group_max_running;	/* 0: no limit */
	bool		open;			/* to all producers */
	Oid			run_as;			/* the role of its jobs, or InvalidOid: theirs */
	Oid			run_as_by;		/* who has said so, or InvalidOid: not known */
	bool		limited;		/* has max_running, rate, or throttle */
	bool		carries;		/* its jobs take settings along */
	int			max_length;		/* or -1 */
	int64		expires_after_ms;	/* or -1 */
	char		name[NAMEDATALEN];
	bool		fair;			/* its tenants take turns */
	bool		tenants_limited;	/* they have a max_running or rate */
	bool		tenants_paused; /* some are */
	char		tenant_by;
	char		tenant_name[JOBQ_MAX_TENANT_NAME + 1];	/* of setting, header */
} JobqQueue;

/* Attribute numbers of jobq.handler. */
enum
{
	HANDLER_KIND = 1,
	HANDLER_HANDLER,
	HANDLER_QUEUE,
	HANDLER_MAX_ATTEMPTS,
	HANDLER_BACKOFF,
	HANDLER_TIMEOUT,
	HANDLER_FAIL_ON_TIMEOUT,
	HANDLER_MAX_EXCEPTIONS,
	HANDLER_MAX_RUNNING,
	HANDLER_RATE,
	HANDLER_THROTTLE,
	HANDLER_ON_FAILURE,
	HANDLER_CARRY,
	HANDLER_RECYCLE,
	HANDLER_RETRY_ON,
	HANDLER_FAIL_ON,
	HANDLER_NATTS = HANDLER_FAIL_ON
};

/* The kind of plain statements, which nobody registers (src/produce/statement.c). */
#define JOBQ_SQL_KIND	"sql"

static inline bool
jobq_is_statement(const char *kind)
{
	return strcmp(kind, JOBQ_SQL_KIND) == 0;
}

/* The policy of a kind. */
typedef struct JobqHandler
{
	char		queue[NAMEDATALEN]; /* or "" */
	bool		has_on_failure;
	int			max_attempts;	/* 0: no limit; or -1 */
	int			max_exceptions; /* or -1 */
	int			timeout;		/* milliseconds, or -1 */
	bool		fail_on_timeout;
	bool		limited;		/* has max_running, rate, or throttle */
	bool		carries;		/* its jobs take settings along */
	bool		recycled;		/* its workers leave after each job */
} JobqHandler;

/* The function that runs a kind, as of the look-up. */
typedef struct JobqFunction
{
	struct JobqKind *kind;		/* for kinds.c */
	Oid			proc;
	int			nargs;
	bool		is_procedure;
	bool		may_commit;		/* a procedure that CALL would run non-atomic */
	bool		returns_jsonb;
	bool		statement;		/* none: the payload says what to run */
} JobqFunction;

/* Attribute numbers of jobq.privilege. */
enum
{
	PRIVILEGE_QUEUE_ID = 1,
	PRIVILEGE_ROLE,
	PRIVILEGE_PRIVILEGE,
	PRIVILEGE_NATTS = PRIVILEGE_PRIVILEGE
};

/*
 * What a user may do: see privileges.c, and doc/security.md.
 */
#define JOBQ_MAY_PRODUCE_OPEN	0x01	/* enqueue where all producers may */
#define JOBQ_MAY_PRODUCE		0x02	/* enqueue */
#define JOBQ_MAY_CONSUME		0x04	/* take jobs of all roles */
#define JOBQ_MAY_MONITOR		0x08	/* see jobs of all roles, without
										 * contents */
#define JOBQ_MAY_OPERATE		0x10	/* pause; cancel, retry and move them */
#define JOBQ_MAY_MANAGE			0x20	/* settings; contents; delete them */
#define JOBQ_MAY_SQL			0x40	/* enqueue plain statements */
#define JOBQ_MAY_ALL			0x7F

/* Kinds with this prefix run the on_failure handler of the kind after it. */
#define ON_FAILURE_PREFIX	"on_failure:"

/* Which queues and kinds have a limiter. */
#define JOBQ_LIMITED_QUEUE \
	"max_running IS NOT NULL OR rate IS NOT NULL OR throttle IS NOT NULL" \
	" OR fair_by IS NOT NULL OR group_max_running <> 1" \
	" OR tenant_max_running IS NOT NULL OR tenant_rate IS NOT NULL" \
	" OR group_on_failure <> 'wait' OR weight IS NOT NULL"
#define JOBQ_LIMITED_KIND \
	"max_running IS NOT NULL OR rate IS NOT NULL OR throttle IS NOT NULL"

/* Attribute numbers of jobq.job: fixed width first. */
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
	JOB_UNIQUE_KEY,
	JOB_BATCH_ID,
	JOB_FREE_DELAY,
	JOB_FREE_RUN_AT,
	JOB_LOG,
	JOB_CONTEXT,
	JOB_TENANT,
	JOB_NATTS = JOB_TENANT
};

/*
 * One job.  values[] and nulls[] are the row; the by-reference ones point
 * into memory that the job's memory context owns.
 */
typedef struct JobqJob
{
	Datum		values[JOB_NATTS];
	bool		nulls[JOB_NATTS];
	ItemPointerData ctid;
	TransactionId xmin;			/* who wrote the row, as far as read */
	TransactionId version;		/* the same, but it stays as it is when the
								 * row is frozen, or moved by VACUUM FULL or
								 * CLUSTER */
} JobqJob;

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

/* Was the attempt of this number the job's last one? */
#define job_last_attempt(job, n) \
	(job_max_attempts(job) > 0 && (n) >= job_max_attempts(job))

#define job_watch(job)		DatumGetBool(JOB(job, JOB_WATCH))
#define job_group(job) \
	(JOB_ISNULL(job, JOB_GROUP_ID) ? 0 : DatumGetInt64(JOB(job, JOB_GROUP_ID)))
#define job_batch(job) \
	(JOB_ISNULL(job, JOB_BATCH_ID) ? 0 : DatumGetInt64(JOB(job, JOB_BATCH_ID)))
#define job_blocked(job)	(job_run_at(job) == DT_NOEND)
#define job_leased(job)		(!JOB_ISNULL(job, JOB_LEASE_TOKEN))

/* States of an archived job, as stored. */
#define STATE_COMPLETED		'c'
#define STATE_CANCELLED		'x'
#define STATE_EXPIRED		'e'

/* Who has tried, and how far he came. */
typedef struct JobqTrier
{
	int			pid;			/* the worker's, or 0 */
	const char *consumer;		/* or NULL */
	float4		progress;		/* percent, or -1 */
	const char *message;		/* told with it, or "" */
} JobqTrier;

/* What went wrong with an attempt. */
typedef struct JobqError
{
	int			sqlerrcode;
	const char *message;
	const char *detail;			/* or NULL */
	const char *hint;			/* or NULL */
	const char *context;		/* or NULL */
	const JobqTrier *trier;		/* or NULL */
} JobqError;

/* What an enqueue() with a unique key asks for, beside what the job keeps. */
typedef struct JobqUnique
{
	char		on_conflict;
	TimestampTz held_until;		/* end of the window, or DT_NOBEGIN */
	bool		exempt;			/* a retry: max_length does not refuse it */
	List	   *by;				/* of unique_by: names of fields of the
								 * payload, as strings; or NIL */
} JobqUnique;

/* Values of jobq.job.unique_until, and of JobqUnique.on_conflict. */
#define UNIQUE_UNTIL_FINISH	'f'
#define UNIQUE_UNTIL_START	's'
#define UNIQUE_SKIP			's'
#define UNIQUE_REPLACE		'r'
#define UNIQUE_MERGE		'm'
#define UNIQUE_RESET		't'
#define UNIQUE_ERROR		'e'

/* What a handler has asked for, beside returning. */
typedef enum JobqOutcome
{
	OUTCOME_COMPLETE = 0,
	OUTCOME_SNOOZE,
	OUTCOME_RELEASE,
	OUTCOME_DISCARD,
	OUTCOME_FAIL,
} JobqOutcome;

/*
 * The job that runs now.  The job of perform() hides that of the worker which
 * called it.
 */
typedef struct JobqCurrent
{
	const JobqJob *job;
	int			attempt;		/* this one's number */
	JobqOutcome outcome;
	int64		delay_ms;		/* of snooze and release */
	char		reason[1024];	/* of discard and fail */
	bool		barred;			/* no attempt may begin: another does not help */
	JobqSlot   *slot;			/* or NULL in perform() and work() */
	MemoryContext memory;		/* outlives an abort; NULL in perform() */
	List	   *log;			/* lines in JSON */
	struct JobqCurrent *outer;
} JobqCurrent;

/* How many jobs a queue with max_length has: see length.c. */
#define JOBQ_MAX_LENGTHS	64
#define JOBQ_LENGTH_XIDS	512
#define JOBQ_MAX_PREPARED	64
typedef struct JobqLength
{
	int32		queue_id;		/* 0: free */
	Oid			jobs;			/* jobq.job that was counted */
	bool		valid;
	int64		committed;
	int64		reserved;		/* by open transactions */
	FullTransactionId xmax;		/* of the snapshot that counted */
	int			nxip;
	TransactionId xip[JOBQ_LENGTH_XIDS];
} JobqLength;

/* Places that a prepared transaction has reserved. */
typedef struct JobqPreparedPlaces
{
	TransactionId xid;
	int32		queue_id;
	Oid			jobs;
	int			n;
} JobqPreparedPlaces;

/*
 * The counters of a database.  Protected by db->lock.
 */
typedef struct JobqLengths
{
	int			nlengths;		/* may be read without lock */
	JobqLength	lengths[JOBQ_MAX_LENGTHS];
	int			nprepared;
	JobqPreparedPlaces prepared[JOBQ_MAX_PREPARED];
} JobqLengths;


/* src/store/cache.c: for the caches of this room */
typedef struct JobqCache
{
	/* this relation has changed, or any if it is invalid */
	void		(*changed) (Oid relid);
	/* what was read may not be committed; or NULL */
	void		(*forget) (void);
	/* the transaction is over, one way or another; or NULL */
	void		(*ended) (void);
} JobqCache;

extern void jobq_cache_join(const JobqCache *cache);
extern void jobq_cache_filled(void);

/* src/store/relations.c */
extern BlockNumber jobq_job_blocks; /* jobq.job has at least so many blocks */
extern const JobqCache jobq_relations_cache;
extern const JobqRelations *jobq_relations(void);
extern const JobqRelations *jobq_relations_if_installed(void);
extern const JobqRelations *jobq_relations_of_any_version(void);
extern Oid	jobq_archive_partition(TimestampTz finished_at);
extern void jobq_pin_queues(void);
extern void jobq_lock_jobs(void);

/* src/store/tables.c */
extern const JobqCache jobq_tables_cache;
extern Relation jobq_open_table(JobqTable table, LOCKMODE mode);
extern void jobq_check_table(Relation rel, JobqTable table);
extern void jobq_check_row(TupleDesc desc, JobqTable table);
extern Oid	jobq_index(Relation rel, JobqIndex index);
extern Relation jobq_open_index(Relation rel, JobqIndex index);

/* src/store/version.c */
extern bool jobq_version_fits(Oid extension);
extern void jobq_report_version(int elevel, Oid extension);
extern void jobq_refuse_later_version(Oid extension);

/* src/store/query.c: queries as the owner of the extension, for what is not per job */
typedef struct JobqOwnerState
{
	Oid			userid;
	int			sec_context;
	int			nestlevel;
} JobqOwnerState;

extern void jobq_become_owner(JobqOwnerState *state);
extern void jobq_unbecome_owner(JobqOwnerState *state);
extern uint64 jobq_query(const char *query, int nargs, const Oid *types,
						 const Datum *values, const char *nulls,
						 int expected);
struct _SPI_plan;
extern uint64 jobq_query_kept(struct _SPI_plan **plan, const char *query,
							  int nargs, const Oid *types,
							  const Datum *values, const char *nulls,
							  int expected);

/* src/store/privileges.c */
extern void jobq_privileges_install(void);
extern int	jobq_privilege_word(const char *word, bool for_queue);
extern int	jobq_privileges(int32 queue_id);
extern int	jobq_privileges_of(Oid role, int32 queue_id);
extern bool jobq_may_use(void);
extern void jobq_require(int privileges);
extern void jobq_require_all(int privileges, const char *what);
extern void jobq_require_owner(const char *what);
extern void jobq_require_queue(int32 queue_id, const char *name, int privileges);
extern void jobq_require_produce(const JobqQueue *queue);
extern bool jobq_may_see_queue(int32 queue_id, bool open);
extern bool jobq_may_act_for(Oid role);
extern bool jobq_may_become(Oid role);
extern void jobq_refuse_borrowed(Oid role);
extern bool jobq_may(int privilege, Oid role, int32 queue_id);

/* src/store/carry.c */
extern void jobq_check_carried(const char *name);
extern bool jobq_check_carry(ArrayType *array);
extern List *jobq_names_of_array(Datum array);
extern List *jobq_copy_names(const List *names);
extern bool jobq_carries(const List *carry, const char *name);

/* src/store/new_queue.c */
extern bool jobq_insert_queue(const char *name, const char *mode, bool open,
							  const char *made_by);
extern void jobq_create_used_queue(const char *name);

/* src/store/queues.c */
extern const JobqCache jobq_queues_cache;
extern const JobqQueue *jobq_queue_by_name(const char *name, bool create,
										   JobqQueue *queue);
extern const JobqQueue *jobq_queue_by_id(int32 id, JobqQueue *queue);
extern List *jobq_queue_carry(int32 id);
extern List *jobq_queue_paused_tenants(int32 id);
extern int32 jobq_existing_queue(const char *name);
extern int32 jobq_known_queue(const char *name);
extern int	jobq_word_number(const char *words, const char *word);

/* src/store/kinds.c */
extern void jobq_kinds_install(void);
extern const JobqHandler *jobq_handler(const char *kind, JobqHandler *handler);
extern char *jobq_handler_backoff(const char *kind);
extern List *jobq_handler_carry(const char *kind);
extern bool jobq_handler_retries(const char *kind, int sqlerrcode);
extern void jobq_handler_resolve(const char *kind, JobqFunction *function);
extern FmgrInfo *jobq_function_begin(const JobqFunction *function);
extern void jobq_function_end(const JobqFunction *function, FmgrInfo *flinfo,
							  bool returned);
extern Oid	jobq_resolve_signature(const char *signature, bool missing_ok);
extern void jobq_check_signature(Oid proc, JobqFunction *function);

/* src/store/limit_text.c */
extern void jobq_rate_parse(const char *text, JobqRate *rate);
extern void jobq_throttle_parse(const char *text, JobqThrottle *throttle);
extern void jobq_check_limited(void);

/* By which a dead letter is counted. */
typedef struct JobqLetterName
{
	int32		queue_id;
	Oid			role;
	text	   *kind;
	text	   *tenant;			/* or NULL */
}			JobqLetterName;

/* src/store/count.c */
extern uint32 jobq_count_place(const JobqJob *job);
extern uint32 jobq_letter_place(const JobqLetterName * name);
extern void jobq_count_letter(const JobqLetterName * name, int n);
extern bool jobq_count_when(const JobqJob *job, TimestampTz now, TimestampTz *run_at,
							int64 *away);
extern void jobq_count_rows(const JobqJob *job, int n);
extern void jobq_count(const JobqJob *job, JobqCounter what, int n);
extern void jobq_count_attempt(const JobqJob *job, JobqCounter what,
							   TimestampTz started_at, TimestampTz now);

/* src/store/insert.c */
extern const JobqCache jobq_indexes_cache;
extern void jobq_insert_tuple(Relation rel, HeapTuple tuple);
extern void jobq_insert_tuples(Relation rel, HeapTuple *tuples, int ntuples);
extern bool jobq_insert_unless_there(Relation rel, HeapTuple tuple);
extern void jobq_insert_entries(Relation rel, HeapTuple *tuples, int ntuples);

/* src/store/job.c */
extern int64 jobq_next_id(void);
extern void jobq_job_init(JobqJob *job, const char *kind, Datum payload,
						  int32 queue_id, Oid role);
extern void jobq_job_from_tuple(Relation rel, HeapTuple tuple, JobqJob *job);
extern const char *jobq_job_kind(const JobqJob *job);
extern bool jobq_job_is_statement(const JobqJob *job);
extern int	jobq_job_timeout(const JobqHandler *handler, const JobqJob *job);
extern void jobq_job_set_payload(JobqJob *job, Datum payload);

/* src/store/flow.c */
extern int64 jobq_group_id(int32 queue_id, text *key);
extern void jobq_set_group(JobqJob *job, Datum group_key);
extern void jobq_set_flow(JobqJob *job);
extern bool jobq_flow_changed(const JobqJob *job);
extern void jobq_push_flow(const JobqJob *job, JobqPush *push);
extern uint32 jobq_kind_hash(const char *kind);
extern bool jobq_tenant_paused(const JobqQueue *queue, const char *tenant);

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
extern void jobq_job_insert(Relation rel, JobqJob *job);
extern void jobq_job_insert_again(Relation rel, JobqJob *job);
extern bool jobq_job_delete(Relation rel, JobqJob *job);
extern bool jobq_job_delete_or_blocker(Relation rel, JobqJob *job,
									   TransactionId *blocker);
extern bool jobq_job_lease(Relation rel, JobqJob *job);
extern void jobq_push_of_job(JobqPush *push, const JobqJob *job,
							 const JobqQueue *queue);
extern void jobq_job_push(const JobqJob *job);
extern void jobq_job_push_if_undone(const JobqJob *job);

/* src/store/current.c */
extern JobqCurrent *jobq_current;
extern JobqCurrent *jobq_current_of(int64 id);
extern bool jobq_job_runs(const JobqJob *job);

/* src/store/blocked.c */
extern void jobq_job_unblock(JobqJob *job);
extern void jobq_job_free(Relation rel, JobqJob *job);

/* src/store/length.c */
extern const JobqArea jobq_length_area;
extern void jobq_length_install(void);
extern void jobq_length_reserve(int32 queue_id, int n);
extern void jobq_length_add(int32 queue_id);
extern void jobq_length_remove(int32 queue_id);
extern void jobq_lengths_clear(JobqDatabase *db);

/* src/store/unique_waiting.c */
extern void jobq_unique_place(const JobqJob *job, const JobqUnique *unique);
extern bool jobq_unique_take(Relation rel, int64 id, JobqJob *job,
							 const JobqUnique *unique);

/* src/store/unique.c */
extern void jobq_unique_insert(Relation rel, JobqJob *job,
							   const JobqUnique *unique);
extern bool jobq_unique_release(const JobqJob *job);
extern bool jobq_unique_started(const JobqJob *job);
extern void jobq_unique_finished(const JobqJob *job, bool completed);
extern void jobq_unique_prune(ItemPointer from, ItemPointer to);

/* src/store/archive.c */
extern void jobq_archive(const JobqJob *job, char state,
						 TimestampTz started_at, bool has_result, Datum result,
						 const char *reason);
extern void jobq_archive_many(const JobqJob *jobs,
							  const TimestampTz *started_at, int njobs,
							  const Datum *results, const bool *has_none);

/* src/store/failed.c */
extern void jobq_dead_letter(const JobqJob *job, TimestampTz now,
							 TimestampTz started_at, const JobqError *error);
extern void jobq_letter_name(Relation rel, HeapTuple tuple, JobqLetterName * name);

#endif							/* JOBQ_STORE_H */
