/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Differences between server versions.
 *
 * A wrapper has the meaning of the newest version.  No other file of jobq uses PG_VERSION_NUM.
 *
 * src/base/compat.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COMPAT_H
#define JOBQ_COMPAT_H

#if PG_VERSION_NUM < 150000
#error "jobq requires PostgreSQL 15 or later"
#endif

#include "access/genam.h"
#include "access/heapam.h"
#include "catalog/pg_database.h"
#include "catalog/pg_proc.h"
#include "catalog/storage.h"
#include "commands/dbcommands.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/bgworker_internals.h"
#include "replication/message.h"
#include "storage/proc.h"
#include "utils/acl.h"

/* 19: no longer included by funcapi.h and dbcommands.h. */
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

/* 16 (858e776c84f): errors can be returned. */
#if PG_VERSION_NUM >= 160000
#define jobq_name_list(text) stringToQualifiedNameList(text, NULL)
#else
#define jobq_name_list(text) stringToQualifiedNameList(text)
#endif

/* 16 (c727f511bd6): a single function checks the privileges on any object. */
#if PG_VERSION_NUM >= 160000
#define jobq_proc_aclcheck(procoid, roleid, mode) \
	object_aclcheck(ProcedureRelationId, procoid, roleid, mode)
#else
#define jobq_proc_aclcheck(procoid, roleid, mode) \
	pg_proc_aclcheck(procoid, roleid, mode)
#endif

#if PG_VERSION_NUM >= 160000
#define jobq_database_aclcheck(dboid, roleid, mode) \
	object_aclcheck(DatabaseRelationId, dboid, roleid, mode)
#else
#define jobq_database_aclcheck(dboid, roleid, mode) \
	pg_database_aclcheck(dboid, roleid, mode)
#endif

#if PG_VERSION_NUM >= 160000
#define jobq_owns_database(dboid) \
	object_ownercheck(DatabaseRelationId, dboid, GetUserId())
#else
#define jobq_owns_database(dboid) pg_database_ownercheck(dboid, GetUserId())
#endif

/* 16 (3d14e171e9e): a membership has an option for SET ROLE. */
#if PG_VERSION_NUM >= 160000
#define jobq_can_set_role(member, role) member_can_set_role(member, role)
#else
#define jobq_can_set_role(member, role) is_member_of_role(member, role)
#endif

/* 16: modules are built with hidden visibility, and _PG_init is declared there. */
#if PG_VERSION_NUM < 160000
extern PGDLLEXPORT void _PG_init(void);
#endif

/* 16 (407b50f2d42): the extra data of a setting lives in a memory context. */
#if PG_VERSION_NUM >= 160000
#define jobq_guc_malloc(size) guc_malloc(LOG, size)
#else
#define jobq_guc_malloc(size) malloc(size)
#endif

/*
 * 16 (19d8e2308bc): returns which indexes an update concerns.  HeapTupleIsHeapOnly() is used
 * instead.
 */
static inline void
jobq_heap_update(Relation rel, ItemPointer tid, HeapTuple tuple)
{
#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes unused;

	simple_heap_update(rel, tid, tuple, &unused);
#else
	simple_heap_update(rel, tid, tuple);
#endif
}

/* 17 (c9af054653077): custom wait events. */
#if PG_VERSION_NUM >= 170000
#include "utils/wait_event.h"
#define jobq_wait_event(cache, name) \
	((cache) != 0 ? (cache) : ((cache) = WaitEventExtensionNew(name)))
#else
#define jobq_wait_event(cache, name) ((void) (cache), PG_WAIT_EXTENSION)
#endif

/* 17 (173b56f1ef5): a logical message can be flushed at once. */
static inline XLogRecPtr
jobq_log_message(void)
{
#if PG_VERSION_NUM >= 170000
	return LogLogicalMessage("jobq", "", 0, false, false);
#else
	return LogLogicalMessage("jobq", "", 0, false);
#endif
}

/* 17: an asynchronous commit wakes the WAL writer only if there is much to flush. */
#if PG_VERSION_NUM >= 170000
#define jobq_walwriter_latch() ((Latch *) NULL)
#else
#define jobq_walwriter_latch() (ProcGlobal->walwriterLatch)
#endif

/* Does the commit delete files?  16 (b0a55e43299): other names of files. */
static inline bool
jobq_commit_deletes_files(void)
{
#if PG_VERSION_NUM >= 160000
	RelFileLocator *files;
#else
	RelFileNode *files;
#endif

	return smgrGetPendingDeletes(true, &files) > 0;
}

/* 17 (e7689190b3d): background workers can connect as roles without LOGIN. */
#if PG_VERSION_NUM >= 170000
#define JOBQ_CONNECT_FLAGS	BGWORKER_BYPASS_ROLELOGINCHECK
#define JOBQ_NOLOGIN_WORKS	true
#else
#define JOBQ_CONNECT_FLAGS	0
#define JOBQ_NOLOGIN_WORKS	false
#endif

/* 17 (c1ec02be1d7): index_insert_cleanup() frees what an index keeps between inserts. */
#if PG_VERSION_NUM >= 170000
#define jobq_index_insert_cleanup(index, info) index_insert_cleanup(index, info)
#else
#define jobq_index_insert_cleanup(index, info)	((void) 0)
#endif

/* 17 (51efe38cb92): transaction_timeout. */
#if PG_VERSION_NUM >= 170000
#define JOBQ_HAS_TRANSACTION_TIMEOUT	true
#else
#define JOBQ_HAS_TRANSACTION_TIMEOUT	false
#endif

/*
 * 17 (d86d20f0ba79): injection points, at which a test can make a process wait.  Not allowed
 * while a lock is held, or where nothing may fail.
 */
#if PG_VERSION_NUM >= 180000
#include "utils/injection_point.h"
#define jobq_injection_point(name)	INJECTION_POINT(name, NULL)
#elif PG_VERSION_NUM >= 170000
#include "utils/injection_point.h"
#define jobq_injection_point(name)	INJECTION_POINT(name)
#else
#define jobq_injection_point(name)	((void) (name))
#endif

/* 18 (9324c8c580): modules have a name and a version. */
#if PG_VERSION_NUM >= 180000
#define JOBQ_MODULE_MAGIC(n, v) PG_MODULE_MAGIC_EXT(.name = (n), .version = (v))
#else
#define JOBQ_MODULE_MAGIC(n, v) PG_MODULE_MAGIC
#endif

/*
 * 18 (a379061a22a): a NOT NULL column may contain nulls if the constraint is NOT VALID.  desc
 * must be the relation's own descriptor.
 */
#if PG_VERSION_NUM >= 180000
#define jobq_has_no_nulls(desc, i) \
	(TupleDescCompactAttr(desc, i)->attnullability == ATTNULLABLE_VALID)
#else
#define jobq_has_no_nulls(desc, i)	(TupleDescAttr(desc, i)->attnotnull)
#endif

/*
 * Before 18 (0dca5d68d7b), an SQL function keeps the plans of its last call for the next call
 * in the transaction, even if objects have changed.  The caller must discard the plans.
 */
#if PG_VERSION_NUM >= 180000
#define JOBQ_SQL_FUNCTION_PLANS_ANEW	true
#else
#define JOBQ_SQL_FUNCTION_PLANS_ANEW	false
#endif

/* 18 (0fbceae8414): index scans can be instrumented. */
#if PG_VERSION_NUM >= 190000
#define jobq_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0, 0)
#elif PG_VERSION_NUM >= 180000
#define jobq_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#else
#define jobq_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, nkeys, 0)
#endif

/*
 * 18 (e84b8d4aa57): the postmaster's list of background workers is doubly linked.  Return the
 * process that requested background worker pid and is notified of its end, or 0.  Called in
 * the postmaster.
 */
static inline int
jobq_bgworker_starter(int pid)
{
#if PG_VERSION_NUM >= 180000
	dlist_iter	iter;

	dlist_foreach(iter, &BackgroundWorkerList)
	{
		RegisteredBgWorker *rw = dlist_container(RegisteredBgWorker, rw_lnode, iter.cur);
#else
	slist_iter	iter;

	slist_foreach(iter, &BackgroundWorkerList)
	{
		RegisteredBgWorker *rw = slist_container(RegisteredBgWorker, rw_lnode, iter.cur);
#endif
		if (rw->rw_pid == pid)
			return rw->rw_worker.bgw_notify_pid;
	}
	return 0;
}

/*
 * 18 (83ea6c54025): virtual generated columns, which are null in rows passed to triggers.
 * jobq_virtual_expression() returns the expression of column n of the relation.
 */
#if PG_VERSION_NUM >= 180000
#include "rewrite/rewriteHandler.h"
#define jobq_is_virtual(att) \
	((att)->attgenerated == ATTRIBUTE_GENERATED_VIRTUAL)
#define jobq_virtual_expression(rel, n) build_generation_expression(rel, n)
#else
#define jobq_is_virtual(att)	false
#define jobq_virtual_expression(rel, n)	NULL
#endif

/* 18 (d4c3a6b8ad2): noreturn comes first. */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/* 19: a table scan has options. */
#if PG_VERSION_NUM >= 190000
#define jobq_table_beginscan(rel, snapshot) \
	table_beginscan(rel, snapshot, 0, NULL, SO_NONE)
#else
#define jobq_table_beginscan(rel, snapshot) \
	table_beginscan(rel, snapshot, 0, NULL)
#endif

/* 19: a signal handler gets the sender of the signal.  For use in a signal handler. */
#if PG_VERSION_NUM >= 190000
#define jobq_cancel_statement() \
	StatementCancelHandler(postgres_signal_arg, pg_siginfo)
#else
#define jobq_cancel_statement()	StatementCancelHandler(postgres_signal_arg)
#endif

/* 18 (a5c40b156e): PortalRun() has no argument run_once. */
#if PG_VERSION_NUM >= 180000
#define jobq_portal_run(portal, dest, qc) \
	PortalRun(portal, FETCH_ALL, true, dest, dest, qc)
#else
#define jobq_portal_run(portal, dest, qc) \
	PortalRun(portal, FETCH_ALL, true, true, dest, dest, qc)
#endif

/* 19: heap_delete() has options and no changingPart. */
static inline TM_Result
jobq_heap_delete(Relation rel, ItemPointer tid, CommandId cid, bool wait,
				 TM_FailureData *tmfd)
{
#if PG_VERSION_NUM >= 190000
	return heap_delete(rel, tid, cid, 0, InvalidSnapshot, wait, tmfd);
#else
	return heap_delete(rel, tid, cid, InvalidSnapshot, wait, tmfd, false);
#endif
}

/* 19 (f1e251be80): workers that exit by themselves before DROP DATABASE. */
#if PG_VERSION_NUM >= 190000
#define JOBQ_WORKER_FLAGS	(BGWORKER_SHMEM_ACCESS | \
							 BGWORKER_BACKEND_DATABASE_CONNECTION | \
							 BGWORKER_INTERRUPTIBLE)
#else
#define JOBQ_WORKER_FLAGS	(BGWORKER_SHMEM_ACCESS | \
							 BGWORKER_BACKEND_DATABASE_CONNECTION)
#endif

/*
 * 17 (024c52111757): a process is identified by its index, not by a "backend id".  True if a
 * transaction holds a lock that conflicts with this lock.  *pid is then the process of the
 * transaction, or 0 if it is prepared.
 */
#if PG_VERSION_NUM >= 170000
#include "storage/procarray.h"
#else
#include "storage/sinvaladt.h"
#endif
static inline bool
jobq_lock_holder(const LOCKTAG *tag, LOCKMODE mode, int *pid)
{
	VirtualTransactionId *holder = GetLockConflicts(tag, mode, NULL);
	PGPROC	   *proc = NULL;

	if (!VirtualTransactionIdIsValid(*holder))
		return false;

	/* a prepared transaction keeps the virtual id of its process */
#if PG_VERSION_NUM >= 170000
	if (!VirtualTransactionIdIsRecoveredPreparedXact(*holder))
		proc = ProcNumberGetProc(holder->procNumber);
	if (proc != NULL && proc->vxid.lxid != holder->localTransactionId)
		proc = NULL;
#else
	if (!VirtualTransactionIdIsRecoveredPreparedXact(*holder))
		proc = BackendIdGetProc(holder->backendId);
	if (proc != NULL && proc->lxid != holder->localTransactionId)
		proc = NULL;
#endif
	*pid = proc == NULL ? 0 : proc->pid;
	return true;
}

/* 19: the state of a jsonb value under construction contains the result. */
#if PG_VERSION_NUM >= 190000
#include "utils/jsonb.h"
#define JsonbParseState JsonbInState

static inline JsonbValue *
jobq_push_jsonb(JsonbInState **state, JsonbIteratorToken token, JsonbValue *value)
{
	if (*state == NULL)
		*state = palloc0(sizeof(JsonbInState));
	pushJsonbValue(*state, token, value);
	return (*state)->result;
}
#define pushJsonbValue(state, token, value) jobq_push_jsonb(state, token, value)
#endif

/* 19: CLUSTER is a form of REPACK. */
#if PG_VERSION_NUM >= 190000
#define T_ClusterStmt T_RepackStmt
#define ClusterStmt RepackStmt
#endif

/* 19: a descriptor built column by column must be finished. */
#if PG_VERSION_NUM < 190000
#define TupleDescFinalize(desc) ((void) 0)
#endif

#endif							/* JOBQ_COMPAT_H */
