/*-------------------------------------------------------------------------
 *
 *	  Lanes, found by (queue, priority, role, flow), and which lane is evicted if there are
 *	  too many.
 *
 * A role may have its share of the lanes, and lanes that no other role needs.  A role with
 * less than its share takes a lane from a role with more.  Otherwise a lane is evicted for a
 * more urgent lane.  The jobs of an evicted lane are read again when there is a slot.  The
 * search for a slot begins where the last one was found, and is short in most cases.
 *
 * src/ready/lane.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"
#include "utils/timestamp.h"

#include "ready/inner.h"

static uint32 lane_bucket(int32 queue_id, int32 priority, Oid role, int32 flow,
						  bool quarantine);
static JobqLane *lane_take(JobqDatabase *db, const JobqLane *wanted);

/*
 * Forget all lanes, and their queues, tenants and roles.
 */
void
lanes_clear(JobqDatabase *db)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
	for (uint32 i = 0; i < (uint32) jobq_max_lanes; i++)
	{
		ready->lane_bucket[i] = JOBQ_NONE;
		memset(&ready->lanes[i], 0, sizeof(JobqLane));
		ready->lanes[i].heap = ready->lanes[i].own = JOBQ_NONE;
		ready->lanes[i].hash_next = i + 1 < (uint32) jobq_max_lanes ? i + 1
			: JOBQ_NONE;
	}
	ready->lane_free = 0;
	ready->expected = ready->noted = ready->passed = ready->unranked = JOBQ_NONE;
	ready->hand = 0;
	ready->full_until = 0;
	gathering_clear(db);
	parties_clear(db);
	heaps_clear(db);
}

/*
 * Return the lane with this key.  NULL if the lane does not exist and "create" is false, or
 * if there is no slot for a lane.  A new lane copies its rank from another lane of the same
 * queue.
 */
JobqLane *
jobq_lane_find(JobqDatabase *db, int32 queue_id, int32 priority, Oid role,
			   int32 flow, bool quarantine, bool create)
{
	JobqReady  *ready = db->ready;
	uint32		bucket = lane_bucket(queue_id, priority, role, flow, quarantine);
	JobqLane	wanted = {0};
	JobqLane   *lane;

	AssertExclusive(db->lock);
	for (uint32 i = ready->lane_bucket[bucket]; i != JOBQ_NONE; i = lane->hash_next)
	{
		lane = &ready->lanes[i];
		if (lane->queue_id == queue_id && lane->priority == priority &&
			lane->role == role && lane->flow == flow &&
			lane->quarantine == quarantine)
			return lane;
	}
	if (!create)
		return NULL;

	wanted.in_use = true;
	wanted.quarantine = quarantine;
	wanted.queue_id = queue_id;
	wanted.priority = priority;
	wanted.role = role;
	wanted.flow = flow;
	lane = lane_take(db, &wanted);
	if (lane == NULL)
	{
		ready->overflow = ready->crowded = true;
		ready->complete = false;	/* a later lane of this key may have due
									 * rows */
		db->relay_due = 0;		/* lanes may be kept for the relay only */
		return NULL;
	}
	wanted.expected = lane->expected;
	wanted.expected_next = lane->expected_next;
	wanted.noted = lane->noted;
	wanted.noted_next = lane->noted_next;
	wanted.passed = lane->passed;
	wanted.passed_next = lane->passed_next;
	wanted.unranked = lane->unranked;
	wanted.unranked_next = lane->unranked_next;
	*lane = wanted;
	ready->lanes_made++;
	lane->cursor.run_at = PG_INT64_MIN;
	lane->cursor.id = PG_INT64_MIN;
	lane->next_due = DT_NOEND;
	jobq_limiters_find(db, queue_id, lane->needs, lane->limiters);
	lane->head = lane->tail = lane->heap = lane->own = lane->timer = JOBQ_NONE;
	lane->hash_next = ready->lane_bucket[bucket];
	ready->lane_bucket[bucket] = JOBQ_LANE_INDEX(db, lane);
	lane_join_parties(db, lane);
	if (!ready->complete && !quarantine)
	{
		lane->more = true;
		jobq_lane_expect(db, lane);
	}
	else
		lane->unread = ready->forgotten_due != DT_NOEND;
	if (lane->party_next != JOBQ_NONE)
	{
		const JobqLane *other = &ready->lanes[lane->party_next];

		lane->order = other->order;
		lane->paused = other->paused && !other->alone;
		lane->consumer = other->consumer;
		lane->lacks = other->lacks & (1 << JOBQ_OF_QUEUE);
		lane->ranked = other->ranked;
	}
	return lane;
}

/*
 * Return the time until which the lane gathers, or 0.
 */
TimestampTz
jobq_gathers_until(JobqDatabase *db, int32 queue_id, int32 priority, Oid role, int32 flow)
{
	JobqLane   *lane = jobq_lane_find(db, queue_id, priority, role, flow, false, false);

	AssertExclusive(db->lock);
	return lane == NULL || !lane_gathers(lane) ? 0
		: timer_due(&db->ready->gathering, JOBQ_LANE_INDEX(db, lane));
}

/*
 * Is the lane the only lane of its queue?
 */
bool
lane_is_only(JobqDatabase *db, const JobqLane *lane)
{
	AssertExclusive(db->lock);
	return db->ready->parties[lane->party].nlanes == 1;
}

/*
 * Is the limiter of this source, which the lane's jobs need, in memory, or known to have no
 * slot?
 */
static bool
limiter_is_known(const JobqLane *lane, int source)
{
	return lane->needs[source].limiter == 0 ||
		lane->limiters[source] != JOBQ_NO_LIMITER || (lane->lacks & (1 << source)) != 0;
}

/*
 * The lane gets a job: store the job's needs as the needs of the lane.  Limits that are not
 * loaded yet block the lane.  Returns true if the lane was placed again, with other needs than
 * before.
 */
bool
lane_set_flow(JobqDatabase *db, JobqLane *lane, const JobqPush *push)
{
	bool		lacks_limiter = false;
	bool		is_same = true;
	bool		is_known = true;

	AssertExclusive(db->lock);

	/* a job without "held" may still be of a kind that was paused */
	if (push->held != 0)
		lane->held = push->held;
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (s != JOBQ_OF_QUEUE && push->needs[s].limiter == 0 &&
			lane->limiters[s] != JOBQ_NO_LIMITER)
			lacks_limiter = true;
		else if (lane->needs[s].limiter != push->needs[s].limiter ||
				 lane->needs[s].key != push->needs[s].key)
			is_same = false;

	/*
	 * If the only difference is a missing limiter, the row is outdated, and
	 * its taker rewrites it (gate.c).  The lane keeps its needs for the other
	 * jobs.
	 */
	if (is_same && lacks_limiter)
		return false;
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		lane->needs[s].cost = push->needs[s].cost;
		is_known &= limiter_is_known(lane, s);
	}
	if (is_same && is_known)
		return false;
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (lane->needs[s].limiter != push->needs[s].limiter ||
			lane->needs[s].key != push->needs[s].key)
		{
			lane_displace(db, lane);
			if (lane->needs[s].limiter != push->needs[s].limiter)
				lane->lacks &= ~(1 << s);
			lane_set_need(db, lane, s, push->needs[s]);
		}
	jobq_limiters_find(db, lane->queue_id, lane->needs, lane->limiters);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		if (!limiter_is_known(lane, s))
		{
			lane->ranked = false;
			db->reload = true;
			jobq_limits_missed(db);
		}
	jobq_lane_place(db, lane);
	return true;
}

/*
 * Stop serving the lane until the scheduler has ranked it again.
 */
void
jobq_lane_unrank(JobqDatabase *db, JobqLane *lane)
{
	AssertExclusive(db->lock);
	lane->ranked = false;
	jobq_lane_ask_rank(db, lane);
	jobq_lane_place(db, lane);
}

/*
 * Set the properties of the lane that depend on the queue.  alone: the lane is paused, but
 * the queue is not.  lacks: the limiters for which there was no slot.
 */
void
jobq_lane_rank(JobqDatabase *db, JobqLane *lane, uint16 order, bool consumer,
			   bool paused, bool alone, uint8 lacks)
{
	AssertExclusive(db->lock);
	if (((lane->paused && !paused) || lane->consumer != consumer) &&
		!lane->quarantine)
	{
		/* jobs popped in between come back; still read the lane again */
		jobq_lane_reset(db, lane);
	}
	lane->order = order;
	lane->paused = paused;
	lane->alone = alone;
	lane->consumer = consumer;
	lane->lacks = lacks;
	jobq_limiters_find(db, lane->queue_id, lane->needs, lane->limiters);
	lane->ranked = true;
	jobq_lane_place(db, lane);
	db->ready->entries_full_until = 0;	/* a closed lane can give entries */

	/* waiting consumers may find jobs now */
	if (consumer)
		lane_offer(db, lane);
}

/*
 * Request that all rows of the lane are read again.
 */
void
jobq_lane_reset(JobqDatabase *db, JobqLane *lane)
{
	AssertExclusive(db->lock);
	lane->cursor.run_at = PG_INT64_MIN;
	lane->cursor.id = PG_INT64_MIN;
	lane->unread = lane->doubtful = false;
	lane->more = true;
	jobq_lane_expect(db, lane);
}

static uint32
lane_bucket(int32 queue_id, int32 priority, Oid role, int32 flow,
			bool quarantine)
{
	uint32		hash = murmurhash32((uint32) queue_id);

	hash = hash_combine(hash, murmurhash32((uint32) priority));
	hash = hash_combine(hash, murmurhash32(role + (quarantine ? 1 : 0)));
	hash = hash_combine(hash, (uint32) flow);
	return hash % jobq_max_lanes;
}

/*
 * Would the role have more lanes than its share, counting the wanted lane?
 */
static bool
over_share(JobqDatabase *db, Oid oid, const JobqLane *wanted)
{
	const JobqRole *role = jobq_role_find(db, oid);
	uint32		nroles = db->ready->nroles;
	uint32		nlanes = role == NULL ? 0 : role->nlanes;

	AssertExclusive(db->lock);
	if (jobq_role_find(db, wanted->role) == NULL)
		nroles++;
	if (oid == wanted->role)
		nlanes++;
	return nlanes > Max(jobq_max_lanes / nroles, 1);
}

/*
 * Is the lane needed less than the other, which may be the wanted lane?  A lane of a role
 * above its share is needed less; otherwise, a less urgent lane.
 */
static bool
needed_less(JobqDatabase *db, const JobqLane *lane, const JobqLane *than,
			const JobqLane *wanted)
{
	AssertExclusive(db->lock);
	if (lane->role != than->role)
	{
		bool		over = over_share(db, lane->role, wanted);

		if (over != over_share(db, than->role, wanted))
			return over;
	}
	return lane->priority > than->priority;
}

/*
 * Find a lane to evict for the wanted lane.  In order of preference: an empty lane that
 * expects no jobs; a lane with only jobs of the future, which are searched for when the first
 * is due; a lane that is paused or not served; a lane needed less than the wanted lane.
 *
 * Some lanes are pinned:
 *
 *	scanning	the scheduler reads the lane's rows without the lock, and publishes them later
 *	notify		the relay must first collect the lane's notifications
 *	parked		entries at groups name the lane
 *	quarantine	with jobs: only a scan of the other lane, from its beginning, finds them again
 *
 * A process must not keep a pointer to any other lane across a call of jobq_lane_find() with
 * "create".
 */
static JobqLane *
find_victim(JobqDatabase *db, const JobqLane *wanted)
{
	JobqReady  *ready = db->ready;
	JobqLane   *future = NULL;
	JobqLane   *paused = NULL;
	JobqLane   *less = NULL;

	AssertExclusive(db->lock);
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &ready->lanes[ready->hand];

		if (i > 0 && i % SAMPLE == 0 &&
			(future != NULL || paused != NULL || less != NULL))
			break;
		ready->hand = (ready->hand + 1) % jobq_max_lanes;
		if (lane->scanning || lane->notify || lane->parked > 0 ||
			(lane->quarantine && lane->count > 0))
			continue;
		if (lane->count == 0 && !lane->more && !lane->skipping &&
			lane->next_due == DT_NOEND)
			return lane;

		/*
		 * A lane without a rank for which no ranking is requested: the
		 * scheduler has not found the queue (rank.c).  Or the scheduler is
		 * about to rank the lane, and the eviction merely comes early.
		 */
		if (lane->paused ||
			(lane->ranked && (lane->lacks != 0 ||
							  (!lane->consumer && lane->order == JOBQ_NO_ORDER))) ||
			(!lane->ranked && !lane->unranked && !db->reload))
			paused = lane;
		else if (lane->count == 0 && !lane->more && !lane->skipping)
		{
			if (future == NULL || lane->next_due > future->next_due)
				future = lane;
		}
		else if (needed_less(db, lane, less != NULL ? less : wanted, wanted))
			less = lane;
	}
	return future != NULL ? future : paused != NULL ? paused : less;
}

/*
 * Return an unused lane, or a lane evicted for the wanted lane and unlinked from all lists.
 * NULL if there is none.  After an eviction, a missing lane may have due rows.
 */
static JobqLane *
lane_take(JobqDatabase *db, const JobqLane *wanted)
{
	JobqReady  *ready = db->ready;
	JobqLane   *victim;
	TimestampTz now;
	bool		over;
	uint32	   *link;

	AssertExclusive(db->lock);
	if (ready->lane_free != JOBQ_NONE)
	{
		victim = &ready->lanes[ready->lane_free];
		ready->lane_free = victim->hash_next;
		return victim;
	}
	now = jobq_now();
	over = over_share(db, wanted->role, wanted);
	if (now < ready->full_until && now >= ready->full_until - FULL_PAUSE &&
		wanted->priority >= ready->full_priority && (over || !ready->full_over))
		return NULL;
	victim = find_victim(db, wanted);
	if (victim == NULL)
	{
		ready->full_until = now + FULL_PAUSE;
		ready->full_priority = wanted->priority;
		ready->full_over = over;
		return NULL;
	}

	if (victim->count > 0 || victim->more || victim->skipping)
	{
		if (victim->paused || victim->lacks != 0 || victim->order == JOBQ_NO_ORDER)
			ready->paused_forgotten = true;
		if (!victim->paused && victim->lacks == 0)
			ready->overflow = ready->crowded = true;
		lane_empty(db, victim);
		ready->complete = false;
		ready->evictions++;
	}
	if (victim->doubtful)
	{
		/* a new lane of this key would not know of the dropped job */
		ready->overflow = true;
		ready->complete = false;
	}
	ready->forgotten_due = Min(ready->forgotten_due, victim->next_due);

	lane_leave_parties(db, victim);
	link = &ready->lane_bucket[lane_bucket(victim->queue_id, victim->priority,
										   victim->role, victim->flow,
										   victim->quarantine)];
	while (*link != JOBQ_LANE_INDEX(db, victim))
		link = &ready->lanes[*link].hash_next;
	*link = victim->hash_next;
	victim->in_use = false;
	return victim;
}

/*
 * There was no slot for a job of the lane: read the lane again from this job on, but later.
 * A lane in quarantine is read with the lane that is not in quarantine.
 */
void
lane_skip(JobqDatabase *db, JobqLane *lane, JobqKey key)
{
	AssertExclusive(db->lock);
	if (lane->quarantine)
	{
		db->ready->overflow = true;
		lane = jobq_lane_find(db, lane->queue_id, lane->priority, lane->role,
							  lane->flow, false, false);
		if (lane == NULL)
		{
			db->ready->complete = false;	/* the lane is read when it is
											 * created */
			return;
		}
	}
	lane_pass(db, lane, key);
}

/*
 * A row of this lane with a key of "from" or above has become visible: request a scan.
 */
void
jobq_lane_look(JobqDatabase *db, JobqLane *lane, JobqKey from,
			   JobqWakeList *wake)
{
	AssertExclusive(db->lock);
	if (lane->scanning && jobq_key_cmp(from, db->ready->missed) < 0)
		db->ready->missed = from;
	if (jobq_key_cmp(from, lane->cursor) <= 0)
		lane->cursor = key_below(from);
	lane->more = true;
	jobq_lane_expect(db, lane);
	wake->scheduler = true;
}
