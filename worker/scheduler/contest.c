/*-------------------------------------------------------------------------
 *
 * contest.c
 *	  Which jobs give way where a limiter has newer ones replace older ones.
 *
 * The job that was enqueued last has the place.  Those that hold places and those that
 * wait, of the same role and key, are compared by their ids, and as many of the newest
 * as there are places go on.
 *
 * worker/scheduler/contest.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "utils/snapmgr.h"

#include "scheduler/taken.h"

/* One of them. */
typedef struct Rival
{
	int64		id;
	const JobqPush *waiting;	/* or NULL: it runs */
} Rival;

static int	once(Rival *rivals, int n);
static int	compare_rivals(const void *a, const void *b);
static void find_holders(Contest *contest);
static void add_item(Contest *contest, const JobqPush *job, Action action,
					 int64 newer);

/*
 * Compare them.  Of those that hold a place, only those of the same role may have to give
 * it up; so if others have all places, the newest of the role waits.
 */
void
contest_compare(void *arg)
{
	Contest    *contest = (Contest *) arg;
	TimestampTz now = jobq_now();
	Rival	   *rivals;
	int			n = 0;
	int			room = contest->by.max_running;
	Relation	rel;

	contest->nitems = 0;
	if (jobq_relations_if_installed() == NULL)
		return;
	rel = jobq_open_jobs();
	find_holders(contest);
	rivals = palloc(sizeof(Rival) * (contest->nholders + contest->nwaiting + 1));
	for (int i = 0; i < contest->nwaiting; i++)
	{
		const JobqPush *push = &contest->waiting[i];
		JobqJob		job;

		if (!jobq_job_find(rel, push->key.id, GetActiveSnapshot(), &job) ||
			job_run_at(&job) > now || jobq_job_runs(&job) || job_blocked(&job))
			add_item(contest, push, LOOK, 0);
		else
			rivals[n++] = (Rival)
		{
			push->key.id, push
		};
	}
	for (int i = 0; i < contest->nholders; i++)
	{
		const JobqHolder *holder = &contest->holders[i];

		if (holder->stopping)
			continue;
		if (holder->role != contest->by.role)
			room--;
		else
			rivals[n++] = (Rival)
		{
			holder->id, NULL
		};
	}
	qsort(rivals, n, sizeof(Rival), compare_rivals);
	n = once(rivals, n);
	for (int i = Max(room, 1); i < n; i++)
	{
		JobqPush	job = {.role = contest->by.role,.key.id = rivals[i].id};

		if (contest->nitems >= 2 * MOST_COMPARED)
			break;
		add_item(contest, rivals[i].waiting != NULL ? rivals[i].waiting : &job,
				 rivals[i].waiting != NULL ? REPLACE : STOP, rivals[0].id);
	}
	table_close(rel, NoLock);
}

/*
 * A job may have been handed out, or its lease have begun, after it was listed as one that
 * waits, or that holds a place by something else: then it is there twice.  It must not
 * replace itself.  Drop all but the first of those with the same id, which holds a place
 * if any of them does.  Returns how many are left.
 */
static int
once(Rival *rivals, int n)
{
	int			left = 0;

	for (int i = 0; i < n; i++)
		if (left == 0 || rivals[i].id != rivals[left - 1].id)
			rivals[left++] = rivals[i];
	return left;
}

/*
 * The newest comes first; of one that is there twice, the one that holds a place.
 */
static int
compare_rivals(const void *a, const void *b)
{
	int64		x = ((const Rival *) a)->id;
	int64		y = ((const Rival *) b)->id;

	if (x == y)
		return (((const Rival *) a)->waiting != NULL) - (((const Rival *) b)->waiting != NULL);
	return x > y ? -1 : 1;
}

/*
 * Those that hold the places.
 */
static void
find_holders(Contest *contest)
{
	int			most = jobq_shared->nslots + JOBQ_MAX_RESERVERS + jobq_max_leases;
	int			at = 0;

	contest->holders = palloc_extended(sizeof(JobqHolder) * most, MCXT_ALLOC_HUGE);
	contest->nholders = 0;
	do
	{
		LWLockAcquire(my_db->lock, LW_SHARED);
		contest->nholders = jobq_places_holders(my_db, &contest->by, contest->holders,
												contest->nholders, most, &at);
		LWLockRelease(my_db->lock);
	} while (at != 0);
}

static void
add_item(Contest *contest, const JobqPush *job, Action action, int64 newer)
{
	contest->items[contest->nitems++] = (Fate)
	{
		.job = *job,.by = contest->by,.heap = contest->heap,.action = action,
			.newer = newer
	};
}
