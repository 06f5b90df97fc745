/*-------------------------------------------------------------------------
 *
 * new_queue.c
 *	  Creation of queues: by create_queue(), or by first use.
 *
 * A producer may create a queue by using its name, without a privilege to create queues.
 * These queues are counted for the role, and their number is limited.
 *
 * src/store/new_queue.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/subtrans.h"
#include "access/table.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "store/store.h"

/* Milliseconds to wait for another transaction creating the queue. */
#define CREATE_TIMEOUT	5000

/*
 * Return the transaction creating a queue with this name, or InvalidTransactionId.
 */
static TransactionId
creator_of(const char *name)
{
	Relation	rel = jobq_open_table(JOBQ_QUEUE_TABLE, AccessShareLock);
	SnapshotData dirty;
	ScanKeyData key;
	SysScanDesc scan;
	TransactionId xid = InvalidTransactionId;

	InitDirtySnapshot(dirty);
	ScanKeyEntryInitialize(&key, 0, QUEUE_NAME, BTEqualStrategyNumber,
						   InvalidOid, C_COLLATION_OID, F_TEXTEQ,
						   CStringGetTextDatum(name));
	scan = systable_beginscan(rel, jobq_index(rel, JOBQ_QUEUE_NAME_KEY), true,
							  &dirty, 1, &key);
	if (HeapTupleIsValid(systable_getnext(scan)) &&
		TransactionIdIsValid(dirty.xmin))
		xid = SubTransGetTopmostTransaction(dirty.xmin);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return xid;
}

/*
 * Insert the queue's row.  If another transaction (creator) is inserting the row, wait for its
 * end, but at most CREATE_TIMEOUT, because the transaction may stay open for ever.  Returns
 * false if the other transaction has created the queue.
 */
static bool
insert_row(const char *name, const char *mode, bool open, const char *made_by,
		   TransactionId creator)
{
	static const Oid types[] = {TEXTOID, TEXTOID, BOOLOID, TEXTOID};
	Datum		values[] = {
		CStringGetTextDatum(name), CStringGetTextDatum(mode),
		BoolGetDatum(open),
		made_by == NULL ? (Datum) 0 : CStringGetTextDatum(made_by)
	};
	const char *nulls = made_by == NULL ? "   n" : NULL;
	MemoryContext caller = CurrentMemoryContext;
	int			nestlevel = NewGUCNestLevel();
	volatile bool inserted = false;

	if (LockTimeout == 0 || LockTimeout > CREATE_TIMEOUT)
		(void) set_config_option("lock_timeout", CppAsString2(CREATE_TIMEOUT),
								 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
								 true, 0, false);
	jobq_cache_keep(true);
	PG_TRY();
	{
		inserted =
			jobq_query("INSERT INTO jobq_internal.queue (name, mode, open, made_by) VALUES ($1, $2, $3, $4)"
					   " ON CONFLICT (name) DO NOTHING",
					   4, types, values, nulls, SPI_OK_INSERT) > 0;
	}
	PG_CATCH();
	{
		int			pid = TransactionIdIsValid(creator)
			? BackendXidGetPid(creator) : 0;

		jobq_cache_keep(false);
		MemoryContextSwitchTo(caller);
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("queue \"%s\" is being created by another transaction",
						name),
				 pid != 0
				 ? errdetail("It is one of process %d, and is open.", pid)
				 : errdetail("It is open, or was prepared."),
				 errhint("Try again when it has ended. The views pg_stat_activity and pg_prepared_xacts show since when it has been open.")));
	}
	PG_END_TRY();
	jobq_cache_keep(false);
	AtEOXact_GUC(false, nestlevel);
	return inserted;
}

/*
 * Create a queue with default settings.  mode: or NULL for the default.  open: whether the
 * queue is open to all producers.  made_by: the role for which the queue is counted, or NULL.
 * Returns false if the name exists.  Waits for another transaction creating the same queue, at
 * most CREATE_TIMEOUT milliseconds.  ERROR after this time, or if the name is invalid.
 */
bool
jobq_insert_queue(const char *name, const char *mode, bool open,
				  const char *made_by)
{
	bool		inserted;

	if (name[0] == '\0' || strlen(name) > JOBQ_MAX_QUEUE_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("queue name \"%s\" must have 1 to %d bytes", name,
						JOBQ_MAX_QUEUE_NAME)));
	if (strcmp(name, "*") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no queue can be named \"*\""),
				 errhint("It stands for all queues.")));

	SPI_connect();
	/* rows inserted by replication have not advanced the sequence */
	jobq_query("SELECT pg_catalog.setval('jobq_internal.queue_id_seq', max(id)) FROM jobq_internal.queue"
			   " HAVING max(id) > (SELECT last_value FROM jobq_internal.queue_id_seq)",
			   0, NULL, NULL, NULL, SPI_OK_SELECT);
	inserted = insert_row(name, mode != NULL ? mode : "worker", open, made_by,
						  creator_of(name));
	SPI_finish();
	return inserted;
}

/*
 * Return how many queues the role has created by first use, including those of open
 * transactions.
 */
static int
queues_made_by(const char *role)
{
	Relation	rel = jobq_open_table(JOBQ_QUEUE_TABLE, AccessShareLock);
	SnapshotData dirty;
	ScanKeyData key;
	SysScanDesc scan;
	int			n = 0;

	InitDirtySnapshot(dirty);
	ScanKeyEntryInitialize(&key, 0, QUEUE_MADE_BY, BTEqualStrategyNumber,
						   InvalidOid, C_COLLATION_OID, F_TEXTEQ,
						   CStringGetTextDatum(role));
	scan = systable_beginscan(rel, jobq_index(rel, JOBQ_QUEUE_MADE_BY), true,
							  &dirty, 1, &key);
	while (HeapTupleIsValid(systable_getnext(scan)))
		n++;
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return n;
}

/*
 * Return the role for which a queue created by first use is counted.  Returns NULL for the
 * queue "default", and if the user may create queues.  ERROR if the role has created too many
 * queues.
 */
static const char *
who_makes(const char *name)
{
	const char *role;
	int			n;

	if (strcmp(name, "default") == 0 ||
		(jobq_privileges(0) & JOBQ_MAY_MANAGE) != 0)
		return NULL;
	role = GetUserNameFromId(GetUserId(), false);
	n = jobq_max_queues_per_role == 0 ? -1 : queues_made_by(role);
	if (n >= jobq_max_queues_per_role)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("role \"%s\" has made too many queues", role),
				 errdetail("Queue \"%s\" does not exist. The role has made %d by using them first, and \"%s\" is %d.",
						   name, n, "jobq.max_queues_per_role",
						   jobq_max_queues_per_role),
				 errhint("Use a queue that there is, or have it created by jobq.create_queue(). What tells jobs of a kind apart can be their tenant or group.")));
	return role;
}

/*
 * Create a queue because of its first use.  The queue is open to all producers.  ERROR if
 * jobq.create_queues forbids it.  The queue "default" is always allowed.
 */
void
jobq_create_used_queue(const char *name)
{
	jobq_require_all(JOBQ_MAY_ALL, "create a queue");
	if (jobq_create_queues == CREATE_QUEUES_OFF && strcmp(name, "default") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("queue \"%s\" does not exist", name),
				 errhint("Create it with jobq.create_queue(), or set \"%s\" to worker or consumer.",
						 "jobq.create_queues")));
	(void) jobq_insert_queue(name,
							 jobq_create_queues == CREATE_QUEUES_CONSUMER
							 ? "consumer" : "worker", true, who_makes(name));
}
