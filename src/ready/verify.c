/*-------------------------------------------------------------------------
 *
 *	  Check of the whole ready set, for servers with assertions and for the model.
 *
 * Only the structure is checked: each element is in exactly one list or heap, links fit
 * together, hash tables find their elements, and counters count their elements.  This holds
 * whenever db->lock is released.  Whether the right jobs run is a question for the model.
 *
 * src/ready/verify.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "ready/inner.h"

#ifdef USE_ASSERT_CHECKING

#define FAULT(...)	elog(PANIC, "ready set: " __VA_ARGS__)

/* Marks for each entry and for each lane. */
#define SEEN		0x01
#define FREE		0x02
#define EXPECTED	0x04
#define NOTED		0x08

static uint8 *entry_marks = NULL;
static uint8 *lane_marks = NULL;
static uint32 *lane_parked = NULL;

/*
 * Allocate and clear the marks.  palloc() is not allowed here.
 */
static void
clear_marks(void)
{
	entry_marks = realloc(entry_marks, jobq_ready_entries);
	lane_marks = realloc(lane_marks, jobq_max_lanes);
	lane_parked = realloc(lane_parked, sizeof(uint32) * jobq_max_lanes);
	if (entry_marks == NULL || lane_marks == NULL || lane_parked == NULL)
		FAULT("no memory for its check");
	memset(entry_marks, 0, jobq_ready_entries);
	memset(lane_marks, 0, jobq_max_lanes);
	memset(lane_parked, 0, sizeof(uint32) * jobq_max_lanes);
}

static void
see_entry(uint32 index, const char *where)
{
	if (index >= (uint32) jobq_ready_entries)
		FAULT("%s has an entry %u", where, index);
	if (entry_marks[index] != 0)
		FAULT("%s has entry %u, which is elsewhere", where, index);
	entry_marks[index] = SEEN;
}

static void
verify_lane(JobqDatabase *db, uint32 index)
{
	JobqReady  *ready = db->ready;
	JobqLane   *lane = &ready->lanes[index];
	uint32		before = JOBQ_NONE;
	uint32		n = 0;

	for (uint32 i = lane->head; i != JOBQ_NONE; i = ready->entries[i].next)
	{
		see_entry(i, "a lane");
		if (ready->entries[i].lane != index || ready->entries[i].prev != before)
			FAULT("entry %u of lane %u is not linked well", i, index);
		if (before != JOBQ_NONE &&
			jobq_key_cmp(ready->entries[before].key, ready->entries[i].key) >
			(ready->entries[before].group == ready->entries[i].group ? -1 : 0))
			FAULT("lane %u is not in order", index);
		before = i;
		n++;
	}
	if (lane->tail != before || lane->count != n)
		FAULT("lane %u has %u entries, not %u", index, n, lane->count);
	if (jobq_lane_find(db, lane->queue_id, lane->priority, lane->role,
					   lane->flow, lane->quarantine, false) != lane)
		FAULT("lane %u is not found", index);
}

/*
 * Parked entries are in the order of their group.
 */
static void
verify_group(JobqDatabase *db, JobqGroup *group)
{
	JobqReady  *ready = db->ready;
	uint32		before = JOBQ_NONE;
	int			n = 0;

	for (uint32 i = group->head; i != JOBQ_NONE; i = ready->entries[i].next)
	{
		see_entry(i, "a group");
		if (ready->entries[i].group != group->id)
			FAULT("entry %u is parked at another group", i);
		if (!ready->lanes[ready->entries[i].lane].in_use)
			FAULT("entry %u is of a lane that is gone", i);
		if (before != JOBQ_NONE &&
			group_compare(group_entry_priority(db, before),
						  ready->entries[before].key,
						  group_entry_priority(db, i), ready->entries[i].key) >=
			(ready->entries[before].lane != ready->entries[i].lane))
			FAULT("group " INT64_FORMAT " is not in order", group->id);
		lane_parked[ready->entries[i].lane]++;
		before = i;
		n++;
	}
	if (n != group->nparked)
		FAULT("group " INT64_FORMAT " has %d parked, not %d", group->id, n,
			  group->nparked);
	if (jobq_group_find(db, group->id) != group)
		FAULT("group " INT64_FORMAT " is not found", group->id);
}

/*
 * Each entry is free, a tally, in a lane, or parked at a group.
 */
static void
verify_entries(JobqDatabase *db)
{
	JobqReady  *ready = db->ready;
	uint32		nfree = 0;
	uint32		ntallies = 0;
	uint32		ngroups = 0;

	for (uint32 i = ready->free_head; i != JOBQ_NONE; i = ready->entries[i].next)
	{
		see_entry(i, "the free list");
		entry_marks[i] |= FREE;
		nfree++;
	}
	if (nfree != ready->nfree)
		FAULT("%u entries are free, not %u", nfree, ready->nfree);
	for (uint32 l = 0; l < (uint32) jobq_max_lanes; l++)
		if (ready->lanes[l].in_use)
			verify_lane(db, l);
	for (int g = 0; g < jobq_max_groups; g++)
		if (db->groups->groups[g].id != 0)
		{
			verify_group(db, &db->groups->groups[g]);
			ngroups++;
		}
	if (ngroups != db->groups->ngroups)
		FAULT("there are %u groups, not %u", ngroups, db->groups->ngroups);
	for (uint32 l = 0; l < (uint32) jobq_max_lanes; l++)
		if (ready->lanes[l].in_use && ready->lanes[l].parked != lane_parked[l])
			FAULT("lane %u: %u are parked, not %u", l, lane_parked[l],
				  ready->lanes[l].parked);
	for (uint32 i = 0; i < (uint32) jobq_ready_entries; i++)
	{
		JobqTally  *tally = TALLY(db, i);

		if (tally->lane == JOBQ_NO_LANE)
		{
			see_entry(i, "a tally");
			if (tally_find(db, tally->limiter, tally->key) != i)
				FAULT("tally %u is not found", i);
			ntallies++;
		}
		else if (entry_marks[i] == 0)
			FAULT("entry %u is nowhere", i);
	}
	if (ntallies != ready->ntallies)
		FAULT("there are %u tallies, not %u", ntallies, ready->ntallies);
	for (uint32 i = 0; i < ready->timers.n; i++)
	{
		JobqTally  *tally = TALLY(db, ready->timers.heap[i].index);

		if (tally->lane != JOBQ_NO_LANE || tally->timer != i)
			FAULT("timer %u belongs to another element", i);
		if (i > 0 && ready->timers.heap[(i - 1) / 2].due > ready->timers.heap[i].due)
			FAULT("timer %u is out of order", i);
	}
}

/*
 * Check the lanes below this lane in its heap.  Adds their number, and the number of their
 * entries, to *nlanes and *nentries.
 */
static void
verify_tree(JobqDatabase *db, uint32 heap, uint32 index, uint32 parent,
			uint32 *nlanes, uint32 *nentries)
{
	const JobqNode *nodes = db->ready->nodes;
	const JobqNode *node = &nodes[index];
	const JobqLane *lane = &db->ready->lanes[index];
	int			left = node->left == JOBQ_NONE ? -1 : nodes[node->left].dist;
	int			right = node->right == JOBQ_NONE ? -1 : nodes[node->right].dist;

	if (!lane->in_use || lane->count == 0 || lane->heap != heap ||
		node->parent != parent)
		FAULT("lane %u is not linked well in its heap", index);
	if (left < right || node->dist != right + 1)
		FAULT("the heap of lane %u is out of balance", index);
	if (jobq_key_cmp(node->first, db->ready->entries[lane->head].key) != 0)
		FAULT("lane %u is not placed by its first entry", index);
	++*nlanes;
	*nentries += lane->count;
	if (node->left != JOBQ_NONE)
		verify_tree(db, heap, node->left, index, nlanes, nentries);
	if (node->right != JOBQ_NONE)
		verify_tree(db, heap, node->right, index, nlanes, nentries);
}

/*
 * Each lane is free, or is linked at its queue and role, in its heap, and in the lists that
 * the lane says.
 */
static void
verify_lanes(JobqDatabase *db)
{
	JobqReady  *ready = db->ready;
	uint32		nlanes = 0;
	uint32		nactive = 0;
	uint32		nplaced = 0;
	uint32		nheaped = 0;
	uint32		ngather = 0;

	for (uint32 i = ready->expected; i != JOBQ_NONE; i = ready->lanes[i].expected_next)
		lane_marks[i] |= EXPECTED;
	for (uint32 i = ready->noted; i != JOBQ_NONE; i = ready->lanes[i].noted_next)
		lane_marks[i] |= NOTED;
	for (uint32 i = ready->active_head; i != JOBQ_NONE; i = ready->lanes[i].active_next)
	{
		if (!ready->lanes[i].in_use || ready->lanes[i].count == 0)
			FAULT("lane %u is active, and empty", i);
		if (++nactive > (uint32) jobq_max_lanes)
			FAULT("the active lanes are a circle");
	}
	for (uint32 l = 0; l < (uint32) jobq_max_lanes; l++)
	{
		JobqLane   *lane = &ready->lanes[l];

		if (!lane->in_use)
			continue;
		nlanes++;
		nactive -= lane->count > 0;
		if (lane->expected != ((lane_marks[l] & EXPECTED) != 0) ||
			lane->noted != ((lane_marks[l] & NOTED) != 0))
			FAULT("lane %u is not in the list that it seems to be in", l);
		if ((lane->more || lane->next_due != DT_NOEND) && !lane->expected)
			FAULT("lane %u is not looked at", l);
		if (lane->notify && !lane->noted)
			FAULT("lane %u is not notified", l);
		if (ready->parties[lane->party].owner != (uint32) lane->queue_id ||
			ready->roles[lane->role_index].role != lane->role)
			FAULT("lane %u has another queue or role", l);
		for (int s = 0; s < JOBQ_NLIMITS; s++)
			if (ready->parties[lane->keys[s]].key != lane->needs[s].key)
				FAULT("lane %u has another key at limiter %d", l, s);
		if (lane_gathers(lane))
		{
			if (lane->heap != JOBQ_NONE || lane->count == 0 || jobq_lane_is_closed(db, lane))
				FAULT("lane %u gathers jobs, and is in a heap, empty or closed", l);
			if (ready->gathering.heap[lane->timer].index != l)
				FAULT("the timer of lane %u belongs to another lane", l);
			ngather++;
		}
		if (lane->heap == JOBQ_NONE)
			continue;
		nplaced++;
		if (ready->nodes[l].parent == JOBQ_NONE)
		{
			JobqHeap   *heap = &ready->heaps[lane->heap];
			uint32		nentries = 0;

			if (heap->root != l || heap_find(db, heap) != heap)
				FAULT("heap %u of lane %u is not found", lane->heap, l);
			verify_tree(db, lane->heap, l, JOBQ_NONE, &nheaped, &nentries);
			if (nentries != heap->nentries)
				FAULT("heap %u has %u entries, not %u", lane->heap, nentries,
					  heap->nentries);
		}
	}
	if (nactive != 0)
		FAULT("a lane that is not empty is not active");
	if (ngather != ready->gathering.n)
		FAULT("%u lanes gather jobs, not %u", ngather, ready->gathering.n);
	if (nheaped != nplaced)
		FAULT("the heaps have %u lanes, not %u", nheaped, nplaced);
	for (uint32 i = ready->lane_free; i != JOBQ_NONE; i = ready->lanes[i].hash_next)
		nlanes++;
	if (nlanes != (uint32) jobq_max_lanes)
		FAULT("a lane is neither free nor in use");
}

/*
 * Roles count their lanes and entries.
 */
static void
verify_roles(JobqDatabase *db)
{
	JobqReady  *ready = db->ready;
	uint32		nroles = 0;

	for (uint32 r = ready->roles_head; r != JOBQ_NONE; r = ready->roles[r].next)
	{
		const JobqRole *role = &ready->roles[r];
		uint32		nlanes = 0;
		uint32		nentries = 0;

		for (int l = 0; l < jobq_max_lanes; l++)
			if (ready->lanes[l].in_use && ready->lanes[l].role_index == r)
			{
				nlanes++;
				nentries += ready->lanes[l].count + ready->lanes[l].parked;
			}
		if (nlanes != role->nlanes || nentries != role->nentries)
			FAULT("role %u has %u lanes and %u entries, not %u and %u", role->role,
				  nlanes, nentries, role->nlanes, role->nentries);
		nroles++;
	}
	if (nroles != ready->nroles)
		FAULT("there are %u roles, not %u", nroles, ready->nroles);
}

/*
 * The lists of marked and stuck heaps, and the heaps of each limiter.
 */
static void
verify_heaps(JobqDatabase *db)
{
	JobqReady  *ready = db->ready;
	uint32		before = JOBQ_NONE;

	for (uint32 i = ready->marked; i != JOBQ_NONE; i = ready->heaps[i].marked_next)
	{
		if (!ready->heaps[i].marked || ready->heaps[i].root == JOBQ_NONE ||
			ready->heaps[i].marked_prev != before)
			FAULT("heap %u is not marked, or empty", i);
		before = i;
	}
	before = JOBQ_NONE;
	for (uint32 i = ready->stuck; i != JOBQ_NONE; i = ready->heaps[i].stuck_next)
	{
		if (!ready->heaps[i].stuck || ready->heaps[i].stuck_prev != before)
			FAULT("heap %u is not stuck", i);
		before = i;
	}
	if (ready->stuck_last != before)
		FAULT("heap %u is stuck last, not %u", before, ready->stuck_last);
	for (int l = 0; l < db->limits->nlimiters; l++)
	{
		before = JOBQ_NONE;
		for (uint32 i = ready->limited[l]; i != JOBQ_NONE; i = heap_next_at(db, i, l))
		{
			const JobqHeap *heap = &ready->heaps[i];
			int			s = 0;

			while (s < JOBQ_NLIMITS && heap->limiters[s] != l)
				s++;
			if (s == JOBQ_NLIMITS)
				FAULT("heap %u is in the list of limiter %d, which it has not", i, l);
			if (heap->links[s].prev != before)
				FAULT("heap %u is not linked well at limiter %d", i, l);
			before = i;
		}
	}
}

/*
 * Leases, their bundles, and waiting sessions.
 */
static void
verify_consumers(JobqDatabase *db)
{
	JobqOffers *offers = db->offers;
	uint32		before = JOBQ_NONE;
	uint32		nleases = 0;

	/* not jobq_foreach_lease(), which trusts nleases */
	for (int i = 0; i < jobq_max_leases; i++)
	{
		JobqLease  *lease = &db->leases->leases[i];

		if (lease->state == JOBQ_LEASE_FREE)
			continue;
		nleases++;
		if (jobq_lease_find(db, lease->id) != lease)
			FAULT("the lease of job " INT64_FORMAT " is not found", lease->id);
		if (db->leases->bundles[lease->bundle].outstanding == 0)
			FAULT("the lease of job " INT64_FORMAT " has no bundle", lease->id);
	}
	if (nleases != db->leases->nleases)
		FAULT("there are %u leases, not %u", nleases, db->leases->nleases);
	for (uint32 i = offers->head; i != JOBQ_NONE; i = offers->reservers[i].next)
	{
		if (offers->reservers[i].offered || offers->reservers[i].prev != before)
			FAULT("waiting session %u is not linked well", i);
		before = i;
	}
}

/*
 * Check the ready set.  PANIC if there is a fault.  The caller holds db->lock.
 */
void
ready_verify(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	clear_marks();
	verify_entries(db);
	verify_lanes(db);
	verify_roles(db);
	verify_heaps(db);
	verify_consumers(db);
}

/*
 * Check the ready set if jobq.debug_check_ready says so.  Called for each change of the set.
 */
void
ready_verify_sometimes(JobqDatabase *db)
{
	static int	changes = 0;

	if (jobq_debug_check_ready == 0 || ++changes < jobq_debug_check_ready)
		return;
	changes = 0;
	ready_verify(db);
}

#endif							/* USE_ASSERT_CHECKING */
