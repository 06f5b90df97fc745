/*-------------------------------------------------------------------------
 *
 * length.c
 *	  How many jobs a queue with max_length has: exact, and without a row that
 *	  all producers would wait for.
 *
 * Each such queue has a counter in shared memory: jobs that are committed, and
 * places that open transactions have reserved.  A producer reserves its places
 * at once, or fails; if it rolls back, also to a savepoint, it gives them back.  One
 * who takes jobs out of the queue puts new ones into their places, and needs no more.
 * Who takes a job out of the queue for good gives its place back when that has
 * committed.  A retry keeps its place.  Dead letters that are retried, and jobs
 * that on_failure enqueues, are never refused; they count when they have
 * committed.
 *
 * The counter begins with a count of the table, made by the first producer who
 * finds none: after a start, or when the queue gets its limit.  Others end
 * transactions meanwhile, which know nothing of each other.  So each notes what
 * it has added to and removed from whatever queue, which is cheap (length_note.c), and
 * applies that to the counter when it has committed, unless the snapshot of the count
 * has seen it committed.  The snapshot is taken under the lock under which
 * notes are applied: what comes later is in progress for it, or was seen.
 *
 * PREPARE keeps the places reserved.  At COMMIT PREPARED nobody knows what the
 * transaction did, and the queues are counted again; likewise after a restore.
 * Reservations of transactions that were prepared before a restart are not
 * known until they commit.
 *
 * Where there is no counter (jobq is not preloaded, the database is not served,
 * or there are too many such queues or transactions), producers count the
 * table, one after the other: each keeps a lock on the queue until it ends.
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

/* So often a queue is counted again because something has changed meanwhile. */
#define MAX_COUNTS	10

static int64 own_room(int32 queue_id, Oid jobs);
static int64 own_places(int32 queue_id, Oid jobs);
static bool in_progress(const JobqLength *length, FullTransactionId fxid);
static int64 running_here(Relation rel, int32 queue_id, Snapshot snapshot);
static int64 count_rows(int32 queue_id, Snapshot snapshot);
static bool count_queue(JobqDatabase *db, int32 queue_id);
static bool begin_count(JobqDatabase *db, int32 queue_id, Oid jobs, Snapshot *snapshot,
						uint64 *recounts);

/*
 * A job has left the queue for good.
 */
void
jobq_length_remove(int32 queue_id)
{
	jobq_length_note(queue_id)->removed++;
}

/*
 * n jobs come into the queue, however many there are.
 */
void
jobq_length_add(int32 queue_id, int n)
{
	jobq_length_note(queue_id)->added += n;
}

/*
 * Jobs of the queue were dropped, up to this one; "before" was the last one until then.
 * Should that be undone, the next search begins there again.
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
 * The places that this transaction gives back when it commits, and has not reused.  They
 * are room for what it enqueues itself: both are done, or neither.
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
 * The places that nobody else gets before this transaction ends: those that it has
 * taken, and that of the job which it runs, which may come again.
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
 * Take places for n new jobs in a queue with max_length, if there are so many; *room
 * says how many are missing.
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

	/* no counter: count, and keep the lock; what was removed here is not seen */
	CommandCounterIncrement();
	room->length = count_rows(queue_id, RegisterSnapshot(GetLatestSnapshot()));
	room->missing = Max(room->length + n - queue->max_length, 0);
	if (room->missing == 0)
		note->added += n;
}

/*
 * Was the transaction, which has committed since, in progress when the queue
 * was counted?
 */
static bool
in_progress(const JobqLength *length, FullTransactionId fxid)
{
	if (FullTransactionIdFollowsOrEquals(fxid, length->xmax))
		return true;
	for (int i = 0; i < length->nxip; i++)
		if (length->xip[i] == XidFromFullTransactionId(fxid))
			return true;
	return false;
}

/*
 * The jobs of the queue that this session runs, and whose rows it has deleted to do so.
 * They count until their end is noted, and come back if this is rolled back.
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
 * The jobs of the queue that the snapshot sees, and those that run here.  Unregisters
 * the snapshot.
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
 * Begin to count the queue: note in its counter, which is not valid from now on, what
 * the snapshot sees.  False if there is no room for a counter.
 */
static bool
begin_count(JobqDatabase *db, int32 queue_id, Oid jobs, Snapshot *snapshot,
			uint64 *recounts)
{
	TransactionId xid = GetTopTransactionIdIfAny();
	JobqLength *length;
	FullTransactionId next;
	bool		room;
	int			kept = 0;

	/* what this transaction has done so far shall be seen, too */
	CommandCounterIncrement();

	/* makes the room that the second one needs, which cannot fail then */
	(void) GetLatestSnapshot();
	if (db->lengths->nlengths == JOBQ_MAX_LENGTHS)
		jobq_lengths_free(db);

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	length = jobq_length_make(db, queue_id, jobs);
	*snapshot = GetLatestSnapshot();
	*recounts = db->lengths->recounts;
	room = length != NULL && (*snapshot)->xcnt < JOBQ_LENGTH_XIDS;
	if (length != NULL)
		length->valid = false;
	if (room)
	{
		next = ReadNextFullTransactionId();
		length->xmax = FullTransactionIdFromU64(U64FromFullTransactionId(next) -
												(uint32) (XidFromFullTransactionId(next) - (*snapshot)->xmax));
		memcpy(length->xip, (*snapshot)->xip, sizeof(TransactionId) * (*snapshot)->xcnt);
		length->nxip = (*snapshot)->xcnt;
		if (TransactionIdIsValid(xid))
			length->xip[length->nxip++] = xid;
		length->committed = 0;

		/* prepared transactions that have ended since */
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
 * Set the queue's counter by the table.  The caller has the lock on the queue.
 * False if there is no room for a counter, or if all queues were to be counted again
 * each time while this one was counted.
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

		/* others may have freed the counter, or know of what we have not seen */
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		length = jobq_length_find(db, queue_id, jobs);
		valid = length != NULL && db->lengths->recounts == recounts;
		for (JobqLengthNote *note = jobq_length_note_newest(queue_id, jobs);
			 note != NULL && valid; note = jobq_length_note_older(note))
		{
			/*
			 * our own are not committed: they are places that we have
			 * reserved
			 */
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
 * The transaction has committed.  Wants db->lock; cannot fail.
 */
static void
length_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	FullTransactionId fxid = GetTopFullTransactionIdIfAny();
	JobqLengthNote *notes;
	int			n = jobq_length_notes(&notes);

	for (int i = 0; i < n; i++)
	{
		JobqLengthNote *note = &notes[i];
		JobqLength *length = jobq_length_find(db, note->queue_id, note->jobs);

		if (length == NULL)
			continue;
		jobq_length_note_life(note, db->life);
		length->reserved -= note->reserved;
		if (in_progress(length, fxid))
			length->committed += note->reserved + note->added - note->removed;
		if (note->removed > 0)
			jobq_length_tell(db, length);
	}
	jobq_length_notes_forget();
}

/*
 * Give back what was reserved since this subtransaction began, or at all.
 */
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
			length->reserved -= note->reserved;
			jobq_length_tell(db, length);
		}
		LWLockRelease(db->lock);
	}
	if (since == InvalidSubTransactionId)
		jobq_length_notes_forget();
}

/*
 * The transaction was prepared: its places are kept under its id.
 */
static void
length_prepare(void)
{
	JobqDatabase *db = jobq_my_database();
	TransactionId xid = GetTopTransactionIdIfAny();
	JobqLengthNote *notes;
	int			n = jobq_length_notes(&notes);

	if (db != NULL && db->lengths->nlengths > 0)
	{
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		for (int i = 0; i < n; i++)
		{
			JobqLengthNote *note = &notes[i];
			JobqLength *length = jobq_length_find(db, note->queue_id, note->jobs);

			jobq_length_note_life(note, db->life);
			if (note->reserved == 0 || length == NULL)
				continue;
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
 * Something has changed the table that left no notes: have all queues counted
 * again.  Wants db->lock; cannot fail.
 */
static void
length_recount(JobqDatabase *db)
{
	if (db == NULL)
		return;
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
	JobqLengthNote *notes;

	return jobq_length_notes(&notes) > 0;
}

static bool
length_noted(void)
{
	return notes_made() || jobq_length_waits();
}

/*
 * Where no queue of the database has a counter, the notes concern nobody.
 */
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

/*
 * Keep books of this transaction; once per process.
 */
void
jobq_length_install(void)
{
	jobq_commit_join(&books);
}
