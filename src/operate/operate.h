/*-------------------------------------------------------------------------
 *
 * operate.h
 *	  Interface of the directory operate: inspecting jobs and queues, and acting on both.
 *
 * Each operation is a SQL function: status, waiting, cancellation, retries, operations on
 * whole queues, and the functions behind the views.  Other directories need only the
 * functions declared here.
 *
 * Guarantees: no caller learns that a job is done before the commit is flushed and, with
 * synchronous standbys, replicated.  No caller sees or changes a job of a role without the
 * role's privileges, or a jobq privilege for the queue.
 *
 * Locks: only locks of the lower directories, with one exception.  A transaction with a
 * dropped queue locks jobq_internal.queue in exclusive mode immediately before the commit.
 *
 * src/operate/operate.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_OPERATE_H
#define JOBQ_OPERATE_H

#include "compose/compose.h"

/* src/operate/revive.c */
extern void jobq_row_of_job(Oid *role, int32 *queue_id);
extern void jobq_no_such_job(int64 id);
extern void jobq_refuse_to_see_only(int privilege, int64 id, Oid role,
									int32 queue_id);

/* src/operate/operate.c */
extern bool jobq_find_for(int privilege, Relation rel, int64 id,
						  bool refuse, JobqJob *job);
extern bool jobq_cancel_owed(Relation rel, int64 id, bool *over);

/* src/operate/uuid.c */
extern int64 jobq_id_of_uuid(Datum uuid);
extern int64 jobq_id_of_text(const text *job);

/* src/operate/leaver.c */
extern void jobq_warn_of_leaver(Oid role, const char *name);

/* src/operate/drop_queue.c */
extern void jobq_drop_queue_install(void);

#endif							/* JOBQ_OPERATE_H */
