/*-------------------------------------------------------------------------
 *
 * pool_check.c
 *	  Checks which queues the pools serve, and finds probable mistakes in the pools.
 *
 * src/base/pool_check.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"

/* Return the maximum number of workers of a database. */
int
jobq_pools_workers(void)
{
	const JobqPoolSet *set = jobq_pools();
	int			workers = 0;

	for (int p = 0; p < set->npools; p++)
		workers += set->pools[p].workers;
	return workers;
}

static bool
pool_names(const JobqPool *pool, const char *queue)
{
	for (int q = 0; q < pool->nqueues; q++)
		if (strcmp(pool->queues[q], queue) == 0)
			return true;
	return false;
}

/*
 * Return the number of workers that serve this name: a queue, or "*".  -1 if no pool has the
 * name.
 */
static int
workers_of(const char *queue)
{
	const JobqPoolSet *set = jobq_pools();
	int			workers = -1;

	for (int p = 0; p < set->npools; p++)
		if (pool_names(&set->pools[p], queue))
			workers = Max(workers, 0) + set->pools[p].workers;
	return workers;
}

/* True if a pool with workers serves the queue. */
bool
jobq_pools_serve(const char *queue)
{
	int			workers = workers_of(queue);

	if (workers < 0)
		workers = workers_of("*");
	return workers > 0;
}

/* True if this pool, an index into jobq_pools(), serves the queue. */
bool
jobq_pool_serves(int pool, const char *queue)
{
	const JobqPoolSet *set = jobq_pools();

	return pool >= 0 && pool < set->npools &&
		pool_names(&set->pools[pool], workers_of(queue) < 0 ? "*" : queue);
}

static bool
same_queues(const JobqPool *a, const JobqPool *b)
{
	if (a->nqueues != b->nqueues)
		return false;
	for (int q = 0; q < a->nqueues; q++)
		if (strcmp(a->queues[q], b->queues[q]) != 0)
			return false;
	return true;
}

static char *
queue_list(const JobqPool *pool)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int q = 0; q < pool->nqueues; q++)
		appendStringInfo(&list, "%s%s", q > 0 ? "," : "", pool->queues[q]);
	return list.data;
}

/*
 * Return probable mistakes in jobq.workers, as a palloc'd list of texts.  settings: if not
 * NULL, receives a list of equal length, with the name of the setting that is too small, or of
 * jobq.workers.
 */
List *
jobq_pools_problems(List **settings)
{
	const JobqPoolSet *set = jobq_pools();
	int			workers = jobq_pools_workers();
	int			left = Max(max_worker_processes - 2, 0);
	const char *too_small = NULL;
	List	   *problems = NIL;

	for (int p = 0; p < set->npools; p++)
	{
		const JobqPool *pool = &set->pools[p];

		for (int other = 0; other < p; other++)
			if (same_queues(pool, &set->pools[other]))
			{
				problems = lappend(problems,
								   psprintf("pools %d and %d of \"jobq.workers\" name the same queues: \"%s\"",
											other + 1, p + 1, queue_list(pool)));
				break;
			}
		for (int q = 1; q < pool->nqueues; q++)
			for (int before = 0; before < q; before++)
				if (strcmp(pool->queues[q], pool->queues[before]) == 0)
				{
					problems = lappend(problems,
									   psprintf("pool %d of \"jobq.workers\" names queue \"%s\" twice",
												p + 1, pool->queues[q]));
					break;
				}
	}
	if (settings != NULL)
	{
		*settings = NIL;
		for (int i = 0; i < list_length(problems); i++)
			*settings = lappend(*settings, pstrdup("jobq.workers"));
	}
	if (workers > jobq_max_workers)
	{
		too_small = "jobq.max_workers";
		problems = lappend(problems,
						   psprintf("\"jobq.workers\" asks for %d workers in each database, and \"jobq.max_workers\" allows %d in the cluster",
									workers, jobq_max_workers));
	}
	else if (workers > left)
	{
		too_small = "max_worker_processes";
		problems = lappend(problems,
						   psprintf("\"jobq.workers\" asks for %d workers in each database, and \"max_worker_processes\" leaves %d beside the launcher and a scheduler",
									workers, left));
	}
	if (settings != NULL && too_small != NULL)
		*settings = lappend(*settings, unconstify(char *, too_small));
	return problems;
}

/*
 * Return the queues in jobq.workers without workers, as a palloc'd list of texts.  This may be
 * intended.
 */
List *
jobq_pools_unserved(void)
{
	const JobqPoolSet *set = jobq_pools();
	List	   *texts = NIL;

	for (int p = 0; p < set->npools; p++)
	{
		const JobqPool *pool = &set->pools[p];

		for (int q = 0; q < pool->nqueues && pool->workers == 0; q++)
			if (workers_of(pool->queues[q]) == 0 &&
				strcmp(pool->queues[q], "*") != 0)
				texts = lappend(texts,
								psprintf("no worker serves queue \"%s\": its pool in \"jobq.workers\" has 0 workers",
										 pool->queues[q]));
	}
	if (workers_of("*") < 0)
		texts = lappend(texts,
						pstrdup("no worker serves queues that \"jobq.workers\" does not name: it has no pool with \"*\""));
	else if (workers_of("*") == 0)
		texts = lappend(texts,
						pstrdup("no worker serves queues that \"jobq.workers\" does not name: its pool with \"*\" has 0 workers"));
	return texts;
}
