/*-------------------------------------------------------------------------
 *
 * batch_commit.c
 *	  Jobs of batches that come to an end: what the committer tells the
 *	  scheduler.
 *
 * A batch is over when it has no live job any more, which the table knows.  To
 * look there at each end would be too much; a counter would be a row that all
 * wait for.  So the scheduler names one live job of the batch, its witness: as
 * long as that is live, the batch is not over, and nobody needs to look.  Who
 * ends the witness wakes the scheduler, which looks for another.
 *
 * A committer reads the witness without a lock, after its commit.  The
 * scheduler names the witness before it looks whether it is still live
 * (worker/scheduler/batches.c).  So either it sees the commit, or the committer sees the
 * name.
 *
 * A batch that is not among those of shared memory gets a look with the next
 * end of one of its jobs.
 *
 * Of a workflow each end matters, as another step may wait for it.  If the
 * scheduler keeps in mind how far it is, committers tell which jobs have ended;
 * else, and where something else has happened, it reads all steps.  Committers tell of
 * steps that were added in the same list.
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

static bool look_is_needed(JobqDatabase *db, const PendingEnd *end);

/*
 * At commit, tell that this job of the batch has ended, or, if it is 0, that
 * the batch itself has changed.  lost: it is dead or expired.
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
 * At commit, tell that the step with this job was added to the batch.  Where there are
 * more than the list of ends has room for, this says only that some were, once: they are
 * told under a lock, and the scheduler reads all steps in any case.
 */
void
jobq_at_commit_step(int64 batch_id, int64 job_id)
{
	const PendingEnd *last = nends > 0 ? &ends[nends - 1] : NULL;

	if (nends >= JOBQ_MAX_ENDS)
		job_id = 0;
	/* it is forgotten with a subtransaction only if this would be, too */
	if (job_id == 0 && last != NULL && last->added && last->job_id == 0 && last->batch_id == batch_id)
		return;
	jobq_at_commit_batch(batch_id, job_id, false);
	ends[nends - 1].added = true;
}

/*
 * Where the batch is in shared memory, if it is there.
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

	/* another batch may have taken the place meanwhile */
	return pg_atomic_read_u64(&watch->batch_id) != (uint64) end->batch_id ||
		witness == JOBQ_ANY_WITNESS || witness == (uint64) end->job_id;
}

/*
 * After commit: is there anything that the scheduler must know?  What it need
 * not know is forgotten.  Wants no lock.
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
 * Ask the scheduler to look at these batches.  Wants db->lock; cannot fail.
 */
static void
batches_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	for (int i = 0; i < nends; i++)
	{
		JobqBatchWatch *watch = jobq_batch_watch(db, ends[i].batch_id);

		if (pg_atomic_read_u64(&watch->batch_id) != (uint64) ends[i].batch_id)
		{
			if (watch->look)
			{
				/* both need a look, and one has the place */
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
			/* those that end before the look need not tell */
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

/*
 * Forget what was noted since this subtransaction began, or at all.
 */
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
