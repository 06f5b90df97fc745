/*-------------------------------------------------------------------------
 *
 * merge.c
 *	  The function that makes one payload of two: option "merge" of a job with a
 *	  unique key.
 *
 * It is called in the session that enqueues, as whoever enqueues, with the payload
 * of the job that waits and with that of the new one.  It is looked up by its
 * signature whenever it is needed, so whatever became of it meanwhile is seen.
 *
 * src/store/merge.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "fmgr.h"

#include "store/store.h"

static void merge_callback(void *arg);

/*
 * The function of that signature.  An error if there is none, if it is not one that
 * makes a jsonb of two, or if the user may not call it.
 */
Oid
jobq_merge_function(const char *signature)
{
	return jobq_user_function(signature, 2, JSONBOID, "cannot merge payloads",
							  "Write a function with two parameters of type jsonb, the payload of the job that waits and that of the new one, which returns jsonb.");
}

static void
merge_callback(void *arg)
{
	errcontext("merging the payload with that of job " INT64_FORMAT,
			   job_id((const JobqJob *) arg));
}

/*
 * The payload that the function makes of those of both jobs.  Code of the user's runs.
 */
Datum
jobq_merge_payloads(const char *signature, const JobqJob *waiting,
					const JobqJob *job)
{
	LOCAL_FCINFO(fcinfo, 2);
	FmgrInfo	flinfo;
	ErrorContextCallback context;
	Datum		result;

	context.callback = merge_callback;
	context.arg = unconstify(JobqJob *, waiting);
	context.previous = error_context_stack;
	error_context_stack = &context;
	fmgr_info(jobq_merge_function(signature), &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 2, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = JOB(waiting, JOB_PAYLOAD);
	fcinfo->args[0].isnull = false;
	fcinfo->args[1].value = JOB(job, JOB_PAYLOAD);
	fcinfo->args[1].isnull = false;
	result = FunctionCallInvoke(fcinfo);
	if (fcinfo->isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s returned null", signature),
				 errhint("A job has a payload; return 'null'::jsonb for an empty one.")));
	error_context_stack = context.previous;
	return result;
}
