/*-------------------------------------------------------------------------
 *
 * operate.h
 *	  What operations on jobs and on queues share.
 *
 * src/operate/operate.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_OPERATE_H
#define JOBQ_OPERATE_H

#include "store/store.h"

/* The columns of jobq.job, from a row of jobq.failed_job. */
#define RETURNING_JOB \
	" RETURNING id, run_at, enqueued_at, queue_id, priority, role," \
	" 0, 0, max_attempts, 0::smallint, 0::smallint, watch, false, kind, payload," \
	" timeout_ms, NULL::timestamptz, NULL::timestamptz, NULL::bigint," \
	" NULL::timestamptz, headers, backoff, errors," \
	" NULL::bigint, group_key, NULL::boolean, unique_until, unique_key," \
	" batch_id, NULL::bigint, NULL::timestamptz, log"

/* src/operate/operate.c */
extern void jobq_no_such_job(int64 id);
extern bool jobq_find_mine(Relation rel, int64 id, JobqJob *job);
extern void jobq_check_finished(int64 id);
extern bool jobq_revive(Relation rel, HeapTuple letter, TupleDesc desc,
						int64 *reopened);
extern bool jobq_ask_to_stop(int64 id);

/* src/operate/wait.c */
#define JOBQ_MAX_WAIT_MS	(INT64CONST(86400000) * 365)

/* src/operate/queue_ops.c */
extern int64 jobq_retry_letters(int32 queue_id, text *kind, int64 batch_id);

#endif							/* JOBQ_OPERATE_H */
