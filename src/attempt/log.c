/*-------------------------------------------------------------------------
 *
 * log.c
 *	  log(): lines that a handler writes about its job.
 *
 * They are kept in memory until the attempt ends, and then written with the
 * job's row, whichever table that goes to: so they stay although the handler's
 * transaction is rolled back.
 *
 * src/attempt/log.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "attempt/attempt.h"

PG_FUNCTION_INFO_V1(jobq_log);

/* Lines that are kept of a job, the last ones, and bytes of each. */
#define MAX_LINES		100
#define MAX_LINE		4000

static const char *const levels[] = {"debug", "info", "warning", "error"};

/*
 * log(message, level)
 */
Datum
jobq_log(PG_FUNCTION_ARGS)
{
	JobqCurrent *current = jobq_current;
	char	   *message;
	char	   *level;
	char		time[MAXDATELEN + 1];
	StringInfoData line;
	bool		known = false;
	MemoryContext old;

	/* what perform() runs belongs to the job that has called it */
	while (current != NULL && current->memory == NULL)
		current = current->outer;
	if (jobq_current == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("%s can only be called by a handler", "jobq.log()")));
	for (int i = 0; i < 2; i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not be null", i == 0 ? "message" : "level")));
	message = text_to_cstring(PG_GETARG_TEXT_PP(0));
	level = text_to_cstring(PG_GETARG_TEXT_PP(1));
	for (int i = 0; i < (int) lengthof(levels) && !known; i++)
		known = strcmp(level, levels[i]) == 0;
	if (!known)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid level \"%s\"", level),
				 errhint("It is debug, info, warning or error.")));

	/* perform() outside of a job has nowhere to keep it */
	if (current == NULL)
		PG_RETURN_VOID();
	message[pg_mbcliplen(message, strlen(message), MAX_LINE)] = '\0';

	old = MemoryContextSwitchTo(current->memory);
	initStringInfo(&line);
	appendStringInfo(&line, "{\"attempt\": %d, \"at\": ", current->attempt);
	(void) JsonEncodeDateTime(time, TimestampTzGetDatum(jobq_now()),
							  TIMESTAMPTZOID, NULL);
	escape_json(&line, time);
	appendStringInfo(&line, ", \"level\": \"%s\", \"message\": ", level);
	escape_json(&line, message);
	appendStringInfoChar(&line, '}');
	if (list_length(current->log) == MAX_LINES)
	{
		pfree(linitial(current->log));
		current->log = list_delete_first(current->log);
	}
	current->log = lappend(current->log, line.data);
	MemoryContextSwitchTo(old);
	PG_RETURN_VOID();
}

/*
 * The attempt has ended: add its lines to those of the job.
 */
void
jobq_log_keep(const JobqCurrent *current, JobqJob *job)
{
	StringInfoData lines;
	ListCell   *lc;
	Datum		log;
	int			excess;

	if (current->log == NIL)
		return;
	initStringInfo(&lines);
	foreach(lc, current->log)
	{
		appendStringInfoChar(&lines, lines.len == 0 ? '[' : ',');
		appendStringInfoString(&lines, lfirst(lc));
	}
	appendStringInfoChar(&lines, ']');
	log = jobq_text_to_jsonb(lines.data);
	if (!JOB_ISNULL(job, JOB_LOG))
		log = DirectFunctionCall2(jsonb_concat, JOB(job, JOB_LOG), log);
	excess = DatumGetInt32(DirectFunctionCall1(jsonb_array_length, log)) - MAX_LINES;
	for (; excess > 0; excess--)
		log = DirectFunctionCall2(jsonb_delete_idx, log, Int32GetDatum(0));
	JOB_SET(job, JOB_LOG, log);
}
