/*-------------------------------------------------------------------------
 *
 * enqueue_result.c
 *	  enqueue_result(): as enqueue(), and what has come of it.
 *
 * It is here and not where enqueue() is, as it tells the state of a job.
 *
 * src/operate/enqueue_result.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "commit/commit.h"
#include "operate/inner.h"
#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_enqueue_result);

/*
 * enqueue_result(kind, payload, ...options) returns (id, state, duplicate).
 */
Datum
jobq_enqueue_result(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {INT8OID, TEXTOID, BOOLOID};
	char	   *kind = jobq_kind_from_arg(fcinfo, 0);
	Datum		options[NOPTIONS];
	bool		option_nulls[NOPTIONS];
	Datum		values[3];
	bool		nulls[3] = {0};
	TupleDesc	desc;
	JobqStatus	status = {0};
	JobqJob		job;
	JobqUnique	unique;
	int64		id;

	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("payload must not be null")));
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("jobq.enqueue_result() was called where its row cannot be returned")));
	jobq_check_types(desc, types, lengthof(types));
	jobq_options_from_args(fcinfo, 2, options, option_nulls);
	jobq_prepare_job(&job, &unique, kind, options, option_nulls);
	jobq_set_payload(&job, PG_GETARG_DATUM(1));
	id = job_id(&job);
	jobq_put_job(&job, &unique);

	values[0] = JOB(&job, JOB_ID);
	values[2] = BoolGetDatum(job_id(&job) != id);

	/* its window may go on after the job itself was removed */
	nulls[1] = !jobq_look_up_if_there(job_id(&job), &status);
	if (!nulls[1])
	{
		if (status.finished)
			jobq_flush_before_telling();
		values[1] = CStringGetTextDatum(status.state);
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}
