/*-------------------------------------------------------------------------
 *
 *	  Counts the commits that have not handed over their jobs yet: see handover.h.
 *
 * The counters are atomic, and need no lock.
 *
 * src/ready/handover.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"

#include "ready/inner.h"

static Size handovers_size(void);
static void handovers_init(void *owner, char *memory);

const JobqArea jobq_handovers_area = {
	JOBQ_AREA_OF_CLUSTER, handovers_size, handovers_init
};

static Size
handovers_size(void)
{
	return sizeof(JobqHandovers);
}

static void
handovers_init(void *owner, char *memory)
{
	JobqShared *shared = owner;

	shared->handovers = (JobqHandovers *) memory;
	for (int i = 0; i < JOBQ_HANDOVER_COUNTERS; i++)
		pg_atomic_init_u32(&shared->handovers->counters[i], 0);
}

static uint32
counter_of(Oid dboid, int64 group)
{
	uint32		hash = murmurhash32((uint32) group ^ (uint32) (group >> 32));

	return murmurhash32(hash + dboid) % JOBQ_HANDOVER_COUNTERS;
}

/*
 * Count a commit that has a job of this group to hand over; group 0 means any group of the
 * database.  The caller passes the result to jobq_handover_end() when the job is in the ready
 * set, or when the transaction has aborted.
 *
 * Must be called before the job's row is visible to other transactions.
 */
uint32
jobq_handover_begin(Oid dboid, int64 group)
{
	uint32		counter = counter_of(dboid, group);

	pg_atomic_fetch_add_u32(&jobq_shared->handovers->counters[counter], 1);
	return counter;
}

void
jobq_handover_end(uint32 counter)
{
	uint32		before PG_USED_FOR_ASSERTS_ONLY =
		pg_atomic_fetch_sub_u32(&jobq_shared->handovers->counters[counter], 1);

	Assert(before > 0);
}

static bool
is_raised(Oid dboid, int64 group)
{
	return pg_atomic_read_u32(&jobq_shared->handovers->counters[counter_of(dboid, group)]) != 0;
}

/*
 * May the group have a job with a visible row that has not been handed over?  False is
 * certain.  True may be caused by another group with the same counter.
 *
 * Under the lock, any hand-over has either pushed its job before, or is still counted.
 */
bool
handover_is_due(JobqDatabase *db, int64 group)
{
	AssertExclusive(db->lock);
	return is_raised(db->dboid, 0) || is_raised(db->dboid, group);
}
