/*-------------------------------------------------------------------------
 *
 * offer.c
 *	  Jobs are handed to consumers that wait: the list of those, and what is
 *	  popped for them.
 *
 * Who has a job for a session that waits does not only wake it, but pops the
 * job for it, as the session itself would.  So the place of a job that has come
 * to its end is taken at once, and not when the session gets a processor.
 *
 * All functions want db->lock held exclusively, unless they say that they take it.
 * Nothing here can fail.
 *
 * src/ready/offer.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "ready/inner.h"

static void unlink_place(JobqDatabase *db, uint32 place);
static void free_place(JobqDatabase *db, uint32 place);
static void tell_others(JobqDatabase *db, const JobqLane *lane);
static bool worker_is_first(JobqDatabase *db, const JobqLane *lane,
							TimestampTz now);
static bool make_offer(JobqDatabase *db, JobqReserver *reserver,
					   TimestampTz now, JobqWakeList *wake);
static void make_offers(JobqDatabase *db, JobqWakeList *wake);

/*
 * Nobody waits: when the shared memory is made.
 */
void
reservers_clear(JobqDatabase *db)
{
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
 * Go on the list: this session of the role waits for a job that the taker may
 * take.  It may not take those of the other roles.  Returns its place, or
 * JOBQ_NONE if there is no room, or the role has its share.
 */
uint32
jobq_reserver_add(JobqDatabase *db, Oid role, const JobqTaker *taker,
				  const Oid *denied, int ndenied)
{
	uint32		place = db->offers->free;
	JobqReserver *reserver;

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

	if (reserver->prev != JOBQ_NONE)
		db->offers->reservers[reserver->prev].next = reserver->next;
	else
		db->offers->head = reserver->next;
	if (reserver->next != JOBQ_NONE)
		db->offers->reservers[reserver->next].prev = reserver->prev;
	for (int i = 0; i < reserver->nqueues; i++)
		db->offers->waiting[(uint32) reserver->queue_ids[i] % JOBQ_WAITING_BUCKETS]--;
}

static void
free_place(JobqDatabase *db, uint32 place)
{
	JobqReserver *reserver = &db->offers->reservers[place];

	jobq_share_give(db->shares, reserver->account, JOBQ_OF_RESERVERS);
	reserver->next = db->offers->free;
	db->offers->free = place;
}

/*
 * Give up the place.  If there is an offer, the job goes back to its lane.
 */
void
jobq_reserver_remove(JobqDatabase *db, uint32 place, TimestampTz now,
					 JobqWakeList *wake)
{
	JobqReserver *reserver = &db->offers->reservers[place];

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
 * Take the job that is offered at the place, which is given up.  False if the
 * taker may not take it any more; then the place is as it was.
 */
bool
jobq_offer_take(JobqDatabase *db, uint32 place, const JobqTaker *taker,
				JobqPush *job)
{
	JobqReserver *reserver = &db->offers->reservers[place];
	bool		allowed = taker->any_role;

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
 * The database is not served any more: have all that wait leave.  Returns whether there
 * are any, or some to whom a job is offered.  Takes db->lock.
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
 * Somebody may act for more roles than before, perhaps: those that cannot take the jobs
 * of all shall look for themselves, and so shall who is about to wait.
 */
void
jobq_reservers_look(JobqDatabase *db)
{
	db->offers->grants++;
	for (uint32 i = db->offers->head; i != JOBQ_NONE;
		 i = db->offers->reservers[i].next)
		if (!db->offers->reservers[i].any_role)
			SetLatch(&db->offers->reservers[i].proc->procLatch);
}

/*
 * There is a job for which nobody is known.  Those who have not thought about
 * its role yet shall look for themselves.
 */
static void
tell_others(JobqDatabase *db, const JobqLane *lane)
{
	for (uint32 i = db->offers->head; i != JOBQ_NONE;
		 i = db->offers->reservers[i].next)
		if (reserver_takes(&db->offers->reservers[i], lane->queue_id) &&
			!reserver_knows(&db->offers->reservers[i], lane->role,
							db->offers->reservers[i].nroles))
			SetLatch(&db->offers->reservers[i].proc->procLatch);
}

/*
 * Do workers have a job that comes before the lane's first, and that needs a
 * permit of the same kind?  They share no other with consumers.
 */
static bool
worker_is_first(JobqDatabase *db, const JobqLane *lane, TimestampTz now)
{
	if (lane->kind_limiter == JOBQ_NO_LIMITER)
		return false;
	for (uint32 i = db->ready->limited[lane->kind_limiter]; i != JOBQ_NONE;
		 i = heap_next_at(db, i, lane->kind_limiter))
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
 * Pop for this session what it would pop.
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

	if (!jobq_ready_pop(db, &taker, now, &reserver->offer, wake))
		return false;
	unlink_place(db, reserver - db->offers->reservers);
	reserver->offered = true;
	wake->proc[wake->n++] = reserver->proc;
	return true;
}

/*
 * Offer what is in the marked heaps.  A pop changes heaps, and may mark others.
 *
 * Where a worker, which is about to be woken, comes first, it decides what there
 * is left to offer: it releases this lock before it does anything else.
 */
static void
make_offers(JobqDatabase *db, JobqWakeList *wake)
{
	TimestampTz now = jobq_now();
	bool		workers = wake->n > 0;
	int			room = JOBQ_MAX_OFFERS;
	uint32		i = db->ready->marked;

	while (i != JOBQ_NONE)
	{
		JobqHeap   *heap = &db->ready->heaps[i];
		JobqLane   *lane = heap_first(db, heap);
		JobqReserver *reserver = NULL;
		JobqHeap	key;
		bool		free = heap_room(db, heap, now, &db->limits->due) > 0;

		i = heap->marked_next;
		if (free && workers && worker_is_first(db, lane, now))
			continue;			/* it remains marked */
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
				return;			/* others go on */
		}
		i = db->ready->marked;
	}
}

/*
 * Release the lock, hand to consumers that wait what there is for them, and
 * send the wake-ups.  The scheduler is to know if time sets the next limiter, tenant
 * or group free before it means to wake.
 */
void
jobq_unlock(JobqDatabase *db, JobqWakeList *wake)
{
	if (db->ready->marked != JOBQ_NONE)
		make_offers(db, wake);
	wake->scheduler |= Min(db->limits->due, db->groups->due) < db->wake_at ||
		db->ready->stuck_news;
	db->ready->stuck_news = false;
	LWLockRelease(db->lock);
	for (int i = 0; i < wake->n; i++)
		SetLatch(&wake->proc[i]->procLatch);
	if (wake->scheduler)
		jobq_wake_scheduler(db);
}
