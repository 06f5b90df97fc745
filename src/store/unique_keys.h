/*-------------------------------------------------------------------------
 *
 * unique_keys.h
 *	  Rows of jobq_internal.unique_key and jobq_internal.job_uuid, for internal use.
 *
 * Internal to the directory store.
 *
 * src/store/unique_keys.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_STORE_UNIQUE_KEYS_H
#define JOBQ_STORE_UNIQUE_KEYS_H

#include "store/store.h"

/*
 * Value of jobq_internal.unique_key.until: the job no longer holds the key, but its window is
 * open.
 */
#define UNTIL_WINDOW	'w'

/* The holder of a key. */
typedef struct JobqKeyHolder
{
	ItemPointerData ctid;
	int64		job_id;
	TimestampTz held_until;		/* or DT_NOBEGIN */
	char		until;
	bool		was_locked;		/* by this or an ended transaction */
} JobqKeyHolder;

/* src/store/unique_key.c */
extern bool jobq_key_find(Relation keys, const JobqJob *job, Snapshot snapshot,
						  JobqKeyHolder *holder);
extern bool jobq_key_lock(Relation keys, const JobqKeyHolder *holder, bool wait);
extern void jobq_key_wait(Relation keys, const SnapshotData *dirty, ItemPointer ctid);
extern bool jobq_key_insert(Relation keys, const JobqJob *job,
							TimestampTz held_until, bool wait);
extern void jobq_key_update(Relation keys, JobqKeyHolder *holder,
							const JobqJob *job, char until,
							TimestampTz held_until);

/* src/store/unique_prune.c */
extern void jobq_keys_delete_found(Relation keys);

#endif							/* JOBQ_STORE_UNIQUE_KEYS_H */
