/*-------------------------------------------------------------------------
 *
 * counter.c
 *	  Counters of queues with max_length, in shared memory.
 *
 * length.c explains their meaning.
 *
 * src/store/counter.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "storage/condition_variable.h"

#include "store/lengths.h"

/*
 * Clear all counters, because the memory was assigned to another database.  The caller holds
 * db->lock.
 */
void
jobq_lengths_clear(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	memset(db->lengths->lengths, 0, sizeof(db->lengths->lengths));
	db->lengths->nlengths = 0;
	db->lengths->nprepared = 0;
}

/*
 * Return the counter of the queue, or NULL.  The caller holds db->lock.
 */
JobqLength *
jobq_length_find(JobqDatabase *db, int32 queue_id, Oid jobs)
{
	AssertLocked(db->lock);
	for (int i = 0; i < db->lengths->nlengths; i++)
		if (db->lengths->lengths[i].queue_id == queue_id && db->lengths->lengths[i].jobs == jobs)
			return &db->lengths->lengths[i];
	return NULL;
}

/*
 * Return the counter of the queue, and create it if needed.  Returns NULL if all slots are
 * used.  The caller holds db->lock.
 */
JobqLength *
jobq_length_make(JobqDatabase *db, int32 queue_id, Oid jobs)
{
	JobqLength *length = jobq_length_find(db, queue_id, jobs);

	AssertExclusive(db->lock);
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
		length->waiting = 0;
		length->waiting_hold = 0;
		length->dropped.key.id = 0;
	}
	return length;
}

/* Free the counters of queues that no longer have a limit.  Takes db->lock. */
void
jobq_lengths_free(JobqDatabase *db)
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
			length->waiting == 0 && (length->jobs != jobs || !limited))
		{
			length->queue_id = 0;
			length->valid = false;
		}
		LWLockRelease(db->lock);
	}
}

/*
 * Return the positions reserved by prepared transactions.
 */
static int64
prepared_places(JobqDatabase *db, int32 queue_id, Oid jobs)
{
	int64		n = 0;

	AssertLocked(db->lock);
	for (int i = 0; i < db->lengths->nprepared; i++)
		if (db->lengths->prepared[i].queue_id == queue_id &&
			db->lengths->prepared[i].jobs == jobs)
			n += db->lengths->prepared[i].n;
	return n;
}

/*
 * Return the number of jobs of a counted queue, with those of open transactions.  The caller
 * holds db->lock.
 */
int64
jobq_length_now(JobqDatabase *db, const JobqLength *length)
{
	AssertLocked(db->lock);
	return length->committed + length->reserved +
		prepared_places(db, length->queue_id, length->jobs);
}

/*
 * Wake a session waiting for a position in the queue.  The woken session wakes the next one,
 * so that the cost does not depend on the number of waiting sessions.  The caller holds
 * db->lock.  Cannot fail.
 */
void
jobq_length_tell(JobqDatabase *db, JobqLength *length)
{
	AssertExclusive(db->lock);
	if (length->waiting > 0)
	{
		length->freed++;
		ConditionVariableSignal(&db->lengths->room[length - db->lengths->lengths]);
	}
}

/*
 * Return in *dropped the job dropped last from the queue.  key.id is 0 if unknown.  Takes
 * db->lock.
 */
void
jobq_length_get_dropped(int32 queue_id, JobqDropped *dropped)
{
	JobqDatabase *db = jobq_my_database();
	Oid			jobs;
	JobqLength *length;

	dropped->key.id = 0;
	if (db == NULL)
		return;
	jobs = jobq_relations()->job;
	LWLockAcquire(db->lock, LW_SHARED);
	length = jobq_length_find(db, queue_id, jobs);
	if (length != NULL)
		*dropped = length->dropped;
	LWLockRelease(db->lock);
}

void
jobq_length_set_dropped(int32 queue_id, const JobqDropped *dropped)
{
	JobqDatabase *db = jobq_my_database();
	Oid			jobs;
	JobqLength *length;

	if (db == NULL)
		return;
	jobs = jobq_relations()->job;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	length = jobq_length_find(db, queue_id, jobs);
	if (length != NULL)
		length->dropped = *dropped;
	LWLockRelease(db->lock);
}

/*
 * A rollback has restored the jobs dropped after this one: move the recorded position back.
 * Other sessions may have dropped more jobs, or restored jobs, since.  The caller holds
 * db->lock.  Cannot fail.
 */
void
jobq_length_undropped(JobqLength *length, const JobqDropped *before)
{
	JobqDropped *dropped = &length->dropped;

	if (dropped->key.id == 0)
		return;
	if (before->key.id == 0 || dropped->priority != before->priority ||
		dropped->role != before->role || dropped->flow != before->flow)
		dropped->key.id = 0;
	else if (jobq_key_cmp(before->key, dropped->key) < 0)
		dropped->key = before->key;
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
	for (int i = 0; i < JOBQ_MAX_LENGTHS; i++)
		ConditionVariableInit(&db->lengths->room[i]);
}

const JobqArea jobq_length_area = {
	JOBQ_AREA_OF_DATABASE, lengths_size, lengths_init
};
