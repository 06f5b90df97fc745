/*-------------------------------------------------------------------------
 *
 * check.c
 *	  Invariants at any time when the lock is free.
 *
 * test/model/check.c
 *
 *-------------------------------------------------------------------------
 */
#include <math.h>

#include "model.h"

/*
 * Only the lane that the scheduler is reading is marked.
 */
static void
check_scanning(void)
{
	for (int l = 0; l < jobq_max_lanes; l++)
		if (db->ready->lanes[l].in_use && db->ready->lanes[l].scanning &&
			l != world.scanning)
			model_fail("lane %d is marked as being read", l);
}

/*
 * Each lane is in the right heap, and at the right position there.
 */
static void
check_heaps(void)
{
	JobqReady  *ready = db->ready;

	for (int l = 0; l < jobq_max_lanes; l++)
	{
		JobqLane   *lane = &ready->lanes[l];
		bool		served;
		JobqHeap   *heap;

		if (!lane->in_use)
			continue;
		for (int s = 0; s < JOBQ_NLIMITS; s++)
			if (lane->needs[s].key != 0 &&
				ready->parties[lane->keys[s]].owner !=
				(s == JOBQ_OF_QUEUE ? (uint32) lane->queue_id : lane->needs[s].limiter))
				model_fail("lane %d has the key of another limiter", l);
		if (lane->ranked && lane->paused && !db->reload &&
			!queue_of(lane->queue_id)->paused &&
			!(queue_of(lane->queue_id)->kind_paused && lane->held != 0))
			model_fail("lane %d is paused, and neither its queue nor its kind is", l);
		served = lane->count > 0 && lane->ranked && !lane->paused && !lane_gathers(lane) &&
			(lane->consumer || lane->order != JOBQ_NO_ORDER);
		if (served && lane->heap == JOBQ_NONE && ready->heapless)
			continue;
		if (served != (lane->heap != JOBQ_NONE))
			model_fail("lane %d is in a heap: %d, served: %d", l, !served, served);
		if (!served)
			continue;
		heap = &ready->heaps[lane->heap];
		if ((keyed_source(db, lane) >= 0) != (lane->own != JOBQ_NONE))
			model_fail("lane %d is in a heap of its key: %d", l,
					   lane->own != JOBQ_NONE);
		if (lane->own != JOBQ_NONE)
		{
			const JobqHeap *own = &ready->heaps[lane->own];
			JobqHeap	key = *own;

			if (own->at != keyed_source(db, lane) || own->party != lane->keys[own->at])
				model_fail("lane %d is in the heap of another key", l);
			key.party = JOBQ_NONE;
			if (own->lent == (uint32) l ? !heap_same(&key, heap) : own != heap)
				model_fail("lane %d is lent, or not: heap %u of %u", l, lane->heap,
						   lane->own);
		}
		else if (heap->party != JOBQ_NONE)
			model_fail("lane %d is in the heap of a key", l);
		if (heap->role != lane->role || heap->consumer != lane->consumer ||
			heap->quarantine != lane->quarantine ||
			memcmp(heap->limiters, lane->limiters, sizeof(heap->limiters)) != 0 ||
			(heap->consumer ? heap->queue_id != lane->queue_id
			 : heap->order != lane->order))
			model_fail("lane %d is in another's heap", l);
		if (ready->nodes[l].parent != JOBQ_NONE &&
			heap_before(db, heap, l, ready->nodes[l].parent))
			model_fail("lane %d comes before its parent", l);
	}
}

/*
 * A lane gathers only jobs of its kind, no longer than the first job may wait, and only while the
 * jobs do not suffice for a call.  The scheduler serves the timer.
 */
static void
check_gathering(void)
{
	TimestampTz wait = world.gathered.chunk_wait;

	for (int l = 0; l < jobq_max_lanes; l++)
	{
		const JobqLane *lane = &db->ready->lanes[l];
		TimestampTz due;

		if (!lane->in_use || !lane_gathers(lane))
			continue;
		due = timer_due(&db->ready->gathering, l);
		if (lane->needs[JOBQ_OF_KIND].limiter != KIND_GATHERED || lane->consumer || lane->quarantine)
			model_fail("lane %d gathers jobs of another kind", l);
		if (db->limits->due > due)
			model_fail("the scheduler does not look at lane %d in time", l);
		if (db->limits->stale)
			continue;			/* the policy has changed */
		if (due > lane->since + wait || (!world.put_back && due > world.now + wait))
			model_fail("lane %d gathers for too long", l);
		if (lane->count >= (uint32) world.gathered.chunk)
			model_fail("lane %d gathers more than the jobs of a call", l);
	}
}

/*
 * A key that may start a job has lent a lane, or has a timer.  A full key has lent
 * no lane.
 */
static void
check_key(uint32 party)
{
	JobqReady  *ready = db->ready;
	JobqParty  *key = &ready->parties[party];
	uint32		index = tally_find(db, key->owner, key->key);
	JobqTally  *tally = index == JOBQ_NONE ? NULL : TALLY(db, index);

	for (uint32 h = key->heaps; h != JOBQ_NONE; h = ready->heaps[h].next)
	{
		JobqHeap   *own = &ready->heaps[h];
		const JobqLimiter *policy = &db->limits->limiters[own->limiters[own->at]];
		bool		full;

		if (own->party != party || (own->root == JOBQ_NONE && own->lent == JOBQ_NONE))
			model_fail("heap %u is not well one of key %u", h, party);
		full = policy->max_running > 0 && tally != NULL &&
			tally->running >= policy->max_running;
		if (own->lent != JOBQ_NONE && full)
			model_fail("key %u is full, and may start a job", party);
		if (own->lent != JOBQ_NONE || full || ready->heapless)
			continue;
		if (tally == NULL || tally->timer == JOBQ_NONE)
			model_fail("key %u may start a job, and does not", party);
		if (db->limits->due > timer_due(&db->ready->timers, index))
			model_fail("nobody looks at key %u in time", party);
	}
}

static void
check_keys(void)
{
	JobqReady  *ready = db->ready;

	for (int l = 0; l < jobq_max_lanes; l++)
	{
		for (int s = 0; s < JOBQ_NLIMITS && ready->lanes[l].in_use; s++)
			if (ready->lanes[l].needs[s].key != 0)
				check_key(ready->lanes[l].keys[s]);
	}
}

/*
 * Add the permits to the counts per limiter, group and key.
 */
static void
count_permits(const JobqPermits *permits, int *limiters, int *groups,
			  int *keys)
{
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		if (permits->tallies[s] != JOBQ_NONE)
			keys[permits->tallies[s]]++;
		if (permits->limiters[s] != JOBQ_NO_LIMITER)
			limiters[permits->limiters[s]]++;
	}
	if (permits->group != JOBQ_NONE)
		groups[permits->group]++;
}

static void
check_permits(void)
{
	int			limiters[NLIMITERS] = {0};
	int			groups[1024] = {0};
	int			keys[1024] = {0};

	for (int i = 0; i < NSLOTS; i++)
	{
		const JobqHolding *holding = jobq_shared->slots[i].holding;

		count_permits(&holding->permits, limiters, groups, keys);
		for (int k = 0; k < holding->nmore; k++)
			count_permits(&holding->more, limiters, groups, keys);
		for (uint32 g = holding->groups; g != JOBQ_NONE; g = db->groups->groups[g].held_next)
		{
			groups[g]++;
			if (db->groups->groups[g].slot != (uint32) i + 1)
				model_fail("group %u is of slot %u", g, db->groups->groups[g].slot);
		}
	}
	for (int i = 0; i < jobq_max_leases; i++)
		if (db->leases->leases[i].id != 0)
			count_permits(&db->leases->leases[i].permits, limiters, groups, keys);
	for (int i = 0; i < JOBQ_MAX_RESERVERS; i++)
		if (db->offers->reservers[i].offered)
			count_permits(&db->offers->reservers[i].offer.permits, limiters, groups, keys);
	for (int i = 0; i < db->limits->nlimiters; i++)
		if (db->limits->limiters[i].in_use &&
			limiters[i] != db->limits->limiters[i].running)
			model_fail("limiter %d: %d run, not %d", i, limiters[i],
					   db->limits->limiters[i].running);
	for (uint32 i = 0; i < (uint32) jobq_ready_entries; i++)
		if (keys[i] != (TALLY(db, i)->lane == JOBQ_NO_LANE ? TALLY(db, i)->running : 0))
			model_fail("tally %u: %d run", i, keys[i]);
	for (int i = 0; i < jobq_max_groups; i++)
	{
		JobqGroup  *group = &db->groups->groups[i];

		if (group->id == 0 && groups[i] > 0)
			model_fail("a job runs of a group that is gone");
		if (group->id != 0 && groups[i] != group->running)
			model_fail("group %d: %d run, not %d", (int) group->id, groups[i],
					   group->running);
	}
}

/*
 * Each account counts exactly the slots held by a role.
 */
static void
check_shares(void)
{
	uint32		held[JOBQ_MAX_ACCOUNTS][JOBQ_NSHARES] = {0};
	uint32		total[JOBQ_NSHARES] = {0};
	uint32		n = 1;			/* the account of all other roles */

	for (int i = 0; i < jobq_max_leases; i++)
		if (db->leases->leases[i].id != 0)
			held[db->leases->bundles[db->leases->leases[i].bundle].account][JOBQ_OF_LEASES]++;
	for (int i = 0; i < JOBQ_MAX_BUNDLES; i++)
		if (db->leases->bundles[i].outstanding > 0)
			held[db->leases->bundles[i].account][JOBQ_OF_BUNDLES]++;
	for (int i = 0; i < jobq_max_groups; i++)
		if (db->groups->groups[i].id != 0)
			held[db->groups->groups[i].account][JOBQ_OF_GROUPS]++;
	for (int s = 0; s < NSESSIONS; s++)
		if (world.sessions[s].place != JOBQ_NONE)
			held[db->offers->reservers[world.sessions[s].place].account][JOBQ_OF_RESERVERS]++;
	for (uint32 b = 0; b < JOBQ_MAX_ACCOUNTS; b++)
		for (uint32 i = db->shares->bucket[b]; i != JOBQ_NONE;
			 i = db->shares->accounts[i].next)
			n++;
	for (uint32 i = db->shares->free; i != JOBQ_NONE;
		 i = db->shares->accounts[i].next)
		n++;
	if (n != JOBQ_MAX_ACCOUNTS)
		model_fail("an account is neither free nor a role's");
	for (int what = 0; what < JOBQ_NSHARES; what++)
	{
		for (int a = 0; a < JOBQ_MAX_ACCOUNTS; a++)
		{
			total[what] += held[a][what];
			if (held[a][what] != db->shares->accounts[a].held[what])
				model_fail("account %d has %u of %d, not %u", a,
						   db->shares->accounts[a].held[what], what,
						   held[a][what]);
		}
		if (total[what] != db->shares->held[what])
			model_fail("%u of %d are held, not %u", db->shares->held[what],
					   what, total[what]);
	}
}

/*
 * Return where this job will be found, or NULL.  The job is due and was handed over.
 */
static const char *
found(const Row *row)
{
	JobqReady  *ready = db->ready;
	const JobqPush *job = &row->job;
	JobqLane   *lane;
	JobqGroup  *group;

	for (int i = 0; i < NSLOTS; i++)
	{
		JobqHolding *holding = jobq_shared->slots[i].holding;

		for (uint32 p = holding->next; p < holding->count; p++)
			if (holding->prefetched[p].key.id == job->key.id)
				return "taken along";
	}
	for (int i = 0; i < JOBQ_MAX_RESERVERS; i++)
		if (db->offers->reservers[i].offered &&
			db->offers->reservers[i].offer.key.id == job->key.id)
			return "offered";
	for (int i = 0; i < world.nkept; i++)
		if (row_is_at(row, &world.kept[i].job))
			return "kept back";
	for (int q = 0; q < 2; q++)
	{
		lane = jobq_lane_find(db, job->queue_id, job->priority, job->role,
							  job->flow, q == 0, false);
		if (lane != NULL)
			for (uint32 i = lane->head; i != JOBQ_NONE; i = ready->entries[i].next)
				if (jobq_key_cmp(ready->entries[i].key, job->key) == 0)
					return "in its lane";
	}
	group = job->group == 0 ? NULL : jobq_group_find(db, job->group);
	if (group != NULL)
	{
		JobqKey		cursor = {group->cursor_run_at, group->cursor_id};

		for (uint32 i = group->head; i != JOBQ_NONE; i = ready->entries[i].next)
			if (jobq_key_cmp(ready->entries[i].key, job->key) == 0 &&
				of_lane(row, &ready->lanes[ready->entries[i].lane]))
				return "parked";
		if (group->spilled &&
			group_compare(job->priority, job->key, group->cursor_priority,
						  cursor) > 0)
			return "spilled";
		if (group->dropped)
			return "dropped";
		for (int i = 0; i < world.nrefills; i++)
			for (int r = 0; r < world.refills[i].nrows; r++)
				if (world.refills[i].id == group->id &&
					world.refills[i].rows[r].key.id == job->key.id)
					return "being read for its group";
	}
	for (int i = 0; i < ready->nlate; i++)
		if (world.scanning >= 0 && ready->late[i].key.id == job->key.id)
			return "late";
	if (db->rescan)
		return "all is read again";
	if ((lane == NULL || lane->unread) &&
		ready->forgotten_due <= job->key.run_at)
		return "its lane was forgotten";
	if (lane == NULL)
	{
		if (world.discovering)
			return "being looked for";
		if (!ready->complete || ready->overflow)
			return "its lane is not there";
		return NULL;
	}
	if (lane->skipping && jobq_key_cmp(job->key, lane->skipped) >= 0)
		return "skipped";
	if (lane->scanning)
	{
		if (jobq_key_cmp(db->ready->missed, job->key) <= 0)
			return "missed";
		for (int i = 0; i < world.scanned.nrows; i++)
			if (jobq_key_cmp(world.read[i].key, job->key) == 0)
				return "being read";
		if (jobq_key_cmp(job->key, lane->cursor) > 0 &&
			(lane->next_due <= job->key.run_at ||
			 (jobq_key_cmp(job->key, world.scanned.cursor) > 0 &&
			  (world.scanned.more || world.scanned.next_due <= job->key.run_at))))
			return "to be read";
	}
	else if (jobq_key_cmp(job->key, lane->cursor) > 0 &&
			 (lane->more || lane->next_due <= job->key.run_at))
		return "to be read";
	if (job->quarantine && ready->overflow)
		return "to be read for the quarantine";
	return NULL;
}

/*
 * Print the state of the lane of a lost or waiting job.
 */
void
show_lane(const Row *row)
{
	const JobqPush *job = &row->job;
	JobqLane   *lane = jobq_lane_find(db, job->queue_id, job->priority,
									  job->role, job->flow, false, false);

	trace("job %d at %+d: complete %d, overflow %d, forgotten %+.6f\n",
		  (int) job->key.id, (int) (job->key.run_at - world.now),
		  db->ready->complete, db->ready->overflow,
		  (db->ready->forgotten_due - world.now) / 1e6);
	if (lane != NULL)
		trace("lane %d: cursor %+.6f %d, more %d, scanning %d, next_due %+.6f, count %u\n",
			  (int) JOBQ_LANE_INDEX(db, lane),
			  (lane->cursor.run_at - world.now) / 1e6, (int) lane->cursor.id,
			  lane->more, lane->scanning, (lane->next_due - world.now) / 1e6,
			  lane->count);
	for (int i = 0; i < jobq_max_groups; i++)
	{
		const JobqGroup *group = &db->groups->groups[i];

		if (group->id == 0 || group->id != job->group)
			continue;
		trace("group: %d run, owner %d, current %d, called %d, spilled %d, refill %d;",
			  group->running, (int) group->owner, (int) group->current,
			  (int) group->called, group->spilled, group->refill);
		for (uint32 e = group->head; e != JOBQ_NONE; e = db->ready->entries[e].next)
			trace(" job %d", (int) db->ready->entries[e].key.id);
		trace("; after %+.6f %d\n", (group->cursor_run_at - world.now) / 1e6,
			  (int) group->cursor_id);
	}
	for (int i = 0; i < db->limits->nlimiters; i++)
		if (db->limits->limiters[i].in_use)
			trace("limiter %d: %d of %d run, full at %+.6f, %d failures\n", i,
				  db->limits->limiters[i].running,
				  db->limits->limiters[i].max_running,
				  (db->limits->limiters[i].pace.full_at - world.now) / 1e6,
				  (int) db->limits->limiters[i].pace.failures);
}

static void
check_found(void)
{
	for (int i = 0; i < MAX_ROWS; i++)
		if (row_is_due(&world.rows[i]) && world.rows[i].txn < 0 &&
			!row_is_moving(&world.rows[i]) && world.rows[i].worker < 0 && world.rows[i].session < 0 &&
			found(&world.rows[i]) == NULL)
		{
			show_lane(&world.rows[i]);
			model_fail("job %d is lost", (int) world.rows[i].job.key.id);
		}
}

/*
 * Does the limit of this key prevent all of its jobs from starting?
 */
static bool
is_full(uint32 limiter, uint32 key)
{
	JobqKeyedState state;

	return key != 0 && jobq_keyed_state(db, limiter, key, world.now, &state) &&
		((state.max_running > 0 && state.running >= state.max_running) ||
		 state.rest_until != 0 ||
		 (state.paced && state.tokens < ONE_TOKEN));
}

/*
 * Return the rank of the lane for a taker by the simple rule.
 */
static uint8
plain_rank(const JobqLane *lane, const JobqTaker *taker)
{
	uint8		rank = JOBQ_NOT_SERVED;
	bool		allowed = taker->any_role;
	TimestampTz due = DT_NOEND;

	if (!lane->in_use || lane->count == 0 || !lane->ranked || lane->paused)
		return JOBQ_NOT_SERVED;
	if (lane->heap == JOBQ_NONE && db->ready->heapless)
		return JOBQ_NOT_SERVED; /* the lane waits for a heap */
	if (lane->heap != JOBQ_NONE &&
		heap_room_for(db, &db->ready->heaps[lane->heap], taker, world.now, &due) == 0)
		return JOBQ_NOT_SERVED;
	if (lane->quarantine && taker->pool >= 0 && db->ready->quarantine_slot >= 0)
		return JOBQ_NOT_SERVED;
	for (int i = 0; i < taker->nroles; i++)
		allowed |= taker->roles[i] == lane->role;
	if (!allowed || !jobq_lane_free(db, lane, world.now))
		return JOBQ_NOT_SERVED;

	/* the lane is found where one of its keys has room: what about the others? */
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (key_is_limited(db, lane, s) && s != keyed_source(db, lane) &&
			is_full(lane->needs[s].limiter, lane->needs[s].key))
			return JOBQ_NOT_SERVED;
	if (taker->pool >= 0)
		return JOBQ_LANE_RANK(db, lane, taker->pool);
	for (int i = taker->nqueues - 1; i >= 0 && lane->consumer; i--)
		if (taker->queue_ids[i] == lane->queue_id)
			rank = i;
	return rank;
}

/*
 * The turns of a lane's tenant within the queue, and of the queue.
 */
static double
tenant_turn(const JobqLane *lane)
{
	uint16		limiter = lane->limiters[JOBQ_OF_QUEUE];

	if (limiter == JOBQ_NO_LIMITER || !db->limits->limiters[limiter].fair)
		return 0;
	return JOBQ_TENANT(lane) == 0 ? -1 : db->ready->parties[lane->keys[JOBQ_OF_QUEUE]].turn;
}

static double
queue_turn(const JobqLane *lane)
{
	return db->limits->weighted ? db->ready->parties[lane->party].turn : 0;
}

/*
 * Does the lane come before a lane of the same rank?
 */
static bool
plain_before(const JobqLane *lane, const JobqLane *other)
{
	if (queue_turn(lane) != queue_turn(other))
		return queue_turn(lane) < queue_turn(other);
	if (lane->priority != other->priority)
		return lane->priority < other->priority;

	/* lanes of three heaps can form a cycle of tenant turns and age */
	if (lane->heap != other->heap && (JOBQ_TENANT(lane) != 0 || JOBQ_TENANT(other) != 0 ||
									  tenant_turn(lane) != 0 || tenant_turn(other) != 0))
		return false;
	if (tenant_turn(lane) != tenant_turn(other))
		return tenant_turn(lane) < tenant_turn(other);
	return jobq_key_cmp(db->ready->entries[lane->head].key,
						db->ready->entries[other->head].key) < 0;
}

/*
 * No lane comes before the lane chosen for a taker.
 */
static void
check_best(const JobqTaker *taker, const char *who, int n)
{
	uint8		rank = JOBQ_NOT_SERVED;
	JobqLane   *best = lane_best(db, taker, world.now, &rank);
	int			index = best == NULL ? -1 : (int) JOBQ_LANE_INDEX(db, best);

	if (best != NULL && keyed_is_stale(db, best, world.now))
		return;					/* the next pop moves the lane */
	if (best != NULL && plain_rank(best, taker) != rank)
		model_fail("%s %d: lane %d is chosen, and not served", who, n, index);
	for (int l = 0; l < jobq_max_lanes; l++)
	{
		JobqLane   *lane = &db->ready->lanes[l];
		uint8		mine = plain_rank(lane, taker);

		if (lane == best || mine == JOBQ_NOT_SERVED)
			continue;
		if (best == NULL)
			model_fail("%s %d: lane %d is passed over", who, n, l);
		if (mine < rank ||
			(mine == rank && plain_before(lane, best)))
			model_fail("%s %d: lane %d comes before lane %d", who, n, l, index);
	}
}

static void
check_order(void)
{
	for (int w = 0; w < NSLOTS; w++)
	{
		JobqSlot   *slot = &jobq_shared->slots[w];
		JobqTaker	taker = {.pool = slot->pool,.slot = w,.nroles = 1,.roles = &slot->role};

		check_best(&taker, "worker", w);
	}
	for (int s = 0; s < NSESSIONS; s++)
		if (world.sessions[s].asking)
			check_best(&world.sessions[s].taker, "session", s);
}

/*
 * A session waits only if no job may start in it.  The scheduler handles jobs that become
 * free with time, and backward changes of the clock.
 */
static void
check_waiting(void)
{
	if (db->ready->marked != JOBQ_NONE || db->ready->heapless ||
		db->limits->due <= world.now + 2 ||
		world.now < world.scheduler_last)
		return;
	for (int s = 0; s < NSESSIONS; s++)
	{
		Session    *session = &world.sessions[s];

		if (session->asking && session->place != JOBQ_NONE && !session->awake &&
			!db->offers->reservers[session->place].offered &&
			session_sees(session))
			model_fail("session %d waits, and there is a job for it", s);
	}
}

/*
 * Is the last permit of one of the lane's limiters reserved for the lane's role?  The worker
 * that was woken for the permit may be about to take a job of another lane.
 */
static bool
is_kept(const JobqLane *lane)
{
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (lane->limiters[s] != JOBQ_NO_LIMITER &&
			db->limits->limiters[lane->limiters[s]].kept_until > world.now &&
			db->limits->limiters[lane->limiters[s]].kept_role == lane->role)
			return true;
	return false;
}

/*
 * A worker sleeps only if no job may start in it, or if another worker was woken for the
 * job.  The scheduler handles jobs that become free with time.  Jobs may also wait for
 * their groups.
 */
static void
check_idle(void)
{
	if (db->ready->heapless || world.scheduler_awake ||
		db->wake_at <= world.now + 2 || world.now < world.scheduler_last)
		return;
	for (int w = 0; w < NSLOTS; w++)
	{
		JobqSlot   *slot = &jobq_shared->slots[w];
		JobqTaker	taker = {.pool = slot->pool,.slot = w,.nroles = 1,.roles = &slot->role};
		uint8		rank;
		JobqLane   *lane;
		bool		taken = false;

		if (!slot->idle || world.workers[w].awake)
			continue;
		lane = lane_best(db, &taker, world.now, &rank);
		if (lane != NULL && keyed_is_stale(db, lane, world.now))
			lane = NULL;		/* likewise */
		for (int v = 0; v < NSLOTS && lane != NULL && !taken; v++)
			taken = world.workers[v].awake && world.workers[v].row < 0 &&
				jobq_shared->slots[v].role == slot->role &&
				(JOBQ_LANE_RANK(db, lane, jobq_shared->slots[v].pool) != JOBQ_NOT_SERVED ||
				 is_kept(lane));
		if (lane != NULL && !taken && db->ready->entries[lane->head].group == 0)
			model_fail("worker %d sleeps, and lane %d has a job for it", w,
					   (int) JOBQ_LANE_INDEX(db, lane));
	}
}

/*
 * If a job of a role took a permit, every heap of the role records the turn.  Each
 * limited heap is in the list of the limiter.
 */
static void
check_turns(void)
{
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		const JobqLane *lane = &db->ready->lanes[i];
		const uint16 *limiters = lane->limiters;

		for (int l = 0; l < JOBQ_NLIMITS && lane->in_use && lane->heap != JOBQ_NONE; l++)
		{
			uint32		h;

			if (limiters[l] == JOBQ_NO_LIMITER ||
				db->ready->heaps[lane->heap].party != JOBQ_NONE)
				continue;
			for (h = db->ready->limited[limiters[l]]; h != JOBQ_NONE && h != lane->heap;
				 h = heap_next_at(db, h, limiters[l]))
				;
			if (h == JOBQ_NONE)
				model_fail("heap %u is not in the list of limiter %u", lane->heap, limiters[l]);
		}
	}
	for (int l = 0; l < db->limits->nlimiters; l++)
	{
		for (uint32 i = db->ready->limited[l]; i != JOBQ_NONE; i = heap_next_at(db, i, l))
		{
			const JobqHeap *heap = &db->ready->heaps[i];

			if (turn_of(db, heap, l) < world.turns[l][heap->role - 10])
				model_fail("role %u has had its turn at limiter %u, which heap %u does not know",
						   heap->role, l, i);
			if (turn_of(db, heap, l) > db->limits->served)
				model_fail("role %u has a turn at limiter %u that is still to come",
						   heap->role, l);
		}
	}
}

/*
 * If all permits of a limiter are in use, and its jobs do not wait for a permit, the
 * scheduler was notified.
 */
static void
check_taken(void)
{
	JobqReady  *ready = db->ready;
	uint32		last = JOBQ_NONE;
	int			nstuck = 0;
	bool		seen[1024] = {0};

	for (uint32 i = ready->stuck; i != JOBQ_NONE; i = ready->heaps[i].stuck_next)
	{
		if (!ready->heaps[i].stuck || ready->heaps[i].stuck_prev != last ||
			++nstuck > (int) JOBQ_MAX_HEAPS)
			model_fail("heap %u is not linked well among those that are stuck", i);
		last = i;
	}
	if (ready->stuck_last != last)
		model_fail("the last heap that is stuck is another");
	for (int l = 0; l < jobq_max_lanes; l++)
	{
		JobqLane   *lane = &ready->lanes[l];
		uint32		at = lane->own != JOBQ_NONE ? lane->own : lane->heap;
		JobqHeap   *heap = at == JOBQ_NONE ? NULL : &ready->heaps[at];

		for (int s = 0; s < JOBQ_NLIMITS && lane->in_use && heap != NULL; s++)
		{
			const JobqLimiter *limiter = &db->limits->limiters[lane->limiters[s]];
			JobqTakenBy by;
			bool		ending;

			if (lane->limiters[s] == JOBQ_NO_LIMITER)
				continue;
			if (!limiter->keyed && lane->own != JOBQ_NONE)
				continue;		/* the limit of a key applies first */
			if (limiter->keyed && (!key_is_limited(db, lane, s) || heap->at != s))
				continue;		/* likewise, or no limit of the key */
			if (jobq_places_taken(db, limiter->kind, lane->needs[s].key, &by, &ending) &&
				!heap->stuck)
				model_fail("all places of lane %d are taken, and nobody sees to it", l);
			seen[at] = true;
		}
	}
	for (uint32 i = ready->stuck; i != JOBQ_NONE; i = ready->heaps[i].stuck_next)
		if (!seen[i] && ready->heaps[i].root == JOBQ_NONE && ready->heaps[i].lent == JOBQ_NONE)
			model_fail("heap %u is stuck, and has no lane", i);
	if (ready->stuck != JOBQ_NONE && !world.scheduler_awake && db->wake_at == DT_NOEND)
		model_fail("the scheduler does not know that heaps are stuck");
}

/*
 * Check everything.  The checks must not change the wake-up time of the scheduler.
 */
void
check_all(void)
{
	TimestampTz due = db->limits->due;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	ready_verify(db);
	check_scanning();
	check_heaps();
	check_keys();
	check_gathering();
	check_permits();
	check_shares();
	check_found();
	check_order();
	check_waiting();
	check_idle();
	check_turns();
	check_taken();
	check_throttles();
	check_patience();
	check_moved();
	db->limits->due = due;
	LWLockRelease(db->lock);
}

/*
 * Get the number of tokens of the named limiter for such a job.  False if the job needs no
 * permit of the limiter, or if the limiter has no rate.
 */
static bool
tokens_for(const JobqPush *job, int n, double *tokens)
{
	const JobqNeed *need = &job->needs[SOURCE(n)];
	JobqLimiter *limiter = &db->limits->limiters[job->permits.limiters[SOURCE(n)]];
	TimestampTz due = DT_NOEND;
	JobqKeyedState state;

	if (job->permits.limiters[SOURCE(n)] == JOBQ_NO_LIMITER)
		return false;
	if (limiter->keyed)
	{
		(void) jobq_keyed_state(db, need->limiter, need->key, world.now, &state);
		*tokens = state.tokens;
		return job->permits.tallies[SOURCE(n)] != JOBQ_NONE && state.paced;
	}
	if (limiter->rate.per_us <= 0)
		return false;
	*tokens = jobq_pace_tokens(limiter, &limiter->pace, world.now, &due);
	return true;
}

static double
burst_of(int n)
{
	return world.named[n].rate.burst;
}

/*
 * The popped job took its cost in tokens.  The bucket had at least one token, and owes
 * the rest.
 */
void
check_tokens(const JobqPush *job)
{
	check_rest_of(job);
	for (int n = 0; n < NNAMED; n++)
	{
		double		burst = burst_of(n);
		int			cost = job->needs[SOURCE(n)].cost;
		double		tokens;

		if (!tokens_for(job, n, &tokens))
			continue;
		trace("  %.3f tokens are left\n", tokens);

		/*
		 * If the clock is put back, a bucket becomes empty, or has the debt of
		 * the most expensive job.  A lane lent before may still start a job.
		 */
		if (tokens < (world.put_back ? -db->limits->limiters[job->permits.limiters[SOURCE(n)]].dearest
					  : 1 - cost) - 0.001 ||
			tokens > (world.put_back ? Max(burst - cost, 0) : burst - cost) + 0.001)
			model_fail("job %d costs %d, and leaves %.3f tokens", (int) job->key.id,
					   cost, tokens);
	}
}

/*
 * The job was popped, but is not run: return the permits and tokens.
 */
void
check_given_back(JobqPush *job, JobqWakeList *wake)
{
	JobqPush	had = *job;
	double		before[NNAMED];
	double		after;
	bool		paced[NNAMED];

	for (int n = 0; n < NNAMED; n++)
		paced[n] = tokens_for(&had, n, &before[n]);
	jobq_permits_release(db, &job->permits, job->key.id, false, true, world.now, wake);
	for (int n = 0; n < NNAMED; n++)
	{
		int			cost = had.permits.costs[SOURCE(n)];

		/* a bucket that became empty when the clock was put back hides a debt */
		if (paced[n] && !world.put_back && tokens_for(&had, n, &after) &&
			fabs(after - Min(before[n] + cost, burst_of(n))) > 0.001)
			model_fail("job %d cost %d: there were %.3f tokens, and are %.3f",
					   (int) had.key.id, cost, before[n], after);
	}
}

/*
 * A job starts within the limits, and in the order of the group at the time of the pop.
 * A session may start a job some time after the pop.
 */
void
check_starts(int r, Moment popped)
{
	const Row  *row = &world.rows[r];
	Queue	   *queue = queue_of(row->job.queue_id);
	bool		group_limited = queue->limited && !jobq_group_shared(row->job.group);
	int			group_max = group_limited ? queue->limiter.group_max_running : 1;

	/* a job offered before the patience changed is still the owner */
	bool		waited_for = row->held &&
		(!row_has_lost(row, popped.now) || popped.tick < world.limits_tick);
	int			running = 0;

	for (int n = 0; n < NNAMED; n++)
	{
		uint32		key = row->job.needs[SOURCE(n)].key;

		if (key == 0 || db->limits->stale || popped.tick < world.limits_tick)
			continue;
		for (int i = 0; i < MAX_ROWS; i++)
			running += i != r && world.rows[i].state == ROW_LIVE &&
				world.rows[i].job.needs[SOURCE(n)].key == key &&
				(world.rows[i].worker >= 0 || world.rows[i].session >= 0);
		if (running >= world.named[n].max_running)
			model_fail("%d jobs of key %u run", running + 1, key);
		running = 0;
	}
	if (row->job.group == 0)
		return;
	for (int i = 0; i < MAX_ROWS; i++)
	{
		const Row  *other = &world.rows[i];

		if (i == r || other->state != ROW_LIVE ||
			other->job.group != row->job.group)
			continue;
		if (other->worker >= 0 && world.workers[other->worker].collecting)
			continue;			/* in the same call */
		if (other->worker >= 0 || other->session >= 0)
			running++;
		else if (group_max == 1 && row_is_due(other) &&
				 other->job.key.run_at <= popped.now &&
				 other->committed <= popped.tick && !waited_for &&
				 group_compare(other->job.priority, other->job.key,
							   row->job.priority, row->job.key) < 0)
			model_fail("job %d starts before job %d of its group",
					   (int) row->job.key.id, (int) other->job.key.id);
		if (group_max == 1 && other->held && !other->over &&
			other->again <= popped.tick &&
			(!group_limited || queue->limiter.group_wait) && !waited_for)
			model_fail("job %d starts, but its group waits for job %d",
					   (int) row->job.key.id, (int) other->job.key.id);
	}
	if (group_max > 0 && running >= group_max)
		model_fail("%d jobs of group %d run", running + 1, (int) row->job.group);
}
