/*-------------------------------------------------------------------------
 *
 * any.c
 *	  await_any(): a procedure waits for the first of several signals and jobs.
 *
 * The rules are those of await_signal() and ask().  A name is that of a step of ask(), or else
 * that of a signal.  The names are those of the present definition of the procedure, and are not
 * stored.
 *
 * src/durable/any.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "durable/inner.h"
#include "runner/runner.h"

PG_FUNCTION_INFO_V1(jobq_await_any);

/* Largest number of names. */
#define MAX_NAMES	100

/* Arguments of await_any(). */
enum
{
	ARG_NAMES,
	ARG_NAME,
	ARG_PAYLOAD,
	ARG_TIMEOUT,
	ARG_STEP
};

/* The names for which a procedure waits. */
typedef struct Names
{
	int			n;
	char	   *names[MAX_NAMES];
	StringInfoData waits_for;	/* as in jobq_internal.job */
}			Names;

/* Read the names.  ERROR if the array has a name that is not valid, or no element. */
static void
read_names(FunctionCallInfo fcinfo, Names * names)
{
	Datum	   *elements;
	bool	   *nulls;

	jobq_not_null(fcinfo, ARG_NAMES, "names");
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(ARG_NAMES), TEXTOID, -1, false, TYPALIGN_INT,
					  &elements, &nulls, &names->n);
	if (names->n < 1 || names->n > MAX_NAMES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("names has %d elements, but must have 1 to %d", names->n, MAX_NAMES)));
	for (int i = 0; i < names->n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("names must not contain null")));
		names->names[i] = TextDatumGetCString(elements[i]);
		durable_check_name(names->names[i], "name");
	}
}

/* The name of the step, which is needed if the names together are too long. */
static char *
step_of(FunctionCallInfo fcinfo, const Names * names)
{
	StringInfoData buf;

	if (!PG_ARGISNULL(ARG_STEP))
		return text_to_cstring(durable_name_arg(fcinfo, ARG_STEP, "step"));
	initStringInfo(&buf);
	for (int i = 0; i < names->n; i++)
		appendStringInfo(&buf, i == 0 ? "%s" : " or %s", names->names[i]);
	durable_check_name(buf.data, "step");
	return buf.data;
}

/*
 * Take the first signal, or the answers of the first step of ask() whose jobs have ended, in the
 * order of the names.  Returns the name, and sets *payload.  NULL if there is none; names->waits_for
 * is then the text for a suspension.  See durable_take_signal() for the lock.
 */
static const char *
take(const JobqCurrent *current, Names * names, const char *step, Datum *payload)
{
	initStringInfo(&names->waits_for);
	for (int i = 0; i < names->n; i++)
	{
		const char *name = names->names[i];
		DurableAnswers answers = {0};
		bool		over;

		if (!durable_asked(current, name, &answers, &over))
		{
			if (durable_take_signal(current, name, step, payload))
				return name;
			appendStringInfo(&names->waits_for, "%s%s", i == 0 ? "" : ", ",
							 durable_waits_for_signal(name));
		}
		else if (over)
		{
			*payload = answers.value;
			return name;
		}
		else
			appendStringInfo(&names->waits_for, "%s%s", i == 0 ? "" : ", ",
							 durable_waits_for_job(answers.witness, name));
	}
	return NULL;
}

/*
 * CALL await_any(names, name, payload, timeout, step): return the name that came, and its
 * payload; nulls after the timeout.  Suspend the job if none is there.  Commits if the wait ends.
 */
Datum
jobq_await_any(PG_FUNCTION_ARGS)
{
	const JobqCurrent *current = durable_require_commit(fcinfo, "jobq.await_any()");
	Names		names;
	char	   *step;
	TupleDesc	desc;
	StepRow		row;
	Datum		values[2];
	bool		nulls[2];

	read_names(fcinfo, &names);
	step = step_of(fcinfo, &names);
	desc = jobq_row_type(fcinfo, lengthof(values));
	if (!durable_find_step(current, step, PSTEP_ANY, &row))
	{
		durable_begin(current, step, PSTEP_ANY, &row);
		if (!PG_ARGISNULL(ARG_TIMEOUT))
			durable_set_limit(PG_GETARG_INTERVAL_P(ARG_TIMEOUT), "timeout", &row);
	}
	if (STEP_ISNULL(&row, PSTEP_DONE_AT))
	{
		Datum		payload;
		const char *name;

		name = take(current, &names, step, &payload);
		if (name == NULL)
		{
			durable_lock_signals(current);
			name = take(current, &names, step, &payload);
		}
		if (name != NULL)
		{
			STEP_SET(&row, PSTEP_SIGNAL, CStringGetTextDatum(name));
			STEP_SET(&row, PSTEP_RESULT, payload);
		}
		else if (!durable_is_over(&row))
			durable_suspend(current, &row, names.waits_for.data);
		durable_set_done(current, &row);
		durable_commit();
	}
	values[0] = STEP(&row, PSTEP_SIGNAL);
	nulls[0] = STEP_ISNULL(&row, PSTEP_SIGNAL);
	values[1] = STEP(&row, PSTEP_RESULT);
	nulls[1] = STEP_ISNULL(&row, PSTEP_RESULT);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}
