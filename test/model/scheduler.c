/*-------------------------------------------------------------------------
 *
 * scheduler.c
 *	  The scheduler's work on the ready set, as in worker/scheduler, with the rows of the
 *	  world in place of the table.
 *
 * Where the scheduler reads the table without the lock, other actors may act during the
 * read.  These duties are therefore in two halves.
 *
 * test/model/scheduler.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

#define OVERFLOW_PAUSE	(USECS_PER_SEC / 4)
#define KEPT_PAUSE		(USECS_PER_SEC / 5)
#define STARVED_PAUSE	(USECS_PER_SEC / 4)

/*
 * Release the lock and process the wake list.  Then note the turns of jobs that were
 * newly offered to sessions.
 */
void
unlock(JobqWakeList *wake)
{
	bool		offered[JOBQ_MAX_RESERVERS];
	uint64		served = db->limits->served;

	for (int i = 0; i < JOBQ_MAX_RESERVERS; i++)
		offered[i] = db->offers->reservers[i].offered;
	jobq_unlock(db, wake);
	for (int i = 0; i < JOBQ_MAX_RESERVERS; i++)
		if (db->offers->reservers[i].offered && !offered[i])
			note_turn(&db->offers->reservers[i].offer, served);
}

/*
 * Jobs that run without a permit of this limiter now need a permit.
 */
static void
begin_to_count(uint16 index, JobqWakeList *wake)
{
	JobqLimiter *limiter = &db->limits->limiters[index];
	int			source = limiter->queue_id != 0 ? JOBQ_OF_QUEUE
		: SOURCE(limiter->kind - NAME(0));

	for (int w = 0; w < NSLOTS; w++)
	{
		JobqPermits *permits = &jobq_shared->slots[w].holding->permits;
		uint16	   *permit = &permits->limiters[source];
		const Row  *row = world.workers[w].row < 0 ? NULL
			: &world.rows[world.workers[w].row];

		if (row != NULL && *permit == JOBQ_NO_LIMITER &&
			(limiter->queue_id != 0 ? row->job.queue_id == limiter->queue_id
			 : row->job.needs[source].limiter == limiter->kind))
		{
			*permit = index;
			jobq_shared->slots[w].holding->permits_job = row->job.key.id;
			limiter->running++;
		}
		jobq_prefetch_return(db, &jobq_shared->slots[w], wake);
	}
	for (int i = 0; i < jobq_max_leases; i++)
	{
		JobqLease  *lease = &db->leases->leases[i];
		uint16	   *permit = &lease->permits.limiters[source];

		if (lease->id != 0 && *permit == JOBQ_NO_LIMITER &&
			(limiter->queue_id != 0 ? lease->queue_id == limiter->queue_id
			 : lease->needs[source].limiter == limiter->kind))
		{
			*permit = index;
			limiter->running++;
		}
	}
}

/*
 * worker/scheduler/limits.c
 */
static void
load_limits(JobqWakeList *wake)
{
	JobqLimits *limits = db->limits;
	bool		weighted = false;

	for (int i = 0; i < NLIMITERS; i++)
	{
		const JobqLimiter *wanted = i == NLIMITERS - 1 ? &world.gathered
			: i >= NQUEUES ? &world.named[i - NQUEUES]
			: &world.queues[i].limiter;
		uint16		index = jobq_limiter_find(db, wanted->queue_id, wanted->kind);
		JobqLimiter before = {0};
		JobqLimiter *limiter;
		bool		counted;

		if (i < NQUEUES && !world.queues[i].limited)
			continue;
		weighted |= wanted->weight > 1;
		if (index == JOBQ_NO_LIMITER)
		{
			before.queue_id = wanted->queue_id;
			before.kind = wanted->kind;
			index = jobq_limiter_add(db, &before);
		}
		limiter = &limits->limiters[index];
		before = *limiter;
		counted = jobq_limiter_counts(limiter);
		db->groups->owners |= before.group_patience > 0 &&
			(wanted->group_patience == 0 ||
			 wanted->group_patience > before.group_patience);
		*limiter = *wanted;
		limiter->in_use = true;
		limiter->next = before.next;
		limiter->running = before.running;
		limiter->pace = before.pace;
		limiter->tenant_turn = before.tenant_turn;
		limiter->tenant_cost = before.tenant_cost;
		limiter->dearest = before.dearest;
		jobq_pace_change(&before, &limiter->pace, &wanted->rate, world.now);
		if (limiter->fair_cpu != before.fair_cpu)
			jobq_turns_begin(db, index);
		if (!counted && jobq_limiter_counts(limiter))
			begin_to_count(index, wake);
	}
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &db->ready->lanes[i];

		if (!lane->in_use)
			continue;
		jobq_limiters_find(db, lane->queue_id, lane->needs, lane->limiters);
	}
	limits->weighted = weighted;
	jobq_lanes_place(db);
	limits->loaded = true;
	limits->loading = false;
	world.limits_tick = ++world.tick;
	limits->due = world.now;
	jobq_groups_look(db, world.now);
	rows_age();
}

bool
scheduler_rank_wanted(void)
{
	return db->reload || db->ready->unranked != JOBQ_NONE;
}

/*
 * worker/scheduler/rank.c
 */
static void
rank_queue(const Queue *queue)
{
	JobqParty  *party = jobq_party_find(db, queue->id, 0, 0);
	uint8		rank[JOBQ_MAX_POOLS];
	uint16		order;

	memset(rank, JOBQ_NOT_SERVED, sizeof(rank));
	for (int p = 0; p < NPOOLS && !queue->consumer; p++)
		rank[p] = queue->rank[p];
	order = jobq_order_find(db, rank);
	for (uint32 i = party == NULL ? JOBQ_NONE : party->lanes; i != JOBQ_NONE;
		 i = db->ready->lanes[i].party_next)
	{
		JobqLane   *lane = &db->ready->lanes[i];
		bool		alone = !queue->paused && lane->held != 0 && queue->kind_paused;

		jobq_lane_rank(db, lane, order, queue->consumer, queue->paused || alone,
					   alone, 0);
	}
}

void
scheduler_rank(void)
{
	JobqWakeList wake = {0};
	bool		wanted[NQUEUES] = {false};
	JobqLane   *lane;
	bool		all;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	all = db->reload || db->limits->stale;
	db->reload = false;
	if (db->limits->stale)
		load_limits(&wake);
	db->limits->stale = false;
	while ((lane = jobq_lane_next_unranked(db)) != NULL)
		wanted[lane->queue_id - 1] = true;
	if (all)
		jobq_orders_forget(db);
	for (int q = 0; q < NQUEUES; q++)
		if (all || wanted[q])
			rank_queue(&world.queues[q]);
	if (all)
	{
		db->ready->overflow |= db->ready->paused_forgotten;
		db->ready->paused_forgotten = false;
		jobq_consumers_wake(db);
	}
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];

		if (slot->state == JOBQ_SLOT_ATTACHED && slot->idle)
		{
			slot->idle = false;
			SetLatch(&slot->proc->procLatch);
		}
	}
	unlock(&wake);
}

/*
 * worker/scheduler/scan.c
 */
static bool
scan_wanted(const JobqLane *lane)
{
	if (!lane->in_use || lane->quarantine || lane->paused)
		return false;
	return (lane->more && lane->count <= (uint32) jobq_ready_entries / 4 / 2) ||
		lane->next_due <= world.now;
}

static bool
no_room(const JobqLane *lane)
{
	return lane->more && lane->next_due > world.now && !jobq_lane_gets_entry(db, lane);
}

static bool
is_starved(const JobqLane *lane)
{
	return lane->in_use && lane->more && lane->count == 0 &&
		!lane->quarantine && !jobq_lane_is_closed(db, lane);
}

bool
of_lane(const Row *row, const JobqLane *lane)
{
	return row->state == ROW_LIVE && row->job.queue_id == lane->queue_id &&
		row->job.priority == lane->priority && row->job.role == lane->role &&
		row->job.flow == lane->flow;
}

/*
 * Mark a lane as being read, and read its rows.
 */
static void
read_lane(int index)
{
	JobqLane   *lane = &db->ready->lanes[index];
	int			limit = jobq_ready_entries / 4;

	world.scanning = index;
	trace("  lane %d (queue %d, priority %d)\n", world.scanning, lane->queue_id,
		  lane->priority);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	lane->scanning = true;
	db->ready->nlate = 0;
	lane->next_due = DT_NOEND;
	LWLockRelease(db->lock);

	limit = Max(limit - (int) lane->count, 2);
	world.scanned.cursor = lane->cursor;
	world.scanned.more = false;
	world.scanned.next_due = DT_NOEND;
	world.scanned.nrows = 0;
	for (;;)
	{
		Row		   *best = NULL;

		for (int i = 0; i < MAX_ROWS; i++)
			if (of_lane(&world.rows[i], lane) &&
				jobq_key_cmp(world.rows[i].job.key, world.scanned.cursor) > 0 &&
				(best == NULL ||
				 jobq_key_cmp(world.rows[i].job.key, best->job.key) < 0))
				best = &world.rows[i];
		if (best == NULL)
			break;
		if (best->job.key.run_at > world.now)
		{
			world.scanned.next_due = best->job.key.run_at;
			break;
		}
		world.scanned.cursor = best->job.key;
		world.read[world.scanned.nrows++] = best->job;
		if (world.scanned.nrows == limit)
		{
			world.scanned.more = true;
			break;
		}
	}
}

/*
 * Read a lane, if any lane has to be read.
 */
void
scheduler_scan_begin(uint32 which)
{
	int			wanted[128];
	int			n = 0;

	for (int i = 0; i < jobq_max_lanes && n < lengthof(wanted); i++)
		if (scan_wanted(&db->ready->lanes[i]))
			wanted[n++] = i;
	if (n > 0)
		read_lane(wanted[which % n]);
}

void
scheduler_scan_end(void)
{
	JobqWakeList wake = {0};
	JobqLane   *lane = &db->ready->lanes[world.scanning];

	world.scanning = -1;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	world.scanned.rows = world.read;
	jobq_ready_publish(db, lane, &world.scanned, &wake);
	unlock(&wake);
}

/*
 * The scan cannot get a lock on the table: worker/scheduler/scheduler.c.
 */
void
scheduler_scan_fail(void)
{
	world.scanning = -1;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_scan_failed(db);
	db->reload = db->limits->stale = true;
	db->groups->refill = db->groups->owners = true;
	LWLockRelease(db->lock);
	world.scheduler_awake = true;
}

/*
 * worker/scheduler/groups.c
 */
void
scheduler_refill_begin(void)
{
	db->groups->refill = false;
	world.nrefills = 0;
	for (int i = 0; i < jobq_max_groups; i++)
	{
		JobqGroup  *group = &db->groups->groups[i];
		JobqKey		cursor = {group->cursor_run_at, group->cursor_id};
		JobqPush   *last;
		int			n = world.nrefills;

		if (group->id == 0 || !group->refill)
			continue;
		if (n == lengthof(world.refills))
		{
			db->groups->refill = true;
			break;
		}
		group->dropped = false;
		world.nrefills++;
		last = &world.refills[n].last;
		last->priority = group->cursor_priority;
		last->key = cursor;
		world.refills[n].id = group->id;
		world.refills[n].nrows = 0;
		world.refills[n].all = true;
		for (;;)
		{
			Row		   *best = NULL;

			for (int r = 0; r < MAX_ROWS; r++)
				if (world.rows[r].state == ROW_LIVE &&
					world.rows[r].job.group == group->id &&
					group_compare(world.rows[r].job.priority,
								  world.rows[r].job.key,
								  last->priority, last->key) > 0 &&
					(best == NULL ||
					 group_compare(world.rows[r].job.priority,
								   world.rows[r].job.key,
								   best->job.priority, best->job.key) < 0))
					best = &world.rows[r];
			if (best == NULL)
				break;
			if (world.refills[n].nrows == JOBQ_MAX_PARKED)
			{
				world.refills[n].all = false;
				break;
			}
			*last = best->job;
			if (best->job.key.run_at <= world.now)
				world.refills[n].rows[world.refills[n].nrows++] = best->job;
		}
	}
}

void
scheduler_refill_end(void)
{
	for (int i = 0; i < world.nrefills; i++)
	{
		JobqWakeList wake = {0};
		JobqGroup  *group;

		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		group = jobq_group_find(db, world.refills[i].id);
		if (group != NULL)
		{
			JobqRefill	refill = {
				world.refills[i].rows, world.refills[i].nrows,
				world.refills[i].all ? NULL : &world.refills[i].last
			};

			jobq_group_refilled(db, group, &refill, world.now, &wake);
		}
		unlock(&wake);
	}
	world.nrefills = 0;
}

/*
 * worker/scheduler/discover.c
 */
static int
lane_order(const JobqPush *a, const JobqPush *b)
{
	if (a->queue_id != b->queue_id)
		return a->queue_id < b->queue_id ? -1 : 1;
	if (a->priority != b->priority)
		return a->priority < b->priority ? -1 : 1;
	if (a->role != b->role)
		return a->role < b->role ? -1 : 1;
	if (a->flow != b->flow)
		return a->flow < b->flow ? -1 : 1;
	return 0;
}

void
scheduler_discover_begin(bool reset, bool forgotten)
{
	JobqWakeList wake = {0};

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	db->ready->overflow = false;
	db->ready->complete = false;
	world.evictions = db->ready->evictions;
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &db->ready->lanes[i];

		if (!lane->in_use || !lane->skipping)
			continue;
		lane->skipping = false;
		jobq_lane_look(db, lane, lane->skipped, &wake);
	}
	if (reset)
		db->rescan = false;
	if (reset || forgotten)
	{
		db->ready->forgotten_due = DT_NOEND;
		for (int i = 0; i < jobq_max_lanes; i++)
		{
			JobqLane   *lane = &db->ready->lanes[i];

			if (lane->in_use && !lane->quarantine && (reset || lane->unread))
				jobq_lane_reset(db, lane);
		}
		world.resumed = false;
	}
	LWLockRelease(db->lock);
	world.discover_from_start = !world.resumed;
	if (world.resumed)
		world.discover_at = world.discover_resume;
	else
	{
		memset(&world.discover_at, 0, sizeof(JobqPush));
		world.discover_at.queue_id = world.discover_at.priority =
			world.discover_at.flow = PG_INT32_MIN;
	}
	world.resumed = false;
	world.discover_left = -1;
	world.discovering = true;
}

/*
 * Read one lane.  False after the last lane.
 */
bool
scheduler_discover_step(void)
{
	JobqPush	previous = world.discover_at;
	Row		   *best = NULL;

	/* the index also has uncommitted rows */
	for (int i = 0; i < MAX_ROWS && world.discover_left != 0; i++)
	{
		Row		   *row = &world.rows[i];
		int			cmp;

		if (row->state == ROW_FREE || lane_order(&row->job, &previous) <= 0)
			continue;
		cmp = best == NULL ? -1 : lane_order(&row->job, &best->job);
		if (cmp < 0 ||
			(cmp == 0 && jobq_key_cmp(row->job.key, best->job.key) < 0))
			best = row;
	}
	if (best != NULL)
	{
		JobqLane   *lane;
		TimestampTz run_at = best->job.key.run_at;

		world.discover_at = best->job;
		world.discover_left -= world.discover_left > 0;
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		lane = jobq_lane_find(db, best->job.queue_id, best->job.priority,
							  best->job.role, best->job.flow, false,
							  run_at <= world.now);
		if (lane != NULL)
			jobq_lane_ask_rank(db, lane);
		else if (run_at > world.now)
			db->ready->forgotten_due = Min(db->ready->forgotten_due, run_at);
		else if (world.discover_left < 0)
			world.discover_left = 5;
		LWLockRelease(db->lock);
		return true;
	}
	if (world.discover_left == 0)
	{
		world.discover_resume = previous;
		world.resumed = true;
	}
	db->ready->overflow |= world.discover_left >= 0 || !world.discover_from_start ||
		db->ready->evictions != world.evictions;
	db->ready->complete = !db->ready->overflow;
	world.discovering = false;
	world.discover_plan = world.now + OVERFLOW_PAUSE;
	return false;
}

/*
 * As worker/scheduler/leases.c: jobs of expired leases run again.
 */
static void
expire_leases(void)
{
	TimestampTz next = DT_NOEND;

	for (int i = 0; i < jobq_max_leases; i++)
	{
		JobqLease  *lease = &db->leases->leases[i];
		JobqWakeList wake = {0};
		JobqPush	push;
		int			row;

		if (lease->id == 0)
			continue;
		if (lease->until > world.now)
		{
			next = Min(next, lease->until);
			continue;
		}
		push = jobq_lease_push(lease);
		row = row_of(lease->id);
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		if (row >= 0)
		{
			world.rows[row].session = -1;
			row_hold(&world.rows[row]);
		}
		trace("  the lease of job %d\n", (int) lease->id);
		jobq_lease_remove(db, lease, true, false, world.now, &wake);
		if (row >= 0)
			jobq_ready_push(db, &push, world.now, &wake);
		unlock(&wake);
	}
	db->leases->next_expiry = next;
}

/*
 * Return jobs kept back until now.
 */
static void
hand_back_kept(void)
{
	int			n = world.nkept;

	world.nkept = 0;
	for (int i = 0; i < n; i++)
	{
		const Kept	kept = world.kept[i];
		const JobqPush *job = &kept.job;
		int			r = row_of(job->key.id);
		JobqWakeList wake = {0};

		if (kept.until > world.now && kept.until <= world.now + KEPT_PAUSE)
		{
			world.kept[world.nkept++] = kept;
			continue;
		}
		if (r >= 0 && row_is_at(&world.rows[r], job))
			world.rows[r].committed = ++world.tick;
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		jobq_ready_push(db, job, job->key.run_at, &wake);
		unlock(&wake);
	}
}

/*
 * A job was taken out of the ready set because its limiter had no free permit.  The job
 * is cancelled or rescheduled, or returned because a permit is free, sometimes later.
 */
static void
turn_away(const JobqPush *job)
{
	int			r = row_of(job->key.id);
	Row		   *row = r < 0 ? NULL : &world.rows[r];
	JobqWakeList wake = {0};

	if (row == NULL || row->state != ROW_LIVE || row->worker >= 0 ||
		row->session >= 0 || row_is_taken(row) ||
		jobq_key_cmp(row->job.key, job->key) != 0)
		return;					/* the holder takes care of the job */
	trace("  job %d finds no place\n", (int) job->key.id);
	switch (row->held ? 2 + world.tick % 2 : (job->key.id + world.tick) % 4)
	{
		case 0:
			row->state = ROW_FREE;
			if (job->group == 0)
				return;
			LWLockAcquire(db->lock, LW_EXCLUSIVE);
			jobq_group_end(db, job->group, job->key.id, world.now, &wake);
			break;
		case 1:
			row->job.key.run_at = world.now + USECS_PER_SEC;
			LWLockAcquire(db->lock, LW_EXCLUSIVE);
			if (job->group != 0)
				jobq_group_moved(db, job->group, job->key.id, world.now, &wake);
			jobq_ready_push(db, &row->job, world.now, &wake);
			break;
		case 2:
			if (!world.calm && world.nkept < lengthof(world.kept))
			{
				trace("  and is kept back\n");
				world.kept[world.nkept++] = (Kept)
				{
					*job, world.now + KEPT_PAUSE
				};
				return;
			}
			/* FALLTHROUGH */
		default:
			LWLockAcquire(db->lock, LW_EXCLUSIVE);
			jobq_ready_push(db, job, job->key.run_at, &wake);
			break;
	}
	row->committed = ++world.tick;
	unlock(&wake);
}

/*
 * As worker/scheduler/taken.c: take some jobs of each heap.  A heap is checked again
 * later if a job is returned.
 */
static void
turn_jobs_away(void)
{
	int			nstuck = 0;

	for (uint32 i = db->ready->stuck; i != JOBQ_NONE; i = db->ready->heaps[i].stuck_next)
		nstuck++;
	db->ready->nasked = 0;
	while (nstuck-- > 0)
	{
		JobqPush	jobs[2];
		JobqTakenBy by;
		JobqHeap   *heap;
		JobqHeap	key;
		JobqWakeList wake = {0};
		bool		ending;
		int			n;

		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		heap = jobq_stuck_next(db, &by, &ending);
		if (heap == NULL)
		{
			LWLockRelease(db->lock);
			break;
		}
		key = *heap;
		if (ending)
		{
			jobq_stuck_again(db, &key);
			unlock(&wake);
			continue;
		}
		n = jobq_stuck_list(db, &key, jobs, 1);
		if (n == 1 && jobs[0].key.id % 5 == 0 && !jobq_stuck_remove(db, &jobs[0], &wake))
			model_fail("job %d is listed, and not there", (int) jobs[0].key.id);
		else if (n != 1 || jobs[0].key.id % 5 != 0)
			n = jobq_stuck_take(db, &key, jobs, 1 + world.tick % 2, &wake);
		else
			jobq_stuck_again(db, &key);
		unlock(&wake);
		for (int i = 0; i < n; i++)
			turn_away(&jobs[i]);
	}
}

/*
 * worker/scheduler/scheduler.c
 */
void
scheduler_start(void)
{
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_ready_clear(db);
	db->reload = db->limits->stale = db->rescan = true;
	db->wake_at = 0;
	db->can_spawn = true;
	db->scheduler = MyProc;
	LWLockRelease(db->lock);
	world.scheduler_awake = true;
	world.scheduler_last = world.now;
	world.discover_plan = world.now;
	world.scanning = -1;
	world.nrefills = world.nkept = 0;
	world.discovering = world.resumed = false;
	if (!db->limits->loaded)
	{
		JobqWakeList wake = {0};

		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		load_limits(&wake);
		LWLockRelease(db->lock);
		read_owners();
	}
}

static TimestampTz
discover_due(void)
{
	if (db->rescan)
		return world.now;
	return db->ready->overflow
		? Min(db->ready->forgotten_due, world.discover_plan)
		: db->ready->forgotten_due;
}

void
scheduler_round(void)
{
	TimestampTz now = world.now;
	JobqWakeList wake = {0};
	bool		again = false;
	bool		starved = false;

	world.scheduler_awake = false;
	if (now < world.scheduler_last)
	{
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		world.discover_plan = now;
		db->relay_due = now;
		db->limits->due = now;
		jobq_groups_look(db, now);
		db->groups->owners = true;
		jobq_tallies_put_back(db, now);
		jobq_gathering_put_back(db, now);
		db->rescan = true;
		LWLockRelease(db->lock);
	}
	world.scheduler_last = now;

	while (world.discovering)
		(void) scheduler_discover_step();
	if (world.scanning >= 0)
		scheduler_scan_end();
	scheduler_refill_end();

	if (discover_due() <= now)
	{
		scheduler_discover_begin(db->rescan, now >= db->ready->forgotten_due);
		while (scheduler_discover_step())
			;
	}
	if (scheduler_rank_wanted())
		scheduler_rank();
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &db->ready->lanes[i];
		bool		full;

		if (!scan_wanted(lane))
			continue;
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		full = no_room(lane);
		if (full)
			db->ready->starved |= !jobq_lane_is_closed(db, lane);
		LWLockRelease(db->lock);
		if (!full)
		{
			read_lane(i);
			scheduler_scan_end();
			again |= scan_wanted(lane) && !db->ready->starved;
		}
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		starved |= is_starved(lane);
		LWLockRelease(db->lock);
	}
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (db->limits->due <= now)
		jobq_limits_wake(db, now, &wake);
	if (db->groups->due <= now)
		jobq_groups_wake(db, now, &wake);
	unlock(&wake);
	if (db->groups->refill)
	{
		scheduler_refill_begin();
		scheduler_refill_end();
	}
	hand_back_kept();
	turn_jobs_away();
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	check_stuck();
	LWLockRelease(db->lock);
	if (db->groups->owners)
		read_owners();
	if (db->leases->next_expiry <= now)
		expire_leases();
	if (db->relay_pending && db->relay_due <= now)
	{
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		db->relay_pending = false;
		while (jobq_lane_next_noted(db) != NULL)
			;
		LWLockRelease(db->lock);
	}

	/* compute the wake-up time */
	db->wake_at = again ? now : starved ? now + STARVED_PAUSE : DT_NOEND;
	db->wake_at = Min(db->wake_at, discover_due());
	if (scheduler_rank_wanted())
		db->wake_at = now;
	for (int i = 0; i < jobq_max_lanes; i++)
		if (db->ready->lanes[i].in_use && !db->ready->lanes[i].paused)
			db->wake_at = Min(db->wake_at, db->ready->lanes[i].next_due);
	db->wake_at = Min(db->wake_at, db->groups->refill || db->groups->owners ? now
					  : Min(db->limits->due, db->groups->due));
	db->wake_at = Min(db->wake_at, db->leases->next_expiry);
	for (int i = 0; i < world.nkept; i++)
		db->wake_at = Min(db->wake_at, world.kept[i].until);
	if (db->ready->stuck != JOBQ_NONE)
		db->wake_at = Min(db->wake_at, now + USECS_PER_SEC / 100);
	if (db->relay_pending)
		db->wake_at = Min(db->wake_at, db->relay_due);
}
