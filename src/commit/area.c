/*-------------------------------------------------------------------------
 *
 * area.c
 *	  Layout of the shared memory of the directory commit.
 *
 * src/commit/area.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "commit/commit.h"

static Size waiters_size(void);
static void waiters_init(void *owner, char *memory);
static Size told_size(void);
static void told_init(void *owner, char *memory);

const JobqArea jobq_waiters_area = {
	JOBQ_AREA_OF_CLUSTER, waiters_size, waiters_init
};
const JobqArea jobq_told_area = {
	JOBQ_AREA_OF_DATABASE, told_size, told_init
};

static Size
waiters_size(void)
{
	return sizeof(JobqWaiters);
}

static void
waiters_init(void *owner, char *memory)
{
	JobqShared *shared = owner;

	shared->waiters = (JobqWaiters *) memory;
	memset(shared->waiters, 0, sizeof(JobqWaiters));
	shared->waiters->lock = jobq_extra_lock(JOBQ_LOCK_OF_WAITERS);
	pg_atomic_init_u32(&shared->waiters->n, 0);
	for (int i = 0; i < JOBQ_MAX_WAITERS; i++)
		shared->waiters->waiter[i].next = i + 1 < JOBQ_MAX_WAITERS ? i + 1 : -1;
	for (int i = 0; i < JOBQ_WAITER_BUCKETS; i++)
		shared->waiters->bucket[i] = -1;
	jobq_shares_clear(&shared->waiters->shares);
	jobq_shares_set(&shared->waiters->shares, JOBQ_OF_WAITERS, JOBQ_MAX_WAITERS);
}

static Size
told_size(void)
{
	return sizeof(JobqTold);
}

static void
told_init(void *owner, char *memory)
{
	JobqDatabase *db = owner;

	db->told = (JobqTold *) memory;
	memset(db->told, 0, sizeof(JobqTold));
	jobq_shares_set(db->shares, JOBQ_OF_MESSAGES, JOBQ_RELAY_SIZE);
	for (int i = 0; i < JOBQ_MAX_WATCHES; i++)
	{
		pg_atomic_init_u64(&db->told->watches[i].batch_id, 0);
		pg_atomic_init_u64(&db->told->watches[i].witness, 0);
	}
}
