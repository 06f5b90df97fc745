/*-------------------------------------------------------------------------
 *
 * trace.c
 *	  The trace of a job: the header traceparent, in the format of W3C Trace Context.
 *
 * The trace names the request behind the job.  The trace is shown where the job runs
 * (attempt/context.c, worker/runner/run.c), and is passed on to jobs enqueued by the handler.
 *
 * The header comes from the enqueuing client.  Only a value in the right format, which
 * consists of hexadecimal digits and hyphens, is ever copied.  Any other value is ignored
 * without an error, because the trace does not influence the job.
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

static void add_trace(JobqJob *job, const char *trace);

/* Return the value of the key in headers, or NULL. */
static JsonbValue *
find_key(Jsonb *headers, JsonbValue *value)
{
	if (!JB_ROOT_IS_OBJECT(headers))
		return NULL;
	return getKeyJsonValueFromContainer(&headers->root, KEY, strlen(KEY), value);
}

/*
 * Return whether the text consists of version, trace, parent and flags: "00-<32 digits>-<16
 * digits>-01".  A later version may have more fields after another hyphen.
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
 * Read the trace from headers, and convert it to version 00, which has one flag.  W3C Trace
 * Context requires this for traces of later versions.
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
 * Return the trace of a job in trace[JOBQ_TRACE_SIZE], or "" if it has none.  Reads the
 * headers, so that a transaction is required.
 */
void
jobq_trace(const JobqJob *job, char *trace)
{
	trace[0] = '\0';
	if (!JOB_ISNULL(job, JOB_HEADERS))
		(void) read_trace(DatumGetJsonbP(JOB(job, JOB_HEADERS)), trace);
}

/*
 * Add the trace of this session's running job to a new job.  Does nothing if the new job's
 * headers already have the key, or are not an object.  A handler called by perform() belongs
 * to the calling job.
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
 * Add the trace of another job, which causes this one.  Does nothing if this job's headers
 * already have the key, or are not an object.
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
 * Return headers in text form with the trace of this job, for a job caused by it, or NULL if
 * it has none.
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
