/*-------------------------------------------------------------------------
 *
 * rerun.c
 *	  rerun(): run a finished job once more, also from a step of its procedure on.
 *
 * A job from the archive is enqueued as a new job with the same role and another id.  The
 * header "rerun_of" has the id of the old job, for the handler and the views.  The role is
 * not the caller's: a payload written by one role must not run as another.  Therefore the
 * caller must have the right to edit the job and to become its role (edit.c).  The new job
 * is enqueued with the privileges of its role, so the role must still be allowed to enqueue
 * into the queue.  A handler must be registered; a plain statement needs the privilege sql.
 * The job's log records the caller.
 *
 * The archive does not keep all arguments of enqueue().  Timeout, backoff and similar values
 * are again those of the kind.  The new job has no unique key, and belongs to no batch,
 * because the batch may have finished.
 *
 * With from_step, the new job gets copies of the steps that were done before this step began, and
 * its procedure skips them.  The old job keeps its steps.  A dead letter is accepted only then,
 * because retry() runs a dead letter again from its last step on.
 *
 * src/operate/rerun.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

#include "attempt/attempt.h"
#include "operate/inner.h"
#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_rerun);

/* Columns read from jobq_internal.archive. */
enum
{
	OLD_ROLE = 1,
	OLD_QUEUE_ID,
	OLD_KIND,
	OLD_PAYLOAD,
	OLD_PRIORITY,
	OLD_MAX_ATTEMPTS,
	OLD_HEADERS,
	OLD_GROUP_KEY,
	OLD_CONTEXT,
	OLD_TAGS,
	OLD_LIMIT_COST,
};

/*
 * Raise the error for a job that is not in the archive.  The caller must be connected to SPI.
 */
static void
not_over(int64 id)
{
	static const Oid types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};
	HeapTuple	tuple;
	TupleDesc	desc;

	if (jobq_query("SELECT role::oid, queue_id, true FROM jobq_internal.dead_letter WHERE id = $1"
				   " UNION ALL SELECT role::oid, queue_id, false FROM jobq_internal.job WHERE id = $1",
				   1, types, values, NULL, SPI_OK_SELECT) == 0)
		jobq_no_such_job(id);
	tuple = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	if (!jobq_may(JOBQ_MAY_MONITOR,
				  DatumGetObjectId(jobq_column(tuple, desc, 1, OIDOID, NULL)),
				  DatumGetInt32(jobq_column(tuple, desc, 2, INT4OID, NULL))))
		jobq_no_such_job(id);
	if (DatumGetBool(jobq_column(tuple, desc, 3, BOOLOID, NULL)))
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("job " INT64_FORMAT " is a dead letter", id),
				 errhint("It is run again, under its id, by jobq.retry(). With from_step, jobq.rerun() makes a new job of it.")));
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_WRONG_STATE),
			 errmsg("job " INT64_FORMAT " has not finished", id),
			 errhint("Only a job that is completed, cancelled or expired can be run once more.")));
}

/*
 * Return the headers of the old job, with the job's id added.  Other headers than an object
 * stay unchanged.
 */
static Datum
headers_of(int64 id, Datum headers, bool isnull)
{
	Datum		added = jobq_text_to_jsonb(psprintf("{\"rerun_of\": " INT64_FORMAT "}", id));

	if (isnull)
		return added;
	if (!JB_ROOT_IS_OBJECT(DatumGetJsonbP(headers)))
		return headers;
	return DirectFunctionCall2(jsonb_concat, headers, added);
}

/*
 * Copy the steps of the old job that were done before this step began.  ERROR if there is no such
 * step.  The caller must be connected to SPI.
 */
static void
copy_steps(int64 id, int64 new_id, Datum from_step)
{
	static const Oid types[] = {INT8OID, INT8OID, TEXTOID};
	Datum		values[] = {Int64GetDatum(id), Int64GetDatum(new_id), from_step};
	const char *name = TextDatumGetCString(from_step);

	if (name[0] == '\0' ||
		jobq_query("SELECT FROM jobq_internal.procedure_step WHERE job_id = $1 AND $2 IS NOT NULL AND name = $3",
				   lengthof(types), types, values, NULL, SPI_OK_SELECT) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("job " INT64_FORMAT " has no step \"%s\"", id, name),
				 errhint("jobq.history(" INT64_FORMAT ") shows its steps.", id)));
	(void) jobq_query("INSERT INTO jobq_internal.procedure_step (job_id, begun_at, token, version, type, name, until, done_at, signal, result)"
					  " SELECT $2, s.begun_at, 0, s.version, s.type, s.name, s.until, s.done_at, s.signal, s.result"
					  " FROM jobq_internal.procedure_step s JOIN jobq_internal.procedure_step f ON f.job_id = $1 AND f.name = $3"
					  " WHERE s.job_id = $1 AND s.name <> $3 AND s.begun_at <= f.begun_at AND s.done_at <= f.begun_at",
					  lengthof(types), types, values, NULL, SPI_OK_INSERT);
}

/*
 * rerun(id, from_step): enqueue a finished job once more, and return the id of the new job.  With
 * from_step, also a dead letter, without the steps before this step.  ERROR if the job is not over,
 * if the payload was not kept, if there is no such step, and without the necessary privileges.
 */
Datum
jobq_rerun(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {INT8OID, BOOLOID};
	static const struct
	{
		int			column;
		int			option;
		Oid			type;
	}			kept[] = {
		{OLD_PRIORITY, OPTION_PRIORITY, INT4OID},
		{OLD_MAX_ATTEMPTS, OPTION_MAX_ATTEMPTS, INT4OID},
		{OLD_GROUP_KEY, OPTION_GROUP_KEY, TEXTOID},
		{OLD_CONTEXT, OPTION_CONTEXT, JSONBOID},
		{OLD_TAGS, OPTION_TAGS, TEXTARRAYOID},
	};
	int64		id = PG_ARGISNULL(0) ? 0 : PG_GETARG_INT64(0);
	bool		from_step = !PG_ARGISNULL(1);
	Datum		values[] = {Int64GetDatum(id), BoolGetDatum(from_step)};
	Datum		options[NOPTIONS];
	bool		nulls[NOPTIONS];
	JobqQueue	buffer;
	const JobqQueue *queue;
	JobqHandler handler_buffer;
	const JobqHandler *handler;
	HeapTuple	tuple;
	TupleDesc	desc;
	Datum		payload;
	Datum		headers;
	bool		isnull;
	char	   *kind;
	Oid			role;
	JobqRoleState caller;
	int32		queue_id;
	JobqJob		job;
	JobqUnique	unique;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	PreventCommandIfReadOnly("jobq.rerun()");
	jobq_pin_queues();
	SPI_connect();
	if (jobq_query("SELECT role::oid, queue_id, kind, payload, priority, max_attempts, headers, group_key, context, tags, limit_cost"
				   " FROM jobq_internal.archive WHERE id = $1 UNION ALL"
				   " SELECT role::oid, queue_id, kind, payload, priority, max_attempts, headers, group_key, context, tags, limit_cost"
				   " FROM jobq_internal.dead_letter WHERE id = $1 AND $2",
				   lengthof(types), types, values, NULL, SPI_OK_SELECT) == 0)
		not_over(id);
	tuple = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	role = DatumGetObjectId(jobq_column(tuple, desc, OLD_ROLE, OIDOID, NULL));
	queue_id = DatumGetInt32(jobq_column(tuple, desc, OLD_QUEUE_ID, INT4OID, NULL));
	jobq_check_may_write("rerun", id, role, queue_id);
	payload = jobq_column(tuple, desc, OLD_PAYLOAD, JSONBOID, &isnull);
	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("job " INT64_FORMAT " was kept without its payload", id),
				 errhint("Enqueue it with jobq.enqueue(). Jobs of a queue with keep = all can be run once more.")));
	queue = jobq_queue_by_id(queue_id, &buffer);
	if (queue == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the queue of job " INT64_FORMAT " does not exist any more", id),
				 errhint("Enqueue it with jobq.enqueue() into another one.")));

	memset(nulls, true, sizeof(nulls));
	for (int i = 0; i < (int) lengthof(kept); i++)
		options[kept[i].option] = jobq_column(tuple, desc, kept[i].column, kept[i].type,
											  &nulls[kept[i].option]);
	headers = jobq_column(tuple, desc, OLD_HEADERS, JSONBOID, &isnull);
	options[OPTION_HEADERS] = headers_of(id, headers, isnull);
	nulls[OPTION_HEADERS] = false;
	options[OPTION_QUEUE] = CStringGetTextDatum(queue->name);
	nulls[OPTION_QUEUE] = false;
	kind = TextDatumGetCString(jobq_column(tuple, desc, OLD_KIND, TEXTOID, NULL));

	jobq_become_role(role, &caller);
	jobq_prepare_kept_job(&job, &unique, kind, options, nulls);

	/* the carried settings of queue and kind may have changed */
	handler = jobq_find_place(kind, queue->name, &buffer, &handler_buffer);
	jobq_thin_context(&job, &buffer, handler != NULL && handler->carries);
	jobq_set_payload(&job, payload);

	/* no user code runs: the new job has the old cost */
	JOB(&job, JOB_LIMIT_COST) = jobq_column(tuple, desc, OLD_LIMIT_COST, INT4OID,
											&JOB_ISNULL(&job, JOB_LIMIT_COST));
	jobq_log_say(&job, psprintf("job " INT64_FORMAT " once more, by %s", id,
								GetUserNameFromId(caller.userid, false)));
	jobq_put_job(&job, &unique);
	jobq_unbecome_role(&caller);
	if (from_step)
		copy_steps(id, job_id(&job), PG_GETARG_DATUM(1));
	SPI_finish();
	jobq_audit(fcinfo, 1);
	PG_RETURN_INT64(job_id(&job));
}
