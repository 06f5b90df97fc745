/*-------------------------------------------------------------------------
 *
 * commit.h
 *	  What a transaction hands over when it commits.
 *
 * src/commit/commit.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COMMIT_H
#define JOBQ_COMMIT_H

#include "access/xlogdefs.h"

#include "memory/shared.h"

/*
 * What becomes of a lease at the end of the transaction.
 */
typedef enum LeaseAction
{
	LEASE_TAKE,					/* commit: it holds; abort: back to the queue */
	LEASE_END,					/* commit: it is over, and so is the job */
	LEASE_RETRY,				/* commit: it is over, the job runs again */
	LEASE_BACK,					/* commit: over, the job goes back to the
								 * queue */
	LEASE_EXTEND,				/* commit: another end, named by the bundle */
	LEASE_BUNDLE,				/* the reference of the bundle's maker */
} LeaseAction;

/* src/commit/commit.c */
extern void jobq_install_commit_callbacks(void);
extern void jobq_at_commit_push(const JobqPush *push);
extern void jobq_at_abort_push(const JobqPush *push);
extern void jobq_at_commit_wake(int64 job_id);
extern void jobq_at_commit_group_end(int64 group, int64 job_id);
extern void jobq_at_commit_failed(int32 queue_id, uint32 kind, int64 group);
extern void jobq_at_commit_rescan(void);
extern void jobq_at_commit_prepared(void);
extern void jobq_at_commit_reload(void);
extern void jobq_at_commit_schedules(void);
extern void jobq_at_commit_created(Oid job);

/* src/commit/lease_commit.c */
extern int	jobq_lease_notes;
extern void jobq_lease_room(int n);
extern bool jobq_lease_is_ended(int64 id);
extern void jobq_at_commit_bundle(JobqDatabase *db, uint32 bundle);
extern void jobq_at_commit_lease(LeaseAction action, int64 id, int64 token,
								 uint32 bundle, TimestampTz until);
extern void jobq_leases_commit(JobqDatabase *db, TimestampTz now,
							   JobqWakeList *wake);
extern void jobq_leases_abort(SubTransactionId since);
extern void jobq_leases_check_prepare(void);

/* src/commit/batch_commit.c */
extern int	jobq_batch_notes;
extern void jobq_at_commit_batch(int64 batch_id, int64 job_id, bool failed);
extern JobqBatchWatch *jobq_batch_watch(JobqDatabase *db, int64 batch_id);
extern bool jobq_batches_ended(JobqDatabase *db);
extern void jobq_batches_commit(JobqDatabase *db, JobqWakeList *wake);
extern void jobq_batches_abort(SubTransactionId since);

/* src/commit/message.c */
extern int	jobq_message_notes;
extern void jobq_relay(const char *channel, const char *payload,
					   bool by_user);
extern void jobq_relay_now(const char *channel, const char *payload);
extern void jobq_messages_commit(JobqDatabase *db, TimestampTz now,
								 JobqWakeList *wake);
extern void jobq_messages_abort_sub(SubTransactionId since);
extern void jobq_messages_forget(void);
extern void jobq_messages_check_prepare(void);

/* src/commit/flush.c */
extern XLogRecPtr jobq_flush(void);
extern bool jobq_replicated(XLogRecPtr lsn);
extern void jobq_flush_before_telling(void);
extern void jobq_commit_quietly(void);

#endif							/* JOBQ_COMMIT_H */
