/*-------------------------------------------------------------------------
 *
 * batch.h
 *	  The evaluation of a batch, for the files batch_*.c.
 *
 * worker/scheduler/batch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULER_BATCH_H
#define JOBQ_SCHEDULER_BATCH_H

#include "scheduler/inner.h"

#include "lib/ilist.h"

/* A row of jobq_internal.batch. */
typedef struct Batch
{
	int64		id;
	char		state;
	bool		allow_failures;
	bool		has_steps;
	bool		reopened;
	bool		expects;		/* was started at its creation */
	bool		dropped;		/* the outer workflow goes on without */
	int64		parent_job;		/* its job in the outer workflow, or 0 */
	Oid			role;
	TransactionId version;		/* the row's xmin */
	char	   *name;			/* or NULL */
	char	   *error;			/* why a callback was not enqueued, or NULL */
	bool		counted;
	JobqBatchCounts counts;		/* of the jobs; valid if counted */
	JobqBatchRow row;
} Batch;

/* A batch to be evaluated. */
typedef struct Wanted
{
	int64		id;				/* hash key */
	dlist_node	node;			/* in all_wanted */
	Oid			role;			/* or InvalidOid: unknown */
	bool		alone;			/* must not share a transaction */
	JobqPause	pause;			/* after lock timeouts */
	int64		bound;			/* see decide() */
	TimestampTz at;				/* wanted since then */
	BatchNews	news;
	BatchCancelled cancelled;
} Wanted;

/* An evaluation of a wanted batch, and its result. */
typedef struct Look
{
	Wanted	   *batch;
	bool		shared;			/* shares a transaction */
	bool		begun;			/* if begun again, the first was rolled back */
	bool		unseen;			/* not watched: ends meanwhile go unreported */
	bool		live;			/* the witness was live after publication */
	BatchLook	outcome;
	int64		witness;
} Look;

/* worker/scheduler/batch_read.c */
extern bool batch_look_read(int64 id, bool lock, Batch *batch);
extern bool batch_look_may_have_dropped(const Batch *batch);
extern bool batch_look_has_failed(const Batch *batch);
extern bool batch_look_has_cancelled(int64 id);
extern bool batch_look_has_begun(const Batch *batch);
extern void batch_look_count(Batch *batch);

/* worker/scheduler/batch_evaluate.c */
extern void batch_evaluate(void *arg);
extern void batch_evaluated(Look *this, const ErrorData *edata);
extern void batch_check_live(Look *looks, const Part * parts, int n);

/* worker/scheduler/batch_cancel.c */
extern bool batch_look_cancel(const Batch *batch, BatchCancelled *cancelled,
							  bool *taken);

#endif							/* JOBQ_SCHEDULER_BATCH_H */
