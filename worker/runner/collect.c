/*-------------------------------------------------------------------------
 *
 * collect.c
 *	  Jobs collected by a worker to run together, in one call of a set handler.
 *
 * A worker that has popped a job of such a kind pops further jobs of the lane.  A lane has jobs
 * of a single kind, because the kind is part of the flow (src/store/flow.c).  The worker is
 * responsible for the collected jobs until they are over: a job that has not begun when the
 * worker exits goes back into the ready set.
 *
 * worker/runner/collect.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include "utils/memutils.h"

/* Jobs popped while the lock of the database is held. */
#define POP_TOGETHER	64

Collected  *collected = NULL;
int			ncollected = 0;

static int	pop_more(int most);
static bool is_ordered(const JobqJob *job);
static void link_groups(void);

/*
 * Return whether the job can run together with others.  A suspect runs alone, because its
 * process may crash again.  So does a job of a group that runs several jobs at a time, and a job
 * whose unique key is free as soon as the job begins.
 */
bool
may_join(const JobqJob *job)
{
	return DatumGetInt16(JOB(job, JOB_CRASHES)) == 0 && !job_suspect(job) &&
		(job_group(job) == 0 || is_ordered(job)) && !job_leased(job) && !charge_pending(job) &&
		(JOB_ISNULL(job, JOB_UNIQUE_UNTIL) ||
		 DatumGetChar(JOB(job, JOB_UNIQUE_UNTIL)) != UNIQUE_UNTIL_START);
}

/*
 * Wake a worker for the jobs left in the lane of this job.  A lane that gathers its jobs has woken
 * one worker for all of them.  Takes db->lock.
 */
static void
wake_for_rest(const JobqPush *entry)
{
	JobqWakeList wake = {0};

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_gathered_wake(my_db, entry, &wake);
	jobq_unlock(my_db, &wake);
}

/*
 * Pop further jobs of the lane of this job, which the gate has admitted.  Returns false if
 * there are none, or if the job runs alone.  Otherwise the job is the first of the collected
 * jobs.  Takes db->lock exclusively.
 */
bool
collect(const JobqPush *entry, const JobqJob *job)
{
	JobqHandler buffer;
	const JobqHandler *handler;

	Assert(ncollected == 0);
	handler = jobq_handler(jobq_job_kind(job), &buffer);
	if (handler == NULL || handler->chunk <= 1)
		return false;
	if (entry->quarantine || entry->charged > 0 || entry->unlimited || !may_join(job))
	{
		if (handler->chunk_waits)
			wake_for_rest(entry);
		return false;
	}
	if (collected == NULL)
		collected = MemoryContextAlloc(TopMemoryContext, sizeof(Collected) * JOBQ_MAX_CHUNK);
	memset(&collected[0], 0, sizeof(Collected));
	collected[0].entry = *entry;
	ncollected = 1;
	if (pop_more(handler->chunk) == 1)
		ncollected = 0;
	if (handler->chunk_waits)
		wake_for_rest(entry);
	link_groups();
	return ncollected > 0;
}

/* True if the jobs of this job's group run one at a time. */
static bool
is_ordered(const JobqJob *job)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);

	return jobq_group_shared(job_group(job)) ||
		(queue != NULL && queue->group_max_running == 1);
}

/* Set the predecessor and the successor of each collected job in its group. */
static void
link_groups(void)
{
	static int *last = NULL;	/* for each group: number of its last job here */

	for (int i = 0; i < ncollected; i++)
	{
		uint32		place = collected[i].entry.permits.group;

		collected[i].before = collected[i].after = -1;
		if (place == JOBQ_NONE)
			continue;
		if (last == NULL)
			last = MemoryContextAllocZero(TopMemoryContext, sizeof(int) * jobq_max_groups);
		if (last[place] > 0)
		{
			collected[i].before = last[place] - 1;
			collected[last[place] - 1].after = i;
		}
		last[place] = i + 1;
	}
	for (int i = 0; i < ncollected; i++)
		if (collected[i].entry.permits.group != JOBQ_NONE)
			last[collected[i].entry.permits.group] = 0;
}

/*
 * Pop more jobs until "most" are collected, or until the lane has none.  Returns their number.
 */
static int
pop_more(int most)
{
	JobqPush	popped[POP_TOGETHER];
	int			n;
	int			room;

	do
	{
		JobqWakeList wake = {0};

		room = Min(most - ncollected, POP_TOGETHER);
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		n = jobq_ready_pop_more(my_db, jobq_my_slot, &collected[ncollected - 1].entry, popped,
								room, &wake);
		jobq_unlock(my_db, &wake);
		for (int i = 0; i < n; i++)
		{
			memset(&collected[ncollected], 0, sizeof(Collected));
			collected[ncollected++].entry = popped[i];
		}
	} while (n == room && ncollected < most);
	return ncollected;
}

/*
 * Push the entries of collected jobs that are not over, because the worker does not run them.
 * The scheduler hands over those that the slot of a dead worker names.
 */
void
collect_return(JobqWakeList *wake)
{
	bool		open = jobq_run_open(&jobq_my_slot->run);

	AssertExclusive(my_db->lock);
	for (int i = 0; i < ncollected; i++)
		if (!(collected[i].named && open))
			collect_give_back(i, wake);
	ncollected = 0;
}

/*
 * Push the entry of a collected job that is not over, and does not run here.  The call keeps the
 * permit of its group.
 */
void
collect_give_back(int at, JobqWakeList *wake)
{
	JobqPush   *entry = &collected[at].entry;

	AssertExclusive(my_db->lock);
	if (collected[at].over)
		return;
	entry->permits.group = JOBQ_NONE;
	collected[at].over = true;

	/* the slot has the permits of the first job */
	if (at > 0 && jobq_permits_any(&entry->permits))
		jobq_slot_release_more(my_db, jobq_my_slot, 1, true, jobq_now(), wake);
	jobq_ready_push(my_db, entry, entry->key.run_at, wake);
}
