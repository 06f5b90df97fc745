/*-------------------------------------------------------------------------
 *
 * full.c
 *	  All entries are in use: cases too rare for random operations.
 *
 * test/model/full.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

#define ENTRIES		16

/*
 * A world with few entries and no limits.
 */
static void
begin(void)
{
	static const int sizes[] = {ENTRIES, 40, 8, 8};

	world_start(0);
	model_memory(sizes);
	for (int q = 0; q < NQUEUES; q++)
		world.queues[q].limited = false;
	scheduler_start();
	db->rescan = false;
	db->ready->complete = true;
}

static JobqPush
job_of(int32 queue_id, int32 flow)
{
	JobqPush	job = {.queue_id = queue_id,.role = 10,.flow = flow,.permits = JOBQ_NO_PERMITS};

	job.key = (JobqKey)
	{
		world.now, ++world.next_id
	};
	ItemPointerSet(&job.ctid, 1, 1);
	return job;
}

static void
push(const JobqPush *job)
{
	JobqWakeList wake = {0};

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_ready_push(db, job, world.now, &wake);
	unlock(&wake);
}

/*
 * A quarantined job takes an entry of the lane being published, in preference to a
 * longer lane.
 */
static void
check_publish(void)
{
	JobqWakeList wake = {0};
	JobqPush	rows[6];
	JobqScanned scanned = {.rows = rows,.nrows = lengthof(rows),.next_due = DT_NOEND};
	JobqLane   *lane;

	begin();
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	lane = jobq_lane_find(db, 1, 0, 10, 0, false, true);
	lane->scanning = true;
	LWLockRelease(db->lock);
	for (int i = 0; i < ENTRIES - 4; i++)
	{
		JobqPush	job = job_of(1, Max(i - 5, 1));

		push(&job);
	}
	for (int i = 0; i < lengthof(rows); i++)
		rows[i] = job_of(1, 0);
	rows[4].quarantine = true;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	scanned.cursor = rows[5].key;
	jobq_ready_publish(db, lane, &scanned, &wake);
	unlock(&wake);
	check_all();
	if (lane->count == 0 || lane->tail == JOBQ_NONE ||
		(!lane->more && jobq_key_cmp(lane->cursor, rows[3].key) >= 0))
		model_fail("a job that gave way is not read again");
}

/*
 * All entries are in use by lanes of one queue with "each" jobs per lane.  Two more
 * lanes wait for a job.
 */
static void
begin_full(int each, JobqLane **same, JobqLane **later)
{
	begin();
	world.queues[0].limited = true;
	memset(&world.queues[0].limiter, 0, sizeof(JobqLimiter));
	world.queues[0].limiter.queue_id = 1;
	world.queues[0].limiter.throttle.failures = 1;
	world.queues[0].limiter.throttle.window = USECS_PER_HOUR;
	for (int i = 0; i < ENTRIES; i++)
	{
		JobqPush	job = job_of(1, 1 + i / each);

		push(&job);
	}
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	*same = jobq_lane_find(db, 3, 0, 10, 0, false, true);
	*later = jobq_lane_find(db, 3, 1, 10, 0, false, true);
	LWLockRelease(db->lock);
	scheduler_rank();
	if (db->ready->nfree > 0)
		model_fail("there are free entries");
}

/*
 * Enqueue a job for the lane.
 */
static void
push_to(const JobqLane *lane)
{
	JobqPush	job = job_of(lane->queue_id, lane->flow);

	job.priority = lane->priority;
	push(&job);
}

/*
 * Lanes whose jobs cannot start do not block other jobs, even if these are less urgent.
 * When all jobs could start, each lane keeps an entry.
 */
static void
check_waiting_lanes(void)
{
	static const char *const cases[] = {"paused", "full", "busy", "many"};

	for (int i = 0; i < lengthof(cases); i++)
	{
		JobqLane   *same;
		JobqLane   *later;

		begin_full(i == 3 ? 1 : 2, &same, &later);
		if (i == 0)
		{
			world.queues[0].paused = true;
			db->reload = true;
			scheduler_rank();
		}
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		if (i == 1)
		{
			JobqPush	failed = {.queue_id = 1,.role = 10};

			jobq_limits_failed(db, &failed, 1, world.now);
		}
		LWLockRelease(db->lock);
		push_to(later);
		if (later->count != (i < 3))
			model_fail("%s lanes: a less urgent one has %u entries", cases[i], later->count);
		push_to(same);
		push_to(same);
		if (same->count != (i < 2 ? 2 : i < 3))
			model_fail("%s lanes: one as urgent has %u entries", cases[i], same->count);
		if (later->count != (i < 3))
			model_fail("%s lanes: a less urgent one does not keep its entry", cases[i]);
		check_all();
	}
}

void
check_full(void)
{
	check_publish();
	check_waiting_lanes();
}
