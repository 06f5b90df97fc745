/*-------------------------------------------------------------------------
 *
 * uuid.c
 *	  status() of a job by the uuid assigned by the client.
 *
 * src/operate/uuid.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/uuid.h"

#include "commit/commit.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_status_uuid);
PG_FUNCTION_INFO_V1(jobq_status_text);

/* Maximum length of an id as text.  A longer text is a uuid. */
#define MAX_ID_LENGTH	20

static Datum status_of(FunctionCallInfo fcinfo, Datum uuid);

/*
 * Return the status of the job with this uuid.  If jobs of several roles have the uuid, the
 * user's own job is preferred.  ERROR if the current user may see no job with the uuid.
 */
static Datum
status_of(FunctionCallInfo fcinfo, Datum uuid)
{
	ListCell   *lc;

	jobq_require(JOBQ_MAY_ALL);
	foreach(lc, jobq_jobs_of_uuid(uuid))
	{
		JobqStatus	status = {0};

		CHECK_FOR_INTERRUPTS();
		if (!jobq_look_up_if_there(*(int64 *) lfirst(lc), &status))
			continue;
		jobq_flush_before_telling();
		return jobq_status_datum(fcinfo, &status);
	}
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_NO_SUCH_JOB),
			 errmsg("there is no job with the uuid %s",
					DatumGetCString(DirectFunctionCall1(uuid_out, uuid))),
			 errhint("It may be another role's, or finished, and removed by retention or because its queue keeps nothing.")));
}

/*
 * status(uuid): the status of a job by uuid.  ERROR as in status_of().
 */
Datum
jobq_status_uuid(PG_FUNCTION_ARGS)
{
	PG_RETURN_DATUM(status_of(fcinfo, PG_GETARG_DATUM(0)));
}

/*
 * status(text): the status of a job by id or uuid, for a parameter without a type.  ERROR if
 * the text is neither, or if the current user may not see the job.
 */
Datum
jobq_status_text(PG_FUNCTION_ARGS)
{
	char	   *job = text_to_cstring(PG_GETARG_TEXT_PP(0));
	JobqStatus	status = {0};

	if (strlen(job) > MAX_ID_LENGTH)
		PG_RETURN_DATUM(status_of(fcinfo, DirectFunctionCall1(uuid_in, CStringGetDatum(job))));
	jobq_look_up(DatumGetInt64(DirectFunctionCall1(int8in, CStringGetDatum(job))),
				 &status);
	jobq_flush_before_telling();
	PG_RETURN_DATUM(jobq_status_datum(fcinfo, &status));
}
