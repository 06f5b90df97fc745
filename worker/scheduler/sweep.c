/*-------------------------------------------------------------------------
 *
 * sweep.c
 *	  Safety check: goes through the whole ready index, a limited part in each
 *	  jobq.poll_interval, to find missed jobs.
 *
 * worker/scheduler/sweep.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "operate/operate.h"
#include "scheduler/duty.h"

/* Index entries read by one sweep, at most. */
#define SWEEP_ENTRIES	20000

/* Expired rows noted at a time. */
#define MAX_EXPIRED		1000

static int64 expired[MAX_EXPIRED];
static int	nexpired = 0;
static int	unread = 0;			/* entries left to read in this sweep */
static bool begun = false;		/* a walk through the index has not ended */
static bool found = false;		/* the sweep has found expired rows */

static TimestampTz plan(TimestampTz now);
static TimestampTz run(TimestampTz now);
static void walk_on(TimestampTz now);
static bool is_expired(TupleTableSlot *slot, TimestampTz now);
static void expire(int64 id, TimestampTz now);
static void expire_job(void *arg);

/*
 * Works for a time slice (share.c).  A sweep reads SWEEP_ENTRIES entries of the index,
 * and then checks each group.
 */
Duty		sweep_duty = {
	.what = "look for jobs that were missed",
	.load = plan,
	.run = run,
};

/*
 * Continue the sweep.  At its end, also check the groups and the schedules that wait for a job,
 * reserve new tokens, and reload the settings of queues and limits.  A sweep that has found expired rows goes on
 * behind SWEEP_ENTRIES, because only a sweep ends these jobs if no job starts.
 */
static TimestampTz
run(TimestampTz now)
{
	share_begin();
	if (nexpired == 0 && unread == 0)
	{
		extension_check();
		unread = SWEEP_ENTRIES;
	}
	if (nexpired == 0)
		walk_on(jobq_now());
	index_end_lost();
	while (nexpired > 0 && !share_over())
		expire(expired[--nexpired], now);
	if (nexpired == 0 && unread == 0 && found && begun)
		unread = SWEEP_ENTRIES;
	if (nexpired > 0 || unread > 0)
		return now;
	found = false;
	groups_sweep();
	tokens_renew();
	my_db->reload = my_db->limits->stale = true;
	my_db->schedule_freed = true;	/* check schedules that wait for a job */
	return plan(now);
}

static TimestampTz
plan(TimestampTz now)
{
	return now + jobq_poll_interval * USECS_PER_SEC;
}

/*
 * Continue through the index.  Hand over due rows behind the cursor of their lane that
 * come before the first entry of the lane.
 */
static void
walk_on(TimestampTz now)
{
	static IndexPosition at = {0};
	ReadyIndex	scan;
	IndexScanDesc desc;
	bool		finished = true;
	bool		first = true;

	index_begin(&scan);
	if (!begun)
	{
		at.queue_id = PG_INT32_MIN;
		at.priority = PG_INT32_MIN;
		at.role = 0;
		at.flow = PG_INT32_MIN;
		at.key.run_at = PG_INT64_MIN;
		at.key.id = PG_INT64_MIN;
	}
	index_key_after(&scan.keys[0], scan.members, READY_QUEUE_ID, READY_ID, &at);
	desc = jobq_index_beginscan(scan.rel, scan.index, GetActiveSnapshot(), 1);
	desc->xs_want_itup = true;
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
		/* always advance, however long the first entry has taken */
		if (unread == 0 || nexpired == MAX_EXPIRED || (!first && share_over()))
		{
			finished = false;
			break;
		}
		first = false;
		unread--;
		index_position(desc, &at);
		begun = true;
		if (!index_fetch_heap(desc, scan.slot))
			continue;
		ours = index_read_row(scan.slot, NULL, &push, &dormant, &leased);
		if (leased && !dormant)
			index_note_leased(push.key.id);
		if (ours && is_expired(scan.slot, now))
		{
			expired[nexpired++] = push.key.id;
			found = true;
		}
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
				 !jobq_slot_names_job(my_db, push.key.id))
			jobq_ready_push(my_db, &push, now, &wake);
		jobq_unlock(my_db, &wake);
	}
	if (finished)
	{
		begun = false;
		unread = 0;
	}
	index_endscan(desc);
	index_end(&scan);
}

static bool
is_expired(TupleTableSlot *slot, TimestampTz now)
{
	bool		isnull;
	Datum		expires_at = slot_getattr(slot, JOB_EXPIRES_AT, &isnull);

	return !isnull && DatumGetTimestampTz(expires_at) <= now;
}

/*
 * Archive an expired job.  No worker would find the job if its queue is paused or its
 * role has no worker.  After an error, a later sweep finds the job again.
 */
static void
expire(int64 id, TimestampTz now)
{
	ErrorData  *edata;

	if (later_at(id, now) > now)
		return;
	edata = scheduler_try(expire_job, &id);
	if (edata != NULL)
		(void) later_failed(id, edata, now);
	else
		later_done(id);
}

static void
expire_job(void *arg)
{
	int64		id = *(int64 *) arg;
	Relation	rel;
	JobqJob		job;

	if (jobq_relations_if_installed() == NULL)
		return;
	rel = jobq_open_jobs();
	/* the clock may have been put back since the job was found */
	if (jobq_job_find(rel, id, GetActiveSnapshot(), &job) &&
		!JOB_ISNULL(&job, JOB_EXPIRES_AT) &&
		DatumGetTimestampTz(JOB(&job, JOB_EXPIRES_AT)) <= jobq_now() &&
		!jobq_job_runs(&job) && jobq_job_delete(rel, &job))
		jobq_archive_unstarted(&job, CAUSE_EXPIRED, NULL);
	table_close(rel, NoLock);
}
