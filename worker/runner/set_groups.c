/*-------------------------------------------------------------------------
 *
 * set_groups.c
 *	  Groups of the jobs that a worker has collected to run together: see src/ready/group_set.c.
 *
 * worker/runner/set_groups.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"

/* True if the previous job of the group, if collected as well, is over. */
bool
group_lets(const Collected *job)
{
	return job->before < 0 || collected[job->before].over;
}

/*
 * True if the job has a group that waits for the job between two attempts.
 */
bool
group_waits(const JobqJob *job)
{
	JobqQueue	buffer;
	const JobqQueue *queue;

	if (job_group(job) == 0 || jobq_group_shared(job_group(job)))
		return job_group(job) != 0;
	queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	return queue != NULL && queue->group_waits;
}

/* A collected job of a group is about to run alone.  Takes db->lock exclusively. */
void
group_begin_alone(const Collected *job)
{
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_set_alone(my_db, jobq_my_slot, job->entry.permits.group, job->entry.key.id);
	LWLockRelease(my_db->lock);
}

/*
 * The job of group_begin_alone() is over.  The further jobs of the group are given back.  Takes
 * db->lock exclusively.
 */
void
group_end_alone(Collected *job)
{
	JobqWakeList wake = {0};

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_set_alone_over(my_db, jobq_my_slot, job->entry.key.id, jobq_now(), &wake);
	for (int i = job->after; i >= 0; i = collected[i].after)
		collect_give_back(i, &wake);
	jobq_unlock(my_db, &wake);
}

/*
 * A collected job of a group has committed, and will run again.  The permit of the group and the
 * further jobs of the group are given back.  Takes db->lock exclusively.
 */
static void
give_up(const Collected *job)
{
	JobqWakeList wake = {0};

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_set_leave(my_db, jobq_my_slot, job->entry.permits.group, jobq_now(), &wake);
	for (int i = job->after; i >= 0; i = collected[i].after)
		collect_give_back(i, &wake);
	jobq_unlock(my_db, &wake);
}

/*
 * Give up the groups of jobs that have committed and will run again.  Such a job may have ended
 * since, so look at its row afterwards.  No interrupt may come in between.
 */
void
groups_give_up(const Piece *piece)
{
	Relation	rel;
	bool		any = false;

	for (int i = 0; i < piece->n && !any; i++)
		any = collected[piece->list[i]].live && job_group(&piece->jobs[i]) != 0;
	if (!any)
		return;

	/* may wait for a lock, so before interrupts are held */
	process_begin_transaction();
	rel = jobq_try_open_jobs();
	HOLD_INTERRUPTS();
	for (int i = 0; i < piece->n; i++)
		if (collected[piece->list[i]].live && job_group(&piece->jobs[i]) != 0)
			give_up(&collected[piece->list[i]]);
	for (int i = 0; i < piece->n && rel != NULL; i++)
		if (collected[piece->list[i]].live && job_group(&piece->jobs[i]) != 0)
			jobq_group_see(rel, &piece->jobs[i]);
	if (rel != NULL)
		table_close(rel, NoLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
	RESUME_INTERRUPTS();
}
