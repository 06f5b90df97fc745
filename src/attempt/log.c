/*-------------------------------------------------------------------------
 *
 * log.c
 *	  log(): lines written about a job while it runs.
 *
 * The lines are in shared memory (src/ready/lines.h), where other sessions see them at once.
 * At the end of the attempt the lines are written with the job's row, in any of the three
 * tables.
 *
 * The lines of a handler are also in the memory of its worker.  All lines are therefore kept,
 * even if shared memory has no room, and even if the handler's transaction is rolled back.
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

/* Maximum length of a message, in bytes. */
#define MAX_LINE		4000

static const char *const levels[] = {"debug", "info", "warning", "error"};

static char *make_line(char *message, const char *level, int attempt);

/*
 * Return the line as a JSON object in text.  The arguments message and level of the SQL
 * function begin at index first.  Raises an error if they are not valid.
 */
char *
jobq_log_line(FunctionCallInfo fcinfo, int first, int attempt)
{
	char	   *message;
	char	   *level;
	bool		known = false;

	jobq_not_null(fcinfo, first, "message");
	jobq_not_null(fcinfo, first + 1, "level");
	message = text_to_cstring(PG_GETARG_TEXT_PP(first));
	level = text_to_cstring(PG_GETARG_TEXT_PP(first + 1));
	for (int i = 0; i < (int) lengthof(levels) && !known; i++)
		known = strcmp(level, levels[i]) == 0;
	if (!known)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid level \"%s\"", level),
				 errhint("It is debug, info, warning or error.")));
	return make_line(message, level, attempt);
}

/* Return the line as a JSON object in text.  The message is truncated in place. */
static char *
make_line(char *message, const char *level, int attempt)
{
	char		time[MAXDATELEN + 1];
	StringInfoData line;

	message[pg_mbcliplen(message, strlen(message), MAX_LINE)] = '\0';
	initStringInfo(&line);
	appendStringInfo(&line, "{\"attempt\": %d, \"at\": ", attempt);
	(void) JsonEncodeDateTime(time, TimestampTzGetDatum(jobq_now()),
							  TIMESTAMPTZOID, NULL);
	escape_json(&line, time);
	appendStringInfo(&line, ", \"level\": \"%s\", \"message\": ", level);
	escape_json(&line, message);
	appendStringInfoChar(&line, '}');
	return line.data;
}

/*
 * Return the job to which log lines of the running code belong, or NULL.  Code run by
 * perform() belongs to the calling job.
 */
static JobqCurrent *
whose_log(void)
{
	JobqCurrent *current = jobq_current;

	while (current != NULL && current->memory == NULL)
		current = current->outer;
	return current;
}

/*
 * Add a line to the lines of a job that runs here.  Lines of perform() belong to the calling job,
 * if any.
 */
void
jobq_log_add(JobqCurrent *current, const char *line)
{
	MemoryContext old;

	while (current != NULL && current->memory == NULL)
		current = current->outer;
	if (current == NULL)
		return;
	old = MemoryContextSwitchTo(current->memory);
	if (list_length(current->log) == JOBQ_MAX_LINES)
	{
		pfree(linitial(current->log));
		current->log = list_delete_first(current->log);
	}
	current->log = lappend(current->log, pstrdup(line));
	MemoryContextSwitchTo(old);
	if (current->slot != NULL)
		(void) jobq_lines_add(&current->slot->holding->lines, current->slot->role,
							  job_id(current->job), line);
}

/*
 * log(message, level)
 */
Datum
jobq_log(PG_FUNCTION_ARGS)
{
	JobqCurrent *current = whose_log();
	char	   *line;

	if (jobq_current == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("%s can only be called by a handler", "jobq.log()")));
	if (jobq_current->set)
		(void) jobq_require_current("jobq.log()");
	line = jobq_log_line(fcinfo, 0, current != NULL ? current->attempt : 1);
	jobq_log_add(current, line);
	PG_RETURN_VOID();
}

/*
 * Add a warning by jobq to the log of the running job.  The message may be truncated in place.
 */
void
jobq_log_warn(char *message)
{
	JobqCurrent *current = whose_log();

	if (current != NULL)
		jobq_log_add(current, make_line(message, "warning", current->attempt));
}

/*
 * Return the job's lines in shared memory as a JSON array in text, in the current memory
 * context; or NULL.  slot: of the job's worker, or NULL if a consumer has the job.  Without a
 * slot, takes db->lock in shared mode.
 */
char *
jobq_log_told(JobqDatabase *db, JobqSlot *slot, int64 id)
{
	Size		size = 0;
	Size		length = 0;
	char	   *lines = NULL;

	for (;;)
	{
		if (slot != NULL)
			length = jobq_lines_copy(&slot->holding->lines, id, lines, size);
		else
		{
			const JobqLease *lease;

			LWLockAcquire(db->lock, LW_SHARED);
			lease = jobq_lease_find(db, id);
			length = lease == NULL ? 0
				: jobq_lines_copy(&lease->lines, id, lines, size);
			LWLockRelease(db->lock);
		}
		if (length == 0)
			return NULL;
		if (length <= size)
			break;
		size = length + 1000;	/* there may be more by then */
		lines = palloc(size + 2);
	}
	lines[0] = '[';				/* for the comma before the first line */
	lines[length] = ']';
	lines[length + 1] = '\0';
	return lines;
}

/* Append lines to the job's log. */
static void
append_lines(JobqJob *job, char *lines)
{
	Datum		log = jobq_text_to_jsonb(lines);
	int			excess;

	if (!JOB_ISNULL(job, JOB_LOG))
		log = DirectFunctionCall2(jsonb_concat, JOB(job, JOB_LOG), log);
	excess = DatumGetInt32(DirectFunctionCall1(jsonb_array_length, log)) - JOBQ_MAX_LINES;
	for (; excess > 0; excess--)
		log = DirectFunctionCall2(jsonb_delete_idx, log, Int32GetDatum(0));
	JOB_SET(job, JOB_LOG, log);
}

/* The attempt has ended in its own worker: append the lines to the job. */
void
jobq_log_keep(const JobqCurrent *current, JobqJob *job)
{
	StringInfoData lines;
	ListCell   *lc;

	if (current->log == NIL)
		return;
	initStringInfo(&lines);
	foreach(lc, current->log)
	{
		appendStringInfoChar(&lines, lines.len == 0 ? '[' : ',');
		appendStringInfoString(&lines, lfirst(lc));
	}
	appendStringInfoChar(&lines, ']');
	append_lines(job, lines.data);
}

/*
 * The attempt has ended in another process: append the lines in shared memory.  For slot see
 * jobq_log_told().
 */
void
jobq_log_keep_told(JobqDatabase *db, JobqSlot *slot, JobqJob *job)
{
	char	   *lines;

	/* a process sees at least the lines it has written */
	if (db == NULL || jobq_shared->lines->shares.held[JOBQ_OF_CHUNKS] == 0)
		return;
	lines = jobq_log_told(db, slot, job_id(job));
	if (lines != NULL)
		append_lines(job, lines);
}

/*
 * Append a line by jobq itself to the job's log.  The caller writes the job's row.  The
 * message may be truncated in place.
 */
void
jobq_log_say(JobqJob *job, char *message)
{
	append_lines(job, psprintf("[%s]", make_line(message, "info",
												 job_attempt(job))));
}
