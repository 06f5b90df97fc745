/*-------------------------------------------------------------------------
 *
 * leases.c
 *	  Ends expired leases of consumers.  Rows of leases that are no longer needed are removed
 *	  by leases_rows.c.  After a restart, leases_load.c restores the leases.
 *
 * worker/scheduler/leases.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/table.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "consume/consume.h"
#include "scheduler/duty.h"

/* Leases ended in one round. */
#define MAX_ENDED	1000

/* Leases that share a transaction; fewer than PGPROC_MAX_CACHED_SUBXIDS. */
#define TOGETHER	50

/* After a loss of several jobs, the next reservation is smaller by this factor. */
#define FEWER			4

/*
 * How often a suspect job reserved alone may be lost without a charge, because its
 * consumer held more jobs.
 */
#define MAX_FREE		8

/* An expired lease. */
typedef struct Ended
{
	int64		id;
	int64		token;
	TimestampTz since;
	Oid			role;			/* of the consumer */
	bool		late;			/* the job's timeout has expired */
	bool		extended;
	int			held;			/* other jobs of the consumer; < 0: unknown */
	int			lost;			/* leases lost with this reservation */
	int			place;			/* index of the lease */
	bool		taken;			/* postponed: row locked, or role paused */
	float4		progress;		/* progress reported by the consumer */
	char		message[JOBQ_LEASE_MESSAGE];
	char		consumer[NAMEDATALEN];
} Ended;

/* The leases of one reservation, by its token. */
typedef struct Reserved
{
	int64		token;			/* first, for jobq_compare_int64() */
	int			n;				/* leases still held */
	int			before;			/* the highest earlier count */
} Reserved;

/*
 * The search for expired leases goes round the array of leases, so that leases that cannot be
 * ended do not block the rest.  search_from is the position where the next search begins, and
 * nvain counts the positions since the last lease that could be ended.
 */
static int	search_from = 0;
static int	nvain = 0;

static TimestampTz expire_leases(TimestampTz now);
static TimestampTz next_expiry(TimestampTz plan, TimestampTz now);
static int	find_expired(TimestampTz *now, Ended *ended);
static void count_lost(Ended *ended, int n);
static bool is_charged(const JobqJob *job, const Ended *lease);
static void return_uncharged(Relation rel, JobqJob *job, const Ended *lease);
static int	end_some_leases(Ended *ended, int n, TimestampTz now);
static void continue_search(int place, bool all_vain, TimestampTz now);
static void end_lease(void *arg);
static void search_again(TimestampTz at);

/*
 * Ends leases for a time slice (share.c).  At a start, first reads all rows of
 * jobq_internal.lease, at most jobq_max_leases; no job can be reserved before.
 *
 * Runs in each round, and reads the clock again if a lease seems to have expired.
 */
Duty		expire_duty = {
	.what = "end leases",
	.load = leases_load,
	.run = expire_leases,
	.next_due = next_expiry,
	.each_round = true,
};

/*
 * True if the lease exists, has expired, and is not being ended.  Takes my_db->lock
 * shared.
 */
static bool
is_over(int64 id, int64 token, TimestampTz now)
{
	JobqLease  *lease;
	bool		over;

	LWLockAcquire(my_db->lock, LW_SHARED);
	lease = jobq_lease_find(my_db, id);
	over = lease != NULL && lease->token == token &&
		lease->state == JOBQ_LEASE_HELD && lease->until <= now;
	LWLockRelease(my_db->lock);
	return over;
}

/*
 * End the expired leases.  The attempts of their jobs have failed.
 */
static TimestampTz
expire_leases(TimestampTz now)
{
	Ended		ended[MAX_ENDED];
	bool		all_vain = true;
	int			n;
	int			done = 0;

	jobq_injection_point("jobq-leases-expire");
	n = find_expired(&now, ended);
	share_begin();
	while (done < n && (done == 0 || !share_over()))
	{
		int			some = end_some_leases(&ended[done], n - done, now);

		for (int i = 0; i < some; i++)
			all_vain &= ended[done++].taken;
	}
	if (done < n || n == MAX_ENDED)
		continue_search((ended[done - 1].place + 1) % jobq_max_leases, all_vain, now);
	else
		nvain = 0;
	return DT_NOEND;
}

/*
 * Continue the search at this position in the next round.  The next round follows at
 * once, or after a second if no lease at all could be ended.  Takes my_db->lock
 * exclusively.
 */
static void
continue_search(int place, bool all_vain, TimestampTz now)
{
	int			places = (place - search_from + jobq_max_leases) % jobq_max_leases;

	nvain = all_vain ? nvain + (places == 0 ? jobq_max_leases : places) : 0;
	search_from = place;
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->leases->next_expiry = now;
	if (nvain >= jobq_max_leases)
	{
		nvain = 0;
		my_db->leases->next_expiry = now + USECS_PER_SEC;
	}
	LWLockRelease(my_db->lock);
}

/*
 * End some of the leases, from the first, in one transaction.  Returns the number
 * processed, at least one.
 */
static int
end_some_leases(Ended *ended, int n, TimestampTz now)
{
	Part		parts[TOGETHER];

	n = Min(n, TOGETHER);
	for (int i = 0; i < n; i++)
		parts[i] = (Part)
	{
		.role = ended[i].role,.arg = &ended[i]
	};
	n = share_try_together(parts, n, end_lease, now);
	for (int i = 0; i < n; i++)
	{
		bool		failed = parts[i].edata != NULL;

		if (parts[i].rests)
			search_again(share_may(parts[i].role, 0, now));
		else if (failed && parts[i].edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			search_again(later_failed(ended[i].id, parts[i].edata, now));

		/* an ack or a cancel is in progress: check the result later */
		else if (failed || ended[i].taken)
			search_again(now + USECS_PER_SEC);
		else
			later_done(ended[i].id);
		ended[i].taken |= parts[i].rests || failed;
	}
	return n;
}

/*
 * Schedule a search for expired leases at the latest at this time.  Takes my_db->lock
 * exclusively.
 */
static void
search_again(TimestampTz at)
{
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->leases->next_expiry = Min(my_db->leases->next_expiry, at);
	LWLockRelease(my_db->lock);
}

static TimestampTz
next_expiry(TimestampTz plan, TimestampTz now)
{
	return my_db->leases->next_expiry;
}

/*
 * Find expired leases, at most MAX_ENDED; the next round finds the rest.  May set *now
 * to a newer time.  Returns the number of leases.  Takes my_db->lock exclusively.
 */
static int
find_expired(TimestampTz *now, Ended *ended)
{
	TimestampTz next = DT_NOEND;
	int			n = 0;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);

	/* the clock may have been put back, and new leases granted since */
	if (my_db->leases->next_expiry <= *now)
		*now = jobq_now();
	if (my_db->leases->next_expiry > *now)
	{
		LWLockRelease(my_db->lock);
		return 0;
	}
	for (int i = 0; i < jobq_max_leases; i++)
	{
		int			place = (search_from + i) % jobq_max_leases;
		JobqLease  *lease = &my_db->leases->leases[place];
		TimestampTz at;

		if (lease->state != JOBQ_LEASE_HELD)
			continue;
		at = lease->until <= *now ? later_at(lease->id, *now) : *now;
		if (at > *now)
			next = Min(next, at);	/* could not be ended before */
		else if (lease->until <= *now && n < MAX_ENDED)
		{
			ended[n].place = place;
			ended[n].id = lease->id;
			ended[n].token = lease->token;
			ended[n].role = my_db->leases->bundles[lease->bundle].role;
			ended[n].late = lease->deadline <= *now;
			ended[n].extended = lease->extended;
			ended[n].held = my_db->leases->bundles[lease->bundle].held;
			ended[n].taken = false;
			ended[n].progress = lease->progress;
			memcpy(ended[n].message, lease->message, JOBQ_LEASE_MESSAGE);
			memcpy(ended[n].consumer,
				   my_db->leases->bundles[lease->bundle].consumer, NAMEDATALEN);
			ended[n++].since = my_db->leases->bundles[lease->bundle].since;
		}
		else
			next = Min(next, lease->until);
	}
	my_db->leases->next_expiry = next;
	if (n > 0)
		count_lost(ended, n);
	LWLockRelease(my_db->lock);
	return n;
}

/*
 * For each of these leases, count the leases with the same token.  All leases with this token
 * store the number.  Otherwise the last lease of a reservation, which may expire much later, would
 * look like a lease held alone.
 */
static void
count_lost(Ended *ended, int n)
{
	Reserved	lost[MAX_ENDED] = {0};
	int			nlost = 0;

	AssertExclusive(my_db->lock);
	for (int i = 0; i < n; i++)
		lost[i].token = ended[i].token;
	qsort(lost, n, sizeof(Reserved), jobq_compare_int64);
	for (int i = 0; i < n; i++)
		if (i == 0 || lost[i].token != lost[nlost - 1].token)
			lost[nlost++].token = lost[i].token;
	for (int pass = 0; pass < 2; pass++)
	{
		jobq_foreach_lease(lease, my_db)
		{
			Reserved   *found = lease->state == JOBQ_LEASE_PENDING ? NULL
				: bsearch(&lease->token, lost, nlost, sizeof(Reserved), jobq_compare_int64);

			if (found == NULL)
				continue;
			if (pass == 0)
			{
				found->n++;
				found->before = Max(found->before, lease->lost);
			}
			else
				lease->lost = Min(Max(found->n, found->before), PG_UINT16_MAX);
		}
	}
	for (int i = 0; i < n; i++)
	{
		Reserved   *found = bsearch(&ended[i].token, lost, nlost, sizeof(Reserved), jobq_compare_int64);

		ended[i].lost = Max(found->n, found->before);
	}
}

/*
 * End a lease, unless it was extended or has ended meanwhile.  arg is an Ended.
 */
static void
end_lease(void *arg)
{
	Ended	   *lease = (Ended *) arg;
	JobqError	error = {.sqlerrcode = ERRCODE_JOBQ_LEASE_EXPIRED,
		.message = "the consumer's lease expired"
	};
	JobqTrier	trier = {0, lease->consumer, lease->progress, lease->message};
	bool		final = false;
	Relation	rel;
	JobqJob		job;

	if (jobq_relations_if_installed() == NULL)
		return;
	lease->taken = false;		/* reset for a second call */
	jobq_lease_room(1);			/* no error may occur while the end is noted */
	rel = jobq_open_jobs();

	/* time has passed for other leases, and perhaps for a lock */
	if (!is_over(lease->id, lease->token, jobq_now()))
	{
		table_close(rel, NoLock);
		return;
	}
	error.trier = &trier;
	if (jobq_job_find(rel, lease->id, GetActiveSnapshot(), &job))
	{
		JobqHandler buffer;
		const JobqHandler *handler = jobq_handler(jobq_job_kind(&job), &buffer);

		if (lease->late)
		{
			error.sqlerrcode = ERRCODE_JOBQ_TIMEOUT;
			error.message = psprintf("the consumer took longer than the job's timeout of %d ms",
									 jobq_job_timeout(handler, &job));
			final = handler != NULL && handler->fail_on_timeout;
		}
		lease->taken = !jobq_job_delete(rel, &job);
		if (!lease->taken)
		{
			/*
			 * The holder may have released the job since the check, and
			 * another consumer may have reserved the new row.  The error
			 * rolls the delete back, and the search comes again
			 * (share_try_together()).
			 */
			if (!is_over(lease->id, lease->token, jobq_now()))
			{
				jobq_job_push_if_undone(&job);
				ereport(ERROR,
						(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						 errmsg("the lease of job " INT64_FORMAT " was ended by its holder",
								lease->id)));
			}
			jobq_log_keep_told(my_db, NULL, &job);
			if (!is_charged(&job, lease))
			{
				return_uncharged(rel, &job, lease);
				jobq_at_commit_lease(LEASE_RETRY, lease->id, lease->token, JOBQ_NONE, 0);
			}
			else
			{
				JobqFailure failure = {
					.started_at = lease->since,.error = &error,.charge = true,
					.final = final,.delay_ms = -1
				};

				jobq_at_commit_lease(jobq_job_failed(rel, &job, &failure) ? LEASE_RETRY : LEASE_END,
									 lease->id, lease->token, JOBQ_NONE, 0);
			}
		}
	}
	else
		jobq_at_commit_lease(LEASE_END, lease->id, lease->token, JOBQ_NONE, 0);
	table_close(rel, NoLock);
}

/*
 * Decide whether the lost lease is charged to the job as a failed attempt.  A job is
 * charged only if the job must have stopped its consumer.  The job must be the only job
 * of its reservation still held, and the consumer must hold no further job.  If the
 * consumer can hold several reservations, the job must also be a suspect already,
 * because more jobs may have been reserved after the job.
 *
 * Each loss either charges the job, or makes the next reservation smaller.  Two kinds of jobs are
 * charged in any case, without a look at the table: a job to be started at most once, because it may
 * have begun; and a job whose timeout has expired after an extension, because its consumer had begun
 * the job.
 *
 *	lost with			held = unknown	held = 0				held > 0
 *	other leases		no				no						no
 *	no other lease		yes				only if suspect			only a suspect lost alone
 *																MAX_FREE times before
 *
 * "held" is the number of other jobs that the consumer has reported to reserve().
 */
static bool
is_charged(const JobqJob *job, const Ended *lease)
{
	if (job_only_once(job) || (lease->late && lease->extended))
		return true;
	if (lease->lost > 1)
		return false;
	if (lease->held < 0 || (lease->held == 0 && job_suspect(job)))
		return true;
	return job_suspect(job) && job_together(job) <= -MAX_FREE;
}

/*
 * Put the job back into its queue without a charge.  Its row has been deleted.  The job
 * becomes a suspect, and is reserved with fewer jobs than before.
 *
 * The column "together" is the largest number of jobs in a reservation with this job.  A job
 * reserved alone may be lost again because its consumer held other jobs.  Then "together" counts
 * these losses downwards: 1, 0, -1, ... -MAX_FREE.
 */
static void
return_uncharged(Relation rel, JobqJob *job, const Ended *lease)
{
	int64		company = lease->lost + (int64) Max(lease->held, 0);
	int			together = Min(Max(company / FEWER, 1), PG_INT16_MAX);

	if (job_suspect(job) && lease->held > 0)
		together = job_together(job) > 1 ? job_together(job) / 2 : job_together(job) - 1;
	else if (job_suspect(job))
		together = Min(together, Max(job_together(job), 1));
	JOB_SET(job, JOB_TOGETHER, Int16GetDatum(together));
	jobq_log_say(job, psprintf("given back without a charge: its consumer was lost, which held " INT64_FORMAT " jobs", company));
	jobq_job_insert_again(rel, job);
	jobq_state_changed(job, jobq_waiting_state(job, jobq_now()));
}
