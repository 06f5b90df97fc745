/*-------------------------------------------------------------------------
 *
 * base.h
 *	  Interface of the directory base: vocabulary, settings, time, and checks of input
 *	  from the server.
 *
 * A *job* is a row of jobq_internal.job.  The *kind* of a job names the *handler* that runs
 * the job.  The *queue* of a job is the line in which the job waits.  A *worker* is a
 * background worker that runs handlers, connected as a single role to a single database.  The
 * *scheduler* of a database decides which job may run next, and supervises the workers.  The
 * *launcher* of the cluster keeps the schedulers alive.  See doc/internals.md.
 *
 * This directory uses no other directory of jobq.  It takes no locks.
 *
 * src/base/base.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_BASE_H
#define JOBQ_BASE_H

#include "postgres.h"

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "nodes/pg_list.h"
#include "portability/instr_time.h"
#include "storage/itemptr.h"
#include "utils/inet.h"
#include "utils/relcache.h"
#include "utils/timestamp.h"

#include "base/chain.h"
#include "base/compat.h"

/*
 * The version of the library, and the versions of the SQL objects with which the library
 * works.  Versions are separated by spaces, the newest last.
 */
#define JOBQ_VERSION		"1.0.0"
#define JOBQ_SQL_VERSIONS	"1.0.0"
#define JOBQ_SCHEMA			"jobq"	/* views, functions and types for users */
#define JOBQ_INTERNAL_SCHEMA "jobq_internal"	/* the tables */

/* SQLSTATEs of jobq, for errors that a program must distinguish. */
#define ERRCODE_JOBQ_UNKNOWN_KIND		MAKE_SQLSTATE('J','Q','0','0','1')
#define ERRCODE_JOBQ_NOT_RUNNING		MAKE_SQLSTATE('J','Q','0','0','2')
#define ERRCODE_JOBQ_NO_SUCH_JOB		MAKE_SQLSTATE('J','Q','0','0','3')
#define ERRCODE_JOBQ_WRONG_STATE		MAKE_SQLSTATE('J','Q','0','0','4')
#define ERRCODE_JOBQ_FAILED				MAKE_SQLSTATE('J','Q','0','0','5')
#define ERRCODE_JOBQ_CANCELLED			MAKE_SQLSTATE('J','Q','0','0','6')
#define ERRCODE_JOBQ_TIMEOUT			MAKE_SQLSTATE('J','Q','0','0','7')
#define ERRCODE_JOBQ_WORKER_LOST		MAKE_SQLSTATE('J','Q','0','0','8')
#define ERRCODE_JOBQ_NO_HANDLER			MAKE_SQLSTATE('J','Q','0','0','9')
#define ERRCODE_JOBQ_BAD_ROLE			MAKE_SQLSTATE('J','Q','0','1','0')
#define ERRCODE_JOBQ_LEASE_LOST			MAKE_SQLSTATE('J','Q','0','1','1')
#define ERRCODE_JOBQ_LEASE_EXPIRED		MAKE_SQLSTATE('J','Q','0','1','2')
#define ERRCODE_JOBQ_NACK				MAKE_SQLSTATE('J','Q','0','1','3')
#define ERRCODE_JOBQ_DUPLICATE			MAKE_SQLSTATE('J','Q','0','1','4')
#define ERRCODE_JOBQ_QUEUE_FULL			MAKE_SQLSTATE('J','Q','0','1','5')
#define ERRCODE_JOBQ_OVER_LIMIT			MAKE_SQLSTATE('J','Q','0','1','6')
#define ERRCODE_JOBQ_ASKED_FAILED		MAKE_SQLSTATE('J','Q','0','1','7')

/* Maximum number of pools in jobq.workers, and of queues in a pool. */
#define JOBQ_MAX_POOLS			16
#define JOBQ_MAX_POOL_QUEUES	32

/* A queue or kind name must fit into a NOTIFY channel with its prefix. */
#define JOBQ_MAX_QUEUE_NAME		51
#define JOBQ_MAX_KIND_NAME		127


/*
 * A pool of jobq.workers: the number of workers per database, and their queues in strict
 * order.  The name "*" stands for every queue that no pool names.
 */
typedef struct JobqPool
{
	int			workers;
	int			nqueues;
	char		queues[JOBQ_MAX_POOL_QUEUES][NAMEDATALEN];
} JobqPool;

typedef struct JobqPoolSet
{
	int			npools;
	JobqPool	pools[JOBQ_MAX_POOLS];
} JobqPoolSet;

/* Values of jobq.create_queues. */
enum
{
	CREATE_QUEUES_OFF,
	CREATE_QUEUES_WORKER,
	CREATE_QUEUES_CONSUMER
};

/* Values of jobq.allow_superuser_jobs. */
enum
{
	SUPERUSER_JOBS_OFF,
	SUPERUSER_JOBS_OWN,
	SUPERUSER_JOBS_ON
};

/* src/base/settings.c: see the descriptions there */
extern bool jobq_preloaded;		/* jobq is in shared_preload_libraries */
extern char *jobq_databases;
extern char *jobq_sql_databases;
extern char *jobq_workers;
extern int	jobq_max_workers;
extern int	jobq_max_databases;
#define JOBQ_MAX_READY_ENTRIES	(16 * 1024 * 1024)
extern int	jobq_ready_entries;
extern int	jobq_max_stats;
extern bool jobq_synchronous_commit;
extern int	jobq_allow_superuser_jobs;
extern int	jobq_notify_interval;
#ifdef USE_ASSERT_CHECKING
extern int	jobq_debug_check_ready;
#endif
extern int	jobq_poll_interval;
extern int	jobq_default_timeout;
extern int	jobq_default_max_attempts;
extern char *jobq_default_backoff;
extern int	jobq_cancel_grace;
extern int	jobq_max_payload;
extern int	jobq_worker_max_age;
extern int	jobq_worker_max_memory;
extern bool jobq_start_paused;
extern int	jobq_enqueue_timeout;
extern int	jobq_create_queues;
extern int	jobq_max_queues_per_role;
extern int	jobq_log_min_duration;
extern int	jobq_archive_retention;
extern int	jobq_dead_retention;

/*
 * Numbers of slots in shared memory, for each database.  There is one slot for so many of
 * jobq.ready_entries.
 */
#define JOBQ_ENTRIES_PER_LANE		8
#define JOBQ_ENTRIES_PER_LEASE		4
#define JOBQ_ENTRIES_PER_GROUP		16
#define JOBQ_ENTRIES_PER_LIMITER	128

extern int	jobq_max_lanes;		/* combinations of queue, priority and role */
extern int	jobq_max_leases;	/* jobs that consumers hold */
extern int	jobq_max_groups;	/* active groups */
extern int	jobq_max_limiters;	/* queues, kinds and limiters with limits */

extern void jobq_define_settings(void);

/* src/base/pools.c */
extern const JobqPoolSet *jobq_pools(void);

/* src/base/pool_check.c */
extern int	jobq_pools_workers(void);
extern bool jobq_pools_serve(const char *queue);
extern bool jobq_pool_serves(int pool, const char *queue);
extern List *jobq_pools_problems(List **settings);
extern List *jobq_pools_unserved(void);

/* src/base/backoff.c */
typedef struct JobqBackoff
{
	char		kind;			/* 'f'ixed, l'i'near, 'e'xponential, 'l'ist */
	int			nsteps;			/* entries in step[] */
	int64		step[32];		/* milliseconds; only a list uses all entries */
	int64		cap;			/* milliseconds */
	int			jitter;			/* percent */
} JobqBackoff;

#define JOBQ_DEFAULT_BACKOFF	"exponential 5s cap 300s jitter 20%"

extern const char *jobq_backoff_read(const char *text, JobqBackoff *backoff);
extern void jobq_backoff_parse(const char *text, JobqBackoff *backoff);
extern int64 jobq_backoff_delay(const JobqBackoff *backoff, int attempt,
								double random);

/* src/base/duration.c */
extern char *jobq_duration_text(int64 ms);
extern char *jobq_duration_cut(const char **at, const char *const *stops);
extern const char *jobq_duration_parse(const char *text, int64 lowest_ms,
									   int64 highest_ms, int64 *us);

/* src/base/grow.c */
extern void *jobq_grow(void *array, int *max, int wanted, Size element);
extern void *jobq_give_back(void *array, int *max);
extern int	jobq_compare_int32(const void *a, const void *b);
extern int	jobq_compare_int64(const void *a, const void *b);

/* src/base/client.c */
extern void jobq_client_wait(long ms, uint32 wait_event);
extern void jobq_client_address(inet_struct *address);
extern char *jobq_address_text(const inet_struct *address);

/* Maximum of delays, ages and similar times, in milliseconds: a century. */
#define JOBQ_MAX_DELAY_MS	(INT64CONST(86400000) * 36500)

/* src/base/clock.c */

/* How jobq.test_clock() has moved the two clocks, in microseconds. */
typedef struct JobqClockShift
{
	int64		offset;			/* of jobq_now() from the system's clock */
	int64		passed;			/* of jobq_steady(): all steps forward
								 * together */
} JobqClockShift;

/* A time of jobq_steady(), in microseconds. */
typedef int64 JobqSteady;

extern JobqClockShift *jobq_clock_shift;
extern TimestampTz jobq_last_now;
extern TimestampTz jobq_now(void);
extern int64 jobq_time_since_boot(void);
extern int64 jobq_deadline(int64 ms);
extern long jobq_ms_left(int64 deadline);
extern JobqSteady jobq_steady(void);
extern TimestampTz jobq_steady_due(JobqSteady at, TimestampTz now);
extern bool jobq_once_in(JobqSteady *last, int64 us);
extern int64 jobq_elapsed(instr_time since);
extern TimestampTz jobq_statement_start(void);
extern int64 jobq_interval_ms(Interval *interval, const char *what,
							  int64 lowest, int64 highest);
extern TimestampTz jobq_later(TimestampTz at, int64 ms);

/* src/base/pause.c */

/* Why a process pauses.  The table in pause.c has the lengths of the pauses. */
typedef enum JobqPauseReason
{
	PAUSE_DUTY_LOCKED,
	PAUSE_JOB_LOCKED,
	PAUSE_JOB_FAILED,
	PAUSE_TASK_LOCKED,
	PAUSE_ROLE_LOCKED,
	PAUSE_NO_SLOT,
	PAUSE_ROLE_TROUBLE,
	PAUSE_NOTIFY_LOCKED,
	PAUSE_ARCHIVE_FAILED,
	PAUSE_OPEN_TRANSACTIONS,
	PAUSE_SCHEDULER_FAILED,
	PAUSE_WORKER_REST,
	PAUSE_WORKER_REST_CHECK,
} JobqPauseReason;

/* A pause.  All zero: no pause yet. */
typedef struct JobqPause
{
	int			n;				/* pauses in a row */
	JobqSteady	until;
} JobqPause;

extern int64 jobq_pause_length(JobqPauseReason reason, int n);
extern int64 jobq_pause_longest(JobqPauseReason reason);
extern void jobq_pause_begin(JobqPause *pause, JobqPauseReason reason);
extern TimestampTz jobq_pause_due(const JobqPause *pause, TimestampTz now);

/* src/base/text.c */
struct StringInfoData;
extern char *jobq_cut_text(const char *text, int limit);
extern void jobq_append_text(struct StringInfoData *buf, const char *text);
extern void jobq_append_time(struct StringInfoData *buf, const char *name, TimestampTz at);
extern const char *jobq_skip_space(const char *at);
extern bool jobq_take_word(const char **at, const char *word);

/* src/base/check.c */
struct ReturnSetInfo;

/* Maximum nesting of objects and arrays in a payload, headers or a result. */
#define JOBQ_MAX_DEPTH		1000

extern void jobq_check_columns(TupleDesc desc, int natts);
extern void jobq_check_types(TupleDesc desc, const Oid *types, int natts);
extern Datum jobq_column(HeapTuple tuple, TupleDesc desc, int n, Oid type,
						 bool *isnull);
extern struct ReturnSetInfo *jobq_materialize(FunctionCallInfo fcinfo,
											  int natts);
extern TupleDesc jobq_row_type(FunctionCallInfo fcinfo, int natts);
extern void jobq_check_after_trigger(FunctionCallInfo fcinfo,
									 const char *function, bool statement);
extern void jobq_not_null(FunctionCallInfo fcinfo, int arg, const char *name);
extern float4 jobq_percent_arg(FunctionCallInfo fcinfo, int n);
extern bool jobq_too_deep(Datum jsonb, Size size);
extern void jobq_check_depth(Datum jsonb, Size size, const char *what, int sqlerrcode);
extern Datum jobq_text_to_jsonb(const char *text);

#endif							/* JOBQ_BASE_H */
