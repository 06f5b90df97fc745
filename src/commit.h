/*-------------------------------------------------------------------------
 *
 * commit.h
 *	  What a transaction hands over when it commits.
 *
 * src/commit.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COMMIT_H
#define JOBQ_COMMIT_H

#include "access/xlogdefs.h"

#include "shared.h"

/* src/commit.c */
extern void jobq_install_commit_callbacks(void);
extern void jobq_at_commit_push(const JobqPush *push);
extern void jobq_at_commit_wake(int64 job_id);
extern void jobq_at_commit_rescan(void);
extern void jobq_at_commit_prepared(void);
extern void jobq_at_commit_reload(void);
extern void jobq_at_commit_poke_launcher(void);
extern void jobq_relay(const char *channel, const char *payload,
					   bool by_user);
extern XLogRecPtr jobq_flush(void);
extern bool jobq_replicated(XLogRecPtr lsn);
extern void jobq_flush_before_telling(void);
extern void jobq_relay_now(const char *channel, const char *payload);

#endif							/* JOBQ_COMMIT_H */
