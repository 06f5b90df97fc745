/*-------------------------------------------------------------------------
 *
 * trace.c
 *	  The trace of a job: the traceparent of its headers, as W3C Trace Context
 *	  writes it.
 *
 * It names the request because of which a job was enqueued, and so is told wherever
 * the job is (attempt/context.c, worker/runner/run.c), and goes on to the jobs that
 * the job's handler enqueues.
 *
 * Whoever enqueues writes it.  So nothing but what has its form, in which there are
 * hexadecimal digits and hyphens only, is ever copied from there; what has not is as
 * if it were not there, and no error, as it says nothing about what a job is to do.
 *
 * src/store/trace.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_traceparent);

#define KEY		"traceparent"

static JsonbValue *find_key(Jsonb *headers, JsonbValue *value);
static bool is_trace(const char *text, int length);
static bool read_trace(Jsonb *headers, char *trace);
static void add_trace(JobqJob *job, const char *trace);

/*
 * What headers have under the key; NULL if nothing.
 */
static JsonbValue *
find_key(Jsonb *headers, JsonbValue *value)
{
	if (!JB_ROOT_IS_OBJECT(headers))
		return NULL;
	return getKeyJsonValueFromContainer(&headers->root, KEY, strlen(KEY), value);
}

/*
 * Is this version, trace, parent and flags, "00-<32 digits>-<16 digits>-01"?  A later
 * version may have more behind another hyphen.
 */
static bool
is_trace(const char *text, int length)
{
	static const char form[] = "vv-tttttttttttttttttttttttttttttttt-pppppppppppppppp-ff";
	bool		some_trace = false;
	bool		some_parent = false;

	StaticAssertStmt(sizeof(form) == JOBQ_TRACE_SIZE, "length of a traceparent");
	if (length < (int) strlen(form) ||
		(length > (int) strlen(form) &&
		 (strncmp(text, "00", 2) == 0 || text[strlen(form)] != '-')))
		return false;
	for (int i = 0; i < (int) strlen(form); i++)
	{
		char		c = text[i];

		if (form[i] == '-' ? c != '-'
			: !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
			return false;
		some_trace |= form[i] == 't' && c != '0';
		some_parent |= form[i] == 'p' && c != '0';
	}
	return some_trace && some_parent && strncmp(text, "ff", 2) != 0;
}

/*
 * Read the trace of headers, as version 00, which has one flag: a trace of a later version
 * goes on so, as W3C Trace Context wants it.
 */
static bool
read_trace(Jsonb *headers, char *trace)
{
	JsonbValue	value;

	if (find_key(headers, &value) == NULL || value.type != jbvString ||
		!is_trace(value.val.string.val, value.val.string.len))
		return false;
	memcpy(trace, value.val.string.val, JOBQ_TRACE_SIZE - 1);
	trace[JOBQ_TRACE_SIZE - 1] = '\0';
	if (strncmp(trace, "00", 2) != 0)
	{
		char	   *flags = trace + JOBQ_TRACE_SIZE - 3;

		memcpy(trace, "00", 2);
		flags[0] = '0';
		flags[1] = strchr("13579bdf", flags[1]) != NULL ? '1' : '0';
	}
	return true;
}

/*
 * The trace of a job, in JOBQ_TRACE_SIZE bytes; "" if it has none.  Reads the headers,
 * so it is called in a transaction.
 */
void
jobq_trace(const JobqJob *job, char *trace)
{
	trace[0] = '\0';
	if (!JOB_ISNULL(job, JOB_HEADERS))
		(void) read_trace(DatumGetJsonbP(JOB(job, JOB_HEADERS)), trace);
}

/*
 * Give a job that is being made in a handler the trace of the handler's job, unless its
 * headers have a key of that name, or are no object.  What perform() runs belongs to
 * the job that has called it.
 */
void
jobq_follow_trace(JobqJob *job)
{
	const JobqCurrent *current = jobq_current;

	while (current != NULL && current->memory == NULL)
		current = current->outer;
	if (current != NULL)
		add_trace(job, current->trace);
}

/*
 * Give a job the trace of the other because of which it is enqueued, unless its headers
 * have a key of that name, or are no object.
 */
void
jobq_add_trace(JobqJob *job, const JobqJob *other)
{
	char		trace[JOBQ_TRACE_SIZE];

	jobq_trace(other, trace);
	add_trace(job, trace);
}

static void
add_trace(JobqJob *job, const char *trace)
{
	JsonbValue	value;
	Datum		added;

	if (trace[0] == '\0')
		return;
	added = jobq_text_to_jsonb(psprintf("{\"" KEY "\": \"%s\"}", trace));
	if (!JOB_ISNULL(job, JOB_HEADERS))
	{
		Jsonb	   *headers = DatumGetJsonbP(JOB(job, JOB_HEADERS));

		if (!JB_ROOT_IS_OBJECT(headers) || find_key(headers, &value) != NULL)
			return;
		added = DirectFunctionCall2(jsonb_concat, JsonbPGetDatum(headers), added);
	}
	JOB_SET(job, JOB_HEADERS, added);
}

/*
 * Headers, in text, for a job because of that one: its trace; NULL if it has none.
 */
char *
jobq_trace_headers(const JobqJob *job)
{
	char		trace[JOBQ_TRACE_SIZE];

	jobq_trace(job, trace);
	return trace[0] == '\0' ? NULL : psprintf("{\"" KEY "\": \"%s\"}", trace);
}

/*
 * traceparent(headers)
 */
Datum
jobq_traceparent(PG_FUNCTION_ARGS)
{
	char		trace[JOBQ_TRACE_SIZE];

	if (!read_trace(PG_GETARG_JSONB_P(0), trace))
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(trace));
}
