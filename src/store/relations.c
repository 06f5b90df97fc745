/*-------------------------------------------------------------------------
 *
 * relations.c
 *	  The tables of jobq in this database: their OIDs, and locks on them.
 *
 * src/store/relations.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

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
#include "store/store.h"

/* A partition of the archive: one day of finished_at. */
typedef struct Partition
{
	int64		day;
	Oid			relid;
} Partition;

static JobqRelations relations;
static bool relations_valid = false;
static Partition partition = {0};

/* count of invalidations and aborts */
static uint64 changes = 0;

static Oid	relation_named(Oid schema, const char *name);

/*
 * Return the relations of the extension, or NULL if the extension is not installed in this
 * database, or has an unsupported version.  Requires a transaction.  The result is static.
 */
const JobqRelations *
jobq_relations_if_installed(void)
{
	const JobqRelations *rels = jobq_relations_of_any_version();

	return rels != NULL && rels->version_fits ? rels : NULL;
}

/*
 * Return the relations of the extension, or NULL if the extension is not installed in this
 * database.  With an unsupported version, only the owner, the schemas and the table of jobs
 * are reliable.  Requires a transaction.  The result is static.
 */
const JobqRelations *
jobq_relations_of_any_version(void)
{
	JobqRelations found = {0};
	uint64		before;

	if (relations_valid)
		return &relations;

	before = changes;
	found.extension = get_extension_oid("jobq", true);
	found.schema = get_namespace_oid(JOBQ_SCHEMA, true);
	found.internal_schema = get_namespace_oid(JOBQ_INTERNAL_SCHEMA, true);
	if (!OidIsValid(found.extension) || !OidIsValid(found.schema) ||
		!OidIsValid(found.internal_schema))
		return NULL;

	/* ignore tables with these names outside the extension */
	found.job = relation_named(found.internal_schema, "job");
	if (!OidIsValid(found.job) ||
		getExtensionOfObject(RelationRelationId, found.job) !=
		found.extension)
		return NULL;

	found.queue = relation_named(found.internal_schema, "queue");
	found.delegation = relation_named(found.internal_schema, "delegation");
	found.handler = relation_named(found.internal_schema, "handler");
	found.job_seq = relation_named(found.internal_schema, "job_id_seq");
	found.archive = relation_named(found.internal_schema, "archive");
	found.archive_default = relation_named(found.internal_schema, "archive_default");
	found.dead_letter = relation_named(found.internal_schema, "dead_letter");
	found.unique_key = relation_named(found.internal_schema, "unique_key");
	found.job_uuid = relation_named(found.internal_schema, "job_uuid");
	found.lease = relation_named(found.internal_schema, "lease");
	found.lease_seq = relation_named(found.internal_schema, "lease_token_seq");
	found.step = relation_named(found.internal_schema, "step");
	found.batch = relation_named(found.internal_schema, "batch");
	found.batch_seq = relation_named(found.internal_schema, "batch_id_seq");
	found.inbox = relation_named(found.schema, "inbox");
	found.privilege = relation_named(found.internal_schema, "privilege");
	found.event_handler = relation_named(found.internal_schema, "event_handler");
	found.held_row = relation_named(found.internal_schema, "held_row");
	found.limiter = relation_named(found.internal_schema, "limiter");
	found.procedure_step = relation_named(found.internal_schema, "procedure_step");
	found.signal = relation_named(found.internal_schema, "signal");
	found.audit = relation_named(found.internal_schema, "audit");
	found.audit_seq = relation_named(found.internal_schema, "audit_id_seq");
	found.role_type =
		GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid,
						CStringGetDatum("role"),
						ObjectIdGetDatum(found.internal_schema));
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
	found.version_fits = jobq_version_fits(found.extension);
	relations = found;
	relations_valid = found.version_fits && changes == before;
	jobq_cache_filled();
	return &relations;
}

/*
 * Return the relations of the extension.  ERROR if the extension is not installed in this
 * database, or has an unsupported version.
 */
const JobqRelations *
jobq_relations(void)
{
	const JobqRelations *rels = jobq_relations_of_any_version();

	if (rels != NULL && !rels->version_fits)
	{
		jobq_report_version(ERROR, rels->extension);
		rels = NULL;			/* dropped meanwhile */
	}
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

/*
 * Return the partition of the archive for a job finished at this time: the partition of the
 * day, or the default partition if the scheduler has not created one.
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
		relid = get_relname_relid(name, rels->internal_schema);
		if (!OidIsValid(relid) || !get_rel_relispartition(relid))
			relid = rels->archive_default;
		if (changes != before)
			return relid;
		partition.day = day;
		partition.relid = relid;
		jobq_cache_filled();
	}
	return partition.relid;
}

/*
 * Prevent the drop of queues until the end of this transaction.  Call before the look-up of a
 * queue for a new job.  Takes a RowShareLock on jobq_internal.queue, by the fast path.
 */
void
jobq_pin_queues(void)
{
	LockRelationOid(jobq_relations()->queue, RowShareLock);
}

/*
 * Lock the table of jobs in AccessShareLock mode.  Call before locking other tables of jobq,
 * because DROP EXTENSION begins with this table.
 */
void
jobq_lock_jobs(void)
{
	const JobqRelations *rels = jobq_relations_if_installed();

	if (rels != NULL)
		LockRelationOid(rels->job, AccessShareLock);
}

static void
relation_changed(Oid relid)
{
	changes++;
	if (relid == InvalidOid || relid == relations.job ||
		relid == relations.archive || relid == relations.dead_letter)
		relations_valid = false;
	if (relid == InvalidOid || relid == partition.relid ||
		relid == relations.archive || relid == relations.archive_default)
		partition.relid = InvalidOid;
}

static void
forget_relations(void)
{
	changes++;
	relations_valid = false;
	partition.relid = InvalidOid;
}

const JobqCache jobq_relations_cache = {
	.changed = relation_changed,
	.forget = forget_relations,
};
