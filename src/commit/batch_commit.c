/*-------------------------------------------------------------------------
 *
 * batch_commit.c
 *	  Jobs of batches that end: messages from the committer to the scheduler.
 *
 * A batch is over when it has no live job left.  Only the table shows this.  A read of the
 * table at each end of a job would cost too much.  A counter in a row would make all
 * transactions wait for the row.  The scheduler therefore names one live job of the batch, the
 * witness.  As long as the witness is live, the batch is not over.  The process that ends the
 * witness wakes the scheduler, and the scheduler searches for another witness.
 *
 * A committer reads the witness without a lock, after the commit.  The scheduler publishes the
 * witness (worker/scheduler/batch_watch.c) before checking that the job is still live
 * (batch_try.c).  Either the scheduler sees the commit, or the committer sees the witness.
 *
 * A batch without a slot in shared memory is evaluated at the next end of a job of the
 * batch.
 *
 * In a workflow, each end counts, because another step may wait for the job.  If the scheduler
 * keeps the progress of the workflow in memory, committers report the ended jobs.  Otherwise,
 * and after any other change, the scheduler reads all steps.  Added steps are reported in the
 * same list.
 *
 * src/commit/batch_commit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "common/hashfn.h"

#include "commit/inner.h"

typedef struct PendingEnd
{
	SubTransactionId subid;
	bool		lost;
	bool		added;
	int64		batch_id;
	int64		job_id;
} PendingEnd;

static int	nends = 0;

static PendingEnd *ends = NULL;
static int	max_ends = 0;

/*
 * At commit, report to the scheduler that this job of the batch has ended.  If job_id is 0,
 * report a change of the batch.  lost: the job is dead or expired.
 */
void
jobq_at_commit_batch(int64 batch_id, int64 job_id, bool lost)
{
	ends = jobq_grow(ends, &max_ends, nends + 1, sizeof(PendingEnd));
	ends[nends++] = (PendingEnd)
	{
		.subid = GetCurrentSubTransactionId(),
			.lost = lost,
			.batch_id = batch_id,
			.job_id = job_id
	};
}

/*
 * At commit, report that the step with this job was added to the batch.  If the transaction
 * adds more steps than the list of ends can hold, the report only says that steps were added,
 * and is noted once.  Reports are delivered under a lock, and the scheduler reads all steps in
 * any case.
 */
void
jobq_at_commit_step(int64 batch_id, int64 job_id)
{
	const PendingEnd *last = nends > 0 ? &ends[nends - 1] : NULL;

	if (nends >= JOBQ_MAX_ENDS)
		job_id = 0;
	/* a rollback that removes the earlier note would remove this note, too */
	if (job_id == 0 && last != NULL && last->added && last->job_id == 0 && last->batch_id == batch_id)
		return;
	jobq_at_commit_batch(batch_id, job_id, false);
	ends[nends - 1].added = true;
}

/*
 * Return the slot of the batch in shared memory.  Another batch may occupy the slot: the
 * caller compares batch_id.
 */
JobqBatchWatch *
jobq_batch_watch(JobqDatabase *db, int64 batch_id)
{
	return &db->told->watches[murmurhash32((uint32) batch_id) % JOBQ_MAX_WATCHES];
}

static bool
look_is_needed(JobqDatabase *db, const PendingEnd *end)
{
	JobqBatchWatch *watch = jobq_batch_watch(db, end->batch_id);
	uint64		witness;

	if (end->lost || end->added || end->job_id == 0 ||
		pg_atomic_read_u64(&watch->batch_id) != (uint64) end->batch_id)
		return true;
	pg_read_barrier();
	witness = pg_atomic_read_u64(&watch->witness);
	pg_read_barrier();

	/* another batch may have been assigned to the slot meanwhile */
	return pg_atomic_read_u64(&watch->batch_id) != (uint64) end->batch_id ||
		witness == JOBQ_ANY_WITNESS || witness == (uint64) end->job_id;
}

/*
 * After commit: return whether the scheduler must be informed, and drop all other notes.
 * Takes no lock.
 */
static bool
batches_pending(JobqDatabase *db)
{
	int			n = 0;

	if (nends == 0 || db == NULL)
	{
		nends = 0;
		return false;
	}
	pg_memory_barrier();
	for (int i = 0; i < nends; i++)
		if (look_is_needed(db, &ends[i]))
			ends[n++] = ends[i];
	nends = n;
	return n > 0;
}

/*
 * Ask the scheduler to evaluate these batches.  Cannot fail.
 */
static void
batches_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	AssertExclusive(db->lock);
	for (int i = 0; i < nends; i++)
	{
		JobqBatchWatch *watch = jobq_batch_watch(db, ends[i].batch_id);

		if (pg_atomic_read_u64(&watch->batch_id) != (uint64) ends[i].batch_id)
		{
			if (watch->look)
			{
				/*
				 * both batches need an evaluation, and the other batch has
				 * the slot
				 */
				if (db->told->nunwatched < JOBQ_MAX_UNWATCHED)
				{
					db->told->unwatched[db->told->nunwatched++] =
						ends[i].batch_id;
					db->batches_look = true;
				}
				else
					db->batches_sweep = true;
				continue;
			}
			pg_atomic_write_u64(&watch->batch_id, (uint64) ends[i].batch_id);
			/* jobs that end before the evaluation need no report */
			pg_atomic_write_u64(&watch->witness, 0);
			watch->named = watch->grows = false;
		}
		if (watch->named && ends[i].job_id != 0 && !ends[i].lost &&
			db->told->nends < JOBQ_MAX_ENDS)
		{
			JobqBatchEnd *end = &db->told->ends[db->told->nends++];

			end->batch_id = ends[i].batch_id;
			end->job_id = ends[i].job_id;
			end->added = ends[i].added;
		}
		else
			watch->whole = true;
		watch->grows |= ends[i].added;
		watch->look = true;
		db->batches_look = true;
	}
	nends = 0;
	wake->scheduler = true;
}

/* Remove the notes made since this subtransaction began, or all notes. */
static void
batches_abort(SubTransactionId since)
{
	while (nends > 0 && ends[nends - 1].subid >= since)
		nends--;
}

static bool
batches_noted(void)
{
	return nends > 0;
}

static void
batches_give_back(void)
{
	Assert(nends == 0);
	ends = jobq_give_back(ends, &max_ends);
}

const JobqCommitBooks batch_books =
{
	.noted = batches_noted,
	.pending = batches_pending,
	.commit = batches_commit,
	.abort = batches_abort,
	.give_back = batches_give_back,
};
