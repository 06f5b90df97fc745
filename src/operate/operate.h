/*-------------------------------------------------------------------------
 *
 * operate.h
 *	  The door of the room operate: looking at jobs and queues, and acting on them.
 *
 * Status, waiting, cancelling, retrying, queues as a whole, views.  Each of these is
 * a SQL function; other rooms need one of them only.
 *
 * What it promises: whoever is told that a job is done is told after the commit is
 * flushed and, with synchronous standbys, replicated.  Nobody sees or touches a job
 * of a role whose privileges he does not have.
 *
 * Locks: those of the rooms below; a transaction that has dropped a queue
 * locks jobq_internal.queue exclusively when it is about to commit.
 *
 * src/operate/operate.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_OPERATE_H
#define JOBQ_OPERATE_H

#include "compose/compose.h"

/* src/operate/operate.c */
extern bool jobq_ask_to_stop(int64 id);
extern bool jobq_take_from_consumer(Relation rel, int64 id, const char *reason);
extern bool jobq_cancel_owed(Relation rel, int64 id, bool *over);

/* src/operate/leaver.c */
extern void jobq_warn_of_leaver(Oid role, const char *name);

/* src/operate/drop_queue.c */
extern void jobq_drop_queue_install(void);

#endif							/* JOBQ_OPERATE_H */
