/*-------------------------------------------------------------------------
 *
 * group_commit.c
 *	  Changes, at commit, of the jobs for which groups wait.
 *
 * A job that has begun and will run again holds its group.  The row stores the beginning of
 * the hold (group_held).  The group in shared memory is updated before the job is handed over
 * and returns its permits, so that the group waits from then on.  An update that ends or moves the wait
 * follows after permits were returned.  Otherwise a process that removes the job could come
 * before the process that has just put the job back.
 *
 * A group may wait for a job before the job's row is committed: a consumer has written the row
 * in the transaction in which the consumer reserves jobs.  If this transaction aborts, the
 * group is updated at abort.
 *
 * src/commit/group_commit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"

#include "commit/inner.h"

/* A job of a group. */
typedef struct PendingGroup
{
	SubTransactionId subid;
	JobqGroupHold hold;			/* only group and job, unless in "held" */
	bool		moved;			/* its lane or its time has changed */
} PendingGroup;

/* In the order of their subtransactions. */
typedef struct PendingGroups
{
	PendingGroup *jobs;
	int			n;
	int			max;
} PendingGroups;

static PendingGroups held;
static PendingGroups ended;
static PendingGroups awaited;	/* written by this transaction */

static void
note(PendingGroups *pending, const JobqGroupHold *hold, bool moved)
{
	pending->jobs = jobq_grow(pending->jobs, &pending->max, pending->n + 1,
							  sizeof(PendingGroup));
	pending->jobs[pending->n++] = (PendingGroup)
	{
		GetCurrentSubTransactionId(), *hold, moved
	};
}

static void
note_job(PendingGroups *pending, int64 group, int64 job_id, bool moved)
{
	JobqGroupHold hold = {.group = group,.job = job_id};

	note(pending, &hold, moved);
}

/*
 * At commit, make the group wait for this job, which has begun and will run again.  Takes no
 * lock.
 */
void
jobq_at_commit_group_held(const JobqGroupHold *hold)
{
	note(&held, hold, false);
}

/* At commit, end the group's wait for this job, if any.  Takes no lock. */
void
jobq_at_commit_group_end(int64 group, int64 job_id)
{
	note_job(&ended, group, job_id, false);
}

/*
 * At commit, end the group's wait for this job at its old position, because the job has
 * another lane or another time now.  The group continues to wait for a job that has begun
 * before.  group may be 0.  Takes no lock.
 */
void
jobq_at_commit_group_moved(int64 group, int64 job_id)
{
	if (group != 0)
		note_job(&ended, group, job_id, true);
}

/*
 * At abort, end the group's wait for this job at its current position, because this
 * transaction has written the position.  Takes no lock.
 */
void
jobq_at_abort_group_moved(int64 group, int64 job_id)
{
	note_job(&awaited, group, job_id, true);
}

static void
undo(PendingGroups *pending, SubTransactionId since)
{
	while (pending->n > 0 && pending->jobs[pending->n - 1].subid >= since)
		pending->n--;
}

static void
give_back(PendingGroups *pending)
{
	Assert(pending->n == 0);
	pending->jobs = jobq_give_back(pending->jobs, &pending->max);
}

static bool
some_left(PendingGroups *pending, JobqDatabase *db)
{
	if (db == NULL)
		pending->n = 0;
	return pending->n > 0;
}

static bool
held_noted(void)
{
	return held.n > 0;
}

static bool
held_pending(JobqDatabase *db)
{
	return some_left(&held, db);
}

static void
held_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	AssertExclusive(db->lock);
	for (int i = 0; i < held.n; i++)
		jobq_group_held(db, &held.jobs[i].hold, jobq_my_slot, now, wake);
	held.n = 0;
}

static void
held_abort(SubTransactionId since)
{
	undo(&held, since);
}

static void
held_give_back(void)
{
	give_back(&held);
}

static bool
ended_noted(void)
{
	return ended.n > 0;
}

static bool
ended_pending(JobqDatabase *db)
{
	return some_left(&ended, db);
}

static void
ended_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	AssertExclusive(db->lock);
	for (int i = 0; i < ended.n; i++)
	{
		const JobqGroupHold *job = &ended.jobs[i].hold;

		if (ended.jobs[i].moved)
			jobq_group_moved(db, job->group, job->job, now, wake);
		else
			jobq_group_end(db, job->group, job->job, now, wake);
	}
	ended.n = 0;
}

static void
ended_abort(SubTransactionId since)
{
	undo(&ended, since);
}

static void
ended_give_back(void)
{
	give_back(&ended);
}

/*
 * Jobs may have been deleted or changed without notes.  The scheduler checks for which jobs
 * groups wait, and which of these jobs no longer exist.
 */
static void
ended_unnoted(JobqDatabase *db)
{
	if (db == NULL)
		return;
	AssertExclusive(db->lock);
	db->groups->owners = db->groups->unnoted = true;
}

static bool
awaited_noted(void)
{
	return awaited.n > 0;
}

/* Committed jobs are in the ready set by their own push. */
static bool
awaited_pending(JobqDatabase *db)
{
	awaited.n = 0;
	return false;
}

static void
awaited_abort(SubTransactionId since)
{
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};
	int			n = awaited.n;

	undo(&awaited, since);
	if (db == NULL || awaited.n == n)
		return;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	for (int i = awaited.n; i < n; i++)
		jobq_group_moved(db, awaited.jobs[i].hold.group, awaited.jobs[i].hold.job,
						 jobq_now(), &wake);
	jobq_unlock(db, &wake);
}

static void
awaited_give_back(void)
{
	give_back(&awaited);
}

const JobqCommitBooks group_held_books =
{
	.noted = held_noted,
	.pending = held_pending,
	.commit = held_commit,
	.abort = held_abort,
	.give_back = held_give_back,
};

const JobqCommitBooks group_end_books =
{
	.noted = ended_noted,
	.pending = ended_pending,
	.commit = ended_commit,
	.unnoted = ended_unnoted,
	.abort = ended_abort,
	.give_back = ended_give_back,
};

const JobqCommitBooks group_awaited_books =
{
	.noted = awaited_noted,
	.pending = awaited_pending,
	.abort = awaited_abort,
	.give_back = awaited_give_back,
};
