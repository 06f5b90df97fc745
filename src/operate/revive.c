/*-------------------------------------------------------------------------
 *
 * revive.c
 *	  Turn dead letters into jobs again; privilege checks for jobs found by a query.
 *
 * A job that stands for a workflow fails with the workflow (src/compose/nest.c).  Therefore
 * the dead letters of the workflow and the job in the outer workflow are retried together.
 *
 * src/operate/revive.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "attempt/attempt.h"
#include "compose/compose.h"
#include "operate/inner.h"

/*
 * Role and queue of the job in the first row of SPI_tuptable, columns 1 and 2.
 */
void
jobq_row_of_job(Oid *role, int32 *queue_id)
{
	HeapTuple	tuple = SPI_tuptable->vals[0];
	TupleDesc	desc = SPI_tuptable->tupdesc;

	*role = DatumGetObjectId(jobq_column(tuple, desc, 1, OIDOID, NULL));
	*queue_id = DatumGetInt32(jobq_column(tuple, desc, 2, INT4OID, NULL));
}

/*
 * True if the current user has the privilege for the job in the first row of SPI_tuptable.
 */
bool
jobq_may_with_row(int privilege)
{
	Oid			role;
	int32		queue_id;

	jobq_row_of_job(&role, &queue_id);
	return jobq_may(privilege, role, queue_id);
}

/*
 * Raise the error for a missing job, or for a job invisible to the current user.
 */
void
jobq_no_such_job(int64 id)
{
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_NO_SUCH_JOB),
			 errmsg("job " INT64_FORMAT " does not exist", id),
			 errhint("It may be another role's, or finished, and removed by retention or because its queue keeps nothing.")));
}

/*
 * ERROR if the current user may see the job but lacks the privilege.
 */
void
jobq_refuse_to_see_only(int privilege, int64 id, Oid role, int32 queue_id)
{
	if (!jobq_may(privilege, role, queue_id) &&
		jobq_may(JOBQ_MAY_MONITOR, role, queue_id))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for job " INT64_FORMAT, id),
				 errhint("Its own role can do this, and who has the privilege %s.",
						 privilege == JOBQ_MAY_OPERATE ? "operate" : "manage")));
}

/*
 * A job of this batch runs again.  If the batch is nested and has failed, revive the job in
 * the outer batch that stands for the nested batch.  The caller must be connected to SPI.
 */
static void
revive_outer(Relation rel, int64 batch_id)
{
	static const Oid types[] = {INT8OID};
	Datum		value = Int64GetDatum(batch_id);

	if (jobq_query("SELECT f.role::oid, f.queue_id, f.id FROM jobq_internal.batch b"
				   " JOIN jobq_internal.batch p ON p.id = b.parent AND p.state <> 'x'"
				   " JOIN jobq_internal.dead_letter f ON f.id = b.parent_job"
				   " WHERE b.id = $1 FOR UPDATE OF f", 1, types, &value, NULL, SPI_OK_SELECT) == 0 ||
		!jobq_may_with_row(JOBQ_MAY_OPERATE))
		return;
	value = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 3, INT8OID, NULL);
	(void) jobq_letters_again(rel, &value, 1, 0, true);
}

/*
 * The job stands for a workflow and waits again: revive the dead letters of this workflow.
 */
static void
revive_inner(Relation rel, const JobqJob *job)
{
	static const Oid types[] = {INT8OID, INT8OID};
	Datum		values[] = {JOB(job, JOB_BATCH_ID), JOB(job, JOB_ID)};
	SPITupleTable *found;
	Datum	   *ids;
	int64		inner;
	uint64		n;
	int			nids = 0;

	check_stack_depth();
	if (jobq_query("SELECT id FROM jobq_internal.batch WHERE parent = $1 AND parent_job = $2"
				   " AND finished_at IS NOT NULL AND state = 'f'",
				   2, types, values, NULL, SPI_OK_SELECT) == 0)
		return;
	values[0] = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, INT8OID, NULL);
	inner = DatumGetInt64(values[0]);
	(void) jobq_batch_reopen(inner);
	n = jobq_query("SELECT j.role::oid, j.queue_id, j.id FROM jobq_internal.dead_letter j WHERE j.batch_id = $1"
				   KEY_IS_FREE " ORDER BY j.id FOR UPDATE OF j",
				   1, types, values, NULL, SPI_OK_SELECT);
	found = SPI_tuptable;
	ids = palloc(sizeof(Datum) * (n + 1));
	for (uint64 i = 0; i < n; i++)
	{
		HeapTuple	row = found->vals[i];

		if (jobq_may(JOBQ_MAY_OPERATE, DatumGetObjectId(jobq_column(row, found->tupdesc, 1, OIDOID, NULL)),
					 DatumGetInt32(jobq_column(row, found->tupdesc, 2, INT4OID, NULL))))
			ids[nids++] = jobq_column(row, found->tupdesc, 3, INT8OID, NULL);
	}
	SPI_freetuptable(found);
	if (nids > 0)
		(void) jobq_letters_again(rel, ids, nids, inner, false);
}

/*
 * Claim the unique keys of these dead letters, except keys claimed by another job since the
 * query.  The keys are claimed in bytewise order, as in enqueue_many(), to avoid deadlocks.
 * The last dead letter with the same key gets the key.
 */
static void
reclaim_keys(Relation rel, ArrayType *array)
{
	static const Oid types[] = {INT8ARRAYOID};
	Datum		values[] = {PointerGetDatum(array)};
	SPITupleTable *letters;

	(void) jobq_query("SELECT" JOB_OF_LETTER " FROM jobq_internal.dead_letter"
					  " WHERE id = ANY ($1) AND unique_key IS NOT NULL"
					  " ORDER BY unique_key COLLATE \"C\","
					  " CASE WHEN unique_queue IS NULL THEN kind END, unique_queue, role::oid, id",
					  1, types, values, NULL, SPI_OK_SELECT);
	letters = SPI_tuptable;
	jobq_check_job_row(letters->tupdesc);
	for (uint64 i = 0; i < letters->numvals; i++)
	{
		JobqJob		job;

		CHECK_FOR_INTERRUPTS();
		heap_deform_tuple(letters->vals[i], letters->tupdesc, job.values, job.nulls);
		(void) jobq_unique_reclaim(rel, &job);
	}
	SPI_freetuptable(letters);
}

/*
 * Turn a dead letter into a job again.  letter: its row, already deleted, in the form of
 * JOB_OF_LETTER.  ERROR if the current user lacks the privilege operate for the job, or if
 * another job holds the unique key.
 *
 * The job's batch is reopened.  *reopened is the batch reopened last, or 0.
 */
static void
letter_again(Relation rel, HeapTuple letter, TupleDesc desc, int64 *reopened)
{
	JobqJob		job;

	heap_deform_tuple(letter, desc, job.values, job.nulls);
	jobq_refuse_to_see_only(JOBQ_MAY_OPERATE, job_id(&job), job_role(&job),
							job_queue_id(&job));
	if (!jobq_may(JOBQ_MAY_OPERATE, job_role(&job), job_queue_id(&job)))
		jobq_no_such_job(job_id(&job));

	/* a step dead before the end of its block stays blocked */
	jobq_job_again(rel, &job, true);
	if (job_batch(&job) != 0 &&
		(job_batch(&job) != *reopened || job_blocked(&job)))
	{
		*reopened = job_batch(&job);
		if (!jobq_batch_reopen(*reopened) && job_blocked(&job))
			ereport(ERROR,
					(errcode(ERRCODE_JOBQ_WRONG_STATE),
					 errmsg("job " INT64_FORMAT " became a dead letter before it could begin, and batch " INT64_FORMAT " was cancelled",
							job_id(&job), *reopened),
					 errhint("Nobody gives it the results of the other steps any more; delete it with jobq.delete().")));
		revive_outer(rel, job_batch(&job));
	}
	if (jobq_job_is_workflow(&job))
		revive_inner(rel, &job);
}

/*
 * Turn these dead letters into jobs again.  Returns the number of jobs.  The caller is
 * connected to SPI.  reopened: the batch already reopened by the caller, or 0.
 *
 * named: the user has named the dead letters.  ERROR if another job holds the unique key, or
 * without the privilege operate.  Otherwise the caller has locked the rows, and has checked
 * the privileges.  If another job holds the unique key, the dead letter stays; if several have
 * the same key, the last is revived.
 *
 * Jobs that stand for workflows come last.  Jobs inside a workflow may have the same keys, and
 * must find the keys held.
 */
int64
jobq_letters_again(Relation rel, Datum *ids, int n, int64 reopened, bool named)
{
	static const Oid types[] = {INT8ARRAYOID, BOOLOID};
	ArrayType  *array = construct_array(ids, n, INT8OID, 8, FLOAT8PASSBYVAL,
										TYPALIGN_DOUBLE);
	Datum		values[] = {PointerGetDatum(array), BoolGetDatum(named)};
	int64		revived;
	SPITupleTable *letters;

	if (!named)
		reclaim_keys(rel, array);
	(void) jobq_query("WITH letter AS (DELETE FROM jobq_internal.dead_letter j WHERE id = ANY ($1)"
					  " AND ($2 OR unique_key IS NULL OR EXISTS (SELECT FROM jobq_internal.unique_key u"
					  " WHERE " KEY_OF_LETTER " AND u.job_id = j.id)) RETURNING" JOB_OF_LETTER ")"
					  " SELECT * FROM letter ORDER BY kind = '" JOBQ_WORKFLOW_KIND "', id",
					  2, types, values, NULL, SPI_OK_SELECT);
	letters = SPI_tuptable;
	jobq_check_job_row(letters->tupdesc);
	revived = letters->numvals;
	for (uint64 i = 0; i < letters->numvals; i++)
		letter_again(rel, letters->vals[i], letters->tupdesc, &reopened);
	SPI_freetuptable(letters);
	return revived;
}
