/*-------------------------------------------------------------------------
 *
 * uuid.c
 *	  Jobs by the uuid assigned by the client.
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

/*
 * Return the id of the job with this uuid.  If jobs of several roles have the uuid, the user's
 * own job is preferred.  ERROR if the current user may see no job with the uuid.
 */
int64
jobq_id_of_uuid(Datum uuid)
{
	ListCell   *lc;

	jobq_require(JOBQ_MAY_ALL);
	foreach(lc, jobq_jobs_of_uuid(uuid))
	{
		JobqStatus	status = {0};

		CHECK_FOR_INTERRUPTS();
		if (jobq_look_up_if_there(*(int64 *) lfirst(lc), &status))
			return *(int64 *) lfirst(lc);
	}
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_NO_SUCH_JOB),
			 errmsg("there is no job with the uuid %s",
					DatumGetCString(DirectFunctionCall1(uuid_out, uuid))),
			 errhint("It may be another role's, or finished, and removed by retention or because its queue keeps nothing.")));
}

/*
 * Return the id of a job that is given by id or uuid, for a parameter without a type.  ERROR if
 * the text is neither, and as in jobq_id_of_uuid().
 */
int64
jobq_id_of_text(const text *job)
{
	char	   *id = text_to_cstring(job);

	return strlen(id) > MAX_ID_LENGTH
		? jobq_id_of_uuid(DirectFunctionCall1(uuid_in, CStringGetDatum(id)))
		: DatumGetInt64(DirectFunctionCall1(int8in, CStringGetDatum(id)));
}

static Datum
status_of(FunctionCallInfo fcinfo, int64 id)
{
	JobqStatus	status = {0};

	jobq_look_up(id, &status);
	jobq_flush_before_telling();
	return jobq_status_datum(fcinfo, &status);
}

/*
 * status(uuid): the status of a job by uuid.  ERROR as in jobq_id_of_uuid().
 */
Datum
jobq_status_uuid(PG_FUNCTION_ARGS)
{
	PG_RETURN_DATUM(status_of(fcinfo, jobq_id_of_uuid(PG_GETARG_DATUM(0))));
}

/*
 * status(text): the status of a job by id or uuid, for a parameter without a type.  ERROR if
 * the text is neither, or if the current user may not see the job.
 */
Datum
jobq_status_text(PG_FUNCTION_ARGS)
{
	PG_RETURN_DATUM(status_of(fcinfo, jobq_id_of_text(PG_GETARG_TEXT_PP(0))));
}
