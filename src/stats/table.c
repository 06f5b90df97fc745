/*-------------------------------------------------------------------------
 *
 * table.c
 *	  Assignment of names to slots.
 *
 * Names are found by a hash with a random seed, so that users cannot construct names that
 * share a bucket.
 *
 * The slots of a role are limited by shares.h.  A role above the share, or without a free
 * slot, evicts a name of its own that has no jobs.  The search examines the next
 * JOBQ_STATS_LOOK slots, or more without a suitable name there, and evicts the name with the
 * oldest activity.  Only a role with few slots evicts names of other roles.  No name is
 * evicted while the gauges are unknown or being counted.
 *
 * The slot "(other)" of a queue counts towards the share of the role for which it was created.
 * The slot may be created beyond the share, as long as a few slots remain.  The slot is
 * evicted only if no name can be.
 *
 * src/stats/table.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "stats/stats.h"

JOBQ_CHAIN(stat, JobqStat, next);

/* A name with activity within this time is not evicted, in microseconds. */
#define KEPT		(60 * USECS_PER_SEC)

/* If no name can be evicted, the next search begins after this time, in microseconds. */
#define FULL		(10 * USECS_PER_SEC)

/* A role with less than this part of the slots may evict names of other roles. */
#define FEW			16

/* This part of the slots is not used for "(other)" beyond a share. */
#define REST		16

JobqStats  *jobq_stats = NULL;

static Size stats_size(void);
static void stats_init(void *owner, char *memory);

const JobqArea jobq_stats_area = {
	JOBQ_AREA_OF_CLUSTER, stats_size, stats_init
};

/*
 * Return the number of slots: for names, and for databases.
 */
uint32
jobq_stats_places(void)
{
	return (uint32) (jobq_max_stats + jobq_max_databases);
}

static Size
stats_size(void)
{
	Size		size = MAXALIGN(sizeof(JobqStats));

	size = add_size(size, MAXALIGN(mul_size(jobq_max_databases,
											sizeof(JobqStatBase))));
	size = add_size(size, MAXALIGN(mul_size(jobq_max_stats, sizeof(uint32))));
	return add_size(size, mul_size(jobq_stats_places(), sizeof(JobqStat)));
}

static void
stats_init(void *owner, char *memory)
{
	jobq_stats = (JobqStats *) memory;
	memset(memory, 0, stats_size());
	jobq_stats->lock = jobq_extra_lock(JOBQ_LOCK_OF_STATS);
	if (!pg_strong_random(&jobq_stats->seed, sizeof(jobq_stats->seed)))
		jobq_stats->seed = (uint64) GetCurrentTimestamp();
	jobq_stats->nstats = (uint32) jobq_max_stats;
	pg_atomic_init_u64(&jobq_stats->changes, 0);
	memory += MAXALIGN(sizeof(JobqStats));
	jobq_stats->bases = (JobqStatBase *) memory;
	memory += MAXALIGN(jobq_max_databases * sizeof(JobqStatBase));
	jobq_stats->bucket = (uint32 *) memory;
	memory += MAXALIGN(jobq_max_stats * sizeof(uint32));
	jobq_stats->stats = (JobqStat *) memory;
	for (uint32 i = 0; i < jobq_stats_places(); i++)
	{
		SpinLockInit(&jobq_stats->stats[i].mutex);
		if (i < jobq_stats->nstats)
			jobq_stats->bucket[i] = JOBQ_NONE;
	}
	jobq_stats->free = stat_chain_all(jobq_stats->stats, jobq_stats->nstats);
	jobq_shares_clear(&jobq_stats->shares);
	jobq_shares_set(&jobq_stats->shares, JOBQ_OF_STATS, jobq_stats->nstats);
}

/*
 * Return the entry of the database with this table of jobs, or NULL if its jobs are not
 * counted.  make: create the entry, if there is room.  The caller holds JobqStats.lock.  An
 * entry stays as long as the extension exists.
 */
JobqStatBase *
jobq_stats_base(Oid dboid, Oid jobs, bool make, TimestampTz now)
{
	JobqStatBase *free = NULL;
	JobqStat   *stat;

	AssertLocked(jobq_stats->lock);
	if (make)
		AssertExclusive(jobq_stats->lock);
	for (int i = 0; i < jobq_max_databases; i++)
	{
		JobqStatBase *base = &jobq_stats->bases[i];

		if (base->dboid == dboid && base->jobs == jobs)
			return base;
		if (!OidIsValid(base->dboid) && free == NULL)
			free = base;
	}
	if (!make || free == NULL)
		return NULL;
	stat = &jobq_stats->stats[jobq_stats_of_base(free)];
	SpinLockAcquire(&stat->mutex);
	stat->generation++;
	stat->in_use = true;
	stat->count = 0;
	stat->used_at = now;
	memset(&stat->name, 0, sizeof(stat->name));
	memset(&stat->counts, 0, sizeof(stat->counts));
	stat->name.dboid = dboid;
	stat->name.jobs = jobs;
	stat->name.other = true;
	stat->counts.since = now;
	SpinLockRelease(&stat->mutex);
	memset(free, 0, sizeof(JobqStatBase));
	free->jobs = jobs;
	free->recount = true;
	pg_write_barrier();
	free->dboid = dboid;
	return free;
}

/* Return the slot of the database, for all names without another slot. */
uint32
jobq_stats_of_base(const JobqStatBase *base)
{
	return jobq_stats->nstats + (uint32) (base - jobq_stats->bases);
}

/* Return the hash of a name. */
uint64
jobq_stats_hash(const JobqStatBase *base, const JobqStatKey *key)
{
	uint64		hash = jobq_stats->seed ^ ((uint64) base->jobs << 32) ^ (uint32) key->queue_id;

	hash = hash_bytes_uint32_extended(base->dboid, hash);
	if (key->kind_length >= 0)
		hash = hash_bytes_extended((const unsigned char *) key->kind, key->kind_length, hash);
	if (key->tenant_length > 0)
		hash = hash_bytes_extended((const unsigned char *) key->tenant, key->tenant_length,
								   ~hash);
	return hash;
}

static uint32 *
bucket_of(uint64 hash)
{
	return &jobq_stats->bucket[hash % jobq_stats->nstats];
}

/*
 * Return the slot of the name, or JOBQ_NONE.
 */
static uint32
find(const JobqStatBase *base, const JobqStatKey *key, uint64 hash)
{
	bool		other = key->kind_length < 0;
	uint32		place = *bucket_of(hash);

	AssertLocked(jobq_stats->lock);
	for (; place != JOBQ_NONE; place = jobq_stats->stats[place].next)
	{
		const JobqStat *stat = &jobq_stats->stats[place];
		const JobqStatName *name = &stat->name;

		if (stat->hash == hash && name->queue_id == key->queue_id &&
			name->dboid == base->dboid && name->jobs == base->jobs &&
			name->other == other &&
			(other || (name->kind_length == key->kind_length &&
					   memcmp(name->kind, key->kind, key->kind_length) == 0 &&
					   name->tenant_length == key->tenant_length &&
					   memcmp(name->tenant, key->tenant, key->tenant_length) == 0)))
			return place;
	}
	return JOBQ_NONE;
}

/* Assign this free slot to the name. */
static void
settle(uint32 place, const JobqStatBase *base, const JobqStatKey *key, uint64 hash,
	   TimestampTz now)
{
	JobqStat   *stat = &jobq_stats->stats[place];

	SpinLockAcquire(&stat->mutex);
	stat->generation++;
	stat->in_use = true;
	stat->hash = hash;
	stat->used_at = now;
	stat->count = base->count;
	stat->pins = 0;
	memset(stat->since_count, 0, sizeof(stat->since_count));
	memset(&stat->counts, 0, sizeof(stat->counts));
	memset(&stat->name, 0, sizeof(stat->name));
	stat->counts.since = now;
	stat->name.dboid = base->dboid;
	stat->name.jobs = base->jobs;
	stat->name.queue_id = key->queue_id;
	stat->name.role = key->role;
	stat->name.other = key->kind_length < 0;
	if (key->kind_length > 0)
	{
		stat->name.kind_length = (uint8) key->kind_length;
		memcpy(stat->name.kind, key->kind, key->kind_length);
	}
	if (key->tenant_length > 0)
	{
		stat->name.tenant_length = (uint8) key->tenant_length;
		memcpy(stat->name.tenant, key->tenant, key->tenant_length);
	}
	SpinLockRelease(&stat->mutex);
	stat->account = jobq_share_take(&jobq_stats->shares, key->role, JOBQ_OF_STATS);
	stat_chain_push(bucket_of(hash), jobq_stats->stats, place);
}

/*
 * True if the name in this slot may be evicted.  The gauges of a name without jobs may be
 * below zero.  The beginning of these jobs was counted in "(other)", and their end here.  The
 * eviction adds both halves together.
 *
 * The answer is valid as long as the lock is held exclusively, because a slot is pinned only
 * after a lookup.
 */
static bool
is_idle(JobqStat *stat, TimestampTz now)
{
	bool		idle;

	SpinLockAcquire(&stat->mutex);
	idle = stat->in_use && stat->pins == 0 && stat->count == 0 && stat->used_at < now - KEPT;
	for (int i = 0; i < JOBQ_LETTERS; i++)
		idle = idle && stat->counts.gauges[i] <= 0;
	SpinLockRelease(&stat->mutex);
	return idle;
}

/* True if the role may use a free slot. */
static bool
may_take(Oid role, bool other)
{
	if (jobq_stats->free == JOBQ_NONE)
		return false;
	return jobq_share_left(&jobq_stats->shares, role, JOBQ_OF_STATS) ||
		(other && jobq_stats->shares.held[JOBQ_OF_STATS] <
		 jobq_stats->nstats - jobq_stats->nstats / REST);
}

/* True if a is evicted before b. */
static bool
before(const JobqStat *a, const JobqStat *b)
{
	if (a->name.other != b->name.other)
		return b->name.other;
	return a->used_at < b->used_at;
}

/* True if the role cannot get a slot, and none can be freed for some time. */
static bool
is_full(const JobqStatBase *base, Oid role, bool other, TimestampTz now)
{
	return !may_take(role, other) &&
		(!base->known || base->count != 0 || now < jobq_stats->full_until);
}

/* Return a free slot for the role, after an eviction if necessary; or JOBQ_NONE. */
static uint32
take(const JobqStatBase *base, Oid role, bool other, TimestampTz now)
{
	bool		few = jobq_share_held(&jobq_stats->shares, role,
									  JOBQ_OF_STATS) < jobq_stats->nstats / FEW;
	uint32		oldest = JOBQ_NONE;

	AssertExclusive(jobq_stats->lock);
	if (!may_take(role, other))
	{
		if (is_full(base, role, other, now))
			return JOBQ_NONE;
		for (uint32 n = 0; n < jobq_stats->nstats; n++)
		{
			uint32		place = jobq_stats->hand;
			JobqStat   *stat = &jobq_stats->stats[place];

			/* "(other)" is evicted only if no name can be */
			if (n > 0 && n % JOBQ_STATS_LOOK == 0 && oldest != JOBQ_NONE &&
				!jobq_stats->stats[oldest].name.other)
				break;
			jobq_stats->hand = (place + 1) % jobq_stats->nstats;
			if ((few || stat->name.role == role) && is_idle(stat, now) &&
				(oldest == JOBQ_NONE ||
				 before(stat, &jobq_stats->stats[oldest])))
				oldest = place;
		}
		if (oldest == JOBQ_NONE)
		{
			jobq_stats->full_until = now + FULL;
			return JOBQ_NONE;
		}
		jobq_stats_give_up(oldest, true, now);
	}
	return stat_chain_pop(&jobq_stats->free, jobq_stats->stats);
}

/*
 * Return the slot "(other)" of the queue, or JOBQ_NONE.
 */
uint32
jobq_stats_find_other(const JobqStatBase *base, int32 queue_id)
{
	JobqStatKey key = {.queue_id = queue_id,.kind_length = -1};

	AssertLocked(jobq_stats->lock);
	return find(base, &key, jobq_stats_hash(base, &key));
}

/*
 * Return the slot "(other)" of the queue, or the slot of the database.  may_free: a name may
 * be evicted for the slot.
 */
static uint32
other_place(JobqStatBase *base, int32 queue_id, Oid role, bool may_free,
			TimestampTz now)
{
	JobqStatKey key = {.queue_id = queue_id,.role = role,.kind_length = -1};
	uint64		hash = jobq_stats_hash(base, &key);
	uint32		place = find(base, &key, hash);

	AssertExclusive(jobq_stats->lock);
	if (place == JOBQ_NONE && (may_free || may_take(role, true)))
	{
		place = take(base, role, true, now);
		if (place != JOBQ_NONE)
			settle(place, base, &key, hash, now);
	}
	if (place != JOBQ_NONE)
		return place;
	return jobq_stats_of_base(base);
}

static void
merge(JobqCounts *into, JobqCounts *from, TimestampTz now)
{
	into->since = Min(into->since, from->since);
	into->completed_at = Max(into->completed_at, from->completed_at);
	for (int i = 0; i < JOBQ_NCOUNTERS; i++)
		into->counters[i] += from->counters[i];
	for (int i = 0; i < JOBQ_NGAUGES; i++)
		into->gauges[i] += from->gauges[i];
	for (int i = 0; i < JOBQ_NCOSTS; i++)
		into->costs.n[i] += from->costs.n[i];
	(void) jobq_calendar_turn(&into->scheduled, now);
	(void) jobq_calendar_turn(&from->scheduled, now);
	jobq_calendar_merge(&into->scheduled, &from->scheduled);
	jobq_times_merge(&into->waited, &from->waited);
	jobq_times_merge(&into->ran, &from->ran);
	jobq_history_merge(&into->history, &from->history, now);
}

/*
 * True if any count is worth keeping.  A rolled back transaction may have acquired a slot
 * without counting anything.
 */
static bool
has_counts(const JobqCounts *counts)
{
	bool		any = false;

	for (int i = 0; i < JOBQ_NCOUNTERS; i++)
		any |= counts->counters[i] != 0;
	for (int i = 0; i < JOBQ_NGAUGES; i++)
		any |= counts->gauges[i] != 0;
	for (int i = 0; i < JOBQ_NCOSTS; i++)
		any |= counts->costs.n[i] != 0;
	return any;
}

/*
 * Free a slot.  keep: add the counts to "(other)" of the queue.  The counts of "(other)" are
 * added to the slot of the database.
 */
void
jobq_stats_give_up(uint32 place, bool keep, TimestampTz now)
{
	static JobqCounts counts;
	JobqStat   *stat = &jobq_stats->stats[place];
	JobqStatName name = stat->name;

	AssertExclusive(jobq_stats->lock);
	stat_chain_remove(bucket_of(stat->hash), jobq_stats->stats, place);
	SpinLockAcquire(&stat->mutex);
	counts = stat->counts;
	stat->generation++;
	stat->in_use = false;
	SpinLockRelease(&stat->mutex);
	jobq_share_give(&jobq_stats->shares, stat->account, JOBQ_OF_STATS);
	stat_chain_push(&jobq_stats->free, jobq_stats->stats, place);
	if (keep && has_counts(&counts))
	{
		JobqStatBase *base = jobq_stats_base(name.dboid, name.jobs, false, now);
		bool		owed = false;

		if (base == NULL)
			return;
		place = name.other ? jobq_stats_of_base(base)
			: other_place(base, name.queue_id, name.role, false, now);
		stat = &jobq_stats->stats[place];
		SpinLockAcquire(&stat->mutex);
		merge(&stat->counts, &counts, now);
		for (int i = 0; i < JOBQ_NGAUGES; i++)
			owed |= stat->counts.gauges[i] < 0;
		SpinLockRelease(&stat->mutex);

		/* their beginning was counted when the queue had no slot "(other)" */
		if (owed && place < jobq_stats->nstats)
			base->recount = true;
	}
}

/*
 * Return the slot in which a job of this name is counted, and its generation.  JOBQ_NONE if
 * base belongs to another database by now.  *is_other: the slot is shared with other names.
 * Acquires JobqStats.lock, exclusively only to assign a slot.  With many names, most names
 * have no slot, and most lookups share the lock.
 */
uint32
jobq_stats_find(const JobqStatBase *base, const JobqStatKey *key, uint64 hash,
				TimestampTz now, uint32 *generation, bool *is_other)
{
	uint32		place;

	*is_other = false;
	LWLockAcquire(jobq_stats->lock, LW_SHARED);
	place = base->dboid != MyDatabaseId ? JOBQ_NONE : find(base, key, hash);
	if (place == JOBQ_NONE && base->dboid == MyDatabaseId &&
		is_full(base, key->role, false, now))
	{
		place = jobq_stats_find_other(base, key->queue_id);
		if (place == JOBQ_NONE && is_full(base, key->role, true, now))
			place = jobq_stats_of_base(base);
		*is_other = place != JOBQ_NONE;
	}
	if (place != JOBQ_NONE)
		*generation = jobq_stats->stats[place].generation;
	LWLockRelease(jobq_stats->lock);
	if (place != JOBQ_NONE)
		return place;

	LWLockAcquire(jobq_stats->lock, LW_EXCLUSIVE);
	if (base->dboid != MyDatabaseId)
	{
		LWLockRelease(jobq_stats->lock);
		return JOBQ_NONE;
	}
	place = find(base, key, hash);
	if (place == JOBQ_NONE)
	{
		place = take(base, key->role, false, now);
		if (place != JOBQ_NONE)
			settle(place, base, key, hash, now);
		else
		{
			*is_other = true;
			place = other_place(unconstify(JobqStatBase *, base), key->queue_id,
								key->role, true, now);
		}
	}
	*generation = jobq_stats->stats[place].generation;
	LWLockRelease(jobq_stats->lock);
	return place;
}

/*
 * Copy the contents of the slot.  False if the slot is free.  name and counts may be NULL.
 * Acquires the slot's mutex.
 */
bool
jobq_stats_read(uint32 place, JobqStatName *name, JobqCounts *counts)
{
	JobqStat   *stat = &jobq_stats->stats[place];
	bool		in_use;

	SpinLockAcquire(&stat->mutex);
	in_use = stat->in_use;
	if (in_use && name != NULL)
		*name = stat->name;
	if (in_use && counts != NULL)
		*counts = stat->counts;
	SpinLockRelease(&stat->mutex);
	return in_use;
}

/*
 * Add counts to those of a name, if there is room.  Called at the start of the server, when no
 * other process exists.
 */
void
jobq_stats_put(const JobqStatName *name, JobqCounts *counts, TimestampTz now)
{
	JobqStatBase *base = jobq_stats_base(name->dboid, name->jobs, false, now);
	JobqStatKey key = {
		.queue_id = name->queue_id,.role = name->role,
		.kind = name->kind,
		.kind_length = name->other ? -1 : Min(name->kind_length, JOBQ_STATS_KIND - 1),
		.tenant = name->tenant,
		.tenant_length = Min(name->tenant_length, JOBQ_STATS_TENANT - 1)
	};
	uint64		hash;
	uint32		place;

	if (base == NULL)
		return;
	hash = jobq_stats_hash(base, &key);
	place = name->queue_id == 0 ? jobq_stats_of_base(base) : find(base, &key, hash);
	if (place == JOBQ_NONE)
	{
		/* no name is evicted; the share was checked before the restart */
		place = stat_chain_pop(&jobq_stats->free, jobq_stats->stats);
		if (place != JOBQ_NONE)
			settle(place, base, &key, hash, now);
		else
			place = other_place(base, name->queue_id, name->role, false, now);
	}
	merge(&jobq_stats->stats[place].counts, counts, now);
}
