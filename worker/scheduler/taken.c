/*-------------------------------------------------------------------------
 *
 * taken.c
 *	  Handles jobs that must not wait for a permit of their limiter.
 *
 * The ready set knows the heaps with such jobs, and the limiters without a free permit
 * (src/ready/taken.c).  Each job is removed from the ready set and its row is read.
 * Then the scheduler checks again that no permit is free, and cancels the job or
 * postpones it.  A process that removes an entry from the ready set is responsible for
 * the job, like after a pop: the process must run the job, end it, find its row locked
 * by another session, or put the entry back.  Work blocked by a lock is kept in memory
 * for a moment, and then the entry is put back.  All of this is lost with the process;
 * the next scheduler reads all jobs again.
 *
 * With the policy "replace", contest.c chooses the jobs that give way.  taken_job.c carries
 * out the action for a single job.
 *
 * worker/scheduler/taken.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "lib/ilist.h"
#include "utils/memutils.h"

#include "scheduler/duty.h"
#include "scheduler/taken.h"

/* Jobs removed from a heap at a time. */
#define MOST_OF_HEAP	16

/* Jobs that share a transaction; fewer than PGPROC_MAX_CACHED_SUBXIDS. */
#define TOGETHER		50

/* Jobs processed in one round, apart from the excess of the last heap. */
#define MOST_ITEMS		100

/* Jobs kept back, and heaps to be checked again. */
#define MOST_KEPT		1000
#define MOST_AGAIN		100

/* Microseconds until the permit of an ended job is free, ... */
#define AFTER_END		(2 * INT64CONST(1000))
/* ... until a retry after a lock timeout, and until a retry after an error. */
#define AFTER_LOCK		(200 * INT64CONST(1000))
#define AFTER_ERROR		(10 * USECS_PER_SEC)

/* Completes "the scheduler cannot ..." after an error. */
#define DECIDE_TAKEN	"decide about jobs that found all places of a limiter taken"

typedef struct Again
{
	JobqSteady	at;
	JobqHeap	heap;			/* key only */
} Again;

static dlist_head kept = DLIST_STATIC_INIT(kept);
static int	nkept = 0;
static Again again[MOST_AGAIN];
static int	nagain = 0;
static JobqSteady not_before = 0;	/* collect nothing before */

static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static TimestampTz hand_back_kept(TimestampTz now);
static void hand_back(const JobqPush *job);
static void key_of(const JobqHeap *heap, JobqHeap *key);
static int	collect(Fate *items, TimestampTz now);
static int	asked(Fate *items, int n, TimestampTz now);
static int	of_heap(const JobqHeap *heap, JobqTakenBy *by, Fate *items, TimestampTz now);
static int	of_contest(const JobqHeap *heap, const JobqTakenBy *by, JobqPush *waiting,
					   int nwaiting, bool listed, Fate *items);
static void carry_out_all(Fate *items, int n, TimestampTz now);

/*
 * Works for a time slice (share.c).  The work under the lock is bounded by the numbers
 * of heaps, jobs, workers and leases.
 */
Duty		taken_duty = {
	.what = "end jobs that do not wait for a place",
	.run = run,
	.next_due = next_due,
};

static TimestampTz
run(TimestampTz now)
{
	Fate	   *items = palloc(sizeof(Fate) * (MOST_ITEMS + 2 * MOST_COMPARED));
	TimestampTz due;

	share_begin();
	(void) hand_back_kept(now);
	if (not_before <= jobq_steady())
		carry_out_all(items, collect(items, now), now);
	due = hand_back_kept(now);
	pfree(items);
	return due;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	if (my_db->ready->stuck != JOBQ_NONE || my_db->ready->nasked > 0)
		return Min(plan, jobq_steady_due(not_before, now));
	return plan;
}

/* ---------- postponed work ---------- */

/*
 * Put back the jobs whose pause is over, and mark heaps to be checked again.  Returns
 * the time of the next call.  Takes my_db->lock exclusively.
 */
static TimestampTz
hand_back_kept(TimestampTz now)
{
	JobqSteady	steady = jobq_steady();
	TimestampTz due = DT_NOEND;
	dlist_mutable_iter iter;
	int			n = 0;

	dlist_foreach_modify(iter, &kept)
	{
		Fate	   *item = dlist_container(Fate, node, iter.cur);

		if (item->at > steady)
		{
			due = Min(due, now + (item->at - steady));
			continue;
		}
		hand_back(&item->job);
		dlist_delete(&item->node);
		pfree(item);
		nkept--;
	}
	for (int i = 0; i < nagain; i++)
	{
		if (again[i].at > steady)
		{
			due = Min(due, now + (again[i].at - steady));
			again[n++] = again[i];
			continue;
		}
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		jobq_stuck_again(my_db, &again[i].heap);
		LWLockRelease(my_db->lock);
	}
	nagain = n;
	return due;
}

/*
 * Put the job back into the ready set.  Takes my_db->lock exclusively.
 */
static void
hand_back(const JobqPush *job)
{
	JobqWakeList wake = {0};

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_ready_push(my_db, job, job->key.run_at, &wake);
	jobq_unlock(my_db, &wake);
}

/*
 * Keep the job back for this number of microseconds.  If the list is full, put the job
 * back now.
 */
static void
keep(Fate *item, int64 pause)
{
	JobqSteady	now = jobq_steady();
	Fate	   *copy;

	if (nkept >= MOST_KEPT)
	{
		hand_back(&item->job);
		not_before = Max(not_before, now + Min(pause, AFTER_LOCK));
		return;
	}
	copy = MemoryContextAlloc(TopMemoryContext, sizeof(Fate));
	*copy = *item;
	copy->at = now + pause;
	dlist_push_tail(&kept, &copy->node);
	nkept++;
}

/*
 * Check the heap again after this number of microseconds.  Takes my_db->lock
 * exclusively if the list is full.
 */
static void
come_again(const JobqHeap *heap, int64 pause)
{
	JobqSteady	now = jobq_steady();
	JobqSteady	at = now + pause;

	for (int i = 0; i < nagain; i++)
		if (memcmp(&again[i].heap, heap, sizeof(JobqHeap)) == 0)
		{
			again[i].at = Min(again[i].at, at);
			return;
		}
	if (nagain == MOST_AGAIN)
	{
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		jobq_stuck_again(my_db, heap);
		LWLockRelease(my_db->lock);
		not_before = Max(not_before, now + Min(pause, AFTER_LOCK));
		return;
	}
	again[nagain].at = at;
	again[nagain++].heap = *heap;
}

/* ---------- collecting the work ---------- */

/*
 * Remove jobs without a free permit from the ready set.  Returns the number of items.
 * Takes my_db->lock exclusively.
 */
static int
collect(Fate *items, TimestampTz now)
{
	int			n = asked(items, 0, now);

	while (n < MOST_ITEMS && !share_over())
	{
		JobqTakenBy by;
		JobqHeap	key;
		JobqHeap   *heap;
		bool		ending;
		bool		more;
		int64		pause;

		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		heap = jobq_stuck_next(my_db, &by, &ending);
		more = my_db->ready->stuck != JOBQ_NONE;
		if (heap != NULL)
			key_of(heap, &key);
		LWLockRelease(my_db->lock);
		if (heap == NULL && more)
			continue;
		if (heap == NULL)
			break;
		pause = ending ? AFTER_END : share_may(key.role, 0, now) - now;
		if (pause > 0)
			come_again(&key, pause);
		else
			n += of_heap(&key, &by, &items[n], now);
	}
	return n;
}

/*
 * Copy only the key of the heap.
 */
static void
key_of(const JobqHeap *heap, JobqHeap *key)
{
	memset(key, 0, sizeof(JobqHeap));
	key->role = heap->role;
	key->queue_id = heap->queue_id;
	key->party = heap->party;
	key->order = heap->order;
	memcpy(key->limiters, heap->limiters, sizeof(key->limiters));
	key->at = heap->at;
	key->consumer = heap->consumer;
	key->quarantine = heap->quarantine;
}

/*
 * Collect the jobs reported by sessions that found them in the table, outside the ready
 * set.  Takes my_db->lock exclusively.
 */
static int
asked(Fate *items, int n, TimestampTz now)
{
	JobqPush	jobs[JOBQ_MAX_ASKED];
	int			njobs;

	if (my_db->ready->nasked == 0)
		return n;
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	njobs = my_db->ready->nasked;
	memcpy(jobs, my_db->ready->asked, sizeof(JobqPush) * njobs);
	my_db->ready->nasked = 0;
	LWLockRelease(my_db->lock);
	for (int i = 0; i < njobs && n < MOST_ITEMS; i++)
	{
		JobqHeap	none;
		JobqTakenBy by;
		bool		taken;
		bool		ending;

		memset(&none, 0, sizeof(none));
		none.role = jobs[i].role;
		LWLockAcquire(my_db->lock, LW_SHARED);
		taken = jobq_needs_taken(my_db, jobs[i].needs, &by, &ending);
		LWLockRelease(my_db->lock);
		if (!taken || ending)
			continue;			/* the job stays in the table */
		by.role = jobs[i].role;
		if (by.when_taken == JOBQ_WHEN_TAKEN_REPLACE)
		{
			n += of_contest(&none, &by, &jobs[i], 1, false, &items[n]);
			continue;
		}
		items[n] = (Fate)
		{
			.job = jobs[i],.by = by,.heap = none,
				.action = by.when_taken == JOBQ_WHEN_TAKEN_SKIP ? SKIP : RELEASE
		};
		n++;
	}
	return n;
}

/*
 * Collect the jobs of this heap, with the action for each.  Takes my_db->lock.
 */
static int
of_heap(const JobqHeap *heap, JobqTakenBy *by, Fate *items, TimestampTz now)
{
	JobqPush	jobs[MOST_COMPARED];
	JobqWakeList wake = {0};
	int			n;

	if (by->when_taken == JOBQ_WHEN_TAKEN_REPLACE)
	{
		LWLockAcquire(my_db->lock, LW_SHARED);
		n = jobq_stuck_list(my_db, heap, jobs, MOST_COMPARED);
		LWLockRelease(my_db->lock);
		return of_contest(heap, by, jobs, n, true, items);
	}
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	n = jobq_stuck_take(my_db, heap, jobs, MOST_OF_HEAP, &wake);
	jobq_unlock(my_db, &wake);
	for (int i = 0; i < n; i++)
		items[i] = (Fate)
	{
		.job = jobs[i],.by = *by,.heap = *heap,
			.action = by->when_taken == JOBQ_WHEN_TAKEN_SKIP ? SKIP : RELEASE
	};
	return n;
}

/* ---------- replace ---------- */

/*
 * Choose the jobs that give way, from these waiting jobs and from the jobs with
 * permits.  "listed" means the waiting jobs are still in the ready set; the chosen jobs
 * are then removed.  Returns the number of items.  Takes my_db->lock exclusively.
 */
static int
of_contest(const JobqHeap *heap, const JobqTakenBy *by, JobqPush *waiting, int nwaiting,
		   bool listed, Fate *items)
{
	Contest		contest = {
		.heap = *heap,.by = *by,.waiting = waiting,.nwaiting = nwaiting,.items = items
	};
	ErrorData  *edata = share_try(heap->role, contest_compare, &contest);
	bool		wait_first = false;
	int			n = 0;

	if (edata != NULL)
	{
		bool		locked = edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;

		if (!locked && trouble_note(DECIDE_TAKEN, edata->message, AFTER_ERROR))
			ereport(LOG,
					(errmsg("which jobs of role %u give way to others could not be decided: %s",
							heap->role, edata->message)));
		FreeErrorData(edata);
		come_again(heap, locked ? AFTER_LOCK : AFTER_ERROR);
		return 0;
	}

	/*
	 * If there are more waiting jobs, cancel waiting jobs first, to keep them
	 * from the permit.  A job no longer in the ready set was popped.
	 */
	for (int i = 0; i < contest.nitems && nwaiting == MOST_COMPARED; i++)
		wait_first |= items[i].action != STOP;
	for (int i = 0; i < contest.nitems; i++)
	{
		bool		found = items[i].action != STOP || !wait_first;

		if (items[i].action != STOP && listed)
		{
			JobqWakeList wake = {0};

			LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
			found = jobq_stuck_remove(my_db, &items[i].job, &wake);
			jobq_unlock(my_db, &wake);
		}
		if (found)
			items[n++] = items[i];
	}
	if (nwaiting == MOST_COMPARED && n > 0)
		come_again(heap, 0);	/* more jobs are left */
	return n;
}

/* ---------- execution ---------- */

/*
 * Carry out the actions, several in one transaction.  Postpone the rest if necessary.
 */
static void
carry_out_all(Fate *items, int n, TimestampTz now)
{
	for (int i = 0; i < n;)
	{
		Part		parts[TOGETHER];
		int			ndone = Min(n - i, TOGETHER);

		if (i > 0 && share_over())
		{
			for (; i < n; i++)
				if (items[i].action == STOP)
					come_again(&items[i].heap, 0);
				else
					keep(&items[i], 0);
			break;
		}
		for (int j = 0; j < ndone; j++)
			parts[j] = (Part)
		{
			.role = items[i + j].job.role,.arg = &items[i + j]
		};
		ndone = share_try_together(parts, ndone, taken_carry_out, now);
		for (int j = 0; j < ndone; j++, i++)
		{
			Fate	   *item = &items[i];
			ErrorData  *edata = parts[j].edata;
			int64		pause = -1; /* none: the item is done */

			if (parts[j].rests)
				pause = share_may(item->job.role, 0, now) - now;
			else if (edata != NULL && edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
				pause = AFTER_LOCK;
			else if (edata != NULL)
			{
				pause = AFTER_ERROR;
				if (trouble_note(DECIDE_TAKEN, edata->message, AFTER_ERROR))
					ereport(LOG,
							(errmsg("what becomes of job " INT64_FORMAT ", for which all places of its limiter are taken, could not be carried out: %s",
									item->job.key.id, edata->message)));
			}
			else if (item->undone && item->action == STOP)
				pause = AFTER_LOCK;
			else if (item->ending)
				pause = AFTER_END;
			else if (item->other)
				pause = AFTER_LOCK;
			else if (item->undone)
				hand_back(&item->job);
			if (pause >= 0 && item->action == STOP)
				come_again(&item->heap, pause);
			else if (pause >= 0)
				keep(item, pause);
			if (edata != NULL)
				FreeErrorData(edata);
		}
	}
}
