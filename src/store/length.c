/*-------------------------------------------------------------------------
 *
 * length.c
 *	  How many jobs a queue with max_length has: exact, and without a row that
 *	  all producers would wait for.
 *
 * Each such queue has a counter in shared memory: jobs that are committed, and
 * places that open transactions have reserved.  A producer reserves its places
 * at once, or fails; if it rolls back, also to a savepoint, it gives them back.
 * Who takes a job out of the queue for good gives its place back when that has
 * committed.  A retry keeps its place.  Dead letters that are retried, and jobs
 * that on_failure enqueues, are never refused; they count when they have
 * committed.
 *
 * The counter begins with a count of the table, made by the first producer who
 * finds none: after a start, or when the queue gets its limit.  Others end
 * transactions meanwhile, which know nothing of each other.  So each notes what
 * it has added to and removed from whatever queue, which is cheap, and applies
 * that to the counter when it has committed, unless the snapshot of the count
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
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/store.h"

/* What this transaction has done to a queue. */
typedef struct Note
{
	SubTransactionId subid;
	int32		queue_id;
	Oid			jobs;			/* jobq.job */
	int			reserved;		/* added, with a place in the counter */
	int			added;			/* without */
	int			removed;
} Note;

static int	nnotes = 0;
static Note *notes = NULL;		/* kept from one transaction to the next */
static int	max_notes = 0;

static Note *note_of(int32 queue_id);
static JobqLength *find_counter(JobqDatabase *db, int32 queue_id, Oid jobs);
static JobqLength *make_counter(JobqDatabase *db, int32 queue_id, Oid jobs);
static void free_counters(JobqDatabase *db);
static int64 prepared_places(JobqDatabase *db, int32 queue_id, Oid jobs);
static bool in_progress(const JobqLength *length, FullTransactionId fxid);
static int64 count_rows(int32 queue_id, Snapshot snapshot);
static bool count_queue(JobqDatabase *db, int32 queue_id);
static void refuse(const JobqQueue *queue, int64 length, int n);

/*
 * Forget all counters: the memory belongs to another database.
 */
void
jobq_lengths_clear(JobqDatabase *db)
{
	memset(db->lengths->lengths, 0, sizeof(db->lengths->lengths));
	db->lengths->nlengths = 0;
	db->lengths->nprepared = 0;
}

/*
 * What this subtransaction has done to the queue so far.
 */
static Note *
note_of(int32 queue_id)
{
	SubTransactionId subid = GetCurrentSubTransactionId();
	Oid			jobs = jobq_relations()->job;
	Note	   *note;

	for (int i = nnotes - 1; i >= Max(0, nnotes - 8); i--)
		if (notes[i].queue_id == queue_id && notes[i].subid == subid &&
			notes[i].jobs == jobs)
			return &notes[i];

	notes = jobq_grow(notes, &max_notes, nnotes + 1, sizeof(Note));
	note = &notes[nnotes++];
	memset(note, 0, sizeof(Note));
	note->subid = subid;
	note->queue_id = queue_id;
	note->jobs = jobs;
	return note;
}

/*
 * A job has left the queue for good.
 */
void
jobq_length_remove(int32 queue_id)
{
	note_of(queue_id)->removed++;
}

/*
 * A job comes into the queue, however many there are.
 */
void
jobq_length_add(int32 queue_id)
{
	note_of(queue_id)->added++;
}

/*
 * Places for n new jobs; an error if the queue has no room for all of them.
 */
void
jobq_length_reserve(int32 queue_id, int n)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(queue_id, &buffer);
	int			max_length = queue != NULL ? queue->max_length : -1;
	JobqDatabase *db = jobq_my_database();
	Note	   *note = note_of(queue_id);
	bool		locked = false;
	int64		rows;

	if (max_length < 0)
	{
		note->added += n;
		return;
	}
	for (;;)
	{
		if (db != NULL)
		{
			JobqLength *length;
			int64		now = -1;

			LWLockAcquire(db->lock, LW_EXCLUSIVE);
			length = find_counter(db, queue_id, note->jobs);
			if (length != NULL && length->valid)
			{
				now = length->committed + length->reserved +
					prepared_places(db, queue_id, note->jobs);
				if (now + n <= max_length)
				{
					length->reserved += n;
					note->reserved += n;
				}
			}
			LWLockRelease(db->lock);
			if (now >= 0)
			{
				if (locked)
					UnlockDatabaseObject(jobq_relations()->queue, queue_id, 0,
										 ExclusiveLock);
				if (now + n > max_length)
					refuse(queue, now, n);
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

	/* no counter: count, and keep the lock */
	CommandCounterIncrement();
	rows = count_rows(queue_id, RegisterSnapshot(GetLatestSnapshot()));
	if (rows + n > max_length)
		refuse(queue, rows, n);
	note->added += n;
}

static void
refuse(const JobqQueue *queue, int64 length, int n)
{
	if (n == 1)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_QUEUE_FULL),
				 errmsg("queue \"%s\" is full", queue->name),
				 errdetail("It has " INT64_FORMAT " jobs, and max_length is %d.",
						   length, queue->max_length),
				 errhint("Enqueue again when some have finished, or raise max_length with jobq.alter_queue().")));
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_QUEUE_FULL),
			 errmsg("queue \"%s\" has no room for %d more jobs", queue->name, n),
			 errdetail("It has " INT64_FORMAT " jobs, and max_length is %d.",
					   length, queue->max_length),
			 errhint("Enqueue fewer at a time or when some have finished, or raise max_length with jobq.alter_queue().")));
}

/*
 * The counter of the queue, or NULL.  Wants db->lock.
 */
static JobqLength *
find_counter(JobqDatabase *db, int32 queue_id, Oid jobs)
{
	for (int i = 0; i < db->lengths->nlengths; i++)
		if (db->lengths->lengths[i].queue_id == queue_id && db->lengths->lengths[i].jobs == jobs)
			return &db->lengths->lengths[i];
	return NULL;
}

/*
 * The same, or a new one; NULL if there is no room.  Wants db->lock.
 */
static JobqLength *
make_counter(JobqDatabase *db, int32 queue_id, Oid jobs)
{
	JobqLength *length = find_counter(db, queue_id, jobs);

	for (int i = 0; i < db->lengths->nlengths && length == NULL; i++)
		if (db->lengths->lengths[i].queue_id == 0)
			length = &db->lengths->lengths[i];
	if (length == NULL && db->lengths->nlengths < JOBQ_MAX_LENGTHS)
		length = &db->lengths->lengths[db->lengths->nlengths++];
	if (length != NULL && length->queue_id == 0)
	{
		length->queue_id = queue_id;
		length->jobs = jobs;
		length->reserved = 0;
	}
	return length;
}

/*
 * Free the counters of queues that have no limit any more.
 */
static void
free_counters(JobqDatabase *db)
{
	Oid			jobs = jobq_relations()->job;

	for (int i = 0; i < JOBQ_MAX_LENGTHS; i++)
	{
		JobqLength *length = &db->lengths->lengths[i];
		int32		queue_id = length->queue_id;
		JobqQueue	queue;
		bool		limited = queue_id != 0 &&
			jobq_queue_by_id(queue_id, &queue) != NULL &&
			queue.max_length >= 0;

		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		if (length->queue_id == queue_id && length->reserved == 0 &&
			(length->jobs != jobs || !limited))
		{
			length->queue_id = 0;
			length->valid = false;
		}
		LWLockRelease(db->lock);
	}
}

/*
 * Places that prepared transactions have.  Wants db->lock.
 */
static int64
prepared_places(JobqDatabase *db, int32 queue_id, Oid jobs)
{
	int64		n = 0;

	for (int i = 0; i < db->lengths->nprepared; i++)
		if (db->lengths->prepared[i].queue_id == queue_id &&
			db->lengths->prepared[i].jobs == jobs)
			n += db->lengths->prepared[i].n;
	return n;
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
 * The jobs of the queue that the snapshot sees.  Unregisters the snapshot.
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
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return n;
}

/*
 * Set the queue's counter by the table.  The caller has the lock on the queue.
 * False if there is no room for a counter.
 */
static bool
count_queue(JobqDatabase *db, int32 queue_id)
{
	Oid			jobs = jobq_relations()->job;
	TransactionId xid = GetTopTransactionIdIfAny();
	JobqLength *length;
	Snapshot	snapshot;
	FullTransactionId next;
	bool		room;
	int64		rows;
	int			kept = 0;

	/* what this transaction has done so far shall be seen, too */
	CommandCounterIncrement();

	/* makes the room that the second one needs, which cannot fail then */
	(void) GetLatestSnapshot();
	if (db->lengths->nlengths == JOBQ_MAX_LENGTHS)
		free_counters(db);

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	length = make_counter(db, queue_id, jobs);
	snapshot = GetLatestSnapshot();
	room = length != NULL && snapshot->xcnt < JOBQ_LENGTH_XIDS;
	if (length != NULL)
		length->valid = false;
	if (room)
	{
		next = ReadNextFullTransactionId();
		length->xmax = FullTransactionIdFromU64(U64FromFullTransactionId(next) -
												(uint32) (XidFromFullTransactionId(next) - snapshot->xmax));
		memcpy(length->xip, snapshot->xip, sizeof(TransactionId) * snapshot->xcnt);
		length->nxip = snapshot->xcnt;
		if (TransactionIdIsValid(xid))
			length->xip[length->nxip++] = xid;
		length->committed = 0;

		/* prepared transactions that have ended since */
		for (int i = 0; i < db->lengths->nprepared; i++)
		{
			TransactionId prepared = db->lengths->prepared[i].xid;
			bool		open = TransactionIdFollowsOrEquals(prepared,
															snapshot->xmax);

			for (uint32 j = 0; j < snapshot->xcnt && !open; j++)
				open = snapshot->xip[j] == prepared;
			if (open)
				db->lengths->prepared[kept++] = db->lengths->prepared[i];
		}
		db->lengths->nprepared = kept;
	}
	LWLockRelease(db->lock);
	if (!room)
		return false;

	rows = count_rows(queue_id, RegisterSnapshot(snapshot));
	jobq_injection_point("jobq-queue-counted");

	/* our own are not committed: they are places that we have reserved */
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < nnotes; i++)
	{
		Note	   *note = &notes[i];

		if (note->queue_id != queue_id || note->jobs != jobs)
			continue;
		rows -= note->reserved + note->added - note->removed;
		length->reserved += note->added;
		note->reserved += note->added;
		note->added = 0;
	}
	length->committed += rows;
	length->valid = true;
	LWLockRelease(db->lock);
	return true;
}

/*
 * The transaction has committed.  Wants db->lock; cannot fail.
 */
static void
length_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	FullTransactionId fxid = GetTopFullTransactionIdIfAny();

	for (int i = 0; i < nnotes; i++)
	{
		Note	   *note = &notes[i];
		JobqLength *length = find_counter(db, note->queue_id, note->jobs);

		if (length == NULL)
			continue;
		length->reserved -= note->reserved;
		if (in_progress(length, fxid))
			length->committed += note->reserved + note->added - note->removed;
	}
	nnotes = 0;
}

/*
 * Give back what was reserved since this subtransaction began, or at all.
 */
static void
length_abort(SubTransactionId since)
{
	JobqDatabase *db = jobq_my_database();

	while (nnotes > 0 && notes[nnotes - 1].subid >= since)
	{
		Note	   *note = &notes[--nnotes];
		JobqLength *length;

		if (note->reserved == 0 || db == NULL)
			continue;
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		length = find_counter(db, note->queue_id, note->jobs);
		if (length != NULL)
			length->reserved -= note->reserved;
		LWLockRelease(db->lock);
	}
}

/*
 * The transaction was prepared: its places are kept under its id.
 */
static void
length_prepare(void)
{
	JobqDatabase *db = jobq_my_database();
	TransactionId xid = GetTopTransactionIdIfAny();

	if (db != NULL && db->lengths->nlengths > 0)
	{
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		for (int i = 0; i < nnotes; i++)
		{
			Note	   *note = &notes[i];
			JobqLength *length = find_counter(db, note->queue_id, note->jobs);

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
	nnotes = 0;
}

/*
 * Something has changed the table that left no notes: have all queues counted
 * again.  Wants db->lock; cannot fail.
 */
static void
length_recount(JobqDatabase *db)
{
	for (int i = 0; db != NULL && i < db->lengths->nlengths; i++)
		db->lengths->lengths[i].valid = false;
}

static bool
length_noted(void)
{
	return nnotes > 0;
}

/*
 * Where no queue of the database has a counter, the notes concern nobody.
 */
static bool
length_pending(JobqDatabase *db)
{
	if (db == NULL || db->lengths->nlengths == 0)
		nnotes = 0;
	return nnotes > 0;
}

static const JobqCommitBooks books =
{
	.noted = length_noted,
	.pending = length_pending,
	.commit = length_commit,
	.unnoted = length_recount,
	.abort = length_abort,
	.prepare = length_prepare,
};

/*
 * Keep books of this transaction; once per process.
 */
void
jobq_length_install(void)
{
	jobq_commit_join(&books);
}

static Size
lengths_size(void)
{
	return sizeof(JobqLengths);
}

static void
lengths_init(void *owner, char *memory)
{
	JobqDatabase *db = owner;

	db->lengths = (JobqLengths *) memory;
	memset(db->lengths, 0, sizeof(JobqLengths));
}

const JobqArea jobq_length_area = {
	JOBQ_AREA_OF_DATABASE, lengths_size, lengths_init
};
