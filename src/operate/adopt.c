/*-------------------------------------------------------------------------
 *
 * adopt.c
 *	  adopt(): take over jobs from another database, and set the node of this database.
 *
 * The node is in the high bits of the ids of jobs and batches, so that several databases have
 * different ids.  The node is stored nowhere else than in the last values of the two
 * sequences.  A dump, a standby and a copy therefore keep the node, and enqueue() knows
 * nothing of nodes.  The largest id, of the last node, is the largest integer that a double
 * represents exactly, 2^53 - 1.
 *
 * src/operate/adopt.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "storage/lmgr.h"

#include "commit/commit.h"
#include "store/store.h"
#include "operate/inner.h"

#define NODE_SHIFT	43
#define MAX_NODE	1023

PG_FUNCTION_INFO_V1(jobq_adopt);

/*
 * ERROR if a binary subscription replicates jobq's tables.  The subscription would copy role
 * OIDs, and an OID may belong to another role here.  The caller must be connected to SPI.
 */
static void
refuse_binary(void)
{
	static const Oid types[] = {OIDOID};
	Datum		values[] = {ObjectIdGetDatum(jobq_relations()->job)};

	if (jobq_query("SELECT s.subname::text FROM pg_subscription s"
				   " JOIN pg_subscription_rel r ON r.srsubid = s.oid"
				   " JOIN pg_class c ON c.oid = r.srrelid"
				   " JOIN pg_class j ON j.relnamespace = c.relnamespace"
				   " WHERE s.subbinary AND j.oid = $1 LIMIT 1",
				   1, types, values, NULL, SPI_OK_SELECT) == 0)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("subscription \"%s\" is binary, and brings roles by their numbers",
					SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1)),
			 errdetail("Jobs could run as other roles than those that have enqueued them."),
			 errhint("Have it bring jobq's tables anew without \"binary\". If all roles have the same numbers here as there, drop it, and adopt them.")));
}

/*
 * Let the next ids be those of this node.  Like setval(), this is not undone by a rollback.
 * ERROR for a lower node than the present one, because the database may have used the ids.
 * The caller must be connected to SPI.
 */
static void
set_node(int node)
{
	static const Oid types[] = {INT8OID};
	Datum		values[1];
	bool		isnull;
	int64		now;

	if (node < 0 || node > MAX_NODE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid node: %d", node),
				 errhint("A node is a number from 0 to %d, different for each database.", MAX_NODE)));

	/* a lock against other callers; nextval() does not wait */
	LockRelationOid(jobq_relations()->job_seq, ShareUpdateExclusiveLock);
	jobq_query("SELECT last_value FROM jobq_internal.job_id_seq", 0, NULL, NULL, NULL, SPI_OK_SELECT);
	now = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull)) >> NODE_SHIFT;
	if (node == now)
		return;
	if (node < now)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the node of this database is " INT64_FORMAT ", and cannot become %d", now, node),
				 errdetail("Ids of a lower node may be in use already."),
				 errhint("Choose a higher node.")));
	values[0] = Int64GetDatum((int64) node << NODE_SHIFT);
	jobq_query("SELECT pg_catalog.setval('jobq_internal.job_id_seq', $1),"
			   " pg_catalog.setval('jobq_internal.batch_id_seq', $1)",
			   1, types, values, NULL, SPI_OK_SELECT);
}

/*
 * Move a sequence beyond all ids in its table, because sequences are not replicated.  Ids of a
 * higher node belong to another database.  The caller must be connected to SPI.
 */
static void
move_sequence(const char *sequence, const char *table)
{
	char	   *query = psprintf("SELECT pg_catalog.setval('jobq_internal.%s', max(t.id))"
								 " FROM jobq_internal.%s t, (SELECT last_value AS last FROM jobq_internal.%s) s"
								 " WHERE t.id > s.last AND t.id < ((s.last >> %d) + 1) << %d HAVING count(*) > 0",
								 sequence, table, sequence, NODE_SHIFT, NODE_SHIFT);

	jobq_query(query, 0, NULL, NULL, NULL, SPI_OK_SELECT);
	pfree(query);
}

/*
 * adopt(): make jobs from logical replication, from a copy of another database, or of roles
 * that did not exist at a restore run here.  Returns the number of replicated and returned
 * jobs.  The argument is the node of this database, or null.  ERROR unless the current user is
 * the extension owner: EXECUTE on the function is not sufficient.
 */
Datum
jobq_adopt(PG_FUNCTION_ARGS)
{
	uint64		count;

	jobq_require_owner("adopt jobs");
	SPI_connect();
	refuse_binary();
	count = jobq_return_rows();

	/* of jobs with the same key, the last gets the key */
	jobq_query("INSERT INTO jobq_internal.unique_key (job_id, role, queue_id, until, kind, key)"
			   " SELECT id, role, coalesce(unique_queue, 0), unique_until,"
			   " CASE WHEN unique_queue IS NULL THEN kind ELSE '' END, unique_key FROM jobq_internal.job"
			   " WHERE dormant AND unique_key IS NOT NULL"
			   " AND (unique_until = 'f' OR attempt = 0)"
			   " ORDER BY id DESC ON CONFLICT DO NOTHING",
			   0, NULL, NULL, NULL, SPI_OK_INSERT);
	count += jobq_query("UPDATE jobq_internal.job SET dormant = false WHERE dormant",
						0, NULL, NULL, NULL, SPI_OK_UPDATE);

	jobq_query("UPDATE jobq_internal.schedule SET dormant = false WHERE dormant",
			   0, NULL, NULL, NULL, SPI_OK_UPDATE);
	jobq_query("UPDATE jobq_internal.batch SET dormant = false, adopted = true WHERE dormant",
			   0, NULL, NULL, NULL, SPI_OK_UPDATE);

	if (!PG_ARGISNULL(0))
		set_node(PG_GETARG_INT32(0));
	move_sequence("job_id_seq", "job");
	move_sequence("batch_id_seq", "batch");
	jobq_serve_here();
	SPI_finish();
	jobq_at_commit_unnoted();
	jobq_audit(fcinfo, (int64) count);
	PG_RETURN_INT64((int64) count);
}
