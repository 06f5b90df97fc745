/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  Interface among the source files of the directory operate.
 *
 * src/operate/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_OPERATE_INNER_H
#define JOBQ_OPERATE_INNER_H

#include "operate/operate.h"

/* Running jobs under one name of the statistics. */
typedef struct JobqRunning
{
	int64		workers;
	int64		consumers;
	TimestampTz since;			/* earliest start; 0: no job */
}			JobqRunning;

/* src/operate/stats.c */
extern JobqStatBase *jobq_stat_base(void);
extern JobqRunning * jobq_stat_running(uint32 all);
extern bool jobq_stat_read_visible(const JobqStatBase *base, uint32 place, TimestampTz now,
								   JobqStatName *name, JobqCounts *counts);

/* The columns of jobq_internal.job, computed from a row of jobq_internal.dead_letter. */
#define JOB_OF_LETTER \
	" id, run_at, enqueued_at, queue_id, priority, role," \
	" role, 0, 0, max_attempts, 0::smallint, 0::smallint, watch, false, kind, payload," \
	" timeout_ms, NULL::timestamptz, NULL::timestamptz, NULL::bigint," \
	" NULL::timestamptz, headers, backoff, errors," \
	" NULL::bigint, group_key, NULL::timestamptz, unique_until, unique_queue, unique_key," \
	" batch_id, NULL::bigint, NULL::timestamptz, log, context, tenant, tags, limit_cost, NULL::smallint, NULL::text, asked_by"

/* Condition: row "u" is the unique key of dead letter "j". */
#define KEY_OF_LETTER \
	"u.key = j.unique_key" \
	" AND u.kind = CASE WHEN j.unique_queue IS NULL THEN j.kind ELSE '' END" \
	" AND u.queue_id = coalesce(j.unique_queue, 0) AND u.role = j.role"

/*
 * Condition: dead letter "j" has no unique key, or can take its unique key.
 */
#define KEY_IS_FREE \
	" AND (j.unique_key IS NULL OR NOT EXISTS (SELECT FROM jobq_internal.unique_key u" \
	" WHERE " KEY_OF_LETTER " AND u.job_id <> j.id" \
	" AND (u.held_until > jobq_internal.clock() OR u.until <> 'w'" \
	" AND EXISTS (SELECT FROM jobq_internal.job h WHERE h.id = u.job_id))" \
	" AND NOT EXISTS (SELECT FROM jobq_internal.job h WHERE h.id = u.job_id" \
	" AND jobq_internal.live_state(h.lease_token IS NOT NULL" \
	" OR h.id IN (SELECT r.job_id FROM jobq_internal.running_jobs r)," \
	" h.run_at, h.expires_at, false, false) = 'expired')))"

/*
 * Properties of a job chosen among many.  A job without these properties must not be changed
 * any more.
 */
typedef struct JobqChosen
{
	TransactionId version;		/* of the row; invalid: any version */
	Oid			role;			/* of the job; invalid: any role */
	bool		changed;		/* output: the job differs by now */
}			JobqChosen;

/* The arguments of edit() after the id. */
enum
{
	EDIT_PAYLOAD,
	EDIT_HEADERS,
	EDIT_QUEUE,
	EDIT_PRIORITY,
	EDIT_RUN_AT,
	EDIT_MAX_ATTEMPTS,
	EDIT_BACKOFF,
	EDIT_TIMEOUT,
	NEDITS
};

/* New values for a job, from the arguments of edit() or edit_many(). */
typedef struct JobqEdit
{
	Datum		values[NEDITS];
	bool		nulls[NEDITS];	/* the job keeps its value */
	bool		moves;			/* priority or run_at is given */
	bool		writes;			/* another value is given, or no value */
} JobqEdit;

/* The conditions that select many jobs: the numbers FILTER_*. */
enum
{
#define JOB_FILTER(name, NAME, type, oid, comment) FILTER_##NAME,
#include "operate/filters.h"
#undef JOB_FILTER
	NFILTERS
};

/* The operations on many jobs. */
typedef enum JobqManyAction
{
	MANY_CANCEL,
	MANY_RETRY,
	MANY_EDIT,
	MANY_DELETE,
}			JobqManyAction;

/* An operation on many jobs, and the conditions that select the jobs. */
typedef struct JobqMany
{
	JobqManyAction action;
	JobqEdit	edit;			/* for MANY_EDIT */
	Datum		values[NFILTERS];
	bool		nulls[NFILTERS];
	int32		queue_id;		/* for FILTER_QUEUE, or 0 */
	TimestampTz before;			/* for FILTER_OLDER_THAN */
	TimestampTz after;			/* for FILTER_NEWER_THAN */
	bool		dry_run;		/* count the jobs only */
}			JobqMany;

/* Name and type of an argument. */
typedef struct JobqArg
{
	const char *name;
	Oid			type;
} JobqArg;

/* src/operate/revive.c */
extern bool jobq_may_with_row(int privilege);
extern int64 jobq_letters_again(Relation rel, Datum *ids, int n,
								int64 reopened, bool named);

/* src/operate/operate.c */
extern bool jobq_find_chosen(int privilege, Relation rel, int64 id,
							 JobqChosen * chosen, JobqJob *job);
extern void jobq_check_finished(int64 id);
extern bool jobq_cancel_job(Relation rel, int64 id, bool running,
							JobqChosen * chosen);
extern bool jobq_retry_waiting(Relation rel, int64 id, JobqChosen * chosen);

/* src/operate/grant.c */
extern Oid	jobq_role_arg(FunctionCallInfo fcinfo, int arg, const char *name,
						  bool must_exist);

/* src/operate/wait.c */
#define JOBQ_MAX_WAIT_MS	(INT64CONST(86400000) * 365)

/* src/operate/edit.c */
extern const JobqArg jobq_edit_args[NEDITS];
extern void jobq_edit_prepare(JobqEdit *edit);
extern void jobq_check_may_write(const char *what, int64 id, Oid role,
								 int32 queue_id);
extern bool jobq_may_edit(const JobqEdit *edit, Oid role, int32 queue_id);
extern bool jobq_edit_live(Relation rel, int64 id, const JobqEdit *edit,
						   JobqChosen * chosen);
extern bool jobq_edit_letter(int64 id, const JobqEdit *edit, bool named);

/* src/operate/many.c */
extern const JobqArg jobq_filters[NFILTERS];
extern bool jobq_many_of_letters(const JobqMany * many);
extern int64 jobq_many_run(const JobqMany * many);

/* src/operate/prune.c */
extern int64 jobq_delete_and_count(const char *query, int nargs,
								   const Oid *types, const Datum *values);

/* The columns of jobq.job_status. */
enum
{
	ST_ID,
	ST_STATE,
	ST_KIND,
	ST_QUEUE,
	ST_ATTEMPT,
	ST_MAX_ATTEMPTS,
	ST_PROGRESS,
	ST_MESSAGE,
	ST_RESULT,
	ST_ERROR,
	ST_ENQUEUED_AT,
	ST_RUN_AT,
	ST_STARTED_AT,
	ST_FINISHED_AT,
	ST_NATTS
};

typedef struct JobqStatus
{
	Datum		values[ST_NATTS];
	bool		nulls[ST_NATTS];
	const char *state;
	bool		finished;
	bool		readable;		/* the user may see the job's contents */
	bool		own;			/* written by the current transaction, or run
								 * by this session */
} JobqStatus;

/* src/operate/status.c */
extern bool jobq_look_up_if_there(int64 id, JobqStatus *status);
extern void jobq_look_up(int64 id, JobqStatus *status);
extern void jobq_set_state(JobqStatus *status, const char *state);
extern void jobq_check_status_type(TupleDesc desc);
extern Datum jobq_status_datum(FunctionCallInfo fcinfo, JobqStatus *status);

#endif							/* JOBQ_OPERATE_INNER_H */
