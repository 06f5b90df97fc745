/*-------------------------------------------------------------------------
 *
 * catalog.c
 *	  Finds jobq's own tables, and caches queues per backend; kinds.c does the
 *	  same for handlers.
 *
 * The caches are dropped when a relcache invalidation names the table: each
 * of jobq.queue and jobq.handler has a statement trigger that sends one (see
 * control/tables.sql).  Handlers are resolved again, too, when any function
 * changes.  Rows read in a transaction that aborts may never have been
 * committed, so an abort drops what was read since its beginning.  What is read
 * while a message arrives may be outdated before it is remembered: so it is not.
 *
 * Reads are direct scans: they need no privilege of the current user.
 *
 * src/store/catalog.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/jobq.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "commit/commit.h"
#include "store/row.h"

PG_FUNCTION_INFO_V1(jobq_invalidate);

/* A partition of the archive: one day of finished_at. */
typedef struct Partition
{
	int64		day;
	Oid			relid;
} Partition;

BlockNumber jobq_job_blocks = 0;

static JobqRelations relations;
static bool relations_valid = false;
static Partition partition = {0};

static HTAB *queues_by_id = NULL;
static const JobqQueue *last_queue = NULL;
bool		jobq_read_in_transaction = false;

/* how often a message, or an abort, may have emptied a cache of this file */
static uint64 changes = 0;

static void relcache_callback(Datum arg, Oid relid);
static Oid	relation_named(Oid schema, const char *name);
static void forget_queues(void);
static void queue_from_tuple(HeapTuple tuple, TupleDesc desc, JobqQueue *queue);
static void remember_queue(const JobqQueue *queue);
static bool read_queue(const char *name, int32 id, JobqQueue *queue);
static void create_queue(const char *name);

/*
 * The relations of the extension, or NULL if it is not installed here.
 *
 * Needs a transaction.
 */
const JobqRelations *
jobq_relations_if_installed(void)
{
	static bool registered = false;
	JobqRelations found = {0};
	uint64		before;

	if (relations_valid)
		return &relations;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(relcache_callback, (Datum) 0);
		CacheRegisterSyscacheCallback(PROCOID, jobq_function_changed, (Datum) 0);
		registered = true;
	}

	before = changes;
	found.extension = get_extension_oid("jobq", true);
	found.schema = get_namespace_oid(JOBQ_SCHEMA, true);
	if (!OidIsValid(found.extension) || !OidIsValid(found.schema))
		return NULL;

	/* tables of that name that are not the extension's are none of ours */
	found.job = relation_named(found.schema, "job");
	if (!OidIsValid(found.job) ||
		getExtensionOfObject(RelationRelationId, found.job) !=
		found.extension)
		return NULL;

	found.queue = relation_named(found.schema, "queue");
	found.queue_pkey = relation_named(found.schema, "queue_pkey");
	found.queue_name_key = relation_named(found.schema, "queue_name_key");
	found.handler = relation_named(found.schema, "handler");
	found.handler_pkey = relation_named(found.schema, "handler_pkey");
	found.job_pkey = relation_named(found.schema, "job_pkey");
	found.job_ready = relation_named(found.schema, "job_ready");
	found.job_group = relation_named(found.schema, "job_group");
	found.job_batch = relation_named(found.schema, "job_batch");
	found.job_seq = relation_named(found.schema, "job_id_seq");
	found.archive = relation_named(found.schema, "archive");
	found.archive_default = relation_named(found.schema, "archive_default");
	found.failed = relation_named(found.schema, "failed_job");
	found.failed_pkey = relation_named(found.schema, "failed_job_pkey");
	found.unique_key = relation_named(found.schema, "unique_key");
	found.unique_key_pkey = relation_named(found.schema, "unique_key_pkey");
	found.lease = relation_named(found.schema, "lease");
	found.lease_seq = relation_named(found.schema, "lease_token_seq");
	found.step = relation_named(found.schema, "step");
	found.batch = relation_named(found.schema, "batch");
	found.batch_seq = relation_named(found.schema, "batch_id_seq");
	found.inbox = relation_named(found.schema, "inbox");
	found.context_type =
		GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid,
						CStringGetDatum("job_context"),
						ObjectIdGetDatum(found.schema));
	{
		HeapTuple	tuple = SearchSysCache1(RELOID,
											ObjectIdGetDatum(found.job));

		if (!HeapTupleIsValid(tuple))
			return NULL;
		found.owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
		ReleaseSysCache(tuple);
	}
	relations = found;
	relations_valid = changes == before;
	jobq_read_in_transaction = true;
	return &relations;
}

/*
 * The relations of the extension; an error if it is not installed here.
 */
const JobqRelations *
jobq_relations(void)
{
	const JobqRelations *rels = jobq_relations_if_installed();

	if (rels == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"jobq\" is not installed in database \"%s\"",
						get_database_name(MyDatabaseId)),
				 errhint("Run CREATE EXTENSION jobq.")));
	return rels;
}

static Oid
relation_named(Oid schema, const char *name)
{
	return get_relname_relid(name, schema);
}

static void
relcache_callback(Datum arg, Oid relid)
{
	changes++;
	if (relid == InvalidOid || relid == relations.job)
		jobq_job_blocks = 0;	/* it may have been truncated */
	if (relid == InvalidOid || relid == relations.job ||
		relid == relations.archive || relid == relations.failed)
		relations_valid = false;
	if (relid == InvalidOid || relid == partition.relid ||
		relid == relations.archive || relid == relations.archive_default)
		partition.relid = InvalidOid;
	jobq_forget_indexes();
	if (relid == InvalidOid || relid == relations.queue)
		forget_queues();
	if (relid == InvalidOid || relid == relations.handler)
		jobq_forget_handlers();
}

static void
forget_queues(void)
{
	changes++;
	if (queues_by_id != NULL)
		hash_destroy(queues_by_id);
	queues_by_id = NULL;
	last_queue = NULL;
}

/*
 * A (sub)transaction aborted: what was read in it may be wrong.
 */
void
jobq_forget_uncommitted(void)
{
	if (GetCurrentTransactionNestLevel() <= 1)
		jobq_release_indexes();
	if (!jobq_read_in_transaction)
		return;
	jobq_read_in_transaction = false;
	relations_valid = false;
	partition.relid = InvalidOid;
	forget_queues();
	jobq_forget_handlers();
}

/*
 * The transaction committed, and with it what was read.
 */
void
jobq_keep_uncommitted(void)
{
	jobq_release_indexes();
	jobq_read_in_transaction = false;
}

/*
 * An error if the function was not fired by an AFTER ... FOR EACH STATEMENT
 * trigger.  Which relation has that, its owner decides: the functions that use
 * this read nothing of it.
 */
void
jobq_check_statement_trigger(FunctionCallInfo fcinfo, const char *function)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_FOR_STATEMENT(trigdata->tg_event) ||
		!TRIGGER_FIRED_AFTER(trigdata->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("%s must be fired AFTER ... FOR EACH STATEMENT",
						function)));
}

/*
 * Statement trigger on jobq.queue and jobq.handler: tell all backends at
 * commit that the table has changed, and the scheduler to rank its lanes anew.
 */
Datum
jobq_invalidate(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;

	jobq_check_statement_trigger(fcinfo, "jobq_internal.invalidate()");
	CacheInvalidateRelcache(trigdata->tg_relation);
	jobq_at_commit_reload();
	return PointerGetDatum(NULL);
}

/*
 * The partition of the archive for a job that finished at this time: the
 * day's, or the default partition if the scheduler has made none.
 */
Oid
jobq_archive_partition(TimestampTz finished_at)
{
	int64		day = finished_at / USECS_PER_DAY;

	if (!OidIsValid(partition.relid) || partition.day != day)
	{
		const JobqRelations *rels = jobq_relations();
		uint64		before = changes;
		struct pg_tm tm;
		fsec_t		fsec;
		char		name[NAMEDATALEN];
		Oid			relid;

		if (timestamp2tm(finished_at, NULL, &tm, &fsec, NULL, NULL) != 0)
			elog(ERROR, "timestamp out of range");
		snprintf(name, sizeof(name), "archive_%04d%02d%02d",
				 tm.tm_year, tm.tm_mon, tm.tm_mday);
		relid = get_relname_relid(name, rels->schema);
		if (!OidIsValid(relid) || !get_rel_relispartition(relid))
			relid = rels->archive_default;
		if (changes != before)
			return relid;
		partition.day = day;
		partition.relid = relid;
		jobq_read_in_transaction = true;
	}
	return partition.relid;
}

/*
 * Until the end of this transaction no queue is dropped: call this before the
 * look-up of a queue that gets a new job.  A weak lock, on the fast path.
 */
void
jobq_pin_queues(void)
{
	LockRelationOid(jobq_relations()->queue, RowShareLock);
}

/*
 * Lock the table of jobs, weakly: DROP EXTENSION begins with it, so whoever is
 * going to lock others of our tables before it calls this first.
 */
void
jobq_lock_jobs(void)
{
	const JobqRelations *rels = jobq_relations_if_installed();

	if (rels != NULL)
		LockRelationOid(rels->job, AccessShareLock);
}

static void
queue_from_tuple(HeapTuple tuple, TupleDesc desc, JobqQueue *queue)
{
	Datum		values[QUEUE_NATTS];
	bool		nulls[QUEUE_NATTS];

	jobq_check_columns(desc, QUEUE_NATTS);
	heap_deform_tuple(tuple, desc, values, nulls);
	memset(queue, 0, sizeof(JobqQueue));
	queue->id = DatumGetInt32(values[QUEUE_ID - 1]);
	queue->paused = DatumGetBool(values[QUEUE_PAUSED - 1]);
	queue->notify = DatumGetChar(values[QUEUE_NOTIFY - 1]);
	queue->keep = DatumGetChar(values[QUEUE_KEEP - 1]);
	queue->mode = DatumGetChar(values[QUEUE_MODE - 1]);
	queue->lease = DatumGetChar(values[QUEUE_LEASE - 1]);
	queue->group_on_failure =
		DatumGetChar(values[QUEUE_GROUP_ON_FAILURE - 1]);
	queue->group_max_running =
		DatumGetInt32(values[QUEUE_GROUP_MAX_RUNNING - 1]);
	queue->limited = !nulls[QUEUE_MAX_RUNNING - 1] ||
		!nulls[QUEUE_RATE - 1] || !nulls[QUEUE_THROTTLE - 1];
	queue->max_length = nulls[QUEUE_MAX_LENGTH - 1] ? -1
		: DatumGetInt32(values[QUEUE_MAX_LENGTH - 1]);
	queue->expires_after_ms = nulls[QUEUE_EXPIRES_AFTER - 1] ? -1
		: DatumGetInt64(values[QUEUE_EXPIRES_AFTER - 1]);
	strlcpy(queue->name, TextDatumGetCString(values[QUEUE_NAME - 1]),
			NAMEDATALEN);
	if (!nulls[QUEUE_FAIR_BY - 1])
		strlcpy(queue->fair_by, TextDatumGetCString(values[QUEUE_FAIR_BY - 1]),
				sizeof(queue->fair_by));
}

static void
remember_queue(const JobqQueue *queue)
{
	JobqQueue  *entry;

	if (queues_by_id == NULL)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = sizeof(int32);
		ctl.entrysize = sizeof(JobqQueue);
		ctl.hcxt = CacheMemoryContext;
		queues_by_id = hash_create("jobq queues", 32, &ctl,
								   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	entry = hash_search(queues_by_id, &queue->id, HASH_ENTER, NULL);
	*entry = *queue;
	jobq_read_in_transaction = true;
}

/*
 * Read a queue by name, or by id if name is NULL, and remember it.  False if
 * there is none.
 */
static bool
read_queue(const char *name, int32 id, JobqQueue *queue)
{
	const JobqRelations *rels = jobq_relations();
	Relation	rel = table_open(rels->queue, AccessShareLock);
	uint64		before = changes;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found;

	if (name != NULL)
		ScanKeyEntryInitialize(&key, 0, QUEUE_NAME, BTEqualStrategyNumber,
							   InvalidOid, C_COLLATION_OID, F_TEXTEQ,
							   CStringGetTextDatum(name));
	else
		ScanKeyInit(&key, QUEUE_ID, BTEqualStrategyNumber, F_INT4EQ,
					Int32GetDatum(id));
	scan = systable_beginscan(rel,
							  name != NULL ? rels->queue_name_key
							  : rels->queue_pkey,
							  true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	found = HeapTupleIsValid(tuple);
	if (found)
		queue_from_tuple(tuple, RelationGetDescr(rel), queue);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	if (found && changes == before)
		remember_queue(queue);
	return found;
}

/*
 * Create a queue with the default policy.  Two transactions may do so at
 * once: then the second waits for the first, and finds its row.
 */
static void
create_queue(const char *name)
{
	Oid			types[] = {TEXTOID};
	Datum		values[1];

	if (name[0] == '\0' || strlen(name) > JOBQ_MAX_QUEUE_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("queue name \"%s\" must have 1 to %d bytes", name,
						JOBQ_MAX_QUEUE_NAME)));
	if (!jobq_create_queues && strcmp(name, "default") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("queue \"%s\" does not exist", name),
				 errhint("Create it with jobq.create_queue(), or set \"%s\" to on.",
						 "jobq.create_queues")));

	values[0] = CStringGetTextDatum(name);
	SPI_connect();
	/* rows that came by replication have not used the sequence */
	jobq_query("SELECT pg_catalog.setval('jobq.queue_id_seq', max(id)) FROM jobq.queue"
			   " HAVING max(id) > (SELECT last_value FROM jobq.queue_id_seq)",
			   0, NULL, NULL, NULL, SPI_OK_SELECT);
	jobq_query("INSERT INTO jobq.queue (name) VALUES ($1) ON CONFLICT (name) DO NOTHING",
			   1, types, values, NULL, SPI_OK_INSERT);
	SPI_finish();
}

/*
 * The queue of that name, copied to *queue; an unknown one is created, or else
 * NULL.
 */
const JobqQueue *
jobq_queue_by_name(const char *name, bool create, JobqQueue *queue)
{
	if (queues_by_id != NULL)
	{
		static int32 last = 0;
		JobqQueue  *entry = hash_search(queues_by_id, &last, HASH_FIND, NULL);
		HASH_SEQ_STATUS seq;

		if (entry != NULL && strcmp(entry->name, name) == 0)
		{
			*queue = *entry;
			return queue;
		}
		hash_seq_init(&seq, queues_by_id);
		while ((entry = hash_seq_search(&seq)) != NULL)
		{
			if (strcmp(entry->name, name) == 0)
			{
				hash_seq_term(&seq);
				last = entry->id;
				*queue = *entry;
				return queue;
			}
		}
	}
	if (!read_queue(name, 0, queue))
	{
		if (!create)
			return NULL;
		create_queue(name);
		if (!read_queue(name, 0, queue))
			elog(ERROR, "queue \"%s\" vanished while it was created", name);
	}
	return queue;
}

/*
 * The queue with that id, copied to *queue, or NULL.
 */
const JobqQueue *
jobq_queue_by_id(int32 id, JobqQueue *queue)
{
	if (last_queue == NULL || last_queue->id != id)
		last_queue = queues_by_id == NULL ? NULL :
			hash_search(queues_by_id, &id, HASH_FIND, NULL);
	if (last_queue != NULL)
	{
		*queue = *last_queue;
		return queue;
	}
	return read_queue(NULL, id, queue) ? queue : NULL;
}
