/*-------------------------------------------------------------------------
 *
 * leases_load.c
 *	  Restores the leases of consumers from jobq_internal.lease after a restart.
 *
 * Sessions work meanwhile, and may cancel jobs.  At commit, they end only leases already
 * restored.  After the restore, leases of deleted jobs are therefore removed
 * (leases_forget.c).
 *
 * worker/scheduler/leases_load.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "consume/consume.h"
#include "scheduler/duty.h"

/*
 * The shortest remaining time of a lease after a start, in microseconds; less for
 * leases granted for a shorter time.
 */
#define GRACE			(30 * USECS_PER_SEC)

static int	load_row(Relation jobs, HeapTuple tuple, TupleDesc desc,
					 TimestampTz now);

/*
 * Restore the leases in jobq_internal.lease.  Done once in the lifetime of the shared
 * memory, before any job is reserved.  Takes my_db->lock exclusively.
 */
TimestampTz
leases_load(TimestampTz now)
{
	const JobqRelations *rels;
	Relation	rel;
	Relation	jobs;
	TableScanDesc scan;
	HeapTuple	tuple;
	int			nlost = 0;

	process_begin_transaction();
	rels = jobq_relations();
	jobs = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	if (my_db->leases->jobs != rels->job)
	{
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		jobq_leases_clear(my_db);
		my_db->leases->jobs = rels->job;
		LWLockRelease(my_db->lock);
	}
	if (my_db->leases->loaded)
	{
		table_close(jobs, NoLock);
		PopActiveSnapshot();
		CommitTransactionCommand();
		return DT_NOEND;
	}
	rel = jobq_open_table(JOBQ_LEASE_TABLE, RowExclusiveLock);
	scan = jobq_table_beginscan(rel, GetActiveSnapshot());
	jobq_injection_point("jobq-leases-load");
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
		nlost += load_row(jobs, tuple, RelationGetDescr(rel), now);
	table_endscan(scan);
	leases_forget(jobs);
	table_close(jobs, NoLock);
	table_close(rel, NoLock);
	jobq_injection_point("jobq-leases-read");
	if (nlost > 0)
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("%d leases of consumers have come to their end with the last start of the server",
						nlost),
				 errdetail("There is room for %d in database \"%s\".", jobq_max_leases,
						   get_database_name(MyDatabaseId)),
				 errhint("Raise \"%s\".", "jobq.ready_entries")));
	PopActiveSnapshot();
	CommitTransactionCommand();
	tokens_begin();

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->leases->loaded = true;
	LWLockRelease(my_db->lock);
	return DT_NOEND;
}

/*
 * Restore the leases of this row.  While the server was down, consumers could neither
 * extend nor end their leases.  No lease or job timeout therefore ends before the
 * consumer had time to return.
 *
 * Returns the number of leases without a free slot, whose jobs may be reserved again.
 * Takes my_db->lock exclusively.
 */
static int
load_row(Relation jobs, HeapTuple tuple, TupleDesc desc, TimestampTz now)
{
	Datum		values[LEASE_COLUMN_NATTS];
	bool		nulls[LEASE_COLUMN_NATTS];
	Datum	   *elems;
	Datum	   *versions;
	int			n;
	int			nversions;
	int64		token;
	TimestampTz since;
	TimestampTz until;
	TimestampTz grace;
	uint32		bundle;
	int			nlost = 0;

	heap_deform_tuple(tuple, desc, values, nulls);
	token = DatumGetInt64(values[LEASE_COLUMN_TOKEN - 1]);
	since = DatumGetTimestampTz(values[LEASE_COLUMN_SINCE - 1]);
	until = DatumGetTimestampTz(values[LEASE_COLUMN_UNTIL - 1]);
	if (since > now)
	{
		/* from a clock that was ahead */
		if (until != DT_NOEND)
			until -= since - now;
		since = now;
	}
	grace = now + Min(Max(until - since, 0), GRACE);
	until = Max(until, grace);
	deconstruct_array(DatumGetArrayTypeP(values[LEASE_COLUMN_JOB_IDS - 1]), INT8OID,
					  8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &elems, NULL, &n);
	deconstruct_array(DatumGetArrayTypeP(values[LEASE_COLUMN_JOB_VERSIONS - 1]), XIDOID,
					  sizeof(TransactionId), true, TYPALIGN_INT, &versions,
					  NULL, &nversions);
	if (n != nversions)
		elog(ERROR, "lease " INT64_FORMAT " names %d jobs and %d versions", token,
			 n, nversions);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	bundle = jobq_lease_bundle(my_db,
							   DatumGetObjectId(values[LEASE_COLUMN_ROLE - 1]));
	if (bundle != JOBQ_NONE)
	{
		JobqLeaseBundle *b = &my_db->leases->bundles[bundle];

		b->row.id = DatumGetInt64(values[LEASE_COLUMN_ID - 1]);
		b->row.ctid = tuple->t_self;
		b->since = since;
		if (!nulls[LEASE_COLUMN_N_HELD - 1])
			b->held = DatumGetInt32(values[LEASE_COLUMN_N_HELD - 1]);
	}
	LWLockRelease(my_db->lock);
	if (bundle != JOBQ_NONE)
		strlcpy(my_db->leases->bundles[bundle].consumer,
				TextDatumGetCString(values[LEASE_COLUMN_CONSUMER - 1]), NAMEDATALEN);

	for (int i = 0; i < n; i++)
	{
		JobqJob		job;
		JobqPush	push = {0};
		JobqHandler handler;
		JobqLease  *lease;
		int			timeout;
		uint32		stat;
		uint32		name;

		/* finished since, or failed and written again */
		if (!jobq_job_find(jobs, DatumGetInt64(elems[i]), GetActiveSnapshot(),
						   &job) ||
			job.version != DatumGetTransactionId(versions[i]))
			continue;
		if (bundle == JOBQ_NONE)
		{
			nlost++;
			continue;
		}
		push.queue_id = job_queue_id(&job);
		push.priority = job_priority(&job);
		push.role = job_run_as(&job);
		push.quarantine = DatumGetInt16(JOB(&job, JOB_CRASHES)) > 0;
		push.key.run_at = job_run_at(&job);
		push.key.id = job_id(&job);
		push.ctid = job.ctid;
		jobq_push_flow(&job, &push);
		timeout = jobq_job_timeout(jobq_handler(jobq_job_kind(&job), &handler),
								   &job);
		stat = jobq_count_place(&job);
		name = jobq_kind_hash(jobq_job_kind(&job));

		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		lease = jobq_lease_find(my_db, push.key.id);
		if (lease == NULL && my_db->leases->free != JOBQ_NONE)
		{
			push.permits = limits_of_lease(&push);
			lease = jobq_lease_add(my_db, &push, token, until, bundle);
		}
		else if (lease == NULL)
			nlost++;
		else if (my_db->leases->bundles[lease->bundle].row.id <=
				 my_db->leases->bundles[bundle].row.id)
		{
			JobqLeaseBundle *other = &my_db->leases->bundles[lease->bundle];

			/*
			 * Reserved again or extended.  Or a previous scheduler has read
			 * this row, and was interrupted.
			 */
			if (other->row.id == my_db->leases->bundles[bundle].row.id)
				ItemPointerSetInvalid(&other->row.ctid);
			lease->token = token;
			jobq_lease_move(my_db, lease, bundle, until);
		}
		if (lease != NULL)
		{
			if (timeout > 0)
				jobq_lease_limit(my_db, lease,
								 Max(since + timeout * INT64CONST(1000), grace));
			if (lease->state != JOBQ_LEASE_LEAVING)
				jobq_lease_to(my_db, lease, JOBQ_LEASE_HELD);
			lease->extended = my_db->leases->bundles[lease->bundle].row.id != lease->token;
			lease->stat = stat;
			lease->name = name;
			my_db->leases->next_expiry = Min(my_db->leases->next_expiry, lease->until);
		}
		LWLockRelease(my_db->lock);
	}
	if (bundle != JOBQ_NONE)
	{
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		jobq_lease_bundle_release(my_db, bundle);
		LWLockRelease(my_db->lock);
	}
	return nlost;
}
