/*-------------------------------------------------------------------------
 *
 * merge.c
 *	  Merging of two payloads by a function: the option "merge" of a job with a unique key.
 *
 * The function is called in the enqueuing session, with the rights of the current user, and
 * with the payloads of the waiting and the new job.  The function is looked up by its
 * signature for each use, so that changes of the function are noticed.
 *
 * src/store/merge.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "fmgr.h"

#include "store/store.h"

/*
 * Return the function with this signature.  ERROR if it does not exist, if it is not f(jsonb,
 * jsonb) returning jsonb, or if the current user may not call it.
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
 * Return the payload merged by the function.  Runs code of the user.  ERROR if the function
 * returns null.
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
