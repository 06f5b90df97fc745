/*-------------------------------------------------------------------------
 *
 * tables.h
 *	  The relations of the extension, and access to them.
 *
 * Part of the interface of the directory store.  store.h explains how long cached data is
 * valid.
 *
 * src/store/tables.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_TABLES_H
#define JOBQ_TABLES_H

#include "access/tableam.h"
#include "storage/block.h"

#include "commit/commit.h"

/*
 * The relations of the extension in this database, except indexes: see jobq_index().
 */
typedef struct JobqRelations
{
	Oid			extension;
	Oid			schema;			/* jobq */
	Oid			internal_schema;	/* jobq_internal, for the tables */
	Oid			owner;
	Oid			queue;
	Oid			delegation;
	Oid			handler;
	Oid			job;
	Oid			job_seq;
	Oid			archive;
	Oid			archive_default;
	Oid			dead_letter;
	Oid			unique_key;
	Oid			job_uuid;
	Oid			lease;
	Oid			lease_seq;
	Oid			step;
	Oid			batch;
	Oid			batch_seq;
	Oid			inbox;
	Oid			privilege;
	Oid			event_handler;
	Oid			limiter;
	Oid			held_row;
	Oid			procedure_step;
	Oid			signal;
	Oid			audit;
	Oid			audit_seq;
	Oid			role_type;		/* type jobq_internal.role */
	Oid			context_type;	/* row type jobq.job_context */
	bool		version_fits;	/* the library supports this version */
} JobqRelations;

/* The tables with rows read or written without the executor (tables.c). */
typedef enum JobqTable
{
	JOBQ_QUEUE_TABLE,
	JOBQ_DELEGATION_TABLE,
	JOBQ_HANDLER_TABLE,
	JOBQ_JOB_TABLE,
	JOBQ_UNIQUE_KEY_TABLE,
	JOBQ_JOB_UUID_TABLE,
	JOBQ_LEASE_TABLE,
	JOBQ_ARCHIVE_TABLE,			/* and each of its partitions */
	JOBQ_DEAD_LETTER_TABLE,
	JOBQ_STEP_TABLE,
	JOBQ_PRIVILEGE_TABLE,
	JOBQ_EVENT_HANDLER_TABLE,
	JOBQ_LIMITER_TABLE,
	JOBQ_BATCH_TABLE,
	JOBQ_PROCEDURE_STEP_TABLE,
	JOBQ_SIGNAL_TABLE,
	JOBQ_AUDIT_TABLE,
	JOBQ_NTABLES
} JobqTable;

/* Indexes that are used directly. */
typedef enum JobqIndex
{
	JOBQ_QUEUE_PKEY,
	JOBQ_QUEUE_NAME_KEY,
	JOBQ_QUEUE_MADE_BY,
	JOBQ_DELEGATION_PKEY,
	JOBQ_HANDLER_PKEY,
	JOBQ_JOB_PKEY,
	JOBQ_JOB_READY,
	JOBQ_JOB_GROUP,
	JOBQ_JOB_GROUP_HELD,
	JOBQ_JOB_BATCH,
	JOBQ_UNIQUE_KEY_PKEY,
	JOBQ_JOB_UUID_PKEY,
	JOBQ_LEASE_PKEY,
	JOBQ_DEAD_LETTER_QUEUE,
	JOBQ_PRIVILEGE_PKEY,
	JOBQ_BATCH_PKEY,
	JOBQ_PROCEDURE_STEP_PKEY,
	JOBQ_SIGNAL_PKEY,
	JOBQ_SIGNAL_NEXT,
	JOBQ_NINDEXES
} JobqIndex;

/* Columns of the index job_ready. */
enum
{
	READY_QUEUE_ID = 1,
	READY_PRIORITY,
	READY_ROLE,
	READY_FLOW,
	READY_RUN_AT,
	READY_ID
};

/* src/store/cache.c: for the caches of this directory */
typedef struct JobqCache
{
	/* this relation has changed, or any relation if invalid */
	void		(*changed) (Oid relid);
	/* data read may be uncommitted; or NULL */
	void		(*forget) (void);
	/* the transaction has committed, aborted or was prepared; or NULL */
	void		(*ended) (void);
} JobqCache;

extern void jobq_cache_join(const JobqCache *cache);
extern void jobq_cache_filled(void);
extern void jobq_cache_keep(bool on);
extern bool jobq_cache_keeps(void);

/* src/store/relations.c */
extern const JobqCache jobq_relations_cache;
extern const JobqRelations *jobq_relations(void);
extern const JobqRelations *jobq_relations_if_installed(void);
extern const JobqRelations *jobq_relations_of_any_version(void);
extern Oid	jobq_archive_partition(TimestampTz finished_at);
extern void jobq_pin_queues(void);
extern void jobq_lock_jobs(void);

/* src/store/tables.c */
extern const JobqCache jobq_tables_cache;
extern Relation jobq_open_table(JobqTable table, LOCKMODE mode);
extern void jobq_check_table(Relation rel, JobqTable table);
extern void jobq_check_job_row(TupleDesc desc);
extern Oid	jobq_index(Relation rel, JobqIndex index);
extern Relation jobq_open_index(Relation rel, JobqIndex index);

/* src/store/version.c */
extern bool jobq_version_fits(Oid extension);
extern void jobq_report_version(int elevel, Oid extension);
extern void jobq_refuse_later_version(Oid extension);

/* src/store/query.c: queries as the owner of the extension */
typedef struct JobqRoleState
{
	Oid			userid;			/* before */
	int			sec_context;
} JobqRoleState;

typedef struct JobqOwnerState
{
	Oid			userid;
	int			sec_context;
	int			nestlevel;
} JobqOwnerState;

extern void jobq_become_role(Oid role, JobqRoleState *before);
extern void jobq_unbecome_role(const JobqRoleState *before);
extern void jobq_become_owner(JobqOwnerState *state);
extern void jobq_unbecome_owner(JobqOwnerState *state);
extern uint64 jobq_query(const char *query, int nargs, const Oid *types,
						 const Datum *values, const char *nulls,
						 int expected);
extern Datum jobq_int8_array(const Datum *values, int n);
struct _SPI_plan;
extern uint64 jobq_query_latest(const char *query, int nargs, const Oid *types,
								const Datum *values, int expected);
extern uint64 jobq_query_kept(struct _SPI_plan **plan, const char *query,
							  int nargs, const Oid *types,
							  const Datum *values, const char *nulls,
							  int expected);

/* src/store/insert.c */
extern const JobqCache jobq_indexes_cache;
extern ItemPointerData jobq_insert_row(Relation rel, Datum *values, bool *nulls);
extern void jobq_insert_tuples(Relation rel, HeapTuple *tuples, int ntuples);
extern bool jobq_insert_unless_there(Relation rel, HeapTuple tuple);
extern void jobq_insert_entries(Relation rel, HeapTuple *tuples, int ntuples);
extern TM_Result jobq_lock_row(Relation rel, const ItemPointerData *ctid,
							   LockWaitPolicy policy);
extern void jobq_update_row(Relation rel, ItemPointer ctid, HeapTuple tuple);

#endif							/* JOBQ_TABLES_H */
