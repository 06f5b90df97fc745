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
 * Return the node of the ids that a sequence gives.  The caller must be connected to SPI.
 */
static int
node_of(const char *sequence)
{
	jobq_query(psprintf("SELECT last_value FROM jobq_internal.%s", sequence), 0, NULL, NULL, NULL,
			   SPI_OK_SELECT);
	return (int) (DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1,
											INT8OID, NULL)) >> NODE_SHIFT);
}

/*
 * Return the node in the first argument, or -1 if null.  ERROR if this is no number of a node.
 */
static int
node_arg(FunctionCallInfo fcinfo)
{
	int			node = PG_ARGISNULL(0) ? 0 : PG_GETARG_INT32(0);

	if (node < 0 || node > MAX_NODE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid node: %d", node),
				 errhint("A node is a number from 0 to %d, different for each database.", MAX_NODE)));
	return PG_ARGISNULL(0) ? -1 : node;
}

/*
 * Let the next ids of jobs and batches be those of this node, or of the present node if "given"
 * is negative.  Returns the node.  Only one of the sequences may be in the node so far, because
 * the user has moved it.  Like setval(), this is not undone by a rollback.  ERROR for a lower
 * node than the present one, because the database may have used the ids.  The caller must be
 * connected to SPI.
 */
static int
set_node(int given)
{
	static const char *const sequences[] = {"job_id_seq", "batch_id_seq"};
	static const Oid types[] = {INT8OID};
	int			nodes[lengthof(sequences)];
	int			now = 0;
	int			node;
	Datum		first;

	/* a lock against other callers; nextval() does not wait */
	LockRelationOid(jobq_relations()->job_seq, ShareUpdateExclusiveLock);
	for (int i = 0; i < (int) lengthof(sequences); i++)
	{
		nodes[i] = node_of(sequences[i]);
		now = Max(now, nodes[i]);
	}
	node = given < 0 ? now : given;
	if (node < now)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the node of this database is %d, and cannot become %d", now, node),
				 errdetail("Ids of a lower node may be in use already."),
				 errhint("Choose a higher node.")));
	first = Int64GetDatum((int64) node << NODE_SHIFT);
	for (int i = 0; i < (int) lengthof(sequences); i++)
		if (nodes[i] < node)
			jobq_query(psprintf("SELECT pg_catalog.setval('jobq_internal.%s', $1)", sequences[i]),
					   1, types, &first, NULL, SPI_OK_SELECT);
	return node;
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
 * Make the dormant rows of a table, "job" or "batch", rows of this database.  "set" is a further
 * assignment.  Raises *node to the node of the highest id.  Returns the number of rows.  The
 * caller must be connected to SPI.
 */
static uint64
wake_rows(const char *table, const char *set, int *node)
{
	bool		none;
	uint64		count;
	Datum		last;

	jobq_query(psprintf("WITH woken AS (UPDATE jobq_internal.%s SET dormant = false%s WHERE dormant RETURNING id)"
						" SELECT pg_catalog.count(*), pg_catalog.max(id) FROM woken", table, set),
			   0, NULL, NULL, NULL, SPI_OK_SELECT);
	count = (uint64) DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, INT8OID, NULL));
	last = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, INT8OID, &none);
	if (!none)
		*node = Max(*node, (int) (DatumGetInt64(last) >> NODE_SHIFT));
	return count;
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
	int			highest = 0;	/* node of the adopted rows */
	int			given;
	int			node;
	uint64		count;

	jobq_require_owner("adopt jobs");
	given = node_arg(fcinfo);
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
	count += wake_rows("job", "", &highest);

	jobq_query("UPDATE jobq_internal.schedule SET dormant = false WHERE dormant",
			   0, NULL, NULL, NULL, SPI_OK_UPDATE);
	(void) wake_rows("batch", ", adopted = true", &highest);

	node = set_node(given);
	move_sequence("job_id_seq", "job");
	move_sequence("batch_id_seq", "batch");
	jobq_serve_here();
	SPI_finish();
	if (given < 0 && highest > node)
		ereport(WARNING,
				(errmsg("adopted rows have ids of node %d, and new ids are of node %d", highest, node),
				 errhint("If this database replaces the database of node %d, move the sequence jobq_internal.job_id_seq beyond the ids of that database, and call jobq.adopt() again. If node %d is of this database only, nothing is to be done.",
						 highest, node)));
	jobq_at_commit_unnoted();
	/* without jobs, the call is about the database, its schedules and batches */
	jobq_audit(fcinfo, count > 0 ? (int64) count : -1);
	PG_RETURN_INT64((int64) count);
}
