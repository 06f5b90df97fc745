/*-------------------------------------------------------------------------
 *
 * scan.c
 *	  Loads the ready set from the ready index of jobq.job.
 *
 * A lane is read from its cursor on, so index entries of deleted rows behind
 * the cursor cost nothing, whoever keeps them from being removed.  A row that
 * commits behind the cursor is handed over by its committer (src/commit/commit.c):
 * that, and not a second look, is why a plain MVCC snapshot is enough here.
 *
 * The sweep walks slowly through the whole index, a bounded piece per
 * jobq.poll_interval, in case something was missed after all.
 *
 * worker/scheduler/scan.c
 *
 *-------------------------------------------------------------------------
 */
#include "process/worker.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "operate/operate.h"

/* Columns of the index job_ready. */
enum
{
	READY_QUEUE_ID = 1,
	READY_PRIORITY,
	READY_ROLE,
	READY_FLOW,
	READY_RUN_AT,
	READY_ID
};

/* Index entries that one sweep reads at most. */
#define SWEEP_ENTRIES	20000

/* Leased rows without a worker, or expired ones, that a scan takes note of. */
#define MAX_LOST		64
#define MAX_EXPIRED		1000

/* Where a scan is in the index. */
typedef struct Position
{
	int32		queue_id;
	int32		priority;
	Oid			role;
	int32		flow;
	JobqKey		key;
} Position;

typedef struct Scan
{
	Relation	rel;
	Relation	index;
	TupleTableSlot *slot;
	IndexScanDesc desc;
	ScanKeyData keys[5];
	ScanKeyData members[6];
} Scan;

static int64 lost[MAX_LOST];
static int	nlost = 0;
static int64 expired[MAX_EXPIRED];
static int	nexpired = 0;

static void scan_begin(Scan *scan);
static void scan_end(Scan *scan);
static void row_key(ScanKey header, ScanKey members, int first, int last,
					const Position *after);
static int	scan_lane(Scan *scan, const JobqLane *lane, TimestampTz now,
					  JobqPush *rows, int limit, JobqKey *cursor, bool *more,
					  TimestampTz *next_due);
static int	compare_lanes(const void *a, const void *b);
static void note_leased(int64 id);
static bool is_expired(TupleTableSlot *slot, TimestampTz now);
static void expire(int64 id);

static uint32
lane_target(void)
{
	return jobq_ready_entries / 4;
}

/*
 * Start a transaction with the index open.
 */
static void
scan_begin(Scan *scan)
{
	const JobqRelations *rels;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	rels = jobq_relations_if_installed();
	if (rels == NULL)
		proc_exit(0);
	PushActiveSnapshot(GetTransactionSnapshot());
	scan->rel = table_open(rels->job, AccessShareLock);
	scan->index = index_open(rels->job_ready, AccessShareLock);
	scan->slot = table_slot_create(scan->rel, NULL);
}

static void
scan_end(Scan *scan)
{
	ExecDropSingleTupleTableSlot(scan->slot);
	index_close(scan->index, NoLock);
	table_close(scan->rel, NoLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * A scan key for "the index columns first to last are greater than these".
 */
static void
row_key(ScanKey header, ScanKey members, int first, int last,
		const Position *after)
{
	for (int att = first; att <= last; att++)
	{
		RegProcedure cmp = F_BTINT4CMP;
		Datum		value = (Datum) 0;

		switch (att)
		{
			case READY_QUEUE_ID:
				value = Int32GetDatum(after->queue_id);
				break;
			case READY_PRIORITY:
				value = Int32GetDatum(after->priority);
				break;
			case READY_ROLE:
				cmp = F_BTOIDCMP;
				value = ObjectIdGetDatum(after->role);
				break;
			case READY_FLOW:
				value = Int32GetDatum(after->flow);
				break;
			case READY_RUN_AT:
				cmp = F_TIMESTAMPTZ_CMP;
				value = TimestampTzGetDatum(after->key.run_at);
				break;
			case READY_ID:
				cmp = F_BTINT8CMP;
				value = Int64GetDatum(after->key.id);
				break;
		}
		ScanKeyEntryInitialize(&members[att - first],
							   SK_ROW_MEMBER | (att == last ? SK_ROW_END : 0),
							   att, BTGreaterStrategyNumber, InvalidOid,
							   InvalidOid, cmp, value);
	}
	MemSet(header, 0, sizeof(ScanKeyData));
	header->sk_flags = SK_ROW_HEADER;
	header->sk_attno = first;
	header->sk_strategy = BTGreaterStrategyNumber;
	header->sk_argument = PointerGetDatum(members);
}

/*
 * The row in the slot as an entry.  False if it is none of ours to run:
 * dormant, or with a lease (leased is set).
 */
bool
scan_read_row(TupleTableSlot *slot, JobqPush *push, bool *dormant,
			  bool *leased)
{
	HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);
	bool		isnull;

	push->key.id = DatumGetInt64(slot_getattr(slot, JOB_ID, &isnull));
	push->key.run_at = DatumGetTimestampTz(slot_getattr(slot, JOB_RUN_AT,
														&isnull));
	push->queue_id = DatumGetInt32(slot_getattr(slot, JOB_QUEUE_ID, &isnull));
	push->priority = DatumGetInt32(slot_getattr(slot, JOB_PRIORITY, &isnull));
	push->role = DatumGetObjectId(slot_getattr(slot, JOB_ROLE, &isnull));
	push->flow = DatumGetInt32(slot_getattr(slot, JOB_FLOW, &isnull));
	push->kind = push->tenant = 0;
	push->group = 0;
	push->permits = JOBQ_NO_PERMITS;
	push->quarantine =
		DatumGetInt16(slot_getattr(slot, JOB_CRASHES, &isnull)) > 0;
	push->notify = false;
	push->ctid = slot->tts_tid;
	*dormant = DatumGetBool(slot_getattr(slot, JOB_DORMANT, &isnull));

	/* what lies behind the payload is not unpacked for this */
	*leased = !heap_attisnull(tuple, JOB_LEASE_TOKEN, NULL);
	if (push->flow != 0 || !heap_attisnull(tuple, JOB_GROUP_ID, NULL))
	{
		JobqJob		job;

		slot_getallattrs(slot);
		memcpy(job.values, slot->tts_values, sizeof(job.values));
		memcpy(job.nulls, slot->tts_isnull, sizeof(job.nulls));
		jobq_push_flow(&job, push);
	}
	return !*dormant && !*leased;
}

/*
 * A leased row: if no worker runs it, its worker died together with whoever
 * would have charged it.
 */
static void
note_leased(int64 id)
{
	if (jobq_slot_of_job(my_db, id) == NULL && nlost < MAX_LOST)
		lost[nlost++] = id;
}

/*
 * Shall this lane be scanned now?  Also when so few are left as make those who
 * pop wake the scheduler.
 */
bool
scan_wanted(const JobqLane *lane, TimestampTz now)
{
	if (!lane->in_use || lane->quarantine || lane->paused)
		return false;
	return (lane->more && lane->count <= lane_target() / 2) ||
		lane->next_due <= now;
}

/*
 * Read up to "limit" due rows of the lane, from its cursor on.
 */
static int
scan_lane(Scan *scan, const JobqLane *lane, TimestampTz now, JobqPush *rows,
		  int limit, JobqKey *cursor, bool *more, TimestampTz *next_due)
{
	Position	after = {lane->queue_id, lane->priority, lane->role,
		lane->flow, lane->cursor
	};
	IndexScanDesc desc;
	int			n = 0;

	*cursor = lane->cursor;
	*more = false;
	*next_due = DT_NOEND;

	ScanKeyInit(&scan->keys[0], READY_QUEUE_ID, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(lane->queue_id));
	ScanKeyInit(&scan->keys[1], READY_PRIORITY, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(lane->priority));
	ScanKeyInit(&scan->keys[2], READY_ROLE, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(lane->role));
	ScanKeyInit(&scan->keys[3], READY_FLOW, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(lane->flow));
	row_key(&scan->keys[4], scan->members, READY_RUN_AT, READY_ID, &after);

	desc = jobq_index_beginscan(scan->rel, scan->index, GetActiveSnapshot(), 5);
	index_rescan(desc, scan->keys, 5, NULL, 0);
	while (index_getnext_slot(desc, ForwardScanDirection, scan->slot))
	{
		bool		dormant;
		bool		leased;

		CHECK_FOR_INTERRUPTS();
		if (!scan_read_row(scan->slot, &rows[n], &dormant, &leased))
		{
			if (leased && !dormant)
				note_leased(rows[n].key.id);
			continue;
		}
		if (rows[n].key.run_at > now)
		{
			*next_due = rows[n].key.run_at;
			break;
		}
		*cursor = rows[n].key;
		if (++n == limit)
		{
			*more = true;
			break;
		}
	}
	index_endscan(desc);
	return n;
}

static int
compare_lanes(const void *a, const void *b)
{
	const JobqLane *x = &my_db->ready->lanes[*(const int *) a];
	const JobqLane *y = &my_db->ready->lanes[*(const int *) b];

	if (x->priority != y->priority)
		return x->priority < y->priority ? -1 : 1;
	return *(const int *) a - *(const int *) b;
}

/*
 * Scan all lanes that want it.  True if some want to be scanned again at once.
 */
bool
scan_lanes(TimestampTz now)
{
	int			limit = lane_target();
	JobqPush   *rows = palloc(sizeof(JobqPush) * limit);
	int		   *wanted = palloc(sizeof(int) * jobq_max_lanes);
	int			nwanted = 0;
	bool		again = false;
	Scan		scan;

	/* urgent lanes first: workers begin with what is published */
	LWLockAcquire(my_db->lock, LW_SHARED);
	for (int i = 0; i < jobq_max_lanes; i++)
		if (scan_wanted(&my_db->ready->lanes[i], now))
			wanted[nwanted++] = i;
	LWLockRelease(my_db->lock);
	qsort(wanted, nwanted, sizeof(int), compare_lanes);

	nlost = 0;
	scan_begin(&scan);
	for (int i = 0; i < nwanted; i++)
	{
		JobqLane   *lane = &my_db->ready->lanes[wanted[i]];
		JobqWakeList wake;
		JobqLane	copy;
		JobqKey		cursor;
		TimestampTz next_due;
		bool		more;
		int			n;

		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		if (!scan_wanted(lane, now))
		{
			LWLockRelease(my_db->lock);
			continue;
		}
		lane->scanning = true;
		my_db->ready->nlate = 0;
		lane->next_due = DT_NOEND;
		copy = *lane;
		LWLockRelease(my_db->lock);

		/* what committed before we marked the lane must be visible */
		PopActiveSnapshot();
		PushActiveSnapshot(GetLatestSnapshot());
		n = scan_lane(&scan, &copy, now, rows,
					  Max(limit - (int) copy.count, 16), &cursor, &more,
					  &next_due);
		jobq_injection_point("jobq-lane-read");

		/* publish in pieces: the lock is wanted by all */
		memset(&wake, 0, sizeof(wake));
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		jobq_ready_publish(my_db, lane, rows, n, cursor, more, next_due, &wake);
		if (scan_wanted(lane, now) && !my_db->ready->starved)
			again = true;
		jobq_unlock(my_db, &wake);
	}
	scan_end(&scan);
	pfree(rows);
	pfree(wanted);

	for (int i = 0; i < nlost; i++)
		supervise_lost_lease(lost[i]);
	nlost = 0;
	return again;
}

/*
 * Find the lanes that have index entries and are not there yet, and have those
 * read on that skipped jobs.  With "reset", have all be read from their
 * beginning, too.
 *
 * A lane whose first job is not due needs no place: its time is noted.  Where
 * the places do not suffice, the next call goes on behind the last one.
 */
void
scan_everything(bool reset)
{
	static Position resume;
	static bool resumed = false;
	Position	at = {.queue_id = PG_INT32_MIN,.priority = PG_INT32_MIN,
	.flow = PG_INT32_MIN};
	TimestampTz now = jobq_now();
	Scan		scan;
	IndexScanDesc desc;
	bool		from_start;
	uint32		evictions;
	JobqWakeList wake = {0};	/* it is us who would be woken */

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->ready->overflow = false;
	my_db->ready->complete = false;	/* so a lane that is made is read */
	evictions = my_db->ready->evictions;
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &my_db->ready->lanes[i];

		if (!lane->in_use || !lane->skipping)
			continue;
		lane->skipping = false;
		jobq_lane_look(my_db, lane, lane->skipped, &wake);
	}
	if (reset)
	{
		my_db->rescan = false;
		my_db->ready->forgotten_due = DT_NOEND;
		resumed = false;
		for (int i = 0; i < jobq_max_lanes; i++)
		{
			JobqLane   *lane = &my_db->ready->lanes[i];

			if (lane->in_use && !lane->quarantine)
			{
				lane->cursor.run_at = PG_INT64_MIN;
				lane->cursor.id = PG_INT64_MIN;
				lane->more = true;
			}
		}
	}
	LWLockRelease(my_db->lock);
	if (resumed)
		at = resume;
	from_start = !resumed;
	resumed = false;

	scan_begin(&scan);
	desc = jobq_index_beginscan(scan.rel, scan.index, GetActiveSnapshot(), 1);
	desc->xs_want_itup = true;
	for (;;)
	{
		Position	previous = at;
		IndexTuple	tuple;
		TupleDesc	itupdesc;
		TimestampTz run_at;
		JobqLane   *lane;
		bool		isnull;

		/* skip from lane to lane; the values come from the index itself */
		CHECK_FOR_INTERRUPTS();
		row_key(&scan.keys[0], scan.members, READY_QUEUE_ID, READY_FLOW, &at);
		index_rescan(desc, scan.keys, 1, NULL, 0);
		if (index_getnext_tid(desc, ForwardScanDirection) == NULL)
			break;
		tuple = desc->xs_itup;
		itupdesc = desc->xs_itupdesc;
		at.queue_id = DatumGetInt32(index_getattr(tuple, READY_QUEUE_ID,
												  itupdesc, &isnull));
		at.priority = DatumGetInt32(index_getattr(tuple, READY_PRIORITY,
												  itupdesc, &isnull));
		at.role = DatumGetObjectId(index_getattr(tuple, READY_ROLE,
												 itupdesc, &isnull));
		at.flow = DatumGetInt32(index_getattr(tuple, READY_FLOW,
											  itupdesc, &isnull));
		run_at = DatumGetTimestampTz(index_getattr(tuple, READY_RUN_AT,
												   itupdesc, &isnull));

		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		lane = jobq_lane_find(my_db, at.queue_id, at.priority, at.role, at.flow,
							  false, run_at <= now);
		if (lane != NULL)
			my_db->reload |= !lane->ranked;
		else if (run_at > now)
			my_db->ready->forgotten_due = Min(my_db->ready->forgotten_due, run_at);
		else
		{
			resume = previous;
			resumed = true;
		}
		LWLockRelease(my_db->lock);
		if (resumed)
			break;
	}
	index_endscan(desc);
	scan_end(&scan);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);

	/*
	 * A lane that we had found may have given way to another; and who handed
	 * over meanwhile may have found no place for a lane that we had passed.
	 */
	my_db->ready->overflow |= resumed || !from_start ||
		my_db->ready->evictions != evictions;
	my_db->ready->complete = !my_db->ready->overflow;
	LWLockRelease(my_db->lock);
}

/*
 * The safety net: walk on through the index, and hand over due rows that are
 * behind their lane's cursor and before the first job of its list.
 */
void
scan_sweep(void)
{
	static Position at = {0};
	static bool begun = false;
	Scan		scan;
	IndexScanDesc desc;
	int			visited = 0;
	bool		finished = true;
	TimestampTz now = jobq_now();

	nlost = 0;
	scan_begin(&scan);
	if (!begun)
	{
		at.queue_id = PG_INT32_MIN;
		at.priority = PG_INT32_MIN;
		at.role = 0;
		at.flow = PG_INT32_MIN;
		at.key.run_at = PG_INT64_MIN;
		at.key.id = PG_INT64_MIN;
	}
	row_key(&scan.keys[0], scan.members, READY_QUEUE_ID, READY_ID, &at);
	desc = jobq_index_beginscan(scan.rel, scan.index, GetActiveSnapshot(), 1);
	index_rescan(desc, scan.keys, 1, NULL, 0);
	while (index_getnext_tid(desc, ForwardScanDirection) != NULL)
	{
		JobqPush	push;
		JobqLane   *lane;
		bool		dormant;
		bool		leased;
		bool		ours;
		JobqWakeList wake = {0};

		CHECK_FOR_INTERRUPTS();
		if (++visited > SWEEP_ENTRIES)
		{
			finished = false;
			break;
		}
		if (!index_fetch_heap(desc, scan.slot))
			continue;
		ours = scan_read_row(scan.slot, &push, &dormant, &leased);
		at.queue_id = push.queue_id;
		at.priority = push.priority;
		at.role = push.role;
		at.flow = push.flow;
		at.key = push.key;
		begun = true;
		if (leased && !dormant)
			note_leased(push.key.id);
		if (ours && is_expired(scan.slot, now) && nexpired < MAX_EXPIRED)
			expired[nexpired++] = push.key.id;
		if (!ours || push.key.run_at > now)
			continue;

		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		lane = jobq_lane_find(my_db, push.queue_id, push.priority, push.role,
							  push.flow, false, true);
		if (lane != NULL && jobq_key_cmp(push.key, lane->cursor) > 0)
		{
			if (!lane->more && !lane->scanning &&
				lane->next_due > push.key.run_at)
				jobq_lane_look(my_db, lane, push.key, &wake);
		}
		else if (lane != NULL &&
				 (lane->count == 0 ||
				  jobq_key_cmp(push.key, my_db->ready->entries[lane->head].key) < 0) &&
				 jobq_slot_of_job(my_db, push.key.id) == NULL)
			jobq_ready_push(my_db, &push, now, &wake);
		jobq_unlock(my_db, &wake);
	}
	if (finished)
		begun = false;
	index_endscan(desc);
	scan_end(&scan);

	for (int i = 0; i < nlost; i++)
		supervise_lost_lease(lost[i]);
	nlost = 0;
	for (int i = 0; i < nexpired; i++)
		expire(expired[i]);
	nexpired = 0;
	groups_sweep();
}

static bool
is_expired(TupleTableSlot *slot, TimestampTz now)
{
	bool		isnull;
	Datum		expires_at = slot_getattr(slot, JOB_EXPIRES_AT, &isnull);

	return !isnull && DatumGetTimestampTz(expires_at) <= now;
}

/*
 * Archive a job whose time is over and that no worker comes across, because
 * its queue is paused or its role has no worker.
 */
static void
expire(int64 id)
{
	Relation	rel;
	JobqJob		job;

	run_begin_transaction();
	rel = jobq_open_jobs();
	if (jobq_job_find(rel, id, GetActiveSnapshot(), &job) &&
		!jobq_job_runs(&job) && jobq_job_delete(rel, &job))
		jobq_archive(&job, STATE_EXPIRED, DT_NOBEGIN, false, (Datum) 0,
					 "not started before expires_at");
	table_close(rel, NoLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
}
