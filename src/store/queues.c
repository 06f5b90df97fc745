/*-------------------------------------------------------------------------
 *
 * queues.c
 *	  Queues: the rows of jobq_internal.queue, cached per backend.
 *
 * The cache is cleared when a relcache invalidation names the table.  Triggers on the table
 * send an invalidation for each change of rows.
 *
 * Reads are direct scans, which need no privilege of the current user.
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
#include "commands/trigger.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_invalidate);

/*
 * A queue, the settings carried by the queue's jobs, and the paused tenants and kinds.
 */
typedef struct KnownQueue
{
	JobqQueue	queue;			/* first: a cache entry is one, too */
	List	   *carry;
	List	   *paused_tenants;
	List	   *paused_kinds;
} KnownQueue;

typedef struct QueueName
{
	char		name[NAMEDATALEN];	/* hash key */
	int32		id;
} QueueName;

static MemoryContext queues_context = NULL;
static HTAB *queues_by_id = NULL;
static HTAB *queues_by_name = NULL;
static const KnownQueue *last_queue = NULL;
static Oid	queue_relation = InvalidOid;	/* source of the cache */
static Oid	delegation_relation = InvalidOid;

/* count of invalidations and aborts */
static uint64 changes = 0;

static void tenant_from_tuple(KnownQueue *known, const Datum *values,
							  const bool *nulls);

static void
forget_queues(void)
{
	changes++;
	if (queues_context != NULL)
		MemoryContextDelete(queues_context);
	queues_context = NULL;
	queues_by_id = queues_by_name = NULL;
	last_queue = NULL;
}

/*
 * Return the position of a word in a list separated by ", ", or -1 if it is not in the list.
 */
int
jobq_word_number(const char *words, const char *word)
{
	for (int i = 0;; i++)
	{
		size_t		length = strcspn(words, ",");

		if (strlen(word) == length && strncmp(words, word, length) == 0)
			return i;
		if (words[length] == '\0')
			return -1;
		words += length + 2;
	}
}

/* Return the number of the word in the column of a setting. */
static char
word_of(int setting, const Datum *values)
{
	static const char *const words[QUEUE_END] = {
#define QUEUE_SETTING(name, NAME, type, column, check, words, comment) \
		[QUEUE_##NAME] = words,
#include "store/queue_settings.h"
#undef QUEUE_SETTING
	};
	int			number;

	number = jobq_word_number(words[setting],
							  TextDatumGetCString(values[setting - 1]));
	if (number < 0)
		elog(ERROR, "invalid word in column %d of jobq_internal.queue", setting);
	return (char) number;
}

/*
 * Return the author of run_as of the queue, or InvalidOid.  A dump omits the row if one of the
 * two roles was dropped.
 */
static Oid
delegator_of(int32 queue_id)
{
	Relation	rel = jobq_open_table(JOBQ_DELEGATION_TABLE, AccessShareLock);
	Oid			delegator = InvalidOid;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		null;

	delegation_relation = RelationGetRelid(rel);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	scan = systable_beginscan(rel, jobq_index(rel, JOBQ_DELEGATION_PKEY), true,
							  NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		delegator = DatumGetObjectId(heap_getattr(tuple, 2,
												  RelationGetDescr(rel), &null));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return delegator;
}

static void
queue_from_tuple(HeapTuple tuple, TupleDesc desc, KnownQueue *known)
{
	JobqQueue  *queue = &known->queue;
	Datum		values[QUEUE_NATTS];
	bool		nulls[QUEUE_NATTS];

	heap_deform_tuple(tuple, desc, values, nulls);
	memset(queue, 0, sizeof(JobqQueue));
	queue->id = DatumGetInt32(values[QUEUE_ID - 1]);
	queue->paused = DatumGetBool(values[QUEUE_PAUSED - 1]);
	queue->notify = word_of(QUEUE_NOTIFY, values);
	queue->keep = word_of(QUEUE_KEEP, values);
	queue->mode = word_of(QUEUE_MODE, values);
	queue->lease = word_of(QUEUE_LEASE, values);
	queue->group_waits =
		jobq_group_wait_parse(TextDatumGetCString(values[QUEUE_GROUP_ON_FAILURE - 1]),
							  &queue->group_patience);
	queue->group_scope = word_of(QUEUE_GROUP_SCOPE, values);
	queue->recycle = word_of(QUEUE_RECYCLE, values);
	queue->on_full = word_of(QUEUE_ON_FULL, values);
	queue->group_max_running =
		DatumGetInt32(values[QUEUE_GROUP_MAX_RUNNING - 1]);
	queue->open = DatumGetBool(values[QUEUE_OPEN - 1]);
	queue->run_as = nulls[QUEUE_RUN_AS - 1] ? InvalidOid
		: DatumGetObjectId(values[QUEUE_RUN_AS - 1]);
	queue->run_as_by = OidIsValid(queue->run_as) ? delegator_of(queue->id)
		: InvalidOid;

	/* a role was missing at a restore: no job runs before adopt() (role.c) */
	queue->paused |= JOBQ_MISSES_ROLE(queue);
	queue->limited = !nulls[QUEUE_MAX_RUNNING - 1] ||
		!nulls[QUEUE_RATE - 1] || !nulls[QUEUE_THROTTLE - 1];
	memset(queue->limiters, 0, sizeof(queue->limiters));
	if (!nulls[QUEUE_LIMITERS - 1])
		jobq_limiter_hashes(values[QUEUE_LIMITERS - 1], queue->limiters);
	queue->max_length = nulls[QUEUE_MAX_LENGTH - 1] ? -1
		: DatumGetInt32(values[QUEUE_MAX_LENGTH - 1]);
	queue->expires_after_ms = nulls[QUEUE_EXPIRES_AFTER - 1] ? -1
		: jobq_interval_ms(DatumGetIntervalP(values[QUEUE_EXPIRES_AFTER - 1]),
						   "expires_after", 0, JOBQ_MAX_DELAY_MS);
	strlcpy(queue->name, TextDatumGetCString(values[QUEUE_NAME - 1]),
			NAMEDATALEN);
	known->carry = nulls[QUEUE_CARRY - 1] ? NIL
		: jobq_names_of_array(values[QUEUE_CARRY - 1]);
	known->paused_tenants = nulls[QUEUE_PAUSED_TENANTS - 1] ? NIL
		: jobq_names_of_array(values[QUEUE_PAUSED_TENANTS - 1]);
	known->paused_kinds = nulls[QUEUE_PAUSED_KINDS - 1] ? NIL
		: jobq_names_of_array(values[QUEUE_PAUSED_KINDS - 1]);
	tenant_from_tuple(known, values, nulls);
	queue->carries = known->carry != NIL;
	queue->tenants_paused = known->paused_tenants != NIL;
	queue->kinds_paused = known->paused_kinds != NIL;
}

/*
 * Set the source of the queue's tenants.  If the source is a setting of the session, jobs carry
 * the setting.  Otherwise the tenant would be lost.
 */
static void
tenant_from_tuple(KnownQueue *known, const Datum *values, const bool *nulls)
{
	JobqQueue  *queue = &known->queue;
	const char *setting = NULL;
	ListCell   *lc;

	queue->fair = strcmp(TextDatumGetCString(values[QUEUE_FAIR - 1]), "off") != 0;
	if (!nulls[QUEUE_TENANT - 1])
	{
		if (!jobq_tenant_parse(TextDatumGetCString(values[QUEUE_TENANT - 1]),
							   &queue->tenant_by, queue->tenant_name))
			elog(ERROR, "invalid tenant of queue \"%s\"", queue->name);
	}
	if (queue->tenant_by == TENANT_BY_SETTING)
		setting = queue->tenant_name;
	else if (queue->tenant_by == TENANT_BY_SCHEMA)
		setting = strcpy(queue->tenant_name, "search_path");
	if (setting == NULL)
		return;
	foreach(lc, known->carry)
		if (pg_strcasecmp(lfirst(lc), setting) == 0)
	{
		strlcpy(queue->tenant_name, lfirst(lc), sizeof(queue->tenant_name));
		return;
	}
	known->carry = lappend(known->carry, pstrdup(setting));
}

static void
remember_queue(const KnownQueue *known)
{
	KnownQueue *entry;
	QueueName  *name;
	List	   *carry;
	List	   *paused_tenants;
	List	   *paused_kinds;
	MemoryContext old;

	if (queues_by_name == NULL)
	{
		HASHCTL		ctl = {0};

		if (queues_context == NULL)
			queues_context = AllocSetContextCreate(CacheMemoryContext,
												   "jobq queues and carried names",
												   ALLOCSET_SMALL_SIZES);
		ctl.keysize = sizeof(int32);
		ctl.entrysize = sizeof(KnownQueue);
		ctl.hcxt = queues_context;
		queues_by_id = hash_create("jobq queues", 32, &ctl,
								   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		ctl.keysize = NAMEDATALEN;
		ctl.entrysize = sizeof(QueueName);
		queues_by_name = hash_create("jobq names of queues", 32, &ctl,
									 HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	}
	old = MemoryContextSwitchTo(queues_context);
	carry = jobq_copy_names(known->carry);
	paused_tenants = jobq_copy_names(known->paused_tenants);
	paused_kinds = jobq_copy_names(known->paused_kinds);
	MemoryContextSwitchTo(old);

	/* before the first entry, because an error can follow */
	jobq_cache_filled();
	entry = hash_search(queues_by_id, &known->queue.id, HASH_ENTER, NULL);
	entry->queue = known->queue;
	entry->carry = carry;
	entry->paused_tenants = paused_tenants;
	entry->paused_kinds = paused_kinds;
	name = hash_search(queues_by_name, known->queue.name, HASH_ENTER, NULL);
	name->id = known->queue.id;
}

/*
 * Read a queue by name, or by id if name is NULL, and cache it.  Returns false if there is
 * none.
 */
static bool
read_queue(const char *name, int32 id, KnownQueue *known)
{
	Relation	rel = jobq_open_table(JOBQ_QUEUE_TABLE, AccessShareLock);
	uint64		before = changes;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found;

	queue_relation = RelationGetRelid(rel);
	if (name != NULL)
		ScanKeyEntryInitialize(&key, 0, QUEUE_NAME, BTEqualStrategyNumber,
							   InvalidOid, C_COLLATION_OID, F_TEXTEQ,
							   CStringGetTextDatum(name));
	else
		ScanKeyInit(&key, QUEUE_ID, BTEqualStrategyNumber, F_INT4EQ,
					Int32GetDatum(id));
	scan = systable_beginscan(rel,
							  jobq_index(rel, name != NULL ? JOBQ_QUEUE_NAME_KEY
										 : JOBQ_QUEUE_PKEY),
							  true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	found = HeapTupleIsValid(tuple);
	if (found)
		queue_from_tuple(tuple, RelationGetDescr(rel), known);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	if (found && changes == before)
		remember_queue(known);
	return found;
}

/* Return the cached queue with this name, or NULL. */
static const KnownQueue *
cached_queue(const char *name)
{
	const QueueName *found;

	if (last_queue != NULL && strcmp(last_queue->queue.name, name) == 0)
		return last_queue;
	if (queues_by_name == NULL || strlen(name) >= NAMEDATALEN)
		return NULL;
	found = hash_search(queues_by_name, name, HASH_FIND, NULL);
	if (found != NULL)
		last_queue = hash_search(queues_by_id, &found->id, HASH_FIND, NULL);
	return found == NULL ? NULL : last_queue;
}

/*
 * Return the queue with this name, copied to *queue.  If there is none, create the queue if
 * "create" (jobq_create_used_queue()), or return NULL.
 */
const JobqQueue *
jobq_queue_by_name(const char *name, bool create, JobqQueue *queue)
{
	const KnownQueue *cached = cached_queue(name);
	KnownQueue	known;

	if (cached != NULL)
	{
		*queue = cached->queue;
		return queue;
	}
	if (!read_queue(name, 0, &known))
	{
		if (!create)
			return NULL;
		jobq_create_used_queue(name);
		if (!read_queue(name, 0, &known))
			elog(ERROR, "queue \"%s\" vanished while it was created", name);
	}
	*queue = known.queue;
	return queue;
}

/*
 * Return the cached queue with this id, or read it to *buffer.  Returns NULL if there is none.
 * The caller must copy the result before any other call.
 */
static const KnownQueue *
known_queue(int32 id, KnownQueue *buffer)
{
	if (last_queue == NULL || last_queue->queue.id != id)
		last_queue = queues_by_id == NULL ? NULL :
			hash_search(queues_by_id, &id, HASH_FIND, NULL);
	if (last_queue != NULL)
		return last_queue;
	return read_queue(NULL, id, buffer) ? buffer : NULL;
}

/* Return the queue with this id, copied to *queue, or NULL. */
const JobqQueue *
jobq_queue_by_id(int32 id, JobqQueue *queue)
{
	KnownQueue	buffer;
	const KnownQueue *known = known_queue(id, &buffer);

	if (known == NULL)
		return NULL;
	*queue = known->queue;
	return queue;
}

/*
 * Return the names of the settings carried by jobs of this queue, in the current memory
 * context.
 */
List *
jobq_queue_carry(int32 id)
{
	KnownQueue	buffer;
	const KnownQueue *known = known_queue(id, &buffer);

	return known == NULL ? NIL : jobq_copy_names(known->carry);
}

/* Return the paused tenants of the queue, in the current memory context. */
List *
jobq_queue_paused_tenants(int32 id)
{
	KnownQueue	buffer;
	const KnownQueue *known = known_queue(id, &buffer);

	return known == NULL ? NIL : jobq_copy_names(known->paused_tenants);
}

/* Return the paused kinds of the queue, in the current memory context. */
List *
jobq_queue_paused_kinds(int32 id)
{
	KnownQueue	buffer;
	const KnownQueue *known = known_queue(id, &buffer);

	return known == NULL ? NIL : jobq_copy_names(known->paused_kinds);
}

/*
 * Return whether this kind (if "kind") or this tenant of the queue is paused.  The function is
 * called for each examined job, and there may be many names.  It therefore does not copy them.
 */
bool
jobq_queue_pauses(int32 id, bool kind, const char *name)
{
	KnownQueue	buffer;
	const KnownQueue *known = known_queue(id, &buffer);
	ListCell   *lc;

	if (known == NULL)
		return false;
	foreach(lc, kind ? known->paused_kinds : known->paused_tenants)
		if (strcmp(lfirst(lc), name) == 0)
		return true;
	return false;
}

static void
find_queue(const char *name, JobqQueue *queue)
{
	jobq_require(JOBQ_MAY_ALL);
	if (jobq_queue_by_name(name, false, queue) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("queue \"%s\" does not exist", name),
				 errhint("The view jobq.queues shows those that do; jobq.create_queue() creates one.")));
}

/*
 * Return the id of the queue with this name.  ERROR if there is none, or if the current user
 * may not see the queue.  A role without any privilege on jobq does not learn which queues
 * exist.
 */
int32
jobq_existing_queue(const char *name)
{
	JobqQueue	queue;

	find_queue(name, &queue);
	jobq_require_visible(&queue);
	return queue.id;
}

/*
 * ERROR if there is no queue with this name.  The queue "default" may be missing, because the
 * first job creates this queue, whatever the settings.
 */
void
jobq_require_known_queue(const char *name)
{
	JobqQueue	queue;

	if (strcmp(name, "default") != 0)
		find_queue(name, &queue);
}

/* Like jobq_existing_queue(), but creates the queue "default" if needed. */
int32
jobq_known_queue(const char *name)
{
	JobqQueue	queue;

	if (strcmp(name, "default") == 0)
		return jobq_queue_by_name(name, true, &queue)->id;
	return jobq_existing_queue(name);
}

/*
 * Trigger on the cached tables: sends an invalidation of the table to all backends at commit,
 * and makes the scheduler rank its lanes again.  The trigger is fired once per statement.
 * Where logical replication writes, it is fired for each row, because there are no statements.
 */
Datum
jobq_invalidate(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;

	jobq_check_after_trigger(fcinfo, "jobq_internal.invalidate()", false);
	if (jobq_cache_keeps() && TRIGGER_FIRED_BY_INSERT(trigdata->tg_event) &&
		RelationGetRelid(trigdata->tg_relation) == jobq_relations()->queue)
		return PointerGetDatum(NULL);
	CacheInvalidateRelcache(trigdata->tg_relation);
	jobq_at_commit_reload();
	return PointerGetDatum(NULL);
}

static void
relation_changed(Oid relid)
{
	if (relid == InvalidOid || relid == queue_relation ||
		relid == delegation_relation)
		forget_queues();
}

const JobqCache jobq_queues_cache = {
	.changed = relation_changed,
	.forget = forget_queues,
};
