/*-------------------------------------------------------------------------
 *
 * lanes.h
 *	  Lanes and their lists of entries: what ready.c is built on.
 *
 * src/ready/lanes.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_LANES_H
#define JOBQ_LANES_H

#include "memory/shared.h"

typedef enum InsertResult
{
	INSERTED,
	DUPLICATE,
	TOO_FAR,					/* its place is not near an end of the list */
	NO_ENTRY					/* all entries are in use */
} InsertResult;

/* src/ready/lanes.c: all of these want db->lock held exclusively */
extern void lane_skip(JobqDatabase *db, JobqLane *lane, JobqKey key);
extern void entry_unlink(JobqDatabase *db, JobqLane *lane, uint32 index);
extern void entry_relink(JobqDatabase *db, JobqLane *lane, uint32 index);
extern bool entry_evict(JobqDatabase *db, JobqLane *for_lane);
extern void entry_free(JobqDatabase *db, uint32 index);
extern InsertResult entry_insert_after(JobqDatabase *db, JobqLane *lane,
									   uint32 after, const JobqPush *push);
extern bool lane_is_only(JobqDatabase *db, JobqLane *lane);
extern void lane_set_flow(JobqDatabase *db, JobqLane *lane,
						  const JobqPush *push);
extern InsertResult entry_insert(JobqDatabase *db, JobqLane *lane,
								 const JobqPush *push);

static inline JobqKey
key_below(JobqKey key)
{
	key.id--;
	return key;
}

/* Where there is no room for more groups, look again so often. */
#define ROOM_PAUSE	(USECS_PER_SEC / 10)

/* src/ready/group.c */
extern void group_advance(JobqDatabase *db, JobqGroup *group,
						  TimestampTz now, JobqWakeList *wake);

/* src/ready/park.c */
extern int	group_compare(int32 priority_a, JobqKey a, int32 priority_b,
						  JobqKey b);
extern int32 group_entry_priority(JobqDatabase *db, uint32 index);
extern bool group_is_next(JobqDatabase *db, const JobqGroup *group, int64 id,
						  int32 priority, JobqKey key);
extern void group_park(JobqDatabase *db, JobqGroup *group, uint32 index);
extern bool group_call(JobqDatabase *db, JobqGroup *group, uint32 *link,
					   TimestampTz now, JobqWakeList *wake);
extern void group_skip(JobqDatabase *db, JobqLane *lane, uint32 index,
					   TimestampTz now, JobqWakeList *wake);

#endif							/* JOBQ_LANES_H */
