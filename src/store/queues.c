/*-------------------------------------------------------------------------
 *
 * queues.c
 *	  Queues: the rows of jobq.queue, cached per backend.
 *
 * The cache is emptied when a relcache invalidation names the table; a statement
 * trigger on it sends one whenever a row has changed.
 *
 * Reads are direct scans: they need no privilege of the current user.
 *
 * src/store/queues.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_invalidate);

static HTAB *queues_by_id = NULL;
static const JobqQueue *last_queue = NULL;
static Oid	queue_relation = InvalidOid;	/* that they were read from */

/* how often a message, or an abort, may have emptied the cache */
static uint64 changes = 0;

static void queue_from_tuple(HeapTuple tuple, TupleDesc desc, JobqQueue *queue);
static void remember_queue(const JobqQueue *queue);
static bool read_queue(const char *name, int32 id, JobqQueue *queue);
static void create_queue(const char *name);

static void
forget_queues(void)
{
	changes++;
	if (queues_by_id != NULL)
		hash_destroy(queues_by_id);
	queues_by_id = NULL;
	last_queue = NULL;
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
	jobq_cache_filled();
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

	queue_relation = rels->queue;
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

static void
relation_changed(Oid relid)
{
	if (relid == InvalidOid || relid == queue_relation)
		forget_queues();
}

const JobqCache jobq_queues_cache = {
	.changed = relation_changed,
	.forget = forget_queues,
};
