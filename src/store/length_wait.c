/*-------------------------------------------------------------------------
 *
 * length_wait.c
 *	  Sessions waiting for a position in a full queue.
 *
 * The sessions sleep at the queue's counter.  A free position wakes a single session.  A
 * woken session wakes the next one after receiving positions, or after finding too few free
 * positions.  "freed" shows the session whether it has checked since, so that wake-ups do not
 * circulate for ever.  Freeing a position therefore requires no search among the waiting
 * sessions.
 *
 * Two sessions with positions, waiting for more, must not wait for each other.  A session may
 * begin to wait only if the following sum fits into the queue: the positions held by this
 * session, the positions held by all waiting sessions, and the needed positions.  The last
 * session to begin can then continue after the end of the jobs of sessions not waiting.  The
 * timeout ends a deadlock with other locks, or between two queues.
 *
 * Changes without a wake-up, such as another max_length, are noticed within a second.
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

/*
 * The queue in which this process waits for positions.  queue_id is 0 if the session does
 * not wait.
 */
static struct
{
	int32		queue_id;
	Oid			jobs;
	int64		life;			/* JobqDatabase.life of the counter */
	int64		hold;			/* positions held by the session's transaction */
	ConditionVariable *room;
}			waits;

/*
 * Sleep until the queue may have n positions.  The caller checks, and calls
 * jobq_length_waited() when it no longer waits.  The first call does not sleep, but registers
 * for wake-ups.  "until" is the time to give up, or PG_INT64_MAX. Returns false if waiting is
 * useless: there is no counter, the waiting sessions hold too many positions, or the time is
 * over.  Takes db->lock.  ERROR if the query is canceled.
 */
bool
jobq_length_wait(const JobqQueue *queue, int n, const JobqRoom *room,
				 int64 until)
{
	static uint32 wait_event = 0;
	static uint32 seen;
	JobqDatabase *db = jobq_my_database();
	Oid			jobs = jobq_relations()->job;
	JobqLength *length;
	bool		first = waits.queue_id == 0;
	bool		useful;
	long		ms = 1000;

	/* the scheduler fills the ready set and must not wait for workers */
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
		/* too few for this session, but perhaps enough for another one */
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
	ms = Min(ms, jobq_ms_left(until));
	if (ms <= 0)
		return false;
	(void) ConditionVariableTimedSleep(waits.room, ms,
									   jobq_wait_event(wait_event, "JobqEnqueue"));

	/* the settings of the queue may have changed */
	AcceptInvalidationMessages();
	return true;
}

/*
 * End the wait, and wake another session, because this one may have consumed a wake-up.  Does
 * nothing if this process does not wait.  Takes db->lock.
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

/* Return whether this process waits for positions. */
bool
jobq_length_waits(void)
{
	return waits.queue_id != 0;
}
