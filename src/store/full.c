/*-------------------------------------------------------------------------
 *
 * full.c
 *	  Positions for new jobs in their queue, and the reaction to a full queue.
 *
 * src/store/full.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "storage/proc.h"
#include "utils/timestamp.h"

#include "store/lengths.h"

/*
 * Maximum number of attempts to make room for one job.  Handlers of on_event() may enqueue
 * jobs in the same queue when jobs are dropped.
 */
#define MAX_ROUNDS	10

/*
 * Return the time until which this session waits for a position, or PG_INT64_MAX.
 */
static int64
give_up_at(void)
{
	int			ms = jobq_enqueue_timeout;

	if (LockTimeout > 0 && (ms == 0 || LockTimeout < ms))
		ms = LockTimeout;
	return ms == 0 ? PG_INT64_MAX : jobq_deadline(ms);
}

static void
refuse(const JobqQueue *queue, int64 length, int n, bool waited)
{
	if (n == 1)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_QUEUE_FULL),
				 errmsg("queue \"%s\" is full", queue->name),
				 errdetail("It has " INT64_FORMAT " jobs, and max_length is %d.",
						   length, queue->max_length),
				 waited
				 ? errhint("Enqueue again when some have finished, wait longer by \"%s\" and \"%s\", or raise max_length with jobq.alter_queue().",
						   "jobq.enqueue_timeout", "lock_timeout")
				 : errhint("Enqueue again when some have finished, or raise max_length with jobq.alter_queue().")));
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_QUEUE_FULL),
			 errmsg("queue \"%s\" has no room for %d more jobs", queue->name, n),
			 errdetail("It has " INT64_FORMAT " jobs, and max_length is %d.",
					   length, queue->max_length),
			 errhint("Enqueue fewer at a time or when some have finished, or raise max_length with jobq.alter_queue().")));
}

/*
 * Reserve positions for n new jobs like this one, in its queue.  If the queue has too few
 * positions, follow its on_full: raise an error, wait, or cancel waiting jobs.  ERROR if no
 * room can be made, or after jobq.enqueue_timeout or lock_timeout.  The caller holds no
 * lock.
 */
void
jobq_length_reserve(const JobqJob *job, int n)
{
	int64		until = 0;
	int			rounds = 0;
	bool		waited = false;

	AssertUnlocked();
	for (;;)
	{
		JobqQueue	buffer;
		const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
		JobqRoom	room = {0};

		if (queue == NULL || queue->max_length < 0)
			jobq_length_add(job_queue_id(job), n);
		else
			jobq_length_take(queue, n, &room);
		if (room.missing == 0)
			break;
		if (queue->on_full == ON_FULL_DROP && n <= queue->max_length &&
			rounds++ < MAX_ROUNDS && jobq_drop_oldest(job, (int) room.missing) > 0)
			continue;
		if (queue->on_full == ON_FULL_WAIT)
		{
			if (until == 0)
				until = give_up_at();
			if (jobq_length_wait(queue, n, &room, until))
			{
				waited = true;
				continue;
			}
		}
		refuse(queue, room.length, n, waited);
	}
	jobq_length_waited();
}
