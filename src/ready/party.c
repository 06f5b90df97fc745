/*-------------------------------------------------------------------------
 *
 *	  Queues, tenants, keys of limiters and roles that have lanes.
 *
 * A record exists as long as a lane names it.  There are enough records for all lanes, so
 * creating a record cannot fail.
 *
 * src/ready/party.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"

#include "ready/inner.h"

JOBQ_CHAIN(party, JobqParty, hash_next);
JOBQ_CHAIN(role, JobqRole, hash_next);

/*
 * Forget all queues, tenants, keys and roles.  There must be no lane.
 */
void
parties_clear(JobqDatabase *db)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
	for (uint32 i = 0; i < (uint32) jobq_max_lanes; i++)
		ready->party_bucket[i] = ready->role_bucket[i] = JOBQ_NONE;
	ready->party_free = party_chain_all(ready->parties, JOBQ_MAX_PARTIES);
	ready->role_free = role_chain_all(ready->roles, jobq_max_lanes);
	ready->roles_head = JOBQ_NONE;
	ready->nroles = 0;
}

static uint32 *
party_bucket(JobqReady *ready, uint32 owner, uint32 key)
{
	return &ready->party_bucket[hash_combine(murmurhash32(owner), key) % jobq_max_lanes];
}

static uint32 *
role_bucket(JobqReady *ready, Oid role)
{
	return &ready->role_bucket[murmurhash32(role) % jobq_max_lanes];
}

/*
 * Return the queue (no limiter, key 0), the tenant of the queue (no limiter), or the key of the
 * limiter (queue_id 0); NULL if it has no lane.
 */
JobqParty *
jobq_party_find(JobqDatabase *db, int32 queue_id, uint32 limiter, uint32 key)
{
	JobqReady  *ready = db->ready;
	bool		of_limiter = limiter != 0;
	uint32		owner = of_limiter ? limiter : (uint32) queue_id;

	AssertLocked(db->lock);
	Assert(!of_limiter || queue_id == 0);
	for (uint32 i = *party_bucket(ready, owner, key); i != JOBQ_NONE;
		 i = ready->parties[i].hash_next)
		if (ready->parties[i].owner == owner && ready->parties[i].key == key &&
			ready->parties[i].of_limiter == of_limiter)
			return &ready->parties[i];
	return NULL;
}

/*
 * Add a lane to a queue, tenant or key, whose record is created if necessary.  Returns the
 * index of the record.
 */
static uint32
party_join(JobqDatabase *db, int32 queue_id, uint32 limiter, uint32 key)
{
	JobqReady  *ready = db->ready;
	JobqParty  *party = jobq_party_find(db, queue_id, limiter, key);

	AssertExclusive(db->lock);
	if (party == NULL)
	{
		uint32		index = party_chain_pop(&ready->party_free, ready->parties);

		Assert(index != JOBQ_NONE);
		party = &ready->parties[index];
		memset(party, 0, sizeof(JobqParty));
		party->of_limiter = limiter != 0;
		party->owner = limiter != 0 ? limiter : (uint32) queue_id;
		party->key = key;
		party->lanes = party->heaps = JOBQ_NONE;
		party_chain_push(party_bucket(ready, party->owner, key), ready->parties, index);
	}
	party->nlanes++;
	return party - ready->parties;
}

static void
party_leave(JobqDatabase *db, uint32 index)
{
	JobqReady  *ready = db->ready;
	JobqParty  *party = &ready->parties[index];

	AssertExclusive(db->lock);
	Assert(party->nlanes > 0);
	if (--party->nlanes > 0)
		return;
	Assert(party->lanes == JOBQ_NONE && party->heaps == JOBQ_NONE);
	party_chain_remove(party_bucket(ready, party->owner, party->key), ready->parties, index);
	party_chain_push(&ready->party_free, ready->parties, index);
}

/*
 * Return the role, or NULL if it has no lane.
 */
JobqRole *
jobq_role_find(JobqDatabase *db, Oid role)
{
	JobqReady  *ready = db->ready;

	AssertExclusive(db->lock);
	for (uint32 i = *role_bucket(ready, role); i != JOBQ_NONE;
		 i = ready->roles[i].hash_next)
		if (ready->roles[i].role == role)
			return &ready->roles[i];
	return NULL;
}

static uint32
role_join(JobqDatabase *db, Oid oid)
{
	JobqReady  *ready = db->ready;
	JobqRole   *role = jobq_role_find(db, oid);

	AssertExclusive(db->lock);
	if (role == NULL)
	{
		uint32		index = role_chain_pop(&ready->role_free, ready->roles);

		Assert(index != JOBQ_NONE);
		role = &ready->roles[index];
		memset(role, 0, sizeof(JobqRole));
		role->role = oid;
		role->heaps = JOBQ_NONE;
		role_chain_push(role_bucket(ready, oid), ready->roles, index);
		role->prev = JOBQ_NONE;
		role->next = ready->roles_head;
		if (role->next != JOBQ_NONE)
			ready->roles[role->next].prev = index;
		ready->roles_head = index;
		ready->nroles++;
	}
	role->nlanes++;
	return role - ready->roles;
}

static void
role_leave(JobqDatabase *db, uint32 index)
{
	JobqReady  *ready = db->ready;
	JobqRole   *role = &ready->roles[index];

	AssertExclusive(db->lock);
	Assert(role->nlanes > 0);
	if (--role->nlanes > 0)
		return;
	Assert(role->heaps == JOBQ_NONE && role->nentries == 0);
	role_chain_remove(role_bucket(ready, role->role), ready->roles, index);
	if (role->prev != JOBQ_NONE)
		ready->roles[role->prev].next = role->next;
	else
		ready->roles_head = role->next;
	if (role->next != JOBQ_NONE)
		ready->roles[role->next].prev = role->prev;
	role_chain_push(&ready->role_free, ready->roles, index);
	ready->nroles--;
}

/*
 * Add a new lane to queue and role.
 */
void
lane_join_parties(JobqDatabase *db, JobqLane *lane)
{
	JobqReady  *ready = db->ready;
	JobqParty  *party;

	AssertExclusive(db->lock);
	lane->party = party_join(db, lane->queue_id, 0, 0);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		lane->keys[s] = lane->party;
	party = &ready->parties[lane->party];
	lane->party_prev = JOBQ_NONE;
	lane->party_next = party->lanes;
	if (party->lanes != JOBQ_NONE)
		ready->lanes[party->lanes].party_prev = JOBQ_LANE_INDEX(db, lane);
	party->lanes = JOBQ_LANE_INDEX(db, lane);
	lane->role_index = role_join(db, lane->role);
}

/*
 * Remove a lane that is given up from its queue, tenant, key and role.
 */
void
lane_leave_parties(JobqDatabase *db, JobqLane *lane)
{
	JobqReady  *ready = db->ready;
	JobqNeed	none = {0};

	AssertExclusive(db->lock);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		lane_set_need(db, lane, s, none);
	Assert(lane->party_prev != JOBQ_NONE ||
		   ready->parties[lane->party].lanes == JOBQ_LANE_INDEX(db, lane));
	if (lane->party_prev != JOBQ_NONE)
		ready->lanes[lane->party_prev].party_next = lane->party_next;
	else
		ready->parties[lane->party].lanes = lane->party_next;
	if (lane->party_next != JOBQ_NONE)
		ready->lanes[lane->party_next].party_prev = lane->party_prev;
	party_leave(db, lane->party);
	role_leave(db, lane->role_index);
}

/*
 * Set the need of the lane's jobs at the limiter of this source.  The lane is in no heap.
 */
void
lane_set_need(JobqDatabase *db, JobqLane *lane, int source, JobqNeed need)
{
	uint32		before = lane->keys[source];

	AssertExclusive(db->lock);
	Assert(lane->heap == JOBQ_NONE && lane->own == JOBQ_NONE);
	lane->needs[source] = need;
	lane->keys[source] = need.key == 0 ? lane->party
		: party_join(db, source == JOBQ_OF_QUEUE ? lane->queue_id : 0, need.limiter, need.key);
	if (before != lane->party)
		party_leave(db, before);
}

/*
 * The lane gets a position in a heap.  Queue and tenant begin at the turn of the last party
 * served, unless they are ahead.
 */
void
turn_begin(JobqDatabase *db, JobqLane *lane)
{
	JobqParty  *party = &db->ready->parties[lane->party];

	AssertExclusive(db->lock);
	if (db->limits->weighted)
		party->turn = Max(party->turn, db->limits->queue_turn);
	if (lane->keys[JOBQ_OF_QUEUE] != lane->party &&
		lane->limiters[JOBQ_OF_QUEUE] != JOBQ_NO_LIMITER)
	{
		double		others = db->limits->limiters[lane->limiters[JOBQ_OF_QUEUE]].tenant_turn;

		party = &db->ready->parties[lane->keys[JOBQ_OF_QUEUE]];
		if (party->turn < others)
		{
			party->turn = others;
			party->credit = 0;
		}
	}
}
