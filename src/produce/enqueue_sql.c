/*-------------------------------------------------------------------------
 *
 * enqueue_sql.c
 *	  enqueue_sql(): enqueue a plain statement (statement.c).
 *
 * src/produce/enqueue_sql.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/builtins.h"

#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_enqueue_sql);

/*
 * enqueue_sql(sql, transaction, database, ...options) returns the job's id.
 */
Datum
jobq_enqueue_sql(PG_FUNCTION_ARGS)
{
	Datum		options[NOPTIONS];
	bool		nulls[NOPTIONS];
	JobqJob		job;
	JobqUnique	unique;

	jobq_not_null(fcinfo, 0, "sql");
	jobq_not_null(fcinfo, 1, "transaction");
	jobq_options_from_args(fcinfo, 3, options, nulls);
	jobq_prepare_job(&job, &unique, JOBQ_SQL_KIND, options, nulls);
	jobq_set_payload(&job,
					 jobq_statement_payload(text_to_cstring(PG_GETARG_TEXT_PP(0)),
											PG_GETARG_BOOL(1),
											PG_ARGISNULL(2) ? NULL
											: text_to_cstring(PG_GETARG_TEXT_PP(2))));
	jobq_put_job(&job, &unique);
	if (JOB_ISNULL(&job, JOB_ID))
		PG_RETURN_NULL();
	PG_RETURN_INT64(job_id(&job));
}
