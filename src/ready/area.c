/*-------------------------------------------------------------------------
 *
 *	  The layout of this room's areas in shared memory.
 *
 * src/ready/area.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "ready/inner.h"

static Size ready_size(void);
static void ready_init(void *owner, char *memory);
static Size holding_size(void);
static void holding_init(void *owner, char *memory);

const JobqArea jobq_holding_area = {
	JOBQ_AREA_OF_SLOT, holding_size, holding_init
};
const JobqArea jobq_ready_area = {
	JOBQ_AREA_OF_DATABASE, ready_size, ready_init
};

static Size
holding_size(void)
{
	return sizeof(JobqHolding);
}

static void
holding_init(void *owner, char *memory)
{
	JobqSlot   *slot = owner;

	slot->holding = (JobqHolding *) memory;
	memset(slot->holding, 0, sizeof(JobqHolding));
	slot->holding->permits = slot->holding->more = JOBQ_NO_PERMITS;
	slot->holding->nmore = 0;
	slot->holding->groups = JOBQ_NONE;
}

/*
 * Allocate the next part of the area, and add its size to *used.  If memory is NULL, only add
 * the size.
 */
static void *
part(char *memory, Size *used, Size size)
{
	Size		at = *used;

	*used = add_size(at, MAXALIGN(size));
	return memory == NULL ? NULL : memory + at;
}

/*
 * Lay out the area of a database at "memory", or nowhere if "memory" is NULL.  Returns the
 * size in bytes.
 */
static Size
lay_out(JobqDatabase *db, char *memory)
{
	JobqReady  *ready;
	JobqLimits *limits;
	JobqGroups *groups;
	JobqLeases *leases;
	JobqOffers *offers;
	JobqShares *shares;
	Size		used = 0;

#define ARRAY(type, n)	((type *) part(memory, &used, mul_size(n, sizeof(type))))
	ready = ARRAY(JobqReady, 1);
	limits = ARRAY(JobqLimits, 1);
	groups = ARRAY(JobqGroups, 1);
	leases = ARRAY(JobqLeases, 1);
	offers = ARRAY(JobqOffers, 1);
	shares = ARRAY(JobqShares, 1);
	if (memory != NULL)
	{
		memset(memory, 0, used);
		db->ready = ready;
		db->limits = limits;
		db->groups = groups;
		db->leases = leases;
		db->offers = offers;
		db->shares = shares;
	}

#define SET_ARRAY(pointer, type, n) \
	do { \
		type	   *array_ = ARRAY(type, n); \
		if (memory != NULL) \
			(pointer) = array_; \
	} while (0)
#define SET_TIMERS(timers, array, type, bytes) \
	do { \
		(timers).things = (char *) (array); \
		(timers).size = (bytes); \
		(timers).place = offsetof(type, timer); \
	} while (0)
	SET_ARRAY(ready->entries, JobqEntry, jobq_ready_entries);
	SET_ARRAY(ready->lanes, JobqLane, jobq_max_lanes);
	SET_ARRAY(ready->nodes, JobqNode, jobq_max_lanes);
	SET_ARRAY(ready->roles, JobqRole, jobq_max_lanes);
	SET_ARRAY(ready->lane_bucket, uint32, jobq_max_lanes);
	SET_ARRAY(ready->heap_bucket, uint32, jobq_max_lanes);
	SET_ARRAY(ready->role_bucket, uint32, jobq_max_lanes);
	SET_ARRAY(ready->heaps, JobqHeap, JOBQ_MAX_HEAPS);
	SET_ARRAY(ready->turns, JobqServed, JOBQ_MAX_TURNS);
	SET_ARRAY(ready->turn_bucket, uint32, jobq_max_lanes);
	SET_ARRAY(ready->parties, JobqParty, JOBQ_MAX_PARTIES);
	SET_ARRAY(ready->party_bucket, uint32, jobq_max_lanes);
	SET_ARRAY(ready->tally_bucket, uint32, jobq_max_lanes);
	SET_ARRAY(ready->timers.heap, JobqTimer, jobq_max_lanes + 1);	/* see JobqReady.timers */
	SET_ARRAY(ready->gathering.heap, JobqTimer, jobq_max_lanes);
	SET_ARRAY(ready->limited, uint32, jobq_max_limiters);
	SET_ARRAY(limits->limiters, JobqLimiter, jobq_max_limiters);
	SET_ARRAY(limits->bucket, uint16, jobq_max_limiters);
	SET_ARRAY(groups->groups, JobqGroup, jobq_max_groups);
	SET_ARRAY(groups->bucket, uint32, jobq_max_groups);
	SET_ARRAY(groups->timers.heap, JobqTimer, jobq_max_groups);
	SET_ARRAY(leases->leases, JobqLease, jobq_max_leases);
	SET_ARRAY(leases->bucket, uint32, jobq_max_leases);
	SET_ARRAY(leases->bundles, JobqLeaseBundle, JOBQ_MAX_BUNDLES);
	SET_ARRAY(leases->garbage, JobqLeaseRow, JOBQ_LEASE_GARBAGE);
	SET_ARRAY(offers->reservers, JobqReserver, JOBQ_MAX_RESERVERS);
	if (memory != NULL)
	{
		SET_TIMERS(ready->timers, ready->entries, JobqTally, sizeof(JobqEntry));
		SET_TIMERS(ready->gathering, ready->lanes, JobqLane, sizeof(JobqLane));
		SET_TIMERS(groups->timers, groups->groups, JobqGroup, sizeof(JobqGroup));
	}
	return used;
}

static Size
ready_size(void)
{
	return lay_out(NULL, NULL);
}

static void
ready_init(void *owner, char *memory)
{
	JobqDatabase *db = owner;

	(void) lay_out(db, memory);
	memset(db->leases->leases, 0, sizeof(JobqLease) * jobq_max_leases);
	jobq_shares_clear(db->shares);
	reservers_clear(db);
	jobq_limits_clear(db);
	jobq_ready_clear(db);
	jobq_leases_clear(db);
}
