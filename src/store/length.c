/*-------------------------------------------------------------------------
 *
 * length.c
 *	  Number of jobs in a queue with max_length.  The number is exact, and producers do not all
 *	  wait for one row.
 *
 * Each of these queues has a counter in shared memory: the committed jobs, and the positions
 * reserved by open transactions.  A producer reserves its positions at once, or fails.  A
 * rollback, also to a savepoint, releases the positions.  After removing jobs from the queue,
 * a transaction may use the positions for new jobs.
 *
 * When a job leaves the queue for good, the position is released as soon as the transaction
 * has committed.  A retry keeps its position.  Retried dead letters, and jobs enqueued by
 * on_failure, are never refused.  They count when they are committed.
 *
 * The counter starts with a count of the table.  The first producer without a counter makes
 * the count: after a start, or when the queue gets its limit.  Other transactions may end
 * meanwhile.  Each transaction therefore notes its additions and removals for all queues,
 * which is cheap (length_note.c).  After the commit, the notes are applied to the counter,
 * unless the snapshot of the count has seen the transaction as committed
 * (src/commit/seen.c).
 *
 * PREPARE keeps the positions reserved.  At COMMIT PREPARED the changes of the transaction are
 * unknown, and the queues are counted again.  The same happens after a restore.  Reservations
 * of transactions prepared before a restart are unknown until the commit.
 *
 * Without a counter, producers count the table one after another: each keeps a lock on the
 * queue until its transaction ends.  This happens if jobq is not preloaded, if the database is
 * not served, or if there are too many of these queues or transactions.
 *
 * src/store/length.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/lengths.h"

/*
 * Maximum number of counts of a queue if changes invalidate the count each time.
 */
#define MAX_COUNTS	10

static int64 count_rows(int32 queue_id, Snapshot snapshot);
static bool count_queue(JobqDatabase *db, int32 queue_id);

/* Note the final removal of a job from the queue.  Takes no lock. */
void
jobq_length_remove(int32 queue_id)
{
	jobq_length_note(queue_id)->removed++;
}

/* Note n jobs entering the queue regardless of the limit.  Takes no lock. */
void
jobq_length_add(int32 queue_id, int n)
{
	jobq_length_note(queue_id)->added += n;
}

/*
 * Record the last dropped job of the queue.  before: the previous one, at which the next
 * search begins if the drop is rolled back.  Takes db->lock.
 */
void
jobq_length_dropped_to(int32 queue_id, const JobqDropped *dropped,
					   const JobqDropped *before)
{
	JobqLengthNote *note = jobq_length_note(queue_id);

	if (!note->drops)
	{
		note->drops = true;
		note->before = *before;
	}
	jobq_length_set_dropped(queue_id, dropped);
}

/*
 * Return the number of positions to be released at commit and not yet reused.  The transaction
 * may use them for its own new jobs, because both changes commit together.
 */
static int64
own_room(int32 queue_id, Oid jobs)
{
	int64		places = 0;

	for (JobqLengthNote *note = jobq_length_note_newest(queue_id, jobs);
		 note != NULL; note = jobq_length_note_older(note))
		places += note->removed - note->reused;
	return places;
}

/*
 * Return the number of positions occupied until the end of this transaction: reserved
 * positions, and the position of the running job, which may return.
 */
static int64
own_places(int32 queue_id, Oid jobs)
{
	int64		places = 0;

	for (JobqLengthNote *note = jobq_length_note_newest(queue_id, jobs);
		 note != NULL; note = jobq_length_note_older(note))
		places += note->reserved + note->reused;
	for (JobqCurrent *current = jobq_current; current != NULL;
		 current = current->outer)
		if (current->memory != NULL && job_queue_id(current->job) == queue_id)
			places++;
	return places;
}

/*
 * Reserve positions for n new jobs in a queue with max_length, or none.  room->missing is the
 * number of missing positions.  Takes db->lock, and, to count the queue, a lock on the queue.
 * The lock on the queue is kept only if there is no counter.
 */
void
jobq_length_take(const JobqQueue *queue, int n, JobqRoom *room)
{
	JobqDatabase *db = jobq_my_database();
	int32		queue_id = queue->id;
	JobqLengthNote *note = jobq_length_note(queue_id);
	bool		locked = false;

	room->allowed = queue->max_length + own_room(queue_id, note->jobs);
	room->own = own_places(queue_id, note->jobs);
	for (;;)
	{
		if (db != NULL)
		{
			JobqLength *counter;
			int64		now = -1;

			LWLockAcquire(db->lock, LW_EXCLUSIVE);
			counter = jobq_length_find(db, queue_id, note->jobs);
			if (counter != NULL && counter->valid)
			{
				now = jobq_length_now(db, counter);
				if (now + n <= room->allowed)
				{
					int			reused = Min(n, room->allowed - queue->max_length);

					jobq_length_note_life(note, db->life);
					note->reused += reused;
					note->added += reused;
					note->reserved += n - reused;
					counter->reserved += n - reused;
				}
			}
			LWLockRelease(db->lock);
			if (now >= 0)
			{
				if (locked)
					UnlockDatabaseObject(jobq_relations()->queue, queue_id, 0,
										 ExclusiveLock);
				room->length = now;
				room->missing = Max(now + n - room->allowed, 0);
				return;
			}
		}
		if (locked && (db == NULL || !count_queue(db, queue_id)))
			break;
		if (!locked)
			LockDatabaseObject(jobq_relations()->queue, queue_id, 0,
							   ExclusiveLock);
		locked = true;
	}

	/* no counter: count, and keep the lock; jobs removed here are not seen */
	CommandCounterIncrement();
	room->length = count_rows(queue_id, RegisterSnapshot(GetLatestSnapshot()));
	room->missing = Max(room->length + n - queue->max_length, 0);
	if (room->missing == 0)
		note->added += n;
}

/*
 * Return the number of the queue's jobs running in this session with deleted rows.  They count
 * until their end is noted, and return after a rollback.
 */
static int64
running_here(Relation rel, int32 queue_id, Snapshot snapshot)
{
	int64		n = 0;
	JobqJob		unused;

	for (JobqCurrent *current = jobq_current; current != NULL;
		 current = current->outer)
		if (current->memory != NULL && job_queue_id(current->job) == queue_id &&
			!jobq_job_find(rel, job_id(current->job), snapshot, &unused))
			n++;
	return n;
}

/*
 * Return the number of jobs of the queue visible to the snapshot, and of jobs running here.
 * Unregisters the snapshot.
 */
static int64
count_rows(int32 queue_id, Snapshot snapshot)
{
	Relation	rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	int64		n = 0;

	ScanKeyInit(&key, JOB_QUEUE_ID, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	scan = systable_beginscan(rel, jobq_index(rel, JOBQ_JOB_READY), true,
							  snapshot, 1, &key);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		if (!DatumGetBool(heap_getattr(tuple, JOB_DORMANT,
									   RelationGetDescr(rel), &isnull)))
			n++;
	}
	systable_endscan(scan);
	n += running_here(rel, queue_id, snapshot);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return n;
}

/*
 * Begin to count the queue: store the transactions in progress for the snapshot in its
 * counter, and mark the counter as invalid.  Returns false if there is no room for a counter.
 */
static bool
begin_count(JobqDatabase *db, int32 queue_id, Oid jobs, Snapshot *snapshot,
			uint64 *recounts)
{
	JobqLength *length;
	bool		room;
	int			kept = 0;

	/* make the changes of this transaction visible */
	CommandCounterIncrement();

	/* allocates the memory for the second snapshot, which then cannot fail */
	(void) GetLatestSnapshot();
	if (db->lengths->nlengths == JOBQ_MAX_LENGTHS)
		jobq_lengths_free(db);

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	length = jobq_length_make(db, queue_id, jobs);
	*snapshot = GetLatestSnapshot();
	*recounts = db->lengths->recounts;
	if (length != NULL)
		length->valid = false;
	room = length != NULL && jobq_seen_set(&length->seen, length->xip, JOBQ_LENGTH_XIDS,
										   *snapshot, GetTopTransactionIdIfAny());
	if (room)
	{
		length->committed = 0;

		/* remove ended prepared transactions */
		for (int i = 0; i < db->lengths->nprepared; i++)
		{
			TransactionId prepared = db->lengths->prepared[i].xid;
			bool		open = TransactionIdFollowsOrEquals(prepared,
															(*snapshot)->xmax);

			for (uint32 j = 0; j < (*snapshot)->xcnt && !open; j++)
				open = (*snapshot)->xip[j] == prepared;
			if (open)
				db->lengths->prepared[kept++] = db->lengths->prepared[i];
		}
		db->lengths->nprepared = kept;
	}
	LWLockRelease(db->lock);
	return room;
}

/*
 * Set the queue's counter from the table.  The caller has locked the queue.  Returns false if
 * there is no room for a counter, or if a recount of all queues was requested during each
 * count.
 */
static bool
count_queue(JobqDatabase *db, int32 queue_id)
{
	Oid			jobs = jobq_relations()->job;
	bool		valid = false;

	for (int n = 0; n < MAX_COUNTS && !valid; n++)
	{
		Snapshot	snapshot;
		uint64		recounts;
		int64		rows;
		JobqLength *length;

		if (!begin_count(db, queue_id, jobs, &snapshot, &recounts))
			return false;
		rows = count_rows(queue_id, RegisterSnapshot(snapshot));
		jobq_injection_point("jobq-queue-counted");

		/* the counter may have been freed, or changes may have been missed */
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		length = jobq_length_find(db, queue_id, jobs);
		valid = length != NULL && db->lengths->recounts == recounts;
		for (JobqLengthNote *note = jobq_length_note_newest(queue_id, jobs);
			 note != NULL && valid; note = jobq_length_note_older(note))
		{
			/* own notes are not committed: they count as reserved positions */
			jobq_length_note_life(note, db->life);
			rows -= note->reserved + note->added - note->removed;
			length->reserved += note->added - note->reused;
			note->reserved += note->added - note->reused;
			note->added = note->reused;
		}
		if (valid)
		{
			length->committed += rows;
			length->valid = true;
		}
		LWLockRelease(db->lock);
	}
	return valid;
}

/*
 * Apply the notes after the commit.  Cannot fail.
 */
static void
length_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	FullTransactionId fxid = GetTopFullTransactionIdIfAny();
	JobqLengthNote *note;

	AssertExclusive(db->lock);
	for (int i = 0; (note = jobq_length_note_number(i)) != NULL; i++)
	{
		JobqLength *length = jobq_length_find(db, note->queue_id, note->jobs);

		if (length == NULL)
			continue;
		jobq_length_note_life(note, db->life);
		Assert(length->reserved >= note->reserved);
		length->reserved -= note->reserved;
		if (jobq_seen_missed(&length->seen, length->xip, fxid))
			length->committed += note->reserved + note->added - note->removed;
		if (note->removed > 0)
			jobq_length_tell(db, length);
	}
	jobq_length_notes_forget();
}

/* Release the positions reserved since this subtransaction began, or all. */
static void
length_abort(SubTransactionId since)
{
	JobqDatabase *db = jobq_my_database();
	JobqLengthNote *note;

	jobq_length_waited();
	while ((note = jobq_length_note_undo(since)) != NULL)
	{
		JobqLength *length;

		if ((note->reserved == 0 && !note->drops) || db == NULL)
			continue;
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		length = jobq_length_find(db, note->queue_id, note->jobs);
		jobq_length_note_life(note, db->life);
		if (length != NULL && note->drops)
			jobq_length_undropped(length, &note->before);
		if (length != NULL && note->reserved > 0)
		{
			Assert(length->reserved >= note->reserved);
			length->reserved -= note->reserved;
			jobq_length_tell(db, length);
		}
		LWLockRelease(db->lock);
	}
	if (since == InvalidSubTransactionId)
		jobq_length_notes_forget();
}

/*
 * The transaction was prepared: keep the positions under the transaction id.
 */
static void
length_prepare(void)
{
	JobqDatabase *db = jobq_my_database();
	TransactionId xid = GetTopTransactionIdIfAny();
	JobqLengthNote *note;

	if (db != NULL && db->lengths->nlengths > 0)
	{
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		for (int i = 0; (note = jobq_length_note_number(i)) != NULL; i++)
		{
			JobqLength *length = jobq_length_find(db, note->queue_id, note->jobs);

			jobq_length_note_life(note, db->life);
			if (note->reserved == 0 || length == NULL)
				continue;
			Assert(length->reserved >= note->reserved);
			length->reserved -= note->reserved;
			if (db->lengths->nprepared < JOBQ_MAX_PREPARED)
			{
				JobqPreparedPlaces *places = &db->lengths->prepared[db->lengths->nprepared++];

				places->xid = xid;
				places->queue_id = note->queue_id;
				places->jobs = note->jobs;
				places->n = note->reserved;
			}
		}
		LWLockRelease(db->lock);
	}
	jobq_length_notes_forget();
}

/*
 * Request a recount of all queues after a change of the table without notes.  Cannot fail.
 */
static void
length_recount(JobqDatabase *db)
{
	if (db == NULL)
		return;
	AssertExclusive(db->lock);
	db->lengths->recounts++;
	for (int i = 0; i < db->lengths->nlengths; i++)
	{
		db->lengths->lengths[i].valid = false;
		db->lengths->lengths[i].dropped.key.id = 0;
		jobq_length_tell(db, &db->lengths->lengths[i]);
	}
}

static bool
notes_made(void)
{
	return jobq_length_note_number(0) != NULL;
}

static bool
length_noted(void)
{
	return notes_made() || jobq_length_waits();
}

/* If no queue of the database has a counter, the notes are superfluous. */
static bool
length_pending(JobqDatabase *db)
{
	if (db == NULL || db->lengths->nlengths == 0)
		jobq_length_notes_forget();
	return notes_made();
}

static const JobqCommitBooks books =
{
	.noted = length_noted,
	.pending = length_pending,
	.commit = length_commit,
	.unnoted = length_recount,
	.abort = length_abort,
	.subcommit = jobq_length_notes_subcommit,
	.prepare = length_prepare,
	.give_back = jobq_length_notes_give_back,
};

/* Register the books of this file.  Called once per process. */
void
jobq_length_install(void)
{
	jobq_commit_join(&books);
}
