/*-------------------------------------------------------------------------
 *
 * batch_evaluate.c
 *	  Evaluates a batch: decides whether it fails and whether it is over, and
 *	  enqueues the callbacks.  The end of a batch is also reported as an event.
 *
 * An evaluation is a transaction of the scheduler.  When to evaluate is decided in
 * batches.c.  The way of an evaluation is drawn in batch.h, with its outcomes.
 *
 * worker/scheduler/batch_evaluate.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/batch.h"

#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "commit/commit.h"
#include "produce/produce.h"

/* A callback to be enqueued now. */
typedef struct Callback
{
	Batch	   *batch;
	int			column;
	const char *what;
	const char *state;
} Callback;

/*
 * An evaluation of a batch.  A batch with a live job goes on, or the rest is cancelled
 * (go_on()).  A batch without a live job is over (end_batch()).
 *
 * "live" and "failing" are valid after find_state().  If "failing" is set or "live" is not, the
 * row is locked by then, and both were determined under the lock.
 */
typedef struct Evaluation
{
	Batch		batch;
	/* arguments of batch_evaluate() */
	const BatchNews *news;
	int64		bound;
	bool		shared;
	BatchCancelled *cancelled;
	int64	   *witness;

	/* findings */
	bool		aside;			/* may_begin(): jobs of missing roles are kept
								 * aside */
	WorkflowFindings steps;		/* advance_steps() */
	bool		later;			/* a row was locked by another session, so the
								 * evaluation must be repeated */
	bool		locked;			/* this transaction has locked the row of the
								 * batch */
	bool		live;			/* a job is live, or kept aside */
	bool		failing;		/* the batch has failed, and its row does not
								 * say so yet */
} Evaluation;

static void note_callback_error(Batch *batch, const char *error);

/*
 * Forget the progress of an evaluation that was rolled back.
 */
void
batch_rolled_back(int64 id, BatchCancelled *cancelled)
{
	memset(cancelled, 0, sizeof(BatchCancelled));
	kept_forget(id);
}

/*
 * Lock the workflow, and read the batch with the id batch->id.  Returns false if the
 * evaluation ends here, with *outcome.  *outcome is set before each check, for the case that the
 * check fails.
 */
static bool
may_begin(Evaluation *this, BatchOutcome *outcome)
{
	Batch	   *batch = &this->batch;

	*outcome = OUTCOME_LATER;

	/*
	 * Lock out reruns of steps.  A dead letter can be retried nevertheless:
	 * see read_locked().
	 */
	if (!jobq_workflow_try_lock(batch->id))
		return false;
	*outcome = OUTCOME_OVER;
	if (!batch_read_row(batch->id, false, batch))
		return false;

	/*
	 * while jobs of missing roles are kept aside, only a cancelled batch goes
	 * on
	 */
	*outcome = OUTCOME_EACH_END;
	this->aside = jobq_batch_is_held(batch->id);
	if (this->aside && batch->state != BATCH_CANCELLED)
		return false;

	/* long work must not delay the batches that share the transaction */
	*outcome = OUTCOME_ALONE;
	if (this->shared && (batch->has_steps || batch->state != BATCH_RUNNING || batch->reopened))
		return false;

	/*
	 * The outer batch may have ended the job that represents this batch.  A
	 * running batch that was reopened was retried itself, and needs no such
	 * job.
	 */
	*outcome = OUTCOME_LATER;
	if (batch->parent_job != 0 && !batch->dropped &&
		(!batch->reopened || batch->state == BATCH_PENDING) &&
		!nest_drop_if_lost(batch->id, batch->parent_job, &batch->dropped))
		return false;
	if (batch->dropped && !batch_read_row(batch->id, false, batch))
		return false;

	/* a batch that was not started has nothing to do */
	*outcome = OUTCOME_OVER;
	return batch->state != BATCH_PENDING || batch->dropped;
}

/*
 * Enqueue the callback of this column of the batch, if there is one.  If the batch's
 * role was dropped, only logs a warning and notes the error in the batch.
 */
static void
enqueue_callback(Batch *batch, int column, const char *what, const char *state)
{
	JobqSpec	spec;

	if (batch->row.nulls[column - 1])
		return;
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(batch->role)))
	{
		batch->error = MemoryContextStrdup(TopTransactionContext,
										   psprintf("its role was dropped, so %s was not enqueued",
													what));
		ereport(WARNING,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("batch " INT64_FORMAT ": %s", batch->id, batch->error)));
		return;
	}

	jobq_spec_parse(DatumGetJsonbP(batch->row.values[column - 1]), what, NULL, true, &spec);
	(void) jobq_spec_enqueue(&spec, batch->role,
							 callback_headers(batch->id, batch->name, state, &batch->counts));
}

/*
 * enqueue_callback() as a part of a transaction (try.c); arg is a Callback.
 */
static void
enqueue_part(void *arg)
{
	Callback   *this = (Callback *) arg;

	enqueue_callback(this->batch, this->column, this->what, this->state);
}

/*
 * Enqueue on_failure for a batch with remaining jobs.  Returns false on an error.  The
 * remaining jobs are then cancelled nevertheless.  The state does not become BATCH_FAILED
 * yet, and each further evaluation tries again, including the last.  A lock timeout is
 * rethrown.
 */
static bool
enqueue_on_failure(Batch *batch)
{
	Callback	callback = {batch, BATCH_COLUMN_ON_FAILURE, "on_failure", "failing"};
	ErrorData  *edata = scheduler_try_part(enqueue_part, &callback);

	if (edata == NULL)
		return true;

	/* do not wait for the lock in each evaluation: the role must pause */
	if (edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(edata);
	note_callback_error(batch, edata->message);
	FreeErrorData(edata);
	return false;
}

/*
 * Note the error of on_failure in the row and in the log, if it is new.
 */
static void
note_callback_error(Batch *batch, const char *error)
{
	JobqBatchRow *row = &batch->row;

	if (!BATCH_ISNULL(row, LAST_ERROR) &&
		strcmp(TextDatumGetCString(BATCH_VALUE(row, LAST_ERROR)), error) == 0)
		return;
	BATCH_SET(row, LAST_ERROR, CStringGetTextDatum(error));
	jobq_batch_write(row);
	ereport(WARNING,
			(errmsg("on_failure of batch " INT64_FORMAT " cannot be enqueued: %s", batch->id, error),
			 errhint("It is tried again every \"%s\" seconds. What is left of the batch is cancelled meanwhile.",
					 "jobq.poll_interval")));
}

/*
 * Write the state, and report the change to waiting sessions at commit.  over: the batch has
 * ended.
 */
static void
set_state(Batch *batch, char state, bool over)
{
	JobqBatchRow *row = &batch->row;

	Assert(BATCH_ENDS(DatumGetChar(BATCH_VALUE(row, STATE)), state));
	BATCH_SET(row, STATE, CharGetDatum(state));
	if (over)
		BATCH_SET(row, FINISHED_AT, TimestampTzGetDatum(jobq_now()));
	BATCH_ISNULL(row, LAST_ERROR) = batch->error == NULL;
	if (batch->error != NULL)
		BATCH_SET(row, LAST_ERROR, CStringGetTextDatum(batch->error));
	jobq_batch_write(row);
	jobq_batch_changed(batch->id, state == BATCH_COMPLETED ? "completed"
					   : state == BATCH_FAILED ? (over ? "failed" : "failing")
					   : over ? "cancelled" : "cancelling", over);
}

/*
 * Search for a live job; for "bound" see Wanted.  A batch with jobs kept aside does not end.
 */
static bool
find_live(Evaluation *this, int64 bound)
{
	return batch_witness(this->batch.id, bound, this->witness) || this->aside;
}

/*
 * True if the rest of the batch is to be cancelled.
 */
static bool
is_ending(const Evaluation *this)
{
	const Batch *batch = &this->batch;

	return batch->state == BATCH_CANCELLED || batch->dropped ||
		((batch->state == BATCH_FAILED || this->failing) && !batch->allow_failures);
}

/*
 * Let the steps of the batch go on, and the nested workflows that were dropped.
 *
 * workflow_go_on() continues from the copy in memory, if the news is complete.  A batch with
 * complete news has not failed: the report of a dead or expired job, including a job that is no
 * step, makes the news incomplete.  Otherwise workflow_advance() reads all steps, and must know
 * before whether the batch has failed.
 */
static void
advance_steps(Evaluation *this)
{
	Batch	   *batch = &this->batch;
	bool		grows = workflow_grows(batch->id, this->news);

	if (batch->has_steps &&
		(batch->state != BATCH_RUNNING || batch->dropped ||
		 !workflow_go_on(batch->id, batch->role, batch->version, this->news, &this->steps)))
	{
		this->failing = batch->state == BATCH_RUNNING && !batch->reopened &&
			batch_has_failed(batch);
		if (batch->state != BATCH_CANCELLED)
			workflow_advance(batch->id, batch->role, batch->version, is_ending(this),
							 grows && batch->state == BATCH_RUNNING, &this->steps);
	}
	if (batch_may_have_dropped(batch) && nest_has_dropped(batch->id) &&
		(batch->reopened || !batch_has_failed(batch)))
		nest_go_on(batch->id, &this->steps);
	this->later = this->steps.later;
}

/*
 * The batch has failed, or no job is live: lock the row, and read again.  From now to the
 * commit, no session adds a job or changes the state.  Returns false if the row is locked by
 * another session.
 */
static bool
read_locked(Evaluation *this)
{
	Batch	   *batch = &this->batch;

	if (!this->locked)
	{
		if (!batch_read_row(batch->id, true, batch))
			return false;
		this->locked = true;
		this->live = find_live(this, PG_INT64_MAX);
	}

	/*
	 * A step may have been retried and completed since the steps were read.
	 * Then the steps cancelled because of its failure go on.  The step may
	 * fail again at once, so failures and counts are read afterwards.
	 */
	if (!this->live && batch->has_steps && batch->state == BATCH_RUNNING &&
		!batch->dropped && batch_has_cancelled(batch->id) &&
		(batch->reopened || !batch_has_failed(batch)))
	{
		workflow_advance(batch->id, batch->role, batch->version, false, false, &this->steps);
		this->later |= this->steps.later;

		/* steps that go on are subtracted from the counts in the row */
		if (!batch_read_row(batch->id, false, batch))
			return false;
		this->live = find_live(this, PG_INT64_MAX);
	}
	if (!this->live)
		batch_count_ends(batch);

	/*
	 * Since the first check, a job may have become a dead letter, with its
	 * dependent steps cancelled.  Or a dead letter was retried.
	 */
	this->failing = batch->state == BATCH_RUNNING && !batch->reopened &&
		batch_has_failed(batch);
	return true;
}

/*
 * Find out whether a job is live, and whether the batch has failed.  Returns false if the
 * evaluation ends here, with this outcome.
 */
static bool
find_state(Evaluation *this, BatchOutcome *outcome)
{
	Batch	   *batch = &this->batch;

	/*
	 * A bound: the witness has probably ended, so all jobs may have ended.
	 * Lock the row now, so that one search for live jobs is enough.  If the
	 * row is locked by another session, read_locked() tries again when
	 * needed.
	 */
	if (this->bound < PG_INT64_MAX && batch->state == BATCH_RUNNING && !batch->has_steps)
		this->locked = batch_read_row(batch->id, true, batch);

	/* the state of the row may have changed before the lock */
	*outcome = OUTCOME_ALONE;
	if (this->shared && (batch->has_steps || batch->state != BATCH_RUNNING))
		return false;
	this->live = find_live(this, this->bound);

	/*
	 * a batch that ends without a live job counts its dead letters when
	 * locked
	 */
	if (!batch->has_steps && this->live && batch->state == BATCH_RUNNING && !batch->reopened)
		this->failing = batch_has_failed(batch);
	if (this->shared && this->failing)
		return false;
	if (!this->failing && this->live)
		return true;
	*outcome = OUTCOME_LATER;
	if (!read_locked(this))
		return false;
	*outcome = OUTCOME_ALONE;
	return !this->shared ||
		(!this->failing && !batch->has_steps && batch->state == BATCH_RUNNING);
}

/*
 * The batch has just failed: enqueue on_failure.  If this is impossible while the rest is
 * cancelled, the batch stays in its state, and the next evaluation tries again.
 */
static void
fail_batch(Evaluation *this)
{
	Batch	   *batch = &this->batch;
	bool		must = !this->live || batch->allow_failures;

	Assert(this->locked);
	if (!batch->counted)
		batch_count_ends(batch);
	if (must)
		enqueue_callback(batch, BATCH_COLUMN_ON_FAILURE, "on_failure", "failing");
	if (must || enqueue_on_failure(batch))
	{
		batch->state = BATCH_FAILED;
		set_state(batch, BATCH_FAILED, false);
	}
}

/*
 * Jobs are live, and the rest is to be cancelled.  Returns OUTCOME_EACH_END if cancellation was
 * tried for all jobs.  The jobs that still run end later.
 */
static BatchOutcome
cancel_rest(Evaluation *this)
{
	Batch	   *batch = &this->batch;
	char		state = batch->state;
	bool		dropped = batch->dropped;

	/* if a dead letter was retried meanwhile, no job is cancelled */
	if (!this->locked && !batch_read_row(batch->id, true, batch))
		return OUTCOME_LATER;
	if (batch->state != state || batch->dropped != dropped ||
		batch_cancel_rest(batch, this->cancelled, &this->later))
		return OUTCOME_AGAIN;
	return OUTCOME_EACH_END;
}

/*
 * Jobs are live: the batch goes on, or its rest is cancelled.
 */
static BatchOutcome
go_on(Evaluation *this)
{
	int64		id = this->batch.id;
	bool		ending = is_ending(this);

	if (this->steps.more)
		return OUTCOME_AGAIN;
	if (ending)
	{
		BatchOutcome outcome = cancel_rest(this);

		if (outcome != OUTCOME_EACH_END)
			return outcome;
	}

	/* the last jobs were cancelled now, so the next evaluation ends the batch */
	if ((ending || this->steps.blocked) && !find_live(this, PG_INT64_MAX))
		return OUTCOME_AGAIN;
	if (this->later)
		return OUTCOME_LATER;
	return ending || this->steps.blocked || workflow_is_kept(id) ? OUTCOME_EACH_END : OUTCOME_WITNESS;
}

/*
 * No job is live: decide how a running batch ends, and enqueue the callback for this end.
 * Returns the state.
 */
static char
final_state(Batch *batch)
{
	if (batch->state == BATCH_PENDING)
		return BATCH_CANCELLED;
	if (batch->state != BATCH_RUNNING)
		return batch->state;
	if (batch->reopened && batch_has_failed(batch))
	{
		enqueue_callback(batch, BATCH_COLUMN_ON_FAILURE, "on_failure", "failed");
		return BATCH_FAILED;
	}
	if (batch->has_steps && batch_has_cancelled(batch->id))
		return BATCH_CANCELLED;
	enqueue_callback(batch, BATCH_COLUMN_ON_SUCCESS, "on_success", "completed");
	return BATCH_COMPLETED;
}

/*
 * No job is live: the batch is over, together with its job in the outer batch.
 */
static BatchOutcome
end_batch(Evaluation *this)
{
	Batch	   *batch = &this->batch;
	JobqJob		parent_job;
	bool		taken = false;
	bool		was_cancelled;

	Assert(this->locked && batch->counted);
	if (this->later)
		return OUTCOME_LATER;
	kept_forget(batch->id);

	/*
	 * The transaction that creates a batch may start the batch before it adds
	 * jobs.  Such a batch does not end before a job has ended.
	 */
	if (batch->state == BATCH_RUNNING && batch->expects && !batch_has_begun(batch))
		return OUTCOME_EACH_END;
	if (batch->parent_job != 0 && !nest_take(batch->parent_job, &parent_job, &taken))
		return OUTCOME_LATER;
	was_cancelled = batch->state == BATCH_CANCELLED;
	batch->state = final_state(batch);
	enqueue_callback(batch, BATCH_COLUMN_ON_FINISH, "on_finish",
					 batch->state == BATCH_COMPLETED ? "completed"
					 : batch->state == BATCH_FAILED ? "failed" : "cancelled");
	set_state(batch, batch->state, true);
	/* a dropped batch goes on if the outer batch is retried */
	if (taken)
		nest_end(batch->id, batch->state, batch->dropped && !was_cancelled, &parent_job);
	callback_event(batch->id, batch->name, batch->role, batch->state, &batch->counts);
	return OUTCOME_OVER;
}

/*
 * Evaluate the batch in the caller's transaction.  Sets *witness to a live job, if
 * there is one; for "bound" see Wanted.  "shared" means the transaction also serves
 * other batches.  In a shared transaction, only short work is done; if the work could be
 * long, the result is OUTCOME_ALONE.
 */
BatchOutcome
batch_evaluate(int64 id, const BatchNews *news, int64 bound, bool shared,
			   BatchCancelled *cancelled, int64 *witness)
{
	Evaluation	this = {
		.batch = {.id = id},.news = news,.bound = bound,.shared = shared,
		.cancelled = cancelled,.witness = witness
	};
	BatchOutcome outcome;

	if (!may_begin(&this, &outcome))
	{
		/*
		 * The batch is over, or jobs are kept aside.  In both cases, a copy
		 * of the workflow gets no more news.
		 */
		if (outcome == OUTCOME_OVER || outcome == OUTCOME_EACH_END)
			kept_forget(id);
		return outcome;
	}
	advance_steps(&this);
	jobq_injection_point("jobq-batch-reads");
	if (!find_state(&this, &outcome))
		return outcome;
	if (this.failing)
		fail_batch(&this);
	return this.live ? go_on(&this) : end_batch(&this);
}
