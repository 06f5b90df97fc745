/*-------------------------------------------------------------------------
 *
 *	  Jobs are handed off to waiting consumers: the list of these consumers, and the jobs
 *	  popped for them.
 *
 * A process that has a job for a waiting session also pops the job for the session.  A permit
 * that becomes free is therefore taken at once, and not only when the session gets a
 * processor.
 *
 * src/ready/offer.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "ready/inner.h"

/*
 * Initialize the list in new shared memory: no session waits.
 */
void
reservers_clear(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	for (int i = 0; i < JOBQ_MAX_RESERVERS; i++)
	{
		db->offers->reservers[i].offered = false;
		db->offers->reservers[i].next = i + 1;
	}
	db->offers->reservers[JOBQ_MAX_RESERVERS - 1].next = JOBQ_NONE;
	db->offers->free = 0;
	db->offers->head = JOBQ_NONE;
	db->offers->grants = 0;
	memset(db->offers->waiting, 0, sizeof(db->offers->waiting));
	jobq_shares_set(db->shares, JOBQ_OF_RESERVERS, JOBQ_MAX_RESERVERS);
}

/*
 * Add this session to the list of waiting sessions.  The session acts for the role, and waits
 * for a job that the taker may take.  denied: further roles whose jobs the session may not
 * take.  Returns the slot, or JOBQ_NONE if there is no room or if the role has used up its
 * share.
 */
uint32
jobq_reserver_add(JobqDatabase *db, Oid role, const JobqTaker *taker,
				  const Oid *denied, int ndenied)
{
	uint32		place = db->offers->free;
	JobqReserver *reserver;

	AssertExclusive(db->lock);
	if (place == JOBQ_NONE || !jobq_share_left(db->shares, role, JOBQ_OF_RESERVERS))
		return JOBQ_NONE;
	reserver = &db->offers->reservers[place];
	db->offers->free = reserver->next;
	reserver->account = jobq_share_take(db->shares, role, JOBQ_OF_RESERVERS);
	reserver->proc = MyProc;
	reserver->offered = false;
	reserver->nqueues = taker->nqueues;
	memcpy(reserver->queue_ids, taker->queue_ids,
		   taker->nqueues * sizeof(int32));
	reserver->any_role = taker->any_role;
	reserver->nallowed = Min(taker->nroles, JOBQ_MAX_KNOWN_ROLES);
	memcpy(reserver->roles, taker->roles, reserver->nallowed * sizeof(Oid));
	ndenied = Min(ndenied, JOBQ_MAX_KNOWN_ROLES - reserver->nallowed);
	memcpy(reserver->roles + reserver->nallowed, denied, ndenied * sizeof(Oid));
	reserver->nroles = reserver->nallowed + ndenied;

	reserver->prev = JOBQ_NONE;
	reserver->next = db->offers->head;
	if (db->offers->head != JOBQ_NONE)
		db->offers->reservers[db->offers->head].prev = place;
	db->offers->head = place;
	for (int i = 0; i < reserver->nqueues; i++)
		db->offers->waiting[(uint32) reserver->queue_ids[i] % JOBQ_WAITING_BUCKETS]++;
	return place;
}

static void
unlink_place(JobqDatabase *db, uint32 place)
{
	JobqReserver *reserver = &db->offers->reservers[place];

	AssertExclusive(db->lock);
	Assert(!reserver->offered);
	Assert(reserver->prev != JOBQ_NONE || db->offers->head == place);
	if (reserver->prev != JOBQ_NONE)
		db->offers->reservers[reserver->prev].next = reserver->next;
	else
		db->offers->head = reserver->next;
	if (reserver->next != JOBQ_NONE)
		db->offers->reservers[reserver->next].prev = reserver->prev;
	for (int i = 0; i < reserver->nqueues; i++)
	{
		Assert(somebody_waits(db, reserver->queue_ids[i]));
		db->offers->waiting[(uint32) reserver->queue_ids[i] % JOBQ_WAITING_BUCKETS]--;
	}
}

static void
free_place(JobqDatabase *db, uint32 place)
{
	JobqReserver *reserver = &db->offers->reservers[place];

	AssertExclusive(db->lock);
	Assert(!reserver->offered);
	jobq_share_give(db->shares, reserver->account, JOBQ_OF_RESERVERS);
	reserver->next = db->offers->free;
	db->offers->free = place;
}

/*
 * Free the slot.  An offered job goes back to its lane.
 */
void
jobq_reserver_remove(JobqDatabase *db, uint32 place, TimestampTz now,
					 JobqWakeList *wake)
{
	JobqReserver *reserver = &db->offers->reservers[place];

	AssertExclusive(db->lock);
	if (reserver->offered)
	{
		JobqPush	job = reserver->offer;

		reserver->offered = false;
		jobq_ready_push(db, &job, now, wake);
		jobq_permits_release(db, &job.permits, job.key.id, false, true, now,
							 wake);
	}
	else
		unlink_place(db, place);
	free_place(db, place);
}

/*
 * Accept the offered job, and free the slot.  Returns false if the taker may no longer take
 * the job.  The slot is then unchanged.
 */
bool
jobq_offer_take(JobqDatabase *db, uint32 place, const JobqTaker *taker,
				JobqPush *job)
{
	JobqReserver *reserver = &db->offers->reservers[place];
	bool		allowed = taker->any_role;

	AssertExclusive(db->lock);
	Assert(reserver->offered);
	for (int i = 0; i < taker->nroles && !allowed; i++)
		allowed = taker->roles[i] == reserver->offer.role;
	if (!allowed)
		return false;
	*job = reserver->offer;
	reserver->offered = false;
	free_place(db, place);
	return true;
}

/*
 * Wake all waiting sessions so that they leave, because the database is no longer served.
 * Returns whether there are waiting sessions, or sessions with an offer.  Takes db->lock in
 * shared mode.
 */
bool
jobq_reservers_dismiss(JobqDatabase *db)
{
	bool		any = false;

	LWLockAcquire(db->lock, LW_SHARED);
	for (int i = 0; i < JOBQ_MAX_RESERVERS && db->shares->held[JOBQ_OF_RESERVERS] > 0; i++)
		any |= db->offers->reservers[i].offered;
	for (uint32 i = db->offers->head; i != JOBQ_NONE;
		 i = db->offers->reservers[i].next)
	{
		any = true;
		SetLatch(&db->offers->reservers[i].proc->procLatch);
	}
	LWLockRelease(db->lock);
	return any;
}

/*
 * A role may have gained privileges.  Wake the waiting sessions that may not act for all
 * roles, for another check.  Sessions about to wait check again as well.
 */
void
jobq_reservers_look(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	db->offers->grants++;
	for (uint32 i = db->offers->head; i != JOBQ_NONE;
		 i = db->offers->reservers[i].next)
		if (!db->offers->reservers[i].any_role)
			SetLatch(&db->offers->reservers[i].proc->procLatch);
}

/*
 * There is a job for which no allowed session is known.  Wake the sessions that have not
 * checked the role of the job yet.
 */
static void
tell_others(JobqDatabase *db, const JobqLane *lane)
{
	AssertExclusive(db->lock);
	for (uint32 i = db->offers->head; i != JOBQ_NONE;
		 i = db->offers->reservers[i].next)
		if (reserver_takes(&db->offers->reservers[i], lane->queue_id) &&
			!reserver_knows(&db->offers->reservers[i], lane->role,
							db->offers->reservers[i].nroles))
			SetLatch(&db->offers->reservers[i].proc->procLatch);
}

/*
 * Do workers have a job that comes before the lane's first job and needs a permit of this
 * limiter of the lane?
 */
static bool
worker_is_first_at(JobqDatabase *db, const JobqLane *lane, uint16 limiter, TimestampTz now)
{
	for (uint32 i = db->ready->limited[limiter]; i != JOBQ_NONE;
		 i = heap_next_at(db, i, limiter))
	{
		JobqHeap   *heap = &db->ready->heaps[i];
		const JobqLane *other;

		if (heap->consumer)
			continue;
		other = heap_first(db, heap);
		if (other->priority > lane->priority)
			continue;
		if ((other->priority < lane->priority ||
			 jobq_key_cmp(db->ready->entries[other->head].key,
						  db->ready->entries[lane->head].key) < 0) &&
			jobq_lane_free(db, other, now))
			return true;
	}
	return false;
}

/*
 * Do workers have a job that comes before the lane's first job, and needs a permit that the
 * lane's jobs need?  Workers and consumers share no limiter of a queue.
 */
static bool
worker_is_first(JobqDatabase *db, const JobqLane *lane, TimestampTz now)
{
	AssertExclusive(db->lock);
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
		if (lane->limiters[s] != JOBQ_NO_LIMITER &&
			worker_is_first_at(db, lane, lane->limiters[s], now))
			return true;
	return false;
}

/*
 * Pop a job for this session.  Returns false if there is none.
 */
static bool
make_offer(JobqDatabase *db, JobqReserver *reserver, TimestampTz now,
		   JobqWakeList *wake)
{
	JobqTaker	taker = {
		.pool = -1,
		.slot = -1,
		.nqueues = reserver->nqueues,
		.queue_ids = reserver->queue_ids,
		.any_role = reserver->any_role,
		.nroles = reserver->nallowed,
		.roles = reserver->roles
	};

	AssertExclusive(db->lock);
	if (!jobq_ready_pop(db, &taker, now, &reserver->offer, wake))
		return false;
	unlink_place(db, reserver - db->offers->reservers);
	reserver->offered = true;
	wake->proc[wake->n++] = reserver->proc;
	return true;
}

/*
 * Hand off the jobs of marked heaps.  A pop changes heaps, and may mark other heaps.
 *
 * If a worker that is about to be woken comes first, the heap stays marked.  The worker's
 * release of this lock hands off the remaining jobs.
 */
static void
make_offers(JobqDatabase *db, JobqWakeList *wake)
{
	TimestampTz now = jobq_now();
	bool		workers = wake->n > 0;
	int			room = JOBQ_MAX_OFFERS;
	uint32		i = db->ready->marked;

	AssertExclusive(db->lock);
	while (i != JOBQ_NONE)
	{
		JobqHeap   *heap = &db->ready->heaps[i];
		JobqLane   *lane = heap_first(db, heap);
		JobqReserver *reserver = NULL;
		JobqHeap	key;
		bool		free = heap_room(db, heap, now, &db->limits->due) > 0;

		i = heap->marked_next;
		if (free && workers && worker_is_first(db, lane, now))
			continue;			/* the heap stays marked */
		if (free && somebody_waits(db, lane->queue_id))
		{
			reserver = reserver_for(db, lane);
			if (reserver == NULL)
				tell_others(db, lane);
		}
		key = *heap;
		heap_unmark(db, heap);
		if (reserver != NULL && make_offer(db, reserver, now, wake))
		{
			heap = heap_find(db, &key);
			if (heap != NULL)
				heap_mark(db, heap);
			if (--room == 0)
				return;			/* the next process continues */
		}
		i = db->ready->marked;
	}
}

/*
 * Release db->lock, which the caller holds.  First hand off jobs to waiting
 * consumers; after the release, wake the processes of the list.  The scheduler is woken as
 * well if a limiter, tenant or group becomes free before the scheduler intends to wake.
 */
void
jobq_unlock(JobqDatabase *db, JobqWakeList *wake)
{
	AssertExclusive(db->lock);
	if (db->ready->marked != JOBQ_NONE)
		make_offers(db, wake);
	wake->scheduler |= Min(db->limits->due, db->groups->due) < db->wake_at ||
		db->ready->stuck_news;
	db->ready->stuck_news = false;
	ready_verify_sometimes(db);
	LWLockRelease(db->lock);
	for (int i = 0; i < wake->n; i++)
		SetLatch(&wake->proc[i]->procLatch);
	if (wake->scheduler)
		jobq_wake_scheduler(db);
}
