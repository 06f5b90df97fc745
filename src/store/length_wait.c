/*-------------------------------------------------------------------------
 *
 * length_wait.c
 *	  Sessions that wait for a place in a full queue.
 *
 * They sleep at the queue's counter.  A place that becomes free wakes one of them, who
 * wakes the next when he has got what he wanted, or when what there is does not
 * suffice for him; "freed" tells him whether he has looked since, so that the call
 * does not go round for ever.  So nobody who frees a place looks at all who wait.
 *
 * Two who hold places and wait for more must not wait for each other.  So nobody
 * begins to wait if his places, those of all who wait already, and what he wants are
 * more than the queue has room for: then whoever has begun last can go on as soon as
 * the jobs of the others, which do not wait, are done.  Whoever waits for a lock
 * beside it, or in two queues, is saved by the limit of time.
 *
 * What nobody tells, such as another max_length, is seen within a second.
 *
 * src/store/length_wait.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/inval.h"
#include "utils/timestamp.h"

#include "store/lengths.h"

/* The queue in which this process waits for places; queue_id is 0 if it does not. */
static struct
{
	int32		queue_id;
	Oid			jobs;
	int64		life;			/* JobqDatabase.life: of whose counter */
	int64		hold;			/* places that its transaction has there */
	ConditionVariable *room;
}			waits;

/*
 * Sleep until there may be n places in the queue; the caller looks himself, and calls
 * jobq_length_waited() when he waits no more.  The first call does not sleep: places
 * that become free are told from then on.  False if it is of no use, as there is no
 * counter, as all who wait have taken so many places that there would never be room,
 * or as the time is over.
 */
bool
jobq_length_wait(const JobqQueue *queue, int n, const JobqRoom *room,
				 TimestampTz until)
{
	static uint32 wait_event = 0;
	static uint32 seen;
	JobqDatabase *db = jobq_my_database();
	Oid			jobs = jobq_relations()->job;
	JobqLength *length;
	bool		first = waits.queue_id == 0;
	bool		useful;
	long		ms = 1000;

	/* who fills the ready set must not wait for those who empty it */
	if (db == NULL || db->scheduler == MyProc)
		return false;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	length = jobq_length_find(db, queue->id, jobs);
	useful = length != NULL;
	if (useful && first)
	{
		useful = length->waiting_hold + room->own + n <= room->allowed;
		if (useful)
		{
			waits.queue_id = queue->id;
			waits.jobs = jobs;
			waits.life = db->life;
			waits.hold = room->own;
			length->waiting++;
			length->waiting_hold += room->own;
			seen = length->freed;
			waits.room = &db->lengths->room[length - db->lengths->lengths];
		}
	}
	else if (useful && length->freed != seen)
	{
		/* it was not enough for this one: it may be for another */
		seen = length->freed;
		if (!length->valid || jobq_length_now(db, length) < queue->max_length)
			ConditionVariableSignal(waits.room);
	}
	LWLockRelease(db->lock);
	if (!useful)
		return false;
	if (first)
	{
		ConditionVariablePrepareToSleep(waits.room);
		return true;
	}
	if (until != DT_NOEND)
	{
		ms = Min(ms, TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until));
		if (ms <= 0)
			return false;
	}
	(void) ConditionVariableTimedSleep(waits.room, ms,
									   jobq_wait_event(wait_event, "JobqEnqueue"));

	/* the queue may have other settings by now */
	AcceptInvalidationMessages();
	return true;
}

/*
 * This process does not wait for places any more; another one may have been told in
 * vain.
 */
void
jobq_length_waited(void)
{
	JobqDatabase *db = jobq_my_database();
	JobqLength *length;

	if (waits.queue_id == 0)
		return;
	ConditionVariableCancelSleep();
	if (db != NULL)
	{
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		length = waits.life == db->life
			? jobq_length_find(db, waits.queue_id, waits.jobs) : NULL;
		if (length != NULL && length->waiting > 0)
		{
			length->waiting--;
			length->waiting_hold -= waits.hold;
			jobq_length_tell(db, length);
		}
		LWLockRelease(db->lock);
	}
	waits.queue_id = 0;
}

/*
 * Does this process wait for places?
 */
bool
jobq_length_waits(void)
{
	return waits.queue_id != 0;
}
