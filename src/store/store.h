/*-------------------------------------------------------------------------
 *
 * store.h
 *	  Interface of the directory store: the tables of jobq, and jobs as C structs.
 *
 * The tables are authoritative.  A live job is a row of jobq_internal.job, which is written
 * once and deleted once.  A finished job is in jobq_internal.archive or
 * jobq_internal.dead_letter.  A job moves between these tables in a single transaction, and is
 * therefore always in exactly one of them.  Operations for each job use direct heap access
 * (row.c, archive.c), which is several times cheaper than a query, and prevents interference
 * by code of users.  All other operations are queries as the owner of the extension (query.c).
 *
 * Guarantees: functions that write or delete a job's row note the necessary changes for the
 * commit.  These concern the ready set, the length of the queue, the group, the batch, the
 * unique key and waiting sessions.  No function waits for a running handler.
 *
 * Locks: tables are locked in the order of DROP EXTENSION, jobq_internal.job first
 * (jobq_lock_jobs()).  A transaction that adds jobs to a queue locks jobq_internal.queue
 * (jobq_pin_queues()).  Errors are raised by ereport().  All functions require a transaction.
 *
 * src/store/store.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_STORE_H
#define JOBQ_STORE_H

#include "store/batch_rows.h"
#include "store/counts.h"
#include "store/events.h"
#include "store/finished.h"
#include "store/jobs.h"
#include "store/names.h"
#include "store/progress.h"
#include "store/tables.h"

/*
 * Lifetime of cached data
 *
 * Invalidation messages clear the caches of this backend.  Almost any call may process these
 * messages: each lock, each opening of a relation, each catalog look-up, and therefore each
 * look-up below.  For this reason, no pointer into a cache leaves the file of the cache:
 *
 * JobqQueue, JobqHandler and JobqFunction are copies that belong to the caller.  They contain
 * no pointers, except JobqFunction.kind, which is never freed.  They keep the state of the
 * look-up.  For the present state, look up again.
 *
 * JobqRelations is static, and all its fields are set at once.
 *
 * A FmgrInfo belongs to one call at a time, from jobq_function_begin() to jobq_function_end().
 *
 * insert.c frees its cached index data only when no call uses the data.
 */

/* src/store/role.c */
extern bool jobq_has_held_rows(void);
extern bool jobq_batch_is_held(int64 id);
extern int64 jobq_return_rows(void);

/* src/store/identity.c */
extern bool jobq_is_copy(void);
extern void jobq_serve_here(void);

#endif							/* JOBQ_STORE_H */
