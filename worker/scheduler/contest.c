/*-------------------------------------------------------------------------
 *
 * contest.c
 *	  Decides which jobs give way at a limiter with the policy "replace".
 *
 * The latest job gets the permit.  Jobs with permits and waiting jobs of the same role
 * and key are compared by id.  The newest jobs continue, as many as there are permits.
 *
 * worker/scheduler/contest.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "lib/qunique.h"
#include "utils/snapmgr.h"

#include "scheduler/taken.h"

/* A competing job. */
typedef struct Rival
{
	int64		id;
	const JobqPush *waiting;	/* or NULL: running */
} Rival;

static int	compare_rivals(const void *a, const void *b);
static int	compare_holders(const void *a, const void *b);
static void find_holders(Contest *contest);
static void add_item(Contest *contest, const JobqPush *job, Action action,
					 int64 newer);

/*
 * True if the job needs a permit of this limiter, for this key.
 */
static bool
needs_permit(const JobqPush *job, const JobqTakenBy *by)
{
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
		if (job->needs[s].limiter == by->limiter && job->needs[s].key == by->limit_key)
			return true;
	return false;
}

/*
 * Compare the jobs.  arg is a Contest.  Only jobs of the same role must give up their
 * permits.  If different roles have all permits, the newest job of the role waits.
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
	jobq_injection_point("jobq-contest");
	find_holders(contest);
	rivals = palloc(sizeof(Rival) * (contest->nholders + contest->nwaiting + 1));
	for (int i = 0; i < contest->nwaiting; i++)
	{
		const JobqPush *push = &contest->waiting[i];
		JobqHolder	holder = {.id = push->key.id};
		JobqPush	own = {0};
		JobqJob		job;
		bool		found;

		/* has received a permit since */
		if (bsearch(&holder, contest->holders, contest->nholders, sizeof(JobqHolder),
					compare_holders) != NULL)
			continue;
		found = jobq_job_fetch_entry(rel, push, GetActiveSnapshot(), &job);
		if (found)
			jobq_push_flow(&job, &own);

		/* in a lane of a different key: see jobq_gate() */
		if (!found || !needs_permit(&own, &contest->by) || job_run_at(&job) > now ||
			jobq_job_runs(&job) || job_blocked(&job))
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
 * Compare for sorting, newest first.
 */
static int
compare_rivals(const void *a, const void *b)
{
	int64		x = ((const Rival *) a)->id;
	int64		y = ((const Rival *) b)->id;

	return x == y ? 0 : x > y ? -1 : 1;
}

static int
compare_holders(const void *a, const void *b)
{
	int64		x = ((const JobqHolder *) a)->id;
	int64		y = ((const JobqHolder *) b)->id;

	return x == y ? 0 : x < y ? -1 : 1;
}

/*
 * Find the jobs with permits, without duplicates, sorted by id.  The list is read in
 * pieces, so a job whose offer becomes a lease meanwhile may be read twice.  Takes
 * my_db->lock shared.
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
		jobq_injection_point("jobq-contest-reads");
	} while (at != 0);
	qsort(contest->holders, contest->nholders, sizeof(JobqHolder), compare_holders);
	contest->nholders = qunique(contest->holders, contest->nholders, sizeof(JobqHolder),
								compare_holders);
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
