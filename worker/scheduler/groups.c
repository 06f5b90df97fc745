/*-------------------------------------------------------------------------
 *
 * groups.c
 *	  The scheduler's part in groups: it reads the jobs of those that had too
 *	  many to be parked, and knows after a start which wait for one that has
 *	  begun before.
 *
 * worker/scheduler/groups.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"

/* Groups that are read at a time, and rows of them that are passed over. */
#define MAX_REFILLS	64
#define MAX_PASSED	100000

/* Which jobs have their turn again is read so often at most, in microseconds ... */
#define OWNERS_PAUSE	USECS_PER_SEC

/* ... and so many of them for each place of a group. */
#define OWNERS_PER_GROUP	4

static TimestampTz owners_read_at = 0;

static void remember_past(const JobqLimiter *limiter, TimestampTz now);
static void read_owners(TimestampTz now, int64 most);
static void refill_group(int64 id, int32 priority, TimestampTz run_at,
						 int64 job_id, TimestampTz now);

/*
 * After a start of the server: how empty the groups' own buckets would be, and
 * which of them would rest; as limits.c does for queues and kinds.  As many
 * groups as there are places for, those first that have had most.
 */
static void
remember_past(const JobqLimiter *limiter, TimestampTz now)
{
	bool		paced = limiter->rate.by_group && limiter->rate.per_us > 0;
	bool		throttled = limiter->throttle.by_group &&
		limiter->throttle.failures > 0;
	uint64		n;

	if (limiter->queue_id == 0 || (!paced && !throttled))
		return;
	n = past_read(limiter, "group_key",
				  paced ? past_bucket_since(&limiter->rate, now) : DT_NOEND,
				  throttled ? now - limiter->throttle.window : DT_NOEND,
				  jobq_max_groups + 1);
	for (uint64 i = 0; i < n; i++)
	{
		Past		past = past_row(i);
		JobqGroup  *group;
		int64		id;

		if (past.name == NULL)
			continue;			/* those that have no group */
		id = jobq_group_id(limiter->queue_id, past.name);
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		group = jobq_group_make(my_db, id,
								jobq_limiter_find(my_db, limiter->queue_id, 0),
								InvalidOid, now);	/* nobody knows whose */
		if (group != NULL && paced)
			group->pace.tokens = Max(group->pace.tokens - past.started, 0);
		if (group != NULL && past.failures > 0)
			jobq_pace_failed(&limiter->throttle, &group->pace, past.failures,
							 past.failed_at);
		LWLockRelease(my_db->lock);
		if (group == NULL)
			break;
	}
}

/*
 * Which jobs their groups wait for, as the table has it; so many rows of it.  A group
 * that waits for another goes on with that, and what runs has no need to be waited for.
 *
 * All jobs are looked through, as there is no index of those that have a lease in their
 * row (procedure.c); but not where there are no groups.
 */
static void
read_owners(TimestampTz now, int64 most)
{
	static SPIPlanPtr any = NULL;
	static const Oid types[] = {INT8OID, TIMESTAMPTZOID};
	Datum		values[] = {Int64GetDatum(most), TimestampTzGetDatum(now)};
	uint64		n;
	Relation	rel;

	if (jobq_query_kept(&any, "SELECT FROM jobq.job WHERE group_id IS NOT NULL LIMIT 1",
						0, NULL, NULL, NULL, SPI_OK_SELECT) == 0)
		return;
	n = jobq_query("SELECT j.group_id, j.id, j.queue_id, j.role, j.group_held"
				   " FROM jobq.job j LEFT JOIN jobq.queue q ON q.id = j.queue_id"
				   " WHERE j.group_id IS NOT NULL AND NOT j.dormant"
				   " AND (j.lease_token IS NOT NULL OR j.group_held IS NOT NULL"
				   "  AND coalesce(jobq_internal.group_waits_until(j.group_held, q.group_patience) > $2, true))"
				   " ORDER BY j.id LIMIT $1",
				   2, types, values, NULL, SPI_OK_SELECT);
	rel = jobq_open_jobs();
	for (uint64 i = 0; i < n; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		int64		id = DatumGetInt64(jobq_column(row, desc, 1, INT8OID, NULL));
		int64		job = DatumGetInt64(jobq_column(row, desc, 2, INT8OID, NULL));
		int32		queue_id = DatumGetInt32(jobq_column(row, desc, 3, INT4OID, NULL));
		bool		isnull;
		TimestampTz since = DatumGetTimestampTz(jobq_column(row, desc, 5, TIMESTAMPTZOID, &isnull));
		const JobqLimiter *policy;
		JobqGroup  *group = NULL;
		uint16		limiter;
		bool		owner;
		JobqJob		found;

		if (isnull)
			since = now;
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		limiter = jobq_limiter_find(my_db, queue_id, 0);
		policy = limiter == JOBQ_NO_LIMITER ? NULL : &my_db->limits->limiters[limiter];
		if (policy == NULL ||
			((jobq_group_shared(id) ||
			  (policy->group_wait && policy->group_max_running == 1)) &&
			 (policy->group_patience == 0 || now < since + policy->group_patience)))
			group = jobq_group_make(my_db, id, limiter,
									DatumGetObjectId(jobq_column(row, desc, 4, REGROLEOID, NULL)),
									now);
		owner = group != NULL && jobq_group_read(group, job, queue_id, since);
		LWLockRelease(my_db->lock);
		if (owner && jobq_job_find(rel, job, GetActiveSnapshot(), &found))
			jobq_job_push(&found);
	}
	table_close(rel, NoLock);
}

/*
 * Groups that wait for a job which has begun before, or whose own buckets are
 * not full.
 */
void
groups_restore(void)
{
	TimestampTz now = jobq_now();

	SPI_connect();
	read_owners(now, PG_INT64_MAX);
	for (int i = 0; i < my_db->limits->nlimiters; i++)
		if (my_db->limits->limiters[i].in_use)
			remember_past(&my_db->limits->limiters[i], now);
	SPI_finish();
}

/*
 * When the owners are to be read again, which is asked for.
 */
TimestampTz
groups_owners_due(TimestampTz now)
{
	if (!my_db->groups->owners)
		return DT_NOEND;
	return now < owners_read_at ? now
		: Max(now, owners_read_at + OWNERS_PAUSE);
}

/*
 * Jobs that had lost their turn may have it again: a queue has more patience than
 * before, or the clock was put back.  Or a group has waited for two jobs, and the first
 * is over.
 */
void
groups_read_owners(void)
{
	owners_read_at = jobq_now();
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_groups_read_begin(my_db);
	LWLockRelease(my_db->lock);
	process_begin_transaction();
	SPI_connect();
	read_owners(jobq_now(), (int64) jobq_max_groups * OWNERS_PER_GROUP);
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_groups_read_end(my_db, jobq_now());
	LWLockRelease(my_db->lock);

	/* one may have come to its end since we have read it */
	groups_sweep();
}

/*
 * Read the jobs of the groups that have asked for it.
 */
void
groups_refill(void)
{
	JobqGroup	wanted[MAX_REFILLS];
	TimestampTz now;
	int			n = 0;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	now = jobq_now();			/* what was dropped until now is due by then */
	my_db->groups->refill = false;
	for (int i = 0; i < jobq_max_groups; i++)
	{
		JobqGroup  *group = &my_db->groups->groups[i];

		if (group->id == 0 || !group->refill)
			continue;
		if (n == MAX_REFILLS)
		{
			my_db->groups->refill = true;
			break;
		}
		group->dropped = false;
		wanted[n++] = *group;
	}
	LWLockRelease(my_db->lock);
	for (int i = 0; i < n; i++)
		refill_group(wanted[i].id, wanted[i].cursor_priority,
					 wanted[i].cursor_run_at, wanted[i].cursor_id, now);
}

/*
 * Read the due jobs of a group that come after this place.
 */
static void
refill_group(int64 id, int32 priority, TimestampTz run_at, int64 job_id,
			 TimestampTz now)
{
	JobqPush	last = {.priority = priority,.key = {run_at, job_id}};
	JobqPush	rows[JOBQ_MAX_PARKED];
	JobqWakeList wake = {0};
	JobqGroup  *group;
	int			nrows = 0;
	int			passed = 0;
	bool		all = true;
	Relation	rel;
	Relation	index;
	TupleTableSlot *slot;
	IndexScanDesc scan;
	ScanKeyData keys[2];
	ScanKeyData members[3];

	process_begin_transaction();
	rel = jobq_open_jobs();
	index = jobq_open_index(rel, JOBQ_JOB_GROUP);
	slot = table_slot_create(rel, NULL);
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	ScanKeyEntryInitialize(&members[0], SK_ROW_MEMBER, 2,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_BTINT4CMP, Int32GetDatum(priority));
	ScanKeyEntryInitialize(&members[1], SK_ROW_MEMBER, 3,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_TIMESTAMPTZ_CMP, TimestampTzGetDatum(run_at));
	ScanKeyEntryInitialize(&members[2], SK_ROW_MEMBER | SK_ROW_END, 4,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_BTINT8CMP, Int64GetDatum(job_id));
	MemSet(&keys[1], 0, sizeof(ScanKeyData));
	keys[1].sk_flags = SK_ROW_HEADER;
	keys[1].sk_attno = 2;
	keys[1].sk_strategy = BTGreaterStrategyNumber;
	keys[1].sk_argument = PointerGetDatum(members);

	scan = jobq_index_beginscan(rel, index, GetActiveSnapshot(), 2);
	index_rescan(scan, keys, 2, NULL, 0);
	while (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		bool		dormant;
		bool		leased;

		CHECK_FOR_INTERRUPTS();
		if (nrows == JOBQ_MAX_PARKED || passed == MAX_PASSED)
		{
			all = false;
			break;
		}
		if (index_read_row(slot, NULL, &last, &dormant, &leased) &&
			last.key.run_at <= now)
			rows[nrows++] = last;
		else
			passed++;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	jobq_injection_point("jobq-group-read");

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	group = jobq_group_find(my_db, id);
	if (group != NULL)
		jobq_group_refilled(my_db, group, rows, nrows, all ? NULL : &last, now,
							&wake);
	jobq_unlock(my_db, &wake);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * The safety net: a group shall not wait for a job that is not in it, nor, unless that has
 * begun before, for one that stands elsewhere by now, or is not due.
 */
void
groups_sweep(void)
{
	JobqGroup  *waiting;
	int			n = 0;

	if (my_db->groups->ngroups == 0)
		return;
	waiting = palloc(sizeof(JobqGroup) * jobq_max_groups);
	LWLockAcquire(my_db->lock, LW_SHARED);
	for (int i = 0; i < jobq_max_groups; i++)
	{
		JobqGroup  *group = &my_db->groups->groups[i];

		if (group->id != 0 && (group->owner != 0 || group->called != 0))
			waiting[n++] = *group;
	}
	LWLockRelease(my_db->lock);
	if (n > 0)
	{
		Relation	rel;
		TimestampTz now = jobq_now();

		process_begin_transaction();
		rel = jobq_open_jobs();
		for (int i = 0; i < n; i++)
		{
			const JobqGroup *group = &waiting[i];
			JobqJob		job;

			if (group->owner != 0 &&
				(!jobq_job_find(rel, group->owner, GetActiveSnapshot(), &job) ||
				 job_group(&job) != group->id))
				jobq_at_commit_group_end(group->id, group->owner);
			if (group->called == 0)
				continue;
			if (!jobq_job_find(rel, group->called, GetActiveSnapshot(), &job) ||
				job_group(&job) != group->id)
				jobq_at_commit_group_end(group->id, group->called);
			else if (job_run_at(&job) > now ||
					 job_run_at(&job) != group->called_run_at ||
					 job_priority(&job) != group->called_priority)
				jobq_at_commit_group_moved(group->id, group->called);
		}
		table_close(rel, NoLock);
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	pfree(waiting);
}
