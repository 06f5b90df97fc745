/*-------------------------------------------------------------------------
 *
 * unique_keys.h
 *	  The rows of jobq_internal.unique_key: for the files that read and write
 *	  them.
 *
 * Not part of the door of this room.
 *
 * src/store/unique_keys.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_STORE_UNIQUE_KEYS_H
#define JOBQ_STORE_UNIQUE_KEYS_H

#include "store/store.h"

/* A value of jobq_internal.unique_key.until: the job does not hold it any more. */
#define UNTIL_WINDOW	'w'

/* Who holds a key. */
typedef struct JobqKeyHolder
{
	ItemPointerData ctid;
	int64		job_id;
	TimestampTz held_until;		/* or DT_NOBEGIN */
	char		until;
	bool		was_locked;		/* since it was written, by this transaction
								 * or one that has ended */
} JobqKeyHolder;

/* src/store/unique_key.c */
extern bool jobq_key_find(Relation keys, const JobqJob *job, Snapshot snapshot,
						  JobqKeyHolder *holder);
extern bool jobq_key_lock(Relation keys, const JobqKeyHolder *holder, bool wait);
extern bool jobq_key_insert(Relation keys, const JobqJob *job,
							TimestampTz held_until, bool wait);
extern void jobq_key_update(Relation keys, JobqKeyHolder *holder,
							const JobqJob *job, char until,
							TimestampTz held_until);

#endif							/* JOBQ_STORE_UNIQUE_KEYS_H */
