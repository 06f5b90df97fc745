/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  Books of the directory commit itself, called by commit.c.
 *
 * src/commit/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COMMIT_INNER_H
#define JOBQ_COMMIT_INNER_H

#include "commit/commit.h"

extern const JobqCommitBooks deletion_books;	/* deletion_commit.c */
extern const JobqCommitBooks group_held_books;	/* before permits return */
extern const JobqCommitBooks group_end_books;	/* ... and afterwards */
extern const JobqCommitBooks group_awaited_books;	/* ... and at abort */
extern const JobqCommitBooks lease_books;	/* lease_commit.c */
extern const JobqCommitBooks message_books; /* message.c */
extern const JobqCommitBooks batch_books;	/* batch_commit.c */
extern const JobqCommitBooks outcome_books; /* outcome.c */
extern const JobqCommitBooks failure_books; /* failure_commit.c */

/* src/commit/flush.c */
extern void flush_before_commit(void);

/* src/commit/handover_commit.c */
extern void handover_raise(int64 group);
extern void handover_lower(void);

/* src/commit/waiter.c */
extern bool jobq_anybody_waits(void);
extern void jobq_tell_waiters(Oid dboid, const JobqEnding *ending);

#endif							/* JOBQ_COMMIT_INNER_H */
