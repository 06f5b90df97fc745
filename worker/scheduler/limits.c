/*-------------------------------------------------------------------------
 *
 * limits.c
 *	  The limits of queues and kinds: loads the limiters, restores their state
 *	  after a start, and wakes workers when permits become free by time.
 *
 * worker/scheduler/limits.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "scheduler/duty.h"

static TimestampTz load(TimestampTz now);
static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static bool membership_changed(const Members *members);

/*
 * Checks each limiter and each group, and reads some groups (groups.c).  At a start,
 * also restores the state of limiters with a rate or a throttle (limits_restore.c).  The
 * restore has no time bound, because no job may run before the restore is complete.
 */
Duty		limits_duty = {
	.what = "look after limits and groups",
	.load = load,
	.run = run,
	.next_due = next_due,
};

/*
 * Policies without a limiter slot, and missing limiters, whose jobs must wait.  Sorted.
 */
static Member *lacking = NULL;
static int	nlacking = 0;

/*
 * Update a limiter in use with the policy from the tables.  Returns true if the limiter begins
 * to count jobs, which needed no permit before.
 */
static bool
set_policy(uint16 index, const JobqLimiter *now_is, TimestampTz now)
{
	JobqLimiter *limiter = &my_db->limits->limiters[index];
	bool		counted = jobq_limiter_counts(limiter);

	AssertExclusive(my_db->lock);
	if (limiter->fair_cpu != now_is->fair_cpu)
		jobq_turns_begin(my_db, index);
	limiter->fair = now_is->fair;
	limiter->fair_cpu = now_is->fair_cpu;
	limiter->group_wait = now_is->group_wait;
	my_db->groups->owners |= limiter->group_patience > 0 &&
		(now_is->group_patience == 0 ||
		 now_is->group_patience > limiter->group_patience);
	limiter->group_patience = now_is->group_patience;
	limiter->max_running = now_is->max_running;
	limiter->group_max_running = now_is->group_max_running;
	limiter->weight = now_is->weight;
	jobq_pace_change(limiter, &limiter->pace, &now_is->rate, now);
	limiter->rate = now_is->rate;
	limiter->throttle = now_is->throttle;
	limiter->keyed = now_is->keyed;
	limiter->priced = now_is->priced;
	limiter->when_taken = now_is->when_taken;
	limiter->release_after = now_is->release_after;
	limiter->chunk = now_is->chunk;
	limiter->chunk_wait = now_is->chunk_wait;
	limiter->nweights = now_is->nweights;
	memcpy(limiter->weighted, now_is->weighted, sizeof(limiter->weighted));
	memcpy(limiter->weights, now_is->weights, sizeof(limiter->weights));
	return !counted && jobq_limiter_counts(limiter);
}

/*
 * Add limiters for new policies.  "wait" selects the policies whose jobs must wait for
 * a limiter, or the rest.
 */
static void
add_policies(const JobqLimiter *limiters, int n, bool wait, bool *begins)
{
	AssertExclusive(my_db->lock);
	for (int i = 0; i < n; i++)
	{
		uint16		index;

		if (policies_wait(&limiters[i]) != wait ||
			jobq_limiter_find(my_db, limiters[i].queue_id,
							  limiters[i].kind) != JOBQ_NO_LIMITER)
			continue;
		index = jobq_limiter_add(my_db, &limiters[i]);
		if (index != JOBQ_NO_LIMITER)
			begins[index] = jobq_limiter_counts(&limiters[i]);
		else if (wait)
		{
			lacking[nlacking].queue_id = limiters[i].queue_id;
			lacking[nlacking++].kind = limiters[i].kind;
		}
	}
}

/*
 * Replace the set of limiters by the policies read.  Existing limiters keep their
 * counts.  Limiters without a policy are dropped, and new policies get a limiter while
 * slots last.  "stays" and "begins" are zeroed arrays with room for all limiters.
 * Returns the number of policies without a slot.
 */
static int
take_over(const JobqLimiter *limiters, int n, const Missing *missing, bool *stays,
		  bool *begins)
{
	bool		forgotten = false;
	int			without_place;

	AssertExclusive(my_db->lock);
	for (int i = 0; i < n; i++)
	{
		uint16		index = jobq_limiter_find(my_db, limiters[i].queue_id,
											  limiters[i].kind);

		if (index == JOBQ_NO_LIMITER)
			continue;
		stays[index] = true;
		begins[index] = set_policy(index, &limiters[i], jobq_now());
	}
	for (int i = 0; i < my_db->limits->nlimiters; i++)
		forgotten |= my_db->limits->limiters[i].in_use && !stays[i];
	if (forgotten)
		limits_forget_permits(stays);
	for (int i = 0; i < my_db->limits->nlimiters; i++)
		if (my_db->limits->limiters[i].in_use && !stays[i])
		{
			my_db->groups->owners |= my_db->limits->limiters[i].group_patience > 0;
			jobq_limiter_drop(my_db, i);
		}

	/* policies whose jobs must wait come first */
	nlacking = 0;
	add_policies(limiters, n, true, begins);
	add_policies(limiters, n, false, begins);
	without_place = nlacking;
	my_db->limits->overfull = without_place > 0;
	for (int i = 0; i < missing->n; i++)
		lacking[nlacking++].kind = missing->hashes[i];
	qsort(lacking, nlacking, sizeof(Member), policies_compare);
	return without_place;
}

/*
 * Return the limiters of the lane that have no slot or do not exist, as JobqLane.lacks.
 */
uint8
limits_lacked(const JobqLane *lane)
{
	uint8		lacks = 0;

	for (int s = 0; s < JOBQ_NLIMITS && nlacking > 0; s++)
	{
		Member		wanted = {.queue_id = s == JOBQ_OF_QUEUE ? lane->queue_id : 0,
		.kind = lane->needs[s].limiter};

		if ((s == JOBQ_OF_QUEUE || wanted.kind != 0) &&
			bsearch(&wanted, lacking, nlacking, sizeof(Member), policies_compare) != NULL)
			lacks |= 1 << s;
	}
	return lacks;
}

/*
 * Warn about more policies than limiter slots.  jobq_check_limited() normally prevents
 * this.
 */
static void
tell_lacking(int without_place)
{
	static JobqSteady told_at = 0;

	if (without_place == 0 || !jobq_once_in(&told_at, USECS_PER_HOUR))
		return;
	ereport(WARNING,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("more than %d queues, kinds and limiters have limits",
					jobq_max_limiters),
			 errdetail("The jobs of %d of them do not run.", without_place),
			 errhint("Raise \"%s\", and restart the server; or take away limits that are not needed.",
					 "jobq.ready_entries")));
}

/*
 * Load the limits from the tables.  Existing counts are kept.
 *
 * Must run in a transaction.  Takes my_db->lock exclusively.
 */
void
limits_load(void)
{
	JobqLimiter *limiters;
	bool	   *stays = palloc0(sizeof(bool) * jobq_max_limiters);
	bool	   *begins = palloc0(sizeof(bool) * jobq_max_limiters);
	bool		first = !my_db->limits->loaded;
	TimestampTz now = jobq_now();
	JobqWakeList wake = {0};
	bool		weighted;
	bool		begun;
	Members		members;
	Missing		missing;
	int			n;
	int			without_place;

	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	n = policies_read(&limiters, &weighted);
	members = policies_members();
	missing = policies_missing();
	if (first)
		past_begin(limiters, n);
	SPI_finish();
	PopActiveSnapshot();
	nlacking = 0;
	if (lacking != NULL)
		pfree(lacking);
	lacking = NULL;
	lacking = MemoryContextAllocZero(TopMemoryContext, sizeof(Member) * (n + missing.n + 1));
	jobq_injection_point("jobq-limits-read");

	/*
	 * From take_over() to jobq_lanes_place(), the lanes know the new
	 * limiters, and the heaps have the old.  Jobs may return into lanes
	 * meanwhile, and lanes may leave and enter heaps, because a heap finds
	 * its links by its own array of limiters.  No job may be popped or
	 * offered: the permits would be those of other limiters.
	 */
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	without_place = take_over(limiters, n, &missing, stays, begins);
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &my_db->ready->lanes[i];

		if (!lane->in_use)
			continue;
		jobq_limiters_find(my_db, lane->queue_id, lane->needs, lane->limiters);
		lane->lacks = limits_lacked(lane);
	}

	/* after the lanes know their limiters, because jobs return into lanes */
	begun = membership_changed(&members) || first;
	for (int i = 0; i < my_db->limits->nlimiters; i++)
	{
		if (!begins[i])
			continue;
		limits_begin_to_count(i, &wake);
		begun = true;
	}
	limits_count_named(&members, now, &wake);
	if (begun)
		my_db->limits->begun_at = jobq_now();
	my_db->limits->weighted = weighted;
	my_db->limits->loaded_at = now;
	jobq_lanes_place(my_db);
	my_db->limits->loading = false;
	my_db->limits->due = now;
	jobq_groups_look(my_db, now);
	jobq_unlock(my_db, &wake);
	pfree(limiters);
	pfree(stays);
	pfree(begins);
	pfree(members.members);
	pfree(missing.hashes);
	tell_lacking(without_place);
	policies_tell_missing(&missing);
}

/*
 * True if queues and kinds name different limiters than at the last call.
 */
static bool
membership_changed(const Members *members)
{
	static uint32 last = 0;
	uint32		hash = hash_bytes((const unsigned char *) members->members,
								  (int) (members->n * sizeof(Member)));
	bool		changed = hash != last;

	last = hash;
	return changed;
}

/*
 * Restore limits and groups before any job is read.  No permit is in use yet, because
 * workers and consumers begin later.
 */
static TimestampTz
load(TimestampTz now)
{
	Oid			job;

	process_begin_transaction();
	jobq_lock_jobs();
	job = jobq_relations()->job;
	if (my_db->limits->jobs != job || !my_db->limits->loaded)
	{
		/* also discard the partial work of a previous scheduler */
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		jobq_limits_clear(my_db);
		my_db->limits->jobs = job;
		LWLockRelease(my_db->lock);
		limits_load();
		jobq_injection_point("jobq-groups-restore");
		groups_restore();
		limits_restore();
		past_end();

		/* jobs may run from here on, and not before */
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		my_db->limits->loaded = true;
		LWLockRelease(my_db->lock);
	}
	else if (my_db->limits->loading)
		limits_load();			/* the previous scheduler was interrupted */
	PopActiveSnapshot();
	CommitTransactionCommand();
	return DT_NOEND;
}

/*
 * Wake workers for permits freed by time, and read the groups that need it.
 */
static TimestampTz
run(TimestampTz now)
{
	JobqWakeList wake = {0};

	/* the clock may have been put back since the round began */
	now = Min(now, jobq_now());
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	if (my_db->limits->due <= now)
		jobq_limits_wake(my_db, now, &wake);
	if (my_db->groups->due <= now)
		jobq_groups_wake(my_db, now, &wake);
	jobq_unlock(my_db, &wake);
	if (my_db->groups->refill)
		groups_refill();
	if (groups_owners_due(now) <= now)
		groups_read_owners();
	return DT_NOEND;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	if (my_db->groups->refill)
		return now;
	return Min(Min(my_db->limits->due, my_db->groups->due),
			   groups_owners_due(now));
}
