/*-------------------------------------------------------------------------
 *
 *	  The leases of consumers, in shared memory.
 *
 * Leases are found by the job's id.  A lease causes no work while it runs: the scheduler
 * knows the earliest end, and searches all leases only then.
 *
 * src/ready/lease.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"

#include "ready/inner.h"

JOBQ_CHAIN(lease, JobqLease, next);
JOBQ_CHAIN(bundle, JobqLeaseBundle, next_free);

/*
 * Forget all leases, because the shared memory is new, or belongs to another database or a
 * new extension.  The counter of tokens is not reset.
 */
void
jobq_leases_clear(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	for (uint32 i = 0; i < (uint32) jobq_max_leases; i++)
	{
		if (db->leases->leases[i].lines.n > 0)
			jobq_lines_clear(&db->leases->leases[i].lines);
		db->leases->bucket[i] = JOBQ_NONE;
		db->leases->leases[i].id = 0;
		db->leases->leases[i].state = JOBQ_LEASE_FREE;
	}
	for (uint32 i = 0; i < (uint32) JOBQ_MAX_BUNDLES; i++)
		db->leases->bundles[i].outstanding = 0;
	db->leases->free = lease_chain_all(db->leases->leases, jobq_max_leases);
	db->leases->bundle_free = bundle_chain_all(db->leases->bundles, JOBQ_MAX_BUNDLES);
	db->leases->nleases = 0;
	jobq_shares_set(db->shares, JOBQ_OF_LEASES, jobq_max_leases);
	jobq_shares_set(db->shares, JOBQ_OF_BUNDLES, JOBQ_MAX_BUNDLES);
	db->leases->ngarbage = 0;
	db->leases->unsure = false;
	db->leases->next_expiry = DT_NOEND;
	db->leases->life++;
	db->leases->loaded = false;
}

/*
 * Return a new token, higher than all earlier tokens.
 */
int64
jobq_lease_token(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	return db->leases->next_token++;
}

static uint32
bucket_of(int64 id)
{
	return murmurhash32((uint32) id ^ (uint32) (id >> 32)) % jobq_max_leases;
}

/*
 * Return the lease of this job, or NULL.
 */
JobqLease *
jobq_lease_find(JobqDatabase *db, int64 id)
{
	AssertLocked(db->lock);
	for (uint32 i = db->leases->bucket[bucket_of(id)]; i != JOBQ_NONE;
		 i = db->leases->leases[i].next)
		if (db->leases->leases[i].id == id)
			return &db->leases->leases[i];
	return NULL;
}

/*
 * Create a bundle of this role, without a lease but with one reference.  The caller releases
 * this reference at the end of its transaction.  Returns JOBQ_NONE if there is no room.  The
 * caller has checked the role's share.
 */
uint32
jobq_lease_bundle(JobqDatabase *db, Oid role)
{
	uint32		bundle = bundle_chain_pop(&db->leases->bundle_free, db->leases->bundles);

	AssertExclusive(db->lock);
	if (bundle != JOBQ_NONE)
	{
		JobqLeaseBundle *b = &db->leases->bundles[bundle];

		memset(b, 0, sizeof(JobqLeaseBundle));
		ItemPointerSetInvalid(&b->row.ctid);
		b->outstanding = 1;
		b->held = -1;
		b->role = role;
		b->account = jobq_share_take(db->shares, role, JOBQ_OF_BUNDLES);
	}
	return bundle;
}

/*
 * Release one reference to the bundle.  The last release frees the bundle, and its row is
 * garbage.
 */
void
jobq_lease_bundle_release(JobqDatabase *db, uint32 bundle)
{
	JobqLeaseBundle *b = &db->leases->bundles[bundle];

	AssertExclusive(db->lock);
	Assert(b->outstanding > 0);
	if (--b->outstanding > 0)
		return;
	if (ItemPointerIsValid(&b->row.ctid))
	{
		if (db->leases->ngarbage < JOBQ_LEASE_GARBAGE)
			db->leases->garbage[db->leases->ngarbage] = b->row;
		db->leases->ngarbage++;
	}
	jobq_share_give(db->shares, b->account, JOBQ_OF_BUNDLES);
	bundle_chain_push(&db->leases->bundle_free, db->leases->bundles, bundle);
}

/*
 * Create a pending lease for a popped job.  Returns NULL if there is no room, which cannot
 * happen if jobq_share_left() has found room for the role.
 */
JobqLease *
jobq_lease_add(JobqDatabase *db, const JobqPush *job, int64 token,
			   TimestampTz until, uint32 bundle)
{
	uint32		index;
	JobqLease  *lease;

	AssertExclusive(db->lock);
	Assert(job->key.id != 0 && jobq_lease_find(db, job->key.id) == NULL);
	Assert(db->leases->bundles[bundle].outstanding > 0);
	index = lease_chain_pop(&db->leases->free, db->leases->leases);
	if (index == JOBQ_NONE)
		return NULL;
	lease = &db->leases->leases[index];
	lease->id = job->key.id;
	lease->token = token;
	lease->since = jobq_last_now;
	lease->until = until;
	lease->deadline = DT_NOEND;
	lease->run_at = job->key.run_at;
	lease->role = job->role;
	lease->flow = job->flow;
	lease->queue_id = job->queue_id;
	lease->priority = job->priority;
	memcpy(lease->needs, job->needs, sizeof(lease->needs));
	lease->group = job->group;
	lease->permits = job->permits;
	lease->name = 0;
	lease->quarantine = job->quarantine;
	jobq_lease_to(db, lease, JOBQ_LEASE_PENDING);
	lease->extended = false;
	lease->lost = 0;
	lease->ctid = job->ctid;
	lease->progress = -1;
	lease->message[0] = '\0';
	lease->bundle = bundle;
	lease->stat = JOBQ_NONE;
	lease_chain_push(&db->leases->bucket[bucket_of(lease->id)], db->leases->leases, index);
	db->leases->bundles[bundle].outstanding++;
	account_add(db->shares, db->leases->bundles[bundle].account, JOBQ_OF_LEASES);
	db->leases->nleases++;
	return lease;
}

/*
 * Change the state of a lease.
 */
void
jobq_lease_to(JobqDatabase *db, JobqLease *lease, JobqLeaseState state)
{
	AssertExclusive(db->lock);
	Assert((lease->state == JOBQ_LEASE_FREE) == (state == JOBQ_LEASE_PENDING));
	Assert(state != JOBQ_LEASE_LEAVING || lease->state == JOBQ_LEASE_HELD);
	lease->state = state;
}

/*
 * Limit a lease by the job's timeout.  Extensions by the consumer cannot exceed the deadline.
 */
void
jobq_lease_limit(JobqDatabase *db, JobqLease *lease, TimestampTz deadline)
{
	AssertExclusive(db->lock);
	lease->deadline = deadline;
	lease->until = Min(lease->until, deadline);
	db->leases->next_expiry = Min(db->leases->next_expiry, lease->until);
}

/*
 * End the lease: free the slot, and release the reference to the bundle.  The caller releases
 * the permits (permit.c).
 */
void
lease_free(JobqDatabase *db, JobqLease *lease)
{
	uint32		index = lease - db->leases->leases;

	AssertExclusive(db->lock);
	Assert(lease->id != 0 && db->leases->nleases > 0);
	if (lease->lines.n > 0)
		jobq_lines_clear(&lease->lines);
	lease_chain_remove(&db->leases->bucket[bucket_of(lease->id)], db->leases->leases, index);
	jobq_share_give(db->shares, db->leases->bundles[lease->bundle].account,
					JOBQ_OF_LEASES);
	jobq_lease_bundle_release(db, lease->bundle);
	jobq_lease_to(db, lease, JOBQ_LEASE_FREE);
	lease->id = 0;
	lease_chain_push(&db->leases->free, db->leases->leases, index);
	db->leases->nleases--;
}

/*
 * Set a new end of the lease, at most its deadline.  If bundle is not JOBQ_NONE, the lease
 * moves to this bundle, whose row records the new end.
 */
void
jobq_lease_move(JobqDatabase *db, JobqLease *lease, uint32 bundle,
				TimestampTz until)
{
	AssertExclusive(db->lock);
	Assert(lease->id != 0);
	Assert(bundle == JOBQ_NONE || db->leases->bundles[bundle].outstanding > 0);
	if (bundle != JOBQ_NONE)
	{
		jobq_share_give(db->shares, db->leases->bundles[lease->bundle].account,
						JOBQ_OF_LEASES);
		account_add(db->shares, db->leases->bundles[bundle].account, JOBQ_OF_LEASES);
		db->leases->bundles[bundle].outstanding++;
		jobq_lease_bundle_release(db, lease->bundle);
		lease->bundle = bundle;
	}
	lease->extended = true;
	lease->lost = 0;
	lease->since = jobq_last_now;
	lease->until = Min(until, lease->deadline);
	db->leases->next_expiry = Min(db->leases->next_expiry, lease->until);
}

/*
 * The clock was put back to "now".  A lease that was granted or extended later than "now"
 * keeps its remaining duration.
 */
void
jobq_leases_put_back(JobqDatabase *db, TimestampTz now)
{
	JobqLeases *leases = db->leases;

	AssertExclusive(db->lock);
	jobq_foreach_lease(lease, db)
	{
		if (lease->since <= now)
			continue;
		if (lease->until != DT_NOEND)
			lease->until -= lease->since - now;
		if (lease->deadline != DT_NOEND &&
			leases->bundles[lease->bundle].since > now)
			lease->deadline -= leases->bundles[lease->bundle].since - now;
		lease->since = now;
		leases->next_expiry = Min(leases->next_expiry, lease->until);
	}
	for (int i = 0; i < JOBQ_MAX_BUNDLES; i++)
		leases->bundles[i].since = Min(leases->bundles[i].since, now);

	/* the next try to end a lease may be planned by the earlier clock */
	leases->next_expiry = Min(leases->next_expiry, now);
}

/*
 * Return the job of the lease in the form for jobq_ready_push().
 */
JobqPush
jobq_lease_push(const JobqLease *lease)
{
	JobqPush	push = {0};

	push.queue_id = lease->queue_id;
	push.priority = lease->priority;
	push.role = lease->role;
	push.flow = lease->flow;
	memcpy(push.needs, lease->needs, sizeof(push.needs));
	push.group = lease->group;
	push.quarantine = lease->quarantine;
	push.key.run_at = lease->run_at;
	push.key.id = lease->id;
	push.ctid = lease->ctid;
	return push;
}
