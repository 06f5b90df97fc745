/*-------------------------------------------------------------------------
 *
 * groups.c
 *	  Groups of jobs: reads the jobs of groups that were too many to be parked
 *	  in memory.  After a start, finds the groups that wait for a job begun
 *	  before.
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

/* Groups read in one run, and rows of a group passed over. */
#define MAX_REFILLS	64
#define MAX_PASSED	100000

/*
 * The pause between two readings of owners (microseconds), and the pause as a multiple
 * of the duration of a reading.
 */
#define BETWEEN_OWNERS	USECS_PER_SEC
#define OWNERS_SHARE	20

/* Owners read for each group slot. */
#define OWNERS_PER_GROUP	4

/* A job for which its group may wait, as in the table. */
typedef struct GroupOwner
{
	int64		group;
	int64		job;
	int32		queue_id;
	Oid			role;
	TimestampTz since;
	bool		leased;
} GroupOwner;

typedef struct GroupOwners
{
	GroupOwner *rows;
	int64		n;
	int64		max;
} GroupOwners;

/* The time of the last reading, and the pause afterwards. */
typedef struct Reading
{
	bool		wanted;			/* requested, and not yet completed */
	JobqSteady	due;			/* not before */
} Reading;

static Reading held_reading;
static Reading leased_reading;

static void reading_took(Reading *reading, instr_time start);
static void refill_group(int64 id, int32 priority, TimestampTz run_at,
						 int64 job_id, TimestampTz now);

static GroupOwner *
add_owner(GroupOwners *owners)
{
	if (owners->n == owners->max)
	{
		owners->max *= 2;
		owners->rows = repalloc_huge(owners->rows, sizeof(GroupOwner) * owners->max);
	}
	return &owners->rows[owners->n++];
}

/*
 * Find the jobs that have begun before and still hold their group.  The scan always
 * uses the index, regardless of the statistics of the table.
 */
static void
find_held(Relation rel, GroupOwners *owners, TimestampTz now)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(rel, jobq_index(rel, JOBQ_JOB_GROUP_HELD), true,
										  snapshot, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		JobqJob		job;
		GroupOwner *owner;

		CHECK_FOR_INTERRUPTS();
		heap_deform_tuple(tuple, RelationGetDescr(rel), job.values, job.nulls);
		if (job_group(&job) == 0 || DatumGetBool(JOB(&job, JOB_DORMANT)) ||
			!jobq_group_is_held_by(&job, now))
			continue;
		owner = add_owner(owners);
		owner->group = job_group(&job);
		owner->job = job_id(&job);
		owner->queue_id = job_queue_id(&job);
		owner->role = job_role(&job);
		owner->since = job_held_since(&job);
		owner->leased = !JOB_ISNULL(&job, JOB_LEASE_TOKEN);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
}

/*
 * Find the jobs with a lease in their row, which means they are running (procedure.c).
 * No index covers them, because a lease changes while its job runs.  The query may read
 * all jobs with a group, or all jobs, unless no job has a group.
 */
static void
find_leased(GroupOwners *owners, TimestampTz now)
{
	static SPIPlanPtr any = NULL;
	uint64		n;

	if (jobq_query_kept(&any, "SELECT FROM jobq_internal.job WHERE group_id IS NOT NULL LIMIT 1",
						0, NULL, NULL, NULL, SPI_OK_SELECT) == 0)
		return;
	n = jobq_query("SELECT group_id, id, queue_id, role::oid FROM jobq_internal.job"
				   " WHERE group_id IS NOT NULL AND NOT dormant"
				   " AND lease_token IS NOT NULL AND group_held IS NULL",
				   0, NULL, NULL, NULL, SPI_OK_SELECT);
	for (uint64 i = 0; i < n; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		GroupOwner *owner = add_owner(owners);

		owner->group = DatumGetInt64(jobq_column(row, desc, 1, INT8OID, NULL));
		owner->job = DatumGetInt64(jobq_column(row, desc, 2, INT8OID, NULL));
		owner->queue_id = DatumGetInt32(jobq_column(row, desc, 3, INT4OID, NULL));
		owner->role = DatumGetObjectId(jobq_column(row, desc, 4, OIDOID, NULL));
		owner->since = now;
		owner->leased = true;
	}
}

static int
compare_owners(const void *a, const void *b)
{
	const GroupOwner *x = a;
	const GroupOwner *y = b;

	return x->job == y->job ? 0 : x->job < y->job ? -1 : 1;
}

/*
 * Read the owners: the jobs for which groups wait.  "most" limits the number of rows
 * processed.  With "leased", running jobs are read as well.  A group already waiting
 * for a job keeps this job.  Takes my_db->lock exclusively.
 */
static void
read_owners(TimestampTz now, int64 most, bool leased)
{
	Relation	rel = jobq_open_jobs();
	GroupOwners owners = {.max = 64};
	instr_time	start;

	owners.rows = palloc(sizeof(GroupOwner) * owners.max);
	if (leased)
	{
		INSTR_TIME_SET_CURRENT(start);
		find_leased(&owners, now);
		reading_took(&leased_reading, start);
	}

	/* with a later snapshot: a job may have stopped running meanwhile */
	INSTR_TIME_SET_CURRENT(start);
	find_held(rel, &owners, now);
	reading_took(&held_reading, start);
	qsort(owners.rows, owners.n, sizeof(GroupOwner), compare_owners);
	for (int64 i = 0; i < Min(owners.n, most); i++)
	{
		const GroupOwner *row = &owners.rows[i];
		const JobqLimiter *policy;
		JobqGroup  *group = NULL;
		uint16		limiter;
		bool		owner;
		JobqJob		found;

		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		limiter = jobq_limiter_find(my_db, row->queue_id, 0);
		policy = limiter == JOBQ_NO_LIMITER ? NULL : &my_db->limits->limiters[limiter];
		if (policy == NULL ||
			((jobq_group_shared(row->group) ||
			  (policy->group_wait && policy->group_max_running == 1)) &&
			 (policy->group_patience == 0 || now < row->since + policy->group_patience)))
			group = jobq_group_make(my_db, row->group, limiter, row->role, now);
		owner = group != NULL && jobq_group_read(group, row->job, row->queue_id, row->since);

		/*
		 * A leased job without a worker must be read again when the current
		 * owner ends.
		 */
		if (row->leased && group != NULL && group->others == JOBQ_OTHERS_KNOWN &&
			!jobq_slot_names_job(my_db, row->job))
			my_db->groups->unnoted = true;
		LWLockRelease(my_db->lock);
		if (owner && jobq_job_find(rel, row->job, GetActiveSnapshot(), &found))
			jobq_job_push(&found);
	}
	pfree(owners.rows);
	table_close(rel, NoLock);
}

/*
 * Restore the groups that wait for a job begun before.  Called once at a server start.
 */
void
groups_restore(void)
{
	TimestampTz now = jobq_now();

	SPI_connect();
	read_owners(now, PG_INT64_MAX, true);
	SPI_finish();
}

static void
reading_took(Reading *reading, instr_time start)
{
	reading->due = jobq_steady() + Max(BETWEEN_OWNERS,
									   OWNERS_SHARE * jobq_elapsed(start));
}

static TimestampTz
reading_due(const Reading *reading, TimestampTz now)
{
	return jobq_steady_due(reading->due, now);
}

/*
 * Return when to read the owners again, or DT_NOEND if not requested.
 */
TimestampTz
groups_owners_due(TimestampTz now)
{
	TimestampTz due = DT_NOEND;

	if (my_db->groups->owners || held_reading.wanted)
		due = reading_due(&held_reading, now);
	if (my_db->groups->unnoted || leased_reading.wanted)
		due = Min(due, reading_due(&leased_reading, now));
	return due;
}

/*
 * Read the owners again.  Reasons: A queue has a longer patience than before, or the
 * clock was put back, so jobs may hold their group again.  A group has waited for two
 * jobs, and the first is over.  Jobs have come without a note in shared memory.  Only
 * jobs without a note may have begun unnoticed; until they are read, no group may
 * assume to have no further owner.
 *
 * Takes my_db->lock exclusively.  Runs its own transaction.
 */
void
groups_read_owners(void)
{
	TimestampTz now = jobq_now();
	bool		leased;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	held_reading.wanted = true;
	leased_reading.wanted |= my_db->groups->unnoted;
	my_db->groups->unnoted = false;
	jobq_groups_read_begin(my_db);
	LWLockRelease(my_db->lock);
	leased = leased_reading.wanted && reading_due(&leased_reading, now) <= now;
	process_begin_transaction();
	SPI_connect();
	read_owners(jobq_now(), (int64) jobq_max_groups * OWNERS_PER_GROUP, leased);
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	held_reading.wanted = false;
	leased_reading.wanted &= !leased;
	if (!leased_reading.wanted)
		jobq_groups_read_end(my_db, jobq_now());
	else
		jobq_groups_look(my_db, jobq_now());
	LWLockRelease(my_db->lock);

	/* an owner may have ended since the reading */
	groups_sweep();
}

/*
 * Read the jobs of the groups with a refill request.  Takes my_db->lock exclusively.
 */
void
groups_refill(void)
{
	JobqGroup	wanted[MAX_REFILLS];
	TimestampTz now;
	int			n = 0;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	now = jobq_now();			/* jobs dropped until now are due by then */
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
 * Read the due jobs of a group after this position.  Runs its own transaction, and
 * takes my_db->lock exclusively.
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
	{
		JobqRefill	refill = {rows, nrows, all ? NULL : &last};

		jobq_group_refilled(my_db, group, &refill, now, &wake);
	}
	jobq_unlock(my_db, &wake);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * Safety check: a group must not wait for a job outside the group.  A called job must
 * also be due and unchanged in its position.  Takes my_db->lock shared.
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
