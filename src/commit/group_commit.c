/*-------------------------------------------------------------------------
 *
 * group_commit.c
 *	  Tells groups, at commit, for which of their jobs they wait, and for which not.
 *
 * A job that has begun and will run again holds its group.  Since when is in its row
 * (group_held), and the group in shared memory is told before the job gives its
 * permits back: from then on the group waits.  That a group need not wait for a job
 * any more, or not where it was, is told after permits were given back, as whoever
 * removes a job may come before the one who has just put it back.
 *
 * A group may wait for a job before its row has committed, if a consumer has written it
 * in the transaction in which it asks for jobs.  If that does not commit, the group is
 * told at abort.
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
	int64		group;
	int64		job_id;
	TimestampTz since;			/* it holds the group since then */
	bool		moved;			/* it waits elsewhere, or for another time */
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
static PendingGroups awaited;	/* which this transaction has written */

static void
note(PendingGroups *pending, int64 group, int64 job_id, TimestampTz since, bool moved)
{
	pending->jobs = jobq_grow(pending->jobs, &pending->max, pending->n + 1,
							  sizeof(PendingGroup));
	pending->jobs[pending->n++] = (PendingGroup)
	{
		GetCurrentSubTransactionId(), group, job_id, since, moved
	};
}

/*
 * At commit, the group is to know that this job, which has a permit of it and will run
 * again, holds it since then.
 */
void
jobq_at_commit_group_held(int64 group, int64 job_id, TimestampTz since)
{
	note(&held, group, job_id, since, false);
}

/*
 * At commit, the group need not wait for this job any more, if it does.
 */
void
jobq_at_commit_group_end(int64 group, int64 job_id)
{
	note(&ended, group, job_id, 0, false);
}

/*
 * At commit, the group need not wait for this job where it was, which has another place
 * or another time now.  It goes on waiting for one that has begun before.  Group may be 0.
 */
void
jobq_at_commit_group_moved(int64 group, int64 job_id)
{
	if (group != 0)
		note(&ended, group, job_id, 0, true);
}

/*
 * At abort, the group need not wait for this job where it is, as this transaction has
 * written that.
 */
void
jobq_at_abort_group_moved(int64 group, int64 job_id)
{
	note(&awaited, group, job_id, 0, true);
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
	for (int i = 0; i < held.n; i++)
		jobq_group_held(db, held.jobs[i].group, held.jobs[i].job_id,
						held.jobs[i].since);
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
	for (int i = 0; i < ended.n; i++)
	{
		const PendingGroup *job = &ended.jobs[i];

		if (job->moved)
			jobq_group_moved(db, job->group, job->job_id, now, wake);
		else
			jobq_group_end(db, job->group, job->job_id, now, wake);
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
 * Jobs may have gone or changed of which nothing was noted: the scheduler sees for which
 * ones groups wait, and for which in vain.
 */
static void
ended_unnoted(JobqDatabase *db)
{
	if (db != NULL)
		db->groups->owners = db->groups->unnoted = true;
}

static bool
awaited_noted(void)
{
	return awaited.n > 0;
}

/*
 * What has committed is in the ready set by its own push.
 */
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
		jobq_group_moved(db, awaited.jobs[i].group, awaited.jobs[i].job_id,
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
