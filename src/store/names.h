/*-------------------------------------------------------------------------
 *
 * names.h
 *	  Queues, kinds and privileges, as cached by this backend.
 *
 * Part of the interface of the directory store.  store.h explains how long cached data is
 * valid.
 *
 * src/store/names.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_NAMES_H
#define JOBQ_NAMES_H

#include "nodes/pg_list.h"
#include "utils/array.h"

#include "store/tables.h"

/* Attribute numbers of jobq_internal.queue. */
enum
{
	QUEUE_ID = 1,
	QUEUE_PAUSED,
	QUEUE_NAME,
	QUEUE_PAUSED_TENANTS,
	QUEUE_PAUSED_KINDS,
	QUEUE_MADE_BY,
#define QUEUE_SETTING(name, NAME, type, column, check, words, comment) \
	QUEUE_##NAME,
#include "store/queue_settings.h"
#undef QUEUE_SETTING
	QUEUE_END,
	QUEUE_NATTS = QUEUE_END - 1
};

/*
 * Settings of queues with a list of words: the number of the word in the list.
 */
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
	GROUP_OF_QUEUE,
	GROUP_OF_DATABASE
};
enum
{
	RECYCLE_NEVER,
	RECYCLE_EACH
};
enum
{
	ON_FULL_ERROR,
	ON_FULL_WAIT,
	ON_FULL_DROP
};

/* Maximum length of the definition of a limiter's key, in bytes. */
#define JOBQ_MAX_LIMIT_BY	200

/* Maximum length of the signature of a cost function, in bytes. */
#define JOBQ_MAX_COST_FUNCTION	400

/* Maximum cost of a job, in tokens of a limiter's rate. */
#define JOBQ_MAX_LIMIT_COST	1000000

/* Attribute numbers of jobq_internal.limiter. */
enum
{
	LIMITER_NAME = 1,
	LIMITER_MAX_RUNNING,
	LIMITER_RATE,
	LIMITER_THROTTLE,
	LIMITER_BY,
	LIMITER_COST,
	LIMITER_WHEN_TAKEN,
	LIMITER_NATTS = LIMITER_WHEN_TAKEN
};

/* Maximum length of a limiter's name, in bytes. */
#define JOBQ_MAX_LIMITER_NAME	63

/*
 * Maximum length of the name of a header or setting with the tenant, in bytes.
 */
#define JOBQ_MAX_TENANT_NAME	63

/* Longer tenants are cut to this number of bytes. */
#define JOBQ_MAX_TENANT			200

/* Source of a job's tenant. */
enum
{
	TENANT_NONE,
	TENANT_BY_SETTING,
	TENANT_BY_HEADER,
	TENANT_BY_SCHEMA,
	TENANT_BY_ROLE
};

/* The role of a restored queue or delegation whose role does not exist (role.c). */
#define JOBQ_NO_ROLE	((Oid) 4294967295)

#define JOBQ_MISSES_ROLE(queue) \
	((queue)->run_as == JOBQ_NO_ROLE || (queue)->run_as_by == JOBQ_NO_ROLE)

typedef struct JobqQueue
{
	int32		id;
	bool		paused;
	char		notify;
	char		keep;
	char		mode;
	char		lease;
	bool		group_waits;	/* for a job between attempts ... */
	char		group_scope;
	char		recycle;
	int			group_max_running;	/* 0: no limit */
	int64		group_patience; /* ... so long, in microseconds; 0: no timeout */
	bool		open;			/* to all producers */
	Oid			run_as;			/* role of its jobs; invalid: enqueuer's */
	Oid			run_as_by;		/* author of run_as; invalid: unknown */
	bool		limited;		/* has max_running, rate, or throttle */
	uint32		limiters[JOBQ_MAX_NAMED];	/* hashes of the limiters that the
											 * queue names; 0: none */
	bool		carries;		/* its jobs carry settings */
	int			max_length;		/* or -1 */
	char		on_full;
	int64		expires_after_ms;	/* or -1 */
	char		name[NAMEDATALEN];
	bool		fair;			/* round robin of its tenants */
	bool		tenants_paused; /* some tenants are paused */
	bool		kinds_paused;	/* some kinds are paused */
	char		tenant_by;
	char		tenant_name[JOBQ_MAX_TENANT_NAME + 1];	/* setting, header */
} JobqQueue;

/* Attribute numbers of jobq_internal.handler. */
enum
{
	HANDLER_KIND = 1,
	HANDLER_HANDLER,
	HANDLER_QUEUE,
	HANDLER_PRIORITY,
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
	HANDLER_MAX_MEMORY,			/* in the order of JobqAllowance */
	HANDLER_MAX_TEMP,
	HANDLER_MAX_WAL,
	HANDLER_LIMITERS,
	HANDLER_CHUNK,
	HANDLER_CHUNK_WAIT,
	HANDLER_NATTS = HANDLER_CHUNK_WAIT
};

/*
 * The kind of plain statements, which has no registration (src/produce/statement.c).
 */
#define JOBQ_SQL_KIND	"sql"

static inline bool
jobq_is_statement(const char *kind)
{
	return strcmp(kind, JOBQ_SQL_KIND) == 0;
}

/*
 * The kind of jobs that represent a workflow in a batch (src/compose/nest.c).
 */
#define JOBQ_WORKFLOW_KIND	"jobq.workflow"

/* Policies of kinds. */
/* Resources with a limit for each run. */
typedef enum JobqAllowance
{
	JOBQ_ALLOWANCE_MEMORY,
	JOBQ_ALLOWANCE_TEMP,		/* written to temporary files */
	JOBQ_ALLOWANCE_WAL,
	JOBQ_NALLOWANCES
} JobqAllowance;

typedef struct JobqHandler
{
	char		queue[NAMEDATALEN]; /* or "" */
	bool		has_on_failure;
	int32		priority;		/* of a job without this option */
	int			max_attempts;	/* 0: no limit; or -1 */
	int			max_exceptions; /* or -1 */
	int			timeout;		/* milliseconds, or -1 */
	bool		fail_on_timeout;
	uint32		limits;			/* hash of the kind, if the kind has limits or
								 * chunk_wait; or 0 */
	uint32		limiters[JOBQ_MAX_NAMED];	/* hashes of the limiters that the
											 * kind names; 0: none */
	bool		carries;		/* its jobs carry settings */
	bool		recycled;		/* a worker exits after each job */
	bool		confined;		/* has an allowance */
	int			chunk;			/* most jobs of a call, of a set handler; 0:
								 * the handler runs a single job */
	bool		chunk_waits;	/* has chunk_wait: src/ready/gather.c */
	bool		counts;			/* has limits, so that its jobs need permits */
	int64		allowance[JOBQ_NALLOWANCES];	/* in bytes; 0: no limit */
} JobqHandler;

/* The function that runs a kind, as of the look-up. */
typedef struct JobqFunction
{
	struct JobqKind *kind;		/* for kinds.c */
	Oid			proc;
	int			nargs;
	bool		is_procedure;
	bool		may_commit;		/* a procedure, run non-atomically by CALL */
	bool		returns_jsonb;
	bool		keeps_plans;	/* plans depend on role and search_path */
	bool		statement;		/* plain statement, in the payload */
	bool		set;			/* a set handler: takes an array of jobs */
	int64		version;		/* hash of the definition; 0: a statement */
} JobqFunction;

/*
 * Prefix of the kinds of on_failure jobs.  The rest of the kind names the failed kind.
 */
#define ON_FAILURE_PREFIX	"on_failure:"

/* Attribute numbers of jobq_internal.privilege. */
enum
{
	PRIVILEGE_QUEUE_ID = 1,
	PRIVILEGE_ROLE,
	PRIVILEGE_PRIVILEGE,
	PRIVILEGE_NATTS = PRIVILEGE_PRIVILEGE
};

/* Privileges of a user: see privileges.c and doc/security.md. */
#define JOBQ_MAY_PRODUCE_OPEN	0x01	/* enqueue into open queues */
#define JOBQ_MAY_PRODUCE		0x02	/* enqueue */
#define JOBQ_MAY_CONSUME		0x04	/* reserve jobs of all roles */
#define JOBQ_MAY_MONITOR		0x08	/* see jobs, without contents */
#define JOBQ_MAY_OPERATE		0x10	/* pause; cancel, retry, move */
#define JOBQ_MAY_MANAGE			0x20	/* settings; contents; delete */
#define JOBQ_MAY_SQL			0x40	/* enqueue plain statements */
#define JOBQ_MAY_ALL			0x7F

/*
 * Conditions for queues and kinds with limits.  limit_count.c has the same conditions in C.
 */
#define JOBQ_LIMITED_QUEUE \
	"max_running IS NOT NULL OR rate IS NOT NULL OR throttle IS NOT NULL" \
	" OR fair <> 'off' OR group_max_running <> 1" \
	" OR group_on_failure <> 'wait'" \
	" OR weight IS NOT NULL"
#define JOBQ_LIMITED_KIND \
	"max_running IS NOT NULL OR rate IS NOT NULL OR throttle IS NOT NULL" \
	" OR chunk_wait_ms IS NOT NULL"

/* Attribute numbers of jobq_internal.audit. */
enum
{
	AUDIT_ID = 1,
	AUDIT_AT,
	AUDIT_ROLE,
	AUDIT_LOGIN,
	AUDIT_APPLICATION,
	AUDIT_ACTION,
	AUDIT_ARGUMENTS,
	AUDIT_JOBS,
	AUDIT_NATTS = AUDIT_JOBS
};

/* src/store/audit.c */
extern void jobq_audit(FunctionCallInfo fcinfo, int64 jobs);

/* src/store/privileges.c */
extern void jobq_privileges_install(void);
extern int	jobq_privilege_word(const char *word, bool for_queue);
extern uint64 jobq_privileges_changes(void);
extern int	jobq_privileges(int32 queue_id);
extern int	jobq_privileges_of(Oid role, int32 queue_id);
extern bool jobq_may_use(void);
extern bool jobq_is_operator(void);
extern void jobq_require(int privileges);
extern void jobq_require_all(int privileges, const char *what);
extern void jobq_require_owner(const char *what);
extern void jobq_require_queue(int32 queue_id, const char *name, int privileges);
extern void jobq_require_produce(const JobqQueue *queue);
extern bool jobq_may_produce(Oid role, const JobqQueue *queue);
extern bool jobq_may_see_queue(int32 queue_id, bool open);
extern void jobq_require_visible(const JobqQueue *queue);
extern bool jobq_may_act_for(Oid role);
extern bool jobq_may_become(Oid role);
extern bool jobq_is_borrowed(Oid role);
extern void jobq_refuse_borrowed(Oid role);
extern bool jobq_may(int privilege, Oid role, int32 queue_id);

/* src/store/carry.c */
extern void jobq_check_carried(const char *name);
extern bool jobq_check_carry(ArrayType *array);
extern List *jobq_names_of_array(Datum array);
extern List *jobq_copy_names(const List *names);
extern bool jobq_carries(const List *carry, const char *name);

/* src/store/queues.c */
extern const JobqCache jobq_queues_cache;
extern const JobqQueue *jobq_queue_by_name(const char *name, bool create,
										   JobqQueue *queue);
extern const JobqQueue *jobq_queue_by_id(int32 id, JobqQueue *queue);
extern List *jobq_queue_carry(int32 id);
extern List *jobq_queue_paused_tenants(int32 id);
extern List *jobq_queue_paused_kinds(int32 id);
extern bool jobq_queue_pauses(int32 id, bool kind, const char *name);
extern int32 jobq_existing_queue(const char *name);
extern void jobq_require_known_queue(const char *name);
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

/* src/store/signature.c */
extern Oid	jobq_resolve_signature(const char *signature, bool missing_ok);
extern void jobq_check_signature(Oid proc, JobqFunction *function);
extern Datum jobq_version_text(int64 version, bool *isnull);

/* src/store/limit_text.c */
extern void jobq_rate_parse(const char *text, JobqRate *rate);
extern void jobq_throttle_parse(const char *text, JobqThrottle *throttle);
extern JobqWhenTaken jobq_when_taken_parse(const char *text,
										   int64 *release_after);
extern bool jobq_group_wait_parse(const char *text, int64 *patience);
extern void jobq_check_limiter(const char *name);
extern bool jobq_check_limiters(ArrayType *names);
extern void jobq_lock_limiters(Datum names);
extern void jobq_limiter_hashes(Datum names, uint32 *limiters);

/* src/store/limit_count.c */
extern bool jobq_queue_is_limited(Datum name);
extern bool jobq_kind_is_limited(Datum kind);
extern void jobq_check_limited(void);

/* src/store/new_queue.c */
extern bool jobq_insert_queue(const char *name, const char *mode, bool open,
							  const char *made_by);
extern void jobq_create_used_queue(const char *name);

#endif							/* JOBQ_NAMES_H */
