/*-------------------------------------------------------------------------
 *
 * world.c
 *	  The table, the actors, and the operations.
 *
 * test/model/world.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

#define ALIVE(row) ((row)->state == ROW_LIVE)
#define LEASE_TIME (20 * USECS_PER_SEC)

World		world;

static void worker_pop(int w);
static bool may_follow(int w, const JobqPush *entry);
static bool session_look(int s);

/* ---------- the table ---------- */

int
row_of(int64 id)
{
	for (int i = 0; i < MAX_ROWS; i++)
		if (ALIVE(&world.rows[i]) && world.rows[i].job.key.id == id)
			return i;
	return -1;
}

Queue *
queue_of(int32 id)
{
	return &world.queues[id - 1];
}

Moment
world_moment(void)
{
	return (Moment){.tick = world.tick,.now = world.now};
}

bool
row_is_due(const Row *row)
{
	return ALIVE(row) && row->job.key.run_at <= world.now;
}

/*
 * Is the row at the queue position of "job"?
 */
bool
row_is_at(const Row *row, const JobqPush *job)
{
	return ALIVE(row) && row->job.priority == job->priority &&
		jobq_key_cmp(row->job.key, job->key) == 0;
}

/*
 * Enqueue a job with a random lane and group out of a few.
 */
static void
op_enqueue(uint32 a, uint32 b, uint32 c)
{
	int			t = a % MAX_TXNS;
	Queue	   *queue = &world.queues[b % NQUEUES];
	Row		   *row = NULL;
	JobqPush   *job;

	if (world.txns[t].state != TXN_OPEN)
		return;
	for (int i = 0; i < MAX_ROWS && row == NULL; i++)
		if (world.rows[i].state == ROW_FREE)
			row = &world.rows[i];
	if (row == NULL)
		return;
	memset(row, 0, sizeof(Row));
	row->state = ROW_OPEN;
	row->txn = t;
	row->worker = row->session = -1;
	job = &row->job;
	job->queue_id = queue->id;
	job->role = 10 + (a >> 8) % NROLES;
	job->priority = (b >> 8) % 8 == 0 ? (int) ((b >> 16) % 20) : (int) ((b >> 8) % 3);
	job->key.id = ++world.next_id;
	job->key.run_at = world.now;
	if (c % 8 == 0)
		job->key.run_at += (c >> 8) % (5 * USECS_PER_SEC);
	else if (c % 8 == 1)
		job->key.run_at -= (c >> 8) % USECS_PER_SEC;
	for (int n = 0; n < NNAMED; n++)
	{
		JobqNeed   *need = &job->needs[SOURCE(n)];
		bool		needed = n == 0 ? (c >> 3) % world.kind_every == 0
			: n == BY_TENANT ? queue->by_tenant : queue->named;

		if (needed)
		{
			need->limiter = NAME(n);
			if (world.named[n].keyed)
				need->key = 1 + (n == BY_TENANT ? c >> 6 : c >> (26 + n)) % NKEYS;
			need->cost = world.named[n].priced ? 1 + (c >> 17) % 4 : 1;
		}
		else if (n == 0 && world.named[n].priced && (c >> 3) % 8 == 1)
			need->cost = JOBQ_PASSES;
	}
	if ((b >> 24) % 4 == 0)
	{
		job->needs[JOBQ_OF_KIND].limiter = KIND_GATHERED;
		job->needs[JOBQ_OF_KIND].cost = 1;
	}
	if (queue->tenants)
		JOBQ_TENANT(job) = 1 + (c >> 6) % 3;
	if (queue->kind_paused && MAY_BE_PAUSED(job))
		job->held = KIND_PAUSED;

	/* a hash: two keys, or two costs, have the same value */
	job->flow = JOBQ_TENANT(job) + job->held * 1000 + job->needs[JOBQ_OF_KIND].limiter * 200000;
	for (int n = 0; n < NNAMED; n++)
	{
		const JobqNeed *need = &job->needs[SOURCE(n)];

		job->flow = job->flow * 101 + need->limiter * 100 + Min(need->key, 2) * 10 +
			Min(need->cost, 3) + 1;
	}
	if ((c >> 20) % 2 == 0 && world.last.queue_id != 0)
	{
		/* the same lane as the previous job */
		world.last.key = job->key;
		*job = world.last;
	}
	else if ((c >> 8) % 3 == 0)
		job->group = (c >> 14) % 4 == 0 ? 1 + (c >> 10) % 2 * 2
			: queue->id * 100 + (c >> 10) % 3 * 2;
	job->notify = (c >> 24) % 4 == 0;
	job->permits = JOBQ_NO_PERMITS;
	world.last = *job;
	ItemPointerSet(&job->ctid, 1 + job->key.id / 4, 1 + job->key.id % 4);
	trace("  job %d: queue %d, priority %d, role %u, flow %d, group %d, at %+d\n",
		  (int) job->key.id, job->queue_id, job->priority, job->role, job->flow,
		  (int) job->group, (int) (job->key.run_at - world.now));
}

static void
op_commit(uint32 a, uint32 b, uint32 c)
{
	Txn		   *txn = &world.txns[a % MAX_TXNS];

	if (txn->state != TXN_OPEN)
		return;
	txn->state = TXN_COMMITTED;
	txn->bulk = b % 4 == 0;
	txn->everything = b % 32 == 1;
	txn->nraised = 0;
	if (txn->everything)
		txn->raised[txn->nraised++] = jobq_handover_begin(db->dboid, 0);
	world.tick++;
	for (int i = 0; i < MAX_ROWS; i++)
		if (world.rows[i].state == ROW_OPEN &&
			world.rows[i].txn == (int) (a % MAX_TXNS))
		{
			Row		   *row = &world.rows[i];

			if (row->job.group != 0 && !txn->everything)
				txn->raised[txn->nraised++] =
					jobq_handover_begin(db->dboid, txn->bulk ? 0 : row->job.group);
			row->state = ROW_LIVE;
			row->committed = world.tick;
		}
}

/*
 * Hand over after the commit, as src/commit/commit.c.
 */
static void
op_hand_over(uint32 a, uint32 b, uint32 c)
{
	int			t = a % MAX_TXNS;
	Txn		   *txn = &world.txns[t];
	JobqWakeList wake = {0};

	if (txn->state != TXN_COMMITTED)
		return;
	world.tick++;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_ROWS; i++)
	{
		Row		   *row = &world.rows[i];
		JobqPush	first = row->job;

		if (row->txn != t)
			continue;
		row->txn = -1;
		if (!ALIVE(row) || txn->everything)
			continue;
		trace("  job %d\n", (int) row->job.key.id);
		if (!txn->bulk)
		{
			jobq_ready_push(db, &row->job, world.now, &wake);
			continue;
		}
		for (int j = i + 1; j < MAX_ROWS; j++)
		{
			Row		   *other = &world.rows[j];

			if (other->txn != t || !ALIVE(other) ||
				other->job.queue_id != first.queue_id ||
				other->job.priority != first.priority ||
				other->job.role != first.role || other->job.flow != first.flow)
				continue;
			other->txn = -1;
			if (jobq_key_cmp(other->job.key, first.key) < 0)
				first.key = other->job.key;
		}
		jobq_ready_look(db, &first, world.now, &wake);
	}
	if (txn->everything)
	{
		db->rescan = true;
		wake.scheduler = true;
	}
	unlock(&wake);
	while (txn->nraised > 0)
		jobq_handover_end(txn->raised[--txn->nraised]);
	txn->state = TXN_OPEN;
}

static void
op_rollback(uint32 a, uint32 b, uint32 c)
{
	if (world.txns[a % MAX_TXNS].state != TXN_OPEN)
		return;
	for (int i = 0; i < MAX_ROWS; i++)
		if (world.rows[i].state == ROW_OPEN &&
			world.rows[i].txn == (int) (a % MAX_TXNS))
			world.rows[i].state = ROW_FREE;
}

/*
 * The group need not wait for this job any more.
 */
static void
group_end(const JobqPush *job)
{
	JobqWakeList wake = {0};

	if (job->group == 0)
		return;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_group_end(db, job->group, job->key.id, world.now, &wake);
	unlock(&wake);
}

/*
 * Cancel a waiting job.  The entry of the job remains.
 */
static void
op_cancel(uint32 a, uint32 b, uint32 c)
{
	Row		   *row = &world.rows[a % MAX_ROWS];

	if (!ALIVE(row) || row->worker >= 0 || row->session >= 0 || row_is_taken(row))
		return;
	trace("  job %d\n", (int) row->job.key.id);
	row->state = ROW_FREE;
	group_end(&row->job);
}

/* ---------- the gate: src/attempt/gate.c ---------- */

static bool
precedes(const Row *other, const Row *row)
{
	return row_is_due(other) && other != row &&
		other->job.group == row->job.group &&
		group_compare(other->job.priority, other->job.key,
					  row->job.priority, row->job.key) < 0;
}

/*
 * Return the job to its lane.  "unranked": the lane is not served until the scheduler has
 * ranked it again.
 */
static void
give_back(const JobqPush *entry, int64 token, bool unranked, bool limits)
{
	JobqWakeList wake = {0};
	JobqPush	push = *entry;
	JobqLane   *lane;

	push.permits = JOBQ_NO_PERMITS;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	lane = jobq_lane_find(db, push.queue_id, push.priority, push.role,
						  push.flow, push.quarantine, true);
	if (lane != NULL && unranked)
	{
		jobq_lane_unrank(db, lane);
		db->limits->stale |= limits;
		wake.scheduler = true;
	}
	jobq_lease_undo(db, push.key.id, token, world.now, &wake);
	jobq_ready_push(db, &push, push.key.run_at, &wake);
	unlock(&wake);
}

/*
 * As give_back(), for a job popped with the limit key of another job of its lane.
 * "slot": the slot of the worker, or NULL.
 */
static void
give_to_lane(const JobqPush *job, JobqSlot *slot, int64 token)
{
	JobqWakeList wake = {0};

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_lease_undo(db, job->key.id, token, world.now, &wake);
	if (slot != NULL && slot->holding->permits_job == job->key.id)
		jobq_permits_release(db, &slot->holding->permits, job->key.id, false, true, world.now,
							 &wake);
	jobq_ready_push(db, job, job->key.run_at, &wake);
	unlock(&wake);
}

static void
drop_lease(int64 id, int64 token)
{
	JobqWakeList wake = {0};

	if (token == 0)
		return;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_lease_undo(db, id, token, world.now, &wake);
	unlock(&wake);
}

/*
 * Was the job popped without a permit that it needs from the limiter of this source?
 */
static bool
lacks_permit(const JobqPush *job, const Queue *queue, const JobqPush *entry, int source)
{
	const JobqLimiter *limiter = source < SOURCE(0) ? &queue->limiter
		: &world.named[source - SOURCE(0)];

	if (source == JOBQ_OF_KIND ||
		(source == JOBQ_OF_QUEUE ? !queue->limited : job->needs[source].limiter == 0))
		return false;
	return (jobq_limiter_counts(limiter) &&
			entry->permits.limiters[source] == JOBQ_NO_LIMITER) ||
		(job->needs[source].key != 0 && limiter->keyed &&
		 entry->permits.tallies[source] == JOBQ_NONE);
}

/*
 * Return the row of a popped job that may run, or -1 if the job was put back.  "slot":
 * the slot of the worker, or NULL; "token": the token of the lease, or 0; "popped": time
 * of the pop.
 */
static int
gate(const JobqPush *entry, JobqSlot *slot, int64 token, Moment popped)
{
	int			r = row_of(entry->key.id);
	Row		   *row = r < 0 ? NULL : &world.rows[r];
	Queue	   *queue;
	Row		   *first = NULL;

	trace("  popped job %d\n", (int) entry->key.id);
	if (row == NULL || !row_is_at(row, entry) || row->job.flow != entry->flow)
	{
		drop_lease(entry->key.id, token);
		if (row != NULL && token != 0 && row->txn < 0 && row->worker < 0)
		{
			JobqWakeList wake = {0};

			LWLockAcquire(db->lock, LW_EXCLUSIVE);
			jobq_ready_push(db, &row->job, world.now, &wake);
			unlock(&wake);
		}
		return -1;
	}
	queue = queue_of(row->job.queue_id);
	if (row->worker >= 0 || row->session >= 0 || row_is_taken(row))
	{
		if (row->worker < 0 && row->session < 0 &&
			entry->permits.group != JOBQ_NONE)
		{
			LWLockAcquire(db->lock, LW_EXCLUSIVE);
			jobq_group_taken(db, entry->permits.group, &row->job);
			LWLockRelease(db->lock);
		}
		drop_lease(entry->key.id, token);
		return -1;
	}
	if (queue->kind_paused && MAY_BE_PAUSED(&row->job) && row->job.held == 0)
	{
		/* rewrite the row, for a paused lane */
		JobqWakeList wake = {0};

		drop_lease(entry->key.id, token);
		row->job.held = KIND_PAUSED;
		row->job.flow += KIND_PAUSED * 1000;
		row->committed = ++world.tick;
		ItemPointerSet(&row->job.ctid, 1 + row->job.key.id / 4, 6);
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		jobq_ready_push(db, &row->job, world.now, &wake);
		unlock(&wake);
		return -1;
	}
	if (queue->paused || queue->consumer != (slot == NULL) ||
		(queue->kind_paused && row->job.held != 0))
	{
		give_back(entry, token, true, false);
		return -1;
	}
	if (row->job.key.run_at > world.now)
	{
		JobqWakeList wake = {0};

		drop_lease(entry->key.id, token);
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		jobq_ready_push(db, &row->job, world.now, &wake);
		unlock(&wake);
		return -1;
	}
	for (int n = 0; n < NNAMED; n++)
		if (row->job.needs[SOURCE(n)].limiter != 0 &&
			(row->job.needs[SOURCE(n)].key != entry->needs[SOURCE(n)].key ||
			 row->job.needs[SOURCE(n)].cost != entry->needs[SOURCE(n)].cost))
		{
			trace("  has key %u and cost %d, not %u and %d\n", row->job.needs[SOURCE(n)].key,
				  row->job.needs[SOURCE(n)].cost, entry->needs[SOURCE(n)].key,
				  entry->needs[SOURCE(n)].cost);
			give_to_lane(&row->job, slot, token);
			return -1;
		}
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (lacks_permit(&row->job, queue, entry, s))
		{
			give_back(entry, token, true, true);
			return -1;
		}
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		const JobqNeed *need = &row->job.needs[s];

		if (entry->permits.limiters[s] != JOBQ_NO_LIMITER &&
			entry->permits.costs[s] != Max(need->cost, 1))
			model_fail("job %d has taken %d tokens, not %d", (int) row->job.key.id,
					   entry->permits.costs[s], need->cost);
		if (entry->permits.tallies[s] != JOBQ_NONE &&
			TALLY(db, entry->permits.tallies[s])->key != need->key)
			model_fail("job %d has key %u, and takes the place of %u",
					   (int) row->job.key.id, need->key,
					   TALLY(db, entry->permits.tallies[s])->key);
	}
	if (row->job.group != 0 &&
		(!queue->limited || queue->limiter.group_max_running == 1 ||
		 jobq_group_shared(row->job.group)) &&
		!(row_holds(row) && (!queue->limited || queue->limiter.group_wait ||
							 jobq_group_shared(row->job.group))) &&
		!entry->first && entry->permits.group != JOBQ_NONE)
		for (int i = 0; i < MAX_ROWS; i++)
			if (precedes(&world.rows[i], row) &&
				(first == NULL || precedes(&world.rows[i], first)))
				first = &world.rows[i];
	if (first != NULL)
	{
		JobqWakeList wake = {0};
		JobqPush	push = *entry;

		trace("  comes after job %d\n", (int) first->job.key.id);
		push.permits = JOBQ_NO_PERMITS;
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		if (jobq_group_call(db, entry->permits.group, &first->job))
			jobq_ready_push(db, &first->job, world.now, &wake);
		jobq_lease_undo(db, push.key.id, token, world.now, &wake);
		if (!jobq_group_wait(db, &push, world.now, &wake))
			jobq_ready_push(db, &push, push.key.run_at, &wake);
		unlock(&wake);
		return -1;
	}
	check_starts(r, popped);
	return r;
}

/*
 * Reschedule the job: write a new row.
 */
static void
rewrite(Row *row, int64 delay, bool quarantine)
{
	row->worker = row->session = -1;
	row->uncharged = false;
	row->job.key.run_at = world.now + delay;
	row->committed = ++world.tick;
	row->job.quarantine |= quarantine;
	ItemPointerSet(&row->job.ctid, 1 + row->job.key.id / 4, 5);
	row_hold(row);
}

/*
 * Reschedule the job, and hand over the new row.  "slot": the slot of the worker, or NULL.
 */
static void
again(Row *row, const JobqSlot *slot, int64 delay, bool quarantine)
{
	JobqWakeList wake = {0};

	rewrite(row, delay, quarantine);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	row_tell_hold(row, slot, &wake);
	jobq_ready_push(db, &row->job, world.now, &wake);
	unlock(&wake);
}

/*
 * A job that has crashed the server is charged late, because a session had its row.
 */
static void
charge(uint32 which, uint32 how)
{
	for (int i = 0; i < MAX_ROWS; i++)
	{
		Row		   *row = &world.rows[(which + i) % MAX_ROWS];

		if (!ALIVE(row) || !row->uncharged)
			continue;
		trace("  job %d\n", (int) row->job.key.id);
		again(row, NULL, how % (2 * USECS_PER_SEC), how % 2 == 0);
		row->again = row->committed;
		return;
	}
}

/* ---------- workers: worker/runner ---------- */

static void
worker_attach(int w)
{
	JobqSlot   *slot = &jobq_shared->slots[w];

	slot->database = 0;
	slot->pool = w < NSINGLE ? w % NPOOLS : 0;
	slot->role = 10 + (w < NSINGLE ? w / NPOOLS : world.crowded);
	slot->state = JOBQ_SLOT_ATTACHED;
	slot->proc = &model_procs[w];
	slot->idle = slot->retire = false;
	jobq_run_to(&slot->run, JOBQ_RUN_NONE);
	slot->holding->next = slot->holding->count = 0;
	world.workers[w].awake = true;
	world.workers[w].row = -1;
	world.workers[w].nmore = world.workers[w].nleaving = 0;
	world.workers[w].popped.charged = 0;
}

/*
 * Record the turn of a role after a pop.  "served" is the number of jobs that had taken
 * permits; the turn of the role at these limiters is over.
 */
void
note_turn(const JobqPush *popped, uint64 served)
{
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (popped->permits.limiters[s] != JOBQ_NO_LIMITER)
			world.turns[popped->permits.limiters[s]][popped->role - 10] = served + 1;
}

/*
 * Return the only limiter of these, or JOBQ_NO_LIMITER if there is none or several.
 */
static uint16
only_limiter(const uint16 *limiters)
{
	uint16		only = JOBQ_NO_LIMITER;
	int			n = 0;

	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (limiters[s] != JOBQ_NO_LIMITER)
		{
			only = limiters[s];
			n++;
		}
	return n == 1 ? only : JOBQ_NO_LIMITER;
}

/* The role that waits for the only permit of a limiter. */
typedef struct Turn
{
	Oid			role;			/* or 0 */
	int32		priority;
	uint64		served;
} Turn;

/*
 * The first role in turn with a taker for the only permit of this limiter, and without
 * another limit.  With "mine", only "role" is considered.
 */
static Turn
first_turn(uint16 limiter, Oid role, bool mine)
{
	Turn		first = {0};

	for (uint32 i = db->ready->limited[limiter]; i != JOBQ_NONE;
		 i = heap_next_at(db, i, limiter))
	{
		JobqHeap   *heap = &db->ready->heaps[i];
		int32		priority = heap_first(db, heap)->priority;

		if ((mine || only_limiter(heap->limiters) == limiter) &&
			!heap->quarantine && (heap->role == role) == mine &&
			(mine || heap_has_taker(db, heap)) &&
			(first.role == 0 ||
			 turn_before(priority, turn_of(db, heap, limiter), first.priority,
						 first.served)))
			first = (Turn)
			{
				heap->role, priority, turn_of(db, heap, limiter)
			};
	}
	return first;
}

/*
 * The worker has run the popped job.
 */
void
world_ran(JobqSlot *slot)
{
	jobq_run_to(&slot->run, JOBQ_RUN_CLAIMED);
	jobq_run_to(&slot->run, JOBQ_RUN_BEGUN);
	jobq_run_to(&slot->run, JOBQ_RUN_ENDING);
	jobq_run_to(&slot->run, JOBQ_RUN_DONE);
}

/* Does the worker run a job of this group? */
static bool
runs_group(int w, int64 group)
{
	for (int i = 0; i < MAX_ROWS; i++)
		if (ALIVE(&world.rows[i]) && world.rows[i].worker == w && world.rows[i].job.group == group)
			return true;
	return false;
}

/*
 * May the job run in the same call as the jobs of its group that the worker runs?  No other job
 * must come in between, and a job for which the group waits has the group for itself:
 * worker/runner/admit.c.
 */
static bool
may_follow(int w, const JobqPush *entry)
{
	int			r = row_of(entry->key.id);

	if (!runs_group(w, entry->group))
		return true;
	if (r < 0 || world.rows[r].held)
		return false;
	for (int i = 0; i < MAX_ROWS; i++)
	{
		const Row  *other = &world.rows[i];

		if (!ALIVE(other) || other->job.group != entry->group || i == r)
			continue;
		if (other->worker == w && other->held)
			return false;
		if (!entry->first && other->worker != w && precedes(other, &world.rows[r]))
			return false;
		if (!entry->first && other->worker == w && !precedes(other, &world.rows[r]))
			return false;
	}
	return true;
}

static void
give_back_more(JobqSlot *slot, JobqPush *job, JobqWakeList *wake)
{
	job->permits.group = JOBQ_NONE;
	if (jobq_permits_any(&job->permits))
		jobq_slot_release_more(db, slot, 1, true, world.now, wake);
	jobq_ready_push(db, job, job->key.run_at, wake);
}

/*
 * The worker runs a job, and pops further jobs of the lane to run together with the job, or to
 * give them back.
 */
static void
worker_pop_more(int w, bool gives_back)
{
	JobqSlot   *slot = &jobq_shared->slots[w];
	Worker	   *worker = &world.workers[w];
	JobqPush	more[MAX_MORE];
	bool		refused[MAX_MORE] = {false};
	JobqWakeList wake = {0};
	uint64		served = db->limits->served;
	int			n;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	n = jobq_ready_pop_more(db, slot, &worker->popped, more, 1 + world.next_id % MAX_MORE, &wake);
	for (int i = 0; i < n; i++)
	{
		trace("  popped job %d, too\n", (int) more[i].key.id);
		note_turn(&more[i], served);
		check_rest_of(&more[i]);
		if (gives_back)
			give_back_more(slot, &more[i], &wake);
	}
	unlock(&wake);
	worker->collecting = true;
	for (int i = 0; i < n && !gives_back; i++)
	{
		uint32		place = more[i].permits.group;
		bool		waits = false;
		int			r;

		for (int j = 0; j < i; j++)
			waits |= more[j].group == more[i].group && refused[j];
		if (place != JOBQ_NONE &&
			(waits || db->groups->groups[place].slot != (uint32) w + 1 || !may_follow(w, &more[i])))
		{
			LWLockAcquire(db->lock, LW_EXCLUSIVE);
			give_back_more(slot, &more[i], &wake);
			unlock(&wake);
			continue;
		}
		more[i].first |= place != JOBQ_NONE && runs_group(w, more[i].group);
		r = gate(&more[i], slot, 0, world_moment());
		refused[i] = r < 0;
		if (r >= 0)
		{
			world.rows[r].worker = w;
			worker->more[worker->nmore++] = r;
		}
		else if (place != JOBQ_NONE && !runs_group(w, more[i].group))
		{
			LWLockAcquire(db->lock, LW_EXCLUSIVE);
			jobq_set_alone(db, slot, place, more[i].key.id);
			jobq_set_alone_over(db, slot, more[i].key.id, world.now, &wake);
			unlock(&wake);
		}
	}
	worker->collecting = false;
}

/*
 * The call gives up the permits of the groups of jobs that will run again.
 */
static void
give_up_groups(int w)
{
	Worker	   *worker = &world.workers[w];
	JobqWakeList wake = {0};

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	while (worker->nleaving > 0)
		jobq_set_leave(db, &jobq_shared->slots[w], worker->leaving[--worker->nleaving], world.now,
					   &wake);
	unlock(&wake);
}

/*
 * The jobs of a call end: each of a group in the order of the group.  Only the last of a group may
 * have to run again.  The worker gives up the permit of this group, sometimes later.
 */
static void
call_end(int w, uint32 how)
{
	JobqSlot   *slot = &jobq_shared->slots[w];
	Worker	   *worker = &world.workers[w];

	for (int i = -1; i < worker->nmore; i++)
	{
		Row		   *row = &world.rows[i < 0 ? worker->row : worker->more[i]];
		bool		last = row->job.group != 0;

		row->worker = -1;
		last &= !runs_group(w, row->job.group);
		if (i >= 0 && !(last && (how >> (i + 2)) % 4 == 0))
			row->state = ROW_FREE;
		else if (i < 0 && !(slot->run.state == JOBQ_RUN_LIVE && last))
			row->state = ROW_FREE;
		if (row->state == ROW_FREE && row->held)
			group_end(&row->job);
		if (row->state == ROW_FREE)
			continue;
		again(row, slot, (how >> 8) % 3 == 0 ? 0 : (how >> 8) % USECS_PER_SEC, false);
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		worker->leaving[worker->nleaving++] = jobq_group_find(db, row->job.group) - db->groups->groups;
		LWLockRelease(db->lock);
	}
	if ((how >> 16) % 2 == 0)
		give_up_groups(w);
}

/*
 * A worker has died with this job and others.  The job keeps its position, and its group does not
 * wait for the job.
 */
static void
back_after_death(Row *row)
{
	JobqWakeList wake = {0};

	row->worker = -1;
	row->committed = ++world.tick;
	ItemPointerSet(&row->job.ctid, 1 + row->job.key.id / 4, 5);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_ready_push(db, &row->job, world.now, &wake);
	unlock(&wake);
}

/*
 * One iteration of the worker's loop: pop until a job runs or the worker is idle.
 */
static void
worker_pop(int w)
{
	JobqSlot   *slot = &jobq_shared->slots[w];
	Worker	   *worker = &world.workers[w];
	JobqTaker	taker = {.pool = slot->pool,.slot = w,.nroles = 1,.roles = &slot->role};
	JobqPush	entry;
	bool		popped = false;

	if (!jobq_holding_any(slot->holding) && worker->popped.charged <= 0)
		popped = jobq_prefetch_take(db, slot, &entry);
	if (!popped)
	{
		JobqWakeList wake = {0};

		uint16		held = only_limiter(slot->holding->permits.limiters);
		const JobqLimiter *limiter = held == JOBQ_NO_LIMITER ? NULL
			: &db->limits->limiters[held];
		Turn		other = {0};
		Turn		mine = {0};
		uint64		served = db->limits->served;

		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		if (limiter != NULL && limiter->max_running == 1 && limiter->running == 1 &&
			limiter->rate.per_us <= 0 && limiter->throttle.failures == 0 &&
			limiter->kept_until == 0)
		{
			other = first_turn(held, slot->role, false);
			mine = first_turn(held, slot->role, true);
		}
		if (worker->popped.charged > 0)
			jobq_turn_settle(db, &worker->popped,
							 (world.next_id * 7919) % (int) 20000, true);
		popped = jobq_ready_pop(db, &taker, world.now, &entry, &wake);
		if (popped && other.role != 0 && mine.role != 0 && !entry.quarantine &&
			only_limiter(entry.permits.limiters) == held &&
			turn_before(other.priority, other.served,
						Min(entry.priority, mine.priority), mine.served))
			model_fail("role %u does not let role %u have its turn", slot->role,
					   other.role);
		if (popped)
		{
			note_turn(&entry, served);
			check_tokens(&entry);
		}
		slot->idle = !popped;
		worker->awake = popped;
		unlock(&wake);
	}
	worker->popped.charged = 0;
	if (!popped)
		return;
	worker->popped = entry;
	worker->row = gate(&entry, slot, 0, world_moment());
	if (worker->row >= 0)
	{
		JobqWakeList wake = {0};

		world.rows[worker->row].worker = w;
		slot->run.queue_id = entry.queue_id;
		slot->run.job = entry.key.id;
		if ((entry.group == 0 || jobq_group_shared(entry.group) ||
			 !queue_of(entry.queue_id)->limited ||
			 queue_of(entry.queue_id)->limiter.group_max_running == 1) && !entry.quarantine && entry.charged <= 0 && !entry.unlimited &&
			entry.key.id % 2 == 0)
			worker_pop_more(w, entry.key.id % 8 == 0);
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		jobq_gathered_wake(db, &entry, &wake);
		unlock(&wake);
		jobq_run_to(&slot->run, JOBQ_RUN_CLAIMED);
		jobq_run_to(&slot->run, JOBQ_RUN_BEGUN);
	}
	else
	{
		jobq_run_to(&slot->run, JOBQ_RUN_TURNED_AWAY);
		if (entry.quarantine)
			jobq_quarantine_over(db, w);
	}
}

/*
 * The job of the worker ends.  Permits are returned at the next pop.
 */
static void
worker_end(int w, uint32 how)
{
	JobqSlot   *slot = &jobq_shared->slots[w];
	Worker	   *worker = &world.workers[w];
	Row		   *row = &world.rows[worker->row];
	bool		call = slot->holding->groups != JOBQ_NONE;

	trace("  job %d ends\n", (int) row->job.key.id);
	jobq_run_to(&slot->run, JOBQ_RUN_ENDING);
	jobq_run_to(&slot->run, how % 4 == 0 ? JOBQ_RUN_LIVE : JOBQ_RUN_DONE);
	if (call)
		call_end(w, how);
	else if (slot->run.state == JOBQ_RUN_LIVE)
		again(row, slot, (how >> 8) % 3 == 0 ? 0 : (how >> 8) % USECS_PER_SEC, false);
	else
		row->state = ROW_FREE;
	if (row->job.quarantine)
		jobq_quarantine_over(db, w);
	for (int i = 0; i < worker->nmore && !call; i++)
		world.rows[worker->more[i]].state = ROW_FREE;
	worker->nmore = 0;
	worker->row = -1;
	worker->awake = true;
}

static void
op_work(uint32 a, uint32 b, uint32 c)
{
	int			w = a % NSLOTS;

	if (world.workers[w].row >= 0)
		worker_end(w, b);
	else if (world.workers[w].nleaving > 0)
		give_up_groups(w);
	else if (world.workers[w].awake)
		worker_pop(w);
}

/*
 * The worker process ends, with the job it runs, if any.  A new worker starts.
 */
static void
op_worker_dies(uint32 a, uint32 b, uint32 c)
{
	int			w = a % NSLOTS;
	JobqSlot   *slot = &jobq_shared->slots[w];
	Worker	   *worker = &world.workers[w];
	JobqWakeList wake = {0};
	bool		live = false;
	bool		ran = worker->row >= 0;

	if (slot->state == JOBQ_SLOT_FREE)
		return;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (!slot->idle)
		jobq_role_wake(db, slot->role, world.now, &wake);
	slot->idle = false;
	jobq_prefetch_return(db, slot, &wake);
	if (!ran)
		jobq_slot_release(db, slot, world.now, &wake);
	unlock(&wake);
	jobq_run_to(&slot->run, ran ? JOBQ_RUN_DEAD : JOBQ_RUN_NONE);
	slot->state = JOBQ_SLOT_DEAD;
	slot->proc = NULL;

	/* the scheduler does the rest */
	jobq_quarantine_over(db, w);
	if (ran)
	{
		live = true;
		jobq_run_to(&slot->run, JOBQ_RUN_CHARGING);
		if (slot->holding->groups == JOBQ_NONE)
			again(&world.rows[worker->row], NULL, b % USECS_PER_SEC, b % 2 == 0);
		else
			back_after_death(&world.rows[worker->row]);
		for (int i = 0; i < worker->nmore; i++)
			back_after_death(&world.rows[worker->more[i]]);
		worker->nmore = 0;
		jobq_run_to(&slot->run, JOBQ_RUN_CHARGED);
	}
	memset(&wake, 0, sizeof(wake));
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_permits_release(db, &slot->holding->permits,
						 slot->holding->permits_job, live, false, world.now,
						 &wake);
	jobq_slot_release_more(db, slot, slot->holding->nmore, false, world.now, &wake);
	jobq_set_leave_all(db, slot, world.now, &wake);
	unlock(&wake);
	slot->state = JOBQ_SLOT_FREE;
	worker_attach(w);
}

/* ---------- consumers: src/consume ---------- */

/*
 * Reserve a job, and wait if there is none.
 */
static void
op_reserve(uint32 a, uint32 b, uint32 c)
{
	int			s = a % NSESSIONS;
	Session    *session = &world.sessions[s];
	JobqTaker  *taker = &session->taker;

	if (session->asking)
		return;
	session->asking = session->awake = true;
	session->place = JOBQ_NONE;
	memset(taker, 0, sizeof(JobqTaker));
	taker->pool = taker->slot = -1;
	taker->queue_ids = session->queue_ids;
	taker->roles = session->roles;
	for (int q = 0; q < NQUEUES; q++)
		if (world.queues[q].consumer && (s == 0 || (b >> q) % 2 == 0))
			session->queue_ids[taker->nqueues++] = world.queues[q].id;
	taker->any_role = s == 0;
	session->ndenied = 0;
	for (int r = 0; r < NROLES && s > 0; r++)
	{
		if ((c >> r) % 2 == 0)
			session->roles[taker->nroles++] = 10 + r;
		else if ((c >> (r + 8)) % 4 != 0)
			session->denied[session->ndenied++] = 10 + r;
	}
	if (taker->nqueues == 0)
		session->asking = session->awake = false;
}

/*
 * Does the session see a job for itself, or an unchecked role?
 */
bool
session_sees(const Session *session)
{
	TimestampTz due = DT_NOEND;

	for (uint32 i = db->ready->active_head; i != JOBQ_NONE;
		 i = db->ready->lanes[i].active_next)
	{
		JobqLane   *lane = &db->ready->lanes[i];
		bool		ours = false;

		if (!lane->ranked || lane->paused || !lane->consumer ||
			!jobq_lane_free(db, lane, world.now) ||
			(lane->heap == JOBQ_NONE && db->ready->heapless) ||
			(lane->heap != JOBQ_NONE &&
			 heap_room(db, &db->ready->heaps[lane->heap], world.now, &due) == 0))
			continue;
		for (int q = 0; q < session->taker.nqueues; q++)
			ours |= session->queue_ids[q] == lane->queue_id;
		for (int r = 0; r < session->ndenied; r++)
			ours &= session->denied[r] != lane->role;
		if (ours)
			return true;
	}
	return false;
}

/*
 * The role for the quotas of the session.
 */
static Oid
session_role(int s)
{
	return 20 + s;
}

/*
 * Check again: accept the offer, pop a job, or join the list of waiting sessions.  False
 * if an error is raised for lack of room.
 */
static bool
session_look(int s)
{
	Session    *session = &world.sessions[s];
	JobqWakeList wake = {0};
	JobqPush	job;
	bool		popped = false;
	int64		token = 0;
	Moment		when = world_moment();
	int			r;

	session->awake = false;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (session->place != JOBQ_NONE &&
		!db->offers->reservers[session->place].offered)
	{
		jobq_reserver_remove(db, session->place, world.now, &wake);
		session->place = JOBQ_NONE;
	}
	if (jobq_share_left(db->shares, session_role(s), JOBQ_OF_LEASES) &&
		jobq_share_left(db->shares, session_role(s), JOBQ_OF_BUNDLES))
	{
		if (session->place != JOBQ_NONE)
		{
			popped = jobq_offer_take(db, session->place, &session->taker, &job);
			if (popped)
				when = session->called;
			else
				jobq_reserver_remove(db, session->place, world.now, &wake);
			session->place = JOBQ_NONE;
		}
		if (!popped)
		{
			uint64		served = db->limits->served;

			popped = jobq_ready_pop(db, &session->taker, world.now, &job, &wake);
			if (popped)
			{
				note_turn(&job, served);
				check_tokens(&job);
			}
		}
		if (popped && jobq_lease_find(db, job.key.id) != NULL)
		{
			trace("  job %d has a lease\n", (int) job.key.id);
			check_given_back(&job, &wake);
			session->awake = true;
			popped = false;
		}
		else if (popped)
		{
			uint32		bundle = jobq_lease_bundle(db, session_role(s));
			JobqLease  *lease;

			token = ++world.next_token;
			lease = jobq_lease_add(db, &job, token, world.now + LEASE_TIME, bundle);
			jobq_lease_to(db, lease, JOBQ_LEASE_HELD);
			db->leases->next_expiry = Min(db->leases->next_expiry, lease->until);
			jobq_lease_bundle_release(db, bundle);
		}
	}
	else
	{
		/* an error: too many leases */
		if (session->place != JOBQ_NONE)
			jobq_reserver_remove(db, session->place, world.now, &wake);
		session->place = JOBQ_NONE;
		session->asking = false;
	}
	if (!popped && !session->awake && session->asking)
	{
		if (session_sees(session))
		{
			/* check the roles again: now the session knows all roles */
			session->ndenied = 0;
			for (int i = 0; i < NROLES; i++)
			{
				bool		allowed = false;

				for (int j = 0; j < session->taker.nroles; j++)
					allowed |= session->roles[j] == (Oid) (10 + i);
				if (!allowed)
					session->denied[session->ndenied++] = 10 + i;
			}
			session->awake = true;
		}
		else
		{
			MyProc = &model_procs[NSLOTS + s];
			session->place = jobq_reserver_add(db, session_role(s),
											   &session->taker,
											   session->denied,
											   session->ndenied);
			if (session->place == JOBQ_NONE)
				session->asking = false;
		}
	}
	unlock(&wake);
	if (!popped)
		return session->asking;
	session->awake = true;
	r = gate(&job, NULL, token, when);
	if (r >= 0)
	{
		world.rows[r].session = s;
		session->asking = false;
	}
	return true;
}

static void
op_session(uint32 a, uint32 b, uint32 c)
{
	int			s = a % NSESSIONS;

	if (world.sessions[s].asking && world.sessions[s].awake)
		(void) session_look(s);
}

/*
 * The session stops waiting.
 */
static void
op_session_leaves(uint32 a, uint32 b, uint32 c)
{
	Session    *session = &world.sessions[a % NSESSIONS];
	JobqWakeList wake = {0};

	if (!session->asking)
		return;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (session->place != JOBQ_NONE)
		jobq_reserver_remove(db, session->place, world.now, &wake);
	unlock(&wake);
	session->place = JOBQ_NONE;
	session->asking = session->awake = false;
}

/*
 * End a lease: the job is done, is to run again, or was never started.
 */
static void
op_lease_end(uint32 a, uint32 b, uint32 c)
{
	JobqLease  *lease = NULL;
	JobqWakeList wake = {0};
	JobqPush	push;
	Row		   *row = NULL;

	for (int i = 0; i < MAX_ROWS; i++)
		if (ALIVE(&world.rows[(a + i) % MAX_ROWS]) &&
			world.rows[(a + i) % MAX_ROWS].session >= 0)
		{
			row = &world.rows[(a + i) % MAX_ROWS];
			break;
		}
	if (row == NULL)
		return;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	lease = jobq_lease_find(db, row->job.key.id);
	if (lease == NULL)
		model_fail("job %d has no lease", (int) row->job.key.id);
	trace("  job %d\n", (int) row->job.key.id);
	push = jobq_lease_push(lease);
	row->session = -1;
	if (b % 4 > 1)
		row->state = ROW_FREE;
	if (b % 4 == 1)
	{
		rewrite(row, c % USECS_PER_SEC, false);
		row_tell_hold(row, NULL, &wake);
	}
	if (b % 4 == 0)
	{
		/* the reserving transaction rolls back */
		jobq_lease_undo(db, push.key.id, lease->token, world.now, &wake);
		jobq_ready_push(db, &push, world.now, &wake);
	}
	else
		jobq_lease_remove(db, lease, b % 4 == 1, false, world.now, &wake);
	if (b % 4 == 1)
		jobq_ready_push(db, &row->job, world.now, &wake);
	unlock(&wake);
	if (b % 4 > 1)
		group_end(&row->job);
}

/* ---------- the scheduler, and what happens to all ---------- */

static void
op_scheduler(uint32 a, uint32 b, uint32 c)
{
	if (b % 4 == 0)
		charge(a, c);
	if (world.scheduler_awake || db->wake_at <= world.now)
		scheduler_round();
}

static void
op_scan(uint32 a, uint32 b, uint32 c)
{
	if (world.scanning >= 0 && b % 8 == 0)
		scheduler_scan_fail();
	else if (world.scanning >= 0)
		scheduler_scan_end();
	else if (!world.discovering)
		scheduler_scan_begin(a);
}

static void
op_discover(uint32 a, uint32 b, uint32 c)
{
	if (world.discovering)
		(void) scheduler_discover_step();
	else if (world.scanning < 0)
		scheduler_discover_begin(a % 8 == 0 || db->rescan,
								 world.now >= db->ready->forgotten_due);
}

static void
op_refill(uint32 a, uint32 b, uint32 c)
{
	if (world.nrefills > 0)
		scheduler_refill_end();
	else if (db->groups->refill)
		scheduler_refill_begin();
}

/*
 * A part of a scheduler round, after the clock was read.
 */
static void
op_rank(uint32 a, uint32 b, uint32 c)
{
	if (!scheduler_rank_wanted() || world.now < world.scheduler_last)
		return;
	world.scheduler_last = world.now;
	scheduler_rank();
}

static void
op_clock(uint32 a, uint32 b, uint32 c)
{
	if (a % 16 == 0)
	{
		world.now -= b % (200 * USECS_PER_SEC);
		world.put_back = true;
	}
	else if (a % 4 == 0)
		world.now += b % (30 * USECS_PER_SEC);
	else
		world.now += b % USECS_PER_SEC;
	rows_age();
	trace("  %+.6f\n", world.now / 1e6 - 1e6);
}

static void
op_pause(uint32 a, uint32 b, uint32 c)
{
	Queue	   *queue = &world.queues[a % NQUEUES];

	if (b % 2 == 0)
		queue->paused = !queue->paused;
	else
		queue->kind_paused = !queue->kind_paused;
	trace("  queue %d: %s, its kind: %s\n", queue->id,
		  queue->paused ? "paused" : "goes on",
		  queue->kind_paused ? "paused" : "goes on");
	db->reload = db->limits->stale = true;
	world.scheduler_awake = true;
}

static int64
some_patience(uint32 random)
{
	return random % 3 == 0 ? 0 : (1 + random / 3 % 4) * 200 * INT64CONST(1000);
}

static void
op_limits(uint32 a, uint32 b, uint32 c)
{
	Queue	   *queue = &world.queues[a % NQUEUES];

	if (!queue->limited)
		return;
	queue->limiter.max_running = b % 3;
	queue->limiter.group_patience = some_patience(b >> 20);
	queue->limiter.weight = 1 + (b >> 4) % 3;
	queue->limiter.fair_cpu = queue->limiter.fair && (b >> 12) % 2 == 0;
	for (int n = 0; n < NNAMED; n++)
		if (world.named[n].keyed)
			world.named[n].max_running = 1 + (b >> (16 + n)) % 3;
	world.gathered.chunk_wait = (b >> 24) % 4 * USECS_PER_SEC / 2;
	world.gathered.chunk = 2 + (b >> 26) % 3;
	rows_age();
	db->reload = db->limits->stale = true;
	world.scheduler_awake = true;
}

/*
 * A new scheduler starts; workers and leases remain.
 */
static void
op_scheduler_restart(uint32 a, uint32 b, uint32 c)
{
	scheduler_start();
}

/*
 * The server crashes: shared memory and uncommitted transactions are lost.
 */
static void
op_crash(uint32 a, uint32 b, uint32 c)
{
	int			sizes[] = {jobq_ready_entries, jobq_max_lanes, jobq_max_leases,
	jobq_max_groups};

	model_memory(sizes);
	memset(world.turns, 0, sizeof(world.turns));
	memset(world.failed, 0, sizeof(world.failed));
	memset(world.txns, 0, sizeof(world.txns));
	memset(world.moves, 0, sizeof(world.moves));
	memset(world.sessions, 0, sizeof(world.sessions));
	for (int i = 0; i < MAX_ROWS; i++)
	{
		bool		alone = world.rows[i].worker >= 0 &&
			world.workers[world.rows[i].worker].nmore == 0;

		if (world.rows[i].state == ROW_OPEN)
			world.rows[i].state = ROW_FREE;

		/* jobs of a call become suspects, for which no group waits */
		if (alone && (a >> i % 32) % 2 == 0)
			world.rows[i].uncharged = true;
		else if (alone || world.rows[i].session >= 0)
			row_hold(&world.rows[i]);
		world.rows[i].txn = world.rows[i].worker = world.rows[i].session = -1;
	}
	for (int w = 0; w < NSLOTS; w++)
		worker_attach(w);
	for (int s = 0; s < NSESSIONS; s++)
		world.sessions[s].place = JOBQ_NONE;
	scheduler_start();
}

static const struct
{
	const char *name;
	int			weight;
	void		(*run) (uint32 a, uint32 b, uint32 c);
}			ops[] =
{
	{
		"enqueue", 24, op_enqueue
	},
	{
		"commit", 10, op_commit
	},
	{
		"hand over", 14, op_hand_over
	},
	{
		"roll back", 1, op_rollback
	},
	{
		"cancel", 2, op_cancel
	},
	{
		"move", 6, op_move
	},
	{
		"work", 40, op_work
	},
	{
		"worker dies", 1, op_worker_dies
	},
	{
		"reserve", 8, op_reserve
	},
	{
		"session", 10, op_session
	},
	{
		"session leaves", 1, op_session_leaves
	},
	{
		"lease ends", 6, op_lease_end
	},
	{
		"scheduler", 12, op_scheduler
	},
	{
		"scan", 8, op_scan
	},
	{
		"discover", 3, op_discover
	},
	{
		"refill", 2, op_refill
	},
	{
		"rank", 2, op_rank
	},
	{
		"clock", 5, op_clock
	},
	{
		"pause", 3, op_pause
	},
	{
		"limits", 1, op_limits
	},
	{
		"fails", 3, op_fails
	},
	{
		"scheduler restarts", 1, op_scheduler_restart
	},
	{
		"crash", 1, op_crash
	},
};

const char *
op_name(int op)
{
	return ops[op].name;
}

int
op_choose(uint32 random)
{
	int			sum = 0;

	for (int i = 0; i < lengthof(ops); i++)
		sum += ops[i].weight;
	random %= sum;
	for (int i = 0;; i++)
	{
		if (random < (uint32) ops[i].weight)
			return i;
		random -= ops[i].weight;
	}
}

void
op_run(int op, uint32 a, uint32 b, uint32 c)
{
	ops[op].run(a, b, c);
}

/*
 * Choose sizes and queues at random.
 */
void
world_start(uint32 seed)
{
	static const int entries[] = {8, 12, 16, 24, 64};
	static const int lanes[] = {5, 8, 16, 40, 60};
	static const int leases[] = {2, 3, 8, 16, 32};
	static const int groups[] = {4, 5, 8, 16, 16};
	int			sizes[4];

	sizes[0] = entries[seed % 5];
	sizes[1] = lanes[seed / 5 % 5];
	sizes[2] = leases[seed / 25 % 5];
	sizes[3] = groups[seed / 125 % 5];
	seed /= 625;
	trace("entries %d, lanes %d, leases %d, groups %d\n", sizes[0], sizes[1],
		  sizes[2], sizes[3]);

	memset(&world, 0, sizeof(world));
	world.now = 1000000 * USECS_PER_SEC;
	for (int q = 0; q < NQUEUES; q++)
	{
		Queue	   *queue = &world.queues[q];
		JobqLimiter *limiter = &queue->limiter;

		queue->id = q + 1;
		queue->consumer = q >= 4;
		queue->rank[0] = q % 2;
		queue->rank[1] = q < 2 ? JOBQ_NOT_SERVED : 0;
		queue->limited = q % 2 == 1 || (seed & 1);
		limiter->queue_id = queue->id;
		limiter->in_use = true;
		limiter->fair = q == 1 || q == 5;
		limiter->fair_cpu = limiter->fair && (seed >> 15) % 2 == 0;
		limiter->group_wait = q != 2;
		limiter->group_patience = some_patience((seed >> 16) + q);
		limiter->group_max_running = q == 3 ? (int) (seed >> 1) % 3 : 1;
		limiter->weight = (seed >> 3) % 2 == 0 ? 1 : 1 + q;
		limiter->max_running = (seed >> 4) % 3 == 0 ? q % 3 : 0;
		if ((seed >> 6) % 4 == 0 && q == 1)
		{
			limiter->rate.per_us = 2.0 / USECS_PER_SEC;
			limiter->rate.burst = 2;
		}
		if ((seed >> 9) % 4 == 0)
		{
			limiter->throttle.failures = 3;
			limiter->throttle.window = 3 * USECS_PER_SEC;
		}
		queue->tenants = queue->limited && (limiter->fair || q == 3 || q == 4);
		queue->named = q >= 3 && (seed >> 18) % 3 == 0;
		queue->by_tenant = q >= 3 && (seed >> 13) % 2 == 0;
		limiter->nweights = 1;
		limiter->weighted[0] = 2;
		limiter->weights[0] = 3;
	}
	world.gathered = (JobqLimiter)
	{
		.in_use = true,.kind = KIND_GATHERED,.group_max_running = 1,.group_wait = true,
		.chunk = 2 + (seed >> 8) % 3,.chunk_wait = USECS_PER_SEC
	};
	world.kind_every = (seed >> 17) % 4 == 0 ? 2 : 8;
	for (int n = 0; n < NNAMED; n++)
	{
		JobqLimiter *limiter = &world.named[n];
		JobqRate   *rate;

		limiter->in_use = true;
		limiter->kind = NAME(n);
		limiter->keyed = n == BY_TENANT ? (seed >> 19) % 4 != 0 : (seed >> (5 + n)) % 2 == 0;
		limiter->priced = (seed >> (16 + n)) % 2 == 0;
		limiter->max_running = 1 + (seed >> (11 + n)) % 2;
		limiter->group_max_running = 1;
		limiter->group_wait = true;
		if ((seed >> (14 + n)) % 2 == 0)
			limiter->when_taken = JOBQ_WHEN_TAKEN_SKIP;
		rate = &limiter->rate;
		if ((seed >> (10 + n)) % 2 == 0)
		{
			limiter->throttle.failures = 2;
			limiter->throttle.window = 2 * USECS_PER_SEC;
		}
		if ((seed >> (12 + n)) % 4 == 0)
		{
			rate->per_us = 3.0 / USECS_PER_SEC;
			rate->burst = 1;
		}
	}
	model_memory(sizes);
	for (int i = 0; i < MAX_ROWS; i++)
		world.rows[i].txn = world.rows[i].worker = world.rows[i].session = -1;
	for (int s = 0; s < NSESSIONS; s++)
		world.sessions[s].place = JOBQ_NONE;
	for (int w = 0; w < NSLOTS; w++)
		world.workers[w].row = -1;
	world.crowded = seed >> 7 & 3;
	for (int w = 0; w < (world.crowded < NROLES ? NSLOTS : NSINGLE); w++)
		worker_attach(w);
	scheduler_start();
}

/*
 * May a due job remain waiting as long as queues are paused?  A job may wait for its
 * group, or for a lane if there are too few lanes.
 */
static bool
may_wait(const Row *row)
{
	const Queue *queue = queue_of(row->job.queue_id);

	return !world.calm_all &&
		(row->job.group != 0 || jobq_max_lanes < MAX_ROWS || queue->paused ||
		 (queue->kind_paused && (row->job.held != 0 || MAY_BE_PAUSED(&row->job))));
}

/* Each worker that was woken acts up to "most" times.  False if there is none. */
static bool
calm_workers(int most)
{
	bool		acted = false;

	for (int w = 0; w < NSLOTS; w++)
		for (int n = 0; n < most && (world.workers[w].row >= 0 || world.workers[w].awake); n++)
		{
			trace("worker %d\n", w);
			op_work(w, 1, 0);
			check_all();
			acted = true;
		}
	return acted;
}

/* Likewise each session. */
static bool
calm_sessions(void)
{
	bool		acted = false;

	for (int s = 0; s < NSESSIONS; s++)
	{
		if (s == 0 || world.sessions[s].asking)
			op_reserve(s, 0, 0);
		if (world.sessions[s].asking && world.sessions[s].awake)
		{
			trace("session %d\n", s);
			acted |= session_look(s);
			check_all();
		}
	}
	return acted;
}

/*
 * No new jobs arrive, and running jobs end.  Only actors that were woken act, and time
 * advances to the scheduler's wake-up time.  Then every job ends, except jobs allowed to
 * wait.
 */
static void
calm_down(void)
{
	int			idle = 0;

	for (int steps = 0;; steps++)
	{
		bool		acted = false;
		bool		left = false;

		if (steps > 10000)
			model_fail("it does not come to an end");
		/*
		 * A fixed order could repeat for ever: jobs of two keys with the same
		 * flow exchange their lane's key as long as a worker has the group.
		 */
		acted |= calm_workers(steps % 100 == 99 ? 3 : 1);
		for (int n = steps % 100 == 99 ? 3 : 1; n > 0; n--)
			acted |= calm_sessions();
		for (int i = 0; i < MAX_ROWS; i++)
		{
			if (ALIVE(&world.rows[i]) && world.rows[i].session >= 0)
			{
				trace("acknowledges\n");
				op_lease_end(i, 2, 0);
				check_all();
				acted = true;
			}
			left |= ALIVE(&world.rows[i]) && !may_wait(&world.rows[i]);
		}
		if (world.scheduler_awake || world.discovering || world.scanning >= 0)
		{
			trace("scheduler\n");
			scheduler_round();
			check_all();
			acted = true;
		}
		if (acted)
		{
			idle = 0;
			continue;
		}
		if (!left)
			break;
		if (db->wake_at > world.now + USECS_PER_HOUR || ++idle > 5000)
		{
			LWLockAcquire(db->lock, LW_EXCLUSIVE);
			for (int i = 0; i < MAX_ROWS; i++)
				if (ALIVE(&world.rows[i]) && !may_wait(&world.rows[i]))
				{
					show_lane(&world.rows[i]);
					model_fail("job %d is never run", (int) world.rows[i].job.key.id);
				}
			LWLockRelease(db->lock);
		}
		world.now = Max(world.now, db->wake_at);
		rows_age();
		trace("time: %+.6f\n", world.now / 1e6 - 1e6);
		scheduler_round();
		check_all();
	}
}

/*
 * Run all jobs that may run.  Then resume all queues, and run the rest.
 */
void
world_calm(void)
{
	trace("calm\n");
	world.calm = true;
	for (int t = 0; t < MAX_TXNS; t++)
	{
		op_commit(t, 2, 0);
		op_hand_over(t, 0, 0);
	}
	moves_end();
	for (int i = 0; i < MAX_ROWS; i++)
		charge(i, 1);
	calm_down();
	for (int q = 0; q < NQUEUES; q++)
	{
		if (world.queues[q].paused)
			op_pause(q, 0, 0);
		if (world.queues[q].kind_paused)
			op_pause(q, 1, 0);
	}
	world.calm_all = true;
	calm_down();
	world.calm = world.calm_all = false;
}
