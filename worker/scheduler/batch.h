/*-------------------------------------------------------------------------
 *
 * batch.h
 *	  The evaluation of a batch, for the files batch_*.c.
 *
 * The way of an evaluation:
 *
 *	batches.c			a committer or a sweep wants the batch (Wanted); choose the next
 *						batch, the roles in turn
 *	batch_watch.c		batch_watch_begin(): from now on, ends of jobs are reported
 *	batch_evaluate.c	may_begin(): lock out reruns, read the row without a lock
 *						advance_steps(): free, cancel or drop steps (workflows.c, nest.c)
 *						find_state(): search for a live job, the witness; if there is none,
 *						or the batch has failed, lock the row and read again
 *						fail_batch(): enqueue on_failure, state FAILED
 *						go_on(): the batch goes on, or its rest is cancelled
 *						end_batch(): callbacks, final state, the job in the outer batch
 *	commit				the row, the callbacks and the cancellations at once
 *	batch_watch.c		batch_watch_end(): publish the witness
 *	batch_try.c			batch_check_live(): is the published witness still live?
 *	batches.c			decide_next(): forget the batch, or keep it wanted (BatchOutcome)
 *
 * The outcome of an evaluation decides what remains for the next evaluation, apart from the
 * tables:
 *
 *	outcome		copy of the workflow	news			the batch is	published
 *	OVER		dropped					used			forgotten		nothing
 *	WITNESS		none					used			forgotten		the witness
 *	EACH_END	stays, if sound			used			forgotten		each end counts
 *	AGAIN		stays, if sound			used			wanted now		each end counts
 *	LATER		is not used				incomplete		wanted later	each end counts
 *	ALONE		stays					stays			wanted now		each end counts
 *	an error	dropped					incomplete		forgotten		each end counts
 *
 * A forgotten batch is wanted again by a report of the published kind, or by the next sweep.  After
 * an error that is a lock timeout, the outcome is LATER.  If ends of jobs went unreported during
 * the evaluation, a forgotten batch stays wanted instead, with incomplete news.  If incomplete news
 * is forgotten, so is the copy (forget_batch()).
 *
 * "Outer" is the batch or workflow of which this batch is a part (nest.c), if any.
 *
 * The states of a batch are in compose.h.  A running batch with a dead or expired job, apart
 * from optional steps, has failed: on_failure is enqueued at once, and the rest is cancelled
 * unless allow_failures is set.  The state stays FAILED until the end, when on_finish is
 * enqueued.  A batch that was reopened after a failure may still have dead letters of the first run.
 * A further failure cannot be distinguished from these, and is therefore reported at the end.
 *
 * An evaluation writes the state of its own batch only in set_state() (batch_evaluate.c), under the
 * lock of the row.  The states of batches inside are written by nest.c, with the conditions of
 * compose.h.
 *
 * Requests for an evaluation.  No evaluation is requested for a point in time:
 *
 *	jobq_at_commit_batch()	a transaction has ended or added jobs, or has changed the batch.  The
 *							transaction may be an evaluation of another batch
 *	sweep_batches()			all unfinished batches, after a start and every jobq.poll_interval.
 *							All steps are read, also those of a kept workflow, in case that a
 *							report was lost: 0.4 s of processor time for 100,000 steps
 *	decide_next()			the evaluation asks for another one: at once (OUTCOME_AGAIN, OUTCOME_ALONE),
 *							or after a pause, because a row was locked (OUTCOME_LATER)
 *
 * A kept copy of a workflow (kept.c) is valid while all of the following holds.  Otherwise the
 * next evaluation reads all steps:
 *
 * - The row of the batch has the same version.  A rerun, a cancellation and a deletion of finished
 *   jobs write the row.
 * - All other changes are in the news: the ids of ended jobs and of added steps.  The news is
 *   incomplete ("whole") after a report without a job, jobq_at_commit_batch(id, 0), such as that of
 *   the retry of a dead letter; after the report of a dead or expired job; and after a report that
 *   had no room.
 * - Each step is blocked, live, or over.  A failed, cancelled or expired step ends the copy, unless
 *   the step is optional.
 *
 * Order of locks.  An evaluation waits for none of these locks: if one is taken, the result is
 * OUTCOME_LATER.  A session takes them in this order:
 *
 *	1.	dead letters, those of the innermost batches first (batch_lock_letters())
 *	2.	the row of the batch
 *	3.	the lock of reruns (jobq_workflow_try_lock()); an evaluation has it from begin to end
 *	4.	rows of jobs
 *
 * A rerun goes from the outer batch inwards.  The retry of a dead letter goes outwards, and holds
 * the dead letter.  The rerun has locked all dead letters inside before, so the two do not meet
 * between the rows of the batches.
 *
 * worker/scheduler/batch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULER_BATCH_H
#define JOBQ_SCHEDULER_BATCH_H

#include "scheduler/workflow.h"

#include "lib/ilist.h"

/* A row of jobq_internal.batch. */
typedef struct Batch
{
	int64		id;
	char		state;
	bool		allow_failures;
	bool		has_steps;
	bool		reopened;		/* runs again after its end or a failure: a
								 * further failure is reported at the end */
	bool		expects;		/* was started at its creation: does not end
								 * before a job has ended */
	bool		dropped;		/* the outer batch no longer needs this batch:
								 * waiting jobs are cancelled.  A retry of the
								 * outer batch clears the flag */
	int64		parent_job;		/* the job that represents this batch in the
								 * outer batch, or 0 */
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
	int64		bound;			/* id of the published witness, which has
								 * probably ended, or PG_INT64_MAX.  The
								 * search for a live job begins at this id:
								 * jobs with a higher id had ended before,
								 * apart from jobs added since */
	TimestampTz at;				/* wanted since then */
	BatchNews	news;
	BatchCancelled cancelled;
} Wanted;

/* An evaluation of a wanted batch, and its result. */
typedef struct BatchTry
{
	Wanted	   *batch;
	bool		shared;			/* shares a transaction */
	bool		begun;			/* batch_try() was called; a second call means
								 * that the first was rolled back */
	bool		unseen;			/* ends of jobs during the evaluation go
								 * unreported (batch_watch_begin()) */
	bool		live;			/* the witness was live after publication */
	BatchOutcome outcome;
	int64		witness;
} BatchTry;

/* worker/scheduler/batch_read.c */
extern bool batch_read_row(int64 id, bool lock, Batch *batch);
extern bool batch_may_have_dropped(const Batch *batch);
extern bool batch_has_failed(const Batch *batch);
extern bool batch_has_cancelled(int64 id);
extern bool batch_has_begun(const Batch *batch);
extern void batch_count_ends(Batch *batch);

/* worker/scheduler/batch_try.c */
extern void batch_try(void *arg);
extern void batch_tried(BatchTry *this, const ErrorData *edata);
extern void batch_check_live(BatchTry *attempts, const Part * parts, int n);

/* worker/scheduler/batch_cancel.c */
extern bool batch_cancel_rest(const Batch *batch, BatchCancelled *cancelled,
							  bool *later);

#endif							/* JOBQ_SCHEDULER_BATCH_H */
