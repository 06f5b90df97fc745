/*-------------------------------------------------------------------------
 *
 * store.h
 *	  The door of the room store: jobq's tables, and a job as a C struct.
 *
 * The tables are the truth.  A live job is a row of jobq_internal.job, which is
 * written once and deleted once; a finished one is in jobq_internal.archive or
 * jobq_internal.dead_letter.  What moves it does so in one transaction, so that
 * it is always in exactly one of the three.  What is done once per job uses
 * direct heap access (row.c, archive.c): it is several times cheaper than a
 * query, and no user code gets in between.  All else is a query as the owner of
 * the extension (query.c).
 *
 * What it promises: whoever writes or deletes a job's row here need not think of
 * the ready set, of the length of its queue, of its group, its batch, its unique
 * key and those who wait for it: that is noted for the commit.  Nothing here
 * waits for a handler that runs.
 *
 * Locks: tables are locked in the order in which DROP EXTENSION does,
 * jobq_internal.job first (jobq_lock_jobs()); who adds jobs to a queue holds it
 * (jobq_pin_queues()).  Errors are raised as usual; all functions want a
 * transaction.
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
#include "store/jobs.h"
#include "store/names.h"
#include "store/tables.h"

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

/* src/store/identity.c */
extern bool jobq_is_copy(void);
extern void jobq_serve_here(void);

#endif							/* JOBQ_STORE_H */
