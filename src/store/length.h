/*-------------------------------------------------------------------------
 *
 * length.h
 *	  The length of queues that have a limit of it.
 *
 * src/store/length.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_LENGTH_H
#define JOBQ_LENGTH_H

#include "memory/shared.h"

/* has this transaction anything to tell? */
extern int	jobq_length_notes;

extern void jobq_length_reserve(int32 queue_id, int n);
extern void jobq_length_add(int32 queue_id);
extern void jobq_length_remove(int32 queue_id);
extern void jobq_length_commit(JobqDatabase *db);
extern void jobq_length_abort(SubTransactionId since);
extern void jobq_length_prepare(void);
extern void jobq_length_recount(JobqDatabase *db);
extern void jobq_lengths_clear(JobqDatabase *db);

#endif							/* JOBQ_LENGTH_H */
