/*-------------------------------------------------------------------------
 *
 * batch_try.c
 *	  The evaluation of a batch as a part of the scheduler's work: watch the batch meanwhile,
 *	  evaluate, and publish the result.
 *
 * worker/scheduler/batch_try.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/batch.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/snapmgr.h"

/*
 * Store the error in the row.  A new error is also written to the log.
 */
static void
note_error(int64 id, const ErrorData *edata)
{
	ErrorRow	row = {"batch", "id", INT8OID, Int64GetDatum(id)};

	if (scheduler_note_error(&row, edata, NULL, NULL))
		ereport(WARNING,
				(errcode(edata->sqlerrcode),
				 errmsg("batch " INT64_FORMAT " cannot go on: %s", id,
						edata->message),
				 errhint("It is tried again every \"%s\" seconds.",
						 "jobq.poll_interval")));
}

/*
 * Evaluate a batch; arg is a BatchTry.  On a second call, the first evaluation was rolled
 * back, and the transaction is no longer shared.
 */
void
batch_try(void *arg)
{
	BatchTry   *this = (BatchTry *) arg;
	Wanted	   *batch = this->batch;

	if (this->begun)
	{
		batch_rolled_back(batch->id, &batch->cancelled);
		this->shared = false;
	}
	this->begun = true;
	this->unseen |= batch_watch_begin(batch->id, &batch->news.whole);
	this->outcome = jobq_relations_if_installed() == NULL ? OUTCOME_OVER
		: batch_evaluate(batch->id, &batch->news, batch->bound, this->shared,
						 &batch->cancelled, &this->witness);
	scheduler_commit_quietly();
}

/*
 * Take over the result of an evaluation: committed, or rolled back with the error
 * edata.
 */
void
batch_tried(BatchTry *this, const ErrorData *edata)
{
	Wanted	   *batch = this->batch;
	bool		incomplete;

	if (edata != NULL)
	{
		this->outcome = edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE
			? OUTCOME_LATER : OUTCOME_EACH_END;
		batch_rolled_back(batch->id, &batch->cancelled);
	}

	/* the table in batch.h */
	incomplete = edata != NULL || this->outcome == OUTCOME_LATER;
	if (this->outcome != OUTCOME_ALONE)
	{
		batch->news.ended.n = batch->news.added.n = 0;
		batch->news.whole = incomplete;
		batch->news.grows &= incomplete;
	}
	if (edata != NULL && this->outcome != OUTCOME_LATER)
		note_error(batch->id, edata);

	batch_watch_end(batch->id, this->outcome, this->witness);
}

/*
 * Check that the witnesses published just now are still live.  A witness may have ended
 * before the publication, unseen by the ending process.
 */
void
batch_check_live(BatchTry *attempts, const Part * parts, int n)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		any = false;
	bool		installed;

	for (int i = 0; i < n; i++)
		any |= !parts[i].rests && attempts[i].outcome == OUTCOME_WITNESS;
	if (!any)
		return;
	pg_memory_barrier();
	process_begin_transaction();
	installed = jobq_relations_if_installed() != NULL;
	for (int i = 0; i < n; i++)
	{
		BatchTry   *this = &attempts[i];
		int64		found;

		if (!parts[i].rests && this->outcome == OUTCOME_WITNESS)
			this->live = !installed ||
				(batch_witness(this->batch->id, this->witness, &found) &&
				 found == this->witness);
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}
