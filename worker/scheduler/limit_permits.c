/*-------------------------------------------------------------------------
 *
 * limit_permits.c
 *	  Permits of jobs that run already, after limits have changed or after a start.
 *
 * A limiter counts the jobs that hold its permits.  A new limiter counts the running jobs
 * of its queue or kind as well.  Workers hold permits in their slots, consumers in leases.
 *
 * worker/scheduler/limit_permits.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

/*
 * Count the jobs already running at a new limiter of a queue.
 */
static void
count_running(uint16 index)
{
	JobqLimiter *limiter = &my_db->limits->limiters[index];

	AssertExclusive(my_db->lock);
	jobq_foreach_slot(slot, my_db, JOBQ_SLOTS_WITH_RUN)
	{
		bool		ours;

		SpinLockAcquire(&slot->mutex);
		ours = jobq_run_busy(&slot->run) && slot->run.queue_id == limiter->queue_id &&
			slot->holding->permits.limiters[JOBQ_OF_QUEUE] == JOBQ_NO_LIMITER;
		if (ours)
			slot->holding->permits_job = slot->run.job;
		SpinLockRelease(&slot->mutex);
		if (ours)
		{
			slot->holding->permits.limiters[JOBQ_OF_QUEUE] = index;
			limiter->running++;
		}
	}
	jobq_foreach_lease(lease, my_db)
	{
		if (lease->queue_id != limiter->queue_id ||
			lease->permits.limiters[JOBQ_OF_QUEUE] != JOBQ_NO_LIMITER)
			continue;
		lease->permits.limiters[JOBQ_OF_QUEUE] = index;
		limiter->running++;
	}
}

/*
 * Jobs now need permits of this limiter and did not before.  Count the running jobs,
 * and take back prefetched jobs from the workers, because they have no permits.
 */
void
limits_begin_to_count(uint16 index, JobqWakeList *wake)
{
	AssertExclusive(my_db->lock);
	if (my_db->limits->limiters[index].queue_id != 0)
		count_running(index);
	jobq_foreach_slot(slot, my_db, JOBQ_SLOTS_ALL)
		jobq_prefetch_return(my_db, slot, wake);
}

/*
 * True if the limiter with this index is one of the limiters of a job.
 */
static bool
limits_job(const uint16 *limiters, uint16 index)
{
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
		if (index != JOBQ_NO_LIMITER && limiters[s] == index)
			return true;
	return false;
}

/*
 * True if the permits include a permit of this limiter.
 */
static bool
have_permit(const JobqPermits *permits, uint16 index)
{
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (permits->limiters[s] == index)
			return true;
	return false;
}

/*
 * Count a running job at the limiter of this source from now on.  The job's key is unknown.  The
 * permit takes the place of a permit of a limiter that limits the job no longer.  A permit of
 * another of these limiters stays, with the permit of the job's key, although kind or queue may
 * name that limiter at another place of the list now.
 */
static void
count_at(JobqPermits *permits, const uint16 *limiters, int source, TimestampTz now,
		 JobqWakeList *wake)
{
	JobqPermits left = JOBQ_NO_PERMITS;
	uint16		index = limiters[source];
	int			place = source;

	AssertExclusive(my_db->lock);

	/* the job holds permits of fewer limiters than there are places */
	for (int s = JOBQ_OF_KIND; limits_job(limiters, permits->limiters[place]); s++)
	{
		Assert(s < JOBQ_NLIMITS);
		place = s;
	}
	left.limiters[place] = permits->limiters[place];
	left.tallies[place] = permits->tallies[place];
	permits->limiters[place] = index;
	permits->tallies[place] = JOBQ_NONE;
	permits->costs[place] = 0;
	my_db->limits->limiters[index].running++;
	jobq_permits_release(my_db, &left, 0, false, false, now, wake);
}

/*
 * Return the first of these limiters that does not count the holder of the permits yet, as an
 * index of the array, or -1.  passes: the job bypasses limiters with costs.
 */
static int
first_uncounted(const JobqPermits *permits, const uint16 *limiters, bool passes)
{
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
		if (limiters[s] != JOBQ_NO_LIMITER && !have_permit(permits, limiters[s]) &&
			!(passes && my_db->limits->limiters[limiters[s]].priced))
			return s;
	return -1;
}

/*
 * Assign each running job to the limiters of its kind and queue.  A job that bypasses a
 * limiter is left out.  Prefetched jobs of the worker are taken back, so that the worker does
 * not keep a permit for them.
 */
void
limits_count_named(const Members *members, TimestampTz now, JobqWakeList *wake)
{
	AssertExclusive(my_db->lock);
	jobq_foreach_slot(slot, my_db, JOBQ_SLOTS_WITH_RUN)
	{
		JobqPermits *permits = &slot->holding->permits;
		JobqRun		run;
		bool		same;
		uint16		limiters[JOBQ_NLIMITS];
		int			source;

		jobq_run_read(slot, &run);
		if (!jobq_run_busy(&run) ||
			(jobq_permits_any(permits) && slot->holding->permits_job != run.job))
			continue;
		policies_limiters(members, run.queue_id, jobq_kind_hash(run.kind), limiters);
		if (first_uncounted(permits, limiters, run.passes) < 0)
			continue;
		SpinLockAcquire(&slot->mutex);
		same = slot->run.job == run.job && jobq_run_busy(&slot->run);
		if (same)
			slot->holding->permits_job = run.job;
		SpinLockRelease(&slot->mutex);
		while (same && (source = first_uncounted(permits, limiters, run.passes)) >= 0)
			count_at(permits, limiters, source, now, wake);
		jobq_prefetch_return(my_db, slot, wake);
	}
	jobq_foreach_lease(lease, my_db)
	{
		uint16		limiters[JOBQ_NLIMITS];
		bool		passes = false;
		int			source;

		for (int s = 0; s < JOBQ_NLIMITS; s++)
			passes |= lease->needs[s].cost == JOBQ_PASSES;

		/*
		 * The kind is unknown while the lease is not held yet: only a limiter
		 * that the queue names can be new.
		 */
		policies_limiters(members, lease->queue_id, lease->name, limiters);
		while ((source = first_uncounted(&lease->permits, limiters, passes)) >= 0)
			count_at(&lease->permits, limiters, source, now, wake);
	}
}

/*
 * Remove permits of dropped limiters from these permits.
 */
static void
forget_permit(JobqPermits *permits, const bool *stays)
{
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (permits->limiters[s] != JOBQ_NO_LIMITER && !stays[permits->limiters[s]])
			permits->limiters[s] = JOBQ_NO_LIMITER;
}

/*
 * Remove permits of dropped limiters from running jobs, leases, offers and groups.
 */
void
limits_forget_permits(const bool *stays)
{
	AssertExclusive(my_db->lock);
	jobq_foreach_slot(slot, my_db, JOBQ_SLOTS_ALL)
	{
		forget_permit(&slot->holding->permits, stays);
		forget_permit(&slot->holding->more, stays);
	}
	jobq_foreach_lease(lease, my_db)
		forget_permit(&lease->permits, stays);
	for (int i = 0; i < JOBQ_MAX_RESERVERS; i++)
		if (my_db->offers->reservers[i].offered)
			forget_permit(&my_db->offers->reservers[i].offer.permits, stays);
	for (int i = 0; i < jobq_max_groups; i++)
	{
		uint16	   *limiter = &my_db->groups->groups[i].limiter;

		if (*limiter < jobq_max_limiters && !stays[*limiter])
			*limiter = JOBQ_NO_LIMITER;
	}
}

/*
 * Return the permits of a lease found after a start.  The caller holds db->lock.
 */
JobqPermits
limits_of_lease(const JobqPush *push)
{
	JobqPermits permits = JOBQ_NO_PERMITS;

	AssertExclusive(my_db->lock);
	jobq_limiters_find(my_db, push->queue_id, push->needs, permits.limiters);
	if (push->group != 0)
	{
		JobqGroup  *group = jobq_group_make(my_db, push->group,
											permits.limiters[JOBQ_OF_QUEUE], push->role,
											jobq_now());

		if (group != NULL)
		{
			jobq_group_take(group, push->key.id, push->queue_id);
			permits.group = group - my_db->groups->groups;
		}
	}

	/* the tokens were counted together with the past */
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		if (permits.limiters[s] == JOBQ_NO_LIMITER)
			continue;
		permits.costs[s] = Max(push->needs[s].cost, 1);
		my_db->limits->limiters[permits.limiters[s]].running++;
		jobq_limiter_filled(my_db, permits.limiters[s]);
		permits.tallies[s] = jobq_keyed_count(my_db, push->needs[s].limiter,
											  push->needs[s].key, jobq_now());
	}
	return permits;
}
