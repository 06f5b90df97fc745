/*-------------------------------------------------------------------------
 *
 * handler.c
 *	  register() and unregister(): map a kind to a function.
 *
 * A role that may register a handler decides which code runs as the roles that enqueue.
 * EXECUTE on these functions is therefore only for roles trusted by all producers.
 *
 * src/attempt/handler.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/timestamp.h"

#include "store/store.h"
#include "ready/ready.h"

PG_FUNCTION_INFO_V1(jobq_register);
PG_FUNCTION_INFO_V1(jobq_unregister);

/* Number of jobs that a call of a set handler takes at most, unless chunk is given. */
#define DEFAULT_CHUNK	100

/* Maximum of chunk_wait, in milliseconds. */
#define MAX_CHUNK_WAIT	60000

static int64 allowance_arg(Datum text, int attribute);

static char *
check_kind(text *kind)
{
	char	   *name = text_to_cstring(kind);

	if (name[0] == '\0' ||
		strlen(name) + strlen(ON_FAILURE_PREFIX) > JOBQ_MAX_KIND_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("kind \"%s\" must have 1 to %d bytes", name,
						(int) (JOBQ_MAX_KIND_NAME - strlen(ON_FAILURE_PREFIX)))));
	if (strncmp(name, ON_FAILURE_PREFIX, strlen(ON_FAILURE_PREFIX)) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_RESERVED_NAME),
				 errmsg("kind \"%s\" is reserved", name),
				 errhint("Kinds that begin with \"%s\" run the on_failure handler of the kind that follows.",
						 ON_FAILURE_PREFIX)));
	if (strncmp(name, ON_EVENT_PREFIX, strlen(ON_EVENT_PREFIX)) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_RESERVED_NAME),
				 errmsg("kind \"%s\" is reserved", name),
				 errhint("Kinds that begin with \"%s\" are jobs of on_event().",
						 ON_EVENT_PREFIX)));
	if (strcmp(name, JOBQ_WORKFLOW_KIND) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_RESERVED_NAME),
				 errmsg("kind \"%s\" is reserved", name),
				 errhint("Its jobs stand for workflows in a batch: jobq.create_workflow().")));
	if (jobq_is_statement(name))
		ereport(ERROR,
				(errcode(ERRCODE_RESERVED_NAME),
				 errmsg("kind \"%s\" is reserved", name),
				 errhint("It is the kind of plain statements: jobq.enqueue_sql().")));
	return name;
}

static void
check_recycle(const char *word)
{
	static const char words[] = "never, each";

	if (jobq_word_number(words, word) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for recycle: \"%s\"", word),
				 errhint("It is one of %s.", words)));
}

/*
 * Raise an error unless the handler may have this value of chunk.  set: the handler takes
 * several jobs.
 */
static void
check_chunk(int chunk, bool set)
{
	if (chunk < 1 || chunk > JOBQ_MAX_CHUNK)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("chunk %d is out of range", chunk),
				 errhint("It must be from 1 to %d.", JOBQ_MAX_CHUNK)));
	if (!set)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("chunk %d is for a handler of several jobs", chunk),
				 errhint("Write the handler as f(jobs jobq.job_context[]), or omit chunk.")));
}

/*
 * Return chunk_wait in milliseconds, or 0 if calls do not wait for jobs.  Raises an error if the
 * value is out of range.  set: the handler takes several jobs.
 */
static int32
chunk_wait_arg(Interval *wait, bool set)
{
	int32		ms = (int32) jobq_interval_ms(wait, "chunk_wait", 0, MAX_CHUNK_WAIT);

	if (!set)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("chunk_wait of %d ms is for a handler of several jobs", ms),
				 errhint("Write the handler as f(jobs jobq.job_context[]), or omit chunk_wait.")));
	return ms;
}

/*
 * Return the function or procedure with this signature, and in *set whether it takes several
 * jobs.  Raises an error if there is none, or if it cannot be a handler.
 */
static Oid
handler_function(const char *signature, bool *set)
{
	JobqFunction function;
	Oid			proc;

	if (strchr(signature, '(') == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("handler \"%s\" lacks its parameter types", signature),
				 errhint("Write %s(), %s(jsonb), or %s(jsonb, jobq.job_context), whichever there is.",
						 signature, signature, signature)));
	proc = DatumGetObjectId(DirectFunctionCall1(regprocedurein,
												CStringGetDatum(signature)));
	jobq_check_signature(proc, &function);
	*set = function.set;
	if (isAnyTempNamespace(get_func_namespace(proc)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("handler \"%s\" is temporary", get_func_name(proc)),
				 errhint("It would be gone with this session, and is not seen by workers.")));
	return proc;
}

/* Raise an error unless all elements are SQLSTATEs, or classes of SQLSTATEs. */
static void
check_codes(ArrayType *array, const char *option)
{
	Datum	   *elems;
	bool	   *nulls;
	int			n;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elems, &nulls,
					  &n);
	for (int i = 0; i < n; i++)
	{
		const char *code = nulls[i] ? "" : TextDatumGetCString(elems[i]);
		size_t		length = strlen(code);

		if ((length != 5 && length != 2) ||
			strspn(code, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != length)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid element of %s: \"%s\"", option, code),
					 errhint("It is a SQLSTATE such as 40001, or the first two characters of all in a class, such as 40.")));
	}
}

/*
 * Convert a text such as '64 MB', the amount that a run may use, to bytes.  The minimum for
 * memory is higher, because a worker needs memory itself, without which no job could run.
 */
static int64
allowance_arg(Datum text, int attribute)
{
	static const char *const names[] = {"max_memory", "max_temp", "max_wal"};
	int64		least = attribute == HANDLER_MAX_MEMORY ? 8 * 1024 * 1024 : 1024;
	int64		bytes = DatumGetInt64(DirectFunctionCall1(pg_size_bytes, text));

	if (bytes < least)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of " INT64_FORMAT " bytes is out of range",
						names[attribute - HANDLER_MAX_MEMORY], bytes),
				 errhint("It must be at least " INT64_FORMAT " kB.", least / 1024)));
	return bytes;
}

/*
 * register(kind, handler, queue, priority, max_attempts, backoff, timeout, fail_on_timeout,
 * max_exceptions, max_running, rate, throttle, on_failure, carry, recycle, retry_on, fail_on,
 * max_memory, max_temp, max_wal, limiters, chunk, chunk_wait): define or change a kind.  Writes
 * nothing if the kind is so.
 */
Datum
jobq_register(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {
		TEXTOID, TEXTOID, TEXTOID, INT4OID, INT4OID, TEXTOID, INT4OID, BOOLOID,
		INT4OID, INT4OID, TEXTOID, TEXTOID, TEXTOID, TEXTARRAYOID, TEXTOID,
		TEXTARRAYOID, TEXTARRAYOID, INT8OID, INT8OID, INT8OID, TEXTARRAYOID, INT4OID,
		INT4OID
	};
	Datum		values[HANDLER_NATTS];
	char		nulls[HANDLER_NATTS + 1];
	bool		limited;
	bool		set;

	jobq_require_all(JOBQ_MAY_MANAGE, "register a handler");
	jobq_not_null(fcinfo, 0, "kind");
	jobq_not_null(fcinfo, 1, "handler");
	for (int i = 0; i < HANDLER_NATTS; i++)
	{
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
		values[i] = PG_ARGISNULL(i) ? (Datum) 0 : PG_GETARG_DATUM(i);
	}
	nulls[HANDLER_NATTS] = '\0';

	(void) check_kind(PG_GETARG_TEXT_PP(0));
	values[HANDLER_HANDLER - 1] =
		CStringGetTextDatum(format_procedure_qualified(handler_function(text_to_cstring(PG_GETARG_TEXT_PP(1)),
																		&set)));

	if (!PG_ARGISNULL(HANDLER_QUEUE - 1))
	{
		JobqQueue	unused;

		(void) jobq_queue_by_name(text_to_cstring(PG_GETARG_TEXT_PP(HANDLER_QUEUE - 1)),
								  true, &unused);
	}
	if (!PG_ARGISNULL(HANDLER_MAX_ATTEMPTS - 1) &&
		PG_GETARG_INT32(HANDLER_MAX_ATTEMPTS - 1) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_attempts %d is out of range",
						PG_GETARG_INT32(HANDLER_MAX_ATTEMPTS - 1)),
				 errhint("It must be at least 1, or 0 for no limit.")));
	if (!PG_ARGISNULL(HANDLER_BACKOFF - 1))
	{
		JobqBackoff unused;

		jobq_backoff_parse(text_to_cstring(PG_GETARG_TEXT_PP(HANDLER_BACKOFF - 1)),
						   &unused);
	}
	if (!PG_ARGISNULL(HANDLER_TIMEOUT - 1))
		values[HANDLER_TIMEOUT - 1] =
			Int32GetDatum((int32) jobq_interval_ms(PG_GETARG_INTERVAL_P(HANDLER_TIMEOUT - 1),
												   "timeout", 1, PG_INT32_MAX));
	if (!PG_ARGISNULL(HANDLER_MAX_EXCEPTIONS - 1) &&
		PG_GETARG_INT32(HANDLER_MAX_EXCEPTIONS - 1) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_exceptions %d is out of range",
						PG_GETARG_INT32(HANDLER_MAX_EXCEPTIONS - 1)),
				 errhint("It must be at least 1.")));
	if (!PG_ARGISNULL(HANDLER_MAX_RUNNING - 1) &&
		PG_GETARG_INT32(HANDLER_MAX_RUNNING - 1) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_running %d is out of range",
						PG_GETARG_INT32(HANDLER_MAX_RUNNING - 1)),
				 errhint("It must be at least 1.")));
	if (!PG_ARGISNULL(HANDLER_RATE - 1))
	{
		JobqRate	rate;

		jobq_rate_parse(text_to_cstring(PG_GETARG_TEXT_PP(HANDLER_RATE - 1)),
						&rate);
	}
	if (!PG_ARGISNULL(HANDLER_THROTTLE - 1))
	{
		JobqThrottle throttle;

		jobq_throttle_parse(text_to_cstring(PG_GETARG_TEXT_PP(HANDLER_THROTTLE - 1)),
							&throttle);
	}
	if (!PG_ARGISNULL(HANDLER_ON_FAILURE - 1))
	{
		char	   *on_failure = text_to_cstring(PG_GETARG_TEXT_PP(HANDLER_ON_FAILURE - 1));
		bool		of_set;

		values[HANDLER_ON_FAILURE - 1] =
			CStringGetTextDatum(format_procedure_qualified(handler_function(on_failure, &of_set)));
		if (of_set)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("on_failure \"%s\" takes several jobs", on_failure),
					 errhint("It is called for one job at a time: write f(jsonb) or f(jsonb, jobq.job_context).")));
	}
	if (!PG_ARGISNULL(HANDLER_CARRY - 1) &&
		!jobq_check_carry(PG_GETARG_ARRAYTYPE_P(HANDLER_CARRY - 1)))
		nulls[HANDLER_CARRY - 1] = 'n';
	if (!PG_ARGISNULL(HANDLER_RECYCLE - 1))
		check_recycle(text_to_cstring(PG_GETARG_TEXT_PP(HANDLER_RECYCLE - 1)));

	for (int i = HANDLER_RETRY_ON; i <= HANDLER_FAIL_ON; i++)
		if (!PG_ARGISNULL(i - 1))
			check_codes(PG_GETARG_ARRAYTYPE_P(i - 1),
						i == HANDLER_RETRY_ON ? "retry_on" : "fail_on");
	for (int i = HANDLER_MAX_MEMORY; i <= HANDLER_MAX_WAL; i++)
		if (!PG_ARGISNULL(i - 1))
			values[i - 1] = Int64GetDatum(allowance_arg(PG_GETARG_DATUM(i - 1), i));

	if (!PG_ARGISNULL(HANDLER_LIMITERS - 1) &&
		!jobq_check_limiters(PG_GETARG_ARRAYTYPE_P(HANDLER_LIMITERS - 1)))
		nulls[HANDLER_LIMITERS - 1] = 'n';
	if (set && PG_ARGISNULL(HANDLER_CHUNK - 1))
	{
		values[HANDLER_CHUNK - 1] = Int32GetDatum(DEFAULT_CHUNK);
		nulls[HANDLER_CHUNK - 1] = ' ';
	}
	else if (!PG_ARGISNULL(HANDLER_CHUNK - 1))
		check_chunk(PG_GETARG_INT32(HANDLER_CHUNK - 1), set);
	if (!PG_ARGISNULL(HANDLER_CHUNK_WAIT - 1))
	{
		int32		ms = chunk_wait_arg(PG_GETARG_INTERVAL_P(HANDLER_CHUNK_WAIT - 1), set);

		values[HANDLER_CHUNK_WAIT - 1] = Int32GetDatum(ms);
		nulls[HANDLER_CHUNK_WAIT - 1] = ms == 0 ? 'n' : ' ';
	}

	SPI_connect();
	if (jobq_query("SELECT FROM jobq_internal.handler WHERE kind = $1 AND"
				   " (handler, queue, priority, max_attempts, backoff, timeout_ms,"
				   " fail_on_timeout, max_exceptions, max_running, rate, throttle,"
				   " on_failure, carry, recycle, retry_on, fail_on,"
				   " max_memory, max_temp, max_wal, limiters, chunk, chunk_wait_ms)"
				   " IS NOT DISTINCT FROM ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,"
				   " $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)",
				   HANDLER_NATTS, types, values, nulls, SPI_OK_SELECT) > 0)
	{
		SPI_finish();
		PG_RETURN_VOID();
	}
	if (nulls[HANDLER_LIMITERS - 1] == ' ')
		jobq_lock_limiters(values[HANDLER_LIMITERS - 1]);
	limited = jobq_kind_is_limited(values[HANDLER_KIND - 1]);
	jobq_query("INSERT INTO jobq_internal.handler (kind, handler, queue, priority,"
			   " max_attempts, backoff, timeout_ms, fail_on_timeout, max_exceptions,"
			   " max_running, rate, throttle, on_failure, carry, recycle,"
			   " retry_on, fail_on, max_memory, max_temp, max_wal, limiters, chunk, chunk_wait_ms)"
			   " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)"
			   " ON CONFLICT (kind) DO UPDATE SET handler = excluded.handler,"
			   " queue = excluded.queue, priority = excluded.priority,"
			   " max_attempts = excluded.max_attempts,"
			   " backoff = excluded.backoff, timeout_ms = excluded.timeout_ms,"
			   " fail_on_timeout = excluded.fail_on_timeout,"
			   " max_exceptions = excluded.max_exceptions,"
			   " max_running = excluded.max_running, rate = excluded.rate,"
			   " throttle = excluded.throttle,"
			   " on_failure = excluded.on_failure, carry = excluded.carry,"
			   " recycle = excluded.recycle,"
			   " retry_on = excluded.retry_on, fail_on = excluded.fail_on,"
			   " max_memory = excluded.max_memory, max_temp = excluded.max_temp,"
			   " max_wal = excluded.max_wal,"
			   " limiters = excluded.limiters, chunk = excluded.chunk,"
			   " chunk_wait_ms = excluded.chunk_wait_ms",
			   HANDLER_NATTS, types, values, nulls, SPI_OK_INSERT);
	if (!limited && jobq_kind_is_limited(values[HANDLER_KIND - 1]))
		jobq_check_limited();
	SPI_finish();
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}

/* unregister(kind): remove the handler.  The attempts of waiting jobs will fail. */
Datum
jobq_unregister(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {TEXTOID};
	Datum		values[] = {PG_GETARG_DATUM(0)};

	jobq_require_all(JOBQ_MAY_MANAGE, "unregister a handler");
	SPI_connect();
	if (jobq_query("DELETE FROM jobq_internal.handler WHERE kind = $1", 1, types,
				   values, NULL, SPI_OK_DELETE) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_UNKNOWN_KIND),
				 errmsg("no handler is registered for kind \"%s\"",
						text_to_cstring(PG_GETARG_TEXT_PP(0)))));
	SPI_finish();
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}
