/*-------------------------------------------------------------------------
 *
 * lanes.h
 *	  Lanes and their lists of entries: what ready.c is built on.
 *
 * src/lanes.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_LANES_H
#define JOBQ_LANES_H

#include "shared.h"

typedef enum InsertResult
{
	INSERTED,
	DUPLICATE,
	TOO_FAR,					/* its place is not near an end of the list */
	NO_ENTRY					/* all entries are in use */
} InsertResult;

/* src/lanes.c: all of these want db->lock held exclusively */
extern void entry_unlink(JobqDatabase *db, JobqLane *lane, uint32 index);
extern void entry_relink(JobqDatabase *db, JobqLane *lane, uint32 index);
extern bool entry_evict(JobqDatabase *db, JobqLane *for_lane);
extern void entry_free(JobqDatabase *db, uint32 index);
extern InsertResult entry_insert_after(JobqDatabase *db, JobqLane *lane,
									   uint32 after, const JobqPush *push);
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

#endif							/* JOBQ_LANES_H */
