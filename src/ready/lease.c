/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  The leases of consumers, in shared memory.
 *
 * Found by the job's id.  A lease costs nothing while it runs: the scheduler
 * knows the earliest end, and looks through all of them only then.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/lease.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/jobq.h"

#include "common/hashfn.h"

#include "memory/shared.h"

/*
 * Forget all leases: when the shared memory is made, or belongs to another
 * database or a new extension.
 */
void
jobq_leases_clear(JobqDatabase *db)
{
	for (uint32 i = 0; i < (uint32) jobq_max_leases; i++)
	{
		db->lease_bucket[i] = JOBQ_NONE;
		db->leases[i].id = 0;
		db->leases[i].next = i + 1;
	}
	for (uint32 i = 0; i < (uint32) JOBQ_MAX_BUNDLES; i++)
	{
		db->bundles[i].outstanding = 0;
		db->bundles[i].next_free = i + 1;
	}
	db->leases[jobq_max_leases - 1].next = JOBQ_NONE;
	db->bundles[JOBQ_MAX_BUNDLES - 1].next_free = JOBQ_NONE;
	db->lease_free = db->bundle_free = 0;
	db->nleases = 0;
	db->ngarbage = 0;
	db->next_expiry = DT_NOEND;
	db->lease_life++;
	db->leases_loaded = false;
}

static uint32
bucket_of(int64 id)
{
	return murmurhash32((uint32) id ^ (uint32) (id >> 32)) % jobq_max_leases;
}

/*
 * The lease of this job, or NULL.
 */
JobqLease *
jobq_lease_find(JobqDatabase *db, int64 id)
{
	for (uint32 i = db->lease_bucket[bucket_of(id)]; i != JOBQ_NONE;
		 i = db->leases[i].next)
		if (db->leases[i].id == id)
			return &db->leases[i];
	return NULL;
}

/*
 * A bundle with no lease yet but one reference, which whoever makes it gives
 * back at the end of its transaction; or JOBQ_NONE if there is no room.
 */
uint32
jobq_lease_bundle(JobqDatabase *db)
{
	uint32		bundle = db->bundle_free;

	if (bundle != JOBQ_NONE)
	{
		db->bundle_free = db->bundles[bundle].next_free;
		memset(&db->bundles[bundle], 0, sizeof(JobqLeaseBundle));
		ItemPointerSetInvalid(&db->bundles[bundle].row.ctid);
		db->bundles[bundle].outstanding = 1;
	}
	return bundle;
}

/*
 * Take one from the bundle; the last gives it back, and its row is garbage.
 */
void
jobq_lease_bundle_release(JobqDatabase *db, uint32 bundle)
{
	JobqLeaseBundle *b = &db->bundles[bundle];

	Assert(b->outstanding > 0);
	if (--b->outstanding > 0)
		return;
	if (ItemPointerIsValid(&b->row.ctid))
	{
		if (db->ngarbage < JOBQ_LEASE_GARBAGE)
			db->garbage[db->ngarbage] = b->row;
		db->ngarbage++;
	}
	b->next_free = db->bundle_free;
	db->bundle_free = bundle;
}

/*
 * Lease the job that was popped, or NULL if there is no room.
 */
JobqLease *
jobq_lease_add(JobqDatabase *db, const JobqPush *job, int64 token,
			   TimestampTz until, uint32 bundle)
{
	uint32		index = db->lease_free;
	uint32		bucket = bucket_of(job->key.id);
	JobqLease  *lease;

	if (index == JOBQ_NONE)
		return NULL;
	lease = &db->leases[index];
	db->lease_free = lease->next;
	lease->id = job->key.id;
	lease->token = token;
	lease->until = until;
	lease->deadline = DT_NOEND;
	lease->run_at = job->key.run_at;
	lease->role = job->role;
	lease->flow = job->flow;
	lease->queue_id = job->queue_id;
	lease->priority = job->priority;
	lease->kind = job->kind;
	lease->tenant = job->tenant;
	lease->group = job->group;
	lease->permits = job->permits;
	lease->quarantine = job->quarantine;
	lease->state = JOBQ_LEASE_PENDING;
	lease->ctid = job->ctid;
	lease->progress = -1;
	lease->message[0] = '\0';
	lease->bundle = bundle;
	lease->next = db->lease_bucket[bucket];
	db->lease_bucket[bucket] = index;
	db->bundles[bundle].outstanding++;
	db->nleases++;
	return lease;
}

/*
 * The job has a timeout: whatever its consumer asks for, it has the job no
 * longer than that.
 */
void
jobq_lease_limit(JobqDatabase *db, JobqLease *lease, TimestampTz deadline)
{
	lease->deadline = deadline;
	lease->until = Min(lease->until, deadline);
	db->next_expiry = Min(db->next_expiry, lease->until);
}

/*
 * The lease is over.  For live and unused see jobq_permits_release().
 */
void
jobq_lease_remove(JobqDatabase *db, JobqLease *lease, bool live, bool unused,
				  TimestampTz now, JobqWakeList *wake)
{
	uint32		index = lease - db->leases;
	uint32	   *link = &db->lease_bucket[bucket_of(lease->id)];

	while (*link != index)
		link = &db->leases[*link].next;
	*link = lease->next;
	jobq_lease_bundle_release(db, lease->bundle);
	jobq_permits_release(db, &lease->permits, lease->id, live, unused, now,
						 wake);
	lease->id = 0;
	lease->next = db->lease_free;
	db->lease_free = index;
	db->nleases--;
}

/*
 * The job goes back unused, before it is handed over or looked for again: its
 * entry would seem to be one of a leased job, and be dropped.  Does nothing if
 * the job has no lease with this token.
 */
void
jobq_lease_undo(JobqDatabase *db, int64 id, int64 token, TimestampTz now,
				JobqWakeList *wake)
{
	JobqLease  *lease = jobq_lease_find(db, id);

	if (lease != NULL && lease->token == token)
		jobq_lease_remove(db, lease, false, true, now, wake);
}

/*
 * Another end, and another row that says so (bundle is JOBQ_NONE if none does).
 */
void
jobq_lease_move(JobqDatabase *db, JobqLease *lease, uint32 bundle,
				TimestampTz until)
{
	if (bundle != JOBQ_NONE)
	{
		db->bundles[bundle].outstanding++;
		jobq_lease_bundle_release(db, lease->bundle);
		lease->bundle = bundle;
	}
	lease->until = Min(until, lease->deadline);
	db->next_expiry = Min(db->next_expiry, lease->until);
}

/*
 * The job of the lease as an entry of the ready set.
 */
JobqPush
jobq_lease_push(const JobqLease *lease)
{
	JobqPush	push = {0};

	push.queue_id = lease->queue_id;
	push.priority = lease->priority;
	push.role = lease->role;
	push.flow = lease->flow;
	push.kind = lease->kind;
	push.tenant = lease->tenant;
	push.group = lease->group;
	push.quarantine = lease->quarantine;
	push.key.run_at = lease->run_at;
	push.key.id = lease->id;
	push.ctid = lease->ctid;
	return push;
}
