/*-------------------------------------------------------------------------
 *
 * unique.c
 *	  Unique jobs: at most one job of a key at a time, within what its scope says.
 *
 * jobq_internal.unique_key says which job holds a key.  Its row is written in the
 * transaction that enqueues the job and deleted in the one that finishes it, at
 * its very end (or when the job starts, in a transaction of its own).  A key is
 * held as long as its job is live, or until its window is over.  A row for which
 * neither is true any more means nothing: the next job takes it over, or the
 * scheduler deletes it.  A job that has expired is ended by who wants its key.
 *
 * The scope is a kind, a queue, or the database.  A key of the last two is one of
 * all kinds, and has an empty kind in its row.  A job remembers the queue of its key
 * (unique_queue), so it has the same key when it stands in another queue.
 *
 * A key that several jobs may hold (unique_max) is so many keys: "k", "k #2", "k #3".
 * A new job takes the first of them that is free.  It passes by those that others are
 * about to take, and waits for these only if there is no other, so it is one too many
 * only when each of them is held.  From then on it is a job of its key like any other.
 *
 * A job's role is part of the key in each scope: who may enqueue as one role must not
 * be able to replace, or to keep away, what another role enqueues, nor to find out what
 * keys that has.
 *
 * Nobody waits for a handler here.  Whoever enqueues looks at what has
 * committed, and waits only for others who enqueue the same key, or, to replace
 * a job, for the end of the transaction that gives the key back, or, to end one that
 * has expired, for who has taken its row since it was looked at.  Whoever
 * finishes or starts a job never waits: if the key's row is taken, its job is
 * about to be replaced; should that be rolled back, the row is left, and is_held()
 * finds that the key is free.
 *
 * The lock on the key's row, not that on the job's, is what those who replace
 * wait for: the job's row is taken, too, as long as its handler runs.
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

/* Which of the keys a job tries that may have one of several. */
typedef struct KeyChoice
{
	Datum		key;			/* as it was asked for: the first of them */
	int			number;			/* of the one that is tried, from 1 */
	bool		busy;			/* others were about to take one of them */
	bool		wait;			/* wait for these */
} KeyChoice;

static bool find_holder(Relation keys, Relation rel, const JobqJob *job,
						JobqKeyHolder *holder, bool *held);
static bool has_expired(Relation rel, const JobqJob *live, TimestampTz now);
static bool is_held(const JobqKeyHolder *holder, const JobqJob *job, Relation rel);
static bool has_ended(int64 id);
static bool end_expired(const JobqKeyHolder *holder, Relation rel);
static bool expire(Relation rel, JobqJob *job);
static bool next_key(JobqJob *job, const JobqUnique *unique, KeyChoice *choice);
static void pass_by(JobqJob *job, const JobqUnique *unique, KeyChoice *choice);
static void report_duplicate(int64 holder, const JobqJob *job);
static void report_held(int64 holder, const JobqJob *job, const JobqUnique *unique,
						const KeyChoice *choice);

/*
 * Take the job's scope from this word.  The job has its queue.
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
				 errmsg("invalid unique_scope \"%s\"", word),
				 errhint("It is kind, queue or database.")));
}

/*
 * Has the job, which has this row, expired before it began?  Whoever runs it may have
 * deleted the row, and that is all that tells of a session in work().
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
 * Does the holder keep the key from this job?  What has expired will not run, although
 * it may be a while before somebody comes across its row.
 *
 * Who gives a key back never waits, so he leaves it if its row is locked: as who wanted
 * the job's place has rolled back, the key is then free all the same.
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

	/* what runs in this session has deleted its row already */
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

/*
 * Has the job ended without having done what it was for?
 */
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
 * If the holder's job is there, and has expired, end it, as the scheduler would do later.
 * So whoever is about to begin it finds it gone, and two jobs never have the key.  False
 * if somebody else had its row, until the end of that.
 */
static bool
end_expired(const JobqKeyHolder *holder, Relation rel)
{
	JobqJob		job;

	return !jobq_job_find(rel, holder->job_id, SnapshotSelf, &job) ||
		!has_expired(rel, &job, jobq_now()) || expire(rel, &job);
}

/*
 * Delete the row of a job that has expired, and archive it.  False if somebody else had
 * the row, which may have become another when this returns.
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
	jobq_archive(job, STATE_EXPIRED, DT_NOBEGIN, false, (Datum) 0,
				 "not started before expires_at");
	return true;
}

/*
 * Find the row of the job's key as it is now, and whether its holder keeps it from
 * the job.  What this statement itself has enqueued is seen, too.
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

/*
 * An error: another job holds the key of this one.
 */
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
 * The key that was tried is held: try the next one.  After the last, those that others
 * were about to take.  False if there is none.
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
 * The key that was tried could not be taken, because others have it or its row at this
 * moment.  If we did not wait for them, try the next one; else this one again.
 */
static void
pass_by(JobqJob *job, const JobqUnique *unique, KeyChoice *choice)
{
	if (choice->wait)
		return;
	choice->busy = true;
	(void) next_key(job, unique, choice);
}

/*
 * An error: the key is held, by this job or by as many as may do so.
 */
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
			 errdetail("By unique_max, there are no more of them at a time.")));
}

/*
 * Enqueue a job that has a unique key.  If another job holds the key, do as
 * on_conflict says: nothing; or, if it still waits, what unique_waiting.c does.  The
 * job's id is then that one's, and is marked as null if on_conflict is "ignore".
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

		/* with the lock, look again: nothing changes from here on */
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
			/* who stays what he is has the key as before, or longer */
			if (unique->on_conflict != UNIQUE_REPLACE)
			{
				until = DatumGetChar(JOB(job, JOB_UNIQUE_UNTIL));
				held_until = Max(held_until, holder.held_until);
			}
			jobq_state_changed(job, jobq_waiting_state(job, jobq_now()));
		}
		else
		{
			/*
			 * the job that has the key may have ended, or be dropped to make
			 * room
			 */
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
 * Take the key for a dead letter, which is a job again then.  False if another job holds
 * it: what others are about to do with it is waited for.
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
 * Give back the key that the job would have, whoever holds it.  False if nobody did.
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

		/* who replaces the job, or ends it, is first */
		if (jobq_heap_delete(keys, &holder.ctid, GetCurrentCommandId(true), true,
							 &tmfd) == TM_Ok)
			break;
	}
	table_close(keys, NoLock);
	table_close(rel, NoLock);
	return held;
}
