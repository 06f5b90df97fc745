/*-------------------------------------------------------------------------
 *
 * drop.c
 *	  Cancels waiting jobs to make room in a full queue.
 *
 * The first choice is the oldest job of the new job's own lane: the same priority, role and
 * tenant.  If no job waits in this lane, jobs of the same role are dropped before jobs of
 * other roles, then less urgent jobs, then older jobs.  A role with many jobs therefore makes
 * room with its own jobs.  Running jobs, jobs held by a consumer, blocked jobs, and jobs of
 * procedures that have committed a step or a wait are not dropped.
 *
 * The index gives the order.  While an old snapshot exists, entries of finished jobs remain at
 * the old end of the index.  The queue's counter therefore records the job dropped last, and
 * the next search of the lane begins behind this job.  A job before this position, for example
 * a retried one, is found when the search has reached the end of the lane.  If a drop is
 * rolled back, the next search begins before the restored job.
 *
 * src/store/drop.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/lengths.h"

/*
 * Maximum number of index entries that the scheduler reads in a lane when it makes the job of
 * a schedule.  The scheduler must not be delayed.  Sessions read through any number of
 * finished jobs kept by an old snapshot, because no process waits for these sessions.
 */
#define MAX_ENTRIES		10000

/* Maximum number of compared lanes. */
#define MAX_LANES		256

/* A lane of the queue, with the position of a job. */
typedef JobqDropped Lane;

typedef struct Search
{
	Relation	rel;
	Relation	index;
	Snapshot	snapshot;
	TupleTableSlot *slot;
	int32		queue_id;
	bool		consumed;		/* by consumers */
	bool		in_scheduler;
} Search;

/*
 * Make a scan key for the comparison of index columns first to last, as a row, with the lane's
 * values.
 */
static void
row_key(ScanKey header, ScanKey members, int first, int last, int strategy,
		const Lane *lane)
{
	const struct
	{
		RegProcedure cmp;
		Datum		value;
	}			columns[] = {
		[READY_PRIORITY] = {F_BTINT4CMP, Int32GetDatum(lane->priority)},
		[READY_ROLE] = {F_BTOIDCMP, ObjectIdGetDatum(lane->role)},
		[READY_FLOW] = {F_BTINT4CMP, Int32GetDatum(lane->flow)},
		[READY_RUN_AT] = {F_TIMESTAMPTZ_CMP, TimestampTzGetDatum(lane->key.run_at)},
		[READY_ID] = {F_BTINT8CMP, Int64GetDatum(lane->key.id)},
	};

	for (int att = first; att <= last; att++)
		ScanKeyEntryInitialize(&members[att - first],
							   SK_ROW_MEMBER | (att == last ? SK_ROW_END : 0),
							   att, strategy, InvalidOid, InvalidOid,
							   columns[att].cmp, columns[att].value);
	MemSet(header, 0, sizeof(ScanKeyData));
	header->sk_flags = SK_ROW_HEADER;
	header->sk_attno = first;
	header->sk_strategy = strategy;
	header->sk_argument = PointerGetDatum(members);
}

/*
 * Return whether the job waits only for a worker or for its time, and no part of the job is done.
 */
static bool
may_drop(const JobqJob *job)
{
	return !DatumGetBool(JOB(job, JOB_DORMANT)) && !job_blocked(job) &&
		!jobq_job_runs(job) && !jobq_has_progress(job_id(job));
}

/*
 * Cancel the job.  Returns false if another session has just claimed the job.
 */
static bool
drop(const Search *search, JobqJob *job)
{
	if (!jobq_job_delete(search->rel, job))
		return false;
	jobq_job_push_if_undone(job);
	if (search->consumed)
	{
		/* a consumer with a concurrent reservation will find the lease lost */
		jobq_lease_room(1);
		jobq_at_commit_lease(LEASE_END, job_id(job), 0, JOBQ_NONE, 0);
	}
	jobq_archive_unstarted(job, CAUSE_QUEUE_FULL, NULL);
	return true;
}

/*
 * Cancel the first n jobs of the lane, as far as may_drop() allows.  If from_key, begin behind
 * the lane's key.  If n is 0, only check whether there is such a job.  Returns the number of
 * jobs, and sets the lane's key to the last one.
 */
static int
drop_in_lane(const Search *search, Lane *lane, bool from_key, int n)
{
	ScanKeyData keys[5];
	ScanKeyData members[2];
	IndexScanDesc scan;
	int			nkeys = 4;
	int			found = 0;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "jobq job to drop",
												  ALLOCSET_DEFAULT_SIZES);

	ScanKeyInit(&keys[0], READY_QUEUE_ID, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(search->queue_id));
	ScanKeyInit(&keys[1], READY_PRIORITY, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(lane->priority));
	ScanKeyInit(&keys[2], READY_ROLE, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(lane->role));
	ScanKeyInit(&keys[3], READY_FLOW, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(lane->flow));
	if (from_key)
		row_key(&keys[nkeys++], members, READY_RUN_AT, READY_ID,
				BTGreaterStrategyNumber, lane);
	scan = jobq_index_beginscan(search->rel, search->index, search->snapshot, nkeys);
	index_rescan(scan, keys, nkeys, NULL, 0);
	for (int64 i = 0; found < Max(n, 1) && !(search->in_scheduler && i == MAX_ENTRIES); i++)
	{
		JobqJob		job;
		MemoryContext old;
		bool		taken;

		CHECK_FOR_INTERRUPTS();
		if (index_getnext_tid(scan, ForwardScanDirection) == NULL)
			break;
		if (!index_fetch_heap(scan, search->slot))
			continue;
		MemoryContextReset(context);
		old = MemoryContextSwitchTo(context);
		jobq_job_from_tuple(search->rel,
							ExecFetchSlotHeapTuple(search->slot, false, NULL), &job);
		taken = may_drop(&job) && (n == 0 || drop(search, &job));
		MemoryContextSwitchTo(old);
		if (!taken)
			continue;
		lane->key.run_at = job_run_at(&job);
		lane->key.id = job_id(&job);
		found++;
	}
	MemoryContextDelete(context);
	index_endscan(scan);
	ExecClearTuple(search->slot);
	return found;
}

/*
 * Find the lane of the queue before this one, or, if first, the last lane, which is the least
 * urgent.  The jobs of the lane may be gone.
 */
static bool
next_lane(const Search *search, bool first, Lane *lane)
{
	ScanKeyData keys[2];
	ScanKeyData members[3];
	IndexScanDesc scan;
	int			nkeys = 1;
	bool		found;

	ScanKeyInit(&keys[0], READY_QUEUE_ID, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(search->queue_id));
	if (!first)
		row_key(&keys[nkeys++], members, READY_PRIORITY, READY_FLOW,
				BTLessStrategyNumber, lane);
	scan = jobq_index_beginscan(search->rel, search->index, search->snapshot, nkeys);
	scan->xs_want_itup = true;
	index_rescan(scan, keys, nkeys, NULL, 0);
	found = index_getnext_tid(scan, BackwardScanDirection) != NULL;
	if (found)
	{
		IndexTuple	tuple = scan->xs_itup;
		TupleDesc	desc = scan->xs_itupdesc;
		bool		isnull;

		lane->priority = DatumGetInt32(index_getattr(tuple, READY_PRIORITY, desc,
													 &isnull));
		lane->role = DatumGetObjectId(index_getattr(tuple, READY_ROLE, desc, &isnull));
		lane->flow = DatumGetInt32(index_getattr(tuple, READY_FLOW, desc, &isnull));
	}
	index_endscan(scan);
	return found;
}

/*
 * Find the best lane to drop a job from, if the new job's own lane has none.  Returns false if
 * no lane has a suitable job.
 */
static bool
find_lane(const Search *search, const Lane *own, Lane *best)
{
	Lane		lane;
	bool		found = false;

	for (int i = 0;
		 (i < MAX_LANES || (!found && !search->in_scheduler)) &&
		 next_lane(search, i == 0, &lane); i++)
	{
		bool		same = lane.role == own->role;

		if (drop_in_lane(search, &lane, false, 0) == 0)
			continue;
		if (!found || same > (best->role == own->role) ||
			(same == (best->role == own->role) &&
			 lane.priority == best->priority &&
			 jobq_key_cmp(lane.key, best->key) < 0))
			*best = lane;
		found = true;
	}
	return found;
}

/*
 * Cancel up to n waiting jobs of this job's queue, to make room for jobs like this one.
 * Returns the number of cancelled jobs.
 */
int
jobq_drop_oldest(const JobqJob *job, int n)
{
	JobqJob		copy = *job;
	JobqDatabase *db = jobq_my_database();
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	JobqDropped dropped;
	Search		search;
	Lane		own = {0};
	Lane		other;
	int			done = 0;

	jobq_set_flow(&copy);
	own.priority = job_priority(&copy);
	own.role = job_run_as(&copy);
	own.flow = job_flow(&copy);
	search.queue_id = job_queue_id(job);
	search.consumed = queue == NULL || queue->mode == MODE_CONSUMER;
	search.in_scheduler = db != NULL && db->scheduler == MyProc;

	/* make jobs enqueued by this statement visible */
	CommandCounterIncrement();
	search.rel = jobq_open_jobs();
	search.index = jobq_open_index(search.rel, JOBQ_JOB_READY);
	search.snapshot = RegisterSnapshot(GetLatestSnapshot());
	search.slot = table_slot_create(search.rel, NULL);

	jobq_length_get_dropped(search.queue_id, &dropped);
	if (dropped.key.id != 0 && dropped.priority == own.priority &&
		dropped.role == own.role && dropped.flow == own.flow)
	{
		own.key = dropped.key;
		done = drop_in_lane(&search, &own, true, n);
	}
	if (done == 0)
		done = drop_in_lane(&search, &own, false, n);
	if (done > 0)
		jobq_length_dropped_to(search.queue_id, &own, &dropped);
	else if (find_lane(&search, &own, &other))
		done = drop_in_lane(&search, &other, false, n);

	ExecDropSingleTupleTableSlot(search.slot);
	UnregisterSnapshot(search.snapshot);
	index_close(search.index, NoLock);
	table_close(search.rel, NoLock);
	return done;
}
