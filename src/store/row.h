/*-------------------------------------------------------------------------
 *
 * row.h
 *	  A job as a C struct, and its ways into and out of the tables.
 *
 * src/store/row.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_ROW_H
#define JOBQ_ROW_H

#include "access/tableam.h"
#include "utils/snapshot.h"

#include "store/catalog.h"
#include "memory/shared.h"

/* Attribute numbers of jobq.job: fixed width first. */
enum
{
	JOB_ID = 1,
	JOB_RUN_AT,
	JOB_ENQUEUED_AT,
	JOB_QUEUE_ID,
	JOB_PRIORITY,
	JOB_ROLE,
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
	JOB_NATTS = JOB_LOG
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
#define job_flow(job)		DatumGetInt32(JOB(job, JOB_FLOW))
#define job_attempt(job)	DatumGetInt32(JOB(job, JOB_ATTEMPT))
#define job_max_attempts(job) DatumGetInt32(JOB(job, JOB_MAX_ATTEMPTS))
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

/* What went wrong with an attempt. */
typedef struct JobqError
{
	int			sqlerrcode;
	const char *message;
	const char *detail;			/* or NULL */
	const char *hint;			/* or NULL */
	const char *context;		/* or NULL */
} JobqError;

/* src/store/row.c */
extern void jobq_check_columns(TupleDesc desc, int natts);
extern struct ReturnSetInfo *jobq_materialize(FunctionCallInfo fcinfo,
											  int natts);
extern Relation jobq_open_jobs(void);
extern Relation jobq_try_open_jobs(void);
extern void jobq_job_from_tuple(Relation rel, HeapTuple tuple, JobqJob *job);
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
extern const char *jobq_job_kind(const JobqJob *job);
extern int	jobq_job_timeout(const JobqHandler *handler, const JobqJob *job);

/* src/store/insert.c */
extern void jobq_insert_tuple(Relation rel, HeapTuple tuple);
extern void jobq_insert_tuples(Relation rel, HeapTuple *tuples, int ntuples);
extern bool jobq_insert_unless_there(Relation rel, HeapTuple tuple);
extern void jobq_insert_entries(Relation rel, HeapTuple *tuples, int ntuples);

/* src/store/flow.c */
extern int64 jobq_group_id(int32 queue_id, text *key);
extern void jobq_set_group(JobqJob *job, Datum group_key);
extern void jobq_set_flow(JobqJob *job);
extern bool jobq_flow_changed(const JobqJob *job);
extern bool jobq_popped_in_vain(const JobqJob *job, const JobqPush *entry,
								char mode, int64 token);
extern bool jobq_permits_lack(const JobqJob *job, const JobqPush *entry,
							  int64 token);
extern bool jobq_group_must_wait(Relation rel, const JobqJob *job,
								 const JobqPush *entry, int64 token,
								 Snapshot snapshot);
extern bool jobq_group_predecessor(Relation rel, const JobqJob *job,
								   Snapshot snapshot, JobqJob *first);
extern void jobq_push_flow(const JobqJob *job, JobqPush *push);
extern uint32 jobq_kind_hash(const char *kind);

/* src/compose/block.c */
extern const char *jobq_waiting_state(const JobqJob *job, TimestampTz now);

/* src/attempt/claim.c */
extern JobqObstacle jobq_claim(Relation rel, const JobqJob *job, int64 *token);
extern void jobq_claim_undo(const JobqJob *job, int64 token);
extern void jobq_claim_end(const JobqJob *job, int64 token, bool live);

/* What an enqueue() with a unique key asks for, beside what the job keeps. */
typedef struct JobqUnique
{
	char		on_conflict;
	TimestampTz held_until;		/* end of the window, or DT_NOBEGIN */
	bool		exempt;			/* a retry: max_length does not refuse it */
} JobqUnique;

/* Values of jobq.job.unique_until, and of JobqUnique.on_conflict. */
#define UNIQUE_UNTIL_FINISH	'f'
#define UNIQUE_UNTIL_START	's'
#define UNIQUE_SKIP			's'
#define UNIQUE_REPLACE		'r'
#define UNIQUE_ERROR		'e'

/* src/store/unique.c */
extern void jobq_unique_options(JobqJob *job, JobqUnique *unique,
								const Datum *options, const bool *nulls);
extern void jobq_unique_insert(Relation rel, JobqJob *job,
							   const JobqUnique *unique);
extern bool jobq_unique_started(const JobqJob *job);
extern void jobq_unique_finished(const JobqJob *job, bool completed);
extern void jobq_unique_prune(void);

/* src/produce/enqueue.c */
extern void jobq_job_init(JobqJob *job, const char *kind, Datum payload,
						  int32 queue_id, Oid role);

/* src/attempt/finish.c */
extern Datum jobq_text_to_jsonb(const char *text);
extern void jobq_archive(const JobqJob *job, char state,
						 TimestampTz started_at, bool has_result, Datum result,
						 const char *reason);
extern void jobq_archive_many(const JobqJob *jobs,
							  const TimestampTz *started_at, int njobs);
extern bool jobq_job_attempt_failed(Relation rel, JobqJob *job,
									TimestampTz started_at,
									const JobqError *error, bool charge,
									bool final, int64 delay_ms);
extern bool jobq_job_failed(Relation rel, JobqJob *job,
							TimestampTz started_at, const JobqError *error,
							bool charge, bool final, int64 delay_ms);
extern void jobq_tell(const JobqJob *job, const char *state);

#endif							/* JOBQ_ROW_H */
