/*-------------------------------------------------------------------------
 *
 * lookup.c
 *	  The slot of a name, from a cache of this backend or from shared memory.
 *
 * The generation of a slot, read under the mutex of the slot when a note pins the slot, shows
 * whether the slot still belongs to the name (note.c).
 *
 * src/stats/lookup.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "stats/stats.h"

/* Found slots. */
#define NCACHED		256
#define OTHER_KEPT	(10 * USECS_PER_SEC)
typedef struct CachedPlace
{
	uint64		hash;			/* of the name */
	uint32		place;
	uint32		generation;
	TimestampTz other_until;	/* slot of "(other)", valid until then; or 0 */
} CachedPlace;

static CachedPlace *cache = NULL;

/*
 * The last name that was looked up, if short.  The name of a job is needed several times.
 */
#define LAST_LENGTH		64
typedef struct LastName
{
	Oid			dboid;
	Oid			jobs;
	int32		queue_id;
	int			kind_length;
	int			tenant_length;
	char		kind[LAST_LENGTH];
	char		tenant[LAST_LENGTH];
	uint64		hash;
} LastName;

static LastName last;

/* Return the database of this session, if its jobs are counted, or NULL. */
JobqStatBase *
jobq_stats_my_base(Oid jobs)
{
	static JobqStatBase *mine = NULL;

	if (jobq_stats == NULL)
		return NULL;
	if (mine != NULL && mine->dboid == MyDatabaseId && mine->jobs == jobs)
		return mine;
	LWLockAcquire(jobq_stats->lock, LW_SHARED);
	mine = jobq_stats_base(MyDatabaseId, jobs, false, 0);
	LWLockRelease(jobq_stats->lock);
	return mine;
}

/* jobq_stats_hash() of a name, with the last result cached. */
static uint64
hash_of(const JobqStatBase *base, const JobqStatKey *key)
{
	uint64		hash;

	Assert(key->kind_length >= 0);
	if (last.jobs == base->jobs && last.dboid == base->dboid &&
		last.queue_id == key->queue_id && last.kind_length == key->kind_length &&
		last.tenant_length == key->tenant_length &&
		memcmp(last.kind, key->kind, key->kind_length) == 0 &&
		memcmp(last.tenant, key->tenant, key->tenant_length) == 0)
		return last.hash;

	hash = jobq_stats_hash(base, key);
	if (key->kind_length > LAST_LENGTH || key->tenant_length > LAST_LENGTH)
		return hash;
	last.dboid = base->dboid;
	last.jobs = base->jobs;
	last.queue_id = key->queue_id;
	last.kind_length = key->kind_length;
	last.tenant_length = key->tenant_length;
	memcpy(last.kind, key->kind, key->kind_length);
	memcpy(last.tenant, key->tenant, key->tenant_length);
	last.hash = hash;
	return hash;
}

/*
 * Return the slot of a name, from the cache or from shared memory, and its generation.
 * JOBQ_NONE if this database is no longer counted.
 */
uint32
jobq_stats_look_up(const JobqStatBase *base, const JobqStatKey *key, uint32 *generation)
{
	uint64		hash = hash_of(base, key);
	CachedPlace *cached;
	const JobqStat *stat;
	bool		is_other;

	if (cache == NULL)
		cache = MemoryContextAllocZero(TopMemoryContext,
									   sizeof(CachedPlace) * NCACHED);
	cached = &cache[hash % NCACHED];
	stat = &jobq_stats->stats[cached->place];

	/* the clock may have been put back */
	if (cached->hash != hash || stat->generation != cached->generation ||
		(cached->other_until == 0 ? stat->hash != hash
		 : jobq_last_now >= cached->other_until ||
		 jobq_last_now < cached->other_until - OTHER_KEPT))
	{
		cached->hash = 0;
		cached->place = jobq_stats_find(base, key, hash, jobq_last_now,
										&cached->generation, &is_other);
		if (cached->place == JOBQ_NONE)
		{
			cached->place = 0;
			return JOBQ_NONE;
		}
		cached->other_until = is_other ? jobq_last_now + OTHER_KEPT : 0;
		cached->hash = hash;
	}
	*generation = cached->generation;
	return cached->place;
}

/*
 * Return the slot of a name without pinning, and set *at for jobq_stats_note_at().  JOBQ_NONE
 * if jobs are not counted.  May acquire JobqStats.lock.
 */
uint32
jobq_stats_place(Oid jobs, const JobqStatKey *key, JobqStatAt *at)
{
	const JobqStatBase *base = jobq_stats_my_base(jobs);

	if (!JOBQ_STATISTICS || base == NULL)
		return JOBQ_NONE;
	at->place = jobq_stats_look_up(base, key, &at->generation);
	at->base = at->place == JOBQ_NONE ? NULL : base;
	return at->place;
}
