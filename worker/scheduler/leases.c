/*-------------------------------------------------------------------------
 *
 * leases.c
 *	  The scheduler's part in the leases of consumers: ends those whose time is
 *	  over, and removes rows that are not needed.  After a restart it makes them
 *	  again (leases_load.c).
 *
 * worker/scheduler/leases.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "consume/consume.h"
#include "scheduler/duty.h"

/* Leases that are ended in one round. */
#define MAX_ENDED	1000

/* As many of them share a transaction; fewer than PGPROC_MAX_CACHED_SUBXIDS. */
#define TOGETHER	50

/* Of jobs that were lost together, so many times fewer are held together then. */
#define FEWER			4

/*
 * So often a job that is reserved alone is lost without a charge, because its consumer
 * held others.
 */
#define MAX_FREE		8

/* Rows of finished reservations are collected this often. */
#define GARBAGE_PAUSE	USECS_PER_SEC

/* A lease whose time is over. */
typedef struct Ended
{
	int64		id;
	int64		token;
	TimestampTz since;
	Oid			role;			/* the consumer's */
	bool		late;			/* the job's timeout is over */
	bool		extended;
	int			held;			/* other jobs of the consumer; below 0: not
								 * told */
	int			lost;			/* leases of the same reservation that were
								 * held when one of them ran out */
	int			place;
	bool		taken;			/* it is left for later: somebody else has its
								 * job's row, or its role rests */
	float4		progress;		/* how far the consumer was */
	char		message[JOBQ_LEASE_MESSAGE];
	char		consumer[NAMEDATALEN];
} Ended;

/* The leases of one reservation, by its token. */
typedef struct Reserved
{
	int64		token;			/* first: compare_ids() looks at it */
	int			n;				/* that are held */
	int			before;			/* the same as it was, at most */
} Reserved;

/*
 * Where the search goes on, so that leases which cannot be ended are not in the way of
 * others; and how many places were passed since one could be.
 */
static int	hand = 0;
static int	passed = 0;

static TimestampTz expire(TimestampTz now);
static TimestampTz next_expiry(TimestampTz plan, TimestampTz now);
static int	find_ended(TimestampTz *now, Ended *ended);
static void count_lost(Ended *ended, int n);
static bool is_charged(const JobqJob *job, const Ended *lease);
static void give_back(Relation rel, JobqJob *job, const Ended *lease);
static int	end_some(Ended *ended, int n, TimestampTz now);
static void go_on(int place, bool in_vain, TimestampTz now);
static void end(void *arg);
static void come_again(TimestampTz at);
static TimestampTz collect(TimestampTz now);
static TimestampTz next_collect(TimestampTz plan, TimestampTz now);
static bool is_over(int64 id, int64 token, TimestampTz now);
static void delete_unknown(Relation rel);
static int	compare_ids(const void *a, const void *b);
static int64 *known_rows(int *n);
static void delete_row(Relation rel, const JobqLeaseRow *row);

/*
 * Ends leases for a slice of time (share.c).  After a start it first reads all rows of
 * jobq_internal.lease, at most "jobq.max_leases", and nothing may be reserved before.
 *
 * Each round reads the clock again if a lease seems to be over.
 */
Duty		expire_duty = {
	.what = "end leases",
	.load = leases_load,
	.run = expire,
	.next_due = next_expiry,
	.each_round = true,
};

/*
 * Deletes JOBQ_LEASE_GARBAGE rows, or if there were more, all rows that are not
 * needed: no more than were reserved since the last time.
 */
Duty		collect_duty = {
	.what = "remove rows of leases",
	.run = collect,
	.next_due = next_collect,
};

/*
 * Is this lease still there, and its time over, and is nobody ending it?
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
 * End the leases whose time is over: the attempt has failed.
 */
static TimestampTz
expire(TimestampTz now)
{
	Ended		ended[MAX_ENDED];
	bool		in_vain = true;
	int			n;
	int			done = 0;

	jobq_injection_point("jobq-leases-expire");
	n = find_ended(&now, ended);
	share_begin();
	while (done < n && (done == 0 || !share_over()))
	{
		int			some = end_some(&ended[done], n - done, now);

		for (int i = 0; i < some; i++)
			in_vain &= ended[done++].taken;
	}
	if (done < n || n == MAX_ENDED)
		go_on((ended[done - 1].place + 1) % jobq_max_leases, in_vain, now);
	else
		passed = 0;
	return DT_NOEND;
}

/*
 * There are more than one round has time for: have the next one begin at this place, at
 * once, or after a pause if none of all there are can be ended now.
 */
static void
go_on(int place, bool in_vain, TimestampTz now)
{
	int			places = (place - hand + jobq_max_leases) % jobq_max_leases;

	passed = in_vain ? passed + (places == 0 ? jobq_max_leases : places) : 0;
	hand = place;
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->leases->next_expiry = now;
	if (passed >= jobq_max_leases)
	{
		passed = 0;
		my_db->leases->next_expiry = now + USECS_PER_SEC;
	}
	LWLockRelease(my_db->lock);
}

/*
 * End some of the leases, the first ones of the n, in one transaction.  Returns how
 * many were dealt with, at least one.
 */
static int
end_some(Ended *ended, int n, TimestampTz now)
{
	Part		parts[TOGETHER];

	n = Min(n, TOGETHER);
	for (int i = 0; i < n; i++)
		parts[i] = (Part)
	{
		.role = ended[i].role,.arg = &ended[i]
	};
	n = share_try_together(parts, n, end, now);
	for (int i = 0; i < n; i++)
	{
		bool		failed = parts[i].edata != NULL;

		if (parts[i].rests)
			come_again(share_may(parts[i].role, 0, now));
		else if (failed && parts[i].edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			come_again(later_failed(ended[i].id, parts[i].edata, now));

		/* an ack or a cancel is at work: see later what has become of it */
		else if (failed || ended[i].taken)
			come_again(now + USECS_PER_SEC);
		else
			later_done(ended[i].id);
		ended[i].taken |= parts[i].rests || failed;
	}
	return n;
}

/*
 * There is a lease that wants to be ended then.
 */
static void
come_again(TimestampTz at)
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
 * The leases whose time is over now, or some of them; the others are looked for
 * in the next round.
 */
static int
find_ended(TimestampTz *now, Ended *ended)
{
	TimestampTz next = DT_NOEND;
	int			n = 0;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);

	/* the clock may have been put back since, and leases granted by it */
	if (my_db->leases->next_expiry <= *now)
		*now = jobq_now();
	if (my_db->leases->next_expiry > *now)
	{
		LWLockRelease(my_db->lock);
		return 0;
	}
	for (int i = 0; i < jobq_max_leases; i++)
	{
		int			place = (hand + i) % jobq_max_leases;
		JobqLease  *lease = &my_db->leases->leases[place];
		TimestampTz at;

		if (lease->id == 0 || lease->state != JOBQ_LEASE_HELD)
			continue;
		at = lease->until <= *now ? later_at(lease->id, *now) : *now;
		if (at > *now)
			next = Min(next, at);	/* it could not be ended */
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
 * Count how many leases of the same reservation are held with each of these.  The leases
 * keep the number, so that the last of them, which may end much later, is not taken for
 * one that was held alone.  Wants db->lock.
 */
static void
count_lost(Ended *ended, int n)
{
	Reserved	lost[MAX_ENDED] = {0};
	int			nlost = 0;

	for (int i = 0; i < n; i++)
		lost[i].token = ended[i].token;
	qsort(lost, n, sizeof(Reserved), compare_ids);
	for (int i = 0; i < n; i++)
		if (i == 0 || lost[i].token != lost[nlost - 1].token)
			lost[nlost++].token = lost[i].token;
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < jobq_max_leases; i++)
		{
			JobqLease  *lease = &my_db->leases->leases[i];
			Reserved   *found = lease->id == 0 || lease->state == JOBQ_LEASE_PENDING ? NULL
				: bsearch(&lease->token, lost, nlost, sizeof(Reserved), compare_ids);

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
	for (int i = 0; i < n; i++)
	{
		Reserved   *found = bsearch(&ended[i].token, lost, nlost, sizeof(Reserved), compare_ids);

		ended[i].lost = Max(found->n, found->before);
	}
}

/*
 * End a lease, unless it was extended or has ended meanwhile.
 */
static void
end(void *arg)
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
	lease->taken = false;		/* if it is done anew */
	jobq_lease_room(1);			/* nothing may fail in the midst of noting it */
	rel = jobq_open_jobs();

	/* others were seen to meanwhile, and that may have waited for a lock */
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
			/* it may have been given back since, and be another's */
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
				give_back(rel, &job, lease);
				jobq_at_commit_lease(LEASE_RETRY, lease->id, lease->token, JOBQ_NONE, 0);
			}
			else
				jobq_at_commit_lease(jobq_job_failed(rel, &job, lease->since,
													 &error, true, final, -1)
									 ? LEASE_RETRY : LEASE_END,
									 lease->id, lease->token, JOBQ_NONE, 0);
		}
	}
	else
		jobq_at_commit_lease(LEASE_END, lease->id, lease->token, JOBQ_NONE, 0);
	table_close(rel, NoLock);
}

/*
 * Is an attempt charged for the lease?  Only where it is the job that has kept its
 * consumer from ending the lease: if it was the only job of its reservation that was
 * still held, and the consumer, if it holds jobs of several, held no other.  Then the job
 * is a suspect: else other jobs may have been taken after it.
 *
 * So each loss either charges the job, or has it tried in a smaller company.  A job that
 * is to begin once at most is charged without proof.
 */
static bool
is_charged(const JobqJob *job, const Ended *lease)
{
	if (job_only_once(job) || (lease->late && lease->extended))
		return true;			/* it may have begun; what was extended has */
	if (lease->lost > 1)
		return false;
	if (lease->held < 0 || (lease->held == 0 && job_suspect(job)))
		return true;
	return job_suspect(job) && job_together(job) <= -MAX_FREE;
}

/*
 * Put the job, whose row is deleted, back to its queue without a charge: as a suspect, to
 * be reserved with fewer jobs than before.
 */
static void
give_back(Relation rel, JobqJob *job, const Ended *lease)
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

/*
 * Delete the rows of jobq_internal.lease that no lease needs any more.
 */
static TimestampTz
collect(TimestampTz now)
{
	static bool forgotten = false;	/* the last time did not come to its end */
	uint32		n;
	JobqLeaseRow *garbage = palloc(sizeof(JobqLeaseRow) * JOBQ_LEASE_GARBAGE);
	bool		all;
	Relation	rel;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	n = Min(my_db->leases->ngarbage, JOBQ_LEASE_GARBAGE);
	all = forgotten || my_db->leases->ngarbage > JOBQ_LEASE_GARBAGE;
	memcpy(garbage, my_db->leases->garbage, sizeof(JobqLeaseRow) * n);
	my_db->leases->ngarbage = 0;
	LWLockRelease(my_db->lock);
	if (n == 0 && !forgotten)
		return now + GARBAGE_PAUSE;

	forgotten = true;
	process_begin_transaction();
	rel = jobq_open_table(JOBQ_LEASE_TABLE, RowExclusiveLock);
	for (uint32 i = 0; i < n; i++)
		delete_row(rel, &garbage[i]);
	if (all)
		delete_unknown(rel);	/* some are not in the list */
	table_close(rel, NoLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
	forgotten = false;
	return now + GARBAGE_PAUSE;
}

/*
 * Delete the rows that no bundle knows.  The snapshot is older than the look at
 * the bundles: whose row it shows had a bundle by then.
 */
static void
delete_unknown(Relation rel)
{
	int			n;
	int64	   *known = known_rows(&n);
	TableScanDesc scan = jobq_table_beginscan(rel, GetActiveSnapshot());
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		JobqLeaseRow row = {.ctid = tuple->t_self};
		bool		isnull;

		row.id = DatumGetInt64(heap_getattr(tuple, LEASE_ID,
											RelationGetDescr(rel), &isnull));
		if (bsearch(&row.id, known, n, sizeof(int64), compare_ids) == NULL)
			delete_row(rel, &row);
	}
	table_endscan(scan);
	pfree(known);
}

static int
compare_ids(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return x < y ? -1 : x > y;
}

/*
 * The ids of the rows that bundles know, in order.
 */
static int64 *
known_rows(int *n)
{
	int64	   *ids = palloc(sizeof(int64) * JOBQ_MAX_BUNDLES);

	*n = 0;
	LWLockAcquire(my_db->lock, LW_SHARED);
	for (int i = 0; i < JOBQ_MAX_BUNDLES; i++)
	{
		JobqLeaseBundle *bundle = &my_db->leases->bundles[i];

		if (bundle->outstanding > 0 && ItemPointerIsValid(&bundle->row.ctid))
			ids[(*n)++] = bundle->row.id;
	}
	LWLockRelease(my_db->lock);
	qsort(ids, *n, sizeof(int64), compare_ids);
	return ids;
}

/*
 * Some rows are removed after a pause, so that there are more of them at a time;
 * many at once.
 */
static TimestampTz
next_collect(TimestampTz plan, TimestampTz now)
{
	if (my_db->leases->ngarbage > JOBQ_LEASE_GARBAGE / 2)
		return now;
	return my_db->leases->ngarbage > 0 ? plan : DT_NOEND;
}

/*
 * Delete the row, if it is still there: where it was, or, if the table was
 * written anew (VACUUM FULL), where its id finds it.
 */
static void
delete_row(Relation rel, const JobqLeaseRow *row)
{
	HeapTupleData tuple;
	Buffer		buffer;
	TM_FailureData tmfd;
	bool		found = false;

	tuple.t_self = row->ctid;
	if (ItemPointerGetBlockNumber(&row->ctid) < RelationGetNumberOfBlocks(rel) &&
		heap_fetch(rel, GetActiveSnapshot(), &tuple, &buffer, false))
	{
		bool		isnull;

		found = DatumGetInt64(heap_getattr(&tuple, LEASE_ID,
										   RelationGetDescr(rel),
										   &isnull)) == row->id;
		ReleaseBuffer(buffer);
	}
	if (!found)
	{
		ScanKeyData key;
		SysScanDesc scan;
		HeapTuple	moved;

		ScanKeyInit(&key, LEASE_ID, BTEqualStrategyNumber, F_INT8EQ,
					Int64GetDatum(row->id));
		scan = systable_beginscan(rel, jobq_index(rel, JOBQ_LEASE_PKEY), true,
								  GetActiveSnapshot(), 1, &key);
		moved = systable_getnext(scan);
		found = HeapTupleIsValid(moved);
		if (found)
			tuple.t_self = moved->t_self;
		systable_endscan(scan);
	}
	if (found)
		(void) jobq_heap_delete(rel, &tuple.t_self, GetCurrentCommandId(true),
								false, &tmfd);
}
