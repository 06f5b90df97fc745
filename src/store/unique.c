/*-------------------------------------------------------------------------
 *
 * unique.c
 *	  Unique jobs: at most one job, or "max" jobs, hold a key at a time within its scope.
 *
 * jobq_internal.unique_key records which job holds a key.  The row is written in the
 * transaction that enqueues the job.  The row is deleted at the end of the transaction that
 * finishes the job, or in a separate transaction when the job starts.  A key is held while its
 * job is live, or until its window ends.  A row without a live job or an open window has no
 * meaning: the next job takes the row over, or the scheduler deletes the row.  A caller in
 * need of the key of an expired job ends this job.
 *
 * The scope is a kind, a queue, or the database.  Keys with the last two scopes apply to all
 * kinds, and have an empty kind in the row.  A job stores the queue of its key (unique_queue),
 * so that the key stays the same when the job moves to another queue.
 *
 * A key for several jobs ("max") consists of several keys: "k", "k #2", "k #3".  A new
 * job takes the first free key.  Keys about to be taken by other transactions are skipped, and
 * waited for only if no other key is free.  The job is refused only if each key is held.  With
 * a key, the job is an ordinary holder.
 *
 * The role is part of the key in each scope.  A producer must not be able to replace, block,
 * or detect the jobs of another role by their keys.
 *
 * No caller waits for a handler.  An enqueuing caller reads committed rows, and waits only in
 * these cases:
 *
 * - for other transactions enqueuing the same key;
 * - to replace a job: for the transaction releasing the key;
 * - to end an expired job: for a transaction with a new lock on the job's row.
 *
 * Starting or finishing a job never waits.  If the key's row is locked, the job is about to be
 * replaced.  If the replacement is rolled back, the row remains, and is_held() finds that the
 * key is free.
 *
 * Replacing callers wait for the lock on the key's row, and not for the lock on the job's row,
 * which is held while the handler runs.
 *
 * src/store/unique.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "store/unique_keys.h"

/* The key to try, for a job with a choice of several keys. */
typedef struct KeyChoice
{
	Datum		key;			/* the requested key, number 1 */
	int			number;			/* of the current key, from 1 */
	bool		busy;			/* others were about to take a key */
	bool		wait;			/* wait for these transactions */
} KeyChoice;

static bool has_ended(int64 id);
static bool expire(Relation rel, JobqJob *job);

/*
 * Set the scope of the job's key from this word.  The caller must have set the job's queue.
 * ERROR if the word is invalid.
 */
void
jobq_unique_set_scope(JobqJob *job, const char *word)
{
	if (strcmp(word, "kind") == 0)
		JOB_ISNULL(job, JOB_UNIQUE_QUEUE) = true;
	else if (strcmp(word, "queue") == 0)
		JOB_SET(job, JOB_UNIQUE_QUEUE, JOB(job, JOB_QUEUE_ID));
	else if (strcmp(word, "database") == 0)
		JOB_SET(job, JOB_UNIQUE_QUEUE, Int32GetDatum(UNIQUE_IN_DATABASE));
	else
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid scope \"%s\"", word),
				 errhint("It is kind, queue or database.")));
}

/*
 * Return whether the live job in this row has expired before it began.  The process running
 * the job may have deleted the row.  For a session in work(), the deleted row is the only
 * sign.
 */
static bool
has_expired(Relation rel, const JobqJob *live, TimestampTz now)
{
	SnapshotData dirty;
	JobqJob		unused;

	if (strcmp(jobq_waiting_state(live, now), "expired") != 0 ||
		DatumGetBool(JOB(live, JOB_DORMANT)) || jobq_job_runs(live))
		return false;
	InitDirtySnapshot(dirty);
	return jobq_job_find(rel, job_id(live), &dirty, &unused) &&
		!TransactionIdIsValid(dirty.xmin) && !TransactionIdIsValid(dirty.xmax);
}

/*
 * Return whether the holder blocks the key for this job.  An expired job does not, because it
 * will not run, although its row may remain for a while.
 *
 * Releasing a key never waits, and leaves the key's row if the row is locked.  If the lock
 * holder has rolled back, the key is free nevertheless.
 */
static bool
is_held(const JobqKeyHolder *holder, const JobqJob *job, Relation rel)
{
	TimestampTz now = jobq_now();
	JobqJob		live;
	bool		found;
	bool		runs_here = false;
	char		until = holder->until;

	if (holder->job_id == job_id(job))
		return false;
	found = jobq_job_find(rel, holder->job_id, SnapshotSelf, &live);
	if (found && has_expired(rel, &live, now))
		return false;

	/* a job running in this session has deleted the row already */
	for (JobqCurrent *current = jobq_current; current != NULL;
		 current = current->outer)
		runs_here |= job_id(current->job) == holder->job_id;
	if (holder->was_locked && until == UNIQUE_UNTIL_START &&
		(runs_here || (found && jobq_job_runs(&live))))
		until = UNTIL_WINDOW;
	if (holder->held_until > now)
		return found || runs_here || !holder->was_locked ||
			!has_ended(holder->job_id);
	if (until == UNTIL_WINDOW)
		return false;
	return runs_here || found ||
		jobq_job_find_now(rel, holder->job_id, &live);
}

/* Return whether the job has ended without completing. */
static bool
has_ended(int64 id)
{
	static const Oid types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};
	bool		ended;

	SPI_connect();
	ended = jobq_query_latest("SELECT FROM jobq_internal.dead_letter WHERE id = $1"
							  " UNION ALL SELECT FROM jobq_internal.archive WHERE id = $1 AND state <> 'c'",
							  1, types, values, SPI_OK_SELECT) > 0;
	SPI_finish();
	return ended;
}

/*
 * If the holder's job exists and has expired, end it, as the scheduler would do later.  A
 * process that is about to begin the job then finds no row, and two jobs never hold the key.
 * Returns false if another transaction had locked the row, after that transaction has ended.
 */
static bool
end_expired(const JobqKeyHolder *holder, Relation rel)
{
	JobqJob		job;

	return !jobq_job_find(rel, holder->job_id, SnapshotSelf, &job) ||
		!has_expired(rel, &job, jobq_now()) || expire(rel, &job);
}

/*
 * Delete the row of an expired job, and archive the job.  Returns false if another transaction
 * had locked the row, which may have changed on return.
 */
static bool
expire(Relation rel, JobqJob *job)
{
	TransactionId blocker;

	if (!jobq_job_delete_or_blocker(rel, job, &blocker))
	{
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job->ctid, XLTW_Delete);
		return false;
	}
	jobq_job_push_if_undone(job);
	jobq_archive_unstarted(job, CAUSE_EXPIRED, NULL);
	return true;
}

/*
 * Find the present row of the job's key, and set *held if its holder blocks the key for the
 * job.  Jobs enqueued by this statement are visible.
 */
static bool
find_holder(Relation keys, Relation rel, const JobqJob *job, JobqKeyHolder *holder,
			bool *held)
{
	bool		found;

	CHECK_FOR_INTERRUPTS();
	CommandCounterIncrement();
	found = jobq_key_find(keys, job, SnapshotSelf, holder);
	*held = found && is_held(holder, job, rel);
	return found;
}

/* ERROR: another job holds the key of this job. */
static void
report_duplicate(int64 holder, const JobqJob *job)
{
	const char *key = TextDatumGetCString(JOB(job, JOB_UNIQUE_KEY));
	JobqQueue	buffer;
	const JobqQueue *queue;

	if (JOB_ISNULL(job, JOB_UNIQUE_QUEUE))
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_DUPLICATE),
				 errmsg("job " INT64_FORMAT " of kind \"%s\" has the unique key \"%s\"",
						holder, jobq_job_kind(job), key)));
	queue = jobq_queue_by_id(DatumGetInt32(JOB(job, JOB_UNIQUE_QUEUE)), &buffer);
	if (queue != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_DUPLICATE),
				 errmsg("job " INT64_FORMAT " has the unique key \"%s\" of queue \"%s\"",
						holder, key, queue->name)));
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_DUPLICATE),
			 errmsg("job " INT64_FORMAT " has the unique key \"%s\"", holder, key)));
}

/*
 * The current key is held: switch to the next key.  After the last key, try the keys about to
 * be taken by other transactions.  Returns false if there is none.
 */
static bool
next_key(JobqJob *job, const JobqUnique *unique, KeyChoice *choice)
{
	if (choice->number < unique->max)
		choice->number++;
	else if (choice->busy && !choice->wait)
	{
		choice->wait = true;
		choice->number = 1;
	}
	else
		return false;
	JOB_SET(job, JOB_UNIQUE_KEY, choice->number == 1 ? choice->key
			: CStringGetTextDatum(psprintf("%s #%d", TextDatumGetCString(choice->key),
										   choice->number)));
	return true;
}

/*
 * The current key could not be taken, because other transactions are taking the key or have
 * locked the row.  Without waiting, switch to the next key.  Otherwise, try the same key
 * again.
 */
static void
pass_by(JobqJob *job, const JobqUnique *unique, KeyChoice *choice)
{
	if (choice->wait)
		return;
	choice->busy = true;
	(void) next_key(job, unique, choice);
}

/* ERROR: the key is held by the maximum number of jobs. */
static void
report_held(int64 holder, const JobqJob *job, const JobqUnique *unique,
			const KeyChoice *choice)
{
	if (unique->max == 1)
		report_duplicate(holder, job);
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_DUPLICATE),
			 errmsg("%d jobs hold the unique key \"%s\"", unique->max,
					TextDatumGetCString(choice->key)),
			 errdetail("By \"max\" of uniqueness, there are no more of them at a time.")));
}

/*
 * Enqueue a job with a unique key.  If another job holds the key, follow on_conflict: do
 * nothing, raise an ERROR, or change the holder if it still waits (unique_waiting.c).  The id
 * of *job is then that of the holder, and marked as null if on_conflict is "ignore".  May wait
 * for transactions writing the same key.
 */
void
jobq_unique_insert(Relation rel, JobqJob *job, const JobqUnique *unique)
{
	Relation	keys = jobq_open_table(JOBQ_UNIQUE_KEY_TABLE,
									   RowExclusiveLock);
	char		until = DatumGetChar(JOB(job, JOB_UNIQUE_UNTIL));
	TimestampTz held_until = unique->held_until;
	bool		replaces = true;
	JobqMerged	merged = {0};
	KeyChoice	choice = {JOB(job, JOB_UNIQUE_KEY), 1, false, unique->max == 1 || unique->several};

	for (bool locked = false;;)
	{
		JobqKeyHolder holder;
		bool		held;
		bool		has_row = true;
		JobqTaken	taken = JOBQ_NOT_TAKEN;

		if (!find_holder(keys, rel, job, &holder, &held))
		{
			if (!jobq_key_insert(keys, job, held_until, choice.wait))
			{
				pass_by(job, unique, &choice);
				continue;
			}
			jobq_unique_place(job, unique);
			jobq_job_insert(rel, job);
			if (!unique->exempt)
				jobq_count(job, JOBQ_N_ENQUEUED, 1);
			break;
		}
		if (held && next_key(job, unique, &choice))
		{
			locked = false;
			continue;
		}
		if (held && (unique->on_conflict == UNIQUE_SKIP || unique->on_conflict == UNIQUE_IGNORE))
		{
			JOB_SET(job, JOB_ID, Int64GetDatum(holder.job_id));
			JOB_ISNULL(job, JOB_ID) = unique->on_conflict == UNIQUE_IGNORE;
			break;
		}
		if (held && unique->on_conflict == UNIQUE_ERROR)
			report_held(holder.job_id, job, unique, &choice);

		/* with the lock, check again: the row does not change from here on */
		if (!locked)
		{
			locked = jobq_key_lock(keys, &holder, choice.wait);
			if (!locked)
				pass_by(job, unique, &choice);
			continue;
		}
		if (held)
			taken = jobq_unique_take(rel, holder.job_id, job, unique, &merged);
		else if (!end_expired(&holder, rel))
			taken = JOBQ_LOOK_AGAIN;
		if (taken == JOBQ_LOOK_AGAIN)
		{
			locked = false;
			continue;
		}
		if (taken == JOBQ_TAKEN_OVER)
		{
			/* a merely changed job keeps the key as before, or longer */
			if (unique->on_conflict != UNIQUE_REPLACE)
			{
				until = DatumGetChar(JOB(job, JOB_UNIQUE_UNTIL));
				held_until = Max(held_until, holder.held_until);
			}
			jobq_state_changed(job, jobq_waiting_state(job, jobq_now()));
		}
		else
		{
			/* the holder may have ended, or have been dropped to make room */
			replaces = false;
			jobq_unique_place(job, unique);
			has_row = find_holder(keys, rel, job, &holder, &held);
		}
		if (has_row)
			jobq_key_update(keys, &holder, job, until, held_until);
		else if (!jobq_key_insert(keys, job, held_until, false))
			elog(ERROR, "a key that was locked has got another row");
		jobq_job_insert(rel, job);
		if (!replaces && !unique->exempt)
			jobq_count(job, JOBQ_N_ENQUEUED, 1);
		break;
	}
	table_close(keys, NoLock);
}

/*
 * Take the key for a dead letter that is retried.  Returns false if another job holds the key.
 * Waits for transactions writing the key.
 */
bool
jobq_unique_reclaim(Relation rel, const JobqJob *job)
{
	Relation	keys = jobq_open_table(JOBQ_UNIQUE_KEY_TABLE, RowExclusiveLock);
	bool		held = false;

	for (bool locked = false;;)
	{
		JobqKeyHolder holder;

		if (!find_holder(keys, rel, job, &holder, &held))
		{
			if (jobq_key_insert(keys, job, DT_NOBEGIN, true))
				break;
			locked = false;
			continue;
		}
		if (held)
			break;
		if (!locked)
		{
			locked = jobq_key_lock(keys, &holder, true);
			continue;
		}
		locked = end_expired(&holder, rel);
		if (!locked)
			continue;
		if (find_holder(keys, rel, job, &holder, &held))
			jobq_key_update(keys, &holder, job, DatumGetChar(JOB(job, JOB_UNIQUE_UNTIL)),
							DT_NOBEGIN);
		else if (!jobq_key_insert(keys, job, DT_NOBEGIN, false))
		{
			locked = false;
			continue;
		}
		break;
	}
	table_close(keys, NoLock);
	return !held;
}

/*
 * Release the key that the job would have, whichever job holds the key.  Returns false if no
 * job held the key.  Waits for transactions writing the key.
 */
bool
jobq_unique_release(const JobqJob *job)
{
	Relation	rel = jobq_open_jobs();
	Relation	keys = jobq_open_table(JOBQ_UNIQUE_KEY_TABLE, RowExclusiveLock);
	bool		held = false;

	for (;;)
	{
		JobqKeyHolder holder;
		TM_FailureData tmfd;

		if (!find_holder(keys, rel, job, &holder, &held))
			break;

		/* a transaction replacing or ending the job comes first */
		if (jobq_heap_delete(keys, &holder.ctid, GetCurrentCommandId(true), true,
							 &tmfd) == TM_Ok)
			break;
	}
	table_close(keys, NoLock);
	table_close(rel, NoLock);
	return held;
}

/*
 * Return the id of the job that holds the key that the job would have, or 0.  Does not wait.
 */
int64
jobq_unique_holder(const JobqJob *job)
{
	Relation	rel = jobq_open_jobs();
	Relation	keys = jobq_open_table(JOBQ_UNIQUE_KEY_TABLE, RowExclusiveLock);
	JobqKeyHolder holder;
	bool		held = false;

	/* a scan without a snapshot may miss a row that is being replaced */
	if (!find_holder(keys, rel, job, &holder, &held))
		(void) find_holder(keys, rel, job, &holder, &held);
	table_close(keys, NoLock);
	table_close(rel, NoLock);
	return held ? holder.job_id : 0;
}
