/*-------------------------------------------------------------------------
 *
 * catalog.h
 *	  jobq's own tables: their OIDs, and cached queues and handlers.
 *
 * src/store/catalog.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_CATALOG_H
#define JOBQ_CATALOG_H

#include "base/jobq.h"

#include "storage/block.h"

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

/* The relations of the extension in this database. */
typedef struct JobqRelations
{
	Oid			extension;
	Oid			schema;
	Oid			owner;
	Oid			queue;
	Oid			queue_pkey;
	Oid			queue_name_key;
	Oid			handler;
	Oid			handler_pkey;
	Oid			job;
	Oid			job_pkey;
	Oid			job_ready;
	Oid			job_group;
	Oid			job_batch;
	Oid			job_seq;
	Oid			archive;
	Oid			archive_default;
	Oid			failed;
	Oid			failed_pkey;
	Oid			unique_key;
	Oid			unique_key_pkey;
	Oid			lease;
	Oid			lease_seq;
	Oid			step;
	Oid			batch;
	Oid			batch_seq;
	Oid			inbox;
	Oid			context_type;	/* row type jobq.job_context */
} JobqRelations;

/* Attribute numbers of jobq.queue. */
enum
{
	QUEUE_ID = 1,
	QUEUE_PAUSED,
	QUEUE_NOTIFY,
	QUEUE_KEEP,
	QUEUE_MODE,
	QUEUE_LEASE,
	QUEUE_GROUP_ON_FAILURE,
	QUEUE_GROUP_MAX_RUNNING,
	QUEUE_MAX_RUNNING,
	QUEUE_WEIGHT,
	QUEUE_MAX_LENGTH,
	QUEUE_EXPIRES_AFTER,
	QUEUE_NAME,
	QUEUE_RATE,
	QUEUE_THROTTLE,
	QUEUE_FAIR_BY,
	QUEUE_FAIR_WEIGHTS,
	QUEUE_NATTS = QUEUE_FAIR_WEIGHTS
};

/* Values of jobq.queue.notify and keep. */
#define NOTIFY_RELAY			'r'
#define NOTIFY_TRANSACTIONAL	't'
#define NOTIFY_OFF				'o'
#define KEEP_ALL				'a'
#define KEEP_NO_PAYLOAD			'p'
#define KEEP_NOTHING			'n'

/* Values of jobq.queue.mode and lease. */
#define MODE_WORKER				'w'
#define MODE_CONSUMER			'c'
#define LEASE_DURABLE			'd'
#define LEASE_MEMORY			'm'

/* Values of jobq.queue.group_on_failure. */
#define GROUP_WAIT				'w'
#define GROUP_CONTINUE			'c'

/* Longest name of a header that fair_by names. */
#define JOBQ_MAX_FAIR_BY		63

typedef struct JobqQueue
{
	int32		id;
	bool		paused;
	char		notify;
	char		keep;
	char		mode;
	char		lease;
	char		group_on_failure;
	int			group_max_running;	/* 0: no limit */
	bool		limited;		/* has max_running, rate, or throttle */
	int			max_length;		/* or -1 */
	int64		expires_after_ms;	/* or -1 */
	char		name[NAMEDATALEN];
	char		fair_by[JOBQ_MAX_FAIR_BY + 1];	/* or "" */
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
	HANDLER_NATTS = HANDLER_ON_FAILURE
};

/* The policy of a kind. */
typedef struct JobqHandler
{
	char		queue[NAMEDATALEN]; /* or "" */
	bool		has_on_failure;
	int			max_attempts;	/* or -1 */
	int			max_exceptions; /* or -1 */
	int			timeout;		/* milliseconds, or -1 */
	bool		fail_on_timeout;
	bool		limited;		/* has max_running, rate, or throttle */
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
} JobqFunction;

/* Kinds with this prefix run the on_failure handler of the kind after it. */
#define ON_FAILURE_PREFIX	"on_failure:"

/* src/store/catalog.c */

/* jobq.job has at least so many blocks */
extern BlockNumber jobq_job_blocks;

extern const JobqRelations *jobq_relations(void);
extern const JobqRelations *jobq_relations_if_installed(void);
extern Oid	jobq_archive_partition(TimestampTz finished_at);
extern void jobq_pin_queues(void);
extern void jobq_lock_jobs(void);
extern const JobqQueue *jobq_queue_by_name(const char *name, bool create,
										   JobqQueue *queue);
extern const JobqQueue *jobq_queue_by_id(int32 id, JobqQueue *queue);
extern void jobq_check_statement_trigger(FunctionCallInfo fcinfo,
										 const char *function);
extern void jobq_forget_uncommitted(void);
extern void jobq_keep_uncommitted(void);

/* something was read that may not be committed */
extern bool jobq_read_in_transaction;

/* src/store/insert.c */
extern void jobq_forget_indexes(void);
extern void jobq_release_indexes(void);

/* src/store/kinds.c */
extern const JobqHandler *jobq_handler(const char *kind, JobqHandler *handler);
extern char *jobq_handler_backoff(const char *kind);
extern void jobq_handler_resolve(const char *kind, JobqFunction *function);
extern FmgrInfo *jobq_function_begin(const JobqFunction *function);
extern void jobq_function_end(const JobqFunction *function, FmgrInfo *flinfo,
							  bool returned);
extern Oid	jobq_resolve_signature(const char *signature, bool missing_ok);
extern void jobq_check_signature(Oid proc, JobqFunction *function);
extern void jobq_forget_handlers(void);
extern void jobq_function_changed(Datum arg, int cacheid, uint32 hashvalue);

/* src/store/spi.c: queries as the owner of the extension, for what is not per job */
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
extern bool jobq_may_manage(Oid role);

#endif							/* JOBQ_CATALOG_H */
